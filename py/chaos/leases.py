"""The judge of leases: whether what the holders were told fits together.

Two clocks meet here. A claim reads the database's clock when it begins, and may take a todo that
another gave back while it ran: so it may begin, by that clock, as much before the other's end as
the call took. What took longer than it may proves less, never something wrong. That a lease which
*lapsed* did so at its end and not before is compared without any such allowance (``attempts``).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise

from chaos.book import ENDS, UNSURE_SPAN, Book, Call, Lease, beat_times
from chaos.history import OK, REFUSED, Operation
from chaos.verdict import DUPLICATED, LOST, OVERLAP, STALE, UNEXPECTED, Verdict


def judge(operations: Iterable[Operation], book: Book, verdict: Verdict) -> None:
    """Judge what claims gave, the calls on leases, and that no two leases ran at once."""
    for operation in operations:
        if operation.op == "claim" and operation.end == OK:
            _judge_claim(operation, verdict)
    for leases in book.leases.values():
        for lease in leases:
            _judge_calls(lease, verdict)
        _judge_overlaps(leases, book, verdict)


def _judge_claim(claim: Operation, verdict: Verdict) -> None:
    """It gave what was asked for."""
    args, todos = claim.args, claim.answer.get("todos", [])
    if len(todos) > args.get("limit", 1):
        verdict.wrong(UNEXPECTED, f"{claim.name}: {len(todos)} todos")
    for todo in todos:
        asked = args.get("todo", todo["id"]), args["endpoint"]
        if (str(todo["id"]), str(todo.get("endpoint_id", args["endpoint"]))) != asked:
            verdict.wrong(UNEXPECTED, f"{claim.name}: {todo['id']} is not what was asked for")
        if args.get("queues") and todo["queue"] not in args["queues"]:
            verdict.wrong(UNEXPECTED, f"{claim.name}: {todo['id']} lies in {todo['queue']}")


def _judge_calls(lease: Lease, verdict: Verdict) -> None:
    if lease.row is None:
        return
    outcome = lease.row["outcome"]
    for call in lease.calls:
        name, about = call.operation.name, f"{call.verb} of {lease.todo}"
        if call.end == OK and call.verb != "heartbeat" and outcome != ENDS[call.verb]:
            stale = outcome in ("lapsed", "overridden")
            verdict.wrong(
                STALE if stale else LOST, f"{name}: {about} was taken, the row says {outcome}"
            )
        elif call.end == REFUSED and call.code == "conflict":
            if outcome in ("lapsed", "overridden"):
                verdict.coverage["stale_refused"] += 1
            elif not _done_before(call, lease, outcome):
                verdict.wrong(UNEXPECTED, f"{name}: {about} was refused to its holder ({outcome})")
    for one, other in pairwise(lease.calls):
        refused = one.end == REFUSED and one.code == "conflict"
        if refused and other.end == OK:
            verdict.wrong(
                STALE, f"{other.operation.name}: taken after {one.operation.name} was refused"
            )
    _judge_ends(lease, verdict)


def _judge_ends(lease: Lease, verdict: Verdict) -> None:
    """A lease ends once, and is not extended after that."""
    ends = [c for c in lease.calls if c.verb != "heartbeat" and c.end == OK]
    if len(ends) > 1:
        verdict.wrong(DUPLICATED, f"{ends[1].operation.name}: {lease.todo} was ended twice")
    for call in lease.calls:
        beaten = call.verb == "heartbeat" and call.end == OK and ends
        if beaten and (ends[0].operation.ended or 0) < call.operation.begun:
            verdict.wrong(
                STALE, f"{call.operation.name}: taken after {ends[0].operation.name} ended it"
            )


def _done_before(call: Call, lease: Lease, outcome: str) -> bool:
    """Whether another call on the lease, or this one's twin, may have ended it with this."""
    if call.operation.args.get("twice") and ENDS.get(call.verb) == outcome:
        return True
    ended = call.operation.ended or 0
    return any(
        other is not call and ENDS.get(other.verb) == outcome and other.may_have_happened
        and other.operation.begun < ended
        for other in lease.calls
    )  # fmt: skip


def _judge_overlaps(leases: list[Lease], book: Book, verdict: Verdict) -> None:
    """By what the holders were told alone."""
    for one, other in pairwise(leases):
        span = timedelta(seconds=min(other.claim.span, UNSURE_SPAN))
        for call in one.calls:
            if call.verb == "heartbeat" and call.end == OK:
                made = beat_times(call)[1]
                if made > other.claimed_at + span:
                    verdict.wrong(
                        STALE,
                        f"{call.operation.name}: heartbeat of {one.todo} was taken after "
                        f"{other.claim.name} had claimed it",
                    )
        runs_on = one.known_until(other.claimed_at + span) > other.claimed_at + span
        if runs_on and not _ended_before(one, other, book):
            verdict.wrong(
                OVERLAP,
                f"{other.claim.name} was given {one.todo} while {one.claim.name} held it until "
                f"{one.known_until(other.claimed_at + span)}",
            )


def _ended_before(one: Lease, other: Lease, book: Book) -> bool:
    """Whether somebody may have ended the one before the other's claim was over."""
    over = other.claim.ended or 0
    calls = [c.operation for c in one.calls if c.verb != "heartbeat" and c.may_have_happened]
    forced = [c for c in book.forced[one.todo] if c.may_have_happened]
    return any(call.begun < over for call in (*calls, *forced))
