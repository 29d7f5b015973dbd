"""Deliveries that are made to hurt: heads and bodies that cost more than they weigh, requests that
say two things at once, and what changes while a body is on its way."""

from __future__ import annotations

import gc
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from conftest import until
from intake_kit import BODY, Receiver, counts, vend
from starlette.datastructures import Headers

from switchboard.errors import Problem
from switchboard.intake import Intake, redact

HUGE = b"[" + b"1e131000," * 500_000 + b"1]"  # 4.5 MB, which render to 65 GB


@pytest.fixture
def receiver(served, db) -> Receiver:
    return Receiver(served, vend(db, "alpha"))


def head(receiver: Receiver, *lines: str, method: str = "POST", path: str = "") -> bytes:
    """The head of a request, with exactly these lines behind the host."""
    _, _, host, target = receiver.url.split("/", 3)
    first = [f"{method} {path or '/' + target} HTTP/1.1", f"host: {host}"]
    return "\r\n".join([*first, *lines, "", ""]).encode("latin-1")


def genuine(receiver: Receiver, delivery: str, body: bytes = BODY) -> list[str]:
    """The lines of a genuine delivery, without its length."""
    return [f"{name}: {value}" for name, value in receiver.headers(body, delivery).items()]


def opened(receiver: Receiver, data: bytes) -> socket.socket:
    """A connection on which this was sent."""
    host, port = receiver.url.split("/")[2].split(":")
    connection = socket.create_connection((host, int(port)), 10)
    connection.sendall(data)
    return connection


def answers(connection: socket.socket, count: int = 1) -> list[int]:
    """The status of each answer, of as many as come."""
    received = b""
    while received.count(b"HTTP/1.1 ") < count or not received.endswith((b"}", b"received.")):
        part = connection.recv(65536)
        if not part:
            break
        received += part
    connection.close()
    return [int(answer[:3]) for answer in received.split(b"HTTP/1.1 ")[1:]]


def ask(receiver: Receiver, data: bytes, count: int = 1) -> list[int]:
    return answers(opened(receiver, data), count)


@pytest.mark.parametrize(
    "piece", ["?key", "?", "&token", "?keykey=", "://a", "/webhooks/w/", "key"]
)
def test_a_large_header_is_redacted_in_no_time(piece: str) -> None:
    value = piece * (60_000 // len(piece))
    began = time.process_time()
    redact(Headers({"x-any": value, "x-more": "?" + value, "referer": value + "="}), "t" * 43)
    assert time.process_time() - began < 5, "the time grows faster than the header"


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("/p?access_token=abc&page=2", "/p?access_token=[redacted]&page=2"),
        ("/p?page=2;api-key=abc#part", "/p?page=2;api-key=[redacted]#part"),
        ("/p?a=b?token=abc?def", "/p?a=b?token=[redacted]"),
        ("/p?token=a=b&sig=c&signed=d", "/p?token=[redacted]&sig=[redacted]&signed=d"),
        ("/p?Secret=abc d", "/p?Secret=[redacted] d"),
        ("/p?page=2&key", "/p?page=2&key"),
        ("https://me:abc@example.org/?a=1", "https://[redacted]@example.org/?a=1"),
    ],
)
def test_arguments_of_a_url_are_redacted_by_their_names(value: str, stored: str) -> None:
    assert redact(Headers({"referer": value}), "t" * 43) == {"referer": stored}


def test_numbers_that_render_to_gigabytes_stay_in_the_event(served, db) -> None:
    receiver = Receiver(served, vend(db, "alpha"), "open")
    for body in (HUGE, HUGE.replace(b"1e131000", b"0e-16000"), HUGE[:45_001] + b"1]"):
        assert receiver.send(body).json()["created"] == 1
        payload = receiver.todos()[0]["payload"]
        assert payload["bytes"] == len(body)
        assert payload["reason"].startswith("the body must render to at most"), payload


def test_a_number_with_an_exponent_is_a_payload_like_any_other(receiver: Receiver) -> None:
    body = b'{"a": [1e3, 1.5E-7, -2e+20, 0e0], "text": "1e131000,", "b": 1e999}'
    assert receiver.send(body).json()["created"] == 1
    assert receiver.todos()[0]["payload"]["a"] == [1000, 1.5e-7, -2e20, 0]


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "TLS/1.0"])
@pytest.mark.parametrize("source_type", ["generic", "open"])
def test_a_body_that_the_parser_drops_is_not_taken_for_an_empty_one(
    served, db, source_type: str, upgrade: str
) -> None:
    """Java's HttpClient asks for HTTP/2 like this."""
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    lines = [
        *genuine(receiver, "d-1"),
        "connection: Upgrade, HTTP2-Settings",
        f"upgrade: {upgrade}",
    ]
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    length = head(receiver, *lines, f"content-length: {len(BODY)}") + BODY
    for request in (length, head(receiver, *lines, "transfer-encoding: chunked") + chunked):
        assert ask(receiver, request) in ([202], [400])
    for event in db.rows("select body from switchboard.events"):
        assert event["body"] == BODY
    assert ask(receiver, head(receiver, *lines, "content-length: 0")) == [202], "it has none"


def test_large_bodies_share_a_bound_and_small_ones_are_let_in(
    receiver: Receiver, db, monkeypatch, caplog
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("switchboard.intake.LARGE_BODIES", 1024 * 1024)
    large = b'"' + b"x" * 900_000 + b'"'
    begun = head(receiver, *genuine(receiver, "d-1", large), f"content-length: {len(large)}")
    with ExitStack() as stack:
        slow = opened(receiver, begun + large[:-1])
        stack.callback(slow.close)
        intakes = [one for one in gc.get_objects() if isinstance(one, Intake)]
        until(lambda: any(one._large > 800_000 for one in intakes), "the slow one is noted")

        def refused() -> bool:
            answer = receiver.send(large)
            assert answer.status_code in (202, 503)
            return answer.status_code == 503

        until(refused, "the slow one takes what there is")
        unknown = head(receiver, f"content-length: {len(large)}", path="/webhooks/w/nobody")
        assert ask(receiver, unknown + large) == [503]
        assert receiver.send(b'"' + b"x" * 60_000 + b'"').status_code == 202
        slow.sendall(large[-1:])
        assert answers(slow) == [202]
    assert receiver.send(large).status_code == 202, "all of it is given back"
    gone = opened(receiver, begun + large[:-1])
    gone.close()
    until(lambda: "client_gone" in str([vars(r) for r in caplog.records]), "that is noticed")
    assert [receiver.send(large).status_code for _ in range(3)] == [202] * 3
    busy = until(lambda: counts(db).get(("", "refused", "busy")), "it is counted")
    assert busy >= 2


def test_what_was_refused_is_not_kept_in_memory(receiver: Receiver) -> None:
    """A refusal that holds its own frame holds the body, until the collector comes by."""

    def refusals() -> int:
        return sum(isinstance(found, Problem) for found in gc.get_objects())

    gc.collect()
    before = refusals()
    gc.disable()
    try:
        for _ in range(20):
            forged = receiver.send(x_hub_signature_256="sha256=" + "0" * 64)
            assert forged.status_code == 401
        until(lambda: refusals() <= before, "all are gone by themselves")
    finally:
        gc.enable()


TWICE = {
    "length and chunked": ("content-length: {size}", "transfer-encoding: chunked"),
    "two lengths": ("content-length: {size}", "content-length: 5"),
    "a list of lengths": ("content-length: {size}, {size}",),
    "a signed length": ("content-length: +{size}",),
    "other digits": ("content-length: \xb2",),
    "chunked not last": ("transfer-encoding: chunked, identity",),
    "a blank before the colon": ("transfer-encoding : chunked",),
    "a folded line": ("x-any: a\r\n b", "content-length: {size}"),
    "a NUL": ("x-any: a\0b", "content-length: {size}"),
}


def test_a_request_that_can_be_read_in_two_ways_is_none(receiver: Receiver, db) -> None:
    second = head(receiver, *genuine(receiver, "d-2"), f"content-length: {len(BODY)}") + BODY
    for name, lines in TWICE.items():
        framing = [line.format(size=len(BODY)) for line in lines]
        first = head(receiver, *genuine(receiver, "d-1"), *framing) + BODY
        assert ask(receiver, first + second) == [400], name
    assert db.value("select count(*) from switchboard.events") == 0


def test_requests_that_come_at_once_are_answered_in_turn(receiver: Receiver) -> None:
    names = [f"d-{number}" for number in range(30)]
    length = f"content-length: {len(BODY)}"
    requests = [head(receiver, *genuine(receiver, name), length) + BODY for name in names]
    assert ask(receiver, b"".join(requests), 30) == [202] * 30
    assert len(receiver.todos()) == 30


def test_an_address_has_one_spelling_but_for_escapes(receiver: Receiver) -> None:
    token, length = receiver.token, f"content-length: {len(BODY)}"
    same = ["".join(f"%{ord(letter):02x}" for letter in token), token + "?a=b"]
    others = ["%00", "%2f", "%ff", "%ed%a0%80", "%20", "+", ";a=b", "/", "%0a"]
    for wanted, names in (([202], same), ([404], [token + other for other in others])):
        for name in names:
            request = head(receiver, *genuine(receiver, name), length, path=f"/webhooks/w/{name}")
            assert ask(receiver, request + BODY) == wanted, name


Between = Callable[[Receiver], object]
CHANGES: dict[str, tuple[Between, int]] = {
    "rotated": (lambda it: it.rotate(), 202),
    "rotated twice": (lambda it: [it.rotate(), it.rotate()], 401),
    "deleted": (lambda it: it.session.call("delete_webhook", webhook_id=it.id), 404),
}


@pytest.mark.parametrize(("change", "status"), CHANGES.values(), ids=CHANGES)
def test_what_holds_is_what_holds_when_the_body_is_complete(
    receiver: Receiver, db, change: Between, status: int
) -> None:
    assert receiver.send().status_code == 202
    lines = [*genuine(receiver, "d-1"), f"content-length: {len(BODY)}", "expect: 100-continue"]
    connection = opened(receiver, head(receiver, *lines))
    assert b" 100 " in connection.recv(100), "the server waits for the body"
    connection.sendall(BODY[:10])
    change(receiver)
    connection.sendall(BODY[10:])
    assert answers(connection) == [status]
    stored = db.value("select count(*) from switchboard.events")
    assert stored == (2 if status == 202 else 1)


def test_two_receivers_routed_to_each_other_make_no_loop(served, db) -> None:
    """A route leads from a receiver to endpoints, and what comes of it is no delivery."""
    pair = [Receiver(served, vend(db, slug)) for slug in ("alpha", "beta")]
    for receiver, other in zip(pair, reversed(pair), strict=True):
        receiver.session.call(
            "add_webhook_route", webhook_id=receiver.id, target_endpoint_id=other.endpoint.id
        )
    assert [receiver.send(delivery="d-1").json()["created"] for receiver in pair] == [2, 2]
    assert db.value("select count(*) from switchboard.todos") == 4


@pytest.mark.parametrize("name", ["a\u0001\u001b[31m\nb\u0085", "x" * 10_000, "'; --<b>", "\u202e"])
def test_an_id_in_the_body_may_be_any_text(served, db, name: str) -> None:
    receiver = Receiver(served, vend(db, "alpha"), "stripe")
    body = json.dumps({"id": name, "type": name}).encode()
    assert [receiver.send(body).json()["created"] for _ in range(2)] == [1, 0]
    title = receiver.todos()[0]["title"]
    assert title.isprintable()
    assert len(title) <= 500


def test_of_two_equal_keys_the_last_one_counts_every_time(served, db) -> None:
    receiver = Receiver(served, vend(db, "alpha"), "stripe")
    body = b'{"id": "first", "type": "a", "id": "second", "type": "b"}'
    assert receiver.send(body).json()["created"] == 1
    assert receiver.send(delivery="second").json()["created"] == 0
    assert receiver.todos()[0]["kind"] == "b"


@pytest.fixture(autouse=True)
def free_of_faults(caplog) -> Iterator[None]:
    yield
    assert "request failed" not in caplog.text
