"""What is counted while handlers run: dictionaries and lists, made into Prometheus' own families when somebody asks.

prometheus-client's counters and histograms take a lock for each step, and five times as long; see decision 0002.
"""

import platform
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from fleet import __version__

# Seconds: of one statement or request, and of a task.
QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


class Histogram:
    """One series: how many values were at most each bound, and their sum. Written by one thread, read by any."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        """Write the series into a family."""
        total, buckets = 0, []
        for bound, count in zip([*map(floatToGoString, self._bounds), "+Inf"], list(self._counts), strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(labels, buckets, self._sum)


class BuildInfo(Collector):
    """Which version this process runs."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "fleet_build_info", "Always 1; the labels say which version runs.", labels=("version", "python")
        )
        family.add_metric((__version__, platform.python_version()), 1)
        yield family


def registry_of(collector: Collector) -> CollectorRegistry:
    """Return a registry of this collector, the process's own figures, and what it runs. Nothing is global."""
    registry = CollectorRegistry()
    registry.register(collector)
    registry.register(BuildInfo())
    ProcessCollector(registry=registry)
    return registry
