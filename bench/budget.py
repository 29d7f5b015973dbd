"""What budgets cost: nothing to speak of where there is none, and one gate where there is one.

Queues without a policy run beside a second database whose functions do not look for policies (their
own text, with the probes taken out), in ten pairs; a third one has no index of what is held. Claims
over an open queue and two whose budget is spent, with 100,000 pending, run beside claims over the
same three queues without those. These run at the same time, so that a busy machine slows all alike,
and their commits do not wait for the disk, which would hide what is compared. Then a budgeted queue
at 16 clients, far from its limits and with a cap of as many as there are clients, takes turns with
an unbudgeted one at 1 client, all with durable commits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.cluster import BenchError, Cluster, cluster
from bench.cycle import ratio
from bench.pgbench import Load, run
from bench.product import LOGIN, Product, install, make_login
from bench.report import Report, progress

if TYPE_CHECKING:
    from bench.options import Options

FUNCTIONS = Path(__file__).parents[1] / "db" / "functions"
PROBES = {
    "22_claim.sql": (
        "array(select p.queue from switchboard.admission_policies p where p.endpoint_id = e.id)",
        "'{}'::text[]",
    ),
    "23_finish.sql": (
        """exists (select from switchboard.admission_owed o where o.endpoint_id = p_endpoint_id \
and o.queue = v_todo.queue)""",
        "false",
    ),
}
WITHOUT_INDEX = "drop index switchboard.idx_todos_claimed_endpoint_queue;"

BACKLOG = 100_000
READY = 50_000
SPENT_EACH = 50_000
PAIRS = 10
CLIENTS = 16
PROBED, UNPROBED, UNINDEXED = "as it is", "without the probes", "without the index of held todos"
AMPLE = (
    '{"max_in_flight": 10000, "max_claims_per_window": 1000000,'
    ' "window": {"period": "week", "tz": "Europe/Berlin"}}'
)
FULL = f'{{"max_in_flight": {CLIENTS}}}'
ONE_A_WEEK = '{"max_claims_per_window": 1, "window": {"period": "week", "tz": "UTC"}}'
QUEUES = ("first", "second", "ready")
ALONE, SPENT = "three queues, one with todos", "100,000 more in two that are spent"
POLICIES = {"no budget": None, "a budget that is ample": AMPLE, "a cap of 16": FULL}


def measure(options: Options) -> bool:
    """Run the benchmark; returns whether the promises were kept."""
    report = Report("budget", options.quick)
    seconds = options.seconds or (1 if options.quick else 2)
    pairs = 2 if options.quick else PAIRS
    with cluster(options.server or "15") as server:
        make_login(server)
        with tempfile.TemporaryDirectory() as folder:
            products = _products(server, Path(folder))
        report.figures["version"] = server.version
        with server.connect() as admin:
            admin.execute(f"alter role {LOGIN} set synchronous_commit = off")
        _unbudgeted(report, server, products, pairs, seconds)
        _spent(report, server, products[PROBED], options.quick, max(2, pairs // 2), seconds)
        with server.connect() as admin:
            admin.execute(f"alter role {LOGIN} reset synchronous_commit")
        _budgeted(report, server, products[PROBED], max(2, pairs // 2), seconds)
    return report.close()


def _products(server: Cluster, folder: Path) -> dict[str, Product]:
    unprobed, unindexed = folder / "unprobed.sql", folder / "unindexed.sql"
    texts = []
    for name, (probe, instead) in PROBES.items():
        text = (FUNCTIONS / name).read_text()
        if text.count(probe) != 1:
            raise BenchError(f"{name} has no longer the probe that is to be taken out")
        texts.append(text.replace(probe, instead))
    unprobed.write_text("set check_function_bodies = off;\n" + "\n".join(texts))
    unindexed.write_text(WITHOUT_INDEX)
    return {
        PROBED: install(server),
        UNPROBED: install(server, "unprobed", unprobed),
        UNINDEXED: install(server, "unindexed", unindexed),
    }


def _unbudgeted(
    report: Report, server: Cluster, products: dict[str, Product], pairs: int, seconds: float
) -> None:
    endpoints = {name: product.vend("plain", ["work"]) for name, product in products.items()}
    loads = {name: products[name].cycle(name, endpoints[name], ["work"]) for name in products}
    rows: list[list[str | float]] = []
    for clients in (1, 4):
        shares: dict[str, list[float]] = {UNPROBED: [], UNINDEXED: []}
        rates: dict[str, list[float]] = {name: [] for name in products}
        for pair in range(pairs):
            for other, series in shares.items():
                for name in (PROBED, other):
                    products[name].top_up(endpoints[name], "work", BACKLOG)
                    products[name].settle()
                both = _at_once(server, [loads[PROBED], loads[other]], clients, seconds, pair)
                series.append(both[PROBED] / both[other])
                for name, rate in both.items():
                    rates[name].append(rate)
            shown = ", ".join(f"{100 * each[-1]:.0f} % of {name}" for name, each in shares.items())
            progress(f"{clients} clients, pair {pair + 1} of {pairs}: {PROBED} {shown}")
        for name, series in shares.items():
            rows.append([f"{clients} clients, {name}", median(rates[name]), 100 * median(series)])
        what = f"no policy, {clients} clients: share of the rate without probes"
        report.at_least(what, median(shares[UNPROBED]), 0.95)
        report.figures[f"shares at {clients}"] = shares
    report.table("queues without a policy", ["", "its cycles/s", f"{PROBED}, % of it"], rows)


def _at_once(
    server: Cluster, loads: Sequence[Load], clients: int, seconds: float, turn: int
) -> dict[str, float]:
    """Run the loads at the same time, each with so many clients; who starts first alternates."""
    ordered = list(loads) if turn % 2 else list(loads)[::-1]
    with ThreadPoolExecutor(len(ordered)) as pool:
        running = {
            load.name: pool.submit(run, server, load, clients, seconds=seconds) for load in ordered
        }
        return {load.name: running[load.name].result().rate for load in loads}


def _spent(
    report: Report, server: Cluster, product: Product, quick: bool, rounds: int, seconds: float
) -> None:
    endpoints = {ALONE: product.vend("alone", QUEUES), SPENT: product.vend("spent", QUEUES)}
    each = SPENT_EACH // 20 if quick else SPENT_EACH
    product.fill(endpoints[SPENT], QUEUES[:2], 2 * each, age=timedelta(hours=2))
    with server.connect(product.database) as admin:
        for queue in QUEUES[:2]:
            admin.execute(
                "select switchboard.set_admission_policy(%s, %s, %s)",
                [endpoints[SPENT], queue, ONE_A_WEEK],
            )
            admin.execute(
                "select * from switchboard.claim_next(%s, 'first', %s)",
                [endpoints[SPENT], [queue]],
            )
    rates: dict[str, list[float]] = {name: [] for name in endpoints}
    for turn in range(rounds):
        for endpoint in endpoints.values():
            product.top_up(endpoint, "ready", READY)
        product.settle()
        loads = [product.cycle(name, endpoint, QUEUES) for name, endpoint in endpoints.items()]
        for name, rate in _at_once(server, loads, 1, seconds, turn).items():
            rates[name].append(rate)
        shown = ", ".join(f"{name}: {series[-1]:.0f}" for name, series in rates.items())
        progress(f"spent budgets, round {turn + 1} of {rounds}: cycles/s {shown}")
    report.table(
        "claims over three queues, cycles/s",
        ["", "rate", "% of the first"],
        [
            [name, median(series), 100 * ratio(series, rates[ALONE])]
            for name, series in rates.items()
        ],
    )
    what = "two spent queues with 100,000 pending: share of the rate without them"
    report.at_least(what, ratio(rates[SPENT], rates[ALONE]), 0.7)


def _budgeted(
    report: Report, server: Cluster, product: Product, rounds: int, seconds: float
) -> None:
    endpoints = {name: product.vend(f"b{n}", ["work"]) for n, name in enumerate(POLICIES)}
    with product.cluster.connect(product.database) as admin:
        for name, policy in POLICIES.items():
            if policy:
                admin.execute(
                    "select switchboard.set_admission_policy(%s, 'work', %s)",
                    [endpoints[name], policy],
                )
    rates: dict[str, list[float]] = {name: [] for name in POLICIES}
    for turn in range(rounds):
        for endpoint in endpoints.values():
            product.top_up(endpoint, "work", BACKLOG)
        product.settle()
        for name, endpoint in endpoints.items():
            load = product.cycle(name, endpoint, ["work"])
            clients = 1 if POLICIES[name] is None else CLIENTS
            rates[name].append(run(server, load, clients, seconds=seconds).rate)
        shown = ", ".join(f"{name}: {series[-1]:.0f}" for name, series in rates.items())
        progress(f"budgets, round {turn + 1} of {rounds}: cycles/s {shown}")
    base = rates["no budget"]
    report.table(
        f"one budgeted queue at {CLIENTS} clients beside one without a budget at 1 client",
        ["", "rate", "% of no budget at 1"],
        [[name, median(series), 100 * ratio(series, base)] for name, series in rates.items()],
    )
    share = ratio(rates["a budget that is ample"], base)
    report.at_least(f"an ample budget at {CLIENTS} clients: share of 1 client without", share, 0.5)
