"""The live board: what changed is sent to whoever looks, and nobody looking costs nothing.

While there are viewers, and only then, the process asks the database once in a while whether any
transaction ended. If so, every view that somebody has open is made once, however many look at it,
compared region by region with what it was, and what differs is handed to its viewers. No viewer
holds a connection of the pool.

A viewer has no queue: what waits for it is the newest text of each region, so that one who reads
slowly misses steps and never the end. Views are made one after another, and the process rests in
proportion to what they took, so that a hundred boards slow themselves and not the work. Everybody's
first view comes before anybody's second, and a view that cannot be made loses its viewers, whose
scripts come back for it: no board waits for another human's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from sse_starlette import EventSourceResponse, ServerSentEvent

from switchboard.db import BOARD_CHANGES, OPERATORS
from switchboard.errors import unavailable
from switchboard.guard import problem_response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from starlette.responses import Response

    from switchboard.db import Database

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.4  # between two questions whether anything changed
ANYWAY_SECONDS = 15.0  # time itself changes what a page says: a lease lapses, a budget opens
REST = 2.5  # times what the views took: some 30 % of one core at most
TROUBLE_SECONDS = 2.0
ALIVE_SECONDS = 15
SEND_SECONDS = 30.0
VIEWS = 25  # that a human may have open, however many look at each

Regions = dict[str, str]


class View(NamedTuple):
    """What is looked at.

    Attributes:
        human_id: whose board.
        page: which page.
        args: its arguments, as JSON.
    """

    human_id: str
    page: str
    args: str


class Sight(NamedTuple):
    """How a view looks now.

    Attributes:
        now: the database's clock, as text.
        regions: the HTML of each.
    """

    now: str
    regions: Regions


class Viewer:
    """One open stream."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.gone = self.lost = False
        self._waiting: Regions = {}
        self._stirred = asyncio.Event()

    def give(self, regions: Mapping[str, str]) -> None:
        """Regions that changed; each takes the place of an older one that was not sent yet."""
        if regions and not self.gone:
            self._waiting |= regions
            self._stirred.set()

    def end(self) -> None:
        """The session opens nothing any more; what waits is not sent."""
        self.gone = True
        self._waiting.clear()
        self._stirred.set()

    def drop(self) -> None:
        """Its view cannot be made now: the stream ends, and the script comes back after a while."""
        self.lost = True
        self._waiting.clear()
        self._stirred.set()

    async def take(self) -> Regions:
        """What is to be sent, once there is something; empty when the viewer has to go."""
        await self._stirred.wait()
        self._stirred.clear()
        taken, self._waiting = self._waiting, {}
        return taken


class _Channel:
    """A view, and who looks at it."""

    def __init__(self) -> None:
        self.viewers: set[Viewer] = set()
        self.sight: Sight | None = None
        self.begun = float("-inf")  # when it was last asked for, monotonic
        self.making = asyncio.Lock()


class Streams:
    """Every open board of this process.

    Args:
        database: asked for changes, and whose sessions are still open.
        look: makes a view for a session; None when the session opens nothing.
        at_most: streams that are open at a time.
    """

    def __init__(
        self,
        database: Database,
        look: Callable[[bytes, str, str], Awaitable[Sight | None]],
        at_most: int,
    ) -> None:
        self._database = database
        self._look = look
        self._at_most = at_most
        self._channels: dict[View, _Channel] = {}
        self._watched = asyncio.Event()

    def __len__(self) -> int:
        return sum(len(channel.viewers) for channel in self._channels.values())

    def response(
        self,
        digest: bytes,
        page: str,
        args: Mapping[str, str],
        unknown: Callable[[], None] = lambda: None,
    ) -> Response:
        """The answer to a viewer: a stream, or that there are too many.

        Args:
            digest: of the session.
            page: which page.
            args: its arguments.
            unknown: told when the digest opens nothing.
        """
        if len(self) >= self._at_most:
            return problem_response(unavailable(), self._database.errors)
        text = json.dumps(args, sort_keys=True)
        return _stream(self._events(digest, page, text, unknown))

    async def _events(
        self, digest: bytes, page: str, args: str, unknown: Callable[[], None]
    ) -> AsyncIterator[ServerSentEvent]:
        viewer = Viewer(digest)
        try:
            (human_id,) = await self._humans([digest])
            if human_id is None:
                unknown()
                yield _event("gone")
                return
            view = View(human_id, page, args)
            if not self._has_room(view):
                return  # many came at once; the script comes back after a while
            channel = self._channels.setdefault(view, _Channel())
            channel.viewers.add(viewer)
            self._watched.set()
            try:
                sight = await self._renew(view, channel, digest)
                if sight is None:
                    yield _event("gone")
                    return
                viewer.give(sight.regions)  # at once: what is newer comes after it
                yield _event("hello", now=sight.now)
                while not (viewer.gone or viewer.lost):
                    for name, html in (await viewer.take()).items():
                        yield _event("fragment", id=name, html=html)
                if viewer.gone:
                    yield _event("gone")
            finally:
                self._leave(view, viewer)
        except psycopg.Error as error:
            # The stream ends, and the script comes back after a while.
            logger.warning("board stream ended: %s", type(error).__name__)

    def _has_room(self, view: View) -> bool:
        theirs = sum(other.human_id == view.human_id for other in self._channels)
        return len(self) < self._at_most and (view in self._channels or theirs < VIEWS)

    def _leave(self, view: View, viewer: Viewer) -> None:
        channel = self._channels[view]
        channel.viewers.discard(viewer)
        if not channel.viewers:
            del self._channels[view]
        if not self._channels:
            self._watched.clear()

    async def _humans(self, digests: list[bytes]) -> list[str | None]:
        """The human of each session or token; None where it opens nothing."""
        humans: list[str | None] = await self._database.value(
            OPERATORS, (digests,), repeatable=True
        )
        return humans

    async def _renew(self, view: View, channel: _Channel, digest: bytes) -> Sight | None:
        """How a view looks now, or has looked since this was asked; viewers get what differs."""
        asked = time.monotonic()
        async with channel.making:
            if channel.begun < asked:
                begun = time.monotonic()
                sight = await self._look(digest, view.page, view.args)
                before = channel.sight.regions if channel.sight else {}
                channel.begun, channel.sight = begun, sight
                after = sight.regions.items() if sight else ()
                changed = {name: html for name, html in after if before.get(name) != html}
                for viewer in channel.viewers:
                    viewer.give(changed)
            return channel.sight

    async def run(self) -> None:
        """Look for changes while somebody watches; until cancelled."""
        seen, looked_at = "", float("-inf")
        while True:
            await self._watched.wait()
            started = time.monotonic()
            rest = 0.0
            try:
                now: str = await self._database.value(BOARD_CHANGES, repeatable=True)
                if now != seen or started - looked_at > ANYWAY_SECONDS:
                    seen, looked_at = now, started
                    await self._look_around()
                    rest = REST * (time.monotonic() - started)
            except psycopg.Error as error:
                logger.warning("boards not renewed: %s", type(error).__name__)
                seen, rest = "", TROUBLE_SECONDS
            except Exception:
                logger.exception("boards not renewed")
                rest = TROUBLE_SECONDS
            await asyncio.sleep(max(LOOK_SECONDS, rest))

    async def _look_around(self) -> None:
        """Renew every view that somebody has open, after those whose session ended have left."""
        viewers = [one for channel in self._channels.values() for one in channel.viewers]
        digests = list({viewer.digest for viewer in viewers})
        humans = dict(zip(digests, await self._humans(digests), strict=True)) if digests else {}
        for viewer in viewers:
            if humans[viewer.digest] is None:
                viewer.end()
        for view, channel in self._in_turn():
            try:
                await self._look_at(view, channel)
            except Exception as error:
                if isinstance(error, psycopg.Error) and error.sqlstate is None:
                    raise  # nobody can be asked: all of them wait
                _complain(view, error)
                for viewer in channel.viewers:
                    viewer.drop()

    def _in_turn(self) -> list[tuple[View, _Channel]]:
        """The views: everybody's first, everybody's second, and so on."""
        turns: Counter[str] = Counter()
        placed = []
        for view, channel in self._channels.items():
            placed.append((turns[view.human_id], view, channel))
            turns[view.human_id] += 1
        return [(view, channel) for _, view, channel in sorted(placed, key=lambda one: one[0])]

    async def _look_at(self, view: View, channel: _Channel) -> None:
        """Renew a view with a session that is good for it; without one it has no viewers more."""
        for viewer in list(channel.viewers):
            if viewer.gone or viewer.lost:
                continue
            if await self._renew(view, channel, viewer.digest) is not None:
                return
            viewer.end()  # it ended meanwhile, or what it looks at is no more: a page says which


def _complain(view: View, error: Exception) -> None:
    if isinstance(error, psycopg.Error):
        logger.warning("a board cannot be made: %s, %s", view.page, type(error).__name__)
    else:
        logger.error("a board cannot be made: %s", view.page, exc_info=error)


def _event(name: str, **data: Any) -> ServerSentEvent:
    return ServerSentEvent(json.dumps(data, ensure_ascii=False), event=name)


def _stream(events: AsyncIterator[ServerSentEvent]) -> Response:
    return EventSourceResponse(
        events,
        headers={"Cache-Control": "no-store"},
        ping=ALIVE_SECONDS,
        ping_message_factory=lambda: _event("alive"),
        send_timeout=SEND_SECONDS,
    )


def gone() -> Response:
    """The answer to who is not signed in: a browser cannot see the status of a stream."""

    async def once() -> AsyncIterator[ServerSentEvent]:
        yield _event("gone")

    return _stream(once())
