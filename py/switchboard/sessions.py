"""The MCP sessions of this process: who opened each, whether it is in use, and when it must end.

A session belongs to the credential that opened it. It ends when the client says so, after a time
without traffic, or when its credential no longer authenticates: at once when the database tells of
a change, and within seconds in any case. An open GET stream counts as traffic.

Known are also the open streams, on which doorbells ring in turn, and the calls that wait: their end
comes with that of their session, or of their credential.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from switchboard import logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from switchboard.auth import Authenticator, Caller
    from switchboard.stream import Stream
    from switchboard.waiting import Line

logger = logging.getLogger(__name__)

CHECK_SECONDS = 3.0
SETTLE_SECONDS = 2.0


@dataclass(eq=False)
class Session:
    """One MCP session.

    Attributes:
        id: the value of its Mcp-Session-Id header.
        caller: the credential that opened it.
        requests: HTTP requests being served, an open stream included.
        idle_since: monotonic time of the end of the last request.
        since: monotonic time at which it was opened.
        client: what its client calls itself.
    """

    id: str
    caller: Caller
    requests: int = 0
    idle_since: float = 0.0
    since: float = 0.0
    client: str | None = None


class Sessions:
    """The register; the MCP SDK's manager runs the sessions themselves.

    Args:
        manager: the SDK's.
        authenticator: knows which credentials still are valid.
        idle_timeout: seconds without traffic after which a session ends.
        per_endpoint: most sessions of one endpoint.
        lines: those of the calls that wait.

    Attributes:
        changed: is told of an endpoint whenever its sessions, or their streams, are others.
    """

    def __init__(
        self,
        manager: StreamableHTTPSessionManager,
        authenticator: Authenticator,
        idle_timeout: float,
        per_endpoint: int,
        lines: set[Line],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._authenticator = authenticator
        self._idle_timeout = idle_timeout
        self._per_endpoint = per_endpoint
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._streams: dict[str, dict[str, Stream]] = {}  # by endpoint and session, in turn
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._lines = lines
        self.changed: Callable[[str], None] = lambda _: None

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, endpoint_id: str) -> list[Session]:
        """The live sessions of an endpoint, the oldest first."""
        return [
            session
            for session in self._sessions.values()
            if session.caller.endpoint_id == endpoint_id and self._lives(session.id)
        ]

    def is_full(self, caller: Caller) -> bool:
        """Whether the caller's endpoint has as many sessions as it may have."""
        return len(self.of(caller.endpoint_id)) >= self._per_endpoint

    def present(self) -> dict[str, list[Session]]:
        """The live sessions of every endpoint that has any, the oldest first."""
        found: dict[str, list[Session]] = {}
        for session in self._sessions.values():
            if self._lives(session.id):
                found.setdefault(session.caller.endpoint_id, []).append(session)
        return found

    def listens(self, session: Session) -> bool:
        """Whether the session has a stream open."""
        return session.id in self._streams.get(session.caller.endpoint_id, {})

    def now(self) -> float:
        """The clock of ``since`` and ``idle_since``."""
        return self._clock()

    def add(self, session_id: str, caller: Caller, client: str | None = None) -> None:
        """Register a session that was just opened.

        Args:
            session_id: the value of its Mcp-Session-Id header.
            caller: who opened it.
            client: what the client calls itself.
        """
        now = self._clock()
        self._sessions[session_id] = Session(session_id, caller, 0, now, now, client)
        self.changed(caller.endpoint_id)

    def get(self, session_id: str | None, caller: Caller) -> Session | None:
        """The live session with this id, if the caller opened it."""
        session = self._sessions.get(session_id or "")
        if session is None or not session.caller.owns(caller) or not self._lives(session.id):
            return None
        return session

    @contextmanager
    def use(self, session: Session | None) -> Iterator[None]:
        """Keep a session from being idle while the block runs."""
        if session is None:
            yield
            return
        session.requests += 1
        try:
            yield
        finally:
            session.requests -= 1
            session.idle_since = self._clock()

    def attach(self, stream: Stream) -> None:
        """A session has opened its stream."""
        session = stream.session
        self._streams.setdefault(session.caller.endpoint_id, {})[session.id] = stream
        self.changed(session.caller.endpoint_id)

    def detach(self, stream: Stream) -> None:
        """The stream has ended."""
        session = stream.session
        streams = self._streams.get(session.caller.endpoint_id, {})
        if streams.get(session.id) is stream:
            del streams[session.id]
            if not streams:
                del self._streams[session.caller.endpoint_id]
            self.changed(session.caller.endpoint_id)

    def streams(self) -> list[Stream]:
        """Every open stream."""
        return [stream for streams in self._streams.values() for stream in streams.values()]

    def endpoints(self) -> list[str]:
        """The endpoints that have a stream on which a bell can ring."""
        return [endpoint_id for endpoint_id in self._streams if self.can_ring(endpoint_id)]

    def can_ring(self, endpoint_id: str) -> bool:
        """Whether one of the endpoint's sessions can be rung."""
        return any(map(self._takes, self._streams.get(endpoint_id, {}).values()))

    def next_stream(self, endpoint_id: str) -> Stream | None:
        """The endpoint's stream whose turn it is; one that is slow only if all are."""
        streams = self._streams.get(endpoint_id, {})
        able = [stream for stream in streams.values() if self._takes(stream)]
        if not able:
            return None
        chosen = next((stream for stream in able if not stream.is_slow), able[0])
        streams[chosen.session.id] = streams.pop(chosen.session.id)
        return chosen

    async def end(self, sessions: Iterable[Session], reason: str, *, refused: bool = False) -> None:
        """End sessions: their ids answer 404 from now on, their streams and calls end.

        Args:
            sessions: which.
            reason: for the log.
            refused: their credential is no longer valid.
        """
        ended = set(sessions)
        for line in list(self._lines):
            if line.session in ended:
                line.hang_up(refused=refused)
        for session in ended:
            self._sessions.pop(session.id, None)
            self.changed(session.caller.endpoint_id)
            transport = self._manager._server_instances.get(session.id)
            if transport is not None:
                await self._manager._discard_session(session.id, transport)
            if stream := self._streams.get(session.caller.endpoint_id, {}).get(session.id):
                stream.cut()
            logs.event("mcp.session_ended", endpoint=session.caller.slug, reason=reason)

    def cancel(self, session: Session, request_id: str | int) -> None:
        """The client gives up a call of this session."""
        for line in list(self._lines):
            if line.session is session and line.request_id == request_id:
                line.hang_up()

    async def discard(self, session_id: str) -> None:
        """Forget a session that the SDK opened but that was never initialized."""
        transport = self._manager._server_instances.get(session_id)
        if transport is not None:
            await self._manager._discard_session(session_id, transport)

    def recheck(self) -> None:
        """Check every session soon: something changed."""
        self._settled.clear()
        self._changed.set()

    async def settled(self) -> bool:
        """Wait until every session has been checked since the last change; False: not in time."""
        if self._settled.is_set():
            return True
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                return await self._settled.wait()
        except TimeoutError:
            return False

    async def run(self) -> None:
        """Check the sessions whenever ``recheck`` asks, and every few seconds; until cancelled."""
        while True:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                await self.check()
                if not self._changed.is_set():
                    self._settled.set()
            except psycopg.Error as error:
                logger.warning("sessions not checked: %s", type(error).__name__)
            except Exception:
                logger.exception("sessions not checked")

    async def check(self) -> None:
        """End the sessions that are idle for too long or whose credential was refused."""
        await self.end([s for s in self._sessions.values() if not self._lives(s.id)], "closed")
        oldest = self._clock() - self._idle_timeout
        idle = [s for s in self._sessions.values() if not s.requests and s.idle_since < oldest]
        await self.end(idle, "idle")
        callers = [session.caller for session in self._sessions.values()]
        callers += [line.caller for line in self._lines]
        keys = list({caller.key for caller in callers})
        if not keys:
            return
        valid = await self._authenticator.still_valid(keys)
        refused = {key for key, holds in zip(keys, valid, strict=True) if not holds}
        for endpoint_id in {c.endpoint_id for c in callers if c.key in refused}:
            self._authenticator.drop(endpoint_id)
        for line in [line for line in self._lines if line.caller.key in refused]:
            line.hang_up(refused=True)
        gone = [s for s in self._sessions.values() if s.caller.key in refused]
        await self.end(gone, "credential no longer valid", refused=True)

    def _takes(self, stream: Stream) -> bool:
        return stream.is_open and not stream.is_late() and self._lives(stream.session.id)

    def _lives(self, session_id: str) -> bool:
        return session_id in self._manager._server_instances
