"""Fill in what the reference pages generate: a line `% generated: NAME` becomes Markdown made from the code itself."""

import ast
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import timedelta

import click
import http_reference
from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature

from fleet import Fleet, Settings
from fleet.cli import main

_MARKER = re.compile(r"^( *)% generated: (\w+)$", re.MULTILINE)
_LITERAL = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def commands() -> Iterator[str]:
    """Yield a section for every command: how to call it, what it does, its options."""
    root = click.Context(main, info_name="fleet")
    yield from _code(main.epilog or "")
    for name in main.list_commands(root):
        yield from _command(_found(main, root, name), root, name, depth=2)


def settings() -> Iterator[str]:
    """Yield a table of all settings, and the rules between them."""
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(Settings), re.MULTILINE))
    defaults = Settings()
    yield from ("| field | variable | default | |", "|---|---|---|---|")
    for field in fields(Settings):
        if field.init:
            value = _plain(getattr(defaults, field.name))
            yield f"| `{field.name}` | `FLEET_{field.name.upper()}` | {value} | {comments.get(field.name, '')} |"
    yield from ("", "These hold between them; a process with other settings does not start:", "")
    tree = ast.parse(textwrap.dedent(inspect.getsource(Settings._check)))  # noqa: SLF001 - the rules stand nowhere else
    rules = next(node for node in ast.walk(tree) if isinstance(node, ast.Dict))
    yield from (f"- `{key.value!s}`" for key in rules.keys if isinstance(key, ast.Constant))


def declaration() -> Iterator[str]:
    """Yield the entry of `@app.task(…)`: autodoc would show every overload, and most are for type checkers alone."""
    signature = inspect.signature(typing.get_overloads(Fleet.task)[-1])
    keywords = [each for each in signature.parameters.values() if each.name != "self"]
    shown = stringify_signature(
        signature.replace(parameters=keywords), show_return_annotation=False, unqualified_typehints=True
    )
    yield f".. py:method:: task{shown}"
    yield ""
    words = _LITERAL.sub(r"``\1``", inspect.getdoc(Fleet.task) or "")
    yield from textwrap.indent(words, "   ").splitlines()


GENERATORS: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "declaration": declaration,
    "routes": http_reference.routes,
    "shapes": http_reference.shapes,
    "settings": settings,
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Register both hooks."""
    app.connect("source-read", _fill_in)
    app.connect("autodoc-process-docstring", _mark_literals)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = _MARKER.sub(lambda marker: "\n".join(marker[1] + line for line in GENERATORS[marker[2]]()), source[0])


def _mark_literals(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Docstrings have single backticks, which Sphinx would take for references. A module's is for readers of its source."""
    text = "" if what == "module" else "\n".join(lines)
    lines[:] = _LITERAL.sub(r"``\1``", text).splitlines()


def _found(group: click.Group, context: click.Context, name: str) -> click.Command:
    command = group.get_command(context, name)
    if command is None:
        raise LookupError(name)
    return command


def _command(command: click.Command, parent: click.Context, name: str, depth: int) -> Iterator[str]:
    if command.hidden:
        return
    context = click.Context(command, info_name=name, parent=parent)
    path = context.command_path
    yield from ("", f"({path.replace(' ', '-')})=", f"{'#' * depth} {path}", "")
    if isinstance(command, click.Group):
        yield _prose(command.help or "")
        for each in command.list_commands(context):
            yield from _command(_found(command, context, each), context, each, depth + 1)
        return
    yield from _code(" ".join([path, *command.collect_usage_pieces(context)]))
    yield _prose(command.help or "")
    yield ""
    options = [each for each in command.params if isinstance(each, click.Option)]
    records = [record for each in options if (record := each.get_help_record(context))]
    yield from ("| option | |", "|---|---|") if records else ()
    for option, words in records:
        yield f"| `{_cell(option)}` | {_prose(_cell(words))} |"
    if command.epilog:
        yield ""
        yield from _code(command.epilog)


def _code(text: str) -> Iterator[str]:
    yield from ("```text", text.replace("\b\n", "").strip(), "```", "")


def _prose(text: str) -> str:
    return re.sub(r"(?<![`\w])([<>*_\[])", r"\\\1", inspect.cleandoc(text).replace("\b\n", ""))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def _plain(value: object) -> str:
    match value:
        case timedelta() if value >= timedelta(days=1):
            return f"{value.days} days"
        case timedelta():
            return f"{value.total_seconds():g} s"
    return f"{value:,}"
