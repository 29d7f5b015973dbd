"""What ``doctor`` sees of those beside it: the pooler, other sessions, and the server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, LiteralString

import httpx2
import psycopg
from psycopg import sql

from switchboard import db
from switchboard.cli_database import Place
from switchboard.config import Settings
from switchboard.pooler import Pooler

MIGRATE = "run `switchboard migrate`"
SNAPSHOT_SECONDS = 300
HEARD_SECONDS = 3.0
SERVER_SECONDS = 3.0

Connection = psycopg.Connection[dict[str, Any]]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: of the check.
        level: ok; warning: it works, but late or at a risk; error: something does not work.
        found: what was found.
        advice: what to do about it; None when there is nothing to do.
    """

    name: str
    level: str
    found: str
    advice: str | None = None


def way(pooler: Pooler | None, settings: Settings) -> Iterator[Finding]:
    """What is between this program and the database, and what that asks for."""
    name = "connection"
    if pooler is None:
        yield Finding(name, "ok", "straight to the database")
        return
    if settings.prepare_statements:
        found = "through a connection pooler, which loses prepared statements"
        yield Finding(name, "warning", found, "set SWITCHBOARD_PREPARE_STATEMENTS=false")
    if lacking := pooler.lacking():
        yield Finding(name, "warning", lacking, pooler.statements())
    if not (settings.prepare_statements or lacking):
        yield Finding(name, "ok", "through a connection pooler, and set up for it")


def snapshots(connection: Connection) -> Iterator[Finding]:
    """Who holds back the cleaning of what is over."""
    held = connection.execute(SNAPSHOTS, [SNAPSHOT_SECONDS]).fetchall()
    for row in held:
        yield Finding("snapshots", "warning", f"{row['who']} since {row['seconds']} s", row["what"])
    (seen,) = connection.execute(
        "select pg_has_role('pg_read_all_stats', 'usage') as all, current_user as login"
    )
    if not seen["all"]:
        advice = f"grant pg_read_all_stats to {seen['login']};"
        yield Finding("snapshots", "warning", "this login sees its own sessions only", advice)
    elif not held:
        yield Finding("snapshots", "ok", f"none is older than {SNAPSHOT_SECONDS} s")


SNAPSHOTS: LiteralString = """
select who, seconds::integer, what from (
    select format('session %%s (%%s, %%s, %%s) holds one', a.pid, a.usename,
                  coalesce(nullif(a.application_name, ''), 'no name'), a.state) as who,
           extract(epoch from clock_timestamp() - a.xact_start) as seconds,
           format('end its transaction, or the session: select pg_terminate_backend(%%s);', a.pid)
               as what
    from pg_catalog.pg_stat_activity a
    where a.xact_start is not null and (a.backend_xmin is not null or a.backend_xid is not null)
      and a.pid <> pg_backend_pid() and a.backend_type <> 'autovacuum worker'
    union all
    select format('the prepared transaction %%s of %%s holds one', p.gid, p.owner),
           extract(epoch from clock_timestamp() - p.prepared),
           format('commit prepared or rollback prepared %%L;', p.gid)
    from pg_catalog.pg_prepared_xacts p
    union all
    select format('the replication slot %%s holds one, %%s transactions old', s.slot_name,
                  age(coalesce(s.xmin, s.catalog_xmin))), 1e6,
           'drop the slot if its standby is gone'
    from pg_catalog.pg_replication_slots s
    where age(coalesce(s.xmin, s.catalog_xmin)) > 1000000
) held
where seconds >= %s order by seconds desc limit 5
"""


def notes(connection: Connection, listen_url: str) -> Iterator[Finding]:
    """Whether what the database says is heard where servers listen."""
    channel = f"switchboard_doctor_{os.getpid()}"
    with psycopg.connect(db.dsn(listen_url, pooler=True), autocommit=True) as ear:
        ear.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        connection.execute("select pg_notify(%s, '')", [channel])
        heard = any(True for _ in ear.notifies(timeout=HEARD_SECONDS, stop_after=1))
    if heard:
        yield Finding("notifications", "ok", "they are delivered")
        return
    yield Finding(
        "notifications",
        "error",
        "LISTEN is taken, but nothing is delivered: agents are rung late",
        "SWITCHBOARD_LISTEN_URL must name this database itself, not a transaction pooler",
    )


def server(place: Place) -> Finding:
    """Whether a server answers at the public address, and hears its database."""
    where = place.public_url
    try:
        answer = httpx2.get(f"{where}/readyz", timeout=SERVER_SECONDS)
        told = answer.json()
        if not isinstance(told, dict):
            raise ValueError  # somebody else's server
    except (httpx2.HTTPError, ValueError):
        found = f"none answers at {where}"
        advice = "run `switchboard serve`; SWITCHBOARD_PUBLIC_URL says where it is"
        return Finding("server", "warning", found, advice)
    listener = told.get("listener", "unknown")
    if told.get("database") != "ok":
        found = f"that at {where} does not reach its database"
        return Finding("server", "error", found, "its log says why")
    if listener != "listening":
        found = f"that at {where} does not hear the database: its listener is {listener}"
        advice = "its log says why; SWITCHBOARD_LISTEN_URL must name the database itself"
        return Finding("server", "warning", found, advice)
    return Finding("server", "ok", f"ready and listening at {where}")
