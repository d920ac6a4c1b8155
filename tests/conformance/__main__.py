"""Run the suite against another server or under another Python, and say in one line how it went."""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.conformance.programs import Missing
from tests.conformance.targets import PYTHONS, ROOT, SERVERS, Target, python, server

WHAT = ("tests/postgres", "tests/worker", "tests/migrations")
ALL = (*WHAT, "tests/processes", "tests/http", "tests/cli", "tests/unit")
EXIT_MISSING = 77  # as Automake's: it was not tried


def run(target: Target, interpreter: str, what: Sequence[str], words: Sequence[str]) -> tuple[int, str]:
    """Run pytest and return its exit code and its line of counts; what it says goes through."""
    command = [
        interpreter, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile",
        "-m", "not faults and not containers", "--color=no", *target.words, *words, *what,
    ]  # fmt: skip
    environment = os.environ | {"FLEET_TEST_DATABASE_URL": target.url, "PYTHONDONTWRITEBYTECODE": "1"}
    counts = "it said no counts"
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            if re.search(r"\d+ (passed|failed|error)", line):
                counts = line.strip(" =\n")
    return process.returncode, counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "--server", choices=SERVERS, default="18", help="a major of PostgreSQL, and what is special there"
    )
    parser.add_argument("--python", choices=PYTHONS, help="default: the one that runs this")
    parser.add_argument("--all", action="store_true", help="the slow folders too")
    parser.add_argument("words", nargs="*", help="what else pytest is told, after --")
    given = parser.parse_args()
    name = f"server {given.server}, Python {given.python or sys.version.split()[0]}"
    began = time.monotonic()
    try:
        interpreter = str(python(given.python)) if given.python else sys.executable
        with server(given.server) as target:
            chosen = [folder for folder in (ALL if given.all else WHAT) if folder not in target.left_out]
            code, counts = run(target, interpreter, chosen, given.words)
            for folder, reason in target.left_out.items():
                print(f"left out: {folder}: {reason}")
    except Missing as missing:
        print(f"{name}: NOT RUN: {missing}")
        return EXIT_MISSING
    print(f"{name}: {'ok' if code == 0 else f'FAILED ({code})'} in {time.monotonic() - began:.0f} s: {counts}")
    return code


if __name__ == "__main__":
    sys.exit(main())
