"""What one process of the HTTP API did."""

from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fleet.events import Event, Events, RequestAnswered
from fleet.metrics.tally import QUICK, Histogram, registry_of


class HttpMetrics(Collector):
    """Subscribes to a server's events; `registry` is what is told."""

    def __init__(self, events: Events) -> None:
        self._requests: dict[tuple[str, str, str], Histogram] = {}
        self.registry = registry_of(self)
        events.subscribe(self._notice)

    def collect(self) -> Iterator[Metric]:
        """Yield the one family: its count is the number of requests."""
        words = "How long requests took to answer, by the route's pattern."
        family = HistogramMetricFamily("fleet_http_request_seconds", words, labels=("method", "route", "status"))
        for key, histogram in self._requests.copy().items():
            histogram.add_to(family, key)
        yield family

    def _notice(self, event: Event) -> None:
        if isinstance(event, RequestAnswered):
            key = event.method, event.route, str(event.status)
            histogram = self._requests.get(key)
            if histogram is None:
                histogram = self._requests[key] = Histogram(QUICK)
            histogram.observe(event.seconds)
