"""Tokens as they are kept: looked up by hash, taken back, and never waited for."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from uuid_utils.compat import uuid7

from fleet.errors import ConfigurationError
from fleet.postgres import token
from fleet.postgres.database import AsyncConnection
from fleet.tokens import PREFIX, Scope, checked_name, hash_of, is_secret, new_secret
from tests.support import execute

ID = "019af3c2-9b07-7a21-8c3e-0d5f6a7b8c9d"


async def make(
    connection: AsyncConnection,
    name: str = "ci",
    *,
    scopes: tuple[str, ...] = ("read",),
    expires_in: timedelta | None = None,
) -> tuple[UUID, str]:
    """Make a token; return its id and its secret."""
    token_id, secret = uuid7(), new_secret()
    made = await token.create(
        connection, token_id, name, hash_=hash_of(secret), scopes=scopes, expires_in=expires_in, actor="me"
    )
    assert made is not None
    return token_id, secret


async def column(connection: AsyncConnection, name: str) -> Any:
    return (await execute(connection, f"SELECT {name} FROM fleet.api_token"))[0][0]


async def test_a_token_is_found_by_its_secret_alone(connection: AsyncConnection) -> None:
    _, secret = await make(connection, scopes=("read", "operate"))
    assert await token.look_up(connection, hash_of(secret)) == token.Found("ci", ["read", "operate"], None)
    assert await token.look_up(connection, hash_of(secret[:-1])) is None
    assert await token.look_up(connection, secret.encode()) is None


async def test_only_the_hash_of_a_secret_is_kept(connection: AsyncConnection) -> None:
    _, secret = await make(connection)
    (kept,) = await execute(connection, "SELECT api_token::text FROM fleet.api_token")
    assert secret not in kept[0]
    assert hash_of(secret).hex() in kept[0]


async def test_a_token_is_good_until_it_expires(connection: AsyncConnection) -> None:
    _, secret = await make(connection, expires_in=timedelta(days=1))
    found = await token.look_up(connection, hash_of(secret))
    assert found is not None
    assert found.remaining_seconds == pytest.approx(86400, abs=60)
    await connection.execute("UPDATE fleet.api_token SET expires_at = clock_timestamp()")
    assert await token.look_up(connection, hash_of(secret)) is None


async def test_when_it_was_used_is_kept_to_the_minute(connection: AsyncConnection) -> None:
    _, secret = await make(connection)
    assert await column(connection, "last_used_at") is None
    await token.look_up(connection, hash_of(secret))
    used = await column(connection, "last_used_at")
    assert used is not None
    await token.look_up(connection, hash_of(secret))
    assert await column(connection, "last_used_at") == used
    await connection.execute("UPDATE fleet.api_token SET last_used_at = last_used_at - interval '1 minute'")
    await token.look_up(connection, hash_of(secret))
    assert await column(connection, "last_used_at") > used


async def test_a_look_up_does_not_wait_for_whoever_holds_the_row(
    connection: AsyncConnection, other: AsyncConnection
) -> None:
    _, secret = await make(connection)
    async with other.transaction():
        await other.execute("UPDATE fleet.api_token SET name = 'renamed'")
        async with asyncio.timeout(30):
            found = await token.look_up(connection, hash_of(secret))
    assert found is not None
    assert found.name == "ci"


async def test_a_revoked_token_is_not_found_and_frees_its_name(connection: AsyncConnection) -> None:
    first, secret = await make(connection)
    assert await token.revoke(connection, token_id=None, name="ci", actor="me") == (first, True)
    assert await token.look_up(connection, hash_of(secret)) is None
    second, again = await make(connection)
    assert await token.revoke(connection, token_id=first, name=None, actor="me") == (first, False)
    assert await token.look_up(connection, hash_of(again)) is not None
    assert await token.revoke(connection, token_id=None, name="ci", actor="me") == (second, True)
    assert await token.revoke(connection, token_id=None, name="other", actor="me") is None


async def test_two_tokens_of_one_name_cannot_be_made(connection: AsyncConnection) -> None:
    await make(connection)
    second = await token.create(
        connection, uuid7(), "ci", hash_=hash_of(new_secret()), scopes=["read"], expires_in=None, actor="me"
    )
    assert second is None
    assert len(await execute(connection, "SELECT FROM fleet.audit")) == 1


async def test_who_made_and_who_revoked_it_is_on_record(connection: AsyncConnection) -> None:
    await make(connection, scopes=("read", "submit"))
    for _ in range(2):
        await token.revoke(connection, token_id=None, name="ci", actor="you")
    rows = await execute(connection, "SELECT actor, action, subject, detail FROM fleet.audit ORDER BY id")
    assert rows == [("me", "create_token", "ci", "read submit"), ("you", "revoke_token", "ci", None)]


@pytest.mark.parametrize("scopes", [(), ("admin",), ("read", "everything")])
async def test_a_scope_that_nobody_knows_cannot_be_kept(connection: AsyncConnection, scopes: tuple[str, ...]) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        await make(connection, scopes=scopes)


async def test_every_scope_can_be_kept(connection: AsyncConnection) -> None:
    _, secret = await make(connection, scopes=tuple(Scope))
    found = await token.look_up(connection, hash_of(secret))
    assert found is not None
    assert found.scopes == [*Scope]


def test_secrets_are_long_and_differ() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert all(is_secret(each) and each.startswith(PREFIX) and len(each) == len(PREFIX) + 43 for each in made)


@pytest.mark.parametrize("text", ["", PREFIX, PREFIX + "x" * 42, PREFIX + "x" * 44, "x" * 49, PREFIX + "x" * 42 + "\n"])
def test_what_has_not_the_form_of_a_secret_is_none(text: str) -> None:
    assert not is_secret(text)


@pytest.mark.parametrize(
    "name", ["", "a b", "-x", "x" * 64, "me@host", "http", "api", "ü", ID, ID.replace("-", ""), "a\n"]
)
def test_a_name_that_could_be_taken_for_something_else_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be called"):
        checked_name(name)
    assert checked_name("ci.main_2") == "ci.main_2"
