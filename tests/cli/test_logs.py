"""Events as log lines: every event has one, and none tells what a task was given."""

import io
import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
import structlog
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
    uuid7(), "pay", "default", 5, datetime.now(UTC), 2, True, 0, 0, None, json.dumps({"card": SECRET}), None, LEASE
)  # fmt: skip
FAILED = Errored(FailureCode.HANDLER_ERROR, f"shop.Refused: {SECRET}\n\nTraceback …", None)
EVENTS: list[tuple[Event, int]] = [
    (happened.LeaseGranted(LEASE), logging.INFO),
    (happened.LeaseRenewed(LEASE, 0.01), logging.DEBUG),
    (happened.LeaseInDoubt(LEASE), logging.WARNING),
    (happened.LeaseLost(LEASE), logging.ERROR),
    (happened.TasksClaimed(3, 0.01), logging.DEBUG),
    (happened.TaskStarted(TASK), logging.DEBUG),
    (happened.SettlementsWritten(3, 0.01), logging.DEBUG),
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
    (happened.ChildStarted("worker 2", 1), logging.INFO),
    (happened.ChildEnded("worker 2", 1, -9), logging.WARNING),
    (happened.ChildEnded("worker 2", 1, 0), logging.INFO),
    (happened.ServerRestarted(1), logging.WARNING),
    (happened.ApiListening("http://127.0.0.1:8080"), logging.INFO),
    (happened.MetricsListening("http://127.0.0.1:9101"), logging.INFO),
    (happened.RequestAnswered("POST", "/tasks", 202, 0.01), logging.DEBUG),
    (happened.RequestAnswered("GET", "/tasks/{id}", 500, 0.01), logging.WARNING),
    (happened.RequestBroken("GET", "/tasks/{id}", KeyError("state")), logging.ERROR),
    (happened.DatabaseTrouble("claim", "the server is gone"), logging.WARNING),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def logging_to_stderr(
    form: str | None, level: str = "info", *theirs: logging.Handler, stream: io.StringIO | None = None
) -> Iterator[io.StringIO]:
    """Configure logging in a program that has set up `theirs`; afterwards it is as it was."""
    root, ours = logging.getLogger(), logging.getLogger("fleet")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    root.handlers[:] = theirs
    with redirect_stderr(stream or io.StringIO()) as stderr:
        logs.configure(form, level)
    try:
        yield stderr
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
        logging.captureWarnings(capture=False)
        structlog.reset_defaults()


@contextmanager
def inside_a_handler() -> Iterator[None]:
    token = current_task.set(TASK)
    try:
        yield
    finally:
        current_task.reset(token)


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
    lines = [line for line in stderr.getvalue().splitlines() if not line.startswith("    ")]
    assert len(lines) == len(EVENTS)
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
    (line,) = stderr.getvalue().splitlines()
    assert " ".join(line.split()[1:]) == "[info ] draining [fleet] why='received SIGTERM'"


ROUTINE = [
    event
    for event, level in EVENTS
    if level == logging.DEBUG and logs.describe(event)[1] != "task handed back"  # which comes with a drain only
]


@pytest.mark.parametrize("event", ROUTINE, ids=lambda event: type(event).__name__)
def test_an_event_of_every_task_or_request_is_not_even_described_where_nobody_debugs(
    event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "describe", lambda event: pytest.fail("described for nobody"))
    with logging_to_stderr("json"):
        logs.log(event)


def test_the_fields_of_json_come_in_one_order() -> None:
    with logging_to_stderr("json") as stderr:
        logs.log(happened.LeaseLost(LEASE))
        logs.log(happened.ChildEnded("worker 2", 1, -9))
    first, second = map(json.loads, stderr.getvalue().splitlines())
    assert list(first) == ["time", "level", "logger", "pid", "message", "lease"]
    assert datetime.now(UTC) - datetime.fromisoformat(first["time"]) < timedelta(minutes=1)
    assert (len(first["time"]), first["time"][-1]) == (len("2026-01-01T00:00:00.000Z"), "Z")
    assert (first["level"], first["logger"], first["pid"]) == ("error", "fleet", os.getpid())
    assert first["lease"] == str(LEASE.id)
    assert [second[name] for name in ("message", "name", "pid", "code")] == ["process ended", "worker 2", 1, -9]


def test_a_console_is_coloured_only_where_it_is_a_terminal_that_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(stream: io.StringIO) -> str:
        with logging_to_stderr("console", stream=stream) as stderr:
            logging.getLogger("shop").warning("hello")
        return stderr.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in shown(Terminal())
    assert "\x1b" not in shown(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in shown(Terminal())


@FORMS
def test_a_line_from_inside_a_handler_carries_task_and_attempt(form: str) -> None:
    with logging_to_stderr(form) as stderr:
        logging.getLogger("shop").info("outside")
        with inside_a_handler():
            logging.getLogger("shop").warning("inside of %s", "it")
    outside, inside = stderr.getvalue().splitlines()
    assert "task_id" not in outside
    if form == "json":
        line: dict[str, Any] = json.loads(inside)
        assert (line["logger"], line["message"]) == ("shop", "inside of it")
        assert (line["task_id"], line["attempt"], line["level"]) == (str(TASK.id), 2, "warning")
    else:
        assert " inside of it " in inside
        assert inside.endswith(f"[shop] task_id={TASK.id} attempt=2")


@FORMS
def test_a_logger_of_structlog_says_the_same_in_the_same_form(form: str) -> None:
    with logging_to_stderr(form) as stderr:
        log = structlog.get_logger("shop").bind(order=7)
        log.debug("not asked for")
        with inside_a_handler():
            log.warning("inside of %s", "it", total=1.5, level="gold")
    (inside,) = stderr.getvalue().splitlines()
    if form == "json":
        line: dict[str, Any] = json.loads(inside)
        assert (line["logger"], line["message"], line["level"]) == ("shop", "inside of it", "warning")
        assert [line[name] for name in ("order", "total", "task_id", "attempt")] == [7, 1.5, str(TASK.id), 2]
    else:
        assert " inside of it " in inside
        assert inside.endswith(f"[shop] order=7 total=1.5 task_id={TASK.id} attempt=2")


def test_structlog_that_the_app_has_set_up_is_left_as_it_is_unless_a_form_is_asked_for() -> None:
    theirs = [structlog.processors.JSONRenderer()]
    try:
        structlog.configure(processors=theirs)
        with logging_to_stderr(None):
            assert structlog.get_config()["processors"] is theirs
        structlog.configure(processors=theirs)
        with logging_to_stderr("json"):
            assert structlog.get_config()["processors"] is not theirs
    finally:
        structlog.reset_defaults()


@FORMS
def test_a_warning_is_a_line_like_any_other(form: str) -> None:
    with logging_to_stderr(form) as stderr, warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old ways", stacklevel=1)
    first, *more = stderr.getvalue().splitlines()
    assert "UserWarning: old ways" in first
    assert "py.warnings" in stderr.getvalue()
    assert all(line.startswith("    ") for line in more)


@pytest.mark.fault("Payloads", "HTML and ANSI in names and errors")
@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_no_line_can_be_forged_on_a_console(stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    forged = "hello\x1b[2J\r\n2030-01-01T00:00:00.000Z [error    ] lease lost"
    with logging_to_stderr("console", stream=stream()) as stderr:
        logging.getLogger("shop").info(forged)
        logging.getLogger(forged).info("hello")
        structlog.get_logger("shop").info("hello", **{forged: forged, "list": [forged], "other": ValueError(forged)})
        logging.getLogger("shop").error("it failed", exc_info=ValueError(forged))
        logs.log(happened.DatabaseTrouble("claim", forged))
    assert "\x1b[2J" not in stderr.getvalue()
    assert "\r" not in stderr.getvalue()
    lines = stderr.getvalue().splitlines()
    assert sum(not line.startswith("    ") for line in lines) == 5
    assert not any(line.lstrip("\x1b[m0123456789").startswith("30-01") for line in lines)


def test_a_logger_of_the_app_sees_no_control_characters_in_our_fields() -> None:
    line = str(logs.Line("database trouble", {"operation": "claim", "error": "a\r\nb=\x1b"}))
    assert line == 'database trouble operation=claim error="a\\x0d\\nb=\\x1b"'


@pytest.mark.parametrize(("said", "shown"), [
    ("postgresql://ann:s3cret@db:5432/shop", "postgresql://ann:***@db:5432/shop"),
    ("at postgresql+psycopg://ann:s3cret@db/shop?a=b@c, twice", "at postgresql+psycopg://ann:***@db/shop?a=b@c, twice"),
    ("postgresql://ann:s3cr%40et%2F@db", "postgresql://ann:***@db"),
    ("postgresql://ann:p@s3cret:!$&'()*+,;=\"\\é@db", "postgresql://ann:***@db"),
    ("postgresql://ann:pa/s3cret?#@db/shop", "postgresql://ann:***@db/shop"),
    ("postgresql://ann@cloud:s3cret@db.cloud/shop", "postgresql://ann@cloud:***@db.cloud/shop"),
    ("redis://:s3cret@cache/0", "redis://:***@cache/0"),
    ("postgresql://ann:s3cret@[::1]:5432/shop", "postgresql://ann:***@[::1]:5432/shop"),
    ("a://b:s3cret@c,d://e:s3cret@f g://h:s3cret@i", "a://b:***@c,d://e:***@f g://h:***@i"),
    ("postgresql://a:s3cret@h1:1,h2:2/shop", "postgresql://a:***@h1:1,h2:2/shop"),
    ("host=db password=s3cret user=ann", "host=db password=*** user=ann"),
    (r"password = 'it\'s s3cret' user=ann", "password = *** user=ann"),
    (r"password=my\ s3cret user=ann", "password=*** user=ann"),
    ("postgresql://db/shop?user=ann&password=s3cret", "postgresql://db/shop?user=ann&password=***"),
    ("PGPASSWORD=s3cret psql", "PGPASSWORD=*** psql"),
    ("postgresql://ann@db:5432/shop?mail=a@b", "postgresql://ann@db:5432/shop?mail=a@b"),
    ("http://db:8080/a@b", "http://db:8080/a@b"),
    ("http://[::1]:8080/a@b", "http://[::1]:8080/a@b"),
    ("password authentication failed for user ann", "password authentication failed for user ann"),
    ("mail ann@db: 12:30 http://db", "mail ann@db: 12:30 http://db"),
])  # fmt: skip
@FORMS
def test_no_password_is_shown_whoever_logs_it_wherever(form: str, said: str, shown: str) -> None:
    with logging_to_stderr(form) as stderr:
        shop, theirs = logging.getLogger("shop"), structlog.get_logger("shop")
        shop.info(said)
        shop.info("by %s", said)
        theirs.info("by structlog", url=said, many=[said], deep={"url": said})
        try:
            raise ValueError(said)  # noqa: TRY301 - a traceback is what is looked at
        except ValueError:
            shop.exception("it failed")
            theirs.exception("it failed")
        logs.log(happened.DatabaseTrouble("claim", said))
        logs.log(happened.RequestBroken("GET", "/tasks", ValueError(said)))
    text = stderr.getvalue()
    assert "s3cret" not in text
    if form == "json":
        plain, by, fields, *failed, trouble, broken = map(json.loads, text.splitlines())
        assert (plain["message"], by["message"]) == (shown, f"by {shown}")
        assert (fields["url"], fields["many"], fields["deep"]) == (shown, [shown], {"url": shown})
        assert trouble["error"] == shown
        assert all(each["exception"].endswith(f"ValueError: {shown}") for each in (*failed, broken))
    else:
        assert text.count(shown) >= 5


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
    theirs.setFormatter(logging.Formatter("%(task_id)s %(attempt)s %(message)s"))
    with logging_to_stderr(None, "info", theirs) as stderr:
        logs.log(happened.LeaseLost(LEASE))
        with inside_a_handler():
            logging.getLogger("shop").warning("hello")
        assert not structlog.is_configured()
    assert stderr.getvalue() == ""
    assert stream.getvalue().splitlines() == [
        f"None None lease lost: its tasks belong to others now lease={LEASE.id}",
        f"{TASK.id} 2 hello",
    ]
    with logging_to_stderr("json", "info", theirs) as stderr:
        logs.log(happened.LeaseLost(LEASE))
    assert json.loads(stderr.getvalue())["level"] == "error"


@FORMS
def test_a_defect_of_ours_in_a_request_is_told_with_its_traceback(form: str) -> None:
    try:
        raise KeyError("state")  # noqa: TRY301 - a traceback is what is looked at
    except KeyError as error:
        broken = happened.RequestBroken("GET", "/tasks/{id}", error)
    with logging_to_stderr(form) as stderr:
        logs.log(broken)
    if form == "json":
        line = json.loads(stderr.getvalue())
        assert (line["level"], line["route"]) == ("error", "/tasks/{id}")
        text = line["exception"]
    else:
        text = stderr.getvalue()
    assert "Traceback" in text
    assert "KeyError: 'state'" in text
    assert "exc_info" not in stderr.getvalue()


@FORMS
def test_a_stack_that_was_asked_for_ends_where_it_was_asked_for(form: str) -> None:
    with logging_to_stderr(form) as stderr:
        logging.getLogger("shop").info("here", stack_info=True)
    text = json.loads(stderr.getvalue())["stack"] if form == "json" else stderr.getvalue()
    assert text.splitlines()[-1].strip().startswith("logging.getLogger")
