"""What the database holds when a run has been drained: rows for the judge, plain values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg

Row = dict[str, Any]

TODOS: LiteralString = (
    "select id::text, endpoint_id::text, queue, state::text, kind, title, idempotency_key, attempt,"
    " max_attempts, claims, created_at, completed_at, due_at, claimed_at, owner, lease_token,"
    " event_id::text, result from switchboard.todos"
)
ATTEMPTS: LiteralString = (
    "select endpoint_id::text, todo_id::text, seq, attempt, claimed_at, ended_at, queue, owner,"
    " outcome, state from switchboard.todo_attempts"
)
EVENTS: LiteralString = (
    "select endpoint_id::text, id::text, webhook_id::text, delivery_id from switchboard.events"
)
WINDOWS: LiteralString = (
    "select p.endpoint_id::text, p.queue, p.window_period, p.window_tz, p.window_start as label,"
    " p.window_weekday, w.window_start, w.used from switchboard.admission_policies p"
    " join switchboard.admission_windows w on w.endpoint_id = p.endpoint_id and w.policy_id = p.id"
)
TOTALS: LiteralString = (
    "select (select coalesce(sum(total), 0) from switchboard.attempt_totals) as folded,"
    " (select count(*) from switchboard.todo_attempts a, switchboard.attempt_fold f"
    "  where a.xid >= f.folded_to) as waiting"
)
DOCTOR: LiteralString = "select * from switchboard.doctor_facts() where level <> 'ok'"
UNSOUND: LiteralString = "select id::text, problem from switchboard.unsound_todos()"


@dataclass
class Facts:
    """Rows as the queries of this module name them.

    Attributes:
        todos, attempts, events, windows: rows.
        samples: [{queue, endpoint, claimed, at}] of who looked while the faults went on.
        doctor: findings that are not ok; unsound: todos whose columns contradict each other.
        counted: attempts that the counters have, folded or waiting; None: not asked.
        budgets: the policy of each budgeted queue, as it was until ``raised_at``.
        raised_at: the database's time when the budgets were raised; None: they were not.
    """

    todos: list[Row] = field(default_factory=list)
    attempts: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    windows: list[Row] = field(default_factory=list)
    samples: list[Row] = field(default_factory=list)
    doctor: list[Row] = field(default_factory=list)
    unsound: list[Row] = field(default_factory=list)
    counted: int | None = None
    budgets: dict[str, Row] = field(default_factory=dict)
    raised_at: Any = None


def gather(admin: psycopg.Connection[Row]) -> Facts:
    """Read all of it; nobody may be changing it."""
    totals = admin.execute(TOTALS).fetchall()[0]
    return Facts(
        todos=admin.execute(TODOS).fetchall(),
        attempts=admin.execute(ATTEMPTS).fetchall(),
        events=admin.execute(EVENTS).fetchall(),
        windows=admin.execute(WINDOWS).fetchall(),
        doctor=admin.execute(DOCTOR).fetchall(),
        unsound=admin.execute(UNSOUND).fetchall(),
        counted=int(totals["folded"]) + int(totals["waiting"]),
    )
