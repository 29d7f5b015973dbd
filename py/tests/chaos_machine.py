"""The two sides of test_model.py: each step calls the database, then asks the model."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, ClassVar, LiteralString

import psycopg
from chaos_draws import UNKNOWN
from chaos_model import World
from chaos_rows import Endpoint, Refused, Row, Todo, same
from hypothesis import note
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition

START = datetime(2030, 1, 1, tzinfo=UTC)
SLUGS = (("a", "Ada", "q r"), ("b", "Bob", "q s"), ("c", "Ada", "r"), ("d", "Bob", "q r s"))
EXPIRES = {"c": START + timedelta(days=2)}


def some(*states: str) -> Callable[[Any], bool]:
    """A precondition: there is a todo in one of these states."""
    return lambda machine: any(t.state in states for t in machine.world.todos.values())


class TimeIsOver(KeyboardInterrupt):
    """Ends the run: a keyboard interrupt is what hypothesis lets pass at any point."""


class Sides(RuleBasedStateMachine):
    """What the rules build on; subclassed with a connection, whose session has the test clock."""

    connection: ClassVar[psycopg.Connection[Row]]
    until: ClassVar[float]
    failing: ClassVar[bool] = False
    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.world = World(START)
        self.heard: list[tuple[str, str]] = []
        self.handler: Callable[[psycopg.Notify], None] = lambda n: self.heard.append(
            (n.channel, n.payload)
        )
        self.steps = 0
        self.folded: Counter[tuple[str, str]] = Counter()
        self.connection.add_notify_handler(self.handler)

    def teardown(self) -> None:
        if sys.exc_info()[0] is AssertionError:
            type(self).failing = True  # from here on it shrinks, however long that takes
        self.connection.remove_notify_handler(self.handler)
        self.seen.update(self.world.seen)

    # -- the two sides --------------------------------------------------------------------------

    def rows(self, query: LiteralString, *params: Any) -> list[Row]:
        cursor = self.connection.execute(query, params)
        found = cursor.fetchall() if cursor.description else []
        for row in found:  # ids are text at the edge
            row.update({k: str(v) for k, v in row.items() if k in ("id", "endpoint_id")})
        return found

    def both(
        self, expect: Callable[[list[Row]], object], query: LiteralString, *params: Any
    ) -> None:
        """One step: what the database answers, then what the model makes of it."""
        refused = wanted = None
        rows: list[Row] = []
        self.heard.clear()
        try:
            rows = self.rows(query, *params)
        except psycopg.Error as error:
            refused = error.sqlstate
            note(f"  refused: {error.sqlstate} {error.diag.message_primary}")
        self.world.rings.clear()
        self.world.controls.clear()
        try:
            expect(rows)
        except Refused as refusal:
            wanted = refusal.sqlstate
        assert refused == wanted, f"the database says {refused}, the model {wanted}"
        self.seen["refused" if refused else "done"] += 1
        self.listen()

    def listen(self) -> None:
        """todo_ready rings once a queue and transaction; switchboard_control names endpoints."""
        while note_ := self.connection.pgconn.notifies():
            self.heard.append((note_.relname.decode(), note_.extra.decode()))
        rung = [("todo_ready", payload) for payload in sorted(self.world.rings)]
        told = [("switchboard_control", payload) for payload in sorted(self.world.controls)]
        assert sorted(self.heard) == told + rung, "notifications"

    def aim(self, where: str, at: int, fits: Callable[[Todo], bool]) -> tuple[str, str, Todo]:
        """The endpoint and the id to pass, and the todo that is meant; Refused when none can be."""
        todos = sorted(self.world.todos.values(), key=lambda t: t.age)
        chosen = [t for t in todos if fits(t)] if where == "fitting" else todos
        todo = (chosen or todos)[at % len(chosen or todos)] if todos else None
        endpoint = todo.endpoint if todo else self.world.endpoints[0]
        if where == "foreign":
            others = [e for e in self.world.endpoints if e is not endpoint]
            endpoint = others[at % len(others)]
        return endpoint.id, todo.id if todo else UNKNOWN, todo or nobody(endpoint)

    def fit(self, endpoint: Endpoint, *elements: Row) -> list[Row]:
        """What to create, in an instant of its own: ids of one instant are ordered at random."""
        self.set_clock(self.world.now + timedelta(microseconds=1))
        assignee = {} if self.assigns else {"assignee": None}
        return [{**e, "queue": name_of(endpoint, e["queue"]), **assignee} for e in elements]

    def start(self, dice: int, assigns: bool) -> None:
        if time.monotonic() > self.until and not self.failing:
            raise TimeIsOver
        self.seen["examples"] += 1
        self.assigns = assigns  # claims take a shorter way where nothing was ever assigned
        self.rows("truncate switchboard.humans, switchboard.todo_attempts cascade")
        self.rows("update switchboard.sweeps set last_run_at = 'epoch'")
        self.rows("select setseed(%s / 1000.0)", dice)  # whether a claim raises the mark
        self.set_clock(START)
        for name in ("Ada", "Bob"):
            made = self.rows("select * from switchboard.create_human(%s)", name)
            self.world.humans[name] = made[0]["id"]
        for slug, human, queues in SLUGS:
            self.vend(slug, human, tuple(queues.split()))
        self.rows("listen todo_ready")
        self.rows("listen switchboard_control")

    def vend(self, slug: str, human: str, queues: tuple[str, ...]) -> None:
        expires = EXPIRES.get(slug)
        (row,) = self.rows(
            "select * from switchboard.vend_endpoint(%s, %s, %s, p_expires_at => %s)",
            self.world.humans[human],
            slug,
            list(queues),
            expires,
        )
        self.world.endpoints.append(
            Endpoint(row["endpoint_id"], slug, human, queues, expires, {row["credential"]: None})
        )

    def set_clock(self, now: datetime) -> None:
        self.world.now = now
        self.rows("select set_config('switchboard.test_now', %s, false)", now.isoformat())

    # -- after each step ------------------------------------------------------------------------

    @precondition(lambda self: self.world.endpoints)
    @invariant()
    def everything_is_equal(self) -> None:
        world = self.world
        self.steps += 1
        one = world.endpoints[self.steps % len(world.endpoints)]  # lists are dear
        todos = sorted(world.todos.values(), key=lambda t: t.id)
        ended = [t for t in todos if t.history]
        held = [(e, secret) for e in world.endpoints for secret in e.credentials]
        with self.connection.pipeline():  # one round trip for all that is looked at
            asked = [
                self.connection.execute(STORED),
                self.connection.execute(
                    HISTORIES, [[t.endpoint.id for t in ended], [t.id for t in ended]]
                ),
                self.connection.execute("select count(*) from switchboard.todo_attempts"),
                self.connection.execute(LISTED, [one.id]),
                self.connection.execute(COUNTED, [one.id]),
                self.connection.execute(BELLS, [one.id]),
                self.connection.execute(
                    OPENED,
                    [[e.slug for e, _ in held], [sha256(s.encode()).digest() for _, s in held]],
                ),
            ]
        stored, histories, attempts, listed, counts, bells, opened = (c.fetchall() for c in asked)
        assert [str(row["id"]) for row in stored] == [t.id for t in todos], "what there is"
        for row, todo in zip(stored, todos, strict=True):
            row.update(id=str(row["id"]), endpoint_id=str(row["endpoint_id"]))
            same(row, todo.shown())
        assert histories == [{"todo": t.id, **attempt} for t in ended for attempt in t.history]
        assert attempts[0]["count"] == len(histories), "history of nothing"
        mine = world.of(one)
        assert [str(row["id"]) for row in listed] == [t.id for t in mine], "newest first"
        self.counts_are_equal(one, counts)
        pending = [t for t in mine[::-1] if t.state == "pending" and t.queue in one.queues]
        ours = [t for t in pending if t.assignee in (None, f"agent:{one.slug}")]
        ringing = [t.id for t in ours if one.active(world.now)]
        assert [str(row["id"]) for row in bells] == ringing
        for (endpoint, secret), answer in zip(held, opened, strict=True):
            assert (answer["opened"] == endpoint.id) is world.opens(endpoint, secret)

    def counts_are_equal(self, endpoint: Endpoint, rows: list[Row]) -> None:
        for row, counted in zip(rows, self.world.counts(endpoint), strict=True):
            name = endpoint.id, row["queue"]
            assert self.folded[name] <= row["done"] <= counted["done"], "done, as folded"
            self.folded[name] = row["done"]
            same(row, {**counted, "done": row["done"]})


STORED: LiteralString = (
    "select s.* from switchboard.todos t cross join lateral switchboard.show(t) s order by t.id"
)
LISTED: LiteralString = "select id from switchboard.list_todos(%s, null, null, 200)"
COUNTED: LiteralString = "select * from switchboard.queue_counts(%s) order by queue"
BELLS: LiteralString = "select id from switchboard.pending_doorbell_todos(%s)"
HISTORIES: LiteralString = (
    "select u.id as todo, h.* from unnest(%s::text[], %s::text[]) u (endpoint, id),"
    " lateral switchboard.todo_history(u.endpoint, u.id) h order by u.id, h.seq"
)
OPENED: LiteralString = (
    "select switchboard.authenticate(slug, digest) ->> 'endpoint_id' as opened"
    " from unnest(%s::text[], %s::bytea[]) with ordinality h (slug, digest, n) order by n"
)


def name_of(endpoint: Endpoint, place: int | str) -> str:
    """A queue by its place in the grant, or by name."""
    return place if isinstance(place, str) else endpoint.queues[place % len(endpoint.queues)]


def nobody(endpoint: Endpoint) -> Todo:
    """Stands for a todo where there is none: nothing stored has its id."""
    return Todo(UNKNOWN, endpoint, "q", START, START, 1, None, None, "sql")
