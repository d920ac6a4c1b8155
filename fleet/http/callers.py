"""Who asks: told by the token that came with the request, the environment's or a stored one.

What was found out is believed for CACHE_SECONDS: for so long a token that was revoked may still be used.
"""

import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fleet.http.api import Api
from fleet.http.guard import Guard
from fleet.http.problem import Problem, problem_of
from fleet.postgres import token
from fleet.tokens import Scope, hash_of, is_secret

CACHE_SECONDS = 5.0
CACHE_MAX = 1000  # tokens that are remembered, the unknown ones, too
_INVALID = 'Bearer error="invalid_token"'


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what they may; `name` is the actor in the history of what was done."""

    name: str
    scopes: frozenset[Scope]


ANYBODY = Caller("http", frozenset(Scope))  # where no token is asked for, or who has the environment's


class _Remembered(NamedTuple):
    caller: Caller | None
    until: float


class Callers:
    """Lets requests in: those that the guard admits, and whose caller may do what they ask for."""

    def __init__(self, api: Api, guard: Guard, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._guard = guard
        self._token = None if guard.token is None else guard.token.encode()
        self._clock = clock
        self._remembered: dict[bytes, _Remembered] = {}

    async def admit(self, headers: Mapping[str, str], scope: Scope | None) -> Caller:
        """Return who asks. Raises Problem where they may not do what needs this scope. None: everybody may."""
        self._guard.admit(headers)
        if scope is None or not self._guard.asks:
            return ANYBODY
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise _no_token("Send the header `Authorization: Bearer TOKEN`.", "Bearer")
        caller = await self._caller(given.strip())
        if caller is None:
            raise _no_token("The token is not known, was revoked, or has expired.", _INVALID)
        if scope not in caller.scopes:
            raise Problem(
                403, "insufficient_scope", f"This takes a token with the scope `{scope}`.", scope=scope,
                headers={"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'},
            )  # fmt: skip
        return caller

    async def _caller(self, given: str) -> Caller | None:
        if self._token is not None and hmac.compare_digest(given.encode(), self._token):
            return ANYBODY
        if not is_secret(given):
            return None
        hash_, now = hash_of(given), self._clock()
        known = self._remembered.get(hash_)
        if known is None or known.until <= now:
            known = await self._look_up(hash_, now)
            self._remember(hash_, known)
        return known.caller

    async def _look_up(self, hash_: bytes, now: float) -> _Remembered:
        try:
            found = await self._api.act(lambda connection: token.look_up(connection, hash_))
        except Exception as error:
            told = problem_of(error)
            if told is None:
                raise
            raise Problem(503, told.document.code, f"The token cannot be looked up. {told.document.detail}") from error
        if found is None:
            return _Remembered(None, now + CACHE_SECONDS)
        remaining = CACHE_SECONDS if found.remaining_seconds is None else found.remaining_seconds
        caller = Caller(found.name, frozenset(map(Scope, found.scopes)))
        return _Remembered(caller, now + min(CACHE_SECONDS, remaining))

    def _remember(self, hash_: bytes, known: _Remembered) -> None:
        self._remembered.pop(hash_, None)
        while len(self._remembered) >= CACHE_MAX:
            del self._remembered[next(iter(self._remembered))]  # the one that was looked up the longest ago
        self._remembered[hash_] = known


def _no_token(detail: str, challenge: str) -> Problem:
    return Problem(401, "no_token", detail, headers={"WWW-Authenticate": challenge})
