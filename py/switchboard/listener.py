"""Hears what the database says on ``switchboard_control``: an endpoint or credential changed.

One connection of its own, outside the pool. When it is lost, it is made again with growing pauses;
since nothing is heard in between, being back counts as «everything may have changed». A pooler may
take LISTEN and never deliver: each connection therefore first sends itself a note, and says so
when it does not come.
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

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

CHANNEL = "switchboard_control"
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
SELF_TEST_SECONDS = 5.0
QUIET_SECONDS = 15.0

DEAF = (
    "The database takes LISTEN but delivers nothing: SWITCHBOARD_LISTEN_URL must name the database "
    "itself, not a transaction pooler. Until then revocations are noticed some seconds late."
)


class Listener:
    """Calls back on each note.

    Args:
        url: a direct connection to the database.
        on_change: called with the endpoint id of a note, or None when anything may have changed.
    """

    def __init__(self, url: str, on_change: Callable[[str | None], None]) -> None:
        self._url = url
        self._on_change = on_change
        self.state = "starting"

    async def run(self) -> None:
        """Listen until cancelled."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    dsn(self._url, pooler=True), autocommit=True
                ) as connection:
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
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _self_test(self, connection: psycopg.AsyncConnection[Any]) -> None:
        probe = f"switchboard_probe_{os.urandom(8).hex()}"
        for channel in (CHANNEL, probe):
            await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        # From another connection: through a pooler, a session may hear its own notes and no others.
        async with await psycopg.AsyncConnection.connect(
            dsn(self._url, pooler=True), autocommit=True
        ) as other:
            await other.execute("select pg_notify(%s, '')", (probe,))
        heard = False
        async with aclosing(connection.notifies(timeout=SELF_TEST_SECONDS)) as notes:
            async for note in notes:
                if heard := note.channel == probe:
                    break
        self.state = "listening" if heard else "deaf"
        if not heard:
            logger.error(DEAF)
        await connection.execute(sql.SQL("unlisten {}").format(sql.Identifier(probe)))
        self._on_change(None)

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async for note in connection.notifies(timeout=QUIET_SECONDS):
                if note.channel == CHANNEL:
                    self._on_change(note.payload)
            await connection.execute("select 1")  # a dead connection is silent, too
