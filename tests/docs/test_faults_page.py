"""The page of faults says what the tests say: no fault without a test or a reason, no test that is not there."""

import re
from pathlib import Path

import pytest

from tests.catalogue.collect import ROOT, Defence, defences
from tests.catalogue.faults import FAULTS
from tests.catalogue.page import PAGE, gaps, last_result, page, results
from tests.catalogue.plugin import keep
from tests.catalogue.reasons import NOT_TESTED
from tests.catalogue.recovery import recoveries

TEST = re.compile(r"\[`([^`]+)`\]\(\.\./([^)]+)\)")


@pytest.fixture(scope="module")
def marked(request: pytest.FixtureRequest) -> list[Defence]:
    return defences(request.config)


def test_every_fault_has_a_test_or_a_reason_and_every_mark_names_one_of_them(marked: list[Defence]) -> None:
    assert not list(gaps(marked))


def test_every_marked_test_is_on_the_page_and_every_test_on_the_page_is_marked(marked: list[Defence]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert {f"tests/{name}" for name, _ in TEST.findall(text)} == {each.test for each in marked}
    assert not [path for _, path in TEST.findall(text) if not (ROOT / path).is_file()]


def test_the_page_is_what_the_marks_and_the_last_results_make_it(marked: list[Defence]) -> None:
    made = page(marked, results(), list(recoveries()))
    assert PAGE.read_text(encoding="utf-8") == made, "write it anew: python -m tests.catalogue"


def test_a_fault_without_a_test_and_a_mark_of_no_fault_are_complained_of() -> None:
    known = [Defence(group, fault, "a", "b", ["a"]) for group, faults in FAULTS.items() for fault in faults]
    known = [each for each in known if (each.group, each.fault) not in NOT_TESTED]
    assert not list(gaps(known))
    assert list(gaps(known[1:])) == [f"{known[0].group}: {known[0].fault}: neither a test nor a reason"]
    (complaint,) = gaps([*known, Defence("Death", "boredom", "tests/x.py::test_y", "b", [])])
    assert complaint.startswith("Death: boredom: not in")
    excused = next(iter(NOT_TESTED))
    (complaint,) = gaps([*known, Defence(*excused, "tests/x.py::test_y", "b", [])])
    assert "said not to be tested" in complaint


def test_the_ends_of_all_cases_are_told() -> None:
    kept = {
        "t::a[1]": {"outcome": "passed", "seconds": 1.0, "date": "2026-01-01"},
        "t::a[2]": {"outcome": "failed", "seconds": 2.0, "date": "2026-01-02"},
    }
    assert last_result(["t::a[1]", "t::a[2]"], kept) == "1 passed, 1 failed; 3.0 s; 2026-01-02"
    assert last_result(["t::a[1]", "t::a[3]"], kept) == "passed; 1.0 s; 2026-01-01"
    assert last_result(["t::a[3]"], kept) == "has not run yet"


def test_results_of_a_part_of_the_tests_replace_those_of_this_part_only(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    old, new = {"outcome": "failed", "seconds": 1.0}, {"outcome": "passed", "seconds": 2.0}
    keep(path, {"a": old, "b": old})
    keep(path, {"b": new})
    assert results(path) == {"a": old, "b": new}
