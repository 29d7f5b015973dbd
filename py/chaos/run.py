"""One run: everything is made, started, broken, healed, drained and judged."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import psycopg

from chaos import load
from chaos.classify import classify
from chaos.cluster import Cluster
from chaos.facts import Facts, Row, gather
from chaos.hands import SqlHands
from chaos.history import Writer, read_all
from chaos.processes import Server
from chaos.scenario import ALWAYS, Scenario
from chaos.stage import Stage
from chaos.verdict import UNEXPECTED, Verdict

SAMPLE_SECONDS = 0.2
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
    """Looks at what is claimed, and who listens, while the faults go on."""

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
                    self.samples += admin.execute(SAMPLE).fetchall()
                    self.listeners |= {row["pid"] for row in admin.execute(LISTENERS).fetchall()}
            self.over.wait(SAMPLE_SECONDS)

    def end(self) -> None:
        """End it; returns when it has."""
        self.over.set()
        self.join(30)


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
        finally:
            watcher.end()
        if scenario.heal is not None:
            scenario.heal(stage)
        stage.heal()
        stage.say("healed; now everything is drained")
        raised_at = drain(stage)
        for process in (stage.server, *stage.clients):
            process.note_death()
        for client in stage.clients:
            client.kill()
        with stage.postgres.admin() as admin:
            facts = gather(admin)
        facts.samples, facts.budgets = watcher.samples, dict(stage.place.budgets)
        facts.raised_at = raised_at
        verdict = judged(stage, facts, watcher)
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


def drain(stage: Stage) -> object:
    """Raise the budgets, stop the producers, and go on until everything is done or dead.

    What is parked is retried by an operator, whose calls have a history like everybody's. Returns
    the database's time when the budgets were raised; that something is left when the time is over
    is for the judge to say.
    """
    for producer in stage.producers:
        producer.note_death()  # from now on it may end
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
    verdict = classify(read_all(stage.folder), facts, scenario.allows, scenario.warns)
    verdict.coverage.update(stage.seen)
    if len(watcher.listeners) > 1:
        verdict.coverage["relisten"] += len(watcher.listeners) - 1
    for name in (*ALWAYS, *scenario.provokes):
        if not verdict.coverage[name]:
            verdict.missing.append(name)
    return verdict
