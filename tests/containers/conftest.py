"""Where no container engine answers, these tests cannot run: they say so loudly, in the last lines of the run."""

import functools

import pytest
from testcontainers.core.docker_client import DockerClient

_not_run: list[str] = []


@functools.cache
def _missing() -> str:
    """Say why there is no engine; nothing where there is one."""
    try:
        client = DockerClient().client
        client.ping()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is said
        return str(error)
    client.close()
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    why = _missing()
    if why:
        _not_run.append(item.nodeid)
        pytest.skip(f"no container engine: {why}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _not_run:
        terminalreporter.section("NO CONTAINER ENGINE", sep="!", red=True, bold=True)
        terminalreporter.line(f"{len(_not_run)} tests with containers were NOT run: {_missing()}", red=True)
        terminalreporter.line("Start an engine (Docker or Podman's socket), or set DOCKER_HOST, and run them again.")
