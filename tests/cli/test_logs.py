"""Events as log lines: every event has one, and none tells what a task was given."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from uuid_utils.compat import uuid7

from fleet import events as happened
from fleet import logs
from fleet.context import current_task
from fleet.events import Event, Events
from fleet.lease import Lease
from fleet.task import Cancelled, ClaimedTask, Errored, FailureCode, Released, Settlement, State, Succeeded

SECRET = "4111-1111"
LEASE = Lease(uuid7(), "worker", timedelta(seconds=30))
TASK = ClaimedTask(
    uuid7(), "pay", "default", 5, datetime.now(UTC), 2, True, 0, 0, None, json.dumps({"card": SECRET}), LEASE
)  # fmt: skip
FAILED = Errored(FailureCode.HANDLER_ERROR, f"shop.Refused: {SECRET}\n\nTraceback …", None)
EVENTS: list[tuple[Event, int]] = [
    (happened.LeaseGranted(LEASE), logging.INFO),
    (happened.LeaseRenewed(LEASE, 0.01), logging.DEBUG),
    (happened.LeaseInDoubt(LEASE), logging.WARNING),
    (happened.LeaseLost(LEASE), logging.ERROR),
    (happened.TasksClaimed(3, 0.01), logging.DEBUG),
    (happened.TaskStarted(TASK), logging.DEBUG),
    (happened.TaskSettled(Settlement(TASK, Succeeded(json.dumps(SECRET))), State.SUCCEEDED), logging.DEBUG),
    (happened.TaskSettled(Settlement(TASK, Released(SECRET)), State.QUEUED), logging.DEBUG),
    (happened.TaskSettled(Settlement(TASK, Cancelled(SECRET)), State.CANCELLED), logging.INFO),
    (happened.TaskSettled(Settlement(TASK, FAILED), State.FAILED), logging.WARNING),
    (happened.TaskFenced(Settlement(TASK, FAILED)), logging.WARNING),
    (happened.TaskStuck(TASK), logging.ERROR),
    (happened.TasksReconciled(1), logging.WARNING),
    (happened.LeasesReaped((LEASE.id,)), logging.WARNING),
    (happened.TasksReclaimed(1, 2, 3), logging.WARNING),
    (happened.TasksExpired(1), logging.WARNING),
    (happened.DrainStarted("received SIGTERM"), logging.INFO),
    (happened.ChildStarted(0, 1), logging.INFO),
    (happened.ChildEnded(0, 1, -9), logging.WARNING),
    (happened.DatabaseTrouble("claim", "the server is gone"), logging.WARNING),
]


@contextmanager
def logging_to_stderr(form: str | None, level: str = "info", *theirs: logging.Handler) -> Iterator[io.StringIO]:
    """Configure logging in a program that has set up `theirs`; afterwards it is as it was."""
    root, ours = logging.getLogger(), logging.getLogger("fleet")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    root.handlers[:] = theirs
    with redirect_stderr(io.StringIO()) as stream:
        logs.configure(form, level)
    try:
        yield stream
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


def test_every_event_is_among_the_examples() -> None:
    assert {type(event) for event, _ in EVENTS} == set(get_args(Event))


FORMS = pytest.mark.parametrize("form", ["console", "json"])


@FORMS
def test_every_event_is_one_line_without_what_the_task_was_given(form: str) -> None:
    events = Events()
    logs.subscribe(events)
    with logging_to_stderr(form, "debug") as stderr:
        for event, _ in EVENTS:
            events.emit(event)
    assert len(stderr.getvalue().splitlines()) == len(EVENTS)
    assert SECRET not in stderr.getvalue()
    assert "Traceback" not in stderr.getvalue()


@pytest.mark.parametrize(("event", "level"), EVENTS, ids=lambda value: type(value).__name__)
def test_levels(event: Event, level: int) -> None:
    assert logs.describe(event)[0] == level


def test_a_failure_that_is_tried_again_says_when() -> None:
    failed = Errored(FailureCode.TIMEOUT, "too long", timedelta(seconds=2))
    _, words, fields = logs.describe(happened.TaskSettled(Settlement(TASK, failed), State.QUEUED))
    assert "tried again" in words
    assert (fields["retry_in_seconds"], fields["code"]) == (2, "timeout")
    assert "error" not in fields


def test_a_chatty_event_is_left_out_by_default() -> None:
    with logging_to_stderr(None) as stderr:
        logs.log(happened.TaskStarted(TASK))
        assert stderr.getvalue() == ""
        logs.log(happened.DrainStarted("received SIGTERM"))
    assert stderr.getvalue().endswith('INFO    draining why="received SIGTERM"\n')


@FORMS
def test_a_line_from_inside_a_handler_carries_task_and_attempt(form: str) -> None:
    with logging_to_stderr(form) as stderr:
        logging.getLogger("shop").info("outside")
        token = current_task.set(TASK)
        logging.getLogger("shop").warning("inside of %s", "it")
        current_task.reset(token)
    outside, inside = stderr.getvalue().splitlines()
    assert "task_id" not in outside
    if form == "json":
        line: dict[str, Any] = json.loads(inside)
        assert (line["logger"], line["message"]) == ("shop", "inside of it")
        assert (line["task_id"], line["attempt"], line["level"]) == (str(TASK.id), 2, "warning")
    else:
        assert inside.endswith(f"WARNING shop: inside of it task_id={TASK.id} attempt=2")


def test_no_line_can_be_forged_on_a_console() -> None:
    with logging_to_stderr("console") as stderr:
        logging.getLogger("shop").info("hello\x1b[2J\n2030-01-01T00:00:00.000Z ERROR   lease lost")
        logs.log(happened.DatabaseTrouble("claim", "a\nb=\x1b"))
    first, second, third = stderr.getvalue().splitlines()
    assert "\x1b" not in first
    assert second.startswith("    2030")
    assert third.endswith('error="a\\nb=\\u001b"')


@FORMS
def test_an_exception_keeps_its_traceback(form: str) -> None:
    error = ValueError("no")
    with logging_to_stderr(form) as stderr:
        logging.getLogger("shop").error("it failed", exc_info=error)
    assert "ValueError: no" in stderr.getvalue()
    if form == "json":
        assert json.loads(stderr.getvalue())["exception"] == "ValueError: no"


def test_logging_that_the_app_has_set_up_is_left_as_it_is_unless_a_form_is_asked_for() -> None:
    stream = io.StringIO()
    theirs = logging.StreamHandler(stream)
    theirs.setFormatter(logging.Formatter("%(task_id)s %(message)s"))
    with logging_to_stderr(None, "info", theirs) as stderr:
        logs.log(happened.LeaseLost(LEASE))
    assert stderr.getvalue() == ""
    assert stream.getvalue() == f"None lease lost: its tasks belong to others now lease={LEASE.id}\n"
    with logging_to_stderr("json", "info", theirs) as stderr:
        logs.log(happened.LeaseLost(LEASE))
    assert json.loads(stderr.getvalue())["level"] == "error"
