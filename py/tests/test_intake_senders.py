"""Every source type end to end: made by an agent, sent to, rotated, fanned out."""

import base64
import concurrent.futures
import json
import time

import httpx2
import pytest
from intake_kit import (
    FORGE,
    REAL,
    SIGNED,
    TRUST,
    TYPES,
    WEBHOOK_VERBS,
    Receiver,
    counts,
    raw,
    set_clock,
    vend,
)

TIMED = ("stripe", "slack", "standard", "cairn")
DAY = 86_400


@pytest.fixture
def uncached(serve):
    """A gateway that asks the database about each receiver, so that its clock counts at once."""
    return serve(auth_cache=0.0)


@pytest.mark.parametrize("source_type", TYPES)
def test_a_receiver_of_every_type_takes_what_its_sender_sends(served, db, source_type: str) -> None:
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    assert receiver.made["source_type"] == source_type
    assert receiver.made["trust_mode"] == TRUST[source_type]
    answer = receiver.send(delivery="d-1")
    assert answer.status_code == 202, answer.text
    body = answer.json()
    (todo,) = body.pop("todos")
    verified = source_type in SIGNED
    assert body == {"created": 1, "verified": verified, "trust_mode": TRUST[source_type]}
    (row,) = receiver.todos()
    assert row["id"] == todo["id"]
    assert (row["source"], row["trust_mode"]) == (source_type, TRUST[source_type])
    kinds = {"stripe": "invoice.paid", "slack": "app_mention", "standard": "contact.created"}
    kinds |= {"cairn": "stone.placed", "generic": "door.opened", "open": "door.opened"}
    assert row["kind"] == kinds.get(source_type, "pull_request")
    assert db.value("select idempotency_key from switchboard.todos") == f"{receiver.id}:d-1"
    event = db.row("select * from switchboard.events")
    assert event["verification"]["scheme"] == source_type
    assert event["verification"].get("secret") == ("current" if verified else None)
    assert ("signed_at" in event["verification"]) == (source_type in TIMED)
    presented = {"generic": "bearer"}.get(source_type)
    assert event["verification"].get("presented") == presented
    assert counts(db) == {(source_type, "accepted", ""): 1}


@pytest.mark.parametrize("source_type", SIGNED)
def test_a_secret_that_the_sender_gives_is_taken(served, db, source_type: str) -> None:
    given = "whsec_" + base64.b64encode(b"k" * 24).decode()
    for secret in (given, "a text of the sender's, é"):
        receiver = Receiver(served, vend(db, f"e{len(secret)}"), source_type, signing_secret=secret)
        assert receiver.secret == secret
        assert receiver.send().json()["created"] == 1


def test_of_whsec_the_base64_is_the_key_for_standard_and_the_text_for_all_others(
    served, db
) -> None:
    endpoint = vend(db, "alpha")
    inner = "b" * 32
    secret = "whsec_" + base64.b64encode(inner.encode()).decode()
    for source_type in SIGNED:
        receiver = Receiver(served, endpoint, source_type, signing_secret=secret)
        as_inner = receiver.send(secret=inner)
        assert as_inner.status_code == (202 if source_type == "standard" else 401), source_type
        assert receiver.send().status_code == 202


@pytest.mark.parametrize("source_type", SIGNED)
def test_after_a_rotation_both_secrets_verify_for_a_day(uncached, db, source_type: str) -> None:
    receiver = Receiver(uncached, vend(db, "alpha"), source_type)
    first = receiver.secret
    turned = receiver.rotate()
    assert turned["signing_secret"] not in ("$secret", first)
    assert "ingest_url" not in turned
    for secret, which in ((first, "previous"), (turned["signing_secret"], "current")):
        assert receiver.send(secret=secret).json()["created"] == 1
        query = "select verification ->> 'secret' from switchboard.events order by id desc limit 1"
        assert db.value(query) == which
    again = receiver.rotate()
    assert receiver.send(secret=first).status_code == 401, "two, not three"
    assert receiver.send(secret=turned["signing_secret"]).status_code == 202
    start = time.time()
    for at, status in ((start + DAY - 60, 202), (start + DAY + 60, 401)):
        set_clock(db, at)
        assert receiver.send(secret=turned["signing_secret"], at=at).status_code == status
        assert receiver.send(secret=again["signing_secret"], at=at).status_code == 202
    set_clock(db, None)


@pytest.mark.parametrize("source_type", ["generic", "open"])
def test_after_a_rotation_both_addresses_serve_for_a_day(uncached, db, source_type: str) -> None:
    receiver = Receiver(uncached, vend(db, "alpha"), source_type)
    first, old_secret = receiver.url, receiver.secret
    turned = receiver.rotate()
    assert turned["ingest_url"] != first
    if source_type == "generic":
        assert turned["signing_secret"] == turned["ingest_url"].rpartition("/")[2]
    else:
        assert turned["signing_secret"] is None
    secrets = {first: old_secret, turned["ingest_url"]: turned["signing_secret"] or ""}
    for url, secret in secrets.items():
        receiver.url = url
        assert receiver.send(secret=secret).json()["created"] == 1
        if source_type == "generic":
            other = next(value for value in secrets.values() if value != secret)
            assert receiver.send(secret=other).status_code == 401, "the token of that address"
    start = time.time()
    for at, status in ((start + DAY - 60, 202), (start + DAY + 60, 404)):
        set_clock(db, at)
        receiver.url = first
        assert receiver.send(secret=old_secret, at=at).status_code == status
        receiver.url = turned["ingest_url"]
        assert receiver.send(secret=turned["signing_secret"] or "", at=at).status_code == 202
    set_clock(db, None)


@pytest.mark.parametrize("source_type", TIMED)
def test_five_minutes_are_allowed_both_ways_by_the_clock_of_the_database(
    served, db, source_type: str
) -> None:
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    now = int(time.time()) + 10 * DAY  # not the clock of this machine
    set_clock(db, now)
    for age in (0, 300, -300):
        assert receiver.send(at=now - age).json()["created"] == 1, age
    for age in (301, -301, 10 * DAY):
        assert receiver.send(at=now - age).status_code == 401, age
    set_clock(db, None)


def test_a_generic_sender_shows_the_token_as_bearer_or_only_in_the_url(served, db) -> None:
    receiver = Receiver(served, vend(db, "alpha"), "generic")
    assert receiver.secret == receiver.token
    body = receiver.body("d-1")
    headers = receiver.headers(body, "d-1")
    assert receiver.post(body, {**headers, "authorization": f"bearer {receiver.token}"}).is_success
    del headers["authorization"]
    assert receiver.post(body, headers).json()["created"] == 0, "the same delivery"
    assert httpx2.post(receiver.url).json()["created"] == 1, "who can do nothing but POST"
    rows = db.rows("select verification ->> 'presented' as how from switchboard.events order by id")
    assert [row["how"] for row in rows] == ["bearer", "url"]
    for wrong in ("Bearer wrong", f"Basic {receiver.token}", receiver.token, "Bearer", ""):
        refused = receiver.post(body, {**headers, "authorization": wrong})
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated"), wrong


def test_open_is_refused_to_a_grant_that_does_not_name_it(served, db) -> None:
    options = {"verbs": WEBHOOK_VERBS, "webhook_max": 3}
    session = served.session(db.vend("alpha", **options))
    hook = {"source_type": "open", "target_queue": "inbox"}
    error = session.call("create_webhook", **hook)["error"]
    assert (error["code"], error["field"]) == ("forbidden", "source_type")
    github = served.session(db.vend("beta", **options, webhook_source_types=["github"]))
    for source_type in TYPES[1:]:
        error = github.call("create_webhook", source_type=source_type, target_queue="inbox")
        assert error["error"]["code"] == "forbidden", source_type
    assert session.call("list_webhooks")["webhooks"] == []


def test_an_open_receiver_takes_whatever_comes(served, db) -> None:
    receiver = Receiver(served, vend(db, "alpha"), "open")
    assert receiver.made["signing_secret"] is None
    for headers in ({}, {"authorization": "Bearer whatever"}, {"x-hub-signature-256": "x"}):
        answer = receiver.post(json.dumps(sorted(headers)).encode(), headers)
        assert answer.json()["created"] == 1
        assert (answer.json()["verified"], answer.json()["trust_mode"]) == (False, "open")


def test_slacks_challenge_is_answered_once_it_is_verified(served, db) -> None:
    receiver = Receiver(served, vend(db, "alpha"), "slack")
    challenge = {"type": "url_verification", "challenge": "3eZbrw1aB<>", "token": "old"}
    body = json.dumps(challenge).encode()
    answer = receiver.send(body)
    assert (answer.status_code, answer.json()) == (200, {"challenge": "3eZbrw1aB<>"})
    assert answer.headers["content-type"] == "application/json"
    forged = receiver.send(body, secret="whsec_wrong")
    assert forged.status_code == 401
    assert "3eZ" not in forged.text
    assert receiver.todos() == []
    assert db.value("select count(*) from switchboard.events") == 0
    assert counts(db)["slack", "silent", ""] == 1


def test_slacks_form_encoded_interactions_are_read_too(served, db) -> None:
    receiver = Receiver(served, vend(db, "alpha"), "slack")
    body = b"payload=%7B%22type%22%3A%22block_actions%22%7D"
    answer = receiver.send(body, content_type="application/x-www-form-urlencoded")
    assert answer.json()["created"] == 1
    (todo,) = receiver.todos()
    assert (todo["kind"], todo["payload"]) == ("block_actions", {"type": "block_actions"})


PINGS = [b'{"zen": "Keep it simple.", "hook_id": 1}']
PINGS += [path.read_bytes() for path in REAL.glob("github.ping.json")]


@pytest.mark.parametrize("body", PINGS, ids=["ours", "real"][: len(PINGS)])
def test_githubs_ping_is_answered_and_makes_no_todo(served, db, body: bytes) -> None:
    receiver = Receiver(served, vend(db, "alpha"))
    answer = receiver.send(body, x_github_event="ping")
    assert answer.status_code == 202
    assert answer.json() == {"todos": [], "created": 0, "verified": True, "trust_mode": "signed"}
    assert receiver.todos() == []
    forged = receiver.send(body, x_github_event="ping", x_hub_signature_256="sha256=" + "0" * 64)
    assert forged.status_code == 401
    gitea = Receiver(served, receiver.endpoint, "gitea")
    assert gitea.send(body, x_gitea_event="ping").json()["created"] == 1, "a ping is GitHub's"


def routed(served, db, source_type: str = "github") -> tuple[Receiver, list]:
    """A receiver of alpha with routes to three more endpoints."""
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    others = [vend(db, slug, ("inbox", "more")) for slug in ("beta", "gamma", "delta")]
    for endpoint in others:
        added = receiver.session.call(
            "add_webhook_route", webhook_id=receiver.id, target_endpoint_id=endpoint.slug
        )
        assert added["created"] is True
    return receiver, [receiver.endpoint, *others]


@pytest.mark.parametrize("source_type", ["github", "standard", "open"])
def test_twenty_parallel_deliveries_over_three_routes_are_four_todos(
    served, db, source_type: str
) -> None:
    receiver, targets = routed(served, db, source_type)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        jobs = [pool.submit(receiver.send, delivery="d-1") for _ in range(20)]
        answers = [job.result() for job in jobs]
    assert {answer.status_code for answer in answers} == {202}
    bodies = [answer.json() for answer in answers]
    ids = {tuple(todo["id"] for todo in body["todos"]) for body in bodies}
    assert len(ids) == 1, "all answers agree"
    assert len(set(*ids)) == 4
    assert sorted(body["created"] for body in bodies) == [0] * 19 + [4]
    made = db.rows("select endpoint_id::text, count(*) as n from switchboard.todos group by 1")
    assert {row["endpoint_id"]: row["n"] for row in made} == {t.id: 1 for t in targets}
    assert db.value("select count(*) from switchboard.events") == 4
    assert db.value("select count(distinct id) from switchboard.events") == 1
    verdicts = {verdict: n for (_, verdict, _), n in counts(db).items()}
    assert verdicts == {"accepted": 1, "duplicate": 19}


def test_each_target_has_its_own_todo_and_a_repeat_fills_only_what_is_done(served, db) -> None:
    receiver, targets = routed(served, db)
    receiver.send(delivery="d-1")
    beta = served.session(targets[1])
    (todo,) = beta.call("list_todos", include_payload=True)["todos"]
    assert todo["payload"] == FORGE["pull_request"]
    event = beta.call("read_event", id=beta.call("get_todo", id=todo["id"])["todo"]["event_id"])
    assert json.loads(event["text"]) == FORGE["pull_request"]
    taken = beta.call("claim_next")["todo"]
    beta.call("complete", id=taken["id"], lease_token=taken["lease_token"])
    again = receiver.send(delivery="d-1").json()
    assert again["created"] == 1
    made = {todo["endpoint_id"]: todo["created"] for todo in again["todos"]}
    assert made == {target.id: target is targets[1] for target in targets}


def test_routes_go_on_when_the_owner_is_revoked_and_503_when_nobody_is_left(served, db) -> None:
    receiver, targets = routed(served, db)
    removed = receiver.session.call(
        "remove_webhook_route", webhook_id=receiver.id, target_endpoint_id=targets[3].id
    )
    assert removed["removed"] is True
    assert len(receiver.session.call("list_webhook_routes", webhook_id=receiver.id)["routes"]) == 3
    db.rows("select switchboard.revoke_endpoint(%s)", targets[0].id)
    answer = receiver.send().json()
    assert {todo["endpoint_id"] for todo in answer["todos"]} == {targets[1].id, targets[2].id}
    for target in targets[1:3]:
        db.rows("select switchboard.revoke_endpoint(%s)", target.id)
    before = db.value("select count(*) from switchboard.events")
    answer = receiver.send()
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    assert db.value("select count(*) from switchboard.events") == before
    assert counts(db)["github", "no_target", ""] == 1


def test_a_route_to_anybody_else_is_one_and_the_same_forbidden(served, db) -> None:
    receiver = Receiver(served, vend(db, "alpha"))
    other_queue = vend(db, "beta", ("else",))
    db.human = None
    db.human = db.row("select * from switchboard.create_human('another')")["id"]
    stranger = vend(db, "stranger")
    refusals = {
        json.dumps(
            receiver.session.call(
                "add_webhook_route", webhook_id=receiver.id, target_endpoint_id=target
            )
        )
        for target in (stranger.id, stranger.slug, "nobody", receiver.id, other_queue.slug, "")
    }
    assert len(refusals) == 1
    assert json.loads(refusals.pop())["error"]["code"] == "forbidden"


def test_what_a_receiver_was_given_is_in_no_list(served, db) -> None:
    receiver = Receiver(served, vend(db, "alpha"), "generic")
    receiver.rotate()
    shown = json.dumps(receiver.session.call("list_webhooks"))
    for secret in (receiver.secret, receiver.url, receiver.token):
        assert secret not in shown


SECRET_HEADERS = {
    "authorization": "Bearer s3cret",
    "proxy-authorization": "Basic s3cret",
    "cookie": "session=s3cret",
    "x-api-key": "s3cret",
    "apikey": "s3cret",
    "x-forwarded-access-token": "s3cret",
    "x-amz-security-token": "s3cret",
    "cf-access-jwt-assertion": "s3cret",
    "x-csrf-token": "s3cret",
    "x-hub-signature": "sha1=s3cret",
    "x-sig": "s3cret",
    "x-custom-hmac": "s3cret",
    "referer": "https://user:s3cret@example.org/path?access_token=s3cret&page=2",
    "x-original-uri": "/webhooks/w/TOKEN?x=1",
    "x-forwarded-uri": "https://queue.example/%77ebhooks/w/TOKEN",
    "x-rewritten": "%2Fwebhooks%2Fw%2FOTHER%3Fx",
    "x-previous": "see https://queue.example/webhooks/w/OTHER and go",
    "x-leaked": "whsec_s3crets3cret and sbk_s3crets3cret",
}


@pytest.mark.parametrize("source_type", TYPES)
def test_stored_headers_hold_no_secret(served, db, source_type: str) -> None:
    """Neither the token of this address nor, after a rotation, of the other one."""
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    token = receiver.token
    turned = receiver.rotate().get("ingest_url", "x/the-other-token")
    other = turned.rpartition("/")[2]
    body = receiver.body("d-1")
    own = receiver.headers(body, "d-1")
    more = {
        name: value.replace("TOKEN", token).replace("OTHER", other)
        for name, value in SECRET_HEADERS.items()
        if name not in own
    }
    more |= {"user-agent": "GitHub-Hookshot/1", "referer": more["referer"] + f"#{token}"}
    assert receiver.post(body, raw({**more, **own, "x-twice": "a"}, x_thrice=["b", "c"])).is_success
    headers = db.value("select headers from switchboard.events")
    stored = json.dumps(headers)
    for secret in ("s3cret", token, other, receiver.secret):
        assert not secret or secret not in stored, headers
    proofs = [v for k, v in own.items() if "signature" in k or k == "authorization"]
    assert [value for value in proofs if value in stored or value[-40:] in stored] == []
    assert headers["user-agent"] == "GitHub-Hookshot/1"
    assert headers["x-thrice"] == "b, c"
    assert headers["content-type"] == "application/json"
    assert "page=2" in headers["referer"]
    for name in own:
        assert name in headers, "that it was there is kept"
    for name in ("x-delivery-id", "webhook-id", "x-github-delivery", "x-gitea-event"):
        assert headers.get(name) == own.get(name)
