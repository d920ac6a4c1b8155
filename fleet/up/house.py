"""The data folder of a fleet on one machine, and the PostgreSQL in it."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from platformdirs import user_data_path

from fleet.cli.failures import ExitCode, Refused
from fleet.embedded import EmbeddedError, Server, shared

if sys.platform != "win32":
    import fcntl

_CODES = {
    "system": ExitCode.DATABASE,
    "binaries": ExitCode.DATABASE,
    "server": ExitCode.DATABASE,
    "folder": ExitCode.USAGE,
    "major": ExitCode.SCHEMA,
    "port": ExitCode.CONFLICT,
}


def default_data() -> Path:
    """Return this user's folder; root's home is closed to the account that its server runs as."""
    return Path("/var/lib/fleet") if os.geteuid() == 0 else user_data_path("fleet")


@contextmanager
def held(data: Path) -> Iterator[Callable[[str], None]]:
    """Hold the folder for this fleet alone. What is given to the result is told to those who come after.

    Raises Refused where another fleet has it, and where it cannot be written.
    """
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        data.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, exist_ok=True)  # root's server passes as another account
        lock = os.open(data / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise Refused(
            f"cannot use the folder {data} ({error.strerror}): choose one that you may write with --data or FLEET_DATA, "
            "or name a database with --database-url",
            ExitCode.USAGE,
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.pread(lock, 1000, 0).decode(errors="replace") or "it starts or ends just now"
            raise Refused(
                f"a fleet runs in {data} already: {who}. Use that one, or run another with --data and --port of its own.",
                ExitCode.CONFLICT,
            ) from None
        os.truncate(lock, 0)
        yield lambda who: os.truncate(lock, os.pwrite(lock, who.encode(), 0))
    finally:
        os.close(lock)


@contextmanager
def served(data: Path, *, connections: int) -> Iterator[Server]:
    """Run the folder's PostgreSQL, and keep its URL in DATA/url meanwhile. Raises Refused where it cannot be run."""
    url = data / "url"
    try:
        with shared(data, {"max_connections": str(connections)}) as server:
            url.unlink(missing_ok=True)
            url.touch(mode=0o600, exist_ok=False)
            url.write_text(server.url, encoding="ascii")
            try:
                yield server
            finally:
                with suppress(OSError):
                    url.unlink()
    except EmbeddedError as error:
        match error.kind:
            case "binaries":
                words = f"{error}. Or name a database with --database-url or FLEET_DATABASE_URL."
            case "port":
                words = f"the PostgreSQL in {data} had ended, and another program took its port. Run `fleet up` again."
            case _:
                words = str(error)
        raise Refused(words, _CODES[error.kind]) from error
