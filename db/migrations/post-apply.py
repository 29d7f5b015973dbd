"""Replay db/functions after the migrations: every file, in name order, in one transaction.

Functions, views, triggers and grants are repeatable code: what the files say is what the database
has after each migrate. A file that fails leaves all of the old functions in place, and the error
names it. Two replays at once would fail with "tuple concurrently updated", so the table of file
names is locked first; unlike an advisory lock, nobody but the owner can hold it.
"""

import hashlib
import logging
import re
from pathlib import Path
from typing import Any

import psycopg
from yoyo import step

FUNCTIONS = Path(__file__).resolve().parent.parent / "functions"
log = logging.getLogger("switchboard.migrate")

FILES_TABLE = """
create table if not exists switchboard_migrations.function_files (
    name       text        primary key,
    sha256     text        not null,
    applied_at timestamptz not null default now()
);
comment on table switchboard_migrations.function_files is
    'The files of db/functions that are in force; locked while they are replayed.';
comment on column switchboard_migrations.function_files.name is 'File name.';
comment on column switchboard_migrations.function_files.sha256 is 'SHA-256 of it, hexadecimal.';
comment on column switchboard_migrations.function_files.applied_at is
    'When a replay first brought this content.';
"""
DEFINITION = re.compile(
    rb"^\s*create\s+(?:or\s+replace\s+)?(?:function|procedure)\s+switchboard\.(\w+)",
    re.IGNORECASE | re.MULTILINE,
)
FUNCTIONS_THERE = """
select p.oid::regprocedure::text, p.proname, count(*) over (partition by p.proname)
from pg_catalog.pg_proc p
where p.pronamespace = 'switchboard'::regnamespace
  and not exists (select from pg_catalog.pg_depend d
                  where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')
order by 1
"""
FORGET = "delete from switchboard_migrations.function_files where not name = any(%s)"
NOTE = """
insert into switchboard_migrations.function_files as f (name, sha256) values (%s, %s)
on conflict (name) do update set sha256 = excluded.sha256, applied_at = now()
where f.sha256 <> excluded.sha256
"""


class FunctionFileError(Exception):
    """A file of db/functions that PostgreSQL refuses; the old functions are still in force."""


def replay(connection: psycopg.Connection[Any]) -> None:
    """Run every file inside the transaction that is open on ``connection``.

    Raises:
        FunctionFileError: with the file's name, the line, and what PostgreSQL says.
    """
    execute(connection, FILES_TABLE)
    connection.execute("lock table switchboard_migrations.function_files in exclusive mode")
    files = sorted(FUNCTIONS.glob("*.sql"))
    for path in files:
        content = path.read_bytes()
        try:
            execute(connection, content)
        except psycopg.Error as error:
            raise FunctionFileError(explain(path.name, content, error)) from error
    note(connection, files)
    there = connection.execute(FUNCTIONS_THERE).fetchall()
    log.info("Replayed %d function files: %d functions.", len(files), len(there))
    defined = {name.decode() for path in files for name in DEFINITION.findall(path.read_bytes())}
    for signature, name, namesakes in there:
        if name not in defined:
            log.warning("No file defines %s any more: drop it in a migration.", signature)
        elif namesakes > 1:
            log.warning("%s has namesakes: drop the old ones in a migration.", signature)


def execute(connection: psycopg.Connection[Any], text: str | bytes) -> None:
    """Run many statements as they are: without parameters nothing is split or substituted."""
    connection.execute(text.encode() if isinstance(text, str) else text)


def note(connection: psycopg.Connection[Any], files: list[Path]) -> None:
    """Record which files are in force."""
    connection.execute(FORGET, [[path.name for path in files]])
    for path in files:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        connection.execute(NOTE, [path.name, digest])


def explain(name: str, content: bytes, error: psycopg.Error) -> str:
    """One line with file, line and reason, and the database's hint where there is one."""
    place = f"db/functions/{name}"
    position = error.diag.statement_position
    if position:
        start = content.decode(errors="replace")[: int(position)]
        place += f":{start.count(chr(10)) + 1}"
    says = error.diag
    more = [text for text in (says.message_detail, says.message_hint, says.context) if text]
    return "\n  ".join([f"{place}: {says.message_primary or error}", *more])


steps = [step(replay)]
