"""Every setting of a fleet: its default, its bounds, and where it is read from.

All periods follow from the lease's TTL unless they are given; TTL 30 s makes the documented defaults.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from fleet.errors import ConfigurationError
from fleet.redaction import redacted

FROM_TTL = timedelta(microseconds=-1)
POLL_MAX = timedelta(seconds=10)  # the wake-up trigger announces tasks that are due within this time
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one process. Raises ConfigurationError naming the rule that does not hold."""

    ttl: timedelta = timedelta(seconds=30)  # a lease that is not renewed for so long is over
    renew_every: timedelta = FROM_TTL  # ttl / 6: the heartbeat
    reap_every: timedelta = FROM_TTL  # ttl / 6: how often a worker looks after the others
    margin: timedelta = FROM_TTL  # ttl / 5: so much sooner than the database does the holder give up
    drain_timeout: timedelta = FROM_TTL  # ttl: how long a drain waits for running handlers
    stall_limit: timedelta = FROM_TTL  # 10 ttl: an event loop that stands still for so long is given up
    poll: timedelta = FROM_TTL  # ttl / 30, at most 1 s: how often to look for work while no notifications come in
    poll_listening: timedelta = FROM_TTL  # ttl / 6, at most 5 s: while they do
    backoff_base: timedelta = FROM_TTL  # ttl / 30: the wait before the first retry; it doubles
    backoff_cap: timedelta = FROM_TTL  # 20 ttl: and grows so far
    statement_timeout: timedelta = FROM_TTL  # ttl / 3, at most 10 s
    lock_timeout: timedelta = FROM_TTL  # ttl / 15, at most 2 s
    slots: int = 64  # handlers at once in one process
    args_bytes_max: int = 1024 * 1024  # the arguments of one task, as JSON
    result_bytes_max: int = 1024 * 1024  # what a handler returns, as JSON
    error_bytes_max: int = 16 * 1024  # the text of an error; a longer one is cut in the middle
    retention: timedelta = timedelta(days=7)  # how long a finished task is kept
    prepared_statements: bool = True  # off: for a pooler in transaction mode that does not know them
    tracing: bool = False  # on: OpenTelemetry spans for submissions and attempts; needs the extra `otel`
    _derived: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        second = timedelta(seconds=1)
        derived = {
            "renew_every": self.ttl / 6,
            "reap_every": self.ttl / 6,
            "margin": self.ttl / 5,
            "drain_timeout": self.ttl,
            "stall_limit": self.ttl * 10,
            "poll": min(self.ttl / 30, second),
            "poll_listening": min(self.ttl / 6, 5 * second),
            "backoff_base": self.ttl / 30,
            "backoff_cap": self.ttl * 20,
            "statement_timeout": min(self.ttl / 3, 10 * second),
            "lock_timeout": min(self.ttl / 15, 2 * second),
        }
        left_open = frozenset(name for name in derived if getattr(self, name) == FROM_TTL)
        for name in left_open:
            object.__setattr__(self, name, derived[name])
        object.__setattr__(self, "_derived", left_open)
        self._check()

    def _check(self) -> None:
        zero, second = timedelta(0), timedelta(seconds=1)
        rules = {
            "ttl >= 1s": self.ttl >= second,
            "renew_every > 0": self.renew_every > zero,
            "margin > 0": self.margin > zero,
            "3 * renew_every <= ttl - margin": 3 * self.renew_every <= self.ttl - self.margin,
            "reap_every > 0": self.reap_every > zero,
            "3 * reap_every <= ttl": 3 * self.reap_every <= self.ttl,
            "drain_timeout >= 0": self.drain_timeout >= zero,
            "stall_limit > renew_every": self.stall_limit > self.renew_every,
            "0 < poll <= poll_listening": zero < self.poll <= self.poll_listening,
            "poll_listening <= 10s": self.poll_listening <= POLL_MAX,
            "0 < backoff_base <= backoff_cap": zero < self.backoff_base <= self.backoff_cap,
            "0 < lock_timeout < statement_timeout": zero < self.lock_timeout < self.statement_timeout,
            "statement_timeout < ttl": self.statement_timeout < self.ttl,
            "1 <= slots <= 10000": 1 <= self.slots <= 10_000,
            "args_bytes_max > 0": self.args_bytes_max > 0,
            "result_bytes_max > 0": self.result_bytes_max > 0,
            "error_bytes_max >= 256": self.error_bytes_max >= 256,
            "retention >= 1h": self.retention >= timedelta(hours=1),
        }
        for rule, holds in rules.items():
            if not holds:
                raise ConfigurationError(f"{rule} does not hold: {self._facts(rule)}")

    def _facts(self, rule: str) -> str:
        words = rule.replace("*", " ").split()
        return ", ".join(
            f"{each.name} is {_plain(getattr(self, each.name))}" for each in fields(self) if each.name in words
        )

    def changed(self, **given: Any) -> "Settings":
        """Return these settings with what is given (and not None); what followed from the TTL follows from the new one."""
        kept = {
            each.name: getattr(self, each.name) for each in fields(self) if each.init and each.name not in self._derived
        }
        return Settings(**kept | {name: value for name, value in given.items() if value is not None})

    def overridden(self, environ: Mapping[str, str], **given: Any) -> "Settings":
        """Return these settings with what the environment names, and before that with what is given (and not None)."""
        return self.changed(**_named(environ, given))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], **given: Any) -> "Settings":
        """Read `FLEET_TTL=30s`, `FLEET_SLOTS=64` and so on; what is `given` (and not None) goes before.

        Durations are seconds, or a number with ms, s, m, h or d.
        """
        return cls(**_named(environ, given))


def _named(environ: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in given.items() if value is not None}
    for each in fields(Settings):
        variable = f"FLEET_{each.name.upper()}"
        text = environ.get(variable) if each.init else None
        if text is not None and each.name not in values:
            values[each.name] = _READERS[each.type](text, variable)
    return values


def duration(text: str, what: str = "duration") -> timedelta:
    """Read `30`, `30s`, `500ms`, `5m`, `2h` or `7d`. Raises ConfigurationError naming `what`."""
    number = text.strip().rstrip("smhd")
    unit = text.strip()[len(number) :] or "s"
    try:
        return timedelta(seconds=float(number) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise ConfigurationError(f"{what} is {text!r}; write seconds, or a number with ms, s, m, h or d") from None


def _whole(text: str, variable: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{variable} is {text!r}; write a whole number") from None


def _switch(text: str, variable: str) -> bool:
    if text.strip().lower() not in ("on", "off"):
        raise ConfigurationError(f"{variable} is {text!r}; write on or off")
    return text.strip().lower() == "on"


_READERS: dict[Any, Callable[[str, str], object]] = {int: _whole, bool: _switch, timedelta: duration}


def _plain(value: object) -> str:
    return f"{value.total_seconds():g}s" if isinstance(value, timedelta) else str(value)


def database_url(environ: Mapping[str, str], given: str | None = None, otherwise: str | None = None) -> str | None:
    """Return the database to use: `given`, else FLEET_DATABASE_URL or the file named by FLEET_DATABASE_URL_FILE.

    Where none of them names one it is `otherwise`, and then libpq's own PG* variables: an empty string. None means that
    nobody has named one.
    """
    url = given or secret(environ, "FLEET_DATABASE_URL")
    if url:
        return url
    if otherwise:
        return otherwise
    named = any(environ.get(variable) for variable in ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE"))
    return "" if named else None


def listen_url(environ: Mapping[str, str]) -> str | None:
    """Return FLEET_LISTEN_URL, or what its file holds: a way to the same database that notifications take, too."""
    return secret(environ, "FLEET_LISTEN_URL")


def secret(environ: Mapping[str, str], variable: str) -> str | None:
    """Return what the variable holds, else what the file holds that `VARIABLE_FILE` names; None where neither is set."""
    value = environ.get(variable)
    path = environ.get(f"{variable}_FILE")
    if value or not path:
        return value or None
    try:
        value = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        words = f"{variable}_FILE names {redacted(path)}, which cannot be read: {why}"
        raise ConfigurationError(words) from None
    if not value:
        raise ConfigurationError(f"{variable}_FILE names {path}, which is empty")
    return value
