"""The blocks of code on a page of the documentation, in their order."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_FENCE = "```"


@dataclass(frozen=True)
class Block:
    """One fenced block. `caption` is a file's name, or the name of a terminal."""

    page: Path
    line: int
    language: str
    caption: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page: ```python, or ```{code-block} python with a `:caption:`."""
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
    for number, line in lines:
        if not line.startswith(_FENCE):
            continue
        info = line.removeprefix(_FENCE).split()
        body: list[str] = []
        for _, inner in lines:
            if inner == _FENCE:
                break
            body.append(inner)
        caption = ""
        while body and body[0].startswith(":") and info[:1] == ["{code-block}"]:
            option, _, value = body.pop(0).removeprefix(":").partition(": ")
            caption = value if option == "caption" else caption
        language = info[1] if info[:1] == ["{code-block}"] else "".join(info[:1])
        yield Block(page, number, language, caption, "\n".join(body).strip("\n") + "\n")
