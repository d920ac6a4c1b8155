"""What a worker counts of its events, without a database; and that the reference names every metric."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from uuid_utils.compat import uuid7

from fleet.config import Settings
from fleet.events import (
    DatabaseTrouble,
    Events,
    LeaseRenewed,
    RequestAnswered,
    SettlementsWritten,
    TaskFenced,
    TasksClaimed,
    TaskSettled,
)
from fleet.handler import Handler
from fleet.lease import Lease
from fleet.metrics.exposition import render
from fleet.metrics.fleet import FleetMetrics
from fleet.metrics.http import HttpMetrics
from fleet.metrics.tally import Histogram
from fleet.metrics.worker import OUTCOMES, WorkerMetrics
from fleet.postgres.database import Database
from fleet.task import Cancelled, ClaimedTask, Errored, FailureCode, Outcome, Released, Settlement, State, Succeeded
from fleet.worker.process import Worker

SECOND = timedelta(seconds=1)
DUE = datetime(2030, 1, 1, tzinfo=UTC)
NOWHERE = Database("postgresql://127.0.0.1:1/none", Settings())
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
Metrics = tuple[Events, CollectorRegistry]


def task(name: str = "pay", queue: str = "default") -> ClaimedTask:
    return ClaimedTask(uuid7(), name, queue, 5, DUE, 1, True, 0, 0, None, "{}", None, Lease(uuid7(), "worker", SECOND))


def handler(name: str, queue: str) -> Handler:
    declared: dict[str, Any] = {"idempotent": True, "max_attempts": 5, "max_losses": 3, "priority": 5, "timeout": None}
    return Handler(function=lambda: None, name=name, queue=queue, **declared, retry_on=(), fail_on=())


@pytest.fixture
def metrics() -> Metrics:
    handlers = {"pay": handler("pay", "default"), "far": handler("far", "elsewhere")}
    events = Events()
    worker = Worker(NOWHERE, handlers, Settings(slots=7), queues=["default", "urgent"], events=events)
    return events, WorkerMetrics(worker, handlers).registry


def finished(registry: CollectorRegistry, outcome: str, queue: str = "default", name: str = "pay") -> float | None:
    labels = {"queue": queue, "task": name, "outcome": outcome}
    return registry.get_sample_value("fleet_tasks_finished_total", labels)


def test_known_series_are_there_before_anything_happens(metrics: Metrics) -> None:
    _, registry = metrics
    assert [finished(registry, outcome) for outcome in OUTCOMES] == [0.0] * len(OUTCOMES)
    assert finished(registry, "failed", "elsewhere", "far") is None  # a queue that this worker does not serve
    for queue in ("default", "urgent"):
        assert registry.get_sample_value("fleet_tasks_claimed_total", {"queue": queue}) == 0
        assert registry.get_sample_value("fleet_task_wait_seconds_count", {"queue": queue}) == 0
    assert registry.get_sample_value("fleet_task_run_seconds_count", {"task": "pay"}) == 0
    errors = {"op": "claim", "sqlstate_class": "none"}
    assert registry.get_sample_value("fleet_db_errors_total", errors) == 0
    assert registry.get_sample_value("fleet_worker_slots", {"state": "idle"}) == 7
    assert registry.get_sample_value("fleet_heartbeat_last_success_timestamp_seconds") == 0


ERRORED = Errored(FailureCode.HANDLER_ERROR, "boom", SECOND)


@pytest.mark.parametrize(
    ("outcome", "state", "ended"),
    [
        (Succeeded("1"), State.SUCCEEDED, "succeeded"),
        (ERRORED, State.FAILED, "failed"),
        (ERRORED, State.QUEUED, "retried"),
        (ERRORED, State.CANCELLED, "cancelled"),
        (Released("drain"), State.QUEUED, "released"),
        (Released("drain"), State.CANCELLED, "cancelled"),
        (Cancelled("asked"), State.CANCELLED, "cancelled"),
    ],
)
def test_each_end_of_an_attempt_is_counted_once(metrics: Metrics, outcome: Outcome, state: State, ended: str) -> None:
    events, registry = metrics
    events.emit(TaskSettled(Settlement(task(), outcome), state))
    assert {each: finished(registry, each) for each in OUTCOMES} == {each: each == ended for each in OUTCOMES}


def test_what_was_refused_is_counted_too_and_in_the_queue_it_came_from(metrics: Metrics) -> None:
    events, registry = metrics
    events.emit(TaskFenced(Settlement(task(queue="urgent"), Succeeded("1"))))
    assert finished(registry, "fenced", "urgent") == 1
    assert finished(registry, "fenced") == 0


def test_a_task_waits_from_when_it_was_due_by_the_database_s_clock(metrics: Metrics) -> None:
    events, registry = metrics
    events.emit(TasksClaimed(2, 0.02, [task(), task(queue="urgent")], DUE + 3 * SECOND))
    assert registry.get_sample_value("fleet_task_wait_seconds_sum", {"queue": "urgent"}) == 3.0
    assert registry.get_sample_value("fleet_task_wait_seconds_bucket", {"queue": "urgent", "le": "2.5"}) == 0
    assert registry.get_sample_value("fleet_task_wait_seconds_bucket", {"queue": "urgent", "le": "5.0"}) == 1
    assert registry.get_sample_value("fleet_tasks_claimed_total", {"queue": "default"}) == 1
    assert registry.get_sample_value("fleet_claim_seconds_count") == 1


def test_handlers_statements_and_errors_are_measured(metrics: Metrics) -> None:
    events, registry = metrics
    events.emit(TaskSettled(Settlement(task(), Succeeded("1"), 0.5), State.SUCCEEDED))
    events.emit(TaskSettled(Settlement(task(), Released("drain")), State.QUEUED))  # it has not run
    events.emit(SettlementsWritten(9, 0.25))
    events.emit(LeaseRenewed(task().lease, 0.125))
    events.emit(DatabaseTrouble("claim", "shut down", "57P01"))
    events.emit(DatabaseTrouble("claim", "gone"))
    assert registry.get_sample_value("fleet_task_run_seconds_sum", {"task": "pay"}) == 0.5
    assert registry.get_sample_value("fleet_task_run_seconds_count", {"task": "pay"}) == 1
    assert registry.get_sample_value("fleet_settle_seconds_sum") == 0.25
    assert registry.get_sample_value("fleet_heartbeat_seconds_sum") == 0.125
    for kind in ("57", "none"):
        assert registry.get_sample_value("fleet_db_errors_total", {"op": "claim", "sqlstate_class": kind}) == 1


@pytest.mark.parametrize("values", [[], [0.1], [0.0, 0.1, 0.100001, 7.0, 1e9]])
def test_a_histogram_has_each_value_in_the_first_bucket_that_holds_it(values: Sequence[float]) -> None:
    histogram, family = Histogram((0.1, 1.0)), HistogramMetricFamily("h", "h")
    for value in values:
        histogram.observe(value)
    histogram.add_to(family)
    told = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    expected = {"0.1": sum(value <= 0.1 for value in values), "1.0": sum(value <= 1.0 for value in values)}
    assert told == expected | {"+Inf": len(values), "h_count": len(values), "h_sum": sum(values)}


def test_requests_are_told_by_the_pattern_of_their_route() -> None:
    events = Events()
    registry = HttpMetrics(events).registry
    events.emit(RequestAnswered("GET", "/tasks/{id}", 404, 0.03))
    labels = {"method": "GET", "route": "/tasks/{id}", "status": "404"}
    assert registry.get_sample_value("fleet_http_request_seconds_count", labels) == 1


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "text/plain; version=0.0.4"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
    ],
)
def test_the_format_is_what_was_asked_for(metrics: Metrics, accept: str, kind: str) -> None:
    content_type, text = render(metrics[1], accept)
    assert content_type.startswith(kind)
    assert text.endswith(b"# EOF\n") == bool(accept)


def exported(metrics: Metrics) -> dict[str, str]:
    """The names of all metrics, as they are scraped, and their types."""
    worker, api = metrics[1], HttpMetrics(Events()).registry
    told = [family for registry in (worker, api) for family in parsed(registry)]
    told += list(FleetMetrics(NOWHERE).describe())
    return {family.name + "_total" * (family.type == "counter"): family.type for family in told}


def parsed(registry: CollectorRegistry) -> list[Any]:
    return list(text_string_to_metric_families(render(registry, "")[1].decode()))


def test_the_reference_names_every_metric_with_its_type_and_labels_and_no_other(metrics: Metrics) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(dict(rows))
    assert dict(rows) == exported(metrics)
