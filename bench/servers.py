"""Two servers side by side, each a process of its own, and a client that costs the same for both.

The client is a plain socket. Rounds take turns, so that a machine that slows down slows both.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from bench.cluster import BenchError
from switchboard import serving
from switchboard.config import Settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

Post = Callable[[str, bytes, Mapping[str, str]], Awaitable[tuple[dict[str, str], bytes]]]
Once = Callable[[], Awaitable[None]]
Cycle = Callable[[Post], Awaitable[Once]]


async def load(port: int, clients: int, seconds: float, cycle: Cycle) -> float:
    """Cycles per second of ``clients`` connections."""

    async def work() -> int:
        async with Connection(port) as post:
            once = await cycle(post)
            count, end = 0, time.perf_counter() + seconds
            while time.perf_counter() < end:
                await once()
                count += 1
            return count

    return sum(await asyncio.gather(*(work() for _ in range(clients)))) / seconds


class Connection:
    """A kept-alive HTTP/1.1 connection; ``post`` answers headers and body, and insists on 200."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Post:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self._post

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def _post(
        self, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[dict[str, str], bytes]:
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\n{''.join(lines)}"
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        got = dict(line.lower().split(": ", 1) for line in answer[1:] if line)
        content = await self._reader.readexactly(int(got.get("content-length", 0)))
        if answer[0].split()[1] not in ("200", "202"):
            raise BenchError(f"{path}: {answer[0]} {content[:200]!r}")
        return got, content


@contextmanager
def running(module: str, kind: str, url: str, environment: Mapping[str, str]) -> Iterator[int]:
    """Run ``module`` as a server of this kind on the database at ``url``; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    settings = {"SWITCHBOARD_DATABASE_URL": url, "SWITCHBOARD_PORT": str(port)}
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", module, kind]
        process = subprocess.Popen(
            command, env={**os.environ, **settings, **environment}, stderr=log, stdout=log
        )
        try:
            if not _answers(port, process):
                log.seek(0)
                raise BenchError(f"the {kind} server did not start:\n{log.read().decode()[-2000:]}")
            yield port
        finally:
            process.terminate()
            process.wait(10)


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether the server takes connections within 20 seconds."""
    end = time.monotonic() + 20
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return True
    return False


def be(kind: str, bare: Callable[[Settings], ASGIApp]) -> None:
    """Be the server of this kind: the ``gateway``, or ``bare``, with the same uvicorn settings."""
    settings = Settings.from_env()
    if kind == "gateway":
        serving.serve(settings, serving.bind(settings), lambda: None)
        return
    uvicorn.run(
        bare(settings), port=settings.port, http="httptools", loop="uvloop",
        log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
