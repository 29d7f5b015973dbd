"""A pooler between us and the database, such as PgBouncer: how it is told, and what follows.

A pooler that lends its connections for a transaction at a time takes no start-up options, or
forgets them; a prepared statement is gone with the next transaction; notes reach nobody. It cannot
hide: the process that a connection names when it begins is not the one that answers. So every new
connection asks once who answers. If it is somebody else, statements are not prepared there, what
is not pinned for the login is named, and every sentence says what to set.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import string
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import tuple_row

from switchboard.silence import PATIENCE, Bounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FIRST_ANSWER_SECONDS = 5.0

# What holds on every connection: in its start-up options, or by the login's own settings.
PINNED: Mapping[LiteralString, LiteralString] = {
    "default_transaction_isolation": "read committed",
    "statement_timeout": "10s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "60s",
    "jit": "off",
}
# Of these any length will do that ends what is only slow before it is taken for silence; how long a
# transaction may idle is the operator's choice, as long as there is an end.
_ENDS = ("statement_timeout", "lock_timeout")
_UNITS = {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "d": 86400}

WHO: LiteralString = "select pg_catalog.pg_backend_pid(), session_user::text, current_setting(%s)"
WHO += ", current_setting(%s)" * (len(PINNED) - 1)

PREPARED = (
    "SWITCHBOARD_DATABASE_URL leads through a connection pooler, which loses prepared statements "
    "and start-up options. This server does without both; set SWITCHBOARD_PREPARE_STATEMENTS to "
    "false, so that this does not depend on finding out."
)
NO_ANSWER = (
    f"SWITCHBOARD_DATABASE_URL takes connections, but answers nothing for "
    f"{FIRST_ANSWER_SECONDS:.0f} s. If it is a pooler's, all its connections are taken, or it does "
    "not reach the database. With pool_mode = session each connection of ours keeps one: set "
    "pool_mode = transaction, or default_pool_size above the sum of SWITCHBOARD_POOL_SIZE of all "
    "servers."
)
NO_MIGRATION = (
    "This address leads through a connection pooler, and migrating needs a session of the database "
    "itself: its role and its locks would be another client's. Nothing was changed. Set "
    "SWITCHBOARD_LISTEN_URL to the database itself, or name it: switchboard migrate --url "
    "postgresql://…"
)


@dataclass(frozen=True)
class Pooler:
    """What is known of one.

    Attributes:
        login: as whom it lets us act.
        unpinned: names of settings that this login does not have as the shell wants them.
    """

    login: str
    unpinned: tuple[LiteralString, ...]

    def lacking(self) -> str | None:
        """Which settings are not pinned, without a name of the installation; None: all are."""
        if not self.unpinned:
            return None
        return (
            "A connection pooler takes no start-up options, and the login of "
            f"SWITCHBOARD_DATABASE_URL does not have {', '.join(self.unpinned)} set as the server "
            "needs it: calls may take, or wait for a lock, so long that the database counts as "
            f"silent ({PATIENCE:.0f} s), or be refused as conflicts."
        )

    def statements(self) -> str:
        """What pins them, for a DBA."""
        alter = sql.SQL("alter role {login} set {name} = {value};")
        lines = [
            alter.format(
                login=sql.Identifier(self.login),
                name=sql.SQL(name),
                value=sql.Literal(PINNED[name]),
            ).as_string()
            for name in self.unpinned
        ]
        return f"{' '.join(lines)} Then let the pooler connect anew (PgBouncer: RECONNECT)."

    def advice(self, prepare_statements: bool) -> Iterator[str]:
        """What is not as it should be, one sentence or two each, for anybody to read.

        Args:
            prepare_statements: the setting of that name.
        """
        if prepare_statements:
            yield PREPARED
        if lacking := self.lacking():
            yield f"{lacking} `switchboard doctor` prints the statements that set it."


def start_up() -> str:
    """The start-up options that pin what is pinned."""
    escaped = {name: value.replace(" ", r"\ ") for name, value in PINNED.items()}
    return " ".join(f"-c {name}={value}" for name, value in escaped.items())


def refuses_options(error: psycopg.Error) -> bool:
    """Whether a connection failed since a pooler takes no start-up options.

    PgBouncer says «unsupported startup parameter: options», from 1.20 on «unsupported startup
    parameter in options: …», and gives no SQLSTATE that would say more.
    """
    return "startup parameter" in str(error)


def without_options(conninfo: str) -> str:
    """The same connection, without start-up options; those of PGOPTIONS are left out, too."""
    return make_conninfo(conninfo, options="")


def is_between(connection: psycopg.Connection[Any]) -> bool:
    """Whether a pooler is between us and the database."""
    row = connection.execute("select pg_catalog.pg_backend_pid() as pid").fetchone()
    pid = row["pid"] if isinstance(row, dict) else row[0] if row else None
    return bool(pid != connection.info.backend_pid)


class Connection(Bounded):
    """One to whatever answers at the address."""

    @classmethod
    async def connect(cls, conninfo: str = "", **kwargs: Any) -> Connection:
        """Connect, without start-up options where a pooler refuses them."""
        try:
            return await super().connect(conninfo, **kwargs)
        except psycopg.OperationalError as error:
            if not refuses_options(error):
                raise
        return await super().connect(without_options(conninfo), **kwargs)


async def meet(connection: Bounded) -> Pooler | None:
    """Who answers on a new connection; behind a pooler nothing is prepared, notes are ignored.

    Raises:
        psycopg.OperationalError: nobody does, for FIRST_ANSWER_SECONDS.
    """
    with connection.patient(FIRST_ANSWER_SECONDS):
        cursor = await connection.execute(WHO, tuple(PINNED))
    pooler = seen(connection.info.backend_pid, await cursor.fetchone() or ())
    if pooler:
        connection.prepare_threshold = None
        connection.add_notify_handler(_ignore)  # else the driver would keep them
    return pooler


def connect(conninfo: str, **kwargs: Any) -> tuple[psycopg.Connection[Any], Pooler | None]:
    """Connect for a command: what ``Connection`` does, without asyncio.

    Args:
        conninfo: with start-up options.
        kwargs: of ``psycopg.connect``.

    Raises:
        psycopg.OperationalError: it cannot be reached, or answers nothing.
    """
    try:
        connection = psycopg.connect(conninfo, prepare_threshold=None, **kwargs)
    except psycopg.OperationalError as error:
        if not refuses_options(error):
            raise
        connection = psycopg.connect(without_options(conninfo), prepare_threshold=None, **kwargs)
    hung_up = threading.Event()
    timer = threading.Timer(FIRST_ANSWER_SECONDS, _hang_up, [connection, hung_up])
    timer.start()
    try:
        with connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(WHO, tuple(PINNED)).fetchone() or ()
    except psycopg.OperationalError as error:
        connection.close()
        if hung_up.is_set():
            raise psycopg.OperationalError(NO_ANSWER) from error
        raise
    finally:
        timer.cancel()
    return connection, seen(connection.info.backend_pid, row)


def seen(pid: int, row: Sequence[Any]) -> Pooler | None:
    """What the answer to WHO says; None when the database itself gave it.

    Args:
        pid: of the process that the connection named when it began.
        row: the answer.
    """
    answering, login, *values = row
    if answering == pid:
        return None
    wanted = zip(PINNED.items(), values, strict=True)
    return Pooler(login, tuple(name for (name, pin), now in wanted if not _will_do(name, pin, now)))


def _will_do(name: str, pin: str, now: str) -> bool:
    if not name.endswith("timeout"):
        return now == pin
    return 0 < _seconds(now) < (PATIENCE if name in _ENDS else math.inf)


def _seconds(setting: str) -> float:
    """How long a timeout is, as PostgreSQL shows it: a number and a unit, or 0."""
    number = setting.rstrip(string.ascii_letters)
    return int(number) * _UNITS.get(setting[len(number) :], 0)


def _ignore(_: psycopg.Notify) -> None:
    """A note for somebody who had this session of the server before."""


def _hang_up(connection: psycopg.Connection[Any], hung_up: threading.Event) -> None:
    hung_up.set()
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)
