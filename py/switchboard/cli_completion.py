"""``switchboard completion``: what a shell needs to complete commands, options and endpoints."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from switchboard import printing
from switchboard.cli_options import json_option
from switchboard.errors import Problem

VARIABLE = "_SWITCHBOARD_COMPLETE"
WHERE = {
    "bash": "~/.local/share/bash-completion/completions/switchboard",
    "zsh": "a file _switchboard in a folder of $fpath",
    "fish": "~/.config/fish/completions/switchboard.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(sorted(WHERE)))
@json_option
@click.pass_context
def completion(context: click.Context, shell: str, as_json: bool) -> None:
    """Print the completion script of a shell; endpoints are completed, too.

    It goes into ~/.local/share/bash-completion/completions/switchboard for bash, into
    ~/.config/fish/completions/switchboard.fish for fish, and for zsh into a file _switchboard in a
    folder of $fpath. It calls `switchboard`, which has to be in the PATH.

    Example: switchboard completion bash > ~/.local/share/bash-completion/completions/switchboard
    """
    kind = get_completion_class(shell)
    if kind is None:  # click knows the three of them
        raise Problem("invalid_argument", f"There is no completion for {shell}.")
    script = kind(context.find_root().command, {}, "switchboard", VARIABLE)
    # Not source(): for bash it starts a bash, to look how old it is.
    text = script.source_template % script.source_vars()
    printing.result({"shell": shell, "goes_to": WHERE[shell], "script": text}, as_json, [text])
