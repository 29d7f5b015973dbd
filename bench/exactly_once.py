"""64 clients claim 10,000 todos: each is handed out exactly once, and no claim waits for another.

Two kinds of rounds: claims only, where all clients stand at the head of one queue, and claims each
followed by a complete with the id and lease token just received. Meanwhile pg_stat_activity is
looked at every 10 ms from a connection of its own; rounds are repeated, each on a new endpoint,
until there are enough looks.

Only waits of the claims are judged. A complete now and then waits for a claimer that looked at the
todo while it was still pending: SKIP LOCKED locks the newest version of a row before it sees that
the row no longer matches, and keeps that lock until it commits.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.cluster import Cluster, cluster
from bench.pgbench import run
from bench.product import LOGIN, Product, install, make_login
from bench.report import Cell, Report, progress

if TYPE_CHECKING:
    from bench.options import Options

CLIENTS = 64
TODOS = 10_000
EVERY = 0.010
SAMPLES = 500
WAITING = 0.01
MAX_ROUNDS = 40

CLAIM = """\
select count(*) as got, coalesce(max(id::text), '') as id, coalesce(max(lease_token), '') as token \
from switchboard.claim_next(p_endpoint_id => :endpoint, p_owner => 'bench-' || :client_id, \
p_queues => :queues::text[]) \\gset
"""
COMPLETE = """\
\\if :got
select state from switchboard.complete(p_endpoint_id => :endpoint, p_id => :id, \
p_owner => 'bench-' || :client_id, p_lease_token => :token);
\\endif
"""
KINDS = {"claim": CLAIM, "claim and complete": CLAIM + COMPLETE}


class Sampler:
    """Looks at what the clients' sessions are doing.

    Attributes:
        samples: looks at which at least one client was active.
        active: active sessions, summed over the looks.
        waiting: those of them waiting for a heavyweight lock.
        waits: the same by what they waited for, light locks and input/output included.
    """

    def __init__(self) -> None:
        self.samples = self.active = self.waiting = 0
        self.waits: Counter[str] = Counter()

    @contextmanager
    def watch(self, server: Cluster) -> Iterator[None]:
        ended = threading.Event()
        thread = threading.Thread(target=self._look, args=(server, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _look(self, server: Cluster, ended: threading.Event) -> None:
        query = f"""select coalesce(wait_event_type || ':' || wait_event, 'running'), count(*)
                      from pg_stat_activity
                     where usename = '{LOGIN}' and state = 'active' group by 1"""
        with server.connect() as connection:
            due = time.monotonic()
            while not ended.is_set():
                found = {str(name): int(str(count)) for name, count in connection.execute(query)}
                if found:
                    self.samples += 1
                    self.active += sum(found.values())
                    self.waiting += sum(n for name, n in found.items() if name[:5] == "Lock:")
                    self.waits.update(found)
                due = max(due + EVERY, time.monotonic())
                ended.wait(max(0.0, due - time.monotonic()))


def measure(options: Options) -> bool:
    """Run the benchmark; returns whether the promises were kept."""
    report = Report("exactly-once", options.quick)
    wanted = 50 if options.quick else SAMPLES
    rows: list[list[Cell]] = []
    samplers: list[Sampler] = []
    with cluster(options.server or "15") as server:
        make_login(server)
        product = install(server)
        for kind, script in KINDS.items():
            sampler, rounds, wrong, rates = Sampler(), 0, 0, 0.0
            samplers.append(sampler)
            while sampler.samples < wanted and rounds < MAX_ROUNDS:
                rounds += 1
                endpoint = product.vend(f"{kind.replace(' ', '-')}-{rounds}", ["bench"])
                product.fill(endpoint, ["bench"], TODOS)
                product.settle()
                load = product.load(kind, script, endpoint, ["bench"])
                with sampler.watch(server):
                    # A few calls more than todos: the last ones find the queue empty.
                    each = TODOS // CLIENTS + 2
                    rates += run(server, load, CLIENTS, cycles_each=each).rate
                wrong += TODOS - _handed_out_once(product, endpoint, kind)
                progress(f"{kind}, round {rounds}: {sampler.samples} of {wanted} samples")
            share = sampler.waiting / max(1, sampler.active)
            rows.append([kind, rounds, rates / rounds, wrong, sampler.samples, sampler.active,
                         sampler.waiting, 100 * share])  # fmt: skip
            report.at_most(f"{kind}: todos not handed out exactly once", wrong, 0)
            report.at_least(f"{kind}: samples", sampler.samples, wanted)
            if kind == "claim":
                report.at_most(
                    f"{kind}: share of active sessions waiting for a lock", share, WAITING
                )
    report.table(
        f"{CLIENTS} clients, {TODOS} todos a round",
        ["", "rounds", "calls/s", "wrong", "samples", "active", "lock waits", "%"],
        rows,
    )
    report.table(
        "what active sessions waited for, %",
        ["", *KINDS],
        [
            [wait, *(100 * sampler.waits[wait] / max(1, sampler.active) for sampler in samplers)]
            for wait, _ in (samplers[0].waits + samplers[-1].waits).most_common(10)
        ],
    )
    return report.close()


def _handed_out_once(product: Product, endpoint: str, kind: str) -> int:
    """How many todos of the endpoint were claimed once and, where that follows, ended once."""
    with product.cluster.connect(product.database) as admin:
        row = admin.execute(
            """select count(*) filter (where t.claims = 1 and t.attempt = 1
                   and case when %s then t.state = 'done' and a.ended = 1 and a.outcome = 'done'
                            else t.state = 'claimed' and a.ended = 0 end)
                 from switchboard.todos t,
                      lateral (select count(*) as ended, min(outcome) as outcome
                                 from switchboard.todo_attempts a
                                where a.endpoint_id = t.endpoint_id and a.todo_id = t.id) a
                where t.endpoint_id = %s""",
            ["complete" in kind, endpoint],
        ).fetchone()
    return int(str(row[0])) if row else 0
