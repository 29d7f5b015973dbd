"""Who is on the line, as a board sees it: written when it changes, never by a call, and gone with
its process. What SQL makes of it is db/tests/14_presence.sql."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from conftest import Endpoint, RawSession, Served, Sql, until

from switchboard import presence as module
from switchboard.presence import Presence, client_name
from switchboard.sessions import Session, Sessions


class FakeDatabase:
    """Remembers what one process said of its sessions, as note_presence() would."""

    def __init__(self) -> None:
        self.calls = 0
        self.told: dict[str, Any] = {}
        self.seen: list[list[str]] = []
        self.known = False
        self.ended = False
        self.error: BaseException | None = None

    async def value(self, query: str, params: tuple[Any, ...], **_: Any) -> Any:
        if "end_presence" in query:
            self.ended = True
            return None
        self.calls += 1
        if self.error:
            raise self.error
        _, told, seen = params
        known, self.known = self.known, True
        for endpoint_id, sessions in json.loads(told).items():
            self.told[endpoint_id] = [(s["client"], s["age"], s["stream"]) for s in sessions]
        self.told = {key: value for key, value in self.told.items() if value}
        self.seen.append(seen)
        return known

    def forget(self) -> None:
        """What a sweep does with a process that was silent for long."""
        self.told, self.known = {}, False


class Desk:
    """A process with sessions on a clock that is moved."""

    def __init__(self) -> None:
        self.database = FakeDatabase()
        self.time = 1000.0
        self.live: dict[str, Any] = {}
        manager: Any = SimpleNamespace(_server_instances=self.live)
        self.sessions = Sessions(manager, None, 600.0, 256, set(), lambda: self.time)  # type: ignore[arg-type]
        self.presence = Presence(self.database, self.sessions)  # type: ignore[arg-type]

    def open(self, session_id: str, endpoint_id: str = "alpha", client: Any = None) -> Session:
        caller: Any = SimpleNamespace(endpoint_id=endpoint_id, slug=endpoint_id)
        self.live[session_id] = None
        self.sessions.add(session_id, caller, client)
        return self.sessions._sessions[session_id]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.anyio
async def test_nobody_there_is_no_call(desk: Desk) -> None:
    await desk.presence.write()
    await desk.presence.close()
    assert desk.database.calls == 0
    assert not desk.database.ended


@pytest.mark.anyio
async def test_what_changed_is_said_and_what_did_not_is_not(desk: Desk) -> None:
    first = desk.open("1", client="claude 2")
    desk.time += 5
    second = desk.open("2")
    desk.open("3", "beta")
    await desk.presence.write()
    alpha = [("claude 2", 5.0, False), (None, 0.0, False)]
    assert desk.database.told == {"alpha": alpha, "beta": [(None, 0.0, False)]}
    assert desk.database.calls == 1
    desk.database.told = {}
    stream: Any = SimpleNamespace(session=first, cut=lambda: None)
    desk.sessions.attach(stream)
    await desk.presence.write()
    assert desk.database.told == {"alpha": [("claude 2", 5.0, True), (None, 0.0, False)]}
    desk.sessions.detach(stream)
    await desk.presence.write()
    assert desk.database.told == {"alpha": alpha}
    await desk.sessions.end([first, second], "a test")
    await desk.presence.write()
    assert "alpha" not in desk.database.told, "its last sessions ended"


@pytest.mark.anyio
async def test_an_endpoint_is_seen_while_it_is_used_or_listens(desk: Desk) -> None:
    session = desk.open("1")
    desk.open("2", "beta")
    desk.time += 1
    await desk.presence.write()
    desk.time += 15
    with desk.sessions.use(session):
        desk.time += 1
        await desk.presence.write()
        desk.time += 15
    desk.time += 1
    await desk.presence.write()
    desk.time += 15
    await desk.presence.write()
    assert desk.database.seen == [["alpha", "beta"], ["alpha"], ["alpha"], []]
    assert desk.database.calls == 4, "that the process runs is said all the same"


@pytest.mark.anyio
async def test_what_could_not_be_said_is_said_the_next_time(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.open("1")
    desk.database.error = psycopg.OperationalError("secret")
    await desk.presence.write()
    await desk.presence.write()
    assert [record.getMessage() for record in caplog.records] == [
        "sessions are not shown on the board yet: OperationalError"
    ]
    desk.database.error = None
    desk.open("2", "beta")
    await desk.presence.write()
    assert set(desk.database.told) == {"alpha", "beta"}
    desk.database.error = RuntimeError("a mistake")
    desk.open("3")
    await desk.presence.write()
    desk.database.error = None
    await desk.presence.write()
    assert len(desk.database.told["alpha"]) == 2


@pytest.mark.anyio
async def test_a_database_that_forgot_is_told_everything(desk: Desk) -> None:
    desk.open("1")
    desk.open("2", "beta")
    await desk.presence.write()
    desk.database.forget()
    desk.open("3", "gamma")
    await desk.presence.write()
    assert set(desk.database.told) == {"alpha", "beta", "gamma"}
    calls = desk.database.calls
    await desk.presence.write()
    assert desk.database.calls == calls + 1


@pytest.mark.anyio
async def test_a_burst_is_one_call_and_silence_a_beat(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEBOUNCE_SECONDS", 0.2)
    monkeypatch.setattr(module, "BEAT_SECONDS", 3600)
    running = asyncio.create_task(desk.presence.run())
    for n in range(100):
        desk.open(str(n), f"place {n % 10}")
        await asyncio.sleep(0)
    await _until(lambda: desk.database.calls)
    assert {key: len(value) for key, value in desk.database.told.items()} == {
        f"place {n}": 10 for n in range(10)
    }
    assert desk.database.calls == 1
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.05)
    desk.open("last")
    await _until(lambda: desk.database.calls > 3)
    running.cancel()
    await desk.presence.close()
    assert desk.database.ended


@pytest.mark.anyio
async def test_what_is_under_way_gets_there_when_this_ends(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEBOUNCE_SECONDS", 0)
    monkeypatch.setattr(module, "BEAT_SECONDS", 0)
    begun, go = asyncio.Event(), asyncio.Event()
    told = desk.database.value

    async def slow(query: str, params: tuple[Any, ...], **more: Any) -> Any:
        begun.set()
        await go.wait()
        return await told(query, params, **more)

    desk.database.value = slow  # type: ignore[method-assign]
    desk.open("1")
    running = asyncio.create_task(desk.presence.run())
    await begun.wait()
    running.cancel()
    closing = asyncio.create_task(desk.presence.close())
    go.set()
    await closing
    assert desk.database.told, "first what is under way"
    assert desk.database.ended, "then the end"


async def _until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("info", "name"),
    [
        ({"name": "claude-code", "version": "2.1"}, "claude-code 2.1"),
        ({"name": "x"}, "x"),
        ({"version": "2"}, "2"),
        ({"name": 7, "version": None}, None),
        ({"name": ""}, None),
        ({"name": " \n\t "}, None),
        ({"name": "a\x00b\ud800c\N{RIGHT-TO-LEFT OVERRIDE}d\x1b[31m"}, "abcd[31m"),
        ({"name": "x" * 500, "version": "1"}, "x" * 80),
        ([], None),
        ("x", None),
        (None, None),
    ],
)
def test_a_client_may_call_itself_anything(info: Any, name: str | None) -> None:
    assert client_name({"method": "initialize", "params": {"clientInfo": info}}) == name


@pytest.mark.parametrize("message", [None, [], "x", 1, {}, {"params": None}, {"params": []}])
def test_a_message_that_names_no_client(message: Any) -> None:
    assert client_name(message) is None


def present(db: Sql, endpoint: Endpoint) -> list[tuple[str | None, bool]]:
    query = "select client, stream from switchboard.sessions_of(%s, switchboard.now())"
    return [(row["client"], row["stream"]) for row in db.rows(query, endpoint.id)]


class Listening:
    """A stream that is held open in a thread."""

    def __init__(self, session: RawSession) -> None:
        self.session = session
        self.close = threading.Event()
        self.opened = threading.Event()
        self.thread = threading.Thread(target=self._hold, daemon=True)
        self.thread.start()
        assert self.opened.wait(20)

    def _hold(self) -> None:
        with self.session.stream() as stream:
            assert stream.status_code == 200
            self.opened.set()
            self.close.wait(30)

    def end(self) -> None:
        self.close.set()
        self.thread.join(20)


def test_a_session_is_seen_from_its_beginning_to_its_end(
    serve: Callable[..., Served], db: Sql
) -> None:
    alpha, beta = db.vend("alpha"), db.vend("beta")
    served = serve()
    assert present(db, alpha) == []
    session = served.session(alpha)
    until(lambda: present(db, alpha) == [("test 1", False)], "the session is there")
    listening = Listening(session)
    until(lambda: present(db, alpha) == [("test 1", True)], "it listens")
    other = serve()
    other.session(alpha)
    until(lambda: len(present(db, alpha)) == 2, "another server has one, too")
    other.stop()
    until(lambda: present(db, alpha) == [("test 1", True)], "gone with that server")
    listening.end()
    until(lambda: present(db, alpha) == [("test 1", False)], "it listens no longer")
    session.http.delete(session.address, headers=session.headers)
    until(lambda: present(db, alpha) == [], "it ended")
    seen = db.value("select switchboard.last_seen(%s)", alpha.id)
    assert seen is not None, "it was seen"
    assert present(db, beta) == []
    assert db.value("select switchboard.last_seen(%s)", beta.id) is None


def test_a_revoked_endpoint_has_nobody_on_the_line(serve: Callable[..., Served], db: Sql) -> None:
    alpha = db.vend("alpha")
    served = serve()
    served.wait_listening()
    served.session(alpha)
    until(lambda: present(db, alpha), "the session is there")
    db.rows("select switchboard.revoke_endpoint(%s)", alpha.id)
    until(lambda: present(db, alpha) == [], "it is not there any more")


def test_calls_write_nothing(serve: Callable[..., Served], db: Sql) -> None:
    alpha = db.vend("alpha")
    session = serve().session(alpha)
    until(lambda: present(db, alpha), "the session is there")
    query = "select (select xmin::text from switchboard.endpoint_presence) as written"
    before = db.value(query)
    for _ in range(20):
        session.call("list_todos")
    assert db.value(query) == before
