"""Many sessions at once, for test_storm.py and its like."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.rows import dict_row

T = TypeVar("T")
Row = dict[str, Any]
CLAIM_NEXT: LiteralString = "select * from switchboard.claim_next(%s, %s)"
COMPLETE: LiteralString = "select * from switchboard.complete(%s, %s, %s, p_lease_token => %s)"


class Conflict(Exception):  # noqa: N818 (an answer, not a fault)
    """SB409, as ``Session`` raises it."""


class Session:
    """A database session of its own; a call that waits for a lock for 5 s fails."""

    def __init__(self, dsn: str, clock: datetime | None = None, **settings: str) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self.connection: psycopg.Connection[Row] = psycopg.connect(
            dsn,
            autocommit=True,
            row_factory=dict_row,
            options=f"-c lock_timeout=5s -c statement_timeout=30s {options}",
        )
        if clock is not None:
            self.clock(clock)

    def clock(self, now: datetime) -> None:
        """Set this session's test clock."""
        self.rows("select set_config('switchboard.test_now', %s, false)", now.isoformat())

    def rows(self, query: LiteralString, *params: Any) -> list[Row]:
        try:
            cursor = self.connection.execute(query, params)
        except psycopg.Error as error:
            if error.sqlstate == "SB409":
                raise Conflict from error
            raise
        found = cursor.fetchall() if cursor.description else []
        for row in found:  # ids are text at the edge
            row.update({name: str(v) for name, v in row.items() if name == "id"})
        return found

    def row(self, query: LiteralString, *params: Any) -> Row:
        rows = self.rows(query, *params)
        assert rows, f"no row: {query}"
        return rows[0]

    def refused(self, query: LiteralString, *params: Any) -> str | None:
        """The SQLSTATE with which the call is refused; None: it is not."""
        try:
            self.rows(query, *params)
        except Conflict:
            return "SB409"
        except psycopg.Error as error:
            if error.sqlstate is None:
                raise  # the connection is gone
            return error.sqlstate
        return None


@contextlib.contextmanager
def sessions(dsn: str, count: int, **options: Any) -> Iterator[list[Session]]:
    """So many sessions, for the time of the block."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            session = Session(dsn, **options)
            stack.callback(session.connection.close)
            opened.append(session)
        yield opened


def each(opened: Sequence[Session], *works: Callable[[Session], Any]) -> list[Any]:
    """Each session does its work, in a thread, begun at one moment; what they return, in order.

    One work alone is everybody's. When one fails, the sessions are closed, which ends the others.
    """
    line = threading.Barrier(len(opened))

    def start(work: Callable[[Session], Any], own: Session) -> Any:
        line.wait()
        return work(own)

    shared = works * len(opened) if len(works) == 1 else works
    with ThreadPoolExecutor(len(opened)) as pool:
        begun = [pool.submit(start, *pair) for pair in zip(shared, opened, strict=True)]
        try:
            for finished in as_completed(begun):
                finished.result()
        except BaseException:
            for session in opened:
                session.connection.close()
            raise
    return [finished.result() for finished in begun]


def together(dsn: str, works: Sequence[Callable[[Session], Any]], **options: Any) -> list[Any]:
    """``each``, with sessions that are opened for it."""
    with sessions(dsn, len(works), **options) as opened:
        return each(opened, *works)


def many(count: int, queue: str = "inbox", **fields: Any) -> list[Row]:
    """So many elements for create_todos."""
    return [{"queue": queue, "title": f"todo {n}", **fields} for n in range(count)]
