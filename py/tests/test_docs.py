"""The documentation is true: generated parts are current, sessions run, nothing is left out.

`make docs` writes what these tests compare.
"""

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from switchboard.cli import cli
from switchboard.config import Settings

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "docs"))
generated: Any = import_module("generated")
sessions: Any = import_module("sessions")
sys.path.pop(0)

PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md"))]
}
EVERYTHING = "\n".join(PAGES.values())
RENEW = "run `make docs`, look at what it changed, and commit that"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
OF_A_MACHINE = re.compile(r"(?<![\w.…}])/(?:root|home|work|farm|tmp|opt|Users|mnt)\b[/\w.-]*")


@pytest.fixture
def made(database: str) -> dict[str, str]:
    parts: dict[str, str] = generated.parts(database)
    return parts


def test_generated_parts_are_current(made: dict[str, str]) -> None:
    stale = [name for name, page in PAGES.items() if generated.renewed(page, made) != page]
    assert not stale, RENEW


def test_every_generated_part_is_on_a_page(made: dict[str, str]) -> None:
    assert made.keys() == {found[1] for found in generated.PART.findall(EVERYTHING)}


@pytest.mark.parametrize("name", [n for n, page in PAGES.items() if sessions.blocks(page, "sql")])
def test_psql_sessions_print_what_the_page_says(name: str, database: str) -> None:
    page = PAGES[name]
    assert sessions.replayed(name, page, database) == page, RENEW


def test_a_statement_that_fails_is_named(database: str) -> None:
    with pytest.raises(sessions.SessionError, match=r"^page:4: ERROR:  .*no_such"):
        sessions.replayed("page", "\n```sql\nselect 1;\nselect no_such;\n```\n", database)


def test_outputs_are_put_below_their_statements(database: str) -> None:
    page = "```sql\nselect 1 as a;\n```\n\n```text\nold\n```\n\n```sql\nselect 2;\n```\n\nend\n"
    expected = page.replace("old", " a\n---\n 1\n(1 row)")
    assert sessions.replayed("page", page, database) == expected


def commands(group: click.Group, path: str = "switchboard") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}"


@pytest.mark.parametrize("command", list(commands(cli)))
def test_every_command_is_documented(command: str) -> None:
    assert command in EVERYTHING


def test_no_page_names_a_command_that_does_not_exist() -> None:
    code = re.findall(r"^```.*?^```$|`[^`\n]+`", EVERYTHING, re.DOTALL | re.MULTILINE)
    word = "[a-z][a-z-]*"
    calls = rf"(?<![\w./-])(?<!your )switchboard ({word})(?: ({word}))?"
    named = re.findall(calls, "\n".join(code))
    assert named
    for first, second in named:
        command = cli.commands.get(first)
        assert command is not None, f"switchboard {first}"
        if isinstance(command, click.Group) and second:
            assert second in command.commands, f"switchboard {first} {second}"


class Asked(Mapping[str, str]):
    """An empty environment that remembers which variables were read."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __getitem__(self, name: str) -> str:
        self.names.append(name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def settings_table() -> dict[str, str]:
    """The documented settings and their defaults."""
    rows = re.findall(
        r"^\| `(SWITCHBOARD_\w+)` \|([^|]*)\|", PAGES["docs/operations.md"], re.MULTILINE
    )
    return {name: default.strip() for name, default in rows}


def test_the_table_of_settings_is_whole() -> None:
    asked = Asked()
    Settings.from_env(asked)
    assert set(asked.names) == set(settings_table())


@pytest.mark.parametrize(("name", "default"), list(settings_table().items()))
def test_the_defaults_of_settings_are_true(name: str, default: str) -> None:
    value = getattr(Settings(), name.removeprefix("SWITCHBOARD_").lower(), None)
    if isinstance(value, bool):
        assert default == str(value).lower()
    elif isinstance(value, int | float):
        assert type(value)(default) == value
    elif isinstance(value, str) and name not in (
        "SWITCHBOARD_LISTEN_URL",
        "SWITCHBOARD_LOG_FORMAT",
    ):
        assert default == value


def targets() -> list[str]:
    return re.findall(r"^([a-z][a-z-]*):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("target", targets())
def test_every_make_target_is_documented(target: str) -> None:
    assert f"`make {target}`" in EVERYTHING


def test_every_verb_is_documented(database: str) -> None:
    with psycopg.connect(database) as connection:
        verbs = [row[0] for row in connection.execute("select name from switchboard.tools()")]
    assert verbs
    assert not [verb for verb in verbs if f"| `{verb}` |" not in PAGES["docs/agents.md"]]


@pytest.mark.parametrize("name", list(PAGES))
def test_links_lead_somewhere(name: str) -> None:
    prose = CODE.sub("", PAGES[name])
    broken = []
    for link in LINK.findall(prose):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        if not target.exists():
            broken.append(link)
        elif fragment:
            headings = HEADING.findall(CODE.sub("", target.read_text(encoding="utf-8")))
            if fragment not in {generated.anchor(heading) for heading in headings}:
                broken.append(link)
    assert not broken


@pytest.mark.parametrize("name", list(PAGES))
def test_no_path_of_a_machine(name: str) -> None:
    assert not OF_A_MACHINE.findall(PAGES[name])


@pytest.fixture
def worker(db: Any) -> Iterator[tuple[Any, str]]:
    """An endpoint, and the address of a database login that is bound to it."""
    endpoint = db.vend("readme")
    login, password = f"worker_{uuid.uuid4().hex[:12]}", uuid.uuid4().hex
    role = sql.Identifier(login)
    create = sql.SQL("create role {} login password {} in role switchboard_worker")
    db.connection.execute(create.format(role, sql.Literal(password)))
    db.value("select switchboard.bind_login(%s, %s)", endpoint.id, login)
    try:
        yield endpoint, make_conninfo(db.dsn, user=login, password=password)
    finally:
        db.connection.execute(sql.SQL("drop role {}").format(role))


def test_the_worker_of_the_readme_works(
    db: Any, worker: tuple[Any, str], until: Callable[..., Any]
) -> None:
    endpoint, url = worker
    (program,) = sessions.blocks(PAGES["README.md"], "python")
    first = db.create(endpoint, "before it starts")
    running = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "DATABASE_URL": url},
        stdout=subprocess.DEVNULL,
    )

    def is_done(todo: str) -> bool:
        state = db.value("select state from switchboard.get_todo(%s, %s)", endpoint.id, todo)
        assert running.poll() is None, "the worker has ended"
        return bool(state == "done")

    try:
        until(lambda: is_done(first), "the worker takes what is there")
        second = db.create(endpoint, "while it waits")
        until(lambda: is_done(second), "the worker is woken")
    finally:
        running.kill()
        running.wait()
