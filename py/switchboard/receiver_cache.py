"""What is known about receivers: the answers of ``webhook_for()``, kept for a few seconds.

Kept answers only decide whether a delivery is genuine. ``receive_delivery()`` looks the receiver up
again, so that one that was deleted takes nothing more; that a secret changed is said on
``switchboard_control``. Unknown addresses are not remembered: anybody can think of any number.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from switchboard.db import WEBHOOK_FOR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from switchboard.db import Database

MAX_RECEIVERS = 10_000
# Everybody else signs.
_TRUST = {"generic": "token", "open": "open"}


@dataclass(frozen=True)
class Receiver:
    """A receiver, as the database knows it.

    Attributes:
        webhook_id, endpoint_id: its identity, and its owner's.
        source_type: who sends.
        sealed: the sealed signing secrets, the current one first.
        now: epoch seconds of the database when it was asked.
        asked: seconds of the monotonic clock then.
    """

    webhook_id: str
    endpoint_id: str
    source_type: str
    sealed: Sequence[bytes]
    now: float
    asked: float

    @property
    def trust_mode(self) -> str:
        """How far its deliveries can be trusted."""
        return _TRUST.get(self.source_type, "signed")

    def time(self) -> float:
        """Epoch seconds by the database's clock."""
        return self.now + time.monotonic() - self.asked


@dataclass
class _Entry:
    receiver: Receiver
    until: float
    proven: bool


class ReceiverCache:
    """Receivers by the digest of their URL's token.

    Args:
        database: where to ask.
        keep: seconds for which an answer may be used.
        max_kept: beyond that, the one that was asked for longest ago is forgotten.
    """

    def __init__(self, database: Database, keep: float, max_kept: int = MAX_RECEIVERS) -> None:
        self._database = database
        self._keep = keep
        self._max_kept = max_kept
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._drops = 0

    def get(self, token_digest: bytes) -> Receiver | None:
        """The receiver, without asking; None when it is unknown here, or too long ago."""
        entry = self._entries.get(token_digest)
        return entry.receiver if entry and entry.until > time.monotonic() else None

    async def look_up(self, token_digest: bytes) -> Receiver | None:
        """Ask the database.

        Raises:
            psycopg.Error: it could not be asked.
        """
        drops = self._drops
        found = await self._database.value(WEBHOOK_FOR, (token_digest,), repeatable=True)
        if found is None:
            self.forget(token_digest)
            return None
        receiver = _receiver(found)
        # An answer from before a drop serves the one who asked, but is not kept.
        until = receiver.asked + (self._keep if drops == self._drops else 0.0)
        self._entries[token_digest] = _Entry(receiver, until, self.is_proven(token_digest))
        self._entries.move_to_end(token_digest)
        if len(self._entries) > self._max_kept:
            self._entries.popitem(last=False)
        return receiver

    def prove(self, token_digest: bytes) -> None:
        """A genuine delivery came for it."""
        if entry := self._entries.get(token_digest):
            entry.proven = True

    def is_proven(self, token_digest: bytes) -> bool:
        """Whether one came before."""
        entry = self._entries.get(token_digest)
        return entry is not None and entry.proven

    def forget(self, token_digest: bytes) -> None:
        """It is not there any more."""
        self._entries.pop(token_digest, None)

    def drop(self, endpoint_id: str | None = None) -> None:
        """Ask again before the next use: about the receivers of one endpoint, or about all."""
        self._drops += 1
        for entry in self._entries.values():
            if endpoint_id in (None, entry.receiver.endpoint_id):
                entry.until = 0.0

    def __len__(self) -> int:
        return len(self._entries)


def _receiver(found: Mapping[str, Any]) -> Receiver:
    return Receiver(
        webhook_id=found["webhook_id"],
        endpoint_id=found["endpoint_id"],
        source_type=found["source_type"],
        sealed=[bytes.fromhex(sealed) for sealed in found["sealed_secrets"]],
        now=float(found["now"]),
        asked=time.monotonic(),
    )
