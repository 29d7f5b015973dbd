"""How ``migrate`` connects, tries again, and puts into words what the database refuses."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, cast
from urllib.parse import urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from switchboard import pooler

OWNER = "switchboard_owner"
DDL_LOCK_SECONDS = 15
TRIES = 20
# What a concurrent migrate of another database can cause in the shared catalogs.
CONCURRENT_STATES = frozenset({"23505", "42710", "42P06", "40001", "40P01"})


class MigrateError(RuntimeError):
    """The database was not brought up to date; the message says what to do."""


class NeedsDbaError(MigrateError):
    """The login may not create roles or schemas. ``statements`` is what a DBA has to run."""

    def __init__(self, message: str, statements: str) -> None:
        super().__init__(message)
        self.statements = statements


def yoyo_uri(dsn: str) -> str:
    """The same connection in yoyo's form, as the owner. Everything goes into the query part."""
    parameters = _parameters(dsn, OWNER)
    parameters["schema"] = "switchboard_migrations"
    return "postgresql+psycopg:///?" + urlencode(parameters)


def _parameters(dsn: str, role: str | None) -> dict[str, str]:
    """Connection parameters with the settings that a migration wants."""
    given = {key: str(value) for key, value in conninfo_to_dict(dsn).items() if value is not None}
    options = [given.pop("options", ""), "-c statement_timeout=0 -c client_min_messages=notice"]
    options.append(f"-c lock_timeout={DDL_LOCK_SECONDS}s")
    options.append(r"-c default_transaction_isolation=read\ committed")
    if role:
        options.append(f"-c role={role}")
    return {
        "connect_timeout": "10",
        **given,
        "options": " ".join(option for option in options if option),
        "application_name": "switchboard migrate",
    }


def connect(dsn: str, role: str | None = None) -> psycopg.Connection[Any]:
    """Connect for statements that commit one by one, as the login or as ``role``.

    Raises:
        MigrateError: a connection pooler is between us and the database.
    """
    parameters = cast("dict[str, Any]", _parameters(dsn, role))
    try:
        connection = psycopg.connect(autocommit=True, prepare_threshold=None, **parameters)
    except psycopg.OperationalError as error:
        if pooler.refuses_options(error):
            raise MigrateError(pooler.NO_MIGRATION) from None
        raise
    if pooler.is_between(connection):  # it forgets the role: tables would not be the owner's
        connection.close()
        raise MigrateError(pooler.NO_MIGRATION)
    return connection


def script(connection: psycopg.Connection[Any], text: bytes) -> None:
    """Run many statements in one transaction."""
    with connection.transaction():
        connection.execute(text)


def again(action: Callable[[], None]) -> None:
    """Do it again when a migrate of another database touched the same shared rows just then."""
    for left in reversed(range(TRIES)):
        try:
            action()
        except Exception as error:
            cause = database_error(error)
            if cause is None or not left:
                raise
            if cause.sqlstate not in CONCURRENT_STATES and "tuple concurrently" not in str(cause):
                raise
            time.sleep(random.uniform(0.02, 0.2))  # noqa: S311 (spreads tries, no secret)
        else:
            return


@contextlib.contextmanager
def plain_errors(dsn: str) -> Iterator[None]:
    """Turn what the database says into something to act on, without the password."""
    try:
        yield
    except MigrateError:
        raise
    except Exception as error:
        cause = database_error(error)
        if cause is None:
            raise
        text = _without_password(str(error), dsn)
        if isinstance(cause, psycopg.errors.LockNotAvailable):
            text = (
                f"Another session holds a lock that the migration needs ({text}). Find it with: "
                "select pid, usename, state, query from pg_stat_activity where state <> 'idle'; "
                "end it and run this again."
            )
        elif cause.sqlstate is None or cause.sqlstate[:2] in ("08", "28", "3D", "57"):
            text = f"The database cannot be reached: {text}"
        raise MigrateError(text) from None


def database_error(error: BaseException) -> psycopg.Error | None:
    """What the database said, also where post-apply.py has put a file's name around it."""
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    return cause if isinstance(cause, psycopg.Error) else None


def _without_password(text: str, dsn: str) -> str:
    secret = conninfo_to_dict(dsn).get("password")
    return text.replace(str(secret), "********") if secret else text
