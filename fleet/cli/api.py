"""`fleet api`: serve the HTTP API."""

import errno
import os
import socket
from collections.abc import Sequence

import click

from fleet.cli.application import load_app
from fleet.cli.failures import ExitCode, Refused
from fleet.cli.options import database_option, log_options
from fleet.cli.session import open_app
from fleet.config import secret
from fleet.errors import ConfigurationError

_BACKLOG = 2048


@click.group()
def api() -> None:
    """Serve the HTTP API."""


@api.command()
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any that is free.")
@click.option("--fd", type=click.IntRange(3), hidden=True, help="A socket that listens already, in place of both.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Answer to this Host, too; * is any.")
@click.option("--stored-tokens", is_flag=True, help="Ask for a token that `fleet token create` made.")
@click.option("--allow-unknown", is_flag=True, help="Take tasks and queues that this app does not have.")
@log_options
@database_option
def run(
    *,
    app: str | None,
    host: str,
    port: int,
    fd: int | None,
    hosts: Sequence[str],
    stored_tokens: bool,
    allow_unknown: bool,
    log: str | None,
    log_level: str,
    database_url: str | None,
) -> None:
    """Serve the tasks of MODULE:APP (default: FLEET_APP) over HTTP until a signal, which lets running requests end.

    Whoever can reach the address must show a token as `Authorization: Bearer TOKEN`: the one of FLEET_API_TOKEN, or of
    the file that FLEET_API_TOKEN_FILE names, which may do everything, or one of `fleet token create`, which may do what
    its scopes say. Only on a loopback address none is asked for, unless there is FLEET_API_TOKEN or --stored-tokens.
    """
    from fleet import logs
    from fleet.events import Events
    from fleet.http.guard import guard_for
    from fleet.http.server import serve
    from fleet.postgres import migrate

    fleet = load_app(app)
    database = open_app(fleet, database_url)
    with listen(host, port) if fd is None else socket.socket(fileno=fd) as listening:
        token = secret(os.environ, "FLEET_API_TOKEN")
        guard = guard_for(listening.getsockname()[0], token, hosts, stored_tokens=stored_tokens)
        migrate.check(database)
        events = Events()
        logs.configure(log, log_level)
        logs.subscribe(events)
        serve(fleet, guard, listening, events, allow_unknown=allow_unknown)


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """Return a socket that listens there. Raises Refused where somebody else does, or where it cannot be."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except socket.gaierror as error:
        raise ConfigurationError(f"there is no address {host!r}: {error.strerror}") from None
    except OSError as error:
        why = (os.strerror(error.errno) if error.errno else str(error)).lower()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            words = f"port {port} on {host} cannot be had: {why}. Choose another with {option}, or end what has it."
            raise Refused(words, ExitCode.CONFLICT) from None
        raise ConfigurationError(f"cannot listen on {host}: {why}") from None
