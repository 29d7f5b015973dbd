"""Calls to hooks: real gateways, a real database, real receivers. Faults 36, 37 and 39."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any

import psutil
import psycopg
import pytest
import standardwebhooks
from conftest import KEY, Endpoint, Served, Sql, busy, until
from hook_kit import (
    Answer,
    Arrival,
    Hook,
    HookReceiver,
    allowing,
    allowing_in_env,
    outbox,
    plain_hook,
    receiving,
    respond,
    totals,
    vend,
    wake,
)
from intake_kit import set_clock
from psycopg.conninfo import make_conninfo

from switchboard import dispatcher, outbound
from switchboard.dispatcher import Dispatcher
from switchboard.logs import JsonFormatter
from switchboard.secrets import Keyring

Serve = Callable[..., Served]
Receive = Callable[..., HookReceiver]
START = datetime(2030, 1, 1, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def receive() -> Iterator[Receive]:
    """Start a receiver; the argument is its answer."""
    with ExitStack() as opened:
        yield lambda answer=204: opened.enter_context(receiving(answer))


@pytest.fixture
def alpha(db: Sql) -> Endpoint:
    return vend(db, "alpha", ("inbox", "other"))


Looks = Counter[Dispatcher]


@pytest.fixture
def deaf_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dispatchers look when they are told, and never by themselves."""
    monkeypatch.setattr(dispatcher, "IDLE_SECONDS", 3600)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Idle dispatchers look often: the tests move a clock that these do not see.

    How often each has looked.
    """
    looks: Looks = Counter()
    take = Dispatcher._take

    async def counted(self: Dispatcher) -> None:
        await take(self)
        looks[self] += 1

    monkeypatch.setattr(Dispatcher, "_take", counted)
    monkeypatch.setattr(dispatcher, "IDLE_SECONDS", 0.05)
    return looks


def clock(db: Sql, seconds: float) -> None:
    """Stop the database's clock so many seconds after START, and have the dispatchers look."""
    set_clock(db, START + seconds)
    wake(db)


def sees(endpoint: Endpoint, db: Sql, receiver: HookReceiver) -> None:
    """Return when a dispatcher has looked at everything that was due before this was called."""
    marker = db.create(endpoint, "marker")
    until(lambda: receiver.of(marker), "a later call arrives")


# What is sent


def test_a_create_calls_the_hook(serve: Serve, db: Sql, alpha: Endpoint, receive: Receive) -> None:
    receiver = receive()
    hook = Hook(serve(**allowing(receiver)), alpha, receiver)
    title = "Fix\nthe é build " + "x" * 300
    row = db.row(
        "select * from switchboard.create_todo(%s, 'inbox', %s, '{\"secret\": 1}',"
        " p_kind => 'issues', p_source => 'github')",
        alpha.id,
        title,
    )
    (call,) = until(lambda: receiver.calls, "the call arrives")
    call.verify(hook.secret)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        call.verify("whsec_" + base64.b64encode(b"x" * 32).decode())
    created_at = datetime.fromisoformat(call.json["created_at"])
    assert call.json == {
        "type": "todo.ready",
        "reason": "created",
        "todo_id": str(row["id"]),
        "queue": "inbox",
        "kind": "issues",
        "source": "github",
        "summary": call.json["summary"],
        "endpoint": "alpha",
        "attempt": 0,
        "created_at": call.json["created_at"],
    }
    assert call.json["summary"].startswith("Fix the é build xxx")
    assert len(call.json["summary"]) <= 200
    assert created_at == row["created_at"]
    assert call.body == json.dumps(call.json, ensure_ascii=False, separators=(",", ":")).encode()
    assert call.path == "/wake"
    assert call.headers["content-type"] == "application/json"
    (sent,) = until(lambda: [r for r in outbox(db) if r["outcome"]], "it is settled")
    assert call.id == "msg_" + sent["id"].hex
    assert (sent["outcome"], sent["attempts"]) == ("delivered", 1)
    assert totals(db) == {"delivered": 1}
    fares = hook.row()
    assert (fares["enabled"], fares["failures"], fares["waiting"]) == (True, 0, 0)
    assert fares["last_status"] == "2xx"


def test_only_what_there_is_and_only_covered_queues(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive
) -> None:
    inbox, every = receive(), receive()
    served = serve(**allowing(inbox, every))
    Hook(served, alpha, inbox, ["inbox"])
    Hook(served, alpha, every)
    elsewhere = db.create(alpha, "elsewhere", "other")
    todo = db.create(alpha, "here")
    until(lambda: inbox.calls and len(every.calls) == 2, "the calls arrive")
    assert [call.todo for call in inbox.calls] == [todo]
    assert {call.todo for call in every.calls} == {todo, elsewhere}
    assert "kind" not in inbox.calls[0].json
    assert None not in inbox.calls[0].json.values()


def lapse(db: Sql, alpha: Endpoint, todo: str) -> None:
    db.rows("select switchboard.claim(%s, %s, 'w')", alpha.id, todo)
    clock(db, 301)
    db.rows("select switchboard.reap_expired()")


def backoff(db: Sql, alpha: Endpoint, todo: str) -> None:
    db.rows("select switchboard.claim(%s, %s, 'w')", alpha.id, todo)
    db.rows("select switchboard.fail(%s, %s, 'w')", alpha.id, todo)
    clock(db, 31)
    db.rows("select switchboard.requeue_due_retries()")


def release(db: Sql, alpha: Endpoint, todo: str) -> None:
    db.rows("select switchboard.claim(%s, %s, 'w')", alpha.id, todo)
    db.rows("select switchboard.release(%s, %s, 'w')", alpha.id, todo)


def retry(db: Sql, alpha: Endpoint, todo: str) -> None:
    db.rows("select switchboard.claim(%s, %s, 'w')", alpha.id, todo)
    db.rows("select switchboard.fail(%s, %s, 'w')", alpha.id, todo)
    db.rows("select switchboard.retry(%s, %s)", alpha.id, todo)


def stall(db: Sql, alpha: Endpoint, todo: str) -> None:
    clock(db, 300)
    (nudge,) = db.rows("select * from switchboard.sweep_stalled()")
    assert str(nudge["todo_id"]) == todo


@pytest.mark.parametrize(
    ("happens", "reason", "attempt"),
    [
        (lapse, "requeued", 1),
        (backoff, "requeued", 1),
        (release, "requeued", 1),
        (retry, "requeued", 0),
        (stall, "stalled", 0),
    ],
)
def test_whatever_makes_a_todo_ready_again_calls_with_its_reason(
    serve: Serve,
    db: Sql,
    alpha: Endpoint,
    receive: Receive,
    happens: Callable[[Sql, Endpoint, str], None],
    reason: str,
    attempt: int,
) -> None:
    receiver = receive()
    set_clock(db, START)
    served = serve(**allowing(receiver))
    hook = Hook(served, alpha, receiver)
    todo = db.create(alpha, "work")
    until(lambda: [r for r in outbox(db, todo) if r["outcome"]], "the first call is settled")
    happens(db, alpha, todo)
    first, second = until(lambda: len(receiver.calls) == 2 and receiver.calls, "it is called again")
    assert (first.reason, second.reason) == ("created", reason)
    assert second.json == {**first.json, "reason": reason, "attempt": attempt}
    assert first.id != second.id
    second.verify(hook.secret)


# Who sends


def test_two_processes_make_each_call_once(serve: Serve, db: Sql, receive: Receive) -> None:
    receiver = receive()
    one, two = (serve(**allowing(receiver)) for _ in range(2))
    endpoints = [vend(db, f"agent-{number}") for number in range(25)]
    for endpoint in endpoints:
        Hook(one, endpoint, receiver)
    made: list[str] = []

    def create(share: list[Endpoint]) -> None:
        batch = json.dumps([{"queue": "inbox", "title": str(n)} for n in range(10)])
        with psycopg.connect(db.dsn, autocommit=True) as connection:
            for _, endpoint in itertools.product(range(2), share):
                query = "select id from switchboard.create_todos(%s, %s)"
                made.extend(str(row[0]) for row in connection.execute(query, [endpoint.id, batch]))

    threads = [threading.Thread(target=create, args=(endpoints[n::2],)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 500
    until(lambda: len(receiver.calls) >= 500, "the calls arrive", 60)
    until(lambda: all(row["outcome"] for row in outbox(db)), "all are settled")
    assert Counter(call.todo for call in receiver.calls) == Counter(made)
    assert len({call.id for call in receiver.calls}) == 500
    assert totals(db) == {"delivered": 500}
    assert [app.app.state.dispatcher.in_flight for app in (one, two)] == [0, 0]
    assert receiver.most_of_one == 1


class Process:
    """`switchboard serve` in a process of its own."""

    def __init__(self, dsn: str, *receivers: HookReceiver) -> None:
        env = {name: value for name, value in os.environ.items() if "SWITCHBOARD_" not in name}
        env |= {
            "SWITCHBOARD_DATABASE_URL": dsn,
            "SWITCHBOARD_SECRET_KEY": base64.b64encode(KEY).decode(),
            "SWITCHBOARD_PORT": "0",
            **allowing_in_env(*receivers),
        }
        command = [sys.executable, "-m", "switchboard", "serve", "--json"]
        self.started = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self.started.stdout is not None
        assert json.loads(self.started.stdout.readline())["pid"] == self.started.pid

    def kill(self) -> None:
        self.started.kill()
        self.started.wait()
        assert self.started.stdout is not None
        self.started.stdout.close()


def test_fault_36_killed_between_sending_and_recording_it_is_sent_again_with_the_same_id(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, quick: Looks
) -> None:
    killed = threading.Event()

    def answer(handler: BaseHTTPRequestHandler, _: Arrival) -> None:
        if not killed.is_set():
            process.kill()
            killed.set()
        respond(handler, 204)

    receiver = receive(answer)
    set_clock(db, START)
    _, secret = plain_hook(db, alpha, receiver.url)
    process = Process(db.dsn, receiver)
    todo = db.create(alpha, "work")
    until(killed.is_set, "the call arrives, and its dispatcher dies")
    (row,) = outbox(db, todo)
    assert (row["attempts"], row["outcome"]) == (1, None)
    serve(**allowing(receiver))
    clock(db, 14.9)
    sees(alpha, db, receiver)
    assert len(receiver.of(todo)) == 1
    clock(db, 15)
    first, second = until(lambda: receiver.of(todo)[1:] and receiver.of(todo), "it comes again")
    assert (first.id, first.body) == (second.id, second.body)
    second.verify(secret)
    until(lambda: outbox(db, todo)[0]["outcome"] == "delivered", "it is settled")
    clock(db, 60)
    sees(alpha, db, receiver)
    assert len(receiver.of(todo)) == 2
    assert outbox(db, todo)[0]["attempts"] == 2
    assert receiver.most_of_one == 1


def test_the_attempt_of_one_that_was_thought_dead_changes_nothing(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, quick: Looks
) -> None:
    go = threading.Event()

    def answer(handler: BaseHTTPRequestHandler, call: Arrival) -> None:
        if len(receiver.of(call.todo)) == 1:
            go.wait(10)
            respond(handler, 500)
        else:
            respond(handler, 204)

    receiver = receive(answer)
    set_clock(db, START)
    plain_hook(db, alpha, receiver.url)
    served = serve(**allowing(receiver))
    todo = db.create(alpha, "work")
    until(lambda: receiver.calls, "the call arrives")
    clock(db, 15)  # as if this dispatcher had been stopped so long
    until(lambda: outbox(db, todo)[0]["outcome"] == "delivered", "another one makes it")
    go.set()
    until(lambda: not served.app.state.dispatcher.in_flight, "the first one ends")
    assert outbox(db, todo)[0]["outcome"] == "delivered"
    assert totals(db) == {"delivered": 1}


# What is not sent


def test_fault_37_a_hook_without_a_secret_sends_nothing(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, quick: Looks
) -> None:
    receiver = receive()
    other = vend(db, "other")
    plain_hook(db, other, receiver.url)
    plain_hook(db, alpha, receiver.url, None)
    serve(**allowing(receiver))
    todo = db.create(alpha, "work")
    sees(other, db, receiver)
    assert (receiver.of(todo), outbox(db, todo)) == ([], [])


@pytest.mark.parametrize(
    "sealed",
    [
        b"nothing that was ever sealed",
        Keyring((b"k" * 32,)).seal(b"whsec_" + base64.b64encode(b"s" * 32)),
        Keyring((KEY,)).seal(b"whsec_"),
        Keyring((KEY,)).seal(b"no key of the scheme"),
    ],
    ids=["damaged", "another key", "empty", "not of the scheme"],
)
def test_fault_37_a_secret_that_cannot_sign_sends_nothing(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, quick: Looks, sealed: bytes
) -> None:
    receiver = receive()
    plain_hook(db, alpha, receiver.url, sealed)
    serve(**allowing(receiver))
    todo = db.create(alpha, "work")
    (row,) = until(lambda: [r for r in outbox(db, todo) if r["outcome"]], "it is settled")
    assert (row["outcome"], row["attempts"]) == ("failed", 1)
    (fares,) = db.rows("select * from switchboard.list_notify_hooks(%s)", alpha.id)
    assert (fares["failures"], fares["last_status"]) == (1, "unsealable")
    assert receiver.calls == []


def test_of_two_secrets_one_that_opens_is_enough(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, quick: Looks
) -> None:
    receiver = receive()
    hook, secret = plain_hook(db, alpha, receiver.url)
    lost = Keyring((b"k" * 32,)).seal(b"whsec_" + base64.b64encode(b"s" * 32))
    db.rows("select switchboard.rotate_notify_hook(%s, %s, %s)", alpha.id, hook, lost)
    serve(**allowing(receiver))
    db.create(alpha, "work")
    (call,) = until(lambda: receiver.calls, "the call arrives")
    call.verify(secret)


def test_a_hook_of_a_revoked_endpoint_sends_nothing(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, quick: Looks
) -> None:
    receiver = receive()
    other = vend(db, "other")
    plain_hook(db, other, receiver.url)
    plain_hook(db, alpha, receiver.url)
    serve(**allowing(receiver))
    with db.connection.transaction():
        todo = db.create(alpha, "work")
        assert outbox(db, todo)
        db.rows("select switchboard.revoke_endpoint(%s)", alpha.id)
    sees(other, db, receiver)
    assert receiver.of(todo) == []


PRIVATE = ["https://127.0.0.1/", "https://10.1.2.3/wake", "https://[::1]/", "https://localhost/"]


@pytest.mark.parametrize(
    "url",
    [
        *PRIVATE,
        "https://2130706433/",
        "http://93.184.216.34/",
        "https://93.184.216.34:8080/",
        "https://user:password@93.184.216.34/",
        "ftp://93.184.216.34/",
        "wake me",
        "",
        7,
        None,
    ],
)
def test_a_url_that_would_not_be_called_is_refused_over_mcp(
    served: Served, alpha: Endpoint, url: object
) -> None:
    session = served.session(alpha)
    error = session.call("create_notify_hook", url=url)["error"]
    assert (error["code"], error["field"]) == ("invalid_argument", "url")
    assert error["message"].startswith("url ")
    assert "password" not in error["message"] or "no password" in error["message"]
    assert session.call("list_notify_hooks") == {"hooks": []}


def test_what_is_refused_says_nothing_of_the_network(served: Served, alpha: Endpoint) -> None:
    session = served.session(alpha)
    urls = [*PRIVATE, "https://no-such-host.invalid/"]
    errors = [session.call("create_notify_hook", url=url)["error"] for url in urls]
    assert all(error == errors[0] for error in errors)


def test_the_secret_of_a_hook_is_made_here(served: Served, alpha: Endpoint) -> None:
    session = served.session(alpha)
    url = "https://93.184.216.34/wake"
    error = session.call("create_notify_hook", url=url, signing_secret="mine")["error"]
    assert (error["code"], error["field"]) == ("invalid_argument", "signing_secret")
    made = session.call("create_notify_hook", url=url)
    error = session.call("rotate_notify_hook", hook_id=made["hook_id"], signing_secret="mine")
    assert error["error"]["field"] == "signing_secret"


# What receivers answer


def moved(receiver: HookReceiver) -> Answer:
    return lambda handler, _: respond(handler, 301, location=receiver.url)


def slow(handler: BaseHTTPRequestHandler, _: Arrival) -> None:
    time.sleep(0.6)  # the deadline of these tests is 0.3
    respond(handler, 200)


def huge(handler: BaseHTTPRequestHandler, _: Arrival) -> None:
    handler.send_response(200)
    handler.send_header("content-length", str(10 << 20))
    handler.end_headers()
    for _ in range(160):
        handler.wfile.write(b"x" * (1 << 16))


def never(receiver: HookReceiver) -> Answer:
    return lambda *_: (receiver.released.wait(30), None)[1]


def gone(handler: BaseHTTPRequestHandler, _: Arrival) -> None:
    handler.connection.close()


def settled(db: Sql, todo: str, attempts: int) -> Callable[[], Any]:
    """The row, once so many attempts have ended; then the clock may be moved."""

    def look() -> Any:
        (row,) = outbox(db, todo)
        taken_until = db.value("select switchboard.now()") + timedelta(seconds=15)
        ended = row["outcome"] or row["due_at"] < taken_until
        return row if row["attempts"] == attempts and ended else None

    return look


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("500", "5xx"),
        ("404", "4xx"),
        ("301", "3xx"),
        ("slow", "timeout"),
        ("never", "timeout"),
        ("gone", "unreachable"),
        ("down", "unreachable"),
    ],
)
def test_fault_39_a_call_that_fails_is_tried_three_times(
    serve: Serve,
    db: Sql,
    alpha: Endpoint,
    receive: Receive,
    quick: Looks,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    status: str,
) -> None:
    if kind in ("slow", "never"):
        monkeypatch.setattr(outbound, "DEADLINE", 0.3)
    target, receiver = receive(), receive(500)
    if kind == "down":
        receiver.stop()
    else:
        answers: dict[str, int | Answer] = {
            "500": 500,
            "404": 404,
            "301": moved(target),
            "slow": slow,
            "never": never(receiver),
            "gone": gone,
        }
        receiver.answer = answers[kind]
    set_clock(db, START)
    served = serve(**allowing(receiver, target))
    hook = Hook(served, alpha, receiver)
    todo = db.create(alpha, "work")
    at = START
    for attempt, least, most in ((1, 0.8, 1.2), (2, 4.0, 6.0)):
        row = until(settled(db, todo, attempt), f"attempt {attempt} is settled")
        assert at + least <= row["due_at"].timestamp() <= at + most
        fares = hook.row()
        assert (fares["failures"], fares["last_status"]) == (0, status)
        assert hook.secret not in json.dumps(fares)
        at = row["due_at"].timestamp()
        clock(db, at - START)
    row = until(settled(db, todo, 3), "attempt 3 is settled")
    assert row["outcome"] == "failed"
    fares = hook.row()
    assert (fares["failures"], fares["last_status"], fares["enabled"]) == (1, status, True)
    assert target.calls == []
    assert receiver.most_of_one <= 1 or kind in ("slow", "never")  # the caller hangs up first
    if kind != "down":
        assert len(receiver.of(todo)) == 3
        assert len({call.id for call in receiver.calls}) == 1
        for call in receiver.calls:
            call.verify(hook.secret)


def test_fault_39_an_answer_of_10_mb_is_cut_and_counts(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, quick: Looks
) -> None:
    receiver = receive(huge)
    hook = Hook(serve(**allowing(receiver)), alpha, receiver)
    todo = db.create(alpha, "work")
    until(lambda: outbox(db, todo)[0]["outcome"] == "delivered", "it is settled")
    assert hook.row()["last_status"] == "2xx"
    assert len(receiver.calls) == 1


def test_a_retry_comes_when_it_is_due(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive
) -> None:
    def answer(handler: BaseHTTPRequestHandler, _: Arrival) -> None:
        respond(handler, 204 if len(receiver.calls) > 1 else 503)

    receiver = receive(answer)
    Hook(serve(**allowing(receiver)), alpha, receiver)
    db.create(alpha, "work")
    first, second = until(lambda: receiver.calls[1:] and receiver.calls, "it comes again")
    assert 0.79 <= second.at - first.at <= (1.2 + 5 * dispatcher.STEP) * busy()


def go_on(db: Sql, served: Served, looks: Looks, seconds: float, is_so: Callable[[], Any]) -> float:
    """Move the clock on in steps, each when nothing is under way, until something is so.

    Returns how far it was moved.
    """
    ours: Dispatcher = served.app.state.dispatcher
    for step in range(1, 200):
        if is_so():
            return step * seconds
        clock(db, seconds * step)
        enough = looks[ours] + 2  # one may have begun before
        until(lambda n=enough: looks[ours] >= n and not ours.in_flight, "what is due is done")
    raise AssertionError("it never came to that")


def test_fault_39_disabled_at_the_tenth_failed_delivery(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, quick: Looks
) -> None:
    receiver = receive(500)
    set_clock(db, START)
    served = serve(**allowing(receiver))
    hook = Hook(served, alpha, receiver)
    for number in range(12):
        db.create(alpha, str(number))
    go_on(db, served, quick, 3, lambda: not hook.row()["enabled"])
    fares = hook.row()
    assert (fares["failures"], fares["waiting"]) == (10, 0)
    assert totals(db) == {"failed": 10, "disabled": 1, "dropped": 2}
    assert Counter(row["outcome"] for row in outbox(db)) == {"failed": 10, "dropped": 2}
    calls = len(receiver.calls)
    later = db.create(alpha, "later")
    assert outbox(db, later) == []
    receiver.answer = 204
    secret = hook.rotate()
    again = db.create(alpha, "again")
    (call,) = until(lambda: receiver.of(again), "it is called again")
    call.verify(secret)
    assert len(receiver.calls) == calls + 1
    until(lambda: hook.row()["failures"] == 0, "it is settled")


def test_a_success_is_the_end_of_it(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, quick: Looks
) -> None:
    def answer(handler: BaseHTTPRequestHandler, call: Arrival) -> None:
        respond(handler, 204 if len(receiver.of(call.todo)) == 3 else 500)

    receiver = receive(answer)
    set_clock(db, START)
    served = serve(**allowing(receiver))
    hook = Hook(served, alpha, receiver)
    todos = [db.create(alpha, str(number)) for number in range(20)]
    moved_on = go_on(db, served, quick, 3, lambda: totals(db) == {"delivered": 20})
    clock(db, moved_on + 3600)
    sees(alpha, db, receiver)
    assert Counter(call.todo for call in receiver.calls if call.todo in todos) == Counter(todos * 3)
    assert receiver.most_of_one == 1
    assert hook.row()["failures"] == 0


# Secrets


def verifies(call: Arrival, secret: str) -> bool:
    try:
        call.verify(secret)
    except standardwebhooks.WebhookVerificationError:
        return False
    return True


def test_both_secrets_sign_for_24_hours_after_a_rotation(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, quick: Looks
) -> None:
    receiver = receive()
    set_clock(db, START)
    hook = Hook(serve(**allowing(receiver)), alpha, receiver)
    new = hook.rotate()

    def call() -> Arrival:
        todo = db.create(alpha, "work")
        found: list[Arrival] = until(lambda: receiver.of(todo), "the call arrives")
        return found[0]

    first = call()
    assert (verifies(first, hook.secret), verifies(first, new)) == (True, True)
    assert len(first.headers["webhook-signature"].split()) == 2
    clock(db, 24 * 3600 - 1)
    last = call()
    assert (verifies(last, hook.secret), verifies(last, new)) == (True, True)
    clock(db, 24 * 3600)
    after = call()
    assert (verifies(after, hook.secret), verifies(after, new)) == (False, True)
    newest = hook.rotate()
    turned = call()
    assert [verifies(turned, secret) for secret in (hook.secret, new, newest)] == [
        False,
        True,
        True,
    ]


# Load, and what goes wrong


def test_a_receiver_that_hangs_holds_up_no_other(
    serve: Serve,
    db: Sql,
    alpha: Endpoint,
    receive: Receive,
    quick: Looks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbound, "DEADLINE", 60.0)  # it hangs as long as this takes
    hanging, good = receive(), receive()
    hanging.answer = never(hanging)
    other = vend(db, "other")
    served = serve(**allowing(hanging, good))
    plain_hook(db, alpha, hanging.url)
    plain_hook(db, other, good.url)
    for number in range(20):
        db.create(alpha, str(number))
    until(lambda: len(hanging.calls) == 4, "it holds what it may hold")
    for _ in range(20):
        sees(other, db, good)
    assert len(good.calls) == 20
    assert served.app.state.dispatcher.in_flight >= 4
    assert hanging.most == 4


def test_a_receiver_that_is_down_and_5000_todos(
    serve: Serve,
    db: Sql,
    alpha: Endpoint,
    receive: Receive,
    quick: Looks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = under_way = 0
    posted: Counter[str] = Counter()
    post = outbound.Outbound.post

    async def counted(self: Any, url: str, headers: dict[str, str], body: bytes) -> str:
        nonlocal most, under_way
        posted[headers["webhook-id"]] += 1
        under_way += 1
        most = max(most, under_way)
        try:
            return await post(self, url, headers, body)
        finally:
            under_way -= 1

    monkeypatch.setattr(outbound.Outbound, "post", counted)
    receiver = receive()
    set_clock(db, START)
    served = serve(**allowing(receiver))
    hook = Hook(served, alpha, receiver)
    receiver.stop()
    db.create(alpha, "the first one warms up")
    until(lambda: posted.total() and not under_way, "it is called")
    process = psutil.Process()
    before = process.memory_info().rss
    clock(db, 1)
    batch = json.dumps([{"queue": "inbox", "title": "x" * 200}] * 100)
    for _ in range(50):
        db.rows("select id from switchboard.create_todos(%s, %s)", alpha.id, batch)
    go_on(db, served, quick, 6, lambda: not hook.row()["enabled"])
    assert process.memory_info().rss - before < 16 << 20
    assert most <= 4
    assert max(posted.values()) == 3
    assert totals(db) == {"failed": 10, "disabled": 1, "dropped": 4991}
    assert posted.total() < 300  # not one for each
    clock(db, 1800)  # its quota is whole again
    with receiving(port=receiver.port) as back:
        secret = hook.rotate()
        todo = db.create(alpha, "one more")
        (call,) = until(lambda: back.of(todo), "it is called")
        call.verify(secret)
        until(lambda: hook.row()["waiting"] == 0, "it is settled")
        clock(db, 3600)
        db.rows("select * from switchboard.sweep_stalled()")
        (nudge,) = until(lambda: [c for c in back.calls if c.reason == "stalled"], "a nudge comes")
        assert nudge.json["summary"] == "the first one warms up"
        until(lambda: hook.row()["waiting"] == 0, "it is settled")
        assert len(back.calls) == 2
    delivered = {"msg_" + row["id"].hex for row in outbox(db) if row["outcome"] == "delivered"}
    assert delivered == {call.id, nudge.id}
    assert [posted[message] for message in delivered] == [1, 1]


def kill_connections(db: Sql) -> None:
    """End every connection of the gateways, as a restart of the database would."""
    db.rows(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = 'switchboard' and datname = current_database()"
    )


def test_a_connection_that_is_lost_before_settling_sends_nothing_twice(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, quick: Looks
) -> None:
    def answer(handler: BaseHTTPRequestHandler, _: Arrival) -> None:
        with (another := Sql(db.dsn)).connection:
            kill_connections(another)
        respond(handler, 204)

    receiver = receive(answer)
    set_clock(db, START)
    plain_hook(db, alpha, receiver.url)
    serve(**allowing(receiver))
    todo = db.create(alpha, "work")
    until(lambda: receiver.calls and outbox(db, todo)[0]["outcome"], "it is settled")
    receiver.answer = 204
    clock(db, 60)
    sees(alpha, db, receiver)
    assert len(receiver.of(todo)) == 1
    assert outbox(db, todo)[0]["attempts"] == 1


def test_when_the_database_is_back_so_are_the_calls(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, quick: Looks, caplog: Any
) -> None:
    receiver = receive()
    plain_hook(db, alpha, receiver.url)
    served = serve(**allowing(receiver))
    sees(alpha, db, receiver)
    name = db.value("select current_database()")
    with psycopg.connect(make_conninfo(db.dsn, dbname="postgres"), autocommit=True) as admin:
        admin.execute(f'alter database "{name}" allow_connections false')
        kill_connections(db)
        looks = quick[served.app.state.dispatcher]
        until(lambda: "calls to hooks are not made yet" in caplog.text, "it notices")
        assert quick[served.app.state.dispatcher] <= looks + 1
        admin.execute(f'alter database "{name}" allow_connections true')
    sees(alpha, db, receiver)
    complaints = [r for r in caplog.records if "calls to hooks" in r.getMessage()]
    assert len(complaints) == 1


def test_a_create_is_called_at_once(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, deaf_to_time: None
) -> None:
    receiver = receive()
    plain_hook(db, alpha, receiver.url)
    serve(**allowing(receiver)).wait_listening()
    for number in range(10):
        todo = db.create(alpha, str(number))
        started = time.monotonic()
        (call,) = until(lambda t=todo: receiver.of(t), "the call arrives")
        assert call.at - started < busy()


def test_an_idle_one_looks_seldom(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, quick: Looks, deaf_to_time: None
) -> None:
    receiver = receive()
    plain_hook(db, alpha, receiver.url)
    served = serve(**allowing(receiver))
    served.wait_listening()
    for _ in range(5):
        sees(alpha, db, receiver)
    until(lambda: not served.app.state.dispatcher.in_flight, "all are settled")
    # the first look, the listener's, one for each note, one when each has ended
    assert quick[served.app.state.dispatcher] <= 12


def test_a_nudge_comes_once_and_rings_nobody(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, quick: Looks
) -> None:
    """SPEC-0038, Mixed versions during a deploy: what an older one hears is what it knows."""
    receiver = receive()
    set_clock(db, START)
    plain_hook(db, alpha, receiver.url)
    for _ in range(2):
        serve(**allowing(receiver), tick_interval=1.0).wait_listening()
    todo = db.create(alpha, "work")
    until(lambda: receiver.of(todo), "the call arrives")
    with psycopg.connect(db.dsn, autocommit=True) as older:
        older.execute("listen todo_ready")
        clock(db, 300)
        until(lambda: len(receiver.of(todo)) == 2, "the nudge comes")
        until(lambda: all(row["outcome"] for row in outbox(db)), "it is settled")
        clock(db, 330)
        sees(alpha, db, receiver)
        db.rows("select pg_notify('todo_ready', 'the end')")
        heard: list[str] = []
        for note in older.notifies(timeout=15):
            if note.payload == "the end":
                break
            heard.append(note.payload)
    assert [call.reason for call in receiver.of(todo)] == ["created", "stalled"]
    assert heard == [f"{alpha.id}:inbox"]  # the marker's
    row = db.row("select * from switchboard.get_todo(%s, %s)", alpha.id, todo)
    assert (row["state"], row["attempt"], row["ring_attempts"]) == ("pending", 0, 0)
    assert (row["owner"], row["last_ringed_at"]) == (None, None)


def test_stopping_lets_a_call_end(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound, "DEADLINE", 30.0)
    go = threading.Event()

    def answer(handler: BaseHTTPRequestHandler, _: Arrival) -> None:
        go.wait(30)
        respond(handler, 204)

    receiver = receive(answer)
    plain_hook(db, alpha, receiver.url)
    served = serve(**allowing(receiver), shutdown_timeout=30.0)
    todo = db.create(alpha, "work")
    until(lambda: receiver.calls, "the call arrives")
    later = db.create(alpha, "later")
    until(lambda: receiver.of(later), "and another one")
    served.server.should_exit = True
    ours: Dispatcher = served.app.state.dispatcher
    until(lambda: ours.is_stopping, "it stops")
    never_sent = db.create(alpha, "too late")
    assert ours.in_flight == 2
    go.set()
    served.thread.join(30)
    assert [outbox(db, t)[0]["outcome"] for t in (todo, later)] == ["delivered"] * 2
    assert outbox(db, never_sent)[0]["attempts"] == 0


def test_stopping_waits_for_nobody_who_hangs(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive
) -> None:
    receiver = receive()
    receiver.answer = never(receiver)
    plain_hook(db, alpha, receiver.url)
    served = serve(**allowing(receiver), shutdown_timeout=0.2)
    todo = db.create(alpha, "work")
    until(lambda: receiver.calls, "the call arrives")
    started = time.monotonic()
    served.stop()
    assert time.monotonic() - started < 2 * busy()
    (row,) = outbox(db, todo)
    assert (row["attempts"], row["outcome"]) == (1, None)
    assert row["due_at"] > db.value("select switchboard.now()")


def test_each_attempt_is_one_line_of_the_log(
    serve: Serve, db: Sql, alpha: Endpoint, receive: Receive, quick: Looks, caplog: Any
) -> None:
    caplog.set_level("INFO")
    receiver = receive(500)
    set_clock(db, START)
    hook, secret = plain_hook(db, alpha, receiver.url + "?token=t0ken")
    served = serve(**allowing(receiver))
    todo = db.create(alpha, "work")
    row = until(settled(db, todo, 1), "attempt 1 is settled")
    receiver.answer = 204
    clock(db, row["due_at"].timestamp() - START)
    row = until(settled(db, todo, 2), "attempt 2 is settled")
    until(lambda: not served.app.state.dispatcher.in_flight, "it is logged")
    lines = [r for r in caplog.records if r.getMessage() == "hook.call"]
    fields = [dict(line.fields) for line in lines]
    assert all(0 < line.pop("ms") < 5000 for line in fields)
    same = {"endpoint_id": alpha.id, "hook_id": hook, "message_id": "msg_" + row["id"].hex}
    assert fields == [
        {**same, "attempt": 1, "status": "5xx", "outcome": "again"},
        {**same, "attempt": 2, "status": "2xx", "outcome": "delivered"},
    ]
    everything = "\n".join(JsonFormatter().format(record) for record in caplog.records)
    assert not [part for part in ("t0ken", "/wake", secret, secret[6:]) if part in everything]


# Alone, without a database


class Scripted:
    """A database that gives one call, and settles as it is told."""

    def __init__(self, settle: Callable[[], str]) -> None:
        sealed = Keyring((KEY,)).seal(b"whsec_" + base64.b64encode(b"s" * 32)).hex()
        self.calls = [
            {
                "endpoint_id": "e",
                "id": "i",
                "hook_id": "h",
                "url": "https://hook.example/",
                "sealed_secrets": [sealed],
                "message_id": "msg_1",
                "attempt": 1,
                "body": {"summary": "é"},
            }
        ]
        self.settle = settle
        self.settled = 0

    async def value(self, query: str, params: Any, *, repeatable: bool = False) -> Any:
        if "take" in query:
            given, self.calls = self.calls, []
            return given
        assert repeatable
        self.settled += 1
        return self.settle()


class Sink:
    """Counts what is posted."""

    def __init__(self, error: Exception | None = None) -> None:
        self.bodies: list[bytes] = []
        self.error = error

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> str:
        self.bodies.append(body)
        if self.error:
            raise self.error
        return "2xx"


async def alone(database: Scripted, sink: Sink, is_over: Callable[[], Any]) -> None:
    ours = Dispatcher(database, Keyring((KEY,)), sink)  # type: ignore[arg-type]
    running = asyncio.create_task(ours.run())
    async with asyncio.timeout(10):
        while not is_over() or ours.in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        ours.stop()
        await running


@pytest.mark.anyio
async def test_settling_is_repeated_until_the_call_is_given_away_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher, "LOST_SECONDS", 0.2)
    monkeypatch.setattr(dispatcher, "FIRST_PAUSE", 0.01)

    def settle() -> str:
        raise psycopg.OperationalError("gone")

    database, sink = Scripted(settle), Sink()
    await alone(database, sink, lambda: database.settled)
    assert database.settled > 3
    assert len(sink.bodies) == 1


@pytest.mark.anyio
async def test_what_was_taken_too_long_ago_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "SENT_BY", -1.0)
    database, sink = Scripted(lambda: "delivered"), Sink()
    await alone(database, sink, lambda: not database.calls)
    assert (database.settled, sink.bodies) == (0, [])


@pytest.mark.anyio
async def test_a_fault_of_ours_is_settled_too(caplog: Any) -> None:
    database, sink = Scripted(lambda: "again"), Sink(RuntimeError("https://hook.example/"))
    await alone(database, sink, lambda: database.settled)
    assert "a call to a hook failed: RuntimeError" in caplog.text
    assert "hook.example" not in caplog.text
