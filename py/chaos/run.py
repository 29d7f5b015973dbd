"""One run: everything is made, started, broken, healed, drained and judged."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import LiteralString

import psycopg

from chaos import load, server_log
from chaos.classify import classify
from chaos.cluster import Cluster
from chaos.facts import Facts, Row, gather
from chaos.hands import SqlHands
from chaos.history import Writer, read_all
from chaos.processes import Client, Server
from chaos.scenario import ALWAYS, Scenario
from chaos.stage import Stage
from chaos.verdict import UNEXPECTED, Verdict

SAMPLE_SECONDS = 0.2
RECOVER_SECONDS = 30.0  # until everybody is served again; longer where the machine is busy
HANG_SECONDS = 60.0  # in which every client has an answer to what it asks
LEAVE_SECONDS = 30.0  # for the producers, when the drain begins
SAMPLE: LiteralString = (
    "select t.queue, t.endpoint_id::text as endpoint, count(*) as claimed from switchboard.todos t"
    " where t.state = 'claimed' group by 1, 2"
)
LISTENERS: LiteralString = (
    "select pid from pg_stat_activity where application_name = 'switchboard'"
    " and query ~* '^(un)?listen'"
)
OPEN: LiteralString = (
    "select count(*) as n, count(*) filter (where state = 'failed') as parked"
    " from switchboard.todos where completed_at is null"
)
PARKED: LiteralString = (
    "select endpoint_id::text, id::text from switchboard.todos"
    " where completed_at is null and state = 'failed' limit 50"
)
SWEEPS: tuple[LiteralString, ...] = (
    "select switchboard.tick()",
    "select * from switchboard.reap_expired()",
    "select * from switchboard.requeue_due_retries()",
)


class Watcher(threading.Thread):
    """Looks at what is claimed, and who listens, until everybody is served again."""

    def __init__(self, postgres: Cluster) -> None:
        super().__init__(daemon=True)
        self.postgres = postgres
        self.samples: list[Row] = []
        self.listeners: set[int] = set()
        self.over = threading.Event()

    def run(self) -> None:
        """Sample until told to end; a lost connection is made again."""
        while not self.over.is_set():
            with contextlib.suppress(psycopg.Error), self.postgres.admin() as admin:
                while not self.over.wait(SAMPLE_SECONDS):
                    self.look(admin)
            self.over.wait(SAMPLE_SECONDS)

    def look(self, admin: psycopg.Connection[Row]) -> None:
        """Look once."""
        self.samples += admin.execute(SAMPLE).fetchall()
        self.listeners |= {row["pid"] for row in admin.execute(LISTENERS).fetchall()}

    def end(self) -> None:
        """End it, with a last look; returns when it has."""
        self.over.set()
        self.join(30)
        with contextlib.suppress(psycopg.Error), self.postgres.admin() as admin:
            self.look(admin)


def run(
    scenario: Scenario, seed: int, seconds: float, folder: Path, template: Path, kind: str
) -> Verdict:
    """Run a scenario once, in a folder of its own.

    Args:
        scenario: what is to go wrong.
        seed: what random choices follow from.
        seconds: how long it goes wrong.
        folder: new; histories, logs and data lie there and stay.
        template: data of a migrated cluster.
        kind: of that cluster, ``embedded`` or ``debian``.

    Raises:
        Exception: it could not be run to its end, which is a fault, too.
    """
    with staged(scenario, seed, seconds, folder, template, kind) as stage:
        watcher = Watcher(stage.postgres)
        watcher.start()
        try:
            stage.start_clients()
            stage.wait_acting()
            stage.begin()
            scenario.act(stage)
            if scenario.heal is not None:
                scenario.heal(stage)
            away = recover(stage)
        finally:
            watcher.end()
        stage.say("healed; now everything is drained")
        raised_at = drain(stage)
        hanging = waiting(stage.workers, HANG_SECONDS * busy())
        for process in (stage.server, *stage.clients):
            process.note_death()
        for client in stage.clients:
            client.kill()
        with stage.postgres.admin() as admin:
            facts = gather(admin)
        facts.samples, facts.budgets = watcher.samples, dict(stage.place.budgets)
        facts.raised_at = raised_at
        verdict = judged(stage, facts, watcher)
        for sentence in away:
            verdict.wrong(UNEXPECTED, sentence)
        for client in hanging:
            verdict.wrong(UNEXPECTED, f"{client.name} hangs at the end of the drain")
        for process in (stage.server, *stage.clients):
            if process.deaths:
                verdict.wrong(UNEXPECTED, f"{process.output.stem} ended by itself: see its log")
        return verdict


@contextlib.contextmanager
def staged(
    scenario: Scenario, seed: int, seconds: float, folder: Path, template: Path, kind: str
) -> Iterator[Stage]:
    """PostgreSQL and the server running, the clients made, ``prepare`` called; ends all of it."""
    folder.mkdir(parents=True)
    postgres = Cluster(folder, kind, scenario.postgres)
    server = Server(folder, {"DATABASE_URL": postgres.url("gateway"), **scenario.server})
    stage = Stage(scenario, seed, seconds, folder, postgres, server)
    try:
        postgres.copy_from(template)
        postgres.start()
        server.start()
        server.wait_ready()
        with postgres.admin() as admin:
            stage.place = load.set_up(admin, server.url)
        urls = {"url": postgres.url("operator"), "server": server.url}
        stage.workers, stage.producers = load.clients(
            folder, stage.place, urls, seed, scenario.workers, scenario.producers
        )
        if scenario.prepare is not None:
            scenario.prepare(stage)
        yield stage
    finally:
        stage.end_all()


def busy() -> float:
    """By how much a promised time may be exceeded now: 1 on a machine that does nothing else."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def recover(stage: Stage) -> list[str]:
    """Heal everything, and see that the server is ready and each client served again soon.

    Returns:
        What took too long, in sentences.
    """
    begun, late = time.monotonic(), []
    stage.heal()
    if (took := time.monotonic() - begun) > (most := RECOVER_SECONDS * busy()):
        late.append(f"the server was ready after {took:.0f} s, not within {most:.0f}")
    running = [client for client in stage.clients if client.runs]
    most = RECOVER_SECONDS * busy()
    unserved = waiting(running, most, b'"end":"ok"')
    return late + [f"{c.name} was not served for {most:.0f} s after the healing" for c in unserved]


def waiting(clients: Iterable[Client], seconds: float, way: bytes = b'"end":') -> list[Client]:
    """The clients of which no call ends this way, though they are waited for.

    Args:
        clients: that run.
        seconds: how long to wait, all in all.
        way: as for ``Client.ended_a_call``.
    """
    left = [(client, client.size) for client in clients]
    end = time.monotonic() + seconds
    while left and time.monotonic() < end:
        left = [(client, size) for client, size in left if not client.ended_a_call(size, way)]
        time.sleep(0.1)
    return [client for client, _ in left]


def drain(stage: Stage) -> object:
    """Raise the budgets, stop the producers, and go on until everything is done or dead.

    What is parked is retried by an operator, whose calls have a history like everybody's. Returns
    the database's time when the budgets were raised; that something is left when the time is over
    is for the judge to say.
    """
    for producer in stage.producers:
        producer.note_death()
        producer.wanted = False  # from now on it may end
    (stage.folder / "drain").touch()
    end = time.monotonic() + LEAVE_SECONDS
    for producer in stage.producers:
        while producer.runs and time.monotonic() < end:
            time.sleep(0.1)
        producer.kill()
    writer = Writer(stage.folder / "operator.jsonl", "operator", "operator")
    hands = SqlHands({"url": stage.postgres.url("operator")}, "operator")
    with stage.postgres.admin() as admin:
        raised_at: object = admin.execute("select switchboard.now() as at").fetchall()[0]["at"]
        load.set_budgets(admin, stage.place, load.raised(stage.place.budgets))
        left = admin.execute(OPEN).fetchall()[0]
        stage.say(f"{left['n']} todos are open, {left['parked']} of them parked")
        end = time.monotonic() + 90 + left["n"] / 5
        quiet = 0  # looks in a row that found nothing: what a killed producer sent may still come
        while quiet < 3 and time.monotonic() < end:
            for todo in admin.execute(PARKED).fetchall():
                args = {"endpoint": todo["endpoint_id"], "todo": todo["id"]}
                hands.open(args)
                n = writer.begin("retry", **args)
                outcome = hands.call("retry", args)
                writer.end(n, outcome.end, outcome.code, {"todos": outcome.todos})
            for sweep in SWEEPS:
                admin.execute(sweep)
            time.sleep(0.5)
            for client in stage.workers:
                client.start()
            left = admin.execute(OPEN).fetchall()[0]
            quiet = 0 if left["n"] else quiet + 1
    stage.say(f"drained: {left['n']} todos are open")
    return raised_at


def judged(stage: Stage, facts: Facts, watcher: Watcher) -> Verdict:
    """Read the histories and judge, and ask for what the scenario was made to provoke."""
    scenario = stage.scenario
    killed = {client.name: client.ended for client in stage.clients}
    verdict = classify(read_all(stage.folder), facts, scenario.allows, scenario.warns, killed)
    with stage.server.output.open(errors="replace") as lines:
        server_log.judge(lines, scenario.logs, verdict)
    verdict.coverage.update(stage.seen)
    if len(watcher.listeners) > 1:
        verdict.coverage["relisten"] += len(watcher.listeners) - 1
    for name in (*ALWAYS, *scenario.provokes):
        if not verdict.coverage[name]:
            verdict.missing.append(name)
    return verdict
