"""``switchboard route``: the endpoints that a receiver's deliveries go to besides its owner."""

from __future__ import annotations

from typing import Any, LiteralString

import click

from switchboard import printing
from switchboard.cli_database import operate
from switchboard.cli_options import json_option, settings


@click.group()
def route() -> None:
    """Routes: a receiver's deliveries become todos on several endpoints."""


@route.command("add")
@click.argument("webhook_id", metavar="WEBHOOK")
@click.argument("target")
@json_option
def route_add(webhook_id: str, target: str, as_json: bool) -> None:
    """Send a receiver's deliveries to one more endpoint, too.

    To an active one of the same person whose grant covers the receiver's queue.

    Example: switchboard route add WEBHOOK reviewer
    """
    answer = _change("add_webhook_route", webhook_id, target)
    state = "go to" if answer["created"] else "went already to"
    printing.result(answer, as_json, [f"Its deliveries {state} {target}."])


@route.command("list")
@click.argument("webhook_id", metavar="WEBHOOK")
@json_option
def route_list(webhook_id: str, as_json: bool) -> None:
    """List where a receiver's deliveries go, the owner first.

    Example: switchboard route list WEBHOOK
    """
    with operate(settings()) as (operator, _):
        rows = operator.rows(
            "select target_endpoint_id, slug, owner, live, created_at"
            " from switchboard.list_webhook_routes(p_endpoint_id =>"
            " switchboard.webhook_endpoint(p_webhook_id => %s), p_webhook_id => %s)",
            [webhook_id, webhook_id],
        )
    columns = ("slug", "owner", "live", "target_endpoint_id", "created_at")
    printing.result({"routes": rows}, as_json, printing.table(rows, columns))


@route.command("remove")
@click.argument("webhook_id", metavar="WEBHOOK")
@click.argument("target")
@json_option
def route_remove(webhook_id: str, target: str, as_json: bool) -> None:
    """Send a receiver's deliveries to an endpoint no longer.

    Example: switchboard route remove WEBHOOK reviewer
    """
    answer = _change("remove_webhook_route", webhook_id, target)
    state = "go no longer to" if answer["removed"] else "did not go to"
    printing.result(answer, as_json, [f"Its deliveries {state} {target}."])


_CHANGES: dict[str, LiteralString] = {
    verb: "select switchboard." + verb + "(p_endpoint_id =>"
    " switchboard.webhook_endpoint(p_webhook_id => %s), p_webhook_id => %s,"
    " p_target_endpoint_id => %s)"
    for verb in ("add_webhook_route", "remove_webhook_route")
}


def _change(verb: str, webhook_id: str, target: str) -> dict[str, Any]:
    """Call a verb on behalf of the endpoint that owns the receiver."""
    with operate(settings()) as (operator, _):
        answer: dict[str, Any] = operator.value(_CHANGES[verb], [webhook_id, webhook_id, target])
    return answer
