"""`fleet bench`: one command for each scenario, all of them, and the comparison with other systems."""

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click

from fleet.cli.options import output_option
from fleet.cli.output import say

_FILE = click.Path(dir_okay=False, path_type=Path)


class Scenario(NamedTuple):
    """A scenario's line in the help, its options with their defaults, and what is smaller in a whole or a quick run.

    An option's type is its default's. `fleet bench all` runs each of `runs` with these options over the defaults.
    """

    summary: str
    options: Mapping[str, tuple[Any, str]]
    runs: tuple[Mapping[str, Any], ...] = ({},)
    quick: tuple[Mapping[str, Any], ...] = ({},)


_ROUNDS = "How often each side runs; the median counts."
_SLOTS = "Handlers at once."
_WORK_MS = "How long a handler takes."
_RATE = "Tasks per second; 0: half of what a short drain reaches."

SCENARIOS = {
    "drain": Scenario(
        "How fast a backlog is worked off, against a bare loop.",
        {
            "processes": (1, "Worker processes."),
            "slots": (256, "Handlers at once in each."),
            "work_ms": (1.0, _WORK_MS),
            "tasks": (60_000, "The backlog."),
            "threads": (False, "Run the handlers in threads."),
            "rounds": (3, _ROUNDS),
        },
        runs=(
            {},
            {"processes": 4, "rounds": 1},
            {"processes": 2, "rounds": 1},
            {"slots": 64, "rounds": 1},
            {"slots": 1024, "rounds": 1},
            {"work_ms": 0.0, "rounds": 1},
            {"threads": True, "tasks": 20_000, "rounds": 1},
        ),
        quick=({"tasks": 20_000, "rounds": 1}, {"processes": 4, "tasks": 20_000, "rounds": 1}),
    ),
    "enqueue": Scenario(
        "How fast tasks are submitted, against bare statements.",
        {
            "singles": (3_000, "Rows of each way but submit_many."),
            "many": (100_000, "Rows of submit_many."),
            "rounds": (3, _ROUNDS),
        },
        runs=({"singles": 2_000},),
        quick=({"singles": 500, "many": 30_000, "rounds": 1},),
    ),
    "pickup": Scenario(
        "How long a task waits for its handler, idle and at half load, against a bare LISTEN.",
        {
            "tasks": (300, "Tasks submitted one at a time to an idle worker."),
            "every_ms": (30.0, "The time between them."),
            "slots": (64, _SLOTS),
            "rate": (0.0, _RATE),
            "work_ms": (1.0, _WORK_MS),
            "batch_ms": (5.0, "How often what has come in is submitted under load."),
            "seconds": (10.0, "How long the load lasts."),
            "rounds": (3, _ROUNDS),
        },
        runs=({"rounds": 1},),
        quick=({"tasks": 100, "rate": 2000.0, "seconds": 2.0, "rounds": 1},),
    ),
    "steady": Scenario(
        "What a steady load costs: waiting, log, commits, processor time for each task.",
        {
            "rate": (0.0, _RATE),
            "seconds": (30.0, "How long it lasts."),
            "slots": (64, _SLOTS),
            "work_ms": (1.0, _WORK_MS),
        },
        runs=({"seconds": 15.0},),
        quick=({"rate": 2000.0, "seconds": 4.0},),
    ),
    "snapshot": Scenario(
        "Whether work slows down while another session holds a snapshot.",
        {
            "slots": (256, _SLOTS),
            "tasks": (60_000, "Each of five backlogs, one after another."),
            "rounds": (3, _ROUNDS),
        },
        runs=({"rounds": 1},),
        quick=({"tasks": 10_000, "rounds": 1},),
    ),
    "near_empty": Scenario(
        "How long tasks wait at half load while another session holds an old snapshot, and while none does.",
        {
            "tasks": (500_000, "Tasks that go through first."),
            "rate": (0.0, _RATE),
            "seconds": (15.0, "How long the load lasts."),
            "slots": (64, _SLOTS),
            "work_ms": (1.0, _WORK_MS),
            "rounds": (3, _ROUNDS),
        },
        runs=({"tasks": 120_000, "seconds": 10.0, "rounds": 1},),
        quick=({"tasks": 10_000, "rate": 2000.0, "seconds": 3.0, "rounds": 1},),
    ),
    "readers": Scenario(
        "Whether work slows down while reports overlap each other.",
        {
            "readers": (4, "Sessions that report."),
            "read_seconds": (8.0, "How long each keeps its snapshot."),
            "tasks": (60_000, "The backlog of each of five rounds."),
            "rounds": (1, _ROUNDS),
        },
        runs=({"tasks": 30_000},),
        quick=({"tasks": 5_000, "read_seconds": 2.0},),
    ),
    "backlog": Scenario(
        "Whether the rate of claims depends on how much waits.",
        {
            "small": (10_000, "The small backlog."),
            "large": (1_000_000, "The large backlog."),
            "delayed": (300_000, "Delayed tasks beside the small backlog."),
            "window": (20_000, "Tasks taken off in each round."),
            "rounds": (5, _ROUNDS),
        },
        runs=({"large": 500_000, "rounds": 2},),
        quick=({"small": 5_000, "large": 60_000, "delayed": 20_000, "window": 5_000, "rounds": 1},),
    ),
    "queues": Scenario(
        "What it costs to serve 10 or 100 queues instead of one.",
        {"tasks": (60_000, "The backlog over all queues."), "rounds": (3, _ROUNDS)},
        runs=({"tasks": 30_000, "rounds": 1},),
        quick=({"tasks": 15_000, "rounds": 1},),
    ),
    "idle": Scenario(
        "What a fleet without work costs its server.",
        {"workers": (100, "Idle workers."), "seconds": (20.0, "How long to watch.")},
        quick=(),  # to wait is what it is about
    ),
    "prune": Scenario(
        "What pruning costs the work: rate and slowest claims.",
        {
            "old_tasks": (1_000_000, "Finished tasks older than the retention."),
            "tasks": (100_000, "The backlog."),
            "rounds": (1, _ROUNDS),
        },
        runs=({"old_tasks": 300_000, "tasks": 60_000},),
        quick=({"old_tasks": 60_000, "tasks": 15_000},),
    ),
    "retention": Scenario(
        "Whether claims at half load wait while old tasks are pruned.",
        {
            "old_tasks": (1_000_000, "Finished tasks older than the retention."),
            "rate": (0.0, _RATE),
            "seconds": (60.0, "How long it lasts at most."),
            "slots": (64, _SLOTS),
            "rounds": (3, _ROUNDS),
        },
        runs=({"old_tasks": 200_000, "seconds": 20.0, "rounds": 1},),
        quick=(),  # as above
    ),
    "recovery": Scenario(
        "How long a task waits for its next start when its worker is killed.",
        {
            "kills": (50, "Workers killed in all."),
            "at_once": (10, "Victims in each batch."),
            "survivors": (2, "Workers with room that stay alive."),
            "ttl_seconds": (3.0, "The leases' TTL."),
        },
        runs=({"kills": 20},),
        quick=({"kills": 6, "at_once": 6},),
    ),
    "memory": Scenario(
        "Whether a worker grows with the tasks that it has run.",
        {
            "early": (100_000, "Tasks before the first look."),
            "late": (1_000_000, "Tasks before the last look."),
            "portion": (50_000, "Tasks queued at a time."),
            "slots": (256, _SLOTS),
            "work_ms": (1.0, _WORK_MS),
        },
        runs=({"early": 50_000, "late": 300_000},),
        quick=({"early": 10_000, "late": 30_000, "portion": 10_000},),
    ),
}


@click.group()
def bench() -> None:
    """Measure speed: ratios of figures taken side by side, in one run on one machine."""


def _explains_extra(run: Callable[..., None]) -> Callable[..., None]:
    """Say what to install where a library of the extra is missing."""

    @functools.wraps(run)
    def explained(**options: Any) -> None:
        try:
            run(**options)
        except ModuleNotFoundError as error:
            raise click.ClickException(f"{error.name} is missing: pip install 'pgfleet[bench]'") from None

    return explained


def _command(name: str, scenario: Scenario) -> click.Command:
    @_explains_extra
    def run(*, output: str, server_url: str | None, **options: Any) -> None:
        from fleet.bench.show import show
        from fleet.bench.stage import opened

        measure = import_module(f"fleet.bench.scenarios.{name}").measure
        with opened(server_url, say) as stage:
            show(stage, measure(stage, **options), output)

    command = click.command(name, help=scenario.summary)(server_option(output_option(run)))
    for option, (default, words) in scenario.options.items():
        flag = f"--{option.replace('_', '-')}"
        command.params.append(
            click.Option(
                [flag], default=default, type=type(default), is_flag=default is False, help=words, show_default=True
            )
        )
    return command


def server_option(command: Callable[..., None]) -> Callable[..., None]:
    """Let the server be named. Not the fleet's own database: databases are made and dropped there."""
    return click.option(
        "--server-url",
        metavar="URL",
        envvar="FLEET_BENCH_SERVER_URL",
        help="PostgreSQL 18 where databases may be made and dropped; default: one of its own, gone afterwards.",
    )(command)


@bench.command("all")
@click.option("--quick", is_flag=True, help="Smaller sizes: about two minutes.")
@click.option("--save", metavar="FILE", type=_FILE, help="Write all figures there, as JSON.")
@output_option
@server_option
@_explains_extra
def all_(*, quick: bool, save: Path | None, output: str, server_url: str | None) -> None:
    """Run every scenario, and say which goals were reached.

    Fails only where a scenario could not be measured: figures move with the machine.
    """
    from fleet.bench.all import run_all

    if not run_all(server_url, quick=quick, save=save, output=output):
        raise click.exceptions.Exit(1)


@bench.command()
@click.option("--seconds", type=click.FloatRange(min=1), default=10.0, show_default=True, help="Each drain's window.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help=_ROUNDS)
@click.option("--only", metavar="NAME,...", help="These; default: pgqueuer,awa,oban,procrastinate.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="FLEET_BENCH_PEERS",
    help="Where they are installed; default: in the user's cache.",
)
@click.option("--save", metavar="FILE", type=_FILE, help="Write the figures there too, as JSON.")
@output_option
@server_option
@_explains_extra
def peers(
    *,
    seconds: float,
    rounds: int,
    only: str | None,
    folder: Path | None,
    save: Path | None,
    output: str,
    server_url: str | None,
) -> None:
    """Measure fleet beside other task queues, each in an environment of its own."""
    from fleet.bench.peers.compare import compare
    from fleet.bench.peers.install import PEERS
    from fleet.bench.show import show
    from fleet.bench.stage import opened

    names = [name.strip() for name in only.split(",")] if only else []
    if unknown := set(names) - set(PEERS):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}; there are {', '.join(PEERS)}", param_hint="--only")
    with opened(server_url, say) as stage:
        show(stage, compare(stage, seconds=seconds, rounds=rounds, only=names, folder=folder), output, save)


@bench.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_FILE)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@_explains_extra
def plot(*, files: tuple[Path, ...], directory: Path) -> None:
    """Draw what `all --save`, or a scenario with `-o json`, has written."""
    from fleet.bench import plots

    for path in plots.draw(files, directory):
        click.echo(path)


for _name, _scenario in SCENARIOS.items():
    bench.add_command(_command(_name, _scenario))
