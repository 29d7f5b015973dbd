"""The connection that listens is ended every second under load: still nothing waits for long.

On two gateways agents hold streams open, hear bells, and claim what they were rung for by its id;
others wait in claim_next. SWITCHBOARD_WAKES_SECONDS (8) says for how long.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import sys
import threading
import time
from statistics import median
from typing import Any

import psycopg
import pytest
from bell_kit import LISTENERS, Ears
from conftest import Endpoint, RawSession, Served, until

SECONDS = float(os.environ.get("SWITCHBOARD_WAKES_SECONDS", "8"))
LATEST = 35.0
PER_SECOND = 40
QUEUES = ("inbox", "other")

pytestmark = pytest.mark.timeout(SECONDS + 3 * LATEST)


class Agents:
    """What they came to know of, and when."""

    def __init__(self) -> None:
        self.known: dict[str, float] = {}
        self.stop = threading.Event()
        self.failures: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def start(self, work: Any, *arguments: Any) -> None:
        def run() -> None:
            try:
                while not self.stop.is_set():
                    work(*arguments)
            except BaseException as error:
                self.failures.append(error)

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()

    def hear(self, ears: Ears, bells: queue.SimpleQueue[str]) -> None:
        """Claim what it was rung for, unless somebody has it."""
        with contextlib.suppress(queue.Empty):
            todo = bells.get(timeout=0.1)
            self.known.setdefault(todo, ears.at[todo])
            self.finish(ears.session, ears.session.call("claim", id=todo))

    def pull(self, session: RawSession) -> None:
        """Wait for work, and do it."""
        answer = session.call("claim_next", wait_seconds=2)
        if "todo" in answer:
            self.known.setdefault(answer["todo"]["id"], time.monotonic())
        self.finish(session, answer)

    def finish(self, session: RawSession, answer: Any) -> None:
        if todo := answer.get("todo"):
            session.call("complete", id=todo["id"], lease_token=todo["lease_token"])
        elif "error" in answer:
            assert answer["error"]["code"] in ("conflict", "unavailable"), answer


def test_fault_33_every_todo_is_rung_or_drained_although_nobody_listens_for_long(
    serve: Any, db: Any, database: str
) -> None:
    gateways: list[Served] = [serve(mcp_rate=10_000, mcp_burst=10_000) for _ in range(2)]
    rung, pulled, both = (db.vend(name, QUEUES) for name in ("rung", "pulled", "both"))
    agents, streams = Agents(), []
    for served in gateways:
        served.wait_listening()
        for endpoint in (rung, both):
            bells: queue.SimpleQueue[str] = queue.SimpleQueue()
            streams.append(Ears(served, endpoint, bells.put))
            agents.start(agents.hear, streams[-1], bells)
        for endpoint in (pulled, both):
            agents.start(agents.pull, served.session(endpoint))
    stop = threading.Event()
    ended = [0]
    ending = threading.Thread(target=end_listeners, args=(database, stop, ended))
    ending.start()
    try:
        made = load(database, (rung, pulled, both))
    finally:
        stop.set()
        ending.join()
    until(lambda: set(made) <= set(agents.known), "each todo is known", LATEST)
    agents.stop.set()
    for thread in agents.threads:
        thread.join(10)
    for ears in streams:
        ears.close()
    assert agents.failures == []
    late = sorted(agents.known[todo] - at for todo, at in made.items())
    sys.stdout.write(
        f"{len(made)} todos, {ended[0]} connections ended: median {median(late) * 1000:.0f} ms,"
        f" 99 % {late[len(late) * 99 // 100]:.2f} s, latest {late[-1]:.2f} s\n"
    )
    assert ended[0] >= SECONDS
    assert late[-1] < LATEST


def end_listeners(dsn: str, stop: threading.Event, ended: list[int]) -> None:
    """End every listening connection once a second."""
    query = f"select count(pg_terminate_backend(pid)) from ({LISTENERS}) l"
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not stop.wait(1):
            row = connection.execute(query).fetchone()
            ended[0] += row[0] if row else 0


def load(dsn: str, endpoints: tuple[Endpoint, ...]) -> dict[str, float]:
    """Create todos, singly and in batches; when each was committed."""
    made: dict[str, float] = {}
    one = "select id::text from switchboard.create_todo(%s, %s, 'one')"
    batch = "select id::text from switchboard.create_todos(%s, %s)"
    end = time.monotonic() + SECONDS
    with psycopg.connect(dsn, autocommit=True) as connection:
        while time.monotonic() < end:
            endpoint, name = random.choice(endpoints), random.choice(QUEUES)
            if random.random() < 0.05:
                todos = json.dumps([{"queue": name, "title": "one of many"}] * 10)
                rows = connection.execute(batch, [endpoint.id, todos]).fetchall()
            else:
                rows = connection.execute(one, [endpoint.id, name]).fetchall()
            made.update((row[0], time.monotonic()) for row in rows)
            time.sleep(len(rows) / PER_SECOND)
    return made
