"""The image: what it says of itself, and that its first process obeys also before it can drain."""

from pathlib import Path
from typing import Any

import pytest
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient

from fleet.testing.image import VARIABLE, image
from tests.support import eventually_sync

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]

SLOW = """
import time
print("importing", flush=True)
time.sleep(600)
"""


def test_a_process_that_is_still_starting_ends_at_sigterm(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    tmp_path.chmod(0o755)
    made = DockerContainer(image()).with_command(["worker", "run", "slow:app"])
    made.with_volume_mapping(str(tmp_path), "/code", "ro").with_env("FLEET_DATABASE_URL", "postgresql://nowhere/x")
    made.with_kwargs(read_only=True, cap_drop=["ALL"], security_opt=["no-new-privileges:true"])
    with made:
        container = made.get_wrapped_container()
        eventually_sync(lambda: b"importing" in container.logs())
        container.kill(signal="SIGTERM")
        assert container.wait(timeout=30)["StatusCode"] == 143


def test_it_runs_without_rights_and_says_what_it_is() -> None:
    client = DockerClient().client
    config: dict[str, Any] = client.images.get(image()).attrs["Config"]
    client.close()
    assert config["User"] == "10001"
    assert config["Entrypoint"] == ["fleet"]
    assert config["Labels"]["org.opencontainers.image.title"] == "pgfleet", f"{VARIABLE} names another image"
