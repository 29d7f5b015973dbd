"""Log lines: one JSON object each, on standard error, with nothing secret in it.

What is logged is chosen field by field; as a second net, everything that looks like a credential,
a signing secret or a webhook address is masked in the finished line, third-party messages
included.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchboard.config import Settings

_events = logging.getLogger("switchboard.events")
_SECRET = re.compile(r"\b(sb[a-z]_|whsec_)[A-Za-z0-9_+/=-]{8,}|(/webhooks/w/)[^\s\"'\\?#]+")
_CHATTY = ("mcp", "sse_starlette", "uvicorn.access", "psycopg.pool", "httpx2", "httpcore2")


def mask(text: str) -> str:
    """Replace what looks like a secret, keeping its recognisable start."""
    return _SECRET.sub(lambda found: (found[1] or found[2]) + "***", text)


def event(name: str, **fields: Any) -> None:
    """Log that something happened, for example ``event("mcp.call", endpoint="alpha", ms=1.2)``."""
    if _events.isEnabledFor(logging.INFO):
        _events.info(name, extra={"fields": fields})


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
