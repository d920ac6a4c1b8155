"""Metrics as text: in Prometheus' format, or in OpenMetrics where that is asked for."""

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


def render(registry: CollectorRegistry, accept: str) -> tuple[str, bytes]:
    """Return the content type and the text, by the `Accept` header of who asks."""
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)


def plain(registry: CollectorRegistry, accept: str) -> tuple[str, bytes]:
    """Return them in Prometheus' format, whatever is asked for.

    To OpenMetrics a gauge `fleet_dead_letters` and a counter `fleet_dead_letters_total` are two metrics of one name.
    """
    return render(registry, "")
