"""Signing in with an OpenID provider that is real but for its people: signed tokens, loopback."""

from __future__ import annotations

import html
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import oidc_kit
import pytest
from conftest import Served, Sql
from oidc_kit import (
    CLIENT_ID,
    CLIENT_SECRET,
    OTHER_KEY,
    Forger,
    Issuer,
    SharedSecret,
    Symmetric,
    Unsigned,
)
from sign_in_kit import NEVER, Browser, Place, set_cookie
from starlette.responses import JSONResponse

COOKIE = "switchboard-oidc"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with oidc_kit.running() as one:
        yield one


@pytest.fixture
def at(serve: Callable[..., Served], db: Sql) -> Iterator[Callable[..., Place]]:
    """Serve with this provider; keywords change settings."""
    made: list[Place] = []

    def start(issuer: Issuer, **changes: Any) -> Place:
        provider = {
            "oidc_issuer": issuer.url,
            "oidc_name": "Example ID",
            "oidc_client_id": CLIENT_ID,
            "oidc_client_secret": CLIENT_SECRET,
        }
        made.append(Place(serve(**{**NEVER, **provider, **changes}), db))
        query = "select switchboard.add_human_identity(%s, %s, 'ada-1')"
        db.rows(query, made[-1].human, issuer.url)
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def here(at: Callable[..., Place], issuer: Issuer) -> Place:
    return at(issuer)


def leave(browser: Browser, **query: str) -> str:
    """Go to the provider: the address that the browser is sent to."""
    answer = browser.get("/sign-in/oidc" + (f"?{urlencode(query)}" if query else ""))
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def state_of(address: str) -> str:
    return parse_qs(urlsplit(address).query)["state"][0]


def come_back(browser: Browser, **query: str) -> httpx2.Response:
    return browser.get(f"/sign-in/oidc/callback?{urlencode(query)}")


def enter(place: Place, issuer: Issuer, subject: str = "ada-1", **claims: Any) -> httpx2.Response:
    """The whole way, with these claims in the ID token."""
    browser = place.browser()
    address = leave(browser)
    code = issuer.approve(address, subject, **claims)
    return come_back(browser, code=code, state=state_of(address))


def refused(place: Place, answer: httpx2.Response, status: int = 401, what: str = "") -> None:
    assert answer.status_code == status, what or answer.text
    assert all("sbs_" not in header for header in answer.headers.get_list("set-cookie"))
    assert place.db.value("select count(*) from switchboard.list_sessions()") == 0


def test_who_the_provider_vouches_for_is_signed_in(here: Place, issuer: Issuer) -> None:
    browser = here.browser()
    assert "Sign in with Example ID" in browser.get("/sign-in?next=/hooks").text
    address = leave(browser, next="/hooks")
    assert parse_qs(urlsplit(address).query)["redirect_uri"] == [
        f"{here.url}/sign-in/oidc/callback"
    ]
    answer = come_back(browser, code=issuer.approve(address), state=state_of(address))
    assert (answer.status_code, answer.headers["location"]) == (303, "/hooks")
    assert here.whom(browser.cookie) == "ada"
    assert set_cookie(answer)["httponly"] is True
    assert set_cookie(answer, COOKIE)["max-age"] == "0", "what was remembered is forgotten"
    row = here.db.row("select human, how, token from switchboard.list_sessions()")
    assert row == {"human": "ada", "how": "oidc", "token": None}


def test_tokens_and_links_go_on_working(here: Place) -> None:
    assert here.browser().post("/sign-in", token=here.token()).status_code == 303
    assert here.browser().post("/sign-in/" + here.code()).status_code == 303


def test_somebody_whom_nobody_bound_is_told_what_to_ask_for(here: Place, issuer: Issuer) -> None:
    answer = enter(here, issuer, "eve's <b>$(id)\u202e")
    refused(here, answer)
    told = html.unescape(answer.text)
    assert "eve&#39;s &lt;b&gt;$(id)?" in answer.text
    assert """human identity add NAME 'eve'"'"'s <b>$(id)?'""" in told, "safe to paste"
    here.db.rows("select switchboard.add_human_identity(%s, %s, 'eve')", here.human, issuer.url)
    assert enter(here, issuer, "eve").status_code == 303


def test_an_identity_at_another_provider_opens_nothing(
    here: Place, issuer: Issuer, at: Callable[..., Place]
) -> None:
    query = "select switchboard.add_human_identity(%s, 'https://other.example', 'bob')"
    here.db.rows(query, here.human)
    refused(here, enter(here, issuer, "bob"))


def test_a_removed_identity_ends_its_sessions(here: Place, issuer: Issuer) -> None:
    answer = enter(here, issuer)
    secret = set_cookie(answer).value
    assert here.whom(secret) == "ada"
    query = "select switchboard.remove_human_identity(%s, %s, 'ada-1')"
    here.db.rows(query, here.human, issuer.url)
    assert here.whom(secret) is None
    assert enter(here, issuer).status_code == 401


NOW = int(time.time())
NOT_FOR_US_NOW: list[dict[str, Any]] = [
    {"nonce": "another"},
    {"nonce": None},
    {"aud": "another-client"},
    {"aud": ["another-client"]},
    {"aud": "another-client", "azp": CLIENT_ID},
    {"aud": None},
    {"aud": [CLIENT_ID, "another-client"]},
    {"aud": [CLIENT_ID, "another-client"], "azp": "another-client"},
    {"azp": "another-client"},
    {"iss": "https://evil.example"},
    {"iss": None},
    {"exp": NOW - 3600},
    {"exp": None},
    {"exp": "never"},
    {"iat": NOW + 7200, "exp": NOW + 9000},
    {"nbf": NOW + 7200},
    {"iat": None},
    {"sub": None},
    {"sub": ""},
    {"sub": ["ada-1"]},
    {"sub": 1},
    {"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"},
]


def test_an_id_token_that_is_not_for_us_now_is_refused(here: Place, issuer: Issuer) -> None:
    for claims in NOT_FOR_US_NOW:
        refused(here, enter(here, issuer, **claims), what=str(claims))
    assert enter(here, issuer).status_code == 303


@pytest.mark.parametrize("kind", [Unsigned, Symmetric, SharedSecret, Forger])
def test_a_signature_that_the_published_keys_do_not_verify_is_refused(
    at: Callable[..., Place], kind: type[Issuer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchboard.oidc.KEEP", -1.0)  # what is published is read each time
    monkeypatch.setattr("switchboard.oidc.PAUSE", 0.0)
    with oidc_kit.running(kind) as issuer:
        here = at(issuer)
        for offered in (["RS256"], ["RS256", "HS256", "none"], ["HS256", "none"], []):
            issuer.published["id_token_signing_alg_values_supported"] = offered
            refused(here, enter(here, issuer), what=str(offered))
        assert issuer.asked["/token"] == 4


def test_the_state_is_of_this_browser(here: Place, issuer: Issuer) -> None:
    browser, other = here.browser(), here.browser()
    address = leave(browser)
    code = issuer.approve(address)
    # A victim is sent back with the attacker's code: who never left, or left for another one.
    refused(here, come_back(other, code=code, state=state_of(address)))
    other_address = leave(other)
    refused(here, come_back(other, code=code, state=state_of(address)))
    refused(here, come_back(other, code=code))
    leave(other)
    refused(here, come_back(other, code=code, state=state_of(other_address)))
    leave(other)
    refused(here, come_back(other, code=code, state="é"))
    assert issuer.asked.get("/token") is None, "nothing was asked for in vain"
    entered = come_back(browser, code=code, state=state_of(address))
    assert entered.status_code == 303


def test_a_code_of_somebody_else_does_not_fit(here: Place, issuer: Issuer) -> None:
    browser, other = here.browser(), here.browser()
    code = issuer.approve(leave(other))
    address = leave(browser)
    refused(here, come_back(browser, code=code, state=state_of(address)))


def test_a_callback_is_good_once(here: Place, issuer: Issuer) -> None:
    browser = here.browser()
    address = leave(browser)
    kept = browser.http.cookies[COOKIE]
    code = issuer.approve(address)
    assert come_back(browser, code=code, state=state_of(address)).status_code == 303
    assert COOKIE not in browser.http.cookies
    again = come_back(browser, code=code, state=state_of(address))
    assert again.status_code == 401
    browser.http.cookies.set(COOKIE, kept, domain="127.0.0.1")
    assert come_back(browser, code=code, state=state_of(address)).status_code == 401


@pytest.mark.parametrize("change", ["tampered", "cut", "empty", "foreign", "é"])
def test_what_the_browser_remembers_cannot_be_made_up(
    here: Place, issuer: Issuer, change: str
) -> None:
    browser = here.browser()
    address = leave(browser)
    kept = browser.http.cookies[COOKIE]
    middle = len(kept) // 2
    swapped = "A" if kept[middle] != "A" else "B"
    value = {
        "tampered": kept[:middle] + swapped + kept[middle + 1 :],
        "cut": kept[:-5],
        "empty": "",
        "foreign": "eyJzdGF0ZSI6IngifQ",
        "é": "%C3%A9",
    }[change]
    headers = {"cookie": f"{COOKIE}={value}"}
    browser.http.cookies.clear()
    code = issuer.approve(address)
    query = urlencode({"code": code, "state": state_of(address)})
    refused(here, browser.get(f"/sign-in/oidc/callback?{query}", **headers))


def test_it_has_to_be_finished_within_ten_minutes(
    here: Place, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set_cookie(here.browser().get("/sign-in/oidc"), COOKIE)["max-age"] == "600"
    for seconds, status in ((-1, 401), (600, 303)):
        monkeypatch.setattr("switchboard.oidc.SECONDS", seconds)
        left = here.browser().get("/sign-in/oidc")
        address = left.headers["location"]
        kept = {"cookie": f"{COOKIE}={set_cookie(left, COOKIE).value}"}
        query = urlencode({"code": issuer.approve(address), "state": state_of(address)})
        answer = here.browser().get(f"/sign-in/oidc/callback?{query}", **kept)
        assert answer.status_code == status


ODD_QUERIES: list[dict[str, str]] = [
    {"error": "access_denied", "error_description": "<script>alert(1)</script>"},
    {},
    {"code": ""},
    {"code": "unknown"},
    {"code": "x", "iss": "https://evil.example"},
]


def test_what_else_may_come_back_is_refused(here: Place, issuer: Issuer) -> None:
    for query in ODD_QUERIES:
        browser = here.browser()
        answer = come_back(browser, state=state_of(leave(browser)), **query)
        refused(here, answer, what=str(query))
        assert "alert(1)" not in answer.text


ODD_ANSWERS = [
    (JSONResponse({"error": "invalid_client"}, 401), 401),
    (JSONResponse({"error": "server_error"}, 500), 503),
    (JSONResponse({}, 200), 401),
    (JSONResponse([1], 200), 401),
    (JSONResponse({"access_token": "x", "token_type": "Bearer"}, 200), 401),
    (JSONResponse({"access_token": "x", "id_token": "x.y.z"}, 200), 401),
    (JSONResponse({"access_token": "x", "id_token": 7}, 200), 401),
]


def test_odd_answers_of_the_provider_sign_nobody_in(here: Place, issuer: Issuer) -> None:
    for answer, status in ODD_ANSWERS:
        issuer.answer = answer
        refused(here, enter(here, issuer), status, what=str(answer.body))


ODD_METADATA: list[dict[str, Any]] = [
    {"issuer": "https://evil.example"},
    {"token_endpoint": "http://evil.example/token"},
    {"jwks_uri": "http://evil.example/jwks"},
    {"authorization_endpoint": "javascript:alert(1)"},
    {"token_endpoint": None},
]


def test_a_provider_that_is_not_what_it_is_configured_to_be_is_not_used(
    here: Place, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("switchboard.oidc.PAUSE", 3600.0)
        issuer.published = ODD_METADATA[0]
        for _ in range(3):
            refused(here, here.browser().get("/sign-in/oidc"), 503)
        assert len(issuer.asked) == sum(issuer.asked.values()) == 1, "not asked again and again"
    monkeypatch.setattr("switchboard.oidc.PAUSE", 0.0)
    for published in ODD_METADATA:
        issuer.published = published
        answer = here.browser().get("/sign-in/oidc?next=/hooks")
        refused(here, answer, 503, what=str(published))
        assert 'value="/hooks"' in answer.text
    issuer.published = {}
    assert enter(here, issuer).status_code == 303, "it is asked again"


def test_while_the_provider_is_away_the_door_says_so(here: Place, issuer: Issuer) -> None:
    browser = here.browser()
    address = leave(browser)
    code = issuer.approve(address)
    issuer.stop()
    refused(here, come_back(browser, code=code, state=state_of(address)), 503)
    assert here.browser().post("/sign-in", token=here.token()).status_code == 303


def test_the_providers_new_key_is_learnt(here: Place, issuer: Issuer) -> None:
    assert enter(here, issuer).status_code == 303
    issuer.key = OTHER_KEY
    assert enter(here, issuer).status_code == 303
    assert issuer.asked == {"/.well-known/openid-configuration": 1, "/jwks": 2, "/token": 2}


@pytest.mark.parametrize("path", ["//evil.example/", "https://evil.example", "/\\evil.example"])
def test_it_leads_to_no_other_server(here: Place, issuer: Issuer, path: str) -> None:
    browser = here.browser()
    address = leave(browser, next=path)
    answer = come_back(browser, code=issuer.approve(address), state=state_of(address))
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_failures_are_counted_by_address(at: Callable[..., Place], issuer: Issuer) -> None:
    here = at(issuer, failure_rate=0.01, failure_burst=3)
    first, second, third = (enter(here, issuer, nonce="x") for _ in range(3))
    assert [first.status_code, second.status_code, third.status_code] == [401] * 3
    late = enter(here, issuer)
    assert late.status_code == 429
    refused(here, late, 429)


def test_nothing_secret_is_in_the_log(
    here: Place, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    entered = enter(here, issuer)
    enter(here, issuer, nonce="x")
    ours = [r for r in caplog.records if r.name.startswith(("switchboard", "authlib", "joserfc"))]
    text = "\n".join(f"{r.getMessage()} {getattr(r, 'fields', '')}" for r in ours)
    assert "board.sign_in" in text
    assert len(issuer.seen) == 8
    secrets = [*issuer.seen, CLIENT_SECRET, set_cookie(entered).value]
    assert [secret for secret in secrets if secret in text] == []


def test_without_a_provider_there_is_no_such_way(serve: Callable[..., Served], db: Sql) -> None:
    here = Place(serve(**NEVER), db)
    try:
        assert "oidc" not in here.browser().get("/sign-in").text
        assert here.browser().get("/sign-in/oidc").status_code == 401
        assert here.browser().get("/sign-in/oidc/callback?code=x&state=y").status_code == 404
    finally:
        here.close()
