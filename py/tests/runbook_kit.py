"""docs/runbooks.md for tests: its parts, and a desk at which one works through them at night.

A query is what stands in a ``sql`` block (it is for an operator) or a ``pgsql`` block (for a
superuser, or with words to fill in); a remedy is a line of any other block, or code within a line.
Nothing that a test runs is written down a second time.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from conftest import Endpoint, Sql
from psycopg.rows import dict_row

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "runbooks.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[([^\]]+)\]\(#([^)]+)\)")
WORD = re.compile(r"\b[A-Z][A-Z_]+\b")

READ = "select coalesce(jsonb_agg(t), '[]')::text as rows from {0} t"
WRITE = (
    "insert into {0} overriding system value select * from jsonb_populate_recordset(null::{0}, %s)"
)

Row = dict[str, Any]


def anchor(title: str) -> str:
    """The anchor that viewers of Markdown make of a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


@dataclass(frozen=True)
class Runbook:
    """One symptom of the page."""

    title: str
    text: str

    @property
    def anchor(self) -> str:
        return anchor(self.title)

    def queries(self) -> list[str]:
        """What is asked, in order: the statements of its ``sql`` and ``pgsql`` blocks."""
        found = [
            body for language, body in BLOCK.findall(self.text) if language in ("sql", "pgsql")
        ]
        return [one for body in found for one in re.split(r";\n", body) if one.strip()]

    def remedy(self, beginning: str, **words: object) -> str:
        """What is typed: the one piece of code that begins so, its CAPITALS filled in."""
        lines = [line for _, body in BLOCK.findall(self.text) for line in body.splitlines()]
        code = [*lines, *INLINE.findall(BLOCK.sub("", self.text))]
        found = {one for one in code if one.startswith(beginning)}
        assert len(found) == 1, f"{self.title}: {len(found)} remedies begin with {beginning!r}"
        text = found.pop()
        for word, value in words.items():
            assert re.search(rf"\b{word}\b", text), f"no {word} in {text!r}"
            text = re.sub(rf"\b{word}\b", str(value), text)
        assert not WORD.findall(text), f"{WORD.findall(text)} is left in {text!r}"
        return text


RUNBOOKS = {
    anchor(title): Runbook(title, text)
    for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
}


@dataclass(frozen=True)
class Symptom:
    """A row of the table that opens the page."""

    anchor: str
    alerts: tuple[str, ...]
    checks: tuple[str, ...]


def symptoms() -> list[Symptom]:
    """The table that opens the page."""
    rows = re.findall(r"^\| (\[.*?) \| (.*?) ?\| (.*?) ?\|$", PAGE, re.MULTILINE)
    return [
        Symptom(LINK.findall(first)[0][1], names(alerts), names(checks))
        for first, alerts, checks in rows
        if LINK.match(first)
    ]


def names(cell: str) -> tuple[str, ...]:
    """The words of a cell, between commas."""
    return tuple(name.strip() for name in cell.split(",") if name.strip())


class Slate:
    """A database that is wiped between tests, which costs less than a new one for each.

    Args:
        dsn: a superuser's, of a database as `switchboard migrate` left it.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        with self._open() as connection:
            tables = connection.execute(
                "select c.oid::regclass::text as name from pg_class c"
                " where c.relnamespace = 'switchboard'::regnamespace and c.relkind = 'r'"
            ).fetchall()
            self.rows = {
                row["name"]: connection.execute(READ.format(row["name"]).encode()).fetchall()[0][
                    "rows"
                ]
                for row in tables
            }

    def wipe(self) -> None:
        """Make the rows those of the beginning; foreign keys and triggers are left out."""
        with self._open() as connection, connection.transaction():
            connection.execute("set session_replication_role = replica")
            for name, rows in self.rows.items():
                connection.execute(f"delete from {name}".encode())
                connection.execute(WRITE.format(name).encode(), [rows])

    def _open(self) -> psycopg.Connection[Row]:
        return psycopg.connect(self.dsn, autocommit=True, row_factory=dict_row)


class Desk:
    """Who follows a runbook: a login of an operator, a superuser's prompt, and the command line.

    Args:
        db: a superuser's prompt.
        operator: the address with a login of switchboard_operator and pg_monitor.
        command: runs the command line as that login; its status and its JSON.
    """

    def __init__(self, db: Sql, operator: str, command: Callable[[str], tuple[int, Any]]) -> None:
        self.db = db
        self.command = command
        self.operator = psycopg.connect(operator, autocommit=True, row_factory=dict_row)

    def ask(self, book: Runbook, number: int = 0, **like: object) -> list[Row]:
        """The rows of a query of the page that are like this, as its operator sees them."""
        rows = self.operator.execute(book.queries()[number].encode()).fetchall()
        return [row for row in rows if row.items() >= like.items()]

    def ask_as_superuser(self, book: Runbook, number: int = 0, **like: object) -> list[Row]:
        """The same, where the page says «as a superuser»."""
        rows = self.db.rows(book.queries()[number])
        return [row for row in rows if row.items() >= like.items()]

    def do(self, book: Runbook, beginning: str, **words: object) -> Any:
        """Type a remedy: a command, or a statement as a superuser."""
        text = book.remedy(beginning, **words)
        if not text.startswith("switchboard "):
            return self.db.rows(text)
        status, answer = self.command(text.removeprefix("switchboard "))
        assert status == 0, f"{text}: {json.dumps(answer)}"
        return answer

    def stop_clock(self) -> datetime:
        """Stand still, for everybody; the time."""
        self.db.rows("update switchboard.settings set is_test = true, test_now = clock_timestamp()")
        now: datetime = self.db.value("select test_now from switchboard.settings")
        return now

    def wait(self, **time: float) -> None:
        """Let time pass: keywords of timedelta."""
        set_on = "update switchboard.settings set is_test = true, test_now = switchboard.now() + %s"
        self.db.rows(set_on, timedelta(**time))


def claim(db: Sql, agent: Endpoint, owner: str = "w1", ttl: int | None = None) -> str:
    """Claim the next todo; its id."""
    query = "select id::text from switchboard.claim_next(%s, %s, p_lease_ttl_seconds => %s)"
    return str(db.value(query, agent.id, owner, ttl))


@contextlib.contextmanager
def forgotten(dsn: str, name: str = "forgotten") -> Iterator[psycopg.Connection[Any]]:
    """Somebody else's session, which the remedy may end."""
    with (
        contextlib.suppress(psycopg.OperationalError),
        psycopg.connect(dsn, application_name=name) as session,
    ):
        yield session


def complete(db: Sql, agent: Endpoint, todo: str, owner: str = "w1") -> None:
    db.value("select state from switchboard.complete(%s, %s, %s)", agent.id, todo, owner)


def fail(db: Sql, agent: Endpoint, todo: str, error: str, owner: str = "w1") -> None:
    result = json.dumps({"error": error})
    db.value("select state from switchboard.fail(%s, %s, %s, %s)", agent.id, todo, owner, result)


def bury(db: Sql, agent: Endpoint, title: str, error: str) -> str:
    """A dead letter; its id."""
    query = "select id::text from switchboard.create_todo(%s, 'inbox', %s, p_max_attempts => 1)"
    todo = str(db.value(query, agent.id, title))
    db.value("select id from switchboard.claim(%s, %s, 'w1')", agent.id, todo)
    fail(db, agent, todo, error)
    return todo
