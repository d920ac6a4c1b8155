"""Three PostgreSQL 15 under Patroni, with etcd as its memory: a fleet of servers that elects its primary."""

import json
import secrets
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import psycopg

from tests.conformance.programs import binaries, program
from tests.conformance.room import PATIENCE_SECONDS, Room, free_ports, inhabitants, kill

NODES = 3
# Patroni's own periods, in seconds: how long a primary may be silent, how often it looks, how long it asks etcd again.
LEADER_TTL, LOOP_WAIT, RETRY_TIMEOUT = 8, 1, 3
LAG_MAX = 1 << 30  # bytes: a standby is elected however far it is behind


class Node:
    """One machine: PostgreSQL and its Patroni."""

    def __init__(self, name: str, folder: Path, port: int, rest_port: int) -> None:
        self.name, self.folder, self.port, self.rest_port = name, folder, port, rest_port
        self.process: subprocess.Popen[bytes] | None = None

    def role(self) -> str | None:
        """`master`, `sync_standby` or `replica` as Patroni tells it; None while it does not run."""
        try:
            with urlopen(f"http://127.0.0.1:{self.rest_port}/patroni", timeout=2) as answer:
                status = json.load(answer)
        except OSError as error:
            status = _body(error)
        if status.get("state") != "running":
            return None
        return "sync_standby" if status.get("sync_standby") else str(status["role"])

    def kill(self) -> int:
        """SIGKILL everything on this machine at once, Patroni and every process of PostgreSQL; return how many."""
        killed = kill(self.folder)
        assert self.process is not None
        self.process.wait(PATIENCE_SECONDS)
        return killed

    def walsenders(self) -> list[psutil.Process]:
        """The processes that send the log to the standbys."""
        return [each for each in inhabitants(self.folder) if "walsender" in " ".join(each.cmdline())]


class Patroni:
    """A cluster in a room. `synchronous`: a commit waits for one standby."""

    def __init__(self, room: Room, *, synchronous: bool) -> None:
        self._room = room
        self._programs = program("patroni", "patroni"), program("etcd", "etcd-server"), binaries("15")
        self._synchronous = synchronous
        self._password = secrets.token_urlsafe(16)
        self._etcd_port, peer_port, *ports = free_ports(2 + 2 * NODES)
        self._peer_port = peer_port
        names = [f"node{number + 1}" for number in range(NODES)]
        self.nodes = [
            Node(name, room.folder(name), *pair)
            for name, pair in zip(names, zip(ports[::2], ports[1::2], strict=True), strict=True)
        ]

    def url_of(self, database: str) -> str:
        """The URL that names all three, as a user would write it."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://postgres:{self._password}@{hosts}/{database}?target_session_attrs=read-write"

    def url_at(self, node: Node, database: str = "postgres") -> str:
        return f"postgresql://postgres:{self._password}@127.0.0.1:{node.port}/{database}"

    def start(self) -> "Patroni":
        """Start everything, and return when there are one primary and two standbys that follow it."""
        self._start_etcd()
        for node in self.nodes:
            self._start_node(node)
            self.primary()  # the first to come initialises the cluster; the others copy it
        self._until("the standbys do not follow", self._standbys_follow)
        return self

    def primary(self, *, but: Node | None = None) -> Node:
        """Return who is the primary as soon as there is one (`but`: another one), and it can be written to."""
        found: list[Node] = []

        def look() -> bool:
            found[:] = [node for node in self.nodes if node is not but and node.role() == "master"]
            return len(found) == 1

        self._until("there is no primary", look)
        return found[0]

    def standbys(self) -> list[Node]:
        return [node for node in self.nodes if node.role() in ("replica", "sync_standby")]

    def replicated(self, node: Node) -> bool:
        """Whether every standby has written to its disk whatever this primary has written so far."""
        with psycopg.connect(self.url_at(node), autocommit=True) as connection:
            row = connection.execute(
                "SELECT count(*) FILTER (WHERE flush_lsn >= now.lsn)"
                " FROM (SELECT pg_current_wal_insert_lsn() AS lsn OFFSET 0) AS now CROSS JOIN pg_stat_replication"
            ).fetchone()
        return row == (NODES - 1,)

    def words(self) -> str:
        logs = [self._room.words(node.name) for node in self.nodes if (self._room.path / f"{node.name}.log").exists()]
        return "\n\n".join([*logs, self._room.words("etcd")])

    def _standbys_follow(self) -> bool:
        node = self.primary()
        with psycopg.connect(self.url_at(node), autocommit=True) as connection:
            rows = connection.execute("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'").fetchall()
        wanted = ["async", "sync"] if self._synchronous else ["async", "async"]
        roles = sorted(str(each.role()) for each in self.nodes)
        known = ["master", "replica", "sync_standby"] if self._synchronous else ["master", "replica", "replica"]
        return sorted(row[0] for row in rows) == wanted and roles == known

    def _until(self, complaint: str, look: Any) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not look():
            assert time.monotonic() < deadline, f"{complaint}:\n{self.words()}"
            time.sleep(0.1)

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._room.start(
            self._programs[1], "--name=etcd", f"--data-dir={self._room.folder('etcd')}", "--unsafe-no-fsync",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=etcd={peer}",
            name="etcd",
        )  # fmt: skip

        def healthy() -> bool:
            try:
                with urlopen(f"{client}/health", timeout=2) as answer:  # noqa: S310 - it is http
                    return bool(json.load(answer)["health"] == "true")
            except OSError:
                return False

        self._until("etcd is not healthy", healthy)

    def _start_node(self, node: Node) -> None:
        file = node.folder / "patroni.json"  # Patroni reads YAML, and JSON is that
        file.write_text(json.dumps(self._configuration(node), indent=2), encoding="ascii")
        file.chmod(0o600)
        self._room.give(file)
        node.process = self._room.start(self._programs[0], file, name=node.name, folder=node.folder)

    def _configuration(self, node: Node) -> dict[str, Any]:
        account = {"username": "postgres", "password": self._password}
        parameters = {
            "max_connections": 100, "shared_buffers": "32MB", "wal_keep_size": "256MB", "wal_log_hints": "on",
            "checkpoint_timeout": "30min", "max_wal_senders": 10, "wal_level": "replica", "hot_standby": "on",
        }  # fmt: skip
        rest = f"127.0.0.1:{node.rest_port}"
        dcs = {
            "ttl": LEADER_TTL, "loop_wait": LOOP_WAIT, "retry_timeout": RETRY_TIMEOUT,
            "maximum_lag_on_failover": LAG_MAX, "synchronous_mode": self._synchronous,
            "postgresql": {"use_pg_rewind": True, "use_slots": True, "parameters": parameters},
        }  # fmt: skip
        address = f"127.0.0.1:{node.port}"
        return {
            "scope": "fleet",
            "name": node.name,
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": {"host": f"127.0.0.1:{self._etcd_port}"},
            "bootstrap": {"dcs": dcs, "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "no-sync"]},
            "postgresql": {
                "listen": address,
                "connect_address": address,
                "data_dir": str(node.folder / "data"),
                "bin_dir": str(self._programs[2]),
                "pgpass": str(node.folder / "pgpass"),
                "authentication": {"superuser": account, "replication": account, "rewind": account},
                "parameters": {"unix_socket_directories": str(node.folder)},
                "pg_hba": [
                    "host all all 127.0.0.1/32 scram-sha-256",
                    "host replication all 127.0.0.1/32 scram-sha-256",
                ],
            },
        }


def _body(error: OSError) -> dict[str, Any]:
    """What an answer says that is an error to urllib: a standby's status can be one."""
    read = getattr(error, "read", None)
    try:
        return dict(json.loads(read())) if read else {}
    except ValueError:
        return {}
