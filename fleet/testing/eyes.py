"""One connection that looks on, asks as often as it likes, and comes back after the database was away."""

from typing import Any

from sqlalchemy import Connection, Select
from sqlalchemy.exc import DBAPIError

from fleet.postgres.database import Database


class Eyes:
    """Asks questions of a database over one connection, opened when it is first needed. For one thread at a time."""

    def __init__(self, database: Database) -> None:
        self._engine = database.engine("testing").execution_options(isolation_level="AUTOCOMMIT")
        self._connection: Connection | None = None

    def ask(self, question: Select[Any]) -> list[dict[str, Any]]:
        """Run one question and return its rows by column; a connection that was lost is made anew, once."""
        known = self._connection is not None
        try:
            return self._ask(question)
        except DBAPIError as error:
            self.close()
            if not (known and error.connection_invalidated):
                raise
        return self._ask(question)

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()

    def _ask(self, question: Select[Any]) -> list[dict[str, Any]]:
        if self._connection is None:
            self._connection = self._engine.connect()
        return [dict(row) for row in self._connection.execute(question).mappings()]
