"""The board in a browser: how it looks, what it does, what it lets nobody do.

A page here is one that the server made of what is in the database, and every action is judged by
the database afterwards. The pictures are left in build/board. What needs no browser is in
test_board, test_board_forms and test_board_stream.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from board_kit import (
    CHROMIUM,
    EVIL,
    NPM,
    TOO_WIDE,
    WEIGHT,
    Examples,
    Place,
    Seat,
    chromium,
    looks,
    verdicts,
)
from conftest import Endpoint, busy, fresh, until
from playwright.sync_api import Browser, Page, expect

pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
    pytest.mark.skipif(not NPM, reason="node and npm are not installed"),
]

# Elements or scripts that only a text of others could have made, and marks that turn the direction.
STRAYED = """() => {
  const texts = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
  const turned = [];
  while (texts.nextNode()) {
    const node = texts.currentNode;
    const kept = node.parentNode.nodeName === "TEXTAREA";
    if (!kept && /[\\u202a-\\u202e\\u2066-\\u2069]/.test(node.data))
      turned.push(node.parentNode.outerHTML.slice(0, 120));
  }
  const made = [...document.querySelectorAll("main b, main img, [onerror], script")]
    .filter(e => e.nodeName !== "B" || e.textContent.startsWith("{{"))
    .filter(e => e.nodeName !== "SCRIPT" || !e.src.includes("/static/board.js"));
  const title = document.title === "owned";
  return { turned, made: made.map(e => e.outerHTML.slice(0, 120)), title };
}"""
NOTHING = {"turned": [], "made": [], "title": False}
SHOWN = EVIL.replace("\u202e", "[U+202E]")
TITLE = EVIL.replace("\u202e", " ")  # that of a todo is one clean line from the beginning
TEXT = EVIL.partition("\u202e")[0]

PAGES = {
    "exchange": "/",
    "todo": "/todos/{dead}",
    "endpoints": "/endpoints",
    "endpoint": "/endpoints/reviewer",
    "receivers": "/receivers",
    "deliveries": "/deliveries",
    "delivery": "/deliveries/{event}",
    "hooks": "/hooks",
    "budget": "/budget/reviewer/nightly",
    "health": "/health",
    "error": "/todos/01890000-0000-7000-8000-00000000dead",
}
HOSTILE = {
    "exchange": "/?endpoint=evil",
    "todo": "/todos/{hostile}",
    "endpoint": "/endpoints/evil",
    "deliveries": "/deliveries?endpoint=evil",
    "delivery": "/deliveries/{opened}",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For this module only: while it is open this thread has a running loop."""
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def place(cluster_url: str, template: str) -> Iterator[Place]:
    with fresh(cluster_url, template) as (_, dsn), Place(dsn) as opened:
        yield opened


@pytest.fixture
def anna(browser: Browser, place: Place) -> Iterator[Seat]:
    """Anna, signed in; what is not as it should be fails the test."""
    seat = place.seat(browser)
    yield seat
    seat.close()


def path_of(place: Place, path: str) -> str:
    """A page with the ids of what is in the database."""
    query = (
        "select max(e.id::text) filter (where e.source_type = 'github') as event,"
        " max(e.id::text) filter (where e.source_type = 'open') as opened from switchboard.events e"
    )
    return path.format(dead=place.dead, hostile=place.hostile, **place.db.row(query))


def ask(page: Page, name: str, **fields: str) -> None:
    """Open the second step of an action, fill it in, and do it."""
    page.locator(f"[id='{name}'] > summary").click()
    confirm(page, name, **fields)


def confirm(page: Page, name: str, **fields: str) -> None:
    form = page.locator(f"[id='{name}'] form")
    for field, value in fields.items():
        form.locator(f"[name={field}]").fill(value)
    form.locator("button").click()


def said(page: Page, kind: str = "done") -> str:
    """What the page says about what was done."""
    note = page.locator(f"main > .note.{kind}")
    expect(note).to_be_visible()
    return note.inner_text()


def wait_live(place: Place, page: Page) -> None:
    """Until its stream has brought the page up to date."""
    expect(page.locator("#wire")).to_have_text("")
    until(lambda: len(place.served.app.state.streams) > 0, "a stream is open")


# ---- how it looks


@pytest.mark.parametrize("name", PAGES)
def test_a_page_in_each_size_and_theme(anna: Seat, place: Place, name: str) -> None:
    anna.forgiven = ("404",) if name == "error" else ()
    path = path_of(place, PAGES[name])
    anna.go(path)
    assert 30_000 < anna.weight() < WEIGHT
    assert not list(looks(anna, name))


def test_the_door_in_each_size_and_theme(browser: Browser, place: Place) -> None:
    seat = Seat(browser, place.url)
    page = seat.go("/")
    assert urlsplit(page.url).path == "/sign-in"
    assert not list(looks(seat, "sign-in"))
    code = place.db.value("select code from switchboard.create_sign_in_link(%s)", place.bert.id)
    seat.go(f"/sign-in/{code}")
    assert not list(looks(seat, "sign-in-link"))
    seat.close()


@pytest.fixture(scope="module")
def examples() -> Iterator[Examples]:
    with Examples() as served:
        yield served


# ---- texts of others


@pytest.mark.parametrize("name", Examples.all())
def test_an_example_full_of_hostile_texts_keeps_its_shape(
    browser: Browser, examples: Examples, name: str
) -> None:
    seat = Seat(browser, examples.url, viewport={"width": 360, "height": 800})
    page = seat.go(f"/example/{name}")
    assert TEXT in (page.text_content("body") or "")
    assert page.evaluate(STRAYED) == NOTHING
    assert not page.evaluate(TOO_WIDE)
    assert not verdicts(page)
    seat.close()


@pytest.mark.parametrize("name", [*HOSTILE, "hooks", "receivers", "endpoints", "health"])
def test_no_stored_text_becomes_more_than_text(anna: Seat, place: Place, name: str) -> None:
    page = anna.go(path_of(place, HOSTILE.get(name, f"/{name}")))
    wait_live(place, page)
    if name in HOSTILE:
        assert TEXT in (page.text_content("main") or "")
    assert page.evaluate(STRAYED) == NOTHING


def test_each_field_of_a_hostile_todo_is_there_as_text(anna: Seat, place: Place) -> None:
    text = anna.go(f"/todos/{place.hostile}").text_content("main") or ""
    for field in ("from ", ", ", "by "):  # source, kind, who held it
        assert field + SHOWN in text
    assert json.dumps(TEXT)[1:-1] in text, "payload and result"
    delivery = anna.go(path_of(place, "/deliveries/{opened}")).text_content("main") or ""
    assert delivery.count(TEXT) >= 4, "delivery id, a header, content type, body"


def test_a_hostile_text_that_comes_by_the_stream_is_text(anna: Seat, place: Place) -> None:
    page = anna.go("/?endpoint=desk")
    wait_live(place, page)
    todo = place.todo(title=EVIL)
    expect(page.locator(f".ticket[data-key='t-{todo}'] .what > a")).to_have_text(TITLE)
    assert page.evaluate(STRAYED) == NOTHING


def test_what_was_typed_and_refused_is_shown_as_text(anna: Seat) -> None:
    anna.forgiven = ("400",)
    page = anna.go("/endpoints")
    page.locator("[name=slug]").fill(EVIL)
    page.locator("[name=queues]").fill(EVIL)
    page.locator("form[action='/endpoints'] button").click()
    expect(page.locator("#why")).to_be_visible()
    assert page.locator("[name=slug]").input_value() == EVIL[:63]
    assert page.evaluate(STRAYED) == NOTHING
    page = anna.go(f"/?q={TEXT}")
    assert page.locator("[name=q]").input_value() == TEXT
    assert page.evaluate(STRAYED) == NOTHING


# ---- actions


def test_claim_and_extend_and_complete(anna: Seat, place: Place) -> None:
    todo = place.todo()
    page = anna.go(f"/todos/{todo}")
    ask(page, "claim", lease_ttl_seconds="120")
    said(page)
    state = place.state(todo)
    assert (state["state"], state["owner"]) == ("claimed", place.anna.owner)
    assert 100 < state["lease"] <= 120
    ask(page, "extend", lease_ttl_seconds="900")
    said(page)
    assert 850 < place.state(todo)["lease"] <= 900
    ask(page, "complete", result='{"seen": 12345678901234567890}')
    said(page)
    state = place.state(todo)
    assert (state["state"], state["result"]) == ("done", {"seen": 12345678901234567890})
    assert page.locator("#complete").count() == 0


def test_complete_with_a_text(anna: Seat, place: Place) -> None:
    todo = place.todo("claimed", place.anna.owner)
    page = anna.go(f"/todos/{todo}")
    ask(page, "complete", result="that's <b>all</b>")
    said(page)
    assert place.state(todo)["result"] == "that's <b>all</b>"


@pytest.mark.parametrize(
    ("action", "state"), [("fail", "failed"), ("release", "pending"), ("complete", "done")]
)
def test_over_the_head_of_its_holder(anna: Seat, place: Place, action: str, state: str) -> None:
    todo = place.todo("claimed", "agent:desk")
    page = anna.go(f"/todos/{todo}")
    page.locator(f"#{action} > summary").click()
    expect(page.locator(f"#{action}")).to_contain_text("whoever works on it is cut off")
    confirm(page, action)
    said(page)
    assert place.state(todo)["state"] == state
    ended = "select outcome from switchboard.todo_attempts where todo_id = %s"
    assert place.db.value(ended, todo) == "overridden"


def test_fail_what_is_mine_and_retry_it(anna: Seat, place: Place) -> None:
    todo = place.todo("claimed", place.anna.owner)
    page = anna.go(f"/todos/{todo}")
    ask(page, "fail", result="no")
    said(page)
    assert place.state(todo)["state"] == "failed"
    ask(page, "retry")
    said(page)
    assert (place.state(todo)["state"], place.state(todo)["attempt"]) == ("pending", 0)


def test_what_somebody_else_did_meanwhile_is_said(anna: Seat, place: Place) -> None:
    todo = place.todo("claimed", "agent:desk")
    anna.forgiven = ("ERR_FAILED",)
    anna.page.route("**/events?**", lambda route: route.abort())  # the page does not hear of it
    page = anna.go(f"/todos/{todo}")
    page.locator("#complete > summary").click()
    place.db.value("select id from switchboard.complete(%s, %s, 'agent:desk')", place.desk.id, todo)
    confirm(page, "complete")
    assert "done" in said(page, "refused")


def test_vend_grant_rotate_revoke(anna: Seat, place: Place) -> None:
    anna.forgiven = ("400",)
    page = anna.go("/endpoints")
    page.locator("[name=slug]").fill("newcomer")
    page.locator("[name=queues]").fill("one two")
    page.locator("#vend-more > summary").click()
    page.locator("[name=days]").fill("30")
    page.locator("form[action='/endpoints'] button").click()
    first = page.locator("[name=credential]").input_value()
    assert not list(looks(anna, "secret"))
    assert works(place, "newcomer", first)
    page.locator("main a.button").click()
    page.wait_for_url("**/endpoints/newcomer")
    assert first not in page.content()

    page.locator("form[action$='/grant'] [name=queues]").fill("two three")
    page.locator("form[action$='/grant'] [value=create_todo]").check()
    page.locator("form[action$='/grant'] button").click()
    said(page)
    row = place.db.row(
        "select queues, verbs from switchboard.list_endpoints() where slug = 'newcomer'"
    )
    assert set(row["queues"]) == {"two", "three"}
    assert "create_todo" in row["verbs"]
    page.locator("form[action$='/grant'] [name=queues]").fill("No Such")
    page.locator("form[action$='/grant'] button").click()
    expect(page.locator("#why")).to_be_visible()

    page = anna.go("/endpoints/newcomer")
    ask(page, "rotate", grace_seconds="0")
    second = page.locator("[name=credential]").input_value()
    assert second != first
    assert works(place, "newcomer", second)
    assert not works(place, "newcomer", first)

    page = anna.go("/endpoints/newcomer")
    page.locator("#revoke > summary").click()
    page.locator("#revoke [name=confirm]").evaluate("e => e.removeAttribute('pattern')")
    confirm(page, "revoke", confirm="somebody else")
    said(page, "refused")
    assert works(place, "newcomer", second)
    ask(page, "revoke", confirm="newcomer")
    said(page)
    assert not works(place, "newcomer", second)


def works(place: Place, slug: str, credential: str) -> bool:
    """Whether a credential opens an endpoint."""
    endpoint = Endpoint("", slug, credential)
    session = place.served.session(endpoint, start=False)
    answer = session.post(
        session.request(
            "initialize",
            {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        )
    )
    return answer.status_code == 200


def test_hold_quarantine_let_in_discard_and_replay(anna: Seat, place: Place) -> None:
    queues = (
        "select e.delivery_id, t.id::text, t.queue, t.completed_at is not null as over"
        " from switchboard.events e join switchboard.todos t on t.event_id = e.id"
        " where e.webhook_id = %s order by e.id"
    )
    hold = f"form[action='/receivers/{place.github.id}/hold'] button"
    page = anna.go("/receivers")
    page.locator(hold).click()
    said(page)
    for name in ("held-1", "held-2"):
        assert place.github.send(delivery=name).status_code == 202
    held = {row["delivery_id"]: row for row in place.db.rows(queues, place.github.id)}
    assert held["held-1"]["queue"] == held["held-2"]["queue"] == "quarantine"

    page = anna.go("/deliveries?quarantine=1")
    assert not verdicts(page)
    ask(page, f"in-{held['held-1']['id']}")
    said(page)
    ask(page, f"out-{held['held-2']['id']}")
    said(page)
    after = {row["delivery_id"]: row for row in place.db.rows(queues, place.github.id)}
    assert after["held-1"]["queue"] == "inbox"
    assert after["held-2"]["over"]

    page = anna.go("/receivers")
    page.locator(hold.replace("/hold", "/unhold")).click()
    said(page)
    event = "select id::text from switchboard.events where delivery_id = 'held-2'"
    page = anna.go(f"/deliveries/{place.db.value(event)}")
    ask(page, "replay")
    said(page)
    made = "select count(*) from switchboard.todos where event_id = %s::uuid"
    assert place.db.value(made, place.db.value(event)) == 2


def test_a_quarantined_todo_on_its_own_page(anna: Seat, place: Place) -> None:
    hold = "select switchboard.hold_webhook(%s, %s)"
    place.db.value(hold, place.open.id, True)
    sent = [place.open.send(f"number {n}".encode()).json()["todos"][0]["id"] for n in (1, 2)]
    place.db.value(hold, place.open.id, False)
    page = anna.go(f"/todos/{sent[0]}")
    ask(page, "let-in")
    said(page)
    assert place.state(sent[0])["queue"] == "inbox"
    page = anna.go(f"/todos/{sent[1]}")
    ask(page, "discard")
    said(page)
    assert place.state(sent[1])["dead_letter"] is True


def test_a_hook_gets_a_new_secret_and_goes(anna: Seat, place: Place) -> None:
    find = "select id::text, sealed_secret from switchboard.notify_hooks where endpoint_id = %s"
    before = place.db.row(find, place.evil.id)
    page = anna.go("/hooks")
    ask(page, f"rotate-{before['id']}")
    assert page.locator("[name=signing_secret]").input_value().startswith("whsec_")
    assert place.db.row(find, place.evil.id)["sealed_secret"] != before["sealed_secret"]
    page = anna.go("/endpoints/evil")
    ask(page, f"delete-{before['id']}")
    said(page)
    assert not place.db.rows(find, place.evil.id)
    assert urlsplit(page.url).path == "/endpoints/evil"


def test_a_budget_is_set_refused_and_removed(anna: Seat, place: Place) -> None:
    find = (
        "select max_claims_per_window as claims, window_period as period, window_tz as tz,"
        " window_start as start, window_weekday as weekday"
        " from switchboard.admission_status(%s, 'spent')"
    )
    anna.forgiven = ("400",)
    page = anna.go("/budget/desk/spent")
    save = page.locator("form[action='/budget/desk/spent'] button")
    page.locator("[name=max_claims_per_window]").fill("7")
    page.locator("[name=period]").select_option("week")
    page.locator("[name=weekday]").select_option("Thu")
    page.locator("[name=start]").fill("08:30")
    page.locator("[name=tz]").fill("Europe/Nowhere")
    save.click()
    expect(page.locator("[name=tz]")).to_have_attribute("aria-invalid", "true")
    assert page.locator("[name=start]").input_value() == "08:30"
    page.locator("[name=tz]").fill("Europe/Warsaw")
    save.click()
    said(page)
    set_to = {"claims": 7, "period": "week", "tz": "Europe/Warsaw", "start": "08:30"}
    assert place.db.row(find, place.desk.id) == {**set_to, "weekday": "Thu"}
    expect(page.locator("[data-live=budget-status]")).to_contain_text("0 of 7 claims this week")
    expect(page.locator("[data-live=audit]")).to_contain_text("set")
    ask(page, "clear")
    said(page)
    assert not place.db.rows(find, place.desk.id)


def test_search_finds_an_id_a_key_and_a_beginning(anna: Seat, place: Place) -> None:
    query = "select id::text from switchboard.create_todo(%s, 'inbox', 'Zebra crossing', '{}', %s)"
    todo = str(place.db.value(query, place.desk.id, "key-of-the-zebra"))
    page = anna.go("/")
    for words in (todo, "key-of-the-zebra", "zebra cr"):
        page.locator("[name=q]").fill(words)
        page.locator("form.filter button").click()
        expect(page.locator(".ticket")).to_have_count(1)
        expect(page.locator(f".ticket[data-key='t-{todo}']")).to_be_visible()


def test_older_tickets_are_behind_a_link_and_a_lamp_leads_to_its_todo(anna: Seat) -> None:
    page = anna.go("/?endpoint=team-0")
    shown = set(page.locator(".ticket").evaluate_all("all => all.map(t => t.dataset.key)"))
    page.locator(".pager a").click()
    page.wait_for_url("**before=**")
    older = set(page.locator(".ticket").evaluate_all("all => all.map(t => t.dataset.key)"))
    assert older
    assert not older & shown
    assert page.locator("[name=endpoint]").input_value() == "team-0"
    lamp = page.locator(".lamps i[id]").first
    todo = lamp.get_attribute("id")
    lamp.click()
    page.wait_for_url(f"**/todos/{todo}")


# ---- without script, without a mouse


def test_all_of_it_works_without_script(browser: Browser, place: Place) -> None:
    todo = place.todo(title="without script")
    seat = place.seat(browser, java_script_enabled=False)
    page = seat.go("/")
    page.locator(f".ticket[data-key='t-{todo}'] .what > a").click()
    ask(page, "claim")
    said(page)
    expect(page.locator(".marks")).to_contain_text("that is you")
    expect(page.locator(".marks .due")).to_contain_text("lease 4 m")
    ask(page, "complete", result="[1, 2]")
    said(page)
    assert place.state(todo)["result"] == [1, 2]
    for path in PAGES.values():
        if "dead" not in path:
            seat.go(path_of(place, path))
            assert not page.locator("time[data-t]:empty").count()
    page.locator("form.me button").click()
    page.wait_for_url("**/sign-in")
    seat.close()


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.outerHTML.slice(0, 200)"))


def tab_to(page: Page, mark: str, at_most: int = 60) -> None:
    """Press Tab until the focus is on what has that in its tag, and can be seen there."""
    for _ in range(at_most):
        page.keyboard.press("Tab")
        if mark in focused(page):
            outline = page.evaluate(
                "[document.activeElement, ...document.activeElement.children]"
                ".some(e => getComputedStyle(e).outlineStyle !== 'none')"
            )
            assert outline, "the focus is not shown"
            return
    raise AssertionError(f"Tab does not reach {mark}")


def test_all_of_it_works_with_the_keyboard(anna: Seat, place: Place) -> None:
    todo = place.todo(title="with the keyboard")
    page = anna.go("/?endpoint=desk")
    page.keyboard.press("Tab")
    assert 'class="skip"' in focused(page)
    page.keyboard.press("Enter")
    assert 'id="main"' in focused(page)
    tab_to(page, f'href="/todos/{todo}"', 200)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/todos/{todo}")
    page.locator("#claim").wait_for()
    tab_to(page, "<summary>")
    page.keyboard.press("Enter")
    tab_to(page, "lease_ttl_seconds", 2)
    page.keyboard.type("77")
    tab_to(page, "<button", 2)
    page.keyboard.press("Enter")
    said(page)
    assert 60 < place.state(todo)["lease"] <= 77


# ---- live


def test_what_changes_anywhere_shows_to_whom_it_belongs(browser: Browser, place: Place) -> None:
    anna, bert = place.seat(browser), place.seat(browser, place.bert)
    hers, his = anna.go("/"), bert.go("/")
    for page in (hers, his):
        wait_live(place, page)
    until(lambda: len(place.served.app.state.streams) >= 2, "both streams are open")
    started = time.monotonic()
    todo = place.todo(title="by plain SQL")
    hers.locator(f".ticket[data-key='t-{todo}']").wait_for(timeout=1500 * busy())
    assert time.monotonic() - started < 1.5 * busy()
    place.db.rows(
        "update switchboard.todos set title = 'by plainer SQL' where id = %s", todo
    )  # no function at all
    expect(hers.locator(f".ticket[data-key='t-{todo}']")).to_contain_text("by plainer SQL")
    place.claim(place.desk, "inbox", "agent:desk")
    other = place.db.create(place.theirs, "his own")
    expect(his.locator(f".ticket[data-key='t-{other}']")).to_be_visible()
    assert "plain" not in his.content()
    assert "endpoints/desk" not in his.content()
    assert "his own" not in hers.content()
    anna.close()
    bert.close()


def test_a_countdown_runs_and_what_is_typed_stays(anna: Seat, place: Place) -> None:
    todo = place.todo("claimed", "agent:desk")
    page = anna.go(f"/todos/{todo}")
    wait_live(place, page)
    page.locator("#complete > summary").click()
    page.locator("#complete textarea").fill('{"half": ')
    before = page.locator(".marks .due").inner_text()
    query = "select id from switchboard.heartbeat(%s, %s, 'agent:desk', 3600)"
    place.db.value(query, place.desk.id, todo)
    expect(page.locator(".marks .due")).to_contain_text("59 m")
    assert before.startswith("lease ")
    assert page.locator("#complete textarea").input_value() == '{"half": '
    assert "textarea" in focused(page)
    token = page.locator("#complete [name=csrf]").get_attribute("value")
    assert token == page.locator("meta[name=csrf]").get_attribute("content") != ""
    shown = page.locator(".marks .due").inner_text()
    until(lambda: page.locator(".marks .due").inner_text() != shown, "it counts", 5)


def test_who_is_signed_out_sees_nothing_more(browser: Browser, place: Place) -> None:
    query = "select token from switchboard.create_operator_token(%s, 'short')"
    lasting, place.bert.token = place.bert.token, str(place.db.value(query, place.bert.id))
    seat = place.seat(browser, place.bert)
    place.bert.token = lasting
    page = seat.go("/")
    wait_live(place, page)
    place.db.value("select switchboard.revoke_operator_token(%s, 'short')", place.bert.id)
    page.wait_for_url("**/sign-in**")
    seat.close()


# ---- in and out


def test_sign_in_by_token_by_link_and_out(browser: Browser, place: Place) -> None:
    seat = Seat(browser, place.url)
    seat.forgiven = ("401",)
    page = seat.go("/health")
    page.locator("[name=token]").fill("sbo_" + "x" * 43)
    page.locator("button").click()
    expect(page.locator("#why")).to_be_visible()
    assert page.locator("[name=token]").input_value() == ""
    page.locator("[name=token]").fill(place.anna.token)
    page.locator("button").click()
    page.wait_for_url("**/health")
    assert page.evaluate("document.cookie") == "", "scripts do not see it"
    page.locator("form.me button").click()
    page.wait_for_url("**/sign-in")
    page.go_back()
    expect(page.locator("form[action='/sign-in']")).to_be_visible()

    code = place.db.value("select code from switchboard.create_sign_in_link(%s)", place.anna.id)
    seat.go(f"/sign-in/{code}")
    page.reload()  # looking at it uses nothing up
    page.locator("main button").click()
    page.wait_for_url(place.url + "/")
    expect(page.locator("form.me")).to_contain_text("anna")
    page.locator("form.me button").click()
    page.wait_for_url("**/sign-in")
    seat.go(f"/sign-in/{code}")
    page.locator("main button").click()
    expect(page.locator("#why")).to_contain_text("used")
    seat.close()


def test_a_foreign_page_can_neither_post_nor_frame(
    browser: Browser, examples: Examples, place: Place
) -> None:
    """One on the same site, so that the browser sends the cookie, and even with a good token."""
    todo = place.todo(title="not yours")
    seat = place.seat(browser)
    token = seat.go("/").locator("meta[name=csrf]").get_attribute("content")
    examples.foreign = (
        f"<form method=post action='{place.url}/todos/{todo}/claim'>"
        f"<input name=csrf value='{token}'><button>Win a prize</button></form>"
        f"<iframe src='{place.url}/'></iframe>"
    )
    seat.forgiven = (examples.url, "403", "404", "frame-ancestors")
    page = seat.page
    page.goto(f"{examples.url}/foreign")
    (frame,) = page.frames[1:]
    assert "anna" not in frame.content()
    page.locator("button").click()
    page.wait_for_url(f"{place.url}/**")
    assert place.state(todo)["state"] == "pending"
    seat.close()
