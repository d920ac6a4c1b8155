"""What tests of workers need: exact faults, a network that misbehaves, and a world outside that counts what reaches it.

For tests of your own handlers, see the guides "Testing your handlers" and "Killing a replica".
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet.postgres.scratch import new_database
    from fleet.testing.asserting import Submitted, assert_submitted, submitted
    from fleet.testing.databases import server, template
    from fleet.testing.draining import Ran, drained
    from fleet.testing.faultpoints import FaultPoints, Hit
    from fleet.testing.inlining import inline
    from fleet.testing.killing import Killed, kill_one_replica
    from fleet.testing.pointed import Pointed
    from fleet.testing.proxy import Proxy
    from fleet.testing.replicas import Crew, Replicas
    from fleet.testing.sink import Effect, Sink, report
    from fleet.testing.waiting import until

_HOMES = {
    "Crew": "fleet.testing.replicas",
    "Effect": "fleet.testing.sink",
    "FaultPoints": "fleet.testing.faultpoints",
    "Hit": "fleet.testing.faultpoints",
    "Killed": "fleet.testing.killing",
    "Pointed": "fleet.testing.pointed",
    "Proxy": "fleet.testing.proxy",
    "Ran": "fleet.testing.draining",
    "Replicas": "fleet.testing.replicas",
    "Sink": "fleet.testing.sink",
    "Submitted": "fleet.testing.asserting",
    "assert_submitted": "fleet.testing.asserting",
    "drained": "fleet.testing.draining",
    "inline": "fleet.testing.inlining",
    "kill_one_replica": "fleet.testing.killing",
    "new_database": "fleet.postgres.scratch",
    "report": "fleet.testing.sink",
    "server": "fleet.testing.databases",
    "submitted": "fleet.testing.asserting",
    "template": "fleet.testing.databases",
    "until": "fleet.testing.waiting",
}

__all__ = [
    "Crew",
    "Effect",
    "FaultPoints",
    "Hit",
    "Killed",
    "Pointed",
    "Proxy",
    "Ran",
    "Replicas",
    "Sink",
    "Submitted",
    "assert_submitted",
    "drained",
    "inline",
    "kill_one_replica",
    "new_database",
    "report",
    "server",
    "submitted",
    "template",
    "until",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: the plugin is loaded in every run of pytest."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fleet.testing' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
