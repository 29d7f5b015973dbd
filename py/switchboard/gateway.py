"""The server process: one Starlette application, and what runs beside it.

``create_app`` puts the parts together; ``uvicorn_config`` says how they are served.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Mount, Route

from switchboard import lacking
from switchboard.access import Access
from switchboard.auth import Authenticator
from switchboard.board import Board
from switchboard.board_render import Render
from switchboard.board_session import BoardSessions
from switchboard.connections import BoundedProtocol, allowed
from switchboard.db import Database
from switchboard.dispatcher import Dispatcher
from switchboard.doorbell import Doorbell
from switchboard.errors import Problem
from switchboard.guard import Guard, problem_response
from switchboard.health import Health
from switchboard.intake import Intake
from switchboard.limits import RateLimit
from switchboard.listener import CONTROL, OUTBOX, READY, Listener
from switchboard.mcp_server import Gate, build_server
from switchboard.metrics import Metrics
from switchboard.operations import Operations
from switchboard.outbound import Outbound
from switchboard.presence import Presence
from switchboard.receiver_cache import ReceiverCache
from switchboard.rest import PREFIX, Rest
from switchboard.secrets import Keyring
from switchboard.sessions import Sessions
from switchboard.tally import Tally
from switchboard.ticker import Ticker
from switchboard.tools import Toolbox
from switchboard.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from starlette.requests import Request
    from starlette.responses import Response

    from switchboard.config import Settings

logger = logging.getLogger(__name__)

SESSIONS = "sessions"  # what the control channel says when sessions of the board ended

NOTHING_HERE = {
    HTTPStatus.NOT_FOUND: Problem("not_found", "there is nothing at this address: check it"),
    HTTPStatus.METHOD_NOT_ALLOWED: Problem(
        "invalid_argument", "this address does not take that method", status=405
    ),
}


def create_app(settings: Settings) -> Starlette:
    """The application; it connects to the database when its lifespan begins.

    Args:
        settings: with a ``database_url``.
    """
    https = settings.public_url.startswith("https:")
    database = Database(settings)
    keyring = Keyring(settings.secret_keys)
    failures = RateLimit(settings.failure_rate, settings.failure_burst)
    authenticator = Authenticator(database, failures, settings.auth_cache)
    outbound = Outbound(settings)
    at_once = max(1, settings.pool_size // 2)  # the rest is for calls
    waiting = Waiting(database, at_once)
    toolbox = Toolbox(database, keyring, settings.public_url, outbound, waiting)
    manager = StreamableHTTPSessionManager(
        build_server(toolbox),
        json_response=True,
        session_idle_timeout=None,  # Sessions ends them: it also sees calls that pass the SDK by
        # Guard has checked both already, for every route.
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        max_request_body_size=settings.mcp_body_limit,
        max_sessions=settings.max_sessions,
    )
    sessions = Sessions(
        manager,
        authenticator,
        settings.session_idle_timeout,
        settings.endpoint_sessions,
        waiting.lines,
    )
    presence = Presence(database, sessions)
    doorbell = Doorbell(database, sessions, at_once)
    gate = Gate(
        manager,
        authenticator,
        sessions,
        toolbox,
        database,
        RateLimit(settings.mcp_rate, settings.mcp_burst),
        doorbell,
        body_limit=settings.mcp_body_limit,
        handshake_only=settings.mcp_handshake_only,
    )
    receivers = ReceiverCache(database, settings.auth_cache)
    tally = Tally(database)
    intake = Intake(
        database,
        keyring,
        receivers,
        tally,
        RateLimit(settings.webhook_rate, settings.webhook_burst),
        failures,
        settings.webhook_body_limit,
    )

    operations = Operations(database, keyring, settings.public_url, outbound)
    render = Render()
    humans = BoardSessions(
        database, failures, render, settings.public_url, settings.oidc_name or None
    )
    rest = Rest(
        database,
        operations,
        humans,
        RateLimit(settings.mcp_rate, settings.mcp_burst),
        settings.public_url,
    )
    metrics = Metrics(database, failures, settings.metrics_token)

    def changed(endpoint_id: str | None) -> None:
        if endpoint_id == SESSIONS:  # of the board, which asks the database each time
            return
        if endpoint_id is None:
            database.repair()
        authenticator.drop(endpoint_id)
        receivers.drop(endpoint_id)
        sessions.recheck()

    def ready(note: str | None) -> None:
        waiting.ready(note)
        doorbell.ready(note)

    dispatcher = Dispatcher(database, keyring, outbound)
    listener = Listener(
        settings.listen_url,
        {CONTROL: changed, READY: ready, OUTBOX: lambda _: dispatcher.wake()},
    )
    health = Health(database, listener, sessions)
    board = Board(
        database,
        humans,
        operations,
        render,
        health.facts,
        settings.board_streams,
        https=https,
    )
    ticker = Ticker(database, settings.tick_interval)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await database.open()
        dispatching = _start(dispatcher.run())
        beside = [
            dispatching,
            _start(database.read_errors()),
            _start(lacking.report(database)),
            _start(listener.run()),
            _start(sessions.run()),
            _start(doorbell.run()),
            _start(ticker.run()),
            _start(tally.run()),
            _start(presence.run()),
            _start(board.streams.run()),
        ]
        try:
            async with manager.run():
                yield
                database.hurry()
        finally:
            dispatcher.stop()
            await asyncio.wait([dispatching], timeout=settings.shutdown_timeout)
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await outbound.aclose()
            await waiting.close()
            await doorbell.close()
            await tally.close()
            await presence.close()
            await database.close()

    async def refuse(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        problem = NOTHING_HERE.get(HTTPStatus(status)) or Problem(
            "invalid_argument", HTTPStatus(status).phrase, status=status
        )
        if "text/html" in request.headers.get("accept", ""):
            response = board.sorry(problem)
        else:
            response = problem_response(problem, database.errors)
        response.headers.update(getattr(error, "headers", None) or {})
        return response

    app = Starlette(
        routes=[
            Route("/mcp/{slug}", gate),
            Route("/webhooks/w/{token}", intake.receive, methods=["POST"]),
            Mount(PREFIX, rest),
            *([Route("/metrics", metrics.show)] if settings.metrics_token else []),
            Route("/healthz", health.alive),
            Route("/readyz", health.ready),
            *_ways_in(settings, humans),
            *board.routes(),
        ],
        middleware=[
            Middleware(Access),
            Middleware(
                Guard,
                hosts=settings.allowed_hosts,
                origins=settings.allowed_origins,
                https=https,
            ),
        ],
        exception_handlers={HTTPException: refuse},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.sessions = sessions
    app.state.listener = listener
    app.state.waiting = waiting
    app.state.dispatcher = dispatcher
    app.state.streams = board.streams
    return app


def _ways_in(settings: Settings, humans: BoardSessions) -> list[Route]:
    """How people sign in; the library of a provider is loaded only where there is one."""
    if not settings.oidc_issuer:
        return humans.routes()
    from switchboard.oidc import OidcSignIn

    return OidcSignIn(settings, humans).routes() + humans.routes()


def uvicorn_config(settings: Settings) -> uvicorn.Config:
    """How the application is served: one process, for sessions live in its memory."""
    return uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        http=BoundedProtocol,
        ws="none",
        limit_concurrency=allowed(settings),
        loop="uvloop",
        log_config=None,
        access_log=False,  # it would hold the tokens of webhook addresses
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_graceful_shutdown=max(1, int(settings.shutdown_timeout)),
    )


def _start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(work)
