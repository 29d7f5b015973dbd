"""Signing in with an OpenID provider: the code flow, with PKCE, state and nonce.

Authlib speaks the protocol and verifies the ID token: signature by the provider's keys, issuer,
audience, times, nonce. What is remembered between leaving and coming back (state, nonce, PKCE
verifier, where to go then) travels in a cookie, sealed with a key made of the client secret, so
that any process may finish what another began, and good for ten minutes. The provider says who
somebody is there; who that is here, an operator has said before (``human identity add``): nobody
gets in by being known elsewhere. Texts of the provider are shown to nobody.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import logging
import re
import shlex
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.starlette_client import StarletteOAuth2App
from joserfc.errors import JoseError
from starlette.responses import RedirectResponse
from starlette.routing import Route

from switchboard.board_session import Entry, address, own_path
from switchboard.config import LOOPBACK
from switchboard.db import OPEN_BY_IDENTITY
from switchboard.errors import Problem, rate_limited
from switchboard.secrets import Keyring, SecretError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from switchboard.board_session import BoardSessions
    from switchboard.config import Settings

logger = logging.getLogger(__name__)

CALLBACK = "/sign-in/oidc/callback"
SECONDS = 600
KEEP = 3600.0
PAUSE = 2.0  # between two tries, so that nobody can make us ask and ask
HTTP_SECONDS = 10.0
LEEWAY = 60
METADATA = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")
# Signatures that a public key verifies: with others, what is published would be what signs.
ALGORITHM = re.compile(r"(RS|PS|ES)(256|384|512)|EdDSA|Ed25519")
BASIC, POST = "client_secret_basic", "client_secret_post"

NOT_ASKED = "that sign-in was not begun here, or took too long: begin again"
NOT_VOUCHED = "the provider did not say who you are: begin again"
NOT_THERE = "the provider cannot be asked right now: try again in a moment"
REFUSALS = (AuthlibBaseError, JoseError, ValueError, KeyError, TypeError)


class ProviderError(Exception):
    """A provider that is not what it is configured to be."""


class Provider(StarletteOAuth2App):  # type: ignore[misc]  # Authlib is not typed
    """The configured provider: its published metadata, kept for an hour, and its keys.

    Args:
        settings: with an issuer, a client id and a client secret.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(
            None,
            client_id=settings.oidc_client_id,
            client_secret=settings.oidc_client_secret,
            client_kwargs={
                "scope": "openid",
                "code_challenge_method": "S256",
                "timeout": HTTP_SECONDS,
                "follow_redirects": False,
                "trust_env": False,
            },
        )
        self.issuer = settings.oidc_issuer
        self._read_at = self._tried_at = float("-inf")
        self._reading = asyncio.Lock()

    async def load_server_metadata(self) -> dict[str, Any]:
        """What the provider publishes about itself, as far as it is used.

        Raises:
            ProviderError: it speaks for another issuer, lacks an address, or did so just now.
            httpx2.HTTPError: it does not answer.
        """
        async with self._reading:
            if time.monotonic() - self._read_at > KEEP:
                if time.monotonic() - self._tried_at < PAUSE:
                    raise ProviderError("it could not be used a moment ago")
                self._tried_at = time.monotonic()
                self.server_metadata = await self._read_metadata()
                self._read_at = time.monotonic()
        found: dict[str, Any] = self.server_metadata
        return found

    async def _read_metadata(self) -> dict[str, Any]:
        async with self._get_session() as client:
            place = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
            answer = await client.request("GET", place, withhold_token=True)
            answer.raise_for_status()
            published = answer.json()
        found = {name: published.get(name) for name in METADATA}
        if found["issuer"] != self.issuer:
            raise ProviderError("it calls itself by another issuer than SWITCHBOARD_OIDC_ISSUER")
        for name, place in found.items():
            if not isinstance(place, str) or not is_safe(place):
                raise ProviderError(f"its {name} is not an https address")
        offered = published.get("id_token_signing_alg_values_supported") or ["RS256"]
        algorithms = [name for name in offered if ALGORITHM.fullmatch(name)]
        found["id_token_signing_alg_values_supported"] = algorithms
        taken = published.get("token_endpoint_auth_methods_supported") or [BASIC]
        found["token_endpoint_auth_method"] = (
            POST if POST in taken and BASIC not in taken else BASIC
        )
        return found

    async def subject(self, code: str, verifier: str, nonce: str, redirect_uri: str) -> str:
        """Who signed in: the subject that the provider vouches for.

        Args:
            code: from the provider, by the browser.
            verifier: of PKCE.
            nonce: that the ID token has to hold.
            redirect_uri: where the code was sent.

        Raises:
            ProviderError, AuthlibBaseError, JoseError, ValueError: nobody is vouched for.
            httpx2.HTTPError: the provider does not answer.
        """
        token = await self.fetch_access_token(redirect_uri, code=code, code_verifier=verifier)
        wanted = {
            "iss": {"essential": True, "value": self.issuer},
            "aud": {"essential": True, "values": [self.client_id]},
            "sub": {"essential": True},
        }
        claims = await self.parse_id_token(token, nonce, wanted, leeway=LEEWAY)
        if claims is None or not isinstance(claims.get("sub"), str):
            raise ProviderError("its answer holds no ID token")
        subject: str = claims["sub"]
        return subject


class OidcSignIn:
    """The two addresses of the flow.

    Args:
        settings: with the provider's.
        sessions: opens the session, and shows why not.
    """

    def __init__(self, settings: Settings, sessions: BoardSessions) -> None:
        self._provider = Provider(settings)
        self._sessions = sessions
        self._redirect_uri = settings.public_url + CALLBACK
        made = hmac.new(settings.oidc_client_secret.encode(), b"switchboard sign-in", "sha256")
        self._keyring = Keyring((made.digest(),))
        self._cookie = sessions.cookie_name("switchboard-oidc")

    def routes(self) -> list[Route]:
        """To the provider, and back; to be matched before the links."""
        return [
            Route("/sign-in/oidc", self._leave, methods=["GET"]),
            Route(CALLBACK, self._return, methods=["GET"]),
        ]

    async def _leave(self, request: Request) -> Response:
        back = own_path(request.query_params.get("next", ""))
        try:
            begun = await self._provider.create_authorization_url(self._redirect_uri)
        except (httpx2.HTTPError, ProviderError, ValueError) as error:
            return self._unavailable(back, error)
        kept = {name: begun[name] for name in ("state", "nonce", "code_verifier")}
        sealed = self._keyring.seal(
            json.dumps({**kept, "next": back, "until": time.time() + SECONDS}).encode()
        )
        response = RedirectResponse(begun["url"], 303)
        value = base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()
        self._sessions.set_cookie(response, self._cookie, value, SECONDS)
        return response

    async def _return(self, request: Request) -> Response:
        response = await self._finish(request)
        self._sessions.set_cookie(response, self._cookie, "", 0)
        return response

    async def _finish(self, request: Request) -> Response:
        client = address(request)
        if wait := self._sessions.failures.wait(client):
            return self._sessions.door("/", rate_limited(wait))
        kept, given = self._kept(request), request.query_params
        if kept is None or not hmac.compare_digest(
            given.get("state", "").encode(), kept["state"].encode()
        ):
            return self._refuse(client, "/", NOT_ASKED)
        back = own_path(kept["next"])
        if given.get("iss", self._provider.issuer) != self._provider.issuer or "code" not in given:
            return self._refuse(client, back, NOT_VOUCHED)
        try:
            subject = await self._provider.subject(
                given["code"], kept["code_verifier"], kept["nonce"], self._redirect_uri
            )
        except httpx2.HTTPError as error:
            return self._unavailable(back, error)
        except (ProviderError, *REFUSALS) as error:
            # Its text may quote the token.
            logger.warning("sign-in refused: %s", type(error).__name__)
            return self._refuse(client, back, NOT_VOUCHED)
        entry = Entry("oidc", OPEN_BY_IDENTITY, None, unknown(subject))
        return await self._sessions.open(request, entry, (self._provider.issuer, subject), back)

    def _kept(self, request: Request) -> dict[str, Any] | None:
        """What the cookie remembers; None when it is not ours, or too old."""
        value = request.cookies.get(self._cookie, "")
        try:
            sealed = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
            kept: dict[str, Any] = json.loads(self._keyring.open(sealed))
        except (SecretError, binascii.Error, ValueError):
            return None
        return kept if kept["until"] > time.time() else None

    def _refuse(self, client: str, back: str, text: str) -> Response:
        self._sessions.failures.take(client)
        self._sessions.note("oidc", "unauthenticated", time.perf_counter())
        return self._sessions.door(back, Problem("unauthenticated", text))

    def _unavailable(self, back: str, error: Exception) -> Response:
        logger.warning("the OpenID provider cannot be used: %s", _said(error))
        return self._sessions.door(back, Problem("unavailable", NOT_THERE, retry_after=5))


def unknown(subject: str) -> str:
    """What is said to somebody whom the provider knows, but nobody here."""
    shown = "".join(c if c.isprintable() else "?" for c in subject)[:255]
    return (
        f"the provider knows you as {shown}, which is nobody here yet. An operator adds it: "
        f"switchboard human identity add NAME {shlex.quote(shown)}"
    )


def is_safe(place: str) -> bool:
    """Whether nobody in between can read or change what goes there: https, or this machine."""
    parts = urlsplit(place)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)


def _said(error: Exception) -> str:
    """Our own words whole, of others' errors only the kind: their text may quote an answer."""
    return str(error) if isinstance(error, ProviderError) else type(error).__name__
