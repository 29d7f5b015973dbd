"""The judge of creates and deliveries: what was taken is there, once, and nothing else is.

A todo with a key is unique among live ones of its endpoint: two that are both live at some moment
are a violation, one after the other are not. A todo without a key is told by its title. A todo
lives from its creation to its first end; one that is retried later has had its first life.

Nobody need be told of a todo when a call's outcome is not known, or its request was sent twice. Nor
when the server lost its database's answer to a delivery, and asked again: it found what it had made
and said so, or that had ended already, and it made another. Never were two alive at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from chaos.book import UNSURE_SPAN, Book
from chaos.facts import Facts, Row
from chaos.history import OK, UNKNOWN, Operation
from chaos.verdict import DUPLICATED, LOST, UNEXPECTED, Verdict

Name = tuple[str, str]  # endpoint, and key or title


ON_ITS_WAY = 1.0  # seconds that a call may still be under way whose client has given up


@dataclass
class Told:
    """What the callers know of the todos that they made or found.

    Attributes:
        made: by id: how many calls were told that they created it.
        found: ids that calls were told of which did not create them.
        perhaps: by name: calls that may have made one of which nobody was told.
        repeated: names of deliveries that the server may have stored twice, one after the other.
        spans: by id: seconds that the call took which was told that it created it.
        longest: by name: seconds that its longest call took.
        receivers: ids of receivers; a key of theirs begins with one.
    """

    made: Counter[str] = field(default_factory=Counter)
    found: set[str] = field(default_factory=set)
    perhaps: Counter[Name] = field(default_factory=Counter)
    repeated: set[Name] = field(default_factory=set)
    spans: dict[str, float] = field(default_factory=dict)
    longest: dict[Name, float] = field(default_factory=dict)
    receivers: set[str] = field(default_factory=set)

    def span(self, row: Row, name: Name) -> timedelta:
        """How long after its creation's time a todo may have come to be."""
        seconds = self.spans.get(row["id"], self.longest.get(name, 0.0))
        return timedelta(seconds=min(seconds, UNSURE_SPAN))


def judge(
    operations: Iterable[Operation], facts: Facts, book: Book, verdict: Verdict,
    repeats: bool = False,
) -> None:  # fmt: skip
    """Judge creates, deliveries and events.

    Args:
        operations: all calls.
        facts: what the database holds.
        book: the attempts.
        verdict: takes the violations.
        repeats: whether the server can have lost answers of its database.
    """
    todos = {row["id"]: row for row in facts.todos}
    stored: dict[Name, list[Row]] = defaultdict(list)
    for row in facts.todos:
        stored[name_of(row["endpoint_id"], row["idempotency_key"], row["title"])].append(row)
    told = Told()
    for call in operations:
        if call.op in ("create", "deliver"):
            _hear(call, todos, told, book, repeats, verdict)
    for identity, count in told.made.items():
        if count > 1:
            verdict.wrong(DUPLICATED, f"{count} calls were told that they created {identity}")
    for name, rows in stored.items():
        _judge_untold(name, rows, told, book, verdict)
        _judge_lives(name, rows, told, book, verdict)
    _judge_events(facts, told, verdict)


def _hear(
    call: Operation, todos: dict[str, Row], told: Told, book: Book, repeats: bool, verdict: Verdict
) -> None:
    """Note what a create or a delivery was told, and judge it."""
    names = _names(call)
    span = call.span + (ON_ITS_WAY if call.end == UNKNOWN else 0.0)
    for name in names:
        told.longest[name] = max(span, told.longest.get(name, 0.0))
    if call.op == "deliver":
        told.receivers.update(todo["key"].partition(":")[0] for todo in call.args["todos"])
    if call.end == UNKNOWN or call.args.get("twice"):
        told.perhaps.update(names)
    elif call.op == "deliver" and call.end == OK and repeats:
        told.repeated.update(names)
    if call.end == OK:
        _judge_answer(call, names, todos, told, verdict)
        _judge_found(call, book, verdict)


def _judge_untold(name: Name, rows: list[Row], told: Told, book: Book, verdict: Verdict) -> None:
    """No more todos that nobody was told of than calls may have made."""
    untold = [row for row in rows if row["id"] not in told.made]
    excused = name in told.repeated and any(
        row["id"] in told.found or _ended_before_a_told_one(row, name, rows, told, book)
        for row in untold
    )
    if len(untold) > told.perhaps[name] + excused:
        verdict.wrong(
            UNEXPECTED,
            f"{len(untold)} todos {name[1]!r} of {name[0]} that nobody was told of, "
            f"{told.perhaps[name]} calls may have made them"
            f"{', and the server one of them' if excused else ''}",
        )


def _ended_before_a_told_one(
    row: Row, name: Name, rows: list[Row], told: Told, book: Book
) -> bool:  # fmt: skip
    over = first_end(row, book)
    return over is not None and any(
        over <= other["created_at"] + told.span(other, name)
        for other in rows
        if other["id"] in told.made and other["created_at"] >= row["created_at"]
    )


def name_of(endpoint: str, key: str | None, title: str) -> Name:
    """What a create is known by."""
    return endpoint, f"key {key}" if key is not None else f"title {title}"


def _names(call: Operation) -> list[Name]:
    return [
        name_of(call.args["endpoint"], todo.get("key"), todo.get("title", ""))
        for todo in call.args["todos"]
    ]


def _judge_answer(
    call: Operation, names: list[Name], todos: dict[str, Row], told: Told, verdict: Verdict
) -> None:
    answers: list[Row] = call.answer["todos"]
    if len(answers) != len(names):
        verdict.wrong(LOST, f"{call.name}: {len(answers)} answers to {len(names)} creates")
    for name, asked, answer in zip(names, call.args["todos"], answers, strict=False):
        identity = str(answer["id"])
        row = todos.get(identity)
        if row is None:
            verdict.wrong(LOST, f"{call.name}: {identity} ({name[1]}) is not there")
            continue
        if name_of(row["endpoint_id"], row["idempotency_key"], row["title"]) != name:
            verdict.wrong(LOST, f"{call.name}: {identity} is not {name[1]} of {name[0]}")
        if answer.get("created"):
            told.made[identity] += 1
            told.spans[identity] = call.span
            if row["queue"] != asked["queue"]:
                verdict.wrong(LOST, f"{call.name}: {identity} lies in {row['queue']}")
        else:
            told.found.add(identity)
            verdict.coverage["dedupe"] += 1
            if "key" not in asked:
                verdict.wrong(UNEXPECTED, f"{call.name}: {identity} was there, without a key")


def _judge_found(call: Operation, book: Book, verdict: Verdict) -> None:
    """A create that finds a todo finds a live one, or nobody will do what was asked for."""
    for answer in call.answer["todos"]:
        if answer.get("created"):
            continue
        identity = str(answer["id"])
        ends = [
            c.operation for lease in book.leases[identity] for c in lease.calls
            if c.verb == "complete" and c.end == OK
        ]  # fmt: skip
        ends += [c for c in book.forced[identity] if c.op == "force_complete" and c.end == OK]
        if any(end.ended is not None and end.ended < call.begun for end in ends):
            verdict.wrong(LOST, f"{call.name}: found {identity}, which was done already")


def _judge_lives(name: Name, rows: list[Row], told: Told, book: Book, verdict: Verdict) -> None:
    """Of those with one key the next came when the one before was over."""
    if not name[1].startswith("key "):
        return
    rows = sorted(rows, key=lambda row: (row["created_at"], row["id"]))
    for one, other in pairwise(rows):
        over = first_end(one, book)
        if over is None or over > other["created_at"] + told.span(other, name):
            verdict.wrong(DUPLICATED, f"{one['id']} and {other['id']} lived at once with {name[1]}")


def first_end(todo: Row, book: Book) -> datetime | None:
    """When the todo was done or dead for the first time; None: it lives."""
    for row in book.rows[todo["id"]]:
        if row["state"] == "done":
            return _time(row["ended_at"])
        if row["state"] == "failed" and row["attempt"] >= todo["max_attempts"]:
            return _time(row["ended_at"])
    return _time(todo["completed_at"])


def _time(value: Any) -> datetime | None:
    return value if isinstance(value, datetime) else None


def _judge_events(facts: Facts, told: Told, verdict: Verdict) -> None:
    """Each delivered todo has its event on its endpoint, and each event a todo."""
    events = {(row["endpoint_id"], row["id"]): row for row in facts.events}
    named = set()
    for todo in facts.todos:
        if todo["event_id"] is None:
            if (todo["idempotency_key"] or "").partition(":")[0] in told.receivers:
                verdict.wrong(LOST, f"{todo['id']} was delivered, and has no event")
            continue
        place = (todo["endpoint_id"], todo["event_id"])
        event = events.get(place)
        if event is None:
            verdict.wrong(LOST, f"{todo['id']}: its event is not there")
        elif todo["idempotency_key"] != f"{event['webhook_id']}:{event['delivery_id']}":
            verdict.wrong(UNEXPECTED, f"{todo['id']}: the event of another delivery")
        elif place in named:
            verdict.wrong(DUPLICATED, f"{todo['id']}: its event made another todo, too")
        named.add(place)
    for place in events.keys() - named:
        verdict.wrong(UNEXPECTED, f"event {place[1]} of {place[0]} has no todo")
