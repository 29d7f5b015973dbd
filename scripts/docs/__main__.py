"""Writes what is generated in README.md and docs/*.md: make docs, or python scripts/docs.

Needs SWITCHBOARD_TEST_URL, a superuser's URL of a PostgreSQL cluster, on which it makes throw-away
databases; `make docs` starts one. A test compares the committed pages with what comes out.
"""

import contextlib
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import generated
import psycopg
import sessions
from psycopg import sql
from psycopg.conninfo import make_conninfo

from switchboard.migrate import migrate

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def database(cluster: str) -> Iterator[str]:
    """A migrated database for the time of the block."""
    name = f"docs_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(cluster, autocommit=True) as admin:
        make = sql.SQL("create database {} template template0 encoding 'UTF8'")
        admin.execute(make.format(sql.Identifier(name)))
        try:
            migrate(make_conninfo(cluster, dbname=name), lambda _: None)
            yield make_conninfo(cluster, dbname=name)
        finally:
            drop = sql.SQL("drop database {} with (force)")
            admin.execute(drop.format(sql.Identifier(name)))


def main() -> None:
    cluster = os.environ.get("SWITCHBOARD_TEST_URL")
    if not cluster:
        sys.exit("SWITCHBOARD_TEST_URL names no cluster. Run: make docs")
    with database(cluster) as dsn:
        made = generated.parts(dsn)
    for path in generated.pages():
        before = path.read_text(encoding="utf-8")
        after = generated.renewed(before, made)
        if sessions.blocks(after, "sql"):
            with database(cluster) as dsn:
                after = sessions.replayed(path.name, after, dsn)
        path.write_text(after, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'as before' if after == before else 'written'}")


if __name__ == "__main__":
    try:
        main()
    except sessions.SessionError as error:
        sys.exit(str(error))
