"""``switchboard human login`` and what belongs to it: how a person comes to the board."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import click

from switchboard import printing
from switchboard.cli_database import Operator, operate
from switchboard.cli_endpoint import human_id
from switchboard.cli_options import json_option, settings
from switchboard.errors import Problem

MINUTES = 10


@click.command()
@click.argument("name")
@click.option("--minutes", default=MINUTES, show_default=True, help="How long the link is good.")
@json_option
def login(name: str, minutes: int, as_json: bool) -> None:
    """Print a link that signs the person NAME in to the board, once.

    Example: switchboard human login ada
    """
    with operate(settings()) as (operator, place):
        link = make_link(operator, place.public_url, human_id(operator, name), minutes)
    lines = [f"Signs {name} in, once, within {minutes} minutes:", "", f"  {link['url']}", ""]
    printing.result({"human": name, **link}, as_json, lines)


def make_link(
    operator: Operator, public_url: str, person: Any, minutes: int = MINUTES
) -> dict[str, Any]:
    """A new sign-in link of a person: ``url`` and ``expires_at``."""
    made = operator.row(
        "select code, expires_at from switchboard.create_sign_in_link("
        "p_human_id => %s, p_minutes => %s)",
        [person, minutes],
    )
    return {"url": f"{public_url}/sign-in/{made['code']}", "expires_at": made["expires_at"]}


@click.command()
@click.argument("name", required=False)
@json_option
def sessions(name: str | None, as_json: bool) -> None:
    """List who is signed in to the board: the person NAME, or everybody.

    Example: switchboard human sessions ada
    """
    with operate(settings()) as (operator, _):
        rows = operator.rows(
            "select session_id, human, how, token, created_at, last_seen_at, expires_at"
            " from switchboard.list_sessions(%s)",
            [human_id(operator, name) if name is not None else None],
        )
    columns = ("human", "how", "token", "last_seen_at", "expires_at", "session_id")
    printing.result({"sessions": rows}, as_json, printing.table(rows, columns))


@click.command("sign-out")
@click.argument("name")
@click.option("--session", help="Only this one, by its id as `human sessions` shows it.")
@json_option
def sign_out(name: str, session: str | None, as_json: bool) -> None:
    """Sign the person NAME out of the board everywhere; links that were not used end, too.

    Example: switchboard human sign-out ada
    """
    with operate(settings()) as (operator, _):
        closed = operator.value(
            "select switchboard.close_sessions(p_human_id => %s, p_session_id => %s)",
            [human_id(operator, name), _uuid(session)],
        )
    ended = "1 session" if closed == 1 else f"{closed} sessions"
    printing.result({"closed": closed}, as_json, [f"Signed {name} out: {ended} ended."])


@click.group()
def identity() -> None:
    """Who a person is at an OpenID provider."""


issuer_option = click.option(
    "--issuer", help="The provider; that of SWITCHBOARD_OIDC_ISSUER, if left out."
)


@identity.command("add")
@click.argument("name")
@click.argument("subject")
@issuer_option
@json_option
def identity_add(name: str, subject: str, issuer: str | None, as_json: bool) -> None:
    """Let the person NAME sign in as SUBJECT of the provider; its refusal shows the subject.

    Example: switchboard human identity add ada 7d1c0f52 --issuer https://id.example.org
    """
    place = _issuer(issuer)
    with operate(settings()) as (operator, _):
        operator.value(
            "select switchboard.add_human_identity("
            "p_human_id => %s, p_issuer => %s, p_subject => %s)",
            [human_id(operator, name), place, subject],
        )
    added = {"human": name, "issuer": place, "subject": subject}
    printing.result(added, as_json, [f"{name} may sign in as {subject} of {place}."])


@identity.command("list")
@click.argument("name", required=False)
@json_option
def identity_list(name: str | None, as_json: bool) -> None:
    """List the identities of the person NAME, or of everybody.

    Example: switchboard human identity list
    """
    with operate(settings()) as (operator, _):
        rows = operator.rows(
            "select human, issuer, subject, created_at from switchboard.list_human_identities(%s)",
            [human_id(operator, name) if name is not None else None],
        )
    columns = ("human", "issuer", "subject", "created_at")
    printing.result({"identities": rows}, as_json, printing.table(rows, columns))


@identity.command("remove")
@click.argument("name")
@click.argument("subject")
@issuer_option
@json_option
def identity_remove(name: str, subject: str, issuer: str | None, as_json: bool) -> None:
    """Take an identity from the person NAME; ends what a provider has signed in.

    Example: switchboard human identity remove ada 7d1c0f52 --issuer https://id.example.org
    """
    place = _issuer(issuer)
    with operate(settings()) as (operator, _):
        operator.value(
            "select switchboard.remove_human_identity("
            "p_human_id => %s, p_issuer => %s, p_subject => %s)",
            [human_id(operator, name), place, subject],
        )
    removed = {"human": name, "issuer": place, "subject": subject}
    printing.result(removed, as_json, [f"{name} signs in as {subject} of {place} no longer."])


def _issuer(given: str | None) -> str:
    found = given or settings().oidc_issuer
    if not found:
        raise Problem(
            "invalid_argument", "Name the provider: --issuer https://…", {"field": "issuer"}
        )
    return found


def _uuid(text: str | None) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        raise Problem(
            "not_found", "there is no such session: `switchboard human sessions` shows them"
        ) from None


COMMANDS = (login, sessions, sign_out, identity)
