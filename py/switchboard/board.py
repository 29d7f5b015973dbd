"""The board: what a human sees in a browser, and may do there.

A page is one round trip, ``call_board()``, which authenticates the session and answers with all
that the page shows; the rest is rendering. A form is one operation of the REST register
(``board_forms``), sent back with a flash that says what came of it. Nothing of a todo is decided
here. How a page stays live is told in ``board_stream``, how a human comes in in ``board_session``.
"""

from __future__ import annotations

import json
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import psycopg
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from switchboard import logs
from switchboard.board_flash import Flash
from switchboard.board_forms import FORMS, Fields, Form, blank, filled, take_form
from switchboard.board_render import Render, Static
from switchboard.board_session import own_path
from switchboard.board_stream import Sight, Streams, gone
from switchboard.db import CALL_BOARD
from switchboard.errors import Problem, rate_limited
from switchboard.guard import problem_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.routing import BaseRoute

    from switchboard.board_session import BoardSessions
    from switchboard.db import Database
    from switchboard.operations import Operations

# Each page with the arguments it takes, from its address and from its query.
PAGES = {
    "/": ("exchange", ("endpoint", "queue", "state", "q", "before")),
    "/todos/{id}": ("todo", ("id",)),
    "/endpoints": ("endpoints", ("after",)),
    "/endpoints/{slug}": ("endpoint", ("slug",)),
    "/receivers": ("receivers", ("before",)),
    "/deliveries": ("deliveries", ("endpoint", "receiver", "quarantine", "before")),
    "/deliveries/{id}": ("delivery", ("id",)),
    "/hooks": ("hooks", ()),
    "/budget/{slug}/{queue}": ("budget", ("slug", "queue")),
    "/health": ("health", ()),
}
ARGUMENTS = dict(PAGES.values())
STALE = "the form is older than your session, or comes from elsewhere: load the page and try again"
TYPE_IT = "to do that, type the name of the endpoint in full"
SECRETS = {
    "credential": "Credential",
    "mcp_url": "Address",
    "signing_secret": "Signing secret",
}


class Board:
    """Routes of the board.

    Args:
        database: answers pages.
        sessions: who looks.
        operations: what forms do.
        render: makes HTML.
        facts: what this process adds to the page of health.
        at_most: streams that may be open at a time.
        https: whether the public address is https.
    """

    def __init__(
        self,
        database: Database,
        sessions: BoardSessions,
        operations: Operations,
        render: Render,
        facts: Callable[[], list[dict[str, Any]]],
        at_most: int,
        *,
        https: bool,
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._operations = operations
        self._render = render
        self._flash = Flash(https=https)
        self._facts = facts
        self.streams = Streams(database, self._sight, at_most)

    def routes(self) -> list[BaseRoute]:
        """Pages, forms, the stream and the assets."""
        shown = [Route(path, self._page(name)) for path, (name, _) in PAGES.items()]
        taken = [Route(form.path, self._form(form), methods=["POST"]) for form in FORMS]
        return [*shown, *taken, Route("/events", self._events), Mount("/static", Static())]

    # ---- pages

    def _page(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            secret = self._sessions.secret(request)
            if secret is None:
                return self._door(request)
            if wait := self._sessions.wait(request, secret):
                return self.sorry(rate_limited(wait))
            args = _arguments(name, {**request.query_params, **request.path_params})
            try:
                shown = await self._ask(self._sessions.digest(secret), name, json.dumps(args))
            except (psycopg.Error, UnicodeEncodeError) as error:
                return self.sorry(self._known(error))
            self._sessions.judge(request, secret, good=shown is not None)
            if shown is None:
                return self._door(request)
            return self._show(request, secret, name, args, shown)

        return serve

    async def _ask(self, digest: bytes, page: str, args: str) -> dict[str, Any] | None:
        shown: dict[str, Any] | None = await self._database.value(
            CALL_BOARD, (digest, page, args), repeatable=True
        )
        return shown

    def _show(
        self,
        request: Request,
        secret: str,
        name: str,
        args: Mapping[str, str],
        shown: Mapping[str, Any],
    ) -> Response:
        if refusal := shown.get("error"):
            problem = Problem(refusal["code"], refusal["message"])
            return self.sorry(problem, shown.get("me"), self._sessions.csrf_of(secret))
        context = {
            **self._context(name, shown),
            "csrf": self._sessions.csrf_of(secret),
            "events": f"/events?{urlencode({'page': name, **args})}",
            "flash": self._flash.read(request, secret),
        }
        response = self._render.page(name, context)
        if context["flash"]:
            self._flash.forget(response)
        return response

    def _context(self, name: str, shown: Mapping[str, Any]) -> dict[str, Any]:
        context = {"form": blank(name, shown), **shown}
        if name == "health":
            context["facts"] = [*shown["facts"], *self._facts()]
        return context

    def _door(self, request: Request) -> Response:
        """To the sign-in, and from there to what was asked for."""
        path = request.url.path
        back = f"{path}?{request.url.query}" if request.url.query else path
        return RedirectResponse(
            "/sign-in" + ("" if back == "/" else f"?{urlencode({'next': back})}"), 303
        )

    def sorry(
        self, problem: Problem, me: object = None, csrf: str = "", back: str = "/"
    ) -> Response:
        """The page of a refusal.

        Args:
            problem: why.
            me: the human, if one is signed in.
            csrf: of the session.
            back: where to go from there.
        """
        status = problem.status or self._database.errors.status(problem.code)
        context = {
            "me": me,
            "status": None,
            "csrf": csrf,
            "code": problem.code,
            "http": status,
            "message": problem.message,
            "back": back,
            "retry_after": problem.retry_after,
        }
        wait = {"Retry-After": str(math.ceil(problem.retry_after))} if problem.retry_after else {}
        return self._render.page("error", context, status, wait)

    def _known(self, error: Exception) -> Problem:
        if isinstance(error, Problem):
            return error
        problem = self._database.errors.problem(error)
        if problem is None:
            raise error
        return problem

    # ---- forms

    def _form(self, form: Form) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            started = time.perf_counter()
            noted: dict[str, Any] = {"operation": form.operation, "outcome": "ok"}
            try:
                return await self._take(form, request, noted)
            finally:
                logs.event("board.form", **noted, ms=logs.milliseconds(started))

        return serve

    async def _take(self, form: Form, request: Request, noted: dict[str, Any]) -> Response:
        secret = self._sessions.secret(request)
        path = request.path_params
        back = form.back.format(**path)
        try:
            fields = await take_form(request)
        except Problem as problem:
            noted["outcome"] = problem.code
            return self.sorry(problem, back=back)
        if secret is None or not self._sessions.checks(request, secret, _last(fields, "csrf")):
            noted["outcome"] = "forbidden"
            return self.sorry(Problem("forbidden", STALE), back=back)
        if wait := self._sessions.wait(request, secret):
            noted["outcome"] = "rate_limited"
            return self.sorry(rate_limited(wait), back=back)
        back = own_path(_last(fields, "back"), back)
        if form.confirm and _last(fields, "confirm") != path[form.confirm]:
            noted["outcome"] = "invalid_argument"
            return self._return(secret, back, "refused", TYPE_IT)
        where = {name: value.format(**path) for name, value in form.where.items()}
        answer = await self._operations.call(
            form.operation, self._sessions.digest(secret), where, {}, form.body(fields)
        )
        noted["human"] = answer.human
        if answer.human is None and answer.problem is None:
            noted["outcome"] = "unauthenticated"
            self._sessions.judge(request, secret, good=False)
            return RedirectResponse("/sign-in", 303)
        if answer.problem is not None:
            noted["outcome"] = answer.problem.code
            return await self._refused(request, secret, form, fields, back, answer.problem)
        if form.reveals:
            return await self._reveal(secret, form, back, answer.value)
        return self._return(secret, back, "done", form.done)

    async def _refused(
        self,
        request: Request,
        secret: str,
        form: Form,
        fields: Fields,
        back: str,
        problem: Problem,
    ) -> Response:
        """Back with what was wrong; a long form is shown again with what was filled in."""
        if form.page is None:
            return self._return(secret, back, "refused", problem.message)
        args = _arguments(form.page, request.path_params)
        digest = self._sessions.digest(secret)
        try:
            shown = await self._ask(digest, form.page, json.dumps(args))
        except psycopg.Error as error:
            return self.sorry(self._known(error))
        if shown is None or "error" in shown:
            return self.sorry(problem, back=back)
        context = {
            **self._context(form.page, shown),
            "form": filled(form.page, fields, shown, problem),
            "csrf": self._sessions.csrf_of(secret),
        }
        status = problem.status or self._database.errors.status(problem.code)
        return self._render.page(form.page, context, status)

    async def _reveal(
        self, secret: str, form: Form, back: str, answer: Mapping[str, Any]
    ) -> Response:
        """The one page that shows what is stored nowhere: whatever else it can show or not."""
        try:
            shown = await self._ask(self._sessions.digest(secret), "health", "{}")
        except psycopg.Error:
            shown = None
        frame = shown if shown and "error" not in shown else {"me": None, "status": None}
        fields = [
            {"label": label, "name": name, "value": answer[name]}
            for name, label in SECRETS.items()
            if name in answer
        ]
        slug = answer["endpoint"]["slug"] if form.page == "endpoints" else None
        context = {
            **{name: frame[name] for name in ("now", "me", "status") if name in frame},
            "csrf": self._sessions.csrf_of(secret),
            "what": form.operation,
            "title": form.reveals,
            "slug": slug,
            "back": f"/endpoints/{slug}" if slug else back,
            "fields": fields,
            "note": None,
        }
        return self._render.page("secret", context)

    def _return(self, secret: str, back: str, kind: str, text: str) -> Response:
        response = RedirectResponse(back, 303)
        self._flash.put(response, secret, kind, text)
        return response

    # ---- the stream

    async def _events(self, request: Request) -> Response:
        secret = self._sessions.secret(request)
        page = request.query_params.get("page", "")
        if secret is None or page not in ARGUMENTS:
            return gone()
        if wait := self._sessions.wait(request, secret):
            return problem_response(rate_limited(wait), self._database.errors)
        args = _arguments(page, request.query_params)
        unknown = partial(self._sessions.judge, request, secret, good=False)
        return self.streams.response(self._sessions.digest(secret), page, args, unknown)

    async def _sight(self, digest: bytes, page: str, args: str) -> Sight | None:
        shown = await self._ask(digest, page, args)
        if shown is None or "error" in shown:
            return None
        return Sight(shown["now"], self._render.regions(page, self._context(page, shown)))


def _arguments(page: str, given: Mapping[str, str]) -> dict[str, str]:
    """The arguments of a page that were given; empty ones are none."""
    return {name: given[name] for name in ARGUMENTS[page] if given.get(name)}


def _last(fields: Fields, name: str) -> str:
    return fields.get(name, [""])[-1]
