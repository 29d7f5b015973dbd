"""Errors as a caller sees them: one table, read from the database, and one exception.

``switchboard.error_table()`` is the single list of SQLSTATE, code and HTTP status. The few codes
that the shell must answer when the database cannot be asked stand here as well; a test compares
both. Text of a foreign database error never leaves the process: it prints rows, keys and queries.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

JsonObject = Mapping[str, Any]

# What the shell answers without asking the database: the same as there.
OWN: Mapping[str, tuple[int, str]] = {
    "unauthenticated": (
        401,
        "the credential is not valid here: ask the owner of the endpoint for a current one",
    ),
    "rate_limited": (429, "too many calls: wait as long as Retry-After says, then call again"),
    "internal": (500, "something failed here: try again, and tell the operator if it goes on"),
    "unavailable": (503, "the service cannot answer right now: try again in a moment"),
}
_OWN_STATUS = {"invalid_argument": 400, "forbidden": 403, "not_found": 404, "too_large": 413}

TRY_AGAIN_SECONDS = 1.0
UNSTORABLE = (
    "the arguments hold something that cannot be stored (a NUL character, half of a surrogate "
    "pair, a number out of range, too deep a nesting): remove it and call again"
)
_TRY_AGAIN_STATES = ("25006", "40001", "40P01", "55P03", "57014")  # 25006: a standby, read-only
_TRY_AGAIN_CLASSES = ("08", "53", "57", "58")
_UNSTORABLE_STATES = ("22P02", "22P05", "22021", "22032", "54001", "54000", "22003")


@dataclass
class Problem(Exception):  # noqa: N818
    """A refusal that names a code and tells the next step.

    Attributes:
        code: machine-readable, for example ``not_found``.
        message: one or two sentences for a person or a model.
        details: more members of the error body.
        retry_after: seconds after which trying again makes sense; None when it does not, which is
            never so for ``unavailable``, whoever found it out.
        status: HTTP status, where it is not the one of the code.
    """

    code: str
    message: str
    details: JsonObject = field(default_factory=dict)
    retry_after: float | None = None
    status: int | None = None

    def __post_init__(self) -> None:
        """What the database says of itself names no time."""
        if self.code == "unavailable" and self.retry_after is None:
            self.retry_after = TRY_AGAIN_SECONDS

    def body(self) -> dict[str, Any]:
        """The HTTP error body."""
        return {**self.details, "error": self.message, "code": self.code}

    def tool_error(self) -> dict[str, Any]:
        """The structured content of a failed tool call."""
        return {"error": {"code": self.code, "message": self.message, **self.details}}


def own(code: str, **details: Any) -> Problem:
    """A problem of ``OWN`` with its usual message."""
    return Problem(code, OWN[code][1], details)


def unavailable() -> Problem:
    """The database cannot be asked, or asks for another try."""
    return Problem("unavailable", OWN["unavailable"][1])


def rate_limited(wait: float) -> Problem:
    """Too many requests; ``wait`` is in seconds."""
    return Problem("rate_limited", OWN["rate_limited"][1], retry_after=wait)


def internal() -> Problem:
    """A fault of ours: the caller gets a ``log_id`` to quote; the log has the cause."""
    return own("internal", log_id=os.urandom(6).hex())


class ErrorTable:
    """What ``error_table()`` says, by code and by SQLSTATE.

    Args:
        rows: (sqlstate, code, http_status) each.
    """

    def __init__(self, rows: Iterable[tuple[str, str, int]] = ()) -> None:
        known = list(rows)
        self._status = {code: status for code, (status, _) in OWN.items()} | _OWN_STATUS
        self._status |= {code: status for _, code, status in known}
        self._codes = {sqlstate: code for sqlstate, code, _ in known}

    def status(self, code: str) -> int:
        """HTTP status of a code; 500 for one that no table knows."""
        return self._status.get(code, 500)

    def problem(self, error: Exception) -> Problem | None:
        """Translate what the database, or the way to it, raised; None for a fault of our own."""
        if isinstance(error, UnicodeEncodeError):
            return Problem("invalid_argument", UNSTORABLE)
        if not isinstance(error, psycopg.Error):
            return None
        state = error.sqlstate or ""
        if state in self._codes:
            details = _json_object(error.diag.message_detail)
            return Problem(self._codes[state], error.diag.message_primary or "", details)
        if state in _TRY_AGAIN_STATES or state[:2] in _TRY_AGAIN_CLASSES:
            return unavailable()
        if state in _UNSTORABLE_STATES or (not state and isinstance(error, psycopg.DataError)):
            return Problem("invalid_argument", UNSTORABLE)
        if not state and isinstance(error, psycopg.OperationalError):
            return unavailable()
        return None


def _json_object(text: str | None) -> JsonObject:
    try:
        value = json.loads(text or "")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
