"""Leases as their holders were told of them, with the calls on each and the attempt's row.

A lease is known from the answer to its claim: its token, when it began and when it ends, by the
database's clock. A heartbeat that was acknowledged moves the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from chaos.facts import Facts, Row
from chaos.hands import moment
from chaos.history import OK, REFUSED, Operation
from chaos.verdict import DUPLICATED, LOST, UNEXPECTED, Verdict

ENDS = {"complete": "done", "fail": "failed", "release": "released"}
FORCED = ("force_complete", "force_release")
UNSURE_SPAN = 60.0  # seconds that a call may have taken whose answer nobody saw


@dataclass
class Call:
    """A call on one lease; of complete_batch one for each of its todos."""

    operation: Operation
    verb: str
    todo: str
    token: str
    end: str
    code: str
    answer: Row

    @property
    def may_have_happened(self) -> bool:
        """Whether it did, or nobody knows."""
        return self.end != REFUSED or bool(self.operation.args.get("twice"))


@dataclass
class Lease:
    """What a claim gave, and what was done with it."""

    claim: Operation
    todo: str
    token: str
    claimed_at: datetime
    until: datetime
    seq: int | None
    attempt: int
    row: Row | None = None
    calls: list[Call] = field(default_factory=list)

    def known_until(self, before: datetime | None = None) -> datetime:
        """Its end, as far as heartbeats (made before this time) were acknowledged."""
        ends = [self.until]
        for call in self.calls:
            if call.verb == "heartbeat" and call.end == OK:
                end, made = beat_times(call)
                if before is None or made < before:
                    ends.append(end)
        return max(ends)


@dataclass
class Book:
    """All of it, by todo: leases, ended attempts, calls without a lease, overrides, retries."""

    leases: dict[str, list[Lease]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    forced: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    retried: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    by_token: dict[str, Lease] = field(default_factory=dict)


def read(operations: Iterable[Operation], facts: Facts, verdict: Verdict) -> Book:
    """Put calls and rows together; what fits to nothing is a violation.

    Args:
        operations: in the order in which they were begun.
        facts: what the database holds.
        verdict: takes the violations.
    """
    book = Book()
    operations = list(operations)
    for row in (*facts.attempts, *(_held(todo) for todo in facts.todos)):
        if row:
            book.rows[row["todo_id"]].append(row)
    for rows in book.rows.values():
        rows.sort(key=lambda row: row["seq"])
    _read(operations, book, verdict)
    for leases in book.leases.values():
        leases.sort(key=lambda lease: (lease.claimed_at, lease.claim.begun))
        for lease in leases:
            _match(lease, book, verdict)
    return book


def _held(todo: Row) -> Row:
    """A todo that is still claimed, as an attempt that never ends; else nothing."""
    if todo["state"] != "claimed":
        return {}
    same = ("endpoint_id", "queue", "attempt", "claimed_at", "owner")
    never = datetime.max.replace(tzinfo=UTC)
    return {
        **{name: todo[name] for name in same}, "todo_id": todo["id"], "seq": todo["claims"],
        "ended_at": never, "outcome": "held", "state": "claimed",
    }  # fmt: skip


def _read(operations: list[Operation], book: Book, verdict: Verdict) -> None:
    for operation in operations:
        if operation.op == "claim" and operation.end == OK:
            for todo in operation.answer.get("todos", []):
                _open(operation, todo, book, verdict)
    for operation in operations:
        if operation.op in FORCED:
            book.forced[operation.args["todo"]].append(operation)
        elif operation.op == "retry":
            book.retried[operation.args["todo"]].append(operation)
        for call in calls_of(operation):
            lease = book.by_token.get(call.token)
            if lease is None:
                verdict.wrong(UNEXPECTED, f"{operation.name}: a token that no claim was told")
            else:
                lease.calls.append(call)


def _open(claim: Operation, todo: Row, book: Book, verdict: Verdict) -> None:
    until = moment(todo["lease_expires_at"])
    if until is None:
        verdict.wrong(UNEXPECTED, f"{claim.name}: a lease without an end")
        return
    begun = moment(todo.get("claimed_at")) or until - timedelta(seconds=claim.args["lease"])
    token = todo["lease_token"]
    lease = Lease(claim, str(todo["id"]), token, begun, until, todo.get("claims"), todo["attempt"])
    if token in book.by_token:
        verdict.wrong(
            DUPLICATED,
            f"{claim.name} and {book.by_token[token].claim.name} were given one lease",
        )
        return
    if (until - begun).total_seconds() != claim.args["lease"]:
        verdict.wrong(UNEXPECTED, f"{claim.name}: a lease of {until - begun}")
    book.by_token[token] = lease
    book.leases[lease.todo].append(lease)


def calls_of(operation: Operation) -> Iterator[Call]:
    """The calls on leases that an operation made."""
    args = operation.args
    if operation.op in (*ENDS, "heartbeat"):
        answers = operation.answer.get("todos") or [{}]
        yield Call(
            operation, operation.op, args["todo"], args["token"], operation.end, operation.code,
            answers[0],
        )  # fmt: skip
    elif operation.op == "complete_batch":
        answers = operation.answer.get("todos") or [{}] * len(args["todos"])
        for todo, token, answer in zip(args["todos"], args["tokens"], answers, strict=False):
            end, code = operation.end, operation.code
            if end == OK and answer.get("outcome") != "done":
                end, code = REFUSED, str(answer.get("outcome"))
            yield Call(operation, "complete", todo, token, end, code, answer)


def beat_times(call: Call) -> tuple[datetime, datetime]:
    """Of an acknowledged heartbeat: when the lease ends now, and when it was made."""
    end = moment(call.answer["lease_expires_at"])
    if end is None:
        raise ValueError(f"{call.operation.name}: a heartbeat without an end")
    return end, end - timedelta(seconds=call.operation.args["lease"])


def _match(lease: Lease, book: Book, verdict: Verdict) -> None:
    """Find the attempt's row."""
    taken = {id(other.row) for other in book.leases[lease.todo] if other.row is not None}
    for row in book.rows[lease.todo]:
        same = row["claimed_at"] == lease.claimed_at and row["owner"] is not None
        if same and id(row) not in taken and lease.seq in (None, row["seq"]):
            lease.row = row
            break
    if lease.row is None:
        verdict.wrong(LOST, f"{lease.claim.name} was given {lease.todo}, but no attempt says so")
        return
    row = lease.row
    if row["attempt"] != lease.attempt:
        verdict.wrong(
            UNEXPECTED,
            f"{lease.claim.name}: attempt {lease.attempt} of {lease.todo}, the row says "
            f"{row['attempt']}",
        )
    forced = row["outcome"] == "overridden"
    if row["owner"] != lease.claim.owner and not forced:
        verdict.wrong(
            UNEXPECTED, f"{lease.claim.name} holds {lease.todo}, the row says {row['owner']}"
        )
