"""The spans that OpenTelemetry is given, as its own SDK records them."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from fleet import Fail, Fleet, Retry, Settings
from fleet.errors import ConfigurationError, DatabaseUnreachable, TaskFailed
from fleet.postgres.database import AsyncConnection
from tests.support import row

SECRET = "4111-1111"
_EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module")
def sdk() -> None:
    """An SDK as a program sets one up: once."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_EXPORTER))
    trace.set_tracer_provider(provider)


@pytest.fixture
def spans(sdk: None) -> Iterator[Callable[[str], list[ReadableSpan]]]:
    """Ask for the spans of a name that have ended, in the order of their ends."""
    _EXPORTER.clear()
    yield lambda name: [span for span in _EXPORTER.get_finished_spans() if span.name == name]
    _EXPORTER.clear()


Spans = Callable[[str], list[ReadableSpan]]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, tracing=True)


def links(span: ReadableSpan) -> list[str]:
    return [named(link.context) for link in span.links]


def named(context: trace.SpanContext | None) -> str:
    """Return what W3C Trace Context writes for a span."""
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


async def test_an_attempt_links_to_its_submission(app: Fleet, spans: Spans) -> None:
    @app.task(idempotent=True)
    async def pay(card: str) -> str:
        return card

    async with app.worker():
        with trace.get_tracer("test").start_as_current_span("request") as request:
            ref = await pay.submit(SECRET)
        await ref.result(10)

    (submission,), (attempt,) = spans("submit pay"), spans("run pay")
    assert (submission.kind, attempt.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert submission.parent == request.get_span_context()
    assert attempt.parent is None  # a trace of its own
    assert links(attempt) == [named(submission.context)]
    both = {"messaging.system": "fleet", "messaging.destination.name": "default", "fleet.task.name": "pay"}
    both |= {"messaging.message.id": str(ref.id)}
    assert submission.attributes == both | {"messaging.operation.name": "submit", "messaging.operation.type": "send"}
    assert attempt.attributes == both | {
        "messaging.operation.name": "run", "messaging.operation.type": "process",
        "fleet.task.attempt": 1, "fleet.task.outcome": "succeeded",
    }  # fmt: skip


async def test_what_a_handler_does_is_part_of_its_attempt(app: Fleet, spans: Spans) -> None:
    @app.task
    async def outer() -> None:
        await (await inner.submit()).result(10)

    @app.task
    def inner() -> None:
        with trace.get_tracer("test").start_as_current_span("query"):
            pass

    async with app.worker():
        await (await outer.submit()).result(10)

    (outer_attempt,), (inner_submission,) = spans("run outer"), spans("submit inner")
    (inner_attempt,), (query,) = spans("run inner"), spans("query")
    assert inner_submission.parent == outer_attempt.context
    assert links(inner_attempt) == [named(inner_submission.context)]
    assert query.parent == inner_attempt.context  # in a thread


async def test_each_attempt_is_a_span_that_says_how_it_ended_and_nothing_of_what_it_was_given(
    app: Fleet, spans: Spans
) -> None:
    seen: list[str] = []

    @app.task(idempotent=True)
    async def charge(card: str) -> None:
        seen.append(card)
        if len(seen) == 1:
            raise Retry(after=0.01)
        raise Fail(f"{card} is refused")

    async with app.worker():
        ref = await charge.submit(SECRET)
        with pytest.raises(TaskFailed):
            await ref.result(10)

    (submission,) = spans("submit charge")
    first, second = spans("run charge")
    assert links(first) == links(second) == [named(submission.context)]
    for attempt, span in enumerate((first, second), start=1):
        assert span.attributes is not None
        assert span.attributes["fleet.task.attempt"] == attempt
        assert (span.attributes["fleet.task.outcome"], span.attributes["error.type"]) == ("error", "handler_error")
        assert span.status.status_code is StatusCode.ERROR
        assert SECRET not in span.to_json()
    assert submission.status.status_code is StatusCode.UNSET


async def test_many_are_one_submission(app: Fleet, spans: Spans, connection: AsyncConnection) -> None:
    @app.task
    async def work(number: int) -> None: ...

    refs = await app.submit_many(work, [{"number": number} for number in range(3)])
    (submission,) = spans("submit work")
    assert submission.attributes is not None
    assert submission.attributes["messaging.batch.message_count"] == 3
    for ref in refs:
        assert (await row(connection, ref.id))["traceparent"] == named(submission.context)


async def test_a_submission_with_a_known_key_names_the_first_task(app: Fleet, spans: Spans) -> None:
    @app.task
    def work() -> None: ...

    first = await work.options(idempotency_key="k").submit()
    again = work.options(idempotency_key="k").submit_sync()
    assert again.id == first.id
    told = [span.attributes["messaging.message.id"] for span in spans("submit work") if span.attributes]
    assert told == [str(first.id)] * 2


async def test_a_submission_that_fails_says_by_what(spans: Spans, settings: Settings, database_url: str) -> None:
    app = Fleet(f"postgresql://nobody:{SECRET}@127.0.0.1:1/none", settings=settings)

    @app.task
    async def work() -> None: ...

    with pytest.raises(DatabaseUnreachable):
        await work.submit()
    await app.close()
    (span,) = spans("submit work")
    assert span.attributes is not None
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "DatabaseUnreachable")
    assert SECRET not in span.to_json()


async def test_without_tracing_nothing_is_said(
    spans: Spans, settings: Settings, database_url: str, connection: AsyncConnection
) -> None:
    async with Fleet(database_url, settings=replace(settings, tracing=False)) as app:

        @app.task
        async def work() -> None: ...

        async with app.worker():
            ref = await work.submit()
            await ref.result(10)
    assert not _EXPORTER.get_finished_spans()
    assert (await row(connection, ref.id))["traceparent"] is None


def test_without_opentelemetry_tracing_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fleet.tracing.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)  # as if it could not be found
    with pytest.raises(ConfigurationError, match=r"FLEET_TRACING.*pip install 'pgfleet\[otel\]'"):
        Fleet("postgresql:///", settings=settings)
