"""The means of the network's scenarios can fail: the proxy, the pairs, the crowd."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator

import pytest
from conftest import until

from chaos.crowd import Answer
from chaos.crowd import judge as judge_crowd
from chaos.doubled import judge_pairs
from chaos.proxy import Proxy

ASKED, ANSWER = b"question", b"the answer"


class Upstream:
    """Answers whatever comes, and keeps it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while piece := connection.recv(1000):
                    self.heard.append(piece)
                    connection.sendall(ANSWER)
            except ConnectionError:
                pass


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    one = Upstream()
    yield one
    one.socket.shutdown(socket.SHUT_RDWR)
    one.socket.close()


@pytest.fixture
def proxy(upstream: Upstream) -> Iterator[Proxy]:
    with Proxy(upstream.url, random.Random(1)) as one:
        yield one


def ask(proxy: Proxy, seconds: float = 10.0) -> bytes:
    """What comes back; empty when the connection ends without an answer."""
    with socket.create_connection(("127.0.0.1", proxy.port), seconds) as client:
        try:
            client.sendall(ASKED)
            return client.recv(1000)
        except ConnectionError:
            return b""


def test_it_passes_on_what_comes_while_nothing_is_broken(proxy, upstream) -> None:
    assert ask(proxy) == ANSWER
    assert upstream.heard == [ASKED]


def test_an_answer_is_lost_after_it_was_made(proxy, upstream) -> None:
    proxy.break_(lost_answers=1.0)
    assert ask(proxy) == b""
    assert upstream.heard == [ASKED]
    proxy.heal()
    assert ask(proxy) == ANSWER
    assert proxy.seen["lost_answers"] == 1


def test_a_request_is_lost_before_anybody_reads_it(proxy, upstream) -> None:
    proxy.break_(lost_requests=1.0)
    assert ask(proxy) == b""
    assert upstream.heard == []


def test_an_answer_is_torn(proxy) -> None:
    proxy.break_(torn_answers=1.0)
    assert ask(proxy) == ANSWER[:5]


def test_silence_neither_answers_nor_hangs_up_and_passes_on_later(proxy, upstream) -> None:
    proxy.break_(silent=True)
    with socket.create_connection(("127.0.0.1", proxy.port), 10) as client:
        client.sendall(ASKED)
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1000)
        assert upstream.heard == []
        proxy.heal()
        client.settimeout(10)
        assert client.recv(1000) == ANSWER


def test_newcomers_are_turned_away_and_others_cut(proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), 10) as client:
        client.sendall(ASKED)
        assert client.recv(1000) == ANSWER
        proxy.break_(refusing=True)
        assert ask(proxy) == b""
        assert proxy.cut() == 1
        with pytest.raises(ConnectionError):
            client.recv(1000)
    until(lambda: proxy.cut() == 0, "nobody is connected")


# -- pairs


def pair(
    op: str, one: dict, two: dict, together: bool = False, seconds: float = 0.0, **args: object
) -> str:
    how = {"together": together, "seconds": seconds}
    return json.dumps({"op": op, "args": args, "pair": [one, two], **how})


def ok(*todos: dict) -> dict:
    return {"end": "ok", "code": "", "todos": list(todos)}


CONFLICT = {"end": "refused", "code": "conflict", "todos": []}
LOST = {"end": "unknown", "code": "connection", "todos": []}
KEYED = {"todos": [{"key": "k"}]}
POSSIBLE = [
    (pair("complete", ok(), CONFLICT), "second_refused"),
    (pair("complete", ok(), LOST), "unsure"),
    (pair("create", ok({"id": 1}), ok({"id": 1}), **KEYED), "second_same"),
    (pair("create", ok({"id": 1}), ok({"id": 2}), todos=[{}]), "pairs"),
    (pair("claim", ok({"lease_token": "a"}), ok({"lease_token": "b"})), "pairs"),
]
MADE = [ok({"id": 1, "created": True}), ok({"id": 2, "created": True})]
POSSIBLE += [
    (pair("create", *MADE, **KEYED), "second_other"),  # one after the other
    (pair("create", *MADE, **KEYED, together=True, seconds=3.0), "second_other"),
]
IMPOSSIBLE = [
    pair("create", *MADE, **KEYED, together=True, seconds=0.1),
    pair("deliver", *MADE, **KEYED, together=True),
    pair("complete", ok(), ok()),
    pair("release", ok(), ok()),
    pair("claim", ok({"lease_token": "a"}), ok({"lease_token": "a"})),
    pair("create", ok({"id": 1}), ok({"id": 1}), todos=[{}]),
    pair("complete_batch", *[ok({"id": 1, "outcome": "done"})] * 2),
]


@pytest.mark.parametrize(("line", "counted"), POSSIBLE)
def test_a_pair_that_may_be(line, counted) -> None:
    counts, wrong = judge_pairs([line, line[: len(line) // 2]])  # the second was cut by a kill
    assert (counts[counted], wrong) == (1, [])


@pytest.mark.parametrize("line", IMPOSSIBLE)
def test_a_pair_that_cannot_be(line) -> None:
    assert len(judge_pairs([line])[1]) == 1


# -- the crowd


def test_who_is_not_served_has_to_be_told_when_to_come_back_and_soon() -> None:
    fine = [
        Answer("rest", 200),
        Answer("rest", 503, retry_after=True),
        Answer("agent", 200, "unavailable"),
        Answer("board stream", 200, "ended: "),
    ]
    counts, wrong = judge_crowd(fine, 5)
    assert (counts["served"], counts["refused"], counts["503"], wrong) == (1, 3, 1, [])
    bad = [
        Answer("rest", 503),
        Answer("rest", 200, seconds=6.0),
        Answer("board", 500),
        Answer("agent", 200, "internal"),
        Answer("rest", 0, "ReadTimeout"),
    ]
    assert len(judge_crowd(bad, 5)[1]) == len(bad)
