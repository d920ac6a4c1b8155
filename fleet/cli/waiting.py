"""Wait for the end of a task that was submitted, and tell what became of it."""

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from fleet.cli.failures import ExitCode, Refused
from fleet.cli.output import print_json, say
from fleet.errors import DatabaseUnreachable, TaskCancelled, TaskFailed
from fleet.task import State

if TYPE_CHECKING:
    from fleet.client import TaskRef
    from fleet.postgres.database import Database


def await_end(database: "Database", task_id: UUID, timeout: timedelta | None, output: str, *, created: bool) -> None:
    """Wait until the task is terminal and print its result. Raises Refused where it did not succeed, or not in time."""
    goes_on = f"task {task_id} goes on: `fleet task show {task_id}`"
    say(f"waiting for task {task_id}")
    refusal: Refused | None = None
    try:
        ended = asyncio.run(_end(database, task_id, timeout))
    except KeyboardInterrupt:
        raise Refused(f"interrupted; {goes_on}", ExitCode.INTERRUPTED) from None
    except DatabaseUnreachable as error:
        # Not in the words of a submission that was lost: this one is committed.
        why = error.__cause__ or error
        raise Refused(f"the database was lost while waiting ({why}); {goes_on}", ExitCode.DATABASE) from error
    match ended:
        case {"state": State.FAILED, "failure_code": code, "failure_reason": reason}:
            refusal = Refused(f"task {task_id} failed ({code}): {reason}", ExitCode.CHECK_FAILED)
        case {"state": State.CANCELLED}:
            refusal = Refused(f"task {task_id} was cancelled", ExitCode.CHECK_FAILED)
        case {"state": State.QUEUED | State.RUNNING as state}:
            refusal = Refused(f"waited long enough: it is {state}; {goes_on}", ExitCode.CHECK_FAILED)
    if output == "json":
        print_json({"id": task_id, "created": created} | ended)
    elif refusal is None:
        print_json(ended["result"])
    if refusal is not None:
        raise refusal


async def _end(database: "Database", task_id: UUID, timeout: timedelta | None) -> dict[str, Any]:
    from fleet.client import Client, TaskRef

    client = Client(database)
    try:
        return await _standing(TaskRef(task_id, client), timeout)
    finally:
        await client.close()


async def _standing(ref: "TaskRef[Any]", timeout: timedelta | None) -> dict[str, Any]:
    """Return how the task stands at its end, or when the time is over."""
    try:
        return {"state": State.SUCCEEDED, "result": await ref.result(timeout)}
    except TaskFailed as error:
        failure = {"failure_code": error.code, "failure_reason": error.reason}
        return {"state": State.FAILED, "result": None} | failure
    except TaskCancelled:
        return {"state": State.CANCELLED, "result": None}
    except TimeoutError:
        state = await ref.state()
        return await _standing(ref, None) if state.terminal else {"state": state, "result": None}
