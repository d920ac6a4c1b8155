"""How a worker stands at one moment: what its probes and its metrics tell."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """`renewed_at`: Unix time by this machine's clock. As it is made, of a worker that has not begun.

    `live` says nothing of the database: an outage must not have workers killed, which would then lose their tasks.
    """

    slots: int
    slots_busy: int = 0
    listening: bool = False  # notifications come in
    renewed_at: float | None = None  # when the lease was last granted or renewed
    loop_lag_seconds: float = 0.0  # how long the event loop took to answer, or has not answered
    live: bool = True  # the event loop turns, and the lease is being kept
    ready: bool = False  # it holds a lease, and is not draining
