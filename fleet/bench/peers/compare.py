"""fleet beside other systems, each as its users would run it, with an empty database of its own in every turn."""

import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from fleet import __version__
from fleet.bench.peers.install import PEERS, Installed, NotInstalled, default_folder, install
from fleet.bench.result import Figures, Goal, Result, alternate, medians
from fleet.bench.stage import Stage

# Tasks a second for which a backlog is laid out: more than each does on a fast machine. One that ends early cuts its window.
EXPECTED = {"fleet": 32_000, "pgqueuer": 16_000, "awa": 9_000, "oban": 4_000, "procrastinate": 1_000}
DRAIN_AT_LEAST = {"pgqueuer": 2.2, "awa": 3.3, "oban": 7.0, "procrastinate": 70.0}
BEST_GOALS = (
    Goal("batch_enqueue_ratio_to_best_peer", at_least=1.5),
    Goal("single_enqueue_ratio_to_best_peer", at_least=1.0),
    Goal("pick_up_p50_ratio_to_best_peer", at_most=0.8),
    Goal("pick_up_p99_ratio_to_best_peer", at_most=1.1),
)
JUDGED = {  # what is compared: the figure, and which of the peers' is the best
    "drain": ("drain_tasks_per_second", max),
    "batch_enqueue": ("batch_enqueue_rows_per_second", max),
    "single_enqueue": ("single_enqueue_tasks_per_second", max),
    "pick_up_p50": ("pick_up_p50_ms", min),
    "pick_up_p99": ("pick_up_p99_ms", min),
}
DRAIN_SLOTS = 256
PICK_UP_SLOTS = 64
PICK_UP_TASKS = 250
WORK_MS = 1.0
SINGLE_SECONDS = 2.0
BEFORE_WINDOW_SECONDS = 1.5  # the warm-up of a drain and some more
_HERE = Path(__file__).parent
_FAILURES = (NotInstalled, RuntimeError, OSError, LookupError, ValueError, subprocess.SubprocessError, psycopg.Error)


@dataclass(slots=True)
class Contestant:
    """One system. It takes its turns until it fails; `installed` is None for fleet itself, which must not fail."""

    stage: Stage
    name: str
    seconds: float
    installed: Installed | None = None
    error: str | None = None
    turns: list[dict[str, float]] = field(default_factory=list)

    def turn(self) -> Figures:
        """Measure everything once; return nothing where it has failed."""
        if self.error is not None:
            return {}
        try:
            figures = self._throughput() | self._pick_up()
        except _FAILURES as error:
            if self.installed is None:
                raise
            self.fail(error)
            return {}
        self.turns.append(figures)
        return figures

    def fail(self, error: Exception) -> None:
        """Take no more turns."""
        self.error = str(error).strip() or type(error).__name__
        self.stage.say(f"  {self.name} is out: {self.error}")

    @property
    def words(self) -> str:
        """Its version, and its error if there was one."""
        version = self.installed.version if self.installed else __version__ if self.name == "fleet" else ""
        return version if self.error is None else f"{version} FAILED: {self.error.splitlines()[-1]}".strip()

    def _throughput(self) -> dict[str, float]:
        tasks = int(EXPECTED[self.name] * (self.seconds + BEFORE_WINDOW_SECONDS))
        with self.stage.database(migrated=self.installed is None) as url:
            found = self._play("enqueue", url, tasks=tasks, single_seconds=SINGLE_SECONDS, slots=DRAIN_SLOTS)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("VACUUM (ANALYZE)")
                connection.execute("CHECKPOINT")
            backlog = int(found.pop("backlog_tasks"))
            orders = {"tasks": backlog, "seconds": self.seconds, "work_ms": WORK_MS, "slots": DRAIN_SLOTS}
            return found | self._play("drain", url, **orders)

    def _pick_up(self) -> dict[str, float]:
        with self.stage.database(migrated=self.installed is None) as url:
            return self._play("pick_up", url, tasks=PICK_UP_TASKS, slots=PICK_UP_SLOTS)

    def _play(self, phase: str, conninfo: str, **orders: Any) -> dict[str, float]:
        orders |= {"phase": phase, "url": as_uri(conninfo)}
        if self.installed is None:
            return self.stage.play("fleet.bench.peers.side", side="fleet.bench.peers.fleet_side", **orders)
        program, side = _HERE / "side.py", f"{self.name}_side"
        return self.stage.play(program, python=self.installed.python, side=side, **orders)


def compare(
    stage: Stage, *, seconds: float, rounds: int, only: Collection[str] = (), folder: Path | None = None
) -> Result:
    """Install what is missing, let all take turns, and return medians, and ratios of fleet's figure to each peer's.

    `only` names the peers to run; default: all. `folder` holds their environments. A peer that fails is reported in the
    setup and among the rounds, with its error, and the rest go on.
    """
    ours = Contestant(stage, "fleet", seconds)
    peers = [_prepared(stage, name, seconds, folder or default_folder()) for name in PEERS if not only or name in only]
    every = (ours, *peers)
    alternate({each.name: each.turn for each in every if each.error is None}, rounds, stage.say)
    found = {each.name: medians(each.turns) for each in every if each.turns}
    figures = {f"{name}_{of}": each[of] for name, each in found.items() for of, _ in JUDGED.values()}
    compared = ratios(found)
    drains = [Goal(f"drain_ratio_to_{name}", at_least=bound) for name, bound in DRAIN_AT_LEAST.items()]
    setup = {"seconds": seconds, "rounds": rounds, "slots": DRAIN_SLOTS, "work_ms": WORK_MS}
    return Result(
        "peers",
        setup | {each.name: each.words for each in every},
        figures | compared,
        [goal for goal in (*drains, *BEST_GOALS) if goal.figure in compared],
        _rounds(every),
    )


def ratios(found: Mapping[str, Figures]) -> dict[str, float]:
    """Return fleet's figures as ratios to each peer's, and to the best that any peer has in each."""
    peers = {name: figures for name, figures in found.items() if name != "fleet"}
    compared: dict[str, float] = {}
    for what, (figure, best) in JUDGED.items():
        ours = found["fleet"][figure]
        compared |= {f"{what}_ratio_to_{name}": ours / figures[figure] for name, figures in peers.items()}
        if peers:
            compared[f"{what}_ratio_to_best_peer"] = ours / best(figures[figure] for figures in peers.values())
    return compared


def as_uri(conninfo: str) -> str:
    """Write libpq's words as a URI: the only form that every driver reads."""
    given = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    user, password, database = (quote(given.pop(name, ""), safe="") for name in ("user", "password", "dbname"))
    authority = f"{user}:{password}@" if password else f"{user}@" if user else ""
    if not given.get("host", "/").startswith("/"):
        authority += f"{given.pop('host')}:{given.pop('port', '5432')}"
    return f"postgresql://{authority}/{database}" + (f"?{urlencode(given)}" if given else "")


def _prepared(stage: Stage, name: str, seconds: float, folder: Path) -> Contestant:
    """Return a peer that is installed, or one that has failed already."""
    peer = Contestant(stage, name, seconds)
    try:
        peer.installed = install(name, folder, stage.say)
    except _FAILURES as error:
        peer.fail(error)
    return peer


def _rounds(every: Sequence[Contestant]) -> list[dict[str, Any]]:
    turns = [{"system": each.name, **figures} for each in every for figures in each.turns]
    return turns + [{"system": each.name, "error": each.error} for each in every if each.error is not None]
