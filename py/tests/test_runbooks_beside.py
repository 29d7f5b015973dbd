"""docs/runbooks.md, followed: who is told, what comes in, and the server. See test_runbooks.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import httpx2
import psycopg
import pytest
from conftest import Endpoint, Served, Sql, free_port, until
from psycopg import sql
from psycopg.conninfo import make_conninfo
from runbook_kit import RUNBOOKS, Desk, Runbook, claim, complete, forgotten

from switchboard.secrets import Keyring

pytest_plugins = ["runbook_desk"]

OPERATIONS = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()


@pytest.fixture
def database(wiped: str) -> str:
    return wiped


# --- who is told, and what comes in ---


def listener_of(served: Served) -> str:
    return str(httpx2.get(f"{served.url}/readyz").json()["listener"])


def test_the_listener_is_deaf(
    desk: Desk, database: str, serve: Callable[..., Served], book: Runbook
) -> None:
    nowhere = make_conninfo(database, host="127.0.0.1", port=free_port(), connect_timeout=1)
    served = serve(listen_url=nowhere)
    until(lambda: listener_of(served) == "reconnecting", "its listener is lost")
    assert desk.ask(book) == []
    served.stop()
    served = serve(listen_url=database)  # the remedy: set it, and restart
    served.wait_listening()
    (row,) = until(lambda: desk.ask(book), "the query shows the listener")
    desk.do(book, "select pg_terminate_backend", PID=row["pid"])
    again = lambda: [r for r in desk.ask(book) if r["pid"] != row["pid"]]  # noqa: E731
    until(again, "the server connects anew")
    until(lambda: listener_of(served) == "listening", "and listens")


def test_behind_a_connection_pooler(desk: Desk, db: Sql, book: Runbook) -> None:
    assert desk.ask(book, name="statement_timeout", setting="0"), "nobody has pinned it"
    login = sql.Identifier(desk.operator.info.user)
    (block,) = re.findall(r"^```sql\n(alter role .*?)^```$", OPERATIONS, re.DOTALL | re.MULTILINE)
    for statement in block.replace("sb_gateway", login.as_string()).strip().splitlines():
        db.rows(statement)
    with psycopg.connect(desk.operator.info.dsn, password="x") as again:
        rows = again.execute(book.queries()[0].encode()).fetchall()
    shown = {name: setting for name, setting, _ in rows}
    assert shown == {
        "default_transaction_isolation": "read committed",
        "idle_in_transaction_session_timeout": "60000",
        "jit": "off",
        "lock_timeout": "5000",
        "statement_timeout": "10000",
    }
    db.connection.execute(sql.SQL("alter role {} reset all").format(login))


def test_the_queue_of_notes_fills(desk: Desk, db: Sql, database: str, book: Runbook) -> None:
    with forgotten(database, "forgetful") as deaf:
        deaf.execute("listen switchboard_test")
        deaf.commit()
        deaf.execute("select 1")  # a listener that sits in a transaction
        fill = "select pg_notify('switchboard_test', repeat('x', 7000) || n) from"
        db.rows(f"{fill} generate_series(1, 2000) n")
        (full,) = desk.ask(book)
        assert full["percent_full"] > 0
        (row,) = desk.ask(book, 1, application_name="forgetful", state="idle in transaction")
        desk.do(book, "select pg_terminate_backend", PID=row["pid"])
        until(lambda: not desk.ask(book, 1, pid=row["pid"]), "its session is over")
    db.rows("listen switchboard_test"), db.rows("unlisten switchboard_test")  # who tidies up
    db.rows("select pg_notify('switchboard_test', '')")
    until(lambda: desk.ask(book)[0]["percent_full"] < full["percent_full"], "it empties")


def test_a_hook_is_disabled(desk: Desk, db: Sql, agent: Endpoint, book: Runbook) -> None:
    hook = desk.command("hook create agent https://hooks.example/ring")[1]["hook_id"]
    for number in range(10):
        todo = db.create(agent, f"todo {number}")
        call = "select d ->> 'id' as id, (d ->> 'attempt')::int as attempt"
        calls = db.rows(f"{call} from jsonb_array_elements(switchboard.take_deliveries(5)) d")
        assert calls, "a call for each todo"
        for one in calls:
            settle = "select switchboard.settle_delivery(%s, %s, %s, '5xx', true)"
            db.rows(settle, agent.id, one["id"], one["attempt"])
        complete(db, agent, todo if claim(db, agent) == todo else "")
    assert desk.ask(book, slug="agent", enabled=False, failures=10, last_status="5xx")
    desk.do(book, "switchboard hook rotate", SLUG="agent", HOOK=hook)
    assert desk.ask(book, enabled=False) == []


def test_deliveries_are_refused(
    desk: Desk, db: Sql, agent: Endpoint, serve: Callable[..., Served], book: Runbook
) -> None:
    made = desk.command("webhook create agent -q inbox --source-type github")[1]
    path = f"/webhooks/w/{made['ingest_url'].rsplit('/', 1)[1]}"
    forged = {"x-hub-signature-256": "sha256=" + "0" * 64, "x-github-event": "push"}

    def deliver(served: Served, path: str) -> int:
        answer = httpx2.post(served.url + path, content=b"{}", headers=forged)
        return answer.status_code

    with_the_key, without = serve(secret_keys=(bytes(32),)), serve()
    assert deliver(with_the_key, path) == 401
    assert deliver(with_the_key, "/webhooks/w/unknown") == 404
    assert deliver(without, path) == 503
    for served in (with_the_key, without):
        served.stop()  # what was turned away is counted by then
    refused = {row["provider"]: row["total"] for row in desk.ask(book, verdict="refused")}
    assert refused == {"github": 1, "": 1}, "and nothing grows without the key"
    (row,) = desk.ask(book, 1, slug="agent", active=True, held=False, source_type="github")
    desk.do(book, "switchboard webhook rotate", WEBHOOK=row["webhook_id"])
    (row,) = desk.ask(book, 1, slug="agent")
    assert row["previous_valid_until"] is not None


def test_todos_wait_in_quarantine(desk: Desk, db: Sql, agent: Endpoint, book: Runbook) -> None:
    made = desk.command("webhook create agent -q inbox --source-type github")[1]
    desk.command(f"webhook hold {made['webhook_id']}")
    token = made["ingest_url"].rsplit("/", 1)[1]
    for number in range(2):
        db.rows(
            "select switchboard.receive_delivery(sha256(%s), %s, 'push', '{}', '{}',"
            " 'application/json', '{}')",
            token.encode(),
            f"d-{number}",
        )
    first, second = desk.ask(book, slug="agent")
    desk.do(book, "switchboard quarantine release", ID=first["id"])
    desk.do(book, "switchboard quarantine discard", ID=second["id"])
    assert desk.ask(book) == []
    assert claim(db, agent) == str(first["id"])
    desk.do(book, "switchboard webhook unhold", WEBHOOK=made["webhook_id"])
    assert desk.ask(RUNBOOKS["deliveries-are-refused"], 1, held=False)


def test_a_secret_cannot_be_opened(
    desk: Desk, db: Sql, agent: Endpoint, book: Runbook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key() -> list[str]:
        checks = desk.command("doctor")[1]["checks"]
        return [c["level"] for c in checks if c["name"] == "secret key"]

    hook = desk.command("hook create agent https://hooks.example/ring")[1]["hook_id"]
    assert desk.ask(book)[0]["sealed"] == 1
    assert key() == ["ok"]
    monkeypatch.setenv("SWITCHBOARD_SECRET_KEY", "B" * 43 + "=")
    assert key() == ["error"]
    monkeypatch.setenv("SWITCHBOARD_SECRET_KEY", "B" * 43 + "=," + "A" * 43 + "=")
    assert key() == ["ok"], "the key is given back"
    monkeypatch.setenv("SWITCHBOARD_SECRET_KEY", "B" * 43 + "=")
    lost = Keyring((bytes(32),)).seal(b"of a key that nobody has")
    db.rows("update switchboard.notify_hooks set sealed_secret = %s", lost)
    for _ in range(2):  # the second rotation ends the grace of the lost one
        desk.do(book, "switchboard hook rotate", SLUG="agent", HOOK=hook)
    assert key() == ["ok"], "or each secret is made anew"


def test_an_agent_gets_401(
    desk: Desk, db: Sql, agent: Endpoint, served: Served, book: Runbook
) -> None:
    def asked(credential: str) -> int:
        head = {"authorization": f"Bearer {credential}", "accept": "application/json"}
        return httpx2.post(f"{served.url}/mcp/agent", json={}, headers=head).status_code

    assert asked("sbk_" + "x" * 43) == 401
    assert desk.ask(book, slug="agent", active=True)
    fresh = desk.do(book, "switchboard endpoint rotate", SLUG="agent")["credential"]
    assert asked(fresh) != 401
    desk.command("endpoint revoke agent")
    assert desk.ask(book, slug="agent", active=False)


# --- the server ---


def test_a_server_does_not_answer(desk: Desk, serve: Callable[..., Served], book: Runbook) -> None:
    served, mute = serve(metrics_token="t0ken"), serve()

    def metrics(of: Served, **headers: str) -> int:
        return httpx2.get(f"{of.url}/metrics", headers=headers).status_code

    right = {"authorization": "Bearer t0ken"}
    assert "`/metrics` 401 |" in book.text
    assert metrics(served, authorization="Bearer x") == 401
    assert "`/metrics` 404 |" in book.text
    assert metrics(mute, **right) == 404
    assert "| 421 |" in book.text
    assert metrics(served, **right, host="elsewhere") == 421
    assert "| 200 both times |" in book.text
    assert metrics(served, **right) == 200
    assert httpx2.get(f"{served.url}/readyz").status_code == 200
    served.stop()
    with pytest.raises(httpx2.ConnectError):
        metrics(served)


def test_metrics_cannot_be_read(desk: Desk, db: Sql, book: Runbook) -> None:
    assert len(desk.ask(book)) >= 5
    db.rows("drop function switchboard.metrics(text)")
    with pytest.raises(psycopg.errors.UndefinedFunction):
        desk.ask(book)
