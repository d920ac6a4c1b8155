"""Every example of the guides runs, in the order of its page, and prints what the page says."""

import ast
import re
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio.to_thread
import pytest

from fleet import Fleet
from tests.docs.pages import DOCS, Block, blocks
from tests.docs.terminal import Console

PAGES = [*sorted((DOCS / "guides").glob("*.md")), DOCS / "reference" / "settings.md", DOCS / "reference" / "python.md"]
PRINTED = re.compile(r"^\s*print\(.*\)  # (.*)$", re.MULTILINE)
LONG = {"killing-a-replica", "verifying", "testing-your-handlers"}
READ_ONLY = {"text", "json", "sql"}  # what is only shown: nothing of it can be run


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.faults] * (page.stem in LONG), id=page.stem) for page in PAGES],
)
async def test_the_examples_run(
    page: Path, folder: Path, console: Console, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType(f"guide_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks(page):
        try:
            match block.language, block.caption:
                case "console", _:
                    await anyio.to_thread.run_sync(console.run, block)
                case _, file if "." in file:
                    (folder / file).write_text(block.text)
                case "python", _:
                    await run(block, vars(module), capsys)
                case language, _:
                    assert language in READ_ONLY or language.startswith("{"), f"nothing is known about {language!r}"
        except BaseException as error:
            error.add_note(f"in {block.where}")
            raise


async def run(block: Block, names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Run a block that may await, beside a worker where it uses the app; compare what it prints with its comments."""
    code = compile(block.text, str(block.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    capsys.readouterr()
    async with worker_for(block, names.get("app")):
        outcome = eval(code, names)  # noqa: S307 - it is ours
        if isinstance(outcome, Awaitable):
            await outcome
    assert capsys.readouterr().out.splitlines() == PRINTED.findall(block.text)


@asynccontextmanager
async def worker_for(block: Block, app: object) -> AsyncIterator[None]:
    """Have a worker at work while an example waits for its tasks; one that declares tasks comes before any worker."""
    if not isinstance(app, Fleet) or not app.handlers or ".task" in block.text or "await" not in block.text:
        yield
        return
    async with app, app.worker():
        yield
