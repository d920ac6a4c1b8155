"""A virtual environment of its own for each peer: they need other versions of the same libraries, and one another Python."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

_INSTALL_SECONDS = 600
_ASK_SECONDS = 60
_VERSIONS = """
import importlib.metadata, json, platform, sys
versions = {name: importlib.metadata.version(name) for name in sys.argv[1:]}
print(json.dumps({**versions, "Python": platform.python_version()}))
"""
_CAN_MAKE = "import sys, venv; sys.exit(sys.version_info < ({}, {}))"


class NotInstalled(Exception):
    """A peer cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """What a peer needs. The first of `reported` is the peer itself; `python` is the oldest that it runs on."""

    requirements: tuple[str, ...]
    reported: tuple[str, ...]
    python: tuple[int, int] = (3, 11)


@dataclass(frozen=True, slots=True)
class Installed:
    """A peer's interpreter, and the versions of what is in it, in words."""

    python: Path
    version: str


PEERS = {
    "pgqueuer": Peer(("pgqueuer[asyncpg]>=1.6,<2", "uvloop"), ("pgqueuer", "asyncpg", "uvloop")),
    "awa": Peer(("awa-pg>=0.6.9,<0.7", "uvloop"), ("awa-pg", "uvloop")),
    "oban": Peer(("oban>=0.7,<0.8", "psycopg[binary,pool]", "uvloop"), ("oban", "psycopg", "uvloop"), (3, 12)),
    "procrastinate": Peer(
        ("procrastinate>=3.10,<4", "psycopg[binary,pool]", "uvloop"), ("procrastinate", "psycopg", "uvloop")
    ),
}


def default_folder() -> Path:
    """Return where the environments are kept from run to run."""
    return user_cache_path("fleet") / "bench-peers"


def install(name: str, folder: Path, say: Callable[[str], None]) -> Installed:
    """Return the peer's environment below the folder; make it first where there is none. Raises NotInstalled."""
    peer, home = PEERS[name], folder / name
    python = home / "bin" / "python"
    versions = _versions(python, peer)
    if versions is None:
        say(f"Installing {name} into {home} …")
        _run("venv", [_interpreter(name, peer.python), "-m", "venv", str(home)])
        _run("pip", [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *peer.requirements])
        versions = _versions(python, peer)
    if versions is None:
        raise NotInstalled(f"{home} does not hold {', '.join(peer.reported)} although pip found no fault")
    own, *others = versions.items()
    return Installed(python, f"{own[1]} ({', '.join(f'{other} {version}' for other, version in others)})")


def _versions(python: Path, peer: Peer) -> dict[str, str] | None:
    """Return the version of each reported distribution, and of Python; None where one is missing."""
    done = _output([str(python), "-c", _VERSIONS, *peer.reported])
    versions: dict[str, str] | None = json.loads(done) if done else None
    return versions


def _interpreter(name: str, at_least: tuple[int, int]) -> str:
    """Return the first Python that is new enough and can make environments. Raises NotInstalled."""
    for candidate in _candidates(at_least):
        # A shim of pyenv is on PATH for every version, and fails for those that are not chosen.
        if _output([candidate, "-c", _CAN_MAKE.format(*at_least)]) is not None:
            return candidate
    wanted = ".".join(map(str, at_least))
    raise NotInstalled(
        f"{name} needs Python {wanted} or newer: no python{wanted} on PATH and none in ~/.pyenv/versions"
    )


def _candidates(at_least: tuple[int, int]) -> Iterator[str]:
    wanted = ".".join(map(str, at_least))
    yield sys.executable
    found = shutil.which(f"python{wanted}")
    if found is not None:
        yield found
    for home in sorted((Path.home() / ".pyenv" / "versions").glob(f"{wanted}*"), reverse=True):
        yield str(home / "bin" / "python")


def _output(command: Sequence[str]) -> str | None:
    """Return what a command says; None where it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ASK_SECONDS)  # noqa: S603 - ours
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _run(what: str, command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS)  # noqa: S603 - ours
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{what}: {error}") from error
    if done.returncode:
        raise NotInstalled(f"{what} failed: {(done.stderr or done.stdout).strip()[-1000:]}")
