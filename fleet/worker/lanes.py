"""Where to look for due tasks: one cursor for each lane (a priority of a queue). Pure bookkeeping.

Dead versions of everything already claimed lie at the head of the index, and another session's old snapshot keeps them
there. So a claim goes on where the last one ended, and looks from the head only when that is owed and affordable. Where
it has become dear, the scout looks instead, from the head up to the cursor, and no claim waits for it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice

from fleet.postgres.claim import HEAD, Lane, Position
from fleet.task import PRIORITIES, ClaimedTask

TRAILING = timedelta(seconds=2)  # commits that come late are still found by the cursor within this time
HEAD_SCAN_EVERY_SECONDS = 1.0
HEAD_SCAN_SHARE = 20  # after a scan that cost c, the next not before 20 c
DEAR_SECONDS = 0.02  # a scan that takes longer is no business of a claim
BACKWARDS_EVERY = 16  # so often the least urgent go first, and nothing waits for ever
EMPTY_SECONDS = 0.05  # so long a lane that was empty is left out while others have more than can be taken,
LANES_MAX = 64  # and so many are visited then


class _Cursor:
    __slots__ = ("affordable_at", "empty_until", "generation", "position", "scan_at")

    def __init__(self) -> None:
        self.position: Position = HEAD
        self.generation: int | None = None  # the queue's, as of the last scan from the head
        self.scan_at = 0.0
        self.affordable_at = 0.0
        self.empty_until = 0.0


class Lanes:
    """The cursors of one worker. `now` is a monotonic clock in seconds."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = list(queues)
        self._cursors = {(queue, priority): _Cursor() for queue in queues for priority in PRIORITIES}
        self.generations: Mapping[str, int] = {}  # of the queues, as of the last answer; replaced, never changed
        self._seen: datetime | None = None
        self._turn = 0
        self._plenty = False  # the last claim brought all that was asked for
        self._dear: set[tuple[str, int]] = set()  # lanes whose head only the scout looks at

    def order(self, now: float) -> list[Lane]:
        """Return the lanes as the next claim should visit them: priorities in order, queues taking turns.

        With many queues most lanes are empty: a busy worker does not look into each of them every time.
        """
        first = self._turn % len(self._queues)
        queues = self._queues[first:] + self._queues[:first]
        backwards = self._turn % BACKWARDS_EVERY == BACKWARDS_EVERY - 1
        priorities = reversed(PRIORITIES) if backwards else PRIORITIES
        lanes = (
            Lane(queue, priority, self._position(queue, priority, now))
            for priority in priorities
            for queue in queues
            if not self._plenty or self._cursors[queue, priority].empty_until <= now
        )
        return list(islice(lanes, LANES_MAX if self._plenty else None))

    def _position(self, queue: str, priority: int, now: float) -> Position:
        if (queue, priority) not in self._dear and self._owed(queue, priority, now):
            return HEAD
        return self._cursors[queue, priority].position

    def _owed(self, queue: str, priority: int, now: float) -> bool:
        cursor = self._cursors[queue, priority]
        moved = self.generations.get(queue) != cursor.generation
        return now >= cursor.scan_at or (moved and now >= cursor.affordable_at)

    def dear(self, now: float) -> list[Lane]:
        """Return the lanes that the scout should look at now; a lane's position is where its look ends."""
        return [
            Lane(queue, priority, self._cursors[queue, priority].position)
            for queue, priority in self._dear
            if self._owed(queue, priority, now)
        ]

    def scouted(
        self,
        looked_at: Sequence[Lane],
        first: Mapping[tuple[str, int], Position],
        *,
        generations: Mapping[str, int],
        cost: float,
        now: float,
    ) -> None:
        """Take in what the scout found: for some lanes, where to begin so that the first task left behind is claimed.

        `generations`: as they were known before it looked. What was put back later is looked for once more.
        """
        for lane in looked_at:
            key = (lane.queue, lane.priority)
            if key in first:
                self._cursors[key].position = first[key]
            self._looked(key, generations, cost, now)

    def _looked(self, key: tuple[str, int], generations: Mapping[str, int], cost: float, now: float) -> None:
        """Somebody has looked at this lane from its head."""
        cursor = self._cursors[key]
        cursor.generation = generations.get(key[0])
        cursor.affordable_at = now + HEAD_SCAN_SHARE * cost
        cursor.scan_at = now + max(HEAD_SCAN_EVERY_SECONDS, HEAD_SCAN_SHARE * cost)
        (self._dear.add if cost > DEAR_SECONDS else self._dear.discard)(key)

    def owed_seconds(self, now: float) -> float | None:
        """Seconds until a lane that something was put back into may be looked at from the head; None where none is."""
        owed = [
            cursor.affordable_at - now
            for (queue, priority), cursor in self._cursors.items()
            if cursor.generation is not None
            and self.generations.get(queue) != cursor.generation
            and ((queue, priority) not in self._dear or cursor.affordable_at > now)  # else the scout is on its way
        ]
        return min(owed, default=None)

    def learn(
        self,
        visited: Sequence[Lane],
        tasks: Sequence[ClaimedTask],
        *,
        full: bool,
        seen: datetime,
        generations: Mapping[str, int],
        cost: float,
        now: float,
    ) -> None:
        """Move the cursors by what a claim (or a peek that found nothing) brought.

        `full`: it brought all that was asked for, so the lanes behind the last one with tasks were not visited.
        """
        self._turn += 1
        self._plenty = full
        self.generations = generations
        if self._seen is not None and seen < self._seen:
            self._start_again()
        self._seen = seen
        last = _last_keys(tasks)
        exhausted = Position((seen - TRAILING).isoformat(), HEAD.id)
        unfinished = len(last) if full else -1
        for lane in visited:
            key = last.get((lane.queue, lane.priority))
            unfinished -= key is not None
            cursor = self._cursors[lane.queue, lane.priority]
            if lane.position == HEAD:
                self._looked((lane.queue, lane.priority), generations, cost, now)
            if unfinished == 0:
                if key is not None:
                    cursor.position = key
                return
            cursor.position = exhausted
            cursor.empty_until = now + EMPTY_SECONDS if key is None else now

    def _start_again(self) -> None:
        self._dear.clear()
        for cursor in self._cursors.values():
            cursor.position, cursor.scan_at = HEAD, 0.0


def _last_keys(tasks: Sequence[ClaimedTask]) -> dict[tuple[str, int], Position]:
    last: dict[tuple[str, int], ClaimedTask] = {}
    for task in tasks:
        lane = (task.queue, task.priority)
        known = last.get(lane)
        if known is None or (task.run_at, task.id) > (known.run_at, known.id):
            last[lane] = task
    return {lane: Position(task.run_at.isoformat(), task.id) for lane, task in last.items()}
