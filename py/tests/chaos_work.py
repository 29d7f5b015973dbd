"""The steps of test_model.py that producers and workers take."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, LiteralString

from chaos_draws import (
    aims,
    elements,
    endpoints,
    good_elements,
    leases,
    limits,
    odd_ids,
    owners,
    place,
    queue_lists,
    results,
    seldom_odd,
    spans,
    tokens,
    verbs,
    whos,
)
from chaos_machine import Sides, name_of, some
from chaos_rows import Row, Todo, demand
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from psycopg.types.json import Jsonb

MOST_TODOS = 180  # one list_todos shows 200 of an endpoint
ENDS: dict[str, LiteralString] = {
    "complete": "select * from switchboard.complete(%s, %s, %s, %s, %s)",
    "fail": "select * from switchboard.fail(%s, %s, %s, %s, %s)",
    "release": "select * from switchboard.release(%s, %s, %s, %s)",
}


class Work(Sides):
    """Create, claim, heartbeat, end."""

    @initialize(
        dice=st.integers(0, 1000),
        assigns=st.booleans(),
        batch=st.lists(good_elements, min_size=1, max_size=4),
    )
    def begin(self, dice: int, assigns: bool, batch: list[Row]) -> None:
        self.start(dice, assigns)
        self.create_todos(0, batch, 4)

    @rule(seconds=spans)
    def time_passes(self, seconds: int) -> None:
        self.set_clock(self.world.now + timedelta(seconds=seconds))

    @precondition(some("claimed", "failed"))
    @rule(short=st.booleans(), how_many=st.sampled_from([0, 0, 5, 20]))
    def time_passes_until_something_is_due(self, short: bool, how_many: int) -> None:
        """To the very instant, or a microsecond before it."""
        due = sorted(t.due_at for t in self.world.todos.values() if t.due_at is not None)
        coming = [at for at in due if at > self.world.now]
        if coming:
            at = coming[min(how_many, len(coming) - 1)]
            self.set_clock(at - timedelta(microseconds=int(short)))

    @rule(at=endpoints, element=elements, odd=seldom_odd)
    def create(self, at: int, element: Row, odd: str | None) -> None:
        endpoint = self.world.endpoints[at]
        (element,) = self.fit(endpoint, element)
        if len(self.world.of(endpoint)) < MOST_TODOS:
            endpoint_id = endpoint.id if odd is None else odd
            self.both(
                lambda rows: self.world.create(endpoint_id, [element], rows),
                "select * from switchboard.create_todo(%s, %s, 'a title', %s, %s,"
                " p_assignee => %s, p_max_attempts => %s)",
                endpoint_id,
                element["queue"],
                Jsonb({"n": 1}),
                element["idempotency_key"],
                element["assignee"],
                element["max_attempts"],
            )

    @rule(
        at=endpoints,
        batch=st.lists(good_elements, min_size=1, max_size=6),
        times=st.sampled_from([1, 1, 2, 5, 10]),
    )
    def create_todos(self, at: int, batch: list[Row], times: int) -> None:
        endpoint = self.world.endpoints[at]
        batch = self.fit(endpoint, *batch * times)
        if len(self.world.of(endpoint)) + len(batch) < MOST_TODOS:
            self.both(
                lambda rows: self.world.create(endpoint.id, batch, rows),
                "select * from switchboard.create_todos(%s, %s)",
                endpoint.id,
                Jsonb([{**element, "title": "one of many"} for element in batch]),
            )

    @rule(at=place, where=aims, odd=odd_ids, owner=owners, ttl=leases)
    def claim(self, at: int, where: str, odd: str, owner: str, ttl: int | None) -> None:
        endpoint, todo_id, _ = self.aim(where, at, lambda t: self.world.claimable(t, owner))
        todo_id = odd if where == "odd" else todo_id

        def expect(rows: list[Row]) -> None:
            self.world.terms(endpoint, owner, None, ttl)
            self.world.claim(self.world.find(endpoint, todo_id), owner, ttl, rows)

        self.both(
            expect,
            "select * from switchboard.claim(%s, %s, %s, %s)",
            endpoint,
            todo_id,
            owner,
            ttl,
        )

    def do_claim_next(
        self, at: int, owner: str, places: list[Any] | None, ttl: int | None, odd: str | None
    ) -> None:
        endpoint = self.world.endpoints[at]
        endpoint_id = endpoint.id if odd is None else odd
        queues = places and [name_of(endpoint, place) for place in places]
        self.both(
            lambda rows: self.world.claim_some(endpoint_id, owner, 1, queues, ttl, rows),
            "select * from switchboard.claim_next(%s, %s, %s, %s)",
            endpoint_id,
            owner,
            queues,
            ttl,
        )

    # A rule with two names is tried twice as often.
    next_one = rule(at=endpoints, owner=owners, places=queue_lists, ttl=leases, odd=seldom_odd)
    claim_next, claim_next_too = next_one(do_claim_next), next_one(do_claim_next)

    @rule(at=endpoints, owner=owners, limit=limits, places=queue_lists, ttl=leases)
    def claim_batch(
        self, at: int, owner: str, limit: int, places: list[Any] | None, ttl: int | None
    ) -> None:
        endpoint = self.world.endpoints[at]
        endpoint_id = endpoint.id
        queues = places and [name_of(endpoint, place) for place in places]
        self.both(
            lambda rows: self.world.claim_some(endpoint_id, owner, limit, queues, ttl, rows),
            "select * from switchboard.claim_batch(%s, %s, %s, %s, %s)",
            endpoint_id,
            owner,
            limit,
            queues,
            ttl,
        )

    def credentials(self, todo: Todo, who: str, with_token: str) -> tuple[str, str | None]:
        """The owner and the token that a caller passes."""
        owner = {"holder": todo.owner or "w1", "other": "somebody else", "nobody": ""}[who]
        tokens = {"none": None, "right": todo.token, "wrong": "AAAAAAAAAAAA", "empty": ""}
        return owner, tokens[with_token]

    @precondition(some("claimed"))
    @rule(at=place, where=aims, odd=odd_ids, who=whos, token=tokens, ttl=leases)
    def heartbeat(
        self, at: int, where: str, odd: str, who: str, token: str, ttl: int | None
    ) -> None:
        target = self.aim(where, at, lambda t: t.state == "claimed")
        owner, passed = self.credentials(target[2], who, token)

        def expect(rows: list[Row]) -> None:
            demand(owner != "" and ttl != 0, "SB400")
            todo = self.world.find(target[0], odd if where == "odd" else target[1])
            self.world.held(todo, owner, passed)
            self.world.heartbeat(todo, ttl, rows)

        self.both(
            expect,
            "select * from switchboard.heartbeat(%s, %s, %s, %s, %s)",
            target[0],
            odd if where == "odd" else target[1],
            owner,
            ttl,
            passed,
        )

    def do_end(
        self, at: int, where: str, odd: str, verb: str, who: str, token: str, result: Any
    ) -> None:
        target = self.aim(where, at, lambda t: t.state == "claimed")
        owner, passed = self.credentials(target[2], who, token)
        todo_id = odd if where == "odd" else target[1]

        def expect(rows: list[Row]) -> None:
            demand(owner != "", "SB400")
            todo = self.world.find(target[0], todo_id)
            self.world.held(todo, owner, passed)
            self.world.finish(todo, verb, result, rows)

        given = () if verb == "release" else (None if result is None else Jsonb(result),)
        self.both(expect, ENDS[verb], target[0], todo_id, owner, *given, passed)

    one_end = rule(
        at=place, where=aims, odd=odd_ids, verb=verbs, who=whos, token=tokens, result=results
    )
    end = precondition(some("claimed"))(one_end(do_end))
    end_too = precondition(some("claimed"))(one_end(do_end))
    end_again = precondition(some("claimed"))(one_end(do_end))

    @precondition(some("claimed"))
    @rule(
        at=place,
        owner=st.sampled_from(["w1", "w1", "w2"]),
        picks=st.lists(place, min_size=0, max_size=8),
        with_tokens=st.booleans(),
        odd=odd_ids,
    )
    def complete_batch(
        self, at: int, owner: str, picks: list[int], with_tokens: bool, odd: str
    ) -> None:
        endpoint, _, _ = self.aim(
            "fitting", at, lambda t: t.owner == owner and t.state == "claimed"
        )
        todos = sorted(self.world.todos.values(), key=lambda t: (t.owner != owner, t.age))
        chosen = [todos[pick % len(todos)] for pick in picks if todos]
        ids = [t.id for t in chosen] + [odd]
        tokens = [*(t.token for t in chosen), None] if with_tokens else None
        self.both(
            lambda rows: self.world.complete_batch(endpoint, owner, ids, tokens, rows),
            "select * from switchboard.complete_batch(%s, %s, %s, %s)",
            endpoint,
            owner,
            ids,
            tokens,
        )

    @precondition(some("failed"))
    @rule(at=place, where=aims, odd=odd_ids)
    def retry(self, at: int, where: str, odd: str) -> None:
        endpoint, todo_id, _ = self.aim(where, at, lambda t: t.state == "failed")
        todo_id = odd if where == "odd" else todo_id
        self.both(
            lambda rows: self.world.retry(self.world.find(endpoint, todo_id), rows),
            "select * from switchboard.retry(%s, %s)",
            endpoint,
            todo_id,
        )
