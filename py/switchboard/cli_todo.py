"""``switchboard todo``: what an operator may do to todos, by hand."""

from __future__ import annotations

from typing import Any, LiteralString

import click

from switchboard import printing
from switchboard.cli_database import Operator, Row, operate
from switchboard.cli_endpoint import human_id
from switchboard.cli_options import (
    ENDPOINT,
    acting_option,
    json_argument,
    json_option,
    settings,
)
from switchboard.errors import Problem

FIELDS: LiteralString = (
    "id, endpoint_id, queue, state, kind, source, title, payload, assignee, owner,"
    " lease_expires_at, lease_token, claimed_at, attempt, max_attempts, next_retry_at, dead_letter,"
    " result, idempotency_key, trust_mode, verified, ring_attempts, last_ringed_at, created_at,"
    " updated_at, completed_at"
)

force_option = click.option(
    "--force", is_flag=True, help="Also when an agent holds it: its lease ends, no attempt counts."
)
result_option = click.option("--result", help="JSON, @file, or - for standard input.")
lease_option = click.option("--lease-ttl", type=int, help="Seconds.")

API_STATES = ("pending", "claimed", "done", "failed")
BOARD_STATES = ("waiting", "deferred", "connected", "parked", "dead", "quarantined")


@click.group()
def todo() -> None:
    """Work: push it, look at it, move it."""


@todo.command("push")
@click.argument("endpoint", type=ENDPOINT)
@click.argument("title")
@click.option("-q", "--queue", help="May be left out when the endpoint has one queue.")
@click.option("--payload", help="JSON, @file, or - for standard input.")
@click.option("--key", help="While a todo with this key is live, pushing again makes no other.")
@click.option("--kind", help="What sort of work it is; agents see it.")
@click.option("--source", help="Where it comes from; agents see it.")
@click.option("--assignee", help="Only this owner may claim it.")
@click.option(
    "--max-attempts",
    type=int,
    default=5,
    show_default=True,
    help="Claims until it is a dead letter.",
)
@json_option
def push(
    endpoint: str,
    title: str,
    queue: str | None,
    payload: str | None,
    key: str | None,
    kind: str | None,
    source: str | None,
    assignee: str | None,
    max_attempts: int,
    as_json: bool,
) -> None:
    """Put a todo on an endpoint.

    Example: switchboard todo push agent "Read the report" -q inbox --payload '{"page": 3}'
    """
    body = json_argument(payload, "payload")
    with operate(settings()) as (operator, _):
        row = operator.row(
            "select " + FIELDS + ", created from switchboard.create_todo_any_endpoint("
            "p_endpoint_id => switchboard.find_endpoint(%s)::text, p_queue => %s, p_title => %s,"
            " p_payload => coalesce(%s::jsonb, '{}'), p_idempotency_key => %s, p_kind => %s,"
            " p_source => %s, p_assignee => %s, p_max_attempts => %s)",
            [
                endpoint,
                queue or _only_queue(operator, endpoint),
                title,
                body,
                key,
                kind,
                source,
                assignee,
                max_attempts,
            ],
        )
    made = "Pushed" if row["created"] else "There is already a live todo with this key:"
    line = f"{made} {row['id']} in queue {row['queue']} ({row['state']})."
    printing.result({"todo": row, "created": row.pop("created")}, as_json, [line])


@todo.command("list")
@click.argument("what", required=False)
@click.option("-e", "--endpoint", type=ENDPOINT, help="Of this endpoint only.")
@click.option("-q", "--queue", help="In this queue only.")
@click.option(
    "-s",
    "--state",
    metavar="STATE",
    shell_complete=lambda _c, _p, begun: [
        state for state in (*API_STATES, *BOARD_STATES) if state.startswith(begun)
    ],
    help="pending (oldest first), claimed, done, failed; or, as the board says, waiting, deferred,"
    " connected, parked, dead, quarantined.",
)
@click.option("-n", "--limit", type=int, default=50, show_default=True, help="At most 200.")
@click.option("--before", help="Only older ones than this: the last id of the page before.")
@json_option
def list_todos(
    what: str | None,
    endpoint: str | None,
    queue: str | None,
    state: str | None,
    limit: int,
    before: str | None,
    as_json: bool,
) -> None:
    """List todos, newest first; WHAT finds them by id, by key, or by the beginning of a title.

    Example: switchboard todo list "Read the" -e agent -s dead
    """
    with operate(settings()) as (operator, _):
        found = endpoint and operator.value(_FIND, [endpoint])
        if endpoint is not None and found is None:
            raise Problem(
                "not_found", "There is no such endpoint: `switchboard endpoint list` shows them."
            )
        call: LiteralString = _SEARCH if what or state in BOARD_STATES else _LIST
        rows = operator.rows(
            "select " + FIELDS + call,
            {
                "what": what,
                "queue": queue,
                "state": state,
                "limit": limit,
                "endpoint": found and str(found),
                "before": before,
            },
        )
    columns = ("id", "queue", "state", "attempt", "owner", "created_at", "title")
    printing.result({"todos": rows}, as_json, printing.table(rows, columns))


_FIND: LiteralString = "select switchboard.find_endpoint(%s)"
_LIST: LiteralString = (
    " from switchboard.list_todos_any_endpoint(p_queue => %(queue)s, p_state => %(state)s,"
    " p_limit => %(limit)s, p_endpoint_id => %(endpoint)s, p_before => %(before)s)"
)
_SEARCH: LiteralString = (
    " from switchboard.find_todos_any_endpoint(p_q => %(what)s, p_endpoint_id => %(endpoint)s,"
    " p_queue => %(queue)s, p_state => %(state)s, p_limit => %(limit)s, p_before => %(before)s)"
)


@todo.command("show")
@click.argument("todo_id", metavar="ID")
@json_option
def show(todo_id: str, as_json: bool) -> None:
    """Show one todo and what was tried.

    Example: switchboard todo show ID
    """
    with operate(settings()) as (operator, _):
        row = operator.row(
            "select " + FIELDS + " from switchboard.get_todo_any_endpoint(p_id => %s)", [todo_id]
        )
        attempts = operator.rows(
            "select seq, attempt, owner, claimed_at, ended_at, outcome, state, summary"
            " from switchboard.todo_history_any_endpoint(p_id => %s)",
            [todo_id],
        )
    lines = printing.record(row)
    if attempts:
        columns = ("seq", "attempt", "owner", "claimed_at", "ended_at", "outcome", "summary")
        lines += ["", "attempts", *printing.table(attempts, columns)]
    printing.result({"todo": row, "attempts": attempts}, as_json, lines)


@todo.command("claim")
@click.argument("todo_id", metavar="ID")
@lease_option
@acting_option
@json_option
def claim(todo_id: str, lease_ttl: int | None, actor: str | None, as_json: bool) -> None:
    """Claim a todo for yourself.

    Example: switchboard todo claim ID --lease-ttl 1800
    """
    _move(
        "switchboard.claim_any_endpoint(p_id => %(id)s, p_lease_ttl_seconds => %(lease)s,"
        " p_actor_human_id => %(actor)s)",
        {"id": todo_id, "lease": lease_ttl},
        actor,
        as_json,
    )


def _extend(
    todo_id: str, lease_ttl: int | None, force: bool, actor: str | None, as_json: bool
) -> None:
    _move(
        "switchboard.heartbeat_any_endpoint(p_id => %(id)s, p_lease_ttl_seconds => %(lease)s,"
        " p_force => %(force)s, p_actor_human_id => %(actor)s)",
        {"id": todo_id, "lease": lease_ttl, "force": force},
        actor,
        as_json,
    )


@todo.command("extend")
@click.argument("todo_id", metavar="ID")
@lease_option
@force_option
@acting_option
@json_option
def extend(
    todo_id: str, lease_ttl: int | None, force: bool, actor: str | None, as_json: bool
) -> None:
    """Extend a lease, from now on.

    Example: switchboard todo extend ID --lease-ttl 1800
    """
    _extend(todo_id, lease_ttl, force, actor, as_json)


@todo.command("heartbeat")
@click.argument("todo_id", metavar="ID")
@lease_option
@force_option
@acting_option
@json_option
def heartbeat(
    todo_id: str, lease_ttl: int | None, force: bool, actor: str | None, as_json: bool
) -> None:
    """Renew a lease; as the verb of agents is called, the same as `todo extend`.

    Example: switchboard todo heartbeat ID
    """
    _extend(todo_id, lease_ttl, force, actor, as_json)


@todo.command("complete")
@click.argument("todo_id", metavar="ID")
@result_option
@force_option
@acting_option
@json_option
def complete(
    todo_id: str, result: str | None, force: bool, actor: str | None, as_json: bool
) -> None:
    """End a todo as done.

    Example: switchboard todo complete ID --result '{"answer": 42}' --force
    """
    _move(
        "switchboard.complete_any_endpoint(p_id => %(id)s, p_result => %(result)s::jsonb,"
        " p_force => %(force)s, p_actor_human_id => %(actor)s)",
        {"id": todo_id, "result": json_argument(result, "result"), "force": force},
        actor,
        as_json,
    )


@todo.command("fail")
@click.argument("todo_id", metavar="ID")
@result_option
@force_option
@acting_option
@json_option
def fail(todo_id: str, result: str | None, force: bool, actor: str | None, as_json: bool) -> None:
    """End the attempt as failed: it is tried again later, or becomes a dead letter.

    Example: switchboard todo fail ID --result '"the report is gone"'
    """
    _move(
        "switchboard.fail_any_endpoint(p_id => %(id)s, p_result => %(result)s::jsonb,"
        " p_force => %(force)s, p_actor_human_id => %(actor)s)",
        {"id": todo_id, "result": json_argument(result, "result"), "force": force},
        actor,
        as_json,
    )


@todo.command("release")
@click.argument("todo_id", metavar="ID")
@force_option
@acting_option
@json_option
def release(todo_id: str, force: bool, actor: str | None, as_json: bool) -> None:
    """Give a claimed todo back.

    Example: switchboard todo release ID --force
    """
    _move(
        "switchboard.release_any_endpoint(p_id => %(id)s, p_force => %(force)s,"
        " p_actor_human_id => %(actor)s)",
        {"id": todo_id, "force": force},
        actor,
        as_json,
    )


@todo.command("retry")
@click.argument("todo_id", metavar="ID")
@acting_option
@json_option
def retry(todo_id: str, actor: str | None, as_json: bool) -> None:
    """Start a failed todo afresh, dead letters included.

    Example: switchboard todo retry ID
    """
    _move(
        "switchboard.retry_any_endpoint(p_id => %(id)s, p_actor_human_id => %(actor)s)",
        {"id": todo_id},
        actor,
        as_json,
    )


def _move(
    call: LiteralString, parameters: dict[str, Any], actor: str | None, as_json: bool
) -> None:
    """One transition, and what the todo is now."""
    with operate(settings()) as (operator, _):
        person = human_id(operator, actor) if actor is not None else None
        row = operator.row("select " + FIELDS + " from " + call, {**parameters, "actor": person})
    printing.result({"todo": row}, as_json, [_now(row)])


def _now(row: Row) -> str:
    line = f"{row['id']} is {row['state']}"
    if row["state"] == "claimed":
        line += f" by {row['owner']} until {row['lease_expires_at'].isoformat(timespec='seconds')}"
    elif row["dead_letter"]:
        line += ", a dead letter: `switchboard todo retry` starts it afresh"
    elif row["next_retry_at"]:
        line += f", tried again from {row['next_retry_at'].isoformat(timespec='seconds')}"
    return line + "."


def _only_queue(operator: Operator, endpoint: str) -> str | None:
    """The queue meant when none is named: the endpoint's only one.

    Raises:
        Problem: it has several.
    """
    rows = operator.rows("select endpoint_id, slug, queues from switchboard.list_endpoints()")
    for row in rows:
        if endpoint in (row["slug"], str(row["endpoint_id"])):
            if len(row["queues"]) == 1:
                return str(row["queues"][0])
            raise Problem("invalid_argument", "Name a queue with -q.", {"queues": row["queues"]})
    return None
