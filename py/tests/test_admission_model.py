"""Budgets against a plain-Python model (chaos_admission.py), step by step, by hypothesis.

It tries for a fifth of SWITCHBOARD_MODEL_SECONDS (60); SWITCHBOARD_MODEL_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, LiteralString

import psycopg
import pytest
from chaos_admission import BROKEN, DAYS, Budgets, Policy, Row, Todo
from chaos_machine import TimeIsOver
from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

SECONDS = float(os.environ.get("SWITCHBOARD_MODEL_SECONDS", "60")) / 5
HYPOTHESIS = settings(
    max_examples=10**6,  # the time ends it
    stateful_step_count=50,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
# What every run of some length must have come by.
WANTED = (
    "claimed pending",
    "claimed claimed",
    "claimed failed",
    "refused: window_exhausted",
    "refused: in_flight_full",
    "refused: paused",
    "refused: admission_unavailable",
    "deferred",
    "batch cut short",
    "window turned",
    "redefined",
    "cleared",
)
ENOUGH_STEPS = 4000
MOST_TODOS = 14  # claims look at 16 of what is due
QUEUES = ("q", "r", "s")
# Hours before a clock is changed: nowhere, in Los Angeles, on Lord Howe; forth and back.
STARTS = [
    datetime(2026, month, day, hour, tzinfo=UTC)
    for month, day, hour in ((1, 31, 20), (3, 8, 6), (11, 1, 5), (10, 3, 12), (4, 4, 11))
]
limits = st.sampled_from([0] + [1] * 5 + [2] * 5 + [3] * 4 + [5] * 2)
policies = st.builds(
    lambda flight, claims, period, tz, start, day: Policy(
        flight if flight is not None or claims is not None else 2,
        claims,
        period,
        tz,
        start,
        day if period == "week" else None,
    ),
    st.one_of(st.none(), limits),
    st.one_of(st.none(), limits),
    st.sampled_from(["hour", "day", "day", "week"]),
    st.sampled_from(["UTC", "America/Los_Angeles", "Australia/Lord_Howe"]),
    st.sampled_from(["00:00", "00:00", "01:45", "02:00", "02:15", "23:30"]),
    st.sampled_from(DAYS),
)
owners = st.sampled_from(["w1", "w1", "w2", "ann"])
lists = st.sampled_from([None, None, ["q"], ["r", "q"], ["s", "q"], ["q", "r", "s"], []])
leases = st.sampled_from([1, 30, 60, 3600])
spans = st.sampled_from([0, 1, 30, 31, 60, 900, 1800, 3600, 7200, 86_400, 3 * 86_400, 7 * 86_400])


class Machine(RuleBasedStateMachine):
    connection: ClassVar[psycopg.Connection[Row]]
    until: ClassVar[float]
    failing: ClassVar[bool] = False
    seen: ClassVar[Counter[str]] = Counter()

    def teardown(self) -> None:
        if sys.exc_info()[0] is AssertionError:
            type(self).failing = True  # from here on it shrinks
        self.seen.update(self.world.seen)

    def __init__(self) -> None:
        super().__init__()
        self.world = Budgets()
        self.endpoint = ""
        self.steps = 0

    def rows(self, query: LiteralString, *params: Any) -> list[Row]:
        cursor = self.connection.execute(query, params)
        return cursor.fetchall() if cursor.description else []

    def set_clock(self, now: datetime) -> None:
        self.world.now = now
        self.rows("select set_config('switchboard.test_now', %s, false)", now.isoformat())

    @initialize(start=st.sampled_from(STARTS), policy=policies)
    def start(self, start: datetime, policy: Policy) -> None:
        if time.monotonic() > self.until and not self.failing:
            raise TimeIsOver
        self.seen["examples"] += 1
        self.rows(
            "truncate switchboard.humans, switchboard.todo_attempts,"
            " switchboard.admission_refusals, switchboard.admission_totals cascade"
        )
        self.set_clock(start)
        human = self.rows("select id from switchboard.create_human('Ada')")[0]["id"]
        vend = "select * from switchboard.vend_endpoint(%s, 'a', %s)"
        self.endpoint = str(self.rows(vend, human, list(QUEUES))[0]["endpoint_id"])
        self.set_policy("q", policy)
        for queue, attempts, assignee in (
            ("q", 5, None),
            ("s", 2, None),
            ("r", 5, "ann"),
            ("q", 2, None),
        ):
            self.make(queue, attempts, assignee)

    # -- work and its budgets ---------------------------------------------------------------------

    @rule(
        queue=st.sampled_from("qqrs"),
        attempts=st.sampled_from([1, 2, 5, 5, 100]),
        assignee=st.sampled_from([None] * 5 + ["ann"]),
        count=st.integers(1, 3),
    )
    def create(self, queue: str, attempts: int, assignee: str | None, count: int) -> None:
        for _ in range(min(count, MOST_TODOS - len(self.world.todos))):
            self.make(queue, attempts, assignee)

    def make(self, queue: str, attempts: int, assignee: str | None) -> None:
        self.set_clock(self.world.now + timedelta(microseconds=1))  # an age of its own
        create = (
            "select id::text from switchboard.create_todo(%s, %s, 't', p_max_attempts => %s,"
            " p_assignee => %s)"
        )
        todo_id = self.rows(create, self.endpoint, queue, attempts, assignee)[0]["id"]
        self.world.todos[todo_id] = Todo(todo_id, queue, self.world.now, attempts, assignee)

    @rule(queue=st.sampled_from("qqqr"), policy=policies)
    def change_policy(self, queue: str, policy: Policy) -> None:
        self.set_policy(queue, policy)

    def set_policy(self, queue: str, policy: Policy) -> None:
        there = self.world.policies.get(queue)
        document = {k: v for k, v in policy.document().items() if v is not None}
        query = "select switchboard.set_admission_policy(%s, %s, %s)"
        self.rows(query, self.endpoint, queue, Jsonb(document))
        new = Policy(**{k: getattr(policy, k) for k in FIELDS})  # drawn ones are shared by examples
        if there is not None:  # the same policy, with what it has spent
            new.used, new.charged = there.used, there.charged
            self.seen["redefined"] += there.used != Counter()
        self.world.policies[queue] = new

    @precondition(lambda self: self.world.policies)
    @rule(place=st.integers(0, 1), lost=st.sampled_from([False, False, True]))
    def policy_goes(self, place: int, lost: bool) -> None:
        """It is cleared, or its zone is no longer in the time zone data."""
        queue = sorted(self.world.policies)[place % len(self.world.policies)]
        if not lost:
            self.rows("select switchboard.clear_admission_policy(%s, %s)", self.endpoint, queue)
            self.world.totals[queue, "charged"] += self.world.policies.pop(queue).charged
            self.seen["cleared"] += 1
        elif self.world.policies[queue].claims is not None:
            query = "update switchboard.admission_policies set window_tz = %s where queue = %s"
            self.rows(query, BROKEN, queue)
            self.world.policies[queue].tz = BROKEN

    # -- claims -----------------------------------------------------------------------------------

    @rule(owner=owners, queues=lists, ttl=leases)
    def comes_for_work(self, owner: str, queues: list[str] | None, ttl: int) -> None:
        self.claim_next(owner, queues, ttl)

    def claim_next(self, owner: str, queues: list[str] | None, ttl: int) -> None:
        asked = QUEUES if queues is None else queues
        wanted = self.world.next(owner, asked)
        query = "select * from switchboard.claim_next(%s, %s, %s, %s)"
        rows = self.rows(query, self.endpoint, owner, queues, ttl)
        self.seen["claim_next"] += 1
        assert [str(row["id"]) for row in rows] == ([wanted.id] if wanted else [])
        if wanted is None:
            self.world.refused(asked, owner)
        else:
            self.take(wanted, owner, ttl, rows[0])

    @rule(owner=owners, queues=lists, ttl=leases, most=st.integers(1, 6))
    def claim_batch(self, owner: str, queues: list[str] | None, ttl: int, most: int) -> None:
        asked = QUEUES if queues is None else queues
        query = "select * from switchboard.claim_batch(%s, %s, %s, %s, %s)"
        rows = self.rows(query, self.endpoint, owner, most, queues, ttl)
        for row in rows:
            wanted = self.world.next(owner, asked)
            assert wanted is not None, "nothing more was admitted"
            assert str(row["id"]) == wanted.id
            self.take(wanted, owner, ttl, row)
        assert len(rows) <= most
        if len(rows) < most:
            assert self.world.next(owner, asked) is None, "it could have taken more"
            self.seen["batch cut short"] += bool(rows and self.world.held_back(asked, owner))
            self.world.refused(asked, owner)

    @precondition(lambda self: self.world.todos)
    @rule(place=st.integers(0, 99), owner=owners, ttl=leases, operator=st.booleans())
    def claim(self, place: int, owner: str, ttl: int, operator: bool) -> None:
        todos = sorted(self.world.todos.values(), key=lambda t: t.age)
        fitting = [t for t in todos if self.world.claimable(t, owner)]
        todo = (fitting or todos)[place % len(fitting or todos)]
        owner = f"op:{self.connection.info.user}" if operator else owner
        reason = None
        if not self.world.claimable(todo, owner):
            reason = "SB409"
        elif not self.world.admitted(todo):
            reason = "SB429"
        query: LiteralString = "select * from switchboard.claim(%s, %s, %s, %s)"
        params: tuple[Any, ...] = (self.endpoint, todo.id, owner, ttl)
        if operator:
            query, params = "select * from switchboard.claim_any_endpoint(%s, %s)", (todo.id, ttl)
        refused = None
        try:
            rows = self.rows(query, *params)
        except psycopg.Error as error:
            note(f"  refused: {error.sqlstate} {error.diag.message_detail}")
            refused, detail = error.sqlstate, str(error.diag.message_detail)
        assert refused == reason
        if refused is None:
            self.take(todo, owner, ttl, rows[0])
        elif refused == "SB429":
            self.is_deferral(todo, detail)

    def is_deferral(self, todo: Todo, detail: str) -> None:
        status = self.world.status(todo.queue, todo.state == "claimed")
        wanted = {"queue": todo.queue, "reason": status, **self.world.when(todo.queue, status)}
        assert self.plain(json.loads(detail)) == wanted
        self.seen["deferred"] += 1

    def take(self, todo: Todo, owner: str, ttl: int, row: Row) -> None:
        wanted = self.world.take(todo, owner, ttl, row)
        assert self.plain(row["admission"]) == wanted
        assert (row["claimed_at"], row["attempt"]) == (self.world.now, todo.attempt)

    def plain(self, told: Row | None) -> Row | None:
        """A JSON answer with its times as times."""
        if told is None:
            return None
        return {k: datetime.fromisoformat(v) if k.endswith("_at") else v for k, v in told.items()}

    # -- what ends a claim, and time --------------------------------------------------------------

    @precondition(lambda self: any(t.state == "claimed" for t in self.world.todos.values()))
    @rule(place=st.integers(0, 99), how=st.sampled_from(["complete", "fail", "fail", "release"]))
    def finish(self, place: int, how: str) -> None:
        held = [t for t in self.world.todos.values() if t.state == "claimed"]
        todo = held[place % len(held)]
        self.rows(FINISH[how], self.endpoint, todo.id, todo.owner, todo.token)
        self.world.finish(todo, how)
        if todo.state == "done":
            del self.world.todos[todo.id]

    @rule(seconds=spans)
    def time_passes(self, seconds: int) -> None:
        self.set_clock(self.world.now + timedelta(seconds=seconds))

    @precondition(lambda self: any(t.due_at for t in self.world.todos.values()))
    @rule(place=st.integers(0, 99), owner=owners, ttl=leases)
    def falls_due(self, place: int, owner: str, ttl: int) -> None:
        """To the end of a lease or a backoff; somebody comes for it."""
        ends = sorted(t.due_at for t in self.world.todos.values() if t.due_at)
        self.set_clock(max(ends[place % len(ends)], self.world.now))
        self.claim_next(owner, None, ttl)

    @precondition(lambda self: any(p.claims is not None for p in self.world.policies.values()))
    @rule(early=st.booleans(), place=st.integers(0, 1))
    def window_turns(self, early: bool, place: int) -> None:
        """To the end of a window, or to just before it."""
        counting = [p for p in self.world.policies.values() if p.claims is not None]
        policy = counting[place % len(counting)]
        if policy.tz != BROKEN:
            end = policy.window(self.world.now)[1]
            at = end - timedelta(microseconds=1) if early else end
            self.set_clock(max(at, self.world.now))
            self.seen["window turned"] += not early

    @rule(lapses=st.booleans())
    def sweep(self, lapses: bool) -> None:
        if lapses:
            self.rows("select * from switchboard.reap_expired()")
            self.rows("select * from switchboard.requeue_due_retries()")
            self.world.sweep()
        self.rows("select * from switchboard.reopen_admission()")
        self.rows("select switchboard.fold_refusals()")

    # -- after each step --------------------------------------------------------------------------

    @precondition(lambda self: self.endpoint)
    @invariant()
    def everything_is_equal(self) -> None:
        world = self.world
        self.seen["steps"] += 1
        self.steps += 1
        with self.connection.pipeline():
            asked = [self.connection.execute(query) for query in (SPENT, TOTALS, STATES)]
        spent, totals, states = (c.fetchall() for c in asked)
        assert {r["id"]: (r["state"], r["attempt"]) for r in states if r["state"] != "done"} == {
            t.id: (t.state, t.attempt) for t in world.todos.values()
        }
        assert {r["queue"]: (r["charged"], r["windows"] or {}) for r in spent} == {
            q: (p.charged, {f"{at:%Y-%m-%d %H:%M:%S}": n for at, n in p.used.items() if n})
            for q, p in world.policies.items()
        }, "charged, and used of each window"
        assert {(r["queue"], r["kind"]): r["total"] for r in totals if r["total"]} == {
            kind: n for kind, n in world.totals.items() if n
        }, "what was refused, and what cleared policies had charged"
        # the dear looks take turns
        (self.deferred_is_told, self.pending_say_why, self.status_is_told)[self.steps % 3]()

    def deferred_is_told(self) -> None:
        owner = (None, "w1", "ann")[self.steps % 9 // 3]
        assert [self.told(r) for r in self.rows(DEFERRED, self.endpoint, owner)] == [
            {
                "queue": queue,
                "reason": self.world.status(queue),
                "pending": len(self.world.within(queue, "pending")),
                **self.world.when(queue, self.world.status(queue)),
            }
            for queue in self.world.held_back(QUEUES, owner)
        ]

    def pending_say_why(self) -> None:
        for row in self.rows(LISTED, self.endpoint):
            now = self.world.status(row["queue"])
            wanted = {"status": now, **self.world.when(row["queue"], now)} if now else None
            assert self.plain(row["admission"]) == wanted

    def status_is_told(self) -> None:
        rows = self.rows(STATUS, self.endpoint)
        assert [self.told(r) for r in rows] == [
            self.wanted_status(q) for q in sorted(self.world.policies)
        ]

    def told(self, row: Row) -> Row:
        return {k: v for k, v in row.items() if v is not None}

    def wanted_status(self, queue: str) -> Row:
        world, policy = self.world, self.world.policies[queue]
        status = world.status(queue)
        wanted = {
            "queue": queue,
            "status": status,
            "in_flight": len(world.within(queue, "claimed")),
            "pending": len(world.within(queue, "pending")),
            "charged": policy.charged,
            **world.when(queue, status),
        }
        if policy.claims is not None and policy.tz != BROKEN:
            start, end = policy.window(world.now)
            used = policy.used[start]
            wanted |= {"used": used, "remaining": max(policy.claims - used, 0)}
            wanted |= {"window_started_at": start, "window_resets_at": end}
        return wanted


FIELDS = ("flight", "claims", "period", "tz", "start", "weekday")
FINISH: dict[str, LiteralString] = {
    "complete": "select * from switchboard.complete(%s, %s, %s, p_lease_token => %s)",
    "fail": "select * from switchboard.fail(%s, %s, %s, p_lease_token => %s)",
    "release": "select * from switchboard.release(%s, %s, %s, p_lease_token => %s)",
}
SPENT: LiteralString = (
    "select p.queue, p.charged, (select jsonb_object_agg(to_char(w.window_start at time zone 'UTC',"
    " 'YYYY-MM-DD HH24:MI:SS'), w.used) from switchboard.admission_windows w"
    " where w.policy_id = p.id) as windows from switchboard.admission_policies p"
)
TOTALS: LiteralString = (
    "select queue, kind, sum(n)::integer as total from ("
    " select t.queue, t.kind, t.total as n from switchboard.admission_totals t"
    " union all select r.queue, r.reason, 1 from switchboard.admission_refusals r) c group by 1, 2"
)
DEFERRED: LiteralString = "select * from switchboard.deferred_queues(%s, null, %s)"
LISTED: LiteralString = (
    "select queue, admission from switchboard.list_todos(%s, null, 'pending', 100)"
)
STATUS: LiteralString = (
    "select queue, status, in_flight, pending, charged, used, remaining, window_started_at,"
    " window_resets_at, next_eligible_at, exact from switchboard.admission_status(%s)"
)
STATES: LiteralString = "select id::text, state::text, attempt from switchboard.todos"
# Looking a zone up takes 100 ms.
QUICK_ZONES: LiteralString = (
    "create or replace function switchboard.known_zone(p_name text) returns text"
    " language sql stable set search_path = switchboard, pg_temp as $$ select p_name $$"
)


@pytest.mark.timeout(SECONDS + 200)
def test_budgets_do_what_the_model_says(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_SHRINKING_SECONDS", 60)
    number = int(os.environ.get("SWITCHBOARD_MODEL_SEED", random.randrange(10**6)))
    sys.stdout.write(f"to repeat: SWITCHBOARD_MODEL_SEED={number}\n")
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as connection:
        connection.execute("set timezone = 'UTC'")
        connection.execute(QUICK_ZONES)
        parts = {"connection": connection, "until": time.monotonic() + SECONDS, "seen": Counter()}
        machine = type("Own", (Machine,), parts)
        with pytest.raises(TimeIsOver):
            run_state_machine_as_test(seed(number)(machine), settings=HYPOTHESIS)
    seen = machine.seen
    sys.stdout.write(f"{dict(sorted(seen.items()))}\n")
    if seen["steps"] > ENOUGH_STEPS:
        assert [name for name in WANTED if not seen[name]] == []
