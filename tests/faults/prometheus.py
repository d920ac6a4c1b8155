"""A real Prometheus, that scrapes what a test runs."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.room import free_ports


@contextmanager
def prometheus(folder: Path, addresses: list[str], rules: Path | None = None) -> Iterator[str]:
    """Run a Prometheus that scrapes these every second, and looks at the rules as often; skip where it is not installed."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("NOT TESTED with a real Prometheus: there is no `prometheus` (Debian: apt install prometheus)")
    targets = [address.removeprefix("http://") for address in addresses]
    job = {"job_name": "fleet", "metrics_path": "/metrics/fleet", "static_configs": [{"targets": targets}]}
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [job],
        "rule_files": [str(rules)] if rules is not None else [],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    (port,) = free_ports(1)
    with (folder / "prometheus.log").open("wb") as log:
        running = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        running.kill()
        running.wait()
