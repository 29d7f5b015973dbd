"""How things stand: ``switchboard health`` and ``switchboard queue list``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, LiteralString

import click

from switchboard import printing
from switchboard.cli_database import operate
from switchboard.cli_options import ENDPOINT, json_option, settings
from switchboard.cli_webhook import endpoint_id

OVERVIEW: LiteralString = (
    "select endpoint, queue, granted, waiting, held, parked, dead, capped, oldest_waiting_at,"
    " created, done, status, used, max_claims_per_window, in_flight, max_in_flight,"
    " window_resets_at, next_eligible_at, nudges, seen_at from switchboard.queue_overview()"
)
NEVER = datetime(1970, 1, 1, tzinfo=UTC)
SWEEP_COLUMNS = ("name", "last_run_at", "last_count", "last_error")
STALL_COLUMNS = (
    "endpoint",
    "queue",
    "waiting",
    "oldest_waiting_at",
    "nudges",
    "last_nudged_at",
    "next_nudge_at",
    "progressed",
)


@click.command()
@json_option
def health(as_json: bool) -> None:
    """Show when the sweeps ran, and the queues that stall.

    A queue stalls when work waits in it and nobody claims it although its hooks were called.
    `switchboard doctor` says what is wrong and what to do.

    Example: switchboard health
    """
    with operate(settings()) as (operator, _):
        sweeps = operator.rows(
            "select name, last_run_at, last_count, last_error from switchboard.sweep_status()"
        )
        stalled = operator.rows(
            "select endpoint, queue, waiting, oldest_waiting_at, nudges, last_nudged_at,"
            " next_nudge_at, progressed from switchboard.stalled_queues()"
        )
        age = operator.value("select extract(epoch from switchboard.sweep_age())::float8")
    for row in sweeps:
        if row["last_run_at"] <= NEVER:
            row["last_run_at"] = None
    lines = ["sweeps", *printing.table(sweeps, SWEEP_COLUMNS)]
    lines += ["", "stalled queues", *printing.table(stalled, STALL_COLUMNS)]
    answer = {"sweep_age_seconds": age, "sweeps": sweeps, "stalled": stalled}
    printing.result(answer, as_json, lines)


@click.command("list")
@click.argument("endpoint", type=ENDPOINT, required=False)
@json_option
def queue_list(endpoint: str | None, as_json: bool) -> None:
    """List the queues of an endpoint, or all, and what is in them.

    Example: switchboard queue list agent
    """
    with operate(settings()) as (operator, _):
        found = endpoint_id(operator, endpoint)
        only: Any = found and operator.value(
            "select slug from switchboard.list_endpoints() where endpoint_id = %s::uuid", [found]
        )
        rows = [row for row in operator.rows(OVERVIEW) if only in (None, row["endpoint"])]
    columns = ("endpoint", "queue", "waiting", "held", "parked", "dead", "done", "status", "nudges")
    printing.result({"queues": rows}, as_json, printing.table(rows, columns))
