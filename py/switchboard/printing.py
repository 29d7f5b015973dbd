"""What the command line says: lines for people, or one JSON object for programs.

Results go to standard output, everything else (progress, refusals for people) to standard error.
With ``--json`` a refusal is the error body on standard output, so that a script reads one place.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from switchboard.errors import Problem


def say(line: str) -> None:
    """One line of progress."""
    print(line, file=sys.stderr, flush=True)


def out(line: str = "") -> None:
    """One line of a result."""
    print(line, flush=True)


def as_json(value: Any) -> str:
    """JSON of a result; times in ISO 8601, ids as text."""
    return json.dumps(value, default=_plain, ensure_ascii=False)


def result(value: Any, json_wanted: bool, lines: Iterable[str]) -> None:
    """Print a result: ``value`` for programs, ``lines`` for people."""
    if json_wanted:
        out(as_json(value))
    else:
        for line in lines:
            out(line)


def refusal(problem: Problem, json_wanted: bool) -> None:
    """Print why nothing was done."""
    if json_wanted:
        out(as_json(problem.body()))
        return
    say(f"{problem.code}: {problem.message}")
    for key, value in problem.details.items():
        if isinstance(value, str) and "\n" in value:
            out(value)
        else:
            say(f"  {key}: {value if isinstance(value, str) else as_json(value)}")


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """Rows in aligned columns under their names; one line saying so when there are none."""
    if not rows:
        return ["(none)"]
    cells = [list(columns)] + [[_short(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]


def record(row: Mapping[str, Any]) -> list[str]:
    """One row, a field a line; fields that hold nothing are left out."""
    width = max(map(len, row), default=0)
    return [f"{key:<{width}}  {_short(value)}" for key, value in row.items() if value is not None]


def _short(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    text = str(value) if isinstance(value, str | UUID) else as_json(value)
    return visible(text)


def visible(text: str) -> str:
    """Text for a terminal, which must not obey what others wrote."""
    return "".join(character if character.isprintable() else "·" for character in text)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
