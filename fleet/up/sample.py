"""The example's texts, analyzed by the fleet that has just come up, under the eyes of whoever started it."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fleet.demo.tasks import analyze, app
from fleet.demo.texts import built_in
from fleet.errors import FleetError, TaskCancelled, TaskFailed
from fleet.up.narrator import Narrator


async def analyze_texts(narrator: Narrator) -> None:
    """Submit one task for each text, and follow them until all have ended."""
    texts = [text._asdict() for text in built_in()]
    if not narrator.draws:
        narrator.tell("sample submitted", lines=["", f"{len(texts)} texts are analyzed …"], tasks=len(texts))
    began, failed = time.monotonic(), 0
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not narrator.draws,
    )
    try:
        async with app:
            with bar:
                number = bar.add_task("Analyzing texts", total=len(texts))
                for ref in await app.submit_many(analyze, texts):
                    try:
                        await ref.result()
                    except (TaskFailed, TaskCancelled):
                        failed += 1
                    bar.advance(number)
    except FleetError as error:
        narrator.tell("sample lost sight of", lines=["", f"The texts cannot be followed: {error}"], error=str(error))
        return
    seconds = time.monotonic() - began
    done = len(texts) - failed
    words = f"{done} texts were analyzed in {seconds:.1f} s" + (
        f", {failed} were not: `fleet dead list`" if failed else ""
    )
    narrator.tell("sample analyzed", lines=["", f"{words}."], succeeded=done, failed=failed, seconds=round(seconds, 3))
