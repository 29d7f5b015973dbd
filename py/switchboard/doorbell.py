"""Rings agents: a todo that is ready is told to one session that has its stream open.

The database says what may ring, and marks it as rung when it says so; it is asked only while there
is a session to tell. Asked is when a note says that a queue has something ready, when a session
opens its stream, every half minute for what was missed or is due again, and after notes may have
been missed. What comes while a look at the same queue is running asks for another one after it.

The sessions of an endpoint take turns. One that takes nothing holds up no other: a bell that it
does not take within two seconds goes to the next, and when no session takes it, back to the
database, for the next one that attaches. A bell is a hint: the queue is the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from switchboard.db import DOORBELLS, RETURN_DOORBELLS, Database
from switchboard.stream import LATE_SECONDS, LOST_SECONDS, Bell, Stream

if TYPE_CHECKING:
    from switchboard.sessions import Sessions

logger = logging.getLogger(__name__)

BATCH = 100
MORE = 10  # rung at once: then there may be more; others who look may have taken the rest
ON_ATTACH = 3
DUE = 10
DUE_SECONDS = 30.0
WATCH_SECONDS = 0.1
BATCHES_AT_ONCE = 8  # being pushed, of one endpoint


class _Look(NamedTuple):
    """What to look for: what became ready in a queue, or, with None, whatever is due."""

    endpoint_id: str
    queue: str | None
    limit: int = BATCH


class Doorbell:
    """Rings.

    Args:
        database: says what to ring for.
        sessions: knows who can be rung.
        at_once: how many connections of the database it may use.
    """

    def __init__(self, database: Database, sessions: Sessions, at_once: int) -> None:
        self._database = database
        self._sessions = sessions
        self._turn = asyncio.Semaphore(at_once)
        self._looks: dict[_Look, bool] = {}  # that run, and whether another is asked for
        self._pushing: dict[str, set[asyncio.Task[None]]] = {}
        self._beside: set[asyncio.Task[None]] = set()

    def ready(self, note: str | None) -> None:
        """A note of ``todo_ready``: ``<endpoint>:<queue>``; None: some may have been missed."""
        if note is None:
            for endpoint_id in self._sessions.endpoints():
                self._look(_Look(endpoint_id, None))
            return
        endpoint_id, _, queue = note.partition(":")
        if self._sessions.can_ring(endpoint_id):
            self._look(_Look(endpoint_id, queue))

    def attach(self, stream: Stream) -> None:
        """A session has opened its stream."""
        self._sessions.attach(stream)
        self._start(self._greet(stream))

    def detach(self, stream: Stream) -> None:
        """The stream has ended; what its client did not get goes to another."""
        self._sessions.detach(stream)
        self._push(stream.session.caller.endpoint_id, stream.close())

    async def run(self) -> None:
        """Watch who takes what was written, and look every half minute; until cancelled."""
        due = time.monotonic() + DUE_SECONDS
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                for stream in [s for s in self._sessions.streams() if s.is_waiting]:
                    await self._watch(stream)
                if time.monotonic() >= due:
                    due = time.monotonic() + DUE_SECONDS
                    for endpoint_id in self._sessions.endpoints():
                        self._look(_Look(endpoint_id, None, DUE))
            except Exception:
                logger.exception("doorbells not watched")

    async def close(self) -> None:
        """Wait a moment for looks and bells under way; what rings nobody is returned."""
        if self._beside:
            await asyncio.wait(self._beside, timeout=1)

    def _look(self, look: _Look) -> None:
        if look in self._looks:
            self._looks[look] = True
        else:
            self._looks[look] = False
            self._start(self._run_look(look))

    async def _run_look(self, look: _Look) -> None:
        """Ring what there is, batch by batch; of what is due every half minute, only so much."""
        try:
            while self._sessions.can_ring(look.endpoint_id):
                self._looks[look] = False
                bells = await self._ask(*look)
                self._push(look.endpoint_id, bells)
                goes_on = look.limit == BATCH and len(bells) >= MORE
                if not goes_on and not self._looks[look]:
                    return
                await self._room(look.endpoint_id)
        finally:
            del self._looks[look]

    async def _greet(self, stream: Stream) -> None:
        endpoint_id = stream.session.caller.endpoint_id
        bells = await self._ask(endpoint_id, None, ON_ATTACH, attach=True)
        self._push(endpoint_id, bells, stream)

    async def _ask(
        self, endpoint_id: str, queue: str | None, limit: int, *, attach: bool = False
    ) -> list[Bell]:
        try:
            async with self._turn:
                bells: list[Bell] = await self._database.value(
                    DOORBELLS, (endpoint_id, limit, queue, attach), repeatable=True
                )
                return bells
        except psycopg.Error as error:  # the next look finds what this one would have
            logger.warning("not looked for doorbells: %s", type(error).__name__)
            return []

    def _push(self, endpoint_id: str, bells: Sequence[Bell], first: Stream | None = None) -> None:
        if bells:
            task = self._start(self._deliver(endpoint_id, bells, first))
            pushing = self._pushing.setdefault(endpoint_id, set())
            pushing.add(task)
            task.add_done_callback(lambda _: self._pushed(endpoint_id, task))

    def _pushed(self, endpoint_id: str, task: asyncio.Task[None]) -> None:
        self._pushing[endpoint_id].discard(task)
        if not self._pushing[endpoint_id]:
            del self._pushing[endpoint_id]

    async def _room(self, endpoint_id: str) -> None:
        while len(pushing := self._pushing.get(endpoint_id, ())) >= BATCHES_AT_ONCE:
            await asyncio.wait(pushing, return_when=asyncio.FIRST_COMPLETED)

    async def _deliver(self, endpoint_id: str, bells: Sequence[Bell], first: Stream | None) -> None:
        """Give each bell to one session, to the next one if it does not take it, or back."""
        may_ring = await self._sessions.settled()
        while bells and may_ring:
            shares: dict[Stream, list[Bell]] = {}
            for bell in bells:
                if stream := first or self._sessions.next_stream(endpoint_id):
                    shares.setdefault(stream, []).append(bell)
            if not shares:
                break
            first = None
            if len(shares) == 1:
                bells = await self._ring(*shares.popitem())
            else:
                left = await asyncio.gather(*(self._ring(s, share) for s, share in shares.items()))
                bells = [bell for share in left for bell in share]
        if bells:
            try:
                ids = [bell["meta"]["todo_id"] for bell in bells]
                await self._database.value(RETURN_DOORBELLS, (endpoint_id, ids), repeatable=True)
            except psycopg.Error as error:  # they ring again when their next ring is due
                logger.warning("doorbells not returned: %s", type(error).__name__)

    async def _ring(self, stream: Stream, bells: Sequence[Bell]) -> Sequence[Bell]:
        """Write these bells to a session; returns those that it did not take."""
        rung = 0
        try:
            async with asyncio.timeout(LATE_SECONDS):
                for bell in bells:
                    if not await stream.ring(bell):
                        break
                    rung += 1
        except TimeoutError:
            await self._sessions.end([stream.session], "takes no bell")
        return bells[rung:]

    async def _watch(self, stream: Stream) -> None:
        """Take back what a session is late to take; end one that is late for too long."""
        endpoint_id, was_late = stream.session.caller.endpoint_id, stream.is_late()
        self._push(endpoint_id, stream.check())
        if stream.is_late(LOST_SECONDS):
            await self._sessions.end([stream.session], "takes no bell")
        elif was_late and not stream.is_late():
            self._look(_Look(endpoint_id, None, DUE))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("a doorbell failed", exc_info=error)
