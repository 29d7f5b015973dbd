"""docker-compose.yml from nothing, under a name and on ports of its own: for test_stack.py."""

import json
import os
import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yml"
# A signal for a process of this machine, from a container that sees them all, as the user that they
# run as: `docker kill` would do, but what somebody stops by hand is not started again.
KILL = ["run", "--rm", "--pid=host", "--network=none", "--user=999:999", "--entrypoint=kill"]


def programs() -> list[list[str]]:
    """Compose v2 and docker-compose 1.29, as far as they are here."""
    found = []
    if shutil.which("docker"):
        asked = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        if asked.returncode == 0:
            found.append(["docker", "compose"])
    if shutil.which("docker-compose"):
        found.append(["docker-compose"])
    return found


def docker(*words: str) -> str:
    """Run a command of Docker; its output."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


class Stack:
    """All services; call it with a command of Compose.

    Arguments:
        program: what to call, one of ``programs()``.
        folder: for a file that is laid over docker-compose.yml.
        environment: more of it for the server, by variable.
    """

    def __init__(self, program: list[str], folder: Path, **environment: str) -> None:
        self.program = program
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            two.bind(("127.0.0.1", 0))
            self.port, self.database_port = one.getsockname()[1], two.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {
            **os.environ,
            "SWITCHBOARD_PORT": str(self.port),
            "SWITCHBOARD_DATABASE_PORT": str(self.database_port),
        }
        over: dict[str, Any] = {"server": {"environment": environment}}
        if network := os.environ.get("SWITCHBOARD_TEST_BUILD_NETWORK"):
            for name in yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"]:
                over.setdefault(name, {})["build"] = {"network": network}
        (folder / "over.yml").write_text(json.dumps({"services": over}))
        self.files = ["-f", str(FILE), "-f", str(folder / "over.yml")]
        self.project = f"sbtest{os.getpid()}"

    def __call__(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            [*self.program, *self.files, "-p", self.project, *words],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def psql(self, query: str) -> str:
        """The superuser's answer, by the socket."""
        command = ["exec", "-T", "database", "psql", "-XAtq", "switchboard", "-c", query]
        return self(*command).strip()

    def readyz(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def is_ready(self) -> bool:
        try:
            answer = self.readyz()
        except OSError:
            return False
        return (answer["status"], answer["listener"]) == ("ready", "listening")

    def container(self, service: str, what: str) -> str:
        """A fact of the service's container: a template of `docker inspect`."""
        return docker("inspect", "--format", what, self("ps", "-q", service).strip())

    def pid(self, service: str) -> str:
        return self.container(service, "{{.State.Pid}}")

    def kill(self, *services: str) -> dict[str, str]:
        """kill -9 of the first process of each, at once; which ones they were, by service."""
        old = {service: self.pid(service) for service in services}
        image = self.container("database", "{{.Image}}")
        docker(*KILL, image, "-9", *old.values())
        return old
