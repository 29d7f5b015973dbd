"""``switchboard quarantine``: deliveries that are held back, to be released or discarded."""

from __future__ import annotations

from typing import Any, LiteralString

import click
import psycopg

from switchboard import printing
from switchboard.cli_database import Operator, Row, operate
from switchboard.cli_options import json_option, settings
from switchboard.cli_todo import FIELDS
from switchboard.cli_webhook import endpoint_id
from switchboard.errors import ErrorTable, Problem


@click.group()
def quarantine() -> None:
    """What receivers on hold took: no agent sees it until it is released."""


@quarantine.command("list")
@click.option("-e", "--endpoint", help="Of this endpoint only.")
@click.option("-n", "--limit", type=int, default=50, show_default=True, help="At most 200.")
@json_option
def quarantine_list(endpoint: str | None, limit: int, as_json: bool) -> None:
    """List what is held, oldest first.

    Example: switchboard quarantine list --endpoint agent
    """
    with operate(settings()) as (operator, _):
        rows = operator.rows(
            "select " + FIELDS + " from switchboard.list_todos_any_endpoint("
            "p_queue => 'quarantine', p_state => 'pending', p_limit => %s, p_endpoint_id => %s)",
            [limit, endpoint_id(operator, endpoint)],
        )
    columns = ("id", "source", "kind", "trust_mode", "created_at", "title")
    printing.result({"todos": rows}, as_json, printing.table(rows, columns))


@quarantine.command("release")
@click.argument("todo_ids", metavar="ID...", nargs=-1, required=True)
@json_option
def quarantine_release(todo_ids: tuple[str, ...], as_json: bool) -> int:
    """Let held todos go to their queue, where agents claim them.

    Exits with 1 if one was refused; the others are released all the same.

    Example: switchboard quarantine release ID ID
    """
    call: LiteralString = "switchboard.release_quarantined(p_id => %s)"
    return _each(todo_ids, call, "released", as_json)


@quarantine.command("discard")
@click.argument("todo_ids", metavar="ID...", nargs=-1, required=True)
@json_option
def quarantine_discard(todo_ids: tuple[str, ...], as_json: bool) -> int:
    """Make dead letters of held todos; no agent gets them.

    Exits with 1 if one was refused; the others are discarded all the same.

    Example: switchboard quarantine discard ID ID
    """
    call: LiteralString = "switchboard.discard_quarantined(p_id => %s)"
    return _each(todo_ids, call, "discarded", as_json)


def _each(todo_ids: tuple[str, ...], call: LiteralString, done: str, as_json: bool) -> int:
    """One call an id, each a transaction of its own; the exit status."""
    moved: list[Row] = []
    refused: list[dict[str, Any]] = []
    with operate(settings()) as (operator, _):
        for todo_id in todo_ids:
            try:
                row = operator.row("select " + FIELDS + " from " + call, [todo_id])
            except (psycopg.Error, UnicodeEncodeError) as error:
                problem = _problem(operator, error)
                given = todo_id.encode(errors="replace").decode()
                refused.append({"id": given, **problem.body()})
                if not as_json:
                    printing.say(f"{given}: {problem.code}: {problem.message}")
            else:
                moved.append(row)
                line = f"{row['id']}: {done}, {row['state']} in queue {row['queue']}."
                printing.result(None, False, [] if as_json else [line])
    if as_json:
        printing.result({done: moved, "refused": refused}, as_json, [])
    return 1 if refused else 0


def _problem(operator: Operator, error: psycopg.Error | UnicodeEncodeError) -> Problem:
    if isinstance(error, psycopg.Error):
        return operator.explain(error)
    return ErrorTable().problem(error) or Problem("invalid_argument", "This is no id.")
