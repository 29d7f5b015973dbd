"""Signed GitHub deliveries over real HTTP."""

import concurrent.futures
import hashlib
import hmac
import json
import socket
import uuid
from urllib.parse import quote, urlencode

import httpx2
import psycopg
import pytest

BODY = b'{"action": "opened", "number": 7, "pull_request": {"title": "Fix"}}'


class Receiver:
    """A GitHub webhook of an endpoint, and a sender that knows its secret."""

    def __init__(self, served, endpoint) -> None:
        session = served.session(endpoint)
        made = session.call("create_webhook", source_type="github", target_queue="inbox")
        self.session, self.endpoint, self.id = session, endpoint, made["webhook_id"]
        self.url, self.secret = made["ingest_url"], made["signing_secret"]

    def sign(self, body: bytes, secret: bytes | None = None) -> str:
        key = self.secret.encode() if secret is None else secret
        return "sha256=" + hmac.new(key, body, hashlib.sha256).hexdigest()

    def headers(self, body: bytes, delivery: str | None = None, **more: str) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "x-github-event": "pull_request",
            "x-github-delivery": delivery or str(uuid.uuid4()),
            "x-hub-signature-256": self.sign(body),
        }
        return {**headers, **more}

    def send(self, body: bytes = BODY, delivery: str | None = None, **more: str) -> httpx2.Response:
        headers = self.headers(body, delivery, **more)
        return httpx2.post(self.url, content=body, headers=headers)

    def todos(self) -> list[dict]:
        return self.session.call("list_todos", include_payload=True)["todos"]


@pytest.fixture
def receiver(served, db) -> Receiver:
    return Receiver(served, endpoint_with_webhooks(db, "alpha"))


def endpoint_with_webhooks(db, slug: str):
    verbs = ["list_todos", "get_todo", "read_event", "claim_next", "complete", "create_webhook"]
    return db.vend(slug, verbs=verbs, webhook_max=3)


def test_a_signed_delivery_becomes_one_todo(receiver: Receiver) -> None:
    answer = receiver.send()
    assert answer.status_code == 202
    body = answer.json()
    (todo,) = body.pop("todos")
    assert body == {"created": 1, "verified": True, "trust_mode": "signed"}
    assert (todo["endpoint_id"], todo["queue"]) == (receiver.endpoint.id, "inbox")
    (row,) = receiver.todos()
    assert (row["id"], row["payload"]) == (todo["id"], json.loads(BODY))
    assert (row["kind"], row["source"]) == ("pull_request", "github")
    assert (row["trust_mode"], row["verified"]) == ("signed", True)


def bad_signatures(good: str) -> dict[str, list[str]]:
    """What stands in x-hub-signature-256 instead of ``good``."""
    return {
        "missing": [],
        "empty": [""],
        "no prefix": [good[7:]],
        "other prefix": ["sha1=" + good[7:]],
        "truncated": [good[:-1]],
        "longer": [good + "0"],
        "upper-case": [good[:7] + good[7:].upper()],
        "upper-case prefix": ["SHA256=" + good[7:]],
        "not hex": ["sha256=" + "g" * 64],
        "non-ASCII": ["sha256=" + "é" * 64],
        "full-width digits": ["sha256=" + "\xb2" * 64],
        "doubled": [good, good],
        "joined": [f"{good}, {good}"],
        "bad then good": ["sha256=" + "0" * 64, good],
        "wrong": ["sha256=" + "0" * 64],
        "spaces inside": ["sha256= " + good[7:]],
    }


def test_fault_40_every_bad_signature_is_the_same_401(receiver: Receiver) -> None:
    headers = receiver.headers(BODY, "d-1")
    del headers["x-hub-signature-256"]
    bodies = set()
    for case, values in bad_signatures(receiver.sign(BODY)).items():
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        pairs += [(b"x-hub-signature-256", value.encode("latin-1")) for value in values]
        refused = httpx2.post(receiver.url, content=BODY, headers=pairs)
        assert refused.status_code == 401, case
        assert refused.headers["www-authenticate"] == 'Bearer error="invalid_token"'
        bodies.add(refused.content)
    assert len(bodies) == 1
    assert receiver.todos() == []
    assert receiver.send(delivery="d-1").json()["created"] == 1, "no delivery id was used up"


def test_fault_40_other_schemes_and_the_empty_key_do_not_verify(receiver: Receiver) -> None:
    hexdigest = receiver.sign(BODY)[7:]
    for headers in (
        {"x-hub-signature-256": receiver.sign(BODY, b"")},
        {"x-gitea-signature": hexdigest},
        {"x-hub-signature": receiver.sign(BODY)},
        {"authorization": f"Bearer {receiver.secret}"},
        {"stripe-signature": f"t=1,v1={hexdigest}"},
    ):
        assert httpx2.post(receiver.url, content=BODY, headers=headers).status_code == 401
    assert receiver.todos() == []


def test_fault_40_an_empty_secret_verifies_nothing() -> None:
    from starlette.datastructures import Headers

    from switchboard.senders import SENDERS

    signature = "sha256=" + hmac.new(b"", BODY, hashlib.sha256).hexdigest()
    headers = Headers({"x-hub-signature-256": signature})
    assert not SENDERS["github"].verify(headers, BODY, [b""])
    assert not SENDERS["github"].verify(headers, BODY, [])


@pytest.mark.parametrize("name", ["x-github-delivery", "x-github-event"])
def test_fault_40_a_doubled_id_or_event_is_the_same_401(receiver: Receiver, name: str) -> None:
    headers = [*receiver.headers(BODY).items(), (name, "another")]
    assert httpx2.post(receiver.url, content=BODY, headers=headers).status_code == 401
    assert receiver.todos() == []


def test_two_secrets_verify_during_a_rotation(receiver: Receiver, served, db) -> None:
    from switchboard.secrets import Keyring

    sealed = Keyring(served.settings.secret_keys).seal(b"the new one")
    db.rows(
        "update switchboard.endpoint_webhooks set sealed_secrets = sealed_secrets || %s::bytea",
        sealed,
    )
    new = {"x-hub-signature-256": receiver.sign(BODY, b"the new one")}
    assert receiver.send().status_code == 202
    assert receiver.send(**new).status_code == 202


def test_a_secret_that_cannot_be_opened_is_the_operators_fault(serve, db, caplog) -> None:
    first = serve()
    receiver = Receiver(first, endpoint_with_webhooks(db, "alpha"))
    second = serve(secret_keys=(b"z" * 32,))
    receiver.url = receiver.url.replace(first.url, second.url)
    answer = receiver.send()
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"]
    assert "SWITCHBOARD_SECRET_KEY" in caplog.text


def test_fault_41_the_same_delivery_twice_and_twenty_times_at_once(receiver: Receiver) -> None:
    first, second = receiver.send(delivery="d-1"), receiver.send(delivery="d-1")
    assert (first.json()["created"], second.json()["created"]) == (1, 0)
    assert first.json()["todos"][0]["id"] == second.json()["todos"][0]["id"]
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = [
            job.result() for job in [pool.submit(receiver.send, delivery="d-2") for _ in range(20)]
        ]
    assert {answer.status_code for answer in answers} == {202}
    assert sum(answer.json()["created"] for answer in answers) == 1
    assert len({answer.json()["todos"][0]["id"] for answer in answers}) == 1
    assert len(receiver.todos()) == 2


def test_fault_41_another_body_under_the_same_id_is_the_same_live_todo(receiver: Receiver) -> None:
    first = receiver.send(delivery="d-1").json()["todos"][0]["id"]
    assert receiver.send(b'{"other": 1}', delivery="d-1").json()["todos"][0]["id"] == first
    todo = receiver.session.call("claim_next")["todo"]
    receiver.session.call("complete", id=first, lease_token=todo["lease_token"])
    again = receiver.send(delivery="d-1").json()
    assert again["created"] == 1
    assert again["todos"][0]["id"] != first


def test_fault_41_two_receivers_do_not_share_delivery_ids(served, db, receiver: Receiver) -> None:
    other = Receiver(served, receiver.endpoint)
    assert receiver.send(delivery="d-1").json()["created"] == 1
    assert other.send(delivery="d-1").json()["created"] == 1


def test_without_an_id_the_body_is_the_identity(receiver: Receiver) -> None:
    headers = receiver.headers(BODY)
    for value in (None, ""):
        del headers["x-github-delivery"]
        if value is not None:
            headers["x-github-delivery"] = value
        answer = httpx2.post(receiver.url, content=BODY, headers=headers)
        headers.setdefault("x-github-delivery", "")
        assert answer.status_code == 202
    assert len(receiver.todos()) == 1
    assert receiver.send(BODY + b" ").json()["created"] == 1


@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"bom": true}',
        b'{"crlf": 1}\r\n',
        b'{"html": "<>&"}',
        '{"é": "\\u00e9"}'.encode(),
        b'{"n": 1.0, "m": 1e2}',
        b' {"padded": 1}\n\n',
    ],
)
def test_fault_42_the_bytes_are_verified_not_what_they_mean(
    receiver: Receiver, body: bytes
) -> None:
    assert receiver.send(body).json()["created"] == 1
    (todo,) = receiver.todos()
    assert todo["payload"] == json.loads(body.decode("utf-8-sig"))
    assert (
        httpx2.post(receiver.url, content=body + b" ", headers=receiver.headers(body)).status_code
        == 401
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "\\u0000"}',
        b'{"a": "\\ud800"}',
        b"1e131000",
        b"[" * 10_000 + b"]" * 10_000,
        b"not json",
        b"",
        b"null",
        b"\xff\xfe\x00",
        b'{"a": "\x00"}',
        b'"' + b"x" * 300_000 + b'"',
    ],
    ids=[
        "nul",
        "surrogate",
        "number",
        "deep",
        "text",
        "empty",
        "null",
        "binary",
        "raw nul",
        "large",
    ],
)
def test_fault_43_nothing_verified_is_refused_for_its_content(
    receiver: Receiver, body: bytes
) -> None:
    answer = receiver.send(body)
    assert answer.status_code == 202, answer.text
    (todo,) = receiver.todos()
    payload = todo["payload"]
    assert payload["bytes"] == len(body)
    assert payload["content_type"] == "application/json"
    assert payload["reason"]
    event = receiver.session.call("read_event", id=payload["event_id"])
    assert event["bytes"] == len(body)


def test_fault_43_form_encoded_bodies_are_verified_raw_then_decoded(receiver: Receiver) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    document = {"action": "opened", "title": "ä & ö", "plus": "a+b"}
    body = urlencode({"payload": json.dumps(document)}).encode()
    assert receiver.send(body, **form).status_code == 202
    odd = b"payload=%ff%fe"
    assert receiver.send(odd, **form).status_code == 202
    twice = f"payload={quote('{}')}&payload={quote('{}')}".encode()
    assert receiver.send(twice, **form).status_code == 202
    payloads = [todo["payload"] for todo in receiver.todos()]
    assert payloads[-1] == document
    assert [payload["bytes"] for payload in payloads[:2]] == [len(twice), len(odd)]


def test_fault_43_a_body_of_five_mebibytes_is_taken_and_one_byte_more_is_not(
    receiver: Receiver,
) -> None:
    limit = 5 * 1024 * 1024
    body = b'"' + b"x" * (limit - 2) + b'"'
    assert receiver.send(body).status_code == 202
    refused = receiver.send(body + b" ")
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    assert len(receiver.todos()) == 1


def test_fault_43_the_refusal_is_seen_by_a_client_that_sends_all_before_it_reads(
    receiver: Receiver,
) -> None:
    host, port = receiver.url.split("/")[2].split(":")
    size = 5 * 1024 * 1024 + 1
    head = f"POST {receiver.url.split(port)[1]} HTTP/1.1\r\nhost: {host}:{port}\r\n"
    for length in (f"content-length: {size}", "transfer-encoding: chunked"):
        body = b"x" * size
        if "chunked" in length:
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (size, body)
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(f"{head}{length}\r\n\r\n".encode() + body)
            answer = b""
            while part := connection.recv(65536):
                answer += part
        assert b" 413 " in answer
        assert b'"code": "too_large"' in answer


def test_fault_44_six_mebibytes_without_a_length_are_refused_while_streaming(
    receiver: Receiver,
) -> None:
    """The answer comes although the body never ends."""
    host, port = receiver.url.split("/")[2].split(":")
    head = f"POST {receiver.url.split(port)[1]} HTTP/1.1\r\nhost: {host}:{port}\r\n"
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        for _ in range(82):
            connection.sendall(chunk)
        assert b" 413 " in connection.recv(4096)
    assert receiver.todos() == []


def test_an_unknown_address_is_404_and_a_get_405(receiver: Receiver) -> None:
    unknown = httpx2.post(receiver.url[:-3] + "abc", content=BODY, headers=receiver.headers(BODY))
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    got = httpx2.get(receiver.url)
    assert (got.status_code, got.headers["allow"]) == (405, "POST")
    assert got.json()["code"] == "invalid_argument"


def test_githubs_ping_is_answered_and_makes_no_todo(receiver: Receiver) -> None:
    answer = receiver.send(b'{"zen": "x"}', **{"x-github-event": "ping"})
    assert answer.status_code == 202
    assert answer.json() == {"todos": [], "created": 0, "verified": True, "trust_mode": "signed"}
    assert receiver.todos() == []
    forged = {"x-github-event": "ping", "x-hub-signature-256": "sha256=" + "0" * 64}
    assert receiver.send(b"{}", **forged).status_code == 401


def test_a_receiver_whose_endpoint_is_revoked_answers_503(receiver: Receiver, db) -> None:
    db.rows("select switchboard.revoke_endpoint(%s)", receiver.endpoint.id)
    answer = receiver.send()
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"]
    assert db.value("select count(*) from switchboard.events") == 0


def test_stored_headers_hold_no_secret(receiver: Receiver, db) -> None:
    token = receiver.url.rpartition("/")[2]
    more = {
        "authorization": "Bearer s3cret",
        "cookie": "session=s3cret",
        "x-api-key": "s3cret",
        "x-forwarded-access-token": "s3cret",
        "x-original-uri": f"/webhooks/w/{token}",
        "user-agent": "GitHub-Hookshot/1",
    }
    assert receiver.send(**more).status_code == 202
    headers = db.value("select headers from switchboard.events")
    stored = json.dumps(headers)
    for secret in ("s3cret", token, receiver.sign(BODY)):
        assert secret not in stored
    assert headers["user-agent"] == "GitHub-Hookshot/1"
    assert headers["x-github-event"] == "pull_request"


def test_deliveries_above_the_rate_are_429(serve, db) -> None:
    receiver = Receiver(
        serve(webhook_rate=0.01, webhook_burst=2), endpoint_with_webhooks(db, "alpha")
    )
    bad = {"x-hub-signature-256": "sha256=" + "0" * 64}
    assert [receiver.send(**bad).status_code for _ in range(3)] == [401] * 3
    codes = [receiver.send().status_code for _ in range(3)]
    assert codes == [202, 202, 429], "only verified deliveries count"
    assert receiver.send().headers["retry-after"]


def test_failures_above_the_rate_are_429_but_a_known_receiver_is_served(serve, db) -> None:
    served = serve(failure_rate=0.01, failure_burst=3)
    receiver = Receiver(served, endpoint_with_webhooks(db, "alpha"))
    assert receiver.send().status_code == 202
    wrong = served.url + "/webhooks/w/wrong"
    codes = [httpx2.post(wrong, content=b"{}").status_code for _ in range(5)]
    assert codes == [404, 404, 404, 429, 429]
    assert receiver.send().status_code == 202


def test_a_conflict_between_transactions_is_tried_again(receiver: Receiver, monkeypatch) -> None:
    execute, tries = psycopg.AsyncConnection.execute, []

    async def unlucky(self, query, params=(), **options):
        if "receive_delivery" in str(query) and len(tries) < 2:
            tries.append(1)
            raise psycopg.errors.DeadlockDetected("details of others")
        return await execute(self, query, params, **options)

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", unlucky)
    assert receiver.send().json()["created"] == 1
    assert len(tries) == 2


def test_a_delivery_is_one_log_line_and_the_token_is_in_none(receiver: Receiver, caplog) -> None:
    caplog.set_level("INFO")
    receiver.send()
    receiver.send(**{"x-hub-signature-256": "sha256=" + "0" * 64})
    lines = [r.fields for r in caplog.records if r.getMessage() == "webhook.delivery"]
    assert [line["outcome"] for line in lines] == ["ok", "unauthenticated"]
    assert {line["webhook_id"] for line in lines} == {receiver.id}
    assert {line["bytes"] for line in lines} == {len(BODY)}
    ours = [record for record in caplog.records if record.name.startswith("switchboard")]
    written = " ".join(f"{record.getMessage()} {record.__dict__}" for record in ours)
    for secret in (receiver.secret, receiver.url.rpartition("/")[2], receiver.sign(BODY)):
        assert secret not in written
