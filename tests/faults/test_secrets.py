"""A worker, the API and commands fail in every way they can; nothing they say shows a password or what a task was given.

What a handler's own error quotes is the exception: it is kept with the task, for whoever may read tasks, and never logged.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

import psutil
import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql

from fleet.cli import main
from tests.http.running import Running, environment
from tests.support import eventually_sync

PASSWORD = "h1ddenpart:w0rd@and/m0re%"
PIECES = ("h1dden", "w0rd", "m0re")
ARGUMENT = "what-the-task-was-given"
LONG_SECONDS = 120.0  # many processes start at once here
TOKEN = "a-token-that-nobody-may-see"
SECRETS = (*PIECES, ARGUMENT, quote(PASSWORD, safe=""), TOKEN)
WORKER = ("-m", "fleet", "worker", "run", "vault:app", "--log-level=debug")
API = ("-m", "fleet", "api", "run", "vault:app", "--port=0", "--allow-unknown", "--log=json", "--log-level=debug")
VAULT = """
import time
from typing import Any, Literal

from fleet import Fail, Fleet, Retry

app = Fleet()


class Odd:
    pass


@app.task(idempotent=True)
async def fine(secret: str) -> str:
    return secret


@app.task
async def raises(secret: str) -> None:
    raise ValueError(f"refused: {secret}")


@app.task
def fails(secret: str) -> None:
    raise Fail(f"never: {secret}")


@app.task(idempotent=True, max_attempts=2)
async def again(secret: str) -> None:
    raise Retry(f"later: {secret}", after=0.01)


@app.task
async def unstorable(secret: str) -> Any:
    return {secret: Odd()}


@app.task
async def changed(secret: int) -> None: ...


@app.task(timeout=0.1)
def late(secret: str) -> None:
    time.sleep(0.5)
    raise ValueError(f"too late: {secret}")


@app.task
async def trapped(secret: str) -> None: ...


@app.task
async def picky(secret: Literal["one", "other"], number: int = 0) -> None: ...
"""
SUBMITTED = ("fine", "raises", "fails", "again", "unstorable", "late")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the app is, which commands in this process find, too."""
    (tmp_path / "vault.py").write_text(VAULT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "vault", raising=False)
    return tmp_path


@pytest.fixture
def role(database_url: str) -> Iterator[str]:
    """The name of a user of this test alone, who has the password and may do everything in the database."""
    name = f"fleet_test_{uuid4().hex[:12]}"
    with psycopg.connect(database_url, autocommit=True) as owner:
        password = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(PASSWORD))
        owner.execute(password)
        for statement in (
            "GRANT USAGE ON SCHEMA fleet TO {}",
            "GRANT ALL ON ALL TABLES IN SCHEMA fleet TO {}",
        ):
            owner.execute(sql.SQL(statement).format(sql.Identifier(name)))
        # Whoever breaks this is quoted by the server, with the whole row.
        owner.execute("ALTER TABLE fleet.task ADD CONSTRAINT trap CHECK (name <> 'trapped')")
        yield name
        owner.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", (name,))
        for statement in ("DROP OWNED BY {}", "DROP ROLE {}"):
            owner.execute(sql.SQL(statement).format(sql.Identifier(name)))


def url_of(database_url: str, role: str, **changes: str) -> str:
    parts = urlsplit(database_url)
    address = changes.get("address", f"{parts.hostname}:{parts.port}")
    return parts._replace(netloc=f"{role}:{quote(changes.get('password', PASSWORD), safe='')}@{address}").geturl()


class Said:
    """Everything that anybody has said: who → what."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.words: dict[str, str] = {}

    def run(self, *arguments: str, url: str | None = "", stdin: str = "", **variables: str) -> str:
        """Call a command in this process, to whatever end. `url`: another database, or none."""
        ours = {name: None for name in os.environ if name.startswith(("FLEET_", "PG"))}
        chosen = {"FLEET_DATABASE_URL": self.url if url == "" else url}
        result = CliRunner().invoke(main, arguments, input=stdin, env=ours | chosen | variables)
        assert isinstance(result.exception, SystemExit | None), arguments
        self.words[f"{' '.join(arguments)} {len(self.words)}"] = result.output
        return result.stdout

    def start(self, *arguments: str, url: str = "", stdin: str = "") -> None:
        """The same in a process of its own: what it ends with may be a traceback."""
        done = subprocess.run(
            [sys.executable, "-m", "fleet", *arguments],
            cwd=self.folder, env=environment(url or self.url), input=stdin, capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.words[f"{' '.join(arguments)} {len(self.words)}"] = done.stdout + done.stderr

    def judge(self) -> None:
        for who, words in self.words.items():
            assert words.strip(), who
            for secret in SECRETS:
                assert secret not in words, f"{who} shows {secret!r}:\n{words}"


def submit(said: Said, name: str, **options: str) -> str:
    arguments = ("task", "submit", name, "-", "--app=vault:app", "-ojson")
    out = said.run(*arguments, stdin=json.dumps({"secret": ARGUMENT}), **options)
    return str(json.loads(out)["id"])


def ask_wrongly(said: Said, api: Running) -> None:
    """Send the API whatever it must refuse."""
    secret = {"secret": ARGUMENT}
    bodies: list[Any] = [
        {"name": "picky", "args": secret},
        {"name": "picky", "args": {"secret": "one", "number": ARGUMENT}},
        {"name": "fine", "args": {"secret": [ARGUMENT]}},
        {"name": "fine", "args": secret, "priority": ARGUMENT},
        {"name": "fine", "args": secret, "run_at": ARGUMENT},
        {"name": "fine", "args": ARGUMENT},
        {"name": [ARGUMENT], "args": secret},
        [ARGUMENT],
        {"name": "trapped", "args": secret},
    ]
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    texts = [*map(json.dumps, bodies), f'{{"name": "fine", "args": {{"secret": "{ARGUMENT}"', f'"{ARGUMENT}\x00"']
    for number, text in enumerate(texts):
        answer = api.call("POST", "/tasks", content=text, headers=headers)
        assert answer.status_code >= 400
        said.words[f"problem {number}"] = answer.text
    wrong = api.call("GET", "/tasks", headers={"Authorization": f"Bearer {TOKEN}x"})
    said.words["wrong token"] = wrong.text
    assert wrong.status_code == 401
    # A task that no app here has.
    assert api.call("POST", "/tasks", json={"name": "unknown", "args": secret}, headers=headers).status_code == 202


def fail_commands(said: Said, database_url: str, role: str) -> None:
    """Have commands fail in every way."""
    said.run("task", "submit", "picky", "-", "--app=vault:app", stdin=json.dumps({"secret": ARGUMENT}))
    said.run("task", "submit", "fine", "-", "--app=vault:app", stdin=f'{{"secret": "{ARGUMENT}')
    said.run("task", "submit", "fine", "-", "--app=vault:app", stdin=json.dumps([ARGUMENT]))
    said.start("task", "submit", "trapped", "-", "--app=vault:app", stdin=json.dumps({"secret": ARGUMENT}))
    nowhere = url_of(database_url, role, address="127.0.0.1:1")
    misread = f"postgresql://{role}:{PASSWORD}@127.0.0.1/x"
    for url in (nowhere, misread, url_of(database_url, role, password=f"{PASSWORD} not")):
        for command in ("doctor", "health", "task list", "db check"):
            said.run(*command.split(), url=url)
        said.run("db", "check", "--database-url", url)
        said.start("worker", "run", "vault:app", url=url)
    said.run("doctor")
    said.run("db", "check", url=None, FLEET_DATABASE_URL_FILE=nowhere)
    said.run("api", "run", "vault:app", "--port=0", FLEET_API_TOKEN=f"{PIECES[0]} {TOKEN}")
    said.run("worker", "run", misread)


def look_at_processes(said: Said, database_url: str, *processes: subprocess.Popen[bytes]) -> None:
    """What everybody on the machine, and everybody in the database, is shown of what runs."""
    roots = [psutil.Process(process.pid) for process in processes]
    trees = roots + [child for root in roots for child in root.children(recursive=True)]
    assert len(trees) > len(processes), "the supervisor has a child"
    said.words["ps"] = "\n".join(f"{each.name()} {' '.join(each.cmdline())}" for each in trees)
    with psycopg.connect(database_url, autocommit=True) as watcher:
        rows = watcher.execute(
            "SELECT application_name, query FROM pg_stat_activity WHERE application_name LIKE 'fleet %'"
            " AND datname = current_database()"
        ).fetchall()
    assert rows
    said.words["sessions"] = str(rows)


def lose_the_database(database_url: str, role: str, *running: Running) -> None:
    """Let every session break and none be made, first since nobody of that name may, then since the password is wrong."""
    name = sql.Identifier(role)
    with psycopg.connect(database_url, autocommit=True) as owner:
        for change, words in [
            (sql.SQL("ALTER ROLE {} NOLOGIN").format(name), "not permitted to log in"),
            (sql.SQL("ALTER ROLE {} LOGIN PASSWORD 'another'").format(name), "password authentication failed"),
        ]:
            owner.execute(change)
            owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (role,))
            for each in running:
                eventually_sync(lambda each=each, words=words: words in each.words, LONG_SECONDS)  # type: ignore[misc]
        owner.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(name, sql.Literal(PASSWORD)))


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.timeout(600)
def test_nothing_that_is_said_shows_a_password_or_what_a_task_was_given(
    database_url: str, role: str, folder: Path, form: str
) -> None:
    url = url_of(database_url, role)
    (folder / "url").write_text(url)
    (folder / "token").write_text(TOKEN)
    said = Said(folder, url)
    settings: dict[str, Any] = {"FLEET_TTL": "5s", "FLEET_DATABASE_URL_FILE": str(folder / "url")}
    worker = Running(folder, None, "--processes=2", f"--log={form}", program=WORKER, **settings)
    serving = Running(folder, None, program=API, FLEET_API_TOKEN_FILE=str(folder / "token"), **settings)
    with worker, serving:
        eventually_sync(lambda: serving.said("api listening"), LONG_SECONDS)
        ids = [submit(said, name) for name in SUBMITTED]
        ask_wrongly(said, serving)
        fail_commands(said, database_url, role)
        with psycopg.connect(database_url, autocommit=True) as owner:
            changed = uuid4()
            owner.execute(
                "INSERT INTO fleet.task (id, queue, name, args, max_attempts, max_losses)"
                " VALUES (%s, 'default', 'changed', %s, 1, 1)",
                (changed, json.dumps({"secret": ARGUMENT})),
            )
            done = "SELECT count(*) FROM fleet.task WHERE id = ANY (%s::uuid[]) AND finished_at IS NOT NULL"
            wanted = [*ids, str(changed)]
            eventually_sync(lambda: owner.execute(done.encode(), (wanted,)).fetchone() == (len(wanted),), LONG_SECONDS)
            quoting = "SELECT name FROM fleet.task WHERE failure_reason LIKE %s"
            kept = {row[0] for row in owner.execute(quoting, (f"%{ARGUMENT}%",)).fetchall()}
            assert {"raises", "fails", "again"} <= kept, (
                "a handler's own words are kept: there is something to be shown"
            )
        look_at_processes(said, database_url, worker.process, serving.process)
        lose_the_database(database_url, role, worker)
        for each in (worker, serving):
            each.process.terminate()
            each.ended()
    assert "broken by a defect" in serving.words, "the server's quotation of a row came as far as the log"
    assert all(task_id in worker.words for task_id in ids[1:]), "what failed was logged"
    said.words |= {"worker": worker.words, "api": serving.words}
    said.judge()
