"""A worker: claims, and then mostly completes, sometimes fails, keeps, forgets, gives back.

Options (JSON, over those of ``load``):
    url, server     where PostgreSQL and the HTTP server are
    endpoints       [{id, slug, credential}]: all of them are worked on
    rate            calls a second, at most
    leases          seconds that a claim asks for, one of these
    isolation       of SQL transactions; statement_timeout, lock_timeout: as PostgreSQL takes them
    prepare         false: no prepared statements (a transaction pooler)
    timeout         seconds that an HTTP call may take
    overrides       whether it sometimes acts as the operator on what others hold
    twice           whether its requests are sent twice on their way
    seed, folder    of the run

While a file ``drain`` lies in the folder it only completes.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.doubled import doubled
from chaos.hands import Hands, McpHands, NotThere, Outcome, Row, SqlHands
from chaos.history import OK, Writer

POISON = "poison"


@dataclass
class Lease:
    """What a claim gave."""

    endpoint: Row
    todo: str
    token: str
    seconds: int
    attempt: int
    most: int
    kind: str | None


class Worker:
    """One worker's process.

    Args:
        kind: ``sql`` or ``mcp``.
        history: of this client.
        options: see above.
    """

    def __init__(self, kind: str, history: Path, options: Row) -> None:
        self.options = options
        owner = history.stem
        self.writer = Writer(history, history.stem, owner)
        self.random = random.Random(f"{options['seed']} {history.stem} {self.writer.start}")  # noqa: S311
        self.sql = kind == "sql"
        self.hands: Hands = SqlHands(options, owner) if self.sql else McpHands(options, owner)
        if options.get("twice"):
            self.hands = doubled(self.hands, history)
        self.drain = Path(options["folder"]) / "drain"
        self.later: list[tuple[float, int, str, Lease]] = []
        self.numbers = itertools.count()
        self.beat = 1 / float(options["rate"])
        self.next_call = time.monotonic()

    def run(self) -> None:
        """Work until killed."""
        while True:
            endpoint = self.random.choice(self.options["endpoints"])
            try:
                self.hands.open(endpoint)
                self.step(endpoint)
            except NotThere:
                time.sleep(0.2)

    def step(self, endpoint: Row) -> None:
        """Do what is due, else claim and decide."""
        if self.later and self.later[0][0] <= time.monotonic():
            _, _, what, lease = heapq.heappop(self.later)
            self.hands.open(lease.endpoint)
            self.act(what, lease)
            return
        if self.options.get("overrides") and not self.draining and self.random.random() < 0.02:
            self.override(endpoint)
        leases = self.claim(endpoint)
        if len(leases) > 1 and self.random.random() < 0.6:
            self.complete_batch(leases)
            return
        for lease in leases:
            self.decide(lease)

    @property
    def draining(self) -> bool:
        """Whether all faults are over and the rest is to be done."""
        return self.drain.exists()

    # -- calls ------------------------------------------------------------------------------------

    def call(self, op: str, **args: Any) -> Outcome:
        """Make a call, with a line before and one after it, not faster than the rate."""
        wait = self.next_call - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        self.next_call = max(self.next_call, time.monotonic()) + self.beat
        if self.options.get("twice"):
            args["twice"] = True
        n = self.writer.begin(op, **args)
        outcome = self.hands.call(op, args)
        answer = {"todos": outcome.todos} if outcome.end == OK else None
        self.writer.end(n, outcome.end, outcome.code, answer)
        return outcome

    def claim(self, endpoint: Row) -> list[Lease]:
        """Claim one, a named one, or a few."""
        seconds = self.random.choice(self.options["leases"])
        args: Row = {"endpoint": endpoint["id"], "lease": seconds}
        if not self.sql:
            args["owner"] = f"agent:{endpoint['slug']}"
        way = self.random.random()
        if self.sql and way < 0.1:
            args["limit"] = self.random.randint(2, 3)
        elif self.sql and way < 0.25 and (ids := self.named(endpoint)):
            args["todo"] = self.random.choice(ids[:4])
        elif way < 0.4:
            args["queues"] = self.random.sample(self.options["queues"], 2)
        outcome = self.call("claim", **args)
        if outcome.end == OK and not outcome.todos and not self.draining:
            time.sleep(self.random.uniform(0.05, 0.3))
        return [
            Lease(endpoint, str(t["id"]), t["lease_token"], seconds, t["attempt"],
                  t["max_attempts"], t.get("kind"))
            for t in outcome.todos
        ]  # fmt: skip

    def named(self, endpoint: Row) -> list[str]:
        """What a claim may name: what waits, or what somebody holds, which has to be refused."""
        return self.hands.look(endpoint, self.random.choice(("pending", "claimed")))

    def decide(self, lease: Lease) -> None:
        """What is to become of it."""
        draw = self.random.random()
        if lease.kind == POISON:
            if lease.attempt >= lease.most:
                self.act("fail", lease)
            elif self.draining or draw < 0.5:
                self.act("release", lease)
            return  # else it is forgotten
        if self.draining or draw < 0.55:
            self.act("complete", lease)
        elif draw < 0.65:
            self.act("fail", lease)
        elif draw < 0.72:
            self.act("release", lease)
        elif draw < 0.87:  # the lease is over by then, and perhaps another's
            self.put(lease.seconds * self.random.uniform(1.1, 1.8), "complete", lease)
        elif draw < 0.95:
            self.put(lease.seconds * 0.6, "heartbeat", lease)
        # else it is forgotten

    def act(self, what: str, lease: Lease) -> None:
        """Call a verb on a lease."""
        args: Row = {"endpoint": lease.endpoint["id"], "todo": lease.todo}
        if what == "retry":  # which may bring a dead letter back: not when all is to end
            if not self.draining:
                self.call("retry", **args)
            return
        args["token"] = lease.token
        if what == "heartbeat":
            outcome = self.call(what, **args, lease=lease.seconds)
            again = self.random.choice(("heartbeat", "complete", "complete"))
            if outcome.end == OK:
                self.put(lease.seconds * 0.6, again, lease)
            return
        if what in ("complete", "fail"):
            args["result"] = {"token": lease.token}
        outcome = self.call(what, **args)
        if outcome.end not in (OK, "refused") and self.random.random() < 0.5:
            self.put(0.3, what, lease)  # a client that tries again when it had no answer
        elif what == "fail" and outcome.end == OK and self.random.random() < 0.6:
            self.put(self.random.uniform(0.2, 1.5), "retry", lease)

    def complete_batch(self, leases: list[Lease]) -> None:
        """Complete several in one call."""
        self.call(
            "complete_batch",
            endpoint=leases[0].endpoint["id"],
            todos=[lease.todo for lease in leases],
            tokens=[lease.token for lease in leases],
        )

    def override(self, endpoint: Row) -> None:
        """Release or complete what somebody holds, as an operator may."""
        if ids := self.hands.look(endpoint, "claimed"):
            op = self.random.choice(("force_release", "force_complete"))
            self.call(op, endpoint=endpoint["id"], todo=self.random.choice(ids))

    def put(self, seconds: float, what: str, lease: Lease) -> None:
        """Do it in so many seconds."""
        heapq.heappush(self.later, (time.monotonic() + seconds, next(self.numbers), what, lease))
