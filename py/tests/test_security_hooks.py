"""Calls to hooks: each attempt is dated anew, under the one id. Rule o12 of docs/faults.md."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

import pytest
from conftest import Endpoint, Sql, until
from hook_kit import Hook, allowing
from intake_kit import set_clock
from test_dispatcher import START, Looks, Receive, Serve, alpha, clock, quick, receive, settled

from switchboard import dispatcher

__all__ = ["alpha", "quick", "receive"]


def test_rule_o12_each_attempt_is_dated_anew_under_one_id(
    serve: Serve,
    db: Sql,
    alpha: Endpoint,
    receive: Receive,
    quick: Looks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A receiver that takes nothing older than five minutes takes the third attempt, too."""
    ticks = itertools.count(int(time.time()) - 200, 100)
    turned = SimpleNamespace(**{**vars(time), "time": lambda: next(ticks)})
    monkeypatch.setattr(dispatcher, "time", turned)
    receiver = receive(500)
    set_clock(db, START)
    hook = Hook(serve(**allowing(receiver)), alpha, receiver)
    todo = db.create(alpha, "work")
    for attempt in (1, 2):
        row = until(settled(db, todo, attempt), f"attempt {attempt} is settled")
        clock(db, row["due_at"].timestamp() - START)
    until(settled(db, todo, 3), "attempt 3 is settled")
    calls = receiver.of(todo)
    dates = [int(call.headers["webhook-timestamp"]) for call in calls]
    assert len(dates) == 3
    assert [later - earlier for earlier, later in itertools.pairwise(dates)] == [100, 100]
    assert len({call.id for call in calls}) == 1
    for call in calls:
        call.verify(hook.secret)
