"""/dead: what is judged is what was seen, or what was named; never everything by mistake."""

from typing import Any
from uuid import UUID

import httpx
import pytest
from uuid_utils.compat import uuid7

from fleet.http import dead
from fleet.postgres import dead_letter
from fleet.postgres.database import AsyncConnection
from fleet.task import FailureCode
from tests.http.steps import failed, problem
from tests.support import row, submit

VERBS = {"requeue": "QUEUED", "discard": "FAILED"}

UNCLEAR: list[dict[str, Any]] = [
    {}, {"preview": True}, {"preview": False}, {"all": False}, {"all": 1}, {"all": None}, {"all": "true"}, {"matching": {}},
    {"matching": None}, {"matching": {"queue": None}}, {"matching": {"queue": "x", "name": None}},
    {"matching": {"queue": ""}}, {"matching": {"name": ""}}, {"matching": {"code": ""}}, {"matching": {"code": "boom"}},
    {"matching": {"queu": "x"}}, {"matching": []}, {"matching": "x"}, {"seen": None}, {"seen": []}, {"seen": {}},
    {"all": True, "matching": {"queue": "x"}}, {"all": True, "matching": None}, {"all": True, "seen": []},
    {"seen": [{"id": str(uuid7()), "attempt": 1}], "all": True}, {"seen": [{"id": str(uuid7())}]},
    {"seen": [{"id": "x", "attempt": 1}]}, {"seen": [{"id": str(uuid7()), "attempt": "1"}]},
    {"seen": [{"id": str(uuid7()), "attempt": 2**31}]}, {"seen": [{"id": str(uuid7()), "attempt": 1}] * 1001},
    {"all": True, "preview": "no"}, {"all": True, "preview": None}, {"all": True, "dry_run": True},

]  # fmt: skip

pytestmark = pytest.mark.parametrize("verb", VERBS)


@pytest.fixture
async def letters(connection: AsyncConnection) -> dict[str, UUID]:
    """Four dead letters, and two tasks that are none."""
    a, b = await failed(connection, ["a", "b"], queue="x")
    (c,) = await failed(connection, ["a"], queue="y/z é", code=FailureCode.TIMEOUT)
    (d,) = await failed(connection, ["a"], queue="default")
    (judged,) = await failed(connection, ["a"], queue="x")
    await dead_letter.discard(connection, {judged: 1}, "ann")
    return {"a": a, "b": b, "c": c, "d": d, "judged": judged, "waiting": await submit(connection, name="a", queue="x")}


async def left(api: httpx.AsyncClient, **query: Any) -> list[UUID]:
    answer = await api.get("/dead", params=query)
    assert answer.status_code == 200, answer.text
    return [UUID(each["id"]) for each in answer.json()["items"]]


async def judge(api: httpx.AsyncClient, verb: str, **body: Any) -> dict[str, Any]:
    answer = await api.post(f"/dead/{verb}", json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def ids(seen: list[dict[str, Any]]) -> set[UUID]:
    return {UUID(each["id"]) for each in seen}


async def test_dead_letters_are_listed_the_oldest_first_and_by_filter(
    api: httpx.AsyncClient, letters: dict[str, UUID], verb: str
) -> None:
    a, b, c, d = [letters[name] for name in "abcd"]
    assert await left(api) == [a, b, c, d]
    assert await left(api, queue="x") == [a, b]
    assert await left(api, queue="y/z é") == [c]
    assert await left(api, name="b") == [b]
    assert await left(api, code="timeout", name="a") == [c]
    page = (await api.get("/dead", params={"limit": 3})).json()
    assert await left(api, cursor=page["next"]) == [d]
    shown = page["items"][2]
    assert set(shown) == {"id", "name", "queue", "attempt", "failure_code", "failure_reason", "finished_at"}
    assert (shown["attempt"], shown["failure_code"], shown["failure_reason"]) == (1, "timeout", "boom")
    for wrong in ("queue=", "name=", "code=", "code=boom", "cod=timeout"):
        problem(await api.get(f"/dead?{wrong}"), 422, "invalid")


@pytest.mark.parametrize(
    ("way", "chosen"),
    [
        ({"matching": {"queue": "x"}}, "ab"),
        ({"matching": {"name": "a"}}, "acd"),
        ({"matching": {"code": "timeout"}}, "c"),
        ({"matching": {"queue": "x", "name": "a"}}, "a"),
        ({"matching": {"queue": "none"}}, ""),
        ({"all": True}, "abcd"),
    ],
    ids=str,
)
async def test_what_matches_is_judged_and_nothing_else_and_a_preview_changes_nothing(
    api: httpx.AsyncClient,
    connection: AsyncConnection,
    letters: dict[str, UUID],
    verb: str,
    way: dict[str, Any],
    chosen: str,
) -> None:
    wanted = {letters[name] for name in chosen}
    preview = await judge(api, verb, **way, preview=True)
    assert (ids(preview["judged"]), preview["preview"]) == (wanted, True)
    assert set(await left(api)) == {letters[name] for name in "abcd"}
    done = await judge(api, verb, **way)
    assert done == preview | {"preview": False}
    assert (done["matched"], done["more"], done["changed_meanwhile"]) == (len(wanted), False, [])
    assert set(await left(api)) == {letters[name] for name in "abcd"} - wanted
    assert [(await row(connection, task_id))["state"] for task_id in wanted] == len(wanted) * [VERBS[verb]]
    audited = await connection.execute("SELECT subject FROM fleet.audit WHERE actor = 'http' AND action = %s", (verb,))
    assert {UUID(each[0]) for each in await audited.fetchall()} == wanted


async def test_what_was_seen_is_judged_and_what_has_changed_meanwhile_left_alone(
    api: httpx.AsyncClient, letters: dict[str, UUID], verb: str
) -> None:
    gone = uuid7()
    seen = [
        {"id": str(letters["a"]), "attempt": 1},
        {"id": str(letters["b"]), "attempt": 2},
        {"id": str(letters["judged"]), "attempt": 1},
        {"id": str(letters["waiting"]), "attempt": 0},
        {"id": str(gone), "attempt": 1},
    ]
    changed = [str(each) for each in (letters["b"], letters["judged"], letters["waiting"], gone)]
    preview = await judge(api, verb, seen=seen, preview=True)
    assert preview == {
        "matched": 1, "more": False, "preview": True, "judged": seen[:1], "changed_meanwhile": changed,
    }  # fmt: skip
    assert len(await left(api)) == 4
    assert await judge(api, verb, seen=seen) == preview | {"preview": False}
    assert await left(api) == [letters[name] for name in "bcd"]
    again = await judge(api, verb, seen=seen[:1])
    assert (again["judged"], again["changed_meanwhile"]) == ([], [str(letters["a"])])


async def test_what_does_not_say_clearly_which_is_refused_and_changes_nothing(
    api: httpx.AsyncClient, connection: AsyncConnection, verb: str
) -> None:
    (letter,) = await failed(connection, ["a"], queue="x")
    for body in UNCLEAR:
        problem(await api.post(f"/dead/{verb}", json=body), 422, "invalid")
    assert await left(api) == [letter]


async def test_no_more_than_a_bound_is_judged_at_once_the_oldest_first(
    api: httpx.AsyncClient, letters: dict[str, UUID], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead, "BULK_MAX", 3)
    first = await judge(api, verb, all=True)
    assert (first["matched"], first["more"], len(first["judged"])) == (3, True, 3)
    assert await left(api) == [letters["d"]]
    last = await judge(api, verb, all=True)
    assert (last["matched"], last["more"]) == (1, False)


async def test_more_than_one_batch_is_judged_whole(
    api: httpx.AsyncClient, connection: AsyncConnection, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter, "BATCH", 2)
    wanted = [task_id for _ in range(5) for task_id in await failed(connection, ["a"])]
    assert ids((await judge(api, verb, all=True))["judged"]) == set(wanted)
    assert await left(api) == []
