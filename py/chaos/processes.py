"""The processes of a run beside PostgreSQL: the server, and the clients with their histories."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

PACKAGES = str(Path(__file__).resolve().parents[1])  # py/
SECRET = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="  # noqa: S105 (of throw-away databases)


class Process:
    """A process that can be killed and started again; its output goes to a file."""

    command: list[str]
    environment: Mapping[str, str]

    def __init__(self, output: Path) -> None:
        self.output = output
        self.process: subprocess.Popen[bytes] | None = None
        self.wanted = False  # whether it should be running now
        self.deaths = 0  # how often it ended by itself
        self.ended: list[int] = []  # when it was gone that was ended, in monotonic nanoseconds

    def start(self) -> None:
        """Start it, unless it runs."""
        self.note_death()
        self.wanted = True
        if self.runs:
            return
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                self.command, env={**os.environ, **self.environment}, stdout=output, stderr=output,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def note_death(self) -> None:
        """Count it when it should be running, and does not."""
        if self.wanted and not self.runs:
            self.deaths += 1
            self.wanted = False

    @property
    def runs(self) -> bool:
        """Whether it is there, stopped ones included."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id; 0 before its first start."""
        return self.process.pid if self.process else 0

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.note_death()
        self.wanted, ran = False, self.runs
        self._send(signal.SIGKILL)
        if self.process:
            self.process.wait(30)
        if ran:
            self.ended.append(time.monotonic_ns())

    def end(self, seconds: float = 10.0) -> None:
        """SIGTERM, and SIGKILL when that does not help within ``seconds``."""
        self.note_death()
        self.wanted, ran = False, self.runs
        self._send(signal.SIGCONT)
        self._send(signal.SIGTERM)
        if self.process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
                if ran:
                    self.ended.append(time.monotonic_ns())
                return
            self.kill()

    def stop_signal(self) -> None:
        """SIGSTOP: it stands still."""
        self._send(signal.SIGSTOP)

    def cont_signal(self) -> None:
        """SIGCONT: it goes on."""
        self._send(signal.SIGCONT)

    def last_words(self) -> str:
        """The end of its output."""
        lines = self.output.read_text(errors="replace").splitlines() if self.output.exists() else []
        return "\n".join(lines[-12:])

    def _send(self, number: int) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


class Client(Process):
    """A worker or a producer.

    Args:
        folder: of the run; the history is ``<name>.jsonl`` in it.
        name: of the client, and of whom its claims are held by.
        kind: what ``chaos.client`` is to be.
        options: what it is told at its next start; may be changed between two.
    """

    environment: Mapping[str, str] = {"PYTHONPATH": PACKAGES}

    def __init__(self, folder: Path, name: str, kind: str, options: dict[str, Any]) -> None:
        super().__init__(folder / f"{name}.log")
        self.name, self.kind, self.options = name, kind, options
        self.history = folder / f"{name}.jsonl"
        self._before = 0  # bytes of the history when it was started

    def start(self) -> None:
        """Start it, unless it runs."""
        if not self.runs:
            self._before = self.size
        super().start()

    @property
    def acts(self) -> bool:
        """Whether it has made a call since it was started: a process takes a while to get there."""
        return self.runs and self.history.exists() and b'"op":' in self._since()

    @property
    def size(self) -> int:
        """Bytes of its history."""
        return self.history.stat().st_size if self.history.exists() else 0

    def ended_a_call(self, size: int, way: bytes = b'"end":') -> bool:
        """Whether it wrote the end of a call after its history had this size.

        Args:
            size: from ``size``.
            way: how the end of a call begins; with ``"end":"ok"`` only one that was acknowledged.
        """
        with self.history.open("rb") as file:
            file.seek(size)
            return way in file.read()

    def _since(self) -> bytes:
        with self.history.open("rb") as file:
            file.seek(self._before)
            return file.read(1000)

    @property
    def command(self) -> list[str]:  # type: ignore[override]
        """The command line of its next start."""
        told = json.dumps(self.options)
        return [sys.executable, "-m", "chaos.client", self.kind, str(self.history), told]


class Server(Process):
    """``switchboard serve``, always on the same port.

    Args:
        folder: of the run.
        settings: over those of a run, without ``SWITCHBOARD_``; values become text.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        super().__init__(folder / "server.log")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        rates = dict.fromkeys(("MCP_RATE", "MCP_BURST", "WEBHOOK_RATE", "WEBHOOK_BURST"), "100000")
        self.settings: dict[str, Any] = {
            "PORT": self.port, "SECRET_KEY": SECRET, "DATA": "none", "TICK_INTERVAL": 1,
            "LOG_LEVEL": "info", "POOL_SIZE": 5, **rates, **settings,
        }  # fmt: skip
        self.command = [sys.executable, "-m", "switchboard", "serve"]

    @property
    def environment(self) -> Mapping[str, str]:  # type: ignore[override]
        """Of its next start: ``settings`` may be changed between two."""
        own = {f"SWITCHBOARD_{name}": str(value) for name, value in self.settings.items()}
        return {"PYTHONPATH": PACKAGES, **own}

    def is_ready(self) -> bool:
        """Whether it answers, reaches the database, and listens."""
        try:
            answer = httpx2.get(f"{self.url}/readyz", timeout=5).json()
        except (httpx2.HTTPError, ValueError):
            return False
        return bool((answer["status"], answer["listener"]) == ("ready", "listening"))

    def wait_ready(self, seconds: float = 180.0) -> None:
        """Return when it is.

        Raises:
            TimeoutError: it is not within ``seconds``.
        """
        end = time.monotonic() + seconds
        while not self.is_ready():
            if not self.runs or time.monotonic() > end:
                raise TimeoutError(f"the server is not ready:\n{self.last_words()}")
            time.sleep(0.1)


def free_port() -> int:
    """A TCP port of loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
