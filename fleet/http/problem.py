"""What a client is told when it cannot have what it asked for: problem documents (RFC 9457), and what each error becomes.

`code` tells problems of one status apart, for programs; `detail` is for people. No stack trace is ever in one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal
from uuid import UUID

import psycopg
import pydantic
from pydantic import Field
from pydantic_core import ErrorDetails, from_json
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from fleet.errors import (
    DatabaseBusy,
    DatabaseFull,
    DatabaseUnreachable,
    IdempotencyConflict,
    InvalidArguments,
    NotFound,
    OutcomeUnknown,
    PayloadTooLarge,
    SchemaMismatch,
)
from fleet.http.view import View
from fleet.postgres.database import full_of
from fleet.tokens import Scope

MEDIA_TYPE = "application/problem+json"
SOON = {"Retry-After": "1"}
_LOCKED = {"55P03", "40P01"}
_UNDEFINED = {"3F000", "42P01", "42703", "42883"}  # a schema, table, column or function that is not there
_FULL = "The disk or the memory of the database's server is full: nothing was written. Try again when there is room."
_TAGS = ("union_tag_invalid", "union_tag_not_found")

ERRORS_MAX = 1000  # so many are listed: a body may hold a million, and each takes a hundred bytes to tell

Place = Literal["body", "query", "path", "header"]


class Wrong(View):
    """One thing that is wrong, and where: `pointer` into the body (RFC 6901), or a parameter, a header, a check."""

    detail: str
    pointer: str | None = None
    parameter: str | None = None
    header: str | None = None
    check: str | None = None


class ProblemDocument(View):
    """RFC 9457."""

    type: Literal["about:blank"] = "about:blank"
    title: str = Field(description="The status in words.")
    status: int
    code: str = Field(description="Which problem it is, for programs.")
    detail: str = Field(description="What happened and what to do next, for people.")
    errors: list[Wrong] | None = Field(default=None, description="Everything that is wrong with the request.")
    task_id: UUID | None = Field(default=None, description="The task that the idempotency key belongs to.")
    scope: Scope | None = Field(default=None, description="What the token must be allowed, and is not.")


class Problem(Exception):
    """The end of a request that cannot be answered as asked."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[Wrong] = (),
        headers: Mapping[str, str] | None = None,
        task_id: UUID | None = None,
        scope: Scope | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = dict(headers or {})
        self.document = ProblemDocument(
            title=title(status),
            status=status,
            code=code,
            detail=detail,
            errors=list(errors) or None,
            task_id=task_id,
            scope=scope,
        )

    def body(self) -> bytes:
        return self.document.model_dump_json(exclude_none=True, indent=2).encode() + b"\n"


def title(status: int) -> str:
    """Return a status in words: those of RFC 9110, which an older Python does not know yet."""
    return {413: "Content Too Large", 422: "Unprocessable Content"}.get(status) or HTTPStatus(status).phrase


def problem_of(error: BaseException) -> Problem | None:  # noqa: C901, PLR0911 - one case an error
    """Return what a client is told of this exception; None where it is a defect of ours."""
    match error:
        case Problem():
            return error
        case PayloadTooLarge():
            return Problem(413, "too_large", str(error))
        case InvalidArguments():
            return Problem(422, "invalid", str(error), errors=[Wrong(detail=str(error), pointer="#/args")])
        case IdempotencyConflict(task_id=task_id):
            return Problem(422, "idempotency_key_reused", str(error), task_id=task_id)
        case NotFound():
            return Problem(404, "not_found", str(error))
        case DatabaseBusy(__cause__=psycopg.Error() as cause):
            return _of_database(cause)
        case OutcomeUnknown():
            return Problem(503, "outcome_unknown", str(error), headers=SOON)
        case DatabaseFull():
            return Problem(503, "database_full", _FULL, headers=SOON)
        case DatabaseUnreachable():
            return Problem(503, "database_unreachable", "The database cannot be reached. Try again.", headers=SOON)
        case SchemaMismatch():
            return Problem(503, "schema_mismatch", str(error))
        case NoConnectionFree():
            return Problem(503, "busy", "All connections to the database are in use. Try again.", headers=SOON)
        case DBAPIError(orig=psycopg.Error() as cause) | (psycopg.Error() as cause):
            return _of_database(cause)
    return None


def _of_database(error: psycopg.Error) -> Problem | None:
    if error.sqlstate in _LOCKED:
        detail = "Somebody else is at it and has not finished, such as a first request with the same key. Try again."
        return Problem(409, "in_flight", detail, headers=SOON)
    if error.sqlstate in _UNDEFINED:
        return Problem(503, "schema_mismatch", "The database's schema does not fit this server: see /readyz.")
    if error.sqlstate == "57014":
        return Problem(
            503, "timed_out", "The database did not answer in time. Ask for less, or try again.", headers=SOON
        )
    if full_of(error) is not None:
        return Problem(503, "database_full", _FULL, headers=SOON)
    if isinstance(error, psycopg.OperationalError):
        return Problem(503, "database_unreachable", "The database cannot be reached. Try again.", headers=SOON)
    return None


def not_valid(
    error: pydantic.ValidationError, place: Place, *, tagged: bool = False, data: bytes | None = None
) -> Problem:
    """Return the problem that lists everything wrong.

    `tagged`: the first part of a location is the variant's name. `data`: the body, into which locations point.
    """
    status = 400 if place == "header" else 422
    if error.error_count() > ERRORS_MAX:
        detail = f"The {place} is not valid: {error.error_count():,} things are wrong with it, too many to list."
        return Problem(status, "invalid", detail)
    found = error.errors(include_url=False, include_context=True, include_input=False)
    if found[0]["type"] == "json_invalid":
        return Problem(400, "malformed_json", f"The body is no JSON: {found[0]['msg']}.")
    document = None if data is None else from_json(data)
    errors = [_wrong(each, place, document, tagged=tagged) for each in found]
    return Problem(status, "invalid", f"The {place} is not valid: see `errors`.", errors=errors)


def _wrong(error: ErrorDetails, place: Place, document: Any, *, tagged: bool) -> Wrong:
    location, detail = error["loc"], error["msg"]
    if place != "body":
        name = str(location[0]) if location else ""
        return Wrong(detail=detail, **{"header" if place == "header" else "parameter": name.replace("_", "-")})
    if error["type"] in _TAGS:
        context: dict[str, Any] = error.get("ctx", {})
        tags = context.get("expected_tags")
        return Wrong(detail=f"There is no such task; there are: {tags}" if tags else "Field required", pointer="#/name")
    missing = location[-1:] if error["type"] == "missing" else ()
    found = _within(document, location[1 if tagged else 0 : len(location) - len(missing)])
    return Wrong(detail=detail, pointer=_pointer([*found, *missing]))


def _within(document: Any, location: Sequence[int | str]) -> Iterator[int | str]:
    """Yield the parts that lead through the document: in between, pydantic names the variants that it tried."""
    for part in location:
        if isinstance(document, list) and isinstance(part, int) and part < len(document):
            document = document[part]
        elif isinstance(document, dict) and str(part) in document:
            document = document[str(part)]
        else:
            continue
        yield part


def _pointer(location: Iterable[int | str]) -> str:
    return "".join(["#", *(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in location)])
