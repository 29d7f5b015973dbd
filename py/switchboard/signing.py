"""Signatures of what is sent: the headers of Standard Webhooks, as hooks' receivers verify them."""

from __future__ import annotations

import base64
import hmac
from typing import TYPE_CHECKING

from switchboard.senders import WHSEC, whsec_key

if TYPE_CHECKING:
    from collections.abc import Sequence


def sign(message_id: str, timestamp: int, body: bytes, secrets: Sequence[bytes]) -> dict[str, str]:
    """The headers that prove where a message comes from.

    Args:
        message_id: the same for every attempt at one message.
        timestamp: epoch seconds of this attempt.
        body: as it is sent.
        secrets: ``whsec_`` and base64 each; the message is signed once with each.

    Raises:
        ValueError: there is no secret, or one that holds no key: nothing may be sent then.
    """
    keys = [whsec_key(secret) if secret.startswith(WHSEC) else b"" for secret in secrets]
    if not keys or not all(keys):
        raise ValueError("A message is signed with whsec_ secrets, one at least.")
    signed = b"%b.%d.%b" % (message_id.encode("ascii"), timestamp, body)
    made = (base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in made),
    }
