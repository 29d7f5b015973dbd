"""kill -9 of the server, of workers and of PostgreSQL under load: what was acknowledged holds.

The load: a sender of signed deliveries, two workers over SQL and one over MCP (chaos_load.py).
SWITCHBOARD_CHAOS_ROUNDS (20) says how often something is killed, the three kinds in turn.

A database of its own is killed: that of `switchboard up`. Elsewhere are: SIGTERM with open leases
and streams (test_gateway.py::test_sigterm_with_open_streams_and_leases_ends_within_five_seconds);
`up` again after kill -9 (test_cli.py::test_up_again_after_any_death_shows_the_same, and
test_embedded.py::test_killed_holder_leaves_a_folder_that_starts for both processes in any order).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, LiteralString

import httpx2
import psutil
import psycopg
import pytest
from chaos_load import Sender
from chaos_sessions import Row, Session
from conftest import RawSession, Sql, free_port, until

ROUNDS = int(os.environ.get("SWITCHBOARD_CHAOS_ROUNDS", "20"))
SECRET = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
PROGRAM = str(Path(__file__).with_name("chaos_load.py"))
TODOS: LiteralString = (
    "select id, state::text, claims, created_at, completed_at from switchboard.todos"
)
EVENTS: LiteralString = "select delivery_id, todo_id from switchboard.events order by id"
HISTORY: LiteralString = (
    "select todo_id, seq, claimed_at, ended_at, outcome, state::text from switchboard.todo_attempts"
)
LIVE: LiteralString = (
    "select from switchboard.todos where state in ('pending', 'claimed') or due_at is not null"
)
LISTENING: LiteralString = (
    "select from pg_stat_activity where application_name = 'switchboard' and state = 'idle'"
    " and query ~* '^(un)?listen|^select 1$'"
)


class Worker:
    """A worker's process; its journal outlives it."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.journal = folder / f"{name}.journal"
        self.journal.touch()
        self.command = [
            sys.executable,
            PROGRAM,
            str(self.journal),
            *arguments,
        ]
        self.output = folder / f"{name}.log"
        self.start()

    def start(self) -> None:
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output)

    def kill(self) -> None:
        assert self.process.poll() is None, self.output.read_text()
        self.process.kill()
        self.process.wait(10)

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()

    def entries(self, what: str) -> list[Row]:
        lines = self.journal.read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["what"] == what]

    def done(self) -> int:
        return self.journal.read_bytes().count(b'"complete"')


class Server(Worker):
    """`switchboard serve`, always on the same port."""

    def __init__(self, folder: Path, dsn: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        settings = {"DATABASE_URL": dsn, "PORT": str(port), "SECRET_KEY": SECRET, "DATA": "none"}
        rates = dict.fromkeys(("MCP_RATE", "MCP_BURST", "WEBHOOK_RATE", "WEBHOOK_BURST"), "100000")
        more = {**settings, **rates, "TICK_INTERVAL": "1", "LOG_LEVEL": "warning"}
        self.env = {**os.environ, **{f"SWITCHBOARD_{name}": value for name, value in more.items()}}
        self.output = folder / "server.log"
        self.http = httpx2.Client(timeout=10)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "switchboard", "serve"]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(command, env=self.env, stdout=output, stderr=output)

    def end(self) -> None:
        super().end()
        self.http.close()

    def is_ready(self) -> bool:
        try:
            answer = self.http.get(f"{self.url}/readyz").json()
        except httpx2.TransportError:
            return False
        return bool((answer["status"], answer["listener"]) == ("ready", "listening"))


class Postgres:
    """The embedded database, which is started again by itself."""

    def __init__(self, cluster: Any) -> None:
        from switchboard.embedded_make import SUPERUSER

        self.cluster, self.url = cluster, cluster.url(SUPERUSER)

    def ask(self, query: LiteralString) -> list[Row]:
        with contextlib.closing(Session(self.url).connection) as connection:
            return connection.execute(query).fetchall()

    def kill(self) -> None:
        """The postmaster, or each of its processes; returns when it answers again."""
        old = psutil.Process(self.cluster.pid)
        others = old.children(recursive=True) if random.randrange(2) else []
        for process in (old, *others):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        until(
            lambda: self.cluster.pid != old.pid and self.hears(), "it is back and listened to", 60
        )

    def hears(self) -> bool:
        """Whether the server's listener has connected since."""
        with contextlib.suppress(psycopg.OperationalError):
            return bool(self.ask(LISTENING))
        return False


@pytest.fixture
def postgres(cluster_url: str) -> Iterator[Postgres]:
    from switchboard.datafolder import DataFolder
    from switchboard.embedded import Cluster
    from switchboard.embedded_make import SUPERUSER
    from switchboard.migrate import migrate

    with psycopg.connect(cluster_url) as connection:
        if connection.info.server_version < 180000:
            pytest.skip("runs beside the embedded PostgreSQL 18; what it kills is one, too")
    with tempfile.TemporaryDirectory(prefix="sb-test-") as name:
        folder = DataFolder(Path(name) / "data")
        folder.make()
        with folder.locked():
            cluster = Cluster(folder, lambda _: None)
            try:
                cluster.start()
                migrate(cluster.url(SUPERUSER), lambda _: None)
                cluster.make_logins()
                yield Postgres(cluster)
            finally:
                cluster.stop()


@pytest.fixture
def scene(postgres: Postgres, tmp_path: Path) -> Iterator[tuple[Server, list[Worker], Sender]]:
    """The load on that database, running."""
    operator = Sql(postgres.url)
    with operator.connection:
        endpoint = operator.vend("chaos", verbs=["claim_next", "complete", "create_webhook"])
    with contextlib.ExitStack() as stack:
        server = Server(tmp_path, postgres.cluster.url("gateway"))
        stack.callback(server.end)
        until(server.is_ready, "the server is ready", 60)
        mcp = RawSession(server.url, endpoint)
        stack.callback(mcp.http.close)
        hook = mcp.call("create_webhook", source_type="github", target_queue="inbox")
        access = (server.url, endpoint.slug, endpoint.credential)
        workers: list[Worker] = []
        for name, *how in (
            ("first", "sql", postgres.url, endpoint.id),
            ("second", "sql", postgres.url, endpoint.id),
            ("agent", "mcp", *access),
        ):
            workers.append(Worker(tmp_path, name, *how))
            stack.callback(workers[-1].end)
        sender = Sender(hook["ingest_url"], hook["signing_secret"], lambda: done(workers))
        sender.start()
        stack.callback(sender.end)
        yield server, workers, sender


@pytest.mark.timeout(ROUNDS * 60 + 300)
def test_fault_53_what_was_acknowledged_survives_kill_9(
    postgres: Postgres, scene: tuple[Server, list[Worker], Sender]
) -> None:
    server, workers, sender = scene
    for number in range(ROUNDS):
        wait_for_work(workers, sender)
        victim = ("server", "worker", "postgres")[number % 3]
        if victim == "postgres":
            postgres.kill()
        else:
            process = server if victim == "server" else workers[number // 3 % len(workers)]
            process.kill()
            process.start()
        until(server.is_ready, f"the server is ready after the {victim} was killed", 60)
        ended = f"{victim} killed, {done(workers)} todos done"
        sys.stdout.write(f"round {number + 1} of {ROUNDS}: {ended}\n")
        sys.stdout.flush()
    wait_for_work(workers, sender)
    sender.end()
    until(lambda: not postgres.ask(LIVE), "nothing is pending or claimed", 60)
    for worker in workers:
        worker.kill()
    assert not sender.strange
    judge(postgres, workers, sender.taken)


def done(workers: list[Worker]) -> int:
    """How many completes were acknowledged."""
    return sum(worker.done() for worker in workers)


def wait_for_work(workers: list[Worker], sender: Sender) -> None:
    """Until each has got on by some todos: the load is there, and everybody has recovered."""
    wanted = [worker.done() + random.randrange(2, 8) for worker in workers]
    sent = len(sender.taken) + random.randrange(5, 15)

    def all_got_on() -> bool:
        for worker in workers:
            assert worker.process.poll() is None, worker.output.read_text()
        there = [worker.done() for worker in workers]
        return len(sender.taken) >= sent and all(map(int.__ge__, there, wanted))

    until(all_got_on, "the sender and each worker get on", 60)


def judge(postgres: Postgres, workers: list[Worker], taken: dict[str, str]) -> None:
    """Compare what was acknowledged with what is stored."""
    todos = {str(row["id"]): row for row in postgres.ask(TODOS)}
    history = {(str(row["todo_id"]), row["seq"]): row for row in postgres.ask(HISTORY)}
    claims, completes, refused, creates = (
        [entry for worker in workers for entry in worker.entries(what)]
        for what in ("claim", "complete", "refused", "create")
    )
    # What was created is there. A delivery that had to be sent again may find its todo done, and
    # makes another (it is deduplicated among live ones), at most one for each kill.
    assert {entry["id"] for entry in creates} <= todos.keys()
    lives: dict[str, list[Row]] = {}
    for row in postgres.ask(EVENTS):
        lives.setdefault(row["delivery_id"], []).append(todos[str(row["todo_id"])])
    for delivery, todo in taken.items():
        assert todo in [str(life["id"]) for life in lives[delivery]]
    assert sum(map(len, lives.values())) <= len(taken) + ROUNDS
    # One holder at a time, by the history, which is whole.
    assert {row["state"] for row in todos.values()} == {"done"}
    for todo, row in todos.items():
        attempts = [history[todo, seq] for seq in range(1, row["claims"] + 1)]
        outcomes = [attempt["outcome"] for attempt in attempts]
        assert outcomes == ["lapsed"] * (len(attempts) - 1) + ["done"]
        for one, following in pairwise(attempts):  # of a sweep's clock a claim may not know yet
            assert one["state"] == "pending" or one["ended_at"] <= following["claimed_at"]
    assert len(history) == sum(row["claims"] for row in todos.values())
    # And by what the workers were told.
    held = {entry["token"]: (entry["id"], entry["seq"]) for entry in claims}
    assert len(held) == len(set(held.values())) == len(claims), "one lease went to two workers"
    for entry in claims:
        attempt = history[held[entry["token"]]]
        lapsed = attempt["outcome"] == "lapsed"
        assert not lapsed or attempt["ended_at"] >= datetime.fromisoformat(entry["until"])
    for entries, outcome in ((completes, "done"), (refused, "lapsed")):
        for entry in entries:
            assert history[held[entry["token"]]]["outcome"] == outcome, (entry, outcome)
    assert max(Counter(entry["id"] for entry in completes).values()) == 1
    assert refused, "no lease lapsed: the load does not test what it should"
    assert postgres.ask("select * from switchboard.unsound_todos()") == []
