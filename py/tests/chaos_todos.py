"""Todos as the model sees them: what creates, claims and ends do (see chaos_model.py)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from chaos_rows import (
    BAD,
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    QUEUE_NAME,
    Endpoint,
    Refused,
    Row,
    Todo,
    backoff,
    demand,
    due_of,
    same,
    summary_of,
)

LOOKED_AT = 16  # of what is due, the ones that have been so longest: design.md, decision 2


class Todos:
    """The todos of every endpoint, and the clock."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.humans: dict[str, str] = {}
        self.endpoints: list[Endpoint] = []
        self.todos: dict[str, Todo] = {}
        self.swept_at: datetime | None = None
        self.rings: set[str] = set()
        self.controls: set[str] = set()
        self.seen: Counter[str] = Counter()

    # -- finding --------------------------------------------------------------------------------

    def endpoint(self, endpoint_id: str) -> Endpoint | None:
        return next((e for e in self.endpoints if e.id == endpoint_id), None)

    def find(self, endpoint_id: str, todo_id: str) -> Todo:
        todo = self.todos.get(todo_id)
        if todo is None or todo.endpoint.id != endpoint_id:
            raise Refused(NOT_FOUND)
        return todo

    def of(self, endpoint: Endpoint) -> list[Todo]:
        """The endpoint's todos, newest first."""
        mine = (todo for todo in self.todos.values() if todo.endpoint is endpoint)
        return sorted(mine, key=lambda todo: todo.age, reverse=True)

    def holder(self, key: str | None, endpoint: Endpoint) -> Todo | None:
        """The live todo with this key."""
        named = (t for t in self.todos.values() if t.endpoint is endpoint and t.key == key)
        return next((t for t in named if t.live), None) if key is not None else None

    # -- creating -------------------------------------------------------------------------------

    def create(
        self, endpoint_id: str, elements: Sequence[Row], rows: list[Row], trust: str = "sql"
    ) -> None:
        endpoint = self.endpoint(endpoint_id)
        if endpoint is None:
            raise Refused(NOT_FOUND)
        demand(endpoint.active(self.now), CONFLICT)
        for element in elements:
            demand(QUEUE_NAME.fullmatch(element["queue"]) is not None, BAD)
            demand(element["queue"] in endpoint.queues, FORBIDDEN)
            demand(1 <= element["max_attempts"] <= 100, BAD)
        assert len(rows) == len(elements)
        made: list[str] = []
        for element, row in zip(elements, rows, strict=True):
            there = self.holder(element["idempotency_key"], endpoint)
            assert row["created"] is (there is None), "created"
            if there is not None:
                assert row["id"] == there.id, "the live todo of that key"
                self.seen["deduplicated"] += 1
                continue
            assert row["id"] not in self.todos
            made.append(row["id"])
            self.rings.add(f"{endpoint.id}:{element['queue']}")
            self.todos[row["id"]] = Todo(
                row["id"],
                endpoint,
                element["queue"],
                self.now,
                self.now,
                element["max_attempts"],
                element["assignee"],
                element["idempotency_key"],
                trust,
            )
        assert made == sorted(made), "ids follow the order of the batch"

    # -- claiming -------------------------------------------------------------------------------

    def terms(
        self, endpoint_id: str, owner: str, queues: Sequence[str] | None, ttl: int | None
    ) -> tuple[Endpoint | None, Sequence[str]]:
        """The endpoint to claim on (None: nothing can be claimed), and in which queues."""
        demand(0 < len(owner) <= 128 and (ttl is None or ttl >= 1), BAD)
        endpoint = self.endpoint(endpoint_id)
        if endpoint is None:
            return None, ()
        for queue in queues or ():
            demand(QUEUE_NAME.fullmatch(queue) is not None, BAD)
            demand(queue in endpoint.queues, FORBIDDEN)
        allowed = endpoint.queues if queues is None else queues
        return (endpoint if endpoint.active(self.now) else None), allowed

    def claimable(self, todo: Todo, owner: str) -> bool:
        if todo.assignee not in (None, owner):
            return False
        if todo.state == "claimed":
            return todo.due(self.now) and not todo.spent
        return todo.state == "pending" or (todo.state == "failed" and todo.due(self.now))

    def next_ones(self, endpoint: Endpoint, owner: str, queues: Sequence[str]) -> set[str]:
        """The ids one of which the next claim must take: one id, unless due times are equal."""
        mine = [t for t in self.of(endpoint) if t.queue in queues and self.claimable(t, owner)]
        heads = [t for t in mine if t.state == "pending"]
        due = sorted((t for t in mine if t.state != "pending"), key=due_of)
        if len(due) <= LOOKED_AT:
            return {t.id for t in sorted(mine, key=lambda t: t.age)[:1]}
        self.seen["more due than are looked at"] += 1
        edge = due[LOOKED_AT - 1].due_at
        certain = heads + [t for t in due if due_of(t) < due_of(due[LOOKED_AT - 1])]
        ties = [t for t in due if t.due_at == edge]
        places = LOOKED_AT - (len(certain) - len(heads))
        first = min(certain, key=lambda t: t.age, default=None)
        fitting = {t.id for t in ties if sum(o.age > t.age for o in ties) >= places - 1}
        if first is None:
            return fitting
        older = {t.id for t in ties if t.age < first.age} & fitting
        younger = sum(t.age > first.age for t in ties) >= places
        return older | ({first.id} if younger else set())

    def claim_some(
        self,
        endpoint_id: str,
        owner: str,
        limit: int,
        queues: Sequence[str] | None,
        ttl: int | None,
        rows: list[Row],
    ) -> None:
        demand(limit >= 1, BAD)
        endpoint, allowed = self.terms(endpoint_id, owner, queues, ttl)
        assert len(rows) <= limit
        for row in rows:
            assert endpoint is not None, "claimed on an endpoint that owns nothing"
            wanted = self.next_ones(endpoint, owner, allowed)
            assert row["id"] in wanted, f"claimed {row['id']}, the oldest is {wanted}"
            self.take(self.todos[row["id"]], owner, ttl, row)
        if len(rows) < limit and endpoint is not None:
            assert not self.next_ones(endpoint, owner, allowed), "something was claimable"

    def claim(
        self, todo: Todo, owner: str, ttl: int | None, rows: list[Row], *, granted: bool = True
    ) -> None:
        """One todo by id, which is in the caller's scope."""
        demand(0 < len(owner) <= 128 and (ttl is None or ttl >= 1), BAD)
        demand(self.claimable(todo, owner) and todo.endpoint.active(self.now), CONFLICT)
        demand(not granted or todo.queue in todo.endpoint.queues, FORBIDDEN)
        self.take(todo, owner, ttl, rows[0])

    def take(self, todo: Todo, owner: str, ttl: int | None, row: Row) -> None:
        self.seen[f"claimed {todo.state}"] += 1
        if todo.state == "claimed":
            self.end(todo, "lapsed", "claimed")
        token = row["lease_token"]
        assert isinstance(token, str)
        assert re.fullmatch(r"[\w-]{12}", token), "a token of 12 characters"
        assert token != todo.token, "each lease has its own token"
        todo.state, todo.owner, todo.token = "claimed", owner, token
        todo.lease = min(ttl or todo.endpoint.default_lease or 300, 86_400)
        todo.due_at = self.now + timedelta(seconds=todo.lease)
        todo.claimed_at = todo.updated_at = self.now
        todo.attempt += 1
        todo.claims += 1
        assert todo.attempt <= todo.max_attempts
        same(row, {**todo.shown(), "lease_token": token})

    # -- ending ---------------------------------------------------------------------------------

    def held(self, todo: Todo, owner: str, token: str | None, force: bool = False) -> None:
        """Only the holder may go on."""
        demand(0 < len(owner) <= 128, BAD)
        fits = force or (todo.owner == owner and token in (None, todo.token))
        demand(todo.state == "claimed" and fits, CONFLICT)

    def heartbeat(self, todo: Todo, ttl: int | None, rows: list[Row]) -> None:
        todo.due_at = self.now + timedelta(seconds=min(ttl or todo.lease, 86_400))
        todo.updated_at = self.now
        same(rows[0], todo.shown())

    def finish(
        self, todo: Todo, verb: str, result: Any, rows: list[Row], force: bool = False
    ) -> None:
        back = verb == "release" and not todo.spent
        state = "done" if verb == "complete" else "pending" if back else "failed"
        parked = verb == "fail" and not todo.spent
        outcome = {"complete": "done", "fail": "failed", "release": "released"}[verb]
        summary = None if verb == "release" else summary_of(result)
        self.end(todo, "overridden" if force else outcome, state, summary)
        todo.state, todo.token, todo.updated_at = state, None, self.now
        todo.due_at = self.now + backoff(todo.attempt) if parked else None
        todo.completed_at = None if back or parked else self.now
        if back:
            todo.owner = None
            self.ring(todo)
        if verb != "release":
            todo.result = result
        if state == "done":
            todo.endpoint.done[todo.queue] += 1
        self.seen[f"{verb} to {state}{' parked' if parked else ''}"] += 1
        same(rows[0], todo.shown())

    def complete_batch(
        self,
        endpoint_id: str,
        owner: str,
        ids: Sequence[str],
        tokens: Sequence[str | None] | None,
        rows: list[Row],
    ) -> None:
        demand(0 < len(owner) <= 128, BAD)
        demand(tokens is None or len(tokens) == len(ids), BAD)
        assert [row["id"] for row in rows] == list(ids)
        for place, row in enumerate(rows):
            token = tokens[place] if tokens is not None else None
            try:
                todo = self.find(endpoint_id, ids[place])
                self.held(todo, owner, "" if tokens is not None and token is None else token)
            except Refused as refused:
                wanted = {NOT_FOUND: "not_found", CONFLICT: "conflict"}[refused.sqlstate]
                assert row["outcome"] == wanted
                continue
            assert row["outcome"] == "done"
            self.finish(todo, "complete", None, [{}])

    def end(self, todo: Todo, outcome: str, state: str, summary: str | None = None) -> None:
        """The attempt that the todo is in becomes history."""
        todo.history.append(
            {
                "seq": todo.claims,
                "attempt": todo.attempt,
                "owner": todo.owner,
                "claimed_at": todo.claimed_at,
                "ended_at": self.now,
                "outcome": outcome,
                "state": state,
                "summary": summary,
            }
        )

    def retry(self, todo: Todo, rows: list[Row]) -> None:
        demand(todo.state == "failed" and todo.endpoint.active(self.now), CONFLICT)
        demand(self.holder(todo.key, todo.endpoint) in (None, todo), CONFLICT)
        self.seen["retried"] += 1
        todo.attempt, todo.result, todo.claimed_at, todo.completed_at = 0, None, None, None
        self.requeue(todo)
        same(rows[0], todo.shown())

    def requeue(self, todo: Todo) -> None:
        todo.state, todo.owner, todo.token, todo.due_at = "pending", None, None, None
        todo.updated_at = self.now
        self.ring(todo)

    def ring(self, todo: Todo) -> None:
        self.rings.add(f"{todo.endpoint.id}:{todo.queue}")
