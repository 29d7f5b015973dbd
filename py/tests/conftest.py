"""Fixtures: a database per test, a served gateway, clients.

SWITCHBOARD_TEST_URL names a PostgreSQL cluster by a superuser's URL; without it the embedded
PostgreSQL is started for the session. One database is migrated per session and cloned per test.
SWITCHBOARD_POOLER names the port of a PgBouncer in front of that cluster (scripts/with-pgbouncer):
then the gateways of the fixtures reach their databases through it, and listen beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
import uvicorn
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from switchboard.config import Settings

VERSION = "2025-11-25"
KEY = bytes(range(32))
POOLER = os.environ.get("SWITCHBOARD_POOLER", "")
without_pooler = pytest.mark.skipif(bool(POOLER), reason="it is about the server's own sessions")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def cluster_url() -> Iterator[str]:
    """A superuser's URL of a cluster."""
    if given := os.environ.get("SWITCHBOARD_TEST_URL"):
        yield given
        return
    from switchboard.datafolder import DataFolder
    from switchboard.embedded import Cluster

    with tempfile.TemporaryDirectory(prefix="sb-test-") as folder:
        data = DataFolder(Path(folder) / "data")
        data.make()
        with data.locked():
            cluster = Cluster(data, lambda _: None)
            cluster.start()
            try:
                let_in_server_user(cluster)
                yield cluster.url("postgres", "postgres")
            finally:
                cluster.stop()


def let_in_server_user(cluster: Any) -> None:
    """As the user who runs the server, a pooler and dblink connect to it."""
    name = pwd.getpwuid(cluster.data.stat().st_uid).pw_name
    cluster.folder.path.parent.chmod(0o711)  # that user passes through it
    with (cluster.folder.path / "pg_ident.conf").open("a") as idents:
        idents.write(f'switchboard "{name}" all\n')
    with psycopg.connect(cluster.url("postgres", "postgres"), autocommit=True) as admin:
        admin.execute("select pg_reload_conf()")


@contextlib.contextmanager
def fresh(cluster_url: str, template: str = "template1") -> Iterator[tuple[str, str]]:
    """A database of its own, for the time of the block: its name and a superuser's DSN."""
    name = f"sbtest_{uuid.uuid4().hex[:12]}"
    # copied as files: cheaper to make and drop, together, than through the log (a fifth to a third)
    create = sql.SQL("create database {} template {} encoding 'UTF8' strategy file_copy")
    with psycopg.connect(cluster_url, autocommit=True) as admin:
        admin.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
    try:
        yield name, make_conninfo(cluster_url, dbname=name)
    finally:
        with psycopg.connect(cluster_url, autocommit=True) as admin:
            drop = sql.SQL("drop database if exists {} with (force)")
            admin.execute(drop.format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def template(cluster_url: str) -> Iterator[str]:
    """The name of a migrated database to clone."""
    from switchboard.migrate import migrate

    with fresh(cluster_url, "template0") as (name, dsn):
        migrate(dsn, lambda _: None)
        yield name


@pytest.fixture
def database(cluster_url: str, template: str) -> Iterator[str]:
    """A superuser's DSN of a migrated, empty database of this test."""
    with fresh(cluster_url, template) as (name, dsn):
        if POOLER:
            pin(dsn, name)
        yield dsn


def pin(dsn: str, name: str) -> None:
    """Set for a database what a gateway cannot pin through a pooler."""
    from switchboard.pooler import PINNED

    setting = sql.SQL("alter database {} set {} = {}")
    with psycopg.connect(dsn, autocommit=True) as admin:
        for key, value in PINNED.items():
            admin.execute(setting.format(sql.Identifier(name), sql.SQL(key), sql.Literal(value)))


def through_pooler(dsn: str) -> dict[str, Any]:
    """The settings of a gateway that reaches a database through the pooler."""
    return {
        "database_url": make_conninfo(dsn, host="127.0.0.1", port=POOLER),
        "listen_url": dsn,
        "prepare_statements": False,
    }


class Sql:
    """What an operator does at a prompt: calls functions, one transaction each."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)
        self.human: Any = None

    def row(self, query: str, *params: Any) -> dict[str, Any]:
        rows = self.rows(query, *params)
        assert rows, f"no row: {query}"
        return rows[0]

    def rows(self, query: str, *params: Any) -> list[dict[str, Any]]:
        cursor = self.connection.execute(query, params)
        return cursor.fetchall() if cursor.description else []

    def value(self, query: str, *params: Any) -> Any:
        return next(iter(self.row(query, *params).values()))

    def vend(self, slug: str, queues: tuple[str, ...] = ("inbox",), **options: Any) -> Endpoint:
        """Vend an endpoint to this test's human; options are vend_endpoint's, without p_."""
        if self.human is None:
            self.human = self.row("select * from switchboard.create_human('tester')")["id"]
        named = {"human_id": self.human, "slug": slug, "queues": list(queues), **options}
        marks = ", ".join(f"p_{name} => %s" for name in named)
        row = self.row(f"select * from switchboard.vend_endpoint({marks})", *named.values())
        return Endpoint(str(row["endpoint_id"]), row["slug"], row["credential"])

    def create(
        self, endpoint: Endpoint, title: str, queue: str = "inbox", payload: Any = None
    ) -> str:
        """Create a todo; its id."""
        query = "select id from switchboard.create_todo(%s, %s, %s, %s)"
        return str(self.value(query, endpoint.id, queue, title, json.dumps(payload or {})))


class Endpoint:
    """A vended endpoint and its credential."""

    def __init__(self, endpoint_id: str, slug: str, credential: str) -> None:
        self.id, self.slug, self.credential = endpoint_id, slug, credential

    def __repr__(self) -> str:
        return f"<Endpoint {self.slug}>"


@pytest.fixture
def db(database: str) -> Iterator[Sql]:
    operator = Sql(database)
    with operator.connection:
        yield operator


class Served:
    """A gateway that serves on a port of loopback, in a thread."""

    def __init__(self, settings: Settings) -> None:
        from switchboard.gateway import uvicorn_config

        self.settings = settings
        self.url = f"http://127.0.0.1:{settings.port}"
        config = uvicorn_config(settings)
        self.app: Any = config.app
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.sessions: list[RawSession] = []

    def start(self) -> None:
        self.thread.start()
        until(lambda: self.server.started or not self.thread.is_alive(), "the server starts")
        assert self.server.started

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10 * busy())
        assert not self.thread.is_alive(), "the server did not stop"

    def session(self, endpoint: Endpoint, **options: Any) -> RawSession:
        """An MCP session over plain HTTP, initialized."""
        session = RawSession(self.url, endpoint, **options)
        self.sessions.append(session)
        return session

    def wait_listening(self) -> None:
        until(lambda: self.app.state.listener.state == "listening", "the listener listens")

    def wait_told(self, db: Sql) -> None:
        """Return when it has dealt with all that was said on the control channel until now."""
        self.wait_listening()
        mark, heard = str(uuid.uuid4()), threading.Event()
        callbacks = self.app.state.listener._callbacks
        tell = callbacks["switchboard_control"]

        def told(note: str | None) -> None:
            tell(note)
            if note == mark:
                heard.set()

        callbacks["switchboard_control"] = told
        db.rows("select pg_notify('switchboard_control', %s)", mark)
        assert heard.wait(15), "notes come in the order of commits, but this one did not come"


class RawSession:
    """MCP as bytes on the wire: what a test needs to send what no client would."""

    def __init__(self, url: str, endpoint: Endpoint, *, start: bool = True) -> None:
        self.endpoint = endpoint
        self.address = f"{url}/mcp/{endpoint.slug}"
        self.http = httpx2.Client(timeout=30)
        self.headers = {
            "authorization": f"Bearer {endpoint.credential}",
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        }
        self.number = 0
        self.instructions = ""
        if start:
            self.start()

    def start(self) -> None:
        hello = {
            "protocolVersion": VERSION,
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        response = self.post(self.request("initialize", hello))
        assert response.status_code == 200, response.text
        self.instructions = response.json()["result"].get("instructions", "")
        self.headers["mcp-session-id"] = response.headers["mcp-session-id"]
        self.headers["mcp-protocol-version"] = VERSION
        done = self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert done.status_code == 202, done.text

    @property
    def id(self) -> str:
        return self.headers["mcp-session-id"]

    def request(self, method: str, params: Any = None, request_id: Any = None) -> dict[str, Any]:
        self.number += 1
        message = {"jsonrpc": "2.0", "id": request_id or self.number, "method": method}
        return message if params is None else {**message, "params": params}

    def post(self, message: Any, **headers: str) -> httpx2.Response:
        body = message if isinstance(message, bytes | str) else json.dumps(message)
        return self.http.post(self.address, content=body, headers={**self.headers, **headers})

    def ask(self, method: str, params: Any = None, request_id: Any = None) -> dict[str, Any]:
        """The JSON-RPC answer."""
        response = self.post(self.request(method, params, request_id))
        assert response.status_code == 200, f"{response.status_code} {response.text}"
        answer: dict[str, Any] = response.json()
        return answer

    def call(self, tool: str, request_id: Any = None, **arguments: Any) -> dict[str, Any]:
        """The structured content of a tool's answer, the error object included."""
        params = {"name": tool, "arguments": arguments}
        result = self.ask("tools/call", params, request_id)["result"]
        content: dict[str, Any] = result["structuredContent"]
        assert json.loads(result["content"][0]["text"]) == content
        assert result["isError"] is ("error" in content)
        return content

    def stream(self) -> contextlib.AbstractContextManager[httpx2.Response]:
        """The GET stream."""
        return self.http.stream("GET", self.address, headers=self.headers)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(condition: Callable[[], Any], what: str, seconds: float = 15.0) -> Any:
    """Wait for a state; returns the first true value."""
    end = time.monotonic() + seconds
    while True:
        if found := condition():
            return found
        assert time.monotonic() < end, f"waited {seconds} s in vain until {what}"
        time.sleep(0.01)


def logged(caplog: pytest.LogCaptureFixture, name: str, count: int) -> list[dict[str, Any]]:
    """The fields of the lines of this name, once there are so many.

    The line of a request is written when the request is over: its client may be faster.
    """

    def found() -> list[dict[str, Any]]:
        lines = [record for record in caplog.records if record.getMessage() == name]
        return [line.fields for line in lines]  # type: ignore[attr-defined]

    until(lambda: len(found()) >= count, f"{count} lines of {name} are written")
    return found()


def busy() -> float:
    """By how much a promised time may be exceeded now: 1 on a machine that does nothing else."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Any]:
    return until


@pytest.fixture
def settings(database: str) -> Callable[..., Settings]:
    """Settings of a gateway on this test's database; keywords change fields."""

    def make(**changes: Any) -> Settings:
        fields: dict[str, Any] = {
            "database_url": database,
            "port": free_port(),
            "secret_keys": (KEY,),
            "shutdown_timeout": 1.0,
            "pool_size": 5,
            "log_level": "info",
            **(through_pooler(database) if POOLER else {}),
        }
        port = changes.get("port", fields["port"])
        return Settings(**{**fields, "public_url": f"http://127.0.0.1:{port}", **changes})

    return make


@pytest.fixture
def serve(settings: Callable[..., Settings]) -> Iterator[Callable[..., Served]]:
    """Serve a gateway; keywords change settings."""
    running: list[Served] = []

    def start(**changes: Any) -> Served:
        served = Served(settings(**changes))
        running.append(served)
        served.start()
        return served

    yield start
    for session in [session for served in running for session in served.sessions]:
        session.http.close()
    for served in running:
        if served.thread.is_alive():
            served.stop()


@pytest.fixture
def raw() -> Iterator[Callable[[str, Endpoint], RawSession]]:
    """Open a session at any address."""
    opened: list[RawSession] = []

    def start(url: str, endpoint: Endpoint) -> RawSession:
        opened.append(RawSession(url, endpoint))
        return opened[-1]

    yield start
    for session in opened:
        session.http.close()


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    """A gateway with the settings that most tests want."""
    return serve()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what failed where scripts/test asks for it: it runs again, alone."""
    if report.failed and (path := os.environ.get("SWITCHBOARD_FAILED_LIST")):
        with Path(path).open("a") as failed:
            failed.write(report.nodeid + "\n")
