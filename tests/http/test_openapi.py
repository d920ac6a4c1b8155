"""/openapi.json says what is served, and no more."""

import json
from typing import Any

import httpx
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from fleet import Fleet, Settings, __version__
from fleet.http import server
from fleet.http.api import Api
from fleet.http.openapi import document
from fleet.http.order import Orders
from fleet.http.routes import ROUTES, Route
from fleet.http.server import asgi
from fleet.http.view import Given, View
from fleet.tokens import Scope
from tests.http.conftest import client_of
from tests.http.steps import problem

TOKEN = "0123456789abcdef"


def described(app: Fleet, *, allow_unknown: bool = False, guarded: bool = False) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(document(ROUTES, Orders(app, allow_unknown=allow_unknown), guarded=guarded))
    return told


def strange(database_url: str, settings: Settings) -> Fleet:
    """Return an app whose names meet where only letters are kept."""
    app = Fleet(database_url, settings=settings)
    for name in ("a b", "a-b", "a_b", "é", "ü", "{id}", "problem", "Order"):

        @app.task(name=name)
        async def nothing(x: Any = None) -> None: ...

    return app


@pytest.mark.parametrize("allow_unknown", [False, True])
@pytest.mark.parametrize("guarded", [False, True])
def test_the_document_is_valid_openapi(
    app: Fleet, database_url: str, settings: Settings, allow_unknown: bool, guarded: bool
) -> None:
    one = Fleet(database_url, settings=settings)
    one.task(one_task)
    for each in (app, one, strange(database_url, settings)):
        told = described(each, allow_unknown=allow_unknown, guarded=guarded)
        assert [error.message for error in OPENAPI_31_VALIDATOR.iter_errors(told)] == []
        assert dangling(told) == set()
        assert (told["openapi"], told["info"]["version"]) == ("3.1.0", __version__)


async def one_task(x: int) -> int:
    return x


def dangling(told: dict[str, Any]) -> set[str]:
    """The references that lead nowhere."""

    def references(part: Any) -> set[str]:
        if isinstance(part, dict):
            own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
            return own.union(*map(references, part.values()))
        return set().union(*map(references, part)) if isinstance(part, list) else set()

    there = {f"#/components/schemas/{name}" for name in told["components"]["schemas"]}
    return references(told) - there


def test_every_route_is_in_the_document_and_nothing_else(app: Fleet) -> None:
    told = described(app)
    there = {(method.upper(), path) for path, methods in told["paths"].items() for method in methods}
    assert there == {(route.method, route.path) for route in ROUTES}
    operations = [operation for methods in told["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(ROUTES)
    assert all(operation["summary"].endswith((".", "?")) for operation in operations)


def test_the_arguments_of_each_task_are_described(app: Fleet) -> None:
    schemas = described(app)["components"]["schemas"]
    kinds = {
        schema["properties"]["name"]["const"]: schema
        for schema in schemas.values()
        if "const" in schema.get("properties", {}).get("name", {})
    }
    assert set(kinds) == set(app.handlers)
    args = schemas[kinds["add"]["properties"]["args"]["$ref"].rpartition("/")[2]]
    assert args["properties"] == {"a": {"title": "A", "type": "integer"}, "b": {"title": "B", "type": "integer"}}
    assert (args["required"], args["additionalProperties"]) == (["a"], False)
    assert kinds["add"]["description"] == "Add two numbers."
    assert set(kinds["add"]["properties"]["queue"]["anyOf"][0]["enum"]) == {"default", "sums"}
    assert "args" not in kinds["echo"]["required"]


async def test_a_new_entry_in_the_table_is_served_and_documented(app: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sum(View):
        total: int

    class Addends(Given):
        a: int
        b: int

    class Factor(Given):
        factor: int = 1

    async def total(api: Api, query: Factor, body: Addends) -> Sum:
        """Add two numbers."""
        return Sum(total=(body.a + body.b) * query.factor)

    monkeypatch.setitem(total.__globals__, "Sum", Sum)
    extra = Route("PUT", "/sums", total, Scope.OPERATE, problems=(409,))
    monkeypatch.setattr(server, "ROUTES", (*ROUTES, extra))
    async with client_of(asgi(app, token=TOKEN)) as api:
        unknown = await api.put("/sums", json={"a": 1, "b": 2})
        api.headers["Authorization"] = f"Bearer {TOKEN}"
        answer = await api.put("/sums?factor=10", json={"a": 1, "b": 2})
        wrong = await api.put("/sums?factor=x", json={"a": 1, "b": 2})
        other = await api.get("/sums")
        told = (await api.get("/openapi.json")).json()
    assert unknown.status_code == 401
    assert answer.json() == {"total": 30}
    problem(wrong, 422, "invalid")
    problem(other, 405, "method_not_allowed")
    operation = told["paths"]["/sums"]["put"]
    assert operation["summary"] == "Add two numbers."
    assert set(operation["responses"]) == {
        "200", "400", "401", "403", "408", "409", "413", "415", "421", "422", "500", "503",
    }  # fmt: skip
    assert [parameter["name"] for parameter in operation["parameters"]] == ["factor"]
    assert OPENAPI_31_VALIDATOR.is_valid(told)


async def test_the_document_says_that_a_token_is_needed_only_where_one_is(app: Fleet, api: httpx.AsyncClient) -> None:
    assert "security" not in (await api.get("/openapi.json")).json()
    told = described(app, guarded=True)
    assert told["paths"]["/tasks"]["get"]["security"] == [{"token": ["read"]}]
    assert told["paths"]["/tasks"]["post"]["security"] == [{"token": ["submit"]}]
    assert told["paths"]["/dead/requeue"]["post"]["security"] == [{"token": ["operate"]}]
    operations = [(path, operation) for path, methods in told["paths"].items() for operation in methods.values()]
    assert {path for path, operation in operations if operation["security"] == []} == {"/livez", "/readyz"}
