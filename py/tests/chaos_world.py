"""A made-up run of chaos: calls as clients wrote them down, rows as the database holds them.

What is told is right as long as nobody changes it: test_chaos_history.py does. Times are seconds
from the start, by the clock of the machine and by that of the database.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from chaos.classify import classify
from chaos.facts import Facts
from chaos.history import OK, REFUSED, UNKNOWN, Operation
from chaos.verdict import Verdict

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
ENDPOINT, QUEUE, LEASE = "e1", "inbox", 2
OUTCOMES = {"complete": "done", "fail": "failed", "release": "released"}
NOTHING = ("kind", "completed_at", "due_at", "claimed_at", "owner", "event_id", "result")
Row = dict[str, Any]


def at(seconds: float) -> datetime:
    """So many seconds after the start, as the database tells it."""
    return START + timedelta(seconds=seconds)


class World:
    """The calls, and what the database holds."""

    def __init__(self) -> None:
        self.calls: list[Operation] = []
        self.facts = Facts(samples=[{"queue": "another", "endpoint": ENDPOINT, "claimed": 0}])
        self.numbers = itertools.count(1)
        self.killed: dict[str, list[int]] = {}

    def call(
        self, op: str, begun: float, end: str = OK, took: float = 0.01, **more: Any
    ) -> Operation:
        """A call as a client wrote it; more: client, code, answer, and arguments.

        One that is unknown, without a code, is the last of a start: its client was killed then.
        """
        client = more.pop("client", "w1")
        code, answer = more.pop("code", ""), more.pop("answer", {})
        ends = self.killed.setdefault(client, [])
        run, ended = f"r{len(ends)}", int((begun + took) * 1e9)
        if killed := end == UNKNOWN and not code:
            ends.append(ended)
        code = code or {REFUSED: "conflict", UNKNOWN: "killed"}.get(end, "")
        args = {"endpoint": ENDPOINT, **more}
        number = next(self.numbers)
        made = Operation(
            client, run, number, op, args, client, int(begun * 1e9), None if killed else ended,
            end, code, answer,
        )  # fmt: skip
        self.calls.append(made)
        return made

    def todo(self, begun: float = 0, key: str | None = None, end: str = OK, **more: Any) -> Row:
        """A todo, and the create that made it."""
        number = next(self.numbers)
        row: Row = {
            **dict.fromkeys(NOTHING),
            "id": f"t{number}",
            "endpoint_id": ENDPOINT,
            "queue": QUEUE,
            "state": "pending",
            "title": f"todo {number}",
            "idempotency_key": key,
            "attempt": 0,
            "max_attempts": 5,
            "claims": 0,
            "created_at": at(begun),
            **more,
        }
        self.facts.todos.append(row)
        self.create(row, begun, end)
        return row

    def create(
        self, todo: Row, begun: float, end: str = OK, created: bool = True, op: str = "create",
        took: float = 0.01,
    ) -> Operation:  # fmt: skip
        asked = {"queue": todo["queue"], "title": todo["title"]}
        if todo["idempotency_key"] is not None:
            asked["key"] = todo["idempotency_key"]
        answer = {"todos": [{"id": todo["id"], "created": created}]} if end == OK else {}
        return self.call(op, begun, end, took, client="maker", todos=[asked], answer=answer)

    def delivered(self, begun: float, told: bool = True, event: str = "v1", **more: Any) -> Row:
        """A todo that a delivery made, with its event; ``told``: whether anybody heard of it."""
        todo = self.todo(begun, key="h:d", event_id=event or None, **more)
        call = self.calls.pop()
        if told:
            self.create(todo, begun, op="deliver", took=call.span)
        if event:
            row = {"endpoint_id": ENDPOINT, "id": event, "webhook_id": "h", "delivery_id": "d"}
            self.facts.events.append(row)
        return todo

    def claim(
        self, todo: Row, begun: float, end: str = OK, client: str = "w1", took: float = 0.01,
        **more: Any,
    ) -> str:  # fmt: skip
        """A claim, and the todo held under it; the token."""
        todo["claims"] += 1
        todo["attempt"] += 1
        todo |= {"state": "claimed", "claimed_at": at(begun), "owner": client}
        token = f"{todo['id']}-{todo['claims']}"
        told = {
            "id": todo["id"],
            "endpoint_id": ENDPOINT,
            "queue": todo["queue"],
            "lease_token": token,
            "claims": todo["claims"],
            "attempt": todo["attempt"],
            "claimed_at": str(at(begun)),
            "lease_expires_at": str(at(begun + LEASE)),
            **more,
        }
        answer = {"todos": [told]} if end == OK else {}
        self.call("claim", begun, end, took, client=client, lease=LEASE, answer=answer)
        return token

    def row(self, todo: Row, ended: float, outcome: str, state: str) -> Row:
        """The attempt that the todo is in ends, as the database tells it."""
        row: Row = {
            "endpoint_id": ENDPOINT,
            "todo_id": todo["id"],
            "seq": todo["claims"],
            "attempt": todo["attempt"],
            "claimed_at": todo["claimed_at"],
            "ended_at": at(ended),
            "queue": todo["queue"],
            "owner": todo["owner"],
            "outcome": outcome,
            "state": state,
        }
        self.facts.attempts.append(row)
        todo["state"] = "pending" if state == "claimed" else state
        if state == "done":
            todo["completed_at"] = at(ended)
        return row

    def end(
        self,
        todo: Row,
        token: str,
        begun: float,
        verb: str = "complete",
        end: str = OK,
        **more: Any,
    ) -> Operation:
        """The holder ends it, and the database says so (whatever he was told)."""
        state = {"complete": "done", "fail": "failed", "release": "pending"}[verb]
        self.row(todo, begun, OUTCOMES[verb], state)
        if verb != "release":
            todo["result"] = {"token": token}
        return self.say(todo, token, begun, verb, end, **more)

    def say(
        self,
        todo: Row,
        token: str,
        begun: float,
        verb: str = "complete",
        end: str = OK,
        **more: Any,
    ) -> Operation:
        """A call on a lease, of which the database knows nothing."""
        return self.call(verb, begun, end, todo=todo["id"], token=token, **more)

    def beat(self, todo: Row, token: str, begun: float, end: str = OK) -> Operation:
        answer = {"todos": [{"lease_expires_at": str(at(begun + LEASE))}]} if end == OK else {}
        return self.say(todo, token, begun, "heartbeat", end, lease=LEASE, answer=answer)

    def done(self, begun: float = 0, **more: Any) -> tuple[Row, str]:
        """A todo that was created, claimed a second later and completed half a second later."""
        todo = self.todo(begun, **more)
        token = self.claim(todo, begun + 1)
        self.end(todo, token, begun + 1.5)
        return todo, token

    def lapsed(self, ended: float = 3.5, how: str = "claimed") -> tuple[Row, str]:
        """A todo claimed at 1, whose lease lapsed; ``how``: taken over (claimed) or swept."""
        todo = self.todo()
        token = self.claim(todo, 1)
        self.row(todo, ended, "lapsed", how)
        return todo, token

    def judge(self, allows: tuple[str, ...] = ()) -> Verdict:
        self.facts.counted = len(self.facts.attempts)
        return classify(self.calls, self.facts, allows, killed=self.killed)
