"""docs/runbooks.md, followed: what is wrong in the database. See test_runbooks.py."""

from __future__ import annotations

import json
import os
import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from conftest import Endpoint, Sql, until
from runbook_kit import Desk, Runbook, claim, forgotten

pytest_plugins = ["runbook_desk"]


@pytest.fixture
def database(wiped: str) -> str:
    return wiped


# --- the database ---


def test_calls_are_answered_503(desk: Desk, db: Sql, agent: Endpoint, book: Runbook) -> None:
    assert desk.ask(book) == desk.ask(book, 1) == [], "no server reaches the database"
    options = {"application_name": "switchboard", "autocommit": True}
    with (
        forgotten(db.dsn) as holder,
        psycopg.connect(db.dsn, **options) as server,  # type: ignore[arg-type]
    ):
        holder.execute("lock table switchboard.todos in exclusive mode")
        create = "select from switchboard.create_todo(%s, 'inbox', 'x')"
        call = threading.Thread(target=server.execute, args=[create, [agent.id]])
        call.start()
        (row,) = until(lambda: desk.ask(book, 1, pid=server.info.backend_pid), "one waits")
        assert desk.ask(book, waits_for="Lock", state="active")
        assert (row["application_name"], row["state"]) == ("forgotten", "idle in transaction")
        desk.do(book, "select pg_terminate_backend", HELD_UP_BY=row["held_up_by"])
        call.join(15)
        assert desk.ask(book, 1) == []
        assert desk.ask(book, waits_for="Client", state="idle")


def test_an_old_snapshot_is_held_claims_become_slow(
    desk: Desk, db: Sql, database: str, book: Runbook
) -> None:
    with forgotten(database, "report") as idle:
        idle.execute("begin isolation level repeatable read; select 1 from pg_class")
        row = desk.ask(book, what="session", application_name="report")[0]
        assert row["state"] == "idle in transaction"
        desk.do(book, "select pg_terminate_backend", NAME=row["name"])
        until(lambda: not desk.ask(book, name=row["name"]), "it is gone")
    slot = f"left_{os.getpid()}"
    db.rows("select pg_create_physical_replication_slot(%s, true)", slot)
    assert desk.ask(book, what="replication slot", name=slot, state="left")
    desk.do(book, "select pg_drop_replication_slot", NAME=slot)
    assert desk.ask(book, name=slot) == []


def test_tables_are_bloated(desk: Desk, db: Sql, agent: Endpoint, book: Runbook) -> None:
    def change(query: str, *params: Any) -> None:
        db.rows(query, *params)
        db.rows("select pg_stat_force_next_flush()")

    change("alter table switchboard.created_totals set (autovacuum_enabled = off)")
    filling = "select %s, 'q' || n, repeat(md5(n::text), 45), n from generate_series(1, 25000) n"
    change(f"insert into switchboard.created_totals {filling}", agent.id)
    change("analyze switchboard.created_totals")
    change("delete from switchboard.created_totals where total > 100")
    assert desk.ask(book, name="vacuum created_totals", level="warning")
    assert desk.ask(book, 1, relname="created_totals", last_autovacuum=None)
    desk.do(book, "vacuum (analyze)", TABLE="created_totals")
    db.rows("select pg_stat_force_next_flush()")
    assert desk.ask(book, name="vacuum created_totals") == []
    desk.do(book, "reindex index concurrently", INDEX="created_totals_pkey")
    desk.do(book, "vacuum full", TABLE="created_totals")
    assert {row["level"] for row in desk.ask(book)} == {"ok"}


def test_the_disk_fills(desk: Desk, db: Sql, agent: Endpoint, book: Runbook) -> None:
    items = [{"queue": "inbox", "title": f"todo {n}", "payload": "x" * 500} for n in range(500)]
    db.rows("select switchboard.create_todos(%s, %s)", agent.id, json.dumps(items))
    held = db.rows("select id::text from switchboard.claim_batch(%s, 'w1', 500)", agent.id)
    ids = [row["id"] for row in held]
    db.rows("select switchboard.complete_batch(%s, 'w1', %s)", agent.id, ids)
    before = desk.ask(book)
    assert before[0]["relname"] == "todos"
    assert desk.ask(book, 1)[0]["wal_files"] > 0
    desk.stop_clock()
    desk.wait(days=8)
    desk.do(book, "switchboard endpoint retention", SLUG="agent")
    (pruned,) = desk.do(book, "select switchboard.prune")
    assert pruned["prune"] >= 500
    desk.do(book, "vacuum (analyze)")
    assert [row["rows"] for row in desk.ask(book) if row["relname"] == "todos"] != before[0]["rows"]
    assert db.value("select count(*) from switchboard.todos") == 0
    desk.do(book, "switchboard todo push", SLUG="agent", QUEUE="inbox")


def test_the_migrator_was_killed_or_waits(
    desk: Desk, db: Sql, database: str, monkeypatch: pytest.MonkeyPatch, book: Runbook
) -> None:
    left = "insert into switchboard_migrations.yoyo_lock (locked, ctime, pid) values (1, now(), %s)"
    db.rows(left, 4711)
    db.rows("insert into switchboard_migrations.holder (pid) values (4711)")
    assert {row["left_over"] for row in desk.ask_as_superuser(book, 1)} == {"yoyo lock", "migrate"}
    monkeypatch.setenv("SWITCHBOARD_DATABASE_URL", database)
    assert desk.command("migrate")[0] == 0
    assert desk.ask_as_superuser(book, 1) == []
    db.rows(left, 4712)  # of a yoyo by hand
    assert desk.ask_as_superuser(book, 1, left_over="yoyo lock", pid=4712)
    desk.do(book, "switchboard migrate --break-lock")
    assert desk.ask_as_superuser(book, 1) == []
    with forgotten(database) as other:
        other.execute("lock table switchboard.todos in share mode")
        (row,) = desk.ask_as_superuser(book, application_name="forgotten")
        desk.do(book, "select pg_terminate_backend", PID=row["pid"])
        until(lambda: not desk.ask_as_superuser(book, pid=row["pid"]), "it is gone")


def test_after_a_restore(desk: Desk, db: Sql, agent: Endpoint, book: Runbook) -> None:
    desk.stop_clock()
    db.create(agent, "held when the dump was made")
    todo = claim(db, agent)
    desk.command("hook create agent https://hooks.example/ring")
    db.rows("select switchboard.tick()")
    desk.wait(hours=5)
    (row,) = desk.ask(book)
    assert (row["claimed"], row["lapsed"], row["sealed"]) == (1, 1, 1)
    assert row["swept"] == timedelta(hours=5)
    assert row["newest_todo"] < db.value("select switchboard.now()") - timedelta(hours=4)
    db.rows("select switchboard.tick()")
    (row,) = desk.ask(book)
    assert (row["claimed"], row["lapsed"], row["swept"]) == (0, 0, timedelta(0))
    assert claim(db, agent) == todo, "once more, by somebody else"


def test_something_else_that_doctor_says(desk: Desk, db: Sql, book: Runbook) -> None:
    db.rows("select switchboard.tick()")
    before = desk.ask(book)  # a server for tests has settings that it warns of
    db.rows("update switchboard.settings set is_test = true")
    (row,) = [row for row in desk.ask(book, name="settings", level="warning") if row not in before]
    db.rows(row["advice"].split(", as its owner")[0])
    assert desk.ask(book) == before
    todo = db.create(db.vend("agent"), "x")
    db.rows("update switchboard.todos set claims = -1")
    (row,) = desk.do(book, "select * from switchboard.unsound_todos()")
    assert str(row["id"]) == todo
