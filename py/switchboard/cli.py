"""The command line. Exit status: 0 done, 1 refused, 2 not understood.

Commands call stored functions and print; what a command means is decided in the database. They
stand in modules of their own, by what they act on.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from switchboard import (
    __version__,
    cli_budget,
    cli_completion,
    cli_doctor,
    cli_endpoint,
    cli_event,
    cli_grant,
    cli_health,
    cli_hook,
    cli_human,
    cli_quarantine,
    cli_route,
    cli_secrets,
    cli_todo,
    cli_token,
    cli_top,
    cli_up,
    cli_webhook,
    cli_welcome,
    printing,
)
from switchboard.config import ConfigError
from switchboard.datafolder import AlreadyRunningError
from switchboard.embedded_identity import EmbeddedError
from switchboard.errors import Problem
from switchboard.migrate_connection import MigrateError, NeedsDbaError
from switchboard.secrets import SecretError

REFUSED, MISUNDERSTOOD, INTERRUPTED = 1, 2, 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="switchboard")
def cli() -> None:
    """Switchboard: a durable work queue for AI agents that lives in PostgreSQL.

    Without SWITCHBOARD_DATABASE_URL, commands use the embedded database of the data folder
    (SWITCHBOARD_DATA, by default .switchboard) while `switchboard up` runs.
    """


for command in (
    *cli_up.COMMANDS,
    cli_welcome.show,
    cli_doctor.doctor,
    cli_health.health,
    cli_top.top,
    cli_completion.completion,
    cli_endpoint.human,
    cli_endpoint.endpoint,
    cli_todo.todo,
    cli_budget.queue,
    cli_webhook.webhook,
    cli_route.route,
    cli_hook.hook,
    cli_event.event,
    cli_quarantine.quarantine,
    cli_secrets.secrets,
):
    cli.add_command(command)
for command in (cli_token.token, *cli_human.COMMANDS):
    cli_endpoint.human.add_command(command)
for command in cli_grant.COMMANDS:
    cli_endpoint.endpoint.add_command(command)
cli_budget.queue.add_command(cli_health.queue_list)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and exit."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        status = cli.main(given, prog_name="switchboard", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(MISUNDERSTOOD)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(REFUSED)
    except (Problem, MigrateError, EmbeddedError, ConfigError, SecretError, OSError) as error:
        printing.refusal(_problem(error), "--json" in given)
        sys.exit(REFUSED)
    sys.exit(status if isinstance(status, int) else 0)  # a number: the command asked for it


def _problem(error: Exception) -> Problem:
    """The refusal that an exception of the package stands for."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, NeedsDbaError):
        return Problem("forbidden", str(error), {"statements": error.statements})
    if isinstance(error, AlreadyRunningError):
        return Problem("conflict", f"{error} Stop it with ctrl-C there, or: kill PID.", error.info)
    if isinstance(error, ConfigError | SecretError):
        return Problem("invalid_argument", str(error))
    return Problem("unavailable", str(error))
