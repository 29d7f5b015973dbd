"""The MCP sessions of this process: who opened each, whether it is in use, and when it must end.

A session belongs to the credential that opened it. It ends when the client says so, after a time
without traffic, or when its credential no longer authenticates: at once when the database tells of
a change, and within seconds in any case. An open GET stream counts as traffic. Doorbells will find
their sessions here.
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

logger = logging.getLogger(__name__)

CHECK_SECONDS = 3.0


@dataclass
class Session:
    """One MCP session.

    Attributes:
        id: the value of its Mcp-Session-Id header.
        caller: the credential that opened it.
        requests: HTTP requests being served, an open stream included.
        idle_since: monotonic time of the end of the last request.
    """

    id: str
    caller: Caller
    requests: int = 0
    idle_since: float = 0.0


class Sessions:
    """The register; the MCP SDK's manager runs the sessions themselves.

    Args:
        manager: the SDK's.
        authenticator: knows which credentials still are valid.
        idle_timeout: seconds without traffic after which a session ends.
        per_endpoint: most sessions of one endpoint.
    """

    def __init__(
        self,
        manager: StreamableHTTPSessionManager,
        authenticator: Authenticator,
        idle_timeout: float,
        per_endpoint: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._authenticator = authenticator
        self._idle_timeout = idle_timeout
        self._per_endpoint = per_endpoint
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._changed = asyncio.Event()

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

    def add(self, session_id: str, caller: Caller) -> None:
        """Register a session that was just opened."""
        self._sessions[session_id] = Session(session_id, caller, idle_since=self._clock())

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

    async def end(self, sessions: Iterable[Session], reason: str) -> None:
        """End sessions: their ids answer 404 from now on, their streams are closed."""
        for session in list(sessions):
            self._sessions.pop(session.id, None)
            transport = self._manager._server_instances.get(session.id)
            if transport is not None:
                await self._manager._discard_session(session.id, transport)
            logs.event("mcp.session_ended", endpoint=session.caller.slug, reason=reason)

    async def discard(self, session_id: str) -> None:
        """Forget a session that the SDK opened but that was never initialized."""
        transport = self._manager._server_instances.get(session_id)
        if transport is not None:
            await self._manager._discard_session(session_id, transport)

    def recheck(self) -> None:
        """Check every session soon: something changed."""
        self._changed.set()

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
            except psycopg.Error as error:
                logger.warning("sessions not checked: %s", type(error).__name__)
            except Exception:
                logger.exception("sessions not checked")

    async def check(self) -> None:
        """End the sessions that are idle for too long or whose credential was refused."""
        for session in [s for s in self._sessions.values() if not self._lives(s.id)]:
            del self._sessions[session.id]  # the client ended it
        oldest = self._clock() - self._idle_timeout
        idle = [s for s in self._sessions.values() if not s.requests and s.idle_since < oldest]
        await self.end(idle, "idle")
        keys = list({session.caller.key for session in self._sessions.values()})
        if not keys:
            return
        valid = await self._authenticator.still_valid(keys)
        refused = {key for key, holds in zip(keys, valid, strict=True) if not holds}
        gone = [s for s in self._sessions.values() if s.caller.key in refused]
        for endpoint_id in {session.caller.endpoint_id for session in gone}:
            self._authenticator.drop(endpoint_id)
        await self.end(gone, "credential no longer valid")

    def _lives(self, session_id: str) -> bool:
        return session_id in self._manager._server_instances
