"""Scenarios of the sweeps: nobody ticks, everybody does, or who did is dead.

Nothing depends on a sweep to be claimable, so work goes on whoever ticks; what a tick does is done
once, however many come at a time, and however late.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg

from chaos.scenario import scenario
from chaos.scenarios_kill import AWAY
from switchboard.migrate import migrate

if TYPE_CHECKING:
    from chaos.stage import Stage

TICK: LiteralString = "select switchboard.tick() as swept"
LATE: LiteralString = "update switchboard.sweeps set last_run_at = last_run_at - interval '3 hours'"
AGE: LiteralString = "select extract(epoch from switchboard.sweep_age())::float as age"
SCHEDULER: LiteralString = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where backend_type = 'pg_cron launcher' or application_name = 'pg_cron scheduler'"
)
UNSCHEDULE: LiteralString = "select cron.unschedule(jobid) from cron.job"


class TwiceError(Exception):
    """A sweep ran in two ticks at once."""


def _run(stage: Stage, *statements: LiteralString) -> list[dict[str, Any]]:
    with stage.postgres.admin() as admin:
        for statement in statements[:-1]:
            admin.execute(statement)
        cursor = admin.execute(statements[-1])
        return cursor.fetchall() if cursor.description else []


def _tick(stage: Stage) -> dict[str, Any]:
    """One tick; nothing when it had to give up: whoever comes next does its work."""
    try:
        return dict(_run(stage, TICK)[0]["swept"])
    except psycopg.errors.LockNotAvailable:
        return {}


def tick_together(stage: Stage, pool: ThreadPoolExecutor, many: int) -> None:
    """Tick from several sessions at once.

    Raises:
        TwiceError: a sweep that came to its end ran in two of them.
    """
    swept = list(pool.map(lambda _: _tick(stage), range(many)))
    ran = Counter(name for tick in swept if not tick.get("more") for name in tick)
    twice = [name for name, times in ran.items() if times > 1]
    if twice:
        raise TwiceError(f"{', '.join(twice)} ran twice: {swept}")
    stage.saw("ticked_together")
    for name, moved in (item for tick in swept for item in tick.items()):
        if "error" in str(moved):
            stage.say(f"sweep {name}: {moved}")


def sweep_again(stage: Stage) -> None:
    """Before the drain: one tick runs every sweep; one that failed meanwhile has to succeed now."""
    _run(stage, LATE)
    stage.say(f"swept: {_tick(stage)}")


def nobody_else(stage: Stage) -> None:
    """Before the load: no scheduler of the database ticks either."""
    if stage.postgres.kind == "debian":
        _run(stage, UNSCHEDULE)


def schedule(stage: Stage) -> None:
    """Before the drain: pg_cron ticks, where it is."""
    migrate(stage.postgres.url(), lambda _: None)


@scenario(
    "sweeps-late",
    provokes=("nobody_ticked", "ticked_together", "hours_late"),
    allows=AWAY,
    server={"TICK_INTERVAL": 3600},
    prepare=nobody_else,
    heal=schedule,
)
def sweeps_late(stage: Stage) -> None:
    """Nobody ticks for a while; then up to eight do at once, some of them three hours late."""
    with ThreadPoolExecutor(8) as pool:
        while stage.goes_on():
            stage.pause(3.0, 9.0)
            stage.saw("nobody_ticked")
            if stage.random.random() < 0.7:
                _run(stage, LATE)
                stage.saw("hours_late")
            tick_together(stage, pool, stage.random.choice((2, 2, 5, 8)))


def schedule_again(stage: Stage) -> None:
    """Before the drain: PostgreSQL starts the scheduler, ``migrate`` makes the job."""
    stage.postgres.restart()
    schedule(stage)


@scenario(
    "cron-dead",
    provokes=("scheduler_ended", "unscheduled", "server_swept"),
    allows=AWAY,
    server_kind="debian",
    server={"TICK_INTERVAL": 3},
    heal=schedule_again,
)
def cron_dead(stage: Stage) -> None:
    """pg_cron's scheduler is terminated, its job unscheduled; the server sees to the sweeps."""
    stage.pause(1.0, 3.0)
    acts = [("scheduler_ended", SCHEDULER), ("unscheduled", UNSCHEDULE)]
    for name, statement in stage.random.sample(acts, len(acts)):
        if _run(stage, statement):
            stage.saw(name)
        stage.pause(1.0, 3.0)
    while stage.goes_on():
        _run(stage, LATE)
        stage.pause(8.0, 8.0)
        if (_run(stage, AGE)[0]["age"] or 0) < 10:
            stage.saw("server_swept")
