"""Two hooks for pytest: which tests stand for which faults, and how they ended when they last ran.

`FLEET_FAULT_COLLECTION` names a file that is given the first, `FLEET_FAULT_RESULTS` one that keeps the second.
"""

import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

COLLECTION = "FLEET_FAULT_COLLECTION"
RESULTS = "FLEET_FAULT_RESULTS"

ALL = pytest.StashKey[list[dict[str, Any]]]()  # what the marks of this session say, if it has collected every test

_ended: dict[str, dict[str, Any]] = {}  # test → {"outcome", "seconds", "date"} of this session


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note what each mark says, before anything is left out."""
    path = os.environ.get(COLLECTION)
    if path:
        Path(path).write_text(json.dumps(marked(items)), encoding="utf-8")
    if config.args == config.getini("testpaths") and not config.getoption("ignore"):
        config.stash[ALL] = marked(items)


def marked(items: list[pytest.Item]) -> list[dict[str, Any]]:
    """Return what each mark says, with the cases that it stands on where a test has several."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for item in items:
        test = item.nodeid.partition("[")[0]
        for mark in item.iter_markers("fault"):
            group, fault = mark.args
            told = {"group": group, "fault": fault, "test": test, "oracle": oracle(item), "cases": []}
            found.setdefault((test, group, fault), told)["cases"].append(item.nodeid)
    return list(found.values())


def oracle(item: pytest.Item) -> str:
    """What a test holds to be right: the first line of its docstring, or else its name as a sentence."""
    words = (getattr(getattr(item, "function", None), "__doc__", None) or "").strip().partition("\n")[0]
    if not words:
        name = item.nodeid.rpartition("::")[2].partition("[")[0].removeprefix("test_").replace("_", " ")
        words = name[:1].upper() + name[1:]
    return words.rstrip(".")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "fault" not in report.keywords:
        return
    found = _ended.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
    found["seconds"] = round(found["seconds"] + report.duration, 1)
    found["date"] = datetime.now(UTC).date().isoformat()
    if hasattr(report, "wasxfail"):
        found["outcome"] = "expected to fail" if report.skipped else "failed"
    elif not report.passed:
        found["outcome"] = report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Add what ended to the file of results; of several processes the one that hears all of them writes."""
    path = os.environ.get(RESULTS)
    if path and _ended and not hasattr(session.config, "workerinput"):
        keep(Path(path), _ended)


def keep(path: Path, ended: dict[str, dict[str, Any]]) -> None:
    """Merge results into a file, one line for each test, while nobody else does."""
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        known = (json.loads(text) if text else {}) | ended
        lines = ",\n".join(f"{json.dumps(test)}: {json.dumps(known[test])}" for test in sorted(known))
        file.truncate(0)
        file.write(f"{{\n{lines}\n}}\n")
