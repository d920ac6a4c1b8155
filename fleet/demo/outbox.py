"""A file outside the database that stands for the outside world: what was written there cannot be taken back."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = "FLEET_DEMO_OUTBOX"


def location() -> Path:
    """Return where the outbox is: what the variable says, else one of this user in the folder for temporary files."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else Path(tempfile.gettempdir(), f"fleet-demo-outbox-{os.getuid()}.jsonl")


def append(line: Mapping[str, Any]) -> None:
    """Add one line of JSON. It is written by one call, so lines of several processes never mix."""
    data = f"{json.dumps(line)}\n".encode()
    descriptor = os.open(location(), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        written = os.write(descriptor, data)
    finally:
        os.close(descriptor)
    if written != len(data):
        raise OSError(f"only {written} of {len(data)} bytes went into {location()}: is the disk full?")


def read(path: Path) -> list[dict[str, Any]]:
    """Return all lines, in the order in which they were written; none where nothing was."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines()]
