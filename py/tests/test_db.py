"""The pool: what a caller sees of connections that died."""

import asyncio
import itertools
import logging
import time

import psycopg
import pytest
from conftest import without_pooler

from switchboard import db as module
from switchboard import pooler
from switchboard.db import SWEEP_AGE, TICK, Database


@pytest.fixture
async def pool(settings):
    database = Database(settings(pool_size=3))
    await database.open()
    yield database
    await database.close()


@pytest.fixture
def read_only(db) -> str:
    """New sessions of the database, which is named, may not write."""
    name: str = db.value("select current_database()")
    db.rows("set default_transaction_read_only = off")
    db.rows(f"alter database {name} set default_transaction_read_only = on")
    return name


async def fill_and_kill(pool: Database, db) -> None:
    """Let the pool have three connections, all of them dead."""
    await asyncio.gather(*(pool.value("select pg_sleep(0.1)") for _ in range(3)))
    async with asyncio.timeout(15):
        while pool._pool.get_stats()["pool_available"] < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    killed = db.value(
        "select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity"
        " where application_name = 'switchboard' and datname = current_database()"
    )
    assert killed == 3


@without_pooler
@pytest.mark.anyio
async def test_a_repeatable_statement_survives_the_death_of_every_connection(pool, db) -> None:
    await fill_and_kill(pool, db)
    assert await pool.value(SWEEP_AGE, repeatable=True) is None


@without_pooler
@pytest.mark.anyio
async def test_another_one_fails_once_and_the_rest_of_the_pool_is_replaced(pool, db) -> None:
    await fill_and_kill(pool, db)
    with pytest.raises(psycopg.OperationalError):
        await pool.value(SWEEP_AGE)
    await pool.repair()
    for _ in range(10):
        assert await pool.value(SWEEP_AGE) is None


@pytest.mark.anyio
async def test_what_was_not_found_is_none(pool) -> None:
    assert await pool.value("select 1 where false") is None


@without_pooler
@pytest.mark.anyio
async def test_connections_made_while_the_database_was_read_only_are_replaced(
    read_only, pool, db
) -> None:
    assert await modes(pool) == {"on"}
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        await pool.value(TICK)
    db.rows(f"alter database {read_only} reset default_transaction_read_only")
    async with asyncio.timeout(15):
        while await modes(pool) != {"off"}:
            pass
    await pool.value(TICK)


@without_pooler
@pytest.mark.anyio
async def test_while_the_database_stays_read_only_connections_are_replaced_ever_more_rarely(
    read_only, pool, db, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(module, "LONGEST_RENEW_SECONDS", 0.3)
    caplog.set_level(logging.INFO, "switchboard.db")
    renewed, drain = [time.monotonic()], pool._pool.drain

    async def drained() -> None:
        renewed.append(time.monotonic())
        await drain()

    monkeypatch.setattr(pool._pool, "drain", drained)
    async with asyncio.timeout(30):
        while len(renewed) < 5:
            assert await modes(pool) == {"on"}
    pauses = [after - before for before, after in itertools.pairwise(renewed)]
    least = (0.1, 0.2, 0.3, 0.3)
    assert all(pause >= low for pause, low in zip(pauses, least, strict=True)), pauses
    db.rows(f"alter database {read_only} reset default_transaction_read_only")
    async with asyncio.timeout(15):
        while await modes(pool) != {"off"}:
            pass
    assert pool._pause == 0, "the next time begins as the first"
    said = [r.getMessage() for r in caplog.records if r.name == "switchboard.db"]
    assert [line for line in said if "read-only" in line] == [said[0]], "once, not each time"
    assert said[-1] == "the database may be written to again"


@without_pooler
@pytest.mark.anyio
@pytest.mark.parametrize("prepare", [True, False])
async def test_what_is_pinned_holds_where_a_pooler_was_expected(settings, prepare) -> None:
    pool = Database(settings(prepare_statements=prepare))
    await pool.open()
    (_, _, *values) = await pool.row(pooler.WHO, tuple(pooler.PINNED))
    wanted = [{"60s": "1min"}.get(value, value) for value in pooler.PINNED.values()]
    assert (values, pool.connection) == (wanted, "direct")
    await pool.close()


async def modes(pool: Database) -> set[str]:
    """Whether the connections of a pool of three are read-only: on or off."""
    ask = "select current_setting('transaction_read_only') from pg_sleep(0.1)"
    return set(await asyncio.gather(*(pool.value(ask) for _ in range(3))))
