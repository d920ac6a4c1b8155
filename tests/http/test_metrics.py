"""`/metrics` and `/metrics/fleet` of the API."""

import httpx
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text

from fleet import Fleet, Settings
from fleet.http.server import asgi
from tests.http.conftest import client_of
from tests.http.shop import shop

TOKEN = "a-token-of-some-length"
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


def values(families: object, name: str) -> dict[tuple[str, ...], float]:
    """The samples of one name by the values of their labels."""
    found = [sample for family in families for sample in family.samples if sample.name == name]  # type: ignore[attr-defined]
    return {tuple(sample.labels.values()): sample.value for sample in found}


async def test_the_api_tells_what_it_has_answered(api: httpx.AsyncClient) -> None:
    await api.get("/workers")
    await api.get("/tasks/00000000-0000-0000-0000-000000000000")
    answer = await api.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    counts = values(text(answer.text), "fleet_http_request_seconds_count")
    assert counts == {("GET", "/workers", "200"): 1, ("GET", "/tasks/{id}", "404"): 1}


async def test_the_api_tells_what_the_fleet_is_at(api: httpx.AsyncClient) -> None:
    await api.post("/tasks", json={"name": "add", "args": {"a": 1}})
    answer = await api.get("/metrics/fleet")
    assert values(text(answer.text), "fleet_up") == {(): 1}
    assert values(text(answer.text), "fleet_queue_tasks")["sums", "ready"] == 1


async def test_openmetrics_is_given_to_who_asks_for_it(api: httpx.AsyncClient) -> None:
    answer = await api.get("/metrics", headers=OPENMETRICS)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert len(list(openmetrics(answer.text))) > 1  # type: ignore[no-untyped-call]
    answer = await api.get("/metrics/fleet", headers=OPENMETRICS)  # two of its names would be one there
    assert answer.headers["content-type"].startswith("text/plain")


async def test_the_token_guards_metrics_like_everything_else(app: Fleet) -> None:
    async with client_of(asgi(app, token=TOKEN)) as client:
        for path in ("/metrics", "/metrics/fleet"):
            refused = await client.get(path)
            assert (refused.status_code, refused.json()["code"]) == (401, "no_token")
            assert (await client.get(path, headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 200


async def test_without_a_database_the_scrape_succeeds_and_tells_only_that(settings: Settings) -> None:
    async with client_of(asgi(shop("postgresql://127.0.0.1:1/none", settings), token=None)) as client:
        answer = await client.get("/metrics/fleet")
        assert answer.status_code == 200
        (family,) = text(answer.text)
        assert [(sample.name, sample.value) for sample in family.samples] == [("fleet_up", 0.0)]
        assert (await client.get("/metrics")).status_code == 200


async def test_a_worker_s_own_paths_are_not_there_by_another_method(api: httpx.AsyncClient) -> None:
    assert (await api.post("/metrics")).status_code == 405
