"""The way to the database: a pool of autocommit connections, one stored function per call.

Every statement of the shell is ``select … from switchboard.f(…)``. READ COMMITTED and the timeouts
are pinned in the connection's start-up packet, so that neither the server's nor the login's
defaults matter. A transaction pooler takes no such packet: there the login's own settings hold
(``alter role … set``), and each new connection looks whether they do. It is always sent, since a
pooler that is gone one day would leave nothing pinned.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, LiteralString
from weakref import WeakSet

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from switchboard.errors import ErrorTable
from switchboard.pooler import NO_ANSWER, Connection, Pooler, meet, start_up
from switchboard.pooler import connect as connect_anyhow
from switchboard.silence import Bounded, BoundedPool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

    from switchboard.config import Settings

logger = logging.getLogger(__name__)

APPLICATION_NAME = "switchboard"
CONNECT_SECONDS = 5
WAITERS_PER_CONNECTION = 50
TRIES = 3
READ_ONLY = b"default_transaction_read_only"  # reported by the server whenever it changes
RENEW_SECONDS = 1.0  # the first pause, doubled
LONGEST_RENEW_SECONDS = 30.0
CONFLICTS = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)

# Results come as text where they are passed on as they are.
# The arguments of a call are taken out of the request's own text there, for numbers to stay exact.
CALL_TOOL: LiteralString = (
    "select switchboard.call_tool(%s, %s, %s,"
    " coalesce(nullif(%s::jsonb #> '{params,arguments}', 'null'), '{}'), %s::jsonb)::text"
)
AUTHENTICATE: LiteralString = (
    "select switchboard.authenticate(%s, %s), switchboard.tools_for(%s, %s)"
)
STILL_VALID: LiteralString = (
    "select array(select switchboard.authenticate(slug, digest) is not null"
    " from unnest(%s::text[], %s::bytea[]) with ordinality as held(slug, digest, place)"
    " order by place)"
)
# The body is the request's own text, for numbers to stay exact.
CALL_API: LiteralString = (
    "select switchboard.call_api(%s, %s, jsonb_build_object("
    "'path', %s::jsonb, 'query', %s::jsonb, 'body', %s::jsonb, 'shell', %s::jsonb))::text,"
    " switchboard.authenticate_operator(%s) ->> 'human'"
)
AUTHENTICATE_OPERATOR: LiteralString = "select switchboard.authenticate_operator(%s) ->> 'human'"
API_OPERATIONS: LiteralString = (
    "select name, method, path, description, input, required, answer, body_limit, shell"
    " from switchboard.api_operations()"
)
API_SHAPES: LiteralString = "select name, description, shape from switchboard.api_shapes()"
OPERATORS: LiteralString = (
    "select array(select switchboard.authenticate_operator(digest) ->> 'human_id'"
    " from unnest(%s::bytea[]) with ordinality as held(digest, place) order by place)"
)
CALL_BOARD: LiteralString = "select switchboard.call_board(%s, %s, %s::jsonb)"
BOARD_CHANGES: LiteralString = "select switchboard.board_changes()"
OPEN_BY_TOKEN: LiteralString = "select switchboard.open_session_by_token(%s, %s)"  # noqa: S105
OPEN_BY_LINK: LiteralString = "select switchboard.open_session_by_link(%s, %s)"
OPEN_BY_IDENTITY: LiteralString = "select switchboard.open_session_by_identity(%s, %s, %s)"
CLOSE_SESSION: LiteralString = "select switchboard.close_session(%s)"
METRIC_COLLECTORS: LiteralString = "select switchboard.metric_collectors()"
METRICS: LiteralString = "select name, kind, help, labels, value from switchboard.metrics(%s)"
WEBHOOK_FOR: LiteralString = "select switchboard.webhook_for(%s)"
RECEIVE_DELIVERY: LiteralString = (
    "select switchboard.receive_delivery(%s, %s, %s, %s::jsonb, %s, %s, %s, %s::jsonb)"
)
TAKE_DELIVERIES: LiteralString = "select switchboard.take_deliveries(%s, %s)"
SETTLE_DELIVERY: LiteralString = "select switchboard.settle_delivery(%s, %s, %s, %s, %s)"
# A mark that a crash of the database loses rings once more: no bell waits for the disk.
DOORBELLS: LiteralString = (
    "select switchboard.doorbells(%s, %s, %s, %s)"
    " from set_config('synchronous_commit', 'off', true)"
)
NOTE_PRESENCE: LiteralString = "select switchboard.note_presence(%s, %s::jsonb, %s::text[])"
END_PRESENCE: LiteralString = "select switchboard.end_presence(%s)"
RETURN_DOORBELLS: LiteralString = "select switchboard.return_doorbells(%s, %s::text[])"
RELEASE: LiteralString = "select switchboard.release(%s, %s, %s, %s)::text"
COUNT_DELIVERIES: LiteralString = "select switchboard.count_deliveries(%s::jsonb)"
ERROR_TABLE: LiteralString = "select sqlstate, code, http_status from switchboard.error_table()"
SWEEP_AGE: LiteralString = "select switchboard.sweep_age()"
TICK: LiteralString = "select switchboard.tick()"


def dsn(url: str, *, pooler: bool = False) -> str:
    """The connection string with what the shell pins.

    Args:
        url: libpq URL or DSN.
        pooler: one may answer there, and nothing has to be pinned: no start-up options are sent.
    """
    given = conninfo_to_dict(url)
    options = {} if pooler else {"options": f"{given.get('options') or ''} {start_up()}".strip()}
    return make_conninfo(
        url,
        application_name=APPLICATION_NAME,
        connect_timeout=str(given.get("connect_timeout") or CONNECT_SECONDS),
        **options,
    )


def connect(url: str) -> tuple[psycopg.Connection[dict[str, Any]], Pooler | None]:
    """A connection for a command: autocommit, rows as dictionaries, whatever answers at the URL.

    Raises:
        psycopg.OperationalError: it cannot be reached, or answers nothing.
    """
    return connect_anyhow(dsn(url), autocommit=True, row_factory=dict_row)


class Database:
    """The pool, and the one way to call a function through it."""

    def __init__(self, settings: Settings) -> None:
        self._prepares = settings.prepare_statements
        self._pool = BoundedPool(
            dsn(settings.database_url),
            connection_class=Connection,
            configure=self._meet,
            kwargs={"autocommit": True, "prepare_threshold": 2 if self._prepares else None},
            min_size=min(2, settings.pool_size),
            max_size=settings.pool_size,
            timeout=settings.pool_wait,
            max_waiting=settings.pool_size * WAITERS_PER_CONNECTION,
            reconnect_timeout=30,
            open=False,
            name="switchboard",
        )
        self._repair: asyncio.Task[None] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._pause = 0.0  # before the latest renewal; 0: connections may write
        self._lines = WeakSet[Bounded]()  # since that renewal
        self._is_ending = False
        self.errors = ErrorTable()
        self.connection = "unknown"  # or "direct", or "pooler"
        self._pooler: Pooler | None = None
        self._answers = True

    async def open(self) -> None:
        """Start connecting, in the background: the server comes up without its database, too."""
        await self._pool.open(wait=False)

    def hurry(self) -> None:
        """The server ends: a silent database is given little time, and then asked no more."""
        self._is_ending = True
        for line in self._lines:
            line.hurry()

    async def close(self) -> None:
        """Close every connection; waits a second for those in use."""
        if self._renewal is not None:
            self._renewal.cancel()
        await self._pool.close(timeout=1)

    async def row(
        self, query: LiteralString, params: Sequence[Any] = (), *, repeatable: bool = False
    ) -> tuple[Any, ...]:
        """Run one statement in a transaction of its own; the first row of its answer.

        Args:
            query: ``select … from switchboard.f(…)``.
            params: its parameters.
            repeatable: running it twice does no harm, so that a lost connection, a conflict or a
                deadlock is followed by another try.

        Raises:
            psycopg.Error: the statement failed, or no connection was free in time.
        """
        for left in reversed(range(TRIES if repeatable else 1)):
            async with self._pool.connection() as connection:
                try:
                    cursor = await connection.execute(query, params)
                    return await cursor.fetchone() or (None,)
                except psycopg.OperationalError as error:
                    lost = connection.closed
                    repair = self.repair(silent=connection.was_silent) if lost else None
                    if not left or (repair is None and not isinstance(error, CONFLICTS)):
                        raise
                except asyncio.CancelledError:
                    if connection.was_silent:
                        self.repair(silent=True)
                    raise
                finally:
                    self._mind_read_only(connection)
            if repair is not None:
                await asyncio.shield(repair)
        raise AssertionError("unreachable")

    async def value(
        self, query: LiteralString, params: Sequence[Any] = (), *, repeatable: bool = False
    ) -> Any:
        """The first column of ``row``."""
        return (await self.row(query, params, repeatable=repeatable))[0]

    async def rows(self, query: LiteralString, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Every row of one statement."""
        async with self._pool.connection() as connection:
            cursor = await connection.execute(query, params)
            return await cursor.fetchall()

    async def sweep_age(self) -> float | None:
        """Seconds since the last sweep, whoever ran it; None when there was none yet."""
        age: timedelta | None = await self.value(SWEEP_AGE)
        return None if age is None else age.total_seconds()

    async def read_errors(self) -> None:
        """Read the error table; the built-in part stays when the database cannot be asked."""
        try:
            self.errors = ErrorTable(await self.rows(ERROR_TABLE))
        except psycopg.Error as error:
            logger.warning("error table not read: %s", type(error).__name__)

    def repair(self, *, silent: bool = False) -> asyncio.Task[None]:
        """One connection died, so others may have: replace the dead ones now, before use.

        Args:
            silent: it did not answer. Others would not either, and asking them takes its time: all
                are replaced.
        """
        if silent and self._is_ending:
            for line in self._lines:
                line.hang_up()
        if self._repair is None or self._repair.done():
            self._repair = asyncio.create_task(self._renew() if silent else self._check())
        return self._repair

    def advice(self) -> Iterator[str]:
        """What should be set otherwise, for anybody to read; nothing when all is well."""
        if not self._answers:
            yield NO_ANSWER
        if self._pooler:
            yield from self._pooler.advice(self._prepares)

    async def _meet(self, connection: Bounded) -> None:
        """A new connection: what answers there, and whether that is new to the log."""
        try:
            pooler = await meet(connection)
        except psycopg.OperationalError:
            if connection.was_silent and self._answers:
                logger.error(NO_ANSWER)
            self._answers = not connection.was_silent
            raise
        self._answers = True
        self._lines.add(connection)
        if self._is_ending:
            connection.hurry()
        if pooler == self._pooler and self.connection != "unknown":
            return
        self._pooler, self.connection = pooler, "pooler" if pooler else "direct"
        for sentence in self.advice():
            logger.warning(sentence)

    async def _check(self) -> None:
        try:
            await self._pool.check()
        except psycopg.Error as error:
            logger.warning("pool check failed: %s", type(error).__name__)

    async def _renew(self) -> None:
        if self._is_ending:
            logger.warning("the database fell silent: this ends without it")
            await self._pool.close(timeout=1)
        else:
            logger.warning("the database fell silent: every connection is replaced")
            await self._pool.drain()

    def _mind_read_only(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Replace sessions that may not write, ever more rarely, until new ones may.

        A session keeps the default that it began with: one that began while the database, or the
        login, was set read-only would go on to refuse everything long after that was taken back.
        Behind a pooler the sessions are its own: there it has to reconnect.
        """
        if self._pooler or connection.closed or connection not in self._lines:
            return
        resting = self._renewal is None or self._renewal.done()
        if connection.pgconn.parameter_status(READ_ONLY) == b"on":
            if resting:
                self._renewal = asyncio.create_task(self._renew_soon())
        elif self._pause and resting:
            logger.info("the database may be written to again")
            self._pause = 0.0
            self._renewal = asyncio.create_task(self._replace())  # some of them began before that

    async def _renew_soon(self) -> None:
        pause = min(2 * self._pause, LONGEST_RENEW_SECONDS) or RENEW_SECONDS
        await asyncio.sleep(pause)  # while it lasts, not with each call
        if not self._pause:
            logger.warning("the database is set read-only, or was: connections are replaced")
        self._pause = pause
        await self._replace()

    async def _replace(self) -> None:
        """New sessions for those that there are; one in use is closed when it comes back."""
        self._lines = WeakSet()
        await self._pool.drain()
