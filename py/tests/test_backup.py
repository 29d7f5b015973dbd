"""Backup and restore: pg_dump under load, restored in a cluster that has never seen Switchboard.

The dump is made as docs/backup.md says, while producers and workers run, of a snapshot that the
test holds, too: so it knows to the row what has to be in it. It is restored in a PostgreSQL 18 of
its own, into a database of another name; on Debian's PostgreSQL 15 (`scripts/with-server debian`)
that is another version, and what is dumped has pg_cron, which is not there. Then it is compared
and used: rows, functions, rights, a worker's login, sealed secrets, leases.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from backup_kit import catalog_of, dump, dump_roles, program, rows_of, source
from conftest import KEY, Endpoint, Served, Sql, free_port, fresh
from intake_kit import proof
from psycopg import sql
from psycopg.conninfo import make_conninfo

from switchboard.cli_database import Operator
from switchboard.cli_secrets import reseal
from switchboard.cli_webhook import make_webhook
from switchboard.config import Settings
from switchboard.datafolder import DataFolder
from switchboard.embedded import SUPERUSER, Cluster
from switchboard.migrate import migrate
from switchboard.secrets import Keyring, SecretError

pytestmark = pytest.mark.timeout(300)
HELD = 12  # todos whose worker died before the dump
BACKLOG = 3000
SECRET = "a secret of 32 characters or more"


@dataclass
class Backup:
    """What was dumped, and what the dump has to hold."""

    dump: Path
    roles: Path
    login: str
    stranger: str  # a login that is nothing of ours
    endpoint: Endpoint
    receiver: dict[str, Any]
    held: dict[str, str]  # todo: the token of its lease
    rows: dict[str, Any]
    catalog: list[Any]
    worked: int = 0  # calls that the load made while pg_dump ran


class Load:
    """Two producers and two workers, until told to stop."""

    def __init__(self, dsn: str, endpoint: Endpoint) -> None:
        self.dsn, self.endpoint = dsn, endpoint
        self.calls, self.errors = 0, []
        self.stopping = threading.Event()
        self.threads = [
            threading.Thread(target=self._run, args=(turn,), daemon=True)
            for turn in (self.produce, self.produce, self.work, self.work)
        ]

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(30)
        assert not self.errors

    def _run(self, turn: Callable[[Sql], None]) -> None:
        one = Sql(self.dsn)
        with one.connection:
            while not self.stopping.is_set():
                try:
                    turn(one)
                except psycopg.Error as error:
                    self.errors.append(error)
                    return
                self.calls += 1

    def produce(self, one: Sql) -> None:
        one.create(self.endpoint, "while it is dumped", payload={"text": "ÄÖ\u2028 \\ % '"})

    def work(self, one: Sql) -> None:
        taken = one.rows(
            "select id, lease_token from switchboard.claim_next(%s, 'worker', array['inbox'])",
            self.endpoint.id,
        )
        for todo in taken:
            one.rows(
                "select switchboard.complete(%s, %s, 'worker', null, %s)",
                self.endpoint.id,
                str(todo["id"]),
                todo["lease_token"],
            )


@pytest.fixture(scope="module")
def backup(
    cluster_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backup]:
    """A database that has all sorts of things in it, dumped under load."""
    folder = tmp_path_factory.mktemp("backup")
    login, stranger = (f"backup_{uuid.uuid4().hex[:12]}" for _ in range(2))
    with source(cluster_url, template) as (name, dsn):
        db = Sql(dsn)
        endpoint = db.vend("backup", ("inbox", "held", "github"))
        create = sql.SQL("create role {} login password {} in role switchboard_worker, pg_monitor")
        db.connection.execute(create.format(sql.Identifier(login), sql.Literal("word")))
        db.connection.execute(sql.SQL("create role {} login").format(sql.Identifier(stranger)))
        try:
            db.value("select switchboard.bind_login(%s, %s) is null", endpoint.id, login)
            receiver = make_webhook(
                Operator(db.connection),
                Keyring([KEY]),
                "",
                "backup",
                "github",
                "github",
                SECRET,
            )
            for number in range(HELD):
                db.create(endpoint, f"held {number}", "held")
            taken = db.rows(
                "select id, lease_token from switchboard.claim_batch(%s, 'worker', %s, %s, 1)",
                endpoint.id,
                HELD,
                ["held"],
            )
            db.rows(
                "select switchboard.create_todos(%s, (select jsonb_agg(jsonb_build_object("
                "'queue', 'inbox', 'title', 'backlog ' || n)) from generate_series(1, 1000) n))"
                " from generate_series(1, %s)",
                endpoint.id,
                BACKLOG // 1000,
            )
            made = Backup(
                dump=folder / "switchboard.dump",
                roles=folder / "roles.sql",
                login=login,
                stranger=stranger,
                endpoint=endpoint,
                receiver=receiver,
                held={str(todo["id"]): todo["lease_token"] for todo in taken},
                rows={},
                catalog=[],
            )
            with Load(dsn, endpoint) as load, psycopg.connect(dsn) as reader:
                time.sleep(0.3)
                reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                snapshot = reader.execute("select pg_export_snapshot()").fetchone()
                assert snapshot
                before = load.calls
                dump(name, dsn, snapshot[0], made.dump)
                made.worked = load.calls - before
                made.rows, made.catalog = rows_of(reader), catalog_of(reader, login)
            dump_roles(dsn, folder)
            db.connection.close()
            yield made
        finally:
            with psycopg.connect(dsn, autocommit=True) as admin:
                for role in (login, stranger):
                    admin.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A superuser's URL of a cluster that has never seen Switchboard."""
    folder = DataFolder(tmp_path_factory.mktemp("elsewhere") / "data")
    folder.make()
    with folder.locked():
        cluster = Cluster(folder, lambda line: None)
        try:
            cluster.start()
            yield cluster.url(SUPERUSER, "postgres")
        finally:
            cluster.stop(5)


@pytest.fixture(scope="module")
def restored_once(backup: Backup, elsewhere: str) -> str:
    """A database there, restored from the dump, as a template for the tests."""
    program("psql", elsewhere, "-qX", "-v", "ON_ERROR_STOP=1", "-f", backup.roles)
    with psycopg.connect(elsewhere, autocommit=True) as admin:
        admin.execute("create database restored template template0 encoding 'UTF8'")
    dsn = make_conninfo(elsewhere, dbname="restored")
    program("pg_restore", dsn, "--exit-on-error", backup.dump)
    return "restored"


@pytest.fixture
def restored(elsewhere: str, restored_once: str) -> Iterator[Sql]:
    """The restored database, each test its own."""
    with fresh(elsewhere, restored_once) as (_, dsn):
        operator = Sql(dsn)
        with operator.connection:
            yield operator


@pytest.fixture
def serve_restored(restored: Sql) -> Iterator[Callable[..., Served]]:
    running: list[Served] = []

    def start(*keys: bytes) -> Served:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        served = Served(
            Settings(database_url=restored.dsn, port=port, public_url=url, secret_keys=keys)
        )
        running.append(served)
        served.start()
        return served

    yield start
    for served in running:
        for session in served.sessions:
            session.http.close()
        served.stop()


def test_it_was_dumped_under_load(backup: Backup) -> None:
    assert backup.worked > 0
    assert backup.rows["switchboard.todos"][0] >= BACKLOG + HELD


def test_every_row_is_there(backup: Backup, restored: Sql) -> None:
    with psycopg.connect(restored.dsn) as connection:
        assert rows_of(connection) == backup.rows


def test_functions_and_rights_are_the_same(backup: Backup, restored: Sql) -> None:
    with psycopg.connect(restored.dsn) as connection:
        functions, rights, members, named = catalog_of(connection, backup.login)
    assert functions == backup.catalog[0]
    assert rights == backup.catalog[1]
    assert members == backup.catalog[2]
    assert {(group, backup.login) for group in ("switchboard_worker", "pg_monitor")} <= set(members)
    assert named == backup.catalog[3]
    assert len(named) == 2 + 6


def test_no_role_of_others_is_touched(backup: Backup, restored: Sql) -> None:
    """Above all not the superuser of the new cluster, and its password."""
    named = re.findall(r"(?:CREATE|ALTER) ROLE (\S+?);?\s", backup.roles.read_text() + "\n")
    assert backup.login in named  # and, where the suite made others, their logins
    assert not {"postgres", backup.stranger} & set(named)
    there = "select count(*) from pg_roles where rolname = %s"
    assert restored.value(there, backup.login) == 1
    assert restored.value(there, backup.stranger) == 0


def test_migrate_finds_nothing_to_do(backup: Backup, restored: Sql) -> None:
    said: list[str] = []
    migrate(restored.dsn, said.append)
    assert any(line.startswith("0 of ") for line in said), said
    with psycopg.connect(restored.dsn) as connection:
        found = catalog_of(connection, backup.login)
    for now, before in zip(found, backup.catalog, strict=True):
        assert [row for row in now if row not in before] == []
        assert [row for row in before if row not in now] == []


def test_a_workers_login_is_its_endpoint_there(backup: Backup, restored: Sql) -> None:
    login = sql.Identifier(backup.login)
    restored.connection.execute(sql.SQL("set session authorization {}").format(login))
    (todo,) = restored.rows("select * from switchboard.claim_next(null, 'w', array['inbox'])")
    assert str(todo["endpoint_id"]) == backup.endpoint.id
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        restored.rows("select * from switchboard.todos")
    restored.connection.execute("reset session authorization")


def test_leases_expire_once(backup: Backup, restored: Sql) -> None:
    assert len(backup.held) == HELD
    reaped = [str(row["id"]) for row in restored.rows("select id from switchboard.reap_expired()")]
    assert sorted(set(reaped) & backup.held.keys()) == sorted(backup.held)
    assert len(reaped) == len(set(reaped))
    assert not restored.rows("select id from switchboard.reap_expired()")

    # Four workers take them up again, each once; the holder of before has lost them.
    def take(_: int) -> list[str]:
        worker, taken = Sql(restored.dsn), []
        with worker.connection:
            query = "select id from switchboard.claim_next(%s, 'new', array['held'])"
            while rows := worker.rows(query, backup.endpoint.id):
                taken.append(str(rows[0]["id"]))
        return taken

    with ThreadPoolExecutor(4) as pool:
        again = [todo for part in pool.map(take, range(4)) for todo in part]
    assert sorted(again) == sorted(backup.held)
    for todo, token in backup.held.items():
        with pytest.raises(psycopg.Error) as refused:
            restored.rows(
                "select switchboard.complete(%s, %s, 'worker', null, %s)",
                backup.endpoint.id,
                todo,
                token,
            )
        assert refused.value.sqlstate == "SB409"
    lapsed = "select count(*) from switchboard.todo_attempts where todo_id = any(%s::uuid[])"
    assert restored.value(lapsed + " and outcome = 'lapsed'", list(backup.held)) == HELD


def delivery(backup: Backup, served: Served) -> httpx2.Response:
    body = b'{"action": "opened"}'
    headers = proof("github", SECRET.encode(), body, "d1", int(time.time()))
    return httpx2.post(
        served.url + backup.receiver["ingest_url"],
        content=body,
        headers={
            "Content-Type": "application/json",
            "X-GitHub-Event": "issues",
            "X-GitHub-Delivery": "d1",
            **headers,
        },
    )


def test_sealed_secrets_open_with_the_key(
    backup: Backup, restored: Sql, serve_restored: Callable[..., Served]
) -> None:
    answer = delivery(backup, serve_restored(KEY))
    assert answer.status_code == 202, answer.text
    assert answer.json()["verified"] is True
    new = bytes(reversed(KEY))
    counts = reseal(Operator(restored.connection), Keyring([new, KEY]))
    assert counts == {"resealed": 1, "current": 0, "lost": 0}


@pytest.mark.parametrize("keys", [(), (bytes(32),)], ids=["no key", "another key"])
def test_without_the_key_it_is_refused_and_said_why(
    keys: tuple[bytes, ...],
    backup: Backup,
    restored: Sql,
    serve_restored: Callable[..., Served],
) -> None:
    before = restored.value("select count(*) from switchboard.todos")
    answer = delivery(backup, serve_restored(*keys))
    assert answer.status_code == 503
    assert SECRET not in answer.text
    assert restored.value("select count(*) from switchboard.todos") == before
    assert reseal(Operator(restored.connection), Keyring([bytes(32)]))["lost"] == 1
    sealed = restored.value("select sealed from switchboard.list_sealed()")
    with pytest.raises(SecretError, match=r"sealed with key [0-9a-f]{16}.*SWITCHBOARD_SECRET_KEY"):
        Keyring(keys).open(bytes(sealed))


def test_an_agent_goes_on_with_its_credential(
    backup: Backup, serve_restored: Callable[..., Served]
) -> None:
    served = serve_restored(KEY)
    session = served.session(backup.endpoint)
    answer = session.call("claim_next", queues=["inbox"])
    assert answer["empty"] is False
