"""Claim cost against the size of the backlog: a million pending todos against a thousand.

Two databases, in turns. Each cycle creates a todo, claims the oldest and completes it, so that the
backlog keeps its size; only the time of the claiming statement counts.
"""

from __future__ import annotations

from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING

from bench.cluster import BenchError, cluster
from bench.pgbench import Load, Outcome, run
from bench.product import CYCLE, install, make_login
from bench.report import Report, progress

if TYPE_CHECKING:
    from bench.options import Options

SMALL, LARGE = 1_000, 1_000_000
BOUND = 1.3
ROUNDS = 5
CLIENTS = (1, 4)

CREATE = """\
select id as made from switchboard.create_todo(p_endpoint_id => :endpoint, p_queue => 'bench', \
p_title => 'Bench todo', p_payload => '{"action": "opened", "number": 42}') \\gset
"""


def measure(options: Options) -> bool:
    """Run the benchmark; returns whether the promise was kept."""
    report = Report("backlog", options.quick)
    sizes = (SMALL, 20_000 if options.quick else LARGE)
    rounds = 2 if options.quick else ROUNDS
    seconds = options.seconds or (1 if options.quick else 3)
    times: dict[tuple[int, int], list[float]] = {(c, s): [] for c in CLIENTS for s in sizes}
    with cluster(options.server or "15") as server:
        make_login(server)
        loads: dict[int, Load] = {}
        for size in sizes:
            progress(f"loading {size} pending todos")
            product = install(server, f"bench_{size}")
            endpoint = product.vend("backlog", ["bench"])
            product.fill(endpoint, ["bench"], size, age=timedelta(minutes=1))
            product.settle()
            loads[size] = product.load(f"{size} pending", CREATE + CYCLE, endpoint, ["bench"])
        for clients in CLIENTS:
            for turn in range(1, rounds + 1):
                for size in sizes:
                    outcome = run(server, loads[size], clients, seconds=seconds, statements=True)
                    times[clients, size].append(claim_ms(outcome))
                shown = ", ".join(f"{times[clients, size][-1]:.3f} ms at {size}" for size in sizes)
                progress(f"{clients} clients, round {turn} of {rounds}: claim {shown}")
    report.table(
        "milliseconds per claim_next, median",
        ["clients", *(f"{size} pending" for size in sizes), "times"],
        [
            [
                clients,
                *(f"{median(times[clients, size]):.3f}" for size in sizes),
                _times(times, clients, sizes),
            ]
            for clients in CLIENTS
        ],
    )
    for clients in CLIENTS:
        what = f"claim cost at {sizes[1]} pending against {sizes[0]}, {clients} clients"
        report.at_most(what, _times(times, clients, sizes), BOUND)
    return report.close()


def claim_ms(outcome: Outcome) -> float:
    """The mean milliseconds of the statement that claims."""
    for statement, ms in outcome.statement_ms.items():
        if "claim_next" in statement:
            return ms
    raise BenchError("pgbench reported no time for claim_next")


def _times(
    times: dict[tuple[int, int], list[float]], clients: int, sizes: tuple[int, int]
) -> float:
    small, large = (times[clients, size] for size in sizes)
    return median(b / a for a, b in zip(small, large, strict=True))
