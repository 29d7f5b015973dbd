"""What the tests of the intake share: receivers of all types, and senders that know their secrets.

Signatures are made here from the senders' own descriptions, not by the code under test. Documents
are small ones of ours; where the folder of real deliveries is, those come on top.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
from conftest import Endpoint, RawSession, Served, Sql

TYPES = ("github", "gitea", "stripe", "slack", "standard", "cairn", "generic", "open")
SIGNED = TYPES[:6]
TRUST = {**dict.fromkeys(SIGNED, "signed"), "generic": "token", "open": "open"}
WEBHOOK_VERBS = [
    "create_webhook",
    "list_webhooks",
    "rotate_webhook",
    "delete_webhook",
    "add_webhook_route",
    "list_webhook_routes",
    "remove_webhook_route",
]
VERBS = ["list_todos", "get_todo", "read_event", "claim_next", "complete", *WEBHOOK_VERBS]
REAL = Path(__file__).parents[3] / "shared" / "cases" / "webhooks"
BODY = b'{"action": "opened", "number": 7, "pull_request": {"title": "Fix"}}'

REPOSITORY = {"full_name": "acme/widgets", "private": False}
FORGE: Mapping[str, dict[str, Any]] = {
    "pull_request": {
        "action": "opened",
        "number": 7,
        "pull_request": {"number": 7, "title": "Grease the wheels", "body": "Closes #3."},
        "repository": REPOSITORY,
    },
    "issues": {
        "action": "labeled",
        "issue": {"number": 12, "title": "The build is red", "labels": [{"name": "bug"}]},
        "repository": REPOSITORY,
    },
    "issue_comment": {
        "action": "created",
        "issue": {"number": 12, "title": "The build is red"},
        "comment": {"body": "It is green on my machine <b>\u202e</b>."},
        "repository": REPOSITORY,
    },
    "push": {
        "ref": "refs/heads/main",
        "head_commit": {"message": "Turn the crank\n\nTwice.", "id": "0f1e2d"},
        "commits": [{"id": "0f1e2d", "message": "Turn the crank"}],
        "repository": REPOSITORY,
    },
    "workflow_run": {
        "action": "completed",
        "workflow_run": {"name": "tests", "run_number": 99, "conclusion": "failure"},
        "repository": REPOSITORY,
    },
}


def forge_bodies() -> list[tuple[str, bytes]]:
    """Event and body of what a forge sends: ours, then the real ones, if they are here."""
    ours = [(event, json.dumps(document).encode()) for event, document in FORGE.items()]
    real = [(path.stem.split(".")[1], path.read_bytes()) for path in sorted(REAL.glob("*.json"))]
    return [pair for pair in ours + real if pair[0] != "ping"]


def document(source_type: str, delivery: str, at: float) -> dict[str, Any]:
    """What a sender of this type says; the id is in it where it is in no header."""
    if source_type in ("github", "gitea"):
        return FORGE["pull_request"]
    return {
        "stripe": {"id": delivery, "type": "invoice.paid", "data": {"object": {"amount": 100}}},
        "slack": {
            "type": "event_callback",
            "event_id": delivery,
            "event": {"type": "app_mention", "text": "is anybody there?"},
        },
        "standard": {"type": "contact.created", "timestamp": stamp(at), "data": {"id": 1}},
        "cairn": {
            "event_id": delivery,
            "type": "stone.placed",
            "created_at": stamp(at),
            "title": "A stone on the path",
        },
    }.get(source_type, {"event": "door.opened", "title": "The back door"})


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def key_of(source_type: str, secret: str) -> bytes:
    """The bytes that a sender signs with."""
    if source_type == "standard" and secret.startswith("whsec_"):
        return base64.b64decode(secret.removeprefix("whsec_"))
    return secret.encode()


def proof(source_type: str, key: bytes, body: bytes, delivery: str, at: int) -> dict[str, str]:
    """The headers that show where a delivery comes from; of generic the key is the token."""

    def signed(before: str = "") -> hmac.HMAC:
        return hmac.new(key, before.encode() + body, hashlib.sha256)

    match source_type:
        case "github":
            return {"x-hub-signature-256": f"sha256={signed().hexdigest()}"}
        case "gitea":
            return {"x-gitea-signature": signed().hexdigest()}
        case "stripe":
            return {"stripe-signature": f"t={at},v1={signed(f'{at}.').hexdigest()}"}
        case "slack":
            signature = signed(f"v0:{at}:").hexdigest()
            return {"x-slack-signature": f"v0={signature}", "x-slack-request-timestamp": str(at)}
        case "standard":
            signature = base64.b64encode(signed(f"{delivery}.{at}.").digest()).decode()
            return {"webhook-timestamp": str(at), "webhook-signature": f"v1,{signature}"}
        case "cairn":
            return {"x-cairn-signature": f"sha256={signed().hexdigest()}"}
        case "generic":
            return {"authorization": f"Bearer {key.decode('latin-1')}"}
        case _:
            return {}


def names(source_type: str, delivery: str) -> dict[str, str]:
    """The headers that name the delivery and its event."""
    match source_type:
        case "github" | "gitea":
            event = {f"x-{source_type}-event": "pull_request"}
            return {**event, f"x-{source_type}-delivery": delivery}
        case "standard":
            return {"webhook-id": delivery}
        case "generic" | "open":
            return {"x-delivery-id": delivery}
        case _:
            return {}


class Receiver:
    """A receiver that an agent made over MCP, and a sender that knows its secret."""

    def __init__(
        self, served: Served, endpoint: Endpoint, source_type: str = "github", **more: Any
    ) -> None:
        self.served, self.endpoint, self.source_type = served, endpoint, source_type
        self.session: RawSession = served.session(endpoint)
        arguments = {"source_type": source_type, "target_queue": "inbox", **more}
        self.made = self.session.call("create_webhook", **arguments)
        assert "error" not in self.made, self.made
        self.id: str = self.made["webhook_id"]
        self.url: str = self.made["ingest_url"]
        self.secret: str = self.made["signing_secret"] or ""

    @property
    def token(self) -> str:
        return self.url.rpartition("/")[2]

    def headers(
        self,
        body: bytes,
        delivery: str | None = None,
        *,
        secret: str | None = None,
        at: float | None = None,
        **more: str,
    ) -> dict[str, str]:
        """Those of a genuine delivery; ``more`` comes on top, with _ for -."""
        delivery = delivery or str(uuid.uuid4())
        key = key_of(self.source_type, self.secret if secret is None else secret)
        return {
            "content-type": "application/json",
            **names(self.source_type, delivery),
            **proof(self.source_type, key, body, delivery, int(time.time() if at is None else at)),
            **{name.replace("_", "-"): value for name, value in more.items()},
        }

    def body(self, delivery: str, at: float | None = None) -> bytes:
        when = time.time() if at is None else at
        return json.dumps(document(self.source_type, delivery, when)).encode()

    def send(
        self, body: bytes | None = None, delivery: str | None = None, **more: Any
    ) -> httpx2.Response:
        """A genuine delivery, unless ``more`` (see headers) makes it another."""
        delivery = delivery or str(uuid.uuid4())
        if body is None:
            body = self.body(delivery, more.get("at"))
        return self.post(body, self.headers(body, delivery, **more))

    def post(
        self, body: bytes, headers: Mapping[str, str] | list[tuple[bytes, bytes]]
    ) -> httpx2.Response:
        """Exactly this request."""
        return self.session.http.post(self.url, content=body, headers=headers)

    def todos(self) -> list[dict[str, Any]]:
        """What came of it, newest first."""
        answer = self.session.call("list_todos", include_payload=True, limit=200)
        return list(answer["todos"])

    def rotate(self, **more: Any) -> dict[str, Any]:
        """A new secret or URL; this sender goes on with the old one."""
        return self.session.call("rotate_webhook", webhook_id=self.id, **more)


def vend(db: Sql, slug: str, queues: tuple[str, ...] = ("inbox",), **more: Any) -> Endpoint:
    """An endpoint that may have receivers of all types, open included."""
    options = {"verbs": VERBS, "webhook_max": 20, "webhook_source_types": list(TYPES)}
    return db.vend(slug, queues, **{**options, **more})


def raw(headers: Mapping[str, str], **changes: str | bytes | list[str | bytes]) -> Any:
    """The pairs of a request, with other values of some headers: none, one or several."""
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    for changed, given in changes.items():
        name = changed.replace("_", "-").encode()
        values = given if isinstance(given, list) else [given]
        pairs = [pair for pair in pairs if pair[0] != name]
        pairs += [(name, v.encode("latin-1") if isinstance(v, str) else v) for v in values]
    return pairs


def counts(db: Sql) -> dict[tuple[str, str, str], int]:
    """The counters, by provider, verdict and reason."""
    rows = db.rows("select * from switchboard.delivery_counts()")
    for row in rows:
        assert row["trust_mode"] == TRUST.get(row["provider"], ""), row
    return {(row["provider"], row["verdict"], row["reason"]): row["total"] for row in rows}


def set_clock(db: Sql, at: float | None) -> None:
    """Stop the database's clock, for every session; None: let it go again."""
    db.rows(
        "update switchboard.settings set is_test = %s, test_now = to_timestamp(%s)",
        at is not None,
        at,
    )


Serve = Callable[..., Served]
