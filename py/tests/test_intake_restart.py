"""kill -9 of the server while deliveries come in: what was acknowledged is there, once, whole.

Senders of every type repeat each delivery until 202, as test_restart.py's one does, but here no
todo ever ends: a delivery that was committed and not answered before the kill is found again by
its id, so that each must be stored exactly once for each target. Half of the receivers have two
routes. SWITCHBOARD_CHAOS_ROUNDS (20) says how often the server is killed, once every ten
deliveries.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from conftest import RawSession, until
from intake_kit import TYPES, Receiver, counts, vend
from test_restart import Server

ROUNDS = int(os.environ.get("SWITCHBOARD_CHAOS_ROUNDS", "20"))
EACH = 10  # deliveries for a kill
SENDERS = 8
PADDING = (0, 0, 2_000, 20_000, 300_000)  # the last is more than a todo carries
EVENTS = "select * from switchboard.events order by id, endpoint_id"
TODOS = "select * from switchboard.todos"
BLOCKED = (
    "select pid from pg_stat_activity where datname = current_database()"
    " and wait_event_type = 'Lock' and query ~ 'receive_delivery'"
)


class Process(Server):
    """`switchboard serve` in a process, as intake_kit's receivers want a gateway."""

    def session(self, endpoint: Any) -> RawSession:
        return RawSession(self.url, endpoint)


@pytest.fixture
def process(db, tmp_path: Path) -> Iterator[Process]:
    with ExitStack() as stack:
        server = Process(tmp_path, db.dsn)
        stack.callback(server.end)
        until(server.is_ready, "the server is ready", 60)
        yield server


@dataclass
class Delivery:
    """One delivery: where it goes to, what it is, and what became of it."""

    receiver: Receiver
    name: str
    body: bytes
    targets: list[str]
    answer: dict[str, Any] = field(default_factory=dict)

    def post(self, http: httpx2.Client) -> httpx2.Response:
        headers = self.receiver.headers(self.body, self.name)
        return http.post(self.receiver.url, content=self.body, headers=headers)

    def todos(self) -> dict[str, str]:
        """What was acknowledged: the todo of each target."""
        return {todo["endpoint_id"]: todo["id"] for todo in self.answer["todos"]}


class Load:
    """Senders that give up no delivery before it is taken, and go on until they are stopped."""

    def __init__(self, receivers: list[tuple[Receiver, list[str]]], least: int) -> None:
        self.receivers, self.least = receivers, least
        self.all: list[Delivery] = []
        self.change = threading.Condition()
        self.stopped = threading.Event()
        self.under_way = 0
        self.outcomes: Counter[str] = Counter()

    def next(self) -> Delivery | None:
        """The next one, made now: some bodies say when they were."""
        with self.change:
            number = len(self.all)
            if self.stopped.is_set() and number >= self.least:
                return None
            receiver, targets = self.receivers[number % len(self.receivers)]
            name = f"delivery-{number}"
            body = receiver.body(name) + b" " * random.choice(PADDING)
            self.all.append(Delivery(receiver, name, body, targets))
            return self.all[-1]

    def run(self) -> None:
        """What one sender does."""
        with httpx2.Client(timeout=15) as http:
            while delivery := self.next():
                until(partial(self.is_taken, http, delivery), "the delivery is taken", 60)

    def is_taken(self, http: httpx2.Client, delivery: Delivery) -> bool:
        self.note(1)
        outcome = "cut"  # while it was under way
        try:
            answer = delivery.post(http)
        except httpx2.ConnectError:
            outcome = "absent"
        except httpx2.TransportError:
            pass
        else:
            outcome = {202: "taken", 503: "absent"}.get(answer.status_code, answer.text)
            delivery.answer = answer.json()
        finally:
            self.note(-1, outcome)
        if outcome == "absent":
            self.stopped.wait(0.1)
        return outcome == "taken"

    def note(self, step: int, outcome: str = "") -> None:
        with self.change:
            self.under_way += step
            self.outcomes.update([outcome] if outcome else [])
            self.change.notify_all()

    def wait(self, taken: int) -> None:
        """Until so many are taken, and another one is under way."""
        with self.change:
            enough = self.change.wait_for(
                lambda: self.outcomes["taken"] >= taken and self.under_way, 60
            )
            assert enough, f"a minute without {taken} taken deliveries: {self.outcomes}"


def receivers(server: Process, db: Any) -> list[tuple[Receiver, list[str]]]:
    """One of each type with its targets; every other one has two routes."""
    owner, *others = (vend(db, slug) for slug in ("owner", "second", "third"))
    made = []
    for number, source_type in enumerate(TYPES):
        receiver = Receiver(server, owner, source_type)  # type: ignore[arg-type]
        targets = [owner]
        for target in others if number % 2 else []:
            routed = receiver.session.call(
                "add_webhook_route", webhook_id=receiver.id, target_endpoint_id=target.slug
            )
            assert routed["created"]
            targets.append(target)
        receiver.session.http.close()
        made.append((receiver, [target.id for target in targets]))
    return made


@pytest.mark.timeout(ROUNDS * 30 + 120)
def test_what_was_acknowledged_is_stored_once_however_often_the_server_dies(
    process: Process, db
) -> None:
    if db.connection.info.server_version < 180000:
        pytest.skip("takes its time by design: runs on the embedded PostgreSQL 18")
    load = Load(receivers(process, db), ROUNDS * EACH)
    began = time.monotonic()
    with ThreadPoolExecutor(SENDERS) as pool:
        senders = [pool.submit(load.run) for _ in range(SENDERS)]
        try:
            for number in range(ROUNDS):
                load.wait(number * EACH + random.randrange(EACH))
                process.kill()
                process.start()
        finally:
            load.stopped.set()
    for sender in senders:
        sender.result()
    outcomes, found = load.outcomes, sum(not one.answer["created"] for one in load.all)
    sys.stdout.write(
        f"{len(load.all)} deliveries of {SENDERS} senders, {ROUNDS} kills in"
        f" {time.monotonic() - began:.0f} s: {outcomes['cut']} attempts were cut off, {found} of"
        f" them had been stored; {outcomes['absent']} met no server\n"
    )
    assert outcomes.keys() <= {"taken", "cut", "absent"}
    assert outcomes["taken"] == len(load.all) >= ROUNDS * EACH
    assert outcomes["cut"] >= ROUNDS, "the server was killed while nothing was under way"
    with httpx2.Client(timeout=15) as http:
        for delivery in load.all:
            again = delivery.post(http).json()
            assert again["created"] == 0, "a repeat was taken for another delivery"
            assert {todo["endpoint_id"]: todo["id"] for todo in again["todos"]} == delivery.todos()
    judge(db, load, found)


def judge(db: Any, load: Load, found: int) -> None:
    """Compare what was acknowledged with what is stored."""
    events, todos = db.rows(EVENTS), {str(row["id"]): row for row in db.rows(TODOS)}
    wanted = [
        (one.receiver.id, one.name, target) for one in load.all for target in sorted(one.targets)
    ]
    stored = [(str(e["webhook_id"]), e["delivery_id"], str(e["endpoint_id"])) for e in events]
    assert sorted(stored) == sorted(wanted), "each once for each target"
    by_name = {one.name: one for one in load.all}
    for event in events:
        one = by_name[event["delivery_id"]]
        assert event["body"] == one.body
        assert one.todos()[str(event["endpoint_id"])] == str(event["todo_id"])
        todo = todos.pop(str(event["todo_id"]))
        assert (todo["endpoint_id"], todo["event_id"]) == (event["endpoint_id"], event["id"])
        assert todo["idempotency_key"] == f"{one.receiver.id}:{one.name}"
        assert (todo["state"], todo["queue"]) == ("pending", "inbox")
    assert not todos, "todos without a delivery"
    assert db.rows("select * from switchboard.unsound_todos()") == []
    # What is stored and that it is counted is one transaction. The answer to a repeat may be cut
    # off, too.
    counted = counts(db)
    sent = Counter(one.receiver.source_type for one in load.all)
    assert {kind: n for (kind, verdict, _), n in counted.items() if verdict == "accepted"} == sent
    duplicates = sum(n for (_, verdict, _), n in counted.items() if verdict == "duplicate")
    assert found <= duplicates - len(load.all) <= load.outcomes["cut"] + found
    assert {verdict for _, verdict, _ in counted} == {"accepted", "duplicate"}


def test_a_delivery_that_outlives_its_server_is_found_by_the_repeat(process: Process, db) -> None:
    """Killed after it had handed the delivery over: the database goes on, and nobody is told."""
    receiver, targets = receivers(process, db)[1]
    delivery = Delivery(receiver, "d-1", receiver.body("d-1"), targets)
    with (
        httpx2.Client(timeout=15) as http,
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(db.dsn) as blocker,
    ):
        blocker.execute("lock table switchboard.events in share mode")
        cut = pool.submit(delivery.post, http)
        until(lambda: db.rows(BLOCKED), "the delivery is in its transaction")
        process.kill()
        with pytest.raises(httpx2.TransportError):
            cut.result()
        assert db.rows(EVENTS) == []
        blocker.rollback()
        until(lambda: len(db.rows(EVENTS)) == 3, "it is committed")
        process.start()
        until(process.is_ready, "the server is ready", 60)
        delivery.answer = delivery.post(http).json()
    assert delivery.answer["created"] == 0
    stored = {str(event["endpoint_id"]): str(event["todo_id"]) for event in db.rows(EVENTS)}
    assert delivery.todos() == stored
    assert counts(db) == {("gitea", "accepted", ""): 1, ("gitea", "duplicate", ""): 1}
