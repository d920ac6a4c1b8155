"""`fleet task`: submit, list, show, cancel."""

import json
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from uuid_utils.compat import uuid7

from fleet.postgres import inspect, settle
from fleet.postgres.database import AsyncConnection
from fleet.task import Errored, FailureCode, Settlement, Succeeded
from tests import support
from tests.cli.conftest import Command
from tests.cli.test_dead import fail


@pytest.fixture
def app(shop: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The shop, named once for all commands."""
    monkeypatch.setenv("FLEET_APP", shop)
    return shop


async def test_submit_prints_the_id_and_nothing_else(fleet: Command, app: str, connection: AsyncConnection) -> None:
    outcome = await fleet("task", "submit", "add", '{"a": 1, "b": 2}')
    assert (outcome.code, outcome.err) == (0, "")
    row = await support.row(connection, UUID(outcome.out.strip()))
    assert (row["queue"], row["name"], row["args"], row["state"]) == ("sums", "add", {"a": 1, "b": 2}, "QUEUED")


async def test_submit_takes_stdin_and_options(fleet: Command, shop: str, connection: AsyncConnection) -> None:
    outcome = await fleet(
        *(
            "task",
            "submit",
            "add",
            "-",
            "--app",
            shop,
            "--priority",
            0,
            "--delay",
            "1h",
            "--queue",
            "slow",
            "-o",
            "json",
        ),
        stdin='{"a": 1}\n',
    )
    assert outcome.code == 0
    row = await support.row(connection, UUID(outcome.json["id"]))
    assert (row["priority"], row["queue"], row["args"]) == (0, "slow", {"a": 1})
    assert (row["run_at"] - row["created_at"]).total_seconds() == pytest.approx(3600, abs=5)


async def test_the_same_key_makes_one_task_and_another_request_is_a_conflict(fleet: Command, app: str) -> None:
    submit = ("task", "submit", "add", "--idempotency-key", "k", "-o", "json")
    first = await fleet(*submit, '{"a": 1}')
    assert first.json["created"] is True
    again = await fleet(*submit, '{"a": 1}')
    assert (again.code, again.json) == (0, {"id": first.json["id"], "created": False})
    other = await fleet(*submit, '{"a": 2}')
    assert (other.code, other.out) == (6, "")
    assert first.json["id"] in other.err


async def test_an_unknown_name_lists_those_there_are(fleet: Command, app: str) -> None:
    outcome = await fleet("task", "submit", "subtract")
    assert (outcome.code, outcome.out) == (5, "")
    assert "add, pay" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"a": "x"}', "a: "),
        ('{"a": 1, "c": 2}', "c: "),
        ("{", "no JSON"),
        ("[1]", "JSON object"),
        ("[" * 100_000, "no JSON"),
        ('{"a": NaN}', "a: "),
        ("\udcff", "no JSON"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused(fleet: Command, app: str, arguments: str, words: str) -> None:
    outcome = await fleet("task", "submit", "add", arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err


async def test_no_more_is_read_from_stdin_than_a_task_may_hold(
    fleet: Command, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_ARGS_BYTES_MAX", "100")
    assert "more than 400 bytes" in (await fleet("task", "submit", "pay", "-", stdin=" " * 401)).err
    assert (await fleet("task", "submit", "pay", json.dumps({"card": "x" * 100}))).code == 2


async def test_submit_takes_moments_and_budgets(fleet: Command, app: str, connection: AsyncConnection) -> None:
    outcome = await fleet(
        *("task", "submit", "add", '{"a": 1}', "--run-at", "2030-01-31T09:00:00+02:00"),
        *("--expires-at", "2030-02-01T00:00:00Z", "--timeout", "90s", "--max-attempts", 7),
    )
    row = await support.row(connection, UUID(outcome.out.strip()))
    assert row["run_at"] == datetime(2030, 1, 31, 7, tzinfo=UTC)
    assert row["expires_at"] == datetime(2030, 2, 1, tzinfo=UTC)
    assert (row["timeout"], row["max_attempts"]) == (timedelta(seconds=90), 7)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--run-at", "2030-01-31T09:00:00"), "no time zone"),
        (("--expires-at", "tomorrow"), "2030-01-31T09:00:00Z"),
        (("--run-at", "2030-01-31T09:00:00Z", "--delay", "1s"), "--delay or --run-at"),
        (("--timeout", "0"), "0 < timeout"),
        (("--max-attempts", "0"), "x>=1"),
        (("--wait-timeout", "soon"), "write seconds"),
    ],
)
async def test_options_that_cannot_hold_are_refused(
    fleet: Command, app: str, options: tuple[str, ...], words: str
) -> None:
    outcome = await fleet("task", "submit", "add", '{"a": 1}', *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err


async def test_list_filters_and_pages_from_the_newest(fleet: Command, connection: AsyncConnection) -> None:
    old, middle, new = [await support.submit(connection, name=name) for name in ("one", "two", "two")]
    await support.submit(connection, queue="other")
    assert await listed(fleet, "--queue", "default") == [str(new), str(middle), str(old)]
    assert await listed(fleet, "--name", "two", "--before", new) == [str(middle)]
    assert await listed(fleet, "--state", "running") == []
    for option in (("--state", "lost"), ("--code", "bad_luck"), ("--name", "\udcff"), ("--since", "soon")):
        assert (await fleet("task", "list", *option)).code == 2
    assert (await fleet("task", "list", "--since", "999999999d")).code == 2
    page = await fleet("task", "list", "--queue", "default", "--limit", 2)
    assert [line[0] for line in page.lines] == ["ID", str(new), str(middle)]
    assert f"--before {middle}" in page.err


async def test_list_by_failure_code(fleet: Command, connection: AsyncConnection) -> None:
    (failed,) = await fail(connection, "one")
    (timed_out,) = await fail(connection, "two")
    await support.execute(
        connection, "UPDATE fleet.task SET failure_code = 'timeout' WHERE id = :id::uuid", id=timed_out
    )
    assert await listed(fleet, "--code", "timeout") == [str(timed_out)]
    assert await listed(fleet, "--code", "handler_error", "--state", "failed") == [str(failed)]
    assert await listed(fleet, "--code", "timeout", "--state", "succeeded") == []


async def test_list_what_a_worker_runs_now(fleet: Command, connection: AsyncConnection) -> None:
    lease = await support.new_lease(connection, worker="adder")
    done, held = [await support.submit(connection) for _ in range(2)]
    tasks = await support.claim_some(connection, lease)
    await settle.succeed(connection, lease, [Settlement(task, Succeeded("1")) for task in tasks if task.id == done])
    await support.submit(connection)
    assert await listed(fleet, "--worker", "adder") == [str(held)]
    assert await listed(fleet, "--worker", lease.id) == [str(held)]
    assert await listed(fleet, "--worker", "nobody") == []


async def test_list_since_goes_by_the_moment_in_the_id(fleet: Command, connection: AsyncConnection) -> None:
    now = datetime.now(UTC)
    ids = [UUID(int=inspect.first_id(now - timedelta(minutes=minutes)).int + 1) for minutes in (61, 59)]
    old, new = [await support.submit(connection, id=task_id) for task_id in ids]
    assert await listed(fleet, "--since", "1h") == [str(new)]
    assert await listed(fleet, "--since", "2h") == [str(new), str(old)]
    assert await listed(fleet, "--since", "2h", "--before", new) == [str(old)]
    assert await listed(fleet, "--since", "36500d") == [str(new), str(old)]


def test_the_first_id_of_a_moment_is_none_after_those_given_then() -> None:
    before = datetime.now(UTC)
    given = uuid7()
    assert inspect.first_id(before) <= given < inspect.first_id(datetime.now(UTC) + timedelta(milliseconds=2))
    last = datetime(2030, 1, 1, microsecond=1999, tzinfo=UTC)  # still of its first full millisecond
    assert inspect.first_id(last) == inspect.first_id(last.replace(microsecond=1000))
    assert inspect.first_id(datetime(1900, 1, 1, tzinfo=UTC)) == UUID(int=0)


async def listed(fleet: Command, *options: object) -> list[str]:
    """The ids that `fleet task list` gives."""
    outcome = await fleet("task", "list", "-o", "json", *options)
    assert outcome.code == 0
    return [row["id"] for row in outcome.json]


async def test_show_tells_attempts_and_late_reports(fleet: Command, connection: AsyncConnection) -> None:
    task_id = await support.submit(connection, args='{"n": [1, "x"]}')
    lease = await support.new_lease(connection, worker="adder")
    (task,) = await support.claim_some(connection, lease)
    running = await fleet("task", "show", task_id, "-o", "json")
    assert (running.json["worker"], running.json["attempts"]) == ("adder", [])
    failed = Errored(FailureCode.HANDLER_ERROR, "ValueError: no\n\nTraceback ...", None)
    await settle.give_back(connection, lease, [Settlement(task, failed)])
    await settle.record_late(connection, lease, [Settlement(task, Succeeded("1"))])
    shown = (await fleet("task", "show", task_id, "-o", "json")).json
    assert (shown["state"], shown["failure_code"], shown["args"]) == ("FAILED", "handler_error", {"n": [1, "x"]})
    assert [(each["outcome"], each["late"], each["worker"]) for each in shown["attempts"]] == [
        ("error", False, "adder"),
        ("succeeded", True, "adder"),
    ]
    plain = await fleet("task", "show", task_id)
    assert plain.code == 0
    assert "ValueError: no" in plain.out
    assert "Traceback ..." in plain.out
    assert "succeeded (late)" in plain.out


async def test_what_is_not_there_is_not_found(fleet: Command) -> None:
    assert (await fleet("task", "show", uuid4())).code == 5
    assert (await fleet("task", "cancel", uuid4())).code == 5
    assert (await fleet("task", "show", "no-id")).code == 2
    assert (await fleet("task", "cancel")).code == 2


async def test_cancel_says_what_became_of_each(fleet: Command, connection: AsyncConnection) -> None:
    running = await support.submit(connection)
    done = await support.submit(connection)
    lease = await support.new_lease(connection)
    tasks = await support.claim_some(connection, lease)
    await settle.succeed(connection, lease, [Settlement(task, Succeeded("1")) for task in tasks if task.id == done])
    waiting = await support.submit(connection)
    outcome = await fleet("task", "cancel", waiting, running, done, "-o", "json")
    assert outcome.code == 6
    assert outcome.json == [
        {"id": str(waiting), "state": "CANCELLED", "result": "cancelled"},
        {"id": str(running), "state": "RUNNING", "result": "worker_asked"},
        {"id": str(done), "state": "SUCCEEDED", "result": "too_late"},
    ]
    again = await fleet("task", "cancel", waiting)
    assert (again.code, again.lines[1]) == (0, [str(waiting), "CANCELLED", "cancelled already"])
