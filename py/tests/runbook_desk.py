"""Fixtures for who follows docs/runbooks.md.

A plugin of the files test_runbooks*.py. One database serves a whole file, and is wiped for each
test; a file says so with a fixture ``database`` of its own, since conftest has one, too.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from conftest import Endpoint, Sql, free_port, fresh
from psycopg import sql
from psycopg.conninfo import make_conninfo
from runbook_kit import RUNBOOKS, Desk, Runbook, Slate

from switchboard import cli


@pytest.fixture(scope="module")
def slate(cluster_url: str, template: str) -> Iterator[Slate]:
    with fresh(cluster_url, template) as (_, dsn):
        yield Slate(dsn)


@pytest.fixture
def wiped(slate: Slate) -> str:
    slate.wipe()
    return slate.dsn


@pytest.fixture(scope="module")
def operator_url(slate: Slate) -> Iterator[str]:
    login = f"night_{os.getpid()}"
    name = sql.Identifier(login)
    create = sql.SQL("create role {} login password 'x' in role switchboard_operator, pg_monitor")
    with psycopg.connect(slate.dsn, autocommit=True) as admin:
        admin.execute(create.format(name))
        yield make_conninfo(slate.dsn, user=login, password="x")
        admin.execute(sql.SQL("drop role {}").format(name))


@pytest.fixture
def desk(
    db: Sql, operator_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    monkeypatch.setenv("SWITCHBOARD_DATABASE_URL", operator_url)
    monkeypatch.setenv("SWITCHBOARD_SECRET_KEY", "A" * 43 + "=")
    monkeypatch.setenv("SWITCHBOARD_PUBLIC_URL", f"http://127.0.0.1:{free_port()}")

    def command(line: str) -> tuple[int, Any]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main([*shlex.split(line), "--json"])
        return int(end.value.code or 0), json.loads(capsys.readouterr().out)

    made = Desk(db, operator_url, command)
    with made.operator:
        yield made


@pytest.fixture
def book(request: pytest.FixtureRequest) -> Runbook:
    """The runbook that the test is named after."""
    name = request.function.__name__.removeprefix("test_").replace("_", "-")
    found = [key for key in RUNBOOKS if name.startswith(key.replace("_", "-"))]
    return RUNBOOKS[max(found, key=len)]


@pytest.fixture
def agent(db: Sql) -> Endpoint:
    return db.vend("agent", queues=("inbox", "reviews"))
