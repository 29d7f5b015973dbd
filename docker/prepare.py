"""What `docker compose up` does before the server starts: migrate, make two logins, make a key.

It reaches the database by its socket as the superuser: to PostgreSQL it is the system's user 999,
postgres. So no superuser's password exists. What it makes stays the same over restarts:

- SERVER/key, which seals signing secrets, and SERVER/pgpass, the password of the login `gateway`;
- OPERATOR/pgpass, the password of the login `operator`. The server's container never sees it.

Each file is made whole or not at all, for its owner only. A file that you have put there is used;
delete a pgpass and start again for another password.
"""

from __future__ import annotations

import base64
import os
import secrets
import sys
from pathlib import Path

import psycopg
from psycopg import sql

from switchboard.config import SECRET_KEY_BYTES
from switchboard.datafolder import DataFolder, DataFolderError
from switchboard.embedded import GATEWAY, OPERATOR
from switchboard.migrate import migrate
from switchboard.migrate_connection import MigrateError
from switchboard.printing import say

DATABASE = os.environ.get("SWITCHBOARD_SETUP_URL") or (
    "host=/run/postgresql user=postgres dbname=switchboard"
)
# The operator's command line also asks whether a credential is valid, which is the server's right,
# and `doctor` looks at sessions and settings.
MEMBERSHIPS = {
    GATEWAY: ("switchboard_app",),
    OPERATOR: ("switchboard_operator", "switchboard_app", "pg_monitor"),
}


def password_of(login: str, folder: DataFolder) -> str:
    """The password in the login's pgpass file; made on first use."""
    try:
        return (folder.path / "pgpass").read_text(encoding="utf-8").strip().rpartition(":")[2]
    except FileNotFoundError:
        password = secrets.token_urlsafe(32)
        folder.write_private("pgpass", f"*:*:*:{login}:{password}\n")
        return password


def make_login(connection: psycopg.Connection, login: str, password: str) -> None:
    """Make the login, or give it this password; the server and its log see a verifier only."""
    verifier = connection.pgconn.encrypt_password(
        password.encode(), login.encode(), b"scram-sha-256"
    ).decode()
    known = connection.execute(
        "select 1 from pg_catalog.pg_roles where rolname = %s", [login]
    ).fetchone()
    verb = sql.SQL("alter" if known else "create")
    name = sql.Identifier(login)
    connection.execute(
        sql.SQL("{} role {} login password {}").format(verb, name, sql.Literal(verifier))
    )
    for group in MEMBERSHIPS[login]:
        connection.execute(sql.SQL("grant {} to {}").format(sql.Identifier(group), name))


def main(server: Path, operator: Path) -> None:
    """Prepare the database; the folders hold what the server's and the operator's logins need."""
    migrate(DATABASE, say)
    server_folder, operator_folder = DataFolder(server), DataFolder(operator)
    operator_folder.make()
    if not (server / "key").exists():
        key = base64.b64encode(secrets.token_bytes(SECRET_KEY_BYTES)).decode()
        server_folder.write_private("key", key + "\n")
    with psycopg.connect(DATABASE, autocommit=True) as connection:
        for login, folder in ((GATEWAY, server_folder), (OPERATOR, operator_folder)):
            make_login(connection, login, password_of(login, folder))
    say("The database, its logins and the key are ready.")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except (MigrateError, DataFolderError, psycopg.Error, OSError) as error:
        sys.exit(f"error: {error}")
