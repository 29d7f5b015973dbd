"""The pool: what a caller sees of connections that died."""

import asyncio

import psycopg
import pytest
from conftest import without_pooler

from switchboard.db import SWEEP_AGE, TICK, Database


@pytest.fixture
async def pool(settings):
    database = Database(settings(pool_size=3))
    await database.open()
    yield database
    await database.close()


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
async def test_connections_made_while_the_database_was_read_only_are_replaced(settings, db) -> None:
    name = db.value("select current_database()")
    db.rows("set default_transaction_read_only = off")
    db.rows(f"alter database {name} set default_transaction_read_only = on")
    pool = Database(settings(pool_size=3))
    await pool.open()
    assert await modes(pool) == {"on"}
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        await pool.value(TICK)
    db.rows(f"alter database {name} reset default_transaction_read_only")
    async with asyncio.timeout(15):
        while await modes(pool) != {"off"}:
            pass
    await pool.value(TICK)
    await pool.close()


async def modes(pool: Database) -> set[str]:
    """Whether the connections of a pool of three are read-only: on or off."""
    ask = "select current_setting('transaction_read_only') from pg_sleep(0.1)"
    return set(await asyncio.gather(*(pool.value(ask) for _ in range(3))))
