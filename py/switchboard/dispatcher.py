"""Calls hooks: takes from the outbox what is due, sends it signed, and says how it went.

Any number of processes may do so. The database gives each call to one of them; one that is not
settled within 15 seconds, because its process died or lost the database, is given away again with
the same webhook-id: at least once. When to try again and when to give up is decided there, too.

No more is taken than can be sent at once, so that nothing waits here, and no more than four calls
of one hook, so that a receiver that hangs holds up no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from switchboard import logs
from switchboard.db import SETTLE_DELIVERY, TAKE_DELIVERIES, Database
from switchboard.secrets import Keyring, SecretError
from switchboard.signing import sign

if TYPE_CHECKING:
    from switchboard.outbound import Outbound

logger = logging.getLogger(__name__)

LIMIT = 32  # calls at a time
IDLE_SECONDS = 3.0  # between two looks when nothing is known to be due
STEP = 0.1  # seconds between two looks while a retry is
# When a call is due again, in seconds after attempt 1 and 2: settle_delivery draws from this span.
AGAIN: Mapping[int, tuple[float, float]] = {1: (0.8, 1.2), 2: (4.0, 6.0)}
LOST_SECONDS = 15.0  # after which the database gives a call that was not settled away again
SENT_BY = 9.0  # seconds after it was taken; later, it might still be under way by then
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt at a call, as ``take_deliveries`` gives it.

    Attributes:
        endpoint_id, id: of the row of the outbox.
        hook_id: whose receiver is called.
        url: of the receiver.
        sealed_secrets: in hex, the current one first.
        message_id: the webhook-id; the same for every attempt.
        attempt: 1 for the first.
        body: what is sent.
    """

    endpoint_id: str
    id: str
    hook_id: str
    url: str = field(repr=False)
    sealed_secrets: Sequence[str] = field(repr=False)
    message_id: str
    attempt: int
    body: Mapping[str, Any] = field(repr=False)


class Dispatcher:
    """Makes the calls that are due.

    Args:
        database: where the outbox is.
        keyring: opens the secrets that sign them.
        outbound: judges the address, and calls it.
    """

    def __init__(self, database: Database, keyring: Keyring, outbound: Outbound) -> None:
        self._database = database
        self._keyring = keyring
        self._outbound = outbound
        self._calls: dict[asyncio.Task[None], Call] = {}
        self._looks: set[int] = set()  # when retries may be due, in steps
        self._woken = asyncio.Event()
        self._stopped = asyncio.Event()
        self._failing = False

    @property
    def in_flight(self) -> int:
        """How many calls are being made."""
        return len(self._calls)

    @property
    def is_stopping(self) -> bool:
        """Whether it takes nothing more."""
        return self._stopped.is_set()

    def wake(self) -> None:
        """Look now: something may have been written to the outbox."""
        self._woken.set()

    def stop(self) -> None:
        """Take nothing more; ``run`` returns when what is under way has ended."""
        self._stopped.set()
        self._woken.set()

    async def run(self) -> None:
        """Make calls until stopped; when cancelled, what is under way is left to be lost."""
        pause = FIRST_PAUSE
        try:
            while not self._stopped.is_set():
                self._woken.clear()
                try:
                    await self._take()
                except Exception as error:
                    self._complain(error)
                    await _at_most(pause, self._stopped)
                    pause = min(pause * 2, LONGEST_PAUSE)
                else:
                    self._failing = False
                    pause = FIRST_PAUSE
                    await _at_most(self._next_look(), self._woken)
            while self._calls:
                await asyncio.wait(self._calls)
        finally:
            for task in self._calls:
                task.cancel()
            await asyncio.gather(*self._calls, return_exceptions=True)

    async def _take(self) -> None:
        free = LIMIT - len(self._calls)
        if not free:  # the next one that ends wakes us
            return
        taken_at = time.monotonic()
        self._looks = {step for step in self._looks if step * STEP > taken_at}
        busy = [call.hook_id for call in self._calls.values()]
        for row in await self._database.value(TAKE_DELIVERIES, (free, busy)):
            call = Call(**row)
            task = asyncio.create_task(self._make(call, taken_at))
            self._calls[task] = call
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._calls[task]
        self._woken.set()  # there is room for another

    def _next_look(self) -> float:
        """Seconds until the next look, when nothing wakes us before."""
        pause = IDLE_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311
        if self._looks:
            pause = min(pause, min(self._looks) * STEP - time.monotonic())
        return max(pause, 0.0)

    async def _make(self, call: Call, taken_at: float) -> None:
        """Make one attempt and settle it; never raises."""
        started = time.perf_counter()
        status, outcome = "", "lost"
        try:
            status = await self._send(call, taken_at)
            if status:
                outcome = await self._settle(call, status, taken_at)
            if outcome == "again":
                self._expect(call.attempt)
        finally:
            logs.event(
                "hook.call",
                endpoint_id=call.endpoint_id,
                hook_id=call.hook_id,
                message_id=call.message_id,
                attempt=call.attempt,
                status=status or "-",
                outcome=outcome,
                ms=logs.milliseconds(started),
            )

    async def _send(self, call: Call, taken_at: float) -> str:
        """How it ended; nothing, when it was too late to begin."""
        body = json.dumps(call.body, ensure_ascii=False, separators=(",", ":")).encode()
        try:
            headers = sign(call.message_id, int(time.time()), body, self._secrets(call))
        except ValueError:
            return "unsealable"
        if time.monotonic() - taken_at > SENT_BY:
            return ""
        try:
            return await self._outbound.post(call.url, headers, body)
        except Exception as error:  # its words may repeat the address
            logger.error("a call to a hook failed: %s", type(error).__name__)
            return "unreachable"

    def _secrets(self, call: Call) -> list[bytes]:
        """Those that can be opened."""
        opened = []
        for sealed in call.sealed_secrets:
            try:
                opened.append(self._keyring.open(bytes.fromhex(sealed)))
            except SecretError as error:
                logger.error("a hook's signing secret cannot be opened: %s", error)
        return opened

    async def _settle(self, call: Call, status: str, taken_at: float) -> str:
        """Report it, as long as nobody else can have taken it: it would be sent again."""
        params = (call.endpoint_id, call.id, call.attempt, status, status == "unsealable")
        while True:
            try:
                outcome: str = await self._database.value(SETTLE_DELIVERY, params, repeatable=True)
            except psycopg.Error as error:
                if time.monotonic() - taken_at > LOST_SECONDS:
                    logger.warning("a call to a hook is not settled: %s", type(error).__name__)
                    return "lost"
                await asyncio.sleep(FIRST_PAUSE)
            else:
                return outcome

    def _expect(self, attempt: int) -> None:
        """The same call will be due again soon."""
        first, last = (time.monotonic() + seconds for seconds in AGAIN.get(attempt, AGAIN[2]))
        self._looks.update(range(math.ceil(first / STEP), math.ceil(last / STEP) + 1))

    def _complain(self, error: Exception) -> None:
        if not isinstance(error, psycopg.Error):
            logger.exception("calls to hooks are not made")
        elif not self._failing:
            logger.warning("calls to hooks are not made yet: %s", type(error).__name__)
        self._failing = True


async def _at_most(seconds: float, event: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
