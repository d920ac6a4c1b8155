"""The long run: a mixed load while everything breaks; then a core is healed, all work ends, and the record is judged.

`python -m tests.chaos --seconds 600 --seed 7`. The exit status is the verdict, and the last line its summary.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.run import Run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("CHAOS_SECONDS") or 600))
    parser.add_argument(
        "--seed", type=int, default=int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))
    )
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the record goes (default: a new temporary folder)")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix=f"fleet-chaos-{given.seed}-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.jsonl")):
        parser.error(f"{folder} holds the record of a run already; name another --folder")
    print(
        f"chaos: seed {given.seed}, {given.seconds:g} s, {given.workers} workers; the record goes to {folder}",
        flush=True,
    )
    logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())  # that connections break is no news here
    began = time.monotonic()
    result = asyncio.run(Run(folder, given.seed, given.seconds, given.workers).go())
    result.show()
    (folder / "summary.json").write_text(json.dumps(result.record()) + "\n", encoding="utf-8")
    print(result.summary(time.monotonic() - began))
    return 0 if result.passed else 1


if __name__ == "__main__":
    sys.exit(main())
