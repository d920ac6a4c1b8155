"""Fleet: worker processes behind one PostgreSQL, each holding a lease. See README.md; `Fleet` is where to begin."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fleet.faultpoint import faultpoint  # at once: later, the module of this name would hide the function

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fleet.app import Fleet, Options, Task
    from fleet.client import TaskRef
    from fleet.config import Settings
    from fleet.context import Context
    from fleet.retry import Fail, Retry

_HOMES = {
    "Fleet": "fleet.app",
    "Options": "fleet.app",
    "Task": "fleet.app",
    "TaskRef": "fleet.client",
    "Settings": "fleet.config",
    "Context": "fleet.context",
    "Fail": "fleet.retry",
    "Retry": "fleet.retry",
}

__all__ = ["Context", "Fail", "Fleet", "Options", "Retry", "Settings", "Task", "TaskRef", "__version__", "faultpoint"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that the command line starts quickly."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fleet' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
