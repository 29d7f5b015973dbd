"""A server behind PgBouncer, set up well and badly: what works, and who says what to set.

Its pools have two connections of the database each and lend them for a transaction, in turn, so
that hardly two statements in a row meet the same session. The suites of the server run through
such a one, too: scripts/with-pgbouncer.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import psycopg
import pytest
from bell_kit import Ears
from conftest import Served, Sql, fresh, until
from intake_kit import VERBS, Receiver, vend
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from chaos.pgbouncer import PgBouncer, program
from switchboard import cli, doctor, doctor_beside, listener, pooler
from switchboard.cli_database import operate
from switchboard.config import Settings
from switchboard.db import connect
from switchboard.errors import Problem

pytestmark = pytest.mark.skipif(program() is None, reason="there is no pgbouncer here")

Start = Callable[..., PgBouncer]
BY_TURNS = {"server_round_robin": "1", "min_pool_size": "2"}


def console(bouncer: PgBouncer, command: str) -> None:
    """A command of PgBouncer's own console."""
    with psycopg.connect(bouncer.url(database="pgbouncer"), autocommit=True) as admin:
        admin.execute(command)


@pytest.fixture(scope="module")
def started(cluster_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a PgBouncer in front of the cluster; the same for the same arguments."""
    given = conninfo_to_dict(cluster_url)
    if given.get("password"):
        pytest.skip("the server asks for passwords (scripts/test-docker), these logins have none")
    login = str(given["user"])
    known: dict[str, PgBouncer] = {}
    later = {  # logins that are made after it has started
        "auth_user": login,
        "auth_query": "select rolname, '' from pg_catalog.pg_roles where rolname = $1",
        "admin_users": login,
    }

    def start(pool_mode: str = "transaction", **settings: str) -> PgBouncer:
        key = json.dumps([pool_mode, settings])
        if key not in known:
            folder = tmp_path_factory.mktemp("pgbouncer")
            for place in (folder, *folder.parents):  # PgBouncer's user passes through them
                if place.stat().st_uid == os.geteuid() and str(place).startswith("/tmp/"):
                    place.chmod(place.stat().st_mode | 0o011)
            more = {**later, **settings}
            bouncer = PgBouncer(folder, cluster_url, pool_mode=pool_mode, settings=more)
            bouncer.start()
            known[key] = bouncer
        return known[key]

    yield start
    for bouncer in known.values():
        bouncer.stop()


@pytest.fixture
def login(db: Sql) -> Iterator[str]:
    """A login for servers and operators that has nothing pinned."""
    name = f"sb_gateway_{os.getpid()}"
    role = sql.Identifier(name)
    make = "create role {} login in role switchboard_app, switchboard_operator, pg_read_all_stats"
    db.connection.execute(sql.SQL(make).format(role))
    yield name
    end = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = %s"
    db.rows(end, name)
    db.connection.execute(sql.SQL("drop role {}").format(role))


@pytest.fixture
def pinned(db: Sql, login: str) -> str:
    """The same login as the documentation wants it."""
    for name, value in pooler.PINNED.items():
        setting = sql.SQL("alter role {} set {} = {}")
        db.connection.execute(
            setting.format(sql.Identifier(login), sql.SQL(name), sql.Literal(value))
        )
    return login


@pytest.fixture
def bouncer(started: Start) -> PgBouncer:
    return started(**BY_TURNS)


def behind(bouncer: PgBouncer, database: str, login: str | None = None) -> dict[str, Any]:
    """The settings of a server behind it that is set up well."""
    name = str(conninfo_to_dict(database)["dbname"])
    return {
        "database_url": bouncer.url(login, name),
        "listen_url": database,
        "prepare_statements": False,
    }


def ready(served: Served) -> Mapping[str, Any]:
    body: dict[str, Any] = httpx2.get(served.url + "/readyz").json()
    return body


def findings(settings: Settings) -> dict[str, doctor_beside.Finding]:
    """What doctor says, the worst of each name."""
    rank = ("ok", "warning", "error")
    found: dict[str, doctor_beside.Finding] = {}
    for one in doctor.examine(settings):
        worst = found.setdefault(one.name, one)
        if rank.index(one.level) > rank.index(worst.level):
            found[one.name] = one
    return found


def said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    """How many lines of the log hold the text."""
    return sum(text in record.getMessage() for record in caplog.records)


def test_fault_57_all_of_a_server_works_through_two_connections(
    serve, db, database, bouncer, pinned, caplog
) -> None:
    caplog.set_level(logging.WARNING)
    served: Served = serve(**behind(bouncer, database, pinned), pool_size=10)
    served.wait_listening()
    alpha = vend(db, "alpha", verbs=[*VERBS, "create_todo"])
    session = served.session(alpha)
    ears = Ears(served, alpha)
    with ThreadPoolExecutor(50) as calls:
        titles = [f"t{number}" for number in range(50)]
        made = list(
            calls.map(lambda t: session.call("create_todo", queue="inbox", title=t), titles)
        )
        assert all(answer.get("created") for answer in made), made
        taken = list(calls.map(lambda _: session.call("claim_next")["todo"], titles))
        assert sorted(todo["title"] for todo in taken) == sorted(titles), "each is claimed once"
        ends = [{"id": todo["id"], "lease_token": todo["lease_token"]} for todo in taken]
        done = list(calls.map(lambda end: session.call("complete", **end), ends))
        assert {answer["todo"]["state"] for answer in done} == {"done"}
    assert ears.hears(db.create(alpha, "rings")), "notes come beside the pooler"
    ears.close()
    assert Receiver(served, alpha).send().status_code == 202
    body = ready(served)
    assert (body["status"], body["connection"], body["listener"]) == (
        "ready",
        "pooler",
        "listening",
    )
    assert "advice" not in body
    assert [record.getMessage() for record in caplog.records] == []
    backends = "select count(*) from pg_stat_activity where usename = %s"
    assert db.value(backends, pinned) == 2


def test_its_timeouts_and_isolation_are_those_of_the_login(database, bouncer, pinned) -> None:
    name = str(conninfo_to_dict(database)["dbname"])
    with connect(bouncer.url(pinned, name))[0] as connection:
        for setting, value in pooler.PINNED.items():
            row = connection.execute("select current_setting(%s) as now", [setting]).fetchone()
            assert row == {"now": {"60s": "1min"}.get(value, value)}


@pytest.mark.parametrize("taken", ["refused", "ignored"])
def test_prepared_statements_left_on_are_named_and_not_used(
    taken, serve, settings, db, database, started, pinned, caplog
) -> None:
    more = {"ignore_startup_parameters": "options"} if taken == "ignored" else {}
    where = {**behind(started(**BY_TURNS, **more), database, pinned), "prepare_statements": True}
    served: Served = serve(**where, pool_size=2)
    session = served.session(db.vend("alpha"))
    assert all("empty" in session.call("claim_next") for _ in range(20))
    body = ready(served)
    assert (body["status"], body["connection"]) == ("ready", "pooler")
    assert ["SWITCHBOARD_PREPARE_STATEMENTS" in one for one in body["advice"]] == [True]
    assert said(caplog, "SWITCHBOARD_PREPARE_STATEMENTS") == 1, "once, not for each connection"
    found = findings(settings(**where))["connection"]
    assert found.level == "warning"
    assert found.advice == "set SWITCHBOARD_PREPARE_STATEMENTS=false"


def test_a_server_that_listens_through_it_says_that_it_is_deaf(
    serve, settings, db, database, bouncer, pinned, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(listener, "SELF_TEST_SECONDS", 0.3)
    monkeypatch.setattr(doctor_beside, "HEARD_SECONDS", 0.3)
    where = {**behind(bouncer, database, pinned), "listen_url": ""}
    served: Served = serve(**where)
    until(lambda: served.app.state.listener.state == "deaf", "it notices")
    body = ready(served)
    assert (body["status"], body["listener"]) == ("ready", "deaf")
    assert ["SWITCHBOARD_LISTEN_URL" in one for one in body["advice"]] == [True]
    assert said(caplog, "SWITCHBOARD_LISTEN_URL") == 1
    found = findings(settings(**where))["notifications"]
    assert found.level == "error"
    assert "SWITCHBOARD_LISTEN_URL" in (found.advice or "")


def test_a_login_without_what_is_pinned_is_told_the_statements(
    serve, settings, db, database, bouncer, login, caplog
) -> None:
    where = behind(bouncer, database, login)
    served: Served = serve(**where)
    until(lambda: ready(served)["connection"] == "pooler", "it has connected")
    (advice,) = ready(served)["advice"]
    assert "statement_timeout, lock_timeout, idle_in_transaction_session_timeout" in advice
    assert login not in advice, "anybody may read it"
    assert said(caplog, "statement_timeout") == 1
    found = findings(settings(**where))["connection"]
    assert found.level == "warning"
    assert found.advice is not None
    statements, _, then = found.advice.partition(" Then ")
    assert "RECONNECT" in then
    db.connection.execute(statements.encode())
    console(bouncer, "reconnect")
    better: Served = serve(**where)
    until(lambda: ready(better)["connection"] == "pooler", "it has connected")
    assert "advice" not in ready(better)
    assert findings(settings(**where))["connection"].level == "ok"


def test_another_isolation_level_is_named(database, db, bouncer, pinned) -> None:
    change = sql.SQL("alter role {} set default_transaction_isolation = serializable")
    db.connection.execute(change.format(sql.Identifier(pinned)))
    name = str(conninfo_to_dict(database)["dbname"])
    connection, there = connect(bouncer.url(pinned, name))
    connection.close()
    assert there is not None
    assert there.unpinned == ("default_transaction_isolation",)
    assert "default_transaction_isolation = 'read committed'" in there.statements()


@pytest.mark.parametrize(
    ("setting", "value", "is_named"),
    [
        ("statement_timeout", "30s", True),  # a statement counts as silence before
        ("statement_timeout", "15s", True),
        ("statement_timeout", "14999ms", False),
        ("lock_timeout", "1min", True),
        ("lock_timeout", "900ms", False),
        ("idle_in_transaction_session_timeout", "1h", False),
        ("idle_in_transaction_session_timeout", "0", True),
    ],
)
def test_a_timeout_is_named_that_ends_nothing_before_it_counts_as_silence(
    database, db, bouncer, pinned, setting, value, is_named
) -> None:
    change = sql.SQL("alter role {} set {} = {}")
    db.connection.execute(
        change.format(sql.Identifier(pinned), sql.SQL(setting), sql.Literal(value))
    )
    connection, there = connect(bouncer.url(pinned, str(conninfo_to_dict(database)["dbname"])))
    connection.close()
    assert there is not None
    assert there.unpinned == ((setting,) if is_named else ())


@pytest.mark.parametrize("taken", ["refused", "ignored"])
def test_one_that_is_named_is_asked_for_start_up_options_and_recognised(
    taken, serve, database, started, login, db
) -> None:
    more = {"ignore_startup_parameters": "options"} if taken == "ignored" else {}
    served: Served = serve(**behind(started(**BY_TURNS, **more), database, login))
    until(lambda: ready(served)["connection"] == "pooler", "it has connected")
    (advice,) = ready(served)["advice"]
    assert "statement_timeout, lock_timeout, idle_in_transaction_session_timeout" in advice


def test_session_pooling_of_too_few_is_named(
    serve, settings, db, database, started, pinned, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(pooler, "FIRST_ANSWER_SECONDS", 0.5)
    where = behind(started("session"), database, pinned)
    first: Served = serve(**where, pool_size=2)
    until(lambda: ready(first)["status"] == "ready", "it has both connections")
    session = first.session(db.vend("alpha"))
    assert session.call("claim_next")["empty"] is True
    second: Served = serve(**where, pool_size=2, pool_wait=1.0)
    until(lambda: said(caplog, "pool_mode = transaction"), "it notices")
    answer = httpx2.get(second.url + "/readyz")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    (advice,) = answer.json()["advice"]
    assert "default_pool_size" in advice
    assert "default_pool_size" in findings(settings(**where))["database"].found
    with pytest.raises(Problem, match="default_pool_size"), operate(settings(**where)):
        pass
    first.stop()
    until(lambda: ready(second)["status"] == "ready", "it recovers", 30)
    assert "advice" not in ready(second)


@pytest.mark.parametrize("taken", ["refused", "ignored"])
def test_migrating_through_it_is_refused_and_changes_nothing(
    taken, cluster_url, started, capsys, monkeypatch, tmp_path
) -> None:
    more = {"ignore_startup_parameters": "options"} if taken == "ignored" else {}
    bouncer = started(**BY_TURNS, **more)
    with fresh(cluster_url, "template0") as (name, direct):
        monkeypatch.setenv("SWITCHBOARD_DATA", str(tmp_path))
        monkeypatch.setenv("SWITCHBOARD_DATABASE_URL", bouncer.url(database=name))
        with pytest.raises(SystemExit, match="1"):
            cli.main(["migrate"])
        assert "SWITCHBOARD_LISTEN_URL" in capsys.readouterr().err
        with psycopg.connect(direct) as connection:
            schemas = "select count(*) from pg_namespace where nspname like 'switchboard%'"
            assert connection.execute(schemas).fetchone() == (0,)
        if taken == "refused":
            monkeypatch.setenv("SWITCHBOARD_LISTEN_URL", direct)
            with pytest.raises(SystemExit, match="0"):
                cli.main(["migrate", "--json"])
            assert json.loads(capsys.readouterr().out)["migrated"] is True


def test_a_restart_of_it_is_survived(serve, db, database, started, pinned) -> None:
    bouncer = started(**BY_TURNS, server_idle_timeout="599")  # one of its own
    served: Served = serve(**behind(bouncer, database, pinned))
    session = served.session(db.vend("alpha"))
    assert session.call("claim_next")["empty"] is True
    bouncer.kill()
    assert session.call("claim_next")["error"]["code"] == "unavailable"
    bouncer.start()
    until(lambda: session.call("claim_next").get("empty"), "it is used again", 30)


def test_a_direct_connection_is_not_taken_for_a_pooler(database, settings, serve) -> None:
    direct = {"database_url": database, "listen_url": "", "prepare_statements": True}
    connection, there = connect(database)
    connection.close()
    assert there is None
    served: Served = serve(**direct)
    until(lambda: ready(served)["connection"] == "direct", "it has connected")
    assert "advice" not in ready(served)
    assert findings(settings(**direct))["connection"].level == "ok"
