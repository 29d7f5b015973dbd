"""What there is to do: three endpoints, five queues, their budgets, and what each client is told.

``narrow`` may have 3 in flight on each endpoint, ``single`` 1, ``hourly`` is claimed so often an
hour and no more; ``inbox`` and ``review`` are free. When the faults are over, the budgets are
raised.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.types.json import Jsonb

from chaos.hands import McpHands, Row
from chaos.processes import Client

ENDPOINTS = ("alpha", "beta", "gamma")
QUEUES = ("inbox", "review", "narrow", "single", "hourly")
SHARES = {"inbox": 0.4, "review": 0.3, "narrow": 0.13, "single": 0.05, "hourly": 0.12}
PLENTY = 10_000
VERBS = [
    "claim", "claim_next", "heartbeat", "complete", "fail", "release", "retry", "list_todos",
    "get_todo", "create_webhook", "admission_status",
]  # fmt: skip
HOUR = {"period": "hour", "tz": "UTC", "start": "00:00"}
BUDGETS: dict[str, Row] = {
    "narrow": {"max_in_flight": 3},
    "single": {"max_in_flight": 1},
    "hourly": {"max_claims_per_window": 12, "window": HOUR},
}
LEASES = (1, 2)
WORKER_RATE, PRODUCER_RATE = 10.0, 5.0


@dataclass
class Place:
    """What was set up for a run.

    Attributes:
        human: who owns the endpoints.
        endpoints: [{id, slug, credential}].
        hooks: [{id, path, secret, endpoint, queue}].
        budgets: the policy of each budgeted queue, the same on all endpoints.
    """

    human: str = ""
    endpoints: list[Row] = field(default_factory=list)
    hooks: list[Row] = field(default_factory=list)
    budgets: dict[str, Row] = field(default_factory=lambda: dict(BUDGETS))


def set_up(admin: psycopg.Connection[Row], server_url: str) -> Place:
    """Make endpoints, budgets and receivers on an empty database with a server before it."""
    place = Place()
    row = admin.execute("select id from switchboard.create_human('chaos')").fetchone() or {}
    place.human = str(row["id"])
    for slug in ENDPOINTS:
        vended = admin.execute(
            "select * from switchboard.vend_endpoint(%s, %s, %s, %s, 2)",
            (place.human, slug, list(QUEUES), VERBS),
        ).fetchone()
        if vended is not None:
            place.endpoints.append(
                {"id": str(vended["endpoint_id"]), "slug": slug, "credential": vended["credential"]}
            )
    set_budgets(admin, place, place.budgets)
    agent = McpHands({"server": server_url, "endpoints": place.endpoints}, "set-up")
    for endpoint in place.endpoints:
        agent.open(endpoint)
        for queue in ("inbox", "review"):
            place.hooks.append(_hook(agent, endpoint, queue))
    agent.http.close()
    return place


def set_budgets(admin: psycopg.Connection[Row], place: Place, budgets: Mapping[str, Row]) -> None:
    """Set the policy of each of these queues, on all endpoints."""
    for endpoint in place.endpoints:
        for queue, policy in budgets.items():
            admin.execute(
                "select switchboard.set_admission_policy(%s, %s, %s, %s)",
                (endpoint["id"], queue, Jsonb(policy), place.human),
            )


def raised(budgets: Mapping[str, Row]) -> dict[str, Row]:
    """The budgets with limits that stop nobody."""
    limits = ("max_in_flight", "max_claims_per_window")
    return {
        queue: {name: PLENTY if name in limits else value for name, value in policy.items()}
        for queue, policy in budgets.items()
    }


def clients(
    folder: Path, place: Place, urls: Row, seed: int, workers: Mapping[str, Any],
    producers: Mapping[str, Any],
) -> tuple[list[Client], list[Client]]:  # fmt: skip
    """The workers (three over SQL, one over MCP) and the producers, not started.

    Args:
        folder: of the run.
        place: from ``set_up``.
        urls: ``url`` of the database for an operator, ``server`` of the HTTP server.
        seed: of the run.
        workers: options over those of the load; of a tuple each client gets one element, in turn.
        producers: the same, for the producers.
    """
    common = {
        **urls, "folder": str(folder), "seed": seed, "endpoints": place.endpoints,
        "queues": QUEUES, "leases": LEASES, "hooks": place.hooks, "shares": SHARES,
        "budgeted": list(place.budgets),
        "statement_timeout": "20s",
    }  # fmt: skip
    working = [
        Client(folder, name, kind, {**common, "rate": WORKER_RATE, **_share(workers, i)})
        for i, (name, kind) in enumerate(
            (("sql-1", "sql-worker"), ("sql-2", "sql-worker"), ("sql-3", "sql-worker"),
             ("mcp-1", "mcp-worker"))
        )
    ]  # fmt: skip
    working[0].options.setdefault("overrides", True)
    producing = [
        Client(folder, name, kind, {**common, "rate": PRODUCER_RATE, **_share(producers, i)})
        for i, (name, kind) in enumerate((("maker", "sql-producer"), ("sender", "hook-producer")))
    ]
    return working, producing


def _share(options: Mapping[str, Any], number: int) -> Row:
    return {
        name: value[number % len(value)] if isinstance(value, tuple) else value
        for name, value in options.items()
    }


def _hook(agent: McpHands, endpoint: Row, queue: str) -> Row:
    wanted = {"source_type": "github", "target_queue": queue}
    answer = agent.tool(endpoint, "create_webhook", wanted)
    if "error" in answer:
        raise ValueError(json.dumps(answer))
    return {
        "id": answer["webhook_id"], "path": urlsplit(answer["ingest_url"]).path,
        "secret": answer["signing_secret"], "endpoint": endpoint["id"], "queue": queue,
    }  # fmt: skip
