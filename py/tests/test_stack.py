"""docker-compose.yml as it is run: from nothing, stopped and started, and killed under load.

`scripts/test-docker stack` runs this, with each program that is here: Compose v2, docker-compose
1.29. What the file promises without Docker is in test_compose.py.
"""

import contextlib
import os
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import pytest
from chaos_load import Sender
from chaos_sessions import Row, Session
from conftest import RawSession, Sql, until
from psycopg.conninfo import make_conninfo
from stack_kit import Stack, programs
from test_restart import LIVE, Worker, done, judge, wait_for_work

ROUNDS = int(os.environ.get("SWITCHBOARD_STACK_ROUNDS", "9"))
STAY = ("database", "server")
RATES = dict.fromkeys(("MCP_RATE", "MCP_BURST", "WEBHOOK_RATE", "WEBHOOK_BURST"), "100000")
pytestmark = pytest.mark.skipif(
    not os.environ.get("SWITCHBOARD_TEST_STACK"), reason="`scripts/test-docker stack` starts it"
)


@contextlib.contextmanager
def running(made: Stack) -> Iterator[Stack]:
    try:
        made("up", "--build", "--detach")
        yield made
    finally:
        made("down", "--volumes", "--timeout", "10", check=False)


@pytest.fixture(params=programs(), ids=" ".join)
def stack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    with running(Stack(request.param, tmp_path)) as made:
        yield made


@pytest.mark.timeout(900)
def test_the_stack_comes_up_from_nothing(stack: Stack) -> None:
    def printed() -> str:
        return stack("logs", "--no-color", "welcome")

    until(lambda: "psql switchboard" in printed(), "welcome has printed", 120)
    text = printed()
    assert f"Switchboard serves http://127.0.0.1:{stack.port}." in text
    assert "docker compose run --rm switchboard todo list" in text
    (credential,) = set(re.findall(r"sbk_[\w-]{43}", text))
    assert stack.readyz()["status"] == "ready"

    # The command line, and a table that is filled.
    stack("run", "--rm", "switchboard", "todo", "push", "agent", "Say hello", "-q", "inbox")
    assert "Say hello" in stack("run", "--rm", "switchboard", "todo", "list")

    # Nobody is root, nothing is written to, no secret is in the environment.
    for name in STAY:
        assert stack.container(name, "{{.State.Health.Status}}") == "healthy"
        where = ["exec", "-T", name, "sh", "-c"]
        assert stack(*where, "id -u").strip() == "999"
        assert stack(*where, "touch /usr/probe || echo refused").strip() == "refused"
        key = stack("exec", "-T", "server", "cat", "/run/secrets/switchboard/key").strip()
        assert key not in stack(*where, "env")
    hidden = "ls /run/postgresql/.s* /var/lib/switchboard/pgpass || echo refused"
    assert stack("exec", "-T", "server", "sh", "-c", hidden).strip() == "refused"

    # The server's login is no more than a server's.
    superusers = "select string_agg(rolname, ' ') from pg_roles where rolsuper and rolcanlogin"
    assert stack.psql(superusers) == "postgres"
    passwords = "select count(rolpassword) from pg_authid where rolname = 'postgres'"
    assert stack.psql(passwords) == "0"
    assert "30 seconds" in stack.psql("select schedule from cron.job")

    # Stopped and started again it goes on with the same.
    stack("down", "--timeout", "30")
    stack("up", "--detach")
    until(lambda: credential in printed(), "welcome prints the same credential", 120)
    assert "Say hello" in stack("run", "--rm", "switchboard", "todo", "list")
    everything = stack("logs", "--no-color", "server", "database", "prepare")
    assert credential not in everything
    assert key not in everything


class Database:
    """The database of the stack, seen from outside, by a superuser that is made for it."""

    def __init__(self, stack: Stack) -> None:
        password = secrets.token_hex(16)
        stack.psql(f"create role witness superuser login password '{password}'")
        self.url = make_conninfo(
            host="127.0.0.1",
            port=stack.database_port,
            user="witness",
            password=password,
            dbname="switchboard",
        )

    def ask(self, query: LiteralString) -> list[Row]:
        with contextlib.closing(Session(self.url).connection) as connection:
            return connection.execute(query).fetchall()


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[tuple[Stack, Database, list[Worker], Sender]]:
    """The stack under the load of test_restart.py."""
    rates = {f"SWITCHBOARD_{name}": value for name, value in RATES.items()}
    with contextlib.ExitStack() as opened:
        stack = opened.enter_context(running(Stack(programs()[0], tmp_path, **rates)))
        until(stack.is_ready, "the server is ready", 120)
        database = Database(stack)
        operator = Sql(database.url)
        with operator.connection:
            endpoint = operator.vend("load", verbs=["claim_next", "complete", "create_webhook"])
        mcp = RawSession(stack.url, endpoint)
        opened.callback(mcp.http.close)
        hook: dict[str, Any] = mcp.call(
            "create_webhook", source_type="github", target_queue="inbox"
        )
        workers: list[Worker] = []
        for name, *how in (
            ("first", "sql", database.url, endpoint.id),
            ("second", "sql", database.url, endpoint.id),
            ("agent", "mcp", stack.url, endpoint.slug, endpoint.credential),
        ):
            workers.append(Worker(tmp_path, name, *how))
            opened.callback(workers[-1].end)
        sender = Sender(hook["ingest_url"], hook["signing_secret"], lambda: done(workers))
        sender.start()
        opened.callback(sender.end)
        yield stack, database, workers, sender


@pytest.mark.timeout(ROUNDS * 120 + 600)
def test_what_was_acknowledged_survives_kill_9_of_containers(
    loaded: tuple[Stack, Database, list[Worker], Sender],
) -> None:
    stack, database, workers, sender = loaded
    for number in range(ROUNDS):
        wait_for_work(workers, sender)
        victims = (("server",), ("database",), STAY)[number % 3]
        old = stack.kill(*victims)
        until(
            lambda old=old: all(stack.pid(name) not in ("0", was) for name, was in old.items()),
            f"{' and '.join(victims)} started again by themselves",
            60,
        )
        until(stack.is_ready, "the server is ready", 60)
        sys.stdout.write(f"round {number + 1} of {ROUNDS}: {victims}, {done(workers)} todos done\n")
    wait_for_work(workers, sender)
    sender.end()
    until(lambda: not database.ask(LIVE), "nothing is pending or claimed", 60)
    for worker in workers:
        worker.kill()
    assert not sender.strange
    judge(database, workers, sender.taken)
    for name in STAY:
        until(
            lambda name=name: stack.container(name, "{{.State.Health.Status}}") == "healthy",
            f"{name} is healthy",
            60,
        )
        assert int(stack.container(name, "{{.RestartCount}}")) >= ROUNDS * 2 // 3 - 1
