"""The judge of attempts: what the database says of who held what, against what its holders said.

Each ended attempt is a row. Some call has to explain it, the rows of a todo follow each other
without gap or overlap, and the todo is what its last attempt made of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise

from chaos.book import ENDS, UNSURE_SPAN, Book, Lease
from chaos.facts import Facts, Row
from chaos.history import OK, UNKNOWN, Operation
from chaos.verdict import DUPLICATED, LOST, OVERLAP, UNEXPECTED, Verdict

FIRST_BACKOFF, LONGEST_BACKOFF = 30, 900  # seconds; doubled with each attempt


def judge(operations: Iterable[Operation], facts: Facts, book: Book, verdict: Verdict) -> None:
    """Judge the rows of attempts, and the todos' own rows."""
    _judge_rows(book, operations, verdict)
    for todo in facts.todos:
        _judge_todo(todo, book, verdict)


def _judge_rows(book: Book, operations: Iterable[Operation], verdict: Verdict) -> None:
    """Each ended attempt is explained by calls, and lapsed no earlier than it may."""
    leases = {id(lease.row): lease for lease in book.by_token.values() if lease.row is not None}
    silent: Counter[str] = Counter()  # by owner: attempts that nobody was told of
    for todo, rows in book.rows.items():
        for row in rows:
            lease = leases.get(id(row))
            if lease is None:
                _judge_silent(todo, row, silent, verdict)
            _judge_row(todo, row, lease, book, verdict)
        _judge_sequence(todo, rows, leases, book, verdict)
    claims: Counter[str] = Counter()  # by owner: how many claims may have made
    for operation in operations:
        if operation.op == "claim" and (operation.end == UNKNOWN or operation.args.get("twice")):
            claims[operation.owner] += int(operation.args.get("limit", 1))
    for owner, count in silent.items():
        if count > claims[owner]:
            verdict.wrong(
                UNEXPECTED,
                f"{count} attempts of {owner} that he was not told of, his calls explain "
                f"{claims[owner]}",
            )


def _judge_silent(todo: str, row: Row, silent: Counter[str], verdict: Verdict) -> None:
    """An attempt whose token nobody was told: it can only lapse, or be overridden."""
    if row["outcome"] != "overridden":  # that row names the operator
        silent[row["owner"]] += 1
    if row["outcome"] not in ("lapsed", "overridden", "held"):
        verdict.wrong(
            UNEXPECTED,
            f"attempt {row['seq']} of {todo}: {row['outcome']}, but nobody was told its token",
        )


def _judge_row(todo: str, row: Row, lease: Lease | None, book: Book, verdict: Verdict) -> None:
    about, outcome = f"attempt {row['seq']} of {todo}", row["outcome"]
    if outcome == "lapsed":
        verdict.coverage["lapsed"] += 1
        if lease is not None and row["ended_at"] < lease.known_until():
            verdict.wrong(
                OVERLAP,
                f"{about}: lapsed at {row['ended_at']}, but {lease.claim.name} held it until "
                f"{lease.known_until()}",
            )
    elif outcome == "overridden":
        verb = "force_complete" if row["state"] == "done" else "force_release"
        if not any(c.op == verb and c.may_have_happened for c in book.forced[todo]):
            verdict.wrong(UNEXPECTED, f"{about}: overridden, but no operator did")
    elif outcome in ENDS.values():
        if lease is not None and not any(
            ENDS.get(call.verb) == outcome and call.may_have_happened for call in lease.calls
        ):
            verdict.wrong(UNEXPECTED, f"{about}: {outcome}, but its holder never said so")
    elif outcome != "held":
        verdict.wrong(UNEXPECTED, f"{about}: {outcome}")


def _judge_sequence(
    todo: str, rows: list[Row], leases: dict[int, Lease], book: Book, verdict: Verdict
) -> None:
    """One attempt after another, numbered without gaps, one at a time."""
    if [row["seq"] for row in rows] != list(range(1, len(rows) + 1)):
        verdict.wrong(LOST, f"{todo}: attempts {[row['seq'] for row in rows]}")
    if rows and rows[0]["attempt"] != 1:
        verdict.wrong(UNEXPECTED, f"{todo}: its first attempt is {rows[0]['attempt']}")
    for one, other in pairwise(rows):
        lease = leases.get(id(other))
        span = min(lease.claim.span if lease else UNSURE_SPAN, UNSURE_SPAN)
        _judge_pair(todo, one, other, timedelta(seconds=span), verdict)
    anew = sum(other["attempt"] == 1 for other in rows[1:])
    sure = sum(call.end == OK for call in book.retried[todo])
    perhaps = sum(call.may_have_happened for call in book.retried[todo])
    if anew > perhaps:
        verdict.wrong(UNEXPECTED, f"{todo} began anew {anew} times, {perhaps} retries explain it")
    elif anew < sure:
        verdict.wrong(LOST, f"{todo} was retried {sure} times, but began anew {anew} times")


def _judge_pair(todo: str, one: Row, other: Row, span: timedelta, verdict: Verdict) -> None:
    """Two attempts that follow each other; ``span``: how long the other's claim took."""
    about, over = f"attempt {other['seq']} of {todo}", one["ended_at"]
    if other["claimed_at"] + span < over:
        verdict.wrong(
            OVERLAP, f"{about} began at {other['claimed_at']}, the one before ended at {over}"
        )
    if one["state"] == "done":
        verdict.wrong(DUPLICATED, f"{about} was made after {todo} was done")
    if other["attempt"] == 1:
        return  # it was retried
    if other["attempt"] != one["attempt"] + 1:
        verdict.wrong(UNEXPECTED, f"{todo}: attempt {other['attempt']} after {one['attempt']}")
    if one["outcome"] == "failed":
        parked = min(FIRST_BACKOFF * 2 ** (one["attempt"] - 1), LONGEST_BACKOFF)
        if other["claimed_at"] + span < over + timedelta(seconds=parked):
            verdict.wrong(UNEXPECTED, f"{about} was claimed before its backoff was over")


def _judge_todo(todo: Row, book: Book, verdict: Verdict) -> None:
    """The todo's own row agrees with its attempts, and with who was told that he completed it."""
    rows, name = book.rows[todo["id"]], todo["id"]
    if todo["claims"] != len(rows):
        verdict.wrong(LOST, f"{name}: {todo['claims']} claims, {len(rows)} attempts")
    most = max((row["attempt"] for row in rows), default=0)
    verdict.most_attempts = max(verdict.most_attempts, most)
    if max(most, todo["attempt"]) > todo["max_attempts"]:
        verdict.wrong(UNEXPECTED, f"{name}: attempt {most} of {todo['max_attempts']}")
    done = [row for row in rows if row["state"] == "done"]
    if len(done) > 1:
        verdict.wrong(DUPLICATED, f"{name} was done {len(done)} times")
    if (todo["state"] == "done") != bool(done):
        verdict.wrong(LOST, f"{name} is {todo['state']}, its attempts say otherwise")
    told = [
        call for lease in book.leases[name] for call in lease.calls
        if call.verb == "complete" and call.end == OK
    ]  # fmt: skip
    if len({call.token for call in told}) > 1:
        verdict.wrong(DUPLICATED, f"{name}: {len(told)} were told that they completed it")
    last = told[-1] if told and todo["state"] == "done" else None
    alone = last is not None and last.operation.op == "complete"
    if last is not None and alone and todo["result"] != {"token": last.token}:
        verdict.wrong(LOST, f"{name}: the result of {last.operation.name} is not there")
    if todo["state"] == "failed" and todo["completed_at"] is not None:
        verdict.coverage["dead_letter"] += 1
        spent = rows and rows[-1]["state"] == "failed"
        if not spent or rows[-1]["attempt"] < todo["max_attempts"]:
            verdict.wrong(UNEXPECTED, f"{name} is a dead letter with attempts left")
