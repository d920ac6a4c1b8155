"""The image that replicas in containers run: the one that FLEET_TEST_IMAGE names, or one built from this checkout."""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from fleet.errors import ConfigurationError

VARIABLE = "FLEET_TEST_IMAGE"
_NAME = "fleet-testing"
_SOURCES = ("fleet", "alembic", "deploy/Dockerfile", "pyproject.toml")
_LABEL = "org.pgfleet.image"  # what the Dockerfile labels its images with, those of its stages too


@functools.cache
def image() -> str:
    """Return the name of an image with pgfleet whose entry point is `fleet`; build it where this code was not built yet."""
    from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415 - an extra

    given = os.environ.get(VARIABLE)
    if given:
        return given
    checkout = Path(str(files("fleet"))).parent
    if not (checkout / "deploy" / "Dockerfile").is_file():
        raise ConfigurationError(
            f"no image was named: set {VARIABLE} to one that has pgfleet and what your handlers import, "
            "with `fleet` as its entry point"
        )
    engine, tag = DockerClient().client, f"{_NAME}:{_digest(checkout)}"
    if not engine.images.list(tag):
        build(engine, checkout, tag)
        _forget_others(engine, tag)
    return tag


def build(engine: Any, checkout: Path, tag: str) -> None:
    """Build the image of a checkout: the wheels are made out here, so that the build needs no network."""
    with tempfile.TemporaryDirectory(prefix="fleet-image-") as name:
        context = Path(name)
        shutil.copy(checkout / "deploy" / "Dockerfile", context)
        _make_wheels(checkout, context / "wheels")
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        engine.images.build(path=name, tag=tag, buildargs={"PYTHON": version}, rm=True)


def _make_wheels(checkout: Path, folder: Path) -> None:
    """Make the wheels of pgfleet and of all that it needs, for the Python version of this process."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--wheel-dir", str(folder), str(checkout)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    if done.returncode != 0:
        raise RuntimeError(f"pip wheel ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def _forget_others(engine: Any, tag: str) -> None:
    """Remove the images of other states of the code, half a gigabyte each, where no container uses them."""
    for other in engine.images.list(_NAME):
        for name in other.tags:
            if name.startswith(f"{_NAME}:") and name != tag:
                with suppress(Exception):  # it is in use
                    engine.images.remove(name)
    engine.images.prune(filters={"dangling": True, "label": _LABEL})


def _digest(checkout: Path) -> str:
    """Return what changes whenever what goes into the image does."""
    digest = hashlib.sha256(sys.version.encode())
    for source in _SOURCES:
        path = checkout / source
        for file in sorted(path.rglob("*.*")) if path.is_dir() else [path]:
            if file.is_file() and file.suffix != ".pyc":
                digest.update(f"{file.relative_to(checkout)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]
