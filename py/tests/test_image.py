"""The image of db/Dockerfile: pg_cron ticks every 30 seconds, and nobody else does.

scripts/test-docker runs the image and names the database that pg_cron lives in. The only server
that is ever connected to it, the last test's, sweeps when nobody has done so for an hour: what time
does there, pg_cron did.
"""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bell_kit import Ears
from conftest import Served, Sql
from psycopg.conninfo import make_conninfo

NAME = os.environ.get("SWITCHBOARD_TEST_CRON", "")
pytestmark = pytest.mark.skipif(not NAME, reason="scripts/test-docker names a database")
PERIOD = 30
READ = "select pg_read_file(%s)"


@pytest.fixture(scope="module")
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
def test_time_does_its_work_while_nobody_else_ticks(cron: Sql, until: Callable[..., Any]) -> None:
    job = cron.row("select schedule, active from cron.job where jobname = 'switchboard tick'")
    assert job == {"schedule": "30 seconds", "active": True}
    assert not cron.rows(
        "select 1 from pg_stat_activity where application_name like 'switchboard%%'"
    )

    endpoint = cron.vend(f"image{os.getpid()}")
    expires = datetime.now(UTC) + timedelta(seconds=3)
    gone = cron.vend(f"gone{os.getpid()}", expires_at=expires)
    create = "select id from switchboard.create_todo(%s, 'inbox', %s, p_max_attempts => %s)"
    back = cron.value(create, endpoint.id, "its worker dies", 2)
    spent = cron.value(create, endpoint.id, "its last worker dies", 1)
    for _ in range(2):
        cron.row("select id from switchboard.claim_next(%s, 'w', null, 1)", endpoint.id)
    orphan = cron.value(create, gone.id, "its endpoint expires", 1)

    def states() -> list[str]:
        query = "select state::text from switchboard.todos where id = %s"
        return [cron.value(query, todo) for todo in (back, spent, orphan)]

    assert states() == ["claimed", "claimed", "pending"]
    until(
        lambda: states() == ["pending", "failed", "failed"],
        "pg_cron's tick takes the leases back, and ends what has no attempt or no endpoint left",
        2 * PERIOD + 10,
    )

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


@pytest.mark.timeout(200)
def test_who_listens_hears_what_pg_cron_gives_back(
    cron: Sql, serve: Callable[..., Served], until: Callable[..., Any]
) -> None:
    served = serve(database_url=cron.dsn, tick_interval=3600.0)
    served.wait_listening()
    endpoint = cron.vend(f"hears{os.getpid()}", verbs=["claim_next"])
    todo = cron.create(endpoint, "its worker dies")
    cron.row("select id from switchboard.claim_next(%s, 'w', null, 1)", endpoint.id)
    ears = Ears(served, endpoint)
    try:
        state = "select state::text from switchboard.todos where id = %s"
        until(lambda: cron.value(state, todo) == "pending", "it is taken back", 2 * PERIOD + 10)
        ears.hears(todo)
        claimed = ears.session.call("claim_next")["todo"]
        assert (claimed["id"], claimed["attempt"]) == (todo, 2)
    finally:
        ears.close()
    cron.value("select switchboard.revoke_endpoint(%s) is null", endpoint.id)
