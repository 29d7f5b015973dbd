"""`migrate`: from nothing and again, side by side, with little power, after a kill."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from switchboard import migrate as migrating
from switchboard import migrate_connection
from switchboard.datafolder import DataFolder
from switchboard.embedded import SUPERUSER, Cluster
from switchboard.migrate import ROLES, migrate
from switchboard.migrate_connection import MigrateError, NeedsDbaError

Until = Callable[..., object]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A superuser's URL of a cluster that has never seen Switchboard: no role of ours."""
    folder = DataFolder(tmp_path_factory.mktemp("bare") / "data")
    folder.make()
    with folder.locked():
        cluster = Cluster(folder, lambda line: None)
        try:
            cluster.start()
            yield cluster.url(SUPERUSER, "postgres")
        finally:
            cluster.stop(5)


class Admin:
    """A superuser at a prompt of a cluster; what it makes is dropped at the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = psycopg.connect(url, autocommit=True)
        self.databases: list[str] = []
        self.logins: list[str] = []

    def run(self, statement: str, *names: str) -> None:
        self.connection.execute(
            sql.SQL(statement).format(*map(sql.Identifier, names))  # type: ignore[arg-type]
        )

    def database(self, options: str = "") -> str:
        """A new, empty database; a superuser's DSN of it."""
        name = f"sbtest_{uuid.uuid4().hex[:12]}"
        self.databases.append(name)
        self.run("create database {} template template0 " + options, name)
        return make_conninfo(self.url, dbname=name)

    def login(self, attributes: str = "") -> str:
        name = f"sbtest_{uuid.uuid4().hex[:12]}"
        self.logins.append(name)
        self.run("create role {} login password 'hunter2' " + attributes, name)
        return name

    def clean(self) -> None:
        for name in self.databases:
            self.run("drop database if exists {} with (force)", name)
        for name in self.logins:
            self.connection.execute(
                sql.SQL("drop owned by {0} cascade").format(sql.Identifier(name))
            )
            self.run("drop role if exists {}", name)
        self.connection.close()


@pytest.fixture
def admin(cluster_url: str) -> Iterator[Admin]:
    made = Admin(cluster_url)
    yield made
    made.clean()


@pytest.fixture
def bare(bare_cluster: str) -> Iterator[Admin]:
    """The bare cluster, with every role of ours dropped again."""
    made = Admin(bare_cluster)
    yield made
    for name in made.databases:
        made.run("drop database if exists {} with (force)", name)
    for role in ROLES:
        if made.connection.execute("select 1 from pg_roles where rolname = %s", [role]).fetchone():
            made.run("drop owned by {} cascade", role)
            made.run("drop role {}", role)
    made.clean()


def rows(dsn: str, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(query.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


def told(dsn: str, **options: Any) -> list[str]:
    lines: list[str] = []
    migrate(dsn, lines.append, **options)
    return lines


def works(dsn: str) -> bool:
    return rows(dsn, "select count(*) from switchboard.error_table()") != [(0,)]


def test_from_nothing_and_again(bare: Admin) -> None:
    dsn = bare.database()
    first, second = told(dsn), told(dsn)
    assert any("Applying 0001" in line for line in first)
    assert not any("Applying" in line for line in second)
    assert works(dsn)
    found = rows(
        dsn,
        "select rolname, rolcanlogin or rolsuper or rolcreaterole or rolcreatedb or rolbypassrls"
        " from pg_roles where rolname = any(%s) order by 1",
        list(ROLES),
    )
    assert found == [(role, False) for role in sorted(ROLES)]
    strangers = rows(
        dsn,
        "select c.relname from pg_class c where c.relnamespace in ('switchboard'::regnamespace,"
        " 'switchboard_migrations'::regnamespace) and pg_get_userbyid(relowner) <> %s",
        "switchboard_owner",
    )
    assert strangers == []


def test_two_databases_and_two_runs_each_at_once(bare: Admin) -> None:
    """Roles are shared by the cluster, so the first two runs race for them."""
    targets = [bare.database() for _ in range(2)]
    failures: list[BaseException] = []
    start = threading.Barrier(6)

    def run(dsn: str) -> None:
        try:
            start.wait()
            migrate(dsn, lambda line: None)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=[dsn]) for dsn in targets * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert all(works(dsn) for dsn in targets)
    assert rows(targets[0], "select count(*) from switchboard_migrations.yoyo_lock") == [(0,)]


def test_a_login_that_may_create_roles(bare: Admin) -> None:
    login = bare.login("createrole")
    superuser = bare.database()
    bare.run("grant create on database {} to {}", bare.databases[-1], login)
    dsn = make_conninfo(superuser, user=login)
    told(dsn)
    told(dsn)
    assert works(superuser)


def test_a_login_that_may_not_prints_what_a_dba_has_to_run(bare: Admin) -> None:
    login = bare.login()
    superuser = bare.database()
    dsn = make_conninfo(superuser, user=login)
    with pytest.raises(NeedsDbaError) as refused:
        told(dsn)
    assert login in str(refused.value)
    assert "role switchboard_owner" in str(refused.value)
    assert rows(superuser, "select from pg_namespace where nspname = 'switchboard'") == []
    rows(superuser, refused.value.statements)
    assert any("Applying 0001" in line for line in told(dsn))
    told(dsn)
    assert works(superuser)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        rows(dsn, "create role more")


def test_roles_made_by_another_login_need_a_dba_and_then_work(bare: Admin) -> None:
    """From PostgreSQL 16 on, CREATEROLE alone says nothing about roles that others made."""
    told(bare.database())
    login = bare.login("createrole")
    superuser = bare.database()
    bare.run("grant create on database {} to {}", bare.databases[-1], login)
    dsn = make_conninfo(superuser, user=login)
    with pytest.raises(NeedsDbaError) as refused:
        told(dsn)
    rows(superuser, refused.value.statements)
    told(dsn)
    assert works(superuser)


def test_a_role_that_is_no_plain_group_is_refused(bare: Admin) -> None:
    bare.run("create role {} login", "switchboard_owner")
    with pytest.raises(MigrateError, match="alter role switchboard_owner nologin"):
        told(bare.database())


def test_a_schema_of_somebody_else_is_refused(admin: Admin, template: str) -> None:
    dsn = admin.database()
    rows(dsn, "create schema switchboard")
    with pytest.raises(MigrateError, match="schema switchboard exists and belongs to"):
        told(dsn)


def test_an_unsupported_server_is_refused_untouched(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = admin.database()
    monkeypatch.setattr(migrating, "NEWEST", 14)
    with pytest.raises(MigrateError, match="Nothing was changed"):
        told(dsn)
    assert (
        rows(
            dsn,
            "select from pg_namespace where nspname like 'switchboard%'",
        )
        == []
    )


def test_a_database_of_another_encoding_is_refused(admin: Admin) -> None:
    with pytest.raises(MigrateError, match="encoding 'UTF8' template template0"):
        told(admin.database("encoding 'SQL_ASCII' locale 'C' locale_provider libc"))


def test_no_password_in_a_refusal(admin: Admin) -> None:
    unreachable = "postgresql://someone:hunter2@127.0.0.1:1/x?connect_timeout=2"
    with pytest.raises(MigrateError, match="cannot be reached") as refused:
        told(unreachable)
    assert "hunter2" not in str(refused.value)


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of db/ that a test may change."""
    copy = tmp_path / "db"
    shutil.copytree(migrating.db_files(), copy)
    monkeypatch.setattr(migrating, "db_files", lambda: copy)
    return copy


def test_a_broken_function_file_changes_nothing_and_is_named(admin: Admin, own_files: Path) -> None:
    dsn = admin.database()
    good = own_files / "functions" / "zz1.sql"
    make = "create or replace function switchboard.zz() returns int language sql as 'select {}';\n"
    good.write_text(make.format(1))
    told(dsn)
    good.write_text(make.format(2))
    (own_files / "functions" / "zz2.sql").write_text("-- 100 % sure\nselect 1;\nselect nosuch();")
    with pytest.raises(MigrateError, match=r"zz2\.sql:3: function nosuch\(\) does not exist"):
        told(dsn)
    assert rows(dsn, "select switchboard.zz()") == [(1,)]
    (own_files / "functions" / "zz2.sql").unlink()
    told(dsn)
    assert rows(dsn, "select switchboard.zz()") == [(2,)]


def test_a_function_that_no_file_defines_is_reported(admin: Admin, own_files: Path) -> None:
    dsn = admin.database()
    extra = own_files / "functions" / "zz.sql"
    extra.write_text(
        "create or replace function switchboard.zz(int) returns int language sql as 'select 1'"
    )
    assert not any("No file defines" in line for line in told(dsn))
    extra.unlink()
    assert [line for line in told(dsn) if "No file defines" in line] == [
        "No file defines switchboard.zz(integer) any more: drop it in a migration."
    ]


def test_a_changed_argument_list_is_reported(admin: Admin, own_files: Path) -> None:
    """It makes a second function beside the first one, which nobody wanted."""
    dsn = admin.database()
    extra = own_files / "functions" / "zz.sql"
    make = "create or replace function switchboard.zz({}) returns int language sql as 'select 1'"
    extra.write_text(make.format("p_a int"))
    told(dsn)
    extra.write_text(make.format("p_a int, p_b int"))
    assert [line.split(" has ")[0] for line in told(dsn) if "namesakes" in line] == [
        "switchboard.zz(integer)",
        "switchboard.zz(integer,integer)",
    ]


def test_a_broken_migration_is_not_marked(admin: Admin, own_files: Path) -> None:
    dsn = admin.database()
    broken = own_files / "migrations" / "9999.broken.sql"
    broken.write_text("create table switchboard.zz (a int);\nselect nosuch();")
    with pytest.raises(MigrateError, match="nosuch"):
        told(dsn)
    broken.write_text("create table if not exists switchboard.zz (a int);")
    assert "Applying 9999.broken …" in told(dsn)


MIGRATE = """
import sys
from switchboard.migrate import migrate
migrate(sys.argv[1], lambda line: print(line, flush=True))
"""


def test_a_killed_run_does_not_block_the_next(admin: Admin, until: Until) -> None:
    dsn = admin.database()
    told(dsn)
    with psycopg.connect(dsn) as blocker:
        blocker.execute("lock table switchboard_migrations.function_files in exclusive mode")
        with subprocess.Popen(
            [sys.executable, "-c", MIGRATE, dsn], stdout=subprocess.DEVNULL
        ) as victim:
            waiting = (
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
                " and application_name = 'switchboard migrate' and datname = current_database()"
            )
            until(lambda: rows(dsn, waiting) == [(1,)], "the run waits in the replay")
            victim.send_signal(signal.SIGKILL)
    until(
        lambda: rows(dsn, "select count(*) from switchboard_migrations.yoyo_lock") == [(1,)],
        "its lock row is left",
    )
    assert f"Removed the lock that process {victim.pid} left." in told(dsn)


def test_a_lock_of_a_yoyo_run_by_hand_is_respected(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = admin.database()
    told(dsn)
    rows(dsn, "insert into switchboard_migrations.yoyo_lock (locked, pid) values (1, 4711)")
    monkeypatch.setattr(migrating, "DDL_LOCK_SECONDS", 1)
    with pytest.raises(MigrateError, match="switchboard migrate --break-lock"):
        told(dsn)
    assert "Removed the lock that process 4711 left." in told(dsn, break_lock=True)
    assert rows(dsn, "select count(*) from switchboard_migrations.yoyo_lock") == [(0,)]


def test_a_second_run_waits_for_the_first_and_says_so(admin: Admin, until: Until) -> None:
    dsn = admin.database()
    told(dsn)
    lines: list[str] = []
    with psycopg.connect(dsn) as first:
        first.execute("lock table switchboard_migrations.gate in exclusive mode")
        second = threading.Thread(target=lambda: migrate(dsn, lines.append))
        second.start()
        until(lambda: any("Another migrate is running" in line for line in lines), "it says so")
        assert second.is_alive()
    second.join(30)
    assert any("Replayed" in line for line in lines)


def test_a_session_in_the_way_is_a_clear_refusal(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = admin.database()
    told(dsn)
    monkeypatch.setattr(migrate_connection, "DDL_LOCK_SECONDS", 1)
    with psycopg.connect(dsn) as blocker:
        blocker.execute("lock table switchboard_migrations.function_files in exclusive mode")
        with pytest.raises(MigrateError, match="Another session holds a lock"):
            told(dsn)
    assert works(dsn)


def test_no_advisory_lock_of_any_login_disturbs_it(admin: Admin) -> None:
    """Fault 67. None is taken, so none can be held against us."""
    dsn = admin.database()
    told(dsn)
    login = admin.login()
    with psycopg.connect(make_conninfo(dsn, user=login, password="hunter2")) as worker:
        worker.execute("select pg_advisory_lock(n) from generate_series(-200, 200) n")
        worker.execute("listen switchboard_control")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute("lock table switchboard_migrations.gate")
        worker.rollback()
        told(dsn)
    files = [*(ROOT / "db").rglob("*.sql"), *(ROOT / "db").rglob("*.py")]
    sources = [path for path in files if "tests" not in path.parts]
    assert len(sources) > 10
    used = [path.name for path in sources if "pg_advisory" in path.read_text()]
    assert used == []


def test_it_migrates_while_workers_hold_todos(admin: Admin) -> None:
    """Fault 56: an open transaction that claimed does not stop a replay of the functions."""
    dsn = admin.database()
    told(dsn)
    with psycopg.connect(dsn) as worker:
        human = worker.execute("select id from switchboard.create_human('w')").fetchone()
        assert human is not None
        worker.execute("select switchboard.vend_endpoint(%s, 'w', '{q}')", [human[0]])
        worker.execute(
            "select switchboard.create_todo(switchboard.find_endpoint('w')::text, 'q', 'work')"
        )
        worker.commit()
        claim = "select id from switchboard.claim_next(switchboard.find_endpoint('w')::text, 'me')"
        assert worker.execute(claim).fetchone() is not None
        told(dsn)
        worker.commit()
    assert rows(dsn, "select state from switchboard.todos") == [("claimed",)]


def test_the_wheel_carries_the_database_files(tmp_path: Path) -> None:
    """Built, installed into a fresh environment, and found there."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    for name in ("db", "py/switchboard"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    subprocess.run([*pip, *build, str(source)], check=True)
    (wheel,) = tmp_path.glob("switchboard-*.whl")
    fresh = tmp_path / "fresh"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(fresh)], check=True)
    python = fresh / "bin" / "python"
    with contextlib.ExitStack() as stack:
        shutil.unpack_archive(wheel, fresh / "site", "zip")
        stack.callback(shutil.rmtree, fresh / "site")
        here = Path(psycopg.__file__).resolve().parents[1]
        code = (
            "from switchboard.migrate import db_files; from switchboard import demo;"
            "from importlib.resources import files;"
            "assert files('switchboard').joinpath('demo_pull_request.json').is_file();"
            "print(*sorted(str(p.relative_to(db_files())) for p in db_files().rglob('*.*')),"
            " db_files(), sep='\\n')"
        )
        environment = {**os.environ, "PYTHONPATH": f"{fresh / 'site'}:{here}"}
        run = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=True, env=environment
        )
    *found, place = run.stdout.splitlines()
    assert place == str((fresh / "site" / "switchboard" / "_db").resolve())
    wanted = {"bootstrap.sql", "cron.sql", "migrations/post-apply.py"}
    wanted |= {f"functions/{path.name}" for path in (ROOT / "db/functions").glob("*.sql")}
    wanted |= {f"migrations/{path.name}" for path in (ROOT / "db/migrations").glob("*.sql")}
    assert set(found) == wanted
