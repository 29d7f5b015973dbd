"""How fast a caller may go, and how much it may send.

``RateLimit`` is the generic cell rate algorithm: one float per key, the time at which its bucket
will be full again. Memory is bounded: beyond ``max_keys`` the key that was used least recently is
forgotten, which can only be generous.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from switchboard.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive

BODY_SECONDS = 30.0
DISCARD_BYTES = 16 * 1024 * 1024
DISCARD_SECONDS = 1.0


class RateLimit:
    """A token bucket per key.

    Args:
        rate: requests per second that refill a bucket.
        burst: requests that a full bucket holds.
        max_keys: buckets kept.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        rate: float,
        burst: int,
        max_keys: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval = 1 / rate
        self._tolerance = (burst - 1) / rate
        self._max_keys = max_keys
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def wait(self, key: str) -> float:
        """Seconds until ``key`` may make a request; 0 when it may now. Takes nothing."""
        now = self._clock()
        return max(0.0, self._full_at.get(key, now) - self._tolerance - now)

    def take(self, key: str) -> float:
        """Take one request of ``key``: 0 when it may go on, else the seconds to wait."""
        now = self._clock()
        full_at = max(now, self._full_at.get(key, now))
        excess = full_at - self._tolerance - now
        if excess > 1e-9:
            return excess
        self._full_at[key] = full_at + self._interval
        self._full_at.move_to_end(key)
        if len(self._full_at) > self._max_keys:
            self._full_at.popitem(last=False)
        return 0.0

    def __len__(self) -> int:
        return len(self._full_at)


class Proven:
    """Who was known a moment ago is served, however often its address has failed.

    Args:
        failures: how often an address may fail; then only secrets that were proven are looked at.
        at_most: digests kept; beyond, the one that was used least recently is forgotten.
    """

    def __init__(self, failures: RateLimit, at_most: int = 1000) -> None:
        self._failures = failures
        self._at_most = at_most
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def wait(self, digest: bytes | None, client: str) -> float:
        """Seconds that a secret has to wait before it is looked at; 0: none.

        Args:
            digest: of the secret; None when what was given cannot be one.
            client: the address it comes from.
        """
        return 0.0 if digest in self._known else self._failures.wait(client)

    def good(self, digest: bytes) -> None:
        """The secret opened something."""
        self._known[digest] = None
        self._known.move_to_end(digest)
        if len(self._known) > self._at_most:
            self._known.popitem(last=False)

    def bad(self, digest: bytes | None, client: str) -> float:
        """The secret opened nothing: a failure of its address; seconds to wait, 0: none."""
        if digest is not None:
            self._known.pop(digest, None)
        return self._failures.take(client)


class ClientGone(Exception):  # noqa: N818
    """The client closed the connection before its request was complete."""


async def read_body(receive: Receive, limit: int, declared: str | None = None) -> bytes:
    """Read a request body, counting while it streams.

    Args:
        receive: the ASGI channel.
        limit: most bytes accepted.
        declared: the Content-Length header, if any; refused at once when it is above the limit.

    Raises:
        Problem: ``too_large``, or ``invalid_argument`` (HTTP 408) when it does not come in time.
        ClientGone: the client went away.
    """
    if declared is not None and declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientGone
                part: bytes = message.get("body", b"")
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
                if not message.get("more_body", False):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
    except TimeoutError:
        raise Problem(
            "invalid_argument",
            "The request body did not arrive in time. Send it again.",
            status=408,
        ) from None


async def discard(receive: Receive) -> None:
    """Read the rest of a refused body and drop it, for a second and 16 MiB at most.

    A connection that is closed with bytes unread is reset, and the answer on its way is lost.
    """
    left = DISCARD_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while left > 0:
                message = await receive()
                if not message.get("more_body", False):
                    return
                left -= len(message.get("body", b""))


def _too_large(limit: int) -> Problem:
    return Problem(
        "too_large", f"The body is larger than {limit} bytes. Send less.", {"limit": limit}
    )
