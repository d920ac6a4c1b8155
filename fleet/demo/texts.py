"""The texts that the demo works on: those that every Python has, or the files of a folder."""

from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

from fleet.demo.errors import DemoError
from fleet.payload import clean_text

SUFFIXES = (".txt", ".md")
BYTES_MAX = 900 * 1024  # a task's arguments may take 1 MiB as JSON, where the end of a line takes two bytes
TITLE_BYTES_MAX = 200


class Text(NamedTuple):
    title: str
    text: str


def built_in() -> list[Text]:
    """Return the help texts of Python's own `pydoc`, by topic."""
    return [Text(title, text) for title, text in sorted(topics.items())]


def from_folder(folder: Path) -> list[Text]:
    """Return the *.txt and *.md files that lie in a folder, by name. Raises DemoError where there is none."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    except OSError as error:
        raise DemoError(f"the folder {folder} cannot be read: {error.strerror}") from None
    if not paths:
        raise DemoError(f"there is no *.txt or *.md file in {folder}: name a folder with texts, or leave --texts out")
    return [_read(path) for path in paths]


def at_least(count: int, texts: list[Text]) -> list[Text]:
    """Return the texts, used again under other titles until there are so many: a death takes a while to show."""
    more = -(-count // len(texts))
    again = (Text(f"{title} ({turn})", text) for turn in range(2, more + 1) for title, text in texts)
    return [*texts, *list(again)[: max(0, count - len(texts))]]


def _read(path: Path) -> Text:
    try:
        size = path.stat().st_size
        if size > BYTES_MAX:
            raise DemoError(f"{path} has {size:,} bytes; the demo takes texts of at most {BYTES_MAX:,}")
        data = path.read_bytes()
    except OSError as error:
        raise DemoError(f"{path} cannot be read: {error.strerror}") from None
    # PostgreSQL cannot store U+0000; what is no UTF-8 is replaced likewise.
    text = data.decode(errors="replace").replace("\x00", "\ufffd")
    return Text(clean_text(path.name, TITLE_BYTES_MAX), text)
