"""The first endpoint: what `switchboard up` vends on its first run, and shows again on every other.

A credential is stored nowhere but in the hands of who uses it, so the first one is kept in the data
folder, readable by its owner only. It is written before the transaction that makes it commits: a
crash between the two leaves a file of something that does not exist, and it is made again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import psycopg

from switchboard import db
from switchboard.cli_database import Operator
from switchboard.cli_human import make_link
from switchboard.cli_webhook import make_webhook
from switchboard.datafolder import DataFolder
from switchboard.secrets import Keyring, digest

HUMAN, SLUG, QUEUE, WEBHOOK_QUEUE = "operator", "agent", "inbox", "github"
LINK_MINUTES = 60


@dataclass(frozen=True)
class First:
    """The endpoint that a newcomer uses.

    Attributes:
        slug, credential: of the endpoint.
        ingest_path: of its GitHub receiver, below the public URL.
        signing_secret: of that receiver.
        valid: false when the credential was rotated or the endpoint revoked since.
    """

    slug: str
    credential: str
    ingest_path: str
    signing_secret: str
    valid: bool = True


def ensure(
    operator_url: str, gateway_url: str, folder: DataFolder, keys: Keyring, file_name: str
) -> First | None:
    """The first endpoint, made if this database has none yet.

    Args:
        operator_url: the database, under the login of an operator.
        gateway_url: the same, under the login of the server.
        folder: where it is kept.
        keys: seal the receiver's secret.
        file_name: of the file in ``folder``.

    Returns:
        None when the database has such an endpoint, made from elsewhere.
    """
    with db.connect(operator_url)[0] as connection:
        operator = Operator(connection)
        known = folder.read_json(file_name)
        if operator.value("select switchboard.find_endpoint(%s)", [SLUG]) is None:
            with connection.transaction():
                known = _make(operator, keys)
                folder.write_json(file_name, known)
    if known is None:
        return None
    return First(**known, valid=_authenticates(gateway_url, known["slug"], known["credential"]))


def sign_in_link(operator_url: str, public_url: str) -> str | None:
    """A new link that signs the newcomer in to the board, once, within an hour.

    Args:
        operator_url: the database, under the login of an operator.
        public_url: of the server.

    Returns:
        None when there is nobody of the name that ``ensure`` gives.
    """
    with db.connect(operator_url)[0] as connection:
        operator = Operator(connection)
        person = _person(operator)
        if person is None:
            return None
        return str(make_link(operator, public_url, person, LINK_MINUTES)["url"])


def file_for(database_url: str) -> str:
    """The file's name: one per configured database, so that none overwrites another's."""
    if not database_url:
        return "first.json"
    parts = psycopg.conninfo.conninfo_to_dict(database_url)
    place = "|".join(str(parts.get(key, "")) for key in ("host", "hostaddr", "port", "dbname"))
    return f"first-{hashlib.sha256(place.encode()).hexdigest()[:12]}.json"


def _person(operator: Operator) -> Any:
    people = operator.rows("select id, name from switchboard.list_humans()")
    return next((row["id"] for row in people if row["name"] == HUMAN), None)


def _make(operator: Operator, keys: Keyring) -> dict[str, Any]:
    person = _person(operator)
    if person is None:
        person = operator.value("select id from switchboard.create_human(p_name => %s)", [HUMAN])
    row = operator.row(
        "select slug, credential from switchboard.vend_endpoint("
        "p_human_id => %s, p_slug => %s, p_queues => %s)",
        [person, SLUG, [QUEUE, WEBHOOK_QUEUE]],
    )
    made = make_webhook(operator, keys, "", SLUG, "github", WEBHOOK_QUEUE, token_hex(32))
    return {
        "slug": row["slug"],
        "credential": row["credential"],
        "ingest_path": made["ingest_url"],
        "signing_secret": made["signing_secret"],
    }


def _authenticates(gateway_url: str, slug: str, credential: str) -> bool:
    with db.connect(gateway_url)[0] as connection:
        row = connection.execute(
            "select switchboard.authenticate(%s, %s) is not null as valid",
            [slug, digest(credential)],
        ).fetchone()
    return bool(row and row["valid"])
