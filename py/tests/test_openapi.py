"""The OpenAPI document is true: every operation is called, and every answer compared with it.

A tour calls each operation so that it succeeds; then schemathesis makes up calls from the document,
right ones and wrong ones. The document is read closed: a field that it does not name is a fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
import schemathesis
from conftest import Served, Sql, until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rest_kit import FREE, UNKNOWN, Client, closed, operations, token
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS
from starlette.routing import Route

from switchboard.openapi import shape_schema

# The server draws from `random` while an example is made, which hypothesis takes for its doing.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the .random. module:hypothesis.errors.HypothesisDeprecationWarning"
)

HOOK = "http://127.0.0.1:9/wake"
HOOKS = {"outbound_http": True, "outbound_private": ("127.0.0.0/8",), "outbound_ports": (9,)}
# What is held to the document. That right arguments are taken is not: no document can say which
# cursor a page gave, which verb there is, which time is to come.
HELD_TO = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "negative_data_rejection",
)


class Tour:
    """A human who calls, and has every answer compared with the document."""

    def __init__(self, served: Served, db: Sql) -> None:
        self.served, self.db = served, db
        self.client = Client(served, token(db, db.human))
        self.document = closed(self.client.ask("GET", "/openapi.json").json())
        self.schema = schemathesis.openapi.from_dict(self.document)
        self.names = {(p, m): o["operationId"] for p, m, o in operations(self.document)}
        self.seen: set[str] = set()
        self.bodies: list[str] = []

    def __call__(
        self, method: str, template: str, body: Any = None, query: str = "", **path: str
    ) -> Any:
        """The value of an answer that is a success."""
        address = f"/api/v1{template}"
        where = template.format(**path)
        response = self.client.ask(method, where + (f"?{query}" if query else ""), body)
        assert response.status_code == 200, (method, where, response.text)
        self.schema[address][method].validate_response(response)
        self.seen.add(self.names[address, method])
        self.bodies.append(response.text)
        return response.json()


@pytest.fixture
def tour(serve: Callable[..., Served], db: Sql) -> Iterator[Tour]:
    db.human = db.value("select id from switchboard.create_human('tester')")
    made = Tour(serve(**FREE, **HOOKS), db)
    yield made
    made.client.http.close()


def vended(tour: Tour) -> str:
    """An endpoint that may do everything; its slug."""
    verbs = [row["name"] for row in tour.db.rows("select name from switchboard.tools()")]
    types = [
        row["t"] for row in tour.db.rows("select source_type t from switchboard.source_types()")
    ]
    grant = {"queues": ["inbox", "other"], "verbs": verbs, "webhook_source_types": types}
    made = tour("POST", "/endpoints", {"slug": "alpha", "webhook_max": 9, **grant})
    assert made["mcp_url"] == f"{tour.served.url}/mcp/alpha"
    assert made["credential"].startswith("sbk_")
    return "alpha"


def made_todo(tour: Tour, **more: Any) -> str:
    body = {"endpoint": "alpha", "queue": "inbox", "title": "work", **more}
    todo: str = tour("POST", "/todos", body)["todo"]["id"]
    return todo


def delivered(tour: Tour, url: str, body: str = '{"a": 1}') -> str:
    """A delivery; the id of its todo."""
    kind = {"content-type": "application/json"}
    answer = httpx2.post(url, content=body, headers=kind).json()
    todo: str = answer["todos"][0]["id"] if "todos" in answer else answer["id"]
    return todo


def of_todos(tour: Tour) -> None:
    one = made_todo(
        tour, payload={"n": 1.5}, kind="k", source="s", max_attempts=1, assignee="op:tester"
    )
    again = {"endpoint": "alpha", "queue": "inbox", "title": "x", "idempotency_key": "key"}
    assert tour("POST", "/todos", again)["created"] is True
    assert tour("POST", "/todos", again)["created"] is False
    tour("GET", "/todos", query="state=pending&limit=1")
    tour("POST", "/todos/{id}/claim", {"lease_ttl_seconds": 60}, id=one)
    tour("GET", "/todos", query="q=key")
    tour("POST", "/todos/{id}/extend", {}, id=one)
    tour("POST", "/todos/{id}/fail", {"result": {"why": ["no"]}}, id=one)
    tour("GET", "/todos", query="state=failed&endpoint=alpha&queue=inbox")
    tour("POST", "/todos/{id}/retry", id=one)
    tour("POST", "/todos/{id}/claim", id=one)
    tour("POST", "/todos/{id}/release", {}, id=one)
    two = made_todo(tour)
    tour("POST", "/todos/{id}/claim", id=two)
    tour("GET", "/todos", query="state=claimed")
    tour("POST", "/todos/{id}/complete", {"result": 1}, id=two)
    assert tour("GET", "/todos/{id}", id=two)["todo"]["result"] == 1
    tour("GET", "/todos")


def of_budgets(tour: Tour) -> None:
    path = "/admission/{scope}/{queue}"
    here = {"scope": "endpoint:alpha", "queue": "inbox"}
    tour("GET", path, **here)
    window = {"period": "week", "tz": "Europe/Berlin", "start": "06:00", "weekday": "Mon"}
    policy = {"max_in_flight": 1, "max_claims_per_window": 2, "window": window}
    tour("PUT", path, policy, **here)
    one, two = made_todo(tour), made_todo(tour)
    tour("POST", "/todos/{id}/claim", id=one)
    tour("GET", "/todos/{id}", id=two)
    tour("GET", "/todos", query="state=pending")
    tour("GET", "/admission", query="limit=1&endpoint=alpha")
    tour("POST", "/todos/{id}/complete", id=one)
    tour("PUT", path, {"max_in_flight": 0}, **here)
    tour("GET", path, **here)
    tour("DELETE", path, **here)
    tour("GET", path, **here)


def of_receivers(tour: Tour) -> None:
    types = [
        row["t"] for row in tour.db.rows("select source_type t from switchboard.source_types()")
    ]
    for kind in types:
        made = tour(
            "POST", "/webhooks", {"endpoint": "alpha", "source_type": kind, "target_queue": "inbox"}
        )
        tour("POST", "/webhooks/{id}/rotate", id=made["webhook"]["id"])
        if kind != "open":
            tour("DELETE", "/webhooks/{id}", id=made["webhook"]["id"])
    own = {"endpoint": "alpha", "source_type": "github", "target_queue": "inbox"}
    given = tour("POST", "/webhooks", {**own, "signing_secret": "of the sender"})
    assert given["signing_secret"] == "of the sender"
    again = {"signing_secret": "another"}
    tour("POST", "/webhooks/{id}/rotate", again, id=given["webhook"]["id"])
    (hook,) = (w["id"] for w in tour("GET", "/webhooks")["webhooks"] if w["source_type"] == "open")
    url = tour("POST", "/webhooks/{id}/rotate", id=hook)["ingest_url"]
    assert url.startswith(f"{tour.served.url}/webhooks/w/")
    tour("POST", "/endpoints", {"slug": "beta", "queues": ["inbox"], "expires_in_days": 1})
    target = "/webhooks/{id}/routes/{target}"
    tour("POST", "/webhooks/{id}/routes", {"target_endpoint_id": "beta"}, id=hook)
    tour("GET", "/webhooks/{id}/routes", id=hook)
    first = delivered(tour, url)
    tour("DELETE", target, id=hook, target="beta")
    tour("POST", "/webhooks/{id}/hold", id=hook)
    second, third = delivered(tour, url, '{"a": 2}'), delivered(tour, url, "\xe9")
    of_events(tour, first, second, third)
    tour("POST", "/webhooks/{id}/unhold", id=hook)
    tour("GET", "/webhooks/{id}", id=hook)
    tour("GET", "/webhooks", query="endpoint=alpha&limit=1")


def of_events(tour: Tour, first: str, second: str, third: str) -> None:
    query = "quarantine=true"
    assert len(tour("GET", "/events", query=query)["events"]) == 2
    tour("POST", "/todos/{id}/release-quarantined", id=second)
    tour("POST", "/todos/{id}/discard-quarantined", id=third)
    rows = tour("GET", "/events", query="endpoint=alpha&limit=2")["events"]
    event = tour("GET", "/todos/{id}", id=first)["todo"]["event_id"]
    tour("POST", "/events/{id}/replay", {"endpoint": "alpha"}, id=event)
    tour("POST", "/events/{id}/replay", id=rows[0]["id"])
    tour("GET", "/events/{id}", id=event)
    tour("GET", "/events/{id}", id=rows[0]["id"])
    assert tour("GET", "/events/{id}/body", query="offset=1&limit=2", id=event)["text"] == '"a'
    tour("GET", "/events/{id}/body", id=rows[0]["id"])


def of_hooks(tour: Tour) -> None:
    made = tour("POST", "/hooks", {"endpoint": "alpha", "url": HOOK, "queues": ["other"]})
    assert made["signing_secret"].startswith("whsec_")
    tour("POST", "/hooks", {"endpoint": "alpha", "url": HOOK})
    tour("POST", "/hooks/{id}/rotate", id=made["hook"]["id"])
    tour("GET", "/hooks", query="limit=1")
    tour("DELETE", "/hooks/{id}", id=made["hook"]["id"])


def of_places(tour: Tour) -> None:
    here = {"endpoint": "alpha"}
    tour("GET", "/me")
    tour("GET", "/endpoints", query="limit=1")
    tour("GET", "/queues", query="endpoint=alpha")
    tour("PUT", "/endpoints/{endpoint}/grant", {"webhook_max": 3}, **here)
    tour("PUT", "/endpoints/{endpoint}/default-lease", {"lease_ttl_seconds": 90}, **here)
    tour("PUT", "/endpoints/{endpoint}/retention", {"days": 3, "rows": 10}, **here)
    tour("POST", "/endpoints/{endpoint}/rotate", {"grace_seconds": 60}, **here)
    tour("GET", "/endpoints/{endpoint}", **here)
    made = tour("POST", "/tokens", {"name": "more", "expires_at": "2999-01-01T00:00:00Z"})
    tour("GET", "/tokens")
    tour("DELETE", "/tokens/{token}", token=made["token"]["id"])
    nudge = (
        "insert into switchboard.queue_stall_nudges (endpoint_id, queue, nudges, last_nudged_at)"
    )
    tour.db.rows(f"{nudge} select id, 'inbox', 1, now() from switchboard.endpoints limit 1")
    assert tour("GET", "/health")["stalled"]
    tour("POST", "/endpoints/{endpoint}/revoke", **here)
    tour("GET", "/endpoints/{endpoint}", **here)


def test_every_operation_answers_as_documented(tour: Tour) -> None:
    vended(tour)
    for part in (of_todos, of_budgets, of_receivers, of_hooks, of_places):
        part(tour)
    assert tour.seen == set(tour.names.values())
    # What is secret stands in the one answer that makes it, and what is stored of it in none.
    secrets = set(re.findall(r"sb[kos]_[\w-]{43}|whsec_[\w+/=]{40,}", "".join(tour.bodies)))
    assert len(secrets) > 5
    assert all(sum(secret in body for body in tour.bodies) == 1 for secret in secrets)
    stored = [
        "select encode(digest, 'hex') from switchboard.credentials",
        "select encode(digest, 'hex') from switchboard.operator_tokens",
        "select encode(sealed_secret, 'hex') from switchboard.endpoint_webhooks",
    ]
    for query in stored:
        for row in tour.db.rows(query):
            assert not any(next(iter(row.values())) in body for body in tour.bodies)


def test_an_answer_that_is_not_as_documented_is_noticed(tour: Tour) -> None:
    """The comparison itself can fail."""
    response = tour.client.ask("GET", "/me")
    operation = tour.schema["/api/v1/me"]["GET"]
    assert operation.is_valid_response(response)
    human = response.json()["human"]
    for wrong in (
        {},
        {"human": None},
        {"human": {"id": human["id"]}},
        {"human": {**human, "id": "x"}},
        {"human": {**human, "name": 1}},
        {"human": {**human, "more": 1}},
        {"human": human, "more": 1},
    ):
        response._content = json.dumps(wrong).encode()
        assert response.json() == wrong
        assert not operation.is_valid_response(response), wrong


def test_the_document_is_openapi_and_what_is_served(tour: Tour) -> None:
    assert tour.document["openapi"] == "3.1.0"
    tour.schema.validate()  # by the metaschema of OpenAPI; raises
    mounted = next(r.app for r in tour.served.app.routes if getattr(r, "path", "") == "/api/v1")
    served = {
        (route.path, method)
        for route in mounted.routes
        if isinstance(route, Route)
        for method in (route.methods or ())
        if method != "HEAD"
    }
    assert served == set(tour.names) | {("/api/v1/openapi.json", "GET")}
    registered = tour.db.rows("select path, method, name from switchboard.api_operations()")
    assert tour.names == {(row["path"], row["method"]): row["name"] for row in registered}
    document = json.dumps(tour.document)
    named = set(re.findall(r"#/components/schemas/(\w+)", document))
    assert named == set(tour.document["components"]["schemas"])


def test_shapes_become_schemas() -> None:
    fields = {
        "Thing": {"id": "uuid", "at?": "time|null", "kind": "=a,b|null", "in": ["Thing", None]}
    }
    schema = shape_schema({"...": "Thing", "more": "any"}, fields)
    assert schema["required"] == ["id", "kind", "in", "more"]
    assert schema["properties"] == {
        "id": {"type": "string", "format": "uuid"},
        "at": {"type": ["string", "null"], "format": "date-time"},
        "kind": {"anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "null"}]},
        "in": {"type": ["array", "null"], "items": {"$ref": "#/components/schemas/Thing"}},
        "more": {},
    }


def known_ids(tour: Tour) -> dict[str, list[str]]:
    """What path arguments may name, so that not everything made up is unknown."""
    own = {"endpoint": "alpha", "queue": "inbox", "title": "work"}
    todos = [tour.client.ask("POST", "/todos", own).json()["todo"]["id"] for _ in range(3)]
    hook = {"endpoint": "alpha", "source_type": "open", "target_queue": "inbox"}
    webhook = tour.client.ask("POST", "/webhooks", hook).json()
    held = delivered(tour, webhook["ingest_url"])
    event = tour.client.ask("GET", f"/todos/{held}").json()["todo"]["event_id"]
    notify = tour.client.ask("POST", "/hooks", {"endpoint": "alpha", "url": HOOK}).json()
    return {
        "todos": todos,
        "webhooks": [webhook["webhook"]["id"]],
        "events": [event],
        "hooks": [notify["hook"]["id"]],
    }


def fuzz(tour: Tour, calls: Any, real: dict[str, list[str]], checks: Any) -> set[int]:
    """Make calls, with what there is in half of their path arguments; the statuses that came."""
    seen: set[int] = set()

    @settings(
        max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(calls, st.data())
    def ask(case: Any, data: st.DataObject) -> None:
        for argument in case.path_parameters or {}:
            if data.draw(st.booleans()):
                case.path_parameters[argument] = data.draw(st.sampled_from(real[argument]))
        response = case.call(base_url=tour.served.url, headers=dict(tour.client.headers))
        seen.add(response.status_code)
        case.validate_response(response, checks=checks)

    ask()
    return seen


@pytest.mark.timeout(300)
def test_whatever_is_asked_is_answered_as_documented(tour: Tour) -> None:
    vended(tour)
    ids = known_ids(tour)
    checks = CHECKS.get_by_names(list(HELD_TO))
    counted: dict[str, set[int]] = {}
    # Not revoked on the way: what comes after would be asked of nothing.
    fixed = {"scope": ["endpoint:alpha", "x"], "queue": ["inbox", "x"], "endpoint": ["alpha", "x"]}
    fixed |= {"token": ["nothing", UNKNOWN], "target": ["alpha", "x"]}
    for path, method, operation in operations(tour.document):
        name = operation["operationId"]
        made = tour.schema[path][method]
        real = {**fixed, "id": [*ids.get(path.split("/")[3], []), UNKNOWN, "x"]}
        if "revoke" in name:
            real["endpoint"] = ["x", "nothing"]

        calls = st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE]).flatmap(
            lambda mode, made=made: made.as_strategy(generation_mode=mode)
        )
        counted[name] = fuzz(tour, calls, real, checks)
    assert set(counted) == set(tour.names.values())
    assert sum(200 in statuses for statuses in counted.values()) > 20
    until(lambda: tour.client.ask("GET", "/me").status_code == 200, "it still answers")
