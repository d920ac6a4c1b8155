"""What a handler is told about the attempt that it runs."""

from asyncio import CancelledError
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from fleet.task import ClaimedTask

# The task that the running code belongs to, for log lines written inside a handler.
current_task: ContextVar[ClaimedTask | None] = ContextVar("fleet_current_task", default=None)


@dataclass(frozen=True, slots=True)
class Context:
    """Given to a handler wherever a parameter is annotated with it; it never counts as an argument of the task."""

    task_id: UUID  #: the same for every attempt
    name: str  #: what the task is registered as
    queue: str  #: where it waited
    attempt: int  #: 1, 2, 3, …
    state: Any = None  #: what the app's lifespan yielded
    _stopping: Callable[[], bool] = field(default=lambda: False, repr=False)

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this task: give it to services that honour such keys."""
        return str(self.task_id)

    @property
    def fencing_token(self) -> int:
        """Rises with every attempt: give it to storage of your own, and let it refuse a lower one."""
        return self.attempt

    @property
    def stopping(self) -> bool:
        """Whether this attempt should end soon: cancelled, over its time, its lease in doubt, or the process drains.

        Async handlers are cancelled; a plain function runs in a thread, which cannot be, and may look here.
        """
        return self._stopping()

    def raise_if_stopping(self) -> None:
        """End the attempt here if it should end: the task is then handed back, cancelled or failed as the case may be."""
        if self.stopping:
            raise CancelledError
