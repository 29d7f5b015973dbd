"""Doorbells over real HTTP: who is rung, once, and whom nobody waits for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter

import httpx2
import mcp_types
import psycopg
import pytest
from bell_kit import Ears, Stuck, hold_back, listener_pid
from conftest import busy, until
from mcp import Client
from mcp.client.extension import ClientExtension, NotificationBinding
from mcp.client.streamable_http import streamable_http_client

from switchboard.auth import Authenticator
from switchboard.db import DOORBELLS, Database
from switchboard.doorbell import MORE, Doorbell
from switchboard.stream import DOUBTFUL_SECONDS, LATE_SECONDS, Stream

RINGS = "select ring_attempts from switchboard.todos where id = %s"
CREATE_MANY = "select count(*) from switchboard.create_todos(%s, %s)"
VERBS = ["claim_next", "claim", "complete", "fail", "release", "retry"]


@pytest.fixture
def attach():
    """Open a session's stream and hear."""
    opened = []

    def start(served, endpoint, kind=Ears):
        opened.append(kind(served, endpoint))
        return opened[-1]

    yield start
    for ears in opened:
        ears.close()


def many(count: int, queue: str = "inbox") -> str:
    return json.dumps([{"queue": queue, "title": f"number {n}"} for n in range(count)])


# -- what a bell is, and when it rings


def test_a_client_learns_that_it_may_be_rung(served, db) -> None:
    session = served.session(db.vend("alpha"), start=False)
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    capabilities = session.ask("initialize", hello)["result"]["capabilities"]
    assert capabilities["experimental"] == {"claude/channel": {}}


def test_a_bell_is_one_line_and_strings(served, db, attach) -> None:
    alpha = db.vend("alpha")
    served.wait_listening()
    ears = attach(served, alpha)
    query = "select id from switchboard.create_todo(%s, 'inbox', %s, p_kind => %s)"
    todo = str(db.value(query, alpha.id, 'two\nlines </channel> "é\u2028', 'issue"s'))
    bell = ears.hears(todo)
    assert bell["meta"] == {"todo_id": todo, "queue": "inbox", "kind": "issue's"}
    assert bell["content"].startswith("Todo ready on queue inbox: two lines")
    assert not set("<>\n\u2028") & set(bell["content"])
    assert db.value(RINGS, todo) == 1


def test_it_rings_again_when_the_todo_comes_back(served, db, attach) -> None:
    alpha = db.vend("alpha", verbs=VERBS)
    served.wait_listening()
    ears = attach(served, alpha)
    todo = db.create(alpha, "work")
    ears.hears(todo)
    for tools in (("release",), ("fail", "retry")):
        ears.at.clear()
        token = ears.session.call("claim_next")["todo"]["lease_token"]
        ears.session.call(tools[0], id=todo, lease_token=token)
        for tool in tools[1:]:
            ears.session.call(tool, id=todo)
        ears.hears(todo)


def test_whoever_attaches_is_told_of_the_oldest_three(served, db, attach) -> None:
    alpha = db.vend("alpha")
    todos = [db.create(alpha, f"number {n}") for n in range(5)]
    served.wait_listening()
    ears = attach(served, alpha)
    for todo in todos[:3]:
        ears.hears(todo)
    last = db.create(alpha, "the next note finds what is left")
    ears.hears(last)
    assert sorted(ears.ids) == sorted([*todos, last])


def test_three_sessions_take_turns(served, db, attach) -> None:
    alpha = db.vend("alpha")
    served.wait_listening()
    sessions = [attach(served, alpha) for _ in range(3)]
    order = []
    for number in range(9):
        todo = db.create(alpha, f"number {number}")
        [rung] = hearing(sessions, todo)
        order.append(sessions.index(rung))
    turn = order[:3]  # in which their streams were opened
    assert sorted(turn) == [0, 1, 2]
    assert order == turn * 3
    sessions[turn[1]].close()
    rest = [hearing(sessions, db.create(alpha, "more"))[0] for _ in range(4)]
    assert [sessions.index(rung) for rung in rest] == [turn[0], turn[2]] * 2


def hearing(sessions, todo: str):
    """Who heard the bell of this todo."""
    return until(lambda: [ears for ears in sessions if todo in ears.at], "somebody hears it")


def test_nobody_is_rung_for_what_is_not_his(served, db, attach) -> None:
    alpha, beta = db.vend("alpha", ("inbox", "other")), db.vend("beta", ("inbox",))
    served.wait_listening()
    ears, others = attach(served, alpha), attach(served, beta)
    create = "select id from switchboard.create_todo(%s, %s, 't', p_assignee => %s)"
    db.rows(create, alpha.id, "inbox", "agent:beta")
    mine = str(db.value(create, alpha.id, "other", "agent:alpha"))
    db.rows(create, beta.id, "inbox", "agent:alpha")
    for trust, queue in (("open", "inbox"), ("signed", "quarantine")):
        todo = db.value(create, alpha.id, "inbox", "nobody")
        db.rows(
            "update switchboard.todos set assignee = null, trust_mode = %s, queue = %s"
            " where id = %s",
            trust, queue, todo,
        )  # fmt: skip
        db.rows("select pg_notify('todo_ready', %s)", f"{alpha.id}:{queue}")
    db.rows("select pg_notify('todo_ready', %s)", f"{alpha.id}:not-granted")
    db.rows("select pg_notify('todo_ready', 'no endpoint')")
    last, theirs = db.create(alpha, "last"), db.create(beta, "theirs")
    ears.hears(mine)
    ears.hears(last)
    others.hears(theirs)
    assert sorted(ears.ids) == sorted([mine, last])
    assert others.ids == [theirs]


@pytest.mark.parametrize("gateways", [1, 2])
def test_a_batch_rings_for_each_of_its_todos(serve, db, attach, until, gateways: int) -> None:
    alpha = db.vend("alpha")
    served = [serve() for _ in range(gateways)]
    for gateway in served:
        gateway.wait_listening()
    first, second = attach(served[0], alpha), attach(served[-1], alpha)
    for _ in range(3):  # the greeting of the second may still be on its way
        db.rows(CREATE_MANY, alpha.id, many(350))
    until(lambda: len(first.ids) + len(second.ids) >= 1050, "each rings", 60)
    assert max(Counter(first.ids + second.ids).values()) == 1


# -- sessions and streams that end


def test_fault_45_bells_stop_with_the_stream(served, db, attach, until, monkeypatch) -> None:
    alpha = db.vend("alpha")
    served.wait_listening()
    ears = attach(served, alpha)
    ears.hears(db.create(alpha, "heard"))
    ears.close()
    until(lambda: not served.app.state.sessions.streams(), "the stream ends")
    value, asked = Database.value, []

    async def count(self, query, params=(), **kwargs):
        asked.append((query, *params[:1]))
        return await value(self, query, params, **kwargs)

    monkeypatch.setattr(Database, "value", count)
    todo = db.create(alpha, "not heard")
    sentinel = attach(served, beta := db.vend("beta"))
    sentinel.hears(db.create(beta, "the note after it was dealt with"))
    assert (DOORBELLS, alpha.id) not in asked, "nothing is marked as rung for nobody"
    assert db.value(RINGS, todo) == 0
    attach(served, alpha).hears(todo)


def test_fault_45_a_revoked_credential_is_not_rung(served, db, attach, until, monkeypatch) -> None:
    still_valid = Authenticator.still_valid

    async def slow(self, keys):  # slower than the bell
        await asyncio.sleep(0.3)
        return await still_valid(self, keys)

    monkeypatch.setattr(Authenticator, "still_valid", slow)
    alpha = db.vend("alpha")
    served.wait_listening()
    old = attach(served, alpha)
    old.hears(db.create(alpha, "before"))
    with psycopg.connect(db.dsn) as connection:  # one commit: both notes come together
        rotate = "select switchboard.rotate_credential(%s)"
        row = connection.execute(rotate, [alpha.id]).fetchone()
        create = "select id from switchboard.create_todo(%s, 'inbox', 'after')"
        todo = connection.execute(create, [alpha.id]).fetchone()[0]
    until(lambda: old.ended.is_set(), "its stream ends")
    until(lambda: db.value(RINGS, todo) == 0, "what was taken for it is given back")
    assert str(todo) not in old.at
    alpha.credential = row[0]
    attach(served, alpha).hears(str(todo))


def test_fault_47_after_a_restart_the_new_session_is_rung(serve, db, attach, until) -> None:
    alpha = db.vend("alpha")
    first = serve()
    first.wait_listening()
    ears = attach(first, alpha)
    ears.hears(db.create(alpha, "before"))
    first.stop()
    assert ears.ended.wait(20)
    between = db.create(alpha, "nobody is there")
    second = serve(port=first.settings.port)
    second.wait_listening()
    assert ears.session.post(ears.session.request("ping")).status_code == 404
    again = attach(second, alpha)
    again.hears(between)
    again.hears(db.create(alpha, "after"))


def test_fault_48_a_client_that_takes_nothing_holds_up_nobody(served, db, attach, until) -> None:
    alpha, beta = db.vend("alpha"), db.vend("beta")
    served.wait_listening()
    attach(served, alpha, Stuck)
    ears, other = attach(served, alpha), attach(served, beta)
    made = {}
    for number in range(60):
        for endpoint in (alpha, beta):
            made[db.create(endpoint, f"{number} {'x' * 180}")] = time.monotonic()
    until(lambda: len(other.at) == 60, "the other endpoint hears all", 60)
    late = sorted(other.at[todo] - made[todo] for todo in other.at)
    assert late[-1] < busy()
    # A few lie in the client's own machine; the others move on when it does not take them.
    until(lambda: len(ears.at) >= 55, "its bells go to the next session", 60)
    late = sorted(ears.at[todo] - made[todo] for todo in ears.at)
    assert late[25] < 0.5 * busy()
    assert late[-1] < 3.5 * busy()
    assert max(Counter(ears.ids).values()) == 1


def test_fault_48_a_session_that_takes_nothing_for_long_is_ended(
    served, db, attach, until, monkeypatch
) -> None:
    monkeypatch.setattr("switchboard.doorbell.LOST_SECONDS", 3.0)
    alpha = db.vend("alpha")
    served.wait_listening()
    stuck = attach(served, alpha, Stuck)
    todos = [db.create(alpha, f"{number} {'x' * 180}") for number in range(40)]
    sessions = served.app.state.sessions
    until(lambda: len(sessions) == 0, "the session ends")
    assert stuck.session.post(stuck.session.request("ping")).status_code == 404
    until(lambda: not sessions.streams(), "the stream, too")
    zero = "select count(*) from switchboard.todos where ring_attempts = 0"
    until(lambda: db.value(zero) >= 35, "what it did not take is given back")
    assert len(todos) == 40


# -- what is not heard


def test_fault_33_what_was_missed_while_nobody_listened_rings(
    serve, db, attach, monkeypatch
) -> None:
    may_listen = hold_back(monkeypatch)
    served = serve()
    alpha = db.vend("alpha", ("inbox", "other"))
    served.wait_listening()
    ears = attach(served, alpha)
    ears.hears(db.create(alpha, "before"))
    before = listener_pid(db)
    may_listen.clear()
    db.rows("select pg_terminate_backend(%s, 5000)", before)
    missed = [db.create(alpha, "missed", queue) for queue in ("inbox", "other") * 9]
    assert listener_pid(db) is None
    assert not set(missed) & set(ears.at), "nobody told of them"
    may_listen.set()
    for todo in missed:
        ears.hears(todo)
    until(lambda: listener_pid(db) not in (None, before), "somebody listens")
    ears.hears(db.create(alpha, "after"))


def test_fault_35_a_listener_stuck_in_a_transaction_holds_up_no_create(served, db, attach) -> None:
    alpha = db.vend("alpha")
    served.wait_listening()
    ears = attach(served, alpha)
    with psycopg.connect(db.dsn) as stuck:
        stuck.execute("listen todo_ready")
        stuck.commit()
        stuck.execute("select count(*) from switchboard.todos")  # and stays in this transaction
        db.rows("set statement_timeout = '5s'")
        for number in range(50):
            todo = db.create(alpha, f"number {number}")
        ears.hears(todo)
        stuck.commit()
        assert len(list(stuck.notifies(timeout=10, stop_after=50))) == 50


def test_what_no_note_told_of_is_found_within_half_a_minute(serve, db, attach, monkeypatch) -> None:
    monkeypatch.setattr("switchboard.doorbell.DUE_SECONDS", 0.5)
    served = serve(listen_url="host=/nonexistent")
    alpha = db.vend("alpha")
    attach(served, alpha).hears(db.create(alpha, "silent"))


def test_two_gateways_ring_once_for_each_of_500_todos(serve, db, attach, until) -> None:
    alpha = db.vend("alpha", ("inbox", "other"))
    gateways = [serve(), serve()]
    for served in gateways:
        served.wait_listening()
    ears = [attach(served, alpha) for served in gateways]
    made: list[str] = []

    def create(queue: str) -> None:
        with psycopg.connect(db.dsn, autocommit=True) as connection:
            query = "select id::text from switchboard.create_todo(%s, %s, 't')"
            rows = (connection.execute(query, [alpha.id, queue]).fetchone() for _ in range(250))
            made.extend(row[0] for row in rows)

    threads = [threading.Thread(target=create, args=[queue]) for queue in ("inbox", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: len(ears[0].ids) + len(ears[1].ids) >= 500, "each rings", 60)
    last = db.create(alpha, "last")
    until(lambda: last in ears[0].at or last in ears[1].at, "the last one rings")
    rung = Counter(ears[0].ids + ears[1].ids)
    assert rung == Counter([*made, last])
    assert min(len(ears[0].ids), len(ears[1].ids)) > 20, "both took part"
    assert db.value("select count(*) from switchboard.todos where ring_attempts <> 1") == 0


# -- clients


class Params(mcp_types.NotificationParams):
    content: str
    meta_values: dict[str, str] = {}  # noqa: RUF012 (pydantic copies it)


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_python_client_is_rung(served, db, mode: str) -> None:
    alpha = db.vend("alpha")
    served.wait_listening()
    heard: asyncio.Queue[str] = asyncio.Queue()

    class Bells(ClientExtension):
        identifier = "org.example/bells"

        def notifications(self):
            async def hear(params: Params) -> None:
                heard.put_nowait(params.content)

            method = "notifications/claude/channel"
            return [NotificationBinding(method=method, params_type=Params, handler=hear)]

    headers = {"Authorization": f"Bearer {alpha.credential}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(f"{served.url}/mcp/alpha", http_client=http)
        async with Client(transport, mode=mode, extensions=[Bells()]) as client:
            assert client.session.server_capabilities.experimental == {"claude/channel": {}}
            async with asyncio.timeout(30):
                await until_so(served.app.state.sessions.streams)
                await asyncio.to_thread(db.create, alpha, "for you")
                assert await heard.get() == "Todo ready on queue inbox: for you"
            claimed = await client.call_tool("claim_next", {"wait_seconds": 5})
            assert claimed.structured_content["todo"]["title"] == "for you"


# -- the parts by themselves


class FakeDatabase:
    """Answers what it is told to; keeps what was returned to it."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []
        self.bells: list[list[dict]] = []
        self.returned: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def value(self, query, params, *, repeatable=False):
        if "return_doorbells" in query:
            self.returned += params[1]
            return None
        self.asked.append(params)
        await self.may_answer.wait()
        return self.bells.pop(0) if self.bells else []


class FakeSession:
    def __init__(self, number: int) -> None:
        self.id = str(number)
        self.caller = type("Caller", (), {"endpoint_id": "e", "slug": "alpha"})()


class FakeSessions:
    """One endpoint, whose streams are rung in order."""

    def __init__(self) -> None:
        self.open: list[Stream] = []
        self.ended: list[Stream] = []

    def can_ring(self, endpoint_id):
        return endpoint_id == "e" and any(stream.is_open for stream in self.open)

    def next_stream(self, _):
        return next((stream for stream in self.open if stream.is_open), None)

    async def settled(self):
        return True

    async def end(self, sessions, reason):
        for stream in self.open:
            if stream.session in sessions:
                stream.is_open = False
                self.ended.append(stream)


def bell(number: int) -> dict:
    return {"content": f"c{number}", "meta": {"todo_id": f"t{number}", "queue": "q"}}


@contextlib.asynccontextmanager
async def ringing(*sends):
    """A doorbell for streams that do this when they are written to."""
    database, sessions = FakeDatabase(), FakeSessions()
    doorbell = Doorbell(database, sessions, 2)
    for number, send in enumerate(sends):
        stream = Stream(FakeSession(number), send, None, lambda _: None)
        stream.is_open = True
        sessions.open.append(stream)
    yield doorbell, database, sessions
    await doorbell.close()


async def until_so(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (there is no event for it)
            await asyncio.sleep(0.005)


@pytest.mark.anyio
async def test_a_bell_that_is_not_taken_goes_to_the_next_session(monkeypatch) -> None:
    monkeypatch.setattr("switchboard.doorbell.LATE_SECONDS", 0.05)
    got: list[bytes] = []

    async def never(_):
        await asyncio.Event().wait()

    async def take(message):
        got.append(message["body"])

    async with ringing(never, never, take) as (doorbell, database, sessions):
        database.bells = [[bell(1), bell(2)]]
        doorbell.ready("e:q")
        await until_so(lambda: len(got) == 2)
    assert sessions.ended == sessions.open[:2]
    assert b'"todo_id":"t1"' in got[0]
    assert database.returned == []


@pytest.mark.anyio
async def test_bells_that_nobody_takes_are_given_back(monkeypatch) -> None:
    monkeypatch.setattr("switchboard.doorbell.LATE_SECONDS", 0.05)

    async def never(_):
        await asyncio.Event().wait()

    async with ringing(never, never) as (doorbell, database, _):
        database.bells = [[bell(1), bell(2)]]
        doorbell.ready("e:q")
        await until_so(lambda: database.returned == ["t1", "t2"])


@pytest.mark.timeout(20)
@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.anyio
async def test_a_client_that_has_just_left_is_asked_once_and_holds_up_nobody(others) -> None:
    got: list[bytes] = []

    async def take(message):
        got.append(message["body"])

    async with ringing(*[take] * (1 + others)) as (doorbell, database, sessions):
        sessions.open[0]._connection = connection = FakeConnection()
        connection.gone = True  # which the loop learns only when it is let go of
        database.bells = [[bell(1)]]
        doorbell.ready("e:q")
        await until_so(lambda: len(got) == others and database.returned == ["t1"] * (1 - others))


@pytest.mark.anyio
async def test_notes_that_come_during_a_look_ask_for_one_more() -> None:
    async def take(_):
        pass

    async with ringing(take) as (doorbell, database, _):
        database.may_answer.clear()
        doorbell.ready("e:q")
        await until_so(lambda: len(database.asked) == 1)
        for _ in range(5):
            doorbell.ready("e:q")
        doorbell.ready("e:other")
        doorbell.ready("foreign:q")
        await until_so(lambda: len(database.asked) == 2)
        database.may_answer.set()
        await until_so(lambda: not doorbell._looks)
        asked = [(endpoint, queue) for endpoint, _, queue, _ in database.asked]
        assert sorted(asked) == [("e", "other"), ("e", "q"), ("e", "q")]


@pytest.mark.anyio
async def test_many_bells_at_once_are_followed_by_another_look() -> None:
    got = []

    async def take(message):
        got.append(message)

    async with ringing(take) as (doorbell, database, _):
        database.bells = [[bell(n) for n in range(MORE)], [bell(MORE)]]
        doorbell.ready("e:q")
        await until_so(lambda: len(got) == MORE + 1)
        assert len(database.asked) == 2


class FakeConnection:
    """What the client's machine has not confirmed is what the test says."""

    def __init__(self) -> None:
        self.left, self.gone, self.is_blocked = 0, False, False

    def unsent(self) -> int:
        return self.left

    def has_left(self) -> bool:
        return self.gone


@pytest.mark.anyio
async def test_a_stream_knows_what_was_taken() -> None:
    connection, written = FakeConnection(), []

    async def send(message):
        written.append(message)

    stream = Stream(FakeSession(1), send, connection, lambda _: None)
    assert not await stream.ring(bell(0)), "it is not open"
    await stream.send({"type": "http.response.start", "status": 200})
    for number in (1, 2, 3):
        assert await stream.ring(bell(number))
    connection.left = len(written[-1]["body"])
    assert stream.check() == []
    assert len(stream._written) == 1
    assert not stream.is_slow
    stream._written[0].at -= DOUBTFUL_SECONDS
    assert stream.check() == []
    assert stream.is_slow
    stream._written[0].at -= LATE_SECONDS
    assert stream.check() == [bell(3)]
    assert stream.is_late()
    assert stream.check() == [], "they are handed out once"
    connection.left = 0
    stream.check()
    assert not stream.is_late(), "a client that comes back is rung again"
    connection.gone = True
    assert not await stream.ring(bell(4)), "the client has closed its end"


@pytest.mark.anyio
async def test_a_stream_that_ends_gives_back_what_is_doubtful() -> None:
    connection = FakeConnection()

    async def send(_):
        pass

    stream = Stream(FakeSession(1), send, connection, lambda _: None)
    await stream.send({"type": "http.response.start", "status": 200})
    await stream.ring(bell(1))
    stream._written[0].at -= DOUBTFUL_SECONDS
    connection.left = 1000
    stream.check()
    await stream.ring(bell(2))
    assert stream.close() == [bell(1)], "the second was written a moment ago: it may have come"
