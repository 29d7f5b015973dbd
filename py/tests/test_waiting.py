"""Calls that wait for work: who gets it, how soon, and what ends the wait."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import socket
import sys
import threading
import time
from statistics import median
from typing import Any

import httpx2
import psycopg
import pytest
from bell_kit import hold_back, listener_pid
from conftest import RawSession, busy

from switchboard import waiting as module
from switchboard.db import CALL_TOOL, Database
from switchboard.errors import Problem
from switchboard.waiting import EMPTY, Line, Waiting, wait_seconds

WAIT = "claim_next"
# For an answer that a wake brings: on a busy machine it may take long, but the wait ends later.
PATIENCE = 30
STATE = "select state::text from switchboard.todos where id = %s"
CREATE_MANY = "select count(*) from switchboard.create_todos(%s, %s)"


def message(request_id: object = 7, **arguments: object) -> dict[str, object]:
    params = {"name": WAIT, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


@pytest.fixture
def waiting(request, until):
    """Wait until so many calls wait, in the test's one gateway or in this one."""

    def are(count: int, server=None) -> None:
        server = server or request.getfixturevalue("served")
        until(lambda: asleep(server) == count, f"{count} calls wait")

    return are


def asleep(server) -> int:
    waiters = server.app.state.waiting._waiters
    return sum(waiter.asleep for line in list(waiters.values()) for waiter in list(line))


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(64) as threads:
        yield threads


def pull(session: RawSession, seconds: int, **arguments: object) -> tuple[dict, float]:
    """The answer, and when it came."""
    content = session.call(WAIT, wait_seconds=seconds, **arguments)
    return content, time.monotonic()


class Dropped:
    """A waiting call whose client can go away at any moment."""

    def __init__(self, served, session: RawSession, **arguments: object) -> None:
        self.socket = socket.create_connection(("127.0.0.1", served.settings.port))
        body = json.dumps(message(**arguments)).encode()
        head = {**session.headers, "host": session.http.base_url.netloc.decode() or "localhost"}
        head |= {"host": f"127.0.0.1:{served.settings.port}", "content-length": str(len(body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        request = f"POST /mcp/{session.endpoint.slug} HTTP/1.1\r\n{lines}\r\n".encode()
        self.socket.sendall(request + body)

    def leave(self) -> None:
        self.socket.close()


# -- work comes


def test_a_call_waits_and_is_answered_when_there_is_work(served, db, waiting, pool) -> None:
    alpha = db.vend("alpha")
    served.wait_listening()
    job = pool.submit(pull, served.session(alpha), 50)
    waiting(1)
    todo = db.create(alpha, "work")
    answer, _ = job.result(PATIENCE)
    assert (answer["empty"], answer["todo"]["id"]) == (False, todo)
    assert db.value(STATE, todo) == "claimed"


def test_without_work_it_is_empty_when_the_time_is_up(served, db) -> None:
    session = served.session(db.vend("alpha"))
    began = time.monotonic()
    answer, at = pull(session, 1)
    assert answer == {"empty": True, "deferred": []}
    assert 1 <= at - began < 20
    assert len(served.app.state.waiting) == 0


@pytest.mark.parametrize("queues", [["inbox"], ["other", "inbox"], None])
def test_work_that_is_there_is_not_waited_for(served, db, queues) -> None:
    alpha = db.vend("alpha", ("inbox", "other"))
    db.create(alpha, "work")
    began = time.monotonic()
    answer, at = pull(served.session(alpha), 50, **({"queues": queues} if queues else {}))
    assert answer["todo"]["title"] == "work"
    assert at - began < PATIENCE


@pytest.mark.parametrize("seconds", [-1, 51, 10**12, 50.5, "5", True, [1], 1.5])
@pytest.mark.parametrize("where", ["fast path", "through the SDK"])
def test_wait_seconds_out_of_range_is_refused(served, db, monkeypatch, seconds, where) -> None:
    if where == "through the SDK":
        monkeypatch.setattr("switchboard.jsonrpc.tool_call", lambda _: None)
    alpha = db.vend("alpha")
    todo = db.create(alpha, "work")
    error = served.session(alpha).call(WAIT, wait_seconds=seconds)["error"]
    assert (error["code"], error["field"]) == ("invalid_argument", "wait_seconds")
    assert db.value(STATE, todo) == "pending"


def test_what_wait_seconds_may_be() -> None:
    given = (None, 0, 0.0, 1, 50, 2.0, "x", False)
    assert [wait_seconds({"wait_seconds": value}) for value in given] == [0, 0, 0, 1, 50, 2, 0, 0]
    assert wait_seconds({}) == 0
    with pytest.raises(Problem, match="from 0 to 50"):
        wait_seconds({"wait_seconds": float("nan")})


def test_other_queues_wake_nobody(served, db, waiting, pool, monkeypatch) -> None:
    alpha = db.vend("alpha", ("inbox", "other", "third"))
    served.wait_listening()
    job = pool.submit(pull, served.session(alpha), 50, queues=["other", "third"])
    waiting(1)
    asked = []
    value = Database.value

    async def count(self, query, *args, **kwargs):
        asked.append(query)
        return await value(self, query, *args, **kwargs)

    monkeypatch.setattr(Database, "value", count)
    db.create(alpha, "not for it")
    todo = db.create(alpha, "for it", "third")
    assert job.result(PATIENCE)[0]["todo"]["id"] == todo
    assert asked.count(CALL_TOOL) == 1


def test_fifty_calls_and_fifty_todos(serve, db, waiting, pool) -> None:
    """Fast enough in one of some rounds, as far as the machine is not busy with something else."""
    served = serve(pool_size=10)
    alpha = db.vend("alpha")
    served.wait_listening()
    sessions = [served.session(alpha) for _ in range(50)]
    medians: list[float] = []
    while not medians or (min(medians) >= 20 and len(medians) < 6):
        jobs = [pool.submit(pull, session, 50) for session in sessions]
        waiting(50, served)
        made = {}
        for number in range(50):
            made[db.create(alpha, f"number {number}")] = time.monotonic()
        answers = [job.result(PATIENCE) for job in jobs]
        assert sorted(answer["todo"]["id"] for answer, _ in answers) == sorted(made)
        late = sorted(1000 * (at - made[answer["todo"]["id"]]) for answer, at in answers)
        medians.append(median(late))
        sys.stdout.write(f"median {medians[-1]:.1f} ms, longest {late[-1]:.1f} ms\n")
    assert min(medians) < 20 * busy()


def test_one_note_may_stand_for_many_todos(served, db, waiting, pool) -> None:
    alpha, beta = db.vend("alpha"), db.vend("beta")
    served.wait_listening()
    jobs = [pool.submit(pull, served.session(alpha), 50) for _ in range(12)]
    waiting(12)
    other = pool.submit(pull, served.session(beta), 50)
    waiting(13)
    todos = json.dumps([{"queue": "inbox", "title": f"number {n}"} for n in range(12)])
    db.rows(CREATE_MANY, alpha.id, todos)
    assert len({job.result(PATIENCE)[0]["todo"]["id"] for job in jobs}) == 12
    assert not other.done()
    db.create(beta, "theirs")
    assert other.result(PATIENCE)[0]["todo"]["title"] == "theirs"


def test_waiting_holds_no_connection_of_the_database(serve, db, waiting, pool) -> None:
    served = serve(pool_size=1)
    alpha = db.vend("alpha")
    served.wait_listening()
    session = served.session(alpha)
    jobs = [pool.submit(pull, served.session(alpha), 50) for _ in range(20)]
    waiting(20, served)
    busy = "select count(*) from pg_stat_activity where datname = current_database() and state like"
    assert db.value(f"{busy} 'idle in%%' or wait_event_type = 'Lock'") == 0
    assert session.call("list_todos")["todos"] == []
    todos = json.dumps([{"queue": "inbox", "title": f"number {n}"} for n in range(20)])
    db.rows(CREATE_MANY, alpha.id, todos)
    assert len({job.result(PATIENCE)[0]["todo"]["id"] for job in jobs}) == 20


def test_a_waiting_call_counts_as_one_for_the_rate(serve, db, waiting, pool) -> None:
    served = serve(mcp_rate=0.01, mcp_burst=4)
    alpha = db.vend("alpha")
    served.wait_listening()
    session = served.session(alpha)  # two requests
    job = pool.submit(pull, session, 50)
    waiting(1, served)
    for _ in range(5):
        db.rows("select pg_notify('todo_ready', %s)", f"{alpha.id}:inbox")
        waiting(1, served)
    db.create(alpha, "work")
    assert job.result(PATIENCE)[0]["empty"] is False
    assert session.call(WAIT)["empty"] is True
    assert session.post(message()).status_code == 429


def test_so_many_calls_of_an_endpoint_may_wait(served, db, waiting, pool, monkeypatch) -> None:
    monkeypatch.setattr(module, "WAITERS_PER_ENDPOINT", 3)
    alpha, beta = db.vend("alpha"), db.vend("beta")
    served.wait_listening()
    jobs = [pool.submit(pull, served.session(alpha), 50) for _ in range(3)]
    waiting(3)
    error = served.session(alpha).call(WAIT, wait_seconds=20)["error"]
    assert (error["code"], "wait" in error["message"]) == ("unavailable", True)
    assert served.session(alpha).call(WAIT)["empty"] is True
    jobs.append(pool.submit(pull, served.session(beta), 50))
    waiting(4)
    db.create(beta, "work")
    for _ in range(3):
        db.create(alpha, "work")
    assert [job.result(PATIENCE)[0]["empty"] for job in jobs] == [False] * 4


# -- what is not heard


def test_fault_33_what_came_while_nobody_listened_is_found(
    serve, db, waiting, pool, monkeypatch
) -> None:
    may_listen = hold_back(monkeypatch)
    served = serve()
    alpha = db.vend("alpha")
    served.wait_listening()
    jobs = [pool.submit(pull, served.session(alpha), 50) for _ in range(5)]
    waiting(5, served)
    may_listen.clear()
    db.rows("select pg_terminate_backend(%s, 5000)", listener_pid(db))
    for number in range(5):
        db.create(alpha, f"number {number}")
    assert listener_pid(db) is None
    may_listen.set()
    assert len({job.result(PATIENCE)[0]["todo"]["id"] for job in jobs}) == 5


@pytest.mark.parametrize("why", ["pooler", "no connection"])
def test_a_deaf_listener_is_made_up_for_by_looking(
    serve, db, waiting, pool, until, monkeypatch, why: str
) -> None:
    monkeypatch.setattr("switchboard.listener.SELF_TEST_SECONDS", 0.05)
    monkeypatch.setattr("switchboard.listener.DEAF_SECONDS", 0.3)
    monkeypatch.setattr("switchboard.listener.LONGEST_PAUSE", 0.3)
    execute = psycopg.AsyncConnection.execute

    async def swallow(self, query, *args, **kwargs):
        return await execute(self, "select 1" if "listen" in str(query) else query, *args, **kwargs)

    if why == "pooler":
        monkeypatch.setattr(psycopg.AsyncConnection, "execute", swallow)
    served = serve(**({} if why == "pooler" else {"listen_url": "host=/nonexistent"}))
    state = "deaf" if why == "pooler" else "reconnecting"
    until(lambda: served.app.state.listener.state == state, f"the listener is {state}")
    alpha = db.vend("alpha")
    job = pool.submit(pull, served.session(alpha), 50)
    until(lambda: len(served.app.state.waiting) == 1, "it waits")
    todo = db.create(alpha, "silent")
    assert job.result(PATIENCE)[0]["todo"]["id"] == todo


def test_what_became_claimable_in_silence_is_found_when_the_time_is_up(
    served, db, waiting, pool
) -> None:
    alpha = db.vend("alpha")
    served.wait_listening()
    session = served.session(alpha)
    todo = db.create(alpha, "work")
    session.call(WAIT, lease_ttl_seconds=1)
    assert pull(session, 2)[0]["todo"]["id"] == todo, "the lease lapsed meanwhile"


# -- what ends the wait


@pytest.mark.parametrize("where", ["fast path", "through the SDK"])
def test_it_ends_with_the_client_and_claims_nothing(
    served, db, waiting, until, monkeypatch, where: str
) -> None:
    if where == "through the SDK":
        monkeypatch.setattr("switchboard.jsonrpc.tool_call", lambda _: None)
    alpha = db.vend("alpha")
    served.wait_listening()
    call = Dropped(served, served.session(alpha), wait_seconds=50)
    waiting(1)
    call.leave()
    until(lambda: len(served.app.state.waiting) == 0, "the wait ends")
    todo = db.create(alpha, "for somebody else")
    assert served.session(alpha).call(WAIT)["todo"]["id"] == todo


@pytest.mark.anyio
async def test_it_ends_with_the_client_where_there_are_no_sessions(
    serve, db, waiting, until
) -> None:
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    served = serve(mcp_handshake_only=False)
    alpha = db.vend("alpha")
    headers = {"Authorization": f"Bearer {alpha.credential}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(f"{served.url}/mcp/alpha", http_client=http)
        async with Client(transport, mode="2026-07-28") as client:
            job = asyncio.create_task(client.call_tool(WAIT, {"wait_seconds": 50}))
            await asyncio.to_thread(waiting, 1, served)
            await asyncio.to_thread(db.create, alpha, "work")
            assert (await job).structured_content["todo"]["title"] == "work"
            job = asyncio.create_task(client.call_tool(WAIT, {"wait_seconds": 50}))
            await asyncio.to_thread(waiting, 1, served)
            job.cancel()
            await asyncio.gather(job, return_exceptions=True)
            await asyncio.to_thread(waiting, 0, served)
            job = asyncio.create_task(client.call_tool(WAIT, {"wait_seconds": 50}))
            await asyncio.to_thread(waiting, 1, served)
            db.rows("select switchboard.revoke_endpoint(%s)", alpha.id)
            await asyncio.to_thread(waiting, 0, served)
            await asyncio.gather(job, return_exceptions=True)


@pytest.mark.parametrize("when", ["claimed", "first", "seen by the machine only"])
def test_a_claim_for_a_client_that_left_is_given_back(
    served, db, waiting, until, monkeypatch, caplog, when: str
) -> None:
    caplog.set_level("INFO")
    alpha = db.vend("alpha", verbs=[WAIT])  # nothing else: giving back needs no grant
    served.wait_listening()
    session = served.session(alpha)
    claimed, may_answer = threading.Event(), threading.Event()
    value = Database.value

    async def slow(self, query, *args, **kwargs):
        answer = await value(self, query, *args, **kwargs)
        if query == CALL_TOOL and '"todo"' in answer:
            claimed.set()
            if when == "seen by the machine only":  # the loop stands still, and cannot see it
                may_answer.wait(PATIENCE)
            else:
                await asyncio.get_running_loop().run_in_executor(None, may_answer.wait, PATIENCE)
        return answer

    if when == "first":
        todo = db.create(alpha, "work")
    monkeypatch.setattr(Database, "value", slow)
    call = Dropped(served, session, wait_seconds=50)
    if when != "first":
        waiting(1)
        todo = db.create(alpha, "work")
    assert claimed.wait(PATIENCE)
    call.leave()
    if when != "seen by the machine only":
        lines = served.app.state.waiting.lines
        until(lambda: all(line._hung_up for line in lines), "it is seen that the client left")
    may_answer.set()
    until(lambda: db.value(STATE, todo) == "pending", "it is given back")

    def given_back() -> list[dict[str, Any]]:
        return [r.fields for r in caplog.records if r.getMessage() == "mcp.given_back"]

    [event] = until(given_back, "and then noted")
    assert (event["endpoint"], event["todo_id"], event["outcome"]) == ("alpha", todo, "ok")


def test_what_is_given_back_goes_to_the_next(served, db, waiting, pool, monkeypatch) -> None:
    alpha = db.vend("alpha")
    served.wait_listening()
    first = Dropped(served, served.session(alpha), wait_seconds=50)
    waiting(1)
    job = pool.submit(pull, served.session(alpha), 50)
    waiting(2)
    gone = threading.Event()
    value = Database.value

    async def leave(self, query, *args, **kwargs):
        answer = await value(self, query, *args, **kwargs)
        if query == CALL_TOOL and not gone.is_set():
            first.leave()
            gone.set()
        return answer

    monkeypatch.setattr(Database, "value", leave)
    todo = db.create(alpha, "work")
    assert job.result(PATIENCE)[0]["todo"]["id"] == todo


def test_giving_back_is_tried_again(served, db, waiting, until, monkeypatch) -> None:
    monkeypatch.setattr(module, "GIVE_BACK_PAUSES", (0.0, 0.05, 0.05))
    alpha = db.vend("alpha")
    served.wait_listening()
    call = Dropped(served, served.session(alpha), wait_seconds=50)
    waiting(1)
    value, row, failures = Database.value, Database.row, []

    async def leave(self, query, *args, **kwargs):
        answer = await value(self, query, *args, **kwargs)
        if query == CALL_TOOL and '"todo"' in answer:
            call.leave()
        return answer

    async def fail(self, query, *args, **kwargs):
        if "release" in query and len(failures) < 2:
            failures.append(query)
            raise psycopg.OperationalError("no")
        return await row(self, query, *args, **kwargs)

    monkeypatch.setattr(Database, "value", leave)
    monkeypatch.setattr(Database, "row", fail)
    todo = db.create(alpha, "work")
    until(lambda: len(failures) == 2, "it fails twice")
    until(lambda: db.value(STATE, todo) == "pending", "it is given back")


@pytest.mark.parametrize("where", ["fast path", "through the SDK"])
def test_it_ends_when_the_client_gives_it_up(
    served, db, waiting, pool, monkeypatch, where: str
) -> None:
    if where == "through the SDK":
        monkeypatch.setattr("switchboard.jsonrpc.tool_call", lambda _: None)
    alpha = db.vend("alpha")
    served.wait_listening()
    session, other = served.session(alpha), served.session(alpha)
    job = pool.submit(session.post, message("x", wait_seconds=50))
    keeps = pool.submit(other.post, message("x", wait_seconds=50))
    waiting(2)
    cancel = {"method": "notifications/cancelled", "params": {"requestId": "x"}}
    assert session.post({"jsonrpc": "2.0", **cancel}).status_code == 202
    answer = job.result(PATIENCE).json()
    if where == "fast path":
        assert answer["result"]["structuredContent"]["empty"] is True
    waiting(1)
    todo = db.create(alpha, "work")
    assert keeps.result(PATIENCE).json()["result"]["structuredContent"]["todo"]["id"] == todo


@pytest.mark.parametrize("where", ["fast path", "through the SDK"])
def test_it_ends_with_the_session(served, db, waiting, pool, monkeypatch, where: str) -> None:
    if where == "through the SDK":
        monkeypatch.setattr("switchboard.jsonrpc.tool_call", lambda _: None)
    alpha = db.vend("alpha")
    served.wait_listening()
    session = served.session(alpha)
    job = pool.submit(session.post, message(wait_seconds=50))
    waiting(1)
    assert session.http.delete(session.address, headers=session.headers).status_code == 200
    job.result(PATIENCE)
    assert len(served.app.state.waiting) == 0
    todo = db.create(alpha, "work")
    assert served.session(alpha).call(WAIT)["todo"]["id"] == todo


@pytest.mark.parametrize("how", ["told", "fallback"])
def test_it_ends_when_the_credential_is_revoked(
    serve, db, waiting, pool, monkeypatch, how: str
) -> None:
    if how == "told":
        monkeypatch.setattr("switchboard.sessions.CHECK_SECONDS", 3600)
    served = serve(listen_url="host=/nonexistent") if how == "fallback" else serve()
    alpha, beta = db.vend("alpha"), db.vend("beta")
    if how == "told":
        served.wait_listening()
    job = pool.submit(served.session(alpha).post, message(wait_seconds=50))
    other = pool.submit(pull, served.session(beta), 4)
    waiting(2, served)
    db.rows("select switchboard.revoke_endpoint(%s)", alpha.id)
    answer = job.result(PATIENCE)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert other.result(PATIENCE)[0]["empty"] is True


@pytest.mark.parametrize("where", ["fast path", "through the SDK"])
def test_it_is_answered_when_the_server_stops(
    served, db, waiting, pool, monkeypatch, where: str
) -> None:
    if where == "through the SDK":
        monkeypatch.setattr("switchboard.jsonrpc.tool_call", lambda _: None)
    alpha = db.vend("alpha")
    served.wait_listening()
    jobs = [pool.submit(pull, served.session(alpha), 50) for _ in range(5)]
    waiting(5)
    began = time.monotonic()
    served.stop()
    assert [job.result(PATIENCE)[0] for job in jobs] == [{"empty": True, "deferred": []}] * 5
    assert time.monotonic() - began < PATIENCE


# -- the order of those that wait, without a server


class FakeConnection:
    def __init__(self) -> None:
        self.is_leaving, self.gone = False, False
        self.on_leaving = set()

    def has_left(self) -> bool:
        return self.gone


class Calls:
    """Calls that wait, and what each look finds: the titles that the test puts on queues."""

    def __init__(self) -> None:
        self.waiting = Waiting(self, 4)
        self.todos: dict[str, list[str]] = {}
        self.looks: list[str] = []
        self.released: list[tuple] = []
        self.hangs: asyncio.Event | None = None

    async def row(self, _, held):
        self.released.append(held)

    def start(self, name: str, *queues: str, seconds: float = 50):
        caller = type("Caller", (), {"endpoint_id": "e", "slug": "alpha"})()
        connection = FakeConnection()

        async def receive():
            await asyncio.Event().wait()

        async def ask() -> str:
            self.looks.append(name)
            found = [queue for queue in queues or self.todos if self.todos.get(queue)]
            title = self.todos[found[0]].pop(0) if found else None
            if self.hangs:
                await self.hangs.wait()
            if title is None:
                return EMPTY
            todo = {"id": title, "owner": "o", "lease_token": "l"}
            return json.dumps({"todo": todo, "empty": False})

        line = Line(caller, receive, connection, None, 1)
        arguments = {"queues": list(queues)} if queues else {}
        task = asyncio.create_task(self.waiting.call(line, arguments, seconds, ask))
        return task, line, connection

    def put(self, queue: str, *titles: str) -> None:
        self.todos.setdefault(queue, []).extend(titles)

    def note(self, queue: str) -> None:
        self.waiting.ready(f"e:{queue}")


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def title(task) -> str:
    return json.loads(task.result())["todo"]["id"]


@pytest.fixture
async def calls():
    return Calls()


@pytest.mark.anyio
async def test_the_first_that_waits_is_woken_first(calls) -> None:
    tasks = [calls.start(name)[0] for name in "abc"]
    await settle()
    for number in range(3):
        calls.put("q", f"t{number}")
        calls.note("q")
        await settle()
    assert [title(task) for task in tasks] == ["t0", "t1", "t2"]
    # Each that found something passes the note on, once.
    assert calls.looks == [*"abc", "a", "b", "b", "c", "c"]


@pytest.mark.anyio
async def test_notes_at_once_wake_as_many(calls) -> None:
    tasks = [calls.start(name)[0] for name in "abcd"]
    await settle()
    calls.put("q", "t0", "t1", "t2")
    for _ in range(3):
        calls.note("q")
    assert [waiter.asleep for waiter in calls.waiting._waiters["e"]] == [False] * 3 + [True]
    await settle()
    assert [title(task) for task in tasks[:3]] == ["t0", "t1", "t2"]
    assert not tasks[3].done()
    tasks[3].cancel()


@pytest.mark.anyio
async def test_one_that_found_nothing_wakes_nobody(calls) -> None:
    tasks = [calls.start(name)[0] for name in "abc"]
    await settle()
    calls.note("q")
    await settle()
    assert calls.looks == [*"abc", "a"]
    calls.waiting.ready(None)
    await settle()
    assert sorted(calls.looks) == sorted([*"abc", "a", *"abc"])
    for task in tasks:
        task.cancel()


@pytest.mark.anyio
async def test_a_note_is_passed_on_by_its_queue(calls) -> None:
    """A finds something older elsewhere; the note must reach C, past B, who does not cover it."""
    a, b, c = calls.start("a", "p", "q")[0], calls.start("b", "p")[0], calls.start("c", "q")[0]
    await settle()
    calls.put("p", "silent")
    calls.put("q", "told")
    calls.note("q")
    await settle()
    assert (title(a), title(c)) == ("silent", "told")
    assert not b.done()
    b.cancel()


@pytest.mark.anyio
async def test_a_note_during_a_look_is_looked_into(calls) -> None:
    calls.hangs = asyncio.Event()
    task = calls.start("a")[0]
    await settle()
    calls.put("q", "late")  # the look under way does not see it
    calls.note("q")
    calls.hangs.set()
    await settle()
    assert title(task) == "late"


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["cancelled", "gone", "hung up"])
async def test_who_leaves_passes_his_note_on(calls, how: str) -> None:
    a, line, connection = calls.start("a")
    b = calls.start("b")[0]
    await settle()
    calls.put("q", "t")
    calls.note("q")
    if how == "cancelled":
        a.cancel()
    elif how == "gone":
        connection.gone = True
    else:
        line.hang_up()
    await settle()
    assert title(b) == "t"
    assert a.cancelled() or a.result() == EMPTY
    assert calls.looks == ["a", "b", "b"]


@pytest.mark.anyio
async def test_what_is_claimed_while_it_is_cancelled_is_given_back(calls) -> None:
    task = calls.start("a")[0]
    await settle()
    calls.hangs = asyncio.Event()
    calls.put("q", "t")
    calls.note("q")
    await settle()
    task.cancel()
    await settle()
    assert task.cancelled()
    calls.hangs.set()
    await calls.waiting.close()
    assert calls.released == [("e", "t", "o", "l")]
