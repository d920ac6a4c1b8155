"""The tutorial, word by word: a wheel of this code is built and installed as the page says, and every line is typed."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet import __version__
from tests.docs.pages import DOCS, blocks
from tests.docs.terminal import Console

PAGE = DOCS / "tutorial.md"


@pytest.fixture
def home() -> Iterator[Path]:
    """A home of its own. Root's PostgreSQL runs as another account, which must be able to pass."""
    with tempfile.TemporaryDirectory(prefix="fleet-tutorial-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder).resolve()


@pytest.fixture
def environment(home: Path, tmp_path: Path) -> dict[str, str]:
    """What a user has, but that `pip install pgfleet` finds the wheel of this code, and says nothing of its own version."""
    quiet = ["--quiet", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", *quiet, "--no-deps", "--wheel-dir", tmp_path, DOCS.parent], check=True)
    cache = subprocess.run([*pip, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("FLEET_", "PG", "PYTEST", "COV", "PYTHON", "VIRTUAL_ENV"))
    }
    return kept | {
        "HOME": str(home),
        "PATH": os.pathsep.join([str(Path(sys.base_prefix) / "bin"), kept["PATH"]]),
        "PIP_CACHE_DIR": cache,
        "PIP_FIND_LINKS": f"{tmp_path} {kept.get('PIP_FIND_LINKS', '')}".strip(),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "VIRTUAL_ENV_DISABLE_PROMPT": "1",
    }


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_the_tutorial_can_be_followed_word_by_word(home: Path, environment: dict[str, str]) -> None:
    console = Console(home, environment, {"/home/you": str(home), "0.1.0": __version__})
    try:
        for block in blocks(PAGE):
            if "." in block.caption:
                (home / "shop" / block.caption).write_text(block.text)
            else:
                assert block.language == "console"
                console.run(block)
    finally:
        console.close()
