"""A server with a certificate: everything goes over TLS, and one that cannot be trusted is not talked to."""

import os
import subprocess
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import psycopg
import pytest
from click.testing import CliRunner, Result

from fleet import Settings
from fleet.cli import main
from fleet.cli.failures import ExitCode
from fleet.doctor import Verdict, examine
from fleet.doctor.server import encryption
from fleet.postgres.database import Database
from fleet.postgres.examine import Encryption
from tests.conformance.cluster import Cluster
from tests.conformance.programs import binaries, program
from tests.conformance.room import Room
from tests.faults.infrastructure.steps import create_database, migrated
from tests.http.running import Running

WORKER = ("-m", "fleet", "worker", "run", "tests.http.shop:app", "--log=json")
SESSIONS = """
SELECT DISTINCT application_name, ssl
FROM pg_stat_activity
JOIN pg_stat_ssl USING (pid)
WHERE application_name LIKE 'fleet %' AND datname = current_database()
"""


class Encrypted(NamedTuple):
    """A server that speaks TLS, the certificate of who vouches for it, and that of somebody who does not."""

    cluster: Cluster
    authority: Path
    stranger: Path

    def url(self, sslmode: str, authority: Path) -> str:
        return f"{self.cluster.url_of('fleet')}?sslmode={sslmode}&sslrootcert={quote(str(authority))}"


def certificate(folder: Path, name: str, *how: str) -> Path:
    """Make a key and a certificate; one that signs itself, unless `how` says otherwise."""
    file = folder / f"{name}.crt"
    command = [
        program("openssl", "openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-days", "2", "-subj", f"/CN={name}", "-keyout", folder / f"{name}.key", "-out", file, *how,
    ]  # fmt: skip
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return file


@pytest.fixture(scope="module")
def encrypted(lent: Room, tmp_path_factory: pytest.TempPathFactory) -> Encrypted:
    """Debian's server: the embedded one is built without TLS."""
    folder = tmp_path_factory.mktemp("certificates")
    authority, stranger = certificate(folder, "authority"), certificate(folder, "stranger")
    key = folder / "authority.key"
    certificate(folder, "server", "-CA", f"{authority}", "-CAkey", f"{key}", "-addext", "subjectAltName=IP:127.0.0.1")
    cluster = Cluster(lent, binaries("15"), {"ssl": "on"}, name="encrypted")
    for name in ("server.crt", "server.key"):
        file = cluster.data / name
        file.write_bytes((folder / name).read_bytes())
        file.chmod(0o600)
        lent.give(file)
    cluster.start()
    create_database(cluster.url, "fleet")
    made = Encrypted(cluster, authority, stranger)
    migrated(made.url("verify-full", authority))
    return made


def command(url: str, *words: str) -> Result:
    ours = {name: None for name in os.environ if name.startswith(("FLEET_", "PG"))}
    return CliRunner().invoke(main, words, env=ours | {"FLEET_DATABASE_URL": url})


@pytest.mark.timeout(240)
def test_a_worker_runs_over_a_session_whose_server_was_verified(encrypted: Encrypted, tmp_path: Path) -> None:
    url = encrypted.url("verify-full", encrypted.authority)
    with Running(tmp_path, url, program=WORKER) as running:
        done = command(
            url, "task", "submit", "add", '{"a": 1, "b": 2}', "--app=tests.http.shop:app", "--wait", "-ojson"
        )
        assert done.exit_code == ExitCode.OK, done.stderr
        with psycopg.connect(url) as watcher:
            sessions: dict[str, bool] = dict(watcher.execute(SESSIONS).fetchall())
        assert {"fleet claim", "fleet heartbeat", "fleet listen"} <= sessions.keys()
        assert set(sessions.values()) == {True}
        running.process.terminate()
        assert running.ended() == 0


@pytest.mark.parametrize(
    "words", ["worker run tests.http.shop:app", "api run tests.http.shop:app --port=0", "task list"]
)
def test_a_server_that_nobody_vouches_for_is_not_talked_to(encrypted: Encrypted, words: str) -> None:
    result = command(encrypted.url("verify-full", encrypted.stranger), *words.split())
    assert result.exit_code == ExitCode.DATABASE, result.output
    assert "certificate verify failed" in result.stderr
    assert "Check sslmode and sslrootcert" in result.stderr


def test_a_server_of_another_name_is_not_talked_to(encrypted: Encrypted) -> None:
    url = encrypted.url("verify-full", encrypted.authority).replace("@127.0.0.1:", "@localhost:")
    result = command(url, "task", "list")
    assert result.exit_code == ExitCode.DATABASE, result.output
    assert 'does not match host name "localhost"' in result.stderr
    assert "Check sslmode and sslrootcert" in result.stderr


def test_an_authority_that_is_not_there_is_told(encrypted: Encrypted, tmp_path: Path) -> None:
    result = command(encrypted.url("verify-full", tmp_path / "none.crt"), "task", "list")
    assert result.exit_code == ExitCode.DATABASE, result.output
    assert "none.crt" in result.stderr
    assert "Check sslmode and sslrootcert" in result.stderr


def test_a_server_without_tls_is_not_talked_to_where_it_is_required(database_url: str) -> None:
    result = command(f"{database_url}?sslmode=require", "task", "list")
    assert result.exit_code == ExitCode.DATABASE, result.output
    assert "does not support SSL" in result.stderr
    assert "Check sslmode and sslrootcert" in result.stderr


@pytest.mark.parametrize(("sslmode", "words"), [
    ("verify-full", "encrypted; sslmode = verify-full: the server's certificate was checked"),
    ("require", "encrypted; sslmode = require: the server's certificate was not checked"),
    ("disable", "not encrypted, and it does not leave this machine"),
])  # fmt: skip
def test_the_doctor_tells_whether_the_session_is_encrypted(encrypted: Encrypted, sslmode: str, words: str) -> None:
    url = encrypted.url(sslmode, encrypted.authority)
    if sslmode == "require":
        url = url.partition("&")[0]  # with an authority it would be checked
    (found,) = [each for each in examine(Database(url, Settings())) if each.check == "encryption"]
    assert found.verdict is Verdict.OK
    assert found.evidence.startswith(words)


@pytest.mark.parametrize(("address", "verdict"), [
    ("10.0.0.7", Verdict.WARNING), ("2001:db8::1", Verdict.WARNING), ("db.example", Verdict.WARNING),
    ("127.0.0.1", Verdict.OK), ("::1", Verdict.OK), ("/run/postgresql", Verdict.OK), ("@fleet", Verdict.OK),
])  # fmt: skip
def test_a_session_that_leaves_the_machine_in_plain_text_is_warned_of(address: str, verdict: Verdict) -> None:
    opinion = encryption(Encryption(address, encrypted=False, sslmode="prefer"))
    assert opinion.verdict is verdict
    assert (opinion.mend is not None) == (verdict is Verdict.WARNING)
