"""Plain figures about a text, in any script that puts spaces between words."""

import re
import unicodedata
from typing import TypedDict

WORDS_PER_MINUTE = 238  # silent reading of English prose by adults: Brysbaert 2019, a review of 190 studies

_APOSTROPHES = "'\u2019"
# A full stop, question or exclamation mark counts where white space or the end follows: not inside 3.14. The signs of
# scripts that set no space after a sentence count everywhere, and so does an empty line, which ends a heading.
_SENTENCE_END = re.compile(
    r"[.!?\u2026\u061f\u06d4\u0964]+[\"'\u201d\u2019\u00bb)\]]*(?=\s|$)|[\u3002\uff01\uff1f]+|\n\s*\n"
)


class Analysis(TypedDict):
    """What `analyze` finds. `longest_word` is the first of the longest, and empty where there is no word."""

    words: int
    unique_words: int
    sentences: int
    longest_word: str
    reading_seconds: float


class _Letters(dict[int, str]):
    """A table for `str.translate` that keeps letters, marks and digits, and fills itself: a look-up a character."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        kept = unicodedata.category(character)[0] in "LMN"
        self[code] = character if kept else "'" if character in _APOSTROPHES else " "
        return self[code]


_LETTERS = _Letters()


def analyze(text: str) -> Analysis:
    """Count words, different words and sentences, and estimate how long an adult reads."""
    found = words(text)
    return Analysis(
        words=len(found),
        unique_words=len({word.casefold() for word in found}),
        sentences=sentences(text),
        longest_word=max(found, key=len, default=""),
        reading_seconds=round(len(found) * 60 / WORDS_PER_MINUTE, 1),
    )


def words(text: str) -> list[str]:
    """Return the words: runs of letters, their marks and digits. Apostrophes inside a word belong to it."""
    pieces = unicodedata.normalize("NFC", text).translate(_LETTERS).split()
    return [word for piece in pieces if (word := piece.strip("'"))]


def sentences(text: str) -> int:
    """Count the parts between ends of sentences that hold a word. A text with words has at least one."""
    return sum(1 for part in _SENTENCE_END.split(text) if words(part))
