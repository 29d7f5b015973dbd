"""What an endpoint may do, and what holds for its work: ``switchboard endpoint show, grant, …``."""

from __future__ import annotations

from typing import Any

import click

from switchboard import printing
from switchboard.cli_database import Operator, Row, operate
from switchboard.cli_options import ENDPOINT, json_option, settings
from switchboard.cli_webhook import endpoint_id
from switchboard.errors import Problem

NONE_NAMED = "Say what changes: -q, --verb, --webhook-max or --source-type."


@click.command("show")
@click.argument("slug", type=ENDPOINT)
@json_option
def endpoint_show(slug: str, as_json: bool) -> None:
    """Show an endpoint: its grant, its queues, its receivers and its hooks.

    Example: switchboard endpoint show agent
    """
    with operate(settings()) as (operator, _):
        found = _row(operator, slug)
        endpoint = str(found["endpoint_id"])
        queues = operator.rows(
            "select queue, pending, claimed, parked, dead, done, oldest_pending_seconds"
            " from switchboard.queue_counts(p_endpoint_id => %s)",
            [endpoint],
        )
        receivers = operator.rows(
            "select webhook_id, source_type, target_queue, trust_mode, held, routes"
            " from switchboard.list_webhooks(p_endpoint_id => %s)",
            [endpoint],
        )
        hooks = operator.rows(
            "select hook_id, url, queues, enabled, failures"
            " from switchboard.list_notify_hooks(p_endpoint_id => %s)",
            [endpoint],
        )
    lines = printing.record(found)
    for name, rows in (("queues", queues), ("receivers", receivers), ("hooks", hooks)):
        lines += ["", name, *printing.table(rows, list(rows[0]) if rows else [])]
    shown = {"endpoint": found, "queues": queues, "webhooks": receivers, "hooks": hooks}
    printing.result(shown, as_json, lines)


@click.command("grant")
@click.argument("slug", type=ENDPOINT)
@click.option("-q", "--queue", "queues", multiple=True, help="A queue it may use; may be repeated.")
@click.option("--verb", "verbs", multiple=True, help="A verb it may use; may be repeated.")
@click.option("--webhook-max", type=int, help="How many receivers it may have.")
@click.option("--source-type", "source_types", multiple=True, help="Which senders they may be for.")
@json_option
def endpoint_grant(
    slug: str,
    queues: tuple[str, ...],
    verbs: tuple[str, ...],
    webhook_max: int | None,
    source_types: tuple[str, ...],
    as_json: bool,
) -> None:
    """Change what an endpoint may do, at once.

    A list that is given replaces the one there is, as a whole; what is not named stays. Todos in a
    queue that is taken away stay, and nobody claims them until it is granted again.

    Example: switchboard endpoint grant agent -q inbox -q reviews
    """
    if not (queues or verbs or source_types or webhook_max is not None):
        raise click.UsageError(NONE_NAMED)
    with operate(settings()) as (operator, _):
        operator.value(
            "select switchboard.set_grant(p_endpoint_id => %s, p_queues => %s, p_verbs => %s,"
            " p_webhook_max => %s, p_webhook_source_types => %s)",
            [
                endpoint_id(operator, slug),
                list(queues) or None,
                list(verbs) or None,
                webhook_max,
                list(source_types) or None,
            ],
        )
        found = _row(operator, slug)
    granted = ("queues", "verbs", "webhook_max", "webhook_source_types")
    lines = printing.record({key: found[key] for key in granted})
    printing.result({"endpoint": found}, as_json, [f"Endpoint {slug} may now use:", "", *lines])


@click.command("lease")
@click.argument("slug", type=ENDPOINT)
@click.argument("seconds", type=int, required=False)
@json_option
def endpoint_lease(slug: str, seconds: int | None, as_json: bool) -> None:
    """Set the lease of claims that name none, 60 to 86400 seconds; the usual one if left out.

    Example: switchboard endpoint lease agent 1800
    """
    with operate(settings()) as (operator, _):
        operator.value(
            "select switchboard.set_default_lease(p_endpoint_id => %s, p_lease_ttl_seconds => %s)",
            [endpoint_id(operator, slug), seconds],
        )
    shown = "the default of the installation" if seconds is None else f"{seconds} s"
    answer = {"slug": slug, "default_lease_seconds": seconds}
    printing.result(answer, as_json, [f"The lease of {slug} is {shown}."])


@click.command("retention")
@click.argument("slug", type=ENDPOINT)
@click.option("--days", type=int, help="How long they are kept; as usual, if left out.")
@click.option("--rows", type=int, help="How many are kept; as usual, if left out.")
@json_option
def endpoint_retention(slug: str, days: int | None, rows: int | None, as_json: bool) -> None:
    """Set how long what is done or dead is kept; the narrower bound wins.

    What is older is deleted by the next sweeps, with its attempts and deliveries.

    Example: switchboard endpoint retention agent --days 90
    """
    with operate(settings()) as (operator, _):
        operator.value(
            "select switchboard.set_retention(p_endpoint_id => %s, p_days => %s, p_rows => %s)",
            [endpoint_id(operator, slug), days, rows],
        )
    bounds = [f"{days} days" if days else "", f"{rows} todos" if rows is not None else ""]
    shown = " and ".join(filter(None, bounds)) or "what the installation keeps"
    answer = {"slug": slug, "retention_days": days, "retention_rows": rows}
    printing.result(answer, as_json, [f"Of {slug} are kept: {shown}."])


def _row(operator: Operator, slug_or_id: str) -> Row:
    """The endpoint meant.

    Raises:
        Problem: there is no such endpoint.
    """
    rows: list[dict[str, Any]] = operator.rows(
        "select endpoint_id, slug, human, queues, verbs, webhook_max, webhook_source_types,"
        " default_lease_seconds, active, expires_at, revoked_at, created_at"
        " from switchboard.list_endpoints() where endpoint_id = switchboard.find_endpoint(%s)",
        [slug_or_id],
    )
    if not rows:
        raise Problem(
            "not_found", "There is no such endpoint: `switchboard endpoint list` shows them."
        )
    return rows[0]


COMMANDS = (endpoint_show, endpoint_grant, endpoint_lease, endpoint_retention)
