"""A lease: the right of one worker to hold tasks until a moment. And the holder's own, sooner, idea of that moment."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from uuid import UUID


class LeaseState(StrEnum):
    """A lease that is REAPED or RELEASED is over for good; its id is never used again."""

    LIVE = "LIVE"
    DRAINING = "DRAINING"
    RELEASED = "RELEASED"
    REAPED = "REAPED"


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """What every claim and every settlement must show. A process gets a new one when it starts or was fenced."""

    id: UUID
    worker: str
    ttl: timedelta


@dataclass(frozen=True, slots=True)
class Tenure:
    """Until when the holder may believe in its lease, on its own monotonic clock, in seconds.

    The database's clock decides when a lease expires. The holder gives up sooner: `margin` before the TTL has
    passed since the moment *before* it sent the last renewal that succeeded.
    """

    until: float

    @classmethod
    def granted(cls, sent: float, ttl: timedelta, margin: timedelta) -> "Tenure":
        return cls(sent + (ttl - margin).total_seconds())

    def remaining(self, now: float) -> float:
        """Seconds left; zero or less when the holder must not start anything more."""
        return self.until - now
