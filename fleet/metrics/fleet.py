"""What the whole fleet is at: the database's word, asked at the scrape, and never one that is older than a few seconds."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import psycopg
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fleet.postgres import measure
from fleet.postgres.database import Connection, Database
from fleet.postgres.measure import Figure
from fleet.postgres.patience import shut
from fleet.task import FailureCode

CACHE_SECONDS = 3.0  # several may scrape: the database is asked no more often
PATIENCE_SECONDS = 3.0  # for the answer; Prometheus itself waits 10 s for a scrape by default
REASONS = tuple(code.value for code in FailureCode)


class Series(NamedTuple):
    """A metric, what `measure` calls its figures, and the series that are known before there is any."""

    name: str
    words: str
    about: str
    labels: tuple[str, ...] = ()
    known: tuple[str, ...] = ()  # values of the last label


_LIMIT = "A queue's are counted up to fleet_queue_count_limit."
GAUGES = (
    Series(
        "fleet_queue_tasks",
        f"Tasks that wait (ready), wait for a later moment (delayed) or run. {_LIMIT}",
        "tasks",
        ("queue", "state"),
        ("ready", "delayed", "running"),
    ),
    Series(
        "fleet_queue_oldest_ready_age_seconds", "For how long the oldest ready task has been due.", "age", ("queue",)
    ),
    Series("fleet_queue_paused", "Whether the queue is paused.", "paused", ("queue",)),
    Series("fleet_queue_workers", "Workers with a good lease that serve the queue.", "serving", ("queue",)),
    Series("fleet_queue_count_limit", "A count that equals it means: at least so many.", "limit"),
    Series("fleet_queues_omitted", "Queues of which nothing is told: there are too many.", "omitted"),
    Series("fleet_workers", "Workers whose lease is good.", "workers", ("state",), ("LIVE", "DRAINING")),
    Series("fleet_leases_overdue", "Leases that have expired and that nobody has reaped yet.", "overdue"),
    Series(
        "fleet_dead_letters",
        f"FAILED tasks that nobody has judged. {_LIMIT}",
        "dead",
        ("queue", "reason"),
        REASONS,
    ),
    Series(
        "fleet_oldest_transaction_age_seconds",
        "Age of the oldest open transaction on this database that the role may see.",
        "oldest",
    ),
    Series("fleet_dead_tuples", "Dead row versions of fleet.task, as PostgreSQL estimates them.", "dead_tuples"),
)
COUNTERS = (
    Series("fleet_lease_expirations", "Leases that were ended because their worker was gone.", "lease_expirations"),
    Series("fleet_dead_letters", "Tasks that have become FAILED.", "dead_letters", ("queue", "reason"), REASONS),
    Series("fleet_reclaims", "Tasks of vanished workers that were put back.", "reclaims", ("queue",)),
    Series("fleet_tasks_purged", "Finished tasks that were deleted when kept long enough.", "purged", ("queue",)),
    Series("fleet_fence_rejections", "Reports that came too late and were refused.", "fence_rejections", ("queue",)),
)


class FleetMetrics(Collector):
    """Asks the database when somebody collects; blocks meanwhile, hence not on an event loop.

    Where the database does not answer in time, `fleet_up` is 0 and nothing else is told.
    """

    def __init__(self, database: Database, now: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._now = now
        self._flight = threading.Lock()  # one question at a time: who comes meanwhile takes its answer
        self._figures: Sequence[Figure] | None = None
        self._good_until = -1.0
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """Yield the families without asking for any figure."""
        yield GaugeMetricFamily("fleet_up", "")
        yield from _families([])

    def collect(self) -> Iterator[Metric]:
        """Yield every family of one moment."""
        figures = self._current()
        yield GaugeMetricFamily("fleet_up", "Whether the database said what follows.", figures is not None)
        if figures is not None:
            yield from _families(figures)

    def _current(self) -> Sequence[Figure] | None:
        with self._flight:
            if self._now() >= self._good_until:
                self._figures = self._ask()
                self._good_until = self._now() + CACHE_SECONDS
            return self._figures

    def _ask(self) -> Sequence[Figure] | None:
        """Ask on a connection of its own, which takes no place while nobody scrapes."""
        try:
            with self._database.connect_sync("metrics") as connection, _patient(connection):
                return measure.measure(connection)
        except psycopg.Error:
            return None


@contextmanager
def _patient(connection: Connection) -> Iterator[None]:
    """Shut the connection when the answer takes too long: `statement_timeout` is of no use where the server hangs."""
    guard = threading.Timer(PATIENCE_SECONDS, shut, [connection.fileno()])
    guard.daemon = True
    guard.start()
    try:
        yield
    finally:
        guard.cancel()


def _families(figures: Sequence[Figure]) -> Iterator[Metric]:
    queues = [figure.queue or "" for figure in figures if figure.about == "queue"]
    for series in GAUGES:
        yield _filled(GaugeMetricFamily(series.name, series.words, labels=series.labels), series, figures, queues)
    for series in COUNTERS:
        yield _filled(CounterMetricFamily(series.name, series.words, labels=series.labels), series, figures, queues)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, series: Series, figures: Sequence[Figure], queues: Sequence[str]
) -> Metric:
    """Write the figures into a family; what is known and has none is 0."""
    values: dict[tuple[str, ...], float] = {}
    if figures:
        for queue in queues if "queue" in series.labels else ("",):
            values |= dict.fromkeys([_labels(series, queue, label) for label in series.known or ("",)], 0.0)
    for figure in figures:
        if figure.about == series.about:
            values[_labels(series, figure.queue or "", figure.label or "")] = figure.value
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _labels(series: Series, queue: str, label: str) -> tuple[str, ...]:
    return tuple(queue if name == "queue" else label for name in series.labels)
