"""Who calls: a bearer credential and the endpoint it opens.

The database decides; its answer is kept for a few seconds and dropped as soon as it says that the
endpoint changed. That is safe because ``call_tool`` authenticates again: what is kept here only
picks the tools to show and the session to use. Every refusal is the same, whatever was wrong.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

from switchboard.db import AUTHENTICATE, STILL_VALID, Database
from switchboard.errors import own, rate_limited
from switchboard.secrets import digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from switchboard.limits import RateLimit

MAX_CALLERS = 10_000
_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")

Key = tuple[str, bytes]


@dataclass(frozen=True)
class Caller:
    """An authenticated endpoint.

    Attributes:
        key: the slug and the digest of the credential, with which the database is asked.
        endpoint_id, credential_id: their identities.
        tools: what tools/list shows.
        instructions: what initialize tells.
        shell: per tool, what the shell has to add to a call.
        user: the same for the MCP SDK, which binds a session to it.
    """

    key: Key
    endpoint_id: str
    credential_id: str
    tools: Sequence[Mapping[str, Any]]
    instructions: str
    shell: Mapping[str, Mapping[str, bool]]
    user: AuthenticatedUser

    @property
    def slug(self) -> str:
        """The endpoint's name in its address."""
        return self.key[0]

    def owns(self, other: Caller) -> bool:
        """Whether both are the same credential of the same endpoint."""
        return (self.endpoint_id, self.credential_id) == (other.endpoint_id, other.credential_id)


class Authenticator:
    """Answers who a credential is; asks the database once per ``keep`` seconds and caller.

    Args:
        database: where to ask.
        failures: how often an address may fail; then only callers known already are looked up.
        keep: seconds for which an answer may be reused.
    """

    def __init__(self, database: Database, failures: RateLimit, keep: float) -> None:
        self._database = database
        self._failures = failures
        self._keep = keep
        self._known: OrderedDict[Key, tuple[Caller, float]] = OrderedDict()
        self._asking: dict[Key, asyncio.Task[Caller | None]] = {}
        self._drops = 0

    async def caller(self, slug: str, authorization: Sequence[str], address: str) -> Caller:
        """The caller with this credential.

        Args:
            slug: the endpoint's name, from the address of the request.
            authorization: the values of the Authorization header.
            address: the client's, which pays for a refusal.

        Raises:
            Problem: ``unauthenticated``, or ``rate_limited`` after too many of those.
            psycopg.Error: the database could not be asked.
        """
        key = (slug, digest(bearer(authorization)))
        known = self._known.get(key)
        if known and known[1] > time.monotonic():
            return known[0]
        if not known and (wait := self._failures.wait(address)):
            raise rate_limited(wait)
        caller = await self._ask(key) if _SLUG.fullmatch(slug) and authorization else None
        if caller is None:
            self._known.pop(key, None)
            if wait := self._failures.take(address):
                raise rate_limited(wait)
            raise own("unauthenticated")
        return caller

    async def still_valid(self, keys: Sequence[Key]) -> list[bool]:
        """Ask the database which credentials still open their endpoints; one round trip."""
        slugs, digests = [slug for slug, _ in keys], [held for _, held in keys]
        valid: list[bool] = await self._database.value(
            STILL_VALID, (slugs, digests), repeatable=True
        )
        return valid

    def drop(self, endpoint_id: str | None = None) -> None:
        """Ask again before the next use: about one endpoint, or about all."""
        self._drops += 1
        for key, (caller, _) in self._known.items():
            if endpoint_id in (None, caller.endpoint_id):
                self._known[key] = (caller, 0.0)

    async def _ask(self, key: Key) -> Caller | None:
        """Ask once for everybody who waits for the same answer."""
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._look_up(key))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(task)

    async def _look_up(self, key: Key) -> Caller | None:
        drops = self._drops
        found, tools = await self._database.row(AUTHENTICATE, (*key, *key), repeatable=True)
        if found is None or "error" in tools:
            return None
        caller = _caller(key, found, tools)
        # An answer from before a drop serves those who wait for it, but is not kept.
        self._known[key] = (caller, time.monotonic() + self._keep if drops == self._drops else 0.0)
        self._known.move_to_end(key)
        if len(self._known) > MAX_CALLERS:
            self._known.popitem(last=False)
        return caller


def bearer(authorization: Sequence[str]) -> bytes:
    """The credential as it was sent; empty when there is not exactly one."""
    if len(authorization) != 1:
        return b""
    scheme, _, credential = authorization[0].partition(" ")
    return credential.strip().encode("latin-1") if scheme.lower() == "bearer" else b""


def _caller(key: Key, found: Mapping[str, Any], tools: Mapping[str, Any]) -> Caller:
    token = AccessToken(
        token="-",  # noqa: S106
        client_id=found["endpoint_id"],
        scopes=found["verbs"],
        subject=found["credential_id"],
        claims={"iss": "switchboard"},
    )
    return Caller(
        key=key,
        endpoint_id=found["endpoint_id"],
        credential_id=found["credential_id"],
        tools=tools["tools"],
        instructions=tools["instructions"],
        shell=tools["shell"],
        user=AuthenticatedUser(token),
    )
