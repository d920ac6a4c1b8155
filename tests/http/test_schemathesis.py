"""What nobody thought of: thousands of requests made from the OpenAPI document, right and wrong, while a worker works."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.http.running import Running, environment

WORKER = ("-m", "fleet", "worker", "run", "tests.http.shop:app", "--log=json")
CASES_MIN = 2000
SECONDS_MAX = 170


@pytest.mark.faults
def test_no_request_that_the_document_allows_or_forbids_meets_an_answer_that_it_does_not_tell(
    database_url: str, tmp_path: Path
) -> None:
    with (
        Running(tmp_path, database_url) as running,
        Running(tmp_path, database_url, program=WORKER, FLEET_SLOTS="1000") as worker,
    ):
        worker.wait_for("lease granted")
        done = subprocess.run(
            [
                sys.executable, "-m", "schemathesis.cli", "run", f"{running.address}/openapi.json", "--no-color",
                "--checks=all", "--max-examples=60", "--seed=7",
            ],
            cwd=tmp_path,
            env=environment(None, SCHEMATHESIS_HOOKS="tests.http.hooks"),
            capture_output=True,
            encoding="utf-8",
            timeout=SECONDS_MAX,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    cases = re.search(r"([\d,]+) generated", done.stdout)
    assert cases is not None, done.stdout
    assert int(cases[1].replace(",", "")) >= CASES_MIN, done.stdout
    assert not running.said("request broken by a defect of fleet")
    assert "Traceback" not in running.words
