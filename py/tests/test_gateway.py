"""The process as a whole: what holds on every route, health, the database lost, the end."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import httpx2
import psycopg
import pytest
from conftest import busy
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

ROUTES = [
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/api/v1/todos"),
    ("POST", "/mcp/alpha"),
    ("GET", "/mcp/alpha"),
    ("POST", "/webhooks/w/token"),
    ("GET", "/nothing/here"),
    ("PUT", "/healthz"),
]
BOARD = [
    ("GET", "/"),
    ("GET", "/sign-in"),
    ("POST", "/sign-in"),
    ("GET", "/events"),
    ("GET", "/static/board.css"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES + BOARD)
def test_fault_50_a_foreign_host_or_origin_is_refused_on_every_route(
    served, method: str, path: str
) -> None:
    url = served.url + path
    for host in ("evil.example", "127.0.0.1", f"127.0.0.1:{served.settings.port}.evil.example", ""):
        refused = httpx2.request(method, url, headers={"host": host})
        assert (refused.status_code, refused.json()["code"]) == (421, "forbidden"), host
    for origin in ("https://evil.example", "null", served.url + ".evil.example", ""):
        refused = httpx2.request(method, url, headers={"origin": origin})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), origin
    own = httpx2.request(method, url, headers={"origin": served.url.upper()})
    assert own.status_code not in (403, 421)


def test_fault_50_two_host_headers_are_refused(served) -> None:
    port = served.settings.port
    head = f"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nhost: evil.example\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(4096).split(b"\r\n")[0]
    assert b" 421 " in answer or b" 400 " in answer


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_answer_is_json_and_carries_the_security_headers(
    served, method: str, path: str
) -> None:
    answer = httpx2.request(method, served.url + path)
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    if answer.status_code >= 400:
        assert {"error", "code"} <= set(body)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "server" not in answer.headers
    assert "strict-transport-security" not in answer.headers


def test_over_https_browsers_are_told_to_stay_there(serve) -> None:
    served = serve(public_url="https://queue.example", allowed_hosts=("queue.example",))
    answer = httpx2.get(served.url + "/healthz", headers={"host": "queue.example"})
    assert answer.headers["strict-transport-security"].startswith("max-age=")


@pytest.mark.parametrize("trusted", [(), ("127.0.0.1",)], ids=["stranger", "proxy"])
def test_whom_a_proxy_forwards_for_counts_only_if_it_is_ours(serve, trusted) -> None:
    served = serve(failure_rate=0.01, failure_burst=1, trusted_proxies=trusted)

    def fail(client: str) -> int:
        headers = {"x-forwarded-for": client}
        return httpx2.post(f"{served.url}/mcp/none", content="{}", headers=headers).status_code

    assert fail("192.0.2.1") == 401
    assert fail("192.0.2.1") == 429
    assert fail("192.0.2.2") == (401 if trusted else 429)


def test_unknown_addresses_and_methods_say_so(served) -> None:
    missing = httpx2.get(served.url + "/mcp/alpha/")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    wrong = httpx2.delete(served.url + "/readyz")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "invalid_argument")
    assert "GET" in wrong.headers["allow"]


def test_an_uncaught_error_is_logged_and_answered_without_its_text(
    served, monkeypatch, caplog
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("the inside")

    monkeypatch.setattr("switchboard.intake.Intake._receive", fail)
    answer = httpx2.post(served.url + "/webhooks/w/token", content=b"{}")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "inside" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    logged = [r for r in caplog.records if answer.json()["log_id"] in r.getMessage()]
    assert "the inside" in str(logged[0].exc_info)


def test_the_server_sweeps_and_says_so(served, db, until) -> None:
    def swept() -> bool:
        return httpx2.get(served.url + "/readyz").json()["sweeps"] == "ok"

    until(swept, "the first sweep is seen")
    body = httpx2.get(served.url + "/readyz").json()
    assert body["status"] == "ready"
    assert body["database"] == "ok"
    assert body["last_sweep_seconds"] < 30
    assert db.value("select switchboard.sweep_age() < interval '30 seconds'")


def kill_connections(db) -> int:
    """End every connection of the gateway, as a restarted PostgreSQL does."""
    return db.value(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity"
        " where application_name = 'switchboard' and datname = current_database()"
    )


def test_lost_connections_are_replaced_and_each_call_is_answered(served, db, until) -> None:
    alpha = db.vend("alpha")
    session = served.session(alpha)
    for _ in range(3):
        served.wait_listening()
        assert kill_connections(db) >= 2
        codes = [session.call("claim_next").get("error", {}).get("code") for _ in range(5)]
        assert codes[-1] is None
        assert set(codes) <= {None, "unavailable"}
    until(lambda: served.app.state.listener.state == "listening", "it listens again")


def test_a_server_without_its_database_says_503_and_recovers(
    serve, db, cluster_url: str, until
) -> None:
    alpha = db.vend("alpha")
    name = conninfo_to_dict(db.dsn)["dbname"]
    db.connection.close()
    away, home = sql.Identifier(name + "_away"), sql.Identifier(name)
    rename = sql.SQL("alter database {} rename to {}")
    with psycopg.connect(cluster_url, autocommit=True) as admin:
        admin.execute(rename.format(home, away))
        try:
            served = serve(pool_wait=0.2)
            assert httpx2.get(served.url + "/healthz").status_code == 200
            ready = httpx2.get(served.url + "/readyz")
            assert (ready.status_code, ready.json()["code"]) == (503, "unavailable")
            headers = {"authorization": f"Bearer {alpha.credential}"}
            for path in ("/mcp/alpha", "/webhooks/w/token"):
                answer = httpx2.post(served.url + path, headers=headers, content=b"{}")
                assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                assert int(answer.headers["retry-after"]) >= 1
                assert name not in answer.text
        finally:
            admin.execute(rename.format(away, home))
    until(lambda: httpx2.get(served.url + "/readyz").status_code == 200, "it is ready", 30)
    assert served.session(alpha).call("claim_next")["empty"] is True


def test_fault_59_a_full_pool_is_503_soon_instead_of_hanging(serve, db) -> None:
    import concurrent.futures

    served = serve(pool_size=2, pool_wait=0.3)
    alpha = db.vend("alpha")
    db.create(alpha, "work")
    session = served.session(alpha)
    with psycopg.connect(db.dsn) as blocker:
        blocker.execute("lock table switchboard.todos in access exclusive mode")
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            jobs = [pool.submit(session.call, "claim_next") for _ in range(20)]
            first = next(concurrent.futures.as_completed(jobs, 15)).result()
            assert first["error"]["code"] == "unavailable", "refused while the pool is taken"
            blocker.rollback()
    codes = {job.result().get("error", {}).get("code") for job in jobs}
    assert codes <= {None, "unavailable"}
    assert session.call("list_todos")["todos"]


SERVER = """
from switchboard import serving
from switchboard.config import Settings
settings = Settings.from_env()
serving.serve(settings, serving.bind(settings), lambda: None)
"""


@pytest.fixture
def process(db, settings, tmp_path, until):
    """A server process of its own: its settings, its process and its log file."""
    chosen = settings()
    log = tmp_path / "log"
    environment = {
        **os.environ,
        "SWITCHBOARD_DATABASE_URL": db.dsn,
        "SWITCHBOARD_PORT": str(chosen.port),
        "SWITCHBOARD_SECRET_KEY": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
        "SWITCHBOARD_LOG_LEVEL": "debug",
        "SWITCHBOARD_SHUTDOWN_TIMEOUT": "3",
    }
    with log.open("wb") as output:
        started = subprocess.Popen(
            [sys.executable, "-c", SERVER], env=environment, stderr=output, stdout=output
        )
    url = f"http://127.0.0.1:{chosen.port}"

    def answers() -> bool:
        try:
            return httpx2.get(url + "/readyz").status_code == 200
        except httpx2.TransportError:
            return False

    until(answers, "the server process answers", 30)
    yield url, started, log
    if started.poll() is None:
        started.kill()
    started.wait(10)


def test_sigterm_with_open_streams_and_leases_ends_within_five_seconds(process, db, raw) -> None:
    url, server, log = process
    alpha = db.vend("alpha")
    todo = db.create(alpha, "work")
    sessions = [raw(url, alpha) for _ in range(5)]
    lease = sessions[0].call("claim_next")["todo"]["lease_token"]
    token = db.value("select token from switchboard.create_operator_token(%s, 'term')", db.human)
    board = httpx2.Client(base_url=url)
    board.post("/sign-in", data={"token": token, "next": "/"}, headers={"origin": url})
    boards = [lambda: board.stream("GET", "/events?page=exchange") for _ in range(3)]
    streams = [session.stream for session in sessions] + boards
    ended = [threading.Event() for _ in streams]
    opened = threading.Barrier(len(streams) + 1)

    def read(open_stream, end) -> None:
        try:
            with open_stream() as stream:
                opened.wait(20)
                for _ in stream.iter_raw():
                    pass
        except httpx2.TransportError:
            pass
        end.set()

    for stream, end in zip(streams, ended, strict=True):
        threading.Thread(target=read, args=(stream, end), daemon=True).start()
    opened.wait(20)
    server.send_signal(signal.SIGTERM)
    assert server.wait(5 * busy()) in (0, -signal.SIGTERM)
    assert all(end.wait(5) for end in ended)
    board.close()
    row = db.row("select state::text, lease_token from switchboard.todos where id = %s", todo)
    assert row == {"state": "claimed", "lease_token": lease}, "the lease is left to expire"
    assert "Traceback" not in log.read_text()


def secrets_of_a_human(url: str, db) -> list[str]:
    """Sign in by link and by token, vend and rotate by REST and on the board; what was secret."""
    token = db.value("select token from switchboard.create_operator_token(%s, 'log')", db.human)
    code = db.value("select code from switchboard.create_sign_in_link(%s)", db.human)
    origin, bearer = {"origin": url}, {"authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=url) as http:
        http.get(f"/sign-in/{code}")
        assert http.post(f"/sign-in/{code}", headers=origin).status_code == 303
        assert http.post(f"/sign-in/{code}", headers=origin).status_code == 401
        session = http.cookies["switchboard"]
        csrf = re.findall(r'name="csrf" content="([^"]+)"', http.get("/?q=private-search").text)[0]
        named = {"slug": "named", "queues": ["inbox"]}
        vended = http.post("/api/v1/endpoints", json=named, headers=bearer).json()["credential"]
        form = {"csrf": csrf, "grace_seconds": "0"}
        page = http.post("/endpoints/named/rotate", data=form, headers=origin).text
        rotated = re.findall(r"sbk_[A-Za-z0-9_-]{43}", page)[0]
        http.post("/sign-in", data={"token": token, "next": "/"}, headers=origin)
        http.get("/?token=private-token", headers={"cookie": "switchboard=private-cookie"})
    return [token, code, session, csrf, vended, rotated]


def test_no_secret_is_in_the_log_of_a_full_run(process, db, raw) -> None:
    url, server, log = process
    verbs = ["list_todos", "claim_next", "complete", "create_webhook"]
    alpha = db.vend("alpha", verbs=verbs)
    session = raw(url, alpha)
    hook = session.call(
        "create_webhook", source_type="github", target_queue="inbox", signing_secret="s3cr3t-value"
    )
    token = hook["ingest_url"].rpartition("/")[2]
    for headers in ({}, {"x-hub-signature-256": "sha256=" + "0" * 64}):
        httpx2.post(f"{url}/webhooks/w/{token}", content=b"private-body", headers=headers)
    httpx2.post(f"{url}/webhooks/w/{token}/deeper", content=b"x")
    httpx2.get(f"{url}/webhooks/w/{token}?x={token}")
    db.create(alpha, "private-title")
    lease = session.call("claim_next")["todo"]["lease_token"]
    session.call("complete", id="private-id", lease_token=lease)
    wrong = "sbk_" + "w" * 43
    session.post("{}", authorization=f"Bearer {wrong}")
    human = secrets_of_a_human(url, db)
    kill_connections(db)
    session.call("claim_next")
    server.send_signal(signal.SIGTERM)
    server.wait(10)
    written = log.read_text()
    lines = [json.loads(line) for line in written.splitlines()]
    assert {line["event"] for line in lines} >= {"mcp.call", "webhook.delivery", "board.form"}
    secrets = [alpha.credential, wrong, token, "s3cr3t-value", lease, "private-", *human]
    assert [secret for secret in secrets if secret in written] == []


def test_only_who_listens_sends_no_start_up_options(db, settings) -> None:
    from switchboard.db import dsn

    assert "statement_timeout" in dsn(db.dsn)
    assert "options" not in conninfo_to_dict(dsn(db.dsn, pooler=True))
    given = make_conninfo(db.dsn, options="-c work_mem=8MB")
    assert "work_mem=8MB -c default_transaction_isolation" in dsn(given)


def test_connections_pin_isolation_and_timeouts(served, db, until) -> None:
    from switchboard.db import dsn

    with psycopg.connect(dsn(db.dsn)) as connection:
        shown = {
            name: connection.execute(f"show {name}").fetchone()[0]
            for name in (
                "default_transaction_isolation",
                "statement_timeout",
                "lock_timeout",
                "idle_in_transaction_session_timeout",
                "application_name",
            )
        }
    assert shown == {
        "default_transaction_isolation": "read committed",
        "statement_timeout": "10s",
        "lock_timeout": "5s",
        "idle_in_transaction_session_timeout": "1min",
        "application_name": "switchboard",
    }


def test_a_failed_tick_is_logged_and_the_next_one_follows(
    serve, db, monkeypatch, caplog, until
) -> None:
    monkeypatch.setattr("switchboard.ticker.PAUSE_AFTER_FAILURE", 0.0)
    monkeypatch.setattr("switchboard.ticker.SHORTEST_PAUSE", 0.01)
    db.rows("alter function switchboard.tick() rename to tick_away")
    serve()
    until(lambda: "tick failed" in caplog.text, "the failure is logged")
    db.rows("alter function switchboard.tick_away() rename to tick")
    until(lambda: db.value("select switchboard.sweep_age()") is not None, "it ticks")
    assert logging.getLogger("switchboard")
