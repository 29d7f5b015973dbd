"""What a webhook costs: a signed 20 kB delivery, against the least that could store it.

Two servers run side by side, each a process of its own with the same pool and the same uvicorn
settings: the gateway with everything on (receiver, signature, rate, redacted headers, event, todo,
deduplication, counters, bell, log line), and a Starlette application of one route that checks the
same HMAC and inserts the body once as jsonb. Rounds take turns, and the median of their ratios
counts.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, LiteralString

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bench.cluster import BenchError, cluster
from bench.product import install, make_login
from bench.report import Report, progress
from bench.servers import Cycle, Once, Post, be, load, running
from switchboard.config import Settings
from switchboard.db import Database
from switchboard.secrets import Keyring, digest

if TYPE_CHECKING:
    from starlette.requests import Request

    from bench.options import Options

CLIENTS = 8
ROUNDS = 5
SECONDS = 5.0
TARGET = 0.5
BYTES = 20_000
SECRET = "the bench's signing secret"
TOKEN = "the-bench's-token"
KEY = bytes(range(32))
INSERT: LiteralString = "insert into public.bench_bodies (body) values (%s::jsonb) returning id"


def document() -> bytes:
    """About what a forge sends: many short fields, 20 kB of them."""
    files = [
        {"path": f"src/module_{number}.py", "sha": digest(str(number)).hex(), "changes": number}
        for number in range(150)
    ]
    payload = {
        "action": "opened",
        "repository": {"full_name": "acme/widgets", "private": False},
        "pull_request": {"number": 42, "title": "Widgets spin the wrong way", "files": files},
    }
    text = json.dumps(payload)
    payload["pull_request"] |= {"body": "word " * ((BYTES - len(text)) // 5)}  # type: ignore[operator]
    return json.dumps(payload).encode()


def measure(options: Options) -> bool:
    """Run the benchmark; returns whether the promise was kept."""
    with cluster(options.server or "15") as server:
        make_login(server)
        product = install(server)
        endpoint = product.vend("intake", ["bench"])
        with server.connect(product.database) as admin:
            admin.execute(
                "select switchboard.create_webhook(%s, 'github', 'bench', %s, %s)",
                [endpoint, Keyring([KEY]).seal(SECRET.encode()), digest(TOKEN)],
            )
            admin.execute(
                "create table public.bench_bodies (id bigserial primary key, body jsonb not null)"
            )
            admin.execute("grant insert, select on public.bench_bodies to public")
            admin.execute("grant usage on sequence public.bench_bodies_id_seq to public")
        report = Report("intake", options.quick)
        rounds = 2 if options.quick else ROUNDS
        seconds = options.seconds or (1.0 if options.quick else SECONDS)
        compare(report, server.url(product.database), rounds, seconds)
        return report.close()


def compare(report: Report, url: str, rounds: int, seconds: float) -> None:
    """Measure both servers on the database at ``url`` and add the figures to ``report``."""
    environment = {
        "SWITCHBOARD_SECRET_KEY": base64.b64encode(KEY).decode(),
        "SWITCHBOARD_WEBHOOK_RATE": "1000000",
        "SWITCHBOARD_WEBHOOK_BURST": "1000000",
    }
    rates: dict[str, list[float]] = {"bare": [], "gateway": []}
    body = document()
    with (
        running(__spec__.name, "gateway", url, environment) as gateway,
        running(__spec__.name, "bare", url, environment) as bare,
    ):
        for turn in range(rounds + 1):
            for kind, port in (("bare", bare), ("gateway", gateway)):
                length = seconds if turn else 1.0  # the first one only warms up
                rate = asyncio.run(load(port, CLIENTS, length, delivery_cycle(body, f"{turn}")))
                rates[kind] += [rate] if turn else []
            if turn:
                shown = ", ".join(f"{kind} {series[-1]:.0f}" for kind, series in rates.items())
                progress(f"round {turn} of {rounds}: {shown} deliveries/s")
    ratio = median(one / other for one, other in zip(rates["gateway"], rates["bare"], strict=True))
    row = [CLIENTS, len(body), median(rates["bare"]), median(rates["gateway"]), ratio]
    report.table("signed deliveries", ["clients", "bytes", "bare", "gateway", "share"], [row])
    report.at_least("share of the bare route's rate", ratio, TARGET)


def delivery_cycle(body: bytes, turn: str) -> Cycle:
    """Deliver ``body`` again and again, each time under another id."""
    numbers = itertools.count()

    async def start(post: Post) -> Once:
        headers = {
            "content-type": "application/json",
            "user-agent": "GitHub-Hookshot/bench",
            "x-github-event": "pull_request",
            "x-hub-signature-256": f"sha256={signature(body)}",
        }

        async def once() -> None:
            made = {**headers, "x-github-delivery": f"bench-{turn}-{next(numbers)}"}
            _, answer = await post(f"/webhooks/w/{TOKEN}", body, made)
            if json.loads(answer)["created"] != 1:
                raise BenchError(f"a delivery made no todo: {answer[:200]!r}")

        return once

    return start


def signature(body: bytes) -> str:
    """What GitHub would sign ``body`` with."""
    return hmac.digest(SECRET.encode(), body, hashlib.sha256).hex()


def bare(settings: Settings) -> Starlette:
    """One route that checks the signature and inserts the body, and nothing else."""
    database = Database(settings)

    async def receive(request: Request) -> Response:
        body = await request.body()
        given = request.headers.get("x-hub-signature-256", "")
        if not hmac.compare_digest(f"sha256={signature(body)}", given):
            return Response(status_code=401)
        number: Any = await database.value(INSERT, (body.decode(),))
        return JSONResponse({"created": 1, "id": number}, 202)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await database.open()
        yield
        await database.close()

    routes = [Route("/webhooks/w/{token}", receive, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan)


if __name__ == "__main__":
    be(sys.argv[1], bare)
