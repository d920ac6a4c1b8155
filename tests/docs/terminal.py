"""Terminals that do what a console block of a page says, and compare what is shown with what the page shows.

A line after `$ ` is typed; the lines below it must be what is shown, where `...` stands for anything. `^C` is Ctrl-C.
A block without a command goes on with what its terminal shows already. Moments, durations, and which worker it is, differ
each time. So do ids and long numbers: what each stands for here is kept, so that a later command may name it.
"""

import codecs
import contextlib
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from fcntl import ioctl
from pathlib import Path

from tests.docs.pages import Block
from tests.support import eventually_sync

SECONDS = 150.0
LISTENING = ("fleet up", "fleet api run")  # these are told another port than the pages', which may be taken
STAYING = (*LISTENING, "fleet worker run")  # these go on until Ctrl-C
PORT = "8080"
_COLUMNS, _LINES = 160, 50
_SHELL = "import fcntl, os, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execlp('bash', 'bash', *{!r})"
_PROMPT = re.compile(r"<prompt (\d+)>")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\]8;[^\x1b]*\x1b\\|\r")
_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_MOMENT = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?|\d\d:\d\d:\d\d(?:\.\d+)?"
_DURATION = r"\d+(?:\.\d+)? ?m?s\b"
_TOKEN = re.compile(
    rf"(?P<any>\.\.\.)|(?P<moment>{_MOMENT})|(?P<id>{_ID})|(?P<number>\b\d{{4,}}\b)|(?P<duration>\b{_DURATION})"
    r"|(?P<worker>\b[Ww]orker-\d)|(?P<rule>─+)|(?P<gap>[ \t]+)"
)
_FORMS = {
    "any": r"[\s\S]*?",
    "moment": rf"(?:{_MOMENT})",
    "duration": _DURATION,
    "worker": r"[Ww]orker-\d",
    "rule": "─+",
    "gap": r"[ \t]+",
}
_VARIABLE = {"id": _ID, "number": r"\d+"}


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
        modes = termios.tcgetattr(slave)
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        shell = _SHELL.format(["--norc", "--noprofile", "--noediting", "-i"])
        self._process = subprocess.Popen(
            [sys.executable, "-c", shell],
            stdin=slave, stdout=slave, stderr=slave, cwd=folder, start_new_session=True,
            env={**environment, "PS1": "<prompt $?>", "PS2": "", "TERM": "xterm", "NO_COLOR": "1"},
        )  # fmt: skip
        os.close(slave)
        self._shown = ""
        self._read = 0
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()
        self.wait_for(_PROMPT)

    def _follow(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        come = ""
        with contextlib.suppress(OSError):  # the shell has ended
            while data := os.read(self._master, 65536):
                come = _ESCAPE.sub("", come + decoder.decode(data))
                whole, escape, rest = come.partition("\x1b")  # one that has not come whole yet waits for the rest of it
                self._shown += whole
                come = escape + rest

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, pattern: re.Pattern[str]) -> tuple[str, re.Match[str]]:
        """Return what was shown up to a match, and the match; what comes after it is left for the next time."""

        def found() -> re.Match[str] | None:
            return pattern.search(self._shown, self._read)

        try:
            match = eventually_sync(found, SECONDS)
        except AssertionError:
            message = f"not shown within {SECONDS:g} s: {pattern.pattern}\nshown:\n{self._shown[self._read :]}"
            raise AssertionError(message) from None
        assert match is not None
        before = self._shown[self._read : match.start()]
        self._read = match.end()
        return before, match

    def close(self) -> None:
        """End the shell and what runs in it, gently first."""
        with contextlib.suppress(OSError):
            self.type("\x03\x03")
        self._process.send_signal(signal.SIGHUP)
        try:
            self._process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join(timeout=SECONDS)
        os.close(self._master)


class Console:
    """The terminals of one page, by name; `here` is what things on the page are called here, and grows with every id."""

    def __init__(self, folder: Path, environment: Mapping[str, str], here: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._here = {PORT: free_port(), "laptop": socket.gethostname(), **here}
        self._numbers: dict[str, str] = {}  # what was shown last: the process that runs a task is another each time
        self._terminals: dict[str, Terminal] = {}

    def run(self, block: Block) -> None:
        """Do what a block says. Raises AssertionError where something else is shown."""
        terminal = self._terminals.get(block.caption)
        if terminal is None:
            terminal = self._terminals[block.caption] = Terminal(self._folder, self._environment)
        steps = list(_steps(block.text))
        for (typed, output), following in zip(steps, [*steps[1:], ("", "")], strict=True):
            try:
                self._step(terminal, typed, output, failing=following[0] == "echo $?")
            except AssertionError as error:
                error.add_note(f"{block.where}, after: {typed}")
                raise

    def _step(self, terminal: Terminal, typed: str, output: str, *, failing: bool) -> None:
        if typed == "^C":
            terminal.type("\x03")
        elif typed:
            elsewhere = f" --port {self._here[PORT]}" if typed.startswith(LISTENING) else ""
            terminal.type(_replaced(typed, self._here | self._numbers) + elsewhere + "\n")
        if typed in ("", "^C") or typed.startswith(STAYING):
            for line in output.splitlines():
                if line.strip() != "...":
                    _, match = terminal.wait_for(re.compile(self._pattern(line)))
                    self._learn(line, match)
            if typed == "^C":
                _, prompt = terminal.wait_for(_PROMPT)
                assert prompt[1] == "0", f"exit code {prompt[1]} after Ctrl-C"
            return
        shown, prompt = terminal.wait_for(_PROMPT)
        shown = "\n".join(line.rstrip() for line in shown.splitlines() if line.strip())
        output = "\n".join(line.rstrip() for line in output.splitlines() if line.strip())
        found = re.fullmatch(self._pattern(output), shown)
        assert found, f"the page shows:\n{output}\nshown:\n{shown}"
        self._learn(output, found)
        assert failing or prompt[1] == "0", f"exit code {prompt[1]}; shown:\n{shown}"

    def _pattern(self, text: str) -> str:
        parts, end = [], 0
        text = _replaced(text, self._here)
        for token in _TOKEN.finditer(text):
            parts.append(re.escape(text[end : token.start()]))
            kind = token.lastgroup or ""
            if kind in _VARIABLE:
                known = token[0] in self._here.values()
                parts.append(f"({re.escape(token[0]) if known else _VARIABLE[kind]})")
            else:
                parts.append(_FORMS[kind])
            end = token.end()
        return "".join([*parts, re.escape(text[end:])])

    def _learn(self, text: str, match: re.Match[str]) -> None:
        tokens = [each for each in _TOKEN.finditer(_replaced(text, self._here)) if each.lastgroup in _VARIABLE]
        for token, here in zip(tokens, match.groups(), strict=True):
            if token[0] != here:
                (self._here if token.lastgroup == "id" else self._numbers)[token[0]] = here

    def close(self) -> None:
        for terminal in self._terminals.values():
            terminal.close()


def _replaced(text: str, names: Mapping[str, str]) -> str:
    """Put what things are called here in the place of what they are called on the page."""
    for there, here in names.items():
        text = text.replace(there, here)
    return text


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _steps(text: str) -> Iterator[tuple[str, str]]:
    """Yield what is typed and what is shown then; a block that begins with output has nothing typed before it."""
    typed, output = "", ""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("$ ") or line == "^C":
            if typed or output:
                yield typed, output
            typed, output = line.removeprefix("$ "), ""
            while typed.endswith("\\"):
                typed += "\n" + next(lines)
        else:
            output += line + "\n"
    yield typed, output
