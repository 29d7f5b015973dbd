"""What ``doctor`` sees of pg_cron: its job, its process, and what they last did.

pg_cron fails silently. A job that was switched off and a scheduler that was terminated leave the
rows of what ran before, and nothing starts that process again but a restart of PostgreSQL. While a
server runs, nothing is even late, for it ticks when nobody else does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, LiteralString

from switchboard.doctor_beside import MIGRATE, Connection, Finding

NAME = "pg_cron"
SLACK_SECONDS = 15


def cron(connection: Connection) -> Iterator[Finding]:
    """Whether pg_cron, where it is in this database, calls tick()."""
    query: LiteralString = "select from pg_catalog.pg_extension where extname = 'pg_cron'"
    if connection.execute(query).fetchone() is None:
        yield Finding(NAME, "ok", "not in this database; the server sweeps")
        return
    jobs = [job for job in connection.execute(JOBS) if job["active"]]
    if not jobs:
        found = "it has no job of ours that is active: only servers sweep"
        yield Finding(NAME, "warning", found, MIGRATE)
        return
    (seen,) = connection.execute(SCHEDULER)
    if seen["all"] and not seen["runs"]:
        found = "its scheduler has ended, and nothing starts it again: only servers sweep"
        yield Finding(NAME, "warning", found, "restart PostgreSQL")
        return
    last = connection.execute(LAST, [[job["jobid"] for job in jobs]]).fetchone()
    yield from _last_run(jobs, last)


def _last_run(jobs: list[dict[str, Any]], last: dict[str, Any] | None) -> Iterator[Finding]:
    if last and last["status"] == "failed":
        said = (last["return_message"] or "").strip().splitlines()
        found = f"its last call of tick() failed: {said[0] if said else 'no message'}"
        yield Finding(NAME, "warning", found, "see that its login may log in and may call tick()")
        return
    period = max(seconds(job["schedule"]) for job in jobs)
    if last and last["age"] > 2 * period + SLACK_SECONDS:
        found = f"it last called tick() {last['age']} s ago, though it should every {period} s"
        yield Finding(NAME, "warning", found, "see that pg_cron's process runs: restart PostgreSQL")
        return
    for job in jobs:
        yield Finding(NAME, "ok", f"calls tick() as {job['username']}, {job['schedule']}")


def seconds(schedule: str) -> int:
    """How often a job is to run: that of `switchboard migrate`, else the longest that is usual."""
    if found := re.fullmatch(r"(\d+) seconds?", schedule):
        return int(found[1])
    return 60 if schedule.startswith("* ") else 3600


JOBS: LiteralString = """
select jobid, schedule, active, username from cron.job
where jobname = 'switchboard tick' and database = current_database()
"""
SCHEDULER: LiteralString = """
select exists (select from pg_catalog.pg_stat_activity where backend_type = 'pg_cron launcher')
           as runs,
       pg_has_role('pg_read_all_stats', 'usage') as all
"""
LAST: LiteralString = """
select status, return_message, extract(epoch from clock_timestamp() - end_time)::integer as age
from cron.job_run_details where jobid = any(%s) and end_time is not null
order by runid desc limit 1
"""
