"""Let every judge see a run."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fleet.verify.judges import JUDGES
from fleet.verify.reading import History, read
from fleet.verify.story import tell
from fleet.verify.verdict import Answer, Report, Ruling, Verdict

FINDINGS_MAX = 100  # of one promise


def verify(folder: Path | str) -> Report:
    """Judge the run in this folder. Raises FileNotFoundError for no history, ValueError for a file that is none."""
    with _no_collector():
        history = read(folder)
        verdicts = [verdict(history, code, title, judge(history)) for code, (title, judge) in JUDGES.items()]
    return Report(str(folder), tuple(verdicts))


@contextmanager
def _no_collector() -> Iterator[None]:
    """Let nobody look for garbage meanwhile: among millions of values that all stay, that takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def verdict(history: History, code: str, title: str, ruling: Ruling) -> Verdict:
    """Turn what a judge said into a verdict, with the story of the first task that it happened to."""
    if not ruling.findings:
        tested = Answer.PASS if ruling.tested else Answer.UNKNOWN
        detail = f"{ruling.tested} {ruling.by}" if ruling.tested else f"the run had no {ruling.by}"
        return Verdict(code, title, tested, detail)
    first = next((each for each in ruling.findings if each.task), ruling.findings[0])
    detail = f"task {first.task}: {first.words}" if first.task else first.words
    if len(ruling.findings) > 1:
        detail = f"{detail} (and {len(ruling.findings) - 1} findings more)"
    story = tell(history, first.task) if first.task else ""
    return Verdict(code, title, Answer.FAIL, detail, tuple(ruling.findings[:FINDINGS_MAX]), first.task, story)
