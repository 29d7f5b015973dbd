"""A PostgreSQL of one run: made by copying a template, started, killed, set.

It listens on a socket in its own folder, and on no port unless a scenario sets listen_addresses.
Whoever passes into the folder may be anybody in it: it is thrown away. Unlike the embedded database
of `switchboard up` nobody starts it again when it is killed but who killed it. fsync stays on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psutil
import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from switchboard.embedded import LOGINS, processes_in
from switchboard.embedded_identity import Identity, choose
from switchboard.embedded_make import SUPERUSER, binaries, environment
from switchboard.migrate import migrate

DATABASE = "switchboard"
PORT = 5432
SETTINGS = {
    "listen_addresses": "",
    "timezone": "UTC",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "80",
    "shared_buffers": "48MB",
    "max_wal_size": "256MB",
    "jit": "off",
    "log_line_prefix": "%m [%p] %q%u@%d %a ",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
    "lc_messages": "C",
}
DEBIAN = Path("/usr/lib/postgresql/15")
CRON = {
    "shared_preload_libraries": "pg_cron",
    "cron.database_name": DATABASE,
    "cron.use_background_workers": "on",
}
READY_SECONDS = 180.0


class ClusterError(Exception):
    """PostgreSQL does not do what it has to; the text says what it wrote."""


class Cluster:
    """One PostgreSQL server and its data.

    Args:
        folder: its own; data, socket and log lie there.
        kind: ``embedded`` (18, the wheel's) or ``debian`` (15, Debian's packages, with pg_cron).
        settings: lines of postgresql.conf over those of this module.
    """

    def __init__(self, folder: Path, kind: str, settings: Mapping[str, Any] | None = None) -> None:
        self.folder, self.kind = folder, kind
        self.data = folder / "data"
        self.log = folder / "postgres.log"
        self.bin = binaries() if kind == "embedded" else DEBIAN / "bin"
        self.settings: dict[str, Any] = {**SETTINGS, **_extra(kind), **(settings or {})}
        self.identity = choose(self.bin / "postgres", folder, None, self._give)
        self._process: subprocess.Popen[bytes] | None = None

    # -- where it is ------------------------------------------------------------------------------

    def url(self, login: str = SUPERUSER, database: str = DATABASE) -> str:
        """The libpq URL for a login (postgres, gateway, operator) of the database."""
        place = urlencode({"host": str(self.folder), "port": PORT}, quote_via=quote, safe="")
        return f"postgresql://{quote(login)}@/{quote(database)}?{place}"

    @property
    def pid(self) -> int:
        """The postmaster's process id.

        Raises:
            ClusterError: it does not run.
        """
        if self._process is None:
            raise ClusterError("PostgreSQL does not run")
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether the postmaster's process is there."""
        return self._process is not None and self._process.poll() is None

    @contextlib.contextmanager
    def admin(self, database: str = DATABASE) -> Iterator[psycopg.Connection[dict[str, Any]]]:
        """A superuser's autocommit connection, rows as dicts, for the time of the block.

        Raises:
            psycopg.OperationalError: it cannot be reached within 10 s.
        """
        connection = psycopg.connect(
            self.url(database=database),
            autocommit=True,
            row_factory=dict_row,
            connect_timeout=10,
            application_name="chaos",
        )
        with contextlib.closing(connection):
            yield connection

    # -- starting and ending ----------------------------------------------------------------------

    def start(self, wait: bool = True) -> None:
        """Start it, after the left-overs of a killed one are gone; ``wait``: until it answers.

        Raises:
            ClusterError: it does not start within ``READY_SECONDS``.
        """
        if self.runs:
            return
        self._end_leftover()
        lines = "".join(f"{name} = {_quoted(value)}\n" for name, value in self.settings.items())
        self._write("postgresql.conf", f"{lines}port = {PORT}\n")
        self._write("pg_hba.conf", "local all all trust\nhost all all 127.0.0.1/32 trust\n")
        command: list[str | Path] = [self.bin / "postgres", "-D", self.data]
        command += ["-c", f"unix_socket_directories={self.folder}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.identity.command(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                cwd="/",
                start_new_session=True,
            )
        if wait:
            self.wait_ready()

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Return when it takes connections and is writable again.

        Raises:
            ClusterError: it ended, or did not within ``seconds``.
        """
        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(psycopg.OperationalError), self.admin("postgres") as admin:
                if not admin.execute("select pg_is_in_recovery() as r").fetchall()[0]["r"]:
                    return
            if not self.runs or time.monotonic() > end:
                raise ClusterError(f"PostgreSQL does not answer:\n{self.last_words()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL for the postmaster; its children notice and end. Nobody starts it again."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait(30)

    def stop(self, mode: str = "fast", seconds: float = 30.0) -> None:
        """Stop it as ``pg_ctl stop -m`` would: smart, fast or immediate; then with SIGKILL."""
        number = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number[mode])
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self, mode: str = "fast") -> None:
        """Stop and start it; returns when it answers."""
        self.stop(mode)
        self.start()

    def end(self) -> None:
        """Stop it for good, at once, with all that is left of it."""
        self.stop("immediate", 5.0)
        self._end_leftover()
        self._process = None

    def set(self, **settings: Any) -> None:
        """ALTER SYSTEM SET and reload; None resets. A name with a dot is written with two ``_``.

        New sessions and, once they have seen the signal, old ones go by them.
        """
        with self.admin("postgres") as admin:
            for name, value in settings.items():
                what = sql.SQL(".").join(map(sql.Identifier, name.split("__")))
                to = sql.SQL("default") if value is None else sql.Literal(str(value))
                admin.execute(sql.SQL("alter system set {} = {}").format(what, to))
            admin.execute("select pg_reload_conf()")

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-15:])

    # -- within -----------------------------------------------------------------------------------

    def make(self) -> None:
        """Make the data: initdb, the database, all migrations and the logins; leaves it running."""
        options = ["-D", str(self.data), "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-sync"]
        options += ["--no-locale", "--data-checksums", "--no-instructions"]
        run = subprocess.run(
            self.identity.command([self.bin / "initdb", *options]),
            capture_output=True, text=True, cwd="/", env=environment(), check=False,
        )  # fmt: skip
        if run.returncode:
            raise ClusterError(f"initdb: {run.stderr}")
        self.start()
        with self.admin("postgres") as admin:
            admin.execute(f"create database {DATABASE}")
        if self.kind == "debian":
            with self.admin() as admin:
                admin.execute("create extension if not exists pg_cron")
        migrate(self.url(), lambda _: None)
        with self.admin() as admin:
            for login, group in LOGINS.items():
                names = sql.Identifier(login), sql.Identifier(group)
                admin.execute(sql.SQL("create role {} login in role {}").format(*names))

    def copy_from(self, template: Path) -> None:
        """Take the data of a cluster that was stopped cleanly."""
        subprocess.run(
            ["cp", "-a", "--reflink=auto", str(template), str(self.data)], check=True, timeout=120
        )

    def _write(self, name: str, text: str) -> None:
        path = self.data / name
        path.write_text(text)
        path.chmod(0o600)
        os.chown(path, self.identity.uid, self.identity.gid)

    def _give(self, identity: Identity) -> None:
        self.folder.chmod(0o711)
        if os.geteuid() == 0:
            os.chown(self.folder, identity.uid, identity.gid)

    def _end_leftover(self) -> None:
        """Wait until no process of a killed server is left; those that stay are killed."""
        for seconds in (5.0, 0.0, 5.0, 5.0):
            left = processes_in(self.data)
            if not left:
                break
            if seconds != 5.0:
                for process in left:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            psutil.wait_procs(left, timeout=seconds or 5.0)
        for stale in (self.data / "postmaster.pid", *self.folder.glob(".s.PGSQL.*")):
            stale.unlink(missing_ok=True)


def _extra(kind: str) -> dict[str, Any]:
    if kind == "embedded":
        return {}
    if not (DEBIAN / "bin" / "postgres").exists():
        raise ClusterError("PostgreSQL 15 is not installed: apt-get install postgresql-15")
    if not (DEBIAN / "lib" / "pg_cron.so").exists():
        raise ClusterError("pg_cron is not installed: apt-get install postgresql-15-cron")
    return CRON


def _quoted(value: Any) -> str:
    return "'" + str(value).replace("'", "''") + "'"


def make_template(folder: Path, kind: str) -> Path:
    """Make a cluster with a migrated, empty database in ``folder`` and stop it; its data."""
    folder.mkdir(parents=True)
    cluster = Cluster(folder, kind)
    try:
        cluster.make()
    finally:
        cluster.stop("fast")
    shutil.rmtree(cluster.data / "pg_stat_tmp", ignore_errors=True)
    return cluster.data
