"""Every metric that a rule or a panel asks for is one that is told, with the labels that are asked for."""

import re
from collections.abc import Iterator

import pytest

from tests.deploy.test_dashboard import expressions
from tests.deploy.test_rules import ROOT, rules

PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", re.MULTILINE)
HISTOGRAM = ("_bucket", "_sum", "_count")
PROMETHEUS = {"instance", "job", "le"}  # labels that come with every scrape, and with every histogram


def told() -> dict[str, set[str]]:
    """Return each series' name and its labels, by the reference, which a test compares with what is told."""
    found: dict[str, set[str]] = {}
    for name, kind, labels in ROW.findall(PAGE):
        words = set(re.findall(r"(?:^|, )`(\w+)`", labels))
        for suffix in HISTOGRAM if kind == "histogram" else ("",):
            found[name + suffix] = words
    return found


def asked() -> Iterator[str]:
    yield from (str(rule["expr"]) for rule in rules().values())
    yield from expressions()


@pytest.mark.parametrize("expression", sorted(set(asked())))
def test_what_is_asked_for_is_told(expression: str) -> None:
    names = re.findall(r"\bfleet_\w+", expression)
    assert names, expression
    unknown = set(names) - set(told())
    assert not unknown
    labels = set().union(*(told()[name] for name in names)) | PROMETHEUS
    for group in re.findall(r"\b(?:by|on|without) \(([\w, ]+)\)", expression):
        assert set(group.split(", ")) <= labels
    for name, matchers in re.findall(r"\b(fleet_\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', "", matchers))) <= told()[name]
