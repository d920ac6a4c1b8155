"""Told to schemathesis: a new key for a new request, as clients do; the same key again is another test's."""

from typing import Any
from uuid import uuid4

import schemathesis

NAME = "Idempotency-Key"


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: Any, kwargs: dict[str, Any]) -> None:
    key = str((case.headers or {}).get(NAME, ""))
    if 0 < len(key) <= 200 and key.isascii() and key.isprintable() and " " not in key:
        case.headers[NAME] = f"{key}-{uuid4().hex}"
