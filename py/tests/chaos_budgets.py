"""Budgets in real sessions, for test_admission_storm.py: setting, claiming, and what must hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, LiteralString

import psycopg
from chaos_sessions import Conflict, Row, Session
from psycopg.types.json import Jsonb

LEVELS = {
    "read committed": psycopg.IsolationLevel.READ_COMMITTED,
    "repeatable read": psycopg.IsolationLevel.REPEATABLE_READ,
    "serializable": psycopg.IsolationLevel.SERIALIZABLE,
}
NEXT: LiteralString = "select * from switchboard.claim_next(%s, %s, %s, %s)"
BY_ID: LiteralString = "select * from switchboard.claim(%s, %s, %s, %s)"
BATCH: LiteralString = "select * from switchboard.claim_batch(%s, %s, %s, %s, %s)"
OPERATOR: LiteralString = "select * from switchboard.claim_any_endpoint(%s, %s)"
# Some pending or lapsed todo, as a client might have learned of it.
SOME: LiteralString = (
    "select id from switchboard.todos t where t.endpoint_id = %s and t.queue = any (%s)"
    " and (t.state = 'pending' or t.state = 'claimed' and t.due_at <= switchboard.now())"
    " offset %s limit 1"
)
# What a budget says, and what there is of its queue: claims by the window in which they were made.
# They are the same in every snapshot, if the queue had its policy from the first claim on.
SPENT: LiteralString = """
    with policies as (
        select * from switchboard.admission_policies p where p.queue = any (%(queues)s)
    ), claims as (
        select t.endpoint_id, t.queue, t.claimed_at from switchboard.todos t
        where t.state = 'claimed'
        union all select a.endpoint_id, a.queue, a.claimed_at from switchboard.todo_attempts a
    ), counted as (
        select p.id, p.queue, p.charged, count(c.queue) as claims from policies p
        left join claims c on c.endpoint_id = p.endpoint_id and c.queue = p.queue group by 1, 2, 3
    ), made as (
        select p.id, date_trunc(p.window_period, c.claimed_at at time zone 'UTC') as start,
               count(*) as n
        from policies p join claims c on c.endpoint_id = p.endpoint_id and c.queue = p.queue
        where p.max_claims_per_window is not null group by 1, 2
    ), used as (
        select w.policy_id as id, w.window_start at time zone 'UTC' as start, w.used as n
        from switchboard.admission_windows w join policies p on p.id = w.policy_id
    ), held as (
        select p.id, count(*) as n from policies p join switchboard.todos t
        on t.endpoint_id = p.endpoint_id and t.queue = p.queue and t.state = 'claimed' group by 1
    )
    select format('%%s: %%s charged, %%s claims', c.queue, c.charged, c.claims) as wrong
    from counted c where c.charged <> c.claims
    union all
    select format('%%s %%s: %%s used, %%s claims', p.queue, coalesce(m.start, u.start), u.n, m.n)
    from made m full join used u on u.id = m.id and u.start = m.start
    join policies p on p.id = coalesce(m.id, u.id)
    where u.n is distinct from m.n or m.n > p.max_claims_per_window
    union all
    select format('%%s: %%s of %%s in flight', p.queue, h.n, p.max_in_flight)
    from held h join policies p on p.id = h.id where h.n > p.max_in_flight
"""
# After a claim, in its transaction, nobody else is past the gate: as it sees them, limits hold.
OVER: LiteralString = """
    select p.queue || ': ' || count(t.id) || ' of ' || p.max_in_flight as wrong
    from switchboard.admission_policies p join switchboard.todos t
    on t.endpoint_id = p.endpoint_id and t.queue = p.queue and t.state = 'claimed'
    where p.queue = any (%s) group by p.endpoint_id, p.id having count(t.id) > p.max_in_flight
"""


def set_budget(
    db: Any, endpoint: str, queue: str, claims: int | None, flight: int | None = None, **window: str
) -> None:
    """Set a budget: claims a window (a day of UTC, unless told otherwise), and in flight."""
    policy: dict[str, Any] = {} if flight is None else {"max_in_flight": flight}
    if claims is not None:
        policy["max_claims_per_window"] = claims
        policy["window"] = {"period": "day", "tz": "UTC", **window}
    db.rows("select switchboard.set_admission_policy(%s, %s, %s)", endpoint, queue, Jsonb(policy))


class Claimer:
    """Claims in every way there is, each time in a transaction of its own."""

    def __init__(self, session: Session, endpoint: str, seed: object, owner: str = "w") -> None:
        self.session, self.endpoint, self.owner = session, endpoint, owner
        self.dice = random.Random(str(seed))
        self.ways: list[Callable[[list[str]], list[Row]]] = [
            self.next,
            self.next,
            self.batch,
            self.by_id,
            self.by_operator,
        ]
        self.before_commit: Callable[[list[Row]], object] = lambda _: None
        self.lease: int | None = None
        self.again = 0

    def next(self, queues: list[str]) -> list[Row]:
        return self.session.rows(NEXT, self.endpoint, self.owner, queues, self.lease)

    def batch(self, queues: list[str]) -> list[Row]:
        most = self.dice.randint(1, 4)
        return self.session.rows(BATCH, self.endpoint, self.owner, most, queues, self.lease)

    def some(self, queues: list[str]) -> str:
        rows = self.session.rows(SOME, self.endpoint, queues, self.dice.randint(0, 20))
        return str(rows[0]["id"]) if rows else ""

    def by_id(self, queues: list[str]) -> list[Row]:
        found = self.some(queues)
        return self.session.rows(BY_ID, self.endpoint, found, self.owner, self.lease)

    def by_operator(self, queues: list[str]) -> list[Row]:
        return self.session.rows(OPERATOR, self.some(queues), self.lease)

    def try_once(self, queues: list[str], level: str = "read committed") -> list[Row] | None:
        """What was claimed and committed; None: another time, perhaps (lost a race, or refused)."""
        connection = self.session.connection
        if level != "read committed" or connection.isolation_level is not None:
            connection.isolation_level = LEVELS[level]
        try:
            with connection.transaction():
                rows = self.dice.choice(self.ways)(queues)
                self.before_commit(rows)
        except psycopg.errors.SerializationFailure:
            self.again += 1
            return None
        except Conflict:
            return None
        except psycopg.Error as error:
            if error.sqlstate in ("SB429", "SB404"):
                return []
            raise
        return rows
