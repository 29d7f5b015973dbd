"""The REST interface: ``/api/v1/…``, for humans with an operator token, or signed in at the board.

No operation is named here. The routes, and the OpenAPI document (``openapi``), are made from the
register in the database (``api_operations()``): method, path, arguments and where each comes from.
``operations`` makes the call. What is done here is HTTP: find out who calls, read a body that is
JSON, an object, not too deep and without a name twice, and turn answers into responses. Who comes
with the cookie of the board proves with X-CSRF-Token, and the Origin, that it is the board's page
that asks, unless nothing is changed.
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import psycopg
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from switchboard import logs
from switchboard.auth import bearer
from switchboard.db import API_SHAPES, ERROR_TABLE, Database
from switchboard.errors import Problem, own, rate_limited, unavailable
from switchboard.guard import json_response, problem_response
from switchboard.limits import ClientGone, read_body
from switchboard.openapi import openapi
from switchboard.secrets import digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.routing import BaseRoute
    from starlette.types import Receive, Scope, Send

    from switchboard.board_session import BoardSessions
    from switchboard.limits import RateLimit
    from switchboard.operations import Operation, Operations

PREFIX = "/api/v1"
MAX_DEPTH = 64
UNEXPECTED_BODY = 4096  # bytes, where no body is expected: enough to say so
TOKEN = re.compile(rb"sbo_[A-Za-z0-9_-]{43}")
NOT_AN_OBJECT = "the body must be one JSON object: {…}, without a name twice, at most 64 deep"
NOT_JSON = "the body must be JSON: send Content-Type application/json"
TWICE = "may be given once"
SAFE = ("GET", "HEAD")
FORGED = (
    "with the cookie of the board, X-CSRF-Token has to be the token of one of its pages, and the "
    "request has to come from there: reload the page, or use an operator token"
)


class Rest:
    """ASGI application below ``/api/v1``.

    Args:
        database: what the shapes of answers come from, and what errors mean.
        operations: what can be called.
        sessions: the cookies of the board.
        rate: calls per token or session.
        public_url: of this server, for the OpenAPI document.
    """

    def __init__(
        self,
        database: Database,
        operations: Operations,
        sessions: BoardSessions,
        rate: RateLimit,
        public_url: str,
    ) -> None:
        self._database = database
        self._operations = operations
        self._sessions = sessions
        self._proven = sessions.proven
        self._rate = rate
        self._public_url = public_url
        self._router: Router | None = None
        self._document: dict[str, Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            router = self._router or await self._read_register()
        except psycopg.Error as error:
            problem = self._database.errors.problem(error) or unavailable()
            await problem_response(problem, self._database.errors)(scope, receive, send)
        else:
            await router({**scope, "root_path": "", "app_root_path": ""}, receive, send)

    async def _read_register(self) -> Router:
        operations = list((await self._operations.register()).values())
        shapes = await self._database.rows(API_SHAPES)
        codes = [row[1] for row in await self._database.rows(ERROR_TABLE)]
        self._document = openapi(operations, shapes, codes, self._public_url, self._sessions.cookie)
        by_path: dict[str, dict[str, Operation]] = {}
        for one in operations:
            by_path.setdefault(one.path, {})[one.method] = one
        routes = [
            Route(path, _Address(self, methods), methods=list(methods))
            for path, methods in by_path.items()
        ]
        self._router = Router([Route(f"{PREFIX}/openapi.json", self._show), *routes])
        self._router.redirect_slashes = False
        return self._router

    @property
    def routes(self) -> list[BaseRoute]:
        """What is served, as far as the register was read; the log names them."""
        return self._router.routes if self._router else []

    async def _show(self, _: Request) -> Response:
        return json_response(self._document)

    async def answer(self, operation: Operation, request: Request) -> Response:
        """Answer one call; never raises for what a caller did."""
        started = time.perf_counter()
        noted: dict[str, Any] = {"operation": operation.name}
        outcome = "internal"
        try:
            response = await self._answer(operation, request, noted)
            outcome = "ok"
        except ClientGone:
            outcome = "client_gone"
            raise
        except (Problem, psycopg.Error, UnicodeEncodeError) as error:
            problem = error if isinstance(error, Problem) else self._database.errors.problem(error)
            if problem is None:
                raise
            outcome = problem.code
            response = problem_response(problem, self._database.errors)
        finally:
            logs.event("rest.call", **noted, outcome=outcome, ms=logs.milliseconds(started))
        return response

    async def _answer(
        self, operation: Operation, request: Request, noted: dict[str, Any]
    ) -> Response:
        client = request.client.host if request.client else ""
        secret = self._secret(request, client)
        if wait := self._rate.take(secret.hex()):
            raise rate_limited(wait)
        try:
            parts = await _parts(operation, request)
        except (Problem, UnicodeEncodeError):
            # What is wrong with a request is nobody's business but a caller's that is known.
            noted["human"] = human = await self._operations.human(secret)
            self._judge(secret, human, client)
            raise
        answer = await self._operations.call(operation.name, secret, *parts)
        noted["human"] = answer.human
        if answer.human or not answer.problem:
            self._judge(secret, answer.human, client)
        if answer.problem:
            raise answer.problem
        return Response(answer.text, media_type="application/json")

    def _secret(self, request: Request, client: str) -> bytes:
        """The digest of what the request opens with."""
        given = request.headers.getlist("authorization")
        cookie = None if given else self._sessions.secret(request)
        if cookie is None:
            token = bearer(given)
            opens = digest(token) if TOKEN.fullmatch(token) else None
        else:
            opens = self._sessions.digest(cookie)
        if wait := self._proven.wait(opens, client):
            raise rate_limited(wait)
        if opens is None:
            raise self._refusal(None, client)
        if cookie and request.method not in SAFE:
            sent = request.headers.get("x-csrf-token", "")
            if not self._sessions.checks(request, cookie, sent):
                raise Problem("forbidden", FORGED)
        return opens

    def _judge(self, secret: bytes, human: str | None, client: str) -> None:
        if human is None:
            raise self._refusal(secret, client)
        self._proven.good(secret)

    def _refusal(self, secret: bytes | None, client: str) -> Problem:
        if wait := self._proven.bad(secret, client):
            return rate_limited(wait)
        return own("unauthenticated")


class _Address:
    """The operations of one path, by method, as Starlette calls them."""

    def __init__(self, rest: Rest, operations: Mapping[str, Operation]) -> None:
        self._rest = rest
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        response = await self._rest.answer(self._operations[method], Request(scope, receive))
        await response(scope, receive, send)


async def _parts(
    operation: Operation, request: Request
) -> tuple[dict[str, Any], dict[str, str], str | None]:
    """Path, query and body of a request; the body is JSON text, None when there is none.

    What the operation does not know is refused by its name. Its value, perhaps a token in the wrong
    place, goes no further: not to the database, which may log what it is given.
    """
    body = await read_body(
        request.receive,
        operation.body_limit or UNEXPECTED_BODY,
        request.headers.get("content-length"),
    )
    query = _once(request.query_params.multi_items())
    return (
        request.path_params,
        {name: value if name in operation.arguments else "" for name, value in query.items()},
        json_object(body, request.headers.get("content-type", "")) if body else None,
    )


def _once(items: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in items:
        if name in found:
            shown = name[:40]
            details = {"field": shown, "reason": TWICE}
            raise Problem("invalid_argument", f"{shown} {TWICE}", details)
        found[name] = value
    return found


def json_object(body: bytes, content_type: str) -> str:
    """The text of a body that is one JSON object.

    Args:
        body: UTF-8.
        content_type: the header.

    Raises:
        Problem: ``invalid_argument``: it is something else, has a name twice, or is too deep.
    """
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise Problem("invalid_argument", NOT_JSON, {"field": "body"})
    try:
        text = body.decode()
        # The values are not used: numbers of any size do, and what is none the database refuses.
        value = json.loads(
            text,
            parse_int=len,
            parse_float=len,
            parse_constant=len,
            object_pairs_hook=_unique,
        )
    except (ValueError, RecursionError):
        text, value = "", None
    if not isinstance(value, dict) or _depth(value) > MAX_DEPTH:
        raise Problem("invalid_argument", NOT_AN_OBJECT, {"field": "body"})
    return text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [
            inner for one in level for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return depth
