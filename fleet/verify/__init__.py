"""Judge a run by what was written down: every promise is kept, broken, or was not put to the test."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet.verify.check import verify
    from fleet.verify.history import Recorder, record_events
    from fleet.verify.verdict import Answer, Finding, Report, Verdict

_HOMES = {
    "Answer": "fleet.verify.verdict",
    "Finding": "fleet.verify.verdict",
    "Recorder": "fleet.verify.history",
    "Report": "fleet.verify.verdict",
    "Verdict": "fleet.verify.verdict",
    "record_events": "fleet.verify.history",
    "verify": "fleet.verify.check",
}

__all__ = ["Answer", "Finding", "Recorder", "Report", "Verdict", "record_events", "verify"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: every worker imports this package, and few are judged."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fleet.verify' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
