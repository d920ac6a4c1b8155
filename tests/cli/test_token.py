"""`fleet token`: the secret is shown once, the rest can be listed."""

from fleet.postgres import token
from fleet.postgres.database import AsyncConnection
from fleet.tokens import hash_of, is_secret
from tests import support
from tests.cli.conftest import Command


async def test_create_prints_the_secret_alone_on_stdout(fleet: Command, connection: AsyncConnection) -> None:
    made = await fleet("token", "create", "ci", "--scope", "submit", "--scope", "read", "--scope", "read")
    assert made.code == 0
    secret = made.out.removesuffix("\n")
    assert is_secret(secret)
    assert secret not in made.err
    assert "'ci' may read, submit and does not expire" in made.err
    assert await token.look_up(connection, hash_of(secret)) == token.Found("ci", ["read", "submit"], None)
    for output in ("table", "json"):
        assert secret not in (await fleet("token", "list", "-o", output)).out


async def test_create_tells_everything_as_json(fleet: Command) -> None:
    told = (await fleet("token", "create", "ci", "--scope", "operate", "--expires-in", "90d", "-o", "json")).json
    assert set(told) == {"id", "name", "scopes", "expires_at", "secret"}
    assert is_secret(told["secret"])
    (listed,) = (await fleet("token", "list", "-o", "json")).json
    assert {name: listed[name] for name in ("id", "name", "scopes", "expires_at")} == {
        name: told[name] for name in ("id", "name", "scopes", "expires_at")
    }
    assert (listed["last_used_at"], listed["revoked_at"]) == (None, None)


async def test_list_says_which_are_good(fleet: Command, connection: AsyncConnection) -> None:
    assert (await fleet("token", "list")).out == ""
    for name in ("first", "second", "third"):
        await fleet("token", "create", name, "--scope", "read", "--expires-in", "1h")
    await fleet("token", "revoke", "first")
    await connection.execute("UPDATE fleet.api_token SET expires_at = clock_timestamp() WHERE name = 'second'")
    lines = (await fleet("token", "list")).lines
    assert lines[0] == ["TOKEN", "NAME", "SCOPES", "STATE", "CREATED", "LAST USED", "EXPIRES"]
    assert [line[1:4] for line in lines[1:]] == [
        ["third", "read", "good"],
        ["second", "read", "expired"],
        ["first", "read", "revoked"],
    ]


async def test_a_token_is_revoked_by_its_name_or_its_id(fleet: Command) -> None:
    for way in ("name", "id"):
        made = (await fleet("token", "create", "ci", "--scope", "read", "-o", "json")).json
        revoked = await fleet("token", "revoke", made[way], "-o", "json")
        assert (revoked.code, revoked.json) == (0, {"id": made["id"], "changed": True})
        again = await fleet("token", "revoke", made[way], "-o", "json")
        assert (again.code, again.json) == (0, {"id": made["id"], "changed": False})
    unknown = await fleet("token", "revoke", "nobody")
    assert (unknown.code, unknown.out) == (5, "")


async def test_who_did_it_is_on_record(fleet: Command, connection: AsyncConnection) -> None:
    await fleet("token", "create", "ci", "--scope", "read")
    await fleet("token", "revoke", "ci")
    rows = await support.execute(connection, "SELECT actor, action, subject FROM fleet.audit ORDER BY id")
    assert [row[1:] for row in rows] == [("create_token", "ci"), ("revoke_token", "ci")]
    assert all("@" in row[0] for row in rows)


async def test_what_cannot_be_made_is_refused(fleet: Command, connection: AsyncConnection) -> None:
    await fleet("token", "create", "ci", "--scope", "read")
    taken = await fleet("token", "create", "ci", "--scope", "read")
    assert (taken.code, taken.out) == (6, "")
    for wrong in (
        ("a b", "--scope", "read"),
        ("x",),
        ("x", "--scope", "admin"),
        ("x", "--scope", "read", "--expires-in", "0s"),
        ("x", "--scope", "read", "--expires-in", "36501d"),
        ("x", "--scope", "read", "--expires-in", "soon"),
    ):
        refused = await fleet("token", "create", *wrong)
        assert (refused.code, refused.out) == (2, ""), wrong
    assert len(await support.execute(connection, "SELECT FROM fleet.api_token")) == 1
