"""Races, in real sessions at full speed: the order is the scheduler's, the outcome must not be.

What a race must come to in one certain order is told by db/tests/isolation; here are the numbers.
SWITCHBOARD_STORM_ROUNDS (10000) and SWITCHBOARD_STORM_SECONDS (20) bound the long ones.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from chaos_race import race, wrong
from chaos_sessions import (
    CLAIM_NEXT,
    COMPLETE,
    Conflict,
    Row,
    Session,
    each,
    many,
    sessions,
    together,
)
from psycopg.types.json import Jsonb

ROUNDS = int(os.environ.get("SWITCHBOARD_STORM_ROUNDS", "10000"))
SECONDS = float(os.environ.get("SWITCHBOARD_STORM_SECONDS", "20"))
START = datetime(2030, 1, 1, tzinfo=UTC)
LATER = START + timedelta(minutes=1)
CLAIM = "select * from switchboard.claim(%s, %s, 'w')"
CLAIM_100 = "select * from switchboard.claim_batch(%s, 'w', 100)"
CREATE_MANY = "select id, created from switchboard.create_todos(%s, %s)"
CREATE_ONE = "select id, created from switchboard.create_todo(%s, %s, 't', p_idempotency_key => %s)"

pytestmark = pytest.mark.timeout(SECONDS * 2 + 120)


def test_fault_19_fifty_sessions_create_one_key_at_once(db: Any, database: str) -> None:
    endpoint = db.vend("a")
    with sessions(database, 50) as opened:
        for key in ("k1", "k2", "k3", "k4"):
            made = each(opened, lambda s, k=key: s.row(CREATE_ONE, endpoint.id, "inbox", k))
            assert len({row["id"] for row in made}) == 1
            assert sum(row["created"] for row in made) == 1
    assert db.value("select count(*) from switchboard.todos") == 4


def test_create_batches_in_opposite_order_of_keys_do_not_wait_for_each_other(
    db: Any, database: str
) -> None:
    endpoint = db.vend("a")
    rounds, keys = 25, 60

    def create(session: Session, seed: int) -> list[dict[str, Row]]:
        dice = random.Random(seed)
        made = []
        for number in range(rounds):
            batch = [f"{number}-{key}" for key in range(keys)]
            batch.sort(reverse=seed % 2 == 1)
            if seed > 1:
                dice.shuffle(batch)
            elements = [{"queue": "inbox", "title": "t", "idempotency_key": k} for k in batch]
            rows = session.rows(CREATE_MANY, endpoint.id, Jsonb(elements))
            made.append(dict(zip(batch, rows, strict=True)))
        return made

    answers = together(database, [lambda s, n=n: create(s, n) for n in range(4)])
    for number in range(rounds):
        for key in answers[0][number]:
            rows = [answer[number][key] for answer in answers]
            assert len({row["id"] for row in rows}) == 1, key
            assert sum(row["created"] for row in rows) == 1, key


def test_sixteen_claimers_take_each_todo_once(db: Any, database: str) -> None:
    endpoint = db.vend("a", ("inbox", "other"))
    total = 1200
    for queue in ("inbox", "other"):
        db.rows(CREATE_MANY, endpoint.id, Jsonb(many(total // 2, queue)))

    def by_next(session: Session) -> list[Row]:
        taken: list[Row] = []
        while rows := session.rows(CLAIM_NEXT, endpoint.id, "w"):
            taken += rows
        return taken

    def by_batch(session: Session) -> list[Row]:
        taken: list[Row] = []
        while rows := session.rows(
            "select * from switchboard.claim_batch(%s, 'w', 3)", endpoint.id
        ):
            taken += rows
        return taken

    def by_id(session: Session) -> list[Row]:
        taken: list[Row] = []
        while pending := session.rows(
            "select id from switchboard.list_todos(%s, null, 'pending', 40)", endpoint.id
        ):
            for row in pending:
                with contextlib.suppress(Conflict):
                    taken.append(session.row(CLAIM, endpoint.id, row["id"]))
        return taken

    works = [by_next] * 10 + [by_batch] * 3 + [by_id] * 3
    taken = [row for rows in together(database, works) for row in rows]
    assert len(taken) == total
    assert len({row["id"] for row in taken}) == total
    assert len({row["lease_token"] for row in taken}) == total
    assert {row["attempt"] for row in taken} == {1}
    assert db.value("select count(*) from switchboard.todos where attempt <> 1 or claims <> 1") == 0


@pytest.mark.parametrize("rival", ["sweep", "claim", "both"])
def test_fault_10_complete_against_sweep_and_takeover(db: Any, database: str, rival: str) -> None:
    """Leases lapse for the rivals, whose clock is later: each todo gets one of two outcomes."""
    endpoint = db.vend("a")
    end, size, left, seen = time.monotonic() + SECONDS / 3, 100, ROUNDS // 3, Counter[str]()
    with sessions(database, 3, clock=LATER) as opened:
        holder = opened[0]
        while left > 0 and (not seen or time.monotonic() < end):
            holder.clock(START)
            holder.rows(CREATE_MANY, endpoint.id, Jsonb(many(size)))
            held = holder.rows(
                "select * from switchboard.claim_batch(%s, 'w', %s, null, 1)", endpoint.id, size
            )
            outcomes = race(endpoint.id, rival, held, opened)
            seen.update(str(outcome) for outcome in outcomes.values())
            seen.update(wrong(db, outcomes))
            db.rows("truncate switchboard.todos, switchboard.todo_attempts")
            left -= size
    sys.stdout.write(f"{rival}: {sum(seen.values())} races, {seen['None']} won by the holder\n")
    assert not [name for name in seen if name.startswith("wrong")], seen
    assert min(seen["None"], seen["SB409"]) > size / 50, f"hardly a race: {seen}"


def test_fault_63_claims_and_creates_against_revoke(db: Any, database: str) -> None:
    """After the next sweep nothing lives on a revoked endpoint, and every attempt has ended."""
    with sessions(database, 5) as opened:
        for number in range(12):
            endpoint = db.vend(f"e{number}")
            db.rows(CREATE_MANY, endpoint.id, Jsonb(many(40)))

            def create(session: Session, endpoint_id: str = endpoint.id) -> str | None:
                while not (state := session.refused(CREATE_ONE, endpoint_id, "inbox", None)):
                    pass
                return state

            def claim(session: Session, endpoint_id: str = endpoint.id) -> int:
                taken = 0
                while session.rows(CLAIM_NEXT, endpoint_id, "w"):
                    taken += 1
                return taken

            def revoke(session: Session, endpoint_id: str = endpoint.id) -> None:
                held = (
                    "select 1 from switchboard.todos where endpoint_id = %s and claims > 0 limit 1"
                )
                while not session.rows(held, endpoint_id):
                    pass
                session.rows("select switchboard.revoke_endpoint(%s)", endpoint_id)

            ended = each(opened, create, create, claim, claim, revoke)
            assert ended[:2] == ["SB409", "SB409"], "a create on a revoked endpoint"
            db.rows("update switchboard.sweeps set last_run_at = 'epoch'")
            swept = db.value("select switchboard.tick()")
            assert not [count for count in swept.values() if isinstance(count, str)], swept
            left = db.rows(
                "select t.state, t.claims, count(a.seq) from switchboard.todos t"
                " left join switchboard.todo_attempts a on a.todo_id = t.id"
                " where t.endpoint_id = %s group by t.endpoint_id, t.id"
                " having t.completed_at is null or count(a.seq) <> t.claims",
                endpoint.id,
            )
            assert left == []


@pytest.mark.parametrize("what", ["create", "claim"])
def test_fault_65_what_surfaces_below_the_mark_is_claimed_within_a_sweep(
    db: Any, database: str, what: str
) -> None:
    """A create committed late, a claim rolled back late; the queue never runs empty."""
    endpoint = db.vend("a")
    with sessions(database, 2, clock=START) as (slow, other):
        other.rows("select switchboard.tick()")
        other.rows(CREATE_MANY, endpoint.id, Jsonb(many(1)))
        slow.rows("begin")
        row = (
            slow.row(CREATE_ONE, endpoint.id, "inbox", "slow")
            if what == "create"
            else slow.row(CLAIM_NEXT, endpoint.id, "slow")
        )
        other.clock(START + timedelta(seconds=1))
        other.rows(CREATE_MANY, endpoint.id, Jsonb(many(300)))
        for _ in range(2):
            assert other.rows(CLAIM_100, endpoint.id)
            other.rows("select switchboard.raise_mark(%s, 'inbox')", endpoint.id)
        slow.rows("commit" if what == "create" else "rollback")
        if what == "create":  # what an open claim holds is still seen as pending, and keeps it down
            mark = db.value("select pending_from from switchboard.queue_marks")
            assert mark > START, "nothing is below the mark: the test tests nothing"
            assert other.row(CLAIM_NEXT, endpoint.id, "w")["id"] != row["id"]
        other.clock(START + timedelta(seconds=31))
        assert "settle_marks" in other.row("select switchboard.tick()")["tick"]
        assert other.row(CLAIM_NEXT, endpoint.id, "w")["id"] == row["id"]


def test_fault_6_a_claim_cut_short_leaves_nothing_claimed(db: Any, database: str) -> None:
    """By statement_timeout just under its time, and by a client that cancels."""
    endpoint = db.vend("a")
    db.rows(CREATE_MANY, endpoint.id, Jsonb(many(9000)))
    acknowledged, cut, dice = 0, 0, random.Random(6)
    with sessions(database, 1) as (session,):
        began = time.monotonic()
        acknowledged += len(session.rows(CLAIM_100, endpoint.id))
        longest = (time.monotonic() - began) * 1000
        for number in range(60):
            try:
                with session.connection.transaction():
                    wait = str(dice.randint(1, max(2, int(longest))))
                    session.rows("select set_config('statement_timeout', %s, true)", wait)
                    taken = len(session.rows(CLAIM_100, endpoint.id))
                acknowledged += taken
                longest *= 0.9  # so that some are cut and some not, however fast the machine is now
            except psycopg.errors.QueryCanceled:
                longest *= 1.1
                cut += 1
            counted = session.row(
                "select count(*) filter (where state = 'claimed') as claimed, sum(claims) as claims"
                " from switchboard.todos"
            )
            assert counted == {"claimed": acknowledged, "claims": acknowledged}, number
    assert 5 <= cut < 60, "the timeouts did not fit the time of a claim"
    assert db.value("select count(*) from switchboard.todo_attempts") == 0


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_callers_above_read_committed_take_each_todo_once(
    db: Any, database: str, level: str
) -> None:
    """They may have to try again (40001), and nothing else; a caller beside them does not."""
    endpoint = db.vend("a")
    total = 160
    db.rows(CREATE_MANY, endpoint.id, Jsonb(many(total)))

    def drain(session: Session) -> list[str]:
        done: list[str] = []
        while True:
            try:
                with session.connection.transaction():
                    rows = session.rows(CLAIM_NEXT, endpoint.id, "w")
                    for row in rows:
                        session.row(COMPLETE, endpoint.id, row["id"], "w", row["lease_token"])
            except psycopg.errors.SerializationFailure:
                continue
            if not rows:
                return done
            done += [row["id"] for row in rows]

    def pinned(session: Session) -> list[str]:
        session.connection.isolation_level = (
            psycopg.IsolationLevel.REPEATABLE_READ
            if level == "repeatable read"
            else psycopg.IsolationLevel.SERIALIZABLE
        )
        return drain(session)

    done = [todo for ids in together(database, [pinned] * 5 + [drain]) for todo in ids]
    assert len(done) == len(set(done)) == total
    assert db.value("select count(*) from switchboard.todo_attempts") == total


@pytest.mark.parametrize("queues", [None, ["inbox"]], ids=["all queues", "one queue"])
def test_fault_16_an_idle_claimer_holds_up_nobody(
    db: Any, database: str, queues: list[str] | None
) -> None:
    endpoint = db.vend("a", ("inbox", "other"))
    one = "select id from switchboard.claim_next(%s, 'w', %s)"
    all_ = "select id from switchboard.claim_batch(%s, 'w', 100, %s)"
    with sessions(database, 2, lock_timeout="100ms") as (idle, other):
        idle.clock(START)
        made = [row["id"] for row in idle.rows(CREATE_MANY, endpoint.id, Jsonb(many(20)))]
        idle.rows("begin")
        assert idle.row(one, endpoint.id, queues)["id"] == made[0]
        other.clock(LATER)
        assert other.refused(CLAIM, endpoint.id, made[0]) == "SB409"
        assert other.row(one, endpoint.id, queues)["id"] == made[1]
        assert [row["id"] for row in other.rows(all_, endpoint.id, queues)] == made[2:]
        assert other.rows(one, endpoint.id, queues) == []
        swept = other.row("select switchboard.tick()")["tick"]
        assert not [count for count in swept.values() if isinstance(count, str)], swept
        idle.rows("rollback")
        assert other.row(one, endpoint.id, queues)["id"] == made[0]


def test_a_doorbell_never_makes_a_claim_miss_what_is_there(db: Any, database: str) -> None:
    """It locks what it marks; a claim that comes then has to look again."""
    endpoint = db.vend("a")
    create = "select id from switchboard.create_todo(%s, 'inbox', 't', p_max_attempts => 100)"
    todos = [str(db.value(create, endpoint.id)) for _ in range(6)]
    claimed = 0

    def ring(session: Session) -> int:
        rung = 0
        while claimed < 180:
            # Each claim and release lets a todo ring anew.
            query = (  # the marks stay locked for a millisecond more
                "with bells as materialized (select from switchboard.take_doorbells(%s, 10))"
                " select count(*) as rung, pg_sleep(0.001) from bells"
            )
            rung += int(session.row(query, endpoint.id)["rung"])
        return rung

    def claim(session: Session) -> None:
        nonlocal claimed
        try:
            for number in range(180):
                if number % 2:
                    row = session.row(CLAIM, endpoint.id, todos[number % 6])
                else:
                    row = session.row(CLAIM_NEXT, endpoint.id, "w")
                session.row("select switchboard.release(%s, %s, 'w')", endpoint.id, row["id"])
                claimed += 1
        finally:
            claimed = 180

    assert together(database, [ring, claim])[0] > 50
