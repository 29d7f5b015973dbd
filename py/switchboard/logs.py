"""Log lines: one JSON object each, on standard error, with nothing secret in it.

What is logged is chosen field by field; as a second net, everything that looks like a credential,
a signing secret, a password in an address or a webhook address is masked in the finished line,
third-party messages included.

A request has one line. What serves it says how it went, with ``event(…, ms=…)``; while ``access``
follows a request, that is kept and becomes part of its line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from switchboard.config import Settings

_events = logging.getLogger("switchboard.events")
_SECRET = re.compile(
    r"""\b(sb[a-z]_|whsec_)[A-Za-z0-9_+/=-]{8,}
    |(/webhooks/w/|/sign-in/(?!oidc\b))(?!\{)[^\s"'\\?#]+
    |(\b(?i:bearer|basic)\ )[^\s"'\\,]{8,}
    |([?&](?:code|state|token|access_token|id_token|secret|password)=)(?!\[redacted\])[^\s"'\\&#]+
    |(://[^\s"'\\/@:]*:)[^\s"'\\/@]+(?=@)""",
    re.VERBOSE,
)
# Most lines hold none of these, and are not searched.
_HINTS = ("sb", "whsec_", "/w/", "/sign-in/", "earer", "EARER", "asic ", "ASIC ", "?", "://")
_CHATTY = (
    "mcp",
    "sse_starlette",
    "uvicorn.access",
    "psycopg.pool",
    "httpx2",
    "httpcore2",
    "authlib",
)


@dataclass
class Line:
    """The line of a request, while it is served.

    Attributes:
        name: of the event; what serves the request may have a better one than ``http.request``.
        fields: what is known about it.
        is_told: whether the request is over, or what serves it has said how it went.
    """

    name: str = "http.request"
    fields: dict[str, Any] = field(default_factory=dict)
    is_told: bool = False


_line: ContextVar[Line | None] = ContextVar("line", default=None)


def mask(text: str) -> str:
    """Replace what looks like a secret, keeping its recognisable start."""
    if not any(hint in text for hint in _HINTS):
        return text
    return _SECRET.sub(lambda found: str(found[found.lastindex or 0]) + "***", text)


def wanted() -> bool:
    """Whether events are logged at all."""
    return _events.isEnabledFor(logging.INFO)


def event(name: str, **fields: Any) -> None:
    """Log that something happened, for example ``event("mcp.call", endpoint="alpha", ms=1.2)``.

    An event that took time (``ms``) while a request is served is how that request went: it is
    part of the request's line, once.
    """
    line = _line.get() if "ms" in fields else None
    if line is not None and not line.is_told:
        line.name, line.fields, line.is_told = name, fields, True
    elif wanted():
        _events.info(name, extra={"fields": fields})


@contextlib.contextmanager
def one_line() -> Iterator[Line]:
    """Collect what is said about the request that is served inside; who opens it writes it."""
    line = Line()
    before = _line.set(line)
    try:
        yield line
    finally:
        line.is_told = True  # tasks that outlive the request still see it
        _line.reset(before)


def milliseconds(since: float) -> float:
    """Milliseconds since a ``time.perf_counter()`` reading, to a hundredth."""
    return round((time.perf_counter() - since) * 1000, 2)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, event, fields, and the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        """Render the record."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.name != _events.name:
            line["logger"] = record.name
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return mask(json.dumps(line, default=str, ensure_ascii=False))


class TextFormatter(logging.Formatter):
    """The same for a person at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Render the record."""
        fields = " ".join(f"{key}={value}" for key, value in getattr(record, "fields", {}).items())
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{moment} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return mask(line)


def configure(settings: Settings) -> None:
    """Send every log line of this process to standard error in the chosen format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
