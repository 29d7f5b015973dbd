"""How a human comes to the board, and leaves it: sessions in a cookie.

A session is opened by an operator token, by a link that works once, or by an OpenID provider
(``oidc``), never by anything that was there before: each sign-in mints a new secret, of which the
database keeps the digest. There is no way around signing in. The cookie is nobody's but the
browser's; a form of a page proves with a token made from the secret, and with the Origin that the
browser states, that it is ours. Pages that sign in have no session to make a token from: there the
Origin alone decides, so that nobody is signed in by a foreign page as somebody else. A link is used
up by a POST, not by the GET of a mail program that looks what is there.
"""

from __future__ import annotations

import base64
import hmac
import math
import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple
from urllib.parse import urlsplit

import psycopg
from starlette.responses import RedirectResponse
from starlette.routing import Route

from switchboard import logs, secrets
from switchboard.board_forms import take_form
from switchboard.db import CLOSE_SESSION, OPEN_BY_LINK, OPEN_BY_TOKEN
from switchboard.errors import Problem, rate_limited, unavailable
from switchboard.limits import Proven

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from switchboard.board_render import Render
    from switchboard.db import Database
    from switchboard.limits import RateLimit

SECONDS = 30 * 24 * 3600  # the database ends it earlier, if so
BODY_LIMIT = 16_384
MAX_PATH = 2000
SECRET = re.compile(r"sbs_[A-Za-z0-9_-]{43}")
TOKEN = re.compile(r"sbo_[A-Za-z0-9_-]{43}")
CODE = re.compile(r"sbl_[A-Za-z0-9_-]{43}")
# One slash, then anything printable that is no second one; a backslash is a slash to browsers.
PATH = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f-\xa0\u2028\u2029]*")

NOT_GOOD = "that is no operator token that is good now: it may be expired, revoked or another's"
NO_LINK = (
    "this link signs nobody in: it was used, or is too old. Another one comes from "
    "`switchboard human login NAME`"
)
ELSEWHERE = "the form comes from elsewhere: open the board's own page and try again"


def new_secret() -> str:
    """The secret of a new session."""
    return secrets.mint("sbs_")


def own_path(given: str, default: str = "/") -> str:
    """``given`` when it is a path of this server, with its query; else ``default``."""
    return given if len(given) <= MAX_PATH and PATH.fullmatch(given) else default


class Entry(NamedTuple):
    """A way in.

    Attributes:
        how: what it is called in the log.
        statement: opens the session.
        shape: what a secret that is typed in looks like; None: nothing is typed in.
        refusal: what is said to who is not let in.
    """

    how: str
    statement: LiteralString
    shape: re.Pattern[str] | None
    refusal: str


BY_TOKEN = Entry("token", OPEN_BY_TOKEN, TOKEN, NOT_GOOD)
BY_LINK = Entry("link", OPEN_BY_LINK, CODE, NO_LINK)


class BoardSessions:
    """The cookie, and the pages that set and end it.

    Args:
        database: opens and closes sessions.
        failures: how often an address may fail.
        render: makes HTML.
        public_url: of this server: whether cookies are Secure, and which Origin is its own.
        provider: how a provider is called on the sign-in page; None: there is none.
    """

    def __init__(
        self,
        database: Database,
        failures: RateLimit,
        render: Render,
        public_url: str,
        provider: str | None = None,
    ) -> None:
        self._database = database
        self.failures = failures
        self._render = render
        self._https = public_url.startswith("https:")
        self._own = urlsplit(public_url)
        self._provider = provider
        self.proven = Proven(failures)
        self.cookie = self.cookie_name("switchboard")

    def cookie_name(self, name: str) -> str:
        """A name that no other host of the domain may set, where that is possible."""
        return f"__Host-{name}" if self._https else name

    # ---- what the board asks

    def secret(self, request: Request) -> str | None:
        """The secret of the request's cookie, if it looks like one; it may open nothing."""
        given = request.cookies.get(self.cookie, "")
        return given if SECRET.fullmatch(given) else None

    def digest(self, secret: str) -> bytes:
        """What the database knows of a secret."""
        return secrets.digest(secret)

    def wait(self, request: Request, secret: str) -> float:
        """Seconds that a request has to wait, for its address failed too often; 0: none.

        A session that was good when it was last looked at does not wait for its neighbours.

        Args:
            request: says from where.
            secret: of its cookie.
        """
        return self.proven.wait(self.digest(secret), address(request))

    def judge(self, request: Request, secret: str, *, good: bool) -> None:
        """Note whether a cookie opened a session: what opens nothing counts as a failure."""
        digest = self.digest(secret)
        if good:
            self.proven.good(digest)
        else:
            self.proven.bad(digest, address(request))

    def csrf_of(self, secret: str) -> str:
        """What a form of this session carries."""
        made = hmac.new(secret.encode(), b"csrf", "sha256").digest()
        return base64.urlsafe_b64encode(made).rstrip(b"=").decode()

    def checks(self, request: Request, secret: str, given: str) -> bool:
        """Whether a request that changes something comes from a page of this session.

        Args:
            request: its Origin was let through by Guard, if it has one.
            secret: of its cookie.
            given: the token that its form or header carries.
        """
        expected = self.csrf_of(secret).encode()
        known = hmac.compare_digest(given.encode("utf-8", "replace"), expected)
        return known and self.own_origin(request)

    def own_origin(self, request: Request) -> bool:
        """Whether the browser says that the request comes from a page of this server.

        An Origin has to be there, unless the browser says the same by Sec-Fetch-Site; those that
        Guard lets through for other uses are not the board's.
        """
        origins = request.headers.getlist("origin")
        if not origins:
            return request.headers.getlist("sec-fetch-site") == ["same-origin"]
        stated = urlsplit(origins[0].lower())
        mine = (self._own.scheme, self._own.netloc.rpartition("@")[2].lower())
        return len(origins) == 1 and (
            (stated.scheme, stated.netloc) == mine
            or (stated.scheme, stated.netloc)
            == (request.url.scheme, request.headers.get("host", "").lower())
        )

    # ---- routes

    def routes(self) -> list[Route]:
        """The ways in, to be matched after those of a provider, and the way out."""
        return [
            Route("/sign-in", self._door, methods=["GET"]),
            Route("/sign-in", self._by_token, methods=["POST"]),
            Route("/sign-in/{code}", self._link, methods=["GET"]),
            Route("/sign-in/{code}", self._by_link, methods=["POST"]),
            Route("/sign-out", self._out, methods=["POST"]),
        ]

    async def _door(self, request: Request) -> Response:
        return self.door(own_path(request.query_params.get("next", "")))

    def door(self, back: str, problem: Problem | None = None) -> Response:
        """The sign-in page.

        Args:
            back: where to go from there.
            problem: why nobody was signed in.
        """
        oidc = {"name": self._provider} if self._provider else None
        context = {
            "me": None,
            "status": None,
            "next": back,
            "error": problem.message if problem else None,
            "oidc": oidc,
        }
        headers, status = {}, 200
        if problem:
            status = problem.status or self._database.errors.status(problem.code)
            if problem.retry_after:
                headers["Retry-After"] = str(math.ceil(problem.retry_after))
            if status == HTTPStatus.UNAUTHORIZED:
                headers["WWW-Authenticate"] = "Bearer"
        return self._render.page("sign-in", context, status, headers)

    async def _by_token(self, request: Request) -> Response:
        try:
            fields = await take_form(request, BODY_LIMIT)
        except Problem as problem:
            return self.door("/", problem)
        given = fields.get("token", [""])[-1].strip()
        back = own_path(fields.get("next", [""])[-1])
        return await self._enter(request, BY_TOKEN, given, back)

    async def _link(self, request: Request) -> Response:
        code = request.path_params["code"]
        if not CODE.fullmatch(code):
            return self.door("/", Problem("unauthenticated", NO_LINK))
        return self._render.page("sign-in-link", {"me": None, "status": None, "code": code})

    async def _by_link(self, request: Request) -> Response:
        try:
            await take_form(request, BODY_LIMIT)
        except Problem as problem:
            return self.door("/", problem)
        return await self._enter(request, BY_LINK, request.path_params["code"], "/")

    async def _enter(self, request: Request, entry: Entry, given: str, back: str) -> Response:
        if not self.own_origin(request):
            self.note(entry.how, "forbidden", time.perf_counter())
            return self.door(back, Problem("forbidden", ELSEWHERE))
        known = entry.shape and entry.shape.fullmatch(given)
        arguments = (self.digest(given),) if known else None
        return await self.open(request, entry, arguments, back)

    async def open(
        self, request: Request, entry: Entry, arguments: tuple[Any, ...] | None, back: str
    ) -> Response:
        """Sign in, or say why not.

        Args:
            request: pays for a failure by its address.
            entry: the way in.
            arguments: of its statement, but for the digest of the new session, which is added;
                None: what was given is not worth asking for.
            back: where to go then, a path of ours.
        """
        started, client = time.perf_counter(), address(request)
        if wait := self.failures.wait(client):
            self.note(entry.how, "rate_limited", started)
            return self.door(back, rate_limited(wait))
        secret, opened = new_secret(), None
        if arguments is not None:
            try:
                opened = await self._database.value(
                    entry.statement, (*arguments, self.digest(secret))
                )
            except psycopg.Error as error:
                problem = self._database.errors.problem(error)
                if problem is None:
                    raise
                self.note(entry.how, problem.code, started)
                return self.door(back, problem)
        if opened is None:
            self.failures.take(client)
            self.note(entry.how, "unauthenticated", started)
            return self.door(back, Problem("unauthenticated", entry.refusal))
        await self._close(request)  # of what was open before in this browser nothing stays
        self.note(entry.how, "ok", started, human=opened["human"])
        response = RedirectResponse(back, 303)
        self.set_cookie(response, self.cookie, secret, SECONDS)
        return response

    async def _out(self, request: Request) -> Response:
        started = time.perf_counter()
        secret = self.secret(request)
        try:
            given = (await take_form(request, BODY_LIMIT)).get("csrf", [""])[-1]
        except Problem as problem:
            return self.door("/", problem)
        if secret is not None:
            if not self.checks(request, secret, given):
                return self.door("/", Problem("forbidden", ELSEWHERE))
            if not await self._close(request):
                return self.door("/", unavailable())
            logs.event("board.sign_out", outcome="ok", ms=logs.milliseconds(started))
        response = RedirectResponse("/sign-in", 303)
        self.set_cookie(response, self.cookie, "", 0)
        return response

    async def _close(self, request: Request) -> bool:
        """Close the session of the request's cookie, if there is one; false when that failed."""
        secret = self.secret(request)
        if secret is not None:
            try:
                await self._database.value(CLOSE_SESSION, (self.digest(secret),), repeatable=True)
            except psycopg.Error as error:
                logs.event("board.sign_out", outcome=type(error).__name__)
                return False
        return True

    def set_cookie(self, response: Response, name: str, value: str, seconds: int) -> None:
        """Set a cookie of ours, or with 0 seconds remove it."""
        response.set_cookie(
            name, value, seconds, path="/", httponly=True, samesite="lax", secure=self._https
        )

    def note(self, how: str, outcome: str, started: float, **more: str) -> None:
        """Log how a sign-in went."""
        ms = logs.milliseconds(started)
        logs.event("board.sign_in", how=how, outcome=outcome, **more, ms=ms)


def address(request: Request) -> str:
    """The client's address; empty where there is none."""
    return request.client.host if request.client else ""
