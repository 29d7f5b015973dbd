"""What budgets cost: nothing to speak of where there is none, and one gate where there is one.

Queues without a policy run beside a second database whose functions do not look for policies (their
own text, with the probes taken out), in ten interleaved pairs; a third one has no index of what is
held. Their commits do not wait for the disk, which would hide what is compared. A budgeted queue
at 16 clients, far from its limits and with a cap of as many as there are clients, runs beside an
unbudgeted one at 1 client.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.cluster import BenchError, Cluster, cluster
from bench.cycle import ratio
from bench.pgbench import run
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
PAIRS = 10
CLIENTS = 16
PROBED, UNPROBED, UNINDEXED = "as it is", "without the probes", "without the index of held todos"
AMPLE = (
    '{"max_in_flight": 10000, "max_claims_per_window": 1000000,'
    ' "window": {"period": "week", "tz": "Europe/Berlin"}}'
)
FULL = f'{{"max_in_flight": {CLIENTS}}}'
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
    rows: list[list[str | float]] = []
    for clients in (1, 4):
        rates: dict[str, list[float]] = {name: [] for name in products}
        for pair in range(pairs):
            for name, product in products.items():
                product.top_up(endpoints[name], "work", BACKLOG)
                product.settle()
            names = list(products) if pair % 2 else list(products)[::-1]
            for name in names:
                load = products[name].cycle(name, endpoints[name], ["work"])
                rates[name].append(run(server, load, clients, seconds=seconds).rate)
            shown = ", ".join(f"{name}: {series[-1]:.0f}" for name, series in rates.items())
            progress(f"{clients} clients, pair {pair + 1} of {pairs}: cycles/s {shown}")
        for name, series in rates.items():
            share = 100 * ratio(series, rates[PROBED])
            rows.append([f"{name}, {clients} clients", median(series), share])
        share = ratio(rates[PROBED], rates[UNPROBED])
        what = f"no policy, {clients} clients: share of the rate without probes"
        report.at_least(what, share, 0.95)
    report.table("queues without a policy, cycles/s", ["", "rate", "% of as it is"], rows)


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
