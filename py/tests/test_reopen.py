"""Budgets and wakes over HTTP: none for what cannot be claimed, one for all when it can."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bell_kit import Ears
from conftest import Endpoint, Served, Sql
from hook_kit import Hook, allowing, receiving

DAY = {"period": "day", "tz": "UTC"}
ONE_A_DAY = {"max_claims_per_window": 1, "window": DAY}
ONE_AT_ONCE = {"max_in_flight": 1}
VERBS = ["claim_next", "claim", "complete", "fail", "release"]
NOON = datetime(2030, 5, 6, 12, tzinfo=UTC)
Until = Callable[..., None]


def budget(db: Sql, endpoint: Endpoint, policy: dict[str, Any]) -> None:
    db.value(
        "select switchboard.set_admission_policy(%s, 'inbox', %s, %s)",
        endpoint.id,
        json.dumps(policy),
        db.human,
    )


def clock(db: Sql, moment: datetime | None) -> None:
    """Every session of this database reads this time, the server's too."""
    db.rows("update switchboard.settings set is_test = %s, test_now = %s", bool(moment), moment)


@pytest.fixture
def alpha(db: Sql) -> Endpoint:
    return db.vend("alpha", verbs=VERBS)


@pytest.fixture
def ears(served: Served, alpha: Endpoint) -> Iterator[Ears]:
    served.wait_listening()
    hearing = Ears(served, alpha)
    yield hearing
    hearing.close()


def test_a_slot_that_frees_rings_for_the_oldest_that_waits(
    db: Sql, alpha: Endpoint, ears: Ears
) -> None:
    budget(db, alpha, ONE_AT_ONCE)
    first = db.create(alpha, "first")
    ears.hears(first)
    token = ears.session.call("claim_next")["todo"]["lease_token"]
    second, third = db.create(alpha, "second"), db.create(alpha, "third")
    assert ears.session.call("claim_next")["deferred"][0]["pending"] == 2
    other = db.create(alpha, "what is rung in between")  # a round trip, in which nothing rings
    assert not {second, third, other} & set(ears.ids)
    ears.session.call("complete", id=first, lease_token=token)
    ears.hears(second)


@pytest.mark.parametrize("how", ["raised", "cleared"])
def test_a_policy_that_changes_rings_at_once(
    db: Sql, alpha: Endpoint, ears: Ears, until: Until, how: str
) -> None:
    budget(db, alpha, {"max_in_flight": 0})
    todo = db.create(alpha, "waits")
    assert ears.session.call("claim_next")["deferred"][0]["reason"] == "paused"
    assert ears.bells == []
    if how == "raised":
        budget(db, alpha, ONE_AT_ONCE)
    else:
        args = (alpha.id, db.human)
        db.value("select switchboard.clear_admission_policy(%s, 'inbox', %s)", *args)
    ears.hears(todo)
    assert ears.ids == [todo]


def test_a_window_that_turns_rings_once(
    db: Sql, alpha: Endpoint, served: Served, until: Until
) -> None:
    clock(db, NOON)
    served.wait_listening()
    budget(db, alpha, ONE_A_DAY)
    hearing = Ears(served, alpha)
    try:
        first = db.create(alpha, "first")
        clock(db, NOON + timedelta(seconds=5))
        second = db.create(alpha, "second")
        for todo in (first, second):
            hearing.hears(todo)
        token = hearing.session.call("claim_next")["todo"]["lease_token"]
        hearing.session.call("complete", id=first, lease_token=token)  # or it would be the oldest
        hearing.at.clear()
        hearing.bells.clear()
        clock(db, NOON + timedelta(seconds=10))
        third = db.create(alpha, "third")
        clock(db, NOON + timedelta(hours=11, minutes=59))
        db.value("select switchboard.tick()")
        answer = hearing.session.call("claim_next", wait_seconds=1)
        assert answer["deferred"][0]["next_eligible_at"] == "2030-05-07T00:00:00+00:00"
        assert hearing.bells == [], "neither by the sweep nor by the look of half a minute"
        clock(db, NOON + timedelta(hours=12))
        db.value("select switchboard.tick()")
        hearing.hears(second)
        hearing.hears(third)
        db.value("select switchboard.tick()")
        assert sorted(hearing.ids) == sorted([second, third])
    finally:
        hearing.close()


def test_whoever_attaches_to_a_queue_that_is_shut_hears_nothing_of_it(
    db: Sql, served: Served
) -> None:
    alpha = db.vend("alpha", ("inbox", "mail"), verbs=VERBS)
    budget(db, alpha, {"max_in_flight": 0})
    db.create(alpha, "shut")
    mail = db.create(alpha, "open", "mail")
    served.wait_listening()
    hearing = Ears(served, alpha)
    try:
        hearing.hears(mail)
        assert hearing.ids == [mail]
    finally:
        hearing.close()


def test_a_call_that_waits_gets_the_todo_when_the_queue_reopens(
    db: Sql, alpha: Endpoint, served: Served, until: Until
) -> None:
    budget(db, alpha, {"max_in_flight": 0})
    todo = db.create(alpha, "waits")
    served.wait_listening()
    session = served.session(alpha)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        waits = thread.submit(session.call, "claim_next", wait_seconds=50)
        waiters = served.app.state.waiting._waiters
        until(
            lambda: any(one.asleep for line in list(waiters.values()) for one in list(line)),
            "it waits",
        )
        budget(db, alpha, {"max_in_flight": 2})
        answer = waits.result(30)  # woken, not at its end
    assert answer["todo"]["id"] == todo
    assert answer["admission"] == {"in_flight": 1, "max_in_flight": 2}


def test_a_call_that_waits_in_vain_says_what_is_deferred(
    db: Sql, alpha: Endpoint, served: Served
) -> None:
    budget(db, alpha, {"max_in_flight": 0})
    db.create(alpha, "waits")
    answer = served.session(alpha).call("claim_next", wait_seconds=1)
    assert answer["deferred"] == [
        {"queue": "inbox", "reason": "paused", "pending": 1, "exact": False}
    ]


def test_a_hook_is_called_once_with_the_reason(db: Sql, serve: Any, until: Until) -> None:
    alpha = db.vend("alpha", verbs=[*VERBS, "create_notify_hook"])
    with receiving() as receiver:
        served = serve(**allowing(receiver))
        served.wait_listening()
        Hook(served, alpha, receiver)
        budget(db, alpha, {"max_in_flight": 0})
        todos = [db.create(alpha, f"number {number}") for number in range(3)]
        budget(db, alpha, {"max_in_flight": 5})
        until(lambda: len(receiver.calls) > 0, "a call comes")
        last = db.create(alpha, "the next call comes behind it")
        until(lambda: receiver.of(last), "another call comes")
    assert [(call.todo, call.reason) for call in receiver.calls] == [
        (todos[0], "reopened"),
        (last, "created"),
    ]
