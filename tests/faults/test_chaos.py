"""A short piece of the long run, from its first fault to its verdict."""

from pathlib import Path

import pytest

from tests.catalogue.long_runs import COLUMNS
from tests.chaos.run import Run

SECONDS = 25


@pytest.mark.timeout(300)
async def test_a_short_run_under_random_faults_passes_and_draws_its_picture(tmp_path: Path) -> None:
    result = await Run(tmp_path, seed=1, seconds=SECONDS, workers=4).go()
    assert result.reasons() == []
    assert sum(result.done.values()) > 5
    assert result.accepted > 100
    assert (tmp_path / "timeline.png").stat().st_size > 10_000
    assert set(COLUMNS) == result.record().keys()
