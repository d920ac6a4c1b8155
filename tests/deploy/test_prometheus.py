"""What Prometheus reads is what Prometheus takes."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.deploy.commands import DEPLOY


def test_promtool_takes_our_configuration_and_rules(tool: Callable[[str], str], tmp_path: Path) -> None:
    folder = tmp_path / "prometheus"
    shutil.copytree(DEPLOY / "prometheus", folder)
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    config = folder / "prometheus.yml"
    config.write_text(config.read_text().replace("/run/secrets/api_token", str(token)))
    done = subprocess.run([tool("promtool"), "check", "config", config], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
