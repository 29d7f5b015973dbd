"""Looking at the board in a browser: Debian's Chromium, driven by Playwright.

Nothing is downloaded but axe-core, from its lock file. A page is looked at in both themes and in
three widths, and each look leaves a picture in build/board, to be looked at by people.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import uvicorn
from conftest import KEY, VERSION, Endpoint, RawSession, Served, Sql, free_port, until
from hook_kit import plain_hook
from intake_kit import FORGE, Receiver
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect, sync_playwright
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request as Asked
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route

from switchboard.board_render import Render, Static
from switchboard.board_session import new_secret
from switchboard.config import Settings
from switchboard.secrets import digest

HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "build" / "board"
# The shell is the same browser without windows, and takes a quarter of the time.
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
NPM = shutil.which("node") and shutil.which("npm")
QUIET = ["--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-default-apps"]  # fmt: skip
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
SIZES = ((360, 800), (1280, 860), (2560, 1440))
PATIENCE = 20_000  # milliseconds
WEIGHT = 150_000  # bytes of a page with all that it loads, uncompressed
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
RULES = {"type": "tag", "values": TAGS}
COLOURS = {"type": "rule", "values": ["color-contrast"]}

# What a text of others may try. The last one is what a reader would take for the other direction.
EVIL = "</script></title>\"'><img src=/x onerror=\"document.title='owned'\"><b>{{7*7}}\u202eevil"


@cache
def axe() -> str:
    """The script of axe-core; two runs of the suite share the folder, as the TypeScript test's."""
    folder = HERE / "axe"
    marker, lock = folder / "node_modules" / ".package-lock.json", folder / "package-lock.json"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not marker.exists() or marker.stat().st_mtime < lock.stat().st_mtime:
            command = ["npm", "ci", "--no-audit", "--no-fund"]
            subprocess.run(command, cwd=folder, check=True, timeout=110)
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser. Within the block this thread has a running event loop."""
    with sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        try:
            yield browser
        finally:
            browser.close()


class Seat:
    """Somebody who sits at the board: a browser's context that notes whatever is not as it should.

    Args:
        browser: which.
        origin: of the board; no request may go elsewhere.
        options: of Playwright's new_context.
    """

    def __init__(self, browser: Browser, origin: str, **options: Any) -> None:
        self.origin = origin
        self.context: BrowserContext = browser.new_context(reduced_motion="reduce", **options)
        self.context.set_default_timeout(PATIENCE)
        self.faults: list[str] = []
        self.forgiven: tuple[str, ...] = ()
        self.context.on("request", self._asked)
        self.context.on("console", lambda message: self._said(message.type, message.text))
        self.context.on("weberror", lambda error: self._fault(f"script: {error.error}"))
        self.context.on("dialog", lambda dialog: (self._fault("dialog"), dialog.dismiss()))
        self.page: Page = self.context.new_page()

    def _fault(self, text: str) -> None:
        if not any(known in text for known in self.forgiven):
            self.faults.append(text)

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(self.origin + "/"):
            self._fault(f"request left the origin: {request.url}")

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):  # violations of the content policy are told here
            self._fault(f"{kind}: {text}")

    def go(self, path: str) -> Page:
        """Open a page of the board, from its beginning."""
        self.page.goto(self.origin + path, wait_until="load")
        return self.page

    def weight(self) -> int:
        """Bytes of the page that is open with all that it loaded, uncompressed."""
        return int(self.page.evaluate(WEIGH))

    def close(self) -> None:
        """Leave; fails when something was not as it should."""
        self.context.close()
        assert not self.faults, "\n".join(self.faults)


def looks(seat: Seat, name: str) -> Iterator[str]:
    """Look at the page that is open in all sizes and themes; what is wrong with it, if anything.

    Args:
        seat: who looks.
        name: of the pictures.
    """
    page = seat.page
    PICTURES.mkdir(parents=True, exist_ok=True)
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            where = f"{name} {width} {theme}"
            page.screenshot(path=PICTURES / f"{name}.{width}.{theme}.png", full_page=True)
            if wide := page.evaluate(TOO_WIDE):
                yield f"{where}: wider than the window: {wide}"
            if theme == "light":
                yield from (f"{where}: {found}" for found in verdicts(page))
            elif width == SIZES[0][0]:  # by night the colours differ, and nothing else
                yield from (f"{where}: {found}" for found in verdicts(page, COLOURS))


WEIGH = """() => ["navigation", "resource"].flatMap(t => performance.getEntriesByType(t))
  .filter(e => !e.name.includes("/events")).reduce((sum, e) => sum + e.decodedBodySize, 0)"""
TOO_WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? null
  : [...document.querySelectorAll("main *")]
      .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
      .slice(0, 3).map(e => e.outerHTML.slice(0, 120)).join(" | ") || "the page"
"""
ASK_AXE = """async (only) => {
  const shut = [...document.querySelectorAll("details:not([open])")];
  shut.forEach(d => d.open = true);
  const { violations } = await axe.run(document, { runOnly: only, resultTypes: ["violations"] });
  shut.forEach(d => d.open = false);
  return violations.map(v => [v.impact, v.id, v.nodes.length, v.nodes[0].html.slice(0, 160)]);
}"""


def verdicts(page: Page, only: Any = RULES) -> list[str]:
    """What axe finds on a page, with everything on it unfolded."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(axe())
    return [" ".join(map(str, found)) for found in page.evaluate(ASK_AXE, only)]


# ---- the examples of py/tests/board, through the templates, without a database


class Examples:
    """Serves the example documents as pages, with hostile texts wherever a text may be."""

    def __init__(self) -> None:
        self.foreign = ""  # a page of a stranger, at /foreign
        self._render = Render()
        routes = [
            Route("/events", self._events),
            Mount("/static", Static()),
            Route("/foreign", lambda _: HTMLResponse(self.foreign)),
            Route("/example/{name}", self._page),
        ]
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._server = uvicorn.Server(
            uvicorn.Config(Starlette(routes=routes), port=port, log_level="error", lifespan="off")
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    @staticmethod
    def all() -> list[str]:
        """Their names."""
        return sorted(path.stem for path in (HERE / "board").glob("*.json"))

    async def _page(self, request: Asked) -> Response:
        text = (HERE / "board" / f"{request.path_params['name']}.json").read_text()
        document = poisoned(json.loads(text))
        events = "/events" if document.get("status") else None
        flash = [{"kind": "done", "text": EVIL}, {"kind": "refused", "text": EVIL}]
        context = {**document, "csrf": "c5rf", "events": events, "flash": flash}
        return self._render.page(document["page"], context)

    async def _events(self, request: Asked) -> Response:
        async def hello() -> Any:
            yield {"event": "hello", "data": "{}"}

        return EventSourceResponse(hello())

    def __enter__(self) -> Examples:
        self._thread.start()
        until(lambda: self._server.started, "the examples are served")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)


# Fields of the examples that are words of ours, ids or instants, and never somebody's text.
OURS = {
    "id", "at", "page", "state", "status", "line", "trust_mode", "health", "level", "sweep_level",
    "outcome", "action", "reason", "code", "now", "window_period", "period", "weekday",
    "window_resets_local", "start_local", "todo_id", "webhook_id", "next", "back", "field",
}  # fmt: skip
# Those that may hold any character; names of endpoints, queues and zones may not.
FREE = {
    "title", "text", "kind", "source", "key", "owner", "assignee", "summary", "url", "client",
    "headers", "delivery_id", "event_type", "content_type", "message", "error", "actor", "human",
    "last_status", "updated_by", "me",
}  # fmt: skip


def poisoned(value: Any, key: str = "") -> Any:
    """A document with EVIL in place of each text that a stranger may have chosen."""
    if isinstance(value, dict):
        held = key in ("headers", "me")
        return {name: poisoned(inner, key if held else name) for name, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner, key) for inner in value]
    if not isinstance(value, str) or key in OURS:
        return value
    return EVIL if key in FREE else EVIL.replace("\u202e", "")


# ---- a server, and two humans with something on their boards


class Human:
    """Somebody with an operator token."""

    def __init__(self, db: Sql, name: str) -> None:
        self.name = name
        self.id = str(db.value("select id from switchboard.create_human(%s)", name))
        query = "select token from switchboard.create_operator_token(%s, 'board')"
        self.token = str(db.value(query, self.id))
        self.owner = f"op:{name}"


class Place:
    """A database, a server on it, Anna with all that a board can show, and Bert with little."""

    def __init__(self, dsn: str) -> None:
        port = free_port()
        self.served = Served(
            Settings(
                database_url=dsn, port=port, public_url=f"http://127.0.0.1:{port}",
                secret_keys=(KEY,), shutdown_timeout=1.0, failure_rate=1e6, failure_burst=10**6,
            )
        )  # fmt: skip
        self.url = self.served.url
        self.db = Sql(dsn)
        self.anna, self.bert = Human(self.db, "anna"), Human(self.db, "bert")
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Place:
        with contextlib.ExitStack() as opened:
            opened.enter_context(self.db.connection)
            self.served.start()
            opened.callback(self._stop)
            self.served.wait_listening()
            self._open = opened
            self.seed()
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _stop(self) -> None:
        for session in self.served.sessions:
            session.http.close()
        self.served.stop()

    def vend(self, slug: str, *queues: str, human: Human | None = None) -> Endpoint:
        """An endpoint that may do everything, of Anna unless it is said."""
        verbs = [row["name"] for row in self.db.rows("select name from switchboard.tools()")]
        return self.db.vend(
            slug, queues, human_id=(human or self.anna).id, verbs=verbs, webhook_max=20,
            webhook_source_types=["github", "generic", "open"],
        )  # fmt: skip

    def seed(self) -> None:
        """What is there before anybody looks."""
        self.desk = self.vend("desk", "inbox", "spent")  # for what tests do
        self.theirs = self.vend("elsewhere", "inbox", human=self.bert)
        self.reviewer = self.vend("reviewer", "reviews", "triage", "nightly")
        for number in range(5):
            one = self.vend(f"team-{number}", *(f"queue-{number}-{q}" for q in range(4)))
            for queue in range(4):
                todos = [
                    {"queue": f"queue-{number}-{queue}", "title": f"{n}: {'a long title ' * 12}"}
                    for n in range(20)
                ]
                query = "select * from switchboard.create_todos(%s, %s)"
                self.db.rows(query, one.id, json.dumps(todos))
        self.vend("old-bot", "legacy")
        self.db.value(
            "select switchboard.revoke_endpoint(switchboard.find_endpoint('old-bot')::text)"
        )
        self._seed_states()
        self._seed_evil()
        self.db.rows("select switchboard.tick()")

    def _seed_states(self) -> None:
        """A todo in each state, a budget that is used up, and one that is open."""
        budget = "select switchboard.set_admission_policy(%s, %s, %s, %s)"
        day = {"period": "day", "tz": "Europe/Warsaw", "start": "06:00"}
        for queue, policy in [
            ("nightly", {"max_claims_per_window": 2, "window": day}),
            ("reviews", {"max_claims_per_window": 40, "window": day, "max_in_flight": 4}),
        ]:
            self.db.value(budget, self.reviewer.id, queue, json.dumps(policy), self.anna.id)
        for queue in ("nightly", "reviews", "triage"):
            for number in range(8):
                self.db.create(self.reviewer, f"{queue} {number}: look at this", queue)
        for queue in ("nightly", "reviews"):
            self.claim(self.reviewer, queue, "agent:reviewer")
        for verb in ("complete", "fail", "release"):
            self.end(verb, self.reviewer, "reviews", "agent:reviewer")
        self.claim(self.reviewer, "nightly", "agent:reviewer")
        self.dead = self.dead_letter(self.reviewer, "triage")

    def _seed_evil(self) -> None:
        """Texts that want to be more than texts, wherever one can be put."""
        evil, db = EVIL, self.db
        self.evil = self.vend("evil", "inbox")
        self.hostile = self.write(evil)
        for _ in range(2):
            self.claim(self.evil, "inbox", evil)
            self.kill(self.hostile, evil)
            db.rows("select id from switchboard.retry(%s, %s)", self.evil.id, self.hostile)
        self.claim(self.evil, "inbox", evil)
        self.kill(self.hostile, evil)
        self.write(evil, "2", assignee=evil)
        self.write(evil, "3")
        self.claim(self.evil, "inbox", "agent:" + evil)
        self.github = Receiver(self.served, self.evil)
        body = {**FORGE["pull_request"], "pull_request": {"number": 7, "title": evil}}
        self.github.send(json.dumps(body).encode())
        plain = evil.replace("\u202e", "")
        self.open = Receiver(self.served, self.evil, "open")
        self.open.send(
            evil.encode(), plain, user_agent=plain, content_type=plain, x_event_type=plain
        )
        strange = f"https://hooks.example.com/<img/src=x/onerror=alert(1)>'\"{evil[-5:]}"
        plain_hook(db, self.evil, strange)
        self._attach(evil)

    def _attach(self, client: str) -> None:
        """An agent that gives that name, with an open stream."""
        session = RawSession(self.url, self.evil, start=False)
        self._open.callback(session.http.close)
        about = {"clientInfo": {"name": client, "version": client}, "capabilities": {}}
        hello = session.request("initialize", {"protocolVersion": VERSION, **about})
        answer = session.post(hello)
        assert answer.status_code == 200, answer.text
        session.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        session.headers["mcp-protocol-version"] = VERSION
        session.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self._open.enter_context(session.stream())

    def todo(self, state: str = "pending", owner: str = "", title: str = "do this") -> str:
        """A todo of Anna's desk in a state; held by whom."""
        made = self.db.create(self.desk, title)
        if state != "pending":
            query = "select id from switchboard.claim(%s, %s, %s)"
            self.db.value(query, self.desk.id, made, owner or "agent:desk")
        if state == "dead":
            self.kill(made)
        return made

    def kill(self, todo: str, error: str = "no") -> None:
        """Have the attempt of a claimed todo fail as its last one."""
        last = (
            "update switchboard.todos set max_attempts = attempt where id = %s"
            " returning endpoint_id::text, owner"
        )
        row = self.db.row(last, todo)
        result = json.dumps({"error": error})
        query = "select id from switchboard.fail(%s, %s, %s, %s)"
        self.db.value(query, row["endpoint_id"], todo, row["owner"], result)

    def write(self, text: str, more: str = "", assignee: str | None = None) -> str:
        """A todo with a text wherever it may have one."""
        query = (
            "select id::text from switchboard.create_todo(%s, 'inbox', p_title => %s,"
            " p_payload => %s, p_idempotency_key => %s, p_kind => %s, p_source => %s,"
            " p_assignee => %s)"
        )
        document = json.dumps({text: text})
        fields = (text, document, text + more, text, text, assignee)
        return str(self.db.value(query, self.evil.id, *fields))

    def dead_letter(self, endpoint: Endpoint, queue: str) -> str:
        """A todo of a queue that has run out of attempts."""
        made = self.claim(endpoint, queue, "agent:x")
        self.kill(made)
        return made

    def claim(self, endpoint: Endpoint, queue: str, owner: str) -> str:
        """Claim the next one of a queue."""
        query = "select id::text from switchboard.claim_next(%s, %s, array[%s])"
        return str(self.db.value(query, endpoint.id, owner, queue))

    def end(self, verb: str, endpoint: Endpoint, queue: str, owner: str) -> None:
        """Claim the next one and end it."""
        claimed = self.claim(endpoint, queue, owner)
        self.db.value(f"select id from switchboard.{verb}(%s, %s, %s)", endpoint.id, claimed, owner)

    def state(self, todo: str) -> dict[str, Any]:
        """What became of a todo."""
        return self.db.row(
            "select state::text, owner, queue, attempt, result, dead_letter, lease_expires_at,"
            " extract(epoch from lease_expires_at - switchboard.now())::int as lease"
            " from switchboard.get_todo_any_endpoint(%s)",
            todo,
        )

    def seat(self, browser: Browser, human: Human | None = None, **options: Any) -> Seat:
        """Somebody who has signed in."""
        seat = Seat(browser, self.url, **options)
        secret = new_secret()
        query = "select switchboard.open_session_by_token(%s, %s)"
        token = (human or self.anna).token
        assert self.db.value(query, digest(token), digest(secret))
        seat.context.add_cookies([{"name": "switchboard", "value": secret, "url": self.url}])
        return seat
