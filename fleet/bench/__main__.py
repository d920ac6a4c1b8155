"""Measure fleet against the bare loop: `python -m fleet.bench [tasks=60000] [slots=256] [rounds=3]`.

Both sides run in turn, each in a process and a database of its own, and the medians are compared: absolute figures move
with the machine, the ratio much less. The server is the embedded one, or what FLEET_BENCH_DATABASE_URL names.
"""

import os
import statistics
import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import psycopg
import psycopg.conninfo

from fleet.embedded import temporary

SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "4GB"}
SIDES = ("ceiling", "drain")


def measure(server_url: str, side: str, arguments: list[str]) -> dict[str, float]:
    """Run one side in a fresh database and return its figures by name."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS fleet_bench WITH (FORCE)")
        connection.execute("CREATE DATABASE fleet_bench")
    url = psycopg.conninfo.make_conninfo(server_url, dbname="fleet_bench")
    told = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", f"fleet.bench.{side}", *arguments],
        env=os.environ | {"DB": url},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {name: float(value) for name, value in (line.split()[:2] for line in told.splitlines())}


def main(arguments: list[str]) -> None:
    """Print each round, then the medians and their ratio."""
    rounds = int(arguments[2]) if len(arguments) > 2 else 3
    given = os.environ.get("FLEET_BENCH_DATABASE_URL")
    server: Any = nullcontext() if given else temporary(SETTINGS)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with server as running:
        for number in range(rounds):
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                figures = measure(given or running.url, side, arguments[:2])
                found[side].append(figures)
                shown = ", ".join(f"{name} {value:,.0f} /s" for name, value in figures.items())
                print(f"round {number + 1}  {'bare loop' if side == 'ceiling' else 'fleet':9}  {shown}", flush=True)
    for name in ("enqueue", "drain"):
        bare, ours = (statistics.median(figures[name] for figures in found[side]) for side in SIDES)
        print(f"{name}: fleet {ours:,.0f} /s, bare loop {bare:,.0f} /s, ratio {ours / bare:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
