"""Decides whose statement runs next, on a real server: one session an actor, and nobody moves without its cue.

An actor is a coroutine that calls the product's verbs on its session. Each of its statements waits here to be let go:
whole, or left open with its end as a step of its own; or it meets a fault. A statement that waits for somebody's lock
stays in flight, and is found finished once that somebody has let go.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from tests.simulation.actor import Actor, Flight, How, Violation, lost
from tests.simulation.story import Story, name_of

NO_ANSWER_SECONDS = 20.0
LOOK_AFTER_SECONDS = 0.004
STEPS_MAX = 300
REPEATS = 2
_WRITES = re.compile(rb"\b(INSERT|UPDATE|DELETE|FOR KEY SHARE)\b")
FAULTS = (How.LOST, How.UNSENT, How.KILL, How.ABANDON, How.DIE)
_AS_IF_WHOLE = (How.COMMIT, How.LOST, How.KILL)  # at once after OPEN these are nothing new


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that may happen next."""

    who: Actor | Flight
    how: How
    switch: bool  # although whoever moved last could go on

    @property
    def fault(self) -> bool:
        orphan = isinstance(self.who, Flight) and self.who.orphan
        return self.how in FAULTS and not orphan

    @property
    def actor(self) -> Actor:
        return self.who if isinstance(self.who, Actor) else self.who.actor


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one schedule may contain at most."""

    switches: int
    faults: int


Choose = Callable[[Sequence[Option]], Option]
Blockers = Callable[[Sequence[int]], Awaitable[Mapping[int, Sequence[int]]]]


class Conductor:
    """One schedule: who is there, what is under way, and what may happen next."""

    def __init__(self, story: Story, blockers: Blockers, kill: Callable[[int], Awaitable[object]]) -> None:
        self.story = story
        self.changed = asyncio.Event()
        self.actors: list[Actor] = []
        self.flights: list[Flight] = []
        self.taken: Counter[How] = Counter()
        self._blockers, self._kill = blockers, kill
        self._last: Actor | None = None
        self._opened: Flight | None = None  # by the last step
        self._flying: set[asyncio.Task[None]] = set()
        self._troubles: list[BaseException] = []

    def add(self, name: str, script: Callable[[Actor], Coroutine[Any, Any, None]]) -> None:
        actor = Actor(name, self)
        self.actors.append(actor)
        actor.start(script(actor))

    async def play(self, choose: Choose, bounds: Bounds) -> None:
        """Let one thing happen after another, as chosen, until nothing is left that could."""
        try:
            while True:
                await self._rest()
                self._complain()
                options = self._options(bounds)
                if not any(not option.fault for option in options):
                    if not self.flights:
                        return
                    await self._deadlock()
                    continue
                if self.story.steps >= STEPS_MAX:
                    raise Violation(f"this does not end\n{self.story}")
                option = choose(options)
                bounds = Bounds(bounds.switches - option.switch, bounds.faults - option.fault)
                await self._take(option)
        finally:
            await self._dismiss()

    def let_go(self, flight: Flight, how: How) -> Flight:
        self.flights.append(flight)
        if how is How.OPEN:
            self._opened = flight
        task = asyncio.create_task(flight.fly(how, self._troubles.append))
        self._flying.add(task)
        task.add_done_callback(lambda _: self._landed(task, flight))
        self.changed.set()
        return flight

    def _landed(self, task: "asyncio.Task[None]", flight: Flight) -> None:
        self._flying.discard(task)
        self.flights.remove(flight)
        self.changed.set()

    async def _take(self, option: Option) -> None:
        self.taken[option.how] += 1
        self._last, self._opened = option.actor, None
        self._count_repeats(option)
        if isinstance(option.who, Actor):
            self._let_speak(option.who, option.how)
        else:
            await self._end(option.who, option.how)

    def _count_repeats(self, option: Option) -> None:
        """Notice who asks the same thing again and again: its turn comes when somebody else has done something."""
        actor = option.actor
        if isinstance(option.who, Actor) and actor.next == actor.before:
            actor.repeats += 1
            return
        for each in self.actors:
            each.repeats = 0
        if isinstance(option.who, Actor):
            actor.before = actor.next

    def _let_speak(self, actor: Actor, how: How) -> None:
        cue, actor.cue = actor.cue, None
        assert cue is not None
        how_told = "" if how is How.WHOLE else f" ({how})"
        self.story.step(actor.name, f"{name_of(actor.next)}{how_told}")
        if how is How.DIE:
            actor.dead = True
        else:
            cue.set_result(how)

    async def _end(self, flight: Flight, how: How) -> None:
        whose = f"the server, for {flight.actor.name}" if flight.orphan else flight.actor.name
        self.story.step(whose, f"{flight.name}: {how}")
        if how is How.KILL:
            await self._shoot(flight)
        if how in (How.ABANDON, How.DIE):
            flight.orphan = True
            flight.actor.dead = flight.actor.dead or how is How.DIE
            if how is How.ABANDON:
                flight.reply(lost("the client gave up"))
            return
        if how is How.LOST:
            flight.error = lost("the reply was lost")
        if flight.open:
            flight.end()

    async def _shoot(self, flight: Flight) -> None:
        flight.killed = flight.session.spoilt = True
        await self._kill(flight.session.info.backend_pid)

    def _options(self, bounds: Bounds) -> list[Option]:
        """List what may happen, the plainest first: whoever moved last goes on, without a fault."""
        movers = self._movers()
        movers.sort(key=lambda mover: _actor_of(mover) is not self._last)
        ready = [mover for mover in movers if _can_move(mover)]
        may_go_on = any(_actor_of(mover) is self._last for mover in ready)
        several = len(ready) > 1
        options = [
            Option(mover, how, may_go_on and _actor_of(mover) is not self._last)
            for mover in movers
            for how in _hows(mover, several=several)
            if not (several and mover is self._opened and how in _AS_IF_WHOLE)
        ]
        options.sort(key=lambda option: (option.fault, option.how is How.OPEN))
        return [
            option
            for option in options
            # what is left open is left for somebody else's turn
            if option.switch + (option.how is How.OPEN) <= bounds.switches and option.fault <= bounds.faults
        ]

    def _movers(self) -> list[Actor | Flight]:
        speakers = [actor for actor in self.actors if actor.cue is not None and not actor.dead]
        fresh = [actor for actor in speakers if actor.repeats < REPEATS]
        if fresh or any(flight.open for flight in self.flights):
            speakers = fresh
        return [*self.flights, *speakers]

    async def _rest(self) -> None:
        """Wait until everybody waits: for a cue, or in vain for a lock that somebody here holds."""
        while True:
            self.changed.clear()
            thinking = [actor for actor in self.actors if not actor.resting]
            under_way = [flight for flight in self.flights if not flight.open]
            if not thinking and not under_way:
                return
            try:
                async with asyncio.timeout(NO_ANSWER_SECONDS if thinking else LOOK_AFTER_SECONDS):
                    await self.changed.wait()
            except TimeoutError:
                if thinking:
                    raise Violation(f"{[actor.name for actor in thinking]} hang\n{self.story}") from None
                if await self._all_wait(under_way):
                    return

    async def _all_wait(self, under_way: Sequence[Flight]) -> bool:
        """Tell whether all these statements wait for locks of our own people, and for nobody else's."""
        ours = {flight.session.info.backend_pid for flight in self.flights}
        waiting = await self._blockers([flight.session.info.backend_pid for flight in under_way])
        return all(pids and set(pids) <= ours for pids in waiting.values()) and not any(
            flight.over for flight in under_way
        )

    async def _deadlock(self) -> None:
        """Let the server break it, and say so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(NO_ANSWER_SECONDS):
                while not self._troubles and self.flights:
                    self.changed.clear()
                    await self.changed.wait()
        raise Violation(f"all wait for each other: {self._troubles}\n{self.story}")

    def _complain(self) -> None:
        """Fail on whatever an actor met that no fault explains."""
        for actor in self.actors:
            if actor.task is not None and actor.task.done() and actor.task.exception() is not None:
                self._troubles.append(cast("BaseException", actor.task.exception()))
        if self._troubles:
            raise Violation(f"{type(self._troubles[0]).__name__}: {self._troubles[0]}\n{self.story}")

    async def _dismiss(self) -> None:
        """End what is left, after a violation: no actor and no transaction outlives its schedule."""
        for flight in list(self.flights):
            await self._shoot(flight)
            if flight.open:
                flight.end()
        left = [actor.task for actor in self.actors if actor.task is not None and not actor.task.done()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, *self._flying, return_exceptions=True)


def _actor_of(mover: Actor | Flight) -> Actor:
    return mover if isinstance(mover, Actor) else mover.actor


def _can_move(mover: Actor | Flight) -> bool:
    return isinstance(mover, Actor) or mover.open


def _hows(mover: Actor | Flight, *, several: bool) -> list[How]:
    """List how this one may go on. `several`: others could move, so that leaving a statement open makes a difference."""
    if isinstance(mover, Actor):
        if b"time passes" in mover.next or not _WRITES.search(mover.next):
            return [How.WHOLE]  # to lose a question is as good as to lose what would have followed from its answer
        return [How.WHOLE, *([How.OPEN] if several else []), How.UNSENT, How.LOST, How.DIE]
    if mover.orphan:
        return [How.COMMIT, How.KILL] if mover.open else []
    if mover.open:
        return [How.COMMIT, How.LOST, How.KILL, How.ABANDON, How.DIE]
    return [How.KILL, How.ABANDON]
