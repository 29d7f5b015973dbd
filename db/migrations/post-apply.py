"""Replay db/functions after the migrations: every file, in name order, in one transaction.

Functions, views, triggers and grants are repeatable code: what the files say is what the database
has after each migrate. A file that fails leaves all of the old functions in place, and the error
names it. Two replays at once would fail with "tuple concurrently updated", so the table of file
names is locked first; unlike an advisory lock, nobody but the owner can hold it.

A database of release 0.1.0 needs more: 0004 was edited after that release, and what is marked as
applied is not run again. ``renew_intake`` moves its two tables aside, runs 0004 as it is today, and
moves the rows over. It does so in the transaction of the replay, so that a server of 0.1.0 meets
either the old tables with the old functions or the new ones with the new, and goes on working.

An older program must not put its functions over newer tables: it would claim past budgets that it
does not know. From 0.5.0 on ``migrate`` looks for that itself. Of those before, PostgreSQL refuses
the functions of 0.1.0 and 0.3.0, and a trigger stops 0.2.0, which forgets a file that it lacks.
"""

import hashlib
import logging
import re
from pathlib import Path
from typing import Any

import psycopg
from yoyo import step

MIGRATIONS = Path(__file__).resolve().parent
FUNCTIONS = MIGRATIONS.parent / "functions"
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
KEEP_NEWER = """
create or replace function switchboard_migrations.keep_newer() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if coalesce(current_setting('switchboard.replay', true), '') = 'knows the tables' then
        return old;
    end if;
    raise exception
        'This program is older than the database: it does not know the tables behind %.', old.name
        using hint = 'Nothing was changed. Use the newer version again, or restore a backup.';
end $$;
comment on function switchboard_migrations.keep_newer() is
    'Stops a migrate of 0.2.0, which does not look whether it is too old for the tables.';
revoke all on function switchboard_migrations.keep_newer() from public;
create or replace trigger keep_newer before delete on switchboard_migrations.function_files
    for each row when (old.name = '26_admission.sql')
    execute function switchboard_migrations.keep_newer();
set local switchboard.replay = 'knows the tables';
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
OF_0_1_0 = """
select exists (select from pg_catalog.pg_attribute
               where attrelid = to_regclass('switchboard.endpoint_webhooks')
                 and attname = 'sealed_secrets' and not attisdropped)
"""
# Deliveries take the tables in this order, so that those under way end and later ones wait.
SET_ASIDE = """
lock table switchboard.endpoint_webhooks, switchboard.events in access exclusive mode;
alter table switchboard.endpoint_webhooks set schema switchboard_migrations;
alter table switchboard.events            set schema switchboard_migrations;
drop function if exists
    switchboard.add_webhook(switchboard.endpoints, text, text, bytea, bytea),
    switchboard.create_webhook(text, text, text, bytea, bytea),
    switchboard.delivery_title(text, text, jsonb),
    switchboard.element_todo(switchboard.endpoints, timestamptz, jsonb, integer),
    switchboard.enqueue(switchboard.todos),
    switchboard.list_webhooks(text),
    switchboard.new_todo(switchboard.endpoints, timestamptz, text, text, text, jsonb, text, text,
                         text, text, integer, integer),
    switchboard.own_endpoint(text),
    switchboard.receive_delivery(bytea, text, text, jsonb, bytea, text, text),
    switchboard.source_types();
"""
# 0.1.0 knew one kind of sender, one secret a receiver, and no command to move or delete one. Where
# a receiver was deleted by hand, its deliveries stay, as those of a deleted receiver do today.
MOVE_OVER = """
insert into switchboard.endpoint_webhooks
    (endpoint_id, id, source_type, target_queue, trust_mode, token_digest, sealed_secret,
     created_at)
select endpoint_id, id, source_type, target_queue, trust_mode, token_digest, sealed_secrets[1],
       created_at
from switchboard_migrations.endpoint_webhooks;
insert into switchboard.events
    (endpoint_id, id, todo_id, webhook_id, source_type, queue, delivery_id, event_type,
     content_type, trust_mode, headers, body, received_at)
select e.endpoint_id, e.id, e.todo_id, e.webhook_id, coalesce(w.source_type, 'github'),
       coalesce(w.target_queue,
                (select t.queue from switchboard.todos t
                 where t.endpoint_id = e.endpoint_id and t.id = e.todo_id), ''),
       e.delivery_id, e.event_type, e.content_type, e.trust_mode, e.headers, e.body, e.received_at
from switchboard_migrations.events e
left join switchboard_migrations.endpoint_webhooks w
  on w.endpoint_id = e.endpoint_id and w.id = e.webhook_id;
do $$
begin
    if (select count(*) from switchboard.events)
        <> (select count(*) from switchboard_migrations.events)
        or (select count(*) from switchboard.endpoint_webhooks)
        <> (select count(*) from switchboard_migrations.endpoint_webhooks)
    then
        raise exception 'Not all receivers and deliveries of release 0.1.0 were moved.'
            using hint = 'Nothing was changed.';
    end if;
end $$;
drop table switchboard_migrations.events, switchboard_migrations.endpoint_webhooks;
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
    execute(connection, KEEP_NEWER)
    renew_intake(connection)
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


def renew_intake(connection: psycopg.Connection[Any]) -> None:
    """Give a database of 0.1.0 the tables of today's 0004; its functions go with the old ones."""
    if connection.execute(OF_0_1_0).fetchone() == (True,):
        log.info("Moving the receivers and deliveries of release 0.1.0 …")
        execute(connection, SET_ASIDE)
        execute(connection, (MIGRATIONS / "0004.intake.sql").read_bytes())
        execute(connection, MOVE_OVER)


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
