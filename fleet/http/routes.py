"""Everything that can be asked over HTTP: one entry a route. The server and the OpenAPI document follow from it."""

import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from fleet.http import dead, probes, queues, tasks, workers
from fleet.http.callers import Caller
from fleet.http.view import View
from fleet.tokens import Scope

_LENT = ("api", "caller")  # what an endpoint is given beside the parts of the request


@dataclass(frozen=True, slots=True)
class Route:
    """One route. What it takes (`path`, `query`, `headers`, `body`) and answers is what its endpoint's annotations say.

    `scope`: what a token must have; None: it needs no token. `problems`: the statuses of problems that are its own.
    """

    method: str
    path: str
    endpoint: Callable[..., Awaitable[View]]
    scope: Scope | None
    status: int = 200
    problems: tuple[int, ...] = ()
    names_caller: bool = field(init=False)
    takes: dict[str, type[Any]] = field(init=False, hash=False)
    answer: type[View] = field(init=False)

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(self.endpoint)
        object.__setattr__(self, "answer", hints.pop("return"))
        object.__setattr__(self, "names_caller", hints.get("caller") is Caller)
        object.__setattr__(self, "takes", {name: kind for name, kind in hints.items() if name not in _LENT})

    @property
    def summary(self) -> str:
        return (self.endpoint.__doc__ or "").partition("\n")[0]

    @property
    def name(self) -> str:
        """Return what the operation is called in the OpenAPI document."""
        return f"{self.endpoint.__module__.rpartition('.')[2]}_{self.endpoint.__name__.rstrip('_')}"


ROUTES = (
    Route("POST", "/tasks", tasks.submit, Scope.SUBMIT, status=202, problems=(409,)),
    Route("GET", "/tasks", tasks.list_, Scope.READ),
    Route("GET", "/tasks/{id}", tasks.show, Scope.READ, problems=(404,)),
    Route("POST", "/tasks/{id}/cancel", tasks.cancel_one, Scope.OPERATE, problems=(404, 409)),
    Route("GET", "/dead", dead.list_, Scope.READ),
    Route("POST", "/dead/requeue", dead.requeue, Scope.OPERATE, problems=(409,)),
    Route("POST", "/dead/discard", dead.discard, Scope.OPERATE, problems=(409,)),
    Route("GET", "/queues", queues.list_, Scope.READ),
    Route("POST", "/queues/{name}/pause", queues.pause, Scope.OPERATE, problems=(404, 409)),
    Route("POST", "/queues/{name}/resume", queues.resume, Scope.OPERATE, problems=(404, 409)),
    Route("GET", "/workers", workers.list_, Scope.READ),
    Route("GET", "/livez", probes.live, None),
    Route("GET", "/readyz", probes.ready, None),
)
