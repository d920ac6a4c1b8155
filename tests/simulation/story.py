"""What happened, as lines to read: who took which step, and what came of it."""

from functools import lru_cache

from fleet.postgres import cancel, claim, dead_letter, expire, heartbeat, prune, reap, settle, submit
from fleet.postgres.database import Statement

_MODULES = (cancel, claim, dead_letter, expire, heartbeat, prune, reap, settle, submit)


class Story:
    """Numbered steps. What an actor learns stands behind its step, or, if others moved meanwhile, on a line of its own."""

    def __init__(self) -> None:
        self.steps = 0
        self._lines: list[tuple[str, str]] = []

    def step(self, who: str, what: str) -> None:
        self.steps += 1
        self._lines.append((who, f"{self.steps:2}. {who}: {what}"))

    def add(self, who: str, what: str) -> None:
        if self._lines and self._lines[-1][0] == who:
            before = self._lines[-1][1]
            self._lines[-1] = (who, f"{before}{', ' if ' → ' in before else ' → '}{what}")
        else:
            self._lines.append((who, f"    {who} → {what}"))

    def __str__(self) -> str:
        return "\n".join(line for _, line in self._lines)


@lru_cache(maxsize=1000)
def name_of(text: bytes) -> str:
    """What a statement is called in its file."""
    if text.startswith(b"-- "):
        return text.split(b"\n")[0].removeprefix(b"-- ").decode()
    for module in _MODULES:
        for name, value in vars(module).items():
            if isinstance(value, Statement) and value.native == text:
                return name.lower().replace("_", " ")
    return text.decode()[:60]
