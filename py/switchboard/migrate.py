"""``switchboard migrate``: bring a database to the state that the files of ``db/`` describe.

Four steps, each safe to repeat: roles and schemas (bootstrap.sql) as the login that connects, then
tables (yoyo) and functions (post-apply.py) as role switchboard_owner, and pg_cron's job (cron.sql)
as the login again. Runs are serialised by a lock on a table of the owner's: it ends with its
session, so a killed run leaves nothing that blocks the next, and no other login can take it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
from psycopg import sql
from yoyo import get_backend, read_migrations
from yoyo.exceptions import LockTimeout

from switchboard import __version__
from switchboard.migrate_connection import (
    DDL_LOCK_SECONDS,
    OWNER,
    MigrateError,
    NeedsDbaError,
    again,
    connect,
    plain_errors,
    script,
    yoyo_uri,
)

Say = Callable[[str], None]

GROUPS = ("app", "operator", "worker", "readonly", "cron")
ROLES = (OWNER, *(f"switchboard_{name}" for name in GROUPS))
SCHEMAS = ("switchboard", "switchboard_migrations")
OLDEST, NEWEST = 15, 18
LOCK_SECONDS = 60
# What a concurrent migrate of another database of the cluster can cause in the shared catalogs.

MISSING: LiteralString = """
select 'role ' || r from unnest(%(roles)s::text[]) r where to_regrole(r) is null
union all
select 'schema ' || s from unnest(%(schemas)s::text[]) s
where not exists (select from pg_catalog.pg_namespace
                  where nspname = s and nspowner = to_regrole(%(owner)s))
union all
select 'membership of ' || current_user || ' in ' || %(owner)s
where to_regrole(%(owner)s) is null or not pg_has_role(current_user, to_regrole(%(owner)s),
    case when current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end)
"""
GATE: LiteralString = """
create table if not exists switchboard_migrations.gate ();
comment on table switchboard_migrations.gate is
    'Empty. Locked by the migrate that is running.';
create table if not exists switchboard_migrations.holder (
    pid integer not null, since timestamptz not null default now());
comment on table switchboard_migrations.holder is
    'The migrate that is running or was killed: tells its yoyo lock from one of a yoyo by hand.';
comment on column switchboard_migrations.holder.pid is 'Its process id, on its own machine.';
comment on column switchboard_migrations.holder.since is 'When it started.';
"""
LOCK_HELP = (
    "If no yoyo is running, it was killed: run `switchboard migrate --break-lock` to remove its "
    "lock and go on."
)


def db_files() -> Path:
    """The folder of bootstrap.sql, cron.sql, migrations and functions: packaged or the source's."""
    here = Path(__file__).resolve()
    for place in (here.parent / "_db", here.parents[2] / "db"):
        if (place / "bootstrap.sql").is_file():
            return place
    raise MigrateError("The database files are missing: install switchboard again.")


def migrate(dsn: str, say: Say, *, break_lock: bool = False) -> None:
    """Migrate one database.

    Args:
        dsn: libpq URL or DSN of a direct connection (a transaction pooler cannot carry it).
        say: called with one line for people at each step.
        break_lock: remove a lock row that a killed yoyo has left.

    Raises:
        MigrateError: nothing, or only a part, was done; running it again is safe.
    """
    files = db_files()
    with plain_errors(dsn):
        with connect(dsn) as connection:
            _check_version(connection)
            again(lambda: _bootstrap(connection, files, say))
        again(lambda: _make_gate(dsn))
        with _gate(dsn, say):
            again(lambda: _apply(dsn, files, say, break_lock))
        with connect(dsn) as connection:
            connection.add_notice_handler(lambda notice: say(notice.message_primary or ""))
            again(lambda: script(connection, (files / "cron.sql").read_bytes()))


def _check_version(connection: psycopg.Connection[Any]) -> None:
    number = connection.info.server_version // 10000
    if not OLDEST <= number <= NEWEST:
        raise MigrateError(
            f"This is PostgreSQL {number}; Switchboard works with {OLDEST} to {NEWEST}. "
            "Nothing was changed. Use a server of one of these versions."
        )
    if connection.info.encoding != "utf-8":
        connection.execute("set client_encoding = 'UTF8'")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise MigrateError(
            f"The database has encoding {encoding}; Switchboard needs UTF8. Nothing was changed. "
            "Make one with: create database NAME encoding 'UTF8' template template0;"
        )


def missing(connection: psycopg.Connection[Any]) -> list[str]:
    """Which roles, schemas and memberships are not there yet, for people."""
    names = {"roles": list(ROLES), "schemas": list(SCHEMAS), "owner": OWNER}
    return [row[0] for row in connection.execute(MISSING, names).fetchall()]


def _bootstrap(connection: psycopg.Connection[Any], files: Path, say: Say) -> None:
    lacking = missing(connection)
    if not lacking:
        return
    say("Making roles and schemas …")
    text = (files / "bootstrap.sql").read_bytes()
    try:
        script(connection, text)
    except psycopg.errors.InsufficientPrivilege:
        row = connection.execute("select current_user, current_database()").fetchone()
        login, database = row or ("", "")
        raise NeedsDbaError(
            f"The login {login} may not create what is missing: {', '.join(lacking)}. Ask a DBA to "
            f"run the statements below in database {database} as a superuser, then run "
            "`switchboard migrate` again.",
            dba_statements(login, database, text.decode()),
        ) from None
    except psycopg.errors.RaiseException as error:
        hint = f"To mend it: {error.diag.message_hint}"
        raise MigrateError(f"{error.diag.message_primary}. {hint}") from None


def dba_statements(login: str, database: str, statements: str) -> str:
    """bootstrap.sql for psql, on behalf of a login that may not run it."""
    setting = sql.SQL("set switchboard.migrator = {};").format(sql.Literal(login)).as_string()
    place = sql.Identifier(database).as_string()
    return f"-- In database {place}, as a superuser:\n{setting}\n{statements}"


def _make_gate(dsn: str) -> None:
    with connect(dsn, OWNER) as connection:
        there = "select to_regclass('switchboard_migrations.holder') is not null"
        if connection.execute(there).fetchone() != (True,):  # a COMMENT would wait for the gate
            script(connection, GATE.encode())


@contextlib.contextmanager
def _gate(dsn: str, say: Say) -> Iterator[None]:
    """Hold the gate: one migrate of this database at a time."""
    with connect(dsn, OWNER) as connection:
        connection.autocommit = False
        connection.execute("set idle_in_transaction_session_timeout = 0")
        connection.execute("set lock_timeout = '250ms'")
        connection.commit()
        started, told = time.monotonic(), False
        while True:
            try:
                connection.execute("lock table switchboard_migrations.gate in exclusive mode")
                break
            except psycopg.errors.LockNotAvailable:
                connection.rollback()
            if time.monotonic() - started > LOCK_SECONDS:
                raise MigrateError(
                    "Another `switchboard migrate` has been running on this database for over "
                    f"{LOCK_SECONDS} s. Wait for it, or end it: its sessions are those of "
                    "pg_stat_activity with application_name 'switchboard migrate'."
                )
            if not told:
                say("Another migrate is running on this database; waiting for it …")
                told = True
        yield
        connection.rollback()


def _apply(dsn: str, files: Path, say: Say, break_lock: bool) -> None:
    """Tables and functions, as the owner, while the gate is held."""
    migrations = read_migrations(str(files / "migrations"))
    with get_backend(yoyo_uri(dsn), "_yoyo_migration") as backend, _narrated(say):
        connection = cast("psycopg.Connection[Any]", backend.connection)
        _clear_lock(connection, say, break_lock)
        connection.execute("delete from switchboard_migrations.holder")
        note: LiteralString = "insert into switchboard_migrations.holder (pid) values (%s)"
        connection.execute(note, [os.getpid()])
        try:
            with backend.lock(timeout=DDL_LOCK_SECONDS):
                pending = backend.to_apply(migrations)
                _refuse_if_newer(connection, {migration.id for migration in migrations})
                for migration in pending:
                    say(f"Applying {migration.id} …")
                    backend.apply_one(migration)
                backend.run_post_apply(pending)
        except LockTimeout as error:
            raise MigrateError(f"yoyo has locked this database ({error}). {LOCK_HELP}") from None
        connection.execute("delete from switchboard_migrations.holder")
        say(f"{len(pending)} of {len(migrations)} migrations were new.")


def _refuse_if_newer(connection: psycopg.Connection[Any], known: set[str]) -> None:
    """Functions of this program over tables that it does not know would pass by what those hold."""
    query: LiteralString = "select migration_id from switchboard_migrations._yoyo_migration"
    applied = {row[0] for row in connection.execute(query).fetchall()}
    if unknown := sorted(applied - known):
        raise MigrateError(
            f"A newer version has migrated this database: it has {', '.join(unknown)}, which "
            f"version {__version__} does not know. Nothing was changed. Install the newer version "
            "again, or restore a backup from before it. Servers and workers of this version may "
            "work on it as it is, as far as the newer version's CHANGELOG says so."
        )


def _clear_lock(connection: psycopg.Connection[Any], say: Say, break_lock: bool) -> None:
    """Remove yoyo's lock row when a killed migrate left it: we hold the gate, none is running."""
    rows = connection.execute("select pid from switchboard_migrations.yoyo_lock").fetchall()
    ours = connection.execute("select pid from switchboard_migrations.holder").fetchall()
    if rows and (break_lock or rows == ours):
        connection.execute("delete from switchboard_migrations.yoyo_lock")
        say(f"Removed the lock that process {rows[0][0]} left.")


@contextlib.contextmanager
def _narrated(say: Say) -> Iterator[None]:
    """Pass on what post-apply.py logs."""

    class Narrator(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(record.getMessage())

    logger, narrator = logging.getLogger("switchboard.migrate"), Narrator()
    before = logger.level, logger.propagate
    logger.addHandler(narrator)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(narrator)
        logger.level, logger.propagate = before
