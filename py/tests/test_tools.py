"""What the shell adds to a tool call: secrets and addresses that the database never sees."""

import base64
import json

import pytest
from intake_kit import SIGNED, TYPES, WEBHOOK_VERBS, vend

from switchboard.db import Database
from switchboard.secrets import Keyring, digest

GIVEN = "s3cr3t-value"


@pytest.fixture
def session(served, db):
    return served.session(vend(db, "alpha"))


def hook(source_type: str, **more: object) -> dict[str, object]:
    return {"source_type": source_type, "target_queue": "inbox", **more}


def stored(served, db) -> tuple[bytes, bytes]:
    """The secret and the digest of the token of the last receiver."""
    row = db.row("select * from switchboard.endpoint_webhooks order by created_at desc limit 1")
    secret = Keyring(served.settings.secret_keys).open(bytes(row["sealed_secret"]))
    return secret, bytes(row["token_digest"])


@pytest.mark.parametrize("source_type", TYPES)
def test_what_is_made_is_shown_once_and_stored_sealed_or_digested(
    served, db, session, source_type: str
) -> None:
    made = session.call("create_webhook", **hook(source_type))
    assert set(made) == {
        "webhook_id",
        "ingest_url",
        "source_type",
        "target_queue",
        "trust_mode",
        "signing_secret",
    }
    start, _, token = made["ingest_url"].rpartition("/")
    assert start == f"{served.url}/webhooks/w"
    assert len(base64.urlsafe_b64decode(token + "=")) == 32
    secret, token_digest = stored(served, db)
    assert token_digest == digest(token)
    if source_type in SIGNED:
        assert made["signing_secret"] == secret.decode()
        assert made["signing_secret"].startswith("whsec_")
        assert len(base64.b64decode(made["signing_secret"][6:], validate=True)) == 32
    else:
        assert made["signing_secret"] == {"generic": token, "open": None}[source_type]
    listed = json.dumps(session.call("list_webhooks"))
    assert [text for text in (made["signing_secret"], token) if text and text in listed] == []


@pytest.mark.parametrize("source_type", TYPES)
def test_what_a_rotation_makes_is_shown_once_too(served, db, session, source_type: str) -> None:
    made = session.call("create_webhook", **hook(source_type))
    turned = session.call("rotate_webhook", webhook_id=made["webhook_id"])
    assert turned["previous_valid_until"]
    assert "$" not in json.dumps(turned)
    secret, token_digest = stored(served, db)
    if source_type in SIGNED:
        assert "ingest_url" not in turned
        assert turned["signing_secret"] == secret.decode() != made["signing_secret"]
        assert token_digest == digest(made["ingest_url"].rpartition("/")[2])
    else:
        token = turned["ingest_url"].rpartition("/")[2]
        assert token_digest == digest(token) != digest(made["ingest_url"].rpartition("/")[2])
        assert turned["signing_secret"] == {"generic": token, "open": None}[source_type]


@pytest.mark.parametrize("source_type", SIGNED)
def test_a_secret_that_is_given_is_taken_as_it_is(served, db, session, source_type: str) -> None:
    whsec = "whsec_" + base64.b64encode(b"k" * 24).decode()
    for given in (GIVEN, whsec, "é" * 1024, "$secret", " with blanks "):
        made = session.call("create_webhook", **hook(source_type, signing_secret=given))
        assert made["signing_secret"] == given
        assert stored(served, db)[0] == given.encode()
    turned = session.call("rotate_webhook", webhook_id=made["webhook_id"], signing_secret=GIVEN)
    assert turned["signing_secret"] == GIVEN
    assert stored(served, db)[0] == GIVEN.encode()
    null = session.call("create_webhook", **hook(source_type, signing_secret=None))
    assert null["signing_secret"].startswith("whsec_"), "null is left out"


@pytest.mark.parametrize("bad", [7, "", "x" * 1025, ["s"], {"s": 1}, True, "\ud800"])
def test_a_secret_that_cannot_be_one_is_refused(session, bad: object) -> None:
    made = session.call("create_webhook", **hook("github"))
    for call in (
        session.call("create_webhook", **hook("github", signing_secret=bad)),
        session.call("rotate_webhook", webhook_id=made["webhook_id"], signing_secret=bad),
    ):
        error = call["error"]
        assert (error["code"], error["field"]) == ("invalid_argument", "signing_secret")
    assert len(session.call("list_webhooks")["webhooks"]) == 1


def test_where_a_given_secret_is_of_no_use_it_is_refused(session) -> None:
    for source_type in ("generic", "open"):
        error = session.call("create_webhook", **hook(source_type, signing_secret=GIVEN))["error"]
        assert (error["code"], error["field"]) == ("invalid_argument", "signing_secret")
        assert GIVEN not in json.dumps(error)
    bad = "whsec_not base64!"
    error = session.call("create_webhook", **hook("standard", signing_secret=bad))["error"]
    assert (error["code"], error["field"]) == ("invalid_argument", "signing_secret")
    assert session.call("create_webhook", **hook("stripe", signing_secret=bad))["webhook_id"]


def test_a_refusal_holds_neither_secret_nor_address(served, db) -> None:
    session = served.session(vend(db, "alpha", webhook_max=1, webhook_source_types=["github"]))
    made = session.call("create_webhook", **hook("github"))
    refusals = [
        session.call("create_webhook", **hook("github")),
        session.call("create_webhook", **hook("gitea")),
        session.call("create_webhook", source_type="github", target_queue="else"),
        session.call("create_webhook", **hook("github", unknown=1)),
        session.call("rotate_webhook", webhook_id="nobody"),
        session.call("rotate_webhook"),
    ]
    codes = [refusal["error"]["code"] for refusal in refusals]
    assert codes == [
        "ceiling_exceeded",
        "forbidden",
        "forbidden",
        "invalid_argument",
        "not_found",
        "invalid_argument",
    ]
    assert not [text for text in map(json.dumps, refusals) if "whsec_" in text or "/w/" in text]
    assert [row["webhook_id"] for row in session.call("list_webhooks")["webhooks"]] == [
        made["webhook_id"]
    ]


def test_placeholders_are_filled_only_where_the_shell_was_asked_to(session) -> None:
    """Text of a caller that looks like one stays what it is."""
    made = session.call("create_webhook", **hook("github"))
    for text in ("$secret", "$token", "$ingest_url"):
        removed = session.call(
            "remove_webhook_route", webhook_id=made["webhook_id"], target_endpoint_id=text
        )
        assert removed.get("target_endpoint_id", text) == text
        refused = session.call("create_webhook", source_type="github", target_queue=text)
        assert refused["error"]["code"] in ("forbidden", "invalid_argument")
        assert "whsec_" not in json.dumps(refused)


def test_a_secret_and_an_address_are_in_nothing_that_the_database_is_sent(
    session, db, monkeypatch
) -> None:
    sent: list[str] = []
    value = Database.value

    async def noted(self, query, params=(), **options):
        sent.append(repr(params))
        return await value(self, query, params, **options)

    monkeypatch.setattr(Database, "value", noted)
    made = session.call("create_webhook", **hook("github", signing_secret=GIVEN))
    turned = session.call("rotate_webhook", webhook_id=made["webhook_id"])
    token = made["ingest_url"].rpartition("/")[2]
    assert any("inbox" in params for params in sent)
    for secret in (GIVEN, turned["signing_secret"], token):
        assert not [params for params in sent if secret in params]


def test_without_a_key_nothing_is_made_and_the_log_says_why(serve, db, caplog) -> None:
    served = serve(secret_keys=())
    session = served.session(vend(db, "alpha"))
    error = session.call("create_webhook", **hook("github", signing_secret=GIVEN))["error"]
    assert error["code"] == "internal"
    assert "SWITCHBOARD_SECRET_KEY" in caplog.text
    assert GIVEN not in caplog.text
    assert error["log_id"] in caplog.text
    assert session.call("list_webhooks")["webhooks"] == []


def test_the_verbs_do_what_they_say_over_mcp(served, db, session) -> None:
    """One round through all that are about receivers."""
    assert {tool["name"] for tool in session.ask("tools/list")["result"]["tools"]} >= set(
        WEBHOOK_VERBS
    )
    beta = vend(db, "beta")
    made = session.call("create_webhook", **hook("stripe"))
    named = {"webhook_id": made["webhook_id"]}
    route = {**named, "target_endpoint_id": "beta"}
    added = session.call("add_webhook_route", **route)
    assert added == {**named, "target_endpoint_id": beta.id, "created": True}
    assert session.call("add_webhook_route", **route)["created"] is False
    routes = session.call("list_webhook_routes", **named)["routes"]
    assert [(row["slug"], row["owner"]) for row in routes] == [("alpha", True), ("beta", False)]
    (listed,) = session.call("list_webhooks")["webhooks"]
    assert (listed["source_type"], listed["routes"], listed["held"]) == ("stripe", 1, False)
    assert session.call("remove_webhook_route", **route)["removed"] is True
    assert session.call("remove_webhook_route", **route)["removed"] is False
    other = served.session(beta)
    for verb, arguments in (
        ("rotate_webhook", named),
        ("delete_webhook", named),
        ("list_webhook_routes", named),
        ("add_webhook_route", route),
        ("remove_webhook_route", route),
    ):
        assert other.call(verb, **arguments)["error"]["code"] == "not_found", verb
    assert session.call("delete_webhook", **named) == {**named, "deleted": True}
    assert session.call("delete_webhook", **named)["error"]["code"] == "not_found"
