"""MCP over Streamable HTTP, for all endpoints: the gate in front, and the SDK's server behind it.

The gate authenticates every request before anything else is looked at, and hands it to the SDK's
one session manager. Tool calls in a live session it answers itself: the answer is one database
round trip, and passing it through the SDK's streams and models costs more than the call. What is
unusual about a request (no session, not acceptable, not well formed) is left to the SDK, which
knows the protocol.

A server that speaks MCP 2026-07-28 has no stream to push on; clients that probe for it are refused
in the form that makes them fall back to a version with sessions. Those learn from initialize that
they may be rung: doorbells come on the stream that a session opens.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from psycopg import Error as DatabaseError
from starlette.datastructures import Headers

from switchboard import __version__, jsonrpc
from switchboard.connections import connection_of
from switchboard.errors import Problem, own, rate_limited, unavailable
from switchboard.guard import problem_response
from switchboard.jsonrpc import SESSION_HEADER
from switchboard.limits import RateLimit, read_body
from switchboard.presence import client_name
from switchboard.stream import Stream
from switchboard.waiting import ARGUMENT, Line

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.types import Message, Receive, Scope, Send

    from switchboard.auth import Authenticator, Caller
    from switchboard.db import Database
    from switchboard.doorbell import Doorbell
    from switchboard.sessions import Session, Sessions
    from switchboard.tools import Toolbox

REQUEST_SECONDS = 90.0  # more than a call may wait
CAPABILITY = "claude/channel"
FULL = "this endpoint has too many open sessions: close one, or wait until an idle one has ended"

Context = ServerRequestContext[Any, Any]


class _Server(Server[Any]):
    """Tells clients that have sessions that they may be rung."""

    def get_capabilities(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
        *,
        protocol_version: str | None = None,
    ) -> types.ServerCapabilities:
        experimental = dict(experimental_capabilities or {})
        if protocol_version is None:  # initialize; it names a version where there are no sessions
            experimental[CAPABILITY] = {}
        return super().get_capabilities(
            notification_options, experimental, extensions, protocol_version=protocol_version
        )


def build_server(toolbox: Toolbox) -> Server[Any]:
    """The SDK's server: tools/list, initialize's instructions, and the calls left to the SDK."""

    async def list_tools(ctx: Context, _: types.PaginatedRequestParams | None) -> HandlerResult:
        return types.ListToolsResult.model_validate({"tools": _caller(ctx).tools})

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> HandlerResult:
        state, arguments = _state(ctx), params.arguments or {}
        # Between execute and commit nothing may cut in; calls that wait see to that themselves.
        with anyio.CancelScope(shield=not arguments.get(ARGUMENT)):
            outcome = await toolbox.call(state["line"], params.name, arguments, state["text"])
        if outcome.code == "unknown_tool":
            raise MCPError(types.INVALID_PARAMS, outcome.message)
        return types.CallToolResult(
            content=[types.TextContent(text=outcome.text)],
            structured_content=json.loads(outcome.text),
            is_error=outcome.code != "ok",
        )

    async def greet(ctx: Context, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method == "initialize" and isinstance(result, dict) and ctx.request is not None:
            result["instructions"] = _caller(ctx).instructions
            _state(ctx)["initialized"] = True
        return result

    server: Server[Any] = _Server(
        "switchboard",
        version=__version__,
        on_list_tools=list_tools,  # type: ignore[arg-type]
        on_call_tool=call_tool,  # type: ignore[arg-type]
    )
    server.middleware[:] = [greet]
    return server


def _state(ctx: Context) -> dict[str, Any]:
    request: Any = ctx.request
    state: dict[str, Any] = request.scope["state"]
    return state


def _caller(ctx: Context) -> Caller:
    caller: Caller = _state(ctx)["caller"]
    return caller


class Gate:
    """ASGI endpoint of ``/mcp/{slug}``.

    Args:
        manager: the SDK's, which runs ``build_server``'s server.
        authenticator: says who calls.
        sessions: the register of sessions.
        toolbox: calls tools.
        database: has the error table.
        rate: requests per endpoint.
        doorbell: rings on the streams that sessions open.
        body_limit: bytes.
        handshake_only: refuse protocol versions without sessions.
        request_seconds: after this a POST that the SDK has not answered is given up.
    """

    def __init__(
        self,
        manager: StreamableHTTPSessionManager,
        authenticator: Authenticator,
        sessions: Sessions,
        toolbox: Toolbox,
        database: Database,
        rate: RateLimit,
        doorbell: Doorbell,
        *,
        body_limit: int,
        handshake_only: bool = True,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        self._manager = manager
        self._authenticator = authenticator
        self._sessions = sessions
        self._toolbox = toolbox
        self._database = database
        self._rate = rate
        self._doorbell = doorbell
        self._body_limit = body_limit
        self._handshake_only = handshake_only
        self._request_seconds = request_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            await self._serve(scope, receive, send)
        except Problem as problem:
            await problem_response(problem, self._database.errors)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        caller = await self._authenticate(scope, headers)
        scope["user"] = caller.user
        scope["state"] = {**scope.get("state", {}), "caller": caller}
        session = self._sessions.get(headers.get(SESSION_HEADER), caller)
        method = scope["method"]
        if method == "POST":
            if wait := self._rate.take(caller.endpoint_id):
                raise rate_limited(wait)
            with self._sessions.use(session):
                await self._post(caller, session, headers, scope, receive, send)
        elif method in ("GET", "DELETE"):
            if self._is_refused_version(headers):
                await jsonrpc.refuse_version(headers, None)(scope, receive, send)
                return
            # Nothing is replayed, what was missed is in the queue; the SDK would not answer at all.
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"last-event-id"]
            with self._sessions.use(session):
                await self._stream_or_end(session, scope, receive, send)
        else:
            text = "this address takes GET, POST and DELETE"
            problem = Problem("invalid_argument", text, status=405)
            await problem_response(problem, self._database.errors)(scope, receive, send)

    async def _stream_or_end(
        self, session: Session | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if session is None:  # the SDK says what is wrong
            await self._manager.handle_request(scope, receive, send)
        elif scope["method"] == "GET":
            stream = Stream(session, send, connection_of(scope), self._doorbell.attach)
            try:
                await self._manager.handle_request(scope, receive, stream.send)
            finally:
                self._doorbell.detach(stream)
        else:
            await self._manager.handle_request(scope, receive, send)
            await self._sessions.end([session], "closed by the client")

    async def _authenticate(self, scope: Scope, headers: Headers) -> Caller:
        client = scope.get("client")
        try:
            return await self._authenticator.caller(
                scope["path_params"]["slug"],
                headers.getlist("authorization"),
                client[0] if client else "",
            )
        except DatabaseError as error:
            raise self._database.errors.problem(error) or unavailable() from error

    async def _post(
        self,
        caller: Caller,
        session: Session | None,
        headers: Headers,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        if not headers.get("content-type", "").lower().startswith("application/json"):
            raise Problem("invalid_argument", "the Content-Type must be application/json")
        body = await read_body(receive, self._body_limit, headers.get("content-length"))
        text, message = jsonrpc.parse(body)
        if self._is_refused_version(headers):
            await jsonrpc.refuse_version(headers, message)(scope, receive, send)
            return
        request_id = message.get("id") if isinstance(message, dict) else None
        line = Line(caller, receive, connection_of(scope), session, request_id)
        call = jsonrpc.tool_call(message) if session and jsonrpc.accepts_json(headers) else None
        if call and session:
            outcome = await self._toolbox.call(line, *call, text)
            if outcome.code == "unauthenticated" or line.is_refused:  # since it was last asked
                self._authenticator.drop(caller.endpoint_id)
                self._sessions.recheck()
                raise own("unauthenticated")
            await jsonrpc.answer(message, outcome, session.id)(scope, receive, send)
            return
        given_up = jsonrpc.cancelled(message)
        if session and given_up is not None:
            self._sessions.cancel(session, given_up)
        if SESSION_HEADER not in headers and self._sessions.is_full(caller):
            raise Problem("unavailable", FULL, retry_after=30)
        scope["state"] |= {"text": text, "line": line, "client": client_name(message)}
        await self._hand_over(caller, body, scope, receive, send)

    async def _hand_over(
        self, caller: Caller, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Let the SDK answer; register the session that it opens, if it does."""
        state = scope["state"]
        unread = [body]
        started = False
        stray: str | None = None

        async def replay() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await receive()

        async def watch(message: Message) -> None:
            nonlocal started, stray
            if message["type"] == "http.response.start":
                started = True
                opened = Headers(raw=message["headers"]).get(SESSION_HEADER)
                if opened and opened not in Headers(scope=scope).getlist(SESSION_HEADER):
                    if state.get("initialized"):
                        self._sessions.add(opened, caller, state["client"])
                    elif message["status"] < 400:
                        stray = opened
            await send(message)

        try:
            async with asyncio.timeout(self._request_seconds):
                await self._manager.handle_request(scope, replay, watch)
        except TimeoutError:
            if started:
                raise
            text = "no answer in time: two requests in flight may have had the same id"
            raise Problem("unavailable", text, retry_after=1) from None
        finally:
            if stray:
                await self._sessions.discard(stray)

    def _is_refused_version(self, headers: Headers) -> bool:
        version = headers.get("mcp-protocol-version")
        return (
            self._handshake_only
            and version is not None
            and version not in HANDSHAKE_PROTOCOL_VERSIONS
        )
