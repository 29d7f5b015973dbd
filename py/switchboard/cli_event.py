"""``switchboard event``: deliveries as they came, and what was made of them."""

from __future__ import annotations

import base64
import sys
from datetime import UTC, datetime
from typing import Any

import click

from switchboard import printing
from switchboard.cli_database import Operator, operate
from switchboard.cli_options import json_option, settings
from switchboard.cli_webhook import endpoint_id

PIECE = 32_768
SHOWN = (
    "id",
    "received_at",
    "webhook_id",
    "source_type",
    "event_type",
    "delivery_id",
    "trust_mode",
    "verified",
    "queue",
    "content_type",
    "bytes",
)


@click.group()
def event() -> None:
    """Deliveries: look at them, replay them."""


@event.command("list")
@click.option("-w", "--webhook", "webhook_id", help="Of this receiver only.")
@click.option("-e", "--endpoint", help="Of this endpoint only.")
@click.option("-n", "--limit", type=int, default=50, show_default=True, help="At most 200.")
@click.option("--before", help="Only older ones than this: the last id of the page before.")
@json_option
def event_list(
    webhook_id: str | None, endpoint: str | None, limit: int, before: str | None, as_json: bool
) -> None:
    """List deliveries, newest first.

    Example: switchboard event list --endpoint agent --limit 10
    """
    with operate(settings()) as (operator, _):
        rows = operator.rows(
            "select id, endpoint_id, webhook_id, source_type, event_type, delivery_id, trust_mode,"
            " verified, queue, bytes, todo_id, todo_state, title, received_at"
            " from switchboard.list_events_any_endpoint(p_webhook_id => %s, p_limit => %s,"
            " p_endpoint_id => %s, p_before => %s)",
            [webhook_id, limit, endpoint_id(operator, endpoint), before],
        )
    columns = ("id", "received_at", "trust_mode", "queue", "bytes", "todo_state", "title")
    printing.result({"events": rows}, as_json, printing.table(rows, columns))


@event.command("show")
@click.argument("event_id", metavar="ID")
@click.option("--body", "with_body", is_flag=True, help="Print the body, byte for byte.")
@json_option
def event_show(event_id: str, with_body: bool, as_json: bool) -> None:
    """Show a delivery, what was made of it, or its body.

    Headers, how it was verified, its todos and its replays.

    With --body the body alone, as it came. A terminal gets text without control characters, or
    base64; with --json the body stands in "text" or "base64".

    Example: switchboard event show ID --body > delivery.json
    """
    with operate(settings()) as (operator, _):
        found: dict[str, Any] = operator.value(
            "select switchboard.get_event_any_endpoint(p_id => %s)", [event_id]
        )
        body = _body(operator, event_id) if with_body else None
    if as_json:
        shown = {"event": found} if body is None else {"event": found, "body": _as_member(body)}
        printing.result(shown, as_json, [])
    elif body is None:
        printing.result(found, as_json, _lines(found))
    elif sys.stdout.isatty():
        printing.result(found, as_json, _for_eyes(body))
    else:
        click.echo(body, nl=False)


@event.command("replay")
@click.argument("event_id", metavar="ID")
@click.option("-e", "--endpoint", help="For this target only.")
@json_option
def event_replay(event_id: str, endpoint: str | None, as_json: bool) -> None:
    """Make todos of a delivery once more; audited.

    A target where its todo is still live keeps that one. Without --endpoint, for all targets of
    its receiver.

    Example: switchboard event replay ID --endpoint agent
    """
    with operate(settings()) as (operator, _):
        answer: dict[str, Any] = operator.value(
            "select switchboard.replay_event(p_id => %s, p_endpoint_id => %s)",
            [event_id, endpoint_id(operator, endpoint)],
        )
    lines = [f"Replayed: {answer['created']} made, of {len(answer['todos'])}."]
    lines += printing.table(answer["todos"], ("id", "endpoint_id", "queue", "created"))
    printing.result(answer, as_json, lines)


def _body(operator: Operator, event_id: str) -> bytes:
    """The body, read in pieces."""
    pieces: list[bytes] = []
    offset: int | None = 0
    while offset is not None:
        piece: dict[str, Any] = operator.value(
            "select switchboard.read_event_any_endpoint(p_id => %s, p_offset => %s, p_limit => %s)",
            [event_id, offset, PIECE],
        )
        text = piece.get("text")
        pieces.append(base64.b64decode(piece["base64"]) if text is None else text.encode())
        offset = piece.get("next_offset")
    return b"".join(pieces)


def _as_member(body: bytes) -> dict[str, str]:
    """The body as JSON can hold it."""
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def _for_eyes(body: bytes) -> list[str]:
    """The body for a terminal, which must not obey what others wrote."""
    member = _as_member(body)
    lines = member.get("text", member.get("base64", "")).replace("\t", "    ").split("\n")
    return ["".join(c if c.isprintable() else "·" for c in line.rstrip("\r")) for line in lines]


def _lines(found: dict[str, Any]) -> list[str]:
    """A delivery for people: what it is, then what belongs to it."""
    lines = printing.record({key: found.get(key) for key in SHOWN})
    verification = dict(found["verification"])
    if "signed_at" in verification:
        verification["signed_at"] = datetime.fromtimestamp(verification["signed_at"], UTC)
    for key, record in (("verification", verification), ("headers", found["headers"])):
        lines += ["", key, *(printing.record(record) or ["(none)"])]
    todo = ("id", "slug", "queue", "state", "created_at", "title")
    replay = ("at", "actor", "endpoint_id", "todo_id", "created")
    lines += ["", "todos", *printing.table(found["todos"], todo)]
    return [*lines, "", "replays", *printing.table(found["replays"], replay)]
