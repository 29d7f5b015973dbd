"""The state machine of test_model.py: a step calls the database, then asks the model."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, ClassVar, LiteralString

import psycopg
from chaos_model import World
from chaos_rows import NOT_FOUND, Endpoint, Refused, Row, Todo, demand, same
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from psycopg.types.json import Jsonb

START = datetime(2030, 1, 1, tzinfo=UTC)
MOST_TODOS = 180  # one list_todos shows 200 of an endpoint
UNKNOWN = "01890000-0000-7000-8000-00000000dead"
SLUGS = (("a", "Ada", "q r"), ("b", "Bob", "q s"), ("c", "Ada", "r"), ("d", "Bob", "q r s"))
EXPIRES = {"c": START + timedelta(days=2)}

place = st.integers(0, 10**6)
endpoints = st.sampled_from([0] * 7 + [1, 1, 2, 3])
ODD = [UNKNOWN, "", "no-id", "{" + UNKNOWN + "}", "0" * 36, "\u00fc"]
odd_ids = st.sampled_from(ODD)
seldom_odd = st.sampled_from([None] * 50 + ODD)
owners = st.sampled_from(["w1"] * 10 + ["w2"] * 6 + ["op:Ada", ""])
assignees = st.sampled_from([None] * 8 + ["w1", "w2", "op:Ada"])
keys = st.sampled_from([None] * 6 + ["k1", "k2", "k3"])
attempts = st.sampled_from([1, 2, 2, 3] * 2 + [5] * 6 + [0])
leases = st.sampled_from([None, 1, 30, 30, 60] * 4 + [10**6, 0])
limits = st.sampled_from([1, 2, 5, 20, 40, 40, 1000] * 2 + [0])
# Queues by their place in the grant; names stand for ones outside it.
queue = st.sampled_from([0, 0, 1] * 7 + ["s", "No name", "quarantine"])
queue_lists = st.sampled_from(
    [None, None, [0], [0], [0], [1, 0], [0, 1, 0]] * 3 + [[], ["quarantine"], [0, "No name"]]
)
results = st.sampled_from(
    [None, {"summary": "fine"}, {"error": "x" * 300}, {"n": 1}, "text", 7, [True, None]]
)
humans = st.sampled_from([None, "Ada", "Bob"])
verbs = st.sampled_from(["complete", "fail", "release", "release"])
spans = st.sampled_from([0, 1, 29, 30, 31, 60, 120, 300, 900, 86_400, 31 * 86_400])
elements = st.fixed_dictionaries(
    {"queue": queue, "idempotency_key": keys, "assignee": assignees, "max_attempts": attempts}
)
good_elements = st.fixed_dictionaries(
    {
        "queue": st.sampled_from([0, 0, 1]),
        "idempotency_key": keys,
        "assignee": assignees,
        "max_attempts": st.sampled_from([1, 2, 2, 3, 5, 5, 5]),
    }
)
# Which todo a call means: mostly one that the call can move.
aims = st.sampled_from(["fitting"] * 12 + ["any", "foreign", "odd"])


def some(*states: str) -> Callable[[Any], bool]:
    """A precondition: there is a todo in one of these states."""
    return lambda machine: any(t.state in states for t in machine.world.todos.values())


class TimeIsOver(KeyboardInterrupt):
    """Ends the run: a keyboard interrupt is what hypothesis lets pass at any point."""


class Queue(RuleBasedStateMachine):
    """Subclassed with a connection: a superuser's, whose session has the test clock."""

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
        return endpoint.id, todo.id if todo else UNKNOWN, todo or _nobody(endpoint)

    def fit(self, endpoint: Endpoint, *elements: Row) -> list[Row]:
        """What to create, in an instant of its own: ids of one instant are ordered at random."""
        self.set_clock(self.world.now + timedelta(microseconds=1))
        assignee = {} if self.assigns else {"assignee": None}
        return [{**e, "queue": _name(endpoint, e["queue"]), **assignee} for e in elements]

    # -- steps ----------------------------------------------------------------------------------

    @initialize(
        dice=st.integers(0, 1000),
        assigns=st.booleans(),
        batch=st.lists(good_elements, min_size=1, max_size=4),
    )
    def start(self, dice: int, assigns: bool, batch: list[Row]) -> None:
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
        self.create_todos(0, batch, 4)

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

    @rule(seconds=spans)
    def time_passes(self, seconds: int) -> None:
        self.set_clock(self.world.now + timedelta(seconds=seconds))

    @precondition(some("claimed", "failed"))
    @rule(short=st.booleans(), how_many=st.sampled_from([0, 0, 5, 20]))
    def time_passes_until_something_is_due(self, short: bool, how_many: int) -> None:
        """To the very instant, or a microsecond before it."""
        due = sorted(t.due_at for t in self.world.todos.values() if t.due_at is not None)
        coming = [at for at in due if at > self.world.now]
        if coming:
            at = coming[min(how_many, len(coming) - 1)]
            self.set_clock(at - timedelta(microseconds=int(short)))

    @rule(at=endpoints, element=elements, odd=seldom_odd)
    def create(self, at: int, element: Row, odd: str | None) -> None:
        endpoint = self.world.endpoints[at]
        (element,) = self.fit(endpoint, element)
        if len(self.world.of(endpoint)) < MOST_TODOS:
            endpoint_id = endpoint.id if odd is None else odd
            self.both(
                lambda rows: self.world.create(endpoint_id, [element], rows),
                "select * from switchboard.create_todo(%s, %s, 'a title', %s, %s,"
                " p_assignee => %s, p_max_attempts => %s)",
                endpoint_id,
                element["queue"],
                Jsonb({"n": 1}),
                element["idempotency_key"],
                element["assignee"],
                element["max_attempts"],
            )

    @rule(
        at=endpoints,
        batch=st.lists(good_elements, min_size=1, max_size=6),
        times=st.sampled_from([1, 1, 2, 5, 10]),
    )
    def create_todos(self, at: int, batch: list[Row], times: int) -> None:
        endpoint = self.world.endpoints[at]
        batch = self.fit(endpoint, *batch * times)
        if len(self.world.of(endpoint)) + len(batch) < MOST_TODOS:
            self.both(
                lambda rows: self.world.create(endpoint.id, batch, rows),
                "select * from switchboard.create_todos(%s, %s)",
                endpoint.id,
                Jsonb([{**element, "title": "one of many"} for element in batch]),
            )

    @rule(at=place, where=aims, odd=odd_ids, owner=owners, ttl=leases)
    def claim(self, at: int, where: str, odd: str, owner: str, ttl: int | None) -> None:
        endpoint, todo_id, _ = self.aim(where, at, lambda t: self.world.claimable(t, owner))
        todo_id = odd if where == "odd" else todo_id

        def expect(rows: list[Row]) -> None:
            self.world.terms(endpoint, owner, None, ttl)
            self.world.claim(self.world.find(endpoint, todo_id), owner, ttl, rows)

        self.both(
            expect,
            "select * from switchboard.claim(%s, %s, %s, %s)",
            endpoint,
            todo_id,
            owner,
            ttl,
        )

    def do_claim_next(
        self, at: int, owner: str, places: list[Any] | None, ttl: int | None, odd: str | None
    ) -> None:
        endpoint = self.world.endpoints[at]
        endpoint_id = endpoint.id if odd is None else odd
        queues = places and [_name(endpoint, place) for place in places]
        self.both(
            lambda rows: self.world.claim_some(endpoint_id, owner, 1, queues, ttl, rows),
            "select * from switchboard.claim_next(%s, %s, %s, %s)",
            endpoint_id,
            owner,
            queues,
            ttl,
        )

    # A rule with two names is tried twice as often.
    next_one = rule(at=endpoints, owner=owners, places=queue_lists, ttl=leases, odd=seldom_odd)
    claim_next, claim_next_too = next_one(do_claim_next), next_one(do_claim_next)

    @rule(at=endpoints, owner=owners, limit=limits, places=queue_lists, ttl=leases)
    def claim_batch(
        self, at: int, owner: str, limit: int, places: list[Any] | None, ttl: int | None
    ) -> None:
        endpoint = self.world.endpoints[at]
        endpoint_id = endpoint.id
        queues = places and [_name(endpoint, place) for place in places]
        self.both(
            lambda rows: self.world.claim_some(endpoint_id, owner, limit, queues, ttl, rows),
            "select * from switchboard.claim_batch(%s, %s, %s, %s, %s)",
            endpoint_id,
            owner,
            limit,
            queues,
            ttl,
        )

    def credentials(self, todo: Todo, who: str, with_token: str) -> tuple[str, str | None]:
        """The owner and the token that a caller passes."""
        owner = {"holder": todo.owner or "w1", "other": "somebody else", "nobody": ""}[who]
        tokens = {"none": None, "right": todo.token, "wrong": "AAAAAAAAAAAA", "empty": ""}
        return owner, tokens[with_token]

    whos = st.sampled_from(["holder"] * 14 + ["other", "nobody"])
    tokens = st.sampled_from(["none"] * 4 + ["right"] * 10 + ["wrong", "empty"])

    @precondition(some("claimed"))
    @rule(at=place, where=aims, odd=odd_ids, who=whos, token=tokens, ttl=leases)
    def heartbeat(
        self, at: int, where: str, odd: str, who: str, token: str, ttl: int | None
    ) -> None:
        target = self.aim(where, at, lambda t: t.state == "claimed")
        owner, passed = self.credentials(target[2], who, token)

        def expect(rows: list[Row]) -> None:
            demand(owner != "" and ttl != 0, "SB400")
            todo = self.world.find(target[0], odd if where == "odd" else target[1])
            self.world.held(todo, owner, passed)
            self.world.heartbeat(todo, ttl, rows)

        self.both(
            expect,
            "select * from switchboard.heartbeat(%s, %s, %s, %s, %s)",
            target[0],
            odd if where == "odd" else target[1],
            owner,
            ttl,
            passed,
        )

    def do_end(
        self, at: int, where: str, odd: str, verb: str, who: str, token: str, result: Any
    ) -> None:
        target = self.aim(where, at, lambda t: t.state == "claimed")
        owner, passed = self.credentials(target[2], who, token)
        todo_id = odd if where == "odd" else target[1]

        def expect(rows: list[Row]) -> None:
            demand(owner != "", "SB400")
            todo = self.world.find(target[0], todo_id)
            self.world.held(todo, owner, passed)
            self.world.finish(todo, verb, result, rows)

        given = () if verb == "release" else (None if result is None else Jsonb(result),)
        self.both(expect, ENDS[verb], target[0], todo_id, owner, *given, passed)

    one_end = rule(
        at=place, where=aims, odd=odd_ids, verb=verbs, who=whos, token=tokens, result=results
    )
    end = precondition(some("claimed"))(one_end(do_end))
    end_too = precondition(some("claimed"))(one_end(do_end))
    end_again = precondition(some("claimed"))(one_end(do_end))

    @precondition(some("claimed"))
    @rule(
        at=place,
        owner=st.sampled_from(["w1", "w1", "w2"]),
        picks=st.lists(place, min_size=0, max_size=8),
        with_tokens=st.booleans(),
        odd=odd_ids,
    )
    def complete_batch(
        self, at: int, owner: str, picks: list[int], with_tokens: bool, odd: str
    ) -> None:
        endpoint, _, _ = self.aim(
            "fitting", at, lambda t: t.owner == owner and t.state == "claimed"
        )
        todos = sorted(self.world.todos.values(), key=lambda t: (t.owner != owner, t.age))
        chosen = [todos[pick % len(todos)] for pick in picks if todos]
        ids = [t.id for t in chosen] + [odd]
        tokens = [*(t.token for t in chosen), None] if with_tokens else None
        self.both(
            lambda rows: self.world.complete_batch(endpoint, owner, ids, tokens, rows),
            "select * from switchboard.complete_batch(%s, %s, %s, %s)",
            endpoint,
            owner,
            ids,
            tokens,
        )

    @precondition(some("failed"))
    @rule(at=place, where=aims, odd=odd_ids)
    def retry(self, at: int, where: str, odd: str) -> None:
        endpoint, todo_id, _ = self.aim(where, at, lambda t: t.state == "failed")
        todo_id = odd if where == "odd" else todo_id
        self.both(
            lambda rows: self.world.retry(self.world.find(endpoint, todo_id), rows),
            "select * from switchboard.retry(%s, %s)",
            endpoint,
            todo_id,
        )

    # -- the operator ---------------------------------------------------------------------------

    @rule(
        at=place,
        where=aims,
        odd=odd_ids,
        human=humans,
        verb=st.sampled_from(["claim", "heartbeat", "complete", "fail", "release", "retry", "get"]),
        force=st.booleans(),
        ttl=leases,
        result=results,
    )
    def operator(
        self,
        at: int,
        where: str,
        odd: str,
        human: str | None,
        verb: str,
        force: bool,
        ttl: int | None,
        result: Any,
    ) -> None:
        wanted = {"claim": "pending", "retry": "failed"}.get(verb, "claimed")
        _, todo_id, _ = self.aim(where, at, lambda t: t.state == wanted)
        todo_id = odd if where == "odd" else todo_id
        owner = f"op:{human or self.connection.info.user}"

        def expect(rows: list[Row]) -> None:
            demand(ttl != 0 or verb not in ("claim", "heartbeat"), "SB400")
            todo = self.world.todos.get(todo_id)
            if todo is None or human not in (None, todo.endpoint.human):
                raise Refused(NOT_FOUND)
            if verb == "claim":
                return self.world.claim(todo, owner, ttl, rows, granted=False)
            if verb == "retry":
                return self.world.retry(todo, rows)
            if verb == "get":
                return same(rows[0], todo.shown())
            self.world.held(todo, owner, None, force)
            if verb == "heartbeat":
                return self.world.heartbeat(todo, ttl, rows)
            overridden = force and todo.owner != owner
            return self.world.finish(todo, verb, result, rows, overridden)

        actor = human and self.world.humans[human]
        given: tuple[Any, ...] = {
            "claim": (ttl, actor),
            "heartbeat": (ttl, actor, force),
            "release": (actor, force),
            "retry": (actor,),
            "get": (actor,),
        }.get(verb, (None if result is None else Jsonb(result), actor, force))
        self.both(expect, TWINS[verb], todo_id, *given)

    @rule(at=endpoints, element=elements, human=humans)
    def operator_creates(self, at: int, element: Row, human: str | None) -> None:
        endpoint = self.world.endpoints[at]
        (element,) = self.fit(endpoint, element)

        def expect(rows: list[Row]) -> None:
            if human not in (None, endpoint.human):
                raise Refused(NOT_FOUND)
            self.world.create(endpoint.id, [element], rows, "operator")

        if len(self.world.of(endpoint)) < MOST_TODOS:
            self.both(
                expect,
                "select * from switchboard.create_todo_any_endpoint(%s, %s, 'a title', '{}', %s,"
                " p_assignee => %s, p_max_attempts => %s, p_actor_human_id => %s)",
                endpoint.id,
                element["queue"],
                element["idempotency_key"],
                element["assignee"],
                element["max_attempts"],
                human and self.world.humans[human],
            )

    # -- sweeps and endpoints -------------------------------------------------------------------

    @rule(name=st.sampled_from(["reap", "requeue", "tick", "tick", "prune"]), limit=limits)
    def sweep(self, name: str, limit: int) -> None:
        if name == "reap":
            self.both(
                lambda rows: self.world.swept(self.world.lapsed(), limit, rows),
                "select * from switchboard.reap_expired(%s)",
                limit,
            )
        elif name == "requeue":
            self.both(
                lambda rows: self.world.swept(self.world.elapsed(), limit, rows),
                "select * from switchboard.requeue_due_retries(%s)",
                limit,
            )
        elif name == "tick":
            self.both(lambda rows: self.world.tick(rows[0]["tick"]), "select switchboard.tick()")
        else:
            self.both(lambda _: None, "select switchboard.prune()")
        self.drop_pruned()

    def drop_pruned(self) -> None:
        """What is gone had to be beyond retention; attempts not folded yet may hold one back."""
        stored = {row["id"] for row in self.rows("select id from switchboard.todos")}
        gone = self.world.todos.keys() - stored
        assert gone <= self.world.prunable()
        self.seen["pruned"] += len(gone)
        for todo_id in gone:
            del self.world.todos[todo_id]

    @rule(
        verb=st.sampled_from(["revoke", "rotate", "rotate", "lease", "retention"]),
        at=endpoints,
        odd=seldom_odd,
        number=st.sampled_from([0, 1, 2, 3]),
    )
    def administer(self, verb: str, at: int, odd: str | None, number: int) -> None:
        world, endpoint_id = self.world, self.world.endpoints[at].id if odd is None else odd
        if verb == "revoke" and at > 0:  # the first is spared: there is always one to work on
            self.both(
                lambda rows: world.revoke(endpoint_id, rows),
                "select switchboard.revoke_endpoint(%s)",
                endpoint_id,
            )
        elif verb == "rotate":
            grace = (0, 60, 86_400, -1)[number]
            self.both(
                lambda rows: world.rotate(endpoint_id, grace, rows),
                "select switchboard.rotate_credential(%s, %s)",
                endpoint_id,
                grace,
            )
        elif verb == "lease":
            seconds = (None, 60, 3600, 59)[number]
            self.both(
                lambda _: world.set_default_lease(endpoint_id, seconds),
                "select switchboard.set_default_lease(%s, %s)",
                endpoint_id,
                seconds,
            )
        elif verb == "retention":
            days, keep = ((30, 500_000), (1, 500_000), (30, 2), (1, 0))[number]
            self.both(
                lambda _: world.set_retention(endpoint_id, days, keep),
                "select switchboard.set_retention(%s, %s, %s)",
                endpoint_id,
                days,
                keep,
            )

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
        ringing = [t.id for t in mine[::-1] if t.state == "pending" and one.active(world.now)]
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


ENDS: dict[str, LiteralString] = {
    "complete": "select * from switchboard.complete(%s, %s, %s, %s, %s)",
    "fail": "select * from switchboard.fail(%s, %s, %s, %s, %s)",
    "release": "select * from switchboard.release(%s, %s, %s, %s)",
}
TWINS: dict[str, LiteralString] = {
    "claim": "select * from switchboard.claim_any_endpoint(%s, %s, %s)",
    "heartbeat": "select * from switchboard.heartbeat_any_endpoint(%s, %s, %s, %s)",
    "complete": "select * from switchboard.complete_any_endpoint(%s, %s, %s, %s)",
    "fail": "select * from switchboard.fail_any_endpoint(%s, %s, %s, %s)",
    "release": "select * from switchboard.release_any_endpoint(%s, %s, %s)",
    "retry": "select * from switchboard.retry_any_endpoint(%s, %s)",
    "get": "select * from switchboard.get_todo_any_endpoint(%s, %s)",
}


def _name(endpoint: Endpoint, place: int | str) -> str:
    """A queue by its place in the grant, or by name."""
    return place if isinstance(place, str) else endpoint.queues[place % len(endpoint.queues)]


def _nobody(endpoint: Endpoint) -> Todo:
    """Stands for a todo where there is none: nothing stored has its id."""
    return Todo(UNKNOWN, endpoint, "q", START, START, 1, None, None, "sql")
