"""The image of db/Dockerfile: pg_cron ticks every 30 seconds, and nobody else does.

scripts/test-docker runs the image and names the database that pg_cron lives in. No server process
has ever been connected to it, so what happens there, pg_cron did.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Sql
from psycopg.conninfo import make_conninfo

NAME = os.environ.get("SWITCHBOARD_TEST_CRON", "")
pytestmark = pytest.mark.skipif(not NAME, reason="scripts/test-docker names a database")
PERIOD = 30
READ = "select pg_read_file(%s)"


@pytest.fixture
def cron(cluster_url: str) -> Iterator[Sql]:
    operator = Sql(make_conninfo(cluster_url, dbname=NAME))
    with operator.connection:
        yield operator


def test_its_versions_are_the_ones_that_are_promised(cron: Sql) -> None:
    assert 170000 <= int(cron.value("show server_version_num")) < 180000
    has = {
        row["name"]: row["default_version"]
        for row in cron.rows("select name, default_version from pg_available_extensions")
    }
    assert has["pg_cron"].startswith("1.6")
    assert has["pgtap"].startswith("1.3")
    assert "plpgsql_check" in has


def test_it_runs_as_nobody_special(cron: Sql) -> None:
    status = cron.value(READ, "/proc/self/status")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["Uid"].split() == ["999"] * 4
    assert int(facts["CapEff"], 16) == 0
    assert facts["NoNewPrivs"] == "1"
    mounts = [line.split() for line in cron.value(READ, "/proc/self/mountinfo").splitlines()]
    (root,) = [mount for mount in mounts if mount[4] == "/"]
    assert "ro" in root[5].split(",")


def test_who_has_no_password_does_not_come_in(cron: Sql) -> None:
    rules = cron.rows("select * from pg_hba_file_rules where type like 'host%%'")
    local_only = ("127.0.0.1", "::1")
    open_to_all = [r for r in rules if r["address"] not in local_only]
    assert open_to_all
    assert {r["auth_method"] for r in rules} == {"scram-sha-256"}


@pytest.mark.timeout(200)
def test_leases_come_back_while_nobody_else_ticks(cron: Sql, until: Callable[..., Any]) -> None:
    job = cron.row("select schedule, active from cron.job where jobname = 'switchboard tick'")
    assert job == {"schedule": "30 seconds", "active": True}
    assert not cron.rows(
        "select 1 from pg_stat_activity where application_name like 'switchboard%%'"
    )

    endpoint = cron.vend(f"image{os.getpid()}")
    todo = cron.create(endpoint, "its worker dies")
    cron.row(
        "select id from switchboard.claim_next(%s, 'worker', p_lease_ttl_seconds => 1)",
        endpoint.id,
    )

    def state() -> str:
        return str(cron.value("select state from switchboard.get_todo(%s, %s)", endpoint.id, todo))

    assert state() == "claimed"
    until(lambda: state() == "pending", "pg_cron's tick takes the lease back", 2 * PERIOD + 10)

    ran = """
        select count(*) from cron.job_run_details d join cron.job j using (jobid)
        where j.jobname = 'switchboard tick' and d.status = 'succeeded'
    """
    until(lambda: cron.value(ran) >= 3, "three runs", 3 * PERIOD + 10)
    gaps = cron.rows(
        """
        select extract(epoch from d.start_time - lag(d.start_time) over (order by d.start_time)) gap
        from cron.job_run_details d join cron.job j using (jobid)
        where j.jobname = 'switchboard tick'
        """
    )
    assert all(abs(row["gap"] - PERIOD) < 5 for row in gaps if row["gap"] is not None), gaps
    assert not cron.rows("select * from cron.job_run_details where status = 'failed'")
    sweeps = cron.rows("select * from switchboard.sweep_status()")
    assert not [row for row in sweeps if row["last_error"]]
    assert cron.value("select switchboard.sweep_age() < interval '35 seconds'")
    cron.value("select switchboard.revoke_endpoint(%s) is null", endpoint.id)
