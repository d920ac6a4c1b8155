"""A span for each submission, and one for each attempt, which links to it.

This uses OpenTelemetry's interface alone: which SDK records, and where to, is the program's own business. No span holds
arguments, results or the text of an error.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, get_current_span, get_tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fleet import __version__
from fleet.postgres.submit import Submission
from fleet.task import ClaimedTask, Errored, Outcome, outcome_name

_W3C = TraceContextTextMapPropagator()
_FIELD = "traceparent"


class Spans:
    """Makes the spans."""

    def __init__(self) -> None:
        self._tracer = get_tracer("fleet", __version__)

    @contextmanager
    def submitting(self, submission: Submission) -> Iterator[Submission]:
        """Span a submission; the one that is handed out carries the span's name, for the handler to link to."""
        told = {
            "messaging.system": "fleet",
            "messaging.operation.name": "submit",
            "messaging.operation.type": "send",
            "messaging.destination.name": submission.queue,
            "fleet.task.name": submission.name,
        }
        with self._tracer.start_as_current_span(
            f"submit {submission.name}",
            kind=SpanKind.PRODUCER,
            attributes=told,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            carrier: dict[str, str] = {}
            _W3C.inject(carrier)
            try:
                yield submission._replace(traceparent=carrier.get(_FIELD))
            except BaseException as error:
                _failed(span, type(error).__qualname__)
                raise

    def submitted(self, ids: Sequence[UUID]) -> None:
        """Say in the submission's span which task it was: an earlier one, where a key says so. Of many, how many."""
        if len(ids) == 1:
            get_current_span().set_attribute("messaging.message.id", str(ids[0]))
        else:
            get_current_span().set_attribute("messaging.batch.message_count", len(ids))

    @contextmanager
    def running(self, task: ClaimedTask) -> Iterator[Callable[[Outcome], None]]:
        """Span an attempt, in a trace of its own: it may begin days after its submission, and more than once.

        What is handed out takes the outcome.
        """
        told: dict[str, str | int] = {
            "messaging.system": "fleet",
            "messaging.operation.name": "run",
            "messaging.operation.type": "process",
            "messaging.destination.name": task.queue,
            "messaging.message.id": str(task.id),
            "fleet.task.name": task.name,
            "fleet.task.attempt": task.attempt,
        }
        with self._tracer.start_as_current_span(
            f"run {task.name}",
            context=Context(),
            kind=SpanKind.CONSUMER,
            attributes=told,
            links=_links(task),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield lambda outcome: _ended(span, outcome)


def _links(task: ClaimedTask) -> list[Link]:
    origin = get_current_span(_W3C.extract({_FIELD: task.traceparent or ""}, Context())).get_span_context()
    return [Link(origin)] if origin.is_valid else []


def _ended(span: Span, outcome: Outcome) -> None:
    span.set_attribute("fleet.task.outcome", outcome_name(outcome))
    if isinstance(outcome, Errored):
        _failed(span, outcome.code.value)


def _failed(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)
