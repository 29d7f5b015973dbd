"""kill -9 of the server, of workers and of PostgreSQL under load: what was acknowledged holds.

Run as a program, this file is one of the workers. They are processes, write what was acknowledged
to them into a journal each, and share an owner, so that only the token tells their leases apart;
some todos they keep until the lease has lapsed, to be refused. SWITCHBOARD_CHAOS_ROUNDS (20) says
how often something is killed.

A database of its own is killed: that of `switchboard up`. Elsewhere are: SIGTERM with open leases
and streams (test_gateway.py::test_sigterm_with_open_streams_and_leases_ends_within_five_seconds);
`up` again after kill -9 (test_cli.py::test_up_again_after_any_death_shows_the_same, and
test_embedded.py::test_killed_holder_leaves_a_folder_that_starts for both processes in any order).
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import hmac
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, LiteralString, Protocol

import httpx2
import psutil
import psycopg
import pytest
from chaos_sessions import COMPLETE, Conflict, Row, Session
from conftest import Endpoint, RawSession, Sql, free_port, until

ROUNDS = int(os.environ.get("SWITCHBOARD_CHAOS_ROUNDS", "20"))
LEASE = 1
OWNER = "agent:chaos"
SECRET = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
AHEAD = 60  # todos that nobody has completed yet, about
CLAIM: LiteralString = "select * from switchboard.claim_next(%s, %s, null, %s)"
CREATE: LiteralString = "select id from switchboard.create_todo(%s, 'inbox', 'made by a worker')"


class Lost(Exception):  # noqa: N818 (what the worker meets on purpose)
    """No answer: whether it was done is not known."""


class Hands(Protocol):
    """How a worker reaches the queue."""

    def claim(self) -> Row | None: ...

    def complete(self, todo: str, token: str) -> bool: ...

    def create(self) -> str | None: ...

    def close(self) -> None: ...


class SqlHands:
    def __init__(self, dsn: str, endpoint: str) -> None:
        self.endpoint = endpoint
        with lost_if(psycopg.OperationalError):
            self.session = Session(dsn)

    def claim(self) -> Row | None:
        with lost_if(psycopg.OperationalError):
            return next(iter(self.session.rows(CLAIM, self.endpoint, OWNER, LEASE)), None)

    def complete(self, todo: str, token: str) -> bool:
        with lost_if(psycopg.OperationalError), contextlib.suppress(Conflict):
            self.session.rows(COMPLETE, self.endpoint, todo, OWNER, None, token)
            return True
        return False

    def create(self) -> str | None:
        with lost_if(psycopg.OperationalError):
            return str(self.session.row(CREATE, self.endpoint)["id"])

    def close(self) -> None:
        self.session.connection.close()


class McpHands:
    def __init__(self, url: str, slug: str, credential: str) -> None:
        self.session = RawSession(url, Endpoint("", slug, credential), start=False)
        with lost_if(httpx2.TransportError, AssertionError):
            self.session.start()

    def call(self, tool: str, **arguments: Any) -> Any:
        request = self.session.request("tools/call", {"name": tool, "arguments": arguments})
        with lost_if(httpx2.TransportError):
            response = self.session.post(request)
        if response.status_code in (404, 503):  # the session of a server before; no database
            raise Lost
        content = response.json()["result"]["structuredContent"]
        if content.get("error", {}).get("code") == "unavailable":
            raise Lost
        return content

    def claim(self) -> Row | None:
        content: Row = self.call("claim_next", lease_ttl_seconds=LEASE)
        return content.get("todo")

    def complete(self, todo: str, token: str) -> bool:
        content = self.call("complete", id=todo, lease_token=token)
        assert content.get("error", {}).get("code") in (None, "conflict"), content
        return "error" not in content

    def create(self) -> str | None:
        return None

    def close(self) -> None:
        self.session.http.close()


HANDS = {"sql": SqlHands, "mcp": McpHands}


@contextlib.contextmanager
def lost_if(*errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise Lost from error


def work(journal: Path, kind: str, *arguments: str) -> None:
    """Claim, write it down, complete, write it down, until killed."""
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    kept: list[tuple[float, str, str]] = []
    hands: Hands | None = None

    def note(what: str, todo: str, token: str = "", **facts: Any) -> None:
        entry = {"what": what, "id": todo, "token": token, **facts}
        os.write(file, (json.dumps(entry, default=str) + "\n").encode())

    def end(own: Hands, todo: str, token: str) -> None:
        note("complete" if own.complete(todo, token) else "refused", todo, token)

    def step(own: Hands) -> bool:
        if kept and kept[0][0] <= time.monotonic():
            _, *ended = heapq.heappop(kept)
            end(own, *ended)
            return True
        row = own.claim()
        if row is None:
            return False
        todo, token, attempt = row["id"], row["lease_token"], row["attempt"]
        note("claim", todo, token, seq=attempt, until=row["lease_expires_at"])
        if attempt == 1 and random.randrange(10) == 0:  # comes back when another holds it
            heapq.heappush(kept, (time.monotonic() + LEASE * 1.3, todo, token))
        elif attempt == 2:  # the other
            heapq.heappush(kept, (time.monotonic() + LEASE * 0.7, todo, token))
        else:
            end(own, todo, token)
            if random.randrange(5) == 0 and (made := own.create()):
                note("create", made)
        return True

    def go_on() -> bool:
        nonlocal hands
        try:
            hands = hands or HANDS[kind](*arguments)
            return step(hands)
        except Lost:
            if hands:
                hands.close()
            hands = None
            return False

    while True:
        until(go_on, "there is work", 90)


class Worker:
    """A worker's process; its journal outlives it."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.journal = folder / f"{name}.journal"
        self.journal.touch()
        self.command = [sys.executable, __file__, str(self.journal), *arguments]
        self.output = folder / f"{name}.log"
        self.start()

    def start(self) -> None:
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output)

    def kill(self) -> None:
        assert self.process.poll() is None, self.output.read_text()
        self.process.kill()
        self.process.wait(10)

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
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "switchboard", "serve"]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(command, env=self.env, stdout=output, stderr=output)

    def is_ready(self) -> bool:
        try:
            answer = httpx2.get(f"{self.url}/readyz").json()
        except httpx2.TransportError:
            return False
        return bool((answer["status"], answer["listener"]) == ("ready", "listening"))


class Sender(threading.Thread):
    """GitHub, which sends each delivery until it is taken, and never more than AHEAD too many."""

    def __init__(self, url: str, secret: str, workers: list[Worker]) -> None:
        super().__init__(daemon=True)
        self.url, self.secret, self.workers = url, secret.encode(), workers
        self.stopped = threading.Event()
        self.taken: dict[str, str] = {}
        self.strange: list[str] = []

    def run(self) -> None:
        with httpx2.Client(timeout=15) as http:
            while not self.stopped.is_set():
                delivery = str(uuid.uuid4())
                until(lambda: self.stopped.is_set() or self.behind(), "todos are done", 120)
                until(lambda d=delivery: self.send(http, d), "the delivery is taken", 120)

    def behind(self) -> bool:
        return len(self.taken) - sum(worker.done() for worker in self.workers) < AHEAD

    def send(self, http: httpx2.Client, delivery: str) -> bool:
        body = json.dumps({"action": "opened", "delivery": delivery}).encode()
        headers = {
            "content-type": "application/json",
            "x-github-event": "pull_request",
            "x-github-delivery": delivery,
            "x-hub-signature-256": "sha256=" + hmac.digest(self.secret, body, hashlib.sha256).hex(),
        }
        try:
            answer = http.post(self.url, content=body, headers=headers)
        except httpx2.TransportError:
            return False
        if answer.status_code == 202:
            self.taken[delivery] = answer.json()["todos"][0]["id"]
        elif answer.status_code != 503:
            self.strange.append(f"{answer.status_code} {answer.text}")
        return answer.status_code == 202


class Postgres:
    """The embedded database, which is started again by itself."""

    def __init__(self, cluster: Any) -> None:
        from switchboard.embedded import SUPERUSER

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
        until(lambda: self.cluster.pid != old.pid and self.hears(), "it is back, and listened to")

    def hears(self) -> bool:
        """Whether the server's listener has connected since."""
        with contextlib.suppress(psycopg.OperationalError):
            return bool(self.ask(LISTENING))
        return False


LISTENING: LiteralString = (
    "select from pg_stat_activity where application_name = 'switchboard' and state = 'idle'"
    " and query ~* '^(un)?listen|^select 1$'"
)


@pytest.fixture
def postgres(cluster_url: str) -> Iterator[Postgres]:
    from switchboard.datafolder import DataFolder
    from switchboard.embedded import SUPERUSER, Cluster
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


@pytest.mark.timeout(ROUNDS * 60 + 300)
def test_fault_53_what_was_acknowledged_survives_kill_9(postgres: Postgres, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        server = Server(tmp_path, postgres.cluster.url("gateway"))
        stack.callback(server.process_kill_if_running)
        raise NotImplementedError


if __name__ == "__main__":
    work(Path(sys.argv[1]), *sys.argv[2:])
