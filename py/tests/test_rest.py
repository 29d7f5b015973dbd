"""The REST interface over HTTP: who may, what is read, what is answered. What the operations do is
db/tests/70_api.sql."""

from __future__ import annotations

import base64
import hmac
import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from conftest import KEY, Endpoint, Served, Sql, until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rest_kit import FREE, UNKNOWN, Client, operations, token

from switchboard.db import Database
from switchboard.errors import Problem
from switchboard.openapi import openapi
from switchboard.outbound import Outbound, Refused
from switchboard.rest import MAX_DEPTH, json_object
from switchboard.secrets import Keyring, digest, mint

# The server draws from `random` while an example is made, which hypothesis takes for its doing.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the .random. module:hypothesis.errors.HypothesisDeprecationWarning"
)

LIMIT = {"max_in_flight": 2}


@pytest.fixture
def alpha(db: Sql) -> Endpoint:
    return db.vend("alpha", ("inbox", "other"))


@pytest.fixture
def beta(db: Sql) -> tuple[Endpoint, Any]:
    """An endpoint of somebody else, and who that is."""
    human = db.value("select id from switchboard.create_human('somebody else')")
    return db.vend("beta", human_id=human), human


@pytest.fixture
def connect(serve: Callable[..., Served]) -> Iterator[Callable[..., Client]]:
    """Clients of one server."""
    opened: list[Client] = []
    running: list[Served] = []

    def start(bearer: str, **changes: Any) -> Client:
        if not running:
            running.append(serve(**{**FREE, **changes}))
        opened.append(Client(running[0], bearer))
        return opened[-1]

    yield start
    for client in opened:
        client.http.close()


@pytest.fixture
def tester(connect: Callable[..., Client], db: Sql, alpha: Endpoint) -> Client:
    return connect(token(db, db.human))


def at(scope: str, queue: str = "inbox") -> str:
    return f"/admission/{quote(scope, safe=':')}/{queue}"


def test_a_budget_from_setting_to_clearing(tester: Client, alpha: Endpoint) -> None:
    here = at("endpoint:alpha")
    assert tester.ask("GET", "/admission").json() == {"policies": [], "next_cursor": None}
    nothing = tester.ask("GET", here)
    assert (nothing.status_code, nothing.json()["policy"]) == (200, None)
    assert nothing.headers["cache-control"] == "no-store"
    assert nothing.headers["content-type"] == "application/json"
    assert tester.ask("PUT", here, LIMIT).status_code == 200
    assert tester.ask("GET", at(f"endpoint:{alpha.id}")).json()["policy"] == LIMIT
    daily = {
        "max_claims_per_window": 5,
        "window": {"period": "day", "tz": "Europe/Berlin", "start": "06:00"},
    }
    replaced = tester.ask("PUT", here, daily).json()["policy"]
    assert "max_in_flight" not in replaced
    assert len(tester.ask("GET", "/admission").json()["policies"]) == 1
    assert tester.ask("DELETE", here).status_code == 200
    assert tester.ask("GET", here).json()["policy"] is None
    again = tester.ask("DELETE", here)
    assert (again.status_code, again.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_foreign_and_unknown_scopes_are_one_404(
    tester: Client, beta: tuple[Endpoint, Any], connect: Callable[..., Client], db: Sql, method: str
) -> None:
    theirs = connect(token(db, beta[1]))
    assert theirs.ask("PUT", at("endpoint:beta"), LIMIT).status_code == 200
    body = LIMIT if method == "PUT" else None
    scopes = ["endpoint:beta", f"endpoint:{beta[0].id}", "endpoint:nobody", f"endpoint:{UNKNOWN}"]
    scopes += ["endpoint:", "team:x", "alpha", "x", "endpoint:alpha ", "ENDPOINT:alpha", "endpoint"]
    answers = [tester.ask(method, at(scope), body) for scope in scopes]
    assert {answer.status_code for answer in answers} == {404}
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].json()["code"] == "not_found"
    assert len({tuple(sorted(set(answer.headers) - {"date"})) for answer in answers}) == 1
    assert theirs.ask("GET", at("endpoint:beta")).json()["policy"] == LIMIT


def test_foreign_and_unknown_todos_are_one_404(
    tester: Client, beta: tuple[Endpoint, Any], db: Sql
) -> None:
    foreign = db.create(beta[0], "theirs")
    verbs = ["claim", "complete", "fail", "extend", "release", "retry"]
    calls = [("GET", ""), *(("POST", f"/{verb}") for verb in verbs)]
    for method, verb in calls:
        ids = [foreign, UNKNOWN, "x", "00", "%27"]
        answers = [tester.ask(method, f"/todos/{todo}{verb}") for todo in ids]
        assert {(a.status_code, a.content) for a in answers} == {(404, answers[0].content)}
    for endpoint in ("beta", beta[0].id, "nobody", UNKNOWN):
        assert tester.ask("GET", f"/todos?endpoint={endpoint}").status_code == 404
    assert tester.ask("GET", "/todos").json() == {"todos": [], "next_cursor": None}


def test_a_todo_by_hand(tester: Client, alpha: Endpoint, db: Sql) -> None:
    todo = db.create(alpha, "work", payload={"n": 1})
    (row,) = tester.ask("GET", "/todos?state=pending&endpoint=alpha&limit=5").json()["todos"]
    assert (row["id"], row["endpoint"], "payload" in row) == (todo, "alpha", False)
    claimed = tester.ask("POST", f"/todos/{todo}/claim", {"lease_ttl_seconds": 60}).json()["todo"]
    assert (claimed["state"], claimed["owner"]) == ("claimed", "op:tester")
    exact = b'{"result": {"exact": 123456789012345678901234567890.10}}'
    done = tester.ask("POST", f"/todos/{todo}/complete", exact)
    assert (done.status_code, done.json()["todo"]["state"]) == (200, "done")
    shown = tester.ask("GET", f"/todos/{todo}")
    assert '"exact": 123456789012345678901234567890.10' in shown.text
    assert [one["outcome"] for one in shown.json()["attempts"]] == ["done"]
    conflict = tester.ask("POST", f"/todos/{todo}/retry")
    assert (conflict.status_code, conflict.json()["code"]) == (409, "conflict")


def test_a_claim_over_budget_says_when_to_come_back(
    tester: Client, alpha: Endpoint, db: Sql
) -> None:
    first, second = db.create(alpha, "1"), db.create(alpha, "2")
    assert tester.ask("PUT", at("endpoint:alpha"), {"max_in_flight": 1}).status_code == 200
    claimed = tester.ask("POST", f"/todos/{first}/claim", {"lease_ttl_seconds": 600})
    assert claimed.json()["admission"]["in_flight"] == 1
    refused = tester.ask("POST", f"/todos/{second}/claim", {})
    body = refused.json()
    assert (refused.status_code, body["code"], body["reason"]) == (
        429,
        "deferred",
        "in_flight_full",
    )
    assert 590 <= int(refused.headers["retry-after"]) <= 600
    assert "next_eligible_at" in body
    assert db.value("select count(*) from switchboard.admission_refusals") == 1


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer x",
        "Bearer sbo_" + "A" * 43,
        "Bearer sbo_" + "A" * 44,
        "Basic sbo_" + "A" * 43,
        "Bearer sbo_\xe9",
        "REVOKED",
        "EXPIRED",
        "CREDENTIAL",
    ],
)
def test_whatever_opens_nothing_is_the_same_401(
    connect: Callable[..., Client], db: Sql, alpha: Endpoint, header: str | None
) -> None:
    plain = token(db, db.human)
    if header == "REVOKED":
        db.value("select switchboard.revoke_operator_token(%s, 'test')", db.human)
        header = f"Bearer {plain}"
    elif header == "EXPIRED":
        db.rows("update switchboard.operator_tokens set expires_at = now()")
        header = f"Bearer {plain}"
    elif header == "CREDENTIAL":
        header = f"Bearer {alpha.credential}"
    client = connect(plain)
    client.headers = {} if header is None else {"authorization": header.encode("latin-1")}  # type: ignore[dict-item]
    answers = [
        client.ask("GET", "/admission"),
        client.ask("PUT", at("endpoint:alpha"), LIMIT),
        client.ask("PUT", at("endpoint:alpha"), b"{"),
        client.ask("PUT", at("endpoint:alpha"), b'{"a": 1, "a": 1}'),
        client.ask("PUT", at("endpoint:alpha"), b"x" * 20000),
        client.ask("GET", "/todos?limit=x&limit=x"),
        client.ask("GET", "/todos?q%00=1"),
    ]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].json()["code"] == "unauthenticated"
    assert {a.headers["www-authenticate"] for a in answers} == {'Bearer error="invalid_token"'}
    assert db.rows("select from switchboard.admission_policies") == []


def test_two_tokens_are_none(connect: Callable[..., Client], db: Sql, alpha: Endpoint) -> None:
    client = connect(token(db, db.human))
    value = client.headers["authorization"]
    response = client.http.get(
        "/api/v1/admission", headers=[("authorization", value), ("authorization", value)]
    )
    assert response.status_code == 401


def test_a_revoked_token_acts_no_more_at_once(tester: Client, db: Sql) -> None:
    assert tester.ask("GET", "/admission").status_code == 200
    assert db.value("select last_used_at is not null from switchboard.operator_tokens")
    db.value("select switchboard.revoke_operator_token(%s, 'test')", db.human)
    assert tester.ask("GET", "/admission").status_code == 401


def test_who_fails_too_often_waits_and_who_is_known_does_not(
    connect: Callable[..., Client], db: Sql, alpha: Endpoint
) -> None:
    known = connect(token(db, db.human), failure_rate=0.01, failure_burst=3)
    assert known.ask("GET", "/admission").status_code == 200
    wrong = connect("sbo_" + "A" * 43)
    statuses = [wrong.ask("GET", "/admission").status_code for _ in range(5)]
    assert statuses == [401, 401, 401, 429, 429]
    answer = wrong.ask("GET", "/admission")
    assert (answer.json()["code"], int(answer.headers["retry-after"]) > 1) == ("rate_limited", True)
    assert known.ask("GET", "/admission").status_code == 200
    assert connect(token(db, db.human, "new")).ask("GET", "/admission").status_code == 429


def test_a_token_has_a_rate(connect: Callable[..., Client], db: Sql, alpha: Endpoint) -> None:
    client = connect(token(db, db.human), mcp_rate=0.01, mcp_burst=2)
    statuses = [client.ask("GET", "/admission").status_code for _ in range(3)]
    assert statuses == [200, 200, 429]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b'"x"',
        b"1",
        b"{",
        b"{}{}",
        b'{"max_in_flight": NaN}',
        b'{"max_in_flight": 1, "max_in_flight": 2}',
        b'{"max_in_flight": 1, "max_in_fl\\u0069ght": 2}',
        b'{"max_in_flight": 1, "window": {"tz": "UTC", "tz": "UTC"}}',
        b'{"max_in_flight": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"x": ' + b"[" * 8000 + b"]" * 8000 + b"}",
        b'{"max_in_flight": 1e400}',
        b'{"max_in_flight": ' + b"9" * 9000 + b"}",
        b'{"\\u0000": 1}',
        b'{"\\ud800": 1}',
        b'\xef\xbb\xbf{"max_in_flight": 1}',
        b'{"max_in_flight": 1, "x": "\xff"}',
        '{"max_in_flight": 1}'.encode("utf-16"),
        b'{"max_in_flight": 1, "unknown": 1}',
        b'{"policy": {"max_in_flight": 1}}',
        b'{"scope": "endpoint:alpha", "max_in_flight": 1}',
        b"{}",
    ],
)
def test_what_is_no_policy_is_400(tester: Client, db: Sql, body: bytes) -> None:
    answer = tester.ask("PUT", at("endpoint:alpha"), body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert db.rows("select from switchboard.admission_policies") == []


def test_a_body_is_json_and_small(tester: Client, db: Sql, alpha: Endpoint) -> None:
    here = at("endpoint:alpha")
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert tester.ask("PUT", here, b'{"max_in_flight": 1}', **form).status_code == 400
    large = b'{"max_in_flight": 1}' + b" " * 16384
    answer = tester.ask("PUT", here, large)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    exactly = b'{"max_in_flight": 1}' + b" " * (16384 - 20)
    assert tester.ask("PUT", here, exactly).status_code == 200
    todo = db.create(alpha, "x")
    assert tester.ask("POST", f"/todos/{todo}/claim").status_code == 200
    most = json.dumps({"result": "x" * (65536 - 14)}).encode()
    assert len(most) == 65536
    assert tester.ask("POST", f"/todos/{todo}/complete", most + b" ").status_code == 413
    assert tester.ask("POST", f"/todos/{todo}/complete", most).status_code == 200
    assert tester.ask("DELETE", here, b'{"x": 1}').status_code == 400
    assert tester.ask("DELETE", here, b"{}").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", "/todos?limit=x", "limit"),
        ("GET", "/todos?limit=0", "limit"),
        ("GET", "/todos?limit=1&limit=1", "limit"),
        ("GET", "/todos?state=asleep", "state"),
        ("GET", "/todos?cursor=x", "cursor"),
        ("GET", "/todos?unknown=1", "unknown"),
        ("GET", "/admission?queue=inbox", "queue"),
        ("PUT", at("endpoint:alpha") + "?queue=other", "queue"),
    ],
)
def test_an_argument_that_is_refused_is_named(
    tester: Client, method: str, path: str, field: str
) -> None:
    answer = tester.ask(method, path, LIMIT if method == "PUT" else None)
    assert (answer.status_code, answer.json()["field"]) == (400, field)


def test_what_is_not_there(tester: Client) -> None:
    for path in ("/", "/nothing", "/admission/", "/admission/x", "/todos/x/fly", at("a/b")):
        answer = tester.ask("GET", path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
    wrong = tester.ask("POST", at("endpoint:alpha"), LIMIT)
    assert (wrong.status_code, set(wrong.json())) == (405, {"error", "code"})
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD", "PUT", "DELETE"}
    assert tester.ask("PATCH", "/todos").status_code == 405
    head = tester.ask("HEAD", "/admission")
    assert (head.status_code, head.content) == (200, b"")


def test_host_and_origin_are_guarded(tester: Client) -> None:
    assert tester.ask("GET", "/admission", host="evil.example").status_code == 421
    assert tester.ask("GET", "/admission", origin="https://evil.example").status_code == 403


def test_without_a_database_it_is_unavailable(
    serve: Callable[..., Served], db: Sql, alpha: Endpoint
) -> None:
    served = serve(database_url="postgresql://nobody@127.0.0.1:1/none", pool_wait=0.2)
    client = Client(served, "sbo_" + "A" * 43)
    with client.http:
        answer = client.ask("GET", "/admission")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"] == "1"


def test_a_call_is_one_line_in_the_log(
    tester: Client, alpha: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tester.ask("PUT", at("endpoint:alpha"), {"max_in_flight": 7, "x": "sesame"})
    tester.ask("GET", "/todos?cursor=sesame")
    until(lambda: sum(r.message == "rest.call" for r in caplog.records) == 2, "both are logged")
    lines = [record.fields for record in caplog.records if record.message == "rest.call"]  # type: ignore[attr-defined]
    assert [(line["operation"], line["human"], line["outcome"]) for line in lines] == [
        ("set_admission", "tester", "invalid_argument"),
        ("list_todos", "tester", "invalid_argument"),
    ]
    bearer = tester.headers["authorization"].removeprefix("Bearer ")
    assert bearer not in caplog.text
    assert "sesame" not in str(lines)


def test_the_openapi_document_is_the_register(tester: Client, db: Sql) -> None:
    tester.headers = {}
    document = tester.ask("GET", "/openapi.json").json()
    registered = {
        (row["path"], row["method"].lower()): row["name"]
        for row in db.rows("select path, method, name from switchboard.api_operations()")
    }
    described = {
        (path, method): operation["operationId"]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert described == registered
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
            assert named == set(re.findall(r"\{(\w+)\}", path))
    put = document["paths"]["/api/v1/admission/{scope}/{queue}"]["put"]["requestBody"]
    schema = put["content"]["application/json"]["schema"]
    assert set(schema["properties"]) == {"max_in_flight", "max_claims_per_window", "window"}
    assert put["required"] is True
    assert openapi([], [], [], "", "")["paths"] == {}


def test_depth_is_bounded() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)

    assert json_object(nested(MAX_DEPTH), "application/json; charset=utf-8")
    with pytest.raises(Problem, match="64 deep"):
        json_object(nested(MAX_DEPTH + 1), "application/json")


TEXT = st.text(st.characters(), max_size=20)  # halves of surrogate pairs included
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["max_in_flight", "max_claims_per_window", "window", "period", "tz", "start", "weekday"]
FIELDS += ["result", "force", "lease_ttl_seconds", "id", "queue", "scope"]
ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "america/new_york", "GMT+25", "posix/UTC", "EST5EDT"]
)
WINDOW = st.dictionaries(
    st.sampled_from(["period", "tz", "start", "weekday", "x"]),
    st.sampled_from(["hour", "day", "week", "00:00", "23:59", "24:00", "Mon", "mon"])
    | ZONES
    | VALUE,
)
BODY = st.one_of(
    st.binary(max_size=60),
    VALUE.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(
        st.sampled_from(FIELDS) | TEXT, st.integers(-2, 10**7) | WINDOW | VALUE, max_size=4
    ).map(lambda value: json.dumps(value).encode()),
)
METHOD = st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
SEGMENT = st.one_of(
    st.sampled_from(["admission", "todos", "endpoint:alpha", "inbox", "other", "quarantine"]),
    st.sampled_from(["claim", "complete", "fail", "extend", "release", "retry", UNKNOWN, "TODO"]),
    TEXT.map(lambda text: quote(text, safe="", errors="surrogatepass")),
    st.binary(max_size=5).map(lambda raw: quote(raw, safe="")),
)
PATH = st.one_of(
    st.lists(SEGMENT, max_size=4).map(lambda parts: "/" + "/".join(parts)),
    st.tuples(SEGMENT, SEGMENT).map(lambda parts: f"/admission/{parts[0]}/{parts[1]}"),
    st.sampled_from([at("endpoint:alpha"), "/todos", "/todos/TODO", "/admission"]),
    SEGMENT.map(lambda part: f"/todos/TODO/{part}"),
)
QUERY = st.lists(
    st.tuples(
        st.sampled_from(["limit", "cursor", "queue", "state", "endpoint", "x"]) | TEXT,
        st.sampled_from(["1", "0", "pending", "inbox", "alpha", UNKNOWN]) | TEXT,
    ),
    max_size=3,
).map(
    lambda pairs: "&".join(
        f"{quote(name, errors='surrogatepass')}={quote(value, errors='surrogatepass')}"
        for name, value in pairs
    )
)


def test_nothing_that_anybody_sends_is_a_500(tester: Client, alpha: Endpoint, db: Sql) -> None:
    todo = db.create(alpha, "x")
    codes = {row["code"] for row in db.rows("select code from switchboard.error_table()")}

    @settings(
        max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(METHOD, PATH, QUERY, st.none() | BODY, st.sampled_from(["application/json", "text/xml"]))
    def send(method: str, path: str, query: str, body: bytes | None, content_type: str) -> None:
        path = path.replace("TODO", todo)
        answer = tester.ask(method, f"{path}?{query}", body, **{"content-type": content_type})
        assert answer.status_code < 500, answer.text
        if method != "HEAD":
            content = answer.json()
            assert answer.status_code == 200 or (
                content["code"] in codes and isinstance(content["error"], str)
            )

    send()


def test_a_human_sees_own_things_only_whatever_the_page(
    tester: Client, alpha: Endpoint, beta: tuple[Endpoint, Any], db: Sql
) -> None:
    mine = {db.create(alpha, str(n)) for n in range(5)}
    for n in range(5):
        db.create(beta[0], str(n))
    for state in ("", "&state=pending"):
        found: list[str] = []
        cursor = ""
        while cursor is not None:
            page = tester.ask("GET", f"/todos?limit=2{state}{cursor and '&cursor=' + cursor}")
            found += [row["id"] for row in page.json()["todos"]]
            cursor = page.json()["next_cursor"]
        assert len(found) == 5
        assert set(found) == mine
    made_up = uuid.uuid4()
    assert tester.ask("GET", f"/todos?cursor={made_up}").status_code == 200


class Browser:
    """Somebody who is signed in at the board, and asks from one of its pages."""

    def __init__(self, served: Served, db: Sql, bearer: str) -> None:
        self.secret = mint("sbs_")
        opened = "select switchboard.open_session_by_token(%s, %s)"
        assert db.value(opened, digest(bearer), digest(self.secret))
        self.client = Client(served, bearer)
        self.client.headers = {"cookie": f"switchboard={self.secret}"}
        made = hmac.new(self.secret.encode(), b"csrf", "sha256").digest()
        self.csrf = base64.urlsafe_b64encode(made).rstrip(b"=").decode()
        self.page = {"x-csrf-token": self.csrf, "origin": served.url}

    def retention(self, **headers: str) -> httpx2.Response:
        return self.client.ask("PUT", "/endpoints/alpha/retention", {"days": 7}, **headers)


@pytest.fixture
def browser(serve: Callable[..., Served], db: Sql, alpha: Endpoint) -> Iterator[Browser]:
    made = Browser(serve(**FREE), db, token(db, db.human))
    yield made
    made.client.http.close()


def test_who_is_signed_in_at_the_board_may_ask_too(browser: Browser, db: Sql) -> None:
    asked = browser.client.ask("GET", "/me")
    assert (asked.status_code, asked.json()["human"]["name"]) == (200, "tester")
    assert browser.client.ask("HEAD", "/me").status_code == 200
    assert browser.retention(**browser.page).status_code == 200
    fetched = {"x-csrf-token": browser.csrf, "sec-fetch-site": "same-origin"}
    assert browser.retention(**fetched).status_code == 200
    db.value("select switchboard.close_session(%s)", digest(browser.secret))
    assert browser.client.ask("GET", "/me").status_code == 401
    assert browser.retention(**browser.page).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "HERE"},
        {"sec-fetch-site": "same-origin"},
        {"x-csrf-token": "", "origin": "HERE"},
        {"x-csrf-token": "TOKEN"},
        {"x-csrf-token": "TOKEN", "sec-fetch-site": "cross-site"},
        {"x-csrf-token": "TOKEN", "sec-fetch-site": "same-site"},
        {"x-csrf-token": "TOKEN", "sec-fetch-site": "none"},
        {"x-csrf-token": "TOKEN", "origin": "null"},
        {"x-csrf-token": "TOKEN", "origin": "https://evil.example"},
        {"x-csrf-token": "TOKENx", "origin": "HERE"},
        {"x-csrf-token": "OTHER", "origin": "HERE"},
    ],
)
def test_with_the_cookie_only_a_page_of_the_board_may_change_something(
    browser: Browser, db: Sql, headers: dict[str, str]
) -> None:
    other = base64.urlsafe_b64encode(hmac.new(b"other", b"csrf", "sha256").digest()).decode()
    known = {"HERE": browser.page["origin"], "TOKEN": browser.csrf, "OTHER": other.rstrip("=")}
    known["TOKENx"] = browser.csrf + "x"
    sent = {name: known.get(value, value) for name, value in headers.items()}
    answer = browser.retention(**sent)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert db.value("select retention_days from switchboard.endpoints") is None
    assert browser.client.ask("POST", "/hooks", b"{", **sent).status_code == 403


def test_a_bearer_goes_before_the_cookie(browser: Browser) -> None:
    answer = browser.retention(**browser.page, authorization="Bearer sbo_" + "A" * 43)
    assert answer.status_code == 401


@pytest.mark.parametrize("cookie", ["", "x", "sbs_" + "A" * 43, "sbo_" + "A" * 43, "sbs_é"])
def test_a_cookie_that_opens_nothing_is_the_same_401(browser: Browser, cookie: str) -> None:
    nobody = browser.client.http.get("/api/v1/me")
    browser.client.headers = {"cookie": f"switchboard={cookie}".encode()}  # type: ignore[dict-item]
    answer = browser.client.ask("GET", "/me")
    assert (answer.status_code, answer.content) == (401, nobody.content)


def test_an_operator_token_in_the_cookie_opens_nothing(browser: Browser, db: Sql) -> None:
    browser.client.headers = {"cookie": f"switchboard={token(db, db.human, 'another')}"}
    assert browser.client.ask("GET", "/me").status_code == 401
    browser.client.headers = {"authorization": f"Bearer {browser.secret}"}
    assert browser.client.ask("GET", "/me").status_code == 401


def test_a_secret_that_is_given_is_sealed_and_said_once(
    tester: Client,
    db: Sql,
    alpha: Endpoint,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    sent: list[str] = []
    row = Database.row

    async def seen(self: Database, query: Any, params: Any = (), **more: Any) -> Any:
        sent.append(str(params))
        return await row(self, query, params, **more)

    monkeypatch.setattr(Database, "row", seen)
    asked = {"endpoint": "alpha", "source_type": "github", "target_queue": "inbox"}
    made = tester.ask("POST", "/webhooks", {**asked, "signing_secret": "open sesame"}).json()
    assert made["signing_secret"] == "open sesame"
    sealed = db.value("select sealed_secret from switchboard.endpoint_webhooks")
    assert Keyring([KEY]).open(bytes(sealed)) == b"open sesame"
    webhook = made["webhook"]["id"]
    turned = tester.ask("POST", f"/webhooks/{webhook}/rotate", {"signing_secret": "sesame two"})
    assert turned.json()["signing_secret"] == "sesame two"
    for wrong in ("", "x" * 1025, 7, ["x"], "\ud800"):
        refused = tester.ask("POST", "/webhooks", {**asked, "signing_secret": wrong})
        assert (refused.status_code, refused.json()["field"]) == (400, "signing_secret")
    huge = b'{"endpoint": "alpha", "signing_secret": "sesame", "x": ' + b"9" * 5000 + b"}"
    assert tester.ask("POST", "/webhooks", huge).status_code == 400
    assert "sesame" not in tester.ask("GET", f"/webhooks/{webhook}").text
    assert "sesame" not in caplog.text
    assert any("create_webhook" in one for one in sent)
    assert "sesame" not in "".join(sent)


def test_nobody_unknown_has_names_resolved_or_secrets_minted(
    connect: Callable[..., Client], db: Sql, alpha: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def vet(_: Outbound, url: str) -> None:
        asked.append(url)
        raise Refused("not there")

    monkeypatch.setattr(Outbound, "vet", vet)
    hook = {"endpoint": "alpha", "url": "https://wake.example/"}
    wrong = connect("sbo_" + "A" * 43)
    assert wrong.ask("POST", "/hooks", hook).status_code == 401
    assert asked == []
    known = connect(token(db, db.human))
    refused = known.ask("POST", "/hooks", hook)
    assert (refused.status_code, refused.json()["field"]) == (400, "url")
    assert asked == ["https://wake.example/"]
    assert known.ask("POST", "/hooks", {"endpoint": "alpha", "url": 7}).json()["field"] == "url"
    assert known.ask("POST", "/hooks", {"endpoint": "alpha"}).json()["field"] == "url"
    assert db.rows("select from switchboard.notify_hooks") == []


def test_what_is_somebody_elses_is_as_unknown_as_nothing(
    tester: Client, beta: tuple[Endpoint, Any], connect: Callable[..., Client], db: Sql
) -> None:
    """Every operation whose address names something, byte by byte."""
    theirs = connect(token(db, beta[1]))
    types = ["github"]
    assert theirs.ask("PUT", "/endpoints/beta/grant", {"webhook_source_types": types}).is_success
    hook = {"endpoint": "beta", "source_type": "github", "target_queue": "inbox"}
    event = db.value("select switchboard.new_id(now())")
    foreign = {
        "todos": db.create(beta[0], "theirs"),
        "webhooks": theirs.ask("POST", "/webhooks", hook).json()["webhook"]["id"],
        "hooks": db.value(
            "select switchboard.create_notify_hook(%s, 'https://x.example/') ->> 'hook_id'",
            beta[0].id,
        ),
        "events": event,
        "endpoints": "beta",
        "admission": "endpoint:beta",
        "tokens": "test-of-theirs",
    }
    theirs.ask("POST", "/tokens", {"name": "test-of-theirs"})
    db.rows(
        "insert into switchboard.events (endpoint_id, id, todo_id, webhook_id, source_type, queue,"
        " delivery_id, trust_mode, headers, body) values"
        " (%s, %s, %s, %s, 'github', 'inbox', 'd', 'signed', '{}', 'x')",
        beta[0].id,
        event,
        foreign["todos"],
        foreign["webhooks"],
    )
    document = tester.ask("GET", "/openapi.json").json()
    checked = 0
    for path, method, _ in operations(document):
        kind, first, *_ = [*path.removeprefix("/api/v1/").split("/"), ""]
        if not first.startswith("{"):
            continue
        body = {"target_endpoint_id": "alpha"} if path.endswith("/routes") else None
        body = LIMIT if path.startswith("/api/v1/admission") and method == "PUT" else body
        answers = [
            tester.ask(
                method,
                re.sub(r"\{\w+\}", "inbox", path.replace(first, named, 1))[7:],
                body if method in ("POST", "PUT") else None,
            )
            for named in (str(foreign[kind]), UNKNOWN, "nothing-of-this-name")
        ]
        assert {a.status_code for a in answers} == {404}, (method, path, answers[0].text)
        assert len({a.content for a in answers}) == 1, (method, path)
        assert len({tuple(sorted(set(a.headers) - {"date"})) for a in answers}) == 1
        checked += 1
    assert checked == sum("{" in path for path, _, _ in operations(document)) > 30
    for path, body in {
        "/todos": {"queue": "inbox", "title": "x"},
        "/webhooks": {"source_type": "github", "target_queue": "inbox"},
    }.items():
        named = ("beta", beta[0].id, "nobody", UNKNOWN)
        answers = [tester.ask("POST", path, {"endpoint": one, **body}) for one in named]
        assert {(a.status_code, a.content) for a in answers} == {(404, answers[0].content)}
    for path in ("todos", "queues", "webhooks", "events", "hooks", "admission"):
        answers = [tester.ask("GET", f"/{path}?endpoint={one}") for one in named]
        assert {(a.status_code, a.content) for a in answers} == {(404, answers[0].content)}
        assert theirs.ask("GET", f"/{path}?endpoint=beta").status_code == 200
    assert "beta" not in "".join(
        tester.ask("GET", f"/{path}").text
        for path in ("endpoints", "todos", "queues", "webhooks", "events", "hooks", "tokens")
    )
