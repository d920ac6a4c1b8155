"""What a run of the suite needs: a server, and a Python that has the project and its test tools."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg

from tests.conformance.cluster import Cluster
from tests.conformance.exceptions import LEFT_OUT, SILENT_LEFT_OUT
from tests.conformance.pooler import Pooler
from tests.conformance.programs import Missing, binaries, cache, install, locked
from tests.conformance.room import room

SILENT = "18 without notifications"
SERVERS = ("15", "17", "18", "pgbouncer", SILENT)
PYTHONS = ("3.11", "3.12", "3.13")
ROOT = Path(__file__).parents[2]
_SETTINGS = {"fsync": "off", "max_connections": "300", "shared_buffers": "256MB"}


class Target(NamedTuple):
    """A server by its URL, what pytest has to be told besides, and which folders cannot hold there: folder → reason."""

    url: str
    words: tuple[str, ...] = ()
    left_out: Mapping[str, str] = {}


@contextmanager
def server(name: str) -> Iterator[Target]:
    """Run one of SERVERS. Raises Missing."""
    major = "18" if name in ("pgbouncer", SILENT) else name
    with room() as lent:
        cluster = Cluster(lent, binaries(major), _SETTINGS).start()
        if name == SILENT:
            yield Target(cluster.url, ("-p", "tests.conformance.silent"), SILENT_LEFT_OUT)
            return
        if name != "pgbouncer":
            yield Target(cluster.url)
            return
        give_role_what_sessions_ask_for(cluster.url)
        # Each transaction has a connection of its own, which is the worst that a pooler may do to a session.
        pooler = Pooler(lent, cluster.url, settings={"server_lifetime": "0"}).start()
        yield Target(pooler.url, ("-p", "tests.conformance.plugin"), LEFT_OUT)


def give_role_what_sessions_ask_for(url: str) -> None:
    """What PgBouncer drops is a setting of the role instead, as `fleet doctor` says it."""
    with psycopg.connect(url, autocommit=True) as connection:
        for name, value in (("default_transaction_isolation", "read committed"), ("jit", "off"), ("timezone", "UTC")):
            connection.execute(f"ALTER ROLE postgres SET {name} = '{value}'")


def python(version: str) -> Path:
    """Return an interpreter of this version with the project's dependencies, made once for each state of pyproject.toml."""
    base = _interpreter(version)
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    stamp, folder = "\n".join((str(base), text)), cache() / f"python-{version}"
    with locked(folder):
        made = folder / "made-from"
        if not made.exists() or made.read_text(encoding="utf-8") != stamp:
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([base, "-m", "venv", folder], check=True)
            install(str(folder / "bin" / "python"), "-e", f"{ROOT}[embedded,dev]")
            made.write_text(stamp, encoding="utf-8")
    return folder / "bin" / "python"


def _interpreter(version: str) -> Path:
    """Find Python of this version: in PATH, else among pyenv's."""
    found = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    others = sorted(pyenv.glob(f"{version}.*/bin/python{version}"), reverse=True)  # what is in PATH may be a mere shim
    for path in ([Path(found)] if found else []) + others:
        asked = [str(path), "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return path
    raise Missing(f"there is no Python {version}: put python{version} into PATH, or `pyenv install {version}`")
