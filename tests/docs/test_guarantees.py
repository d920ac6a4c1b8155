"""The page of guarantees has every promise, each with tests that are there, and the recovery times that were measured."""

import re

import pytest

from tests.catalogue.collect import ROOT
from tests.catalogue.page import GUARANTEES, with_recovery_times
from tests.catalogue.recovery import Recovery, bound, recoveries

TEXT = GUARANTEES.read_text(encoding="utf-8")
SAFETY = re.compile(r"^### (S\d+): (.*?)(?=^#)", re.MULTILINE | re.DOTALL)
LIVENESS = re.compile(r"^\| \*\*(L\d+)\*\* \|(.*)$", re.MULTILINE)
LINK = re.compile(r"\]\(\.\./(tests/[^)]+)\)")
WITHOUT = {"S13", "S14"}  # nothing of them is built yet


def promises() -> dict[str, str]:
    return dict(SAFETY.findall(TEXT)) | dict(LIVENESS.findall(TEXT))


def test_every_promise_is_there_in_order() -> None:
    safety, liveness = [f"S{number}" for number in range(1, 23)], [f"L{number}" for number in range(1, 14)]
    assert list(promises()) == safety + liveness


@pytest.mark.parametrize("code", promises())
def test_a_promise_names_the_tests_that_defend_it_or_says_that_it_is_not_there_yet(code: str) -> None:
    words = promises()[code]
    if code in WITHOUT:
        assert "*not there yet*" in words
    else:
        assert LINK.findall(words)


def test_every_test_that_is_named_is_there() -> None:
    named = set(LINK.findall(TEXT))
    assert len(named) > 20
    assert not [path for path in named if not (ROOT / path).is_file()]


def test_the_recovery_times_are_those_that_were_measured() -> None:
    assert with_recovery_times(TEXT, list(recoveries())) == TEXT, "write them anew: python -m tests.catalogue"


def test_recovery_times_are_written_with_their_bound_and_without_touching_the_rest() -> None:
    measured = [Recovery("SIGKILL", 2.0, 3, 2.5, 2.75, bound("SIGKILL", 2.0))]
    made = with_recovery_times(TEXT, measured)
    assert "| SIGKILL | 2 | 3 | 2.50 | 2.75 | 2.80 |\n" in made
    assert with_recovery_times(made, list(recoveries())) == TEXT
    assert bound("a child of the supervisor is killed", 30.0) is None
