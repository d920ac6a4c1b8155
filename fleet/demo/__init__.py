"""The example application, `fleet.demo:app`, and `fleet demo`, which kills one of its workers and shows what follows."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet.demo.tasks import analyze, app, publish

__all__ = ["analyze", "app", "publish"]


def __getattr__(name: str) -> Any:
    """Import the application when it is first asked for, so that `fleet demo --help` answers quickly."""
    if name not in __all__:
        raise AttributeError(f"module 'fleet.demo' has no attribute {name!r}")
    return getattr(import_module("fleet.demo.tasks"), name)
