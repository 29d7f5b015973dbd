"""Every command shows an example that it understands, and shells complete what there is."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from conftest import Sql

from switchboard.cli import cli

EXAMPLE = re.compile(r"^Example: (switchboard .*?)(?:\n\n|\Z)", re.DOTALL | re.MULTILINE)


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def example(path: tuple[str, ...]) -> str:
    """The example in the help of a command, on one line, without what the shell does."""
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    text = "\n\n".join(filter(None, (command.help and re.sub(r"(?m)^ +", "", command.help),
                                     command.epilog)))  # fmt: skip
    found = EXAMPLE.search(text)
    assert found, f"{' '.join(path)} has no example"
    return " ".join(re.split(r" [|>] ", found[1])[0].split())


@pytest.mark.parametrize("path", list(commands(cli)), ids=" ".join)
def test_the_example_of_a_command_is_understood_by_it(path: tuple[str, ...]) -> None:
    words = shlex.split(example(path))
    assert tuple(words[1 : 1 + len(path)]) == path
    command: click.Command = cli
    context = click.Context(cli, info_name="switchboard")
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
        context = click.Context(command, parent=context, info_name=name)
    command.parse_args(context, words[1 + len(path) :])
    assert context.args == []
    unnamed = [p.name for p in command.params if isinstance(p, click.Option) and not p.help]
    assert unnamed == []


@pytest.mark.parametrize("path", list(commands(cli)), ids=" ".join)
def test_help_shows_the_example_and_every_command_takes_json(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*path, "--help"])
    assert shown.exit_code == 0
    assert "Example: switchboard" in shown.output
    assert "--json" in shown.output


@pytest.mark.parametrize(("shell", "program"), [("bash", "bash"), ("zsh", "zsh"), ("fish", "fish")])
def test_a_completion_script_is_one_that_the_shell_reads(
    shell: str, program: str, tmp_path: Path
) -> None:
    made = CliRunner().invoke(cli, ["completion", shell])
    assert made.exit_code == 0
    assert "_SWITCHBOARD_COMPLETE" in made.output
    told = json.loads(CliRunner().invoke(cli, ["completion", shell, "--json"]).output)
    assert told["script"].strip() == made.output.strip()
    if shutil.which(program):
        (tmp_path / "script").write_text(made.output)
        checked = subprocess.run([program, "-n", tmp_path / "script"], capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, b"")
    assert CliRunner().invoke(cli, ["completion", "csh"]).exit_code == 2


def completed(words: str, database: str) -> list[str]:
    """What the shell offers at the end of a line."""
    parts = words.split(" ")
    env = {
        **os.environ,
        "SWITCHBOARD_DATABASE_URL": database,
        "_SWITCHBOARD_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(parts) - 1),
    }
    run = subprocess.run(
        [sys.executable, "-m", "switchboard"], env=env, capture_output=True, text=True, check=True
    )
    assert run.stderr == ""
    return [line.partition(",")[2] for line in run.stdout.splitlines() if line]


def test_commands_endpoints_and_states_are_completed(db: Sql, database: str) -> None:
    for slug in ("agent", "agile", "other"):
        db.vend(slug)
    assert completed("switchboard qu", database) == ["quarantine", "queue"]
    assert completed("switchboard endpoint show ag", database) == ["agent", "agile"]
    assert completed("switchboard todo list -s p", database) == ["pending", "parked"]
    nowhere = "postgresql://127.0.0.1:1/x"
    assert completed("switchboard endpoint show ag", nowhere) == []
