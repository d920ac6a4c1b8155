"""Tokens of the HTTP API: make one, take one back, and find out whose one is. Only hashes are here, never a secret."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Select, select

from fleet.postgres.database import AsyncConnection, Statement, run
from fleet.postgres.tables import api_token

# A name is free again once its token was revoked.
CREATE = Statement("""
WITH made AS (
  INSERT INTO fleet.api_token (id, name, hash, scopes, expires_at)
  VALUES (:id::uuid, :name::text, :hash::bytea, :scopes::text[], clock_timestamp() + :expires_in::interval)
  ON CONFLICT (name) WHERE revoked_at IS NULL DO NOTHING
  RETURNING name, scopes, expires_at
), history AS (
  INSERT INTO fleet.audit (actor, action, subject, detail)
  SELECT :actor::text, 'create_token', name, array_to_string(scopes, ' ')
  FROM made
)
SELECT expires_at FROM made
""")

REVOKE = Statement("""
WITH known AS MATERIALIZED (
  SELECT id
  FROM fleet.api_token
  WHERE id = :id::uuid OR name = :name::text
  ORDER BY revoked_at DESC NULLS FIRST
  LIMIT 1
), revoked AS (
  UPDATE fleet.api_token
  SET revoked_at = clock_timestamp()
  FROM known
  WHERE api_token.id = known.id AND revoked_at IS NULL
  RETURNING api_token.id, name
), history AS (
  INSERT INTO fleet.audit (actor, action, subject)
  SELECT :actor::text, 'revoke_token', name
  FROM revoked
)
SELECT id, EXISTS (SELECT FROM revoked) AS changed FROM known
""")

# When it was used is kept to the minute. The row is passed over while somebody else holds it: a look-up never waits.
LOOK_UP = Statement("""
WITH good AS MATERIALIZED (
  SELECT id, name, scopes, extract(epoch FROM expires_at - clock_timestamp())::float8 AS remaining_seconds
  FROM fleet.api_token
  WHERE hash = :hash::bytea AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())
), stale AS MATERIALIZED (
  SELECT id
  FROM fleet.api_token
  WHERE id = (SELECT id FROM good) AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute')
  FOR NO KEY UPDATE SKIP LOCKED
), used AS (
  UPDATE fleet.api_token
  SET last_used_at = clock_timestamp()
  FROM stale
  WHERE api_token.id = stale.id
)
SELECT name, scopes, remaining_seconds FROM good
""")


class Found(NamedTuple):
    """A token that is good now; `remaining_seconds` until it expires, None: it does not."""

    name: str
    scopes: list[str]
    remaining_seconds: float | None


class Made(NamedTuple):
    """A token that was made."""

    expires_at: datetime | None


async def create(
    connection: AsyncConnection,
    token_id: UUID,
    name: str,
    *,
    hash_: bytes,
    scopes: Sequence[str],
    expires_in: timedelta | None,
    actor: str,
) -> Made | None:
    """Keep a token's hash. None where a token of that name is there and not revoked: nothing was written."""
    rows = await run(
        connection, CREATE,
        id=token_id, name=name, hash=hash_, scopes=list(scopes), expires_in=expires_in, actor=actor,
    )  # fmt: skip
    return Made(*rows[0]) if rows else None


async def revoke(
    connection: AsyncConnection, *, token_id: UUID | None, name: str | None, actor: str
) -> tuple[UUID, bool] | None:
    """Take a token back, named by one of both; returns its id and whether it was good before, None: there is none."""
    rows = await run(connection, REVOKE, id=token_id, name=name, actor=actor)
    return (rows[0][0], rows[0][1]) if rows else None


async def look_up(connection: AsyncConnection, hash_: bytes) -> Found | None:
    """Return the token that has this hash; None where none has, or it was revoked, or has expired."""
    rows = await run(connection, LOOK_UP, hash=hash_)
    return Found(*rows[0]) if rows else None


def tokens(limit: int) -> Select[Any]:
    """Select all tokens that are on record, the youngest first, without their hashes."""
    columns = [column for column in api_token.c if column.name != "hash"]
    return select(*columns).order_by(api_token.c.id.desc()).limit(limit)
