"""Signing in over HTTP: who gets in, what the cookie is like, what ends it.

What sessions are in the database is db/tests/13_sign_in.sql; test_oidc.py is about providers.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from conftest import Served, Sql, logged
from sign_in_kit import NEVER, Place, set_cookie

from switchboard.board_session import own_path
from switchboard.logs import _CHATTY
from switchboard.secrets import digest


@pytest.fixture
def place(serve: Callable[..., Served], db: Sql) -> Iterator[Callable[..., Place]]:
    """Serve; keywords change settings."""
    made: list[Place] = []

    def start(**changes: Any) -> Place:
        made.append(Place(serve(**{**NEVER, **changes}), db))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def here(place: Callable[..., Place]) -> Place:
    return place()


# ---- by a token


def test_a_token_opens_a_session_in_a_cookie_that_no_script_reads(here: Place) -> None:
    browser = here.browser()
    answer = browser.post("/sign-in", token=f" {here.token()} ", next="/todos/1?x=y")
    assert (answer.status_code, answer.headers["location"]) == (303, "/todos/1?x=y")
    cookie = set_cookie(answer)
    assert re.fullmatch("sbs_[A-Za-z0-9_-]{43}", cookie.value)
    assert (cookie["httponly"], cookie["samesite"].lower(), cookie["path"]) == (True, "lax", "/")
    assert (cookie["secure"], cookie["domain"], cookie["max-age"]) == ("", "", str(30 * 86400))
    assert answer.headers["cache-control"] == "no-store"
    assert here.whom(browser.cookie) == "ada"


def test_over_https_the_cookie_is_secure_and_of_this_host_alone(
    place: Callable[..., Place],
) -> None:
    here = place(public_url="https://board.example.org")
    answer = here.browser("https://board.example.org").post("/sign-in", token=here.token())
    assert answer.status_code == 303
    cookie = set_cookie(answer, "__Host-switchboard")
    assert (cookie["secure"], cookie["path"], cookie["domain"]) == (True, "/", "")
    assert (cookie["httponly"], cookie["samesite"].lower()) == (True, "lax")
    assert here.whom(cookie.value) == "ada"
    # What a sibling host could have planted under the other name is not looked at.
    out = {"cookie": f"switchboard={cookie.value}", "origin": "https://board.example.org"}
    assert here.browser().post("/sign-out", headers=out).status_code == 303
    assert here.whom(cookie.value) == "ada"


def test_what_is_no_good_token_opens_nothing(here: Place) -> None:
    for given in ["", "sbo_", "x", "sbo_" + "A" * 43, "é", "\x00", "sbo_" * 3000]:
        answer = here.browser().post("/sign-in", token=given, next="/hooks")
        assert (answer.status_code, answer.headers.get_list("set-cookie")) == (401, [])
        assert 'value="/hooks"' in answer.text
        assert 'role="alert"' in answer.text
        assert len(given) < 5 or given not in answer.text
    assert here.db.value("select count(*) from switchboard.list_sessions()") == 0


def test_unknown_revoked_and_expired_tokens_are_refused_alike(here: Place) -> None:
    revoked, expired = here.token("revoked"), here.token("expired")
    here.db.rows("select switchboard.revoke_operator_token(%s, 'revoked')", here.human)
    here.db.rows("update switchboard.operator_tokens set expires_at = now() where name = 'expired'")
    browser = here.browser()
    tries = [revoked, expired, "sbo_" + "A" * 43, here.db.vend("agent").credential]
    answers = [browser.post("/sign-in", token=given) for given in tries]
    assert {(answer.status_code, answer.text) for answer in answers} == {(401, answers[0].text)}


def test_the_cookie_is_no_token_and_a_token_is_no_cookie(here: Place) -> None:
    browser = here.signed_in()
    assert here.browser().post("/sign-in", token=browser.cookie).status_code == 401
    bearer = {"authorization": f"Bearer {browser.cookie}"}
    assert here.browser().get("/api/v1/todos", **bearer).status_code == 401
    cookie = {"cookie": f"switchboard={here.token('other')}"}
    assert here.browser().get("/", **cookie).headers["location"] == "/sign-in"


# ---- fixation, sign-out, revocation


def test_each_sign_in_gets_a_secret_of_its_own_and_ends_what_was_before(here: Place) -> None:
    browser = here.browser()
    planted = "sbs_" + "A" * 43
    browser.http.cookies.set("switchboard", planted, domain="127.0.0.1")
    token = here.token()
    first = set_cookie(browser.post("/sign-in", token=token)).value
    assert first != planted
    browser.http.cookies.set("switchboard", first, domain="127.0.0.1")
    second = set_cookie(browser.post("/sign-in/" + here.code())).value
    assert second not in (planted, first)
    assert [here.whom(secret) for secret in (planted, first, second)] == [None, None, "ada"]


def test_a_refused_sign_in_leaves_the_session_that_was_there(here: Place) -> None:
    browser = here.signed_in()
    assert browser.post("/sign-in", token="no").status_code == 401
    assert here.whom(browser.cookie) == "ada"


def test_sign_out_ends_the_session_at_the_server(here: Place) -> None:
    browser, other = here.signed_in(), here.browser()
    other.post("/sign-in/" + here.code())
    secret = browser.cookie
    answer = browser.post("/sign-out", csrf=here.csrf(browser))
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert set_cookie(answer)["max-age"] == "0"
    assert browser.cookie == ""
    assert here.whom(secret) is None
    assert here.whom(other.cookie) == "ada"
    again = {"cookie": f"switchboard={secret}"}
    assert here.browser().get("/", **again).headers["location"] == "/sign-in"


def test_sign_out_by_another_page_does_nothing(here: Place) -> None:
    browser = here.signed_in()
    right = here.csrf(browser)
    foreign = [({}, right), ({"origin": "http://evil.example"}, right)]
    own = {"origin": here.url}
    for headers, csrf in [*foreign, (own, "wrong"), (own, ""), (own, "é"), (own, right[:-1])]:
        assert browser.post("/sign-out", headers=headers, csrf=csrf).status_code == 403
    assert here.whom(browser.cookie) == "ada"
    assert browser.post("/sign-out", csrf=right).status_code == 303


def test_without_a_session_sign_out_leads_to_the_door(here: Place) -> None:
    answer = here.browser().post("/sign-out")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")


def test_a_revoked_token_ends_the_sessions_that_it_opened_and_no_others(here: Place) -> None:
    browser, other = here.signed_in(), here.browser()
    other.post("/sign-in/" + here.code())
    here.db.rows("select switchboard.revoke_operator_token(%s, 'own')", here.human)
    assert here.whom(browser.cookie) is None
    assert browser.get("/").headers["location"] == "/sign-in"
    assert here.whom(other.cookie) == "ada"


# ---- by a link


def test_a_link_signs_in_once(here: Place) -> None:
    code, browser = here.code(), here.browser()
    shown = browser.get(f"/sign-in/{code}")
    assert shown.status_code == 200
    assert f'action="/sign-in/{code}"' in shown.text
    entered = browser.post(f"/sign-in/{code}")
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert here.whom(browser.cookie) == "ada"
    again = here.browser().post(f"/sign-in/{code}")
    assert (again.status_code, again.headers.get_list("set-cookie")) == (401, [])


def test_a_look_at_a_link_does_not_use_it_up(here: Place) -> None:
    code, browser = here.code(), here.browser()
    for method in ("GET", "HEAD", "OPTIONS", "GET"):
        answer = browser.http.request(method, f"/sign-in/{code}")
        assert answer.headers.get_list("set-cookie") == []
        assert answer.status_code in (200, 405)
    assert browser.post(f"/sign-in/{code}").status_code == 303


def test_of_two_who_use_a_link_at_once_one_is_signed_in(here: Place) -> None:
    for _ in range(5):
        code, start = here.code(), threading.Barrier(4)

        def enter(code: str = code, start: threading.Barrier = start) -> int:
            with httpx2.Client(base_url=here.url, headers={"origin": here.url}) as http:
                start.wait(10)
                return http.post(f"/sign-in/{code}").status_code

        with ThreadPoolExecutor(4) as pool:
            statuses = sorted(found.result() for found in [pool.submit(enter) for _ in range(4)])
        assert statuses == [303, 401, 401, 401]
    assert here.db.value("select count(*) from switchboard.list_sessions()") == 5


def test_used_expired_and_unknown_links_are_refused_alike(here: Place) -> None:
    used, expired = here.code(), here.code()
    assert here.browser().post(f"/sign-in/{used}").status_code == 303
    query = "update switchboard.sign_in_links set expires_at = now() where digest = %s"
    here.db.rows(query, digest(expired))
    tries = [used, expired, "sbl_" + "A" * 43, "x", "%00", "sbs_" + "A" * 43, here.token()]
    answers = [here.browser().post(f"/sign-in/{code}") for code in tries]
    assert {(answer.status_code, answer.text) for answer in answers} == {(401, answers[0].text)}
    assert here.browser().get("/sign-in/x").status_code == 401


# ---- where it leads to


@pytest.mark.parametrize(
    "path",
    ["/", "/todos/0190?x=1&y=%20", "/?q=a+b&state=dead#tickets", "/a//b", "/sign-in", "/é"],
)
def test_paths_of_ours_are_gone_back_to(path: str) -> None:
    assert own_path(path, "/no") == path


ELSEWHERE = ["", "x", "//evil.example", "///evil.example", "/\\evil.example", "\\\\evil.example"]
ELSEWHERE += [
    "https://evil.example/",
    "javascript:alert(1)",
    "/\t/evil.example",
    "/\n/evil.example",
]
ELSEWHERE += ["/a\r\nSet-Cookie: x=y", "/a b", "/\u2028", "/\x7f", "/\x85", " /", "/" + "x" * 2000]
ELSEWHERE += ["/a\\..\\..\\evil.example", "\x00/", "/\x00/evil.example", "@evil.example", "/\xa0"]


@pytest.mark.parametrize("path", ELSEWHERE)
def test_nothing_else_is(path: str) -> None:
    assert own_path(path, "/no") == "/no"


def test_signing_in_leads_to_no_other_server(here: Place) -> None:
    token = here.token()
    for path in ("//evil.example/", "https://evil.example", "/\\evil.example"):
        shown = here.browser().http.get("/sign-in", params={"next": path})
        assert "evil" not in shown.text
        entered = here.browser().post("/sign-in", token=token, next=path)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")


# ---- a foreign page signs nobody in


FOREIGN = [
    {},
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {"origin": "http://evil.example", "sec-fetch-site": "same-origin"},
]


def test_a_sign_in_from_another_page_is_refused(here: Place) -> None:
    token, code = here.token(), here.code()
    for path in ("/sign-in", f"/sign-in/{code}"):
        for headers in FOREIGN:
            answer = here.browser().post(path, headers=headers, token=token)
            assert (answer.status_code, answer.headers.get_list("set-cookie")) == (403, []), headers
        assert here.browser().post(path, token=token).status_code == 303, "it used nothing up"


def test_an_origin_that_is_served_for_other_uses_is_not_the_boards(
    place: Callable[..., Place],
) -> None:
    other = "https://inspector.example"
    here = place(allowed_origins=(other,))
    here.browser(other)
    assert here.browser(other).post("/sign-in", token=here.token()).status_code == 403
    same = {"sec-fetch-site": "same-origin"}
    entered = here.browser().post("/sign-in", headers=same, token=here.token("b"))
    assert entered.status_code == 303


# ---- failures, logs, faults


def test_an_address_that_fails_often_has_to_wait(place: Callable[..., Place]) -> None:
    here = place(failure_rate=0.01, failure_burst=3)
    browser, token, code = here.browser(), here.token(), here.code()
    tries = [
        browser.post("/sign-in", token="sbo_" + "A" * 43),
        browser.post("/sign-in/sbl_" + "A" * 43),
        browser.post("/sign-in", token="nothing like it"),
    ]
    assert [answer.status_code for answer in tries] == [401] * 3
    for late in (browser.post("/sign-in", token=token), browser.post(f"/sign-in/{code}")):
        assert late.status_code == 429
        assert 0 < int(late.headers["retry-after"]) <= 101
        assert late.headers.get_list("set-cookie") == []
    assert here.db.value("select count(*) from switchboard.list_sessions()") == 0


def test_nothing_secret_is_in_the_log(
    here: Place, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    token, code, browser = here.token(), here.code(), here.browser()
    browser.post("/sign-in", token=token)
    secrets = [token, code, browser.cookie, "sbo_" + "B" * 43, here.csrf(browser)]
    browser.post("/sign-in", token=secrets[3])
    browser.get(f"/sign-in/{code}")
    browser.post(f"/sign-in/{code}")
    secrets += [browser.cookie, here.csrf(browser)]
    browser.get(f"/sign-in/{code}")
    browser.post("/sign-out", csrf=here.csrf(browser))
    ours = [r for r in caplog.records if not r.name.startswith(_CHATTY)]  # the client's, too
    lines = [f"{r.getMessage()} {getattr(r, 'fields', '')}" for r in ours]
    written = capfd.readouterr()
    text = "\n".join([*lines, written.out, written.err])
    assert "board.sign_in" in text
    assert [secret for secret in secrets if secret in text] == []
    assert len(set(secrets)) == len(secrets)


def test_who_signs_in_and_how_is_in_the_log(here: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    here.browser().post("/sign-in", token="no")
    here.browser().post("/sign-in/" + here.code())
    noted = logged(caplog, "board.sign_in", 2)
    assert [(n["how"], n["outcome"], n.get("human")) for n in noted] == [
        ("token", "unauthenticated", None),
        ("link", "ok", "ada"),
    ]


def test_bodies_are_bounded_and_odd_ones_refused(here: Place) -> None:
    browser, sent = here.browser(), {"origin": here.url}
    big = browser.http.post("/sign-in", content=b"token=" + b"x" * 20_000, headers=sent)
    assert big.status_code == 413
    odd = browser.http.post("/sign-in", content=b"token=\xff", headers=sent)
    assert odd.status_code == 400
    for method in ("PUT", "DELETE", "PATCH"):
        assert browser.http.request(method, "/sign-in").status_code == 405
    assert browser.get("/sign-out").status_code == 405


def test_while_the_database_is_away_the_door_says_so(here: Place) -> None:
    token, code, browser = here.token(), here.code(), here.browser()
    here.db.rows("alter table switchboard.human_sessions rename to away")
    try:
        assert browser.post("/sign-in", token=token).status_code in (500, 503)
        assert browser.post(f"/sign-in/{code}").status_code in (500, 503)
    finally:
        here.db.rows("alter table switchboard.away rename to human_sessions")
    assert browser.post(f"/sign-in/{code}").status_code == 303, "it was not used up"


def test_the_pages_are_ours_and_closed(here: Place) -> None:
    for path in ("/sign-in", f"/sign-in/{here.code()}"):
        answer = here.browser().get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/html")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
    assert "oidc" not in here.browser().get("/sign-in").text


def test_there_is_no_way_around_signing_in(here: Place) -> None:
    for path in ("/", "/endpoints", "/health", "/todos/0190"):
        answer = here.browser().get(path)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/sign-in")
    assert here.browser().get("/api/v1/todos").status_code == 401
