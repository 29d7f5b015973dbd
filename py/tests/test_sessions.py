"""Sessions over real HTTP: whose they are, and when they end."""

import threading
import uuid

import pytest


def call(tool: str, request_id: object = 1, **arguments: object) -> dict[str, object]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def test_fault_45_a_session_belongs_to_the_credential_that_opened_it(served, db) -> None:
    alpha, beta = db.vend("alpha"), db.vend("beta")
    theirs = served.session(beta)
    mine = served.session(alpha)
    rotated = db.value("select switchboard.rotate_credential(%s, %s)", alpha.id, 3600)
    mine.headers["mcp-session-id"] = theirs.id
    other = served.session(alpha)
    other.headers["authorization"] = f"Bearer {rotated}"
    unknown = served.session(alpha)
    unknown.headers["mcp-session-id"] = uuid.uuid4().hex
    for message in (mine.request("tools/list"), call("claim_next")):
        answers = []
        for session in (mine, other, unknown):
            response = session.post(message)
            assert response.status_code == 404
            answers.append(response.json())
        assert answers[0] == answers[1] == answers[2]
    for session in (mine, other, unknown):
        with session.stream() as stream:
            assert stream.status_code == 404
        assert session.http.delete(session.address, headers=session.headers).status_code == 404
    assert theirs.ask("ping")["result"] == {}


@pytest.mark.parametrize("how", ["told", "fallback"])
def test_fault_45_revoking_ends_sessions_and_their_streams(
    serve, db, until, monkeypatch, how: str
) -> None:
    if how == "told":
        monkeypatch.setattr("switchboard.sessions.CHECK_SECONDS", 3600)
    # A listener that hears nothing leaves the regular check.
    served = serve(listen_url="host=/nonexistent") if how == "fallback" else serve()
    alpha, beta = db.vend("alpha"), db.vend("beta")
    if how == "told":
        served.wait_listening()
    session, other = served.session(alpha), served.session(beta)
    ended = threading.Event()

    def read() -> None:
        with session.stream() as stream:
            assert stream.status_code == 200
            opened.set()
            for _ in stream.iter_raw():
                pass
        ended.set()

    opened = threading.Event()
    reader = threading.Thread(target=read)
    reader.start()
    assert opened.wait(20)
    assert len(served.app.state.sessions) == 2
    db.rows("select switchboard.revoke_endpoint(%s)", alpha.id)
    assert ended.wait(20), "the stream ends"
    reader.join()
    assert session.post(call("claim_next")).status_code == 401
    assert other.call("claim_next")["empty"] is True
    until(lambda: len(served.app.state.sessions) == 1, "only the other session is left")


def test_a_revoked_credential_never_acts_even_while_its_authentication_is_kept(serve, db) -> None:
    served = serve(listen_url="host=/nonexistent", auth_cache=5.0)
    alpha = db.vend("alpha")
    todo = db.create(alpha, "work")
    session = served.session(alpha)
    assert session.call("list_todos")["todos"]
    db.rows("select switchboard.revoke_endpoint(%s)", alpha.id)
    response = session.post(call("claim_next"))
    assert response.status_code == 401
    assert response.json()["code"] == "unauthenticated"
    state = db.value("select state::text from switchboard.get_todo(%s, %s)", alpha.id, todo)
    assert state != "claimed"


def test_a_changed_grant_shows_at_once(serve, db, until) -> None:
    served = serve(auth_cache=60.0)  # so that only being told shows it
    alpha = db.vend("alpha", verbs=["list_todos"])
    served.wait_listening()
    session = served.session(alpha)
    assert [tool["name"] for tool in session.ask("tools/list")["result"]["tools"]] == ["list_todos"]
    db.rows("update switchboard.endpoints set verbs = array['claim'] where slug = 'alpha'")
    db.rows("select pg_notify('switchboard_control', %s)", alpha.id)
    until(
        lambda: "claim" in [t["name"] for t in session.ask("tools/list")["result"]["tools"]],
        "tools/list shows the new grant",
    )


def test_fault_47_after_a_restart_the_old_session_is_unknown_and_a_new_one_works(
    serve, db, until
) -> None:
    alpha = db.vend("alpha")
    todo = db.create(alpha, "survives")
    first = serve()
    session = first.session(alpha)
    claimed = session.call("claim_next")["todo"]
    first.stop()
    second = serve(port=first.settings.port)
    for message in (session.request("ping"), call("claim_next")):
        answer = session.post(message)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == -32600
    again = second.session(alpha)
    done = again.call("complete", id=todo, lease_token=claimed["lease_token"])
    assert done["todo"]["state"] == "done", "the lease outlived the server"


def test_a_session_that_was_never_initialized_is_not_kept(served, db) -> None:
    session = served.session(db.vend("alpha"), start=False)
    for message in (session.request("initialize", {"protocolVersion": 7}), call("claim_next"), "x"):
        session.post(message)
    session.http.get(session.address, headers=session.headers)
    gate = next(route.app for route in served.app.routes if route.path == "/mcp/{slug}")
    assert gate._manager._server_instances == {}
    assert len(served.app.state.sessions) == 0


def test_an_endpoint_has_a_bounded_number_of_sessions(serve, db) -> None:
    served = serve(endpoint_sessions=3)
    alpha, beta = db.vend("alpha"), db.vend("beta")
    held = [served.session(alpha) for _ in range(3)]
    refused = served.session(alpha, start=False)
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    response = refused.post(refused.request("initialize", hello))
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert response.headers["retry-after"]
    served.session(beta)
    assert held[0].http.delete(held[0].address, headers=held[0].headers).status_code == 200
    served.session(alpha)


def test_an_idle_session_ends_and_one_in_use_does_not(serve, db, until, monkeypatch) -> None:
    monkeypatch.setattr("switchboard.sessions.CHECK_SECONDS", 0.05)
    served = serve(session_idle_timeout=1.5)  # a handshake must not take as long
    alpha = db.vend("alpha")
    streaming = served.session(alpha)
    with streaming.stream() as stream:
        assert stream.status_code == 200
        idle = served.session(alpha)  # younger, so that the other would have to end before it
        until(lambda: len(served.app.state.sessions) == 1, "the idle session ends")
        assert idle.post(call("claim_next")).status_code == 404
        assert streaming.call("claim_next")["empty"] is True
