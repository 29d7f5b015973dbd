"""Sessions that hold what others wait for: a forgotten psql, an index that is built, a slow batch.

Whatever they do is rolled back, so that none of it needs a history: the judge explains what is in
the database by the calls of the clients alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg

if TYPE_CHECKING:
    from chaos.stage import Stage

Connection = psycopg.Connection[dict[str, Any]]

# What is held, and by which statement. Writers wait for all of them, those that skip what is locked
# for the tables only; nobody who just reads waits for any.
HOLDS: dict[str, LiteralString] = {
    "budgets": "select from switchboard.admission_policies for update",
    "endpoints": "select from switchboard.endpoints for update",
    "held todos": "select from switchboard.todos where state = 'claimed' for update skip locked",
    "all todos": "select from switchboard.todos where completed_at is null for update skip locked",
    "marks": "select from switchboard.queue_marks for update",
    "sweeps": "select from switchboard.sweeps for update skip locked",
    "table of todos": "lock table switchboard.todos in share mode",
    "table of attempts": "lock table switchboard.todo_attempts in share mode",
}
ENDPOINT: LiteralString = (
    "select id::text as id, queues from switchboard.endpoints order by random() limit 1"
)


@contextlib.contextmanager
def undone(stage: Stage, timeout_ms: int = 20_000) -> Iterator[Connection]:
    """A superuser's connection in a transaction that is rolled back at the end of the block.

    Args:
        stage: of the run.
        timeout_ms: how long its own statements may wait, in milliseconds.

    Raises:
        psycopg.Error: what the block did not catch.
    """
    with stage.postgres.admin() as connection, connection.transaction(force_rollback=True):
        connection.execute(f"set local lock_timeout = {timeout_ms}")
        yield connection


def hold(stage: Stage, what: str, shortest: float, longest: float) -> bool:
    """Hold a thing of ``HOLDS`` for a random time in seconds; False: somebody else had it.

    Args:
        stage: of the run.
        what: a key of ``HOLDS``.
        shortest: seconds, at least.
        longest: seconds, at most.
    """
    try:
        with undone(stage, 2_000) as connection:
            connection.execute(HOLDS[what])
            stage.pause(shortest, longest)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        return False
    return True


def endpoint(stage: Stage) -> tuple[str, list[str]]:
    """The id and the queues of a random endpoint of the load."""
    with stage.postgres.admin() as connection:
        row = connection.execute(ENDPOINT).fetchall()[0]
        return row["id"], row["queues"]
