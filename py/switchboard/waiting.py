"""Calls that wait for work: asked again when woken, not by polling.

A call is registered before it asks the first time, so that no note is missed in between. A note of
a queue wakes the first sleeper that covers it; since a note may stand for many todos, a waiter that
got one passes the queue on to the next, and one that found nothing does not. A waiter that leaves
with a note not yet looked into passes it on, too. After the connection that listens was lost, and
every few seconds while it hears nothing, all look once.

While it waits, a call holds no connection of the database. It ends with its client, its session,
its credential and the server. What it claimed for a client that is gone, it gives back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from switchboard import logs
from switchboard.db import RELEASE, Database
from switchboard.errors import Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

    from starlette.types import Receive

    from switchboard.auth import Caller
    from switchboard.connections import BoundedProtocol
    from switchboard.sessions import Session

T = TypeVar("T")

LONGEST_WAIT = 50
WAITERS_PER_ENDPOINT = 256
GIVE_BACK_PAUSES = (0.0, 0.5, 1.5)

EMPTY = '{"empty": true, "deferred": []}'
ARGUMENT = "wait_seconds"
TOO_MANY = (
    f"{WAITERS_PER_ENDPOINT} calls wait on this endpoint already: call again in a moment, or "
    "without waiting"
)

Ask = Callable[[], Coroutine[Any, Any, str]]


def wait_seconds(arguments: Mapping[str, Any]) -> float:
    """How long a call wants to wait; 0 for what the database refuses.

    Raises:
        Problem: it is out of range.
    """
    given = arguments.get(ARGUMENT)
    if isinstance(given, bool) or not isinstance(given, int | float):
        return 0.0
    if not 0 <= given <= LONGEST_WAIT:
        reason = f"must be from 0 to {LONGEST_WAIT}"
        details = {"field": ARGUMENT, "reason": reason}
        raise Problem("invalid_argument", f"{ARGUMENT} {reason}", details)
    return float(given) if given == int(given) else 0.0


class Line:
    """What a call came in on, and whether anybody there still waits for the answer.

    Args:
        caller: who calls.
        receive: the ASGI channel of the request, whose body has been read.
        connection: what it came on; None when that is not known.
        session: its session; None when it has none.
        request_id: its JSON-RPC id.
    """

    def __init__(
        self,
        caller: Caller,
        receive: Receive,
        connection: BoundedProtocol | None,
        session: Session | None,
        request_id: str | int | None,
    ) -> None:
        self.caller = caller
        self.session = session
        self.request_id = request_id
        self.is_refused = False
        self._receive = receive
        self._connection = connection
        self._hung_up = False
        self._stir: Callable[[], None] = lambda: None

    def hang_up(self, *, refused: bool = False) -> None:
        """Nobody waits any more; ``refused``: the credential is no longer valid."""
        self._hung_up = True
        self.is_refused = self.is_refused or refused
        self._stir()

    def is_gone(self) -> bool:
        """Whether the answer would reach nobody."""
        return self._hung_up or bool(self._connection and self._connection.has_left())

    def is_over(self) -> bool:
        """Whether it is time to answer: nobody waits, or the server is about to stop."""
        return self.is_gone() or bool(self._connection and self._connection.is_leaving)

    @contextlib.asynccontextmanager
    async def heard(self, lines: set[Line], stir: Callable[[], None]) -> AsyncIterator[None]:
        """For the time of the block, be among ``lines``, and call ``stir`` when it is over."""
        self._stir = stir
        listening = asyncio.create_task(self._listen())
        lines.add(self)
        if self._connection:
            self._connection.on_leaving.add(stir)
        try:
            yield
        finally:
            listening.cancel()
            lines.discard(self)
            if self._connection:
                self._connection.on_leaving.discard(stir)

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.hang_up()


class _Waiter:
    """One call.

    Attributes:
        queues: what it covers; None: every queue of its endpoint.
        asleep: whether it waits for a note.
        notes: queues of which something was said that it has not looked into.
        looking: the same, which it looks into now.
    """

    def __init__(self, queues: frozenset[str] | None) -> None:
        self.queues = queues
        self.asleep = False
        self.notes: set[str] = set()
        self.looking: set[str] = set()
        self._stirred = asyncio.Event()

    def covers(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    def stir(self) -> None:
        """Look, or see whether it is over."""
        self.asleep = False
        self._stirred.set()

    def look(self) -> None:
        """A look begins: what is said from here on asks for another."""
        self._stirred.clear()
        self.looking |= self.notes
        self.notes = set()

    async def sleep(self, until: float) -> bool:
        """Wait for a note; False: the time is up."""
        self.asleep = not self._stirred.is_set()
        try:
            async with asyncio.timeout(until - time.monotonic()):
                return await self._stirred.wait()
        except TimeoutError:
            return False
        finally:
            self.asleep = False


class Waiting:
    """The calls of this process that wait.

    Args:
        database: to give back what nobody came for.
        at_once: how many that were woken look at the same time.

    Attributes:
        lines: what they came in on.
    """

    def __init__(self, database: Database, at_once: int) -> None:
        self._database = database
        self.lines: set[Line] = set()
        self._turn = asyncio.Semaphore(at_once)
        self._waiters: dict[str, dict[_Waiter, None]] = {}  # by endpoint, the first first
        self._beside: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return sum(map(len, self._waiters.values()))

    def ready(self, note: str | None) -> None:
        """A note of ``todo_ready``: ``<endpoint>:<queue>``; None: anything may be ready."""
        if note is None:
            for waiter in [waiter for waiters in self._waiters.values() for waiter in waiters]:
                waiter.stir()
        else:
            endpoint_id, _, queue = note.partition(":")
            self._wake(endpoint_id, [queue])

    async def call(self, line: Line, arguments: Mapping[str, Any], seconds: float, ask: Ask) -> str:
        """Ask until there is work, the time is up or it is over; the last answer.

        Args:
            line: what the call came in on.
            arguments: its ``queues`` say which notes are for it.
            seconds: how long it may wait.
            ask: one round trip to the database.

        Raises:
            Problem: too many calls of this endpoint wait.
        """
        until = time.monotonic() + seconds
        with self._waiter(line.caller.endpoint_id, arguments.get("queues")) as waiter:
            async with line.heard(self.lines, waiter.stir):
                answer = await self._ask(line, waiter, ask)
                again = True
                while again and _is_empty(answer) and not line.is_over():
                    again = await waiter.sleep(until)  # when the time is up, it looks once more
                    async with self._turn:
                        if not line.is_over():
                            answer = await self._ask(line, waiter, ask)
                return answer

    async def close(self) -> None:
        """Wait a moment for what is being asked, and then for what of it is given back."""
        for _ in range(2):
            if self._beside:
                await asyncio.wait(self._beside, timeout=1)

    @contextlib.contextmanager
    def _waiter(self, endpoint_id: str, queues: Any) -> Iterator[_Waiter]:
        waiters = self._waiters.setdefault(endpoint_id, {})
        if len(waiters) >= WAITERS_PER_ENDPOINT:
            raise Problem("unavailable", TOO_MANY)
        named = isinstance(queues, list)
        waiter = _Waiter(frozenset(q for q in queues if isinstance(q, str)) if named else None)
        waiters[waiter] = None
        try:
            yield waiter
        finally:
            del waiters[waiter]
            if waiters:
                # Who looks already passes it on in turn; only if nobody does, a sleeper is woken.
                self._wake(endpoint_id, waiter.looking | waiter.notes, asleep=False)
            else:
                del self._waiters[endpoint_id]

    def _wake(self, endpoint_id: str, queues: Iterable[str], *, asleep: bool = True) -> None:
        """Tell the first that covers each queue and sleeps, or does not; else the first."""
        for queue in queues:
            covering = [w for w in self._waiters.get(endpoint_id, ()) if w.covers(queue)]
            if covering:
                chosen = next((w for w in covering if w.asleep is asleep), covering[0])
                chosen.notes.add(queue)
                chosen.stir()

    async def _ask(self, line: Line, waiter: _Waiter, ask: Ask) -> str:
        """Ask once, unless nobody waits; what is claimed for nobody all the same is given back."""
        if line.is_gone():
            return EMPTY
        waiter.look()
        asking = self._start(ask())
        try:
            answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda asked: self._keep_nothing(line, asked))
            raise
        if line.is_gone() and (todo := _todo(answer)):
            await self._give_back(line.caller, todo)
            return EMPTY
        if _is_empty(answer):
            waiter.looking = set()
        return answer

    def _keep_nothing(self, line: Line, asked: asyncio.Future[str]) -> None:
        if not asked.cancelled() and not asked.exception() and (todo := _todo(asked.result())):
            self._start(self._give_back(line.caller, todo))

    async def _give_back(self, caller: Caller, todo: Mapping[str, Any]) -> None:
        outcome = ""
        for pause in GIVE_BACK_PAUSES:
            await asyncio.sleep(pause)
            try:
                held = (caller.endpoint_id, todo["id"], todo["owner"], todo["lease_token"])
                await self._database.row(RELEASE, held)
            except psycopg.Error as error:
                outcome = type(error).__name__
            else:
                outcome = "ok"
                break
        logs.event("mcp.given_back", endpoint=caller.slug, todo_id=todo["id"], outcome=outcome)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task


def _is_empty(answer: str) -> bool:
    return json.loads(answer).get("empty") is True


def _todo(answer: str) -> Mapping[str, Any] | None:
    found = json.loads(answer)
    todo: Mapping[str, Any] | None = found.get("todo")
    return todo
