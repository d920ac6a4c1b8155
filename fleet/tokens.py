"""Tokens for the HTTP API: what one may be used for, what a secret looks like, and what alone is kept of it.

A secret is 256 random bits, so a plain hash of it is enough: there is nothing that could be guessed word by word.
"""

import hashlib
import re
import secrets
from enum import StrEnum
from uuid import UUID

from fleet.errors import ConfigurationError

PREFIX = "fleet_"  # lets scanners for leaked secrets know one
_BYTES = 32
_SECRET = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TAKEN = {"http", "api"}  # actors of their own in the history of what was done


class Scope(StrEnum):
    """What a token may be used for. None includes another."""

    READ = "read"  # ask: tasks with their arguments and results, queues, workers
    SUBMIT = "submit"  # submit tasks
    OPERATE = "operate"  # cancel, judge dead letters, pause and resume


def new_secret() -> str:
    """Return a secret that nobody has."""
    return PREFIX + secrets.token_urlsafe(_BYTES)


def is_secret(text: str) -> bool:
    """Tell whether a text has the form of a secret: what has not is never looked up."""
    return _SECRET.fullmatch(text) is not None


def hash_of(secret: str) -> bytes:
    """Return the SHA-256 of a secret: what is stored of it."""
    return hashlib.sha256(secret.encode()).digest()


def checked_name(name: str) -> str:
    """Return the name of a token. Raises ConfigurationError where it may not be called so."""
    if not _NAME.fullmatch(name) or _is_id(name) or name in _TAKEN:
        raise ConfigurationError(
            f"a token cannot be called {name!r}: use 1 to 63 of A-Z a-z 0-9 . _ - beginning with a letter or a digit, "
            f"and neither an id nor one of {', '.join(sorted(_TAKEN))}"
        )
    return name


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
