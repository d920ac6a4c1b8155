"""Who asked for which task: clients' requests against the tasks that are there."""

import json
from collections import defaultdict
from typing import Any

from fleet.verify.history import Line
from fleet.verify.reading import History, Operation
from fleet.verify.rows import OMITTED

Key = tuple[str, str]  # scope, idempotency key


def request(name: str, args: Any) -> str:
    """Return what makes two requests alike, as far as a history tells it."""
    return json.dumps([name, args or {}], sort_keys=True)


def asked_for(operation: Operation) -> str:
    return request(operation.asked.get("name", ""), operation.asked.get("args"))


def key_of(line: Line) -> Key | None:
    key = line.get("key")
    return None if key is None else (line.get("scope") or "", str(key))


def strangers(history: History) -> dict[str, list[str]]:
    """Return the tasks that no client was told of, by what they were asked for; those with large arguments left out."""
    named = {each.task for each in history.operations("submit") if each.phase == "ok"}
    made = {each.new.id: each.new for each in history.task_changes if each.old is None and each.new}
    found: dict[str, list[str]] = defaultdict(list)
    for task, row in (made | history.tasks).items():
        args = made[task].args if task in made else row.args
        if task not in named and args is not OMITTED:
            found[request(row.name, args)].append(task)
    return found
