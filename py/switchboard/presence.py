"""Tells the database which endpoints have sessions here, for those who look at a board.

What changed is written half a second later, so that a burst is one statement, and every 15 seconds
that this process still runs, while it has any session. A call costs nothing: an endpoint was seen
if one of its sessions was in use since the last write. What could not be written is written the
next time. A database that has forgotten this process, after an outage, is told everything again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from typing import TYPE_CHECKING, Any

import psycopg

from switchboard.db import END_PRESENCE, NOTE_PRESENCE

if TYPE_CHECKING:
    from switchboard.db import Database
    from switchboard.sessions import Session, Sessions

logger = logging.getLogger(__name__)

DEBOUNCE_SECONDS = 0.5
BEAT_SECONDS = 15.0
LAST_SECONDS = 3.0  # more than a statement may take then: silence.LAST_PATIENCE
NAME_LENGTH = 80


class Presence:
    """Writes the sessions of this process; one object a process.

    Args:
        database: where to.
        sessions: the register of this process, which from now on says what changes.
    """

    def __init__(self, database: Database, sessions: Sessions) -> None:
        self._database = database
        self._sessions = sessions
        self._id = uuid.uuid4()
        self._changed: set[str] = set()  # endpoints
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        self._told_at = 0.0
        self._known = False
        self._failing = False
        sessions.changed = self.changed

    def changed(self, endpoint_id: str) -> None:
        """The sessions of an endpoint are not what they were."""
        self._changed.add(endpoint_id)
        self._wake.set()

    async def run(self) -> None:
        """Write what changes, and that this process runs; until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._wake.wait()
            if self._wake.is_set():
                await asyncio.sleep(DEBOUNCE_SECONDS)
            self._wake.clear()
            # What is under way gets there, also when this ends.
            await asyncio.shield(self.write())

    async def close(self) -> None:
        """Say that this process ends, if the database can be asked soon."""
        with contextlib.suppress(TimeoutError, psycopg.Error):
            async with asyncio.timeout(LAST_SECONDS), self._turn:
                if self._known:
                    await self._database.value(END_PRESENCE, (self._id,), repeatable=True)

    async def write(self) -> None:
        """Write what is not written yet; never raises, what fails is logged once."""
        async with self._turn:
            changed, self._changed = self._changed, set()
            present = self._sessions.present()
            if not changed and not present:
                return
            try:
                known = await self._tell(changed, present)
                self._known = True
                if not known and (rest := set(present) - changed):  # it was forgotten
                    await self._tell(rest, present)
                self._failing = False
            except asyncio.CancelledError:
                self._changed |= changed
                raise
            except Exception as error:
                self._changed |= changed
                self._complain(error)

    async def _tell(self, changed: set[str], present: dict[str, list[Session]]) -> bool:
        now = self._sessions.now()
        told: dict[str, list[dict[str, Any]]] = {
            endpoint_id: [
                {
                    "client": session.client,
                    "age": round(now - session.since, 1),
                    "stream": self._sessions.listens(session),
                }
                for session in present.get(endpoint_id, [])
            ]
            for endpoint_id in changed
        }
        seen = [
            endpoint_id
            for endpoint_id, sessions in present.items()
            if any(session.requests or session.idle_since >= self._told_at for session in sessions)
        ]
        known: bool = await self._database.value(
            NOTE_PRESENCE, (self._id, json.dumps(told), seen), repeatable=True
        )
        self._told_at = now
        return known

    def _complain(self, error: Exception) -> None:
        if not isinstance(error, psycopg.Error):
            logger.exception("sessions are not shown on the board")
        elif not self._failing:
            logger.warning("sessions are not shown on the board yet: %s", type(error).__name__)
        self._failing = True


def client_name(message: Any) -> str | None:
    """What a client calls itself in ``initialize``: text of others, cut and without control marks.

    Args:
        message: any JSON-RPC message.
    """
    params = message.get("params") if isinstance(message, dict) else None
    info = params.get("clientInfo") if isinstance(params, dict) else None
    if not isinstance(info, dict):
        return None
    parts = (info.get("name"), info.get("version"))
    text = " ".join(part for part in parts if isinstance(part, str))
    return "".join(filter(str.isprintable, text))[:NAME_LENGTH].strip() or None
