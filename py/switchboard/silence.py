"""A database that neither answers nor hangs up: a pulled cable, a stuck proxy.

Nothing in the protocol notices that. The server's ``statement_timeout`` ends what takes too long
there, and a connection that is reset fails at once; but who waits on a line that is dead waits
until the kernel gives up, after a quarter of an hour, or for ever where something on the way takes
the bytes. So each statement has a time here, too, a little more than the server's own.

After that the line is shut down below the driver, and the wait ends as if the server had hung up.
Cancelling the call instead makes the driver ask the silent server to cancel, and wait for it: that
has a time, too. When this process ends, all of it gets less.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg_pool import AsyncConnectionPool

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 15.0  # more than statement_timeout, which ends what is only slow
CHECK_PATIENCE = 2.0  # for nothing at all; who answers later is replaced for nothing
LAST_PATIENCE = 2.0  # when this process ends


class Bounded(psycopg.AsyncConnection[Any]):
    """A connection that does not wait for ever.

    Attributes:
        patience: seconds that a statement may take; then OperationalError is raised, the connection
            is closed, and whether the statement took effect is not known.
        was_silent: whether that has happened.
    """

    patience = PATIENCE
    was_silent = False
    _timer: asyncio.TimerHandle | None = None

    async def execute(self, *args: Any, **kwargs: Any) -> psycopg.AsyncCursor[Any]:
        """As ``psycopg.AsyncConnection.execute``, for ``patience`` seconds at most."""
        self._allow(self.patience)
        try:
            return await super().execute(*args, **kwargs)
        finally:
            self._allow(None)

    async def cancel_safe(self, *, timeout: float = CHECK_PATIENCE) -> None:  # noqa: ASYNC109
        """As that of psycopg, which calls it when a statement is cancelled, but soon over."""
        try:
            await super().cancel_safe(timeout=min(timeout, CHECK_PATIENCE))
        except psycopg.errors.CancellationTimeout:
            self.hang_up()  # nor will the statement be answered
            raise

    def hurry(self) -> None:
        """No more than LAST_PATIENCE from now on, for what is under way, too."""
        self.patience = LAST_PATIENCE
        if self._timer:
            self._allow(LAST_PATIENCE)

    @contextlib.contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        """Another patience for the time of the block."""
        self.patience = seconds
        try:
            yield
        finally:
            del self.patience

    def _allow(self, seconds: float | None) -> None:
        """Hang up after so many seconds, instead of when it was to be before; None: never."""
        if self._timer:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if seconds is None else loop.call_later(seconds, self.hang_up)

    def hang_up(self) -> None:
        """End the wait, as if the server had hung up."""
        self.was_silent = True
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self.fileno())) as line,
        ):
            line.shutdown(socket.SHUT_RDWR)


class BoundedPool(AsyncConnectionPool[Bounded]):
    """A pool of them, whose checks, one connection after another, come to an end soon."""

    @staticmethod
    async def check_connection(conn: Bounded) -> None:
        """Raise when it is dead or silent."""
        with conn.patient(CHECK_PATIENCE):
            await AsyncConnectionPool.check_connection(conn)
