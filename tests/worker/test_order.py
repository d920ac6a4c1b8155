"""Who goes first, how many at once, and which queues a worker serves."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from fleet import Fleet, Settings
from fleet.task import State
from tests.worker.steps import Gate, Recorder, ThreadGate


async def test_more_urgent_tasks_go_first_and_equals_in_their_order(app: Fleet) -> None:
    app.settings = replace(app.settings, slots=1)
    order: list[tuple[int, int]] = []

    @app.task
    async def work(priority: int, number: int) -> None:
        order.append((priority, number))

    refs = [
        await work.options(priority=priority).submit(priority, number) for number in range(3) for priority in (9, 5, 0)
    ]
    async with app.worker():
        for ref in refs:
            await ref.result(10)
    assert order == sorted(order)


async def test_nothing_waits_for_ever_behind_more_urgent_work(app: Fleet) -> None:
    """Each urgent task brings another one, so the lane of the urgent is never empty."""
    app.settings = replace(app.settings, slots=1)
    urgent = 0

    @app.task(priority=9)
    async def patient() -> int:
        return urgent

    @app.task(priority=0)
    async def pushy() -> None:
        nonlocal urgent
        urgent += 1
        if urgent < 1000:
            await pushy.submit()

    ref = await patient.submit()
    for _ in range(3):
        await pushy.submit()
    async with app.worker() as worker:
        assert 0 < await ref.result(20) <= 20
        urgent = 1000
        worker.drain("test")


async def test_the_queues_of_a_worker_take_turns(app: Fleet) -> None:
    app.settings = replace(app.settings, slots=1)
    order: list[str] = []

    @app.task
    async def work(queue: str) -> None:
        order.append(queue)

    refs = [await work.options(queue=queue).submit(queue) for queue in ("a", "b") for _ in range(5)]
    async with app.worker(queues=["a", "b"]):
        for ref in refs:
            await ref.result(10)
    assert abs(order[:6].count("a") - 3) <= 1


async def test_a_worker_serves_only_its_queues(app: Fleet) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    other = await work.options(queue="other").submit(1)
    mine = await work.options(queue="mine").submit(2)
    async with app.worker(queues=["mine"]) as worker:
        assert worker.queues == ("mine",)
        assert await mine.result(10) == 2
        assert await other.state() is State.QUEUED


@pytest.mark.parametrize("plain", [True, False])
async def test_never_do_more_handlers_run_than_there_are_slots(app: Fleet, *, plain: bool) -> None:
    running, most = 0, 0
    gate = Gate()
    threads = ThreadGate()

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.enter()
        await asyncio.sleep(0)
        running -= 1

    def work_plain() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        threads.enter()
        running -= 1

    task, door = (app.task(work_plain), threads) if plain else (app.task(work), gate)
    refs = await app.submit_many(task, [{} for _ in range(5 * app.settings.slots)])
    async with app.worker():
        await door.waiting(app.settings.slots)
        door.open()
        for ref in refs:
            await ref.result(10)
    assert most == app.settings.slots


async def test_two_workers_share_the_work_and_run_each_task_once(
    app: Fleet, database_url: str, settings: Settings, recorder: Recorder
) -> None:
    ran: Counter[tuple[str, int]] = Counter()
    gates = {"first": Gate(), "second": Gate()}

    async def first(number: int) -> None:
        ran["first", number] += 1
        await gates["first"].enter()

    async def second(number: int) -> None:
        ran["second", number] += 1
        await gates["second"].enter()

    task = app.task(name="work")(first)
    async with Fleet(database_url, settings=settings) as other:
        other.task(name="work")(second)
        refs = await app.submit_many(task, [{"number": number} for number in range(2 * settings.slots)])
        async with app.worker(events=recorder.events), other.worker():
            for gate in gates.values():
                await gate.waiting(settings.slots)
            for gate in gates.values():
                gate.open()
            for ref in refs:
                await ref.result(10)
    assert sorted(number for _, number in ran) == list(range(2 * settings.slots))
    assert set(ran.values()) == {1}
