"""What a client may cost before it said who it is: heads, idle connections, how many of them."""

import contextlib
import json
import resource
import socket

import httpx2
import pytest
from conftest import until

from switchboard import connections
from switchboard.connections import HEAD_BYTES, BoundedProtocol, allowed

SHORT = 1.0  # what a busy machine does within it, it does not always do within less


def connect(served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.settings.port), 10)


def head(served, size: int = 0, request: str = "GET /healthz", **headers: object) -> bytes:
    """A request head, of ``size`` bytes if that is given."""
    lines = [f"{request} HTTP/1.1", f"host: 127.0.0.1:{served.settings.port}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    text = "\r\n".join([*lines, "x-padding: "])
    return f"{text}{'p' * (size - len(text) - 4)}\r\n\r\n".encode()


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """Status and the rest of what comes until the server is silent after an answer, or closes."""
    text = b""
    while b"\r\n\r\n" not in text or not text.rstrip().endswith(b"}"):
        if not (part := connection.recv(65536)):
            break
        text += part
    return int(text.split(b" ")[1]), text


@pytest.mark.parametrize("piece", [1 << 20, 1000])
def test_a_head_of_64_kib_is_taken_and_one_byte_more_is_431(served, piece: int) -> None:
    assert HEAD_BYTES == 64 * 1024
    for size, status in ((HEAD_BYTES, 200), (HEAD_BYTES + 1, 431)):
        with connect(served) as connection:
            whole = head(served, size)
            assert len(whole) == size
            for start in range(0, size, piece):
                connection.sendall(whole[start : start + piece])
            got, text = answer(connection)
            assert got == status, size
    assert json.loads(text.partition(b"\r\n\r\n")[2])["code"] == "too_large"
    assert b"x-content-type-options: nosniff" in text
    assert b"connection: close" in text


@pytest.mark.parametrize("line", [b"p" * 16384, b"a:b\r\n" * 4096])
def test_an_endless_head_is_cut_off_and_the_client_sees_why(served, line: bytes) -> None:
    with connect(served) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nx-padding: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(40):  # more than is taken, less than is discarded
                connection.sendall(line)
        assert answer(connection)[0] == 431
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""


def test_a_head_behind_a_body_is_counted_from_its_own_beginning(served) -> None:
    body = b"x" * 60_000
    first = head(served, request="POST /healthz", content_length=len(body)) + body
    second = head(served, 60_000)
    with connect(served) as connection:
        connection.sendall(first[:1000])
        assert answer(connection)[0] == 405
        connection.sendall(first[1000:] + second[:30_000])
        connection.sendall(second[30_000:])
        assert answer(connection)[0] == 200
        connection.sendall(head(served, HEAD_BYTES + 1))
        assert answer(connection)[0] == 431


@pytest.mark.parametrize("case", ["silent", "half a head", "slow", "again", "rest of a body"])
def test_a_connection_that_does_not_ask_is_closed(served, monkeypatch, case: str) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", SHORT)
    served.server.config.timeout_keep_alive = 3600  # uvicorn's own time for an idle connection
    with connect(served) as connection:
        if case == "half a head":
            connection.sendall(head(served)[:20])
        elif case == "slow":
            connection.settimeout(SHORT / 10)
            with contextlib.suppress(ConnectionError):
                for byte in b"GET /healthz HTTP/1.1\r\nx: " + b"p" * 200:
                    connection.sendall(bytes([byte]))
                    with contextlib.suppress(TimeoutError):
                        if connection.recv(1) == b"":
                            return
            pytest.fail("never closed")
        elif case == "again":
            connection.sendall(head(served))
            assert answer(connection)[0] == 200
            connection.sendall(b"\r\n")
        elif case == "rest of a body":
            connection.sendall(head(served, request="POST /healthz", content_length=10))
            assert answer(connection)[0] == 405
            connection.sendall(b"x")
        connection.settimeout(20)
        assert connection.recv(1) == b""


def test_a_stream_stays_open(served, db, monkeypatch) -> None:
    session = served.session(db.vend("alpha"))
    monkeypatch.setattr(connections, "HEAD_SECONDS", SHORT)
    with session.stream() as stream:
        assert stream.status_code == 200
        for _ in range(2):
            with connect(served) as idle:
                assert idle.recv(1) == b"", "the time is over"
        assert session.call("claim_next")["empty"] is True
        assert not stream.is_closed


def test_connections_above_the_limit_are_503(serve, monkeypatch) -> None:
    monkeypatch.setattr("switchboard.gateway.allowed", lambda _: 3)
    served = serve()
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect(served)) for _ in range(3)]
        held[-1].sendall(head(served))
        assert b" 503 " in held[-1].recv(4096)
    health = served.url + "/healthz"
    until(lambda: httpx2.get(health).status_code == 200, "those that were held are gone")


def test_the_limit_of_open_files_is_raised_and_connections_stay_below_it(settings) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] // 2, before[1]))
        limit = allowed(settings(pool_size=7))
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[1]
        assert 0 < limit < before[1]
        assert limit <= settings().max_sessions + connections.SPARE_CONNECTIONS
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_every_server_has_the_bounds(served) -> None:
    config = served.server.config
    assert config.http_protocol_class is BoundedProtocol
    assert config.limit_concurrency == allowed(served.settings)


@pytest.mark.parametrize(
    "text", [b"FETCH / HTTP/1.1\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n", b"\x00"]
)
def test_what_is_no_request_is_answered_in_the_form_of_every_error(served, text: bytes) -> None:
    with connect(served) as connection:
        connection.sendall(text)
        status, raw = answer(connection)
    assert status == 400
    assert json.loads(raw.partition(b"\r\n\r\n")[2])["code"] == "invalid_argument"
