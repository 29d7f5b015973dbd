"""``switchboard up``, ``serve``, ``migrate``, ``tick`` and ``demo``: running it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Iterator
from types import FrameType

import click

from switchboard import embedded, first, printing, welcome
from switchboard.cli_database import operate
from switchboard.cli_options import json_option
from switchboard.cli_options import settings as read_settings
from switchboard.config import Settings
from switchboard.datafolder import DataFolder
from switchboard.embedded import Cluster
from switchboard.embedded_make import SUPERUSER
from switchboard.errors import Problem
from switchboard.migrate import migrate as run_migrations
from switchboard.printing import say
from switchboard.secrets import Keyring


@click.command()
@json_option
def up(as_json: bool) -> None:
    """Run everything: database, migrations, a first endpoint, the server.

    Without SWITCHBOARD_DATABASE_URL the database is an embedded PostgreSQL in the data folder.

    Example: switchboard up
    """
    from switchboard import serving  # costs half a second that other commands need not pay

    settings = read_settings()
    folder = DataFolder(settings.data_dir)
    folder.make()
    with folder.locked(), contextlib.closing(serving.bind(settings)) as taken, _interruptible():
        settings = settings.with_port(taken.getsockname()[1])
        about = {"pid": os.getpid(), "url": settings.public_url}
        folder.write_json("running.json", about)
        with _database(settings, folder) as (operator_url, gateway_url, psql):
            keys = settings.secret_keys or folder.make_secret_key()
            file_name = first.file_for(settings.database_url)
            made = first.ensure(operator_url, gateway_url, folder, Keyring(keys), file_name)
            url = settings.public_url
            link = first.sign_in_link(operator_url, url)

            def ready() -> None:
                facts = welcome.facts(url, made, psql, link)
                printing.result(facts, as_json, welcome.lines(url, made, psql, link=link))

            listen_url = settings.listen_url or gateway_url
            serving.serve(
                dataclasses.replace(
                    settings, database_url=gateway_url, listen_url=listen_url, secret_keys=keys
                ),
                taken,
                ready,
            )
            say("Stopping …")
    say("Stopped. Nothing is lost: open leases end by themselves.")


@contextlib.contextmanager
def _database(settings: Settings, folder: DataFolder) -> Iterator[tuple[str, str, str | None]]:
    """A migrated database: the operator's URL, the gateway's, and a psql command line."""
    if settings.database_url:
        run_migrations(settings.listen_url, say)
        yield settings.database_url, settings.database_url, None
        return
    cluster = Cluster(folder, say)
    say(f"Starting PostgreSQL on {folder.path} …")
    try:
        cluster.start()
        run_migrations(cluster.url(SUPERUSER), say)
        cluster.make_logins()
        about = folder.read_json("running.json") or {}
        folder.write_json("running.json", {**about, "socket": str(cluster.socket_dir)})
        operator_url = cluster.url(embedded.OPERATOR)
        yield operator_url, cluster.url(embedded.GATEWAY), embedded.psql_line(cluster.socket_dir)
    finally:
        # From here on, ctrl-C again must not leave a server behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        cluster.stop()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the start like ctrl-C does, so that what was started is stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.command()
@json_option
def serve(as_json: bool) -> None:
    """Run the server alone, on the database of SWITCHBOARD_DATABASE_URL.

    Example: switchboard serve
    """
    from switchboard import serving

    settings = read_settings()
    if not settings.database_url:
        raise Problem(
            "invalid_argument",
            "Set SWITCHBOARD_DATABASE_URL, or run `switchboard up`, which brings its own database.",
        )
    keys = settings.secret_keys or DataFolder(settings.data_dir).secret_keys()
    with contextlib.closing(serving.bind(settings)) as taken:
        settings = settings.with_port(taken.getsockname()[1])
        facts = {"url": settings.public_url, "pid": os.getpid()}
        line = f"Switchboard serves {settings.public_url}. Stop it with ctrl-C."
        serving.serve(
            dataclasses.replace(settings, secret_keys=keys),
            taken,
            lambda: printing.result(facts, as_json, [line]),
        )


@click.command()
@click.option("--url", help="Of the database; SWITCHBOARD_DATABASE_URL if left out.")
@click.option("--break-lock", is_flag=True, help="Remove the lock that a killed yoyo has left.")
@json_option
def migrate(url: str | None, break_lock: bool, as_json: bool) -> None:
    """Bring a database up to date: roles, tables, functions, the sweeps' schedule.

    Safe to repeat, and to run while everything runs. It needs a direct connection
    (SWITCHBOARD_LISTEN_URL is preferred, where the database URL is a pooler's).

    Example: switchboard migrate --url postgresql://deploy@db.example.org/switchboard
    """
    settings = (
        read_settings()
        if url is None
        else Settings.from_env(
            {**os.environ, "SWITCHBOARD_DATABASE_URL": url, "SWITCHBOARD_LISTEN_URL": ""}
        )
    )
    target = settings.listen_url
    if not target:
        running = DataFolder(settings.data_dir).running() or {}
        if "socket" not in running:
            raise Problem(
                "invalid_argument",
                "Name the database: switchboard migrate --url postgresql://… (or set "
                "SWITCHBOARD_DATABASE_URL). The embedded one is migrated by `switchboard up`.",
            )
        target = embedded.superuser_url(running["socket"])
    steps: list[str] = []

    def note(line: str) -> None:
        steps.append(line)
        if not as_json:
            say(line)

    run_migrations(target, note, break_lock=break_lock)
    printing.result({"migrated": True, "steps": steps}, as_json, ["The database is up to date."])


@click.command()
@json_option
def tick(as_json: bool) -> None:
    """Sweep now, for schedulers: each sweep runs at most once in 30 s, whoever asks.

    Example: switchboard tick
    """
    with operate(read_settings()) as (operator, _):
        swept = operator.value("select switchboard.tick()") or {}
    lines = [f"{name}: {count}" for name, count in swept.items()]
    printing.result(swept, as_json, lines or ["All sweeps ran less than 30 s ago."])


@click.command()
@click.option("--stall", is_flag=True, help="Another one: a queue that stalls is nudged.")
@json_option
def demo(stall: bool, as_json: bool) -> None:
    """The main job once: a signed webhook in, an MCP agent completes it. Leaves nothing behind.

    Example: switchboard demo --stall
    """
    from switchboard import demo as main_job
    from switchboard import demo_stall

    demonstration = demo_stall if stall else main_job
    steps = demonstration.run(lambda line: None if as_json else printing.out(line))
    printing.result({"done": True, "steps": steps}, as_json, ["Done: it works on this machine."])


COMMANDS = (up, serve, migrate, tick, demo)
