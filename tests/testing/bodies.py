"""What holds of replicas wherever they run: each body is run with processes and with containers."""

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest

from fleet.testing.faultpoints import FaultPoints, Hit
from fleet.testing.pointed import Pointed
from fleet.testing.replicas import Crew
from fleet.testing.sink import Sink
from tests.support import eventually_sync
from tests.testing.shop import app, charge, count

APP = "tests.testing.shop:app"
FLAGS = pytest.mark.parametrize("once", [False, True], ids=["idempotent", "not idempotent"])
HELD = ("handler.leave:count", "handler.leave:charge")
Start = Callable[[int, dict[str, str]], AbstractContextManager[Crew]]


class Scene(NamedTuple):
    """Two replicas, one of which holds a task that has done its effect and not yet been reported."""

    crew: Crew
    sink: Sink
    points: FaultPoints
    url: str
    task: UUID
    hit: Hit
    victim: int

    @property
    def other(self) -> int:
        return 1 - self.victim

    def row(self, columns: str) -> tuple[Any, ...]:
        return ask(self.url, f"SELECT {columns} FROM fleet.task WHERE id = %s", self.task)[0]

    def until_state(self, state: str) -> None:
        eventually_sync(lambda: self.row("state") == (state,))

    def effects(self) -> list[int]:
        """The attempts that did their effect, in order."""
        return [effect.attempt for effect in self.sink.of(self.task)]


def ask(url: str, question: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(question.encode(), values).fetchall()


@contextmanager
def scene(start: Start, url: str, *, once: bool) -> Iterator[Scene]:
    """Submit a task to two replicas and hold it where its handler has returned."""
    with (
        FaultPoints(*HELD) as points,
        Sink() as sink,
        Pointed(app, url),
        start(2, points.environment | sink.environment) as crew,
    ):
        ref = charge.submit_sync(order=7) if once else count.submit_sync(text="to be or not")
        hit = points.wait("handler.leave")
        lease = ask(url, "SELECT lease_id FROM fleet.task WHERE id = %s", ref.id)[0][0]
        yield Scene(crew, sink, points, url, ref.id, hit, crew.holder(lease))


def killed(start: Start, url: str, *, once: bool) -> None:
    """SIGKILL after the effect: what may be repeated is, once; what must not be ends in doubt, with one effect."""
    with scene(start, url, once=once) as s:
        pid = s.crew[s.victim].pid
        assert s.crew.kill(s.victim) == -9
        assert s.crew[s.victim].ended == -9
        if once:
            s.until_state("FAILED")
            assert s.row("failure_code, attempt") == ("lease_expired", 1)
            assert s.effects() == [1]
        else:
            s.points.wait("handler.leave").go()
            s.until_state("SUCCEEDED")
            assert s.row("attempt, result::int") == (2, 4)
            assert s.effects() == [1, 2]
        assert pid > 1


def paused(start: Start, url: str, *, once: bool) -> None:
    """Stopped for longer than its TTL, a replica is a zombie: its report is refused, and kept as evidence."""
    with scene(start, url, once=once) as s:
        lease = s.crew.lease(s.victim)
        s.crew.pause(s.victim)
        _until_taken_over(s, once=once)
        assert lease_state(url, lease) == "REAPED"
        s.crew.resume(s.victim)
        s.hit.go()
        _until_refused(s)
        assert s.crew.lease(s.victim, but=[lease]) != lease
        assert s.effects() == ([1] if once else [1, 2])


def partitioned(start: Start, url: str, *, once: bool) -> None:
    """Cut off for longer than its TTL, a replica is a zombie too; healed, it has another lease and works again."""
    with scene(start, url, once=once) as s:
        lease = s.crew.lease(s.victim)
        s.crew.partition(s.victim)
        _until_taken_over(s, once=once)
        s.hit.go()
        s.crew.heal(s.victim)
        _until_refused(s)
        assert s.crew.lease(s.victim, but=[lease]) != lease
        assert s.effects() == ([1] if once else [1, 2])


def drained(start: Start, url: str) -> None:
    """SIGTERM lets the running handler end; what is submitted meanwhile runs elsewhere; the lease is given up."""
    with scene(start, url, once=True) as s:
        lease = s.crew.lease(s.victim)
        s.crew[s.victim].signal(signal.SIGTERM)
        eventually_sync(lambda: lease_state(url, lease) == "DRAINING")
        later = count.submit_sync(text="one")
        s.points.wait("handler.leave:count").go()
        eventually_sync(lambda: ask(url, "SELECT state FROM fleet.task WHERE id = %s", later.id) == [("SUCCEEDED",)])
        assert s.row("state, lease_id") == ("RUNNING", lease)
        s.hit.go()
        assert s.crew.wait(s.victim) == 0
        assert s.row("state, attempt") == ("SUCCEEDED", 1)
        assert lease_state(url, lease) == "RELEASED"
        assert s.crew.lease(s.other) is not None


def restarted(start: Start, url: str) -> None:
    """A replica that was killed and started again has a new lease, and runs tasks when it is the only one."""
    with scene(start, url, once=True) as s:
        before = s.crew.lease(s.victim)
        s.crew.kill(s.victim)
        assert s.crew.drain(s.other) == 0
        after = s.crew.restart(s.victim)
        assert after != before
        again = count.submit_sync(text="one two")
        s.points.release_all()
        eventually_sync(lambda: ask(url, "SELECT state FROM fleet.task WHERE id = %s", again.id) == [("SUCCEEDED",)])
        assert s.crew.leases(s.victim) == [after, before]


def _until_taken_over(s: Scene, *, once: bool) -> None:
    """Wait until the other replica has settled the task: failed it, or run it again."""
    if once:
        s.until_state("FAILED")
        assert s.row("failure_code") == ("lease_expired",)
    else:
        s.points.wait("handler.leave").go()
        s.until_state("SUCCEEDED")
        assert s.row("attempt") == (2,)


def _until_refused(s: Scene) -> None:
    """Wait until the zombie's report is on record as late, and see that it changed nothing."""
    before = s.row("state, attempt, result, failure_code")
    late = "SELECT attempt FROM fleet.attempt WHERE task_id = %s AND late"
    eventually_sync(lambda: ask(s.url, late, s.task) == [(1,)])
    assert s.row("state, attempt, result, failure_code") == before


def lease_state(url: str, lease: UUID) -> str:
    return str(ask(url, "SELECT state FROM fleet.lease WHERE id = %s", lease)[0][0])
