"""``/healthz``: the process answers. ``/readyz``: it can do its work, and what is late about it.

Anyone may ask, so that the answer names no host, no error text and no secret, and the database is
asked at most once a second however many ask.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import psycopg

from switchboard import __version__
from switchboard.guard import json_response
from switchboard.listener import DEAF

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from switchboard.db import Database
    from switchboard.listener import Listener
    from switchboard.sessions import Sessions

KEEP_SECONDS = 1.0
LATE_SECONDS = 120.0


class Health:
    """Answers both routes, and says to the board what only this process knows."""

    def __init__(self, database: Database, listener: Listener, sessions: Sessions) -> None:
        self._database = database
        self._listener = listener
        self._sessions = sessions
        self._lock = asyncio.Lock()
        self._asked_at = float("-inf")
        self._age: float | None = None
        self._reachable = False

    async def alive(self, _: Request) -> Response:
        """200 while the process serves requests."""
        return json_response({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """200 when the database answers, else 503; a late sweep only makes things late."""
        async with self._lock:
            if time.monotonic() - self._asked_at > KEEP_SECONDS:
                await self._ask()
        body: dict[str, Any] = {
            "status": "ready" if self._reachable else "unavailable",
            "database": "ok" if self._reachable else "unreachable",
            "last_sweep_seconds": None if self._age is None else round(self._age, 1),
            "sweeps": _sweeps(self._reachable, self._age),
            "listener": self._listener.state,
            "connection": self._database.connection,
        }
        if advice := self.advice():
            body["advice"] = advice
        if self._reachable:
            return json_response(body)
        problem = {
            "error": "the database does not answer: check that PostgreSQL runs and is reachable",
            "code": "unavailable",
        }
        return json_response({**problem, **body}, 503, {"Retry-After": "5"})

    def advice(self) -> list[str]:
        """What should be set otherwise, for anybody to read."""
        deaf = [DEAF] if self._listener.state == "deaf" else []
        return [*self._database.advice(), *deaf]

    def facts(self) -> list[dict[str, Any]]:
        """Rows for the board's page of health: name, value, level and, if one is needed, a note."""
        state = self._listener.state
        hears = state == "listening"
        return [
            {"name": "Switchboard", "value": __version__, "level": "ok", "note": None},
            {
                "name": "Listener",
                "value": state,
                "level": "ok" if hears else "warning",
                "note": None if hears else "bells and waiting calls look every few seconds",
            },
            {
                "name": "Database connection",
                "value": self._database.connection,
                "level": "warning" if any(self._database.advice()) else "ok",
                "note": " ".join(self._database.advice()) or None,
            },
            {
                "name": "Agents' sessions here",
                "value": str(len(self._sessions)),
                "level": "ok",
                "note": None,
            },
        ]

    async def _ask(self) -> None:
        try:
            self._age = await self._database.sweep_age()
            self._reachable = True
        except psycopg.Error:
            self._reachable, self._age = False, None
        self._asked_at = time.monotonic()


def _sweeps(reachable: bool, age: float | None) -> str:
    if not reachable:
        return "unknown"
    if age is None:
        return "none yet"
    return "late" if age > LATE_SECONDS else "ok"
