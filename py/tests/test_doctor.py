"""`switchboard doctor`, each check in its bad state."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from conftest import Served, Sql, free_port, until
from psycopg import sql
from psycopg.conninfo import make_conninfo

from switchboard import cli, doctor, doctor_beside
from switchboard.config import Settings
from switchboard.migrate import migrate
from switchboard.secrets import Keyring

Check = dict[str, Any]
Doctor = Callable[..., tuple[int, dict[str, list[Check]]]]


@pytest.fixture
def examined(
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Doctor:
    """Its exit status and its checks by name; keywords are settings."""
    monkeypatch.setattr(doctor_beside, "HEARD_SECONDS", 0.5)

    def run(*options: str, **settings: str) -> tuple[int, dict[str, list[Check]]]:
        defaults = {"DATABASE_URL": database, "DATA": str(tmp_path / "data")}
        nowhere = {"PUBLIC_URL": f"http://127.0.0.1:{free_port()}"}
        for name, value in {**defaults, **nowhere, **settings}.items():
            monkeypatch.setenv(f"SWITCHBOARD_{name}", value)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(["doctor", *options, "--json"])
        report = json.loads(capsys.readouterr().out)
        found: dict[str, list[Check]] = {}
        for check in report["checks"]:
            assert set(check) == {"name", "level", "found", "advice", "runbook"}
            assert (check["advice"] is None) == (check["level"] == "ok"), check
            assert (check["runbook"] is None) == (check["level"] == "ok"), check
            found.setdefault(check["name"], []).append(check)
        assert report["ok"] is not any(c["level"] == "error" for c in report["checks"])
        assert bool(ended.value.code) is not report["ok"]
        return int(ended.value.code or 0), found

    return run


def level(found: dict[str, list[Check]], name: str) -> set[str]:
    return {check["level"] for check in found[name]}


def test_a_new_database_has_no_errors(examined: Doctor, db: Sql) -> None:
    db.value("select switchboard.tick()")
    status, found = examined()
    assert status == 0
    names = {"database", "clock", "roles", "migrations", "functions", "sweeps", "pg_cron"}
    names |= {"notifications", "snapshots", "zones", "indexes", "bloat", "notify queue"}
    assert {name: level(found, name) for name in names} == {name: {"ok"} for name in names}
    assert level(found, "secret key") == level(found, "server") == {"warning"}


def test_people_read_what_to_do(
    examined: Doctor, capsys: pytest.CaptureFixture[str], db: Sql
) -> None:
    examined()
    with pytest.raises(SystemExit):
        cli.main(["doctor"])
    text = capsys.readouterr().out
    assert "WARN   server: none answers" in text
    assert "       → run `switchboard serve`" in text
    assert "       see docs/runbooks.md#a-server-does-not-answer" in text


def test_what_is_missing_is_an_error(examined: Doctor, db: Sql) -> None:
    db.rows("delete from switchboard_migrations.function_files where name ~ '^22'")
    db.rows("delete from switchboard_migrations._yoyo_migration where true")
    status, found = examined()
    assert status == 1
    assert level(found, "functions") == level(found, "migrations") == {"error"}
    assert "22_claim.sql" in found["functions"][0]["found"]
    assert "switchboard migrate" in found["migrations"][0]["advice"]


def test_a_newer_version_is_an_error(examined: Doctor, db: Sql) -> None:
    db.rows(
        "insert into switchboard_migrations._yoyo_migration (migration_hash, migration_id,"
        " applied_at_utc) values ('x', '9999.later', now())"
    )
    found = examined()[1]["migrations"][0]
    assert (found["level"], found["advice"]) == ("error", "update this program")


def test_a_database_without_functions_is_named(examined: Doctor, db: Sql) -> None:
    db.rows("drop function switchboard.doctor_facts()")
    status, found = examined()
    assert (status, level(found, "facts")) == (1, {"error"})


def test_a_database_that_does_not_answer(examined: Doctor) -> None:
    status, found = examined(DATABASE_URL="postgresql://me:hunter2@127.0.0.1:1/x")
    assert (status, level(found, "database")) == (1, {"error"})
    assert "hunter2" not in json.dumps(found)


def test_a_folder_that_others_may_write(examined: Doctor, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    assert level(examined()[1], "data folder") == {"ok"}
    (tmp_path / "data").chmod(0o777)
    status, found = examined()
    assert (status, level(found, "data folder")) == (1, {"error"})


def test_a_disk_that_is_nearly_full(
    examined: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    monkeypatch.setattr(doctor, "FREE_MIB", 1 << 40)
    assert level(examined()[1], "data folder") == {"warning"}


def test_a_clock_that_is_wrong(examined: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(doctor.time, "time", lambda: real() - 60)
    found = examined()[1]["clock"][0]
    assert found["level"] == "warning"
    assert found["found"].startswith("that of the database is +6")


def test_sweeps_that_have_not_run(examined: Doctor, db: Sql) -> None:
    assert level(examined()[1], "sweeps") == {"warning"}
    db.value("select switchboard.tick()")
    db.rows("update switchboard.sweeps set last_run_at = now() - interval '3 minutes'")
    found = examined()[1]["sweeps"][0]
    assert (found["level"], "18" in found["found"]) == ("warning", True)


def test_a_budget_that_cannot_be_read(examined: Doctor, db: Sql) -> None:
    agent = db.vend("agent")
    policy = '{"max_claims_per_window": 1, "window": {"period": "day", "tz": "UTC"}}'
    db.value("select switchboard.set_admission_policy(%s, 'inbox', %s)", agent.id, policy)
    db.rows("update switchboard.admission_policies set window_tz = 'Mars/Olympus'")
    status, found = examined()
    assert (status, level(found, "budget of agent, inbox")) == (1, {"error"})


def test_zones_that_differ(examined: Doctor, db: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = db.vend("agent")
    zone = "Europe/Berlin"
    policy = {"max_claims_per_window": 1, "window": {"period": "day", "tz": zone}}
    db.value(
        "select switchboard.set_admission_policy(%s, 'inbox', %s)", agent.id, json.dumps(policy)
    )
    found = examined()[1]["zones"][0]
    assert (found["level"], found["found"][:1]) == ("ok", "1")
    monkeypatch.setattr(doctor, "ZoneInfo", lambda _: ZoneInfo("Asia/Tokyo"))
    found = examined()[1]["zones"][0]
    assert (found["level"], zone in found["found"]) == ("warning", True)


def invalid_index(dsn: str) -> None:
    """As a REINDEX CONCURRENTLY leaves it that somebody cancelled."""
    with psycopg.connect(dsn) as holder, psycopg.connect(dsn, autocommit=True) as other:
        holder.execute("lock table switchboard.todos in row exclusive mode")
        other.execute("set statement_timeout = '300ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            other.execute("create index concurrently left_over on switchboard.todos (kind)")


def test_an_index_that_was_left_invalid(examined: Doctor, database: str) -> None:
    invalid_index(database)
    status, found = examined()
    assert (status, level(found, "index left_over")) == (1, {"error"})
    assert found["index left_over"][0]["advice"].startswith("reindex index concurrently")


def test_a_snapshot_that_is_held(
    examined: Doctor, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_beside, "SNAPSHOT_SECONDS", 0)
    with psycopg.connect(database, application_name="forgotten") as idle:
        idle.execute("begin isolation level repeatable read; select 1 from pg_class")
        held = [c for c in examined()[1]["snapshots"] if "forgotten" in c["found"]]
        assert [check["level"] for check in held] == ["warning"]
        assert f"pg_terminate_backend({idle.info.backend_pid})" in held[0]["advice"]
        idle.rollback()
        assert "forgotten" not in json.dumps(examined()[1]["snapshots"])


@pytest.fixture
def operator_url(db: Sql, database: str) -> Iterator[str]:
    login = sql.Identifier(name := f"operator_{os.getpid()}")
    create = sql.SQL("create role {} login password 'x' in role switchboard_operator")
    db.connection.execute(create.format(login))
    yield make_conninfo(database, user=name, password="x")
    db.connection.execute(sql.SQL("drop role {}").format(login))


def test_a_login_that_sees_little_says_so(examined: Doctor, operator_url: str) -> None:
    status, found = examined(DATABASE_URL=operator_url)
    assert status == 0
    assert level(found, "roles") == level(found, "migrations") == {"warning"}
    assert "pg_read_all_stats" in found["snapshots"][0]["advice"]
    assert level(found, "indexes") == {"ok"}


def test_notes_that_are_not_heard(examined: Doctor, database: str, cluster_url: str) -> None:
    elsewhere = make_conninfo(cluster_url, dbname="postgres")
    status, found = examined(LISTEN_URL=elsewhere)
    assert (status, level(found, "notifications")) == (1, {"error"})
    assert "pooler" in found["notifications"][0]["advice"]


def test_a_notify_queue_that_fills(examined: Doctor, db: Sql, database: str) -> None:
    before = db.value("select pg_notification_queue_usage()")
    with psycopg.connect(database) as deaf:
        deaf.execute("listen switchboard_test")
        deaf.commit()
        deaf.execute("select 1")  # a listener that sits in a transaction
        db.rows("select pg_notify('switchboard_test', repeat('x', 7000) || n) from"
                " generate_series(1, 2000) n")  # fmt: skip
        assert db.value("select pg_notification_queue_usage()") > before
        found = examined()[1]["notify queue"][0]
        assert found["found"] != "0.0 % full"


def test_a_server_that_serves_and_hears(examined: Doctor, served: Served) -> None:
    served.wait_listening()
    found = examined(PUBLIC_URL=served.url)[1]["server"][0]
    assert (found["level"], found["found"]) == ("ok", f"ready and listening at {served.url}")


@pytest.mark.parametrize(
    ("told", "level"),
    [
        ({"database": "unreachable"}, "error"),
        ({"database": "ok", "listener": "deaf"}, "warning"),
        (["no", "object"], "warning"),
    ],
)
def test_a_server_that_does_not(
    told: Any, level: str, monkeypatch: pytest.MonkeyPatch, settings: Callable[..., Settings]
) -> None:
    class Answer:
        def json(self) -> Any:
            return told

    monkeypatch.setattr(doctor_beside.httpx2, "get", lambda *_, **__: Answer())
    place = doctor_beside.Place("", "http://127.0.0.1:1", None)
    assert doctor_beside.server(place).level == level


def test_secrets_that_no_key_opens(examined: Doctor, db: Sql) -> None:
    agent = db.vend("agent")
    sealed = Keyring((bytes(32),)).seal(b"secret")
    db.value(
        "select switchboard.create_notify_hook(%s, 'https://x.example', p_sealed_secret => %s)",
        agent.id,
        sealed,
    )
    status, found = examined(SECRET_KEY="AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
    assert (status, level(found, "secret key")) == (0, {"ok"})
    status, found = examined(SECRET_KEY="BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA=")
    assert (status, level(found, "secret key")) == (1, {"error"})


def test_todos_that_somebody_broke(examined: Doctor, db: Sql) -> None:
    todo = db.create(db.vend("agent"), "x")
    assert level(examined("--deep")[1], "todos") == {"ok"}
    db.rows("update switchboard.todos set claims = -1")
    status, found = examined("--deep")
    assert (status, level(found, "todos")) == (1, {"error"})
    assert todo in found["todos"][0]["found"]
    assert "todos" not in examined()[1]


def test_dead_rows_and_bloat(examined: Doctor, db: Sql) -> None:
    agent = db.vend("agent")

    def change(query: str, *params: Any) -> None:
        db.rows(query, *params)
        db.rows("select pg_stat_force_next_flush()")

    change("alter table switchboard.created_totals set (autovacuum_enabled = off)")
    change(
        "insert into switchboard.created_totals select %s, 'q' || n,"
        " (select string_agg(md5(n::text || k), '') from generate_series(1, 45) k), n"
        " from generate_series(1, 25000) n",
        agent.id,
    )
    change("analyze switchboard.created_totals")
    assert "vacuum created_totals" not in examined()[1]
    change("delete from switchboard.created_totals where mod(total, 100) <> 0")
    assert level(examined()[1], "vacuum created_totals") == {"warning"}
    change("vacuum analyze switchboard.created_totals")
    found = examined()[1]
    assert "vacuum created_totals" not in found
    assert level(found, "bloat of created_totals") == {"warning"}
    assert "vacuum full" in found["bloat of created_totals"][0]["advice"]
    (index,) = found["bloat of created_totals_pkey"]
    assert index["advice"] == "reindex index concurrently switchboard.created_totals_pkey;"
    change("vacuum full switchboard.created_totals")
    assert level(examined()[1], "bloat") == {"ok"}


@pytest.fixture
def cron_database(cluster_url: str) -> Iterator[str]:
    """The one database of the cluster that pg_cron may be in, migrated."""
    with psycopg.connect(cluster_url, autocommit=True) as admin:
        row = admin.execute("select current_setting('cron.database_name', true)").fetchone()
        name = row[0] if row else None
        if not name:
            pytest.skip("no pg_cron in this cluster")
        there = admin.execute("select from pg_database where datname = %s", [name]).fetchone()
        if there is None:
            admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    dsn = make_conninfo(cluster_url, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute("create extension if not exists pg_cron")
        alive = "select from pg_stat_activity where backend_type = 'pg_cron launcher'"
        until(lambda: owner.execute(alive).fetchone() is not None, "its scheduler runs", 30)
    migrate(dsn, lambda _: None)
    yield dsn
    migrate(dsn, lambda _: None)  # schedules what a test has switched off


def test_a_job_that_is_switched_off(examined: Doctor, cron_database: str) -> None:
    found = examined(DATABASE_URL=cron_database)[1]["pg_cron"]
    assert [check["level"] for check in found] == ["ok"]
    with psycopg.connect(cron_database, autocommit=True) as owner:
        owner.execute("update cron.job set active = false where jobname = 'switchboard tick'")
        found = examined(DATABASE_URL=cron_database)[1]["pg_cron"]
        assert [check["level"] for check in found] == ["warning"]
        owner.execute("update cron.job set active = true where jobname = 'switchboard tick'")
        owner.execute(
            "insert into cron.job_run_details (jobid, runid, status, return_message, end_time)"
            " select jobid, 1000000000, 'failed', 'ERROR: no login', now() from cron.job"
            " where jobname = 'switchboard tick'"
        )
        found = examined(DATABASE_URL=cron_database)[1]["pg_cron"]
        assert [check["level"] for check in found] == ["warning"]
        assert "ERROR: no login" in found[0]["found"]
        owner.execute("delete from cron.job_run_details where runid = 1000000000")


def test_thresholds_are_what_the_page_of_operations_says() -> None:
    assert timedelta(seconds=doctor_beside.SNAPSHOT_SECONDS) == timedelta(minutes=5)
