"""What the figures were measured on: without it no figure can be compared with another."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from fleet import __version__

_SETTINGS = ("server_version", "shared_buffers", "fsync", "synchronous_commit", "max_wal_size", "wal_level")


def describe(server_url: str) -> dict[str, Any]:
    """Return the processor, the system, and the settings of the server that decide about speed."""
    with psycopg.connect(server_url) as connection:
        server = {name: connection.execute("SELECT current_setting(%s)", (name,)).fetchone() for name in _SETTINGS}
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "fleet": __version__,
        "postgresql": {name: row[0] for name, row in server.items() if row is not None},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
