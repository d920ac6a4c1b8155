"""The fleet of compose.yaml on this machine: `python deploy/stack.py up|roll|down`. Needs the standard library alone.

COMPOSE_PROJECT_NAME, COMPOSE_FILE and the variables of compose.yaml are obeyed, from the environment or deploy/.env;
FLEET_IMAGE names an image of your own.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).resolve().parent
PROMETHEUS = "prom/prometheus:v3.5.0"  # as in compose.yaml
PROMETHEUS_HERE = "fleet-prometheus"
PATIENCE_SECONDS = 300.0
LOOK_SECONDS = 0.5


class Unfit(Exception):
    """What keeps the stack from coming up, for people."""


def main(arguments: Sequence[str]) -> int:
    """Run one command; return the exit code."""
    commands = {"up": up, "roll": roll, "down": down}
    if len(arguments) != 1 or arguments[0] not in commands:
        say(f"usage: stack.py {'|'.join(commands)}")
        return 2
    read_variables(DEPLOY / ".env")
    os.environ.setdefault("COMPOSE_PROJECT_NAME", "fleet")
    os.environ.setdefault("COMPOSE_FILE", str(DEPLOY / "compose.yaml"))
    os.environ.setdefault("FLEET_SECRETS", str(DEPLOY / "secrets"))
    try:
        commands[arguments[0]]()
    except Unfit as error:
        say(str(error))
        return 1
    except subprocess.CalledProcessError as error:
        say(f"`{' '.join(error.cmd)}` ended with {error.returncode}{_words(error)}")
        return 1
    return 0


def up() -> None:
    """Make what is missing, start everything, wait until it is healthy, and say where it is."""
    compose = find_compose()
    folder = Path(os.environ["FLEET_SECRETS"])
    make_secrets(folder)
    if "FLEET_IMAGE" not in os.environ:
        build_image("fleet")
    os.environ.setdefault("PROMETHEUS_IMAGE", prometheus_image())
    say("Starting …")
    run([*compose, "up", "-d"])
    wait_until_healthy(compose)
    say_where(folder)


def roll() -> None:
    """Replace the workers by ones of the image as it is now, one after another; each drains first."""
    compose = find_compose()
    workers = containers(compose, "worker")
    for number, worker in enumerate(workers, start=1):
        say(f"Replacing worker {number} of {len(workers)} …")
        stop(worker)
        run([*compose, "up", "-d", "--no-deps", "--no-recreate", "worker"])
        wait_until_healthy(compose)


def stop(worker: dict[str, Any]) -> None:
    """Drain one worker and remove it. Raises Unfit where it had to be killed, so that the others go on working."""
    began = time.monotonic()
    run(["docker", "stop", worker["Id"]])  # SIGTERM, and the service's stop_grace_period
    (state,) = json.loads(run(["docker", "inspect", "--format", "[{{json .State}}]", worker["Id"]]))
    if state["ExitCode"] != 0:
        name, seconds = worker["Name"].lstrip("/"), time.monotonic() - began
        raise Unfit(f"{name} did not drain: it ended with {state['ExitCode']} after {seconds:.0f} s; see its log")
    run(["docker", "rm", worker["Id"]])


def down() -> None:
    """End everything. The data stays in its volumes."""
    run([*find_compose(), "--profile", "grafana", "down"])


def read_variables(path: Path) -> None:
    """Take the lines NAME=VALUE of a file, if it is there, for what the environment does not say."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        name, equals, value = line.partition("=")
        if equals and not name.startswith("#"):
            os.environ.setdefault(name.strip(), value.strip())


def find_compose() -> list[str]:
    """Return how Compose is called here: version 2 as a plug-in, else whatever is called docker-compose."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(command[0])
            and subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0
        ):
            return command
    raise Unfit("there is neither `docker compose` nor docker-compose 1.29 or later: install one of them")


def make_secrets(folder: Path) -> None:
    """Make those that are missing. Only this user enters the folder; in a container another user reads a file of it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name in ("postgres_password", "api_token", "grafana_password"):
        _write_once(folder / name, secrets.token_urlsafe(32))
    password = (folder / "postgres_password").read_text().strip()
    _write_once(folder / "database_url", f"postgresql://fleet:{password}@postgres:5432/fleet")


def _write_once(path: Path, value: str) -> None:
    if not path.exists():
        path.write_text(value + "\n")
        path.chmod(0o444)


def build_image(tag: str) -> None:
    """Build the image of this checkout: its wheels are made out here, by the Python version that it has, too."""
    say(f"Building the image {tag} …")
    with tempfile.TemporaryDirectory(prefix="fleet-image-") as name:
        shutil.copy(DEPLOY / "Dockerfile", name)
        run([sys.executable, "-m", "pip", "wheel", "-q", "--wheel-dir", f"{name}/wheels", str(DEPLOY.parent)])
        version = next(Path(name, "wheels").glob("pgfleet-*.whl")).name.split("-")[1]
        python = f"PYTHON={sys.version_info.major}.{sys.version_info.minor}"
        run(["docker", "build", "-q", "-t", tag, "--build-arg", python, "--build-arg", f"VERSION={version}", name])
    run(["docker", "image", "prune", "-f", "--filter", "label=org.pgfleet.image=build"])


def prometheus_image() -> str:
    """Return the name of an image of Prometheus: the official one, or one of Debian's package where it cannot be had."""
    for attempt in (
        ["image", "inspect", PROMETHEUS],
        ["pull", "-q", PROMETHEUS],
        ["image", "inspect", PROMETHEUS_HERE],
    ):
        if subprocess.run(["docker", *attempt], capture_output=True, check=False).returncode == 0:
            return attempt[-1]
    say(f"{PROMETHEUS} cannot be had: building {PROMETHEUS_HERE} out of Debian's package …")
    run(["docker", "build", "-q", "-t", PROMETHEUS_HERE, str(DEPLOY / "prometheus")])
    return PROMETHEUS_HERE


def containers(compose: Sequence[str], *services: str) -> list[dict[str, Any]]:
    """Return what the engine knows about the containers of these services, or of all, in the order of their names."""
    ids = run([*compose, "ps", "-a", "-q", *services]).split()
    found: list[dict[str, Any]] = json.loads(run(["docker", "inspect", *ids])) if ids else []
    kept = [each for each in found if each["Config"]["Labels"].get("com.docker.compose.oneoff") != "True"]
    return sorted(kept, key=lambda each: str(each["Name"]))


def wait_until_healthy(compose: Sequence[str]) -> None:
    """Return when every container that has a check passes it, and the migration has succeeded."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while unfit := [each["Name"].lstrip("/") for each in containers(compose) if not _is_fit(each["State"])]:
        if time.monotonic() > deadline:
            raise Unfit(f"not healthy after {PATIENCE_SECONDS:g} s: {', '.join(unfit)}; see `docker logs` of each")
        time.sleep(LOOK_SECONDS)


def _is_fit(state: dict[str, Any]) -> bool:
    if state["Status"] == "exited":
        return bool(state["ExitCode"] == 0)
    return bool(state["Status"] == "running" and state.get("Health", {"Status": "healthy"})["Status"] == "healthy")


def say_where(folder: Path) -> None:
    """Tell people what there is now."""
    api = f"http://127.0.0.1:{os.environ.get('FLEET_API_PORT', '8000')}"
    say(
        f"""
A fleet is up:

  API         {api}    (its token: {folder / "api_token"})
  Prometheus  http://127.0.0.1:{os.environ.get("PROMETHEUS_PORT", "9090")}

Try:

  curl {api}/tasks -H "Authorization: Bearer $(cat {folder / "api_token"})" \\
    -H 'Content-Type: application/json' -H 'Idempotency-Key: a' \\
    -d '{{"name": "analyze", "args": {{"text": "to be or not to be"}}}}'

`make roll` replaces the workers one after another, `make down` ends everything; the data stays."""
    )


def run(command: Sequence[str]) -> str:
    """Run a command and return what it prints. Raises CalledProcessError with its words."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _words(error: subprocess.CalledProcessError) -> str:
    words = f"{error.stdout or ''}{error.stderr or ''}".strip()
    return f":\n{words}" if words else ""


def say(words: str) -> None:
    """Say it to people: stdout is for data."""
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
