"""pg_cron dies or is switched off: who says so, and that work goes on (fault 54).

On a PostgreSQL 15 of Debian's packages with pg_cron, of this file's own, since the scheduler is
ended for good and PostgreSQL restarted. It runs where the suite's own server has pg_cron.
docs/runbooks.md is followed on the way.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from conftest import Served, Sql, until
from psycopg.conninfo import make_conninfo
from runbook_kit import RUNBOOKS, Row

from switchboard.config import Settings
from switchboard.doctor import examine
from switchboard.migrate import migrate

ROOT = Path(__file__).resolve().parents[2]
BIN = Path("/usr/lib/postgresql/15/bin")
BOOK = RUNBOOKS["pg_cron-does-not-tick"]
TOKEN = {"authorization": "Bearer t0ken"}


@pytest.fixture(scope="module")
def server(cluster_url: str) -> Iterator[Path]:
    """The folder of a server with pg_cron."""
    with psycopg.connect(cluster_url) as suite:
        row = suite.execute("select current_setting('cron.database_name', true)").fetchone()
    if not (row and row[0] and BIN.is_dir()):
        pytest.skip("for the suite on Debian's PostgreSQL 15, whose server has pg_cron")
    with tempfile.TemporaryDirectory(prefix="sb-cron-") as parent:
        Path(parent).chmod(0o711)
        folder = Path(parent) / "server"
        cluster = ROOT / "scripts" / "cluster"
        subprocess.run([cluster, "start", "debian", folder], check=True, timeout=60)
        try:
            yield folder
        finally:
            subprocess.run([cluster, "stop", "debian", folder], check=True, timeout=60)


@pytest.fixture(scope="module")
def cron_dsn(server: Path) -> str:
    """The database that pg_cron is in, migrated, with its scheduler running."""
    url = make_conninfo(host=str(server), user="postgres", dbname="postgres")
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("create database switchboard_cron encoding 'UTF8' template template0")
    dsn = make_conninfo(url, dbname="switchboard_cron")
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute("create extension pg_cron")
    migrate(dsn, lambda _: None)
    return dsn


@pytest.fixture
def database(cron_dsn: str) -> Iterator[str]:
    """That database, with its job and its scheduler well, and its clock the real one."""
    migrate(cron_dsn, lambda _: None)
    with psycopg.connect(cron_dsn, autocommit=True) as owner:
        owner.execute("truncate cron.job_run_details")
        until(lambda: scheduler(owner), "pg_cron's scheduler runs", 30)
    yield cron_dsn
    with psycopg.connect(cron_dsn, autocommit=True) as owner:
        owner.execute("update switchboard.settings set is_test = false, test_now = null")


def scheduler(connection: psycopg.Connection[Any]) -> bool:
    query = "select from pg_stat_activity where backend_type = 'pg_cron launcher'"
    return connection.execute(query).fetchone() is not None


def restart(server: Path) -> None:
    """The remedy of the page."""
    assert "pg_ctl restart" in BOOK.text
    user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    # Its output is the server's, who would keep a pipe open.
    options = ["-D", f"{server}/data", "-m", "fast", "-w", "-s", "-l", f"{server}/log"]
    subprocess.run([*user, f"{BIN}/pg_ctl", "restart", *options], check=True, timeout=60)


def doctor(dsn: str, name: str) -> tuple[str, str]:
    """The level of a check, and what was found."""
    found = [one for one in examine(Settings(database_url=dsn)) if one.name == name]
    assert len(found) == 1
    return found[0].level, found[0].found


def shown(db: Sql) -> Row:
    """What the runbook's query shows."""
    return db.row(BOOK.queries()[0])


def late(served: Served) -> tuple[str, float]:
    """What /readyz says of the sweeps, and the greatest age among the metrics."""
    text = httpx2.get(f"{served.url}/metrics", headers=TOKEN).text
    ages = re.findall(r"^switchboard_sweep_age_seconds\{.*\} (\S+)$", text, re.MULTILINE)
    assert len(ages) == 8
    return httpx2.get(f"{served.url}/readyz").json()["sweeps"], max(float(age) for age in ages)


def test_fault_54_a_job_that_was_switched_off(
    database: str, db: Sql, server: Path, until: Callable[..., Any]
) -> None:
    assert doctor(database, "pg_cron")[0] == "ok"
    assert shown(db)["active"] is True
    db.rows("update cron.job set active = false where jobname = 'switchboard tick'")
    level, found = doctor(database, "pg_cron")
    assert (level, "no job of ours that is active" in found) == ("warning", True)
    assert shown(db)["active"] is False
    assert "`switchboard migrate`" in BOOK.text
    migrate(database, lambda _: None)
    assert doctor(database, "pg_cron")[0] == "ok"
    assert shown(db)["active"] is True


def test_fault_54_a_scheduler_that_lives_and_does_not_call(database: str, db: Sql) -> None:
    run = (
        "insert into cron.job_run_details (jobid, runid, status, start_time, end_time)"
        " select jobid, 1000000000, 'succeeded', now() - %s::interval, now() - %s::interval"
        " from cron.job where jobname = 'switchboard tick'"
    )
    db.rows(run, "130 seconds", "130 seconds")
    assert doctor(database, "pg_cron")[0] == "ok", "two minutes, and some slack"
    db.rows("truncate cron.job_run_details")
    db.rows(run, "140 seconds", "140 seconds")
    level, found = doctor(database, "pg_cron")
    assert (level, "it last called tick() 14" in found) == ("warning", True)
    assert shown(db)["last_run"].total_seconds() >= 140


def test_fault_54_a_scheduler_that_was_terminated_is_reported_and_work_goes_on(
    database: str, db: Sql, server: Path, serve: Callable[..., Served], until: Callable[..., Any]
) -> None:
    assert shown(db)["scheduler"] is True
    db.rows("select pg_terminate_backend(pid) from pg_stat_activity"
            " where backend_type = 'pg_cron launcher'")  # fmt: skip
    until(lambda: not shown(db)["scheduler"], "the scheduler is gone")
    level, found = doctor(database, "pg_cron")
    assert (level, "its scheduler has ended" in found) == ("warning", True)

    # Nobody else ticks: late after two periods of a minute, in all three places.
    db.rows("update switchboard.settings set is_test = true, test_now = clock_timestamp()")
    db.rows("select switchboard.tick()")
    relying = serve(tick_interval=3600.0, metrics_token="t0ken")
    assert late(relying) == ("ok", 0.0)
    db.rows("update switchboard.settings set test_now = test_now + interval '121 seconds'")
    until(lambda: late(relying) == ("late", 121.0), "/readyz and /metrics say so")
    assert doctor(database, "sweeps")[0] == "warning"

    # A server that ticks: work goes on, and nothing is late.
    agent = db.vend("agent")
    todo = db.create(agent, "its worker dies")
    db.rows("select from switchboard.claim_next(%s, 'w', p_lease_ttl_seconds => 1)", agent.id)
    db.rows("update switchboard.settings set test_now = test_now + interval '31 seconds'")
    serve(tick_interval=1.0)
    state = "select state from switchboard.get_todo(%s, %s)"
    until(lambda: db.value(state, agent.id, todo) == "pending", "its lease comes back")
    assert doctor(database, "sweeps")[0] == "ok"
    until(lambda: late(relying) == ("ok", 0.0), "nothing is late any more")
    assert doctor(database, "pg_cron")[0] == "warning", "and it is still said"

    db.connection.close()
    restart(server)
    with psycopg.connect(database, autocommit=True) as again:
        until(lambda: scheduler(again), "the scheduler runs again", 30)
    assert doctor(database, "pg_cron")[0] == "ok"
