"""The REST interface: ``/api/v1/…``, for humans with an operator token.

No operation is named here. The routes, and the OpenAPI document, are made from the register in the
database (``api_operations()``): method, path, arguments and where each comes from. A call is one
round trip, ``call_api()``, which authenticates, checks, runs and answers. What the shell adds is
what a database cannot do: read a body that is JSON, an object, not too deep and without a name
twice, and turn answers into HTTP. The body goes to the database as it was written, so that numbers
stay exact.
"""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from switchboard import __version__, logs
from switchboard.auth import bearer
from switchboard.db import API_OPERATIONS, AUTHENTICATE_OPERATOR, CALL_API, Database
from switchboard.errors import Problem, own, rate_limited, unavailable
from switchboard.guard import json_response, problem_response
from switchboard.limits import ClientGone, read_body
from switchboard.secrets import digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.types import Receive, Scope, Send

    from switchboard.limits import RateLimit

PREFIX = "/api/v1"
MAX_DEPTH = 64
MAX_PROVEN = 1000
UNEXPECTED_BODY = 4096  # bytes, where no body is expected: enough to say so
TOKEN = re.compile(rb"sbo_[A-Za-z0-9_-]{43}")
NOT_AN_OBJECT = "the body must be one JSON object: {…}, without a name twice, at most 64 deep"
NOT_JSON = "the body must be JSON: send Content-Type application/json"
TWICE = "may be given once"


class Operation(NamedTuple):
    """A row of the register.

    Attributes:
        name: what the database calls it.
        method, path: where it is.
        description: for the OpenAPI document.
        arguments: JSON Schema properties, each with ``in``.
        required: those that must be given.
        answer: a field that its answer has.
        body_limit: bytes; 0: it takes no body.
    """

    name: str
    method: str
    path: str
    description: str
    arguments: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...]
    answer: str
    body_limit: int


class Rest:
    """ASGI application below ``/api/v1``.

    Args:
        database: where the operations are.
        failures: how often an address may fail; then only tokens that were proven are looked at.
        rate: calls per token.
        public_url: of this server, for the OpenAPI document.
    """

    def __init__(
        self, database: Database, failures: RateLimit, rate: RateLimit, public_url: str
    ) -> None:
        self._database = database
        self._failures = failures
        self._rate = rate
        self._public_url = public_url
        self._router: Router | None = None
        self._document: dict[str, Any] = {}
        self._proven: OrderedDict[bytes, None] = OrderedDict()

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
        operations = [Operation(*row) for row in await self._database.rows(API_OPERATIONS)]
        self._document = openapi(operations, self._public_url)
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

    async def _show(self, _: Request) -> Response:
        return json_response(self._document)

    async def answer(self, operation: Operation, request: Request) -> Response:
        """Answer one call; never raises for what a caller did."""
        started = time.perf_counter()
        noted: dict[str, Any] = {"operation": operation.name}
        outcome = "internal"
        try:
            response = await self._answer(operation, request, noted)
            outcome = noted.pop("code", "ok")
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
        token = digest(self._token(request, client))
        if wait := self._rate.take(token.hex()):
            raise rate_limited(wait)
        try:
            parts = await _parts(operation, request)
            text, human = await self._database.row(
                CALL_API,
                (token, operation.name, *parts, token),
                repeatable=operation.method == "GET",
            )
        except (Problem, psycopg.Error, UnicodeEncodeError) as error:
            known = error if isinstance(error, Problem) else self._database.errors.problem(error)
            if known and self._database.errors.status(known.code) < 500:
                # What is wrong with a request is nobody's business but a caller's that is known.
                human = await self._database.value(AUTHENTICATE_OPERATOR, (token,))
                self._judge(token, human, client)
                noted["human"] = human
            raise
        self._judge(token, human, client)
        noted["human"] = human
        return self._response(text, noted)

    def _token(self, request: Request, client: str) -> bytes:
        token = bearer(request.headers.getlist("authorization"))
        looked_at = TOKEN.fullmatch(token) is not None
        if not (looked_at and digest(token) in self._proven) and (
            wait := self._failures.wait(client)
        ):
            raise rate_limited(wait)
        if not looked_at:
            raise self._refusal(client)
        return token

    def _judge(self, token: bytes, human: str | None, client: str) -> None:
        if human is None:
            self._proven.pop(token, None)
            raise self._refusal(client)
        self._proven[token] = None
        self._proven.move_to_end(token)
        if len(self._proven) > MAX_PROVEN:
            self._proven.popitem(last=False)

    def _refusal(self, client: str) -> Problem:
        if wait := self._failures.take(client):
            return rate_limited(wait)
        return own("unauthenticated")

    def _response(self, text: str, noted: dict[str, Any]) -> Response:
        if not text.startswith('{"error": '):
            return Response(text, media_type="application/json")
        answer = json.loads(text)
        error = answer["error"]
        noted["code"] = error["code"]
        details = {key: value for key, value in error.items() if key not in ("code", "message")}
        problem = Problem(
            error["code"], error["message"], details, retry_after=answer.get("retry_after")
        )
        return problem_response(problem, self._database.errors)


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


async def _parts(operation: Operation, request: Request) -> tuple[str, str, str | None]:
    """Path, query and body of a request, as JSON; the body None when there is none."""
    body = await read_body(
        request.receive,
        operation.body_limit or UNEXPECTED_BODY,
        request.headers.get("content-length"),
    )
    return (
        json.dumps(request.path_params),
        json.dumps(_once(request.query_params.multi_items())),
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


def openapi(operations: Iterable[Operation], public_url: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these operations."""
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _described(one)
    error = {
        "type": "object",
        "required": ["error", "code"],
        "properties": {"error": {"type": "string"}, "code": {"type": "string"}},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Switchboard", "version": __version__},
        "servers": [{"url": public_url}],
        "security": [{"operator": []}],
        "components": {
            "securitySchemes": {
                "operator": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "an operator token, sbo_…",
                }
            },
            "responses": {
                "Error": {
                    "description": "Refused.",
                    "content": {"application/json": {"schema": error}},
                }
            },
        },
        "paths": paths,
    }


def _described(operation: Operation) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.description,
        "parameters": [
            {
                "name": name,
                "in": schema["in"],
                "required": name in operation.required,
                "schema": _schema(schema),
            }
            for name, schema in operation.arguments.items()
            if schema["in"] in ("path", "query")
        ],
        "responses": {
            "200": {
                "description": "Done.",
                "content": {
                    "application/json": {
                        "schema": {"type": "object", "required": [operation.answer]}
                    }
                },
            },
            "default": {"$ref": "#/components/responses/Error"},
        },
    }
    if operation.body_limit:
        shown["requestBody"] = {
            "required": any(
                schema["in"] in ("body", "whole body") and name in operation.required
                for name, schema in operation.arguments.items()
            ),
            "content": {"application/json": {"schema": _body_schema(operation)}},
        }
    return shown


def _body_schema(operation: Operation) -> Mapping[str, Any]:
    for schema in operation.arguments.values():
        if schema["in"] == "whole body":
            whole: Mapping[str, Any] = schema["schema"]
            return whole
    fields = {
        name: _schema(schema)
        for name, schema in operation.arguments.items()
        if schema["in"] == "body"
    }
    return {"type": "object", "additionalProperties": False, "properties": fields}


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    shown = {key: value for key, value in schema.items() if key != "in"}
    return {"type": "string", **shown} if "enum" in shown else shown
