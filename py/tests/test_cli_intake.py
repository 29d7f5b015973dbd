"""Receivers, routes, deliveries and quarantine on the command line."""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import httpx2
import pytest
from conftest import KEY, Endpoint, Served, Sql
from psycopg.conninfo import make_conninfo

from switchboard import cli, cli_event
from switchboard.errors import Problem
from switchboard.receivers import MAX_SECRET, minted
from switchboard.secrets import Keyring, digest

Run = Callable[..., tuple[int, Any]]
TYPES = ("github", "gitea", "stripe", "slack", "standard", "cairn", "generic", "open")
SIGNED = TYPES[:6]
NOBODY = "01900000-0000-7000-8000-000000000000"
KEYRING = Keyring((KEY,))
VERIFICATION = {"scheme": "github", "secret": "current", "signed_at": 1796002753.5}


@pytest.fixture
def agent(db: Sql) -> Endpoint:
    return db.vend("agent", ("in", "out"), webhook_max=20, webhook_source_types=list(TYPES))


@pytest.fixture
def environment(database: str, agent: Endpoint, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a command finds: this test's database."""
    for name in [name for name in os.environ if name.startswith("SWITCHBOARD_")]:
        monkeypatch.delenv(name)
    found = {
        "SWITCHBOARD_DATABASE_URL": database,
        "SWITCHBOARD_SECRET_KEY": base64.b64encode(KEY).decode(),
        "SWITCHBOARD_PUBLIC_URL": "https://queue.example.org",
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return {**os.environ, **found}


@pytest.fixture
def run(environment: dict[str, str], capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command with --json, or as people do: exit status and what it printed."""

    def command(*arguments: str, text: bool = False) -> tuple[int, Any]:
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, *([] if text else ["--json"])])
        printed = capsys.readouterr()
        status = int(ended.value.code or 0)
        return status, printed.out + printed.err if text else json.loads(printed.out)

    return command


class Receiver:
    """A receiver that was made on the command line, and the gateway's part."""

    def __init__(self, db: Sql, made: dict[str, Any]) -> None:
        self.db, self.made = db, made
        self.id: str = made["webhook_id"]
        self.token = made["ingest_url"].rpartition("/")[2]

    def take(
        self,
        delivery_id: str | None,
        body: bytes = b'{"action": "opened", "issue": {"number": 1, "title": "The build is red"}}',
        event_type: str | None = "issues",
    ) -> dict[str, Any]:
        """Store a delivery, as the gateway does once it is verified."""
        headers = {"content-type": "application/json", "x-hub-signature-256": "[redacted]"}
        answer: dict[str, Any] = self.db.value(
            "select switchboard.receive_delivery(p_token_digest => %s, p_delivery_id => %s,"
            " p_event_type => %s, p_headers => %s, p_body => %s, p_content_type => %s,"
            " p_verification => %s)",
            digest(self.token),
            delivery_id,
            event_type,
            json.dumps(headers),
            body,
            "application/json",
            json.dumps(VERIFICATION),
        )
        assert "error" not in answer, answer
        return answer

    def secrets(self) -> list[str]:
        """What a delivery may be signed with now, as the gateway opens it."""
        found = self.db.value("select switchboard.webhook_for(%s)", digest(self.token))
        return [KEYRING.open(bytes.fromhex(value)).decode() for value in found["sealed_secrets"]]

    def is_known(self) -> bool:
        return bool(self.db.value("select switchboard.webhook_for(%s)", digest(self.token)))


@pytest.fixture
def create(db: Sql, run: Run) -> Callable[..., Receiver]:
    """Make a receiver of endpoint agent on the command line."""

    def make(source_type: str = "github", *more: str) -> Receiver:
        status, made = run(
            "webhook", "create", "agent", "-q", "in", "--source-type", source_type, *more
        )
        assert status == 0, made
        return Receiver(db, made)

    return make


# What is minted


def test_what_is_minted_is_stored_sealed_and_shown_once() -> None:
    made = minted(KEYRING, "https://queue.example.org")
    answer = made.fill(
        {
            "webhook_id": "w",
            "signing_secret": "$secret",
            "ingest_url": "$ingest_url",
            "token": "$token",
            "deep": {"text": "$secret"},
            "held": False,
            "none": None,
        }
    )
    secret, token = answer["signing_secret"], answer["token"]
    assert secret.startswith("whsec_")
    assert len(base64.b64decode(secret[6:], validate=True)) == 32
    assert KEYRING.open(made.sealed_secret).decode() == secret
    assert made.token_digest == hashlib.sha256(token.encode()).digest()
    assert answer["ingest_url"] == f"https://queue.example.org/webhooks/w/{token}"
    assert (answer["deep"], answer["held"], answer["none"]) == ({"text": "$secret"}, False, None)
    assert made.shell() == {
        "sealed_secret": made.sealed_secret.hex(),
        "token_digest": made.token_digest.hex(),
        "secret_form": "made",
    }
    assert secret not in repr(made)
    assert token not in repr(made)
    assert minted(KEYRING, "").shown["$secret"] != secret


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ("s", "text"),
        ("é" * MAX_SECRET, "text"),
        ("whsec", "text"),
        ("WHSEC_YQ==", "text"),
        ("whsec_YQ==", "base64"),
        ("whsec_" + base64.b64encode(bytes(24)).decode(), "base64"),
        ("whsec_", "malformed"),
        ("whsec_YQ", "base64"),  # some senders leave the padding out
        ("whsec_Y", "malformed"),
        ("whsec_YQ==\n", "malformed"),
        ("whsec_Y Q==", "malformed"),
        ("whsec_é", "malformed"),
        ("whsec_-_-_", "malformed"),
    ],
)
def test_the_form_of_a_given_secret(given: str, form: str) -> None:
    made = minted(KEYRING, "", given)
    assert made.secret_form == form
    assert KEYRING.open(made.sealed_secret).decode() == given
    assert made.shown["$secret"] == given


@pytest.mark.parametrize("given", ["", "x" * (MAX_SECRET + 1), "\udc80", 7, ["s"], {}, True, b"s"])
def test_what_cannot_be_a_secret_is_refused(given: object) -> None:
    with pytest.raises(Problem) as refused:
        minted(KEYRING, "", given)
    assert refused.value.code == "invalid_argument"
    assert refused.value.details["field"] == "signing_secret"


# switchboard webhook


@pytest.mark.parametrize("source_type", TYPES)
def test_create_says_what_to_enter_at_the_sender(run: Run, db: Sql, source_type: str) -> None:
    arguments = ("webhook", "create", "agent", "-q", "in", "--source-type", source_type)
    status, made = run(*arguments)
    assert status == 0
    assert (made["source_type"], made["target_queue"]) == (source_type, "in")
    assert made["ingest_url"].startswith("https://queue.example.org/webhooks/w/")
    receiver = Receiver(db, made)
    if source_type in SIGNED:
        assert made["trust_mode"] == "signed"
        assert made["signing_secret"].startswith("whsec_")
        assert receiver.secrets() == [made["signing_secret"]]
    else:
        expected = {"generic": ("token", receiver.token), "open": ("open", None)}[source_type]
        assert (made["trust_mode"], made["signing_secret"]) == expected
        assert receiver.secrets() == []
    status, text = run(*arguments, text=True)
    assert status == 0
    assert "  address  https://queue.example.org/webhooks/w/" in text
    assert "shown this once" in text
    assert "$" not in text
    assert "{" not in text
    assert ("  secret   whsec_" in text) == (
        source_type in ("github", "gitea", "standard", "cairn")
    )
    assert ("  token    " in text) == (source_type == "generic")
    webhook_id = text.split()[1]
    rotate = f"switchboard webhook rotate {webhook_id} --signing-secret @FILE"
    assert (rotate in text) == (source_type in ("stripe", "slack", "standard"))


def test_a_secret_comes_as_text_from_a_file_or_from_standard_input(
    create: Callable[..., Receiver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_bytes(b" in the file \r\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("piped\n"))
    for argument, secret in (
        ("typed", "typed"),
        (f"@{tmp_path}/secret", " in the file "),
        ("-", "piped"),
    ):
        made = create("stripe", "--signing-secret", argument)
        assert made.made["signing_secret"] == secret
        assert made.secrets() == [secret]


def test_a_given_secret_is_not_shown_again_to_people(run: Run, create: Any) -> None:
    arguments = ("--signing-secret", "hunter2-hunter2")
    status, text = run(
        "webhook", "create", "agent", "-q", "in", "--source-type", "slack", *arguments, text=True
    )
    assert (status, "hunter2" in text, "--signing-secret" in text) == (0, False, False)
    assert "Request URL" in text
    status, text = run("webhook", "rotate", create("stripe").id, *arguments, text=True)
    assert (status, "hunter2" in text, "--signing-secret" in text) == (0, False, False)
    assert text.startswith("Rotated. The previous secret is valid until 20")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("nobody", "-q", "in"), "not_found"),
        (("agent", "-q", "elsewhere"), "forbidden"),
        (("agent", "-q", "quarantine"), "forbidden"),
        (("plain", "-q", "in", "--source-type", "open"), "forbidden"),
        (("agent", "-q", "in", "--source-type", "telegraph"), "invalid_argument"),
        (("agent", "-q", "in", "--signing-secret", ""), "invalid_argument"),
        (("agent", "-q", "in", "--signing-secret", "x" * 1025), "invalid_argument"),
        (("agent", "-q", "in", "--signing-secret", "@/none"), "invalid_argument"),
        (("agent", "-q", "in", "--signing-secret", "\udc80"), "invalid_argument"),
        (
            ("agent", "-q", "in", "--source-type", "standard", "--signing-secret", "whsec_?"),
            "invalid_argument",
        ),
        (
            ("agent", "-q", "in", "--source-type", "generic", "--signing-secret", "s"),
            "invalid_argument",
        ),
        (("full", "-q", "in"), "ceiling_exceeded"),
    ],
)
def test_create_refuses(run: Run, db: Sql, arguments: tuple[str, ...], code: str) -> None:
    db.vend("plain", ("in",))
    db.vend("full", ("in",), webhook_max=0)
    status, body = run("webhook", "create", *arguments)
    assert (status, body["code"]) == (1, code)
    status, text = run("webhook", "create", *arguments, text=True)
    assert status == 1
    assert text.startswith(f"{code}: ")
    assert db.rows("select webhook_id from switchboard.endpoint_webhooks w(webhook_id)") == []


def test_nothing_can_be_sealed_without_a_key(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWITCHBOARD_SECRET_KEY")
    status, body = run("webhook", "create", "agent", "-q", "in")
    assert (status, body["code"]) == (1, "invalid_argument")
    assert "SWITCHBOARD_SECRET_KEY" in body["error"]


def test_list_shows_receivers_without_their_secrets(
    run: Run, db: Sql, agent: Endpoint, create: Any
) -> None:
    assert run("webhook", "list", "agent") == (0, {"webhooks": []})
    assert run("webhook", "list", "agent", text=True) == (0, "(none)\n")
    first, second = create("github"), create("open")
    db.vend("other", ("in",))
    run("route", "add", first.id, "other")
    run("webhook", "hold", first.id)
    run("webhook", "rotate", first.id)
    status, listed = run("webhook", "list", agent.id)
    assert status == 0
    found = {row["webhook_id"]: row for row in listed["webhooks"]}
    assert list(found) == [first.id, second.id]
    assert (found[first.id]["held"], found[first.id]["routes"]) == (True, 1)
    assert found[first.id]["previous_valid_until"]
    assert (found[second.id]["held"], found[second.id]["routes"]) == (False, 0)
    assert found[second.id]["previous_valid_until"] is None
    status, text = run("webhook", "list", "agent", text=True)
    assert status == 0
    for secret in (first.token, second.token, first.made["signing_secret"]):
        assert secret not in text + json.dumps(listed)
    status, body = run("webhook", "list", "nobody")
    assert (status, body["code"]) == (1, "not_found")


@pytest.mark.parametrize("source_type", SIGNED)
def test_rotating_a_secret_keeps_the_address(create: Any, run: Run, source_type: str) -> None:
    receiver = create(source_type)
    status, answer = run("webhook", "rotate", receiver.id)
    assert status == 0
    assert "ingest_url" not in answer
    assert answer["signing_secret"] != receiver.made["signing_secret"]
    assert receiver.secrets() == [answer["signing_secret"], receiver.made["signing_secret"]]
    status, text = run("webhook", "rotate", receiver.id, text=True)
    assert status == 0
    assert "address" not in text.replace("the address:", "")
    assert "$" not in text


@pytest.mark.parametrize("source_type", ["generic", "open"])
def test_rotating_where_nothing_is_signed_makes_another_address(
    create: Any, run: Run, db: Sql, source_type: str
) -> None:
    receiver = create(source_type)
    status, answer = run("webhook", "rotate", receiver.id)
    assert status == 0
    new = Receiver(db, answer)
    assert new.token != receiver.token
    assert answer["signing_secret"] == (new.token if source_type == "generic" else None)
    assert receiver.is_known()
    assert new.is_known()
    status, text = run("webhook", "rotate", receiver.id, text=True)
    assert status == 0
    assert "The previous address is valid until" in text
    assert "  address  https://" in text
    assert not receiver.is_known()


def test_delete_ends_a_receiver_and_keeps_what_it_took(create: Any, run: Run) -> None:
    receiver, other = create(), create()
    receiver.take("d1")
    status, answer = run("webhook", "delete", receiver.id)
    assert (status, answer) == (0, {"webhook_id": receiver.id, "deleted": True})
    assert not receiver.is_known()
    listed = run("webhook", "list", "agent")[1]["webhooks"]
    assert [row["webhook_id"] for row in listed] == [other.id]
    assert len(run("event", "list")[1]["events"]) == 1
    status, text = run("webhook", "delete", other.id, text=True)
    assert status == 0
    assert text.startswith(f"Deleted {other.id}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("webhook", "rotate"),
        ("webhook", "delete"),
        ("webhook", "hold"),
        ("webhook", "hold", "--off"),
        ("route", "list"),
        ("route", "add", "agent"),
        ("route", "remove", "agent"),
        ("event", "show"),
        ("event", "show", "--body"),
        ("event", "replay"),
    ],
)
@pytest.mark.parametrize("wrong", [NOBODY, "not-an-id", "' or 1=1", "\udc80"])
def test_an_id_that_nothing_has_is_refused(
    run: Run, arguments: tuple[str, ...], wrong: str
) -> None:
    given = [*arguments[:2], wrong, *arguments[2:]]
    status, body = run(*given)
    code = "invalid_argument" if wrong == "\udc80" else "not_found"
    assert (status, body["code"]) == (1, code)
    assert wrong not in body["error"]
    status, text = run(*given, text=True)
    assert status == 1
    assert text.startswith(f"{code}: ")


def test_hold_sends_deliveries_to_quarantine_until_it_ends(
    create: Any, run: Run, db: Sql, agent: Endpoint
) -> None:
    receiver = create()
    status, answer = run("webhook", "hold", receiver.id)
    assert (status, answer) == (0, {"webhook_id": receiver.id, "held": True})
    receiver.take("d1")
    assert db.rows("select id from switchboard.claim_next(%s, 'me')", agent.id) == []
    status, text = run("webhook", "hold", receiver.id, text=True)
    assert status == 0
    assert "switchboard quarantine list" in text
    status, answer = run("webhook", "hold", receiver.id, "--off")
    assert (status, answer["held"]) == (0, False)
    receiver.take("d2")
    claimed = db.rows("select queue from switchboard.claim_next(%s, 'me')", agent.id)
    assert [row["queue"] for row in claimed] == ["in"]
    status, text = run("webhook", "hold", receiver.id, "--off", text=True)
    assert status == 0
    assert text.startswith("Not held")


def test_counts_tell_what_became_of_deliveries(create: Any, run: Run, db: Sql) -> None:
    assert run("webhook", "counts", text=True) == (0, "(none)\n")
    receiver = create()
    receiver.take("d1")
    receiver.take("d1")
    receiver.take(None, b'{"zen": "Keep it."}', "ping")
    refused = {"provider": "", "trust_mode": "", "verdict": "refused", "reason": "no_receiver"}
    db.value("select switchboard.count_deliveries(%s)", json.dumps([{**refused, "n": 3}]))
    status, counted = run("webhook", "counts")
    assert status == 0
    found = {(row["provider"], row["verdict"]): row["total"] for row in counted["counts"]}
    assert found == {
        ("github", "accepted"): 1,
        ("github", "duplicate"): 1,
        ("github", "silent"): 1,
        ("", "refused"): 3,
    }
    status, text = run("webhook", "counts", text=True)
    assert status == 0
    rows = [line.split() for line in text.splitlines()]
    assert rows[0] == ["provider", "trust_mode", "verdict", "reason", "total"]
    assert ["-", "-", "refused", "no_receiver", "3"] in rows
    assert ["github", "signed", "accepted", "-", "1"] in rows


def test_audit_tells_who_did_what(create: Any, run: Run) -> None:
    receiver = create()
    run("webhook", "hold", receiver.id)
    run("webhook", "rotate", receiver.id)
    status, told = run("webhook", "audit", receiver.id)
    assert status == 0
    assert [row["action"] for row in told["audit"]] == ["rotated", "held", "created"]
    assert all(row["actor"] for row in told["audit"])
    limited = run("webhook", "audit", receiver.id, "-n", "1")[1]["audit"]
    assert [row["action"] for row in limited] == ["rotated"]
    status, text = run("webhook", "audit", receiver.id, text=True)
    assert status == 0
    assert text.split()[:3] == ["at", "actor", "action"]
    assert run("webhook", "audit", receiver.id, "-n", "0")[1]["code"] == "invalid_argument"
    run("webhook", "delete", receiver.id)
    after = run("webhook", "audit", receiver.id)[1]["audit"]
    assert after[0]["action"] == "deleted"


def test_what_was_entered_at_the_sender_works(
    served: Served, create: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHBOARD_PUBLIC_URL", served.url)
    receiver = create()

    def send(secret: str, delivery_id: str) -> int:
        signature = hmac.new(secret.encode(), b"{}", hashlib.sha256).hexdigest()
        headers = {
            "X-GitHub-Event": "push",
            "X-GitHub-Delivery": delivery_id,
            "X-Hub-Signature-256": f"sha256={signature}",
        }
        return httpx2.post(receiver.made["ingest_url"], content=b"{}", headers=headers).status_code

    assert send(receiver.made["signing_secret"], "d1") == 202
    assert send("wrong", "d2") == 401
    new = run("webhook", "rotate", receiver.id)[1]["signing_secret"]
    assert new != receiver.made["signing_secret"]
    assert send(receiver.made["signing_secret"], "d3") == 202


# switchboard route


def test_routes_are_added_listed_and_removed(
    create: Any, run: Run, db: Sql, agent: Endpoint
) -> None:
    receiver, target = create(), db.vend("second", ("in",))
    status, answer = run("route", "add", receiver.id, "second")
    assert (status, answer) == (
        0,
        {"webhook_id": receiver.id, "target_endpoint_id": target.id, "created": True},
    )
    assert run("route", "add", receiver.id, target.id)[1]["created"] is False
    status, listed = run("route", "list", receiver.id)
    assert status == 0
    found = [(row["slug"], row["owner"], row["live"]) for row in listed["routes"]]
    assert found == [("agent", True, True), ("second", False, True)]
    taken = receiver.take("d1")
    assert {todo["endpoint_id"] for todo in taken["todos"]} == {agent.id, target.id}
    status, text = run("route", "list", receiver.id, text=True)
    assert status == 0
    assert text.split()[:5] == ["slug", "owner", "live", "target_endpoint_id", "created_at"]
    status, answer = run("route", "remove", receiver.id, "second")
    assert (status, answer["removed"]) == (0, True)
    assert run("route", "remove", receiver.id, "second")[1]["removed"] is False
    assert len(run("route", "list", receiver.id)[1]["routes"]) == 1


def test_routes_for_people(create: Any, run: Run, db: Sql) -> None:
    receiver = create()
    db.vend("second", ("in",))
    said = [
        run("route", verb, receiver.id, "second", text=True)
        for verb in ("add", "add", "remove", "remove")
    ]
    assert said == [
        (0, "Its deliveries go to second.\n"),
        (0, "Its deliveries went already to second.\n"),
        (0, "Its deliveries go no longer to second.\n"),
        (0, "Its deliveries did not go to second.\n"),
    ]


def test_every_target_but_those_of_the_same_person_is_the_same_forbidden(
    create: Any, run: Run, db: Sql
) -> None:
    receiver = create()
    db.vend("narrow", ("out",))
    db.human = db.value("select id from switchboard.create_human('somebody else')")
    foreign = db.vend("foreign", ("in",))
    targets = ("foreign", foreign.id, "narrow", "nobody", NOBODY, "' or 1=1")
    bodies = [run("route", "add", receiver.id, target) for target in targets]
    assert [(status, body["code"]) for status, body in bodies] == [(1, "forbidden")] * len(targets)
    assert len({json.dumps(body) for _, body in bodies}) == 1
    assert len(run("route", "list", receiver.id)[1]["routes"]) == 1


def test_the_owner_is_always_a_target(create: Any, run: Run) -> None:
    receiver = create()
    assert run("route", "add", receiver.id, "agent")[1]["created"] is False
    status, body = run("route", "remove", receiver.id, "agent")
    assert (status, body["code"]) == (1, "conflict")


# switchboard secrets


def test_secrets_are_sealed_anew_with_the_first_key(
    run: Run, create: Any, db: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create()
    assert run("webhook", "rotate", made.id)[0] == 0
    old, new = base64.b64encode(KEY).decode(), base64.b64encode(b"n" * 32).decode()
    assert run("secrets", "rotate") == (0, {"resealed": 0, "current": 2, "lost": 0})
    monkeypatch.setenv("SWITCHBOARD_SECRET_KEY", new)
    status, refused = run("secrets", "rotate")
    assert (status, refused["code"], refused["lost"]) == (1, "conflict", 2)
    monkeypatch.setenv("SWITCHBOARD_SECRET_KEY", f"{new},{old}")
    before = [bytes(row["sealed"]) for row in db.rows("select * from switchboard.list_sealed()")]
    status, text = run("secrets", "rotate", text=True)
    assert (status, text) == (0, "Sealed 2 secrets anew; 0 were already.\n")
    after = [bytes(row["sealed"]) for row in db.rows("select * from switchboard.list_sealed()")]
    fresh = Keyring((b"n" * 32,))
    assert [fresh.open(sealed) for sealed in after] == [KEYRING.open(sealed) for sealed in before]


# switchboard event


def test_events_are_listed_newest_first_and_filtered(create: Any, run: Run, db: Sql) -> None:
    assert run("event", "list") == (0, {"events": []})
    first, second = create(), create("generic")
    other = db.vend("other", ("in",))
    run("route", "add", second.id, "other")
    first.take("d1")
    first.take("d2")
    second.take("d3", event_type=None)
    status, listed = run("event", "list")
    assert status == 0
    events = listed["events"]
    assert [row["delivery_id"] for row in events] == ["d3", "d3", "d2", "d1"]
    assert (events[3]["trust_mode"], events[3]["verified"]) == ("signed", True)
    assert (events[0]["trust_mode"], events[0]["verified"]) == ("token", False)
    assert events[3]["title"] == "issues #1 opened: The build is red"
    assert (events[3]["todo_state"], events[3]["queue"]) == ("pending", "in")

    def ids(*arguments: str) -> list[str]:
        status, listed = run("event", "list", *arguments)
        assert status == 0
        return [row["delivery_id"] for row in listed["events"]]

    assert ids("--webhook", first.id) == ["d2", "d1"]
    assert ids("--webhook", NOBODY) == ids("--webhook", "nonsense") == []
    assert ids("--endpoint", "other") == ids("--endpoint", other.id) == ["d3"]
    assert ids("--limit", "1") == ["d3", "d3"], "never a part of a delivery"
    assert ids("--before", events[2]["id"]) == ["d1"]
    assert ids("--before", events[2]["id"], "--webhook", second.id) == []
    status, text = run("event", "list", "-w", first.id, text=True)
    assert status == 0
    assert len(text.splitlines()) == 3
    assert "The build is red" in text
    status, body = run("event", "list", "-e", "nobody")
    assert (status, body["code"]) == (1, "not_found")
    status, body = run("event", "list", "-n", "0")
    assert (status, body["code"]) == (1, "invalid_argument")


def test_show_tells_all_of_a_delivery(create: Any, run: Run, agent: Endpoint) -> None:
    receiver = create()
    todo = receiver.take("d1")["todos"][0]["id"]
    event_id = run("event", "list")[1]["events"][0]["id"]
    run("event", "replay", event_id)
    status, shown = run("event", "show", event_id)
    assert status == 0
    assert list(shown) == ["event"]
    event = shown["event"]
    assert event["headers"]["x-hub-signature-256"] == "[redacted]"
    assert event["verification"] == VERIFICATION
    assert [row["id"] for row in event["todos"]] == [todo]
    assert [row["slug"] for row in event["todos"]] == ["agent"]
    assert [(row["todo_id"], row["created"]) for row in event["replays"]] == [(todo, False)]
    status, text = run("event", "show", event_id, text=True)
    assert status == 0
    lines = text.splitlines()
    for title in ("verification", "headers", "todos", "replays"):
        assert title in lines
    assert f"webhook_id    {receiver.id}" in lines
    assert "signed_at  2026-11-30 01:39:13+00:00" in lines
    assert "x-hub-signature-256  [redacted]" in lines
    assert f"endpoint_id   {agent.id}" not in lines
    assert todo in text


def test_what_a_sender_wrote_is_only_text(create: Any, run: Run) -> None:
    """Fault 52, at a terminal."""
    evil = "\x1b]0;owned\x07 \u202e <img src=x onerror=alert(1)>"
    body = json.dumps({"issue": {"title": evil}}).encode()
    create().take("d\x1b[2J1", body)
    listed = run("event", "list")[1]["events"]
    for arguments in (("list",), ("show", listed[0]["id"])):
        status, text = run("event", *arguments, text=True)
        assert status == 0
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "<img src=x onerror=alert(1)>" in text


BODIES = {
    "JSON": b'{"a": 1.0, "b": "\\u00e9", "c": "\xc3\xa9"}\n',
    "byte order mark and CRLF": b'\xef\xbb\xbf{"a":\r\n1}',
    "nothing": b"",
    "a NUL": b'{"a":"\\u0000"}\x00',
    "not UTF-8": b"\xff\xfe\x00{",
    "several pieces": ("x" + "é" * 40_000).encode(),
    "pieces that end inside of characters": ("ab" + "𝄞" * 20_000).encode(),
    "pieces of both kinds": b"y" * 40_000 + b"\xff" * 40_000 + "é".encode() * 20_000,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_comes_back_byte_for_byte(
    create: Any, run: Run, environment: dict[str, str], body: bytes
) -> None:
    create().take("d1", body)
    event_id = run("event", "list")[1]["events"][0]["id"]
    status, shown = run("event", "show", event_id, "--body")
    assert status == 0
    assert shown["event"]["bytes"] == len(body)
    (kind, value), *none = shown["body"].items()
    assert none == []
    assert (value.encode() if kind == "text" else base64.b64decode(value)) == body
    assert (kind == "text") == (body.decode(errors="ignore").encode() == body)
    piped = subprocess.run(
        [sys.executable, "-m", "switchboard", "event", "show", event_id, "--body"],
        env=environment,
        capture_output=True,
        check=True,
    )
    assert piped.stdout == body


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b'{"a":\t1}\r\n', ['{"a":    1}', ""]),
        (b"\x1b[2Jcleared\x07", ["·[2Jcleared·"]),
        (b"\xff\x00", ["/wA="]),
    ],
)
def test_a_terminal_does_not_obey_a_body(
    create: Any, run: Run, monkeypatch: pytest.MonkeyPatch, body: bytes, lines: list[str]
) -> None:
    create().take("d1", body)
    event_id = run("event", "list")[1]["events"][0]["id"]
    monkeypatch.setattr(cli_event.sys.stdout, "isatty", lambda: True)
    status, text = run("event", "show", event_id, "--body", text=True)
    assert (status, text) == (0, "\n".join(lines) + "\n")


def test_replay_makes_todos_again_where_none_is_live(
    create: Any, run: Run, db: Sql, agent: Endpoint
) -> None:
    receiver = create()
    other = db.vend("other", ("in",))
    run("route", "add", receiver.id, "other")
    made = {todo["endpoint_id"]: todo["id"] for todo in receiver.take("d1")["todos"]}
    event_id = run("event", "list")[1]["events"][0]["id"]
    status, answer = run("event", "replay", event_id)
    assert (status, answer["created"]) == (0, 0)
    assert {todo["endpoint_id"]: todo["id"] for todo in answer["todos"]} == made
    for command in ("claim", "complete"):
        assert run("todo", command, made[agent.id])[0] == 0
    status, answer = run("event", "replay", event_id, "--endpoint", "agent")
    assert (status, answer["created"]) == (0, 1)
    assert [todo["endpoint_id"] for todo in answer["todos"]] == [agent.id]
    assert answer["todos"][0]["id"] != made[agent.id]
    status, text = run("event", "replay", event_id, "-e", other.id, text=True)
    assert status == 0
    assert text.startswith("Replayed: 0 made, of 1.")
    assert made[other.id] in text
    actions = [row["action"] for row in run("webhook", "audit", receiver.id)[1]["audit"]]
    assert actions.count("replayed") == 4
    status, body = run("event", "replay", event_id, "-e", "nobody")
    assert (status, body["code"]) == (1, "not_found")
    db.vend("elsewhere", ("in",))
    status, body = run("event", "replay", event_id, "-e", "elsewhere")
    assert (status, body["code"]) == (1, "conflict")


# switchboard quarantine


@pytest.fixture
def held(create: Any, run: Run) -> list[str]:
    """The ids of four todos in quarantine, oldest first."""
    receiver = create()
    run("webhook", "hold", receiver.id)
    return [receiver.take(f"d{number}")["todos"][0]["id"] for number in range(4)]


def test_quarantine_lists_what_is_held(run: Run, db: Sql, held: list[str]) -> None:
    status, listed = run("quarantine", "list")
    assert (status, [todo["id"] for todo in listed["todos"]]) == (0, held)
    assert {todo["queue"] for todo in listed["todos"]} == {"quarantine"}
    assert len(run("quarantine", "list", "-n", "2")[1]["todos"]) == 2
    db.vend("other")
    assert run("quarantine", "list", "-e", "other") == (0, {"todos": []})
    assert len(run("quarantine", "list", "-e", "agent")[1]["todos"]) == 4
    status, body = run("quarantine", "list", "-e", "nobody")
    assert (status, body["code"]) == (1, "not_found")
    status, text = run("quarantine", "list", text=True)
    assert status == 0
    assert [line.split()[0] for line in text.splitlines()] == ["id", *held]


def test_release_gives_agents_what_was_held(
    run: Run, db: Sql, agent: Endpoint, held: list[str]
) -> None:
    status, answer = run("quarantine", "release", held[0], held[1])
    assert (status, answer["refused"]) == (0, [])
    found = [(todo["id"], todo["queue"], todo["state"]) for todo in answer["released"]]
    assert found == [(held[0], "in", "pending"), (held[1], "in", "pending")]
    claimed = db.value("select id from switchboard.claim_next(%s, 'me')", agent.id)
    assert str(claimed) == held[0]
    status, text = run("quarantine", "release", held[2], text=True)
    assert (status, text) == (0, f"{held[2]}: released, pending in queue in.\n")
    assert [todo["id"] for todo in run("quarantine", "list")[1]["todos"]] == held[3:]


def test_discard_makes_dead_letters(run: Run, held: list[str]) -> None:
    status, answer = run("quarantine", "discard", held[0])
    assert (status, answer["refused"]) == (0, [])
    (todo,) = answer["discarded"]
    assert (todo["id"], todo["state"], todo["dead_letter"]) == (held[0], "failed", True)
    status, text = run("quarantine", "discard", held[1], text=True)
    assert (status, text) == (0, f"{held[1]}: discarded, failed in queue quarantine.\n")
    assert [todo["id"] for todo in run("quarantine", "list")[1]["todos"]] == held[2:]


@pytest.mark.parametrize(("verb", "done"), [("release", "released"), ("discard", "discarded")])
def test_one_refused_id_stops_no_other(run: Run, held: list[str], verb: str, done: str) -> None:
    status, answer = run("quarantine", verb, held[0], "nonsense", "\udc80", NOBODY, held[1])
    assert status == 1
    assert [todo["id"] for todo in answer[done]] == held[:2]
    refused = [(row["id"], row["code"]) for row in answer["refused"]]
    assert refused == [
        ("nonsense", "not_found"),
        ("?", "invalid_argument"),
        (NOBODY, "not_found"),
    ]
    assert all(row["error"] for row in answer["refused"])
    status, text = run("quarantine", verb, NOBODY, held[2], text=True)
    assert status == 1
    assert f"{held[2]}: {done}" in text
    assert f"{NOBODY}: not_found: " in text
    status, text = run("quarantine", verb, text=True)
    assert status == 2
    assert "Usage" in text


def test_what_is_discarded_or_no_more_held_is_refused(run: Run, held: list[str]) -> None:
    run("quarantine", "discard", held[0])
    run("quarantine", "release", held[1])
    status, answer = run("quarantine", "release", held[0], held[1])
    assert (status, answer["released"]) == (1, [])
    assert [row["code"] for row in answer["refused"]] == ["conflict", "not_found"]


# docs/webhooks.md


def examples() -> Iterator[tuple[str, str]]:
    """The commands of the page that send a delivery, with the source type of their section."""
    names = {"Standard Webhooks": "standard"}
    page = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text(encoding="utf-8")
    for section in page.split("\n## ")[1:]:
        heading = section.partition("\n")[0]
        for block in section.split("```sh\n")[1:]:
            first, _, command = block.partition("\n```")[0].partition("\n")
            if first.startswith("URL="):
                yield names.get(heading, heading.lower()), command


@pytest.mark.skipif(
    not (shutil.which("curl") and shutil.which("openssl")), reason="curl or openssl is not here"
)
@pytest.mark.parametrize(("source_type", "command"), list(examples()))
def test_every_example_of_the_page_works(
    served: Served,
    create: Any,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    source_type: str,
    command: str,
) -> None:
    monkeypatch.setenv("SWITCHBOARD_PUBLIC_URL", served.url)
    made = create(source_type).made
    secret = made["signing_secret"] or "none"

    def send(secret: str) -> dict[str, Any]:
        sent = subprocess.run(
            ["sh", "-euc", command.replace("curl -sS --fail", "curl -sS")],
            env={**os.environ, "URL": made["ingest_url"], "SECRET": secret, "TOKEN": secret},
            capture_output=True,
            text=True,
            check=True,
        )
        answer: dict[str, Any] = json.loads(sent.stdout)
        return answer

    if source_type != "open":
        assert send(secret[:6] + secret[6:].swapcase())["code"] == "unauthenticated"
    answer = send(secret)
    assert answer["created"] == 1, answer
    assert answer["trust_mode"] == made["trust_mode"]
    assert answer["verified"] is (source_type in SIGNED)
    (event,) = run("event", "list")[1]["events"]
    shown = run("event", "show", event["id"])[1]["event"]
    assert secret not in json.dumps(shown)
    assert made["ingest_url"].rpartition("/")[2] not in json.dumps(shown)


def test_every_sender_has_an_example() -> None:
    assert [source_type for source_type, _ in examples()] == [*TYPES[:7], "generic", "open"]


# all of them


def commands() -> Iterator[tuple[str, str]]:
    for group in ("webhook", "route", "event", "quarantine"):
        found = cli.cli.commands[group]
        assert isinstance(found, click.Group)
        for name in found.commands:
            yield group, name


@pytest.mark.parametrize(("group", "name"), list(commands()))
def test_help_has_an_example_and_json(run: Run, group: str, name: str) -> None:
    status, text = run(group, name, "--help", text=True)
    assert status == 0
    assert f"Example: switchboard {group} {name}" in text
    assert "--json" in text


@pytest.mark.parametrize(("group", "name"), [c for c in commands() if c != ("webhook", "counts")])
def test_a_login_that_may_not_is_told_so(
    run: Run, db: Sql, monkeypatch: pytest.MonkeyPatch, group: str, name: str
) -> None:
    """Every command calls functions that are an operator's; none is public."""
    login = f"nobody_{NOBODY[:8]}_{os.getpid()}"
    db.connection.execute(f"create role {login} login password 'x'".encode())
    monkeypatch.setenv("SWITCHBOARD_DATABASE_URL", make_conninfo(db.dsn, user=login, password="x"))
    more = {"create": ("-q", "in"), "add": ("agent",), "remove": ("agent",)}.get(name, ())
    first = () if (group, name) in (("event", "list"), ("quarantine", "list")) else (NOBODY,)
    try:
        status, body = run(group, name, *first, *more)
    finally:
        db.connection.execute(f"drop role {login}".encode())
    assert status == 1
    assert "forbidden" in json.dumps(body)
