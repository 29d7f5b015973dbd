"""The live board's hub: one view for all who look, changed regions only, nobody left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from switchboard import board_stream
from switchboard.board_stream import Sight, Streams
from switchboard.db import BOARD_CHANGES, OPERATORS
from switchboard.errors import ErrorTable

pytestmark = pytest.mark.anyio

ALICE, ALICE_TOO, BOB = b"a" * 32, b"b" * 32, b"c" * 32


class World:
    """A database and its pages, as the hub sees them."""

    def __init__(self) -> None:
        self.errors = ErrorTable()
        self.humans = {ALICE: "alice", ALICE_TOO: "alice", BOB: "bob"}
        self.regions = {"todos": "<p>0</p>", "rail": "<p>ok</p>"}
        self.changes = 0
        self.asked = 0
        self.looks: list[tuple[str, str]] = []
        self.broken = False

    async def value(self, query: str, params: Any = (), *, repeatable: bool = False) -> Any:
        await asyncio.sleep(0)
        if self.broken:
            raise psycopg.OperationalError
        if query == OPERATORS:
            return [self.humans.get(digest) for digest in params[0]]
        assert query == BOARD_CHANGES
        self.asked += 1
        return str(self.changes)

    async def look(self, digest: bytes, page: str, args: str) -> Sight | None:
        await asyncio.sleep(0)
        self.looks.append((self.humans.get(digest, ""), page))
        if digest not in self.humans or page == "nowhere":
            return None
        return Sight("now", dict(self.regions))

    def change(self, **regions: str) -> None:
        self.regions |= regions
        self.changes += 1


class Reader:
    """What a browser sees of a stream."""

    def __init__(self, response: Any) -> None:
        self.events = response.body_iterator

    async def next(self) -> tuple[str, Any]:
        async with asyncio.timeout(5):
            event = await anext(self.events)
        return event.event, json.loads(event.data)

    async def open(self) -> dict[str, str]:
        """The regions that come first."""
        assert (await self.next())[0] == "hello"
        found = [await self.next() for _ in range(2)]
        assert {name for name, _ in found} == {"fragment"}
        return {data["id"]: data["html"] for _, data in found}

    async def rest(self) -> list[tuple[str, Any]]:
        """All that comes until the stream ends."""
        async with asyncio.timeout(5):
            return [(event.event, json.loads(event.data)) async for event in self.events]

    async def close(self) -> None:
        await self.events.aclose()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(board_stream, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(board_stream, "TROUBLE_SECONDS", 0.01)
    return World()


@asynccontextmanager
async def hub(world: World, at_most: int = 10) -> AsyncIterator[Streams]:
    streams = Streams(world, world.look, at_most)  # type: ignore[arg-type]
    running = asyncio.create_task(streams.run())
    try:
        yield streams
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def wait(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_what_changed_is_sent_and_nothing_else(world: World) -> None:
    async with hub(world) as streams:
        reader = Reader(streams.response(ALICE, "exchange", {}))
        assert await reader.open() == world.regions
        world.change(todos="<p>1</p>")
        assert await reader.next() == ("fragment", {"id": "todos", "html": "<p>1</p>"})
        await reader.close()
        assert len(streams) == 0


async def test_nobody_watching_asks_nothing(world: World) -> None:
    async with hub(world) as streams:
        await asyncio.sleep(0.05)
        assert world.asked == 0
        reader = Reader(streams.response(ALICE, "exchange", {}))
        await reader.open()
        await wait(lambda: world.asked > 2)
        await reader.close()
        await asyncio.sleep(0.02)
        asked = world.asked
        await asyncio.sleep(0.05)
        assert world.asked == asked


async def test_no_change_makes_no_view(world: World) -> None:
    async with hub(world) as streams:
        reader = Reader(streams.response(ALICE, "exchange", {}))
        await reader.open()
        await wait(lambda: world.asked > 2)
        looks = len(world.looks)
        asked = world.asked
        await wait(lambda: world.asked > asked + 5)
        assert len(world.looks) == looks
        await reader.close()


async def test_a_view_is_made_once_for_all_who_look(world: World) -> None:
    async with hub(world) as streams:
        digests = (ALICE, ALICE_TOO, ALICE, BOB)
        readers = [Reader(streams.response(digest, "exchange", {})) for digest in digests]
        for reader in readers:
            await reader.open()
        await wait(lambda: world.asked > 1)
        world.looks.clear()
        world.change(todos="<p>1</p>")
        for reader in readers:
            assert (await reader.next())[1]["html"] == "<p>1</p>"
        assert sorted(world.looks) == [("alice", "exchange"), ("bob", "exchange")]
        for reader in readers:
            await reader.close()


async def test_who_reads_slowly_gets_the_newest(world: World) -> None:
    async with hub(world) as streams:
        reader = Reader(streams.response(ALICE, "exchange", {}))
        await reader.open()
        for number in range(1, 20):
            world.change(todos=f"<p>{number}</p>")
            seen = world.asked
            await wait(lambda seen=seen: world.asked > seen + 1)
        assert (await reader.next())[1]["html"] == "<p>19</p>"
        await reader.close()


async def test_a_session_that_ended_is_told_to_go(world: World) -> None:
    async with hub(world) as streams:
        gone, stays = (
            Reader(streams.response(digest, "exchange", {})) for digest in (ALICE, ALICE_TOO)
        )
        await gone.open()
        await stays.open()
        del world.humans[ALICE]
        world.change()
        assert (await gone.next())[0] == "gone"
        world.change(todos="<p>1</p>")
        assert (await stays.next())[0] == "fragment"
        with pytest.raises(StopAsyncIteration):
            await gone.next()
        await stays.close()
        assert len(streams) == 0


async def test_a_session_that_ends_while_its_view_is_made_takes_nobody_along(world: World) -> None:
    async with hub(world) as streams:
        readers = {
            digest: Reader(streams.response(digest, "exchange", {}))
            for digest in (ALICE, ALICE_TOO)
        }
        for reader in readers.values():
            await reader.open()
        look = world.look

        async def lose(digest: bytes, page: str, args: str) -> Sight | None:
            world.humans.pop(digest, None)
            streams._look = look
            return None

        streams._look = lose
        world.change(todos="<p>1</p>")
        await wait(lambda: len(world.humans) == 2)
        lost, stays = (ALICE, ALICE_TOO) if ALICE not in world.humans else (ALICE_TOO, ALICE)
        assert (await readers[lost].next())[0] == "gone"
        assert (await readers[stays].next())[0] == "fragment"
        await readers[stays].close()


async def test_who_is_nobody_or_looks_at_nothing_is_told_to_go(world: World) -> None:
    async with hub(world) as streams:
        for digest, page in ((b"x" * 32, "exchange"), (ALICE, "nowhere")):
            reader = Reader(streams.response(digest, page, {}))
            assert (await reader.next())[0] == "gone"
            with pytest.raises(StopAsyncIteration):
                await reader.next()
            assert len(streams) == 0


async def test_too_many_are_refused_and_a_place_that_was_left_is_free(world: World) -> None:
    async with hub(world, at_most=1) as streams:
        never_read = Reader(streams.response(ALICE, "exchange", {}))
        first = Reader(streams.response(ALICE, "exchange", {}))
        await first.open()
        assert streams.response(BOB, "exchange", {}).status_code == 503
        await first.close()
        second = Reader(streams.response(BOB, "exchange", {}))
        await second.open()
        await second.close()
        await never_read.close()  # its body never began: it holds no place


async def test_a_stream_without_news_says_that_it_is_alive(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_stream, "ALIVE_SECONDS", 0.05)
    said: list[bytes] = []
    alive = asyncio.Event()

    async def send(message: Any) -> None:
        said.append(message.get("body", b""))
        if b"event: alive" in said[-1]:
            alive.set()

    async with hub(world) as streams:
        response = streams.response(ALICE, "exchange", {})
        scope = {"type": "http", "method": "GET", "path": "/events", "headers": []}
        serving = asyncio.create_task(response(scope, asyncio.Event().wait, send))  # type: ignore[arg-type]
        async with asyncio.timeout(5):
            await alive.wait()
        assert b"event: hello" in b"".join(said)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await wait(lambda: len(streams) == 0)


async def test_trouble_passes(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with hub(world) as streams:
        reader = Reader(streams.response(ALICE, "exchange", {}))
        await reader.open()
        world.broken = True
        await wait(lambda: "boards not renewed" in caplog.text)
        world.broken = False
        world.change(todos="<p>1</p>")
        assert (await reader.next())[1]["html"] == "<p>1</p>"
        await reader.close()


async def test_what_comes_while_the_greeting_is_sent_is_not_undone(world: World) -> None:
    async with hub(world) as streams:
        reader = Reader(streams.response(ALICE, "exchange", {}))
        assert (await reader.next())[0] == "hello"
        seen = world.asked
        world.change(todos="<p>newer</p>")
        await wait(lambda: world.asked > seen + 2)
        got = dict([list(data.values()) for _, data in [await reader.next() for _ in range(2)]])
        assert got == {"todos": "<p>newer</p>", "rail": "<p>ok</p>"}
        await reader.close()


@pytest.mark.parametrize("error", [RuntimeError("x"), psycopg.errors.QueryCanceled("too slow")])
async def test_a_view_that_cannot_be_made_takes_no_other_along(
    world: World, error: Exception
) -> None:
    async with hub(world) as streams:
        look, broken = world.look, [False]

        async def fail(digest: bytes, page: str, args: str) -> Sight | None:
            if broken[0] and page == "bad":
                raise error
            return await look(digest, page, args)

        streams._look = fail
        bad = Reader(streams.response(BOB, "bad", {}))
        await bad.open()
        good = Reader(streams.response(ALICE, "exchange", {}))
        await good.open()
        broken[0] = True
        world.change(todos="<p>1</p>")
        assert (await good.next())[1]["html"] == "<p>1</p>"
        # It ends without a word: the script comes back.
        assert [one for one in await bad.rest() if one[0] != "fragment"] == []
        assert len(streams) == 1
        broken[0] = False
        again = Reader(streams.response(BOB, "bad", {}))
        await again.open()
        await again.close()
        await good.close()


async def test_many_at_once_are_not_more_than_there_is_room_for(world: World) -> None:
    async with hub(world, at_most=5) as streams:
        readers = [Reader(streams.response(ALICE, "exchange", {})) for _ in range(50)]
        said = await asyncio.gather(*(one.next() for one in readers), return_exceptions=True)
        assert sum(isinstance(one, tuple) for one in said) == len(streams) == 5
        for reader in readers:
            await reader.close()


async def test_one_human_does_not_take_all_views(world: World) -> None:
    async with hub(world, at_most=1000) as streams:
        readers = [
            Reader(streams.response(ALICE, "exchange", {"q": str(number)}))
            for number in range(board_stream.VIEWS)
        ]
        for reader in readers:
            await reader.open()
        with pytest.raises(StopAsyncIteration):
            await Reader(streams.response(ALICE, "exchange", {"q": "one more"})).next()
        same = Reader(streams.response(ALICE_TOO, "exchange", {"q": "0"}))
        other = Reader(streams.response(BOB, "exchange", {}))
        await same.open()
        await other.open()
        world.looks.clear()
        world.change(todos="<p>1</p>")
        await wait(lambda: len(world.looks) > 1)
        assert "bob" in dict(world.looks[:2]), "a human's first view does not wait for many others"
        for reader in (*readers, same, other):
            await reader.close()


async def test_who_waits_for_a_view_that_fails_makes_its_own(world: World) -> None:
    let, looks = asyncio.Event(), iter(range(3))

    async def look(digest: bytes, page: str, args: str) -> Sight | None:
        number = next(looks)
        await let.wait()
        if number == 1:
            raise psycopg.OperationalError
        return await world.look(digest, page, args)

    streams = Streams(world, look, 10)  # type: ignore[arg-type]  # nobody looks around
    readers = [Reader(streams.response(ALICE, "exchange", {})) for _ in range(3)]
    waiting = [asyncio.create_task(reader.next()) for reader in readers]
    await wait(lambda: len(streams) == 3)
    let.set()
    said = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(one, tuple) for one in said] == [True, False, True]
    assert next(looks, None) is None, "the third was made, and not that of the first shown as new"
    for reader in readers:
        await reader.close()
