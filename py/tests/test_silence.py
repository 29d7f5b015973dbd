"""A database that falls silent, by a proxy that takes every byte and passes none on.

docs/operations.md promises that calls are answered 503 then, and that the server recovers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import psycopg
import pytest
from conftest import busy, until

from chaos.proxy import Proxy
from switchboard import listener as listening
from switchboard import silence
from switchboard.db import SWEEP_AGE, Database
from switchboard.listener import CONTROL, Listener
from switchboard.silence import Bounded

SOON = 0.3


@pytest.fixture
def proxy(database):
    with Proxy(database, random.Random(1)) as one:
        yield one


@contextlib.contextmanager
def silence_on(proxy):
    """Nothing passes for the time of the block, which counts as silence much sooner than usual."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bounded, "patience", SOON)
        patch.setattr(silence, "CHECK_PATIENCE", SOON)
        proxy.break_(silent=True)
        try:
            yield patch
        finally:
            proxy.cut()  # what it holds back would be done when it arrives late
            proxy.heal()


@pytest.fixture
async def pool(settings, proxy):
    database = Database(settings(database_url=proxy.url, pool_size=3, pool_wait=10))
    await database.open()
    yield database
    await database.close()


async def free(pool: Database, count: int) -> None:
    """Let the pool have so many connections, none of them in use."""
    await asyncio.gather(*(pool.value("select pg_sleep(0.1)") for _ in range(count)))
    async with asyncio.timeout(15):
        while pool._pool.get_stats()["pool_available"] < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.anyio
async def test_a_call_on_a_silent_line_ends_and_every_connection_is_replaced(pool, proxy) -> None:
    await free(pool, 3)
    with silence_on(proxy) as patch:
        patch.setattr(silence, "CHECK_PATIENCE", 60.0)  # the others are not asked
        with pytest.raises(psycopg.OperationalError):
            async with asyncio.timeout(10):
                await pool.value(SWEEP_AGE)
        async with asyncio.timeout(10):
            await asyncio.shield(pool.repair())
        before = proxy.seen["connections"]
    assert await pool.value(SWEEP_AGE) is None
    await free(pool, 3)
    assert proxy.seen["connections"] - before >= 3, "none of the old ones was left"


@pytest.mark.anyio
async def test_a_repeatable_call_waits_for_the_network_to_come_back(pool, proxy) -> None:
    await free(pool, 3)
    with silence_on(proxy):
        asking = asyncio.create_task(pool.value(SWEEP_AGE, repeatable=True))
        async with asyncio.timeout(15):
            while not pool._repair:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert await asking is None


@pytest.mark.anyio
async def test_a_check_of_silent_connections_ends_and_their_places_are_kept(pool, proxy) -> None:
    await free(pool, 3)
    with silence_on(proxy):
        async with asyncio.timeout(10):
            await pool.repair()
    await free(pool, 3)


@pytest.mark.anyio
async def test_what_takes_long_and_is_answered_is_not_cut(pool) -> None:
    await free(pool, 1)
    assert await pool.value("select 1 from pg_sleep(0.2)") == 1


@pytest.mark.anyio
async def test_a_silent_listener_connects_again_and_looks_for_what_it_missed(
    db, proxy, monkeypatch
) -> None:
    monkeypatch.setattr(listening, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(listening, "QUIET_SECONDS", SOON)
    heard = asyncio.Queue[str | None]()
    listener = Listener(proxy.url, {CONTROL: heard.put_nowait})
    task = asyncio.create_task(listener.run())
    async with asyncio.timeout(30):
        assert await heard.get() is None
        with silence_on(proxy):
            db.rows("select pg_notify('switchboard_control', 'missed')")
            while listener.state != "reconnecting":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await heard.get() is None, "anything may have happened"
        while listener.state != "listening":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        db.rows("select pg_notify('switchboard_control', 'heard')")
        while await heard.get() != "heard":
            pass
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


PRESENT = "select count(*) from switchboard.endpoint_presence"


def open_requests(served) -> int:
    present = served.app.state.sessions.present().values()
    return sum(session.requests for sessions in present for session in sessions)


@pytest.mark.parametrize("calls", [0, 2])
def test_a_server_ends_soon_while_its_database_is_silent(db, serve, proxy, calls) -> None:
    served = serve(database_url=proxy.url)  # open requests get one second
    session = served.session(db.vend("agent"))
    served.wait_listening()
    until(lambda: db.value(PRESENT), "the session is written")
    assert httpx2.post(f"{served.url}/webhooks/w/nobody").status_code == 404  # and to be counted
    with ThreadPoolExecutor() as asking:
        proxy.break_(silent=True)
        asked = [
            asking.submit(session.call, "claim_next", number) for number in range(100, 100 + calls)
        ]
        until(lambda: open_requests(served) == calls, "they wait")
        began = time.monotonic()
        served.server.should_exit = True
        served.thread.join(60)
        took = time.monotonic() - began
        for one in asked:
            one.exception()
    assert took < 7 + busy(), "compose allows 15 s, and a bit of that is spent elsewhere"


def test_calls_are_answered_503_and_agents_work_again_when_it_is_over(db, serve, proxy) -> None:
    endpoint = db.vend("agent")
    served = serve(database_url=f"{proxy.url} connect_timeout=2", pool_size=2, pool_wait=1)
    session = served.session(endpoint)
    served.wait_listening()
    with silence_on(proxy):
        assert session.call("claim_next")["error"]["code"] == "unavailable"
        answer = httpx2.get(f"{served.url}/readyz", timeout=20)
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    db.create(endpoint, "after the silence")
    until(lambda: session.call("claim_next").get("todo"), "the agent gets work again", 30)
    until(lambda: served.app.state.listener.state == "listening", "it listens again", 30)
