"""``switchboard human`` and ``switchboard endpoint``: who there is, and what was vended to whom."""

from __future__ import annotations

import json
from typing import Any

import click

from switchboard import printing
from switchboard.cli_database import Operator, operate
from switchboard.cli_options import ENDPOINT, json_option, settings, time_argument
from switchboard.errors import Problem


def mcp_config(public_url: str, slug: str, credential: str) -> dict[str, Any]:
    """The MCP client configuration of an endpoint, as most clients take it."""
    server = {
        "type": "http",
        "url": f"{public_url}/mcp/{slug}",
        "headers": {"Authorization": f"Bearer {credential}"},
    }
    return {"mcpServers": {"switchboard": server}}


def config_lines(public_url: str, slug: str, credential: str) -> list[str]:
    """The same, laid out for pasting."""
    return json.dumps(mcp_config(public_url, slug, credential), indent=2).splitlines()


@click.group()
def human() -> None:
    """The people who own endpoints."""


@human.command("add")
@click.argument("name")
@json_option
def human_add(name: str, as_json: bool) -> None:
    """Add a person, and print an operator token for /api/v1, this one time.

    Example: switchboard human add ada
    """
    with operate(settings()) as (operator, _):
        row = operator.row(
            "select h.id, h.name, t.token from switchboard.create_human(p_name => %s) h,"
            " switchboard.create_operator_token(p_human_id => h.id, p_name => 'first') t",
            [name],
        )
    lines = [
        f"Added {row['name']}. The operator token is shown this once:",
        "",
        f"  {row['token']}",
        "",
        f"Next: switchboard endpoint vend SLUG --human {row['name']!r}",
    ]
    printing.result(row, as_json, lines)


@human.command("list")
@json_option
def human_list(as_json: bool) -> None:
    """List the people.

    Example: switchboard human list
    """
    with operate(settings()) as (operator, _):
        rows = operator.rows(
            "select id, name, endpoints, created_at from switchboard.list_humans()"
        )
    columns = ("name", "endpoints", "id", "created_at")
    printing.result({"humans": rows}, as_json, printing.table(rows, columns))


@click.group()
def endpoint() -> None:
    """What agents connect to: a slug, a credential, a grant of queues and verbs."""


@endpoint.command("vend")
@click.argument("slug")
@click.option("-q", "--queue", "queues", multiple=True, help="A queue it may use; may be repeated.")
@click.option("--verb", "verbs", multiple=True, help="A verb it may use; may be repeated.")
@click.option("--human", "owner", help="Whose it is; may be left out while there is one person.")
@click.option("--webhook-max", default=1, show_default=True, help="How many receivers it may have.")
@click.option("--source-type", "source_types", multiple=True, help="Which senders they may be for.")
@click.option("--expires-at", help="A time, for example 2030-01-31T00:00:00Z; never, if left out.")
@json_option
def endpoint_vend(
    slug: str,
    queues: tuple[str, ...],
    verbs: tuple[str, ...],
    owner: str | None,
    webhook_max: int,
    source_types: tuple[str, ...],
    expires_at: str | None,
    as_json: bool,
) -> None:
    """Make an endpoint, and print its credential, this one time.

    Without -q its queue is inbox; without --verb it gets the default grant.

    --verb set_admission_policy and --verb clear_admission_policy let the agent change its own
    budget: one that it can lift does not bind it.

    Example: switchboard endpoint vend agent -q inbox -q github --expires-at 2030-01-31
    """
    with operate(settings()) as (operator, place):
        row = operator.row(
            "select endpoint_id, slug, credential from switchboard.vend_endpoint(p_human_id => %s,"
            " p_slug => %s, p_queues => %s, p_verbs => %s, p_webhook_max => %s,"
            " p_webhook_source_types => %s, p_expires_at => %s)",
            [
                human_id(operator, owner),
                slug,
                list(queues or ("inbox",)),
                list(verbs) or None,
                webhook_max,
                list(source_types) or None,
                time_argument(expires_at, "expires_at"),
            ],
        )
    _show_credential(row, place.public_url, as_json)


@endpoint.command("list")
@json_option
def endpoint_list(as_json: bool) -> None:
    """List the endpoints.

    Example: switchboard endpoint list
    """
    with operate(settings()) as (operator, _):
        rows = operator.rows(
            "select endpoint_id, slug, human, queues, verbs, webhook_max, webhook_source_types,"
            " default_lease_seconds, active, expires_at, revoked_at, created_at"
            " from switchboard.list_endpoints()"
        )
    columns = ("slug", "human", "queues", "active", "expires_at", "endpoint_id")
    printing.result({"endpoints": rows}, as_json, printing.table(rows, columns))


@endpoint.command("rotate")
@click.argument("slug", type=ENDPOINT)
@click.option("--grace", default=0, help="Seconds for which the old credential still works.")
@json_option
def endpoint_rotate(slug: str, grace: int, as_json: bool) -> None:
    """Make a new credential, and print it, this one time.

    Example: switchboard endpoint rotate agent --grace 3600
    """
    with operate(settings()) as (operator, place):
        credential = operator.value(
            "select switchboard.rotate_credential(p_endpoint_id => coalesce("
            "switchboard.find_endpoint(%s)::text, %s), p_grace_seconds => %s)",
            [slug, slug, grace],
        )
    _show_credential({"slug": slug, "credential": credential}, place.public_url, as_json)


@endpoint.command("revoke")
@click.argument("slug", type=ENDPOINT)
@json_option
def endpoint_revoke(slug: str, as_json: bool) -> None:
    """Revoke an endpoint for good; its live todos become dead letters.

    Example: switchboard endpoint revoke agent
    """
    with operate(settings()) as (operator, _):
        count = operator.value(
            "select switchboard.revoke_endpoint(p_endpoint_id => coalesce("
            "switchboard.find_endpoint(%s)::text, %s))",
            [slug, slug],
        )
    line = f"Revoked {slug}; {count} live todos became dead letters."
    printing.result({"slug": slug, "dead_lettered": count}, as_json, [line])


def human_id(operator: Operator, name: str | None) -> Any:
    """The id of the person named, or of the only one there is.

    Raises:
        Problem: there is nobody of that name, or nobody was named among several.
    """
    people = operator.rows("select id, name from switchboard.list_humans()")
    found = [person["id"] for person in people if name in (None, person["name"])]
    if len(found) == 1:
        return found[0]
    names = [person["name"] for person in people]
    if name is not None or not people:
        text = "There is no such person: add one with `switchboard human add NAME`."
        raise Problem("not_found", text, {"humans": names})
    raise Problem("invalid_argument", "Say whose it is with --human.", {"humans": names})


def _show_credential(row: dict[str, Any], public_url: str, as_json: bool) -> None:
    config = mcp_config(public_url, row["slug"], row["credential"])
    lines = [
        f"Endpoint {row['slug']}. Its credential is shown this once:",
        "",
        f"  {row['credential']}",
        "",
        "For an MCP client:",
        "",
        *config_lines(public_url, row["slug"], row["credential"]),
    ]
    printing.result({**row, "mcp": config}, as_json, lines)
