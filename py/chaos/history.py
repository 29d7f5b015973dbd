"""What a client wrote down: a line before each call, and one after it.

A history is a file of JSON lines that one client appends to, over all the times it was started::

    {"run": "5f0c…", "client": "sql-1", "owner": "sql-1"}                each start
    {"n": 7, "at": 81…, "op": "complete", "args": {…}}                   attempted
    {"n": 7, "at": 81…, "end": "ok", "answer": {…}}                      acknowledged
    {"n": 7, "at": 81…, "end": "refused", "code": "conflict"}            refused: it did not happen
    {"n": 7, "at": 81…, "end": "unknown", "code": "connection"}          it may have happened

``at`` is the monotonic clock of the machine in nanoseconds, which all processes share. Each line is
one write, so that kill -9 leaves at most one cut line, and only as the last of a start; a call
without its second line is unknown.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"


class HistoryError(Exception):
    """A history that no client can have written; the text says where."""


@dataclass
class Operation:
    """One call of one client.

    Attributes:
        client: whose, by the name of the history.
        run: which start of the client.
        n: number of the call within the start.
        op: what was called: create, deliver, claim, heartbeat, complete, fail, release, retry, …
        args: with what; ``twice`` where the request was sent twice.
        owner: whom a claim is held by: the client, or the agent that args name.
        begun, ended: monotonic nanoseconds; ended is None when the second line is not there.
        end: ok, refused or unknown.
        code: of the refusal, or why the outcome is not known.
        answer: what came back.
    """

    client: str
    run: str
    n: int
    op: str
    args: dict[str, Any]
    owner: str
    begun: int
    ended: int | None = None
    end: str = UNKNOWN
    code: str = "killed"
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What tells this call from every other."""
        return f"{self.client}/{self.run}/{self.n}"

    @property
    def may_have_happened(self) -> bool:
        """Whether it did, or nobody knows."""
        return self.end != REFUSED or bool(self.args.get("twice"))

    @property
    def span(self) -> float:
        """How long it took, in seconds; without an end: for ever."""
        return float("inf") if self.ended is None else (self.ended - self.begun) / 1e9


class Writer:
    """Appends to a history; one call at a time.

    Args:
        path: the file, which is made when it is not there.
        client: the name of the client.
        owner: whom its claims are held by.
    """

    def __init__(self, path: Path, client: str, owner: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._n = 0
        self.run = uuid.uuid4().hex[:12]
        self.start = path.read_bytes().count(b'"run":')  # how often it was started before
        # After a cut line a new one has to begin.
        lead = "\n" if os.fstat(self._file).st_size else ""
        self._write({"run": self.run, "client": client, "owner": owner}, lead)

    def begin(self, op: str, **args: Any) -> int:
        """Write that ``op`` is about to be called; returns its number."""
        self._n += 1
        self._write({"n": self._n, "at": time.monotonic_ns(), "op": op, "args": args})
        return self._n

    def end(self, n: int, end: str, code: str = "", answer: dict[str, Any] | None = None) -> None:
        """Write what became of call ``n``."""
        entry: dict[str, Any] = {"n": n, "at": time.monotonic_ns(), "end": end}
        if code:
            entry["code"] = code
        if answer is not None:
            entry["answer"] = answer
        self._write(entry)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, entry: dict[str, Any], lead: str = "") -> None:
        line = lead + json.dumps(entry, default=str, separators=(",", ":")) + "\n"
        data = line.encode()
        if os.write(self._file, data) != len(data):
            raise HistoryError("the history could not be written: is the disk full?")


def read(lines: Iterable[str], name: str = "history") -> list[Operation]:
    """The calls of one history, in the order in which they were begun.

    Args:
        lines: of the file; a last line of a start that was cut is left out.
        name: for errors, and of the client when there is no head.

    Raises:
        HistoryError: a line in the middle of a start is not readable, or fits to no other.
    """
    operations: list[Operation] = []
    open_calls: dict[int, Operation] = {}
    client, owner, run = name, name, ""
    for number, entry in _entries(lines, name):
        if "run" in entry:
            client, owner, run = entry["client"], entry["owner"], entry["run"]
            open_calls = {}
        elif "op" in entry:
            call = Operation(
                client, run, entry["n"], entry["op"], entry["args"],
                entry["args"].get("owner", owner), entry["at"],
            )  # fmt: skip
            operations.append(call)
            open_calls[call.n] = call
        else:
            found = open_calls.pop(entry["n"], None)
            if found is None:
                raise HistoryError(f"{name}, line {number}: an end without a beginning")
            found.ended, found.end = entry["at"], entry["end"]
            found.code, found.answer = entry.get("code", ""), entry.get("answer") or {}
    return operations


def read_all(folder: Path) -> list[Operation]:
    """The calls of all histories of a folder (``*.jsonl``), by the time they were begun."""
    calls: list[Operation] = []
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(errors="replace") as lines:
            calls += read(lines, path.stem)
    return sorted(calls, key=lambda call: call.begun)


def _entries(lines: Iterable[str], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The readable lines; an unreadable one is allowed where a start ends."""
    cut: int | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if cut is not None and (entry is None or "run" not in entry):
            raise HistoryError(f"{name}, line {cut}: cannot be read, and is no cut last line")
        if not isinstance(entry, dict):
            cut = number
            continue
        cut = None
        yield number, entry
