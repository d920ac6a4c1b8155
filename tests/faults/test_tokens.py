"""A token that is taken back while servers run."""

import time
from pathlib import Path

from fleet.http.callers import CACHE_SECONDS
from tests.http.running import Running
from tests.http.test_tokens import fleet, showing
from tests.support import eventually_sync


def test_every_running_server_refuses_a_revoked_token_within_seconds(database_url: str, tmp_path: Path) -> None:
    secret = fleet(database_url, "create", "ci", "--scope=read").strip()
    with (
        Running(tmp_path, database_url, "--stored-tokens") as one,
        Running(tmp_path, database_url, "--stored-tokens") as two,
    ):
        servers = (one, two)

        def answers() -> set[int]:
            return {each.call("GET", "/queues", headers=showing(secret)).status_code for each in servers}

        assert answers() == {200}
        fleet(database_url, "revoke", "ci")
        revoked = time.monotonic()
        eventually_sync(lambda: answers() == {401})
        assert time.monotonic() - revoked < CACHE_SECONDS + 15, "what a server remembers, and time for a loaded machine"
        assert answers() == {401}
