"""`tx=` takes the psycopg connection beneath Django's own, whatever Django has set on it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json
import sys

import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

from fleet import Fleet

url, binding = sys.argv[1], json.loads(sys.argv[2])
names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
parts = conninfo_to_dict(url)
settings.configure(
    USE_TZ=True,
    TIME_ZONE="Asia/Tokyo",
    DATABASES={
        "default": {name: parts[key] for name, key in names.items()}
        | {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {"server_side_binding": binding}}
    },
)
django.setup()

from django.db import connection, transaction

app = Fleet(url)


@app.task(idempotent=True)
def echo(said: str) -> str:
    return said


HARD = "a :name, a %s, a %(x)s, a {brace}, a \\\\ and a ' and a ::cast"

connection.ensure_connection()
with transaction.atomic():
    kept = echo.options(tx=connection.connection, idempotency_key="k", delay=0.01, timeout=60).submit_sync(HARD)
    again = echo.options(tx=connection.connection, idempotency_key="k", delay=0.01, timeout=60).submit_sync(HARD)
    assert again.id == kept.id
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::int, now()", [7])
        seven, now = cursor.fetchone()
        assert seven == 7 and now.tzinfo is not None

try:
    with transaction.atomic():
        lost = echo.options(tx=connection.connection).submit_sync("lost")
        raise ZeroDivisionError
except ZeroDivisionError:
    pass

with transaction.atomic():
    outer = echo.options(tx=connection.connection).submit_sync("outer")
    try:
        with transaction.atomic():
            inner = echo.options(tx=connection.connection).submit_sync("inner")
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass

with connection.cursor() as cursor:
    cursor.execute("SELECT args->>'said' FROM fleet.task ORDER BY id")
    print(json.dumps([row[0] for row in cursor.fetchall()] == [HARD, "outer"]))
"""


@pytest.mark.parametrize("server_side_binding", [False, True])
def test_a_django_transaction_decides(database_url: str, tmp_path: Path, *, server_side_binding: bool) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), database_url, json.dumps(server_side_binding)],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "true", "")
