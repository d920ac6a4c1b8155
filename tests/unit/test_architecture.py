"""The walls of the house: what may import what, how long things may be, and where SQL may stand."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "fleet"
FILES = sorted(PACKAGE.rglob("*.py"))
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400

# From the ground up; a module imports only from floors below its own, or from its own package.
FLOORS: list[set[str]] = [
    {"errors", "lease", "task", "retry", "payload", "config", "events", "context", "faultpoint"}
    | {"schema", "redaction", "tokens"},
    {"handler", "postgres", "embedded"},
    {"tracing"},
    {"worker", "client", "doctor"},
    {"app", "logs", "metrics"},
    {"http"},
    {"cli", "demo", "bench", "up", "verify", "testing"},
]
VOCABULARY = FLOORS[0]
VOCABULARY_MAY_IMPORT = set(__import__("sys").stdlib_module_names) | {"fleet"}
# psycopg's and SQLAlchemy's own words aside: a statement has one of these beginnings and goes on like SQL.
SQL = re.compile(
    r"^\s*(SELECT|INSERT\s+INTO|UPDATE|DELETE\s+FROM|WITH|COPY|CREATE|ALTER|DROP|LISTEN|NOTIFY)\b[\s\S]*\b(fleet\.|FROM|SET|TABLE)\b"
)


def room(path: Path) -> str:
    """The name of a module's place in FLOORS: its file, or the package that it is in."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def floor(name: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if name in rooms)


def imports(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node
            yield from ((f"{node.module}.{alias.name}", node) for alias in node.names)


def rooms_imported(tree: ast.AST) -> set[str]:
    known = set().union(*FLOORS)
    return {
        parts[1]
        for name, _ in imports(tree)
        if (parts := name.split("."))[0] == "fleet" and len(parts) > 1 and parts[1] in known
    }


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(PACKAGE)) for path in paths]


INNER = [
    path
    for path in FILES
    if (path.name != "__main__.py" and path.parent != PACKAGE) or path.stem in set().union(*FLOORS)
]


def test_every_module_has_its_place() -> None:
    strangers = {room(path) for path in FILES} - set().union(*FLOORS) - {"__init__", "__main__"}
    assert not strangers


@pytest.mark.parametrize("path", INNER, ids=names(INNER))
def test_imports_go_down(path: Path) -> None:
    here = room(path)
    upwards = {
        other
        for other in rooms_imported(parsed(path))
        if other != here
        and floor(other) >= floor(here)
        and not (floor(here) in (0, len(FLOORS) - 1) and floor(other) == floor(here))
    }
    assert not upwards, f"{here} must not import {upwards}"


@pytest.mark.parametrize("path", FILES, ids=names(FILES))
def test_ceilings(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= FILE_LINES_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", FILES, ids=names(FILES))
def test_sql_stands_only_in_postgres(path: Path) -> None:
    if room(path) in ("postgres", "bench"):  # the bare loop that fleet is measured against has statements of its own
        return
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not SQL.match(node.value), f"line {node.lineno}: {node.value[:60]!r}"


@pytest.mark.parametrize("path", FILES, ids=names(FILES))
def test_no_import_hides_inside_a_function(path: Path) -> None:
    if room(path) in ("cli", "demo", "up", "bench"):  # their commands import late, so that `fleet --help` is quick
        return
    for function in ast.walk(parsed(path)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            assert not [name for name, _ in imports(function) if name.startswith("fleet")], function.name


def test_the_vocabulary_needs_the_standard_library_alone() -> None:
    for path in FILES:
        if room(path) in VOCABULARY:
            foreign = {name.split(".")[0] for name, _ in imports(parsed(path))} - VOCABULARY_MAY_IMPORT
            assert not foreign, f"{path.name} imports {foreign}"


def test_verbs_do_not_import_verbs() -> None:
    plumbing = {"database", "patience", "tables", "transaction"}
    for path in sorted((PACKAGE / "postgres").glob("*.py")):
        verbs = {
            name.split(".")[2]
            for name, _ in imports(parsed(path))
            if name.startswith("fleet.postgres.") and name.split(".")[2] not in plumbing
        }
        assert not verbs, f"{path.name} imports {verbs}"


def test_workers_do_not_log() -> None:
    for path in sorted((PACKAGE / "worker").glob("*.py")):
        assert not {"logging", "structlog", "fleet.logs"} & {name for name, _ in imports(parsed(path))}, path.name
