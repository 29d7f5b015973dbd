"""Cycle rate: claim_next and complete, as a share of two minimal updates, beside the peers.

The contenders run in turns (floor, ours, peers, floor, ours, …), five rounds for each number of
clients, and the median of the rounds' ratios counts: the machine's mood hits all of them alike.
Everything is on: history, lease token, scope, pinned search_path, the time-outs of the gateway's
connections; the login is an ordinary one that may only call functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Protocol

from bench import peers
from bench.cluster import Cluster, cluster
from bench.pgbench import Load, run
from bench.product import PAYLOAD, Product, install, make_login
from bench.report import Report, progress

if TYPE_CHECKING:
    from bench.options import Options

CLIENTS = (1, 4, 16)
TARGETS = {1: 0.45, 4: 0.50, 16: 0.42}
ROUNDS = 5
BACKLOG = 250_000

Rates = Mapping[str, Sequence[float]]


class Contender(Protocol):
    """Something that claims and finishes."""

    name: str

    def load(self) -> Load:
        """One cycle."""

    def top_up(self, backlog: int) -> None:
        """Bring the backlog back to its size and vacuum."""


class Ours:
    """Switchboard: claim_next over one queue, complete with the lease token."""

    def __init__(self, product: Product, name: str, backlog: int) -> None:
        self.name, self._product = name, product
        self._endpoint = product.vend("cycle", ["bench"])
        self.top_up(backlog)

    def load(self) -> Load:
        return self._product.cycle(self.name, self._endpoint, ["bench"])

    def top_up(self, backlog: int) -> None:
        self._product.top_up(self._endpoint, "bench", backlog)
        self._product.settle()


def measure(options: Options) -> bool:
    """Run the benchmark; returns whether the promises were kept."""
    report = Report("cycle", options.quick)
    backlog = 20_000 if options.quick else BACKLOG
    rounds = 2 if options.quick else ROUNDS
    seconds = options.seconds or (1 if options.quick else 2)
    with cluster(options.server or "15") as server:
        contenders = _contenders(server, options, backlog)
        everything: dict[int, Rates] = {}
        for clients in CLIENTS:
            rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
            for turn in range(1, rounds + 1):
                for contender in contenders:
                    contender.top_up(backlog)
                with server.connect() as admin:
                    admin.execute("checkpoint")
                for contender in contenders:
                    outcome = run(server, contender.load(), clients, seconds=seconds)
                    rates[contender.name].append(outcome.rate)
                shown = ", ".join(f"{name} {series[-1]:.0f}" for name, series in rates.items())
                progress(f"{clients} clients, round {turn} of {rounds}: {shown} cycles/s")
            everything[clients] = rates
        report.figures["version"] = server.version
    _judge(report, everything)
    return report.close()


def _contenders(server: Cluster, options: Options, backlog: int) -> list[Contender]:
    make_login(server)
    progress(f"loading {backlog} todos for each contender")
    contenders: list[Contender] = [
        peers.Floor(server, backlog),
        Ours(install(server), "switchboard", backlog),
    ]
    if options.patch is not None:
        contenders.append(Ours(install(server, "patched", options.patch), "patched", backlog))
    if options.peers:
        peers.fetch()
        contenders.append(peers.Pgmq(server, backlog, PAYLOAD))
        contenders.append(peers.Procrastinate(server, backlog, PAYLOAD, max(CLIENTS)))
    return contenders


def ratio(series: Sequence[float], other: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return median(a / b for a, b in zip(series, other, strict=True))


def _judge(report: Report, everything: Mapping[int, Rates]) -> None:
    names = list(everything[CLIENTS[0]])
    headers = ["", *(f"{clients} clients" for clients in CLIENTS)]
    report.table(
        "cycles/s, median",
        headers,
        [[name, *(median(everything[c][name]) for c in CLIENTS)] for name in names],
    )
    report.table(
        "share of the floor, %, median of the rounds",
        headers,
        [
            [name, *(100 * ratio(everything[c][name], everything[c]["floor"]) for c in CLIENTS)]
            for name in names
        ],
    )
    report.figures["rounds"] = {str(clients): rates for clients, rates in everything.items()}
    for clients in CLIENTS:
        rates = everything[clients]
        share = ratio(rates["switchboard"], rates["floor"])
        report.at_least(f"share of the floor at {clients} clients", share, TARGETS[clients])
        if "pgmq" in rates:
            lead = ratio(rates["switchboard"], rates["pgmq"])
            report.at_least(f"times pgmq at {clients} clients", lead, 1.0)
