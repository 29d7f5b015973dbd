"""The machine of test_model.py, whole: work, and what operators and time do to it."""

from __future__ import annotations

from typing import Any, LiteralString

from chaos_draws import (
    aims,
    elements,
    endpoints,
    humans,
    leases,
    limits,
    odd_ids,
    place,
    results,
    seldom_odd,
)
from chaos_rows import NOT_FOUND, Refused, Row, demand, same
from chaos_work import MOST_TODOS, Work
from hypothesis import strategies as st
from hypothesis.stateful import rule
from psycopg.types.json import Jsonb

TWINS: dict[str, LiteralString] = {
    "claim": "select * from switchboard.claim_any_endpoint(%s, %s, %s)",
    "heartbeat": "select * from switchboard.heartbeat_any_endpoint(%s, %s, %s, %s)",
    "complete": "select * from switchboard.complete_any_endpoint(%s, %s, %s, %s)",
    "fail": "select * from switchboard.fail_any_endpoint(%s, %s, %s, %s)",
    "release": "select * from switchboard.release_any_endpoint(%s, %s, %s)",
    "retry": "select * from switchboard.retry_any_endpoint(%s, %s)",
    "get": "select * from switchboard.get_todo_any_endpoint(%s, %s)",
}


class Queue(Work):
    """Operators, administration, sweeps."""

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
        verb=st.sampled_from(["revoke", "rotate", "grant", "grant", "lease", "retention"]),
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
        elif verb == "grant":
            names = (["q", "r"], ["q"], ["q", "r", "s"], ["quarantine"])[number]
            self.both(
                lambda _: world.set_grant(endpoint_id, names),
                "select switchboard.set_grant(%s, %s)",
                endpoint_id,
                names,
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
