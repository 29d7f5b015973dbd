"""What the board does can be done by REST and by command: the table of docs/board.md is true."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from conftest import Sql

from switchboard.board import PAGES
from switchboard.board_forms import FORMS
from switchboard.cli import cli

DOC = Path(__file__).parents[2] / "docs" / "board.md"
ROW = re.compile(r"\| (?P<what>[^|]+) \| (?P<board>[^|]+) \| (?P<rest>[^|]+) \| (?P<line>[^|]+) \|")
CODE = re.compile(r"`([^`]+)`")


def table() -> list[tuple[str, list[str], list[str], list[str]]]:
    """The rows: what, addresses of the board, operations, commands."""
    text = (
        DOC.read_text()
        .partition("<!-- parity: by hand, held to what there is by a test -->")[2]
        .partition("<!-- end of parity -->")[0]
    )
    found = [ROW.match(line) for line in text.strip().splitlines()[2:]]
    assert all(found), "a row of the table has not four columns"
    return [
        (
            row["what"],
            CODE.findall(row["board"]),
            CODE.findall(row["rest"]),
            CODE.findall(row["line"]),
        )
        for row in found
        if row
    ]


def test_every_page_and_form_of_the_board_has_a_row() -> None:
    shown = {f"GET {path}" for path in PAGES} | {f"POST {form.path}" for form in FORMS}
    named = {address for _, addresses, _, _ in table() for address in addresses}
    assert shown <= named, f"not in the table: {sorted(shown - named)}"


def test_every_row_has_an_operation_and_a_command() -> None:
    for what, addresses, operations, commands in table():
        assert addresses, what
        assert operations, what
        assert commands, what


def test_every_operation_exists(db: Sql) -> None:
    known = {
        f"{row['method']} {row['path']}"
        for row in db.rows("select method, path from switchboard.api_operations()")
    }
    named = {operation for _, _, operations, _ in table() for operation in operations}
    assert named <= known, f"no such operation: {sorted(named - known)}"


def test_a_form_is_the_operation_that_its_row_names(db: Sql) -> None:
    paths = {
        row["name"]: f"{row['method']} {row['path']}"
        for row in db.rows("select name, method, path from switchboard.api_operations()")
    }
    rows = {address: operations for _, addresses, operations, _ in table() for address in addresses}
    for form in FORMS:
        assert paths[form.operation] in rows[f"POST {form.path}"], form.path


@pytest.mark.parametrize(
    "line", sorted({line for _, _, _, lines in table() for line in lines}), ids=str
)
def test_every_command_exists(line: str) -> None:
    command: click.Command = cli
    words = line.removeprefix("switchboard ").split()
    while words and isinstance(command, click.Group):
        name = words.pop(0)
        found = command.commands.get(name)
        assert found is not None, f"{line}: there is no {name}"
        command = found
    options = {name for parameter in command.params for name in parameter.opts}
    assert not isinstance(command, click.Group)
    for word in words:
        assert not word.startswith("-") or word in options, f"{line}: there is no {word}"
