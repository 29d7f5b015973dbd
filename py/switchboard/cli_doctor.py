"""``switchboard doctor``: what is wrong, what is late, and what to do about it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, LiteralString

import click
import psycopg
from psycopg.rows import dict_row

from switchboard import db, embedded, printing
from switchboard.cli_database import Place, find, first_line, foreign
from switchboard.cli_options import json_option
from switchboard.cli_options import settings as read_settings
from switchboard.config import Settings
from switchboard.datafolder import DataFolder, DataFolderError
from switchboard.errors import Problem
from switchboard.migrate import NEWEST, OLDEST, ROLES, db_files

MAY_NOT_LOOK = "this login may not look; ask again as the migrating login, or an operator"
LATE_SECONDS = 120
MARKS = {"ok": "ok   ", "warning": "WARN ", "error": "ERROR"}

Connection = psycopg.Connection[dict[str, Any]]


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``state`` is ok, warning or error."""

    check: str
    state: str
    text: str


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check the installation. Exits 1 only when something is an error."""
    findings = list(examine(read_settings()))
    failed = any(finding.state == "error" for finding in findings)
    lines = [f"{MARKS[f.state]}  {f.check}: {f.text}" for f in findings]
    report = {"ok": not failed, "checks": [asdict(finding) for finding in findings]}
    printing.result(report, as_json, lines)
    if failed:
        raise click.exceptions.Exit(1)


def examine(settings: Settings) -> Iterator[Finding]:
    """Every check that can be made; those behind a failed one are left out."""
    yield from _folder(settings)
    try:
        place = find(settings)
    except Problem as problem:
        yield Finding("database", "error", problem.message)
        return
    yield _secret_key(settings, place)
    # Of the embedded database, the superuser's view: the operator may not see the migrations.
    url = place.url
    if place.folder is not None:
        socket = (place.folder.running() or {}).get("socket", "")
        url = embedded.superuser_url(socket)
    try:
        connection: Connection = psycopg.connect(
            db.dsn(url, pooler=not settings.prepare_statements),
            autocommit=True,
            row_factory=dict_row,
            prepare_threshold=None,
        )
    except psycopg.Error as error:
        yield Finding("database", "error", foreign(error).message)
        return
    with connection:
        yield _version(connection)
        for check in (_roles, _migrations, _functions, _sweeps, _cron, _budgets):
            yield from _guarded(check, connection)


def _guarded(
    check: Callable[[Connection], Iterator[Finding]], connection: Connection
) -> Iterator[Finding]:
    name = check.__name__.lstrip("_")
    try:
        yield from check(connection)
    except psycopg.errors.InsufficientPrivilege:
        yield Finding(name, "warning", MAY_NOT_LOOK)
    except (psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedTable):
        yield Finding(name, "error", "not there: run `switchboard migrate`")
    except psycopg.errors.InvalidSchemaName:
        yield Finding(name, "error", "not there: run `switchboard migrate`")
    except psycopg.Error as error:
        forbidden = error.sqlstate == "SB403"
        state, text = ("warning", MAY_NOT_LOOK) if forbidden else ("error", first_line(error))
        yield Finding(name, state, text)


def _folder(settings: Settings) -> Iterator[Finding]:
    folder = DataFolder(settings.data_dir)
    if settings.database_url and not folder.path.exists():
        return
    if not folder.path.exists():
        yield Finding("data folder", "ok", f"{folder.path} will be made by `switchboard up`")
        return
    try:
        folder.refuse_if_others_may_write()
    except (DataFolderError, OSError) as error:
        yield Finding("data folder", "error", str(error))
        return
    if not os.access(folder.path, os.W_OK | os.X_OK):
        yield Finding("data folder", "error", f"{folder.path} cannot be written by this user")
    else:
        room = os.statvfs(folder.path)
        free = room.f_bavail * room.f_frsize // (1 << 20)
        state = "ok" if free > 1024 else "warning"
        yield Finding("data folder", state, f"{folder.path}, {free} MiB free")


def _secret_key(settings: Settings, place: Place) -> Finding:
    keys = settings.secret_keys or DataFolder(settings.data_dir).secret_keys()
    if keys:
        return Finding("secret key", "ok", f"{len(keys)} known")
    text = "none: no receiver can be made or verified; set SWITCHBOARD_SECRET_KEY"
    return Finding("secret key", "warning", text)


def _version(connection: Connection) -> Finding:
    number = connection.info.server_version
    state = "ok" if OLDEST <= number // 10000 <= NEWEST else "error"
    text = f"PostgreSQL {number // 10000}.{number % 10000}"
    return Finding(
        "database", state, text if state == "ok" else f"{text}: {OLDEST} to {NEWEST} are supported"
    )


def _roles(connection: Connection) -> Iterator[Finding]:
    rows = connection.execute(
        "select r as name, to_regrole(r) is null as missing from unnest(%s::text[]) r",
        [list(ROLES)],
    ).fetchall()
    lacking = [row["name"] for row in rows if row["missing"]]
    if lacking:
        yield Finding("roles", "error", f"missing {', '.join(lacking)}: run `switchboard migrate`")
        return
    row = (
        connection.execute(
            "select current_user as login, pg_has_role('switchboard_app', 'member') as app,"
            " pg_has_role('switchboard_operator', 'member') as operator"
        ).fetchone()
        or {}
    )
    for group, purpose in (("app", "the server"), ("operator", "the command line")):
        if not row.get(group):
            yield Finding(
                "roles",
                "warning",
                f"{row.get('login')} is no member of switchboard_{group}, which {purpose} needs: "
                f"grant switchboard_{group} to {row.get('login')};",
            )
    yield Finding("roles", "ok", f"{len(rows)} there")


def _migrations(connection: Connection) -> Iterator[Finding]:
    rows = connection.execute(
        "select migration_id from switchboard_migrations._yoyo_migration"
    ).fetchall()
    applied = {row["migration_id"] for row in rows}
    known = {path.stem for path in (db_files() / "migrations").glob("[0-9]*.sql")}
    known = {name for name in known if not name.endswith(".rollback")}
    if known - applied:
        text = f"not applied: {', '.join(sorted(known - applied))}: run `switchboard migrate`"
        yield Finding("migrations", "error", text)
    elif applied - known:
        text = f"made by a newer version: {', '.join(sorted(applied - known))}: update this program"
        yield Finding("migrations", "error", text)
    else:
        yield Finding("migrations", "ok", f"all {len(known)} applied")


def _functions(connection: Connection) -> Iterator[Finding]:
    query: LiteralString = "select name, sha256 from switchboard_migrations.function_files"
    there = {row["name"]: row["sha256"] for row in connection.execute(query).fetchall()}
    ours = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (db_files() / "functions").glob("*.sql")
    }
    if there == ours:
        yield Finding("functions", "ok", f"all {len(ours)} files in force")
        return
    differing = sorted(n for n in there.keys() | ours.keys() if there.get(n) != ours.get(n))
    text = f"other than this program's: {', '.join(differing)}: run `switchboard migrate`"
    yield Finding("functions", "error", text)


def _sweeps(connection: Connection) -> Iterator[Finding]:
    rows = connection.execute(
        "select name, last_error from switchboard.sweep_status() where last_error is not null"
    ).fetchall()
    for row in rows:
        yield Finding("sweeps", "warning", f"{row['name']} last failed with {row['last_error']}")
    row = (
        connection.execute(
            "select extract(epoch from switchboard.sweep_age())::float8 as age"
        ).fetchone()
        or {}
    )
    age = row.get("age")
    if age is None or age > LATE_SECONDS:
        since = "have never run" if age is None else f"last ran {age:.0f} s ago"
        text = f"{since}: nothing is lost, only late; run `switchboard serve` or `switchboard tick`"
        yield Finding("sweeps", "warning", text)
    else:
        yield Finding("sweeps", "ok", f"last ran {age:.0f} s ago")


def _cron(connection: Connection) -> Iterator[Finding]:
    there = connection.execute("select from pg_catalog.pg_extension where extname = 'pg_cron'")
    if there.fetchone() is None:
        yield Finding("pg_cron", "ok", "not in this database; the server sweeps")
        return
    rows = connection.execute(
        "select jobname, schedule, active, username from cron.job"
        " where jobname = 'switchboard tick' and database = current_database()"
    ).fetchall()
    if not any(row["active"] for row in rows):
        yield Finding("pg_cron", "warning", "has no active job of ours: run `switchboard migrate`")
    for row in rows:
        yield Finding("pg_cron", "ok", f"calls tick() as {row['username']}, {row['schedule']}")


def _budgets(connection: Connection) -> Iterator[Finding]:
    rows = connection.execute(
        "select b ->> 'scope' as scope, b ->> 'queue' as queue, b ->> 'status' as status"
        " from jsonb_array_elements(switchboard.list_admission()) b"
    ).fetchall()
    broken = [row for row in rows if row["status"] == "admission_unavailable"]
    for row in broken:
        text = (
            f"of {row['scope']}, queue {row['queue']}: cannot be read, nothing is admitted; set it"
            " again with a time zone that exists: `switchboard queue budget set`"
        )
        yield Finding("budgets", "error", text)
    if not broken:
        yield Finding("budgets", "ok", f"{len(rows)} set, all of them readable")
