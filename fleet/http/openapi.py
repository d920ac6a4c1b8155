"""The OpenAPI 3.1 document, made from the route table: what is not in the table is not in the document."""

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from fleet import __version__
from fleet.http.order import Order, Orders
from fleet.http.problem import MEDIA_TYPE, ProblemDocument, title
from fleet.http.routes import Route

Json = dict[str, Any]

_REFERENCE = "#/components/schemas/{model}"
_PLACES = {"path": "path", "query": "query", "headers": "header"}
_STORABLE = "^[^\\u0000]*$"  # PostgreSQL's text holds every character but this
_BEARER = "What `fleet token create` prints; each operation names the scope that it must have."
_ANYWHERE = (403, 421, 422, 500, 503)
_WITH_BODY = (400, 408, 413, 415)


def document(routes: Sequence[Route], orders: Orders, *, guarded: bool) -> bytes:
    """Return the document as JSON. `guarded`: a token is asked for."""
    schemas = _Schemas(routes, orders)
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, guarded=guarded)
    described: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "fleet",
            "version": __version__,
            "description": "Tasks on worker processes behind one PostgreSQL, each holding a lease.",
        },
        "paths": paths,
        "components": {"schemas": schemas.components},
    }
    if guarded:
        described["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "description": _BEARER}
        }
    return json.dumps(described).encode()


def mounted(described: bytes, root: str) -> bytes:
    """Return the document as it holds under a path: by itself it speaks of the root of the server."""
    return json.dumps(json.loads(described) | {"servers": [{"url": root}]}).encode() if root else described


def _operation(route: Route, schemas: "_Schemas", *, guarded: bool) -> Json:
    described: Json = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.path.split("/")[1]],
        "parameters": schemas.parameters(route),
        "responses": _responses(route, schemas, guarded=guarded and route.scope is not None),
    }
    if "body" in route.takes:
        content = {"application/json": {"schema": schemas.of(route, "body")}}
        described["requestBody"] = {"required": True, "content": content}
    if guarded:
        described["security"] = [] if route.scope is None else [{"token": [route.scope]}]
    return described


def _responses(route: Route, schemas: "_Schemas", *, guarded: bool) -> Json:
    answer: Json = {
        "description": title(route.status),
        "content": {"application/json": {"schema": schemas.of(route, "answer")}},
    }
    if route.status == HTTPStatus.ACCEPTED:
        answer["headers"] = {"Location": {"required": True, "schema": {"type": "string", "format": "uri-reference"}}}
    statuses = {
        *_ANYWHERE,
        *route.problems,
        *(_WITH_BODY if "body" in route.takes else ()),
        *((400,) if "headers" in route.takes else ()),
        *((401,) if guarded else ()),
    }
    content = {MEDIA_TYPE: {"schema": schemas.problem}}
    refused = {str(each): {"description": title(each), "content": content} for each in sorted(statuses)}
    return {str(route.status): answer} | refused


class _Schemas:
    """The schemas of all shapes, made in one go so that two of one name do not meet."""

    def __init__(self, routes: Sequence[Route], orders: Orders) -> None:
        wanted: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = [
            ("problem", "serialization", TypeAdapter(ProblemDocument))
        ]
        for route in routes:
            for part, kind in route.takes.items():
                adapter = orders.adapter if kind is Order else TypeAdapter(kind)
                wanted.append((f"{route.name} {part}", "validation", adapter))
            wanted.append((f"{route.name} answer", "serialization", TypeAdapter(route.answer)))
        made, rest = TypeAdapter.json_schemas(wanted, ref_template=_REFERENCE, schema_generator=_Generator)
        self._made = {key: schema for (key, _), schema in made.items()}
        self.components: Json = rest.get("$defs", {})
        self.problem = self._made["problem"]
        self._parameters = {route.name: list(self._parameters_of(route)) for route in routes}
        for route in routes:
            for part in _PLACES.keys() & route.takes.keys():
                self.components.pop(self._name(route, part), None)

    def of(self, route: Route, part: str) -> Json:
        """Return the schema of one part of a route: `body` or `answer`."""
        return self._made[f"{route.name} {part}"]

    def parameters(self, route: Route) -> list[Json]:
        return self._parameters[route.name]

    def _parameters_of(self, route: Route) -> Any:
        for part, place in _PLACES.items():
            if part in route.takes:
                shape = self.components[self._name(route, part)]
                for name, schema in shape["properties"].items():
                    required = place == "path" or name in shape.get("required", ())
                    shown = name.replace("_", "-").title() if place == "header" else name
                    yield {"name": shown, "in": place, "required": required, "schema": schema}

    def _name(self, route: Route, part: str) -> str:
        return str(self._made[f"{route.name} {part}"]["$ref"]).rpartition("/")[2]


class _Generator(GenerateJsonSchema):
    """Says of every text that comes in that U+0000 is refused; what has no JSON schema is anything to others."""

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        told = super().str_schema(schema)
        if self.mode == "validation" and not told.keys() & {"pattern", "format"}:
            told["pattern"] = _STORABLE
        return told

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        told = super().dict_schema(schema)
        if self.mode == "validation":
            told.setdefault("propertyNames", {"pattern": _STORABLE})
        return told

    def handle_invalid_for_json_schema(self, schema: core_schema.CoreSchema, error_info: str) -> JsonSchemaValue:
        return {}
