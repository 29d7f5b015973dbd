"""What the gateway hears from the database, and what it does when it hears nothing."""

import asyncio
import contextlib

import psycopg
import pytest

from switchboard import listener as module
from switchboard.listener import CONTROL, OUTBOX, READY, Listener

# The listener's own: the backend of the connection that sent the probe may still be there.
BACKENDS = (
    "select pid from pg_stat_activity where application_name = 'switchboard'"
    " and datname = current_database() and query not like '%%pg_notify%%'"
)


@contextlib.asynccontextmanager
async def listening(url: str, **others):
    heard: asyncio.Queue[str | None] = asyncio.Queue()
    listener = Listener(url, {CONTROL: heard.put_nowait, **others})
    task = asyncio.create_task(listener.run())
    try:
        yield listener, heard
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def next_of(heard: asyncio.Queue[str | None]) -> str | None:
    async with asyncio.timeout(30):
        return await heard.get()


@pytest.mark.anyio
async def test_a_note_is_passed_on_and_starting_counts_as_a_change(db) -> None:
    async with listening(db.dsn) as (listener, heard):
        assert await next_of(heard) is None
        assert listener.state == "listening"
        db.rows("select pg_notify('switchboard_control', 'e-1')")
        assert await next_of(heard) == "e-1"


@pytest.mark.anyio
async def test_each_channel_has_a_callback_of_its_own(db) -> None:
    ready, outbox = asyncio.Queue[str | None](), asyncio.Queue[str | None]()
    others = {READY: ready.put_nowait, OUTBOX: outbox.put_nowait}
    async with listening(db.dsn, **others) as (_, heard):
        assert [await next_of(queue) for queue in (heard, ready, outbox)] == [None] * 3
        db.rows("select pg_notify('switchboard_outbox', ''), pg_notify('todo_ready', 'e:q')")
        assert [await next_of(queue) for queue in (ready, outbox)] == ["e:q", ""]
        assert (heard.empty(), ready.empty(), outbox.empty()) == (True, True, True)


@pytest.mark.anyio
async def test_a_callback_that_fails_stops_neither_the_others_nor_itself(db, caplog) -> None:
    ready = asyncio.Queue[str | None]()

    def fail(note: str | None) -> None:
        ready.put_nowait(note)
        raise ValueError(note)

    async with listening(db.dsn, **{READY: fail}) as (listener, heard):
        assert [await next_of(queue) for queue in (heard, ready)] == [None, None]
        db.rows("select pg_notify('todo_ready', 'a:b')")
        db.rows("select pg_notify('todo_ready', 'c:d')")
        assert [await next_of(ready) for _ in range(2)] == ["a:b", "c:d"]
        assert listener.state == "listening"
    assert "a note on todo_ready was not dealt with" in caplog.text


@pytest.mark.anyio
async def test_fault_33_a_killed_connection_is_made_again_and_everything_rechecked(db) -> None:
    async with listening(db.dsn) as (listener, heard):
        await next_of(heard)
        killed = db.rows(f"select pg_terminate_backend(pid) from ({BACKENDS}) b")
        assert len(killed) == 1
        assert await next_of(heard) is None, "anything may have changed meanwhile"
        assert listener.state == "listening"
        db.rows("select pg_notify('switchboard_control', 'e-2')")
        assert await next_of(heard) == "e-2"


@pytest.mark.anyio
async def test_a_silent_connection_is_tried_and_stays_open(db, monkeypatch) -> None:
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.01)
    async with listening(db.dsn) as (listener, heard):
        await next_of(heard)
        assert listener.state == "listening"
        before = db.rows(BACKENDS)
        assert len(before) == 1
        for number in range(50):
            db.rows("select pg_notify('switchboard_control', %s)", str(number))
            assert await next_of(heard) == str(number)
        assert db.rows(BACKENDS) == before
        assert listener.state == "listening"


@pytest.mark.anyio
async def test_a_pooler_that_delivers_nothing_is_noticed(db, monkeypatch, caplog) -> None:
    monkeypatch.setattr(module, "SELF_TEST_SECONDS", 0.05)
    execute = psycopg.AsyncConnection.execute

    async def swallow(self, query, *args, **kwargs):
        return await execute(self, "select 1" if "listen" in str(query) else query, *args, **kwargs)

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", swallow)
    monkeypatch.setattr(module, "DEAF_SECONDS", 0.05)
    ready = asyncio.Queue[str | None]()
    async with listening(db.dsn, **{READY: ready.put_nowait}) as (listener, heard):
        assert await next_of(heard) is None
        assert listener.state == "deaf"
        assert [await next_of(ready) for _ in range(5)] == [None] * 5, "whoever waits looks"
        assert heard.empty(), "what changed is looked for anyway"
    assert "SWITCHBOARD_LISTEN_URL" in caplog.text


@pytest.mark.anyio
async def test_an_unreachable_database_is_tried_again_until_it_answers(db, monkeypatch) -> None:
    tries = asyncio.Queue[None]()
    connect = psycopg.AsyncConnection.connect

    async def refuse(*args, **kwargs):
        tries.put_nowait(None)
        if tries.qsize() < 3:
            raise psycopg.OperationalError("connection refused")
        return await connect(*args, **kwargs)

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", refuse)
    async with listening(db.dsn) as (listener, heard):
        assert await next_of(heard) is None
        assert tries.qsize() == 4  # two refused, one that listens, one that sends the probe
        assert listener.state == "listening"
