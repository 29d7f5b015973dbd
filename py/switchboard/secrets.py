"""Secrets: minted, digested, or sealed so that they can be read back.

A credential or URL token is 32 random bytes; only its SHA-256 is stored. What must be read back (a
signing secret) is sealed with AES-256-GCM: one version byte, the key's id, a nonce, the
ciphertext. The key's id lets several keys live side by side: the first seals, all open, and a
re-seal moves a value on.
"""

from __future__ import annotations

import base64
import hashlib
import os
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = b"\x01"
KEY_ID_BYTES = 8
NONCE_BYTES = 12
_HEADER_BYTES = len(VERSION) + KEY_ID_BYTES


class SecretError(Exception):
    """A secret that cannot be sealed or opened; the text says what to do."""


def mint(prefix: str = "") -> str:
    """A new secret: ``prefix`` and 32 random bytes as base64url."""
    return prefix + base64.urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()


def digest(secret: str | bytes) -> bytes:
    """SHA-256 of a secret as text; what is stored of a credential or token."""
    return hashlib.sha256(secret.encode() if isinstance(secret, str) else secret).digest()


class Keyring:
    """Seals with the first key, opens with any.

    Args:
        keys: 32 raw bytes each.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = {_key_id(key): AESGCM(key) for key in keys}
        self._first = _key_id(keys[0]) if keys else b""

    def seal(self, secret: bytes) -> bytes:
        """Encrypt and authenticate ``secret``.

        Raises:
            SecretError: there is no key.
        """
        if not self._first:
            raise SecretError("There is no key to seal secrets with: set SWITCHBOARD_SECRET_KEY.")
        header = VERSION + self._first
        nonce = os.urandom(NONCE_BYTES)
        return header + nonce + self._ciphers[self._first].encrypt(nonce, secret, header)

    def open(self, sealed: bytes) -> bytes:
        """The secret inside ``sealed``.

        Raises:
            SecretError: not a sealed value, tampered with, or sealed with a key that is not here.
        """
        header, nonce = sealed[:_HEADER_BYTES], sealed[_HEADER_BYTES : _HEADER_BYTES + NONCE_BYTES]
        cipher = self._ciphers.get(header[1:])
        if header[:1] != VERSION or len(nonce) != NONCE_BYTES:
            raise SecretError("This is not a sealed secret.")
        if cipher is None:
            raise SecretError(
                f"The secret is sealed with key {header[1:].hex()}, which is not in "
                "SWITCHBOARD_SECRET_KEY: add that key again."
            )
        try:
            return cipher.decrypt(nonce, sealed[_HEADER_BYTES + NONCE_BYTES :], header)
        except InvalidTag:
            raise SecretError("The sealed secret was changed or damaged: make a new one.") from None

    def is_current(self, sealed: bytes) -> bool:
        """Whether ``sealed`` is sealed with the first key; if not, open it and seal it again."""
        return sealed[:_HEADER_BYTES] == VERSION + self._first


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"switchboard key id" + key).digest()[:KEY_ID_BYTES]
