"""Budgets in a storm: real sessions at full speed claim against limits that nothing may exceed.

What a race must come to in one certain order is told by db/tests/isolation; here are the numbers.
SWITCHBOARD_ADMISSION_ROUNDS (3) says how often fifty sessions race for ten claims, at each level,
without and with kills; fifty mixed steps, and a thousand at the least, are taken a round. 200 is
what issue 5 asks for.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from chaos_budgets import BATCH, BY_ID, LEVELS, NEXT, OVER, SPENT, Claimer, set_budget
from chaos_sessions import CLAIM_NEXT, Conflict, Row, Session, each, many, sessions, together
from psycopg.types.json import Jsonb

ROUNDS = int(os.environ.get("SWITCHBOARD_ADMISSION_ROUNDS", "3"))
MIXED = max(1000, ROUNDS * 50)
SESSIONS, LIMIT = 50, 10
START = datetime(2030, 1, 1, 12, tzinfo=UTC)
CREATE_MANY = "select id from switchboard.create_todos(%s, %s)"
CLEAR = "select switchboard.clear_admission_policy(%s, %s)"
SET_CLOCK = "update switchboard.settings set is_test = true, test_now = %s"
SWEEPS = (
    "select switchboard.tick()",
    "select switchboard.reap_expired()",
    "select switchboard.requeue_due_retries()",
)
WANTED = (
    "claimed",
    "took over",
    "completed",
    "failed",
    "released",
    "refused",
    "lost a race",
    "policies",
    "watched",
)
USED = (
    "select coalesce((select sum(used) from switchboard.admission_windows), 0)::integer as used,"
    " (select charged from switchboard.admission_policies) as charged,"
    " (select count(*) from switchboard.todos where state = 'claimed') as held"
)

pytestmark = pytest.mark.timeout(ROUNDS * 20 + 120)


def wrong(db: Any, *queues: str) -> list[str]:
    rows = db.connection.execute(SPENT, {"queues": list(queues)}).fetchall()
    return [row["wrong"] for row in rows]


def connect(stack: contextlib.ExitStack, database: str) -> Session:
    session = Session(database)
    stack.callback(session.connection.close)
    return session


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kills", [False, True], ids=["in peace", "a third is killed"])
def test_fault_24_fifty_sessions_race_for_ten_claims(
    database: str, db: Any, level: str, kills: bool
) -> None:
    """A window a round: never 11, always 10; every charge is a claim, every claim a charge."""
    endpoint = db.vend("a").id
    set_budget(db, endpoint, "inbox", LIMIT)
    dice, seen = random.Random(level), Counter[str]()
    with contextlib.ExitStack() as stack:
        claimers = [
            Claimer(connect(stack, database), endpoint, f"{level} {n}") for n in range(SESSIONS)
        ]
        for number in range(ROUNDS):
            db.rows(SET_CLOCK, START + timedelta(days=number))
            db.rows(CREATE_MANY, endpoint, Jsonb(many(SESSIONS)))
            doomed = dice.sample(claimers, SESSIONS // 3) if kills else []
            acknowledged = race(db, claimers, level, doomed, seen)
            used = db.value(
                "select used from switchboard.admission_windows order by window_start desc limit 1"
            )
            assert used == LIMIT, f"round {number}"
            assert wrong(db, "inbox") == [], f"round {number}"
            assert acknowledged == LIMIT or (kills and acknowledged < LIMIT), f"round {number}"
            for table in ("todos", "todo_attempts", "admission_windows"):
                db.rows(f"truncate switchboard.{table}")
            db.rows("update switchboard.admission_policies set charged = 0")
            for claimer in doomed:
                claimer.session = connect(stack, database)
            seen["rounds"] += 1
            seen["not acknowledged"] += LIMIT - acknowledged
    seen["40001"] = sum(claimer.again for claimer in claimers)
    sys.stdout.write(f"{level}, {'with' if kills else 'no'} kills: {dict(seen)}\n")


def race(
    db: Any, claimers: list[Claimer], level: str, doomed: list[Claimer], seen: Counter[str]
) -> int:
    """One round: everybody claims until the budget is spent; how many claims were acknowledged."""
    over = threading.Event()
    acknowledged: list[int] = []

    def claim(claimer: Claimer) -> Callable[[Session], None]:
        def work(_: Session) -> None:
            claimer.before_commit = lambda _: time.sleep(claimer.dice.random() * 0.002)
            try:
                while not over.is_set():
                    rows = claimer.try_once(["inbox"], level)
                    acknowledged.append(len(rows or []))
                    if rows == [] and claimer.session.rows(
                        "select 1 from switchboard.deferred_queues(%s)", claimer.endpoint
                    ):
                        return
            except psycopg.OperationalError:
                assert claimer in doomed, "nobody ended this one"
                seen["killed"] += 1

        return work

    def kill(_: Session) -> None:
        for claimer in doomed:
            time.sleep(dice.random() * 0.004)
            db.rows("select pg_terminate_backend(%s)", claimer.session.connection.info.backend_pid)

    dice = random.Random(len(seen))
    each([c.session for c in claimers] + [db], *[claim(c) for c in claimers], kill)
    return sum(acknowledged)


def test_mixed_queues_never_exceed_their_budgets_and_never_deadlock(db: Any, database: str) -> None:
    """Every way to claim and to end it; leases lapse, windows turn, policies change."""
    queues = ("a", "b", "c", "d", "e")
    endpoint = db.vend("a", queues).id
    db.rows(SET_CLOCK, START)
    set_budget(db, endpoint, "a", 30, 3, period="hour")
    set_budget(db, endpoint, "b", None, 2)
    set_budget(db, endpoint, "c", 20, period="hour")
    set_budget(db, endpoint, "e", 5, 2, period="hour")  # d has one at times; that of e changes
    seen: Counter[str] = Counter()
    left = iter(range(MIXED))
    ends = threading.Event()
    days = iter(range(10**9))

    def work(number: int) -> Callable[[Session], None]:
        def run(own: Session) -> None:
            claimer = Claimer(own, endpoint, number, f"w{number}")
            held: list[Row] = []
            try:
                for n in left:
                    if n % 20 == 0:
                        own.rows(SET_CLOCK, START + timedelta(seconds=next(days) * 97))
                    if n % 50 == 1:
                        own.rows(claimer.dice.choice(SWEEPS))
                        seen["sweeps"] += 1
                    if n % 50 == 2:
                        change(own, endpoint, claimer.dice)
                        seen["policies"] += 1
                    if n % 200 == 0:
                        tries = claimer.dice.choice([1, 3, 100])
                        elements = [e for q in queues for e in many(40, q, max_attempts=tries)]
                        own.rows(CREATE_MANY, endpoint, Jsonb(elements))
                    mix(claimer, held, queues, seen)
            finally:
                ends.set()

        return run

    def watch(own: Session) -> None:
        while not ends.wait(0.005):
            assert wrong(own, "a", "b", "c") == []
            seen["watched"] += 1

    began = time.monotonic()
    together(database, [*[work(n) for n in range(16)], watch])
    assert wrong(db, "a", "b", "c") == []
    windows = db.value("select count(*) from switchboard.admission_windows")
    took = time.monotonic() - began
    sys.stdout.write(f"mixed, {took:.1f} s, {windows} windows: {dict(sorted(seen.items()))}\n")
    assert [kind for kind in WANTED if not seen[kind]] == []


def change(own: Session, endpoint: str, dice: random.Random) -> None:
    """The owner changes its mind: d has a budget or none; that of e is another one, or set anew."""
    if dice.random() < 0.4:
        if own.rows("select 1 from switchboard.admission_status(%s, 'd')", endpoint):
            own.refused(CLEAR, endpoint, "d")  # somebody else may have
        else:
            set_budget(own, endpoint, "d", None, dice.choice([0, 1, 5]))
        return
    with own.connection.transaction():
        if dice.random() < 0.5:
            own.refused(CLEAR, endpoint, "e")
        limits = dice.choice([(0, None), (3, 0), (3, 2), (9, 1), (None, 4), (None, 1)])
        set_budget(own, endpoint, "e", *limits, period="hour")


def mix(claimer: Claimer, held: list[Row], queues: tuple[str, ...], seen: Counter[str]) -> None:
    """One transaction of a worker: it claims, or ends something that it holds."""
    dice, own = claimer.dice, claimer.session
    if held and dice.random() < 0.5:
        todo = held.pop(dice.randrange(len(held)))
        how = dice.choice(["complete", "complete", "fail", "release", "heartbeat", None])
        if how is None:  # it goes away
            return
        token = todo["lease_token"]
        with contextlib.suppress(Conflict):
            own.rows(
                f"select * from switchboard.{how}(%s, %s, %s, p_lease_token => %s)",
                claimer.endpoint,
                todo["id"],
                todo["owner"],
                token,
            )
            seen[
                {"complete": "completed", "fail": "failed", "release": "released"}.get(
                    how, "renewed"
                )
            ] += 1
            if how == "heartbeat":
                held.append(todo)
        return
    level = dice.choice(["read committed"] * 3 + ["repeatable read", "serializable"])
    chosen = dice.sample(queues, dice.randint(1, 5))
    claimer.lease = dice.choice([1, 30, 60, 600])
    claimer.before_commit = lambda rows: none_over(own, rows)
    rows = claimer.try_once(chosen, level)
    seen["lost a race" if rows is None else "claimed" if rows else "refused"] += 1
    for row in rows or []:
        seen["todos"] += 1
        seen["took over"] += row["attempt"] > 1
        held.append(row)
    own.connection.isolation_level = LEVELS["read committed"]


def none_over(own: Session, rows: list[Row]) -> None:
    """Asked in the transaction of a claim: nobody else is past the gate of these queues."""
    assert not [row for row in rows if row["queue"] != "d" and not row["admission"]], "past a gate"
    over = own.rows(OVER, [row["queue"] for row in rows if row["queue"] != "d"])
    assert over == [], over


def test_fault_25_both_holders_are_killed_and_no_slot_leaks(db: Any, database: str) -> None:
    endpoint = db.vend("a").id
    set_budget(db, endpoint, "inbox", None, 2)
    db.rows(SET_CLOCK, START)
    db.rows(CREATE_MANY, endpoint, Jsonb(many(40)))
    with sessions(database, 2) as holders:
        held = {h.row(NEXT, endpoint, "holder", None, 60)["id"] for h in holders}
        for holder in holders:
            db.rows("select pg_terminate_backend(%s)", holder.connection.info.backend_pid)
    claims = [
        lambda s: s.rows(NEXT, endpoint, "w", None, 60),
        lambda s: s.rows(BATCH, endpoint, "w", 9, None, 60),
    ] * 6
    for attempt in range(2, 7):
        assert together(database, claims) == [[]] * 12, "while the leases last, nobody gets in"
        db.rows(SET_CLOCK, START + timedelta(seconds=61 * (attempt - 1)))
        if attempt == 6:  # no attempts are left: the sweep frees the slots
            assert together(database, claims) == [[]] * 12
            db.rows("select switchboard.tick()")
        taken = [row for rows in together(database, claims) for row in rows]
        assert len(taken) == 2
        assert ({row["id"] for row in taken} == held) is (attempt < 6)
        assert [row["attempt"] for row in taken] == [attempt if attempt < 6 else 1] * 2
        assert wrong(db, "inbox") == []


def test_fault_26_a_full_queue_at_the_head_hides_nothing(db: Any, database: str) -> None:
    """Claims go on, and none comes back empty while there is admitted work."""
    endpoint = db.vend("a", ("full", "open", "spent")).id
    set_budget(db, endpoint, "full", None, 1)
    set_budget(db, endpoint, "spent", 1)
    for queue in ("full", "spent"):
        db.rows(CREATE_MANY, endpoint, Jsonb(many(300, queue)))
        assert db.rows(NEXT, endpoint, "holder", [queue], None)
    db.rows(CREATE_MANY, endpoint, Jsonb(many(200, "open")))

    def drain(session: Session) -> list[str]:
        taken: list[str] = []
        while rows := session.rows(CLAIM_NEXT, endpoint, "w"):
            taken += [row["queue"] for row in rows]
        return taken

    taken = [queue for queues in together(database, [drain] * 8) for queue in queues]
    assert taken == ["open"] * 200


def test_fault_27_nothing_is_charged_when_no_claim_commits(db: Any, database: str) -> None:
    """Refused, rolled back, timed out, cancelled, killed: nothing spent, nothing locked."""
    endpoint = db.vend("a").id
    set_budget(db, endpoint, "inbox", 1000, 1)
    made = [str(row["id"]) for row in db.rows(CREATE_MANY, endpoint, Jsonb(many(30)))]
    first = db.row(CLAIM_NEXT, endpoint, "holder")
    held = {"used": 1, "charged": 1, "held": 1}
    with sessions(database, 1, lock_timeout="500ms") as (own,):
        for query, params in ((NEXT, ("w", None, None)), (BATCH, ("w", 9, None, None))):
            assert own.rows(query, endpoint, *params) == []
        assert own.refused(BY_ID, endpoint, made[-1], "w", None) == "SB429"
        assert db.row(USED) == held, "refused"
        db.rows("select switchboard.complete(%s, %s, 'holder')", endpoint, str(first["id"]))
        held["held"] = 0
        for query, params in (
            (NEXT, ("w", None, None)),
            (BATCH, ("w", 9, None, None)),
            (BY_ID, (made[-1], "w", None)),
        ):
            own.rows("begin")
            assert own.rows(query, endpoint, *params)
            own.rows("rollback")
            assert db.row(USED) == held, "rolled back"
    for end in (timed_out, cancelled, killed):
        for query, params in (
            (NEXT, ("w", None, None)),
            (BATCH, ("w", 9, None, None)),
            (BY_ID, (made[-1], "w", None)),
        ):
            with sessions(database, 2) as (gate, other):
                gate.rows("begin")  # it is at the gate, and waits there
                gate.rows("select from switchboard.admission_policies for no key update")
                end(db, other, lambda s, q=query, p=params: s.rows(q, endpoint, *p))
                gate.rows("rollback")
            assert db.row(USED) == held, end.__name__
    with sessions(database, 1, lock_timeout="500ms") as (own,):
        assert own.rows(CLAIM_NEXT, endpoint, "w"), "nothing is locked"
    assert wrong(db, "inbox") == []


def timed_out(_: Any, other: Session, claim: Callable[[Session], object]) -> None:
    other.rows("set statement_timeout = '60ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        claim(other)


def cancelled(_: Any, other: Session, claim: Callable[[Session], object]) -> None:
    threading.Timer(0.06, other.connection.cancel_safe).start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        claim(other)


def killed(db: Any, other: Session, claim: Callable[[Session], object]) -> None:
    pid = other.connection.info.backend_pid
    threading.Timer(0.06, lambda: db.rows("select pg_terminate_backend(%s)", pid)).start()
    with pytest.raises(psycopg.OperationalError):
        claim(other)


def test_fault_27_a_claim_cut_short_at_any_point_charges_nothing(db: Any, database: str) -> None:
    """By statement_timeout just under the time of a batch: used is what was committed, always."""
    endpoint = db.vend("a").id
    set_budget(db, endpoint, "inbox", 1_000_000, 10_000, period="day")
    db.rows(SET_CLOCK, START)
    db.rows(CREATE_MANY, endpoint, Jsonb(many(2500)))
    acknowledged, cut, dice = 0, 0, random.Random(27)
    with sessions(database, 1) as (own,):
        began = time.monotonic()
        acknowledged += len(own.rows(BATCH, endpoint, "w", 50, None, None))
        longest = max(2, int((time.monotonic() - began) * 1000))
        for _ in range(40):
            try:
                with own.connection.transaction():
                    own.rows(
                        "select set_config('statement_timeout', %s, true)",
                        str(dice.randint(1, longest)),
                    )
                    taken = len(own.rows(BATCH, endpoint, "w", 50, None, None))
                acknowledged += taken
            except psycopg.errors.QueryCanceled:
                cut += 1
            spent = {"used": acknowledged, "charged": acknowledged, "held": acknowledged}
            assert db.row(USED) == spent
    assert 3 <= cut < 40, "the timeouts did not fit the time of a claim"
