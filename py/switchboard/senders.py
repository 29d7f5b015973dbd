"""Who may send webhooks, and how a delivery proves where it comes from: one entry per source type.

The scheme comes from what is stored about the receiver, never from which headers are there. What
counts is there exactly once, is decoded strictly and compared in constant time, and an empty secret
verifies nothing. Why a delivery is refused is for counters and logs; who sent it sees one and the
same answer.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.datastructures import Headers

FORM = "application/x-www-form-urlencoded"
TOLERANCE = 300  # seconds, both ways
MAX_SIGNATURES = 10
WHSEC = b"whsec_"

_HEX = re.compile("[0-9a-f]{64}")
# 32 bytes have one spelling: the character before the padding holds four bits and two zeros.
_BASE64 = re.compile("[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=")
_SECONDS = re.compile("[0-9]{1,15}")
# A name, and printable ASCII without the comma: a list of lists, as proxies join them, is none.
_EQUALS_PAIR = re.compile(r"([a-z0-9]+)=([!-+\--~]+)")
_COMMA_PAIR = re.compile(r"([a-z0-9]+),([!-+\--~]+)")
_LINE = re.compile(r"[^\x00-\x1f\x7f]+")
_SECONDS_INSIDE = re.compile(r"\.[0-9]+(?:\.|\Z)")
_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
)


class Refused(Exception):  # noqa: N818
    """A delivery that does not verify; the argument is the reason."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether a delivery is genuine, and by what; true when it is.

    Attributes:
        reason: why it is not: no_secret, missing, doubled, malformed, mismatch, stale, too_many.
        secret: which of the secrets signed it.
        signed_at: when, in epoch seconds, where the scheme says so.
        presented: how the token came: ``bearer`` or ``url``.
    """

    reason: str = ""
    secret: int | None = None
    signed_at: float | None = None
    presented: str = ""

    def __bool__(self) -> bool:
        return not self.reason


class Scheme(Protocol):
    """How a delivery proves where it comes from."""

    def prove(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], token: str, at: float
    ) -> Proof:
        """The proof.

        Raises:
            Refused: there is none.
        """


class Claim(NamedTuple):
    """What a delivery says: that one of these signatures is over this message."""

    message: bytes
    signatures: Sequence[bytes]
    signed_at: float | None = None


@dataclass(frozen=True)
class Signed(ABC):
    """HMAC-SHA256.

    Attributes:
        header: where the signature stands.
    """

    header: str

    @abstractmethod
    def claim(self, headers: Headers, body: bytes) -> Claim:
        """Read the headers; the body is not to be looked into before the signature is checked."""

    def key(self, secret: bytes) -> bytes:
        """The key that the text of a secret stands for; empty when it stands for none."""
        return secret

    def signed_at(self, claim: Claim, body: bytes) -> float | None:
        """When it was signed, asked once the signature is found good."""
        return claim.signed_at

    def prove(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], token: str, at: float
    ) -> Proof:
        """See Scheme; the token plays no part."""
        keys = [self.key(secret) for secret in secrets]
        if not any(keys):
            raise Refused("no_secret")
        claim = self.claim(headers, body)
        # No short cut: all keys are tried with all signatures, whichever fits.
        fits = [bool(key) and _signs(key, claim) for key in keys]
        if not any(fits):
            raise Refused("mismatch")
        signed_at = self.signed_at(claim, body)
        if signed_at is not None and not abs(at - signed_at) <= TOLERANCE:  # so that NaN is stale
            raise Refused("stale")
        return Proof(secret=fits.index(True), signed_at=signed_at)


@dataclass(frozen=True)
class HexSignature(Signed):
    """One signature over the body, in lower-case hex.

    Attributes:
        prefix: what stands before it.
    """

    prefix: str = ""

    def claim(self, headers: Headers, body: bytes) -> Claim:
        """See Signed."""
        text = _one(headers.getlist(self.header))
        if not text.startswith(self.prefix):
            raise Refused("malformed")
        return Claim(body, (_unhex(text[len(self.prefix) :]),))


@dataclass(frozen=True)
class SlackSignature(HexSignature):
    """The same over version, timestamp and body.

    Attributes:
        timestamp: where the timestamp stands.
    """

    timestamp: str = ""

    def claim(self, headers: Headers, body: bytes) -> Claim:
        """See Signed."""
        claim = super().claim(headers, body)
        seconds = _seconds(_one(headers.getlist(self.timestamp)))
        return Claim(b"v0:%b:%b" % (seconds, body), claim.signatures, float(seconds))


class CairnSignature(HexSignature):
    """The same as HexSignature; the body says when it was made."""

    def signed_at(self, claim: Claim, body: bytes) -> float:
        """See Signed."""
        return created_at(body)


class StripeSignature(Signed):
    """A timestamp and signatures over it and the body, in one list: ``t=1,v1=ab,v1=cd``."""

    def claim(self, headers: Headers, body: bytes) -> Claim:
        """See Signed."""
        pairs = _pairs(_EQUALS_PAIR, _one(headers.getlist(self.header)).split(","))
        seconds = _seconds(_one(pairs.get("t", [])))
        signatures = [_unhex(text) for text in _some(pairs.get("v1", []))]
        return Claim(b"%b.%b" % (seconds, body), signatures, float(seconds))


class StandardSignature(Signed):
    """Standard Webhooks: ``v1,<base64> v1,<base64>`` over id, timestamp and body.

    Three parts with dots between them can be taken apart in two ways when the id holds what looks
    like a timestamp: a part of an old body would be a fresh delivery. Such ids are refused.
    """

    def key(self, secret: bytes) -> bytes:
        """See Signed."""
        return whsec_key(secret) if secret.startswith(WHSEC) else secret

    def claim(self, headers: Headers, body: bytes) -> Claim:
        """See Signed."""
        pairs = _pairs(_COMMA_PAIR, _one(headers.getlist(self.header)).split(" "))
        name = _one(headers.getlist("webhook-id"))
        seconds = _seconds(_one(headers.getlist("webhook-timestamp")))
        if not _LINE.fullmatch(name) or _SECONDS_INSIDE.search(name):
            raise Refused("malformed")
        signatures = [_unbase64(text) for text in _some(pairs.get("v1", []))]
        message = b"%b.%b.%b" % (name.encode("latin-1"), seconds, body)
        return Claim(message, signatures, float(seconds))


class UrlToken:
    """The token of the URL, once more as a bearer token; the URL alone when nothing can be set."""

    def prove(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], token: str, at: float
    ) -> Proof:
        """See Scheme; nothing but the token plays a part."""
        if not token:
            raise Refused("no_secret")
        values = headers.getlist("authorization")
        if not values:
            return Proof(presented="url")
        scheme, _, given = _one(values).partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise Refused("malformed")
        if not hmac.compare_digest(given.encode("latin-1"), token.encode(errors="surrogatepass")):
            raise Refused("mismatch")
        return Proof(presented="bearer")


class Unproven:
    """No proof is asked for."""

    def prove(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], token: str, at: float
    ) -> Proof:
        """See Scheme."""
        return Proof()


@dataclass(frozen=True)
class Sender:
    """One kind of sender.

    Attributes:
        scheme: how deliveries prove where they come from.
        id_headers: where the delivery's id stands; the first that is there counts.
        event_header: where the event's name stands.
        form_field: the field that holds the JSON document of a form-encoded body.
    """

    scheme: Scheme
    id_headers: tuple[str, ...] = ()
    event_header: str = ""
    form_field: str = ""

    def verify(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], token: str, at: float
    ) -> Proof:
        """Whether the delivery is genuine; one that names two ids or two events is not.

        Args:
            headers: as they came.
            body: as it came.
            secrets: the texts of the signing secrets, current first.
            token: the one in the URL.
            at: epoch seconds, by the database's clock.
        """
        try:
            for name in (*self.id_headers, self.event_header):
                if len(headers.getlist(name)) > 1:
                    raise Refused("doubled")
            return self.scheme.prove(headers, body, secrets, token, at)
        except Refused as refused:
            return Proof(str(refused))

    def delivery_id(self, headers: Headers) -> str | None:
        """The sender's id of the delivery, where a header holds it."""
        return next((headers[name] for name in self.id_headers if headers.get(name)), None)

    def event_type(self, headers: Headers) -> str | None:
        """The event's name, where a header holds it."""
        return headers.get(self.event_header) or None

    def document(self, content_type: str, body: bytes) -> str | None:
        """The JSON text inside a form; None when the body is no such form."""
        if not self.form_field or content_type.partition(";")[0].strip().lower() != FORM:
            return None
        try:
            text = body.decode("utf-8-sig")
            fields = parse_qs(text, strict_parsing=True, errors="strict", max_num_fields=100)
            (document,) = fields[self.form_field]
        except (ValueError, KeyError):
            return None
        return None if "\0" in document else document


_OWN_IDS = ("x-delivery-id", "webhook-id")

SENDERS: Mapping[str, Sender] = {
    "github": Sender(
        HexSignature("x-hub-signature-256", "sha256="),
        id_headers=("x-github-delivery",),
        event_header="x-github-event",
        form_field="payload",
    ),
    "gitea": Sender(
        HexSignature("x-gitea-signature"),
        id_headers=("x-gitea-delivery",),
        event_header="x-gitea-event",
    ),
    "stripe": Sender(StripeSignature("stripe-signature")),
    "slack": Sender(
        SlackSignature("x-slack-signature", "v0=", "x-slack-request-timestamp"),
        form_field="payload",
    ),
    "standard": Sender(StandardSignature("webhook-signature"), id_headers=("webhook-id",)),
    "cairn": Sender(CairnSignature("x-cairn-signature", "sha256=")),
    "generic": Sender(UrlToken(), id_headers=_OWN_IDS),
    "open": Sender(Unproven(), id_headers=_OWN_IDS),
}


def whsec_key(secret: bytes) -> bytes:
    """The bytes that base64 behind ``whsec_`` stands for; none when it is no base64.

    The padding may be missing, as some senders leave it out.
    """
    text = secret.removeprefix(WHSEC)
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except ValueError:
        return b""


def created_at(body: bytes) -> float:
    """The ``created_at`` of a JSON document, in epoch seconds.

    Raises:
        Refused: there is none: no JSON object, too deep, or neither RFC 3339 with a zone nor a
            number.
    """
    try:
        # Integers as floats: one of more than 4300 digits, anywhere, would be an error.
        document = json.loads(body.decode("utf-8-sig"), parse_int=float)
    except (ValueError, RecursionError):
        raise Refused("malformed") from None
    value = document.get("created_at") if isinstance(document, dict) else None
    if isinstance(value, float):
        return value
    if isinstance(value, str) and _RFC_3339.fullmatch(value.upper()):
        try:
            return datetime.fromisoformat(value.upper()).timestamp()
        except ValueError:  # no such day, hour or zone
            pass
    raise Refused("malformed")


def _signs(key: bytes, claim: Claim) -> bool:
    made = hmac.digest(key, claim.message, "sha256")
    return True in [hmac.compare_digest(made, given) for given in claim.signatures]


def _one(values: Sequence[str]) -> str:
    if len(values) != 1:
        raise Refused("doubled" if values else "missing")
    return values[0]


def _some(values: Sequence[str]) -> Sequence[str]:
    if not values:
        raise Refused("missing")
    if len(values) > MAX_SIGNATURES:
        raise Refused("too_many")
    return values


def _pairs(pattern: re.Pattern[str], items: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in items:
        match = pattern.fullmatch(item)
        if not match:
            raise Refused("malformed")
        found.setdefault(match[1], []).append(match[2])
    return found


def _seconds(text: str) -> bytes:
    if not _SECONDS.fullmatch(text):
        raise Refused("malformed")
    return text.encode()


def _unhex(text: str) -> bytes:
    if not _HEX.fullmatch(text):
        raise Refused("malformed")
    return bytes.fromhex(text)


def _unbase64(text: str) -> bytes:
    if not _BASE64.fullmatch(text):
        raise Refused("malformed")
    return base64.b64decode(text)
