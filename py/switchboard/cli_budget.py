"""``switchboard queue budget``: how much of a queue may be claimed per window, and at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import click

from switchboard import printing
from switchboard.cli_database import operate
from switchboard.cli_options import ENDPOINT, json_option, settings

COLUMNS = ("scope", "queue", "status", "used", "in flight", "pending", "resets", "local time")
PER = {"hour": "an hour", "day": "a day", "week": "a week"}
STATUS = {
    "open": "open: claims are admitted",
    "window_exhausted": "window_exhausted: the claims of this window are spent",
    "in_flight_full": "in_flight_full: as many are held as may be",
    "paused": "paused: a limit is 0, nothing is claimed until you raise it",
    "admission_unavailable": "admission_unavailable: NOTHING IS ADMITTED. The budget cannot be"
    " read, most likely because its time zone is gone: set it again with one that exists",
}


@click.group()
def queue() -> None:
    """Queues: what is in them, and their budgets."""


@queue.group()
def budget() -> None:
    """Budgets: how many claims a queue admits per window, and how many at once.

    Every claim counts, retries and takeovers too. See docs/budgets.md.
    """


@budget.command("show")
@click.argument("endpoint", type=ENDPOINT, required=False)
@click.argument("queue_name", metavar="[QUEUE]", required=False)
@json_option
def budget_show(endpoint: str | None, queue_name: str | None, as_json: bool) -> None:
    """Show budgets and how they stand; with a queue, its windows and audit, too.

    Example: switchboard queue budget show agent inbox
    """
    scope = endpoint and f"endpoint:{endpoint}"
    with operate(settings()) as (operator, _):
        if queue_name is not None:
            found = operator.value("select switchboard.get_admission(%s, %s)", [scope, queue_name])
            printing.result(found, as_json, _whole(found))
            return
        rows = operator.value("select switchboard.list_admission(p_scope => %s)", [scope])
    lines = printing.table([_short(row) for row in rows], COLUMNS)
    printing.result({"budgets": rows}, as_json, lines)


@budget.command("set")
@click.argument("endpoint", type=ENDPOINT)
@click.argument("queue_name", metavar="QUEUE")
@click.option("--per-hour", type=int, help="At most so many claims an hour.")
@click.option("--per-day", type=int, help="At most so many claims a day.")
@click.option("--per-week", type=int, help="At most so many claims a week.")
@click.option("--tz", metavar="ZONE", help="Time zone of the window, such as Europe/Berlin [UTC].")
@click.option("--start", metavar="HH:MM", help="Local time at which windows begin [00:00].")
@click.option("--weekday", metavar="DAY", help="Day on which weeks begin, such as Mon [Mon].")
@click.option("--max-in-flight", type=int, help="At most so many held at once.")
@json_option
def budget_set(
    endpoint: str,
    queue_name: str,
    per_hour: int | None,
    per_day: int | None,
    per_week: int | None,
    tz: str | None,
    start: str | None,
    weekday: str | None,
    max_in_flight: int | None,
    as_json: bool,
) -> None:
    """Set the budget of a queue, as a whole: what is left out is no limit; 0 pauses it.

    Example: switchboard queue budget set agent inbox --per-day 100 --tz America/Los_Angeles
    --max-in-flight 3
    """
    limits = {"hour": per_hour, "day": per_day, "week": per_week}
    given = {period: limit for period, limit in limits.items() if limit is not None}
    if len(given) > 1:
        raise click.UsageError("One of --per-hour, --per-day and --per-week.")
    if not given and (tz or start or weekday):
        raise click.UsageError("--tz, --start and --weekday belong to a window: say --per-day N.")
    policy: dict[str, Any] = {"max_in_flight": max_in_flight}
    for period, limit in given.items():
        window = {"period": period, "tz": tz or "UTC", "start": start, "weekday": weekday}
        policy |= {"max_claims_per_window": limit, "window": window}
    with operate(settings()) as (operator, _):
        row = operator.value(
            "select switchboard.put_admission(p_scope => %s, p_queue => %s, p_policy => %s)",
            [f"endpoint:{endpoint}", queue_name, json.dumps(policy)],
        )
    printing.result(row, as_json, _status(row))


@budget.command("clear")
@click.argument("endpoint", type=ENDPOINT)
@click.argument("queue_name", metavar="QUEUE")
@json_option
def budget_clear(endpoint: str, queue_name: str, as_json: bool) -> None:
    """Remove the budget of a queue; its work may be claimed at once, its audit stays.

    Example: switchboard queue budget clear agent inbox
    """
    with operate(settings()) as (operator, _):
        answer = operator.value(
            "select switchboard.delete_admission(p_scope => %s, p_queue => %s)",
            [f"endpoint:{endpoint}", queue_name],
        )
    printing.result(answer, as_json, [f"Queue {queue_name} has no budget any more."])


def _of(count: int | None, limit: int | None) -> str:
    shown = "-" if count is None else str(count)
    return shown if limit is None else f"{shown} of {limit}"


def _local(moment: str) -> str:
    return f"{datetime.fromisoformat(moment).astimezone():%a %Y-%m-%d %H:%M %Z}"


def _resets(row: Mapping[str, Any]) -> str | None:
    window = row["policy"].get("window")
    if window is None:
        return None
    return f"{row.get('window_resets_local', 'UNKNOWN ZONE')} {window['tz']}"


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """One line of the table."""
    at = row.get("window_resets_at")
    return {
        **row,
        "used": _of(row.get("used"), row.get("max_claims_per_window")),
        "in flight": _of(row["in_flight"], row.get("max_in_flight")),
        "resets": _resets(row),
        "local time": at and _local(at),
    }


def _status(row: Mapping[str, Any]) -> list[str]:
    """How a budget stands."""
    if row["policy"] is None:
        return [f"Queue {row['queue']} of {row['scope']} has no budget: claims are not limited."]
    at, again = row.get("window_resets_at"), row.get("next_eligible_at")
    window = row["policy"].get("window", {})
    parts = (window.get("weekday"), window.get("start"), window.get("tz"))
    shown = {
        "queue": f"{row['queue']} of {row['scope']}",
        "status": STATUS[row["status"]],
        "used": f"{_of(row.get('used'), row['max_claims_per_window'])} {PER[window['period']]}"
        if window
        else None,
        "window": f"each {window['period']} from {' '.join(filter(None, parts))}"
        if window
        else None,
        "in flight": _of(row["in_flight"], row.get("max_in_flight")),
        "pending": str(row["pending"]),
        "resets": _resets(row),
        "  local time": at and _local(at),
        "claims go on": again and f"{_local(again)}{'' if row.get('exact') else ', perhaps'}",
        "changed": f"{_local(row['updated_at'])} by {row.get('updated_by', '?')}",
    }
    if row.get("granted") is False:
        shown["note"] = "the endpoint's grant does not name this queue any more"
    return printing.record(shown)


def _whole(row: Mapping[str, Any]) -> Iterator[str]:
    """A budget with its windows and its audit."""
    yield from _status(row)
    if row["windows"]:
        yield from ("", "Windows, newest first:", "")
        rows = [{"began": _local(one["window_start"]), **one} for one in row["windows"]]
        yield from printing.table(rows, ("began", "used"))
    if row["audit"]:
        yield from ("", "Changes, newest first:", "")
        rows = [{**one, "at": _local(one["at"])} for one in row["audit"]]
        yield from printing.table(rows, ("at", "action", "human", "endpoint", "before", "after"))
