"""The operator's connection of the command line: it calls functions and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from switchboard import db, embedded
from switchboard.config import Settings
from switchboard.datafolder import DataFolder
from switchboard.errors import ErrorTable, Problem
from switchboard.secrets import Keyring

Row = dict[str, Any]
Parameters = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """The database that a command works on.

    Attributes:
        url: with the login of an operator.
        public_url: of the server that serves it.
        folder: of the embedded database; None for one that was configured.
    """

    url: str
    public_url: str
    folder: DataFolder | None


def find(settings: Settings) -> Place:
    """The configured database, else the embedded one of the data folder if it runs.

    Raises:
        Problem: there is neither.
    """
    if settings.database_url:
        return Place(settings.database_url, settings.public_url, None)
    folder = DataFolder(settings.data_dir)
    running = folder.running()
    if running is None or "socket" not in running:
        state = "is not running" if running is None else "is still starting"
        raise Problem(
            "unavailable",
            f"The embedded database of {folder.path} {state}: run `make up` in another terminal, "
            "or set SWITCHBOARD_DATABASE_URL.",
        )
    return Place(embedded.operator_url(running["socket"]), running["url"], folder)


def keyring(settings: Settings, place: Place) -> Keyring:
    """The keys that seal signing secrets there."""
    return Keyring(settings.secret_keys or (place.folder.secret_keys() if place.folder else ()))


class Operator:
    """One connection; each call is a transaction of its own."""

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection

    def rows(self, query: LiteralString, parameters: Parameters = ()) -> list[Row]:
        """Call a function; all rows of its answer."""
        return self._connection.execute(query, parameters).fetchall()

    def row(self, query: LiteralString, parameters: Parameters = ()) -> Row:
        """Call a function; the first row of its answer, empty when there is none."""
        rows = self.rows(query, parameters)
        return rows[0] if rows else {}

    def value(self, query: LiteralString, parameters: Parameters = ()) -> Any:
        """Call a function; the first column of the first row."""
        return next(iter(self.row(query, parameters).values()), None)

    def explain(self, error: psycopg.Error) -> Problem:
        """What an error of the database means to the person who typed the command."""
        table = ErrorTable()
        with contextlib.suppress(psycopg.Error):
            rows = self.rows(db.ERROR_TABLE)
            table = ErrorTable((r["sqlstate"], r["code"], r["http_status"]) for r in rows)
        return table.problem(error) or foreign(error)


def foreign(error: psycopg.Error) -> Problem:
    """An error that is not one of the product's; the person at the prompt may see its text."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return Problem(
            "forbidden",
            f"This login may not do that ({error.diag.message_primary}). Grant it the operator's "
            "role: grant switchboard_operator to LOGIN;",
        )
    if isinstance(
        error, psycopg.errors.UndefinedFunction | psycopg.errors.InvalidSchemaName
    ) or error.sqlstate in ("3F000", "42P01"):
        return Problem(
            "unavailable", "The database is not up to date: run `switchboard migrate` first."
        )
    if isinstance(error, psycopg.OperationalError) and not error.sqlstate:
        return Problem("unavailable", f"The database cannot be reached: {first_line(error)}")
    return Problem("internal", error.diag.message_primary or first_line(error))


def first_line(error: Exception) -> str:
    """The first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def operate(settings: Settings) -> Iterator[tuple[Operator, Place]]:
    """Connect as the operator.

    Raises:
        Problem: the database cannot be reached, or refuses the call made inside.
    """
    place = find(settings)
    try:
        connection, _ = db.connect(place.url)
    except psycopg.Error as error:
        raise foreign(error) from None
    with connection:
        operator = Operator(connection)
        try:
            yield operator, place
        except psycopg.Error as error:
            raise operator.explain(error) from None
        except UnicodeEncodeError as error:
            raise ErrorTable().problem(error) or error from None
