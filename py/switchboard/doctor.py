"""What may be wrong with an installation: one check a concept, each with what to do about it.

What the database can know by itself it answers in ``doctor_facts()``. Here stands what only a
process knows: its folder and keys, whether the program and the database belong together, whether
the server answers and hears, and what the login may see of other sessions. A check that cannot be
made says so; those behind one that failed are left out.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import LiteralString
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import psycopg

from switchboard import db, embedded
from switchboard.cli_database import find, first_line, foreign
from switchboard.config import Settings
from switchboard.datafolder import DataFolder, DataFolderError
from switchboard.doctor_beside import (
    MIGRATE,
    Connection,
    Finding,
    notes,
    server,
    snapshots,
    way,
)
from switchboard.doctor_cron import cron
from switchboard.errors import Problem
from switchboard.migrate import NEWEST, OLDEST, ROLES, db_files
from switchboard.secrets import Keyring, SecretError

SKEW_SECONDS = 2.0
FREE_MIB = 1024


def examine(settings: Settings, *, deep: bool = False) -> Iterator[Finding]:
    """Every check that can be made.

    Args:
        settings: of the installation.
        deep: read every todo, too.
    """
    yield from data_folder(settings)
    try:
        place = find(settings)
    except Problem as problem:
        yield Finding("database", "error", problem.message, "see above, then look again")
        return
    # Of the embedded database, the superuser's view: the operator may not see the migrations.
    url = place.url
    if place.folder is not None:
        url = embedded.superuser_url((place.folder.running() or {}).get("socket", ""))
    try:
        connection, pooler = db.connect(url)
    except psycopg.Error as error:
        advice = "see that PostgreSQL runs, and what SWITCHBOARD_DATABASE_URL says"
        yield Finding("database", "error", foreign(error).message, advice)
        return
    with connection:
        yield version(connection)
        yield from way(pooler, settings)
        checks = [clock, roles, migrations, functions, facts, cron, snapshots, zones]
        for check in (*checks, todos) if deep else checks:
            yield from guarded(check, connection)
        yield from guarded(lambda c: sealed(c, settings), connection, "secret key")
        yield from guarded(
            lambda c: notes(c, settings.listen_url or url), connection, "notifications"
        )
    yield server(place)


def guarded(
    check: Callable[[Connection], Iterator[Finding]], connection: Connection, name: str = ""
) -> Iterator[Finding]:
    """The findings of a check, or that it could not be made."""
    name = name or check.__name__
    try:
        yield from check(connection)
    except psycopg.Error as error:
        if error.sqlstate in ("42883", "42P01", "3F000"):
            yield Finding(name, "error", "what it asks for is not there", MIGRATE)
        elif error.sqlstate in ("42501", "SB403"):
            advice = "ask again as the login that migrates, or as an operator"
            yield Finding(name, "warning", "this login may not look", advice)
        else:
            advice = "the log of PostgreSQL says more"
            yield Finding(name, "error", first_line(error), advice)


def data_folder(settings: Settings) -> Iterator[Finding]:
    """The folder of the embedded database, of keys and of first credentials."""
    name, folder = "data folder", DataFolder(settings.data_dir)
    if not folder.path.exists():
        if not settings.database_url:
            yield Finding(name, "ok", f"{folder.path} will be made by `switchboard up`")
        return
    try:
        folder.refuse_if_others_may_write()
    except (DataFolderError, OSError) as error:
        yield Finding(name, "error", str(error), f"make it yours alone: chmod 700 {folder.path}")
        return
    if not os.access(folder.path, os.W_OK | os.X_OK):
        found = f"{folder.path} cannot be written by this user"
        yield Finding(name, "error", found, "run this as the user who runs `switchboard up`")
        return
    room = os.statvfs(folder.path)
    free = room.f_bavail * room.f_frsize // (1 << 20)
    found = f"{folder.path}, {free} MiB free"
    if free > FREE_MIB:
        yield Finding(name, "ok", found)
    else:
        yield Finding(name, "warning", found, "make room: a full disk stops PostgreSQL")


def version(connection: Connection) -> Finding:
    """Whether this PostgreSQL is one that the program knows."""
    number = connection.info.server_version
    found = f"PostgreSQL {number // 10000}.{number % 10000}"
    if OLDEST <= number // 10000 <= NEWEST:
        return Finding("database", "ok", found)
    return Finding("database", "error", found, f"use PostgreSQL {OLDEST} to {NEWEST}")


def clock(connection: Connection) -> Iterator[Finding]:
    """Whether this machine and the database agree about the time."""
    before = time.time()
    (row,) = connection.execute("select extract(epoch from clock_timestamp())::float8 as at")
    skew = row["at"] - (before + time.time()) / 2
    if abs(skew) <= SKEW_SECONDS:
        yield Finding("clock", "ok", f"that of the database is {skew * 1000:+.0f} ms from this one")
        return
    yield Finding(
        "clock",
        "warning",
        f"that of the database is {skew:+.1f} s from this one",
        "let both keep time by NTP: signatures of senders are fresh for 300 s by the server's",
    )


def roles(connection: Connection) -> Iterator[Finding]:
    """The roles that grants go to, and which of them this login is in."""
    rows = connection.execute(
        "select r as name, to_regrole(r) is null as missing from unnest(%s::text[]) r",
        [list(ROLES)],
    ).fetchall()
    if lacking := [row["name"] for row in rows if row["missing"]]:
        yield Finding("roles", "error", f"missing: {', '.join(lacking)}", MIGRATE)
        return
    (row,) = connection.execute(
        "select current_user as login, pg_has_role('switchboard_app', 'member') as app,"
        " pg_has_role('switchboard_operator', 'member') as operator"
    )
    login, whole = row["login"], True
    for group, purpose in (("app", "the server"), ("operator", "the command line")):
        if not row[group]:
            whole = False
            found = f"{login} is no member of switchboard_{group}, which {purpose} needs"
            advice = f"if it is to be one: grant switchboard_{group} to {login};"
            yield Finding("roles", "warning", found, advice)
    if whole:
        yield Finding("roles", "ok", f"all {len(rows)} there")


def migrations(connection: Connection) -> Iterator[Finding]:
    """Whether the tables are those of this program."""
    rows = connection.execute(
        "select migration_id from switchboard_migrations._yoyo_migration"
    ).fetchall()
    applied = {row["migration_id"] for row in rows}
    known = {path.stem for path in (db_files() / "migrations").glob("[0-9]*.sql")}
    known = {name for name in known if not name.endswith(".rollback")}
    if missing := sorted(known - applied):
        yield Finding("migrations", "error", f"not applied: {', '.join(missing)}", MIGRATE)
    elif newer := sorted(applied - known):
        found = f"made by a newer version: {', '.join(newer)}"
        yield Finding("migrations", "error", found, "update this program")
    else:
        yield Finding("migrations", "ok", f"all {len(known)} applied")


def functions(connection: Connection) -> Iterator[Finding]:
    """Whether the functions are those of this program."""
    query: LiteralString = "select name, sha256 from switchboard_migrations.function_files"
    there = {row["name"]: row["sha256"] for row in connection.execute(query)}
    ours = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (db_files() / "functions").glob("*.sql")
    }
    if there == ours:
        yield Finding("functions", "ok", f"all {len(ours)} files in force")
        return
    differing = sorted(n for n in there.keys() | ours.keys() if there.get(n) != ours.get(n))
    yield Finding("functions", "error", f"not this program's: {', '.join(differing)}", MIGRATE)


def facts(connection: Connection) -> Iterator[Finding]:
    """What the database knows about itself."""
    query: LiteralString = "select name, level, found, advice from switchboard.doctor_facts()"
    for row in connection.execute(query):
        yield Finding(**row)


def zones(connection: Connection) -> Iterator[Finding]:
    """Whether this machine and the database agree about the time zones of budgets."""
    rows = connection.execute(
        "select distinct b #>> '{policy,window,tz}' as zone"
        " from jsonb_array_elements(switchboard.list_admission()) b"
        " where b ->> 'status' <> 'admission_unavailable'"
    ).fetchall()
    # CET and its like are also abbreviations, which AT TIME ZONE takes first.
    used = sorted(row["zone"] for row in rows if "/" in (row["zone"] or ""))
    instants = [datetime.now(UTC) + timedelta(days=days) for days in (0, 91, 182, 273)]
    differing = [zone for zone in used if not agrees(connection, zone, instants)]
    if differing:
        yield Finding(
            "zones",
            "warning",
            f"this machine and the database differ about {', '.join(differing)}",
            "update the older time zone data (tzdata); budgets go by the database's",
        )
    else:
        yield Finding("zones", "ok", f"{len(used)} in use, the same here and in the database")


def agrees(connection: Connection, zone: str, instants: list[datetime]) -> bool:
    """Whether the local times of a zone are the same here, as far as it is known here."""
    try:
        here = [moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for moment in instants]
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return True
    rows = connection.execute(
        "select t at time zone %s as local from unnest(%s::timestamptz[]) with ordinality u(t, n)"
        " order by n",
        [zone, instants],
    )
    return [row["local"] for row in rows] == here


def todos(connection: Connection) -> Iterator[Finding]:
    """Whether what holds between the columns of todos holds; reads all of them."""
    with connection.transaction():
        connection.execute("set local statement_timeout = 0")
        rows = connection.execute(
            "select id, problem from switchboard.unsound_todos(p_limit => 5)"
        ).fetchall()
    for row in rows:
        found = f"{row['id']}: {row['problem']}"
        yield Finding("todos", "error", found, "somebody wrote to the table by hand: undo that")
    if not rows:
        yield Finding("todos", "ok", "all of them are sound")


def sealed(connection: Connection, settings: Settings) -> Iterator[Finding]:
    """Whether the keys of this process open what is sealed."""
    keys = settings.secret_keys or DataFolder(settings.data_dir).secret_keys()
    known = Keyring(keys)
    secrets = [bytes(r["sealed"]) for r in connection.execute(SEALED)]
    lost = 0
    for secret in secrets:
        try:
            known.open(secret)
        except SecretError:
            lost += 1
    if lost and keys:
        yield Finding(
            "secret key",
            "error",
            f"{lost} of {len(secrets)} signing secrets are sealed with a key that is not here",
            "add the key to SWITCHBOARD_SECRET_KEY, or rotate those receivers and hooks",
        )
    elif keys:
        yield Finding("secret key", "ok", f"{len(keys)} known, opening all {len(secrets)} secrets")
    else:
        advice = "set SWITCHBOARD_SECRET_KEY, from: openssl rand -base64 32"
        found = "none here: a server without one makes and verifies no receiver"
        yield Finding("secret key", "warning", found, advice)


SEALED: LiteralString = "select sealed from switchboard.list_sealed()"
