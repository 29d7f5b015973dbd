"""What a client may cost before it has asked for anything: its head, its time, its connection.

The HTTP parser has no bound of its own, neither on the bytes of a request's head nor on how long
it may take to come, and anybody may connect. Both are bounded here, as is the number of
connections, which stays below what the process may open: who is one too many gets an answer.

A request also finds its connection in its scope: those that wait, or that write to a client for
hours, need to know what HTTP does not tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import resource
import select
import struct
import termios
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from switchboard.guard import DEFAULT_HEADERS, HEADERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from switchboard.config import Settings

EXTENSION = "switchboard.connection"
HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 10.0
LINGER_SECONDS = 1.0
SPARE_CONNECTIONS = 1024
SPARE_FILES = 64

_IDLE, _HEAD, _BODY = range(3)


def allowed(settings: Settings) -> int:
    """How many connections the gateway takes; raises the soft limit of open files to the hard one.

    Args:
        settings: each session may hold one connection, each of the pool is one as well.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (OSError, ValueError):  # where "unlimited" is a word and not a number that is taken
        pass
    wanted = settings.max_sessions + SPARE_CONNECTIONS
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(SPARE_FILES, min(wanted, soft - settings.pool_size - SPARE_FILES))


def connection_of(scope: Mapping[str, Any]) -> BoundedProtocol | None:
    """The connection of a request; None where another server serves it."""
    connection: BoundedProtocol | None = (scope.get("extensions") or {}).get(EXTENSION)
    return connection


def _refusal(status: str, code: str, text: str, **details: int) -> bytes:
    """An answer of the product's form, for what never becomes a request."""
    body = json.dumps({**details, "error": text, "code": code}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        *HEADERS,
        *DEFAULT_HEADERS,
    ]
    lines = [b"%s: %s" % pair for pair in headers]
    return b"\r\n".join([f"HTTP/1.1 {status}".encode(), *lines, b"", body])


def _too_large() -> bytes:
    text = f"The head of the request is larger than {HEAD_BYTES} bytes. Send less."
    return _refusal("431 Request Header Fields Too Large", "too_large", text, limit=HEAD_BYTES)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's, with bounds: a head of at most HEAD_BYTES that is complete after HEAD_SECONDS.

    The time also runs while a client goes on sending what nobody waits for any more, for then
    uvicorn takes the connection for a busy one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stage = _IDLE
        self._head_bytes = 0
        self._piece = 0  # bytes of the piece at hand
        self._before = 0  # how many of them may be of an earlier message
        self._deadline: asyncio.TimerHandle | None = None
        self._refused = False
        self.is_leaving = False  # the server is about to stop
        self.on_leaving: set[Callable[[], None]] = set()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The time for the first head begins."""
        super().connection_made(transport)
        self._close_in(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._keep()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse in pieces that no head can outgrow; what follows a refusal is discarded."""
        while data and not self._refused and not self.transport.is_closing():
            room = HEAD_BYTES - self._head_bytes
            if room <= 0:
                self._refuse()
                return
            piece, data = (data, b"") if len(data) <= room else (data[:room], data[room:])
            self._piece = len(piece)
            self._before = 0 if self._stage == _IDLE else self._piece
            super().data_received(piece)
            if self._stage == _HEAD:
                self._head_bytes += len(piece)
        if self._deadline is None and not self._is_answering():
            self._close_in(HEAD_SECONDS)

    def send_400_response(self, msg: str) -> None:
        """What the parser refuses: an unknown method, a NUL in a header, raw bytes in the path."""
        text = "This is not a well-formed HTTP request. Correct it and send it again."
        self.transport.write(_refusal("400 Bad Request", "invalid_argument", text))
        self.transport.close()

    def on_message_begin(self) -> None:
        """A head begins: at the beginning of the piece, or behind the end of another message."""
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[dict-item]
        self._stage = _HEAD
        self._head_bytes = -self._before

    def on_headers_complete(self) -> None:
        """The head is complete; from here on uvicorn and the application mind the time."""
        self._stage = _BODY
        self._head_bytes = 0
        self._keep()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is complete; what follows in the same piece is of another message."""
        self._stage = _IDLE
        self._before = self._piece
        super().on_message_complete()

    def shutdown(self) -> None:
        """The server stops: tell whoever waits on this connection."""
        super().shutdown()
        self.is_leaving = True
        for tell in list(self.on_leaving):
            tell()

    def has_left(self) -> bool:
        """Whether the client has closed its end, even if the loop has not come to notice it."""
        if self.transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self._file(), getattr(select, "POLLRDHUP", 0))
        return bool(poll.poll(0))

    def unsent(self) -> int:
        """Bytes written that the client's machine has not confirmed; as far as can be known."""
        left = self.transport.get_write_buffer_size()
        if not self.transport.is_closing():
            with contextlib.suppress(OSError):
                queued = fcntl.ioctl(self._file(), termios.TIOCOUTQ, bytes(4))
                left += struct.unpack("i", queued)[0]
        return left

    @property
    def is_blocked(self) -> bool:
        """Whether the client takes so little that no more is written."""
        return self.flow.write_paused

    def abort(self) -> None:
        """Close now, whatever is left to write."""
        self.transport.abort()

    def _file(self) -> int:
        number: int = self.transport.get_extra_info("socket").fileno()
        return number

    def _is_answering(self) -> bool:
        return not getattr(self.cycle, "response_complete", True)  # None before the first request

    def _refuse(self) -> None:
        """Answer 431, and close when the client has had the time to read it."""
        self._refused = True
        if self._is_answering():  # an earlier request: this is no place for another's answer
            self.transport.close()
            return
        self.transport.write(_too_large())
        self._close_in(LINGER_SECONDS)

    def _close_in(self, seconds: float) -> None:
        self._keep()
        self._deadline = self.loop.call_later(seconds, self.transport.close)

    def _keep(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
