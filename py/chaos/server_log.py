"""The judge of the server's log: what goes wrong around the server makes it warn, not err."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from chaos.verdict import UNEXPECTED, Verdict

BAD = ("error", "critical")
TRACEBACK = "Traceback (most recent call last)"


def judge(lines: Iterable[str], allowed: Iterable[str], verdict: Verdict) -> None:
    """Judge a log: each kind of error is a violation, once, unless it is allowed.

    Args:
        lines: of the log, JSON or not; one may be cut.
        allowed: texts; an error that has one of them may be there.
        verdict: takes the violations, and counts the errors that are allowed (``logged``).
    """
    allowed, told = tuple(allowed), set[str]()
    for line, text in _errors(lines):
        if any(one in line for one in allowed):
            verdict.coverage["logged"] += 1
        elif text not in told:
            told.add(text)
            verdict.wrong(UNEXPECTED, f"the server's log: {text}")


def _errors(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Lines that tell of an error, with what they say."""
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            if TRACEBACK in line:
                yield line, line.strip()
        elif str(entry.get("level")).lower() in BAD or TRACEBACK in line:
            yield line, str(entry.get("event"))[:200]
