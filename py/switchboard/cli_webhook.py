"""``switchboard webhook``: receivers, through which signed deliveries become todos."""

from __future__ import annotations

from typing import Any

import click

from switchboard import printing
from switchboard.cli_database import Operator, operate
from switchboard.cli_database import keyring as keys_of
from switchboard.cli_options import json_option, settings
from switchboard.secrets import Keyring, digest, mint


def make_webhook(
    operator: Operator,
    keys: Keyring,
    public_url: str,
    endpoint: str,
    source_type: str,
    queue: str,
    secret: str,
) -> dict[str, Any]:
    """Make a receiver; what the database stores of the secret and the address is sealed or hashed.

    Returns:
        What create_webhook answers, with signing_secret and ingest_url, which are shown this once.
    """
    token = mint()
    made: dict[str, Any] = operator.value(
        "select switchboard.create_webhook(p_endpoint_id => coalesce("
        "switchboard.find_endpoint(%s)::text, %s), p_source_type => %s, p_target_queue => %s,"
        " p_sealed_secret => %s, p_token_digest => %s)",
        [endpoint, endpoint, source_type, queue, keys.seal(secret.encode()), digest(token)],
    )
    return {**made, "signing_secret": secret, "ingest_url": f"{public_url}/webhooks/w/{token}"}


@click.group()
def webhook() -> None:
    """Receivers of signed deliveries."""


@webhook.command("create")
@click.argument("endpoint")
@click.option("-q", "--queue", required=True, help="Where its todos go.")
@click.option("--source-type", default="github", show_default=True, help="Who sends.")
@click.option("--signing-secret", help="What the sender signs with; a new one if left out.")
@json_option
def webhook_create(
    endpoint: str, queue: str, source_type: str, signing_secret: str | None, as_json: bool
) -> None:
    """Make a receiver, and print its address and secret, this one time."""
    known = settings()
    with operate(known) as (operator, place):
        made = make_webhook(
            operator,
            keys_of(known, place),
            place.public_url,
            endpoint,
            source_type,
            queue,
            signing_secret or mint(),
        )
    lines = [
        f"Receiver for {source_type}. Enter these at the sender; they are shown this once:",
        "",
        f"  address  {made['ingest_url']}",
        f"  secret   {made['signing_secret']}",
        "  content  application/json",
    ]
    printing.result(made, as_json, lines)


@webhook.command("list")
@click.argument("endpoint")
@json_option
def webhook_list(endpoint: str, as_json: bool) -> None:
    """List the receivers of an endpoint."""
    with operate(settings()) as (operator, _):
        rows = operator.rows(
            "select webhook_id, source_type, target_queue, trust_mode, created_at"
            " from switchboard.list_webhooks(p_endpoint_id => coalesce("
            "switchboard.find_endpoint(%s)::text, %s))",
            [endpoint, endpoint],
        )
    columns = ("webhook_id", "source_type", "target_queue", "trust_mode", "created_at")
    printing.result({"webhooks": rows}, as_json, printing.table(rows, columns))
