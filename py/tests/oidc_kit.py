"""An OpenID provider for tests: real keys, real tokens, and every way to get them wrong."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import uvicorn
from conftest import free_port, until
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

CLIENT_ID, CLIENT_SECRET = "switchboard-board", "a client secret, of 32 bytes or more"

FIRST_KEY, OTHER_KEY = (RSAKey.generate_key(2048, {"kid": kid}) for kid in ("first", "second"))


def signed(header: bytes, claims: dict[str, Any], key: bytes | None = None) -> str:
    """A token by hand, for what no library makes: HMAC with any key, or no signature at all."""
    parts = [
        base64.urlsafe_b64encode(part).rstrip(b"=")
        for part in (header, json.dumps(claims).encode())
    ]
    made = hmac.new(key, b".".join(parts), "sha256").digest() if key else b""
    return b".".join([*parts, base64.urlsafe_b64encode(made).rstrip(b"=")]).decode()


class Issuer:
    """The provider; attributes are what it answers with, and may be changed.

    Attributes:
        key: what signs; its public half is published.
        published: what changes in its metadata.
        answer: what the token endpoint answers instead of tokens.
        granted: the codes, and what each stands for.
        asked: how often each address was asked.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = FIRST_KEY
        self.published: dict[str, Any] = {}
        self.answer: JSONResponse | None = None
        self.granted: dict[str, dict[str, Any]] = {}
        self.asked: dict[str, int] = {}
        self.seen: list[str] = []
        app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._metadata),
                Route("/jwks", self._keys),
                Route("/token", self._token, methods=["POST"]),
            ]
        )
        self._server = uvicorn.Server(
            uvicorn.Config(app, port=self.port, log_config=None, access_log=False, lifespan="off")
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        until(lambda: self._server.started, "the provider starts")

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)

    def approve(self, address: str, subject: str = "ada-1", **changes: Any) -> str:
        """What the person's consent makes of the address they were sent to: a code.

        Args:
            address: of the authorization endpoint, with its query.
            subject: who they are.
            changes: claims of the ID token; None leaves one out.
        """
        query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert address.startswith(f"{self.url}/authorize?")
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT_ID
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        now = int(time.time())
        claims = {
            "iss": self.url,
            "sub": subject,
            "aud": CLIENT_ID,
            "exp": now + 300,
            "iat": now,
            "nonce": query["nonce"],
            **changes,
        }
        code = secrets.token_urlsafe(16)
        self.granted[code] = {
            "challenge": query["code_challenge"],
            "redirect_uri": query["redirect_uri"],
            "claims": {name: value for name, value in claims.items() if value is not None},
        }
        return code

    def sign(self, claims: dict[str, Any]) -> str:
        """An ID token."""
        header = {"alg": "RS256", "kid": self.key.kid}
        return jwt.encode(header, claims, self.key)

    def _count(self, request: Request) -> None:
        path = request.url.path
        self.asked[path] = self.asked.get(path, 0) + 1

    async def _metadata(self, request: Request) -> JSONResponse:
        self._count(request)
        return JSONResponse(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/jwks",
                "id_token_signing_alg_values_supported": ["RS256"],
                **self.published,
            }
        )

    async def _keys(self, request: Request) -> JSONResponse:
        self._count(request)
        return JSONResponse(KeySet([self.key]).as_dict(private=False))

    async def _token(self, request: Request) -> JSONResponse:
        self._count(request)
        if self.answer is not None:
            return self.answer
        form = {
            name: values[0] for name, values in parse_qs((await request.body()).decode()).items()
        }
        basic = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        known = request.headers.get("authorization") == f"Basic {basic}"
        grant = self.granted.pop(form.get("code", ""), None)  # a code is good once
        challenge = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        made = base64.urlsafe_b64encode(challenge).rstrip(b"=").decode()
        if (
            not known
            or grant is None
            or made != grant["challenge"]
            or form["redirect_uri"] != grant["redirect_uri"]
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        token = self.sign(grant["claims"])
        access = secrets.token_urlsafe(16)
        self.seen += [token, access, form["code_verifier"], form["code"]]
        return JSONResponse(
            {"access_token": access, "token_type": "Bearer", "id_token": token, "expires_in": 60}
        )


class Unsigned(Issuer):
    """Signs nothing: the algorithm none."""

    def sign(self, claims: dict[str, Any]) -> str:
        return signed(b'{"alg":"none"}', claims)


class Symmetric(Issuer):
    """Signs with what is published, as if it were a shared secret."""

    def sign(self, claims: dict[str, Any]) -> str:
        return signed(b'{"alg":"HS256"}', claims, self.key.as_pem(private=False))


class SharedSecret(Issuer):
    """Signs with the client secret."""

    def sign(self, claims: dict[str, Any]) -> str:
        return signed(b'{"alg":"HS256"}', claims, CLIENT_SECRET.encode())


class Forger(Issuer):
    """Signs with another key than the published one, under its name."""

    def sign(self, claims: dict[str, Any]) -> str:
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, OTHER_KEY)


@contextmanager
def running(kind: type[Issuer] = Issuer) -> Iterator[Issuer]:
    """A provider that answers."""
    issuer = kind()
    issuer.start()
    try:
        yield issuer
    finally:
        issuer.stop()
