"""Talking to the REST interface: who asks, and what is documented."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
from conftest import Served, Sql

FREE = {"failure_rate": 1e6, "failure_burst": 10**6, "mcp_rate": 1e6, "mcp_burst": 10**6}
UNKNOWN = "01890000-0000-7000-8000-00000000dead"


def token(db: Sql, human: Any, name: str = "test") -> str:
    query = "select token from switchboard.create_operator_token(%s, %s)"
    return str(db.value(query, human, name))


class Client:
    """A human with a token."""

    def __init__(self, served: Served, bearer: str) -> None:
        self.http = httpx2.Client(base_url=served.url, timeout=30)
        self.headers = {"authorization": f"Bearer {bearer}"}

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        """Send it; a body that is no bytes is sent as JSON."""
        sent = {**self.headers, **headers}
        if body is not None:
            sent.setdefault("content-type", "application/json")
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        return self.http.request(method, f"/api/v1{path}", content=content, headers=sent)


def closed(document: dict[str, Any]) -> dict[str, Any]:
    """The document, stricter than callers should be: no answer has a field it does not name.

    Errors are left open: what details they have depends on their code.
    """
    copy: dict[str, Any] = json.loads(json.dumps(document))
    schemas = [s for name, s in copy["components"]["schemas"].items() if name != "Error"]
    for _, _, operation in operations(copy):
        content = operation["responses"]["200"]["content"]
        schemas.append(content["application/json"]["schema"])
    for schema in schemas:
        schema["additionalProperties"] = False
    return copy


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and description of each operation."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation
