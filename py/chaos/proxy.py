"""A network that can be broken: a TCP proxy on loopback whose faults are switched while it runs.

Whoever should suffer is given the proxy's address in place of the database's or the server's. It
knows nothing of what passes: a piece of bytes from the client is a request, what comes back after
it is its answer. That is enough to lose the one before it was read, the other after it was made, or
half of it, and to delay either. It can also cut every connection, turn newcomers away, or fall
silent: a black hole takes what is sent, and neither answers nor hangs up. No end of a connection is
hidden from the other but while it is silent.

The proxy runs in a thread with a loop of its own, so that a scenario breaks and mends it with plain
calls. Faults are drawn from a seeded source of randomness, but which connection meets which fault
depends on the order of arrival.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from psycopg.conninfo import conninfo_to_dict, make_conninfo

PIECE = 64 * 1024
RESET = struct.pack("ii", 1, 0)  # linger for no time: what is closed is reset
FATES = ("lost_requests", "lost_answers", "torn_answers")
T = TypeVar("T")


@dataclass(frozen=True)
class Faults:
    """What befalls a request; the probabilities are of one request each, and add up to at most 1.

    Attributes:
        lost_requests: the connection ends before the request is passed on.
        lost_answers: it ends when the answer has come, of which the client gets nothing.
        torn_answers: the same, and the client gets the first half of it.
        delay: seconds, from and to, that each piece is late, in either direction.
        silent: nothing passes, in either direction, and nobody is told.
        refusing: who connects is turned away.
    """

    lost_requests: float = 0.0
    lost_answers: float = 0.0
    torn_answers: float = 0.0
    delay: tuple[float, float] = (0.0, 0.0)
    silent: bool = False
    refusing: bool = False


class _Pair:
    """A client's connection, and the one that was made for it.

    Attributes:
        client, server: where what is for them is written.
        fate: what happens to the next answer.
    """

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.fate = ""

    def reset(self) -> None:
        """Both ends are told by a reset; what was not sent is not."""
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):  # closed already, or a socket of the file system
                line = end.get_extra_info("socket")
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.transport.abort()

    def close(self) -> None:
        """Both ends are told when what was passed on has been sent."""
        self.client.close()
        self.server.close()


class Proxy:
    """One proxy; also a context manager that starts and stops it.

    Args:
        upstream: what is behind it: ``http://host:port``, or a libpq URL, whose socket may be one
            of the file system.
        draws: where faults are drawn from.

    Attributes:
        port: where it listens, on 127.0.0.1.
        seen: how often what happened: ``connections``, ``requests``, ``lost_requests``,
            ``lost_answers``, ``torn_answers``, ``cut``, ``refused``.
    """

    def __init__(self, upstream: str, draws: random.Random) -> None:
        self.upstream = upstream
        self.port = 0
        self.seen: Counter[str] = Counter()
        self._draws = draws
        self._faults = Faults()
        self._open: set[_Pair] = set()
        self._busy: set[asyncio.Task[None]] = set()
        self._speaks = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The address to use in place of ``upstream``."""
        if self.upstream.startswith("http"):
            return f"http://127.0.0.1:{self.port}"
        return make_conninfo(self.upstream, host="127.0.0.1", port=self.port, sslmode="disable")

    def through(self, url: str) -> str:
        """The same database under another login, by way of the proxy: a libpq URL or DSN."""
        return make_conninfo(url, host="127.0.0.1", port=self.port, sslmode="disable")

    def start(self) -> None:
        """Begin to listen, on a free port."""
        self._thread.start()
        self._ask(self._listen())

    def stop(self) -> None:
        """Cut everything and listen no more; nothing happens when it was stopped already."""
        if self._loop.is_closed():
            return
        self._ask(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def break_(self, **faults: Any) -> None:
        """Change some of ``Faults``, from now on; the others stay as they are."""
        self._ask(self._more(faults))

    def heal(self) -> None:
        """No faults any more. What a silent proxy held back is passed on now."""
        self._ask(self._change(Faults()))

    def cut(self) -> int:
        """Reset every connection, at both ends; how many."""
        return self._ask(self._cut())

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    # -- in the thread of the loop --------------------------------------------------------------

    async def _listen(self) -> None:
        self._speaks.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1000)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        if self._server:
            self._server.close()
        await self._cut()
        self._speaks.set()  # who waits for it finds both ends closed
        if self._busy:
            await asyncio.wait(self._busy, timeout=5)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _change(self, faults: Faults) -> None:
        self._faults = faults
        if faults.silent:
            self._speaks.clear()
        else:
            self._speaks.set()

    async def _more(self, faults: dict[str, Any]) -> None:
        await self._change(replace(self._faults, **faults))

    async def _cut(self) -> int:
        held = list(self._open)
        self.seen["cut"] += len(held)
        for pair in held:
            pair.reset()
        return len(held)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if task := asyncio.current_task():
            self._busy.add(task)
            task.add_done_callback(self._busy.discard)
        try:
            if self._faults.refusing:
                self.seen["refused"] += 1
                raise ConnectionRefusedError
            await self._speaks.wait()
            back, server = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        self.seen["connections"] += 1
        pair = _Pair(writer, server)
        self._open.add(pair)
        pumps = [
            asyncio.create_task(self._pass(reader, pair, self._request)),
            asyncio.create_task(self._pass(back, pair, self._answer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(pair)
            pair.close()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.upstream.startswith("http"):
            where = urlsplit(self.upstream)
            return await asyncio.open_connection(where.hostname, where.port)
        given = conninfo_to_dict(self.upstream)
        host, port = str(given.get("host") or "127.0.0.1"), int(given.get("port") or 5432)
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        pair: _Pair,
        deal: Callable[[_Pair, bytes], Coroutine[Any, Any, bool]],
    ) -> None:
        """Pass on what comes, until it ends or ``deal`` says that it has ended."""
        with contextlib.suppress(OSError):
            while True:
                piece = await reader.read(PIECE)
                await self._speaks.wait()
                if not piece:
                    return
                if any(self._faults.delay):
                    await asyncio.sleep(self._draws.uniform(*self._faults.delay))
                if not await deal(pair, piece):
                    return

    async def _request(self, pair: _Pair, piece: bytes) -> bool:
        self.seen["requests"] += 1
        pair.fate = self._fate()
        if pair.fate == "lost_requests":
            return self._break(pair)
        pair.server.write(piece)
        await pair.server.drain()
        return True

    async def _answer(self, pair: _Pair, piece: bytes) -> bool:
        if pair.fate == "lost_answers":
            return self._break(pair)
        if pair.fate == "torn_answers":
            pair.client.write(piece[: len(piece) // 2])
            await pair.client.drain()
            self.seen[pair.fate] += 1
            return False
        pair.client.write(piece)
        await pair.client.drain()
        return True

    def _break(self, pair: _Pair) -> bool:
        self.seen[pair.fate] += 1
        pair.reset()
        return False

    def _fate(self) -> str:
        """What happens to this request and its answer; empty: nothing."""
        draw = self._draws.random()
        for name in FATES:
            draw -= float(getattr(self._faults, name))
            if draw < 0:
                return name
        return ""
