"""A line a request, with its route and how it went, and nothing secret."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from conftest import Served, Sql, until
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from switchboard import logs
from switchboard.access import Access, error_code
from switchboard.config import Settings

SECRET = "sbk_" + "S3cr3t-" * 6 + "x"
PLAIN = "hunter2hunter2hunter2"  # looks like nothing


class Lines:
    """The finished lines, as they would be written."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.handler = logging.Handler()
        self.handler.setFormatter(logs.JsonFormatter())
        self.handler.emit = self._keep  # type: ignore[method-assign]

    def _keep(self, record: logging.LogRecord) -> None:
        self.texts.append(self.handler.format(record))

    def requests(self) -> list[dict[str, Any]]:
        lines = [json.loads(text) for text in self.texts]
        return [line for line in lines if "route" in line]

    def last(self, count: int = 1) -> dict[str, Any]:
        until(lambda: len(self.requests()) >= count, "the request is logged")
        assert len(self.requests()) == count
        return self.requests()[-1]


@pytest.fixture
def lines() -> Iterator[Lines]:
    kept, root = Lines(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    chatty = {name: logging.getLogger(name).level for name in logs._CHATTY}
    logs.configure(Settings(log_format="json"))
    root.handlers[:] = [kept.handler]
    yield kept
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in chatty.items():
        logging.getLogger(name).setLevel(before)


async def fine(request: Request) -> Response:
    return JSONResponse({"id": request.path_params.get("id")})


async def told(_: Request) -> Response:
    logs.event("mcp.call", endpoint="alpha", tool="claim", outcome="conflict", ms=99.0)
    logs.event("outbound.failed", status="timeout")
    logs.event("mcp.call", tool="another", ms=1.0)
    return JSONResponse({})


async def refused(_: Request) -> Response:
    return JSONResponse({"error": "no", "code": "forbidden"}, 403)


async def broken(_: Request) -> Response:
    raise RuntimeError


def client(**options: Any) -> TestClient:
    routes = [
        Route("/todos/{id}", fine),
        Route("/todos/{id}/claim", fine, methods=["POST"]),
        Route("/told", told),
        Route("/refused", refused),
        Route("/broken", broken),
        Mount("/api", routes=[Route("/inner/{id}", fine)]),
    ]
    return TestClient(Starlette(routes=routes, middleware=[Middleware(Access)]), **options)


@pytest.mark.parametrize(
    ("method", "path", "route", "status", "outcome"),
    [
        ("GET", "/todos/17?q=x", "/todos/{id}", 200, "ok"),
        ("HEAD", "/todos/claim", "/todos/{id}", 200, "ok"),
        ("POST", "/todos/claim/claim", "/todos/{id}/claim", 200, "ok"),
        ("GET", "/api/inner/1", "/api/inner/{id}", 200, "ok"),
        ("GET", "/api/elsewhere", "/api/*", 404, "http_404"),
        ("GET", "/nowhere", "-", 404, "http_404"),
        ("DELETE", "/todos/17", "/todos/{id}", 405, "http_405"),
        ("GET", "/refused", "/refused", 403, "forbidden"),
    ],
)
def test_a_request_is_one_line(
    lines: Lines, method: str, path: str, route: str, status: int, outcome: str
) -> None:
    client().request(method, path)
    line = lines.last()
    assert line.pop("ms") >= 0
    assert {key: line[key] for key in ("event", "method", "route", "status", "outcome")} == {
        "event": "http.request",
        "method": method,
        "route": route,
        "status": status,
        "outcome": outcome,
    }


def test_who_serves_a_request_says_how_it_went_once(lines: Lines) -> None:
    client().get("/told")
    first, second, third = (json.loads(text) for text in lines.texts)
    assert (first["event"], second["event"]) == ("outbound.failed", "mcp.call")
    assert second["tool"] == "another"
    assert "route" not in second
    assert (third["event"], third["endpoint"], third["tool"]) == ("mcp.call", "alpha", "claim")
    assert (third["route"], third["status"], third["outcome"]) == ("/told", 200, "conflict")
    assert third["ms"] < 99


def test_a_fault_is_logged_as_one(lines: Lines) -> None:
    client(raise_server_exceptions=False).get("/broken")
    line = lines.last()
    assert (line["route"], line["outcome"]) == ("/broken", "internal")


def test_nothing_is_collected_when_nothing_is_logged(lines: Lines) -> None:
    logging.getLogger().setLevel(logging.WARNING)
    client().get("/told")
    assert lines.texts == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[1]", b'{"code": 3}', b'{"code": "A b"}', b'{"code": "ok"' + b" " * 5000 + b"}"],
)
def test_a_body_without_a_code_has_none(body: bytes) -> None:
    assert error_code(body) is None


def test_of_a_path_a_query_and_headers_nothing_is_written(lines: Lines) -> None:
    with client() as http:
        for secret in (SECRET, PLAIN):
            http.get(f"/todos/{secret}?token={secret}", headers={"authorization": secret})
            http.get(f"/api/{secret}", headers={"cookie": f"switchboard={secret}"})
            http.get(f"/{secret}", headers={"x-hub-signature-256": secret, "host": secret})
            http.request("DELETE", f"/todos/{secret}", headers={"referer": f"http://x/{secret}"})
    written = "\n".join(lines.texts)
    assert len(lines.requests()) == 8
    assert "S3cr3t" not in written
    assert PLAIN not in written


@pytest.mark.parametrize(
    "text",
    [
        f"POST /webhooks/w/{PLAIN}",
        f"GET /sign-in/{PLAIN}",
        f"GET /sign-in/oidc/callback?code={PLAIN}&state={PLAIN}",
        f"authorization: Bearer {PLAIN}",
        f"Basic {PLAIN}",
        f"postgresql://me:{PLAIN}@host/db",
        f"https://x/?access_token={PLAIN}",
    ],
)
def test_what_stands_where_secrets_stand_is_masked(text: str) -> None:
    assert PLAIN not in logs.mask(text)
    assert "***" in logs.mask(text)


def test_an_address_without_a_secret_stays() -> None:
    for text in ("http://127.0.0.1:8460/mcp/agent", "GET /sign-in/oidc", "a bearer token"):
        assert logs.mask(text) == text


# The gateway, as it is served.


@pytest.fixture
def gateway(serve: Callable[..., Served], lines: Lines) -> Served:
    return serve(metrics_token="m3tr1c-t0ken-m3tr1c")


def test_every_request_to_the_gateway_has_one_line(
    gateway: Served, db: Sql, lines: Lines, settings: Callable[..., Settings]
) -> None:
    agent = db.vend("alpha")
    session = gateway.session(agent)
    session.call("claim_next")
    urls = {
        "/healthz": "/healthz",
        "/readyz": "/readyz",
        "/metrics": "/metrics",
        f"/api/v1/todos/{PLAIN}": "/api/v1/todos/{id}",
        f"/webhooks/w/{PLAIN}": "/webhooks/w/{token}",
        f"/nothing/{PLAIN}": "-",
    }
    for path in urls:
        httpx2.get(gateway.url + path, headers={"authorization": f"Bearer {SECRET}"})
    httpx2.get(gateway.url + "/healthz", headers={"host": f"{PLAIN}.example"})
    until(lambda: len(lines.requests()) >= 10, "all are logged")
    made = lines.requests()
    assert len(made) == 10
    hello, initialized, call, *rest = made
    for line in (hello, initialized, call):
        assert (line["route"], line["endpoint"]) == ("/mcp/{slug}", "alpha")
    assert (call["event"], call["tool"], call["outcome"]) == ("mcp.call", "claim_next", "ok")
    for line, route in zip(rest, [*urls.values(), "/healthz"], strict=True):
        assert line["route"].startswith(route)
        assert line["status"] != 0
        assert line["ms"] >= 0
    assert rest[2]["outcome"] == rest[3]["outcome"] == "unauthenticated"
    assert (rest[-1]["status"], rest[-1]["outcome"]) == (421, "forbidden")
    written = "\n".join(lines.texts)
    assert [s for s in (SECRET, PLAIN, agent.credential, "m3tr1c") if s in written] == []


def test_a_delivery_has_one_line(gateway: Served, db: Sql, lines: Lines) -> None:
    httpx2.post(f"{gateway.url}/webhooks/w/{PLAIN}", content=b"{}")
    line = lines.last()
    assert (line["event"], line["route"]) == ("webhook.delivery", "/webhooks/w/{token}")
    assert (line["status"], line["outcome"]) == (404, "not_found")
    assert PLAIN not in json.dumps(lines.requests())
