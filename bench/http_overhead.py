"""What MCP costs over HTTP: claim_next then complete, against two bare routes with the same SQL.

Two servers run side by side, each a process of its own with the same pool, the same statements and
the same uvicorn settings: the gateway with everything on (authentication, session, rate limit, log
line), and a Starlette application of two routes that pass the body to the same ``call_tool`` and
return its answer. Rounds take turns (bare, MCP, bare, MCP, …), and the median of the rounds' ratios
counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from statistics import median
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from bench.cluster import BenchError, cluster
from bench.product import install, make_login
from bench.report import Report, progress
from bench.servers import Cycle, Once, Post, be, load, running
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
    environment = {
        "SWITCHBOARD_MCP_RATE": "1000000",
        "SWITCHBOARD_MCP_BURST": "1000000",
        "BENCH_SLUG": grant.slug,
        "BENCH_CREDENTIAL": grant.credential,
    }
    with (
        running(__spec__.name, "gateway", url, environment) as gateway,
        running(__spec__.name, "bare", url, environment) as bare,
    ):
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


def bare(settings: Settings) -> Starlette:
    """Two routes over the same pool and statements, and nothing else."""
    database = Database(settings)
    key = os.environ["BENCH_SLUG"], sha256(os.environ["BENCH_CREDENTIAL"].encode()).digest()

    def route(tool: str) -> Route:
        async def answer(request: Request) -> Response:
            message = f'{{"params": {{"arguments": {(await request.body()).decode()}}}}}'
            text = await database.value(CALL_TOOL, (*key, tool, message, "{}"))
            return Response(text, media_type="application/json")

        return Route(f"/{tool}", answer, methods=["POST"])

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await database.open()
        yield
        await database.close()

    return Starlette(routes=[route("claim_next"), route("complete")], lifespan=lifespan)


if __name__ == "__main__":
    be(sys.argv[1], bare)
