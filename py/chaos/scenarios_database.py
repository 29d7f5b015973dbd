"""Scenarios of the database: what others do to it while work goes on.

Locks that are held for longer than callers wait, transactions that lock in the wrong order, an old
snapshot, callers of every isolation level, and a database that refuses to write for a time. None of
them may cost more than time: a call that fails says so with a code, and has not happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from chaos.cluster import DATABASE
from chaos.holding import HOLDS, Connection, endpoint, hold, undone
from chaos.scenario import scenario
from chaos.scenarios_kill import AWAY
from chaos.scenarios_sweeps import sweep_again

if TYPE_CHECKING:
    from chaos.stage import Stage

SET_BUDGET: LiteralString = "select switchboard.set_admission_policy(%s, %s, %s, %s)"
ISOLATIONS = ("read committed", "repeatable read", "serializable")


# -- timeouts --------------------------------------------------------------------------------------


def hold_in_turn(stage: Stage) -> None:
    """Hold one thing after the other, now and then for longer than the server waits for a lock."""
    while stage.goes_on():
        stage.pause(0.3, 1.2)
        what = stage.random.choice(list(HOLDS))
        longest = 7.0 if stage.random.random() < 0.15 else 1.5
        if hold(stage, what, 0.5, longest):
            stage.saw("held")


@scenario(
    "statement-timeout",
    provokes=("held", "canceled"),
    allows=("canceled", "lock_timeout", "unavailable"),
    workers={"statement_timeout": "250ms"},
    producers={"statement_timeout": "250ms"},
    heal=sweep_again,
)
def statement_timeout(stage: Stage) -> None:
    """Rows and tables are held for longer than the callers' statements may take (57014)."""
    hold_in_turn(stage)


@scenario(
    "lock-timeout",
    provokes=("held", "lock_timeout"),
    allows=("canceled", "lock_timeout", "unavailable"),
    workers={"lock_timeout": "150ms"},
    producers={"lock_timeout": "150ms"},
    heal=sweep_again,
)
def lock_timeout(stage: Stage) -> None:
    """Rows and tables are held for longer than the callers wait for a lock (55P03)."""
    hold_in_turn(stage)


# -- deadlocks -------------------------------------------------------------------------------------

# The product locks todos before budgets, and an endpoint's row before its todos.
WRONG_ORDERS: tuple[tuple[LiteralString, LiteralString], ...] = (
    (
        "select from switchboard.admission_policies for update",
        "select from switchboard.todos where state in ('pending', 'claimed') for update",
    ),
    (
        "select from switchboard.admission_owed for update",
        "select from switchboard.todos where state = 'claimed' for update",
    ),
    (
        "select from switchboard.admission_windows for update",
        "select from switchboard.admission_policies for update",
    ),
    (
        "select from switchboard.todos where state in ('pending', 'claimed') for update",
        "select from switchboard.endpoints for update",
    ),
)
DEADLOCKS: LiteralString = (
    "select deadlocks from pg_stat_database where datname = current_database()"
)


def lock_wrongly(stage: Stage) -> None:
    """Lock rows in an order that the product never takes; be the victim, or leave that to others.

    Who waits looks for a deadlock once, when it has waited for deadlock_timeout.
    """
    first, second = stage.random.choice(WRONG_ORDERS)
    patience = stage.random.choice(("50ms", "3s"))
    try:
        with undone(stage) as connection:
            connection.execute(sql.SQL("set local deadlock_timeout = {}").format(patience))
            connection.execute(first)
            time.sleep(stage.random.uniform(0.2, 0.8))
            connection.execute(second)
    except psycopg.errors.DeadlockDetected:
        stage.saw("bait_taken")


def _creates(stage: Stage) -> tuple[Callable[[Connection], Any], ...]:
    where, queues = endpoint(stage)
    keys = [f"bait {stage.random.random()}" for _ in range(2)]

    def create(key: str) -> Callable[[Connection], Any]:
        call: LiteralString = "select switchboard.create_todo(%s, %s, 'bait', '{}', %s)"
        return lambda connection: connection.execute(call, [where, queues[0], key])

    return tuple(create(key) for key in keys)


def _claims(stage: Stage) -> tuple[Callable[[Connection], Any], ...]:
    where, _ = endpoint(stage)
    with stage.postgres.admin() as admin:
        find = "select queue from switchboard.admission_policies where endpoint_id = %s limit 2"
        queues = [row["queue"] for row in admin.execute(find, [where]).fetchall()]

    def claim(queue: str) -> Callable[[Connection], Any]:
        call: LiteralString = "select id from switchboard.claim_next(%s, 'bait', array[%s])"
        return lambda connection: connection.execute(call, [where, queue])

    return tuple(claim(queue) for queue in queues)


def _finishes(stage: Stage) -> tuple[Callable[[Connection], Any], ...]:
    with stage.postgres.admin() as admin:
        find: LiteralString = (
            "select id::text as id from switchboard.todos where state = 'claimed' limit 2"
        )
        ids = [row["id"] for row in admin.execute(find).fetchall()]

    def finish(todo: str) -> Callable[[Connection], Any]:
        call: LiteralString = "select switchboard.complete_any_endpoint(%s, p_force => true)"
        return lambda connection: connection.execute(call, [todo])

    return tuple(finish(todo) for todo in ids)


def call_crosswise(stage: Stage, pool: ThreadPoolExecutor) -> None:
    """Two transactions call the same two functions, each in the other's order."""
    calls = stage.random.choice((_creates, _claims, _finishes))(stage)
    wait = stage.random.uniform(0.1, 0.3)

    def run(order: tuple[Callable[[Connection], Any], ...]) -> None:
        try:
            with undone(stage) as connection:
                for call in order:
                    call(connection)
                    time.sleep(wait)
        except psycopg.errors.DeadlockDetected:
            stage.saw("bait_taken")
        except psycopg.Error as error:  # the todo is done by now, say
            if not (error.sqlstate or "").startswith("SB"):
                raise

    list(pool.map(run, (calls, calls[::-1])))


def count_deadlocks(stage: Stage) -> None:
    """Say how many there were; those that the bait did not take befell the load, or a sweep."""
    sweep_again(stage)
    with stage.postgres.admin() as admin:
        all_of_them = admin.execute(DEADLOCKS).fetchall()[0]["deadlocks"]
    stage.say(f"{all_of_them} deadlocks")


@scenario(
    "deadlock-bait",
    provokes=("bait_taken", "deadlock"),
    allows=("deadlock", "lock_timeout", "unavailable"),
    producers={"shares": {"narrow": 0.5, "hourly": 0.1, "inbox": 0.3, "review": 0.1}},
    postgres={"deadlock_timeout": "600ms"},
    heal=count_deadlocks,
)
def deadlock_bait(stage: Stage) -> None:
    """Other sessions lock in the wrong order, by FOR UPDATE and through functions (40P01)."""
    with ThreadPoolExecutor(2) as pool:
        while stage.goes_on():
            stage.pause(0.05, 0.4)
            if stage.random.random() < 0.65:
                lock_wrongly(stage)
            else:
                call_crosswise(stage, pool)


# -- an old snapshot -------------------------------------------------------------------------------

DEAD: LiteralString = (
    "select n_dead_tup as n from pg_stat_user_tables where relid = 'switchboard.todos'::regclass"
)
ENDED: LiteralString = "select count(*) as n from switchboard.todo_attempts"


def _number(stage: Stage, query: LiteralString) -> int:
    with stage.postgres.admin() as admin:
        return int(admin.execute(query).fetchall()[0]["n"])


@scenario("old-snapshot", provokes=("dead_rows", "flowed"), warns=("bloat",))
def old_snapshot(stage: Stage) -> None:
    """A snapshot, then a transaction with an id, is held; nothing can be cleaned, work goes on."""
    for at_start in ("select count(*) from switchboard.todos", "select pg_current_xact_id()"):
        with stage.postgres.admin() as old:
            old.execute("begin isolation level repeatable read")
            old.execute(at_start)
            before, share = _number(stage, ENDED), stage.seconds * 0.45
            end = time.monotonic() + share
            while stage.goes_on() and time.monotonic() < end:
                stage.pause(1.0, 3.0)
                with stage.postgres.admin() as admin:
                    admin.execute("vacuum switchboard.todos, switchboard.queue_marks")
            if _number(stage, DEAD) > 50:
                stage.saw("dead_rows")
            if _number(stage, ENDED) - before > share:
                stage.saw("flowed")
            old.execute("rollback")
    while stage.goes_on():
        stage.pause(1.0, 1.0)


# -- isolation levels ------------------------------------------------------------------------------


def set_budgets_anew(stage: Stage) -> None:
    """Set the budgets of an endpoint as they are, slowly: an older snapshot may not claim past it.

    Claims above READ COMMITTED that began before the end of that transaction fail with 40001.
    """
    endpoint = stage.random.choice(stage.place.endpoints)
    with stage.postgres.admin() as admin, admin.transaction():
        for queue, policy in sorted(stage.place.budgets.items()):  # as claim_batch locks them
            admin.execute(SET_BUDGET, [endpoint["id"], queue, Jsonb(policy), stage.place.human])
        time.sleep(stage.random.uniform(0.05, 0.4))


def mix(stage: Stage) -> None:
    """Give a worker over SQL, or the producer, another isolation level, by a new start."""
    client = stage.random.choice([c for c in stage.clients if "isolation" in c.options])
    client.kill()
    client.options["isolation"] = stage.random.choice(ISOLATIONS)
    client.start()
    stage.saw("remixed")


@scenario(
    "mixed-isolation",
    provokes=("serialization", "remixed"),
    allows=("serialization", "deadlock", "unavailable"),
    workers={"isolation": ("repeatable read", "serializable", "read committed")},
    producers={"isolation": "serializable"},
)
def mixed_isolation(stage: Stage) -> None:
    """READ COMMITTED, REPEATABLE READ and SERIALIZABLE callers side by side (40001)."""
    while stage.goes_on():
        stage.pause(0.2, 1.0)
        set_budgets_anew(stage)
        if stage.random.random() < 0.2:
            mix(stage)


# -- a database that does not write ----------------------------------------------------------------

START_SECONDS = 120.0


def refuse_writes(stage: Stage) -> None:
    """The whole installation goes read-only and comes back: sessions that exist see it, too."""
    stage.postgres.set(default_transaction_read_only="on")
    time.sleep(stage.random.uniform(1.0, 3.0))
    stage.postgres.set(default_transaction_read_only=None)
    stage.saw("went_read_only")


def refuse_writes_of_newcomers(stage: Stage) -> None:
    """The database is set read-only, and back: sessions that began in between stay so.

    The server has to notice by itself. Those of the load are ended: a program that keeps its
    session for ever is its writer's to mend.
    """
    database = sql.Identifier(DATABASE)
    to_on = sql.SQL("alter database {} set default_transaction_read_only = on").format(database)
    back = sql.SQL("alter database {} reset default_transaction_read_only").format(database)
    with stage.postgres.admin() as admin:
        admin.execute("set default_transaction_read_only = off")
        admin.execute(to_on)
        for pid in stage.backends():
            stage.kill_backend(pid, hard=False)
        time.sleep(stage.random.uniform(1.0, 3.0))
        admin.execute(back)
        for client in stage.clients:
            for pid in stage.backends(client.name):
                stage.kill_backend(pid, hard=False)
    stage.saw("newcomers_read_only")


def start_against_it(stage: Stage) -> None:
    """The server is started while nothing can be written, and has to come up and stay."""
    stage.postgres.set(default_transaction_read_only="on")
    stage.server.kill()
    stage.server.start()
    stage.server.wait_ready(START_SECONDS)
    stage.saw("started_read_only")
    time.sleep(stage.random.uniform(0.5, 1.5))
    stage.postgres.set(default_transaction_read_only=None)


def writable(stage: Stage) -> None:
    """However the run ended, everybody may write again."""
    stage.postgres.set(default_transaction_read_only=None)


@scenario(
    "read-only-server",
    provokes=("went_read_only", "newcomers_read_only", "started_read_only", "read_only"),
    allows=("read_only", *AWAY),
    producers={"poison": 0.15},
    heal=writable,
)
def read_only_server(stage: Stage) -> None:
    """default_transaction_read_only is on for a time; the server is started against it, too."""
    acts = [refuse_writes, refuse_writes_of_newcomers, start_against_it]
    for act in stage.random.sample(acts, len(acts)):  # each of them, however slow the machine is
        stage.pause(1.0, 3.0)
        act(stage)
    while stage.goes_on():
        stage.pause(1.5, 5.0)
        stage.random.choice(acts)(stage)
