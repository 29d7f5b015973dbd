"""The judge of budgets: never more in flight, never more charged in a window, than a policy allows.

What is in flight is counted from the attempts: each is in flight from its claim to its end. A claim
of a budgeted queue reads the clock when it has passed the gate, and then looks what is in flight,
in its next statement and with all locks that this takes: what ended in between had ended for it,
though by the clock it ended later. So an attempt counts from a moment after its claim's time, but
not from the end of the call, which may have waited long before the gate and after it. Beside that
a watcher counts the claimed todos of each queue in one statement, now and then, without allowance.
Charges are counted from the claims, by windows that are found with zoneinfo, not with the product's
functions, and have to be what the product has counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from chaos.book import Book
from chaos.facts import Facts, Row
from chaos.verdict import BUDGET, UNEXPECTED, Verdict

LOOK = 0.25  # seconds between a claim's time and its look at the most: a process that had to wait
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
STEPS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}


def judge(facts: Facts, book: Book, verdict: Verdict) -> None:
    """Judge the queues of ``facts.budgets`` up to ``facts.raised_at``."""
    spans = {
        id(lease.row): lease.claim.span for lease in book.by_token.values() if lease.row is not None
    }
    places: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in facts.attempts:
        places[row["endpoint_id"], row["queue"]].append(row)
    for (endpoint, queue), rows in places.items():
        policy = facts.budgets.get(queue)
        if policy is None:
            continue
        if (limit := policy.get("max_in_flight")) is not None:
            _judge_flight(queue, endpoint, limit, rows, spans, facts, verdict)
        if (limit := policy.get("max_claims_per_window")) is not None:
            used = {
                row["window_start"]: row["used"] for row in facts.windows
                if (row["endpoint_id"], row["queue"]) == (endpoint, queue)
            }  # fmt: skip
            _judge_window(queue, limit, policy["window"], rows, used, facts, verdict)
    if facts.budgets and not facts.samples:
        verdict.wrong(UNEXPECTED, "nobody has looked at what is in flight")
    for sample in facts.samples:
        limit = facts.budgets.get(sample["queue"], {}).get("max_in_flight")
        if limit is not None and sample["claimed"] > limit:
            verdict.wrong(
                BUDGET, f"{sample['queue']}: {sample['claimed']} were seen in flight, {limit} may"
            )


def _judge_flight(
    queue: str, endpoint: str, limit: int, rows: Iterable[Row], spans: Mapping[int, float],
    facts: Facts, verdict: Verdict,
) -> None:  # fmt: skip
    changes: list[tuple[datetime, int]] = []
    for row in rows:
        span = min(spans.get(id(row), LOOK), LOOK)
        start = row["claimed_at"] + timedelta(seconds=span)
        if start < row["ended_at"] and (facts.raised_at is None or start < facts.raised_at):
            changes += [(start, 1), (row["ended_at"], -1)]
    now = most = 0
    for _, change in sorted(changes):  # at one instant ends come first
        now += change
        most = max(most, now)
    verdict.most_in_flight[queue] = max(verdict.most_in_flight.get(queue, 0), most)
    if most == limit:
        verdict.coverage["in_flight_full"] += 1
    if most > limit:
        verdict.wrong(BUDGET, f"{queue} of {endpoint}: {most} in flight, {limit} may be")


def _judge_window(
    queue: str, limit: int, window: Mapping[str, Any], rows: Iterable[Row],
    used: Mapping[datetime, int], facts: Facts, verdict: Verdict,
) -> None:  # fmt: skip
    charged: Counter[datetime] = Counter()
    before: Counter[datetime] = Counter()
    for row in rows:
        start = window_start(window, row["claimed_at"])
        charged[start] += 1
        if facts.raised_at is None or row["claimed_at"] < facts.raised_at:
            before[start] += 1
    most = max(before.values(), default=0)
    verdict.most_charged[queue] = max(verdict.most_charged.get(queue, 0), most)
    if most > limit:
        verdict.wrong(BUDGET, f"{queue}: {most} claims in a window, {limit} may be")
    if most == limit:
        verdict.coverage["window_exhausted"] += 1
    if charged != Counter(used):
        verdict.wrong(
            UNEXPECTED, f"{queue}: claims by window {dict(charged)}, the product counted {used}"
        )


def window_start(window: Mapping[str, Any], at: datetime) -> datetime:
    """The first instant of the window that holds ``at``: when the local clock shows its label."""
    zone, step = ZoneInfo(window["tz"]), STEPS[window["period"]]
    clock = at.astimezone(zone).replace(tzinfo=None)
    label = datetime.combine(clock.date(), time.fromisoformat(window["start"]))
    if window["period"] == "hour":
        label = clock.replace(minute=label.minute, second=0, microsecond=0)
    elif window["period"] == "week":
        label -= timedelta(days=(clock.weekday() - DAYS.index(window["weekday"])) % 7)
    label += step  # labels around, the latest first
    while (start := first_shown(label, zone)) > at:
        label -= step
    return start


def first_shown(label: datetime, zone: ZoneInfo) -> datetime:
    """The first instant at which the local clock shows the label, or something later."""
    early = label.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if early.astimezone(zone).replace(tzinfo=None) == label:
        return early
    late = early  # in a gap: read with the clock of before, it lies behind the change
    early = label.replace(tzinfo=zone, fold=1).astimezone(UTC)
    while late - early > timedelta(microseconds=1):
        half = early + (late - early) / 2
        if half.astimezone(zone).replace(tzinfo=None) >= label:
            late = half
        else:
            early = half
    return late
