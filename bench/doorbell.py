"""How soon a bell rings: from the commit of a create to the callback of an MCP client.

The gateway, whoever creates and the clients are processes of their own on one machine. The clients
are the SDK's, two sessions to an endpoint, all in one process, and each todo is to ring exactly
once. The clock is the machine's; it starts when the create has returned, since the database sends
the note as it commits.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import httpx2
import psycopg
from mcp import Client
from mcp.client.extension import ClientExtension, NotificationBinding
from mcp.client.streamable_http import streamable_http_client
from pydantic import BaseModel

from bench.cluster import BenchError, cluster
from bench.product import install, make_login
from bench.report import Report, progress
from bench.servers import running
from switchboard import serving
from switchboard.config import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.cluster import Cluster
    from bench.options import Options

ENDPOINTS = 10
SESSIONS = 2  # of each
RATE = 200
SECONDS = 20.0
WARM_UP = 1.0
MEDIAN_MS = 5.0
LATE_MS = 50.0
VEND = """select endpoint_id::text, credential from switchboard.vend_endpoint(
    p_human_id => (select id from switchboard.humans where name = 'bench'),
    p_slug => %s, p_queues => array['bench'])"""
CREATE = "select id::text from switchboard.create_todo(%s, 'bench', %s)"


class Params(BaseModel):
    """What a bell says."""

    content: str


class Bells(ClientExtension):
    """Notes when a bell rang."""

    identifier = "org.example/bells"

    def __init__(self, rung: list[tuple[str, float]]) -> None:
        self._rung = rung

    def notifications(self) -> Sequence[NotificationBinding[Params]]:
        async def hear(params: Params) -> None:
            self._rung.append((params.content.rpartition(" ")[2], time.monotonic()))

        return [
            NotificationBinding(
                method="notifications/claude/channel", params_type=Params, handler=hear
            )
        ]


def measure(options: Options) -> bool:
    """Run the benchmark; returns whether the promises were kept."""
    seconds = options.seconds or (3.0 if options.quick else SECONDS)
    report = Report("doorbell", options.quick)
    with cluster(options.server or "15") as server:
        make_login(server)
        product = install(server)
        with server.connect(product.database) as admin:
            rows = [admin.execute(VEND, [f"e{number}"]).fetchone() for number in range(ENDPOINTS)]
        grants = [(str(row[0]), str(row[1])) for row in rows if row]
        url = server.url(product.database)
        with running(__spec__.name, "gateway", url, {}) as port:
            progress(f"{ENDPOINTS * SESSIONS} sessions, {RATE} todos/s for {seconds:.0f} s")
            made, rung = asyncio.run(ring(server, url, port, grants, seconds))
    judge(report, made, rung, seconds)
    return report.close()


async def ring(
    server: Cluster, url: str, port: int, grants: Sequence[tuple[str, str]], seconds: float
) -> tuple[dict[str, tuple[float, float]], list[tuple[str, float]]]:
    """When each todo was asked for and committed, and when a bell rang for which."""
    rung: list[tuple[str, float]] = []
    async with AsyncExitStack() as stack:
        for number, (_, credential) in enumerate(grants):
            headers = {"Authorization": f"Bearer {credential}"}
            for _ in range(SESSIONS):
                client = httpx2.AsyncClient(headers=headers, timeout=120)
                http = await stack.enter_async_context(client)
                address = f"http://127.0.0.1:{port}/mcp/e{number}"
                transport = streamable_http_client(address, http_client=http)
                await stack.enter_async_context(Client(transport, extensions=[Bells(rung)]))
        await asyncio.sleep(1)  # the streams are opened behind the clients' backs
        gc.collect()
        gc.freeze()  # a collection of this process would hold up the clients, and prove nothing
        command = [sys.executable, "-m", __spec__.name, "create", url, str(seconds + WARM_UP)]
        creator = await asyncio.create_subprocess_exec(
            *command, *(endpoint for endpoint, _ in grants), stdout=subprocess.PIPE
        )
        output, _ = await creator.communicate()
        if creator.returncode:
            raise BenchError("todos could not be created")
        made = json.loads(output)
        end = time.monotonic() + 10
        while len(rung) < len(made) and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return made, rung


def judge(
    report: Report,
    made: dict[str, tuple[float, float]],
    rung: list[tuple[str, float]],
    seconds: float,
) -> None:
    """Compare what was made with what rang."""
    wrong = Counter(name for name, _ in rung)
    wrong.subtract(dict.fromkeys(made, 1))
    if any(wrong.values()):
        raise BenchError(f"todos that did not ring exactly once: {+wrong or wrong}"[:500])
    begun = min(asked for asked, _ in made.values()) + WARM_UP
    counted = [(made[name], at) for name, at in rung if made[name][0] >= begun]
    from_commit = sorted(1000 * (at - committed) for (_, committed), at in counted)
    from_call = sorted(1000 * (at - asked) for (asked, _), at in counted)
    rows: list[list[str | float]] = []
    for name, times in (("commit", from_commit), ("call of create_todo", from_call)):
        parts = [times[int(len(times) * part)] for part in (0.5, 0.9, 0.99)]
        rows.append([name, len(times) / seconds, *parts, times[-1]])
    headers = ["from", "todos/s", "median ms", "90 %", "99 %", "longest"]
    report.table("to the client's callback", headers, rows)
    report.at_most("median from commit to callback, ms", float(rows[0][2]), MEDIAN_MS)
    report.at_most("99th percentile, ms", float(rows[0][4]), LATE_MS)


def create(url: str, seconds: float, endpoints: Sequence[str]) -> None:
    """Create todos at RATE; prints when each was asked for and committed."""
    made: dict[str, tuple[float, float]] = {}
    with psycopg.connect(url, autocommit=True) as connection:
        begun = time.monotonic()
        for number in range(int(seconds * RATE)):
            time.sleep(max(0.0, begun + number / RATE - time.monotonic()))
            asked = time.monotonic()
            connection.execute(CREATE, [endpoints[number % len(endpoints)], f"todo {number}"])
            made[str(number)] = asked, time.monotonic()
    print(json.dumps(made))


def main() -> None:
    """``gateway`` or ``create``: be one of the processes."""
    if sys.argv[1] == "create":
        create(sys.argv[2], float(sys.argv[3]), sys.argv[4:])
    else:
        settings = Settings.from_env()
        serving.serve(settings, serving.bind(settings), lambda: None)


if __name__ == "__main__":
    main()
