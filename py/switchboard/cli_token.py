"""``switchboard human token``: what opens the REST interface for a person."""

from __future__ import annotations

import click

from switchboard import printing
from switchboard.cli_database import operate
from switchboard.cli_endpoint import human_id
from switchboard.cli_options import json_option, settings, time_argument


@click.group()
def token() -> None:
    """Operator tokens: how scripts call /api/v1 in the name of a person."""


@token.command("create")
@click.argument("name")
@click.argument("label")
@click.option("--expires-at", help="A time, for example 2030-01-31T00:00:00Z; never, if left out.")
@json_option
def token_create(name: str, label: str, expires_at: str | None, as_json: bool) -> None:
    """Make a token of the person NAME, called LABEL, and print it, this one time.

    Example: switchboard human token create ada laptop --expires-at 2030-01-31T00:00:00Z
    """
    with operate(settings()) as (operator, place):
        row = operator.row(
            "select token_id, name, expires_at, token from switchboard.create_operator_token("
            "p_human_id => %s, p_name => %s, p_expires_at => %s)",
            [human_id(operator, name), label, time_argument(expires_at, "expires_at")],
        )
    printing.result(row, as_json, token_lines(row["token"], place.public_url))


@token.command("list")
@click.argument("name", required=False)
@json_option
def token_list(name: str | None, as_json: bool) -> None:
    """List the tokens of the person NAME, or of everybody; not what opens them.

    Example: switchboard human token list ada
    """
    with operate(settings()) as (operator, _):
        rows = operator.rows(
            "select token_id, human, name, active, created_at, expires_at, revoked_at,"
            " last_used_at from switchboard.list_operator_tokens(%s)",
            [human_id(operator, name) if name is not None else None],
        )
    columns = ("human", "name", "active", "last_used_at", "expires_at", "token_id")
    printing.result({"tokens": rows}, as_json, printing.table(rows, columns))


@token.command("revoke")
@click.argument("name")
@click.argument("label")
@json_option
def token_revoke(name: str, label: str, as_json: bool) -> None:
    """Revoke a token of the person NAME for good; LABEL is what it is called, or its id.

    Example: switchboard human token revoke ada laptop
    """
    with operate(settings()) as (operator, _):
        revoked = operator.value(
            "select switchboard.revoke_operator_token(p_human_id => %s, p_token => %s)",
            [human_id(operator, name), label],
        )
    printing.result({"token_id": revoked}, as_json, [f"Revoked {label} of {name}."])


def token_lines(secret: str, public_url: str) -> list[str]:
    """A new token, and how it is used."""
    return [
        "The operator token is shown this once:",
        "",
        f"  {secret}",
        "",
        f"  curl -H 'Authorization: Bearer {secret}' {public_url}/api/v1/todos",
    ]
