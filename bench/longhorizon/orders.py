"""What the harness wants, as its environment variables say."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """`target_depth` is None where a rate is wanted. `paced`: standard input says how much, and when."""

    database_url: str
    target_depth: int | None
    paced: bool
    rate: float
    rate_file: str | None
    batch_max: int
    batch_seconds: float
    slots: int
    payload_bytes: int
    work_seconds: float
    sample_seconds: float
    instance: int

    def rate_now(self) -> float:
        """Return how many tasks a second are wanted: for a phase of high load the harness writes a number into a file."""
        try:
            return float(Path(self.rate_file).read_text(encoding="utf-8")) if self.rate_file else self.rate
        except (OSError, ValueError):  # it is just being written
            return self.rate


def read(environ: Mapping[str, str]) -> Orders:
    """Read the environment. Raises SystemExit naming what cannot be done."""

    def number(name: str, default: float) -> float:
        try:
            return float(environ.get(name) or default)
        except ValueError:
            raise SystemExit(f"{name} is {environ[name]!r}; write a number") from None

    def one_of(name: str, *known: str) -> str:
        value = environ.get(name) or known[0]
        if value not in known:
            raise SystemExit(f"{name} is {value!r}; this adapter knows {', '.join(known)}")
        return value

    if not environ.get("DATABASE_URL"):
        raise SystemExit("DATABASE_URL must name the database")
    one_of("SCENARIO", "long_horizon")
    fixed = one_of("PRODUCER_MODE", "fixed", "depth-target") == "fixed"
    paced = one_of("PRODUCER_PACING", "adapter", "harness") == "harness"
    return Orders(
        database_url=environ["DATABASE_URL"],
        target_depth=None if fixed else int(number("TARGET_DEPTH", 1000)),
        paced=paced and fixed and stat.S_ISFIFO(os.fstat(0).st_mode),
        rate=number("PRODUCER_RATE", 800),
        rate_file=environ.get("PRODUCER_RATE_CONTROL_FILE"),
        batch_max=max(1, int(number("PRODUCER_BATCH_MAX", 128))),
        batch_seconds=max(0.001, number("PRODUCER_BATCH_MS", 25) / 1000),
        slots=int(number("WORKER_COUNT", 32)),
        payload_bytes=int(number("JOB_PAYLOAD_BYTES", 256)),
        work_seconds=number("JOB_WORK_MS", 1) / 1000,
        sample_seconds=number("SAMPLE_EVERY_S", 5),
        instance=int(number("BENCH_INSTANCE_ID", 0)),
    )
