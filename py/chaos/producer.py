"""Producers: one creates over SQL, one sends signed webhooks; both say some things twice.

Options beside those of ``worker``: queues (``shares``: how often which), hooks [{path, secret, id,
endpoint, queue}]. A producer ends when a file ``drain`` lies in the folder of the run.
"""

from __future__ import annotations

import random
import time
import uuid
from pathlib import Path
from typing import Any

from chaos.doubled import doubled
from chaos.hands import HookHands, NotThere, Outcome, Row, SqlHands
from chaos.history import OK, UNKNOWN, Writer
from chaos.worker import POISON

TRIES = 5


class Producer:
    """What both have: a history, a rate, an end."""

    def __init__(self, history: Path, options: Row) -> None:
        self.options = options
        self.writer = Writer(history, history.stem, history.stem)
        self.random = random.Random(f"{options['seed']} {history.stem} {self.writer.start}")  # noqa: S311
        self.drain = Path(options["folder"]) / "drain"
        self.beat = 1 / float(options["rate"])
        self.next_call = time.monotonic()

    def run(self) -> None:
        """Produce until there is a drain."""
        while not self.drain.exists():
            try:
                self.step()
            except NotThere:
                time.sleep(0.2)

    def step(self) -> None:
        """Make something."""
        raise NotImplementedError

    def pace(self) -> None:
        """Wait for the next call's turn."""
        time.sleep(max(0.0, self.next_call - time.monotonic()))
        self.next_call = max(self.next_call, time.monotonic()) + self.beat

    def note(self, n: int, outcome: Outcome) -> None:
        """Write what became of call ``n``."""
        answer = {"todos": outcome.todos} if outcome.end == OK else None
        self.writer.end(n, outcome.end, outcome.code, answer)

    def queue(self) -> str:
        """One of the queues, by their shares."""
        shares: dict[str, float] = self.options["shares"]
        return self.random.choices(list(shares), list(shares.values()))[0]


class SqlProducer(Producer):
    """create_todo and create_todos, a third of them with a key, which then comes again."""

    def __init__(self, history: Path, options: Row) -> None:
        super().__init__(history, options)
        self.hands = SqlHands(options, history.stem)
        if options.get("twice"):
            self.hands = doubled(self.hands, history)
        self.made = 0

    def step(self) -> None:
        """Create one or a few; what has keys is created again, at once or when it was not sure."""
        endpoint, queues = self.where()
        many = self.random.randint(2, 4) if self.random.random() < 0.2 else 1
        todos = [self.todo(self.random.choice(queues)) for _ in range(many)]
        keyed = all("key" in todo for todo in todos)
        outcome = self.create(endpoint, todos)
        for _ in range(TRIES):
            sure = outcome.end == OK
            if not keyed or self.drain.exists() or (sure and self.random.random() < 0.5):
                return
            outcome = self.create(endpoint, [{**todo, "title": self.title()} for todo in todos])

    def create(self, endpoint: Row, todos: list[Row]) -> Outcome:
        """One call."""
        self.pace()
        self.hands.open(endpoint)
        args: dict[str, Any] = {"endpoint": endpoint["id"], "todos": todos}
        if self.options.get("twice"):
            args["twice"] = True
        n = self.writer.begin("create", **args)
        outcome = self.hands.call("create", args)
        self.note(n, outcome)
        return outcome

    def where(self) -> tuple[Row, list[str]]:
        """An endpoint, and queues for it: budgeted ones on the first, so that they are short."""
        queue = self.queue()
        if queue in self.options["budgeted"]:
            return self.options["endpoints"][0], [queue]
        free = [name for name in self.options["shares"] if name not in self.options["budgeted"]]
        return self.random.choice(self.options["endpoints"]), free

    def todo(self, queue: str) -> Row:
        """What is to be created."""
        todo: Row = {"queue": queue, "title": self.title()}
        if self.random.random() < 0.35:
            todo["key"] = f"{self.writer.run}-{self.made}"
        if self.random.random() < float(self.options.get("poison", 0.06)):
            todo |= {"kind": POISON, "max_attempts": 2}
        return todo

    def title(self) -> str:
        """One that no other todo has."""
        self.made += 1
        return f"{self.writer.run} {self.made}"


class HookProducer(Producer):
    """A sender that sends each delivery until it is taken, and some of them twice."""

    def __init__(self, history: Path, options: Row) -> None:
        super().__init__(history, options)
        self.hands = HookHands(options)
        if options.get("twice"):
            self.hands = doubled(self.hands, history)

    def step(self) -> None:
        """Send a delivery, again while nothing is known, and perhaps once more."""
        hook = self.random.choice(self.options["hooks"])
        delivery = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        outcome = Outcome(UNKNOWN)
        for _ in range(TRIES):
            outcome = self.deliver(hook, delivery)
            if outcome.end == OK or self.drain.exists():
                break
            time.sleep(0.2)
        if outcome.end == OK and self.random.random() < 0.3:
            self.deliver(hook, delivery)

    def deliver(self, hook: Row, delivery: str) -> Outcome:
        """One call."""
        self.pace()
        args: dict[str, Any] = {
            "endpoint": hook["endpoint"],
            "todos": [{"queue": hook["queue"], "key": f"{hook['id']}:{delivery}"}],
        }
        if self.options.get("twice"):
            args["twice"] = True
        n = self.writer.begin("deliver", **args)
        outcome = self.hands.deliver(hook, delivery)
        self.note(n, outcome)
        return outcome
