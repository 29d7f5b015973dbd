"""Buffers of one claim over 3 million done and 1 million pending todos in 20 queues.

One endpoint, 20 queues, one of which has 10 pending todos. A claim over n queues stays within
40 + 4n buffers, all its statements together, and none of them sorts or scans the backlog; the same
with 50,000 todos assigned to others at the head of every queue. Transitions of the holder go by the
primary key, also while the statistics say that nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING

from bench.cluster import cluster
from bench.plans import Call, buffers, nested_plans, offences
from bench.product import LOGIN, Product, install, make_login
from bench.report import Cell, Report, progress

if TYPE_CHECKING:
    from bench.options import Options

SERVERS = ("15", "embedded")
QUEUES = tuple(f"queue-{number:02}" for number in range(20))
SMALL_QUEUE = "queue-19"
DONE, PENDING, ASSIGNED = 3_000_000, 1_000_000, 50_000
CLAIMED = 10_000
WARM, CALLS = 12, 41
HOLDER_BOUND = 60

CLAIM = """select * from switchboard.claim_next(
    p_endpoint_id => %s, p_owner => 'bench', p_queues => %s::text[])"""
HOLDER = {
    "heartbeat": "select * from switchboard.heartbeat(%s, %s, 'bench', p_lease_token => %s)",
    "complete": "select * from switchboard.complete(%s, %s, 'bench', p_lease_token => %s)",
    "fail": "select * from switchboard.fail(%s, %s, 'bench', p_lease_token => %s)",
    "release": "select * from switchboard.release(%s, %s, 'bench', p_lease_token => %s)",
}


def measure(options: Options) -> bool:
    """Run the benchmark; returns whether the promises were kept."""
    report = Report("buffers", options.quick)
    scale = 50 if options.quick else 1
    for version in [options.server] if options.server else SERVERS:
        with cluster(version) as server:
            make_login(server)
            product = install(server)
            endpoint = product.vend("buffers", QUEUES)
            rows: list[list[Cell]] = []
            progress(f"PostgreSQL {server.version}: loading {(DONE + PENDING) // scale} todos")
            _load(product, endpoint, scale)
            rows += _claims(report, product, endpoint, "")
            progress(f"PostgreSQL {server.version}: {ASSIGNED // scale} assigned ones per queue")
            product.fill(
                endpoint, QUEUES, len(QUEUES) * ASSIGNED // scale,
                age=timedelta(hours=6), assignee="someone-else",
            )  # fmt: skip
            product.settle()
            rows += _claims(report, product, endpoint, ", assigned ones ahead")
            rows += _holder(report, product, endpoint)
            report.table(
                f"PostgreSQL {server.version}: buffers per call, {CALLS} calls",
                ["call", "median", "95 %", "most", "bound"],
                rows,
            )
    return report.close()


def _load(product: Product, endpoint: str, scale: int) -> None:
    """Load done and pending todos; like a restore, build the secondary indexes last."""
    with product.cluster.connect(product.database) as admin:
        indexes = admin.execute(
            """select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index
                where indrelid = 'switchboard.todos'::regclass and not indisprimary"""
        ).fetchall()
        for name, _ in indexes:
            admin.execute(f"drop index {name}")
    step = timedelta(microseconds=500)
    product.fill(endpoint, QUEUES, DONE // scale, state="done", age=timedelta(hours=2), step=step)
    product.fill(endpoint, QUEUES[:-1], PENDING // scale - 10, age=timedelta(hours=1), step=step)
    product.fill(endpoint, [SMALL_QUEUE], 10, age=timedelta(minutes=50), step=step)
    with product.cluster.connect(product.database) as admin:
        for _, definition in indexes:
            admin.execute(str(definition))
    product.settle()


def _claims(report: Report, product: Product, endpoint: str, where: str) -> list[list[Cell]]:
    version = product.cluster.version
    rows: list[list[Cell]] = []
    cases: dict[str, Sequence[str]] = {
        "1 queue": QUEUES[:1],
        "5 queues": QUEUES[:5],
        "20 queues": QUEUES,
        "1 queue of 10 todos, then empty": [SMALL_QUEUE],
    }
    for name, queues in cases.items():
        call = Call(CLAIM, [endpoint, list(queues)])
        with product.cluster.connect(product.database, LOGIN) as connection:
            seen = [buffers(connection, call) for _ in range(WARM + CALLS)][WARM:]
        if len(queues) == 1 and queues[0] == SMALL_QUEUE:
            product.fill(endpoint, [SMALL_QUEUE], 10, age=timedelta(minutes=50))
        bound = 40 + 4 * len(queues)
        rows.append([f"claim_next, {name}{where}", *_shape(seen), bound])
        what = f"PostgreSQL {version}, {name}{where}: buffers, 95 % of the calls"
        report.at_most(what, _shape(seen)[1], bound)
        plans = nested_plans(product.cluster, product.database, [call] * 8)
        offending = sorted(set(offences(plans)))
        report.figures[f"PostgreSQL {version}, {name}{where}: offending plan nodes"] = offending
        what = f"PostgreSQL {version}, {name}{where}: plan nodes that read the backlog"
        report.at_most(what, len(offending), 0)
        assert plans, "auto_explain showed nothing"
    return rows


def _holder(report: Report, product: Product, endpoint: str) -> list[list[Cell]]:
    """Claim 10,000 with statistics that know of no claimed one, then use the leases."""
    rows: list[list[Cell]] = []
    held: list[tuple[str, str]] = []
    with product.cluster.connect(product.database, LOGIN) as connection:
        for _ in range(CLAIMED // 1000):
            found = connection.execute(
                """select id::text, lease_token from switchboard.claim_batch(
                       p_endpoint_id => %s, p_owner => 'bench', p_limit => 1000,
                       p_queues => %s::text[], p_lease_ttl_seconds => 3600)""",
                [endpoint, list(QUEUES)],
            ).fetchall()
            held += [(str(id_), str(token)) for id_, token in found]
    for name, text in HOLDER.items():
        with product.cluster.connect(product.database, LOGIN) as connection:
            seen = [
                buffers(connection, Call(text, [endpoint, *held.pop()]))
                for _ in range(WARM + CALLS)
            ][WARM:]
        rows.append([f"{name}, {CLAIMED} claimed", *_shape(seen), HOLDER_BOUND])
        what = f"PostgreSQL {product.cluster.version}, {name}: buffers, 95 % of the calls"
        report.at_most(what, _shape(seen)[1], HOLDER_BOUND)
    return rows


def _shape(seen: Sequence[int]) -> tuple[float, int, int]:
    ordered = sorted(seen)
    return median(ordered), ordered[int(0.95 * len(ordered))], ordered[-1]
