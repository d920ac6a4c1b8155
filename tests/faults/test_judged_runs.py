"""Real workers write their own history while they are killed, stopped and drained; the checker then judges the run."""

import signal
from uuid import UUID

import psutil
import pytest

from fleet.postgres import journal, reap
from fleet.postgres.cancel import cancel
from fleet.postgres.database import AsyncConnection, Statement
from fleet.verify import Answer, verify
from fleet.verify.dump import dump
from fleet.verify.history import Recorder
from tests.processes.crew import Crew, Process, terminal, until
from tests.processes.stage import Actor, Stage
from tests.support import submit

LATE = "SELECT count(*) FROM fleet.attempt WHERE late"
OPEN = "SELECT count(*) FROM fleet.task WHERE state IN ('QUEUED', 'RUNNING')"


class Run:
    """Clients and faults of one run, each of which writes down what it does."""

    def __init__(self, crew: Crew, watcher: AsyncConnection, stage: Stage) -> None:
        self.folder = crew.sink.path.parent / "history"
        self.crew = crew
        self.watcher = watcher
        self.stage = stage
        self.client = Recorder(self.folder, "client")
        self.nemesis = Recorder(self.folder, "nemesis")

    def worker(self, *arguments: str, slots: int = 4, ttl: str = "2s") -> Process:
        return self.crew.start(*arguments, slots=slots, ttl=ttl, history=str(self.folder))

    async def submit(self, name: str, key: str | None = None) -> UUID:
        task = await submit(self.watcher, name=name, max_attempts=1 if name.endswith("_once") else 5, key=key)
        self.client.write("submit", phase="ok", op=str(task), task=task, name=name, args={}, key=key)
        return task

    async def cancel(self, task: UUID) -> None:
        answer = await cancel(self.watcher, [task], "test")
        self.client.write("cancel", phase="ok", op=f"cancel {task}", task=task, answer=answer[task][0].value)

    def fault(self, fault: str, pid: int) -> None:
        self.nemesis.write("fault", fault=fault, target=pid)

    async def kill(self, actor: Actor) -> None:
        self.fault("SIGKILL", actor.pid)
        psutil.Process(actor.pid).kill()
        await actor.gone()

    async def judged(self) -> dict[str, Answer]:
        """Wait until nothing is open, and judge; fail with the stories of what must not be."""
        await until(self.watcher, OPEN, is_=lambda number: number == 0, seconds=60)
        await dump(self.watcher, self.folder)
        report = verify(self.folder)
        broken = [f"{each.code}: {each.detail}\n{each.story}" for each in report.verdicts if each.answer is Answer.FAIL]
        assert not broken, "\n".join(broken)
        return {each.code: each.answer for each in report.verdicts}


@pytest.fixture
async def run(crew: Crew, watcher: AsyncConnection, stage: Stage) -> Run:
    await journal.install(watcher)
    return Run(crew, watcher, stage)


@pytest.mark.fault(
    "Stall", "a zombie, a killed worker, a drain and a cancel in one run that is judged from its history"
)
async def test_a_run_with_a_zombie_a_death_and_a_drain_is_judged_to_have_kept_every_promise(
    run: Run, stage: Stage, watcher: AsyncConnection
) -> None:
    held = [await run.submit(name) for name in ("act", "act_once")]
    zombie = run.worker(slots=2)
    actors = [await stage.arrival(task) for task in held]
    run.fault("SIGSTOP", zombie.pid)
    zombie.stop()
    other = run.worker()
    (await stage.arrival(held[0], 2)).tell("return null")  # the lease of the zombie is over
    assert await terminal(watcher, held[1]) == "FAILED"
    for actor in actors:
        actor.tell("return null")
    run.fault("SIGCONT", zombie.pid)
    zombie.send(signal.SIGCONT)
    await until(watcher, LATE, is_=lambda number: number >= 1)
    doomed, stopped = await run.submit("act"), await run.submit("act_once")
    victim = await stage.arrival(doomed)
    asked = await stage.arrival(stopped)
    if asked.pid == victim.pid:
        asked.tell("return null")
        assert await terminal(watcher, stopped) == "SUCCEEDED"
    await run.cancel(stopped)
    await run.kill(victim)
    last = run.worker(slots=8)
    (await stage.arrival(doomed, 2)).tell("return null")
    for number in range(20):
        await run.submit("quick_once" if number % 2 else "quick")
    await until(watcher, OPEN, is_=lambda number: number == 0, seconds=60)
    for process in (zombie, other, last):
        if process.popen.poll() is None:
            process.send(signal.SIGTERM)
            await process.ended()
    answers = await run.judged()
    for code in ("S1", "S2", "S3", "S4", "S5", "S6", "S8", "S9", "S10", "S11", "S15", "S16", "S18", "S19"):
        assert answers[code] is Answer.PASS, code


@pytest.mark.fault("Death", "a child of a supervisor is killed, in a run that is judged from its history")
async def test_a_lease_that_a_supervisor_ended_early_is_judged_by_the_death_that_it_saw(
    run: Run, stage: Stage, watcher: AsyncConnection
) -> None:
    task = await run.submit("act")
    run.worker("supervise", "2", ttl="30s")
    actor = await stage.arrival(task)
    await run.kill(actor)
    (await stage.arrival(task, 2)).tell("return null")
    answers = await run.judged()
    assert answers["S5"] is Answer.PASS

    for path in run.folder.glob("supervisor-*.jsonl"):  # without what the supervisor saw, the lease was alive
        path.unlink()
    assert verify(run.folder)["S5"].answer is Answer.FAIL


async def test_a_reaper_that_takes_a_live_lease_is_convicted_and_the_story_is_of_a_task_that_it_took(
    run: Run, stage: Stage, watcher: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await run.submit("act")
    holder = run.worker()
    actor = await stage.arrival(task)
    lease = await run.crew.lease_of(holder)
    hasty = reap.MARK.text.replace("(expires_at <= clock_timestamp() OR renewed_at > clock_timestamp())", "true")
    assert hasty != reap.MARK.text
    monkeypatch.setattr(reap, "MARK", Statement(hasty))
    assert await reap.mark(watcher, UUID(int=1), [lease]) == [lease]
    again = await stage.arrival(task, 2)
    again.tell("return null")
    actor.tell("return null")
    await until(watcher, OPEN, is_=lambda number: number == 0)
    await dump(watcher, run.folder)
    verdict = verify(run.folder)["S5"]
    assert (verdict.answer, verdict.task) == (Answer.FAIL, str(task))
    assert "started attempt=1" in verdict.story
