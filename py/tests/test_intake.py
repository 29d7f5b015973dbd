"""Deliveries over real HTTP: what is genuine, what becomes of it, and what is refused."""

import concurrent.futures
import hmac
import json
import uuid
from urllib.parse import quote, urlencode

import httpx2
import psycopg
import pytest
from conftest import logged
from intake_kit import (
    BODY,
    SIGNED,
    TRUST,
    TYPES,
    Receiver,
    counts,
    forge_bodies,
    proof,
    raw,
    vend,
)

SIGNATURE = {
    "github": "x-hub-signature-256",
    "gitea": "x-gitea-signature",
    "stripe": "stripe-signature",
    "slack": "x-slack-signature",
    "standard": "webhook-signature",
    "cairn": "x-cairn-signature",
    "generic": "authorization",
}


@pytest.fixture
def receiver(served, db) -> Receiver:
    return Receiver(served, vend(db, "alpha"))


def test_a_signed_delivery_becomes_one_todo(receiver: Receiver) -> None:
    answer = receiver.send(BODY)
    assert answer.status_code == 202
    body = answer.json()
    (todo,) = body.pop("todos")
    assert body == {"created": 1, "verified": True, "trust_mode": "signed"}
    assert (todo["endpoint_id"], todo["queue"]) == (receiver.endpoint.id, "inbox")
    (row,) = receiver.todos()
    assert (row["id"], row["payload"]) == (todo["id"], json.loads(BODY))
    assert (row["kind"], row["source"]) == ("pull_request", "github")
    assert (row["trust_mode"], row["verified"]) == ("signed", True)


@pytest.mark.parametrize("source_type", ["github", "gitea"])
def test_what_a_forge_sends_is_stored_as_it_is_and_named_for_people(
    served, db, source_type: str
) -> None:
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    for event, body in forge_bodies():
        answer = receiver.send(body, **{f"x_{source_type}_event": event})
        assert (answer.status_code, answer.json()["created"]) == (202, 1), event
        todo = receiver.todos()[0]
        document = json.loads(body)
        assert todo["payload"] == document
        assert todo["kind"] == event
        assert document["repository"]["full_name"] in todo["title"], event
        assert event.replace("_", " ") in todo["title"]
        assert db.value("select body from switchboard.events order by id desc limit 1") == body


def bad_signatures(source_type: str, good: str) -> dict[str, list[str | bytes]]:
    """What stands in the header of the signature instead of ``good``."""
    starts = {"github": 7, "gitea": 0, "slack": 3, "standard": 3, "cairn": 7, "generic": 7}
    start = starts.get(source_type, good.rfind("v1=") + 3)
    before, digits = good[:start], good[start:]
    cases: dict[str, list[str | bytes]] = {
        "missing": [],
        "empty": [""],
        "no digits": [before.strip()],
        "other prefix": [f"v9={digits}"],
        "truncated": [good[:-1]],
        "longer": [good + "0"],
        "non-ASCII": [before.encode() + "é".encode() * 32],
        "superscript": [before.encode() + b"\xb2" * len(digits)],
        "doubled": [good, good],
        "joined": [f"{good}, {good}"],
        "bad then good": [before + "0" * len(digits), good],
        "wrong": [before + "0" * len(digits)],
        "other digits": [before + digits.swapcase()],
    }
    if source_type == "generic":
        del cases["missing"]  # then the token in the URL counts
    if before:
        cases["no prefix"] = [digits]
        cases["spaces inside"] = [f"{before} {digits}"]
    return cases


@pytest.mark.parametrize("source_type", SIGNATURE)
def test_fault_40_every_bad_signature_is_the_same_401(served, db, source_type: str) -> None:
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    body = receiver.body("d-1")
    headers = receiver.headers(body, "d-1")
    header = SIGNATURE[source_type]
    bodies = set()
    cases = bad_signatures(source_type, headers[header])
    for case, values in cases.items():
        refused = receiver.post(body, raw(headers, **{header.replace("-", "_"): values}))
        assert refused.status_code == 401, case
        assert refused.headers["www-authenticate"] == 'Bearer error="invalid_token"'
        bodies.add(refused.content)
    assert bodies == {httpx2.post(f"{served.url}/mcp/nobody").content}, "as any 401"
    assert db.value("select count(*) from switchboard.events") == 0
    assert receiver.todos() == []
    assert receiver.send(body, "d-1").json()["created"] == 1, "no delivery id was used up"


@pytest.mark.parametrize("source_type", SIGNED)
def test_fault_40_other_schemes_and_the_empty_key_do_not_verify(
    served, db, source_type: str
) -> None:
    """The scheme is the receiver's, whichever headers are there; its secret is no password."""
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    body = receiver.body("d-1")
    own = receiver.headers(body, "d-1")
    at = int(own.get("webhook-timestamp", own.get("x-slack-request-timestamp", 0)) or 0)
    signed = proof(source_type, receiver.secret.encode(), body, "d-1", at)
    bare = {name: value for name, value in own.items() if name not in signed}
    for other in TYPES:
        if other != source_type:
            theirs = proof(other, receiver.secret.encode(), body, "d-1", at)
            assert receiver.post(body, {**bare, **theirs}).status_code == 401, other
    empty = proof(source_type, b"", body, "d-1", at)
    assert receiver.post(body, {**bare, **empty}).status_code == 401
    assert receiver.todos() == []


@pytest.mark.parametrize("source_type", SIGNED)
def test_fault_40_an_empty_secret_verifies_nothing(serve, db, source_type: str) -> None:
    """Nobody can enter one; if it got into the database, alone or beside another, it is no key."""
    from switchboard.secrets import Keyring

    served = serve(auth_cache=0.0)
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    empty = Keyring(served.settings.secret_keys).seal(b"")
    receiver.rotate()
    for column in ("sealed_secret", "previous_secret"):
        db.rows(f"update switchboard.endpoint_webhooks set {column} = %s", empty)
        for secret in ("", "whsec_"):
            assert receiver.send(secret=secret).status_code == 401, column
    assert receiver.send().status_code == 401
    assert db.value("select count(*) from switchboard.events") == 0


@pytest.mark.parametrize(
    ("source_type", "header"),
    [
        ("github", "x-github-delivery"),
        ("github", "x-github-event"),
        ("gitea", "x-gitea-delivery"),
        ("gitea", "x-gitea-event"),
        ("slack", "x-slack-request-timestamp"),
        ("standard", "webhook-id"),
        ("standard", "webhook-timestamp"),
        ("generic", "x-delivery-id"),
        ("open", "x-delivery-id"),
    ],
)
def test_fault_40_a_doubled_id_event_or_time_is_the_same_401(
    served, db, source_type: str, header: str
) -> None:
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    body = receiver.body("d-1")
    headers = receiver.headers(body, "d-1")
    name, value = header.replace("-", "_"), headers[header]
    for values in ([value, value], [value, "another"], ["another", value]):
        refused = receiver.post(body, raw(headers, **{name: values}))
        assert refused.status_code == 401, values
        assert refused.content == httpx2.post(f"{served.url}/mcp/nobody").content
    assert receiver.todos() == []
    assert receiver.post(body, headers).json()["created"] == 1


@pytest.mark.parametrize("source_type", TYPES)
def test_fault_41_the_same_delivery_twice_and_twenty_times_at_once(
    served, db, source_type: str
) -> None:
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    first, second = receiver.send(delivery="d-1"), receiver.send(delivery="d-1")
    assert (first.json()["created"], second.json()["created"]) == (1, 0)
    assert first.json()["todos"][0]["id"] == second.json()["todos"][0]["id"]
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        jobs = [pool.submit(receiver.send, delivery="d-2") for _ in range(20)]
        answers = [job.result() for job in jobs]
    assert {answer.status_code for answer in answers} == {202}
    assert sum(answer.json()["created"] for answer in answers) == 1
    assert len({answer.json()["todos"][0]["id"] for answer in answers}) == 1
    assert len(receiver.todos()) == 2
    verdicts = {verdict: n for (_, verdict, _), n in counts(db).items()}
    assert verdicts == {"accepted": 2, "duplicate": 20}


@pytest.mark.parametrize("source_type", TYPES)
def test_fault_41_another_body_under_the_same_id_is_the_same_live_todo(
    served, db, source_type: str
) -> None:
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    first = receiver.send(delivery="d-1").json()["todos"][0]["id"]
    other = json.dumps({**json.loads(receiver.body("d-1")), "other": 1}).encode()
    assert receiver.send(other, delivery="d-1").json()["todos"][0]["id"] == first
    todo = receiver.session.call("claim_next")["todo"]
    receiver.session.call("complete", id=first, lease_token=todo["lease_token"])
    again = receiver.send(delivery="d-1").json()
    assert again["created"] == 1
    assert again["todos"][0]["id"] != first


def test_fault_41_two_receivers_do_not_share_delivery_ids(served, db, receiver: Receiver) -> None:
    other = Receiver(served, receiver.endpoint)
    assert receiver.send(delivery="d-1").json()["created"] == 1
    assert other.send(delivery="d-1").json()["created"] == 1


@pytest.mark.parametrize("source_type", ["github", "gitea", "stripe", "slack", "generic", "open"])
def test_without_an_id_the_body_is_the_identity(served, db, source_type: str) -> None:
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    body = b'{"no": "id"}'
    headers = receiver.headers(body)
    for name in ("x-github-delivery", "x-gitea-delivery", "x-delivery-id"):
        if name in headers:
            empty = receiver.post(body, {**headers, name: ""})
            assert empty.status_code == 202
            del headers[name]
    assert receiver.post(body, headers).status_code == 202
    assert receiver.post(body, headers).json()["created"] == 0
    assert len(receiver.todos()) == 1
    assert receiver.post(body + b" ", {**receiver.headers(body + b" ")}).json()["created"] == 1


def test_an_id_of_any_length_and_spelling_is_one_id(receiver: Receiver) -> None:
    for delivery in ("x" * 257, "x" * 10_000, "é", "a\tb", "'; drop table todos; --", "%00"):
        headers = raw(receiver.headers(BODY), x_github_delivery=delivery)
        answers = [receiver.post(BODY, headers).json() for _ in range(2)]
        assert [answer["created"] for answer in answers] == [1, 0], delivery[:20]


ODD_BODIES = {
    "bom": b'\xef\xbb\xbf{"bom": true',
    "crlf": b'{"crlf": 1\r\n',
    "markup": b'{"html": "<>&"',
    "escaped and not": '{"é": "\\u00e9"'.encode(),
    "numbers": b'{"n": 1.0, "m": 1e2',
    "padded": b' {"padded": 1',
}


@pytest.mark.parametrize("source_type", SIGNED)
def test_fault_42_the_bytes_are_verified_not_what_they_mean(served, db, source_type: str) -> None:
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    for name, start in ODD_BODIES.items():
        # what the scheme wants to find stands behind the odd part
        rest = receiver.body(name).lstrip(b"{")
        body = start + b", " + rest + (b"\n\n" if name == "padded" else b"")
        assert receiver.send(body, name).json()["created"] == 1, name
        assert receiver.todos()[0]["payload"] == json.loads(body.decode("utf-8-sig"))
        assert db.value("select body from switchboard.events order by id desc limit 1") == body
        headers = receiver.headers(body, name)
        for changed in (body + b" ", body.strip(b"\xef\xbb\xbf \n") + b"\r", body[:-1]):
            assert receiver.post(changed, headers).status_code == 401, name


NOT_FOR_A_TODO = {
    "nul": b'{"a": "\\u0000"}',
    "surrogate": b'{"a": "\\ud800"}',
    "number": b"1e131000",
    "deep": b"[" * 10_000 + b"]" * 10_000,
    "text": b"not json",
    "empty": b"",
    "null": b"null",
    "binary": b"\xff\xfe\x00",
    "raw nul": b'{"a": "\x00"}',
    "large": b'"' + b"x" * 300_000 + b'"',
}


@pytest.mark.parametrize("source_type", [name for name in TYPES if name != "cairn"])
def test_fault_43_nothing_verified_is_refused_for_its_content(served, db, source_type: str) -> None:
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    for name, body in NOT_FOR_A_TODO.items():
        answer = receiver.send(body, name)
        assert (answer.status_code, answer.json()["created"]) == (202, 1), (name, answer.text)
        todo = receiver.todos()[0]
        payload = todo["payload"]
        assert payload["bytes"] == len(body)
        assert payload["content_type"] == "application/json"
        assert payload["reason"]
        event = receiver.session.call("read_event", id=payload["event_id"])
        assert event["bytes"] == len(body)
        assert (todo["trust_mode"], todo["verified"]) == (
            TRUST[source_type],
            source_type in SIGNED,
        )


def test_fault_43_cairn_takes_what_says_when_it_was_made(served, db) -> None:
    """Its age is in the body: what has none cannot be told from a replay."""
    receiver = Receiver(served, vend(db, "alpha"), "cairn")
    for name in ("nul", "surrogate", "large"):
        rest = receiver.body(name).lstrip(b"{")
        odd = {**NOT_FOR_A_TODO, "large": b'{"a": "' + b"x" * 300_000 + b'"}'}[name]
        body = odd[:-1] + b", " + rest
        assert receiver.send(body, name).json()["created"] == 1, name
    for body in NOT_FOR_A_TODO.values():
        assert receiver.send(body).status_code == 401
    assert counts(db)["cairn", "accepted", ""] == 3


def test_fault_43_form_encoded_bodies_are_verified_raw_then_decoded(receiver: Receiver) -> None:
    form = {"content_type": "application/x-www-form-urlencoded"}
    document = {"action": "opened", "title": "ä & ö", "plus": "a+b"}
    body = urlencode({"payload": json.dumps(document)}).encode()
    assert receiver.send(body, **form).status_code == 202
    charset = {"content_type": "Application/X-WWW-Form-Urlencoded; charset=utf-8"}
    assert receiver.send(body, **charset).status_code == 202
    headers = receiver.headers(body, **form)
    assert receiver.post(body.replace(b"+", b"%20"), headers).status_code == 401
    odd = b"payload=%ff%fe"
    assert receiver.send(odd, **form).status_code == 202
    twice = f"payload={quote('{}')}&payload={quote('{}')}".encode()
    assert receiver.send(twice, **form).status_code == 202
    payloads = [todo["payload"] for todo in receiver.todos()]
    assert payloads[2:] == [document, document]
    assert [payload["bytes"] for payload in payloads[:2]] == [len(twice), len(odd)]


MARKUP = '<img src=x onerror="alert(1)"></script></channel>\n]]>{{7*7}}'
MARKUP += ' \u202egnp.\u2066exe\x1b[31m & "q"'


@pytest.mark.parametrize("source_type", TYPES)
def test_fault_52_markup_stays_text_in_titles_payloads_and_answers(
    served, db, source_type: str
) -> None:
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    document = {**json.loads(receiver.body("d-1")), "title": MARKUP, "note": MARKUP}
    for inner in ("pull_request", "event"):
        if isinstance(document.get(inner), dict):
            document[inner] = {**document[inner], "title": MARKUP, "text": MARKUP}
    events = {"x_github_event": "<b>pull_request</b>", "x_gitea_event": "<b>pull_request</b>"}
    more = {name: value for name, value in events.items() if source_type in name}
    answer = receiver.send(json.dumps(document).encode(), delivery="d-1", **more)
    assert answer.json()["created"] == 1
    assert "<" not in answer.text
    assert answer.headers["content-type"] == "application/json"
    (todo,) = receiver.todos()
    assert todo["payload"] == document, "as it came"
    title = todo["title"]
    assert '<img src=x onerror="alert(1)"></script></channel> ]]>{{7*7}}' in title, "text is text"
    assert not [character for character in title if character in "\n\r\x1b\u202e\u2066"]
    assert len(title) <= 500
    if more:
        assert todo["kind"] == "<b>pull_request</b>"


def test_an_unknown_address_is_404_and_a_get_405(receiver: Receiver) -> None:
    body = BODY
    for url in (receiver.url[:-3] + "abc", receiver.url + "x", receiver.url[:-1]):
        unknown = httpx2.post(url, content=body, headers=receiver.headers(body))
        assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    got = httpx2.get(receiver.url)
    assert (got.status_code, got.headers["allow"]) == (405, "POST")
    assert got.json()["code"] == "invalid_argument"


def test_a_conflict_between_transactions_is_tried_again(receiver: Receiver, monkeypatch) -> None:
    execute, tries = psycopg.AsyncConnection.execute, []

    async def unlucky(self, query, params=(), **options):
        if "receive_delivery" in str(query) and len(tries) < 2:
            tries.append(1)
            raise psycopg.errors.DeadlockDetected("details of others")
        return await execute(self, query, params, **options)

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", unlucky)
    assert receiver.send(BODY).json()["created"] == 1
    assert len(tries) == 2


def test_there_is_no_2xx_before_the_commit(receiver: Receiver, db) -> None:
    """What fails at the very end was not accepted."""
    db.rows(
        "create function switchboard.no_commit() returns trigger language plpgsql as"
        " $$ begin raise serialization_failure; end $$"
    )
    db.rows(
        "create constraint trigger no_commit after insert on switchboard.events"
        " deferrable initially deferred for each row execute function switchboard.no_commit()"
    )
    answer = receiver.send(BODY, "d-1")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    assert db.value("select count(*) from switchboard.todos") == 0
    db.rows("drop trigger no_commit on switchboard.events")
    assert receiver.send(BODY, "d-1").json()["created"] == 1


@pytest.mark.parametrize("source_type", TYPES)
def test_a_delivery_is_one_log_line_and_no_secret_is_in_any(
    served, db, caplog, source_type: str
) -> None:
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    caplog.set_level("INFO")
    body = receiver.body("d-1")
    good = receiver.headers(body, "d-1")
    header = SIGNATURE.get(source_type)
    receiver.post(body, good)
    if header:
        receiver.post(body, {**good, header: good[header][:-2] + "00"})
        receiver.post(body, {**good, header: "private-signature"})
    lines = logged(caplog, "webhook.delivery", 3 if header else 1)
    outcomes = [(line["outcome"], line.get("reason")) for line in lines]
    assert outcomes[0] == ("ok", None)
    if header:
        code = "unauthenticated"
        assert outcomes[1] in [(code, "mismatch"), (code, "malformed")]
        assert outcomes[2] == (code, "malformed")
    for line in lines:
        assert (line["webhook_id"], line["endpoint_id"]) == (receiver.id, receiver.endpoint.id)
        assert (line["source_type"], line["bytes"]) == (source_type, len(body))
        assert line["ms"] > 0
    ours = [record for record in caplog.records if record.name.startswith("switchboard")]
    written = " ".join(f"{record.getMessage()} {record.__dict__}" for record in ours)
    digits = [good[header], good[header][-30:]] if header else []
    secrets = [receiver.secret, receiver.token, "private-signature", *digits]
    assert [secret for secret in secrets if secret and secret in written] == []


def test_an_answer_tells_nothing_but_what_was_made(receiver: Receiver) -> None:
    answer = receiver.send(BODY, delivery=str(uuid.uuid4()), x_marker="from the request")
    for secret in (receiver.secret, receiver.token, "from the request", "Fix"):
        assert secret not in answer.text
    signature = hmac.new(receiver.secret.encode(), BODY, "sha256").hexdigest()
    refused = receiver.post(BODY + b" ", receiver.headers(BODY))
    assert signature not in refused.text
