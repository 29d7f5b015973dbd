"""``switchboard welcome``: what ``up`` prints, for a server that runs elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from switchboard import embedded, first, printing, welcome
from switchboard.cli_database import find, keyring
from switchboard.cli_options import json_option
from switchboard.cli_options import settings as read_settings
from switchboard.datafolder import DataFolder


@click.command("welcome")
@click.option("--program", help="What people type for this program, in what is printed.")
@click.option("--psql", help="What a DBA types for psql, in what is printed.")
@json_option
def show(program: str | None, psql: str | None, as_json: bool) -> None:
    """Print what to type next; makes the first endpoint if there is none.

    The login has to be a member of switchboard_operator and of switchboard_app.

    Example: switchboard welcome
    """
    settings = read_settings()
    place = find(settings)
    folder = place.folder or DataFolder(settings.data_dir)
    folder.make()
    gateway_url = place.url
    if place.folder and (socket := (place.folder.running() or {}).get("socket")):
        gateway_url = embedded.url(Path(socket), embedded.GATEWAY)
        psql = psql or embedded.psql_line(Path(socket))
    file_name = first.file_for(settings.database_url)
    made = first.ensure(place.url, gateway_url, folder, keyring(settings, place), file_name)
    link = first.sign_in_link(place.url, place.public_url)
    facts = welcome.facts(place.public_url, made, psql, link)
    lines = welcome.lines(place.public_url, made, psql, program, link)
    printing.result(facts, as_json, lines)
