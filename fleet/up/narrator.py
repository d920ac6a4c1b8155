"""What `fleet up` says: blocks of text for people, or lines in the form of the log, so that neither garbles the other."""

import logging
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleet.cli.application import VARIABLE
from fleet.cli.output import say
from fleet.config import secret
from fleet.logs import Line
from fleet.up.command import DEMO
from fleet.up.plan import Plan

_BEARER = "FLEET_API_TOKEN"
_LOGGER = logging.getLogger("fleet")


class Narrator:
    """Speaks on stderr."""

    def __init__(self, plan: Plan, address: str) -> None:
        self._plan = plan
        self._address = address
        self._is_json = plan.log == "json"

    @property
    def draws(self) -> bool:
        """Whether a bar can be drawn: on a terminal, where no log is expected to scroll."""
        return sys.stderr.isatty() and not self._is_json and self._plan.log_level != "debug"

    def tell(self, words: str, *, lines: Sequence[str] = (), **fields: object) -> None:
        """Say that something has happened; `lines` say it to people, the fields to machines."""
        if self._is_json:
            _LOGGER.info(Line(words, fields))
        else:
            say("\n".join(lines) if lines else f"{words[:1].upper()}{words[1:]}.")

    def welcome(self, workers: Mapping[str, int], data: Path | None, database: str) -> None:
        """Say what runs and where."""
        where = f"a PostgreSQL of its own, in {data}" if data else database
        self.tell(
            "fleet is up",
            lines=[
                "",
                f"A fleet is up: {len(workers)} {'worker' if len(workers) == 1 else 'workers'}, tasks of {self._plan.path}",
                "",
                f"  API       {self._address}",
                f"  database  {where}",
                f"  workers   {', '.join(f'{name} (pid {pid})' for name, pid in workers.items())}",
            ],
            app=self._plan.path,
            address=self._address,
            database=where,
            workers=dict(workers),
        )

    def advise(self, workers: Mapping[str, int], data: Path | None) -> None:
        """Say what to try next; machines need no advice."""
        if self._is_json:
            return
        variables = {VARIABLE: self._plan.path} | ({"FLEET_DATABASE_URL_FILE": str(data / "url")} if data else {})
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        tasks = f"{self._address}/tasks"
        if secret(os.environ, _BEARER):
            tasks = f'-H "Authorization: Bearer ${_BEARER}" {tasks}'
        posting = [
            f"  curl -H 'Content-Type: application/json' -H 'Idempotency-Key: a' {tasks} \\",
            """    -d '{"name": "analyze", "args": {"text": "to be or not to be"}}'""",
            f"  curl {tasks}/ID    with the id from that answer",
        ]
        say(
            "\n".join(
                [
                    "",
                    "Try, in another terminal:",
                    "",
                    *(posting if self._plan.path == DEMO else [f"  curl {tasks}"]),
                    "",
                    f"  export {exports}",
                    f"  {_own_name()} task list",
                    f"  kill -9 {next(iter(workers.values()))}    a worker dies: the others go on, another takes its place",
                    "",
                    "Ctrl-C drains: what runs is finished, then everything ends.",
                ]
            )
        )


def _own_name() -> str:
    """Return how this program is called in this very shell."""
    program = sys.argv[0]
    if Path(program).name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m fleet"
    return "fleet" if shutil.which("fleet") == os.path.abspath(program) else shlex.quote(program)  # noqa: PTH100 - as which
