"""`/livez` and `/readyz`: what a load balancer or an orchestrator asks."""

from typing import Literal

from fleet import __version__
from fleet.http.api import Api
from fleet.http.problem import Problem, Wrong, problem_of
from fleet.http.view import View


class Alive(View):
    """The process answers; nothing is said of the database."""

    status: Literal["alive"] = "alive"
    version: str


class Ready(View):
    """The database answers, and its schema fits."""

    status: Literal["ready"] = "ready"
    schema_revision: str


async def live(api: Api) -> Alive:
    """Tell whether this process is alive. Never touches the database."""
    return Alive(status="alive", version=__version__)


async def ready(api: Api) -> Ready:
    """Tell whether this process can do its work; if not, which check fails."""
    try:
        return Ready(status="ready", schema_revision=await api.schema())
    except Exception as error:
        problem = problem_of(error)
        if problem is None:
            raise
        check = "schema" if problem.document.code == "schema_mismatch" else "database"
        wrong = Wrong(detail=problem.document.detail, check=check)
        raise Problem(503, "not_ready", f"The {check} is not as it must be.", errors=[wrong]) from error
