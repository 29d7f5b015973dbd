"""The psql sessions of the documentation: what stands in a page is typed, and its output pasted.

Each ``sql`` block of a page is run, in order, in one psql session. A ``text`` block right behind it
holds what psql printed, and is written anew; a block whose output varies (ids, times) has none.
"""

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator

import psycopg
from psycopg import sql

from switchboard.embedded_make import binaries

FENCE = re.compile(r"^```(\w*)$")
ROLE = re.compile(r"^create role (\w+)", re.MULTILINE)
MARK = "=== block {} ==="


class SessionError(Exception):
    """A statement of a page failed; the message has page, line and what psql said."""


def replayed(name: str, page: str, dsn: str) -> str:
    """A page with the output of its psql sessions.

    Args:
        name: of the page, for errors.
        page: its text.
        dsn: a migrated database that is thrown away, by a superuser's login.

    Raises:
        SessionError: a statement failed.
    """
    if not blocks(page, "sql"):
        return page
    outputs = run(name, script(page), dsn)
    lines, written, last = page.splitlines(), list[str](), -1
    number, inside = -1, ""
    for index, line in enumerate(lines):
        fence = FENCE.match(line)
        if inside and line == "```":
            last = index if inside == "sql" else last
            inside = ""
        elif fence and not inside:
            inside = fence[1] or "plain"
            number += inside == "sql"
            if inside == "text" and not any(lines[last + 1 : index]) and last >= 0:
                inside = "output"
                written += [line, *outputs[number]]
                continue
        if inside != "output":
            written.append(line)
    return "\n".join(written) + "\n"


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def script(page: str) -> str:
    """The statements, each in the line in which it stands in the page."""
    result, inside, number = list[str](), "", 0
    for line in page.splitlines():
        fence = FENCE.match(line)
        if fence and not inside:
            inside = fence[1] or "plain"
            result.append(f"\\echo {MARK.format(number)}" if inside == "sql" else "")
            number += inside == "sql"
        elif line == "```":
            inside = ""
            result.append("")
        else:
            result.append(line if inside == "sql" else "")
    return "\n".join(result) + "\n"


def run(name: str, statements: str, dsn: str) -> list[list[str]]:
    """What psql prints for each block, without trailing blanks and empty lines at the ends."""
    roles = ROLE.findall(statements)
    with temporary_roles(dsn, roles), tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(statements)
        file.flush()
        command = [binaries() / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", file.name, dsn]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
            env={"PGTZ": "UTC", "PGCLIENTENCODING": "UTF8", "LC_ALL": "C"},
        )
    if done.returncode:
        said = done.stderr.replace(f"psql:{file.name}", name)
        raise SessionError(said.split("CONTEXT:")[0].strip())
    printed = re.split(r"^=== block \d+ ===\n", done.stdout, flags=re.MULTILINE)[1:]
    return [[line.rstrip() for line in text.strip("\n").splitlines()] for text in printed]


@contextlib.contextmanager
def temporary_roles(dsn: str, roles: list[str]) -> Iterator[None]:
    """Drop the roles that a page makes: they belong to the cluster, not to the database.

    Raises:
        SessionError: one of them is there before, so that it may be somebody's.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        there = connection.execute("select rolname from pg_roles where rolname = any (%s)", [roles])
        if names := [row[0] for row in there]:
            raise SessionError(f"On this cluster there are roles that a page makes: {names}.")
        try:
            yield
        finally:
            for role in roles:
                drop = sql.SQL("drop role if exists {}")
                connection.execute(drop.format(sql.Identifier(role)))
