"""The documentation builds without a warning, and its reference leaves nothing out."""

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest

import fleet
from fleet import errors
from fleet.cli import main
from fleet.config import Settings
from fleet.http.routes import ROUTES
from tests.docs.pages import DOCS


class Links(HTMLParser):
    """The addresses that a page links to, and the anchors that it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.add(value)
            elif name == "id" and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages; any warning fails the build."""
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "-q", "--keep-going", "-b", "html"]
    built = subprocess.run(
        [*command, "-d", folder / "doctrees", DOCS, folder / "html"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "html"


def test_every_page_is_built(site: Path) -> None:
    pages = {page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md") if "_build" not in page.parts}
    assert pages
    assert not {page for page in pages if not (site / page).with_suffix(".html").is_file()}


def test_every_link_inside_leads_somewhere(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html")}
    broken = []
    for page, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not file.is_file() or (
                parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].anchors
            ):
                broken.append(f"{page.relative_to(site)} → {target}")
    assert not broken


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"""<(?:link|script|img)[^>]*(?:href|src)=["']?(?:https?:)?//[^>]*>""", text)


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    anchors = Links(site / "reference" / "python.html").anchors
    assert {f"fleet.{name}" for name in fleet.__all__} <= anchors
    own = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == "fleet.errors"
    }
    assert {f"fleet.errors.{name}" for name in own} <= anchors


def test_every_command_and_option_is_in_the_reference(site: Path) -> None:
    page = site / "reference" / "command-line.html"
    text, anchors = page.read_text(encoding="utf-8"), Links(page).anchors
    found = list(commands(main, click.Context(main, info_name="fleet")))
    assert ("fleet worker run", ["--processes"]) in [(path, options[:1]) for path, options in found]
    for path, options in found:
        assert path.replace(" ", "-") in anchors, path
        assert not [option for option in options if option not in text], path


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, list[str]]]:
    """Yield every command that is not hidden, with its options."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            if not inner.hidden:
                yield from commands(inner, click.Context(inner, info_name=name, parent=context))
        return
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    yield context.command_path, [option.opts[-1] for option in options]


def test_every_setting_is_in_the_reference(site: Path) -> None:
    text = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    names = [name for name in Settings.__dataclass_fields__ if not name.startswith("_")]
    assert names
    assert not [name for name in names if f"FLEET_{name.upper()}" not in text]


def test_every_route_is_in_the_reference(site: Path) -> None:
    text = (site / "reference" / "http.html").read_text(encoding="utf-8")
    assert not [route for route in ROUTES if f"<h2>{route.method} {route.path}<" not in text]
