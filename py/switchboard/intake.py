"""Webhooks in: ``POST /webhooks/w/{token}``.

The order is fixed: size, then who the receiver is, then the signature over the raw bytes, then
everything else. Nothing is stored of a delivery that did not verify, and nothing verified is
refused for its content. A 2xx goes out only after the database has committed.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import psycopg

from switchboard import logs
from switchboard.db import RECEIVE_DELIVERY, WEBHOOK_FOR, Database
from switchboard.errors import Problem, rate_limited, unavailable
from switchboard.guard import json_response, problem_response
from switchboard.limits import RateLimit, read_body
from switchboard.secrets import Keyring, SecretError, digest
from switchboard.senders import SENDERS, Sender

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger(__name__)

KNOWN_RECEIVERS = 10_000
_SENSITIVE = re.compile(
    r"auth|cookie|credential|key|passw|secret|session|signature|token", re.IGNORECASE
)
REDACTED = "[redacted]"


class Intake:
    """Takes deliveries.

    Args:
        database: where they go.
        keyring: opens the signing secrets.
        rate: verified deliveries per receiver.
        failures: how often an address may fail; then only receivers known already are looked up.
        body_limit: bytes.
    """

    def __init__(
        self,
        database: Database,
        keyring: Keyring,
        rate: RateLimit,
        failures: RateLimit,
        body_limit: int,
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._rate = rate
        self._failures = failures
        self._body_limit = body_limit
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def receive(self, request: Request) -> Response:
        """Answer one delivery; never raises for what a sender did."""
        started = time.perf_counter()
        noted: dict[str, Any] = {}
        outcome = "internal"
        try:
            response = await self._receive(request, noted)
            outcome = "ok"
        except (Problem, psycopg.Error) as error:
            problem = error if isinstance(error, Problem) else self._database.errors.problem(error)
            if problem is None:
                raise
            outcome = problem.code
            response = problem_response(problem, self._database.errors)
        finally:
            logs.event("webhook.delivery", **noted, outcome=outcome, ms=logs.milliseconds(started))
        return response

    async def _receive(self, request: Request, noted: dict[str, Any]) -> Response:
        token: str = request.path_params["token"]
        address = request.client.host if request.client else ""
        token_digest = digest(token)
        wait = self._failures.wait(address)
        if wait and token_digest not in self._known:
            raise rate_limited(wait)
        headers = request.headers
        body = await read_body(request.receive, self._body_limit, headers.get("content-length"))
        noted["bytes"] = len(body)
        receiver = await self._database.value(WEBHOOK_FOR, (token_digest,), repeatable=True)
        sender = SENDERS.get(receiver["source_type"]) if receiver else None
        if receiver is None or sender is None:
            raise self._failed(
                address, Problem("not_found", "there is no receiver at this address")
            )
        noted["webhook_id"] = receiver["webhook_id"]
        noted["endpoint_id"] = receiver["endpoint_id"]
        noted["source_type"] = receiver["source_type"]
        if not sender.verify(headers, body, self._open(receiver["sealed_secrets"] or ())):
            text = "the delivery is not signed with this receiver's secret: check the secret"
            raise self._failed(address, Problem("unauthenticated", text))
        self._remember(token_digest)
        if wait := self._rate.take(receiver["webhook_id"]):
            raise rate_limited(wait)
        return await self._store(token, token_digest, sender, headers, body)

    def _failed(self, address: str, problem: Problem) -> Problem:
        wait = self._failures.take(address)
        return rate_limited(wait) if wait else problem

    def _remember(self, token_digest: bytes) -> None:
        self._known[token_digest] = None
        self._known.move_to_end(token_digest)
        if len(self._known) > KNOWN_RECEIVERS:
            self._known.popitem(last=False)

    def _open(self, sealed: Sequence[str]) -> list[bytes]:
        """The secrets that can be opened; none at all is the operator's fault, not the sender's."""
        opened = []
        for value in sealed:
            try:
                opened.append(self._keyring.open(bytes.fromhex(value)))
            except SecretError as error:
                logger.error("a receiver's signing secret cannot be opened: %s", error)
        if sealed and not opened:
            raise unavailable()
        return opened

    async def _store(
        self, token: str, token_digest: bytes, sender: Sender, headers: Headers, body: bytes
    ) -> Response:
        event_type = headers.get(sender.event_header)
        if event_type in sender.silent_events:
            silent = {"todos": [], "created": 0, "verified": True}
            return json_response({**silent, "trust_mode": sender.trust_mode}, 202)
        content_type = headers.get("content-type", "")
        params = (
            token_digest,
            sender.delivery_id(headers),
            event_type,
            json.dumps(redact(headers, token)),
            body,
            content_type,
            sender.document(content_type, body),
        )
        # Few senders try again, so that what another try would mend is tried here: the same
        # delivery twice is one todo.
        answer: Mapping[str, Any] = await self._database.value(
            RECEIVE_DELIVERY, params, repeatable=True
        )
        if error := answer.get("error"):
            details = {key: value for key, value in error.items() if key not in ("code", "message")}
            retry = 60 if self._database.errors.status(error["code"]) == 503 else None
            raise Problem(error["code"], error["message"], details, retry_after=retry)
        return json_response(answer, 202)


def redact(headers: Headers, token: str) -> dict[str, str]:
    """The headers as they are stored: without signatures, cookies, keys, the URL's token."""
    kept: dict[str, list[str]] = {}
    for name, value in headers.items():
        secret = _SENSITIVE.search(name) is not None
        kept.setdefault(name, []).append(REDACTED if secret else value.replace(token, REDACTED))
    return {name: ", ".join(values) for name, values in kept.items()}
