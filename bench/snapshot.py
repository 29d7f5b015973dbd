"""A REPEATABLE READ snapshot held open for a minute at 4 clients: does the rate hold?

An old snapshot (a dump, a forgotten psql) keeps every dead row and index entry alive, and a claim
that starts at the head of the queue walks all of them. The rate before and after the snapshot is
the measure; the sweeps tick as the server's would.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean, linear_regression
from typing import TYPE_CHECKING

from bench.cluster import cluster
from bench.pgbench import run
from bench.product import Product, install, make_login
from bench.report import Report, progress

if TYPE_CHECKING:
    from bench.options import Options

CLIENTS = 4
HELD = 60
SPANS = 4
SHARE = 0.8
FALL = 0.10  # of the mean rate, over the whole time: what the noise of a shared machine can fake


def measure(options: Options) -> bool:
    """Run the benchmark; returns whether the promises were kept."""
    report = Report("snapshot", options.quick)
    held = 8 if options.quick else round(options.seconds or HELD)
    around = 2 if options.quick else 15
    with cluster(options.server or "15") as server:
        make_login(server)
        product = install(server)
        endpoint = product.vend("snapshot", ["bench"])
        load = product.cycle("switchboard", endpoint, ["bench"])

        def spell(seconds: int, backlog: int) -> tuple[float, ...]:
            product.top_up(endpoint, "bench", backlog)
            product.settle()
            with server.connect() as admin:
                admin.execute("checkpoint")
            return run(server, load, CLIENTS, seconds=seconds).spans

        progress("loading")
        with ticking(product):
            spell(2, 20_000)  # the first seconds of a new database are not like the others
            progress(f"{around} s without a snapshot")
            before = spell(around, 20_000 if options.quick else 150_000)
            backlog = round(fmean(before) * max(held, around) * 1.5)
            progress(f"loading {backlog} todos")
            product.top_up(endpoint, "bench", backlog)
            with server.connect("bench") as holder:
                holder.execute("begin isolation level repeatable read")
                holder.execute("select count(*) from switchboard.endpoints")
                progress(f"{held} s with a snapshot held open")
                during = spell(held, backlog)
                holder.execute("rollback")
            progress(f"{around} s without it")
            after = spell(around, backlog // 2)
    without = fmean([*before, *after])
    spans = _spans(during)
    rows: list[list[str | float]] = [["before", fmean(before), 100 * fmean(before) / without]]
    rows += [[f"held, span {i}", span, 100 * span / without] for i, span in enumerate(spans, 1)]
    rows += [["after", fmean(after), 100 * fmean(after) / without]]
    report.table(f"cycles/s at {CLIENTS} clients", ["", "rate", "% of without"], rows)
    report.figures["seconds"] = {"before": before, "during": during, "after": after}
    report.at_least("share of the rate without a snapshot", fmean(during) / without, SHARE)
    report.at_most("fall from begin to end of the snapshot", _fall(during), FALL)
    return report.close()


def _spans(rates: Sequence[float]) -> list[float]:
    length = max(1, len(rates) // SPANS)
    return [fmean(rates[i * length : (i + 1) * length]) for i in range(SPANS)]


def _fall(rates: Sequence[float]) -> float:
    """How much a straight line through the seconds falls from begin to end, as a share."""
    slope = linear_regression(range(len(rates)), rates).slope
    return -slope * len(rates) / fmean(rates)


@contextmanager
def ticking(product: Product, every: float = 30.0) -> Iterator[None]:
    """Tick as the server does, from a thread and a connection of its own."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(every):
            product.tick()

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
