"""Sweeps when nobody else does.

``switchboard.tick()`` is safe to call from anywhere, any number of times. Where pg_cron calls it,
this process finds every sweep fresh and does nothing.
"""

from __future__ import annotations

import asyncio
import logging

import psycopg

from switchboard import logs
from switchboard.db import TICK, Database

logger = logging.getLogger(__name__)

SHORTEST_PAUSE = 1.0
PAUSE_AFTER_FAILURE = 5.0


class Ticker:
    """Calls ``tick()`` whenever the last sweep is older than ``interval`` seconds."""

    def __init__(self, database: Database, interval: float) -> None:
        self._database = database
        self._interval = interval

    async def run(self) -> None:
        """Tick until cancelled; a tick that fails is logged, and the next one follows."""
        while True:
            pause = PAUSE_AFTER_FAILURE
            try:
                pause = await self.tick_if_due()
            except psycopg.Error as error:
                logger.warning("tick failed: %s %s", type(error).__name__, error.sqlstate or "")
            except Exception:
                logger.exception("tick failed")
            await asyncio.sleep(max(pause, SHORTEST_PAUSE))

    async def tick_if_due(self) -> float:
        """Tick, if it is time; returns the seconds until the next (0: one tick was not enough)."""
        age = await self._database.sweep_age()
        if age is not None and age < self._interval:
            return self._interval - age
        swept = await self._database.value(TICK)
        moved = {name: count for name, count in (swept or {}).items() if count}
        if moved:
            logs.event("tick", **moved)
        return 0.0 if moved.get("more") else self._interval
