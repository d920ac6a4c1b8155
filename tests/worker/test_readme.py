"""The README's first program does what it says."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

README = Path(__file__).parents[2] / "README.md"


async def test_the_first_program_runs(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLEET_DATABASE_URL", database_url)
    found = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    declared, submitted = found[1].split("\nref =", 1)
    charged: list[str] = []

    def charge(order: int, idempotency_key: str) -> str:
        charged.append(idempotency_key)
        return f"paid {order}"

    names: dict[str, Any] = {"payments": SimpleNamespace(charge=charge)}
    exec(declared, names)  # noqa: S102 - it is ours
    async with names["app"] as app, app.worker():
        await eval(compile(f"ref ={submitted}", "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)  # noqa: S307
        assert capsys.readouterr().out == "{'words': 6}\n"
        ref = await names["charge"].submit(order=7)
        assert await ref.result(10) == "paid 7"
        assert charged == [str(ref.id)]
