"""``switchboard hook``: addresses that are called when a todo becomes ready."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from switchboard import printing
from switchboard.cli_database import Operator, operate
from switchboard.cli_database import keyring as keys_of
from switchboard.cli_options import ENDPOINT, json_option, settings
from switchboard.cli_webhook import endpoint_id
from switchboard.config import Settings
from switchboard.receivers import minted
from switchboard.secrets import Keyring


def make_hook(
    operator: Operator, keys: Keyring, endpoint: str, url: str, queues: Sequence[str] = ()
) -> dict[str, Any]:
    """Make a hook; what the database stores of its secret is sealed.

    Args:
        operator: who makes it.
        keys: seal the secret.
        endpoint: slug or id.
        url: what is called.
        queues: those it is about; none: all.

    Returns:
        What create_notify_hook answers, with signing_secret, which is shown this once.
    """
    made = minted(keys, "")
    answer: dict[str, Any] = operator.value(
        "select switchboard.create_notify_hook(p_endpoint_id => %s, p_url => %s,"
        " p_queues => %s, p_sealed_secret => %s)",
        [endpoint_id(operator, endpoint), url, list(queues) or None, made.sealed_secret],
    )
    return made.fill(answer)


@click.group()
def hook() -> None:
    """Hooks: addresses that are called, signed, when a todo becomes ready."""


@hook.command("create")
@click.argument("endpoint", type=ENDPOINT)
@click.argument("url")
@click.option("-q", "--queue", "queues", multiple=True, help="One it is about; all, if left out.")
@json_option
def hook_create(endpoint: str, url: str, queues: tuple[str, ...], as_json: bool) -> None:
    """Have a URL called when a todo becomes ready; prints its secret, this one time.

    Example: switchboard hook create agent https://worker.example.org/wake -q inbox
    """
    known = settings()
    with operate(known) as (operator, place):
        made = make_hook(operator, keys_of(known, place), endpoint, url, queues)
    about = f"queue {', '.join(made['queues'])}" if made["queues"] else "any of its queues"
    head = f"Hook {made['hook_id']}: {url} is called when a todo in {about} becomes ready."
    if refused := asyncio.run(_refusal(known, url)):
        made["warning"] = (
            f"With the settings of this shell the address would not be called. {refused}"
            " What counts are the settings of the server (SWITCHBOARD_OUTBOUND_…)."
        )
    printing.result(made, as_json, [head, *_secret(made)])
    if refused and not as_json:
        printing.say(f"Warning: {made['warning']}")


@hook.command("list")
@click.argument("endpoint", type=ENDPOINT, required=False)
@json_option
def hook_list(endpoint: str | None, as_json: bool) -> None:
    """List the hooks of an endpoint, or all, and how they fare.

    Example: switchboard hook list agent
    """
    with operate(settings()) as (operator, _):
        rows = operator.rows(
            "select e.slug as endpoint, h.hook_id, h.url, h.queues, h.enabled, h.failures,"
            " h.disabled_at, h.last_delivered_at, h.last_failed_at, h.last_status, h.waiting,"
            " h.created_at from switchboard.list_endpoints() e cross join lateral"
            " switchboard.list_notify_hooks(p_endpoint_id => e.endpoint_id::text) h"
            " where %s::uuid is null or e.endpoint_id = %s::uuid",
            [endpoint_id(operator, endpoint)] * 2,
        )
    columns = (
        "endpoint",
        "hook_id",
        "url",
        "queues",
        "enabled",
        "failures",
        "last_status",
        "last_delivered_at",
        "last_failed_at",
        "waiting",
    )
    lines = printing.table([{**row, "queues": row["queues"] or "all"} for row in rows], columns)
    printing.result({"hooks": rows}, as_json, lines)


@hook.command("rotate")
@click.argument("endpoint", type=ENDPOINT)
@click.argument("hook_id", metavar="HOOK")
@json_option
def hook_rotate(endpoint: str, hook_id: str, as_json: bool) -> None:
    """Give a hook a new secret, and enable it again if it was disabled.

    Calls are signed with the old one, too, for 24 hours.

    Example: switchboard hook rotate agent HOOK
    """
    known = settings()
    with operate(known) as (operator, place):
        made = minted(keys_of(known, place), "")
        answer = made.fill(
            operator.value(
                "select switchboard.rotate_notify_hook(p_endpoint_id => %s, p_hook_id => %s,"
                " p_sealed_secret => %s)",
                [endpoint_id(operator, endpoint), hook_id, made.sealed_secret],
            )
        )
    until = datetime.fromisoformat(answer["previous_valid_until"])
    head = (
        "Rotated, and enabled. Its calls are signed with the previous secret, too, until"
        f" {until:%Y-%m-%d %H:%M:%S %Z}."
    )
    printing.result(answer, as_json, [head, *_secret(answer)])


@hook.command("delete")
@click.argument("endpoint", type=ENDPOINT)
@click.argument("hook_id", metavar="HOOK")
@json_option
def hook_delete(endpoint: str, hook_id: str, as_json: bool) -> None:
    """Delete a hook, with the calls that wait.

    Example: switchboard hook delete agent HOOK
    """
    with operate(settings()) as (operator, _):
        answer = operator.value(
            "select switchboard.delete_notify_hook(p_endpoint_id => %s, p_hook_id => %s)",
            [endpoint_id(operator, endpoint), hook_id],
        )
    line = f"Deleted {answer['hook_id']}: it is called no more. The todos stay."
    printing.result(answer, as_json, [line])


@hook.command("counts")
@json_option
def hook_counts(as_json: bool) -> None:
    """Count the calls to all hooks by how they ended.

    Example: switchboard hook counts
    """
    with operate(settings()) as (operator, _):
        rows = operator.rows("select type, outcome, total from switchboard.notify_counts()")
    printing.result({"counts": rows}, as_json, printing.table(rows, ("type", "outcome", "total")))


def _secret(answer: Mapping[str, Any]) -> list[str]:
    """What to give to the receiver."""
    return ["", "For the receiver; shown this once:", "", f"  secret  {answer['signing_secret']}"]


async def _refusal(known: Settings, url: str) -> str:
    """Why the address would not be called with these settings; nothing when it would."""
    from switchboard.outbound import Outbound, Refused  # costs what other commands need not pay

    outbound = Outbound(known)
    try:
        await outbound.vet(url)
    except Refused as refused:
        return str(refused)
    finally:
        await outbound.aclose()
    return ""
