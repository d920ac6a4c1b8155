"""OpenTelemetry's spans for submissions and attempts, where the settings ask for them: else not even imported."""

from importlib import import_module
from typing import TYPE_CHECKING

from fleet.config import Settings
from fleet.errors import ConfigurationError

if TYPE_CHECKING:
    from fleet.tracing.spans import Spans


def spans_of(settings: Settings) -> "Spans | None":
    """Return what makes the spans; None where `tracing` is off. Raises ConfigurationError without OpenTelemetry."""
    if not settings.tracing:
        return None
    try:
        spans: Spans = import_module("fleet.tracing.spans").Spans()
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"tracing is on (FLEET_TRACING), and there is no module {error.name!r}: pip install 'pgfleet[otel]'"
        ) from error
    return spans
