"""Reads a request into what its endpoint takes: every part checked whole, the body counted while it comes in."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pydantic
from pydantic import TypeAdapter
from pydantic_core import ErrorDetails
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from fleet.http.problem import ERRORS_MAX, Place, Problem, Wrong, not_valid
from fleet.http.view import Given

_JSON = "application/json"
_CLOSE = {"Connection": "close"}  # what the client still sends must not be taken for another request


def path_of(request: Request, kind: type[Given]) -> Given:
    """Return the parts of the path."""
    return _checked(kind, request.path_params, "path")


def query_of(request: Request, kind: type[Given]) -> Given:
    """Return the query: no parameter twice, none that is unknown, for a filter with a typing error matches everything."""
    given = request.query_params.multi_items() if request.scope["query_string"] else []
    twice = sorted(name for name, count in Counter(name for name, _ in given).items() if count > 1)
    if twice:
        errors = [Wrong(detail="Given more than once", parameter=name) for name in twice]
        raise Problem(422, "invalid", "The query is not valid: see `errors`.", errors=errors)
    return _checked(kind, dict(given), "query")


def headers_of(request: Request, kind: type[Given]) -> Given:
    """Return the headers that the endpoint looks at."""
    headers: Headers = request.headers
    given = {name: headers.getlist(name.replace("_", "-")) for name in kind.model_fields}
    # Given twice they are joined, as RFC 9110 says: a second key is then refused, not passed over.
    return _checked(kind, {name: ", ".join(values) for name, values in given.items() if values}, "header")


async def body_of(request: Request, adapter: TypeAdapter[Any], *, tagged: bool, bytes_max: int, seconds: float) -> Any:
    """Return the JSON body. Raises Problem: 408, 413, 415, 400 for what is no JSON, 422 for what does not fit."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != _JSON:
        raise Problem(
            415, "not_json", f"Send the body as JSON, with the header `Content-Type: {_JSON}`.", headers=_CLOSE
        )
    data = await _bytes_of(request, bytes_max, seconds)
    try:
        return _validated(data, adapter)
    except pydantic.ValidationError as error:
        raise not_valid(error, "body", tagged=tagged, data=data) from None


def _validated(data: bytes, adapter: TypeAdapter[Any]) -> Any:
    """Check strictly: "7" is no number. But 7.0 is an integer in JSON Schema, and none to pydantic's strict mode."""
    try:
        return adapter.validate_json(data, strict=True)
    except pydantic.ValidationError as error:
        if error.error_count() <= ERRORS_MAX and not any(map(_is_whole, error.errors())):
            raise
    return adapter.validate_json(json.dumps(json.loads(data, parse_float=_number)), strict=True)


def _is_whole(error: ErrorDetails) -> bool:
    """Tell whether it may be no error: a number with a point, where an integer is wanted."""
    return error["type"] == "int_type" and isinstance(error["input"], float)


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


async def _bytes_of(request: Request, bytes_max: int, seconds: float) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > bytes_max:
        raise _too_large(bytes_max)
    data = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                data += chunk
                if len(data) > bytes_max:
                    raise _too_large(bytes_max)
    except TimeoutError:
        raise Problem(408, "too_slow", f"The body did not come within {seconds:g} s.", headers=_CLOSE) from None
    except ClientDisconnect:
        raise Problem(400, "disconnected", "The client left before its body had come.") from None
    return bytes(data)


def _too_large(bytes_max: int) -> Problem:
    return Problem(413, "too_large", f"The body may take {bytes_max:,} bytes.", headers=_CLOSE)


def _checked(kind: type[Given], values: Mapping[str, Any], place: Place) -> Given:
    try:
        return kind.model_validate_strings(values)
    except pydantic.ValidationError as error:
        raise not_valid(error, place) from None
