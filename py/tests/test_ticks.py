"""Two ticks at once, and one that is three hours late: as if one had come in time (fault 55).

One database with something for every sweep is copied. In one copy a single tick comes in time;
what that leaves is what many at once, or repeated ones, have to leave as well. A late one has to
end where ticks in time would have ended, and to say once what they would have said several times.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from conftest import Sql, fresh, until

SESSIONS = 8
ROUNDS = 3
# What sweeps write, without times and without ids that differ between copies.
LEFT = {
    "todos": "select id, state, attempt, owner, due_at is null as settled from todos",
    "attempts": "select todo_id, seq, outcome, state from todo_attempts",
    "counters": "select queue, outcome, state, attempt, total from attempt_totals",
    "created": "select queue, source, total from created_totals",
    "calls": "select hook_id, todo_id, queue, reason from notify_deliveries",
    "nudges": "select queue, nudges from queue_stall_nudges",
    "windows": "select used from admission_windows",
    "owed": "select count(*) from admission_owed",
}


def set_up(db: Sql) -> None:
    """Something for every sweep: lapsed leases, due retries, an endpoint that is over, a stall."""
    db.rows("update switchboard.settings set is_test = true, test_now = '2026-03-02T12:00Z'")
    agent, over = db.vend("agent", ("q", "r", "s", "b")), db.vend("over")
    hook = "select from switchboard.create_notify_hook(%s, %s, %s, '\\x01')"
    db.rows(hook, agent.id, "https://one.example", ["q", "s", "b"])
    db.rows(hook, agent.id, "https://two.example", ["q", "r"])
    policy = {"max_claims_per_window": 1, "window": {"period": "hour", "tz": "UTC"}}
    budget = "select switchboard.set_admission_policy(%s, 'b', %s)"
    db.value(budget, agent.id, json.dumps(policy))
    for queue, count in (("q", 12), ("r", 6), ("s", 3), ("b", 3)):
        items = [{"queue": queue, "title": f"{queue}{n}"} for n in range(count)]
        db.rows("select switchboard.create_todos(%s, %s)", agent.id, json.dumps(items))
    for number in range(4):
        db.create(over, f"over {number}")
    batch = "select id::text from switchboard.claim_batch(%s, 'w', %s, %s, %s)"
    db.rows(batch, agent.id, 12, ["q"], 60)
    for row in db.rows(batch, agent.id, 6, ["r"], 60):
        fail = "select from switchboard.fail(%s, %s, 'w')"
        db.rows(fail, agent.id, row["id"])
    (held,) = db.rows(batch, agent.id, 1, ["b"], 86400)
    db.rows("select from switchboard.complete(%s, %s, 'w')", agent.id, held["id"])
    db.rows("update switchboard.endpoints set expires_at = '2026-03-02T12:00:10Z' where id = %s",
            over.id)  # fmt: skip
    # What waits for hooks so far has been called: only sweeps make calls from here on.
    db.rows("delete from switchboard.notify_deliveries")


@pytest.fixture(scope="module")
def prepared(cluster_url: str, template: str) -> Iterator[str]:
    with fresh(cluster_url, template) as (name, dsn):
        db = Sql(dsn)
        with db.connection:
            set_up(db)
        yield name


@contextmanager
def copy(cluster_url: str, prepared: str) -> Iterator[Sql]:
    with fresh(cluster_url, prepared) as (_, dsn):
        db = Sql(dsn)
        with db.connection:
            yield db


def wait(db: Sql, time: str) -> None:
    db.rows("update switchboard.settings set test_now = test_now + %s::interval", time)


def tick(db: Sql) -> dict[str, Any]:
    swept: dict[str, Any] = db.value("select switchboard.tick()")
    assert not [name for name, count in swept.items() if str(count).startswith("error")], swept
    return swept


def left(db: Sql) -> dict[str, list[str]]:
    """What is in the tables, each in an order of its own, once the counters have caught up.

    What ended beside an open transaction of whatever database is counted by a later fold.
    """

    def counted() -> bool:
        db.rows("select switchboard.fold_attempts(), switchboard.fold_created()")
        return not db.value(
            "select exists (select from switchboard.todo_attempts a, switchboard.attempt_fold f"
            " where a.xid >= f.folded_to) or exists (select from switchboard.todos t,"
            " switchboard.created_fold f where t.id >= f.folded_to)"
        )

    until(counted, "every attempt is counted")
    db.rows("set search_path = switchboard")
    found = {name: sorted(map(str, db.rows(query))) for name, query in LEFT.items()}
    db.rows("reset search_path")
    return found


def at_once(db: Sql) -> None:
    """Tick from many sessions that begin together, several times."""
    start, failed = threading.Barrier(SESSIONS), list[Exception]()

    def run() -> None:
        one = Sql(db.dsn)
        with one.connection:
            try:
                for _ in range(ROUNDS):
                    start.wait(30)
                    tick(one)
            except Exception as error:
                failed.append(error)
                start.abort()

    threads = [threading.Thread(target=run) for _ in range(SESSIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed


def test_fault_55_many_ticks_at_once_do_what_one_does(cluster_url: str, prepared: str) -> None:
    with copy(cluster_url, prepared) as once, copy(cluster_url, prepared) as many:
        for db in (once, many):
            wait(db, "6 minutes")
        swept = tick(once)
        expected = {"reap_expired": 12, "requeue_due_retries": 6, "retire_endpoints": 4}
        assert {name: swept[name] for name in expected} == expected
        assert swept["sweep_stalled"] > 0
        at_once(many)
        in_time = left(once)
        # A nudge looks at what is pending: beside another sweep it may come a tick later.
        for name, rows in left(many).items():
            if name in ("calls", "nudges"):
                assert set(rows) <= set(in_time[name])
                assert len(rows) == len(set(rows)), "nothing is said twice"
            else:
                assert rows == in_time[name]
        # Half a minute later: nothing else is left to do, nothing is said again.
        for db in (once, many):
            wait(db, "30 seconds")
        tick(once)
        at_once(many)
        assert left(many) == left(once) == in_time


def test_fault_55_a_tick_that_is_three_hours_late(cluster_url: str, prepared: str) -> None:
    with copy(cluster_url, prepared) as punctual, copy(cluster_url, prepared) as late:
        for _ in range(36):
            wait(punctual, "5 minutes")
            tick(punctual)
        wait(late, "3 hours")
        tick(late)
        ended, at_last = left(punctual), left(late)
        told = {name: ended.pop(name) for name in ("calls", "nudges")}
        at_last.pop("calls"), at_last.pop("nudges")
        assert at_last == ended, "rows and counters are those of ticks in time"
        stalled = "select queue, hook_id, count(*) as calls from switchboard.notify_deliveries"
        nudged = late.rows(f"{stalled} where reason = 'stalled' group by 1, 2")
        assert nudged, "it says that nothing moves"
        assert {row["calls"] for row in nudged} == {1}, "once, not once for each that was missed"
        assert len(told["calls"]) > len(left(late)["calls"])
        before = left(late)
        assert tick(late) == {}, "another one finds nothing"
        wait(late, "30 seconds")
        swept = tick(late)
        assert swept["reap_expired"] == swept["requeue_due_retries"] == swept["sweep_stalled"] == 0
        at_once(late)
        assert left(late) == before
