"""Hears what the database says: what changed, what is ready, what was written to the outbox.

One connection of its own, outside the pool. When it is lost, it is made again with growing pauses;
since nothing is heard in between, being back counts as «anything may have happened». A pooler may
take LISTEN and never deliver: each connection therefore first sends itself a note, and says so
when it does not come. While nothing is heard, those who wait for work look by themselves. A line
that says nothing for a while is tried: a dead one is silent, too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from switchboard.db import dsn
from switchboard.silence import Bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

CONTROL = "switchboard_control"
READY = "todo_ready"
OUTBOX = "switchboard_outbox"
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
SELF_TEST_SECONDS = 5.0
QUIET_SECONDS = 5.0
ANSWER_SECONDS = 5.0
DEAF_SECONDS = 3.0

DEAF = (
    "The database takes LISTEN but delivers nothing: SWITCHBOARD_LISTEN_URL must name the database "
    "itself, not a transaction pooler. Until then revocations are noticed, agents rung and waiting "
    "calls answered some seconds late."
)


class Listener:
    """Calls back on each note.

    Args:
        url: a direct connection to the database.
        callbacks: what to call for each channel: with the payload of a note, or with None when
            anything may have happened.
    """

    def __init__(self, url: str, callbacks: Mapping[str, Callable[[str | None], None]]) -> None:
        self._url = url
        self._callbacks = callbacks
        self.state = "starting"

    async def run(self) -> None:
        """Listen until cancelled."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with await Bounded.connect(
                    dsn(self._url, pooler=True), autocommit=True
                ) as connection:
                    connection.patience = ANSWER_SECONDS
                    await self._self_test(connection)
                    pause = FIRST_PAUSE
                    await self._listen(connection)
            except psycopg.Error as error:
                if self.state == "listening":
                    logger.warning("listener lost its connection: %s", type(error).__name__)
                self.state = "reconnecting"
            except Exception:
                logger.exception("listener failed")
                self.state = "reconnecting"
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311
            if pause == LONGEST_PAUSE:
                self._look_around()
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _self_test(self, connection: psycopg.AsyncConnection[Any]) -> None:
        probe = f"switchboard_probe_{os.urandom(8).hex()}"
        for channel in (*self._callbacks, probe):
            await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        # From another connection: through a pooler, a session may hear its own notes and no others.
        async with await Bounded.connect(dsn(self._url, pooler=True), autocommit=True) as other:
            await other.execute("select pg_notify(%s, '')", (probe,))
        heard = False
        async with aclosing(connection.notifies(timeout=SELF_TEST_SECONDS)) as notes:
            async for note in notes:
                if heard := note.channel == probe:
                    break
        if not heard:
            logger.error(DEAF)
        await connection.execute(sql.SQL("unlisten {}").format(sql.Identifier(probe)))
        for channel in self._callbacks:
            self._tell(channel, None)
        self.state = "listening" if heard else "deaf"  # now that what was missed is looked for

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        deaf = self.state == "deaf"
        while True:
            async for note in connection.notifies(timeout=DEAF_SECONDS if deaf else QUIET_SECONDS):
                self._tell(note.channel, note.payload)
            if deaf:
                self._look_around()
            await connection.execute("select 1")

    def _look_around(self) -> None:
        """Nothing is heard: whoever waits for work has to look. Changes are looked for anyway."""
        for channel in self._callbacks:
            if channel != CONTROL:
                self._tell(channel, None)

    def _tell(self, channel: str, payload: str | None) -> None:
        if callback := self._callbacks.get(channel):
            try:
                callback(payload)
            except Exception:
                logger.exception("a note on %s was not dealt with", channel)
