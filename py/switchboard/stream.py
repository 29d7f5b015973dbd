"""The open stream of a session: its GET, on which the server pushes.

Bells are written into it directly, as whole events, beside what the MCP SDK writes. So it is known
how much was written, and with what the connection says has not been confirmed, what the client's
machine has taken: whether a client reads cannot be seen, but one that takes nothing can be told
from the others.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from switchboard.jsonrpc import event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.types import Message, Send

    from switchboard.connections import BoundedProtocol
    from switchboard.sessions import Session

METHOD = "notifications/claude/channel"
DOUBTFUL_SECONDS = 0.25  # to confirm may take a client's machine some 40 ms, and the way
LATE_SECONDS = 2.0
LOST_SECONDS = 20.0

Bell = Mapping[str, Any]


@dataclass
class _Written:
    """A bell that was written and may not have been taken.

    Attributes:
        upto: how many bytes had been written with it.
        at: when, monotonic.
        bell: None when another session has it now.
        doubtful: it was looked for, some time after it was written, and had not been taken.
    """

    upto: int
    at: float
    bell: Bell | None
    doubtful: bool = False


class Stream:
    """One GET; ``send`` is the ASGI channel to hand to whoever serves it.

    Args:
        session: whose it is.
        send: the ASGI channel of the request.
        connection: what the stream runs on; None when that is not known.
        opened: called once the client has the head of the answer.
    """

    def __init__(
        self,
        session: Session,
        send: Send,
        connection: BoundedProtocol | None,
        opened: Callable[[Stream], None],
    ) -> None:
        self.session = session
        self._send = send
        self._connection = connection
        self._opened = opened
        self._lock = asyncio.Lock()
        self._bytes = 0
        self._written: deque[_Written] = deque()
        self.is_open = False

    async def send(self, message: Message) -> None:
        """Pass on what the SDK says."""
        async with self._lock:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                self.is_open = False
            await self._send(message)
            self._bytes += len(message.get("body", b""))
        if message["type"] == "http.response.start" and message["status"] == 200:
            self.is_open = True
            self._opened(self)

    async def ring(self, bell: Bell) -> bool:
        """Write one bell; waits as long as the client takes nothing. False: it has gone."""
        text = event(METHOD, bell)
        async with self._lock:
            if self._connection and self._connection.has_left():
                # The loop may come to know of it only when whoever rings lets go of it, and he
                # would find this stream again and again.
                self.is_open = False
            if not self.is_open:
                return False
            await self._send({"type": "http.response.body", "body": text, "more_body": True})
            self._bytes += len(text)
            if self._connection:
                self._written.append(_Written(self._bytes, time.monotonic(), bell))
        return True

    @property
    def is_blocked(self) -> bool:
        """Whether somebody waits for the client to take something."""
        return self._lock.locked() or bool(self._connection and self._connection.is_blocked)

    @property
    def is_slow(self) -> bool:
        """Whether another session had better be rung first."""
        return self.is_blocked or bool(self._written and self._written[0].doubtful)

    @property
    def is_waiting(self) -> bool:
        """Whether something was written of which it is not known that it was taken."""
        return bool(self._written)

    def is_late(self, seconds: float = LATE_SECONDS) -> bool:
        """Whether the client's machine has not taken something for this long."""
        return bool(self._written) and time.monotonic() - self._written[0].at > seconds

    def check(self) -> list[Bell]:
        """Note what was taken; the bells to give to another session, since this one is late."""
        if self._connection is None or not self._written or self._connection.has_left():
            return []
        taken, now = self._bytes - self._connection.unsent(), time.monotonic()
        while self._written and self._written[0].upto <= taken:
            self._written.popleft()
        for written in self._written:
            written.doubtful = now - written.at > DOUBTFUL_SECONDS
        return self._take_back(self._written) if self.is_late() else []

    def close(self) -> list[Bell]:
        """The GET has ended: the bells of which it is doubtful that the client had them."""
        self.is_open = False
        return self._take_back(written for written in self._written if written.doubtful)

    def cut(self) -> None:
        """End a stream that would not end by itself, because its client takes nothing."""
        if self._connection and (self.is_blocked or self.is_late()):
            self._connection.abort()

    def _take_back(self, from_these: Iterable[_Written]) -> list[Bell]:
        bells = []
        for written in from_these:
            if written.bell is not None:
                bells.append(written.bell)
                written.bell = None
        return bells
