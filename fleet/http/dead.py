"""`/dead`: tasks that failed for good, to be run again or laid aside by whoever has looked at them."""

from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import AwareDatetime, ConfigDict, Field, model_validator
from sqlalchemy import Select

from fleet.http.api import Api
from fleet.http.callers import Caller
from fleet.http.view import Given, Page, Paged, Text, View, only, page
from fleet.postgres import dead_letter, inspect
from fleet.postgres.dead_letter import Judge
from fleet.task import FailureCode

BULK_MAX = 10_000


class DeadLetter(View):
    """A FAILED task that nobody has judged yet."""

    id: UUID
    name: str
    queue: str
    attempt: int = Field(description="The attempt that failed: name it when you judge the task.")
    failure_code: FailureCode
    failure_reason: str
    finished_at: AwareDatetime


class DeadFilter(Paged):
    """Which dead letters."""

    queue: Text | None = None
    name: Text | None = None
    code: FailureCode | None = None


class Seen(Given):
    """One dead letter as it was seen."""

    id: UUID
    attempt: int = Field(ge=0, le=2**31 - 1)


class Matching(Given):
    """All that match: at least one of these is named."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    queue: Text | None = None
    name: Text | None = None
    code: FailureCode | None = None

    @model_validator(mode="after")
    def _some(self) -> Self:
        named = [getattr(self, field) for field in self.model_fields_set]
        if not named or None in named:
            raise ValueError("name at least one of queue, name and code, and none as null: that is not everything")
        return self


class Verdict(Given):
    """Which dead letters are judged, named in one way of three."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [way]} for way in ("seen", "matching", "all")]})

    seen: Annotated[list[Seen], Field(min_length=1, max_length=1000)] | None = None
    matching: Matching | None = None
    all: Annotated[Literal[True] | None, only(True)] = None
    preview: bool = Field(default=False, description="Only say which would be judged.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        named = [getattr(self, way) for way in ("seen", "matching", "all") if way in self.model_fields_set]
        if len(named) != 1 or named[0] is None:
            raise ValueError("name the dead letters in one way: seen, matching or all")
        return self


class Judged(View):
    """What became of the dead letters that were named. In a preview nothing was done yet."""

    matched: int = Field(description=f"So many are dead letters now; at most {BULK_MAX:,} are judged at once.")
    more: bool = Field(description="There are more that match: ask again.")
    preview: bool
    judged: list[Seen]
    changed_meanwhile: list[UUID] = Field(description="Left alone: no dead letter with that attempt any more.")


async def list_(api: Api, query: DeadFilter) -> Page[DeadLetter]:
    """List dead letters, the oldest first."""
    question = inspect.dead_letters(
        queue_name=query.queue, name=query.name, code=query.code, after=query.cursor, limit=query.limit + 1
    )
    return Page[DeadLetter](**page(DeadLetter, await api.ask(question), query.limit))


async def requeue(api: Api, caller: Caller, body: Verdict) -> Judged:
    """Have dead letters run again, with fresh budgets. Whoever does this says that running them again is right."""
    return await _judge(api, caller, body, dead_letter.requeue)


async def discard(api: Api, caller: Caller, body: Verdict) -> Judged:
    """Lay dead letters aside: they stay FAILED, are no dead letters any more, and are pruned in time."""
    return await _judge(api, caller, body, dead_letter.discard)


async def _judge(api: Api, caller: Caller, body: Verdict, judge: Judge) -> Judged:
    found = {row["id"]: row["attempt"] for row in await api.ask(_which(body))}
    named = {each.id: each.attempt for each in body.seen or ()}
    dead = dict(list(found.items())[:BULK_MAX])
    if body.seen is not None:
        dead = {task_id: attempt for task_id, attempt in named.items() if found.get(task_id) == attempt}
    judged = list(dead)
    if not body.preview:
        judged = await api.act(lambda connection: dead_letter.in_batches(connection, judge, dead, caller.name))
    done = set(judged)
    return Judged(
        matched=len(dead),
        more=len(found) > BULK_MAX,
        preview=body.preview,
        judged=[Seen(id=task_id, attempt=attempt) for task_id, attempt in dead.items() if task_id in done],
        changed_meanwhile=[task_id for task_id in named or dead if task_id not in done],
    )


def _which(body: Verdict) -> Select[Any]:
    if body.seen is not None:
        return inspect.dead_attempts(ids=tuple(each.id for each in body.seen), limit=None)
    chosen = body.matching or Matching.model_construct()
    return inspect.dead_attempts(queue_name=chosen.queue, name=chosen.name, code=chosen.code, limit=BULK_MAX + 1)
