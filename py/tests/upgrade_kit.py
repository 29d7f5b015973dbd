"""What the tests of upgrades share: the releases, their own programs, and catalogs to compare.

A release is its commit: its tree comes from `git archive` and runs as it was, with the libraries of
today (PYTHONPATH is all that differs). Where the history is cut short, as in a shallow clone, there
is nothing to upgrade from, and the tests skip and say which commit is missing.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import httpx2
import psycopg
import pytest
from conftest import KEY, free_port, until

ROOT = Path(__file__).resolve().parents[2]
GROUPS = ("app", "operator", "worker", "readonly", "cron")


@dataclass(frozen=True)
class Release:
    """An entry of db/releases.toml, which says what each field means; ``None`` is no commit."""

    name: str
    commit: str
    date: Any
    migrations: Sequence[str]
    edited: Sequence[str]
    databases_from: str
    servers_from: str
    workers_from: str
    wider: Sequence[str]
    gone: Sequence[str]
    despite: str
    interrupts: str

    def is_from(self, oldest: str) -> bool:
        """Whether this release is not older than the one called so."""
        return NAMES.index(self.name) >= NAMES.index(oldest)

    def is_interrupted_by(self, newer: Release) -> bool:
        """Whether a call of this release may fail while the newer one comes into force."""
        return bool(newer.interrupts) and RELEASES[NAMES.index(newer.interrupts)].is_from(self.name)

    def statement(self) -> str:
        """What its section of CHANGELOG.md begins with."""
        names = ", ".join(f"`{name}`" for name in self.migrations) or "none"
        lines = [f"- Migrations: {names}."]
        if self.edited:
            names = ", ".join(f"`{name}`" for name in self.edited)
            lines.append(f"- Edited in place: {names}.")
        lines.append(f"- Migrates databases from {self.databases_from} on.")
        if self.servers_from == self.workers_from == self.name:
            lines.append("- Old processes: none may keep running.")
        else:
            lines.append(
                f"- Old processes: servers from {self.servers_from} on and workers over SQL from "
                f"{self.workers_from} on may keep running while it migrates, and after."
            )
        if self.interrupts:
            lines.append(
                f"- Interrupts: a call of {self.interrupts} or older that is under way when the "
                "functions change may fail (`internal` over MCP, 500 to a delivery); nothing is "
                "done by it, and the next try works."
            )
        if self.wider:
            names = ", ".join(f"`{name}`" for name in self.wider)
            lines.append(f"- More columns: {names}.")
        if self.gone:
            names = ", ".join(f"`{name}`" for name in self.gone)
            lines.append(f"- No longer callable as before: {names} ({self.despite}).")
        return "\n".join(lines)


RELEASES = [
    Release(**entry)
    for entry in tomllib.loads((ROOT / "db" / "releases.toml").read_text())["releases"]
]
NAMES = [release.name for release in RELEASES]
OLD, NEWEST = RELEASES[:-1], RELEASES[-1]


class Program:
    """The program of a release, as it was, or today's.

    Args:
        root: the tree that holds ``py`` and ``db``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def environment(self, **settings: str) -> dict[str, str]:
        """That of a process of this program, with SWITCHBOARD_* settings."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SWITCHBOARD_")}
        named = {f"SWITCHBOARD_{name}": value for name, value in settings.items()}
        return {**kept, "PYTHONPATH": str(self.root / "py"), **named}

    def run(self, *arguments: str, dsn: str) -> subprocess.CompletedProcess[str]:
        """A command on a database, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "switchboard", *arguments],
            env=self.environment(DATABASE_URL=dsn, DATA="none"),
            capture_output=True,
            text=True,
            timeout=90,
            cwd=self.root,
        )

    def migrate(self, dsn: str) -> list[str]:
        """Migrate a database; what it said."""
        done = self.run("migrate", dsn=dsn)
        assert done.returncode == 0, done.stdout + done.stderr
        return (done.stdout + done.stderr).splitlines()

    def migrate_and_die(self, dsn: str, seconds: float) -> bool:
        """Begin to migrate, and kill it after so many seconds; whether it was still at it."""
        begin = "import sys; from switchboard.migrate import migrate; print(flush=True);"
        code = begin + "migrate(sys.argv[1], lambda line: None)"
        command = [sys.executable, "-c", code, dsn]
        with subprocess.Popen(
            command, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as run:
            assert run.stdout is not None
            run.stdout.readline()
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(seconds)
            run.send_signal(signal.SIGKILL)
            _, errors = run.communicate(timeout=30)
        assert run.returncode in (0, -signal.SIGKILL), errors.decode()
        return run.returncode != 0

    @contextlib.contextmanager
    def serve(self, dsn: str, log: Path) -> Iterator[str]:
        """Its server process; yields its URL once it is ready."""
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        rates = dict.fromkeys(("MCP_RATE", "MCP_BURST", "WEBHOOK_RATE", "WEBHOOK_BURST"), "100000")
        env = self.environment(
            DATABASE_URL=dsn, PORT=str(port), SECRET_KEY=key_text(), DATA="none", **rates
        )
        command = [sys.executable, "-m", "switchboard", "serve"]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, env=env, stdout=output, stderr=output, cwd=self.root
            )
        try:
            until(lambda: is_ready(url) or process.poll() is not None, "the server is ready", 30)
            assert process.poll() is None, log.read_text()
            yield url
        finally:
            process.terminate()
            process.wait(20)


def key_text() -> str:
    """The key of the tests as SWITCHBOARD_SECRET_KEY takes it."""
    return base64.b64encode(KEY).decode()


def is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/readyz").status_code == 200
    except httpx2.TransportError:
        return False


def program(release: Release, folder: Path) -> Program:
    """The program of a release, unpacked into a folder of its own; today's for the last one.

    Skips the test when the commit is not in this clone.
    """
    if not release.commit:
        return Program(ROOT)
    place = folder / release.name
    if not place.exists():
        command = ["git", "archive", release.commit, "db", "py/switchboard"]
        archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        if archive.returncode:
            pytest.skip(
                f"NO UPGRADE FROM {release.name} WAS TRIED: commit {release.commit} is not in this "
                f"clone (git fetch --unshallow, if it is a shallow one): {archive.stderr.decode()}"
            )
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(place, filter="data")
    return Program(place)


@dataclass(frozen=True)
class Function:
    """A function as callers see it.

    Attributes:
        arguments: name and type of each, in order.
        defaults: how many of the last ones may be left out.
        answer: its result's type, and column name to type where it has columns.
        roles: who may execute it, without the prefix ``switchboard_``.
        all: everything about it, grants and source included, to be compared.
    """

    arguments: list[list[str]]
    defaults: int
    result: str
    columns: dict[str, str]
    roles: list[str]
    all: list[Any] = field(repr=False)


FUNCTIONS: LiteralString = """
select p.oid::regprocedure::text,
    coalesce((select jsonb_agg(jsonb_build_array(p.proargnames[i], t::regtype) order by i)
              from unnest(p.proargtypes::oid[]) with ordinality u(t, i)), '[]'),
    p.pronargdefaults,
    case when p.prorettype = 'record'::regtype then 'columns' else p.prorettype::regtype::text end,
    coalesce((select jsonb_object_agg(p.proargnames[i], t::regtype)
              from unnest(p.proallargtypes) with ordinality u(t, i)
              where p.proargmodes[i] in ('t', 'o', 'b')), '{}')
    || coalesce((select jsonb_object_agg(a.attname, a.atttypid::regtype)
                 from pg_type y join pg_attribute a on a.attrelid = y.typrelid
                 where y.oid = p.prorettype and a.attnum > 0 and not a.attisdropped), '{}'),
    array(select g from unnest(%s::text[]) g
          where has_function_privilege('switchboard_' || g, p.oid, 'execute')),
    array[p.prosrc, p.provolatile::text, p.prosecdef::text, p.proconfig::text, l.lanname::text,
          p.proretset::text, p.proisstrict::text, p.proparallel::text, p.procost::text,
          pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
          p.proowner::regrole::text, obj_description(p.oid, 'pg_proc'),
          (select string_agg(granted, ', ' order by granted)
           from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a,
                concat(a.grantee::regrole, ' ', a.privilege_type) u(granted))]
from pg_proc p join pg_language l on l.oid = p.prolang
where p.pronamespace = 'switchboard'::regnamespace
"""


def functions(dsn: str) -> dict[str, Function]:
    """Every function of schema switchboard, by signature."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(FUNCTIONS, [list(GROUPS)]).fetchall()
    return {signature: Function(*rest) for signature, *rest in rows}


def called(found: dict[str, Function]) -> dict[str, Function]:
    """Those that some role may execute, by name: no function is overloaded."""
    return {name.split("(")[0].split(".")[-1]: f for name, f in found.items() if f.roles}


def changes(old: dict[str, Function], new: dict[str, Function]) -> tuple[list[str], list[str]]:
    """What callers of the old functions meet: whose answer is wider, and what no longer works."""
    before, after = called(old), called(new)
    wider, gone = [], []
    for name, function in sorted(before.items()):
        now = after.get(name)
        if now is None or not takes(function, now) or not gives(function, now):
            gone.append(name)
        elif function.columns.keys() != now.columns.keys():
            wider.append(name)
    return wider, gone


def takes(old: Function, new: Function) -> bool:
    """Whether every call of the old one is a call of the new one, by place or by name."""
    same = len(old.arguments)
    required = len(new.arguments) - new.defaults
    return (
        new.arguments[:same] == old.arguments
        and required <= same - old.defaults
        and set(old.roles) <= set(new.roles)
    )


def gives(old: Function, new: Function) -> bool:
    """Whether the answer has all that the old one had."""
    return old.result == new.result and old.columns.items() <= new.columns.items()


def schema(dsn: str) -> str:
    """The tables, types and indexes of a database, as db/schema.sql has them."""
    with psycopg.connect(dsn) as connection:
        info = connection.info
        where = {
            "PGHOST": info.host,
            "PGPORT": str(info.port),
            "PGUSER": info.user,
            "PGPASSWORD": info.password,
        }
        name = info.dbname
    command = [str(ROOT / "scripts" / "schema"), "show", name]
    environment = {**os.environ, **where, "SWITCHBOARD_PYTHON": sys.executable}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout
