"""What ends a demo before its time."""

from fleet.errors import FleetError


class DemoError(FleetError):
    """The demo cannot go on; the message says why and what to do next."""
