"""Whether the database has the functions that this server calls: said in the log when it starts.

A server whose database was not migrated serves all the same, but for what is missing: nothing else
would say why. The other way round, an older server on newer functions, is how every upgrade goes
(db/releases.toml says which may), and nothing to say.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, LiteralString

import psycopg

from switchboard import db

if TYPE_CHECKING:
    from switchboard.db import Database

logger = logging.getLogger(__name__)

PAUSE = 10.0  # seconds, while the database cannot be asked

CALL = re.compile(r"switchboard\.(\w+)\(")
# The catalog is asked, for what is asked after may not be there; a login sees all names in it.
LACKING: LiteralString = (
    "select array(select called from unnest(%s::text[]) called where not exists ("
    "select from pg_catalog.pg_proc p join pg_catalog.pg_namespace s on s.oid = p.pronamespace"
    " where s.nspname = 'switchboard' and p.proname = called"
    " and has_schema_privilege(s.oid, 'usage') and has_function_privilege(p.oid, 'execute'))"
    " order by called)"
)


def called() -> list[str]:
    """The names of the functions that the server's statements call."""
    constants = [value for name, value in vars(db).items() if name.isupper()]
    statements = [value for value in constants if isinstance(value, str)]
    return sorted({name for text in statements for name in CALL.findall(text)})


async def report(database: Database) -> None:
    """Log what is missing, as soon as the database could be asked; until then that it could not."""
    if missing := await look(database):
        logger.error(
            "the database lacks what this server calls (%s): run `switchboard migrate` with this "
            "version, and see that the login is a member of switchboard_app",
            ", ".join(missing),
        )


async def look(database: Database) -> list[str]:
    """The functions that are missing; asks until there is an answer. Failures are logged once."""
    has_failed = False
    while True:
        try:
            missing: list[str] = await database.value(LACKING, (called(),), repeatable=True)
        except psycopg.Error as error:
            if not has_failed:
                logger.warning("functions not looked for yet: %s", type(error).__name__)
            has_failed = True
            await asyncio.sleep(PAUSE)
        else:
            return missing
