"""What one worker process did and holds: it listens to the worker's events, and looks at the worker when asked."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fleet.events import (
    DatabaseTrouble,
    Event,
    LeaseRenewed,
    SettlementsWritten,
    TaskFenced,
    TasksClaimed,
    TaskSettled,
)
from fleet.handler import Handler
from fleet.metrics.tally import LONG, QUICK, Histogram, registry_of
from fleet.task import Errored, Settlement, State
from fleet.worker.process import Worker

OUTCOMES = ("succeeded", "failed", "retried", "released", "cancelled", "fenced")
OPERATIONS = ("claim", "settle", "renew", "listen", "maintenance", "look back", "fetch", "drain", "close")
NO_SQLSTATE = "none"  # the connection could not be made, or broke: the server said nothing
_SUCCEEDED = State.SUCCEEDED  # nearly always: to look it up in its class takes longer than to count


class WorkerMetrics(Collector):
    """Subscribes to a worker's events. Make it before the worker is entered; `registry` is what is told."""

    def __init__(self, worker: Worker, handlers: Mapping[str, Handler]) -> None:
        self._worker = worker
        self._claimed = dict.fromkeys(worker.queues, 0)
        self._finished: dict[tuple[str, str, str], int] = defaultdict(int)
        for handler in handlers.values():
            if handler.queue in worker.queues:
                self._finished |= {(handler.queue, handler.name, outcome): 0 for outcome in OUTCOMES}
        self._run = {name: Histogram(LONG) for name in handlers}
        self._wait = {queue: Histogram(LONG) for queue in worker.queues}
        self._claim, self._settle, self._heartbeat = Histogram(QUICK), Histogram(QUICK), Histogram(QUICK)
        self._errors: dict[tuple[str, str], int] = defaultdict(int)
        self._errors |= {(operation, NO_SQLSTATE): 0 for operation in OPERATIONS}
        self._steps: dict[type[Event], Callable[[Any], None]] = {
            TaskSettled: self._on_settled,
            TaskFenced: self._on_fenced,
            TasksClaimed: self._on_claimed,
            SettlementsWritten: self._on_written,
            LeaseRenewed: self._on_renewed,
            DatabaseTrouble: self._on_trouble,
        }
        self.registry = registry_of(self)
        worker.events.subscribe(self._notice)

    def collect(self) -> Iterator[Metric]:
        """Yield every family. From any thread: what is counted meanwhile is told now or the next time."""
        yield from self._tasks()
        yield from self._statements()
        yield from self._standing()

    def _notice(self, event: Event) -> None:
        step = self._steps.get(type(event))
        if step is not None:
            step(event)

    def _on_settled(self, event: TaskSettled) -> None:
        settlement, state = event
        if state is _SUCCEEDED:
            ended = "succeeded"
        elif state is State.QUEUED:
            ended = "retried" if isinstance(settlement.outcome, Errored) else "released"
        else:
            ended = state.value.lower()
        self._count(settlement, ended)

    def _on_fenced(self, event: TaskFenced) -> None:
        self._count(event.settlement, "fenced")

    def _count(self, settlement: Settlement, outcome: str) -> None:
        task, _, seconds = settlement
        self._finished[task.queue, task.name, outcome] += 1
        if seconds is not None:
            self._run[task.name].observe(seconds)

    def _on_claimed(self, event: TasksClaimed) -> None:
        """Count them, and how long each had been due, both by the database's clock."""
        self._claim.observe(event.seconds)
        claimed, wait, seen = self._claimed, self._wait, event.seen
        for task in event.tasks:
            queue = task.queue
            claimed[queue] += 1
            if seen is not None:
                wait[queue].observe((seen - task.run_at).total_seconds())

    def _on_written(self, event: SettlementsWritten) -> None:
        self._settle.observe(event.seconds)

    def _on_renewed(self, event: LeaseRenewed) -> None:
        self._heartbeat.observe(event.seconds)

    def _on_trouble(self, event: DatabaseTrouble) -> None:
        self._errors[event.operation, event.sqlstate[:2] if event.sqlstate else NO_SQLSTATE] += 1

    def _tasks(self) -> Iterator[Metric]:
        claimed = CounterMetricFamily("fleet_tasks_claimed", "Tasks that this process has claimed.", labels=("queue",))
        for queue, count in self._claimed.copy().items():
            claimed.add_metric((queue,), count)
        yield claimed
        words = "Attempts whose end this process has written, or was refused (fenced)."
        finished = CounterMetricFamily("fleet_tasks_finished", words, labels=("queue", "task", "outcome"))
        for key, count in self._finished.copy().items():
            finished.add_metric(key, count)
        yield finished
        run = HistogramMetricFamily("fleet_task_run_seconds", "How long handlers ran.", labels=("task",))
        for name, histogram in self._run.items():
            histogram.add_to(run, (name,))
        yield run
        words = "How long claimed tasks had been due, by the database's clock."
        wait = HistogramMetricFamily("fleet_task_wait_seconds", words, labels=("queue",))
        for queue, histogram in self._wait.items():
            histogram.add_to(wait, (queue,))
        yield wait

    def _statements(self) -> Iterator[Metric]:
        for name, words, histogram in (
            ("fleet_claim_seconds", "Claims that brought tasks, as this process saw them.", self._claim),
            ("fleet_settle_seconds", "Statements that write the ends of attempts.", self._settle),
            ("fleet_heartbeat_seconds", "Renewals of the lease that succeeded.", self._heartbeat),
        ):
            family = HistogramMetricFamily(name, words)
            histogram.add_to(family)
            yield family
        words = "Errors of the database, by what was tried and the class of the SQLSTATE; none: no connection."
        errors = CounterMetricFamily("fleet_db_errors", words, labels=("op", "sqlstate_class"))
        for key, count in self._errors.copy().items():
            errors.add_metric(key, count)
        yield errors

    def _standing(self) -> Iterator[Metric]:
        standing = self._worker.standing()
        slots = GaugeMetricFamily("fleet_worker_slots", "Slots of this process.", labels=("state",))
        slots.add_metric(("busy",), standing.slots_busy)
        slots.add_metric(("idle",), standing.slots - standing.slots_busy)
        yield slots
        words = "How long the event loop took to answer when last asked, or has not answered."
        yield GaugeMetricFamily("fleet_event_loop_lag_seconds", words, standing.loop_lag_seconds)
        yield GaugeMetricFamily("fleet_listener_up", "Whether notifications come in.", standing.listening)
        words = "When the lease was last granted or renewed, by this machine's clock; 0: not yet."
        yield GaugeMetricFamily("fleet_heartbeat_last_success_timestamp_seconds", words, standing.renewed_at or 0.0)
