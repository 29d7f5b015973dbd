"""``switchboard webhook``: receivers, through which deliveries become todos."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from switchboard import printing
from switchboard.cli_database import Operator, operate
from switchboard.cli_database import keyring as keys_of
from switchboard.cli_options import ENDPOINT, json_option, settings
from switchboard.errors import Problem
from switchboard.receivers import Minted, minted
from switchboard.secrets import Keyring

KINDS = "github, gitea, stripe, slack, standard, cairn, generic or open."

secret_option = click.option(
    "--signing-secret",
    metavar="TEXT|@FILE|-",
    help="What the sender signs with: the text, @file, or - for standard input. A new one if left"
    " out.",
)


@dataclass(frozen=True)
class Steps:
    """What to do at a sender.

    Attributes:
        address: with the address; {id} is the receiver.
        secret: with the secret, unless it was given.
        secret_first: the sender tests the address as soon as it is entered.
        makes_secret: the sender makes the secret itself; one made here is of no use there.
    """

    address: tuple[str, ...]
    secret: tuple[str, ...] = ()
    secret_first: bool = False
    makes_secret: bool = False


_EVENTS = "Choose application/json as content type, and the events that should become work."
_GIVE = "  switchboard webhook rotate {id} --signing-secret @FILE"
NEXT: Mapping[str, Steps] = {
    "github": Steps(
        (
            "At GitHub: Settings, Webhooks, Add webhook. Enter the address as Payload URL.",
            _EVENTS,
        ),
        ("Enter the secret as Secret.",),
    ),
    "gitea": Steps(
        (
            "At Gitea: Settings, Webhooks, Add Webhook, Gitea. Enter the address as Target URL.",
            _EVENTS,
        ),
        ("Enter the secret as Secret.",),
    ),
    "stripe": Steps(
        ("At Stripe: Workbench, Webhooks, Create an event destination. Enter the address.",),
        ("Stripe makes the secret. Copy it from there into a file, and give it here:", _GIVE),
        makes_secret=True,
    ),
    "slack": Steps(
        ("At Slack: your app, Event Subscriptions. Enter the address as Request URL.",),
        (
            "Slack makes the secret: your app, Basic Information, Signing Secret. Copy it into a",
            "file, and give it here before you enter the address:",
            _GIVE,
        ),
        secret_first=True,
        makes_secret=True,
    ),
    "standard": Steps(
        ("At the sender: enter the address.",),
        ("Enter the secret, if the sender takes one. If it makes its own, give that here:", _GIVE),
    ),
    "cairn": Steps(("At Cairn: enter the address.",), ("Enter the secret.",)),
    "generic": Steps(
        (
            "At the sender: POST to the address with the header  Authorization: Bearer TOKEN",
            "A sender that can set no header needs the address alone: the token is its last part.",
        ),
    ),
    "open": Steps(
        (
            "At the sender: POST to the address.",
            "Whoever knows it can make work: nothing is verified.",
        ),
    ),
}


def make_webhook(
    operator: Operator,
    keys: Keyring,
    public_url: str,
    endpoint: str,
    source_type: str,
    queue: str,
    secret: str | None = None,
) -> dict[str, Any]:
    """Make a receiver; what the database stores of the secret and the address is sealed or hashed.

    Returns:
        What create_webhook answers, with signing_secret and ingest_url, which are shown this once.
    """
    made = minted(keys, public_url, secret)
    answer: dict[str, Any] = operator.value(
        "select switchboard.create_webhook(p_endpoint_id => coalesce("
        "switchboard.find_endpoint(%s)::text, %s), p_source_type => %s, p_target_queue => %s,"
        " p_sealed_secret => %s, p_token_digest => %s, p_secret_form => %s)",
        [endpoint, endpoint, source_type, queue, *_stored(made)],
    )
    return made.fill(answer)


@click.group()
def webhook() -> None:
    """Receivers: addresses whose deliveries become todos."""


@webhook.command("create")
@click.argument("endpoint", type=ENDPOINT)
@click.option("-q", "--queue", required=True, help="Where its todos go.")
@click.option("--source-type", default="github", show_default=True, help="Who sends: " + KINDS)
@secret_option
@json_option
def webhook_create(
    endpoint: str, queue: str, source_type: str, signing_secret: str | None, as_json: bool
) -> None:
    """Make a receiver, and print its address and secret, this one time.

    Example: switchboard webhook create hub -q events --source-type gitea
    """
    known = settings()
    given = secret_argument(signing_secret)
    with operate(known) as (operator, place):
        made = make_webhook(
            operator, keys_of(known, place), place.public_url, endpoint, source_type, queue, given
        )
    head = f"Receiver {made['webhook_id']} for {source_type}: its todos go to queue {queue}."
    printing.result(made, as_json, [head, *_to_enter(made, given is not None)])


@webhook.command("list")
@click.argument("endpoint", type=ENDPOINT, required=False)
@json_option
def webhook_list(endpoint: str | None, as_json: bool) -> None:
    """List the receivers of an endpoint, or all, without addresses and secrets.

    Example: switchboard webhook list agent
    """
    with operate(settings()) as (operator, _):
        rows = operator.rows(
            "select e.slug as endpoint, w.webhook_id, w.source_type, w.target_queue, w.trust_mode,"
            " w.held, w.routes, w.previous_valid_until, w.created_at"
            " from switchboard.list_endpoints() e"
            " cross join lateral switchboard.list_webhooks(p_endpoint_id => e.endpoint_id::text) w"
            " where %s::uuid is null or e.endpoint_id = %s::uuid",
            [endpoint_id(operator, endpoint)] * 2,
        )
    columns = (
        "endpoint",
        "webhook_id",
        "source_type",
        "target_queue",
        "trust_mode",
        "held",
        "routes",
        "previous_valid_until",
        "created_at",
    )
    printing.result({"webhooks": rows}, as_json, printing.table(rows, columns))


@webhook.command("rotate")
@click.argument("webhook_id", metavar="WEBHOOK")
@secret_option
@json_option
def webhook_rotate(webhook_id: str, signing_secret: str | None, as_json: bool) -> None:
    """Give a receiver a new secret; the old one works 24 hours more.

    A receiver for generic or open senders gets a new address instead.

    Example: switchboard webhook rotate WEBHOOK --signing-secret @stripe.secret
    """
    known = settings()
    given = secret_argument(signing_secret)
    with operate(known) as (operator, place):
        made = minted(keys_of(known, place), place.public_url, given)
        answer = made.fill(
            operator.value(
                "select switchboard.rotate_webhook(p_endpoint_id =>"
                " switchboard.webhook_endpoint(p_webhook_id => %s), p_webhook_id => %s,"
                " p_sealed_secret => %s, p_token_digest => %s, p_secret_form => %s)",
                [webhook_id, webhook_id, *_stored(made)],
            )
        )
    what = "address" if "ingest_url" in answer else "secret"
    until = datetime.fromisoformat(answer["previous_valid_until"])
    head = f"Rotated. The previous {what} is valid until {until:%Y-%m-%d %H:%M:%S %Z}."
    printing.result(answer, as_json, [head, *_to_enter(answer, given is not None)])


@webhook.command("delete")
@click.argument("webhook_id", metavar="WEBHOOK")
@json_option
def webhook_delete(webhook_id: str, as_json: bool) -> None:
    """Delete a receiver; its deliveries and todos stay.

    Example: switchboard webhook delete WEBHOOK
    """
    with operate(settings()) as (operator, _):
        answer = operator.value(
            "select switchboard.delete_webhook(p_endpoint_id =>"
            " switchboard.webhook_endpoint(p_webhook_id => %s), p_webhook_id => %s)",
            [webhook_id, webhook_id],
        )
    line = f"Deleted {answer['webhook_id']}: its address is answered 404. What it took stays."
    printing.result(answer, as_json, [line])


@webhook.command("hold")
@click.argument("webhook_id", metavar="WEBHOOK")
@click.option("--off", is_flag=True, help="Let deliveries through again.")
@json_option
def webhook_hold(webhook_id: str, off: bool, as_json: bool) -> None:
    """Hold what a receiver takes in quarantine, where no agent sees it.

    Example: switchboard webhook hold WEBHOOK
    """
    _hold(webhook_id, not off, as_json)


def _hold(webhook_id: str, held: bool, as_json: bool) -> None:
    with operate(settings()) as (operator, _):
        answer = operator.value(
            "select switchboard.hold_webhook(p_webhook_id => %s, p_held => %s)",
            [webhook_id, held],
        )
    lines = ["Held: from now on its deliveries wait in quarantine. See them, let them through:"]
    if not answer["held"]:
        lines = ["Not held: its deliveries become work again. What is in quarantine stays there:"]
    lines += ["  switchboard quarantine list", "  switchboard quarantine release ID…"]
    printing.result(answer, as_json, lines)


@webhook.command("unhold")
@click.argument("webhook_id", metavar="WEBHOOK")
@json_option
def webhook_unhold(webhook_id: str, as_json: bool) -> None:
    """Let the deliveries of a receiver through again; the same as `webhook hold --off`.

    Example: switchboard webhook unhold WEBHOOK
    """
    _hold(webhook_id, False, as_json)


@webhook.command("counts")
@json_option
def webhook_counts(as_json: bool) -> None:
    """Count deliveries by sender, trust, verdict and reason.

    Example: switchboard webhook counts
    """
    with operate(settings()) as (operator, _):
        rows = operator.rows(
            "select provider, trust_mode, verdict, reason, total from switchboard.delivery_counts()"
        )
    columns = ("provider", "trust_mode", "verdict", "reason", "total")
    lines = printing.table(
        [{key: "-" if value == "" else value for key, value in row.items()} for row in rows],
        columns,
    )
    printing.result({"counts": rows}, as_json, lines)


@webhook.command("audit")
@click.argument("webhook_id", metavar="WEBHOOK")
@click.option("-n", "--limit", type=int, default=50, show_default=True, help="At most 1000.")
@json_option
def webhook_audit(webhook_id: str, limit: int, as_json: bool) -> None:
    """Show who did what to a receiver and its deliveries.

    Example: switchboard webhook audit WEBHOOK
    """
    with operate(settings()) as (operator, _):
        rows = operator.rows(
            "select at, actor, action, endpoint_id, event_id, todo_id, detail"
            " from switchboard.webhook_audit_of(p_webhook_id => %s, p_limit => %s)",
            [webhook_id, limit],
        )
    columns = ("at", "actor", "action", "event_id", "todo_id", "detail")
    printing.result({"audit": rows}, as_json, printing.table(rows, columns))


def endpoint_id(operator: Operator, slug_or_id: str | None) -> str | None:
    """The id of the endpoint meant; None for none.

    Raises:
        Problem: there is no such endpoint.
    """
    if slug_or_id is None:
        return None
    found = operator.value("select switchboard.find_endpoint(%s)", [slug_or_id])
    if found is None:
        raise Problem(
            "not_found", "There is no such endpoint: `switchboard endpoint list` shows them."
        )
    return str(found)


def secret_argument(text: str | None) -> str | None:
    """Read a secret: the text itself, ``@file``, or ``-`` for standard input.

    The end of the last line does not belong to it.

    Raises:
        Problem: the file cannot be read.
    """
    try:
        if text == "-":
            return sys.stdin.read().rstrip("\r\n")
        if text is not None and text.startswith("@"):
            return Path(text[1:]).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise Problem(
            "invalid_argument",
            f"signing_secret cannot be read: {error}",
            {"field": "signing_secret"},
        ) from None
    return text


def _stored(made: Minted) -> tuple[bytes, bytes, str]:
    """What the database gets to see of it."""
    return made.sealed_secret, made.token_digest, made.secret_form


def _to_enter(answer: Mapping[str, Any], is_given: bool) -> list[str]:
    """What to enter at the sender, and how."""
    kind = answer["source_type"]
    steps = NEXT.get(kind, Steps(()))
    what: list[str] = []
    address: tuple[str, ...] = ()
    secret = steps.secret
    if "ingest_url" in answer:
        what, address = [f"  address  {answer['ingest_url']}"], steps.address
    if is_given or not answer.get("signing_secret"):
        secret = ()
    elif not steps.makes_secret:
        name = "token" if kind == "generic" else "secret"
        what.append(f"  {name:<7}  {answer['signing_secret']}")
    lines = ["", "For the sender; shown this once:", "", *what] if what else []
    if todo := secret + address if steps.secret_first else address + secret:
        lines += ["", *todo]
    return [line.replace("{id}", str(answer["webhook_id"])) for line in lines]
