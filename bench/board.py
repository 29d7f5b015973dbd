"""What the board costs: pages over five million todos, and a hundred who watch while work goes on.

The pages, the lists of the REST interface, the search and the metrics are asked for one after
another over HTTP, by a human who owns five endpoints with six queues each, of which one endpoint
holds half of the todos, nearly all of them ended; the median of each counts, as does that of the
statements that walk what has ended: lists, counts and a batch of pruning. Then claims run as fast
as they can, four clients, in turns with nobody watching and with a hundred viewers: streams of the
exchange, of a filtered one and of the list of endpoints, read by a process of their own. What they
slow down, and how soon they see a change, is what counts.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx2
import psycopg

from bench.cluster import BenchError, Cluster, cluster
from bench.cycle import ratio
from bench.pgbench import run
from bench.product import Product, install, make_login
from bench.report import Report, progress
from bench.servers import running
from switchboard import serving
from switchboard.config import Settings

if TYPE_CHECKING:
    from bench.options import Options

TODOS = 5_000_000
SLUGS = ("forge", "mail", "nightly", "review", "triage")
QUEUES = ("build", "deploy", "inbox", "lint", "report", "test")
TIMES = 15
WARM_UP = 20
MEDIAN_MS = 100.0
VIEWERS = 100
CLIENTS = 4
SHARE = 0.9
FRESH_MS = 1500.0
METRICS_TOKEN = "the-bench's-own-metrics-token-of-some-length"
WATCHED = ("page=exchange", "page=exchange&state=connected", "page=endpoints")
DEAD = """with dead as (select endpoint_id, id, (row_number() over (order by id)) as n
                          from switchboard.todos where state = 'done' and random() < %s)
    update switchboard.todos t
       set state = 'failed', attempt = 5, max_attempts = 5, idempotency_key = 'bench-key-' || d.n
      from dead d where t.endpoint_id = d.endpoint_id and t.id = d.id"""
ATTEMPTS = """insert into switchboard.todo_attempts
        (endpoint_id, todo_id, seq, attempt, claimed_at, ended_at, queue, owner, outcome, state)
    select endpoint_id, id, 1, 1, claimed_at, completed_at, queue, 'agent:bench',
           case state when 'done' then 'done' else 'failed' end, state::text
      from switchboard.todos where completed_at is not null"""
EVENTS = """insert into switchboard.events
        (endpoint_id, id, todo_id, webhook_id, source_type, queue, delivery_id, event_type,
         content_type, trust_mode, headers, body, received_at)
    select t.endpoint_id, t.id, t.id, w.id, 'generic', t.queue, 'delivery-' || t.id, 'push',
           'application/json', 'token', '{"user-agent": "bench"}',
           convert_to(t.payload::text, 'UTF8'), t.created_at
      from switchboard.todos t join switchboard.endpoint_webhooks w using (endpoint_id)
     where t.state = 'done' and random() < %s"""
BUDGET = (
    '{"max_in_flight": 500, "max_claims_per_window": 100000,'
    ' "window": {"period": "day", "tz": "Europe/Warsaw"}}'
)


def measure(options: Options) -> bool:
    """Run the benchmark; returns whether the promises were kept."""
    report = Report("board", options.quick)
    with cluster(options.server or "15") as server:
        make_login(server)
        product = install(server)
        report.figures["version"] = server.version
        endpoints = _load(server, product, TODOS // 50 if options.quick else TODOS)
        with server.connect(product.database) as admin:
            token = _text(
                admin.execute(
                    """select token from switchboard.create_operator_token(
                           (select id from switchboard.humans where name = 'bench'), 'bench')"""
                ).fetchone()
            )
        environment = {
            "SWITCHBOARD_METRICS_TOKEN": METRICS_TOKEN,
            "SWITCHBOARD_MCP_RATE": "1000000",
            "SWITCHBOARD_MCP_BURST": "1000000",
        }
        with running(__spec__.name, "gateway", server.url(product.database), environment) as port:
            cookie = _sign_in(port, token)
            _pages(report, server, product, port, cookie, token, 3 if options.quick else TIMES)
            _statements(report, server, product, endpoints, 3 if options.quick else TIMES)
            rounds = 2 if options.quick else 7
            seconds = options.seconds or (2.0 if options.quick else 6.0)
            _viewers(report, server, product, endpoints["forge"], port, cookie, rounds, seconds)
    return report.close()


def _text(row: tuple[object, ...] | None) -> str:
    if row is None:
        raise BenchError("a query gave no row")
    return str(row[0])


def _load(server: Cluster, product: Product, todos: int) -> dict[str, str]:
    """Five endpoints and their todos, attempts and deliveries; the endpoints' ids."""
    progress(f"loading {todos:,} todos")
    endpoints = {slug: product.vend(slug, QUEUES) for slug in SLUGS}
    for slug, endpoint in endpoints.items():
        share = todos // 2 if slug == SLUGS[0] else todos // 8
        done, pending = int(share * 0.93), int(share * 0.05)
        product.fill(
            endpoint,
            QUEUES,
            done,
            state="done",
            age=timedelta(hours=1),
            step=timedelta(days=4) / max(1, done),
        )
        product.fill(endpoint, QUEUES, pending, age=timedelta(minutes=5))
        product.fill(endpoint, QUEUES, 100, state="claimed")
        product.fill(endpoint, QUEUES, share // 500, state="parked", age=timedelta(minutes=20))
    with server.connect(product.database) as admin:
        admin.execute(DEAD, [0.03])
        admin.execute(ATTEMPTS)
        for endpoint in endpoints.values():
            admin.execute(
                "select switchboard.create_webhook(%s, 'generic', 'inbox', '\\x00', sha256(%s))",
                [endpoint, endpoint.encode()],
            )
            admin.execute(
                "select switchboard.create_notify_hook(%s, 'https://example.org/hook')", [endpoint]
            )
            admin.execute(
                "select switchboard.set_admission_policy(%s, 'deploy', %s)", [endpoint, BUDGET]
            )
        admin.execute(EVENTS, [0.04])
        progress("vacuum, and the sweeps' fold of the totals")
    product.settle()
    return endpoints


def _sign_in(port: int, token: str) -> str:
    """Sign in by token; the cookie."""
    url = f"http://127.0.0.1:{port}"
    answer = httpx2.post(
        f"{url}/sign-in", data={"token": token, "next": "/"}, headers={"origin": url}
    )
    if answer.status_code != 303 or "set-cookie" not in answer.headers:
        raise BenchError(f"the sign-in answered {answer.status_code}")
    return str(answer.headers["set-cookie"]).split(";")[0]


def _pages(
    report: Report,
    server: Cluster,
    product: Product,
    port: int,
    cookie: str,
    token: str,
    times: int,
) -> None:
    with server.connect(product.database) as admin:
        some = "select {} from switchboard.todos where idempotency_key is not null limit 1"
        todo = _text(admin.execute(some.format("id")).fetchone())
        key = _text(admin.execute(some.format("idempotency_key")).fetchone())
        delivery = _text(admin.execute("select id from switchboard.events limit 1").fetchone())
    board, api = {"cookie": cookie}, {"authorization": f"Bearer {token}"}
    title = quote("Bench todo 777")
    asked = [
        *((path, board) for path in ("/", "/?state=dead", "/?state=waiting", "/?queue=build")),
        *((f"/?q={q}", board) for q in (todo, key, title)),
        (f"/todos/{todo}", board),
        *((path, board) for path in ("/endpoints", "/endpoints/forge", "/receivers", "/hooks")),
        *((path, board) for path in ("/deliveries", f"/deliveries/{delivery}", "/health")),
        ("/deliveries?quarantine=1", board),
        ("/budget/forge/deploy", board),
        *((f"/api/v1/todos{query}", api) for query in ("", "?state=pending", "?state=failed")),
        *((f"/api/v1/todos?q={q}", api) for q in (todo, key, title)),
        ("/api/v1/queues", api),
        ("/api/v1/events", api),
        ("/metrics", {"authorization": f"Bearer {METRICS_TOKEN}"}),
    ]
    rows: list[list[str | float]] = []
    slowest = 0.0
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        for _ in range(WARM_UP):  # each connection of the pool plans its first page
            http.get("/", headers=board)
        for path, headers in asked:
            taken: list[float] = []
            for _ in range(times + 1):
                begun = time.perf_counter()
                answer = http.get(path, headers=headers)
                taken.append(1000 * (time.perf_counter() - begun))
                if answer.status_code != 200:
                    raise BenchError(f"{path} answered {answer.status_code}: {answer.text[:300]}")
            shown = path.replace(todo, "ID").replace(delivery, "ID")
            rows.append([shown, median(taken[1:]), max(taken[1:]), len(answer.content) / 1000])
            if title not in path:  # a title has no index: it is looked for, and may take longer
                slowest = max(slowest, median(taken[1:]))
            progress(f"{shown}: {median(taken[1:]):.1f} ms")
    report.table("pages and lists", ["", "median ms", "worst", "kB"], rows)
    report.at_most("the slowest page, list or search, median ms", slowest, MEDIAN_MS)
    heaviest = max(float(row[3]) for row in rows if not str(row[0]).startswith(("/api", "/metr")))
    report.figures["heaviest page, kB"] = heaviest


def _statements(
    report: Report, server: Cluster, product: Product, endpoints: dict[str, str], times: int
) -> None:
    asked = {
        "list_todos, done": ("select * from switchboard.list_todos(%s, 'build', 'done')", "forge"),
        "list_todos, all": ("select * from switchboard.list_todos(%s)", "forge"),
        "queue_counts": ("select * from switchboard.queue_counts(%s)", "forge"),
        "prune, 1,000 of what is due": ("select switchboard.prune(1000), %s::text", "mail"),
    }
    rows: list[list[str | float]] = []
    with server.connect(product.database) as admin:
        admin.execute("select switchboard.set_retention(%s, 1)", [endpoints["mail"]])
        for name, (query, slug) in asked.items():
            taken: list[float] = []
            for _ in range(times + 1):
                begun = time.perf_counter()
                found = admin.execute(query, [endpoints[slug]]).fetchone()
                taken.append(1000 * (time.perf_counter() - begun))
            if name.startswith("prune") and found and not found[0]:
                raise BenchError("nothing was due to be pruned")
            rows.append([name, median(taken[1:]), max(taken[1:])])
            progress(f"{name}: {median(taken[1:]):.1f} ms")
    report.table("statements", ["", "median ms", "worst"], rows)
    slowest = max(float(row[1]) for row in rows)
    report.at_most("the slowest statement, median ms", slowest, MEDIAN_MS)


def _viewers(
    report: Report,
    server: Cluster,
    product: Product,
    endpoint: str,
    port: int,
    cookie: str,
    rounds: int,
    seconds: float,
) -> None:
    alone: list[float] = []
    watched: list[float] = []
    seen: list[float] = []
    load = product.cycle("watched", endpoint, ["build"])
    for turn in range(rounds):
        product.top_up(endpoint, "build", 60_000)
        for with_viewers in (False, True) if turn % 2 else (True, False):
            if not with_viewers:
                alone.append(run(server, load, CLIENTS, seconds=seconds).rate)
                continue
            with _watching(port, cookie, VIEWERS) as viewers:
                watched.append(run(server, load, CLIENTS, seconds=seconds).rate)
                seen += viewers.freshness(server, product, endpoint)
        progress(
            f"viewers, round {turn + 1} of {rounds}: {alone[-1]:.0f} cycles/s alone,"
            f" {watched[-1]:.0f} with {VIEWERS}, a change seen after {seen[-1]:.0f} ms"
        )
    rows = [["nobody watches", median(alone), 100.0]]
    rows += [[f"{VIEWERS} viewers", median(watched), 100 * ratio(watched, alone)]]
    report.table(f"claims and completes, {CLIENTS} clients", ["", "cycles/s", "%"], rows)
    report.figures["a change seen after, ms"] = seen
    report.at_least("transitions/s while they watch", 2 * median(watched), 500)
    report.at_least(f"share of the rate that {VIEWERS} viewers leave", ratio(watched, alone), SHARE)
    report.at_most("a change by SQL is seen after, median ms", median(seen), FRESH_MS)


class _watching:  # noqa: N801
    """A hundred viewers in a process of their own."""

    def __init__(self, port: int, cookie: str, viewers: int) -> None:
        command = [sys.executable, "-m", __spec__.name, "view", str(port), cookie, str(viewers)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )

    def __enter__(self) -> _watching:
        if self._say() != "open":
            raise BenchError("the viewers could not connect")
        return self

    def _say(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def freshness(self, server: Cluster, product: Product, endpoint: str) -> list[float]:
        """How long until a new todo is on a board that is watched, in ms."""
        assert self._process.stdin is not None
        title = f"fresh {time.time_ns()}"
        self._process.stdin.write(title + "\n")
        self._process.stdin.flush()
        if self._say() != "ready":
            raise BenchError("the viewers are gone")
        with psycopg.connect(server.dsn(product.database), autocommit=True) as admin:
            admin.execute("select switchboard.create_todo(%s, 'lint', %s)", [endpoint, title])
            begun = time.monotonic()
        found = self._say()
        if found != "seen":
            raise BenchError(f"the new todo was not seen: {found}")
        return [1000 * (time.monotonic() - begun)]

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


async def view(port: int, cookie: str, viewers: int) -> None:
    """Be the viewers: read every stream, and say when a title of standard input shows up."""
    wanted, found = b"\0", asyncio.Event()
    opened = 0
    everybody = asyncio.Event()

    async def watch(number: int) -> None:
        nonlocal opened
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        query = WATCHED[number % len(WATCHED)]
        head = f"GET /events?{query} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncookie: {cookie}\r\n\r\n"
        writer.write(head.encode())
        if b" 200 " not in await reader.readline():
            raise BenchError("a viewer was refused")
        begun = False
        while part := await reader.read(1 << 16):
            if not begun and b"fragment" in part:
                begun = True
                opened += 1
                if opened == viewers:
                    everybody.set()
            if wanted in part:
                found.set()

    async def talk() -> None:
        nonlocal wanted
        await asyncio.wait_for(everybody.wait(), 60)
        print("open", flush=True)
        while title := await asyncio.to_thread(sys.stdin.readline):
            found.clear()
            wanted = title.strip().encode()
            print("ready", flush=True)
            try:
                await asyncio.wait_for(found.wait(), 20)
                print("seen", flush=True)
            except TimeoutError:
                print("not seen", flush=True)

    watchers = [asyncio.create_task(watch(number)) for number in range(viewers)]
    try:
        await talk()
    finally:
        for watcher in watchers:
            watcher.cancel()


def main() -> None:
    """``gateway`` or ``view``: be one of the processes."""
    if sys.argv[1] == "view":
        asyncio.run(view(int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
    else:
        settings = Settings.from_env()
        serving.serve(settings, serving.bind(settings), lambda: None)


if __name__ == "__main__":
    main()
