"""The queue as SPEC-0003 and design.md tell it, in plain Python: what test_model.py compares with.

Nothing here knows SQL. Each method takes the arguments of the function of the same name and the
rows that the database answered; it raises ``Refused`` when the call had to be refused, asserts that
the rows are what they had to be, and moves on. What the database is free to choose (ids, lease
tokens) is adopted from the rows.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from chaos_rows import BAD, CONFLICT, NOT_FOUND, Endpoint, Refused, Row, Todo, demand, due_of, same
from chaos_todos import Todos

SWEEP_PAUSE = timedelta(seconds=29)


class World(Todos):
    """Everything that is stored: todos, and what time and administration do to them."""

    # -- time -----------------------------------------------------------------------------------

    def lapsed(self) -> list[Todo]:
        return [t for t in self.todos.values() if t.state == "claimed" and t.due(self.now)]

    def elapsed(self) -> list[Todo]:
        return [t for t in self.todos.values() if t.state == "failed" and t.due(self.now)]

    def swept(self, candidates: list[Todo], limit: int, rows: list[Row]) -> None:
        """What reap_expired or requeue_due_retries did: the longest due of each endpoint first."""
        demand(limit >= 1, BAD)
        assert len(rows) == min(limit, len(candidates))
        chosen = {row["id"] for row in rows}
        assert chosen <= {todo.id for todo in candidates}
        left = [todo for todo in candidates if todo.id not in chosen]
        for row in rows:
            todo = self.todos[row["id"]]
            for other in left:
                assert other.endpoint is not todo.endpoint or due_of(other) >= due_of(todo)
            self.move(todo)
            moved = (todo.endpoint.id, todo.queue, todo.state)
            assert (row["endpoint_id"], row["queue"], row["state"]) == moved

    def move(self, todo: Todo) -> None:
        """What time does to a lapsed or due todo."""
        if todo.state == "failed" or not todo.spent:
            if todo.state == "claimed":
                self.end(todo, "lapsed", "pending")
                self.seen["reaped to pending"] += 1
            self.requeue(todo)
            return
        self.end(todo, "lapsed", "failed")
        self.seen["reaped to dead letter"] += 1
        todo.state, todo.token, todo.due_at = "failed", None, None
        todo.completed_at = todo.updated_at = self.now

    def retire(self, endpoint: Endpoint) -> int:
        """Dead-letter what lives on an endpoint that is no longer active."""
        live = [todo for todo in self.of(endpoint) if todo.live]
        for todo in live:
            if todo.state == "claimed":
                self.end(todo, "revoked", "failed")
            todo.state, todo.token, todo.due_at = "failed", None, None
            todo.completed_at = todo.updated_at = self.now
        return len(live)

    def tick(self, counts: Row) -> bool:
        """Whether the sweeps ran; ``counts`` is what the database says that each moved."""
        if self.swept_at is not None and self.now - SWEEP_PAUSE <= self.swept_at:
            assert counts == {}
            return False
        self.swept_at = self.now
        wanted = {}
        for name, candidates in (
            ("reap_expired", self.lapsed()),
            ("requeue_due_retries", self.elapsed()),
        ):
            wanted[name] = len(candidates)
            for todo in candidates:
                self.move(todo)
        wanted["retire_endpoints"] = sum(
            self.retire(e) for e in self.endpoints if not e.active(self.now)
        )
        same(counts, wanted)
        return True

    def prunable(self) -> set[str]:
        """Terminal todos beyond the retention of their endpoint."""
        beyond = set()
        for endpoint in self.endpoints:
            ended = [t for t in self.of(endpoint) if t.completed_at is not None]
            oldest = self.now - timedelta(days=endpoint.keep_days)
            beyond |= {t.id for t in ended[endpoint.keep_rows :]}
            beyond |= {t.id for t in ended if t.completed_at and t.completed_at < oldest}
        return beyond

    # -- endpoints ------------------------------------------------------------------------------

    def own(self, endpoint_id: str) -> Endpoint:
        endpoint = self.endpoint(endpoint_id)
        if endpoint is None:
            raise Refused(NOT_FOUND)
        demand(not endpoint.revoked, CONFLICT)
        return endpoint

    def revoke(self, endpoint_id: str, rows: list[Row]) -> None:
        endpoint = self.own(endpoint_id)
        endpoint.revoked = True
        self.controls.add(endpoint.id)
        assert rows[0]["revoke_endpoint"] == self.retire(endpoint)

    def rotate(self, endpoint_id: str, grace: int, rows: list[Row]) -> None:
        endpoint = self.own(endpoint_id)
        demand(0 <= grace <= 604_800, BAD)
        end = self.now + timedelta(seconds=grace)
        for credential, expires in list(endpoint.credentials.items()):
            if expires is not None and expires <= self.now:
                continue
            endpoint.credentials[credential] = min(expires or end, end)
        endpoint.credentials[rows[0]["rotate_credential"]] = None
        self.controls.add(endpoint.id)

    def set_default_lease(self, endpoint_id: str, seconds: int | None) -> None:
        endpoint = self.own(endpoint_id)
        demand(seconds is None or 60 <= seconds <= 86_400, BAD)
        endpoint.default_lease = seconds
        self.controls.add(endpoint.id)

    def set_grant(self, endpoint_id: str, queues: list[str]) -> None:
        endpoint = self.own(endpoint_id)
        demand(bool(queues) and "quarantine" not in queues, BAD)
        endpoint.queues = tuple(queues)
        endpoint.ever |= set(queues)
        self.controls.add(endpoint.id)

    def set_retention(self, endpoint_id: str, days: int, rows: int) -> None:
        endpoint = self.own(endpoint_id)
        endpoint.keep_days, endpoint.keep_rows = days, rows

    def opens(self, endpoint: Endpoint, credential: str) -> bool:
        """Whether the credential authenticates now."""
        expires = endpoint.credentials[credential]
        return endpoint.active(self.now) and (expires is None or expires > self.now)

    def counts(self, endpoint: Endpoint) -> list[Row]:
        """queue_counts, with how many were ever done: the database may lag behind that."""
        answer = []
        for queue in sorted(endpoint.ever):
            here = [t for t in self.of(endpoint) if t.queue == queue]
            pending = [t for t in here if t.state == "pending"]
            oldest = min((t.created_at for t in pending), default=None)
            failed = Counter(t.live for t in here if t.state == "failed")
            answer.append(
                {
                    "queue": queue,
                    "pending": len(pending),
                    "claimed": sum(t.state == "claimed" for t in here),
                    "parked": failed[True],
                    "dead": failed[False],
                    "done": endpoint.done[queue],
                    "oldest_pending_seconds": oldest and (self.now - oldest).total_seconds(),
                }
            )
        return answer
