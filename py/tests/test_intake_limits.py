"""Deliveries that are too large, too slow or too many, and a database that is away."""

import contextlib
import json
import socket
from collections.abc import Callable, Iterator

import httpx2
import psycopg
import pytest
from conftest import Endpoint, until
from intake_kit import BODY, SIGNED, Receiver, counts, vend
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

LIMIT = 5 * 1024 * 1024
FORGED = {"x_hub_signature_256": "sha256=" + "0" * 64}


@pytest.fixture
def receiver(served, db) -> Receiver:
    return Receiver(served, vend(db, "alpha"))


@pytest.mark.parametrize("source_type", SIGNED)
def test_fault_43_a_body_of_five_mebibytes_is_taken_and_one_byte_more_is_not(
    served, db, source_type: str
) -> None:
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    start = receiver.body("d-1")[:-1] + b', "x": "'
    body = start + b"x" * (LIMIT - len(start) - 2) + b'"}'
    assert len(body) == LIMIT
    assert receiver.send(body, "d-1").json()["created"] == 1
    refused = receiver.send(body + b" ")
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    assert refused.json()["limit"] == LIMIT
    assert len(receiver.todos()) == 1
    until(lambda: counts(db).get(("", "refused", "too_large")) == 1, "it is counted")


def test_fault_43_a_large_delivery_is_read_in_pieces(receiver: Receiver) -> None:
    body = json.dumps({"a": "ß" * 200_000}, ensure_ascii=False).encode()
    receiver.send(body)
    (todo,) = receiver.todos()
    read, offset = b"", 0
    while offset is not None:
        piece = receiver.session.call("read_event", id=todo["event_id"], offset=offset, limit=32768)
        read += piece["text"].encode()
        offset = piece.get("next_offset")
    assert read == body


def connect(receiver: Receiver) -> tuple[socket.socket, str]:
    """A connection, and the beginning of a request on it."""
    host, port = receiver.url.split("/")[2].split(":")
    head = f"POST {receiver.url.split(port)[1]} HTTP/1.1\r\nhost: {host}:{port}\r\n"
    return socket.create_connection((host, int(port)), 10), head


def test_fault_43_the_refusal_is_seen_by_a_client_that_sends_all_before_it_reads(
    receiver: Receiver,
) -> None:
    size = LIMIT + 1
    for length in (f"content-length: {size}", "transfer-encoding: chunked"):
        body = b"x" * size
        if "chunked" in length:
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (size, body)
        connection, head = connect(receiver)
        with connection:
            connection.sendall(f"{head}{length}\r\n\r\n".encode() + body)
            answer = b""
            while part := connection.recv(65536):
                answer += part
        assert b" 413 " in answer
        assert b'"code": "too_large"' in answer


def test_fault_44_six_mebibytes_without_a_length_are_refused_while_streaming(
    receiver: Receiver, db
) -> None:
    """The answer comes although the body never ends."""
    connection, head = connect(receiver)
    with connection:
        connection.sendall(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        for _ in range(82):
            connection.sendall(chunk)
        assert b" 413 " in connection.recv(4096)
    assert receiver.todos() == []
    until(lambda: counts(db).get(("", "refused", "too_large")) == 1, "it is counted")


def test_fault_44_a_body_that_says_how_large_it_is_is_not_waited_for(receiver: Receiver) -> None:
    connection, head = connect(receiver)
    with connection:
        connection.sendall(f"{head}content-length: {6 * 1024 * 1024}\r\n\r\n".encode())
        assert b" 413 " in connection.recv(4096)


def test_a_body_that_does_not_come_is_408_and_counted(receiver: Receiver, db, monkeypatch) -> None:
    monkeypatch.setattr("switchboard.limits.BODY_SECONDS", 0.05)
    connection, head = connect(receiver)
    with connection:
        connection.sendall(f"{head}content-length: 10\r\n\r\nabc".encode())
        assert b" 408 " in connection.recv(4096)
    until(lambda: counts(db).get(("", "refused", "timeout")) == 1, "it is counted")


def test_a_sender_that_goes_away_is_no_fault_and_no_refusal(receiver: Receiver, db, caplog) -> None:
    caplog.set_level("INFO")
    connection, head = connect(receiver)
    with connection:
        connection.sendall(f"{head}content-length: 10\r\n\r\nabc".encode())

    def outcomes() -> list[str]:
        records = [r for r in caplog.records if r.getMessage() == "webhook.delivery"]
        return [record.fields["outcome"] for record in records]

    assert until(outcomes, "it is logged") == ["client_gone"]
    receiver.send(**FORGED)
    until(lambda: counts(db) == {("github", "refused", "mismatch"): 1}, "only that is counted")


def assert_limited(answer: httpx2.Response) -> None:
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    assert int(answer.headers["retry-after"]) >= 1


def test_deliveries_above_the_rate_are_429(serve, db) -> None:
    served = serve(webhook_rate=0.01, webhook_burst=2)
    receiver = Receiver(served, vend(db, "alpha"))
    assert [receiver.send(**FORGED).status_code for _ in range(3)] == [401] * 3
    codes = [receiver.send().status_code for _ in range(3)]
    assert codes == [202, 202, 429], "only verified deliveries count"
    assert_limited(receiver.send())
    other = Receiver(served, receiver.endpoint)
    assert other.send().status_code == 202, "each receiver has its own"
    until(lambda: counts(db).get(("github", "limited", "")) == 2, "they are counted")
    assert len(receiver.todos()) == 3


@pytest.fixture
def strict(serve, db) -> Callable[[str], Receiver]:
    """Receivers of a gateway that allows three failures an address."""
    served = serve(failure_rate=0.01, failure_burst=3)
    endpoint: Endpoint = vend(db, "alpha")
    return lambda source_type: Receiver(served, endpoint, source_type)


def test_failures_above_the_rate_are_429_but_a_known_receiver_is_served(strict, db) -> None:
    receiver = strict("github")
    assert receiver.send().status_code == 202
    wrong = receiver.served.url + "/webhooks/w/wrong"
    codes = [httpx2.post(wrong, content=b"{}").status_code for _ in range(5)]
    assert codes == [404, 404, 404, 429, 429]
    assert receiver.send().status_code == 202
    stranger = strict("gitea")
    assert_limited(stranger.send())
    expected = {
        ("github", "accepted", ""): 2,
        ("", "refused", "unknown"): 3,
        ("", "limited", ""): 3,
    }
    until(lambda: counts(db) == expected, "each is counted once")


@pytest.mark.parametrize(
    ("source_type", "wrong"),
    [
        ("github", {"x_hub_signature_256": "sha256=" + "0" * 64}),
        ("generic", {"authorization": "Bearer wrong"}),
    ],
)
def test_a_forged_delivery_is_a_failure_of_its_address(
    strict, db, source_type: str, wrong: dict[str, str]
) -> None:
    receiver = strict(source_type)
    codes = [receiver.send(**wrong).status_code for _ in range(5)]
    assert codes == [401, 401, 401, 429, 429]
    assert_limited(receiver.send(**wrong))
    expected = {(source_type, "refused", "mismatch"): 3, ("", "limited", ""): 3}
    until(lambda: counts(db) == expected, "each is counted once")


def test_an_open_receiver_that_is_told_two_ids_counts_that_as_a_failure(strict) -> None:
    receiver = strict("open")
    twice = [(b"x-delivery-id", b"a"), (b"x-delivery-id", b"b")]
    codes = [receiver.post(BODY, twice).status_code for _ in range(4)]
    assert codes == [401, 401, 401, 429]


def test_a_receiver_whose_endpoint_is_revoked_answers_503(receiver: Receiver, db) -> None:
    db.rows("select switchboard.revoke_endpoint(%s)", receiver.endpoint.id)
    answer = receiver.send()
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"]
    assert db.value("select count(*) from switchboard.events") == 0


def test_a_secret_that_cannot_be_opened_is_the_operators_fault(serve, db, caplog) -> None:
    first = serve()
    receiver = Receiver(first, vend(db, "alpha"))
    second = serve(secret_keys=(b"z" * 32,), failure_rate=0.01, failure_burst=1)
    receiver.url = receiver.url.replace(first.url, second.url)
    for _ in range(3):  # and no failure of the address
        answer = receiver.send()
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert int(answer.headers["retry-after"]) >= 1
    assert "SWITCHBOARD_SECRET_KEY" in caplog.text
    until(lambda: counts(db) == {("github", "refused", "not_opened"): 3}, "it is counted")


def test_one_of_two_secrets_that_cannot_be_opened_leaves_the_other_in_use(serve, db) -> None:
    """The key was changed between: what the old secret signed may be genuine, so 503, not 401."""
    first = serve()
    receiver = Receiver(first, vend(db, "alpha"))
    before = receiver.secret
    second = serve(secret_keys=(b"z" * 32,))
    session = second.session(receiver.endpoint)
    turned = session.call("rotate_webhook", webhook_id=receiver.id)
    receiver.url = receiver.url.replace(first.url, second.url)
    assert receiver.send(secret=turned["signing_secret"]).status_code == 202
    assert receiver.send(secret=before).status_code == 503
    receiver.url = receiver.url.replace(second.url, first.url)
    assert receiver.send(secret=before).status_code == 202
    query = "select array_agg(verification ->> 'secret' order by id) from switchboard.events"
    assert db.value(query) == ["current", "previous"]


# Also those that were let in a moment ago: they show their database last, but lock it first.
END_OTHERS = """
select pg_terminate_backend(pid) from (
    select pid from pg_stat_activity where datname = current_database()
    union
    select l.pid from pg_locks l, pg_database d
    where d.datname = current_database() and l.locktype = 'object'
        and l.classid = 'pg_database'::regclass and l.objid = d.oid
) others where pid <> pg_backend_pid()
"""


@contextlib.contextmanager
def away(db, cluster_url: str) -> Iterator[None]:
    """Nobody but the test gets into the database, for the time of the block."""
    name = sql.Identifier(conninfo_to_dict(db.dsn)["dbname"])
    allow = sql.SQL("alter database {} allow_connections {}")
    with psycopg.connect(cluster_url, autocommit=True) as admin:
        admin.execute(allow.format(name, sql.SQL("false")))
        db.rows(END_OTHERS)
        try:
            yield
        finally:
            admin.execute(allow.format(name, sql.SQL("true")))


def test_without_its_database_deliveries_are_503_and_nothing_is_lost_or_miscounted(
    serve, db, cluster_url: str, caplog
) -> None:
    served = serve(pool_wait=0.2, auth_cache=60.0)
    receiver = Receiver(served, vend(db, "alpha"))
    stranger = Receiver(served, receiver.endpoint, "gitea")
    served.wait_told(db)  # that they were made; after that, what is known of them is kept
    assert receiver.send(delivery="before").json()["created"] == 1
    with away(db, cluster_url):
        for one, delivery in ((receiver, "d-1"), (receiver, "d-1"), (stranger, "d-2")):
            answer = one.send(delivery=delivery)
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert int(answer.headers["retry-after"]) >= 1
        headers = receiver.headers(BODY)
        del headers["x-hub-signature-256"]
        assert [receiver.post(BODY, headers).status_code for _ in range(3)] == [401] * 3
        until(lambda: "not counted yet" in caplog.text, "a hand-over has failed")
    until(lambda: httpx2.get(served.url + "/readyz").status_code == 200, "it is back", 30)
    assert receiver.send(delivery="d-1").json()["created"] == 1
    assert stranger.send(delivery="d-2").json()["created"] == 1
    expected = {
        ("github", "accepted", ""): 2,
        ("gitea", "accepted", ""): 1,
        ("github", "refused", "missing"): 3,
    }
    until(lambda: counts(db) == expected, "what was refused meanwhile is counted")
