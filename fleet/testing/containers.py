"""The driver of replicas that are containers, on the network that the container of the database is on.

The engine must share this machine's file system: code, sockets and histories are mounted. Wants the extra `testing`.
"""

import importlib.util
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from fleet.errors import ConfigurationError
from fleet.testing.driver import Program
from fleet.testing.image import image
from fleet.testing.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

_CODE = "/code"  # where the user's code is mounted
_PATHS = ("FLEET_SINK", "FLEET_FAULTPOINTS", "FLEET_HISTORY")  # what names a path that a replica must see
_SIGNALLED = 128


class ContainerReplica:
    """`fleet worker run` as the first process of a container."""

    def __init__(self, name: str, program: Program, place: "Place") -> None:
        self.name = name
        self._program = program
        self._place = place
        self._made: DockerContainer | None = None
        self._reachable = True

    @property
    def pid(self) -> int:
        return int(self._state()["Pid"])

    @property
    def ended(self) -> int | None:
        state = self._state()
        if state["Status"] not in ("exited", "dead"):
            return None
        code = int(state["ExitCode"])
        return code if code <= _SIGNALLED else _SIGNALLED - code

    def start(self) -> None:
        if self._made is None:
            self._made = self._make()
            self._made.start()
        else:
            self._container.start()

    def signal(self, number: Signals) -> None:
        if number == signal.SIGKILL and self._state()["Paused"]:
            self.resume()  # the engine refuses to kill what is frozen; it runs on for a moment
        self._container.kill(signal=number.name)

    def pause(self) -> None:
        self._container.pause()

    def resume(self) -> None:
        self._container.unpause()

    def partition(self) -> None:
        """Take its network away: it has no interface left but its loopback."""
        self._place.network.disconnect(self._container)
        self._reachable = False

    def heal(self) -> None:
        if not self._reachable:
            self._place.network.connect(self._container)
            self._reachable = True

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        until(lambda: self.ended is not None, f"the end of {self.name}", seconds)
        return self.ended or 0

    def log(self) -> str:
        return self._container.logs().decode(errors="replace") if self._made is not None else ""

    def close(self) -> None:
        if self._made is not None and self._made._container is not None:  # noqa: SLF001 - there is no public way
            self._container.remove(force=True, v=True)

    @property
    def _container(self) -> Any:  # docker's own, which has no types
        if self._made is None:
            raise RuntimeError(f"{self.name} has not been started")
        return self._made.get_wrapped_container()

    def _state(self) -> dict[str, Any]:
        container = self._container
        container.reload()
        state: dict[str, Any] = container.attrs["State"]
        return state

    def _make(self) -> "DockerContainer":
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - an extra

        folder = _folder_of(self._program.app)
        command = ["worker", "run", self._program.app, f"--name={self.name}"]
        made = DockerContainer(image(), name=self.name).with_command(command)
        made.with_kwargs(working_dir=_CODE, network=self._place.network.name)
        made.with_volume_mapping(str(folder), _CODE, "ro")
        for path in _shared_folders(self._program.environment):
            made.with_volume_mapping(str(path), str(path), "rw")
        made.with_envs(**self._program.environment, FLEET_DATABASE_URL=self._place.database_url)
        return made


class Place(NamedTuple):
    """Where replicas live: the network of the database's container, which is docker's own, and the URL that holds there."""

    network: Any
    database_url: str


@contextmanager
def container_driver() -> Iterator[Callable[[str, Program], ContainerReplica]]:
    """Lend what makes replicas, all on the first network that the database's container is on."""
    from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415 - an extra

    client = DockerClient().client
    try:
        yield lambda name, program: ContainerReplica(name, program, _place(client, program.database_url))
    finally:
        client.close()


def _place(client: Any, database_url: str) -> Place:
    container, port = _container_of(client, database_url)
    name, found = next(iter(container.attrs["NetworkSettings"]["Networks"].items()))
    parts = urlsplit(database_url)
    user, at, _ = parts.netloc.rpartition("@")
    return Place(client.networks.get(name), parts._replace(netloc=f"{user}{at}{found['IPAddress']}:{port}").geturl())


def _container_of(client: Any, database_url: str) -> tuple[Any, int]:
    """Return the container that publishes the port of this URL, and its own port."""
    wanted = str(urlsplit(database_url).port or 5432)
    for container in client.containers.list():
        for inner, outer in container.ports.items():
            if any(binding["HostPort"] == wanted for binding in outer or ()):
                return container, int(inner.partition("/")[0])
    raise ConfigurationError(
        f"no container publishes port {wanted}: replicas in containers need a PostgreSQL that runs in one too "
        "(testcontainers.community.postgres.PostgresContainer, for example), and its URL as this machine sees it"
    )


def _folder_of(app: str) -> Path:
    """Return the folder that holds the user's outermost package or module: what its imports begin at."""
    top = app.partition(":")[0].partition(".")[0]
    spec = importlib.util.find_spec(top)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    origin = spec.origin if spec is not None else None
    if not places and not origin:
        raise ConfigurationError(f"there is no module {top!r} to be mounted into the containers")
    return Path(places[0] if places else str(origin)).parent.absolute()


def _shared_folders(environment: Mapping[str, str]) -> set[Path]:
    """Return the folders that the environment names, open to the user of the image, who is another one than we are."""
    found = set()
    for variable in _PATHS:
        path = Path(environment.get(variable, "").removeprefix("unix:").partition("=")[0])
        if not path.is_absolute():
            continue
        if path.is_socket():
            path.chmod(0o777)
            path = path.parent
            path.chmod(0o755)
        elif path.is_dir():
            path.chmod(0o777)
        found.add(path)
    return found
