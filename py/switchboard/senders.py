"""Who may send webhooks, and how a delivery proves that it is theirs: one entry per source type.

The scheme comes from what is stored about the receiver, never from which headers are there. Every
value is decoded strictly and compared in constant time, every header must be there exactly once,
and an empty secret verifies nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.datastructures import Headers

FORM = "application/x-www-form-urlencoded"


class Signature(Protocol):
    """How a delivery is signed."""

    def verify(self, headers: Headers, body: bytes, secrets: Sequence[bytes]) -> bool:
        """Whether one of ``secrets`` signed these headers and this body."""


@dataclass(frozen=True)
class HexSignature:
    """HMAC-SHA256 over the raw body, in lower-case hex.

    Attributes:
        header: where it stands.
        prefix: what stands before it there.
    """

    header: str
    prefix: str = ""

    def verify(self, headers: Headers, body: bytes, secrets: Sequence[bytes]) -> bool:
        """Whether one of ``secrets`` signed ``body``."""
        values = headers.getlist(self.header)
        if len(values) != 1 or not re.fullmatch(re.escape(self.prefix) + "[0-9a-f]{64}", values[0]):
            return False
        given = bytes.fromhex(values[0][len(self.prefix) :])
        # No short cut: all secrets are tried, whichever fits.
        fits = [
            hmac.compare_digest(hmac.digest(s, body, hashlib.sha256), given) for s in secrets if s
        ]
        return any(fits)


@dataclass(frozen=True)
class Sender:
    """One kind of sender.

    Attributes:
        signature: how deliveries are signed.
        id_headers: where the delivery's id stands; the first that is there counts.
        event_header: where the event's name stands.
        silent_events: answered once verified, but no work: they make no todo.
        trust_mode: what the answer to those says.
        form_field: the field that holds the JSON document of a form-encoded body.
    """

    signature: Signature
    id_headers: tuple[str, ...]
    event_header: str
    silent_events: frozenset[str] = frozenset()
    trust_mode: str = "signed"
    form_field: str = ""

    def verify(self, headers: Headers, body: bytes, secrets: Sequence[bytes]) -> bool:
        """Whether the delivery is genuine; one that names two ids or two events is not."""
        single = (*self.id_headers, self.event_header)
        if any(len(headers.getlist(name)) > 1 for name in single):
            return False
        return self.signature.verify(headers, body, secrets)

    def delivery_id(self, headers: Headers) -> str | None:
        """The sender's id of the delivery."""
        return next((headers[name] for name in self.id_headers if headers.get(name)), None)

    def document(self, content_type: str, body: bytes) -> str | None:
        """The text to read as JSON; None when the body is no text that could be stored."""
        try:
            text = body.decode("utf-8-sig")
            if self.form_field and content_type.partition(";")[0].strip().lower() == FORM:
                fields = parse_qs(text, strict_parsing=True, errors="strict", max_num_fields=100)
                (text,) = fields[self.form_field]
        except (ValueError, KeyError):
            return None
        return None if "\0" in text else text


SENDERS: Mapping[str, Sender] = {
    "github": Sender(
        signature=HexSignature("x-hub-signature-256", "sha256="),
        id_headers=("x-github-delivery",),
        event_header="x-github-event",
        silent_events=frozenset({"ping"}),
        form_field="payload",
    ),
}
