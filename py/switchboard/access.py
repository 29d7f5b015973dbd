"""One log line a request: what was asked for, by its route, and how that went.

A path may hold a secret (the token of a receiver, the code of a sign-in link), and so may a query,
a header or a path that was mistyped. So the line has none of them: its route is the template that
the path matched, ``-`` when it matched none. Who serves the request adds what it knows: the verb,
the endpoint that was authenticated, the human. A stream's line is written when it ends.
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

from starlette.routing import BaseRoute, Mount, Route

from switchboard import logs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

NOWHERE = "-"
ERROR_BYTES = 4096
CODE = re.compile(r"[a-z_]{1,40}")
GONE = "client_gone"


class Access:
    """ASGI middleware, outermost: also what ``Guard`` refuses has a line.

    Args:
        app: what is served.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, then log it."""
        if scope["type"] != "http" or not logs.wanted():
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0
        code = GONE

        async def watch(message: Message) -> None:
            nonlocal status, code
            if message["type"] == "http.response.start":
                status = message["status"]
                code = "ok" if status < 400 else f"http_{status}"
            elif status >= 400 and message.get("body"):
                code = error_code(message["body"]) or code
            await send(message)

        with logs.one_line() as line:
            try:
                await self._app(scope, receive, watch)
            except Exception:
                code = "internal"
                raise
            finally:
                fields = self._fields(scope, line, status, code)
                line.is_told = True
                logs.event(line.name, **fields, ms=logs.milliseconds(started))

    @staticmethod
    def _fields(scope: Scope, line: logs.Line, status: int, code: str) -> dict[str, Any]:
        """What the line says, but for how long it took."""
        told = {key: value for key, value in line.fields.items() if key != "ms"}
        caller = scope.get("state", {}).get("caller")  # who was authenticated, over MCP
        known = {"endpoint": caller.slug} if caller else {}
        app = scope.get("app")
        return {
            "method": scope["method"] if scope["method"].isalpha() else NOWHERE,
            "route": (app and template(app.routes, scope["path"])) or NOWHERE,
            "status": status,
            **known,
            **told,
            "outcome": told.get("outcome", code),
        }


def template(routes: Iterable[BaseRoute], path: str, below: str = "") -> str | None:
    """The path of the route that a path matches, such as ``/todos/{id}``; None: it matches none.

    Args:
        routes: in the order in which they are tried.
        path: what was asked for.
        below: where they are mounted.
    """
    for route in routes:
        if isinstance(route, Mount):
            if path.startswith(f"{below}{route.path}/"):
                whole = f"{below}{route.path}"
                return template(route.routes, path, whole) or f"{whole}/*"
        elif isinstance(route, Route):
            inner = path if route.path.startswith(below) else path.removeprefix(below)
            if route.path_regex.match(inner):
                return route.path if inner is path else below + route.path
    return None


def error_code(body: bytes) -> str | None:
    """The code in the body of an error; None when there is none."""
    if len(body) > ERROR_BYTES or not body.startswith(b"{"):
        return None
    try:
        code = json.loads(body).get("code")
    except (ValueError, RecursionError):
        return None
    return code if isinstance(code, str) and CODE.fullmatch(code) else None
