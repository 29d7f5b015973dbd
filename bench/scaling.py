"""From 1 to 64 clients: more workers never make the queue slower than its peak by much."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from bench.cluster import cluster
from bench.pgbench import run
from bench.product import install, make_login
from bench.report import Report, progress

if TYPE_CHECKING:
    from bench.options import Options

CLIENTS = (1, 2, 4, 8, 16, 32, 64)
BACKLOG = 250_000
ROUNDS = 3
KEPT = 0.8  # of the peak, with any larger number of clients


def measure(options: Options) -> bool:
    """Run the benchmark; returns whether the promise was kept."""
    report = Report("scaling", options.quick)
    rounds = 1 if options.quick else ROUNDS
    seconds = options.seconds or (1 if options.quick else 4)
    rates: dict[int, list[float]] = {clients: [] for clients in CLIENTS}
    with cluster(options.server or "15") as server:
        make_login(server)
        product = install(server)
        endpoint = product.vend("scaling", ["bench"])
        load = product.cycle("switchboard", endpoint, ["bench"])
        progress("loading")
        for turn in range(1, rounds + 1):
            for clients in CLIENTS:
                product.top_up(endpoint, "bench", 20_000 if options.quick else BACKLOG)
                product.settle()
                rates[clients].append(run(server, load, clients, seconds=seconds).rate)
            shown = ", ".join(f"{c}: {series[-1]:.0f}" for c, series in rates.items())
            progress(f"round {turn} of {rounds}: cycles/s by clients {shown}")
    medians = {clients: median(series) for clients, series in rates.items()}
    peak = max(CLIENTS, key=lambda clients: medians[clients])
    beyond = [medians[clients] / medians[peak] for clients in CLIENTS if clients >= peak]
    report.table(
        "cycles/s by clients, median",
        ["clients", "rate", "% of the peak"],
        [[str(c), rate, 100 * rate / medians[peak]] for c, rate in medians.items()],
    )
    report.figures["rounds"] = {str(clients): series for clients, series in rates.items()}
    report.at_least(f"share of the peak ({peak} clients) kept beyond it", min(beyond), KEPT)
    return report.close()
