"""Budgets as SPEC-0030 tells them, in plain Python: what test_admission_model.py compares with.

Nothing here knows SQL. Windows are zoneinfo's, found in another way than the functions find them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from chaos.budgets import DAYS, STEPS, first_shown

Row = dict[str, Any]
BROKEN = "Mars/Olympus"  # a zone that is gone


@dataclass
class Policy:
    flight: int | None
    claims: int | None
    period: str = "day"
    tz: str = "UTC"
    start: str = "00:00"
    weekday: str | None = None
    used: Counter[datetime] = field(default_factory=Counter)
    charged: int = 0

    def document(self) -> Row:
        limits = {"max_in_flight": self.flight, "max_claims_per_window": self.claims}
        window = {"period": self.period, "tz": self.tz, "start": self.start}
        if self.weekday is not None:
            window["weekday"] = self.weekday
        return limits | ({"window": window} if self.claims is not None else {})

    def window(self, at: datetime) -> tuple[datetime, datetime]:
        """The window that holds this instant."""
        zone, step = ZoneInfo(self.tz), STEPS[self.period]
        clock = at.astimezone(zone).replace(tzinfo=None)
        label = datetime.combine(clock.date(), time.fromisoformat(self.start))
        if self.period == "hour":
            label = label.replace(hour=clock.hour)
        elif self.period == "week":
            label += timedelta(days=DAYS.index(str(self.weekday)) - label.weekday())
        edges = [first_shown(label + n * step, zone) for n in range(-3, 4)]
        return max(e for e in edges if e <= at), min(e for e in edges if e > at)


@dataclass
class Todo:
    id: str
    queue: str
    created_at: datetime
    max_attempts: int
    assignee: str | None
    state: str = "pending"
    attempt: int = 0
    owner: str | None = None
    token: str | None = None
    due_at: datetime | None = None

    @property
    def age(self) -> tuple[datetime, str]:
        return self.created_at, self.id

    @property
    def spent(self) -> bool:
        return self.attempt >= self.max_attempts


class Budgets:
    """The todos of one endpoint, and what its policies say."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.todos: dict[str, Todo] = {}
        self.policies: dict[str, Policy] = {}
        self.totals: Counter[tuple[str, str]] = Counter()
        self.seen: Counter[str] = Counter()

    def within(self, queue: str, state: str) -> list[Todo]:
        return [t for t in self.todos.values() if t.queue == queue and t.state == state]

    def due(self, todo: Todo) -> bool:
        return todo.due_at is not None and todo.due_at <= self.now

    def claimable(self, todo: Todo, owner: str | None) -> bool:
        """By this owner; None: by anybody whom it is assigned to."""
        if owner is not None and todo.assignee not in (None, owner):
            return False
        if todo.state == "claimed":
            return self.due(todo) and not todo.spent
        return todo.state == "pending" or (todo.state == "failed" and self.due(todo))

    # -- what a policy says -----------------------------------------------------------------------

    def status(self, queue: str, takeover: bool = False) -> str | None:
        """open, or why a claim is deferred; None: there is no policy."""
        policy = self.policies.get(queue)
        if policy is None:
            return None
        if 0 in (policy.flight, policy.claims):
            return "paused"
        if policy.claims is not None:
            if policy.tz == BROKEN:
                return "admission_unavailable"
            if policy.used[policy.window(self.now)[0]] >= policy.claims:
                return "window_exhausted"
        held = len(self.within(queue, "claimed")) - takeover
        return "in_flight_full" if policy.flight is not None and held >= policy.flight else "open"

    def admitted(self, todo: Todo) -> bool:
        return self.status(todo.queue, todo.state == "claimed") in (None, "open")

    def when(self, queue: str, status: str | None) -> Row:
        """next_eligible_at and exact, as far as they are told."""
        if status in (None, "open"):
            return {}
        told: Row = {"exact": status == "window_exhausted"}
        if status == "window_exhausted":
            told["next_eligible_at"] = self.policies[queue].window(self.now)[1]
        elif status == "in_flight_full":
            ends = min(t.due_at for t in self.within(queue, "claimed") if t.due_at)
            told["next_eligible_at"] = max(ends, self.now)
        return told

    def held_back(self, queues: Iterable[str], owner: str | None) -> list[str]:
        """The queues in which something could be claimed but for the policy."""
        return [
            queue
            for queue in sorted(set(queues))
            if any(
                t.queue == queue and self.claimable(t, owner) and not self.admitted(t)
                for t in self.todos.values()
            )
        ]

    # -- claims -----------------------------------------------------------------------------------

    def next(self, owner: str, queues: Sequence[str]) -> Todo | None:
        """The oldest that this owner may claim and that is admitted."""
        mine = [t for t in self.todos.values() if t.queue in queues and self.claimable(t, owner)]
        return min((t for t in mine if self.admitted(t)), key=lambda t: t.age, default=None)

    def refused(self, queues: Iterable[str], owner: str) -> None:
        for queue in self.held_back(queues, owner):
            status = self.status(queue)
            if (
                status == "open"
            ):  # one that its cap keeps from being taken over has a status all the same
                raise AssertionError("open, and held back")
            self.totals[queue, str(status)] += 1
            self.seen[f"refused: {status}"] += 1

    def take(self, todo: Todo, owner: str, ttl: int, row: Row) -> Row | None:
        """One claim; the admission that its answer has to show."""
        self.seen[f"claimed {todo.state}"] += 1
        policy = self.policies.get(todo.queue)
        todo.state, todo.owner, todo.token = "claimed", owner, row["lease_token"]
        todo.attempt += 1
        todo.due_at = self.now + timedelta(seconds=ttl)
        if policy is None:
            return None
        policy.charged += 1
        told: Row = {}
        if policy.flight is not None:
            held = len(self.within(todo.queue, "claimed"))
            told |= {"max_in_flight": policy.flight, "in_flight": held}
        if policy.claims is not None:
            start, end = policy.window(self.now)
            policy.used[start] += 1
            used = policy.used[start]
            told |= {"max_claims_per_window": policy.claims, "used": used}
            told |= {"remaining": policy.claims - used, "window_resets_at": end}
        return told

    # -- what ends a claim ------------------------------------------------------------------------

    def finish(self, todo: Todo, how: str) -> None:
        """complete, fail or release by the holder: none of them gives a charge back."""
        again = not todo.spent
        todo.state = {"complete": "done", "fail": "failed", "release": "pending"}[how]
        if how == "release" and not again:
            todo.state = "failed"
        wait = timedelta(seconds=min(30 * 2 ** (todo.attempt - 1), 900))
        todo.due_at = self.now + wait if how == "fail" and again else None

    def sweep(self) -> None:
        for todo in self.todos.values():
            if todo.state == "claimed" and self.due(todo) and todo.spent:
                todo.state, todo.due_at = "failed", None
            elif todo.state in ("claimed", "failed") and self.due(todo):
                todo.state, todo.due_at = "pending", None
