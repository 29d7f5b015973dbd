"""Requests that nobody would think of, against every route of a served gateway.

They are HTTP; what is not, the parser refuses before there is a route. Whatever comes, there is no
500, and a refusal is JSON with a code that the table of errors has; on /mcp it may be the
protocol's own.
"""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

import pytest
from conftest import RawSession, Served, until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from intake_kit import TYPES, VERBS, Receiver, vend

# The server draws from `random` while an example is made, which hypothesis takes for its doing.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the .random. module:hypothesis.errors.HypothesisDeprecationWarning"
)

METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "PROPFIND"]
METHODS += ["GET", "POST", "POST", "POST"]  # more often
FREE = {"failure_rate": 1e6, "failure_burst": 10**6, "webhook_rate": 1e6, "webhook_burst": 10**6}
HYPOTHESIS = settings(
    max_examples=600, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)

PATH_TEXT = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="?#"))
VALUES = st.binary(max_size=60).map(lambda raw: bytes(b for b in raw if b >= 0x20 and b != 0x7F))
TEXTS = st.text(st.characters(), max_size=20)  # halves of surrogate pairs included
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
ARGUMENTS = ["id", "queue", "queues", "state", "limit", "offset", "lease_token", "result"]
ARGUMENTS += ["lease_ttl_seconds", "title", "payload", "source_type", "target_queue"]
ARGUMENTS += ["signing_secret", "webhook_id", "target_endpoint_id"]
BODIES = st.one_of(
    st.binary(max_size=200),
    JSON.map(lambda value: json.dumps(value).encode()),
    TEXTS.map(lambda text: ("payload=" + text).encode(errors="replace")),
)
NAMES = [
    "accept",
    "accept-encoding",
    "authorization",
    "content-encoding",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "if-none-match",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    "range",
    "referer",
    "stripe-signature",
    "te",
    "user-agent",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
    "x-cairn-signature",
    "x-delivery-id",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-gitea-delivery",
    "x-gitea-event",
    "x-gitea-signature",
    "x-github-delivery",
    "x-github-event",
    "x-hub-signature-256",
    "x-http-method-override",
    "x-original-url",
    "x-slack-request-timestamp",
    "x-slack-signature",
    "x-any",
]
FREE_HEADERS = {"content-type", "user-agent", "cookie"}  # which a sender may set to anything
# Those that mean something to one sender or the other, or to HTTP.
OWN = ("x-hub", "x-git", "x-slack", "x-cairn", "x-delivery", "webhook-", "stripe-", "expect")
NAMED = {name for name in NAMES if name.startswith((*OWN, "authorization"))}
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.one_of(
            VALUES,
            st.sampled_from(
                [
                    b"application/json",
                    b"application/x-www-form-urlencoded",
                    b"application/json, text/event-stream",
                    b"multipart/form-data; boundary=x",
                    b"100-continue",
                    b"gzip",
                    b"2025-11-25",
                    b"Bearer ",
                    b"sha256=" + b"0" * 64,
                    b"ping",
                ]
            ),
        ),
    ),
    max_size=6,
)


class Surface:
    """A gateway with a receiver of each type and an MCP session."""

    def __init__(self, served: Served, db: Any) -> None:
        self.served = served
        self.codes = {row["code"] for row in db.rows("select code from switchboard.error_table()")}
        endpoint = vend(db, "alpha", verbs=[*VERBS, "create_todo", "claim", "heartbeat", "retry"])
        self.receivers = [Receiver(served, endpoint, source_type) for source_type in TYPES]
        self.session: RawSession = served.session(endpoint)

    def ask(
        self,
        method: str,
        target: str,
        headers: list[tuple[str, bytes]],
        body: bytes,
        chunked: bool = False,
    ) -> tuple[int, Any, bytes]:
        """Status, headers and body of the answer to exactly this request."""
        port = self.served.settings.port
        lines = [f"{method} {target} HTTP/1.1".encode(), b"host: 127.0.0.1:%d" % port]
        lines += [name.encode() + b": " + value for name, value in headers]
        if chunked:
            lines.append(b"transfer-encoding: chunked")
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        else:
            lines.append(b"content-length: %d" % len(body))
        with socket.create_connection(("127.0.0.1", port), 10) as connection:
            connection.sendall(b"\r\n".join([*lines, b"", body]))
            answer = http.client.HTTPResponse(connection, method=method)
            answer.begin()
            is_stream = answer.headers["content-type"] == "text/event-stream"
            return answer.status, answer.headers, b"" if is_stream else answer.read()

    def check(self, method: str, target: str, *request: Any) -> int:
        """Ask, and see that the answer is one that may be given; its status."""
        status, headers, body = self.ask(method, target, *request)
        assert status < 500 or (status == 503 and headers["retry-after"]), (status, body)
        assert headers["x-content-type-options"] == "nosniff"
        if status == 429:
            assert int(headers["retry-after"]) >= 1
        if status == 401:
            assert headers["www-authenticate"] == 'Bearer error="invalid_token"'
        if status >= 400 and method != "HEAD":
            assert headers["content-type"] == "application/json", body
            told = json.loads(body)
            if target.startswith("/mcp/") and "jsonrpc" in told:
                assert isinstance(told["error"]["code"], int)
            else:
                assert isinstance(told["error"], str), told
                assert told["code"] in self.codes - {"internal"}, told
        return status


@pytest.fixture
def surface(serve, db) -> Surface:
    return Surface(serve(**FREE, mcp_rate=1e6, mcp_burst=10**6, endpoint_sessions=10**6), db)


def test_any_request_to_any_address(surface: Surface, caplog) -> None:
    seen: set[int] = set()
    tokens = [receiver.token for receiver in surface.receivers]
    known = ["/", "/healthz", "/readyz", "/mcp/alpha", "/webhooks/w/x"]
    known += [f"/webhooks/w/{token}" for token in tokens]
    targets = st.one_of(
        st.sampled_from(known),
        st.sampled_from(known),
        st.tuples(st.sampled_from([*known, "/mcp/", "/webhooks/w/"]), PATH_TEXT).map("".join),
        PATH_TEXT.map(lambda text: "/" + text),
        st.text(max_size=8).map(
            lambda text: "/mcp/" + "".join(f"%{b:02x}" for b in text.encode(errors="replace"))
        ),
        st.binary(max_size=8).map(lambda raw: "/webhooks/w/" + "".join(f"%{b:02X}" for b in raw)),
    )
    queries = st.just("") | PATH_TEXT.map(lambda text: "?" + text)

    @HYPOTHESIS
    @given(st.sampled_from(METHODS), targets, queries, HEADERS, BODIES, st.booleans())
    def any_request(
        method: str, target: str, query: str, headers: Any, body: bytes, chunked: bool
    ) -> None:
        seen.add(surface.check(method, target + query, headers, body, chunked))

    for method in METHODS:
        for target in known:
            seen.add(surface.check(method, target, [], b"{}"))
    assert {200, 202, 401, 404, 405} <= seen
    any_request()
    assert "request failed" not in caplog.text
    assert "Traceback" not in caplog.text


def test_any_genuine_delivery_is_taken(surface: Surface, db, caplog) -> None:
    """Signed over whatever it is, under whatever name: 202, or 200 with Slack's challenge."""
    receivers = [receiver for receiver in surface.receivers if receiver.source_type != "cairn"]
    taken = 0

    @HYPOTHESIS
    @given(st.sampled_from(receivers), BODIES, HEADERS, VALUES)
    def genuine(receiver: Receiver, body: bytes, headers: Any, name: bytes) -> None:
        nonlocal taken
        own = {key: value.encode() for key, value in receiver.headers(body).items()}
        own |= {key: name for key in own if key.endswith(("-event", "-delivery", "-delivery-id"))}
        free = [key for key, _ in headers if key in FREE_HEADERS]
        request = [(key, value) for key, value in own.items() if key not in free]
        request += [(key, value) for key, value in headers if key in free or key not in NAMED]
        status, _, answer = surface.ask("POST", f"/webhooks/w/{receiver.token}", request, body)
        assert status in (202, 200 if receiver.source_type == "slack" else 202), answer
        taken += json.loads(answer).get("created", 0)

    genuine()
    assert db.value("select count(*) from switchboard.todos") == taken > 100
    assert "Traceback" not in caplog.text


def test_any_message_of_mcp(surface: Surface, caplog) -> None:
    session = surface.session
    tools = [tool["name"] for tool in session.ask("tools/list")["result"]["tools"]]
    arguments = st.dictionaries(st.sampled_from(ARGUMENTS), JSON, max_size=4)
    calls = st.builds(
        lambda tool, given: {"name": tool, "arguments": given},
        st.sampled_from(tools) | TEXTS,
        arguments | JSON,
    )
    methods = st.sampled_from(["tools/call", "tools/list", "initialize", "ping", "x"]) | TEXTS
    messages = st.one_of(
        st.builds(
            lambda method, params, number: {
                "jsonrpc": "2.0",
                "id": number,
                "method": method,
                "params": params,
            },
            methods,
            calls | JSON,
            st.integers(1) | TEXTS,
        ),
        st.builds(
            lambda params: {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
            calls,
        ),
        JSON,
    )
    mine = [
        (name, value.encode())
        for name, value in session.headers.items()
        if name != "mcp-session-id"
    ]
    codes: set[str] = set()

    @HYPOTHESIS
    @given(messages, st.booleans(), HEADERS)
    def message(value: Any, in_session: bool, more: Any) -> None:
        headers = [*mine, ("mcp-session-id", session.id.encode())] if in_session else list(mine)
        own = {name for name, _ in headers} | {"mcp-session-id"}
        headers += [(name, given) for name, given in more if name not in own]
        body = json.dumps(value).encode()
        surface.check("POST", "/mcp/alpha", headers, body)
        status, _, answer = surface.ask("POST", "/mcp/alpha", headers, body)
        if status == 200 and answer:
            content = json.loads(answer).get("result", {}).get("structuredContent", {})
            codes.add(content.get("error", {}).get("code", "ok"))

    message()
    assert "internal" not in codes
    assert codes & {"invalid_argument", "ok"}, "it got as far as the tools"
    assert "Traceback" not in caplog.text
    until(lambda: session.call("list_todos")["todos"] is not None, "the session goes on")
