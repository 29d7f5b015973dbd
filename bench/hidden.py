"""What stands ahead of ready todos must not hide them, nor make finding them dear.

50,000 ready todos are drained at 4 clients, once undisturbed and once behind each kind of older
todos that the caller may not take. Each case is an endpoint of its own in one database; they run
in turns, and the median of the rounds' ratios to the undisturbed case counts.
"""

from __future__ import annotations

from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING

from bench.cluster import cluster
from bench.cycle import ratio
from bench.pgbench import run
from bench.product import Product, install, make_login
from bench.report import Report, progress

if TYPE_CHECKING:
    from bench.options import Options

CLIENTS = 4
READY = 50_000
ROUNDS = 5
KEPT = 0.7
LONG_AGO = timedelta(hours=2)

UNDISTURBED = "undisturbed"
OTHERS = "100,000 in two other queues"
SPENT = "100,000 in two queues whose budget is spent"
ASSIGNED = "50,000 assigned to another"
HELD = "50,000 leased, 50,000 parked"
CASES = (UNDISTURBED, OTHERS, SPENT, ASSIGNED, HELD)
QUEUES = ("first", "second", "ready")
ONE_A_WEEK = '{"max_claims_per_window": 1, "window": {"period": "week", "tz": "UTC"}}'


def measure(options: Options) -> bool:
    """Run the benchmark; returns whether the promises were kept."""
    report = Report("hidden", options.quick)
    scale = 20 if options.quick else 1
    rounds = 1 if options.quick else ROUNDS
    seconds = options.seconds or (1 if options.quick else 2)
    with cluster(options.server or "15") as server:
        make_login(server)
        product = install(server)
        progress("loading what stands ahead")
        endpoints = {name: _prepare(product, name, scale) for name in CASES}
        rates: dict[str, list[float]] = {name: [] for name in endpoints}
        for turn in range(1, rounds + 1):
            for endpoint in endpoints.values():
                product.top_up(endpoint, "ready", READY)
            product.settle()
            for name, endpoint in endpoints.items():
                queues = QUEUES if name == SPENT else ["ready"]
                load = product.cycle(name, endpoint, queues)
                rates[name].append(run(server, load, CLIENTS, seconds=seconds).rate)
            shown = ", ".join(f"{name}: {series[-1]:.0f}" for name, series in rates.items())
            progress(f"round {turn} of {rounds}: cycles/s {shown}")
    report.table(
        f"cycles/s at {CLIENTS} clients, median",
        ["ahead of the ready ones", "rate", "% of undisturbed"],
        [
            [name, median(series), 100 * ratio(series, rates[UNDISTURBED])]
            for name, series in rates.items()
        ],
    )
    for name, series in rates.items():
        if name != UNDISTURBED:
            report.at_least(
                f"{name}: share of undisturbed", ratio(series, rates[UNDISTURBED]), KEPT
            )
    return report.close()


def _prepare(product: Product, name: str, scale: int) -> str:
    """Vend the endpoint of a case and load what stands ahead; returns its id."""
    slug = "".join(letter if letter.isalnum() else "-" for letter in name.lower())
    endpoint = product.vend(slug, QUEUES)
    ahead = 50_000 // scale
    if name in (OTHERS, SPENT):
        product.fill(endpoint, QUEUES[:2], 2 * ahead, age=LONG_AGO)
    elif name == ASSIGNED:
        product.fill(endpoint, ["ready"], ahead, age=LONG_AGO, assignee="someone-else")
    elif name == HELD:
        product.fill(endpoint, ["ready"], ahead, age=LONG_AGO, state="claimed")
        product.fill(endpoint, ["ready"], ahead, age=LONG_AGO, state="parked")
    if name == SPENT:
        with product.cluster.connect(product.database) as admin:
            admin.execute(
                """select switchboard.set_admission_policy(%s, queue, %s)
                     from unnest(%s::text[]) queue""",
                [endpoint, ONE_A_WEEK, list(QUEUES[:2])],
            )
            for queue in QUEUES[:2]:
                admin.execute(
                    "select * from switchboard.claim_next(%s, 'first', %s)", [endpoint, [queue]]
                )
    return endpoint
