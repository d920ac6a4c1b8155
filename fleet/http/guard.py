"""What is let in: the right host, no page of another site, and, unless only this machine can ask, none without a token."""

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
    """`hosts`: the names, without port, that a request may call us by; `*` is any.

    `token` has all scopes; `stored_tokens`: those in the database are asked for where there is none. With neither of them
    everybody is let in. The host is looked at because of DNS rebinding: a page of any site could otherwise talk to a
    server on loopback.
    """

    token: str | None
    hosts: frozenset[str] = frozenset({ANY})
    stored_tokens: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", frozenset(map(str.lower, self.hosts)))
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise ConfigurationError(
                f"the API's token has {len(self.token)} characters; use {TOKEN_MIN} or more, all visible ASCII, such as "
                "what `python3 -c 'import secrets; print(secrets.token_urlsafe(32))'` prints"
            )

    @property
    def asks(self) -> bool:
        """Whether a token is asked for."""
        return self.stored_tokens or self.token is not None

    def admit(self, headers: Mapping[str, str]) -> None:
        """Raise Problem where a request comes from where none is answered. Its token is not looked at here."""
        host = headers.get("host", "")
        if ANY not in self.hosts and _name(host) not in self.hosts:
            raise Problem(421, "wrong_host", f"This server is not called {host!r}; see --allow-host.")
        origin = headers.get("origin")
        if origin is not None and _site(origin) != host.lower():
            raise Problem(403, "wrong_origin", "Pages of other sites may not ask here.")


def guard_for(address: str, token: str | None, hosts: Collection[str], *, stored_tokens: bool = False) -> Guard:
    """Return the guard of a server on this address. Raises ConfigurationError rather than be open to the network."""
    if not is_loopback(address):
        if token is None and not stored_tokens:
            raise ConfigurationError(
                f"{address} can be reached from other machines, and no token was given: set FLEET_API_TOKEN, or "
                "FLEET_API_TOKEN_FILE to a file that holds it, or ask for those of `fleet token create` by --stored-tokens, "
                "or listen on 127.0.0.1"
            )
        return Guard(token, frozenset(hosts or {ANY}), stored_tokens)
    ours = f"[{address}]" if ":" in address else address
    return Guard(token, LOOPBACK_NAMES | {ours, *hosts}, stored_tokens)


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
