"""PgBouncer in front of a database, for chaos, tests and scripts: made, and thrown away.

It pools by transaction, two server connections a login unless told otherwise, and lets every login
of the database in without a password: it listens on loopback, for as long as a test runs. What it
writes (settings, users, log) lies in a folder of its own.

PgBouncer refuses to run as root: then it runs as whoever owns the database's socket, or as the
user ``postgres`` of Debian's package.

As a program, ``python -m chaos.pgbouncer FOLDER UPSTREAM [POOL_SIZE [NAME=VALUE…]]`` runs one until
it is told to end; FOLDER/env, to be sourced by a shell, appears when it answers.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

SECONDS = 20.0
LOGINS = "select rolname from pg_catalog.pg_roles where rolcanlogin"
SETTINGS: Mapping[str, str] = {
    "listen_addr": "127.0.0.1",
    "unix_socket_dir": "",
    "auth_type": "trust",
    "max_client_conn": "500",
    "server_tls_sslmode": "disable",
    "server_connect_timeout": "2",
    "server_login_retry": "0.2",  # the next one may connect at once when the database is back
    "query_wait_timeout": "10",  # who waits longer for one of two connections is told so
    "log_connections": "0",
    "log_disconnections": "0",
}


def program() -> str | None:
    """The path of PgBouncer; None where there is none (Debian: apt-get install pgbouncer)."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


class PgBouncer:
    """One PgBouncer; also a context manager that starts and stops it.

    Args:
        folder: what it writes goes there; made if it is not there.
        upstream: libpq URL of the database behind it, of a login that needs no password.
        pool_size: server connections per login and database.
        pool_mode: ``transaction``, ``session`` or ``statement``.
        settings: lines of ``[pgbouncer]`` that are added or replaced.

    Attributes:
        port: where it listens, on 127.0.0.1; the same after another start.
        log: what it said.
        process: the running one, or None.
    """

    def __init__(
        self,
        folder: Path,
        upstream: str,
        *,
        pool_size: int = 2,
        pool_mode: str = "transaction",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.upstream = folder, upstream
        self.port = _free_port()
        self.log = folder / "pgbouncer.log"
        self.process: subprocess.Popen[bytes] | None = None
        pool = {"pool_mode": pool_mode, "default_pool_size": str(pool_size)}
        self._settings = {**SETTINGS, **pool, **(settings or {})}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def url(self, login: str | None = None, database: str | None = None) -> str:
        """The libpq URL of a database through it.

        Args:
            login: as whom; the upstream's login if left out.
            database: the upstream's database if left out.
        """
        given = conninfo_to_dict(self.upstream)
        user = quote(login or str(given.get("user") or "postgres"), safe="")
        name = quote(database or str(given.get("dbname") or user), safe="")
        return f"postgresql://{user}@127.0.0.1:{self.port}/{name}"

    def start(self) -> None:
        """Start it; returns when a statement has passed through it.

        Raises:
            FileNotFoundError: there is no PgBouncer here.
            RuntimeError: it does not answer; with the end of its log.
        """
        path = program()
        if path is None:
            raise FileNotFoundError("pgbouncer is missing (Debian: apt-get install pgbouncer)")
        uid, gid = self._identity()
        arguments = [path, "-q", str(self._write(uid, gid))]
        as_whom = {"user": uid, "group": gid, "extra_groups": []} if os.geteuid() == 0 else {}
        with self.log.open("ab") as log:
            os.chown(self.log, uid, gid)
            self.process = subprocess.Popen(
                arguments,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_whom,  # type: ignore[call-overload]
            )
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End it, whatever its clients do; nothing happens when it has ended already."""
        if self.process and self.process.poll() is None:
            self.process.terminate()  # 1.18: an immediate shutdown
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(3)
        self.kill()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self.process:
            self.process.kill()
            self.process.wait(10)
        self.process = None

    def _identity(self) -> tuple[int, int]:
        """As whom it runs: the owner of the database's socket may always pass to it."""
        if os.geteuid() != 0:
            return os.geteuid(), os.getegid()
        given = conninfo_to_dict(self.upstream)
        place = Path(str(given.get("host") or "/var/run/postgresql"))
        with contextlib.suppress(OSError):
            found = (place / f".s.PGSQL.{given.get('port') or 5432}").stat()
            if found.st_uid != 0:
                return found.st_uid, found.st_gid
        entry = pwd.getpwnam("postgres")
        return entry.pw_uid, entry.pw_gid

    def _write(self, uid: int, gid: int) -> Path:
        """Write settings and users; the path of the settings."""
        self.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        given = conninfo_to_dict(self.upstream)
        where = {name: given[name] for name in ("host", "port") if given.get(name)}
        with psycopg.connect(self.upstream, autocommit=True) as connection:
            logins = [str(row[0]) for row in connection.execute(LOGINS)]
        users, settings = self.folder / "users.txt", self.folder / "pgbouncer.ini"
        lines = {**self._settings, "listen_port": str(self.port), "auth_file": str(users)}
        upstream = " ".join(f"{name}={value}" for name, value in where.items())
        texts = {
            users: "".join(f'"{login}" ""\n' for login in logins),
            settings: f"[databases]\n* = {upstream}\n[pgbouncer]\n"
            + "".join(f"{name} = {value}\n" for name, value in lines.items()),
        }
        for path, text in texts.items():
            path.write_text(text)
            path.chmod(0o600)
            os.chown(path, uid, gid)
        return settings

    def _wait(self) -> None:
        end = time.monotonic() + SECONDS
        while True:
            try:
                with psycopg.connect(self.url(), prepare_threshold=None, connect_timeout=5) as one:
                    one.execute("select 1")
                return
            except psycopg.OperationalError as error:
                ended = self.process is None or self.process.poll() is not None
                if ended or time.monotonic() > end:
                    said = "\n".join(self.log.read_text(errors="replace").splitlines()[-10:])
                    raise RuntimeError(f"PgBouncer does not answer: {error}\n{said}") from None
            time.sleep(0.05)


def main(folder: Path, upstream: str, pool_size: int = 2, *more: str) -> None:
    """Run one until SIGTERM or SIGINT.

    Args:
        folder: as of PgBouncer.
        upstream: as of PgBouncer.
        pool_size: as of PgBouncer.
        more: settings, as NAME=VALUE.
    """
    settings = dict(line.split("=", 1) for line in more)
    with PgBouncer(folder, upstream, pool_size=pool_size, settings=settings) as bouncer:
        given = conninfo_to_dict(bouncer.url())
        names = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGDATABASE": "dbname"}
        words = (f"{name}={shlex.quote(str(given[key]))}" for name, key in names.items())
        (folder / "env.new").write_text(f"export {' '.join(words)}\n")
        (folder / "env.new").rename(folder / "env")
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(Path(sys.argv[1]), sys.argv[2], int((sys.argv[3:] or ["2"])[0]), *sys.argv[4:])
