"""The judge of creates and deliveries: what was taken is there, once, and nothing else is.

A todo with a key is unique among live ones of its endpoint: two that are both live at some moment
are a violation, one after the other are not. A todo without a key is told by its title. A todo
lives from its creation to its first end; one that is retried later has had its first life.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from chaos.book import UNSURE_SPAN, Book
from chaos.facts import Facts, Row
from chaos.history import OK, UNKNOWN, Operation
from chaos.verdict import DUPLICATED, LOST, UNEXPECTED, Verdict

Name = tuple[str, str]  # endpoint, and key or title


def judge(operations: Iterable[Operation], facts: Facts, book: Book, verdict: Verdict) -> None:
    """Judge creates, deliveries and events."""
    todos = {row["id"]: row for row in facts.todos}
    stored: dict[Name, list[Row]] = defaultdict(list)
    for row in facts.todos:
        stored[name_of(row["endpoint_id"], row["idempotency_key"], row["title"])].append(row)
    told_made: Counter[str] = Counter()  # by id: how many calls were told that they created it
    perhaps: Counter[Name] = Counter()
    again: set[Name] = set()
    spans: dict[str, float] = {}
    for call in operations:
        if call.op not in ("create", "deliver"):
            continue
        names = _names(call)
        if call.end == UNKNOWN or call.args.get("twice"):
            perhaps.update(names)
        elif call.op == "deliver" and call.end == OK:
            # The server asks its database again when it lost the answer, and then finds what it
            # made itself, or makes another when that is done already.
            again.update(names)
        if call.end == OK:
            _judge_answer(call, names, todos, told_made, verdict)
            _judge_found(call, book, verdict)
            for answer in call.answer["todos"]:
                if answer.get("created"):
                    spans[str(answer["id"])] = call.span
    for identity, count in told_made.items():
        if count > 1:
            verdict.wrong(DUPLICATED, f"{count} calls were told that they created {identity}")
    for name, rows in stored.items():
        unaccounted = sum(row["id"] not in told_made for row in rows)
        if unaccounted > perhaps[name] + (name in again):
            verdict.wrong(
                UNEXPECTED,
                f"{unaccounted} todos {name[1]!r} of {name[0]} that nobody was told of, "
                f"{perhaps[name]} calls may have made them",
            )
        _judge_lives(name, rows, spans, book, verdict)
    _judge_events(facts, verdict)


def name_of(endpoint: str, key: str | None, title: str) -> Name:
    """What a create is known by."""
    return endpoint, f"key {key}" if key is not None else f"title {title}"


def _names(call: Operation) -> list[Name]:
    return [
        name_of(call.args["endpoint"], todo.get("key"), todo.get("title", ""))
        for todo in call.args["todos"]
    ]


def _judge_answer(
    call: Operation, names: list[Name], todos: dict[str, Row], told_made: Counter[str],
    verdict: Verdict,
) -> None:  # fmt: skip
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
            told_made[identity] += 1
            if row["queue"] != asked["queue"]:
                verdict.wrong(LOST, f"{call.name}: {identity} lies in {row['queue']}")
        else:
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


def _judge_lives(
    name: Name, rows: list[Row], spans: dict[str, float], book: Book, verdict: Verdict
) -> None:
    if not name[1].startswith("key "):
        return
    rows = sorted(rows, key=lambda row: (row["created_at"], row["id"]))
    for one, other in pairwise(rows):
        over = first_end(one, book)
        span = timedelta(seconds=min(spans.get(other["id"], UNSURE_SPAN), UNSURE_SPAN))
        if over is None or over > other["created_at"] + span:
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


def _judge_events(facts: Facts, verdict: Verdict) -> None:
    """Each delivered todo has its event on its endpoint, and each event a todo."""
    events = {(row["endpoint_id"], row["id"]): row for row in facts.events}
    named = set()
    for todo in facts.todos:
        if todo["event_id"] is None:
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
