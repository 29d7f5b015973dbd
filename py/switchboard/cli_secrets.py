"""``switchboard secrets``: seal what is kept with another key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from switchboard import printing
from switchboard.cli_database import keyring, operate
from switchboard.cli_options import json_option, settings
from switchboard.errors import Problem
from switchboard.secrets import Keyring, SecretError

if TYPE_CHECKING:
    from switchboard.cli_database import Operator


@click.group()
def secrets() -> None:
    """The signing secrets of receivers and hooks, sealed with SWITCHBOARD_SECRET_KEY."""


@secrets.command("rotate", epilog="Example: switchboard secrets rotate")
@json_option
def secrets_rotate(as_json: bool) -> None:
    """Seal every secret with the first key of SWITCHBOARD_SECRET_KEY.

    Put the new key before the old one, restart the servers with both, run this, then leave the old
    one out. Secrets stay what they are: nothing changes for senders and receivers.
    """
    known = settings()
    with operate(known) as (operator, place):
        counts = reseal(operator, keyring(known, place))
    if counts["lost"]:
        raise Problem(
            "conflict",
            f"{counts['lost']} secrets are sealed with a key that is not in SWITCHBOARD_SECRET_KEY:"
            " add it and run this again, or rotate those receivers and hooks.",
            counts,
        )
    line = f"Sealed {counts['resealed']} secrets anew; {counts['current']} were already."
    printing.result(counts, as_json, [line])


def reseal(operator: Operator, keys: Keyring) -> dict[str, Any]:
    """Seal every secret with the first key.

    Returns:
        How many were ``resealed``, were ``current``, or are ``lost``: no key opens them.
    """
    counts = {"resealed": 0, "current": 0, "lost": 0}
    rows = operator.rows(
        "select kind, endpoint_id::text, id::text, slot, sealed from switchboard.list_sealed()"
    )
    for row in rows:
        sealed = bytes(row["sealed"])
        if keys.is_current(sealed):
            counts["current"] += 1
            continue
        try:
            new = keys.seal(keys.open(sealed))
        except SecretError:
            counts["lost"] += 1
            continue
        operator.value(
            "select switchboard.reseal(%s, %s, %s, %s, %s, %s)",
            [row["kind"], row["endpoint_id"], row["id"], row["slot"], sealed, new],
        )
        counts["resealed"] += 1
    return counts
