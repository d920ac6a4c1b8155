"""Where a tool is missing, what it would test is not tested: that is said loudly, in the last lines of the run."""

import shutil
from collections.abc import Callable

import pytest

_missing: dict[str, list[str]] = {}


@pytest.fixture
def tool(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Returns the path of a program, and skips the test where there is none."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            _missing.setdefault(name, []).append(request.node.nodeid)
            pytest.skip(f"{name} is not installed")
        return path

    return find


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, tests in _missing.items():
        terminalreporter.section(f"NO {name.upper()}", sep="!", red=True, bold=True)
        terminalreporter.line(f"{len(tests)} tests of deploy/ were NOT run: {', '.join(tests)}", red=True)
