"""A client library that sends each request twice, as one does whose answer seemed to be late.

Half of the pairs are sent one after the other, half at once, over two connections. The client is
given one of the two answers, by chance, so that it may be told of a conflict although its call was
done. Its history has one call with ``twice``; both answers of each pair are written beside it, and
``judge_pairs`` says which pairs cannot be: of two acknowledgements of one lease one at most is
taken, two claims never give the same lease, and what has a key is made once: by one of the two, if
they were sent at once, and else by both only if the first todo was over before the second request.
The judge of keys sees that, by the database's times.
"""

from __future__ import annotations

import copy
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from chaos.hands import McpHands, Outcome, Row, SqlHands
from chaos.history import OK, REFUSED, UNKNOWN

SUFFIX = ".twice"
AT_ONCE = 0.5  # seconds; in a pair that took longer the first todo may have been done meanwhile
ENDS = ("complete", "fail", "release")  # with the token of one lease
H = TypeVar("H")


class Doubled:
    """Hands that do everything twice.

    Args:
        hands: of a worker or of a producer.
        path: where the pairs are written; one line each.
    """

    def __init__(self, hands: Any, path: Path) -> None:
        self.first, self.second = hands, another(hands)
        self.draws = random.Random(str(path))  # noqa: S311
        self.file = path.open("a", buffering=1)

    def open(self, endpoint: Row) -> None:
        """Be connected, both."""
        self.first.open(endpoint)
        self.second.open(endpoint)

    def look(self, endpoint: Row, state: str) -> list[str]:
        """As one of them."""
        found: list[str] = self.first.look(endpoint, state)
        return found

    def call(self, op: str, args: Row) -> Outcome:
        """Call twice; one of the answers."""
        return self._pair(op, args, lambda hands: hands.call(op, args))

    def deliver(self, hook: Row, delivery: str) -> Outcome:
        """Deliver twice; one of the answers."""
        args = {"endpoint": hook["endpoint"], "todos": [{"key": delivery}]}
        return self._pair("deliver", args, lambda hands: hands.deliver(hook, delivery))

    def _pair(self, op: str, args: Row, send: Callable[[Any], Outcome]) -> Outcome:
        started = time.monotonic()
        together = self.draws.random() < 0.5
        if together:
            answers: dict[int, Outcome] = {}
            thread = threading.Thread(target=lambda: answers.update({1: send(self.second)}))
            thread.start()
            first = send(self.first)
            thread.join()
            second = answers[1]
        else:
            first, second = send(self.first), send(self.second)
        pair = [_kept(first), _kept(second)]
        line = {"op": op, "args": args, "together": together, "pair": pair,
                "seconds": time.monotonic() - started}  # fmt: skip
        self.file.write(json.dumps(line, default=str) + "\n")
        return first if self.draws.random() < 0.5 else second


def doubled(hands: H, history: Path) -> H:
    """The same hands, doubled.

    Args:
        hands: of a worker or a producer.
        history: of the client; the pairs are written into a file beside it.
    """
    twins: Any = Doubled(hands, history.with_suffix(SUFFIX))
    return twins  # type: ignore[no-any-return]


def another(hands: Any) -> Any:
    """Hands of the same client over another connection."""
    if isinstance(hands, SqlHands | McpHands):
        return type(hands)(hands.options, hands.owner)
    return copy.copy(hands)  # its HTTP client may be shared


def judge_pairs(lines: Iterable[str]) -> tuple[Counter[str], list[str]]:
    """What the second answers were, and which pairs cannot be.

    Args:
        lines: of the files of pairs; one that was cut is left out.

    Returns:
        Counts (``second_refused``: an acknowledgement of which one was taken and one refused;
        ``second_same``: two creates or deliveries that named the same todo), and sentences.
    """
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        one, two = entry["pair"]
        if UNKNOWN in (one["end"], two["end"]):
            counts["unsure"] += 1
        else:
            counts["pairs"] += 1
            _judge(entry, one, two, counts, wrong)
    return counts, wrong


def _judge(entry: Row, one: Row, two: Row, counts: Counter[str], wrong: list[str]) -> None:
    op, ends = entry["op"], [one["end"], two["end"]]
    both = ends == [OK, OK]
    said = f"{op} {entry['args']}: {one} and {two}"
    if op in ENDS:
        if both:
            wrong.append(f"taken twice: {said}")
        elif sorted(ends) == [OK, REFUSED] and "conflict" in (one["code"], two["code"]):
            counts["second_refused"] += 1
    elif op == "complete_batch" and both:
        done = [
            {t["id"] for t in answer["todos"] if t["outcome"] == "done"} for answer in (one, two)
        ]
        if done[0] & done[1]:
            wrong.append(f"taken twice: {said}")
        counts["second_refused"] += bool(done[0] ^ done[1])
    elif op == "claim" and both:
        tokens = [{t["lease_token"] for t in answer["todos"]} for answer in (one, two)]
        if tokens[0] & tokens[1]:
            wrong.append(f"one lease given twice: {said}")
    elif op in ("create", "deliver") and both:
        keyed = all("key" in todo for todo in entry["args"]["todos"])
        same = [t["id"] for t in one["todos"]] == [t["id"] for t in two["todos"]]
        if keyed:
            counts["second_same" if same else "second_other"] += 1
            both_made = any(
                a.get("created") and b.get("created")
                for a, b in zip(one["todos"], two["todos"], strict=True)
            )
            if both_made and entry.get("together") and entry.get("seconds", 0.0) < AT_ONCE:
                wrong.append(f"made twice: {said}")
        elif same:
            wrong.append(f"without a key, and the same: {said}")


def _kept(outcome: Outcome) -> Row:
    names = ("id", "lease_token", "outcome", "created")
    todos = [{k: t[k] for k in names if k in t} for t in outcome.todos]
    return {"end": outcome.end, "code": outcome.code, "todos": todos}
