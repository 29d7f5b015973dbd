"""Webhooks in: ``POST /webhooks/w/{token}``.

The order is fixed: size, then who the receiver is, then the signature over the raw bytes and its
age by the database's clock, then how many come, then everything else. Nothing is stored of a
delivery that does not verify, and nothing verified is refused for its content. While the receiver
is known, a delivery is one round trip; a 2xx goes out only after the database has committed.
"""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from switchboard import logs
from switchboard.db import RECEIVE_DELIVERY, Database
from switchboard.errors import Problem, own, rate_limited, unavailable
from switchboard.guard import json_response, problem_response
from switchboard.limits import ClientGone, RateLimit, read_body
from switchboard.receiver_cache import Receiver, ReceiverCache
from switchboard.secrets import Keyring, SecretError, digest
from switchboard.senders import SENDERS, Proof
from switchboard.tally import Kind, Tally

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Message

logger = logging.getLogger(__name__)

NO_LIVE_TARGET_SECONDS = 60
# Anybody may begin to send, so that what all bodies at hand take together is bounded. Small ones
# are always let in: there are no more of them than connections.
SMALL_BODY = 64 * 1024
LARGE_BODIES = 256 * 1024 * 1024
# What is wrong may be what we remember of the receiver: it is looked up before it is refused.
_PERHAPS_OUTDATED = frozenset({"no_secret", "mismatch", "stale", "not_opened"})
# Not the sender's fault: no key opens the secrets; a source type that this version does not know.
_OPERATORS_FAULT = frozenset({"not_opened", "unsupported"})

# The parser takes what follows such a head for another protocol: the body is lost, and nothing must
# be stored in its place. Java's HttpClient asks for HTTP/2 like this, unless it is told not to.
UPGRADED = "the body is not read behind an Upgrade header: send it as HTTP/1.1, without that header"

REDACTED = "[redacted]"
_SENSITIVE = (
    r"auth|assertion|bearer|cookie|credential|hmac|jwt|key|oidc|passw|secret|session|\bsig\b"
    r"|signature|token"
)
_SENSITIVE_NAME = re.compile(_SENSITIVE, re.IGNORECASE)
# Addresses of ours, whichever their token; passwords in URLs.
_SENSITIVE_VALUE = re.compile(
    r"((?:/|%2f)webhooks(?:/|%2f)w(?:/|%2f))[^\s\"'\\?#&]+|(://)[^\s/?#@]+(?=@)", re.IGNORECASE
)
# An argument of a URL, whose name may say enough. Anybody may write a header of 64 KiB: whatever is
# in it, a place is looked at once, not again from each place before it.
_ARGUMENT = re.compile(r"[?&;]([^\s=?&;]*)=")
_ARGUMENT_VALUE = re.compile(r"[^\s&;#]*")


@dataclass(frozen=True)
class Delivery:
    """A request that came in whole.

    Attributes:
        token, digest: from its address.
        headers, body: as they came.
        client: the address it came from, which pays for a refusal.
    """

    token: str
    digest: bytes
    headers: Headers
    body: bytes
    client: str


class Intake:
    """Takes deliveries.

    Args:
        database: where they go.
        keyring: opens the signing secrets.
        receivers: what is known about receivers.
        tally: counts what is turned away.
        rate: verified deliveries per receiver.
        failures: how often an address may fail; then only proven receivers are served.
        body_limit: bytes.
    """

    def __init__(
        self,
        database: Database,
        keyring: Keyring,
        receivers: ReceiverCache,
        tally: Tally,
        rate: RateLimit,
        failures: RateLimit,
        body_limit: int,
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._receivers = receivers
        self._tally = tally
        self._rate = rate
        self._failures = failures
        self._body_limit = body_limit
        self._large = 0  # bytes at hand of bodies that are more than small

    async def receive(self, request: Request) -> Response:
        """Answer one delivery; never raises for what a sender did."""
        started = time.perf_counter()
        noted: dict[str, Any] = {}
        outcome = "internal"
        try:
            response = await self._receive(request, noted)
            outcome = "ok"
        except ClientGone:
            outcome = "client_gone"
            raise
        except (Problem, psycopg.Error) as error:
            problem = error if isinstance(error, Problem) else self._database.errors.problem(error)
            if problem is None:
                raise
            outcome = problem.code
            response = problem_response(problem, self._database.errors)
            del problem  # whose traceback holds this frame, and the body, until the next collection
        finally:
            self._large -= _beyond_small(noted)
            logs.event("webhook.delivery", **noted, outcome=outcome, ms=logs.milliseconds(started))
        return response

    async def _receive(self, request: Request, noted: dict[str, Any]) -> Response:
        token: str = request.path_params["token"]
        token_digest = digest(token)
        client = request.client.host if request.client else ""
        if (wait := self._failures.wait(client)) and not self._receivers.is_proven(token_digest):
            self._count(noted, "limited", "address")
            raise rate_limited(wait)
        body = await self._read(request, noted)
        delivery = Delivery(token, token_digest, request.headers, body, client)
        receiver, proof = await self._judge(delivery)
        if receiver:
            noted["webhook_id"] = receiver.webhook_id
            noted["endpoint_id"] = receiver.endpoint_id
            noted["source_type"] = receiver.source_type
        if receiver is None or not proof:
            raise self._refused(noted, proof.reason, receiver, client)
        self._receivers.prove(token_digest)
        if wait := self._rate.take(receiver.webhook_id):
            self._count(noted, "limited", "receiver", receiver)
            raise rate_limited(wait)
        answer = await self._store(delivery, receiver, proof)
        if error := answer.get("error"):
            if error["code"] == "not_found":  # deleted since it was looked up
                self._receivers.forget(token_digest)
                raise self._refused(noted, "unknown", None, client)
            raise self._problem(error)
        return json_response(answer, 200 if "challenge" in answer else 202)

    async def _read(self, request: Request, noted: dict[str, Any]) -> bytes:
        declared = request.headers.get("content-length")

        async def receive() -> Message:
            message = await request.receive()
            self._make_room(noted, len(message.get("body", b"")))
            return message

        try:
            body = await read_body(receive, self._body_limit, declared)
        except Problem as problem:
            reasons = {"invalid_argument": "timeout", "unavailable": "busy"}
            self._count(noted, "refused", reasons.get(problem.code, problem.code))
            raise
        if not body and "upgrade" in request.headers and _announces_body(request.headers):
            self._count(noted, "refused", "upgrade")
            raise Problem("invalid_argument", UPGRADED)
        return body

    def _make_room(self, noted: dict[str, Any], size: int) -> None:
        before = _beyond_small(noted)
        noted["bytes"] = noted.get("bytes", 0) + size
        more = _beyond_small(noted) - before
        self._large += more
        if more and self._large > LARGE_BODIES:
            raise unavailable()

    async def _judge(self, delivery: Delivery) -> tuple[Receiver | None, Proof]:
        """Who receives, and whether the delivery is genuine."""
        receiver = self._receivers.get(delivery.digest)
        if receiver:
            proof = self._verify(receiver, delivery, receiver.time())
            # An address that fails too often is not worth the question.
            if proof.reason not in _PERHAPS_OUTDATED or self._failures.wait(delivery.client):
                return receiver, proof
        receiver = await self._receivers.look_up(delivery.digest)
        if receiver is None:
            return None, Proof("unknown")
        return receiver, self._verify(receiver, delivery, receiver.now)

    def _verify(self, receiver: Receiver, delivery: Delivery, at: float) -> Proof:
        sender = SENDERS.get(receiver.source_type)
        if sender is None:
            logger.error("deliveries of source type %s: update this server", receiver.source_type)
            return Proof("unsupported")
        opened = [self._open(sealed) for sealed in receiver.sealed]
        secrets = [secret or b"" for secret in opened]  # an empty one verifies nothing
        proof = sender.verify(delivery.headers, delivery.body, secrets, delivery.token, at)
        if proof.reason in ("no_secret", "mismatch") and None in opened:
            return Proof("not_opened")  # it may be the one that fits
        return proof

    def _open(self, sealed: bytes) -> bytes | None:
        """The secret; None when no key opens it."""
        try:
            return self._keyring.open(sealed)
        except SecretError as error:
            logger.error("a receiver's signing secret cannot be opened: %s", error)
            return None

    async def _store(
        self, delivery: Delivery, receiver: Receiver, proof: Proof
    ) -> Mapping[str, Any]:
        sender = SENDERS[receiver.source_type]
        content_type = delivery.headers.get("content-type", "")
        params = (
            delivery.digest,
            sender.delivery_id(delivery.headers),
            sender.event_type(delivery.headers),
            json.dumps(redact(delivery.headers, delivery.token)),
            delivery.body,
            content_type,
            sender.document(content_type, delivery.body),
            json.dumps(verification(receiver.source_type, proof)),
        )
        # Few senders try again, so that what another try would mend is tried here: the same
        # delivery twice is one todo.
        answer: Mapping[str, Any] = await self._database.value(
            RECEIVE_DELIVERY, params, repeatable=True
        )
        return answer

    def _count(
        self, noted: dict[str, Any], verdict: str, reason: str, receiver: Receiver | None = None
    ) -> None:
        noted["reason"] = reason
        provider = receiver.source_type if receiver and receiver.source_type in SENDERS else ""
        trust_mode = receiver.trust_mode if receiver and provider else ""
        counted = reason if verdict == "refused" else ""  # whose limit, the provider says
        self._tally.add(Kind(verdict, counted, provider, trust_mode))

    def _refused(
        self, noted: dict[str, Any], reason: str, receiver: Receiver | None, client: str
    ) -> Problem:
        """Count it, charge the address for it, and say so; every forgery is the same 401."""
        self._count(noted, "refused", reason, receiver)
        if reason in _OPERATORS_FAULT:
            return unavailable()
        if wait := self._failures.take(client):
            return rate_limited(wait)
        if reason == "unknown":
            return Problem("not_found", "there is no receiver at this address")
        return own("unauthenticated")

    def _problem(self, error: Mapping[str, Any]) -> Problem:
        details = {key: value for key, value in error.items() if key not in ("code", "message")}
        is_down = self._database.errors.status(error["code"]) == 503
        retry = NO_LIVE_TARGET_SECONDS if is_down else None
        return Problem(error["code"], error["message"], details, retry_after=retry)


def verification(source_type: str, proof: Proof) -> dict[str, object]:
    """How a delivery was verified, as it is stored with it."""
    noted: dict[str, object] = {"scheme": source_type}
    if proof.secret is not None:
        noted["secret"] = "previous" if proof.secret else "current"
    if proof.signed_at is not None:
        noted["signed_at"] = proof.signed_at
    if proof.presented:
        noted["presented"] = proof.presented
    return noted


def _beyond_small(noted: Mapping[str, Any]) -> int:
    size: int = noted.get("bytes", 0)
    return max(0, size - SMALL_BODY)


def _announces_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def redact(headers: Headers, token: str) -> dict[str, str]:
    """The headers as they are stored: without signatures, cookies, keys, tokens of URLs."""
    kept: dict[str, list[str]] = {}
    for name, value in headers.items():
        kept.setdefault(name, []).append(
            REDACTED if _SENSITIVE_NAME.search(name) else _cleaned(value, token)
        )
    return {name: ", ".join(values) for name, values in kept.items()}


def _cleaned(value: str, token: str) -> str:
    cleaned = _SENSITIVE_VALUE.sub(lambda found: (found[1] or found[2]) + REDACTED, value)
    return logs.mask(_without_arguments(cleaned).replace(token, REDACTED))


def _without_arguments(value: str) -> str:
    parts: list[str] = []
    end = 0
    while found := _ARGUMENT.search(value, end):
        parts.append(value[end : found.end()])
        end = found.end()
        if _SENSITIVE_NAME.search(found[1]) and (secret := _ARGUMENT_VALUE.match(value, end)):
            parts.append(REDACTED)
            end = secret.end()
    return "".join([*parts, value[end:]])
