"""Everything that can be asked over HTTP: one entry a route. The server and the OpenAPI document follow from it."""

import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from fleet.http import dead, probes, queues, tasks, workers
from fleet.http.view import View


@dataclass(frozen=True, slots=True)
class Route:
    """One route. What it takes (`path`, `query`, `headers`, `body`) and answers is what its endpoint's annotations say.

    `problems`: the statuses of problems that are its own. `open_to_all`: it needs no token.
    """

    method: str
    path: str
    endpoint: Callable[..., Awaitable[View]]
    status: int = 200
    problems: tuple[int, ...] = ()
    open_to_all: bool = False
    takes: dict[str, type[Any]] = field(init=False, hash=False)
    answer: type[View] = field(init=False)

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(self.endpoint)
        object.__setattr__(self, "answer", hints.pop("return"))
        object.__setattr__(self, "takes", {name: kind for name, kind in hints.items() if name != "api"})

    @property
    def summary(self) -> str:
        return (self.endpoint.__doc__ or "").partition("\n")[0]

    @property
    def name(self) -> str:
        """Return what the operation is called in the OpenAPI document."""
        return f"{self.endpoint.__module__.rpartition('.')[2]}_{self.endpoint.__name__.rstrip('_')}"


ROUTES = (
    Route("POST", "/tasks", tasks.submit, status=202, problems=(409,)),
    Route("GET", "/tasks", tasks.list_),
    Route("GET", "/tasks/{id}", tasks.show, problems=(404,)),
    Route("POST", "/tasks/{id}/cancel", tasks.cancel_one, problems=(404, 409)),
    Route("GET", "/dead", dead.list_),
    Route("POST", "/dead/requeue", dead.requeue, problems=(409,)),
    Route("POST", "/dead/discard", dead.discard, problems=(409,)),
    Route("GET", "/queues", queues.list_),
    Route("POST", "/queues/{name}/pause", queues.pause, problems=(404, 409)),
    Route("POST", "/queues/{name}/resume", queues.resume, problems=(404, 409)),
    Route("GET", "/workers", workers.list_),
    Route("GET", "/livez", probes.live, open_to_all=True),
    Route("GET", "/readyz", probes.ready, open_to_all=True),
)
