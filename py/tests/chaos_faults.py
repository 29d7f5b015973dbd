"""What may be wrong in a run of chaos, one fault each, made on a ``World`` that is right.

Each belongs to the kind of violation that the judge has to name; test_chaos_history.py asks it.
"""

from __future__ import annotations

from collections.abc import Callable

from chaos_world import ENDPOINT, LEASE, QUEUE, START, World, at

from chaos.history import REFUSED, UNKNOWN
from chaos.verdict import BUDGET, DUPLICATED, LOST, OVERLAP, STALE, UNEXPECTED

Fault = Callable[[World], None]
FAULTS: list[tuple[Fault, str]] = []


def fault(kind: str) -> Callable[[Fault], Fault]:
    """What the decorated function does to a world is a fault of this kind."""

    def register(function: Fault) -> Fault:
        FAULTS.append((function, kind))
        return function

    return register


@fault(LOST)
def lost_create(world: World) -> None:
    world.facts.todos.remove(world.todo())


@fault(LOST)
def lost_claim(world: World) -> None:
    world.done()
    world.facts.attempts[0]["claimed_at"] = at(1.1)


@fault(LOST)
def lost_complete(world: World) -> None:
    todo, token = world.lapsed(3.5, "failed")
    todo |= {"max_attempts": 1, "completed_at": at(3.5)}
    world.say(todo, token, 1.5)
    world.facts.attempts[0]["outcome"] = "failed"
    world.say(todo, token, 3.5, "fail", UNKNOWN)


@fault(LOST)
def lost_result(world: World) -> None:
    world.done()[0]["result"] = {"token": "another"}


@fault(LOST)
def lost_attempt(world: World) -> None:
    todo, _ = world.lapsed()
    world.facts.attempts.clear()
    world.end(todo, world.claim(todo, 3.5, client="w2"), 4, client="w2")


@fault(LOST)
def lost_delivery(world: World) -> None:
    todo, _ = world.done(key="h:d", event_id="v1")
    world.create(todo, 0.1, created=False, op="deliver")


@fault(LOST)
def lost_retry(world: World) -> None:
    todo = world.todo()
    world.end(todo, world.claim(todo, 1), 1.5, "fail")
    world.call("retry", 1.6, todo=todo["id"])
    world.end(todo, world.claim(todo, 40), 41)


@fault(LOST)
def found_what_was_done(world: World) -> None:
    todo, _ = world.done(key="k")
    world.create(todo, 5, created=False)


@fault(DUPLICATED)
def done_twice(world: World) -> None:
    todo, _ = world.done()
    world.end(todo, world.claim(todo, 5, client="w2"), 6, client="w2")


@fault(DUPLICATED)
def two_live_todos_of_one_key(world: World) -> None:
    world.done(key="k")
    world.done(0.5, key="k")


@fault(DUPLICATED)
def one_lease_for_two(world: World) -> None:
    world.done()
    world.call("claim", 1.2, client="w2", lease=LEASE, answer=world.calls[1].answer)


@fault(DUPLICATED)
def created_twice(world: World) -> None:
    todo, _ = world.done(key="k")
    world.create(todo, 0.5, created=True)


@fault(UNEXPECTED)
def a_todo_of_nobody(world: World) -> None:
    world.done()
    world.calls.pop(0)


@fault(UNEXPECTED)
def a_refusal_to_the_holder(world: World) -> None:
    todo = world.todo()
    token = world.claim(todo, 1)
    world.say(todo, token, 1.2, end=REFUSED)
    world.end(todo, token, 1.5, end=UNKNOWN)


@fault(UNEXPECTED)
def done_by_nobody(world: World) -> None:
    todo = world.todo()
    world.claim(todo, 1)
    world.row(todo, 1.5, "done", "done")


@fault(UNEXPECTED)
def done_without_its_token(world: World) -> None:
    todo = world.todo()
    world.claim(todo, 1, UNKNOWN)
    world.row(todo, 1.5, "done", "done")


@fault(UNEXPECTED)
def a_claim_of_nobody(world: World) -> None:
    todo = world.todo()
    world.claim(todo, 1, REFUSED)
    world.row(todo, 3.5, "lapsed", "claimed")
    world.end(todo, world.claim(todo, 3.5, client="w2"), 4, client="w2")


@fault(UNEXPECTED)
def overridden_by_nobody(world: World) -> None:
    todo = world.todo()
    world.claim(todo, 1)
    world.row(todo, 1.5, "overridden", "done")


@fault(UNEXPECTED)
def too_many_attempts(world: World) -> None:
    todo, _ = world.lapsed()
    todo["max_attempts"] = 1
    world.end(todo, world.claim(todo, 3.5, client="w2"), 4, client="w2")


@fault(UNEXPECTED)
def attempts_given_back(world: World) -> None:
    todo, _ = world.lapsed()
    todo["attempt"] = 0
    world.end(todo, world.claim(todo, 3.5, client="w2"), 4, client="w2")


@fault(UNEXPECTED)
def claimed_before_the_backoff(world: World) -> None:
    todo = world.todo()
    world.end(todo, world.claim(todo, 1), 1.5, "fail")
    world.end(todo, world.claim(todo, 20), 21)


@fault(UNEXPECTED)
def dead_too_early(world: World) -> None:
    todo, _ = world.lapsed(3.5, "failed")
    todo["completed_at"] = at(3.5)


@fault(UNEXPECTED)
def a_code_of_no_scenario(world: World) -> None:
    world.done()
    world.call("claim", 3, REFUSED, code="serialization", lease=LEASE)


@fault(DUPLICATED)
def two_of_a_delivery_at_once(world: World) -> None:
    """The second came 5 ms after the first, of which alone somebody was told."""
    first, second = world.delivered(0), world.delivered(0.005, told=False, event="v2")
    for todo in (first, second):
        world.end(todo, world.claim(todo, 5), 6)


@fault(LOST)
def a_delivery_without_an_event(world: World) -> None:
    world.delivered(0)
    second = world.delivered(5, event="")
    world.end(world.facts.todos[0], world.claim(world.facts.todos[0], 1), 2)
    world.end(second, world.claim(second, 6), 7)


@fault(UNEXPECTED)
def an_untold_todo_after_the_told_one(world: World) -> None:
    """The server makes another only for somebody who is then told of it."""
    for begun, told in ((0, True), (5, False)):
        todo = world.delivered(begun, told, f"v{begun}")
        world.end(todo, world.claim(todo, begun + 1), begun + 2)


@fault(UNEXPECTED)
def a_call_that_hangs(world: World) -> None:
    todo, token = world.done()
    world.beat(todo, token, 1.2, UNKNOWN)
    world.killed.clear()


@fault(UNEXPECTED)
def a_call_that_hung_until_its_client_was_killed(world: World) -> None:
    todo, token = world.done()
    world.beat(todo, token, 1.2, UNKNOWN)
    world.killed["w1"] = [int(70e9)]


@fault(UNEXPECTED)
def a_call_without_an_end_amidst_others(world: World) -> None:
    todo, token = world.done()
    world.beat(todo, token, 1.6, UNKNOWN)
    world.beat(todo, token, 1.7, REFUSED)
    world.calls[-1].run = world.calls[-2].run


@fault(UNEXPECTED)
def stuck(world: World) -> None:
    world.todo()


@fault(UNEXPECTED)
def a_finding_of_the_doctor(world: World) -> None:
    world.facts.doctor.append({"name": "bloat", "level": "warning", "found": "much"})


@fault(UNEXPECTED)
def an_event_without_a_todo(world: World) -> None:
    event = {"endpoint_id": ENDPOINT, "id": "v1", "webhook_id": "h", "delivery_id": "d"}
    world.facts.events.append(event)


@fault(UNEXPECTED)
def more_than_was_asked_for(world: World) -> None:
    world.done()
    world.done()
    world.calls[1].answer["todos"] += world.calls[4].answer["todos"]
    world.calls[4].answer["todos"] = []


@fault(UNEXPECTED)
def a_todo_of_another_endpoint(world: World) -> None:
    world.done()
    world.calls[1].args["endpoint"] = "e2"


@fault(UNEXPECTED)
def a_todo_of_another_queue(world: World) -> None:
    world.done()
    world.calls[1].args["queues"] = ["review"]


@fault(UNEXPECTED)
def a_todo_that_was_not_named(world: World) -> None:
    world.done()
    world.calls[1].args["todo"] = "t9"


@fault(UNEXPECTED)
def another_attempt_than_was_told(world: World) -> None:
    world.done()
    world.calls[1].answer["todos"][0]["attempt"] = 2


@fault(UNEXPECTED)
def another_lease_than_was_asked_for(world: World) -> None:
    world.done()
    world.calls[1].args["lease"] = 1


@fault(OVERLAP)
def swept_too_early(world: World) -> None:
    todo, _ = world.lapsed(2.9, "pending")
    world.end(todo, world.claim(todo, 3.5, client="w2"), 4, client="w2")


@fault(OVERLAP)
def swept_in_spite_of_a_heartbeat(world: World) -> None:
    todo = world.todo()
    token = world.claim(todo, 1)
    world.beat(todo, token, 2)
    world.row(todo, 3.1, "lapsed", "pending")
    world.end(todo, world.claim(todo, 4.5, client="w2"), 5, client="w2")


@fault(OVERLAP)
def taken_over_too_early(world: World) -> None:
    todo, _ = world.lapsed(2, "claimed")
    world.end(todo, world.claim(todo, 2, client="w2"), 2.5, client="w2")


@fault(OVERLAP)
def two_holders_by_their_own_word(world: World) -> None:
    """The rows are cooked: they say that the first was released, which he never did."""
    todo = world.todo()
    world.claim(todo, 1)
    world.row(todo, 1.9, "released", "pending")
    world.end(todo, world.claim(todo, 2, client="w2"), 2.5, client="w2")


@fault(STALE)
def a_stale_complete_is_taken(world: World) -> None:
    todo, stale = world.lapsed(3.5)
    world.claim(todo, 3.5, client="w2")
    world.row(todo, 4, "done", "done")
    todo["result"] = {"token": stale}
    world.say(todo, stale, 4)


@fault(STALE)
def a_stale_heartbeat_is_taken(world: World) -> None:
    todo, stale = world.lapsed(3.5)
    fresh = world.claim(todo, 3.5, client="w2")
    world.beat(todo, stale, 3.8)
    world.end(todo, fresh, 4, client="w2")


@fault(STALE)
def taken_after_a_refusal(world: World) -> None:
    todo, token = world.lapsed(3.5, "pending")
    world.say(todo, token, 3.6, end=REFUSED)
    world.beat(todo, token, 3.8)
    world.end(todo, world.claim(todo, 6, client="w2"), 7, client="w2")


@fault(STALE)
def a_heartbeat_after_the_end(world: World) -> None:
    todo, token = world.done()
    world.beat(todo, token, 2)


@fault(BUDGET)
def more_in_flight(world: World) -> None:
    world.facts.budgets = {QUEUE: {"max_in_flight": 1}}
    world.done()
    world.done(0.2)


@fault(BUDGET)
def more_in_flight_by_slow_claims(world: World) -> None:
    """Each took longer than what it claimed was then held."""
    world.facts.budgets = {QUEUE: {"max_in_flight": 1}}
    for begun in (0, 0.2):
        todo = world.todo(begun)
        token = world.claim(todo, begun + 1, client=f"w{begun}", took=5)
        world.end(todo, token, begun + 6.2, client=f"w{begun}")
        world.facts.attempts[-1]["ended_at"] = todo["completed_at"] = at(begun + 2.5)


@fault(UNEXPECTED)
def nobody_looked(world: World) -> None:
    world.facts.budgets = {QUEUE: {"max_in_flight": 1}}
    world.facts.samples.clear()
    world.done()


@fault(BUDGET)
def more_seen_in_flight(world: World) -> None:
    world.facts.budgets = {QUEUE: {"max_in_flight": 1}}
    world.facts.samples = [{"queue": QUEUE, "endpoint": ENDPOINT, "claimed": 2}]


@fault(BUDGET)
def more_charged(world: World) -> None:
    window = {"period": "hour", "tz": "UTC", "start": "00:00"}
    world.facts.budgets = {QUEUE: {"max_claims_per_window": 1, "window": window}}
    world.done()
    world.done(5)
    world.facts.windows = [
        {"endpoint_id": ENDPOINT, "queue": QUEUE, "window_start": START, "used": 2}
    ]


@fault(UNEXPECTED)
def miscounted(world: World) -> None:
    more_charged(world)
    world.facts.budgets[QUEUE]["max_claims_per_window"] = 2
    world.facts.windows[0]["used"] = 1
