"""What the model of test_model.py is made of: endpoints, todos, refusals, and how they compare."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

Row = dict[str, Any]

QUEUE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class Refused(Exception):  # noqa: N818 (an answer, not a fault)
    """The call must be refused with this SQLSTATE."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


NOT_FOUND, CONFLICT, FORBIDDEN, BAD = "SB404", "SB409", "SB403", "SB400"


def demand(holds: bool, sqlstate: str) -> None:
    if not holds:
        raise Refused(sqlstate)


@dataclass
class Endpoint:
    id: str
    slug: str
    human: str
    queues: tuple[str, ...]
    expires_at: datetime | None
    credentials: dict[str, datetime | None]
    default_lease: int | None = None
    keep_days: int = 30
    keep_rows: int = 500_000
    revoked: bool = False
    ever: set[str] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.ever |= set(self.queues)

    def active(self, now: datetime) -> bool:
        return not self.revoked and (self.expires_at is None or self.expires_at > now)


@dataclass
class Todo:
    id: str
    endpoint: Endpoint
    queue: str
    created_at: datetime
    updated_at: datetime
    max_attempts: int
    assignee: str | None
    key: str | None
    trust_mode: str
    state: str = "pending"
    attempt: int = 0
    claims: int = 0
    owner: str | None = None
    token: str | None = None
    lease: int = 0
    due_at: datetime | None = None
    claimed_at: datetime | None = None
    completed_at: datetime | None = None
    result: Any = None
    history: list[Row] = field(default_factory=list)

    @property
    def age(self) -> tuple[datetime, str]:
        """What claims are ordered by."""
        return self.created_at, self.id

    @property
    def live(self) -> bool:
        """Whether it holds its idempotency key."""
        return self.state in ("pending", "claimed") or self.due_at is not None

    @property
    def spent(self) -> bool:
        return self.attempt >= self.max_attempts

    def due(self, now: datetime) -> bool:
        return self.due_at is not None and self.due_at <= now

    def shown(self) -> Row:
        """As callers see it, but for what they wrote themselves."""
        return {
            "id": self.id,
            "endpoint_id": self.endpoint.id,
            "queue": self.queue,
            "state": self.state,
            "assignee": self.assignee,
            "owner": self.owner,
            "lease_expires_at": self.due_at if self.state == "claimed" else None,
            "lease_token": None,
            "claimed_at": self.claimed_at,
            "attempt": self.attempt,
            "max_attempts": self.max_attempts,
            "next_retry_at": self.due_at if self.state == "failed" else None,
            "dead_letter": self.state == "failed" and self.due_at is None,
            "result": self.result,
            "idempotency_key": self.key,
            "trust_mode": self.trust_mode,
            "verified": True,
            "event_id": None,
            "ring_attempts": 0,
            "last_ringed_at": None,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "completed_at": self.completed_at,
            "claims": self.claims,
        }


def backoff(attempt: int) -> timedelta:
    """SPEC-0003, Bounded Retries: 30 s, 1 m, 2 m, 4 m, 8 m, then 15 m."""
    return timedelta(seconds=min(30 * 2 ** (attempt - 1), 900))


def due_of(todo: Todo) -> datetime:
    assert todo.due_at is not None
    return todo.due_at


def summary_of(result: Any) -> str | None:
    """What the history keeps of a result: 200 characters."""
    if result is None:
        return None
    said = result.get("summary") or result.get("error") if isinstance(result, dict) else None
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return str(said or text)[:200]


def same(row: Row, wanted: Row) -> None:
    """The row has all that is wanted; an empty one is not looked at."""
    differing = {k: (row[k], v) for k, v in wanted.items() if row and row[k] != v}
    assert not differing, f"(database, model) differ: {differing}"
