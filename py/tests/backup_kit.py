"""What the test of a backup dumps, with which commands, and what it compares afterwards.

Where the suite's own server has pg_cron, which lives in one database of a cluster, the source is
that one database, in a cluster of its own: a dump that holds pg_cron is restored nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from conftest import fresh
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from switchboard.embedded_make import binaries
from switchboard.migrate import migrate

ROOT = Path(__file__).resolve().parents[2]
BIN = Path("/usr/lib/postgresql/15/bin")

TABLES = """
    select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname in ('switchboard', 'switchboard_migrations') and c.relkind = 'r' order by 1
"""
FUNCTIONS = """
    select p.oid::regprocedure::text, md5(p.prosrc), p.prosecdef, p.provolatile, p.proconfig,
        pg_get_userbyid(p.proowner), obj_description(p.oid, 'pg_proc'),
        (select array_agg(x.grantee::regrole::text order by 1)
         from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) x
         where x.grantee <> p.proowner)
    from pg_proc p where p.pronamespace = 'switchboard'::regnamespace order by 1
"""
RIGHTS = """
    select c.oid::regclass::text, c.relkind, pg_get_userbyid(c.relowner),
        (select array_agg(x.grantee::regrole || ' ' || x.privilege_type order by 1)
         from aclexplode(c.relacl) x where x.grantee <> c.relowner)
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname like 'switchboard%' and c.relkind <> 't' order by 1
"""
MEMBERS = """
    select r.roleid::regrole::text, r.member::regrole::text from pg_auth_members r
    where (r.roleid::regrole::text like 'switchboard%' or r.roleid = 'pg_monitor'::regrole)
        and r.member::regrole::text in ('switchboard_owner', %s) order by 1, 2
"""
COMMENTS = """
    select rolname, shobj_description(oid, 'pg_authid') from pg_roles
    where rolname ~ '^switchboard_' order by 1
"""
SCHEMAS = """
    select n.nspname, pg_get_userbyid(n.nspowner), obj_description(n.oid, 'pg_namespace'),
        (select array_agg(x.grantee::regrole || ' ' || x.privilege_type order by 1)
         from aclexplode(n.nspacl) x where x.grantee <> n.nspowner)
    from pg_namespace n where n.nspname like 'switchboard%' order by 1
"""


@contextlib.contextmanager
def source(cluster_url: str, template: str) -> Iterator[tuple[str, str]]:
    """A migrated database to dump, with pg_cron where the suite's server has it: name and DSN."""
    with psycopg.connect(cluster_url) as suite:
        row = suite.execute("select current_setting('cron.database_name', true)").fetchone()
    if not (row and row[0] and BIN.is_dir()):
        with fresh(cluster_url, template) as made:
            yield made
        return
    with tempfile.TemporaryDirectory(prefix="sb-backup-") as parent:
        Path(parent).chmod(0o711)
        folder, cluster = Path(parent) / "server", ROOT / "scripts" / "cluster"
        subprocess.run([cluster, "start", "debian", folder], check=True, timeout=60)
        try:
            url = make_conninfo(host=str(folder), user="postgres", dbname="postgres")
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute(f"create database {row[0]} encoding 'UTF8' template template0")  # type: ignore[arg-type]
            dsn = make_conninfo(url, dbname=row[0])
            with psycopg.connect(dsn, autocommit=True) as owner:
                owner.execute("create extension pg_cron")
            migrate(dsn, lambda _: None)
            yield row[0], dsn
        finally:
            subprocess.run([cluster, "stop", "debian", folder], check=True, timeout=60)


def rows_of(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """Of each table how many rows there are, and a sum over what is in them."""
    connection.execute("set timezone = 'UTC'")
    counts = "select count(*), coalesce(sum(hashtextextended(t::text, 0)::numeric), 0) from {} t"
    found = {}
    for (table,) in connection.execute(TABLES).fetchall():
        # A migrator writes these when it runs: they say where and when.
        if not table.startswith("switchboard_migrations.") or table.endswith("migration"):
            found[table] = connection.execute(counts.format(table)).fetchone()
    return found


def catalog_of(connection: psycopg.Connection[Any], login: str) -> list[Any]:
    """Functions, rights, who is a member of what, and schemas and roles."""
    return [
        connection.execute(FUNCTIONS).fetchall(),
        connection.execute(RIGHTS).fetchall(),
        connection.execute(MEMBERS.replace("%s", f"'{login}'")).fetchall(),
        [*connection.execute(SCHEMAS).fetchall(), *connection.execute(COMMENTS).fetchall()],
    ]


def program(name: str, dsn: str, *words: str | Path) -> None:
    """Run one of PostgreSQL's programs on a database; it has to succeed."""
    done = subprocess.run(
        [binaries() / name, *words, "-d", dsn], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def dump(name: str, dsn: str, snapshot: str, place: Path) -> None:
    """Dump one database, as docs/backup.md says.

    A server of a container brings the pg_dump for it.
    """
    own = shlex.split(os.environ.get("SWITCHBOARD_TEST_PG_DUMP", ""))
    command = [*own, "-d", name] if own else [str(binaries() / "pg_dump"), "-d", dsn]
    words = ["-Fc", "--no-toast-compression", "--schema=switchboard*", f"--snapshot={snapshot}"]
    with place.open("wb") as file:
        done = subprocess.run(
            [*command, *words], stdout=file, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 0, done.stderr


def dump_roles(dsn: str, folder: Path) -> None:
    """Write the roles of a cluster into ``roles.sql``, with the commands of docs/backup.md."""
    page = (ROOT / "docs" / "backup.md").read_text()
    (commands,) = re.findall(r"^psql [^`]*? > roles.sql$", page, re.MULTILINE)
    where = {f"PG{k.upper()}": str(v) for k, v in conninfo_to_dict(dsn).items() if k != "dbname"}
    environment = {**os.environ, **where, "PATH": f"{binaries()}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-ec", commands],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
