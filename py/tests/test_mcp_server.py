"""MCP over real HTTP: on the wire, and with the Python client."""

import concurrent.futures
import json
import threading
import uuid

import httpx2
import psycopg
import pytest
from conftest import logged
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

PARALLEL = 25
EVERY = [
    "list_todos",
    "get_todo",
    "claim",
    "claim_next",
    "heartbeat",
    "complete",
    "fail",
    "release",
]


def call(tool: str, request_id: object = 1, **arguments: object) -> dict[str, object]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def python_client(served, endpoint, mode: str = "auto"):
    http = httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {endpoint.credential}"}, timeout=30
    )
    address = f"{served.url}/mcp/{endpoint.slug}"
    return http, Client(streamable_http_client(address, http_client=http), mode=mode)


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_python_client_drains_the_queue(served, db, mode: str) -> None:
    alpha = db.vend("alpha")
    todo = db.create(alpha, "look at this", payload={"n": 1})
    http, client = python_client(served, alpha, mode)
    async with http, client:
        assert client.session.protocol_version == "2025-11-25"
        assert "claim_next" in (client.session.instructions or "")
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert set(EVERY) <= set(names)
        claimed = await client.call_tool("claim_next", {})
        assert not claimed.is_error
        got = claimed.structured_content["todo"]
        assert (got["id"], got["payload"], got["owner"]) == (todo, {"n": 1}, "agent:alpha")
        ticket = {"id": todo, "lease_token": got["lease_token"]}
        beat = await client.call_tool("heartbeat", {**ticket, "lease_ttl_seconds": 600})
        assert beat.structured_content["todo"]["state"] == "claimed"
        done = await client.call_tool("complete", {**ticket, "result": {"ok": True}})
        assert done.structured_content["todo"]["state"] == "done"
        assert json.loads(done.content[0].text) == done.structured_content
        empty = await client.call_tool("claim_next", {})
        assert empty.structured_content["empty"] is True
        again = await client.call_tool("complete", ticket)
        assert again.is_error
        assert again.structured_content["error"]["code"] == "conflict"
        with pytest.raises(MCPError) as refused:
            await client.call_tool("no_such_tool", {})
        assert refused.value.error.code == -32602
    assert (
        db.value("select state::text from switchboard.get_todo(%s, %s)", alpha.id, todo) == "done"
    )


def test_one_call_is_one_round_trip(served, db, monkeypatch: pytest.MonkeyPatch) -> None:
    alpha = db.vend("alpha")
    session = served.session(alpha)
    session.call("claim_next")
    statements: list[str] = []
    execute = psycopg.AsyncConnection.execute

    async def noted(self, query, *args, **kwargs):
        statements.append(str(query))
        return await execute(self, query, *args, **kwargs)

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", noted)
    session.call("claim_next")
    assert [text for text in statements if "call_tool" in text]
    assert not [text for text in statements if "call_tool" not in text and "swe" not in text]
    assert len([text for text in statements if "call_tool" in text]) == 1


def test_tools_and_instructions_are_those_of_the_endpoint(served, db) -> None:
    alpha = db.vend("alpha", verbs=["list_todos", "claim"])
    beta = db.vend("beta", verbs=["create_todo"])
    first, second = served.session(alpha), served.session(beta)
    tools = {
        session.endpoint.slug: [
            tool["name"] for tool in session.ask("tools/list")["result"]["tools"]
        ]
        for session in (first, second)
    }
    assert tools["alpha"][:2] == ["list_todos", "claim"]
    assert tools["beta"] == ["create_todo"]
    assert first.instructions == second.instructions != ""


def test_every_refused_credential_gets_the_same_401(served, db) -> None:
    alpha, _ = db.vend("alpha"), db.vend("beta")
    bearer = f"Bearer {alpha.credential}"
    cases = {
        "slug": ("nobody", [bearer]),
        "credential": ("alpha", ["Bearer sbk_" + "x" * 43]),
        "foreign": ("beta", [bearer]),
        "none": ("alpha", []),
        "basic": ("alpha", ["Basic " + alpha.credential]),
        "two": ("alpha", [bearer, bearer]),
        "empty": ("alpha", ["Bearer"]),
    }
    bodies = set()
    for method in ("POST", "GET", "DELETE", "PUT", "PATCH"):
        for case, (slug, values) in cases.items():
            headers = [("authorization", value) for value in values]
            response = httpx2.request(method, f"{served.url}/mcp/{slug}", headers=headers)
            assert response.status_code == 401, (method, case)
            assert response.headers["www-authenticate"] == 'Bearer error="invalid_token"'
            bodies.add(response.content)
    (body,) = bodies
    assert json.loads(body)["code"] == "unauthenticated"


def test_fault_51_a_malformed_slug_is_an_unknown_one(served, db) -> None:
    alpha = db.vend("alpha")
    headers = {"authorization": f"Bearer {alpha.credential}"}
    bodies = set()
    for slug in (
        "unknown",
        "ALPHA",
        "a%00b",
        "%ff%fe",
        "alpha%20",
        "x" * 500,
        "..%2falpha",
        "%F0%9F",
    ):
        response = httpx2.post(f"{served.url}/mcp/{slug}", headers=headers, content="{}")
        assert response.status_code in (401, 404), slug
        if response.status_code == 401:
            bodies.add(response.content)
    assert len(bodies) == 1


def test_fault_51_malformed_ids_answer_like_unknown_ones(served, db) -> None:
    alpha, beta = db.vend("alpha"), db.vend("beta")
    foreign = db.create(beta, "theirs")
    session = served.session(alpha)
    ids = [str(uuid.uuid4()), foreign, "", "x", "{" + foreign + "}", foreign.upper() + " ", "é" * 9]
    for tool in EVERY:
        if tool in ("list_todos", "claim_next"):
            continue
        ticket = {} if tool in ("get_todo", "claim") else {"lease_token": "abcdefghijkl"}
        answers = {json.dumps(session.call(tool, id=todo, **ticket)) for todo in ids}
        assert len(answers) == 1, tool
        assert json.loads(answers.pop())["error"]["code"] == "not_found"


def test_fault_46_equal_request_ids_of_two_endpoints_get_their_own_answers(served, db) -> None:
    endpoints = [db.vend("alpha"), db.vend("beta")]
    for endpoint in endpoints:
        for number in range(PARALLEL):
            db.create(endpoint, f"{endpoint.slug} {number}")
    sessions = [served.session(endpoint) for endpoint in endpoints]

    def claim(session) -> tuple[str, str]:
        answer = session.post(call("claim_next", 7)).json()
        assert answer["id"] == 7
        todo = answer["result"]["structuredContent"]["todo"]
        return todo["owner"], todo["title"]

    with concurrent.futures.ThreadPoolExecutor(2 * PARALLEL) as pool:
        jobs = {
            session.endpoint.slug: [pool.submit(claim, session) for _ in range(PARALLEL)]
            for session in sessions
        }
    for slug, results in jobs.items():
        got = [job.result() for job in results]
        assert {owner for owner, _ in got} == {f"agent:{slug}"}
        assert {title for _, title in got} == {f"{slug} {number}" for number in range(PARALLEL)}


def test_two_requests_in_flight_with_one_id_do_not_hang(served, db, monkeypatch) -> None:
    """On the fast path both are answered; where the SDK would hang, the gate gives up."""
    alpha = db.vend("alpha")
    session = served.session(alpha)
    both = threading.Barrier(2)

    def ask() -> int:
        both.wait()
        return session.post(call("claim_next", "same")).status_code

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(ask) for _ in range(20)]
        assert [job.result(30) for job in jobs] == [200] * 20

    async def never(*_: object) -> None:
        import anyio

        await anyio.sleep_forever()

    gate = next(route.app for route in served.app.routes if route.path == "/mcp/{slug}")
    monkeypatch.setattr(gate, "_request_seconds", 0.05)
    monkeypatch.setattr(gate._manager, "handle_request", never)
    response = session.post(session.request("ping"))
    assert response.status_code == 503
    assert response.json()["code"] == "unavailable"
    assert response.headers["retry-after"]


def test_fault_49_arguments_are_checked_by_name(served, db) -> None:
    session = served.session(db.vend("alpha"))
    cases = [
        ("get_todo", {}, "id"),
        ("get_todo", {"id": 7}, "id"),
        ("get_todo", {"id": "x", "surplus": 1}, "surplus"),
        ("complete", {"id": "x"}, "lease_token"),
        ("list_todos", {"limit": "ten"}, "limit"),
        ("list_todos", {"limit": 0}, "limit"),
        ("list_todos", {"state": "sleeping"}, "state"),
        ("claim_next", {"queues": "inbox"}, "queues"),
        ("claim_next", {"lease_ttl_seconds": 0}, "lease_ttl_seconds"),
    ]
    for tool, arguments, field in cases:
        error = session.call(tool, **arguments)["error"]
        assert (error["code"], error["field"]) == ("invalid_argument", field), (tool, arguments)
        assert field in error["message"]


def test_fault_49_ungranted_and_unknown_tools_get_the_same_error(served, db) -> None:
    session = served.session(db.vend("alpha", verbs=["list_todos"]))
    answers = []
    for tool in ("claim", "no_such_tool", "", "\u0000", "x" * 9999, "é"):
        answer = session.ask("tools/call", {"name": tool, "arguments": {}}, 5)
        if tool != "\u0000":
            answers.append(answer)
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["error"]["code"] == -32602


@pytest.mark.parametrize("where", ["fast path", "through the SDK"])
def test_fault_49_no_text_of_an_exception_reaches_the_client(
    served, db, caplog: pytest.LogCaptureFixture, monkeypatch, where: str
) -> None:
    from switchboard.db import Database

    session = served.session(db.vend("alpha"))
    session.call("claim_next")
    if where == "through the SDK":
        monkeypatch.setattr("switchboard.jsonrpc.accepts_json", lambda _: False)

    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the inside of the server")

    monkeypatch.setattr(Database, "value", fail)
    error = session.call("claim_next")["error"]
    assert error["code"] == "internal"
    assert "inside" not in json.dumps(error)
    logged = [record for record in caplog.records if error["log_id"] in record.getMessage()]
    assert logged
    assert "the inside of the server" in str(logged[0].exc_info)


@pytest.mark.parametrize("where", ["fast path", "through the SDK"])
def test_both_ways_answer_the_same(served, db, monkeypatch, where: str) -> None:
    alpha = db.vend("alpha")
    todo = db.create(alpha, "work", payload={"a": [1, 2.5, None, "é\u2028"]})
    session = served.session(alpha)
    if where == "through the SDK":
        monkeypatch.setattr("switchboard.jsonrpc.tool_call", lambda _: None)
    claimed = session.call("claim_next")["todo"]
    assert (claimed["id"], claimed["payload"]) == (todo, {"a": [1, 2.5, None, "é\u2028"]})
    assert session.call("get_todo", id="x")["error"]["code"] == "not_found"
    answer = session.ask("tools/call", {"name": "nope", "arguments": {}}, "id é")
    assert (answer["id"], answer["error"]["code"]) == ("id é", -32602)


def test_what_cannot_be_stored_is_refused_and_the_session_goes_on(served, db) -> None:
    alpha = db.vend("alpha")
    todo = db.create(alpha, "work")
    session = served.session(alpha)
    ticket = {"id": todo, "lease_token": session.call("claim_next")["todo"]["lease_token"]}
    deep = "[" * 9000 + "]" * 9000
    for value in ('"\\u0000"', '"\\ud800"', "1e400000", "NaN", deep, "9" * 5000):
        message = json.dumps(call("complete", 1, **ticket, result="VALUE"))
        response = session.post(message.replace('"VALUE"', value))
        if response.status_code == 200:
            content = response.json()["result"]["structuredContent"]
            assert content["error"]["code"] == "invalid_argument", (value[:9], content)
        else:
            assert response.status_code == 400, response.text
            assert response.json()["error"]["code"] in (-32700, -32602)
    assert session.call("complete", **ticket)["todo"]["state"] == "done"


NUMBERS = {
    "0.1234567890123456789012345": None,
    "1.10": None,
    "1e2": "100",
    "1e400": "1" + "0" * 400,
    "1234567890123456.0": None,
    "9007199254740993": None,
    "-1.5E-30": "-0." + "0" * 29 + "15",
}


@pytest.mark.parametrize("where", ["fast path", "through the SDK"])
def test_numbers_are_stored_as_the_client_wrote_them(served, db, monkeypatch, where: str) -> None:
    alpha = db.vend("alpha", verbs=["create_todo", "list_todos"])
    session = served.session(alpha)
    if where == "through the SDK":
        monkeypatch.setattr("switchboard.jsonrpc.tool_call", lambda _: None)
    message = json.dumps(call("create_todo", 1, title="work", queue="inbox", payload="VALUE"))
    response = session.post(message.replace('"VALUE"', f"[{', '.join(NUMBERS)}]"))
    content = response.json()["result"]["structuredContent"]
    stored = db.value(
        "select payload::text from switchboard.todos where id = %s", content["todo"]["id"]
    )
    assert stored == f"[{', '.join(text or number for number, text in NUMBERS.items())}]"
    for limit in ("1e2", "1.0", "20"):
        answer = session.post(json.dumps(call("list_todos", limit="N")).replace('"N"', limit))
        assert len(answer.json()["result"]["structuredContent"]["todos"]) == 1, limit


def test_a_number_of_any_length_is_judged_by_the_database(served, db) -> None:
    session = served.session(db.vend("alpha", verbs=["create_todo"]))
    message = json.dumps(call("create_todo", 1, title="work", queue="inbox", payload="VALUE"))
    for value, code in (("9" * 900, None), ("9" * 5000, "invalid_argument")):
        answer = session.post(message.replace('"VALUE"', value)).json()
        error = answer["result"]["structuredContent"].get("error", {})
        assert error.get("code") == code


def test_a_body_is_utf8_with_or_without_a_mark(served, db) -> None:
    session = served.session(db.vend("alpha", verbs=["create_todo"]))
    made = call("create_todo", 1, title="é", queue="inbox")
    text = json.dumps(made, ensure_ascii=False)
    for encoding in ("utf-8", "utf-8-sig"):
        content = session.post(text.encode(encoding)).json()["result"]["structuredContent"]
        assert content["todo"]["title"] == "é"
    for wrong in (text.encode("utf-16"), text.encode("latin-1"), b"\xed\xa0\x80".join((b'"',) * 2)):
        assert session.post(wrong).json()["error"]["code"] == -32700


def test_bodies_above_one_mebibyte_are_refused(served, db) -> None:
    session = served.session(db.vend("alpha"))
    large = json.dumps(call("get_todo", 1, id="x" * 1024 * 1024))
    answer = session.post(large)
    assert answer.status_code == 413
    assert answer.json()["code"] == "too_large"

    def stream():
        for _ in range(32):
            yield b"x" * 65536

    answer = session.http.post(session.address, content=stream(), headers=session.headers)
    assert answer.status_code == 413
    assert session.call("claim_next")["empty"] is True


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
def test_versions_without_sessions_are_refused_so_that_clients_fall_back(
    served, db, method: str
) -> None:
    session = served.session(db.vend("alpha"), start=False)
    message = session.request("server/discover", {"_meta": {}}, "d1")
    handshake = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
    for version in ("2026-07-28", "1999-01-01", ""):
        response = session.http.request(
            method,
            session.address,
            content=json.dumps(message) if method == "POST" else None,
            headers={**session.headers, "mcp-protocol-version": version},
        )
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == -32022
        assert error["data"] == {"supported": handshake, "requested": version}
        assert response.json()["id"] == ("d1" if method == "POST" else None)


@pytest.mark.anyio
async def test_the_refusal_of_versions_without_sessions_can_be_turned_off(serve, db) -> None:
    served = serve(mcp_handshake_only=False)
    alpha = db.vend("alpha")
    db.create(alpha, "work")
    http, client = python_client(served, alpha)
    async with http, client:
        assert client.session.protocol_version == "2026-07-28"
        claimed = await client.call_tool("claim_next", {})
        assert claimed.structured_content["todo"]["title"] == "work"


def test_the_protocol_is_kept_where_the_request_is_unusual(served, db) -> None:
    session = served.session(db.vend("alpha"))
    assert session.post("{").json()["error"]["code"] == -32700
    assert session.post(call("claim_next"), accept="text/html").status_code == 406
    assert session.post(call("claim_next"), **{"content-type": "text/plain"}).status_code == 400
    assert session.post([call("claim_next")]).status_code == 400, "no batches"
    bad = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 5}}
    assert session.post(bad).json()["error"]["code"] == -32602
    assert session.ask("no/such")["error"]["code"] == -32601
    lost = {**session.headers, "last-event-id": "5"}
    with session.http.stream("GET", session.address, headers=lost) as stream:
        assert stream.status_code == 200, "nothing is replayed, the stream opens"
    del session.headers["mcp-session-id"]
    assert session.post(call("claim_next")).status_code == 400
    response = session.http.put(session.address, headers=session.headers)
    assert (response.status_code, response.json()["code"]) == (405, "invalid_argument")


def test_calls_above_the_rate_are_answered_429(serve, db) -> None:
    served = serve(mcp_rate=0.01, mcp_burst=5)
    alpha, beta = db.vend("alpha"), db.vend("beta")
    session, other = served.session(alpha), served.session(beta)
    codes = [session.post(call("claim_next")).status_code for _ in range(5)]
    assert codes == [200, 200, 200, 429, 429], "initialize and initialized count, too"
    limited = session.post(call("claim_next"))
    assert limited.json()["code"] == "rate_limited"
    assert int(limited.headers["retry-after"]) >= 1
    assert other.call("claim_next")["empty"] is True


def test_failures_above_the_rate_are_429_and_known_callers_still_get_in(serve, db) -> None:
    served = serve(failure_rate=0.01, failure_burst=3, auth_cache=0)
    alpha = db.vend("alpha")
    session = served.session(alpha)
    address = f"{served.url}/mcp/alpha"
    codes = [httpx2.post(address, content="{}").status_code for _ in range(5)]
    assert codes == [401, 401, 401, 429, 429]
    assert session.call("claim_next")["empty"] is True


def test_a_dropped_call_runs_to_its_end(served, db, until) -> None:
    alpha = db.vend("alpha")
    todo = db.create(alpha, "work")
    session = served.session(alpha)
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    with psycopg.connect(db.dsn) as blocker:
        blocker.execute("lock table switchboard.todos in access exclusive mode")
        hurried = httpx2.Timeout(15, read=0.5)
        with httpx2.Client(timeout=hurried) as impatient, pytest.raises(httpx2.ReadTimeout):
            impatient.post(session.address, json=call("claim_next"), headers=session.headers)
        until(lambda: db.value(waiting), "the call waits for the lock, and nobody for the call")
        blocker.rollback()
    state = "select state::text from switchboard.get_todo(%s, %s)"
    until(lambda: db.value(state, alpha.id, todo) == "claimed", "the claim was committed")


def test_a_cancelled_call_is_not_cut_off_between_execute_and_commit(
    served, db, until, monkeypatch
) -> None:
    monkeypatch.setattr("switchboard.jsonrpc.tool_call", lambda _: None)
    alpha = db.vend("alpha")
    todo = db.create(alpha, "work")
    session = served.session(alpha)
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    with psycopg.connect(db.dsn) as blocker, concurrent.futures.ThreadPoolExecutor(1) as pool:
        blocker.execute("lock table switchboard.todos in access exclusive mode")
        job = pool.submit(session.post, call("claim_next", 77))
        until(lambda: db.value(waiting), "the call waits for the lock")
        cancel = {"method": "notifications/cancelled", "params": {"requestId": 77}}
        assert session.post({"jsonrpc": "2.0", **cancel}).status_code == 202
        session.ask("ping")
        blocker.rollback()
        job.result(30)
    state = "select state::text from switchboard.get_todo(%s, %s)"
    assert db.value(state, alpha.id, todo) == "claimed"


def test_a_call_is_one_log_line_without_secrets(served, db, caplog) -> None:
    caplog.set_level("INFO")
    alpha = db.vend("alpha")
    session = served.session(alpha)
    session.call("get_todo", id="private text")
    session.ask("tools/call", {"name": "private tool", "arguments": {}})
    lines = logged(caplog, "mcp.call", 2)
    assert [(line["tool"], line["outcome"]) for line in lines] == [
        ("get_todo", "not_found"),
        ("-", "unknown_tool"),
    ]
    assert {(line["endpoint"], line["endpoint_id"]) for line in lines} == {("alpha", alpha.id)}
    assert all(line["ms"] > 0 for line in lines)
    ours = [record for record in caplog.records if record.name.startswith("switchboard")]
    written = " ".join(f"{record.getMessage()} {record.__dict__}" for record in ours)
    assert "private" not in written
    assert alpha.credential not in written
