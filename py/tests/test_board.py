"""The board over HTTP: who sees what, what forms do and what they are refused, the stream."""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import psycopg
import pytest
from conftest import Endpoint, Served, Sql, busy, until

from switchboard.board import Board
from switchboard.board_forms import FORMS

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
UNKNOWN = "01890000-0000-7000-8000-00000000dead"
FREE = {"failure_rate": 1e6, "failure_burst": 10**6, "mcp_rate": 1e6, "mcp_burst": 10**6}
NOTE = re.compile(r'<p class="note (done|refused)" role="status">(.*?)</p>')
CSRF = re.compile(r'<meta name="csrf" content="([^"]*)">')


class Browser:
    """A human who signed in with a token, in a browser without script."""

    def __init__(self, served: Served, token: str) -> None:
        self.url = served.url
        self.token = token
        self.http = httpx2.Client(base_url=served.url, timeout=30)
        answer = self.http.post(
            "/sign-in", data={"token": token, "next": "/"}, headers={"origin": self.url}
        )
        assert answer.status_code == 303, answer.text
        self.csrf = self.see("/")[1]

    def get(self, path: str) -> httpx2.Response:
        return self.http.get(path)

    def see(self, path: str) -> tuple[str, str]:
        """A page that there is, and its CSRF token."""
        answer = self.get(path)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:500]}"
        found = CSRF.search(answer.text)
        assert found, path
        return answer.text, found[1]

    def send(self, path: str, origin: str | None = "", **fields: Any) -> httpx2.Response:
        """Post a form; its CSRF token and the Origin are right unless they are given."""
        headers = {} if origin is None else {"origin": origin or self.url}
        return self.http.post(path, data={"csrf": self.csrf, **fields}, headers=headers)

    def do(self, path: str, **fields: Any) -> tuple[str, str]:
        """Post a form and follow it: the kind of the flash and its text."""
        answer = self.send(path, **fields)
        assert answer.status_code == 303, f"{path}: {answer.status_code} {answer.text[:800]}"
        found = NOTE.search(self.see(answer.headers["location"])[0])
        assert found, f"{path} says nothing"
        return found[1], found[2]


class Events:
    """A stream that is read in a thread of its own."""

    def __init__(self, browser: Browser, query: str) -> None:
        self.seen: list[tuple[str, Any]] = []
        self._response = contextlib.ExitStack()
        self.http = httpx2.Client(
            base_url=browser.url, timeout=30, cookies=dict(browser.http.cookies)
        )
        self._thread = threading.Thread(target=self._read, args=(query,), daemon=True)
        self._thread.start()

    def _read(self, query: str) -> None:
        name = ""
        with (
            contextlib.suppress(httpx2.HTTPError),
            self.http.stream("GET", f"/events?{query}") as response,
        ):
            for line in response.iter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    self.seen.append((name, json.loads(line[6:])))

    def has(self, text: str) -> bool:
        return any(name == "fragment" and text in data["html"] for name, data in self.seen)

    def ready(self) -> None:
        """Wait until the regions that come first are here."""
        until(lambda: self.names()[:1] == ["hello"], "the stream says hello")
        until(lambda: "todos" in self.regions(), "the regions are sent")

    def regions(self) -> list[str]:
        return [data["id"] for name, data in list(self.seen) if name == "fragment"]

    def names(self) -> list[str]:
        return [name for name, _ in list(self.seen)]

    def close(self) -> None:
        self.http.close()


@pytest.fixture
def alpha(db: Sql) -> Endpoint:
    return db.vend("alpha", ("inbox", "other"), webhook_source_types=["open"])


@pytest.fixture
def other_human(db: Sql) -> Any:
    return db.value("select id from switchboard.create_human('somebody else')")


@pytest.fixture
def beta(db: Sql, other_human: Any) -> Endpoint:
    return db.vend("beta", human_id=other_human)


@pytest.fixture
def browse(db: Sql, serve: Callable[..., Served]) -> Iterator[Callable[..., Browser]]:
    """Browsers of one server; the human is the test's own unless one is given."""
    running: list[Served] = []
    opened: list[Browser] = []

    def start(human: Any = None, **changes: Any) -> Browser:
        if not running:
            running.append(serve(**{**FREE, **changes}))
        query = "select token from switchboard.create_operator_token(%s, %s)"
        token = db.value(query, human or db.human, f"board {len(opened)}")
        opened.append(Browser(running[0], str(token)))
        return opened[-1]

    yield start
    for browser in opened:
        browser.http.close()


@pytest.fixture
def watch() -> Iterator[Callable[..., Events]]:
    opened: list[Events] = []

    def start(browser: Browser, query: str = "page=exchange") -> Events:
        opened.append(Events(browser, query))
        return opened[-1]

    yield start
    for events in opened:
        events.close()


class Furniture:
    """Something of everything that an endpoint may have."""

    def __init__(self, db: Sql, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.waiting = db.create(endpoint, "a waiting one")
        self.held = db.create(endpoint, "a held one", "other")
        claim = "select lease_token from switchboard.claim(%s, %s, 'agent')"
        db.value(claim, endpoint.id, self.held)
        self.dead = db.create(endpoint, "a dead one")
        db.rows(claim, endpoint.id, self.dead)
        db.rows("update switchboard.todos set max_attempts = 1 where id = %s", self.dead)
        db.rows("select switchboard.fail(%s, %s, 'agent', '\"why\"')", endpoint.id, self.dead)
        self.webhook = str(
            db.value(
                """select switchboard.create_webhook(%s, 'open', 'inbox', '\\x00', sha256(%s))
                   ->> 'webhook_id'""",
                endpoint.id,
                endpoint.id.encode(),
            )
        )
        self.hook = str(
            db.value(
                """select switchboard.create_notify_hook(%s, 'https://example.org/hook')
                   ->> 'hook_id'""",
                endpoint.id,
            )
        )
        db.rows(
            "select switchboard.set_admission_policy(%s, 'inbox', %s)",
            endpoint.id,
            '{"max_in_flight": 9}',
        )
        db.rows(
            """select switchboard.receive_delivery(sha256(%s), 'd-1', 'ping', '{}',
                   '{"a": 1}', 'application/json')""",
            endpoint.id.encode(),
        )
        self.event = str(db.value("select id from switchboard.events"))

    def pages(self) -> list[str]:
        slug = self.endpoint.slug
        return [
            f"/todos/{self.waiting}",
            f"/todos/{self.held}",
            f"/todos/{self.dead}",
            f"/endpoints/{slug}",
            f"/deliveries/{self.event}",
            f"/budget/{slug}/inbox",
            f"/budget/{slug}/other",
        ]


LISTS = (
    "/",
    "/endpoints",
    "/receivers",
    "/deliveries",
    "/deliveries?quarantine=1",
    "/hooks",
    "/health",
)


def test_pages(db: Sql, alpha: Endpoint, browse: Callable[..., Browser]) -> None:
    furniture = Furniture(db, alpha)
    browser = browse()
    for path in (*LISTS, *furniture.pages()):
        answer = browser.get(path)
        assert answer.status_code == 200, f"{path}: {answer.text[:500]}"
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert len(answer.content) < 118_000  # with 23 kB of css and 9 of script: below 150
        assert " style=" not in answer.text
        assert "<script>" not in answer.text


def test_a_filter_that_is_none_is_refused_on_a_page(
    alpha: Endpoint, browse: Callable[..., Browser]
) -> None:
    answer = browse().get("/?state=nonsense")
    assert answer.status_code == 400
    assert "<!doctype html>" in answer.text


def test_without_a_session_there_is_only_the_door(db: Sql, serve: Callable[..., Served]) -> None:
    served = serve()
    with httpx2.Client(base_url=served.url) as http:
        for path in (*LISTS, f"/todos/{UNKNOWN}"):
            answer = http.get(path)
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/sign-in"), path
        assert http.get("/?state=dead").headers["location"] == "/sign-in?next=%2F%3Fstate%3Ddead"
        forged = {"cookie": "switchboard=sbs_" + "A" * 43}
        assert http.get("/endpoints", headers=forged).status_code == 303
        for form in FORMS:
            path = form.path.format(id=UNKNOWN, slug="alpha", queue="inbox")
            answer = http.post(path, data={"csrf": "x"}, headers={"origin": served.url, **forged})
            assert answer.status_code == 403, path


def test_a_foreign_board_is_no_board(
    db: Sql,
    alpha: Endpoint,
    beta: Endpoint,
    other_human: Any,
    browse: Callable[..., Browser],
) -> None:
    furniture = Furniture(db, alpha)
    stranger = browse(other_human)
    for path in LISTS:
        text, _ = stranger.see(path)
        assert "alpha" not in text, path
        assert "a waiting one" not in text, path
    for path in furniture.pages():
        unknown = path.replace(furniture.waiting, UNKNOWN).replace(furniture.held, UNKNOWN)
        unknown = unknown.replace(furniture.dead, UNKNOWN).replace(furniture.event, UNKNOWN)
        unknown = unknown.replace("alpha", "nobody")
        answer, nothing = stranger.get(path), stranger.get(unknown)
        assert answer.status_code == nothing.status_code == 404, path
        assert answer.text == nothing.text, path
    for form in FORMS:
        if form.path == "/endpoints":
            continue
        own = furniture.hook if form.path.startswith("/hooks") else furniture.held
        own = furniture.webhook if form.path.startswith("/receivers") else own
        own = furniture.event if form.path.startswith("/deliveries") else own
        said = []
        for one, slug in ((own, "alpha"), (UNKNOWN, "nobody")):
            path = form.path.format(id=one, slug=slug, queue="inbox")
            answer = stranger.send(path, confirm=slug, max_in_flight="1", queues="inbox", force="1")
            said.append((answer.status_code, answer.text.replace(slug, "SLUG")))
            if answer.status_code == 303:  # what is said comes with the next page
                said[-1] = (303, str(NOTE.findall(stranger.see("/")[0])))
                assert "refused" in said[-1][1], path
        assert said[0] == said[1], form.path
    assert db.value("select count(*) from switchboard.todos where owner like 'op:%%'") == 0


@pytest.mark.parametrize("path", ["/", "/events?page=exchange", "/endpoints/alpha/rotate"])
def test_who_tries_cookies_is_slowed_down_and_nobody_else(
    db: Sql, alpha: Endpoint, browse: Callable[..., Browser], path: str
) -> None:
    browser = browse(failure_rate=0.01, failure_burst=3)
    said = []
    for number in range(6):
        secret = f"sbs_{number:043d}"
        made = hmac.new(secret.encode(), b"csrf", "sha256").digest()
        csrf = base64.urlsafe_b64encode(made).rstrip(b"=").decode()
        headers = {"cookie": f"switchboard={secret}", "origin": browser.url}
        with httpx2.Client(base_url=browser.url, headers=headers) as http:
            answer = http.post(path, data={"csrf": csrf}) if "rotate" in path else http.get(path)
        said.append(answer.status_code)
        assert said[-1] != 429 or int(answer.headers["retry-after"]) > 0
    assert said[3:] == [429] * 3
    assert 429 not in said[:3]
    assert browser.get("/").status_code == 200
    assert browser.send("/endpoints/alpha/rotate").status_code == 200


# ---- forms


def test_a_todo_is_moved(db: Sql, alpha: Endpoint, browse: Callable[..., Browser]) -> None:
    todo, browser = db.create(alpha, "one"), browse()
    state = "select state, owner, result, lease_seconds from switchboard.todos where id = %s"
    kind, _ = browser.do(f"/todos/{todo}/claim", lease_ttl_seconds="60")
    assert kind == "done"
    assert db.row(state, todo) == {
        "state": "claimed", "owner": "op:tester", "result": None, "lease_seconds": 60,
    }  # fmt: skip
    assert browser.do(f"/todos/{todo}/extend", lease_ttl_seconds="120")[0] == "done"
    left = "select extract(epoch from due_at - switchboard.now()) from switchboard.todos"
    assert 100 < db.value(left) <= 120
    assert browser.do(f"/todos/{todo}/fail", result="it broke")[0] == "done"
    assert db.row(state, todo)["result"] == "it broke"
    assert browser.do(f"/todos/{todo}/retry")[0] == "done"
    assert browser.do(f"/todos/{todo}/claim")[0] == "done"
    assert browser.do(f"/todos/{todo}/release")[0] == "done"
    assert browser.do(f"/todos/{todo}/claim")[0] == "done"
    assert browser.do(f"/todos/{todo}/complete", result='{"n": 12345678901234567890}')[0] == "done"
    ended = db.row(state, todo)
    assert (ended["state"], ended["result"]) == ("done", {"n": 12345678901234567890})
    kind, text = browser.do(f"/todos/{todo}/complete")
    assert kind == "refused"
    assert text
    assert not NOTE.search(browser.see("/")[0]), "it is said once"


def test_a_number_that_is_none_is_refused_by_name(
    db: Sql, alpha: Endpoint, browse: Callable[..., Browser]
) -> None:
    todo = db.create(alpha, "one")
    kind, text = browse().do(f"/todos/{todo}/claim", lease_ttl_seconds="soon")
    assert kind == "refused"
    assert "lease_ttl_seconds" in text


def test_over_somebody_elses_lease_only_by_force(
    db: Sql, alpha: Endpoint, browse: Callable[..., Browser]
) -> None:
    browser, furniture = browse(), Furniture(db, alpha)
    assert browser.do(f"/todos/{furniture.held}/complete")[0] == "refused"
    assert browser.do(f"/todos/{furniture.held}/complete", force="1")[0] == "done"
    outcome = "select outcome from switchboard.todo_attempts where todo_id = %s"
    assert db.value(outcome, furniture.held) == "overridden"


def test_an_endpoint_is_vended_changed_and_revoked(
    db: Sql, alpha: Endpoint, browse: Callable[..., Browser]
) -> None:
    browser = browse()
    refused = browser.send("/endpoints", slug="Not A Slug", queues="a b", verb="claim")
    assert refused.status_code == 400
    assert 'value="Not A Slug"' in refused.text
    assert 'aria-invalid="true"' in refused.text
    shown = browser.send(
        "/endpoints", slug="gamma", queues="a, b", verb=["claim", "complete"], days="7"
    )
    assert shown.status_code == 200
    found = re.search(r"sbk_[A-Za-z0-9_-]{43}", shown.text)
    assert found
    assert f"{browser.url}/mcp/gamma" in shown.text
    assert "sbk_" not in browser.see("/endpoints/gamma")[0]
    vended = db.row("select * from switchboard.endpoints where slug = 'gamma'")
    assert sorted(vended["verbs"]) == ["claim", "complete"]
    assert sorted(vended["queues"]) == ["a", "b"]
    assert vended["expires_at"] is not None
    assert (
        browser.do("/endpoints/gamma/grant", queues="a b c", verb="claim", webhook_max="2")[0]
        == "done"
    )
    vended = db.row("select * from switchboard.endpoints where slug = 'gamma'")
    assert (sorted(vended["queues"]), vended["webhook_max"]) == (["a", "b", "c"], 2)
    refused = browser.send("/endpoints/gamma/grant", queues="", verb="claim", webhook_max="2")
    assert refused.status_code == 400
    rotated = browser.send("/endpoints/gamma/rotate", grace_seconds="60")
    assert re.search(r"sbk_[A-Za-z0-9_-]{43}", rotated.text)[0] != found[0]  # type: ignore[index]
    assert browser.do("/endpoints/gamma/revoke", confirm="gama")[0] == "refused"
    assert db.value("select revoked_at from switchboard.endpoints where slug = 'gamma'") is None
    assert browser.do("/endpoints/gamma/revoke", confirm="gamma")[0] == "done"
    assert db.value("select revoked_at from switchboard.endpoints where slug = 'gamma'")


def test_a_budget_is_set_and_taken_away(
    db: Sql, alpha: Endpoint, browse: Callable[..., Browser]
) -> None:
    browser, path = browse(), "/budget/alpha/inbox"
    filled = {"max_claims_per_window": "40", "period": "week", "tz": "Europe/Warsaw"}
    filled |= {"start": "06:00", "weekday": "Fri", "max_in_flight": ""}
    assert browser.do(path, **filled)[0] == "done"
    text, _ = browser.see(path)
    assert "Europe/Warsaw" in text
    refused = browser.send(path, **{**filled, "tz": "Mars/Olympus"})
    assert refused.status_code == 400
    assert 'value="Mars/Olympus"' in refused.text
    assert browser.do(f"{path}/clear")[0] == "done"
    assert db.value("select count(*) from switchboard.admission_policies") == 0


def test_receivers_and_hooks(db: Sql, alpha: Endpoint, browse: Callable[..., Browser]) -> None:
    browser, furniture = browse(), Furniture(db, alpha)
    held = "select held from switchboard.endpoint_webhooks"
    assert browser.do(f"/receivers/{furniture.webhook}/hold", back="/receivers")[0] == "done"
    assert db.value(held) is True
    assert (
        browser.do(f"/receivers/{furniture.webhook}/unhold", back="/endpoints/alpha")[0] == "done"
    )
    assert db.value(held) is False
    shown = browser.send(f"/hooks/{furniture.hook}/rotate", back="/hooks")
    assert shown.status_code == 200
    assert "whsec_" in shown.text
    assert "whsec_" not in browser.see("/hooks")[0]
    assert browser.do(f"/hooks/{furniture.hook}/delete")[0] == "done"
    assert db.value("select count(*) from switchboard.notify_hooks") == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"csrf": ""},
        {"csrf": "A" * 43},
        {"csrf": "\udcff"},
        {"origin": None},
        {"origin": "null"},
        {"origin": "https://evil.example"},
    ],
    ids=str,
)
def test_a_form_from_elsewhere_does_nothing(
    db: Sql, alpha: Endpoint, browse: Callable[..., Browser], changes: dict[str, Any]
) -> None:
    todo, browser = db.create(alpha, "one"), browse()
    if changes.get("csrf", "").startswith("\udcff"):
        changes = {"csrf": b"\xff\xfe"}
    answer = browser.send(f"/todos/{todo}/claim", **changes)
    assert answer.status_code in (400, 403)
    assert db.value("select state from switchboard.todos") == "pending"


def test_a_csrf_token_is_worth_nothing_in_another_session(
    db: Sql, alpha: Endpoint, browse: Callable[..., Browser]
) -> None:
    todo, one, other = db.create(alpha, "one"), browse(), browse()
    assert one.csrf != other.csrf
    assert one.send(f"/todos/{todo}/claim", csrf=other.csrf).status_code == 403
    assert db.value("select state from switchboard.todos") == "pending"


@pytest.mark.parametrize(
    "back", ["//evil.example", "https://evil.example", "/\\evil", "/\t/evil", "evil"]
)
def test_back_is_a_path_of_ours(
    db: Sql, alpha: Endpoint, browse: Callable[..., Browser], back: str
) -> None:
    furniture = Furniture(db, alpha)
    answer = browse().send(f"/receivers/{furniture.webhook}/hold", back=back)
    assert answer.headers["location"] == "/receivers"


def test_what_is_no_form_is_refused(alpha: Endpoint, browse: Callable[..., Browser]) -> None:
    browser = browse()
    headers = {"origin": browser.url}
    large = browser.http.post("/endpoints", content=b"a=" + b"x" * 70_000, headers=headers)
    assert large.status_code == 413
    binary = browser.http.post("/endpoints", content=b"\xff\xfe", headers=headers)
    assert binary.status_code == 400
    assert browser.get(f"/todos/{UNKNOWN}/claim").status_code == 405


def test_an_address_that_is_none_is_a_page_to_a_browser(
    alpha: Endpoint, browse: Callable[..., Browser]
) -> None:
    browser = browse()
    shown = browser.http.get("/nowhere", headers={"accept": "text/html,*/*"})
    assert shown.status_code == 404
    assert "<!doctype html>" in shown.text
    told = browser.http.get("/nowhere", headers={"accept": "*/*"})
    assert told.json()["code"] == "not_found"


def test_a_word_of_somebody_else_is_not_said(
    alpha: Endpoint, browse: Callable[..., Browser]
) -> None:
    browser = browse()
    for value in ("bm9uZQ==.00", "garbage", ".", "W10=." + "0" * 64):
        browser.http.cookies.set("switchboard-flash", value, domain="127.0.0.1")
        assert not NOTE.search(browser.see("/")[0])


def test_assets(alpha: Endpoint, browse: Callable[..., Browser]) -> None:
    browser = browse()
    text, _ = browser.see("/")
    assets = re.findall(r'(?:href|src)="(/static/[^"]+)"', text)
    assert len(set(assets)) == 3
    weight = len(text)
    for path in set(assets):
        answer = browser.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        weight += len(answer.content)
    assert weight < 150_000
    assert browser.get("/static/board.css").headers["cache-control"] == "no-cache"
    for path in ("/static/../board.py", "/static/%2e%2e/config.py", "/static/none.css"):
        assert browser.get(path).status_code == 404


def test_a_secret_is_shown_though_the_page_around_it_cannot_be_made(
    db: Sql, alpha: Endpoint, browse: Callable[..., Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, ask = browse(), Board._ask

    async def away(board: Board, digest: bytes, page: str, args: str) -> Any:
        if page == "health":
            raise psycopg.OperationalError
        return await ask(board, digest, page, args)

    monkeypatch.setattr(Board, "_ask", away)
    shown = browser.send("/endpoints/alpha/rotate")
    assert shown.status_code == 200
    assert re.search(r"sbk_[A-Za-z0-9_-]{43}", shown.text)


# ---- the stream


def test_a_change_by_plain_sql_is_seen_by_who_may(
    db: Sql,
    alpha: Endpoint,
    beta: Endpoint,
    other_human: Any,
    browse: Callable[..., Browser],
    watch: Callable[..., Events],
) -> None:
    mine, theirs = watch(browse()), watch(browse(other_human))
    mine.ready()
    theirs.ready()
    begun = time.monotonic()
    db.create(alpha, "brand new")
    until(lambda: mine.has("brand new"), "the change is sent")
    assert time.monotonic() - begun < 1.5 * busy()
    db.create(beta, "for the other one")
    until(lambda: theirs.has("for the other one"), "the other human sees theirs")
    assert not theirs.has("brand new")
    assert not mine.has("for the other one")


def test_who_signs_out_or_loses_the_token_sees_no_more(
    db: Sql, alpha: Endpoint, browse: Callable[..., Browser], watch: Callable[..., Events]
) -> None:
    leaves, loses, stays = browse(), browse(), browse()
    streams = [watch(browser) for browser in (leaves, loses, stays)]
    for stream in streams:
        stream.ready()
    assert leaves.send("/sign-out").status_code == 303
    db.rows("select switchboard.revoke_operator_token(%s, 'board 1')", db.human)
    for stream in streams[:2]:
        until(lambda stream=stream: "gone" in stream.names(), "the stream says that it is over")
    assert "gone" not in streams[2].names()
    db.create(alpha, "after that")
    until(lambda: streams[2].has("after that"), "who stayed sees it")
    assert not streams[0].has("after that")
    assert not streams[1].has("after that")


def test_who_is_not_signed_in_is_told_so_on_the_stream(
    db: Sql, alpha: Endpoint, browse: Callable[..., Browser], watch: Callable[..., Events]
) -> None:
    browser = browse()
    nowhere = watch(browser, "page=nowhere")
    until(lambda: nowhere.names() == ["gone"], "there is no such page")
    nothing = watch(browser, f"page=todo&id={UNKNOWN}")
    until(lambda: nothing.names() == ["gone"], "there is no such todo")
    browser.http.cookies.clear()
    nobody = watch(browser)
    until(lambda: nobody.names() == ["gone"], "nobody is signed in")


def test_too_many_streams_are_refused(
    db: Sql, alpha: Endpoint, browse: Callable[..., Browser], watch: Callable[..., Events]
) -> None:
    browser = browse(board_streams=2)
    for _ in range(2):
        watch(browser).ready()
    answer = browser.get("/events?page=exchange")
    assert answer.status_code == 503
    assert answer.headers["retry-after"]


def test_fault_59_boards_and_calls_share_a_pool_of_two(
    db: Sql, alpha: Endpoint, browse: Callable[..., Browser], watch: Callable[..., Events]
) -> None:
    browser = browse(pool_size=2, pool_wait=0.2)
    streams = [watch(browser) for _ in range(20)]
    for stream in streams:
        stream.ready()
    answers: list[httpx2.Response] = []
    with db.connection.transaction():
        # Whoever has to write to an endpoint, or read a page, waits here.
        db.rows("lock table switchboard.endpoints in access exclusive mode")
        callers = [
            threading.Thread(target=lambda: answers.append(browser.get("/endpoints")))
            for _ in range(50)
        ]
        for caller in callers:
            caller.start()
        until(lambda: len(answers) >= 48, "those that find no connection are told so", 30)
    for caller in callers:
        caller.join(30)
    assert len(answers) == 50
    refused = [answer for answer in answers if answer.status_code != 200]
    assert {answer.status_code for answer in refused} == {503}
    assert all(answer.headers["retry-after"] for answer in refused)
    assert browser.get("/").status_code == 200
    db.create(alpha, "after the rush")
    for stream in streams:
        until(lambda stream=stream: stream.has("after the rush"), "every board is live again", 30)
