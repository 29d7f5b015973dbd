"""The judge of chaos: made-up histories of which each holds one fault, and the judge names it.

A ``World`` (chaos_world.py) is a small history that is right; a test changes what one of them says.
Nothing here needs a server. That real runs are judged good is for `make chaos`.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from chaos_faults import (
    FAULTS,
    Fault,
    a_code_of_no_scenario,
    an_untold_todo_after_the_told_one,
    more_in_flight,
    two_of_a_delivery_at_once,
)
from chaos_world import ENDPOINT, LEASE, QUEUE, World, at

from chaos import server_log
from chaos.budgets import window_start
from chaos.history import OK, REFUSED, UNKNOWN, HistoryError, Writer, read, read_all
from chaos.processes import Client
from chaos.run import waiting
from chaos.verdict import DUPLICATED, UNEXPECTED, Verdict


@pytest.fixture
def world() -> World:
    return World()


def kinds(verdict: Verdict) -> set[str]:
    return {kind for kind, _ in verdict.violations}


# -- what is right --------------------------------------------------------------------------------


def test_a_plain_life_is_good(world: World) -> None:
    world.done()
    verdict = world.judge()
    assert verdict.good, verdict.violations
    assert (verdict.attempted, verdict.acknowledged, verdict.todos) == (3, 3, 1)


def test_a_stale_holder_is_refused_and_counted(world: World) -> None:
    todo, stale = world.lapsed(3.5)
    fresh = world.claim(todo, 3.5, client="w2")
    world.say(todo, stale, 3.8, end=REFUSED)
    world.end(todo, fresh, 4, client="w2")
    verdict = world.judge()
    assert verdict.good, verdict.violations
    assert (verdict.coverage["stale_refused"], verdict.coverage["lapsed"]) == (1, 1)


@pytest.mark.parametrize("happened", [True, False])
def test_an_unknown_complete_may_have_happened_or_not(world: World, happened: bool) -> None:
    todo = world.todo()
    token = world.claim(todo, 1)
    if happened:
        world.end(todo, token, 1.5, end=UNKNOWN)
        world.say(todo, token, 1.8, end=REFUSED)  # it tries again, and is told so
    else:
        world.say(todo, token, 1.5, end=UNKNOWN)
        world.row(todo, 3.5, "lapsed", "claimed")
        world.end(todo, world.claim(todo, 3.5, client="w2"), 4, client="w2")
    assert world.judge().good, world.judge().violations


@pytest.mark.parametrize("happened", [True, False])
def test_an_unknown_claim_may_have_happened_or_not(world: World, happened: bool) -> None:
    todo = world.todo()
    if happened:
        world.claim(todo, 1, UNKNOWN)
        world.row(todo, 3.5, "lapsed", "claimed")
    else:
        world.call("claim", 1, UNKNOWN, lease=LEASE)
    world.end(todo, world.claim(todo, 3.5, client="w2"), 4, client="w2")
    assert world.judge().good, world.judge().violations


@pytest.mark.parametrize("told", [OK, UNKNOWN])
def test_a_heartbeat_moves_the_end(world: World, told: str) -> None:
    todo = world.todo()
    token = world.claim(todo, 1)
    world.beat(todo, token, 2, told)
    world.row(todo, 4.1, "lapsed", "claimed")
    world.end(todo, world.claim(todo, 4.1, client="w2"), 4.5, client="w2")
    assert world.judge().good, world.judge().violations


def test_what_is_given_back_may_be_claimed_by_a_call_that_began_before(world: World) -> None:
    todo = world.todo()
    world.end(todo, world.claim(todo, 1), 1.5, "release")
    token = world.claim(todo, 1.495, client="w2")  # by its clock; it took 10 ms
    world.end(todo, token, 2, client="w2")
    assert world.judge().good, world.judge().violations


@pytest.mark.parametrize(
    ("op", "state"), [("force_release", "pending"), ("force_complete", "done")]
)
def test_an_operator_overrides_a_holder(world: World, op: str, state: str) -> None:
    todo = world.todo()
    token = world.claim(todo, 1)
    world.call(op, 1.5, client="op", todo=todo["id"])
    world.row(todo, 1.5, "overridden", state)["owner"] = "op:chaos"
    world.say(todo, token, 1.8, end=REFUSED)
    if state == "pending":
        world.end(todo, world.claim(todo, 1.6, client="w2"), 2, client="w2")
    assert world.judge().good, world.judge().violations


def test_a_retry_begins_anew(world: World) -> None:
    todo = world.todo()
    world.end(todo, world.claim(todo, 1), 1.5, "fail")
    world.call("retry", 1.6, todo=todo["id"])
    todo |= {"attempt": 0, "result": None}
    world.end(todo, world.claim(todo, 2), 2.5)
    assert world.judge().good, world.judge().violations


def test_a_batch_is_judged_by_its_parts(world: World) -> None:
    one, two = world.todo(), world.todo()
    tokens = [world.claim(one, 1), world.claim(two, 1)]
    world.row(one, 1.5, "done", "done")
    world.row(two, 3.5, "lapsed", "claimed")
    answer = {
        "todos": [{"id": one["id"], "outcome": "done"}, {"id": two["id"], "outcome": "conflict"}]
    }
    world.call("complete_batch", 1.5, todos=[one["id"], two["id"]], tokens=tokens, answer=answer)
    world.end(two, world.claim(two, 3.5, client="w2"), 4, client="w2")
    verdict = world.judge()
    assert verdict.good, verdict.violations
    assert verdict.coverage["stale_refused"] == 1


@pytest.mark.parametrize("end", [OK, UNKNOWN])
def test_a_key_comes_twice_and_then_again(world: World, end: str) -> None:
    todo, _ = world.done(key="k")
    world.create(todo, 0.5, created=False)
    world.todo(5, key="k", end=end)["completed_at"] = at(6)
    world.facts.todos[-1] |= {"state": "done"}
    world.end(world.facts.todos[-1], world.claim(world.facts.todos[-1], 5.5), 6)
    verdict = world.judge()
    assert verdict.good, verdict.violations
    assert verdict.coverage["dedupe"] == 1


def test_a_delivery_may_find_what_its_own_first_try_made(world: World) -> None:
    """The server asks its database again when it lost the answer."""
    event = {"endpoint_id": ENDPOINT, "id": "v1", "webhook_id": "h", "delivery_id": "d"}
    world.facts.events.append(event)
    todo, _ = world.done(key="h:d", event_id="v1")
    world.calls.pop(0)
    world.create(todo, 0, created=False, op="deliver")
    verdict = world.judge(allows=("unavailable",))
    assert verdict.good, verdict.violations
    assert kinds(world.judge()) == {UNEXPECTED}  # where no answer of the database can be lost


def test_a_delivery_may_be_stored_again_after_it_was_done(world: World) -> None:
    """The server lost the answer, the todo was done meanwhile, and its next try made another."""
    for begun, told in ((0, False), (5, True)):
        todo = world.delivered(begun, told, f"v{begun}")
        world.end(todo, world.claim(todo, begun + 1), begun + 2)
    verdict = world.judge(allows=("unavailable",))
    assert verdict.good, verdict.violations
    assert kinds(world.judge()) == {UNEXPECTED}  # where no answer of the database can be lost


def test_a_twin_explains_what_its_answer_does_not(world: World) -> None:
    todo = world.todo()
    token = world.claim(todo, 1)
    world.end(todo, token, 1.5, end=REFUSED, twice=True)  # the first was done, the second answered
    assert world.judge().good, world.judge().violations


# -- what is not ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "kind"), FAULTS, ids=[f.__name__ for f, _ in FAULTS])
def test_each_fault_is_found(world: World, fault: Fault, kind: str) -> None:
    fault(world)
    verdict = world.judge()
    assert kind in kinds(verdict), verdict.violations


@pytest.mark.parametrize("event", [True, False])
@pytest.mark.parametrize("allows", [(), ("connection", "unavailable")])
def test_two_of_a_delivery_at_once_are_found_wherever(
    world: World, allows: tuple[str, ...], event: bool
) -> None:
    two_of_a_delivery_at_once(world)
    if not event:
        world.facts.todos[1]["event_id"] = None
        world.facts.events.pop()
    assert kinds(world.judge(allows)) >= {DUPLICATED, UNEXPECTED}


def test_an_untold_todo_after_the_told_one_is_found_wherever(world: World) -> None:
    an_untold_todo_after_the_told_one(world)
    assert kinds(world.judge(allows=("connection",))) == {UNEXPECTED}


def test_two_with_a_key_whose_second_answer_was_lost_are_found(world: World) -> None:
    """Nobody was told of the second, but its call was over soon, and both live on."""
    todos = [world.todo(0, key="k"), world.todo(1, key="k")]
    world.calls[1].end, world.calls[1].code, world.calls[1].answer = UNKNOWN, "connection", {}
    for todo in todos:
        world.end(todo, world.claim(todo, 5), 6)
    assert kinds(world.judge(allows=("connection",))) == {DUPLICATED}


def test_what_a_scenario_allows_is_no_fault(world: World) -> None:
    a_code_of_no_scenario(world)
    verdict = world.judge(allows=("serialization",))
    assert verdict.good, verdict.violations
    assert verdict.coverage["serialization"] == 1


def test_budgets_are_judged_until_they_are_raised(world: World) -> None:
    more_in_flight(world)
    world.facts.raised_at = at(1.05)
    verdict = world.judge()
    assert verdict.good, verdict.violations
    assert verdict.most_in_flight == {QUEUE: 1}


@pytest.mark.parametrize(
    ("window", "moment", "start"),
    [
        ("hour UTC 00:15", "2026-03-01T12:10Z", "2026-03-01T11:15Z"),
        ("day Europe/Berlin 02:30", "2026-03-29T12:00Z", "2026-03-29T01:00Z"),
        ("day Europe/Berlin 00:00", "2026-10-25T22:59Z", "2026-10-24T22:00Z"),
        ("week America/New_York 00:00 Mon", "2026-03-09T03:00Z", "2026-03-02T05:00Z"),
    ],
)
def test_windows_follow_the_local_clock(window: str, moment: str, start: str) -> None:
    named = dict(zip(("period", "tz", "start", "weekday"), window.split(), strict=False))
    assert window_start(named, datetime.fromisoformat(moment)) == datetime.fromisoformat(start)


# -- beside histories ----------------------------------------------------------------------------


def test_an_error_in_the_log_of_the_server_is_found_once() -> None:
    error = json.dumps({"level": "error", "event": "request failed"})
    fine = json.dumps({"level": "warning", "event": "tick failed: an error"})
    lines = ["Switchboard serves http://127.0.0.1:1", fine, error, error, error[:30]]
    verdict = Verdict()
    server_log.judge(lines, (), verdict)
    assert [kind for kind, _ in verdict.violations] == [UNEXPECTED]
    for told in ("Traceback (most recent call last):", json.dumps({"level": "critical"})):
        verdict = Verdict()
        server_log.judge([fine, told], (), verdict)
        assert kinds(verdict) == {UNEXPECTED}
    verdict = Verdict()
    server_log.judge(lines, ("request fail",), verdict)
    assert (verdict.violations, verdict.coverage["logged"]) == ([], 2)


def test_who_is_not_served_is_found(tmp_path: Path) -> None:
    clients = [Client(tmp_path, name, "sql-worker", {}) for name in ("served", "refused", "hung")]
    writers = [Writer(client.history, client.name, client.name) for client in clients]
    calls = [writer.begin("claim", lease=1) for writer in writers]
    sizes = [client.size for client in clients]
    assert waiting(clients, 0.1) == clients
    writers[0].end(calls[0], OK, answer={"todos": []})
    writers[1].end(calls[1], REFUSED, "conflict")
    ended = [c.ended_a_call(size) for c, size in zip(clients, sizes, strict=True)]
    served = [c.ended_a_call(size, b'"end":"ok"') for c, size in zip(clients, sizes, strict=True)]
    assert (ended, served) == ([True, True, False], [True, False, False])


# -- histories ------------------------------------------------------------------------------------


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "w1.jsonl", "w1", "w1")
    for end in (OK, REFUSED, UNKNOWN):
        writer.end(writer.begin("claim", lease=1), end, "" if end == OK else "why", {"todos": []})
    writer.begin("complete", todo="t")
    calls = read_all(tmp_path)
    assert [(c.n, c.op, c.end, c.code) for c in calls] == [
        (1, "claim", OK, ""), (2, "claim", REFUSED, "why"), (3, "claim", UNKNOWN, "why"),
        (4, "complete", UNKNOWN, "killed"),
    ]  # fmt: skip
    assert calls[3].ended is None
    assert calls[3].span == float("inf")
    assert [c.may_have_happened for c in calls] == [True, False, True, True]


def test_kill_9_leaves_a_readable_history_wherever_it_hits(tmp_path: Path) -> None:
    path = tmp_path / "w1.jsonl"
    first = Writer(path, "w1", "w1")
    first.end(first.begin("claim", lease=1), OK, answer={"todos": []})
    whole = path.read_bytes()
    for length in range(len(whole) - 1):  # the last byte ends a line that is whole without it
        path.write_bytes(whole[:length])
        again = Writer(path, "w1", "w1")
        again.end(again.begin("release", todo="t"), REFUSED, "conflict")
        calls = read_all(tmp_path)
        assert [c.op for c in calls if c.run == again.run] == ["release"]
        assert len(calls) in (1, 2)
        assert {c.end for c in calls if c.op == "claim"} <= {UNKNOWN}


def test_what_no_client_can_have_written_is_refused(tmp_path: Path) -> None:
    head = json.dumps({"run": "r", "client": "w", "owner": "w"})
    call = json.dumps({"n": 1, "at": 1, "op": "claim", "args": {}})
    end = json.dumps({"n": 2, "at": 2, "end": OK})
    for lines in ([head, call[:9], call], [head, call, end], [head, end]):
        with pytest.raises(HistoryError):
            read(lines)
