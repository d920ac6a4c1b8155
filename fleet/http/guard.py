"""Who is let in: the right host, no page of another site, and, unless only this machine can ask, the right token."""

import hmac
import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from fleet.errors import ConfigurationError
from fleet.http.problem import Problem

TOKEN_MIN = 16
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
ANY = "*"
_TOKEN = re.compile(rf"[!-~]{{{TOKEN_MIN},}}")


@dataclass(frozen=True, slots=True)
class Guard:
    """`token`: None lets everybody in. `hosts`: the names, without port, that a request may call us by; `*` is any.

    The host is looked at because of DNS rebinding: a page of any site could otherwise talk to a server on loopback.
    """

    token: str | None
    hosts: frozenset[str] = frozenset({ANY})

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", frozenset(map(str.lower, self.hosts)))
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise ConfigurationError(
                f"the API's token has {len(self.token)} characters; use {TOKEN_MIN} or more, all visible ASCII, such as "
                "what `python3 -c 'import secrets; print(secrets.token_urlsafe(32))'` prints"
            )

    def admit(self, headers: Mapping[str, str], *, open_to_all: bool) -> None:
        """Raise Problem where this request must not be answered. `open_to_all`: it needs no token."""
        host = headers.get("host", "")
        if ANY not in self.hosts and _name(host) not in self.hosts:
            raise Problem(421, "wrong_host", f"This server is not called {host!r}; see --allow-host.")
        origin = headers.get("origin")
        if origin is not None and _site(origin) != host.lower():
            raise Problem(403, "wrong_origin", "Pages of other sites may not ask here.")
        if self.token is not None and not open_to_all:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
                detail = (
                    "Send the header `Authorization: Bearer TOKEN`, with the token that this server was started with."
                )
                raise Problem(401, "no_token", detail, headers={"WWW-Authenticate": "Bearer"})


def guard_for(address: str, token: str | None, hosts: Collection[str]) -> Guard:
    """Return the guard of a server on this address. Raises ConfigurationError rather than be open to the network."""
    if not is_loopback(address):
        if token is None:
            raise ConfigurationError(
                f"{address} can be reached from other machines, and no token was given: set FLEET_API_TOKEN, or "
                "FLEET_API_TOKEN_FILE to a file that holds it, or listen on 127.0.0.1"
            )
        return Guard(token, frozenset(hosts or {ANY}))
    ours = f"[{address}]" if ":" in address else address
    return Guard(token, LOOPBACK_NAMES | {ours, *hosts})


def is_loopback(address: str) -> bool:
    """Tell whether only this machine can reach the address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def _site(origin: str) -> str | None:
    """Return host and port of an Origin header; None where it names no site, as `null` does."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:  # an address in brackets that are not closed
        return None


def _name(host: str) -> str:
    """Return a Host header without its port."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()
