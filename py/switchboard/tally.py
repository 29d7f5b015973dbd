"""Counts the deliveries that are turned away, and hands the counts to the database.

A refusal must cost next to nothing, so that it is no round trip of its own: it is counted here, and
the counts are handed over every second and at the end. There are as many kinds as source types
times reasons, whatever anybody sends. What could not be handed over is kept for the next time; it
counts twice when the connection was lost between commit and answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from switchboard.db import COUNT_DELIVERIES

if TYPE_CHECKING:
    from switchboard.db import Database

logger = logging.getLogger(__name__)

PAUSE = 1.0
LAST_SECONDS = 3.0  # more than a statement may take then: silence.LAST_PATIENCE


class Kind(NamedTuple):
    """What is counted; texts from closed lists, none of them a sender's.

    Attributes:
        verdict: ``refused`` or ``limited``.
        reason: why it was refused.
        provider, trust_mode: of the receiver, empty where that is not known.
    """

    verdict: str
    reason: str = ""
    provider: str = ""
    trust_mode: str = ""


class Tally:
    """Counts by kind until they are handed over."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counts: Counter[Kind] = Counter()
        self._turn = asyncio.Lock()
        self._failing = False

    def add(self, kind: Kind) -> None:
        """Count one delivery."""
        self._counts[kind] += 1

    async def run(self) -> None:
        """Hand over every second, until cancelled."""
        while True:
            await asyncio.sleep(PAUSE)
            # What is under way gets there, also when this ends.
            await asyncio.shield(self.flush())

    async def close(self) -> None:
        """Hand over what is left, if the database can be asked soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await self.flush()

    async def flush(self) -> None:
        """Hand over what was counted; never raises, what fails is logged once."""
        async with self._turn:
            if not self._counts:
                return
            counts, self._counts = self._counts, Counter()
            rows = json.dumps([{**kind._asdict(), "n": n} for kind, n in counts.items()])
            try:
                await self._database.value(COUNT_DELIVERIES, (rows,))
                self._failing = False
            except asyncio.CancelledError:
                self._counts.update(counts)
                raise
            except Exception as error:
                self._counts.update(counts)
                self._complain(error)

    def _complain(self, error: Exception) -> None:
        if not isinstance(error, psycopg.Error):
            logger.exception("refused deliveries are not counted")
        elif not self._failing:
            logger.warning("refused deliveries are not counted yet: %s", type(error).__name__)
        self._failing = True
