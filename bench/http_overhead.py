"""What MCP costs over HTTP: claim_next then complete, against two bare routes with the same SQL.

Two servers run side by side, each a process of its own with the same pool, the same statements and
the same uvicorn settings: the gateway with everything on (authentication, session, rate limit, log
line), and a Starlette application of two routes that pass the body to the same ``call_tool`` and
return its answer. The client is a plain socket, so that it costs the same for both. Rounds take
turns (bare, MCP, bare, MCP, …), and the median of the rounds' ratios counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from statistics import median
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from bench.cluster import BenchError, cluster
from bench.product import install, make_login
from bench.report import Report, progress
from switchboard import serving
from switchboard.config import Settings
from switchboard.db import CALL_TOOL, Database

if TYPE_CHECKING:
    from starlette.requests import Request

    from bench.options import Options

CLIENTS = (1, 8)
ROUNDS = 7
SECONDS = 3.0
TARGET = 2.5
BACKLOG = 80_000
THOUSAND = """select count(*) from switchboard.create_todos(%s, (select jsonb_agg(
    jsonb_build_object(
    'queue', 'bench', 'title', 'Todo', 'payload', jsonb_build_object('number', n)))
    from generate_series(1, 1000) n))"""
VERSION = "2025-11-25"

Post = Callable[[str, bytes, dict[str, str]], Awaitable[tuple[dict[str, str], bytes]]]
Once = Callable[[], Awaitable[None]]
Cycle = Callable[[Post], Awaitable[Once]]


@dataclass(frozen=True)
class Grant:
    """The endpoint both servers serve."""

    slug: str
    credential: str


def measure(options: Options) -> bool:
    """Run the benchmark; returns whether the promise was kept."""
    with cluster(options.server or "15") as server:
        make_login(server)
        product = install(server)
        with server.connect(product.database) as admin:
            row = admin.execute(
                """select endpoint_id::text, credential from switchboard.vend_endpoint(
                       p_human_id => (select id from switchboard.humans where name = 'bench'),
                       p_slug => 'http', p_queues => array['bench'])"""
            ).fetchone()
            if row is None:
                raise BenchError("vend_endpoint returned no row")
            progress("loading todos")
            for _ in range((10_000 if options.quick else BACKLOG) // 1000):
                admin.execute(THOUSAND, [row[0]])
        product.settle()
        report = Report("http-overhead", options.quick)
        rounds = 2 if options.quick else ROUNDS
        seconds = options.seconds or (1.0 if options.quick else SECONDS)
        compare(report, server.url(product.database), Grant("http", str(row[1])), rounds, seconds)
        return report.close()


def compare(report: Report, url: str, grant: Grant, rounds: int, seconds: float) -> None:
    """Measure both servers on the database at ``url`` and add the figures to ``report``."""
    rows: list[list[str | int | float]] = []
    with running("gateway", url, grant) as gateway, running("bare", url, grant) as bare:
        for clients in CLIENTS:
            rates: dict[str, list[float]] = {"bare": [], "mcp": []}
            for turn in range(1, rounds + 1):
                rates["bare"].append(asyncio.run(load(bare, clients, seconds, bare_cycle)))
                rates["mcp"].append(asyncio.run(load(gateway, clients, seconds, mcp_cycle(grant))))
                shown = ", ".join(f"{name} {series[-1]:.0f}" for name, series in rates.items())
                progress(f"{clients} clients, round {turn} of {rounds}: {shown} cycles/s")
            pairs = zip(rates["bare"], rates["mcp"], strict=True)
            ratio = median(one / other for one, other in pairs)
            rows.append([clients, median(rates["bare"]), median(rates["mcp"]), ratio])
            report.at_most(f"cost of MCP at {clients} clients", ratio, TARGET)
    report.table("claim_next and complete over HTTP", ["clients", "bare", "mcp", "ratio"], rows)


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
        self, path: str, body: bytes, headers: dict[str, str]
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


async def bare_cycle(post: Post) -> Once:
    """Claim and complete on the bare routes."""
    kind = {"content-type": "application/json"}

    async def once() -> None:
        _, body = await post("/claim_next", b"{}", kind)
        todo = json.loads(body)["todo"]
        ticket = {"id": todo["id"], "lease_token": todo["lease_token"]}
        _, body = await post("/complete", json.dumps(ticket).encode(), kind)
        _done(json.loads(body))

    return once


def mcp_cycle(grant: Grant) -> Cycle:
    """The same over MCP, in a session of its own."""

    async def start(post: Post) -> Once:
        headers = {
            "authorization": f"Bearer {grant.credential}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        }
        number = 0

        async def send(method: str, params: Any, *, notify: bool = False) -> Any:
            nonlocal number
            number += 1
            message = {"jsonrpc": "2.0", "method": method, "params": params}
            if not notify:
                message["id"] = number
            path = f"/mcp/{grant.slug}"
            got, body = await post(path, json.dumps(message).encode(), headers)
            headers.setdefault("mcp-session-id", got.get("mcp-session-id", ""))
            return json.loads(body)["result"] if body else None

        client = {"name": "bench", "version": "1"}
        hello = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": client}
        await send("initialize", hello)
        headers["mcp-protocol-version"] = VERSION
        await send("notifications/initialized", {}, notify=True)

        async def once() -> None:
            claimed = await send("tools/call", {"name": "claim_next", "arguments": {}})
            todo = claimed["structuredContent"]["todo"]
            ticket = {"id": todo["id"], "lease_token": todo["lease_token"]}
            done = await send("tools/call", {"name": "complete", "arguments": ticket})
            _done(done["structuredContent"])

        return once

    return start


def _done(answer: dict[str, Any]) -> None:
    if answer.get("todo", {}).get("state") != "done":
        raise BenchError(f"complete answered {answer}")


@contextmanager
def running(kind: str, url: str, grant: Grant) -> Iterator[int]:
    """Run a server of this kind; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    environment = {
        **os.environ,
        "SWITCHBOARD_DATABASE_URL": url,
        "SWITCHBOARD_PORT": str(port),
        "SWITCHBOARD_MCP_RATE": "1000000",
        "SWITCHBOARD_MCP_BURST": "1000000",
        "BENCH_SLUG": grant.slug,
        "BENCH_CREDENTIAL": grant.credential,
    }
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", "bench.http_overhead", kind]
        process = subprocess.Popen(command, env=environment, stderr=log, stdout=log)
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


def bare(settings: Settings) -> Starlette:
    """Two routes over the same pool and statements, and nothing else."""
    database = Database(settings)
    key = os.environ["BENCH_SLUG"], sha256(os.environ["BENCH_CREDENTIAL"].encode()).digest()

    def route(tool: str) -> Route:
        async def answer(request: Request) -> Response:
            body = (await request.body()).decode()
            text = await database.value(CALL_TOOL, (*key, tool, body, "{}"))
            return Response(text, media_type="application/json")

        return Route(f"/{tool}", answer, methods=["POST"])

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await database.open()
        yield
        await database.close()

    return Starlette(routes=[route("claim_next"), route("complete")], lifespan=lifespan)


def main() -> None:
    """``gateway`` or ``bare``: be one of the servers."""
    settings = Settings.from_env()
    if sys.argv[1] == "gateway":
        serving.serve(settings, serving.bind(settings), lambda: None)
    else:
        uvicorn.run(
            bare(settings), port=settings.port, http="httptools", loop="uvloop",
            log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=1,
        )  # fmt: skip


if __name__ == "__main__":
    main()
