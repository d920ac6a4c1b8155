"""The HTTP API's own description, the OpenAPI document, as Markdown."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fleet import Fleet
from fleet.http.openapi import document
from fleet.http.order import Orders
from fleet.http.routes import ROUTES

Json = Mapping[str, Any]

_PLACES = {"path": "in the path", "query": "in the query", "header": "a header"}


def routes() -> Iterator[str]:
    """Yield a section for each route: what it does, takes and answers."""
    described = _document()
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield from ("", f"## {method.upper()} {path}", "", operation["summary"], "")
            yield from _parameters(operation["parameters"])
            yield from _body(operation)
            yield from _answers(operation["responses"])


def shapes() -> Iterator[str]:
    """Yield a table for each shape that is sent or answered."""
    for name, schema in _document()["components"]["schemas"].items():
        if "enum" in schema:
            yield from (f"({_anchor(name)})=", f"### {_title(name)}", "", schema.get("description", ""), "")
            yield from (" · ".join(f"`{value}`" for value in schema["enum"]), "")
        elif "properties" in schema:
            yield from (f"({_anchor(name)})=", f"### {_title(name)}", "", schema.get("description", ""), "")
            yield from ("| field | | |", "|---|---|---|")
            required = schema.get("required", ())
            for field, told in schema["properties"].items():
                presence = "" if field in required else ", may be absent"
                yield f"| `{field}` | {_kind(told)}{presence} | {told.get('description', '')} |"
            yield ""


def _document() -> Json:
    """Describe the API of an app without tasks of its own, so that no example's arguments are in it."""
    described: Json = json.loads(document(ROUTES, Orders(Fleet(), allow_unknown=True), guarded=True))
    return described


def _parameters(parameters: list[Json]) -> Iterator[str]:
    if parameters:
        yield from ("| parameter | | | |", "|---|---|---|---|")
        for each in parameters:
            schema = each["schema"]
            default = f" Default: {schema['default']}." if "default" in schema else ""
            words = f"{schema.get('description', '')}{default}"
            yield f"| `{each['name']}` | {_PLACES[each['in']]} | {_kind(schema)} | {words} |"
        yield ""


def _body(operation: Json) -> Iterator[str]:
    if "requestBody" in operation:
        yield from (f"Body: {_kind(operation['requestBody']['content']['application/json']['schema'])}", "")


def _answers(responses: Json) -> Iterator[str]:
    good, *bad = responses
    answer = responses[good]
    location = ", with `Location`" if "headers" in answer else ""
    shape = _kind(answer["content"]["application/json"]["schema"])
    yield f"Answer: **{good} {answer['description']}**{location}: {shape}"
    yield ""
    yield "Problems: " + ", ".join(f"{status} {responses[status]['description']}" for status in bad)


def _kind(schema: Json) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{_title(name)}](#{_anchor(name)})"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    for way in ("anyOf", "oneOf", "allOf"):
        if way in schema and "type" not in schema:
            return " or ".join(_kind(each) for each in schema[way])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    names = {"uuid": "UUID", "date-time": "date and time"}
    return names.get(schema.get("format", "")) or str(schema.get("type", "any JSON"))


def _title(name: str) -> str:
    outer, _, inner = name.rstrip("_").partition("_")
    return f"{outer} of {inner}" if inner else outer


def _anchor(name: str) -> str:
    return f"http-{name.rstrip('_').replace('_', '-').lower()}"
