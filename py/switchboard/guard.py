"""What holds for every request and every answer, whatever the route.

Host and Origin must be on the allow-lists; an error that nobody caught is logged and answered
without its text; every answer carries the headers that keep a browser from making more of it than
it is.
"""

from __future__ import annotations

import json
import logging
import math
from typing import TYPE_CHECKING

from starlette.responses import Response

from switchboard.errors import ErrorTable, Problem, internal
from switchboard.limits import ClientGone, discard

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

HEADERS = [(b"x-content-type-options", b"nosniff")]
DEFAULT_HEADERS = [
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
HTTPS_HEADERS = [(b"strict-transport-security", b"max-age=31536000")]


class _BeforeTheEnd(Response):
    """An answer to a request that is still coming in: sent at once, ended when that is read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_unended(message: Message) -> None:
            more = {"more_body": True} if message["type"] == "http.response.body" else {}
            await send({**message, **more})

        await super().__call__(scope, receive, send_unended)
        await discard(receive)
        await send({"type": "http.response.body"})


def json_response(
    body: Mapping[str, object],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    kind: type[Response] = Response,
) -> Response:
    """A JSON answer."""
    text = json.dumps(body, ensure_ascii=False)
    return kind(text, status, headers, media_type="application/json")


def problem_response(problem: Problem, errors: ErrorTable) -> Response:
    """The answer to a refused request: ``{"error", "code", …details}``."""
    headers: dict[str, str] = {}
    status = problem.status or errors.status(problem.code)
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer error="invalid_token"'
    if problem.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(problem.retry_after)))
    if status == 413:
        headers["Connection"] = "close"  # the rest of the body is of no use
        return json_response(problem.body(), status, headers, _BeforeTheEnd)
    return json_response(problem.body(), status, headers)


class Guard:
    """ASGI middleware, outermost.

    Args:
        app: what is guarded.
        hosts: Host header values that are served; anything else is answered 421.
        origins: Origin header values that are served; anything else is answered 403.
        https: whether the public address is https.
    """

    def __init__(
        self, app: ASGIApp, hosts: Iterable[str], origins: Iterable[str], *, https: bool = False
    ) -> None:
        self._app = app
        self._hosts = {host.lower().encode("latin-1") for host in hosts}
        self._origins = {origin.lower().encode("latin-1") for origin in origins}
        self._always = HEADERS + (HTTPS_HEADERS if https else [])
        self._errors = ErrorTable()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                given = message.setdefault("headers", [])
                names = {name.lower() for name, _ in given}
                given.extend(self._always)
                given.extend(pair for pair in DEFAULT_HEADERS if pair[0] not in names)
            await send(message)

        try:
            if refusal := self._refuse(scope):
                await problem_response(refusal, self._errors)(scope, receive, send_guarded)
            else:
                await self._app(scope, receive, send_guarded)
        except ClientGone:
            return
        except Exception:
            problem = internal()
            logger.exception("request failed, log id %s", problem.details["log_id"])
            if started:
                raise
            await problem_response(problem, self._errors)(scope, receive, send_guarded)

    def _refuse(self, scope: Scope) -> Problem | None:
        hosts = [value.lower() for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            text = (
                "this host is not served here: the operator lists it in SWITCHBOARD_ALLOWED_HOSTS"
            )
            return Problem("forbidden", text, status=421)
        origins = [value.lower() for name, value in scope["headers"] if name == b"origin"]
        if any(origin not in self._origins for origin in origins):
            text = "this origin is not served: the operator lists it in SWITCHBOARD_ALLOWED_ORIGINS"
            return Problem("forbidden", text, status=403)
        return None
