"""The judge: histories and the rows of the database in, a verdict out. Pure.

It believes the clients and the rows, never a counter of the product, and compares them in both
directions: what was acknowledged is in the database as it was said, and what is in the database was
attempted by somebody who was told that it happened, or was told nothing. ``leases``, ``attempts``,
``keys`` and ``budgets`` do the work on a ``book``; here is what concerns all calls, and the end of
the run.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence

from chaos import attempts, book, budgets, keys, leases
from chaos.facts import Facts
from chaos.history import OK, REFUSED, Operation
from chaos.scenario import EXPECTED
from chaos.verdict import LOST, UNEXPECTED, Verdict

# Where one of these is allowed, the server can have lost an answer of its database, too.
LOSSES = frozenset({"connection", "timeout", "unavailable"})
LONGEST = 60.0  # seconds that a call may be open when its client is killed; then it hangs


def classify(
    operations: Sequence[Operation],
    facts: Facts,
    allows: Iterable[str] = (),
    warns: Iterable[str] = (),
    killed: Mapping[str, Sequence[int]] | None = None,
) -> Verdict:
    """Judge a run that has been drained.

    Args:
        operations: all calls of all clients.
        facts: what the database holds.
        allows: codes that calls may have been answered with, beside conflict and deferred.
        warns: beginnings of the names of doctor's findings that may be there.
        killed: by client: when its process was gone that had been ended (monotonic nanoseconds).
    """
    verdict = Verdict(todos=len(facts.todos), attempts=len(facts.attempts))
    ordered = sorted(operations, key=lambda call: call.begun)
    allowed = EXPECTED | frozenset(allows)
    _judge_codes(ordered, allowed, verdict)
    _judge_open(ordered, killed or {}, verdict)
    kept = book.read(ordered, facts, verdict)
    leases.judge(ordered, kept, verdict)
    attempts.judge(ordered, facts, kept, verdict)
    keys.judge(ordered, facts, kept, verdict, repeats=bool(allowed & LOSSES))
    budgets.judge(facts, kept, verdict)
    _judge_end(facts, tuple(warns), verdict)
    return verdict


def _judge_codes(
    operations: Iterable[Operation], allowed: frozenset[str], verdict: Verdict
) -> None:
    for call in operations:
        verdict.attempted += 1
        if call.end == OK:
            verdict.acknowledged += 1
            continue
        if call.end == REFUSED:
            verdict.refused += 1
        else:
            verdict.unknown += 1
        verdict.coverage[call.code] += 1
        if call.code not in allowed and call.ended is not None:
            verdict.wrong(UNEXPECTED, f"{call.name}: {call.op} was answered {call.code}")


def _judge_open(
    operations: Iterable[Operation], killed: Mapping[str, Sequence[int]], verdict: Verdict
) -> None:
    """A call without an end was the last of its start, and its client was killed during it."""
    last = {(call.client, call.run): call for call in operations}
    for call in operations:
        if call.ended is not None:
            continue
        ends = sorted(killed.get(call.client, ()))
        after = bisect.bisect_left(ends, call.begun)
        if last[call.client, call.run] is not call or after == len(ends):
            verdict.wrong(UNEXPECTED, f"{call.name}: {call.op} has no end, and nobody was killed")
        elif (open_for := (ends[after] - call.begun) / 1e9) > LONGEST:
            verdict.wrong(UNEXPECTED, f"{call.name}: {call.op} was open for {open_for:.0f} s")


def _judge_end(facts: Facts, warns: tuple[str, ...], verdict: Verdict) -> None:
    """Everything is done or dead, nothing is held, and the product finds nothing wrong."""
    for todo in facts.todos:
        if todo["completed_at"] is None:
            verdict.wrong(UNEXPECTED, f"{todo['id']} is {todo['state']} after the drain")
    for row in facts.unsound:
        verdict.wrong(UNEXPECTED, f"{row['id']}: {row['problem']}")
    for row in facts.doctor:
        if not row["name"].startswith(warns or ("\0",)):
            verdict.wrong(UNEXPECTED, f"doctor: {row['level']}: {row['name']}: {row['found']}")
    if facts.counted is not None and facts.counted != len(facts.attempts):
        verdict.wrong(
            LOST, f"the counters have {facts.counted} attempts, there are {len(facts.attempts)}"
        )
