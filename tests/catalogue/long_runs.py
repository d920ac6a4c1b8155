"""What the long runs have shown, from the lines that `make chaos` leaves as `summary.json`: one run a line."""

import json
from pathlib import Path

FILE = Path(__file__).with_name("long_runs.jsonl")
COLUMNS = ("seed", "seconds", "tasks accepted", "kills", "pauses past the TTL", "crashes of the server", "replies cut off",
           "late reports refused", "all ended after", "verdict", "date")  # fmt: skip
WORDS = """\
Five workers, four clients, and 22 kinds of fault by the dice of a seed, several at a time; a snapshot that is held from the
first second to the last, over every crash. Then two workers are made well, the others left stopped, cut off or dead, until
everything has ended; and the record is judged by `fleet verify`. *All ended after*: seconds from the last fault on.

![What was finished each second of a run of ten minutes, and what was broken meanwhile](faults/timeline.png)

"""


def rows(path: Path = FILE) -> list[tuple[str, ...]]:
    """Return one row for each run, in the order in which they were added."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [tuple(str(json.loads(line)[column]) for column in COLUMNS) for line in lines]
