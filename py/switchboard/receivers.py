"""What a receiver needs that the database cannot make: its signing secret and the token of its URL.

The shell mints or takes them; the database gets the secret sealed and the token as a digest, and
answers with placeholders where they stand. Filled in here, they are shown this once.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switchboard.errors import Problem
from switchboard.secrets import Keyring, digest, mint
from switchboard.senders import WHSEC, whsec_key

MAX_SECRET = 1024
PREFIX = WHSEC.decode()
SECRET_BYTES = 32


@dataclass(frozen=True)
class Minted:
    """A secret and a token: as they are stored, and as they are shown.

    Attributes:
        sealed_secret: the signing secret, sealed.
        token_digest: SHA-256 of the URL's token.
        secret_form: ``made`` here, or given as ``text``, as ``base64`` behind ``whsec_``, or
            ``malformed``: behind ``whsec_`` is no base64.
        shown: what the placeholders of an answer stand for.
    """

    sealed_secret: bytes
    token_digest: bytes
    secret_form: str
    shown: Mapping[str, str] = field(repr=False)

    def shell(self) -> dict[str, str]:
        """The same as JSON for the database, bytes in hex."""
        return {
            "sealed_secret": self.sealed_secret.hex(),
            "token_digest": self.token_digest.hex(),
            "secret_form": self.secret_form,
        }

    def fill(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """The answer with its placeholders filled; only members of the answer itself hold them."""
        return {
            key: self.shown.get(value, value) if isinstance(value, str) else value
            for key, value in answer.items()
        }


def minted(keyring: Keyring, public_url: str, given: object = None) -> Minted:
    """Mint a token, and a signing secret unless one is given.

    Args:
        keyring: seals the secret.
        public_url: what the address begins with, without a trailing slash.
        given: the signing secret of the sender; None: a new one.

    Raises:
        Problem: what is given is not a text of 1 to MAX_SECRET characters that can be encoded.
        SecretError: there is no key to seal with.
    """
    form = "made" if given is None else form_of(given)
    secret = PREFIX + base64.b64encode(os.urandom(SECRET_BYTES)).decode()
    if isinstance(given, str):
        secret = given
    token = mint()
    return Minted(
        sealed_secret=keyring.seal(secret.encode()),
        token_digest=digest(token),
        secret_form=form,
        shown={
            "$secret": secret,
            "$token": token,
            "$ingest_url": f"{public_url}/webhooks/w/{token}",
        },
    )


def form_of(given: object) -> str:
    """The form of a secret that somebody gave.

    Raises:
        Problem: it cannot be a secret.
    """
    if not isinstance(given, str) or not 0 < len(given) <= MAX_SECRET or not _is_storable(given):
        reason = f"must be a text of 1 to {MAX_SECRET} characters"
        raise Problem(
            "invalid_argument",
            f"signing_secret {reason}: correct it, or leave it out to have one made",
            {"field": "signing_secret", "reason": reason},
        )
    if not given.startswith(PREFIX):
        return "text"
    return "base64" if whsec_key(given.encode()) else "malformed"


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True
