"""What one call reads: buffers of the whole call, and the plans of every statement inside of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from bench.product import LOGIN

if TYPE_CHECKING:
    from bench.cluster import Cluster

BIG = 1_000  # rows that no statement of a claim may sort, scan or throw away


@dataclass(frozen=True)
class Call:
    """A function call to look at: SQL text with placeholders, and their values."""

    text: str
    values: Sequence[object]


def buffers(connection: psycopg.Connection[Any], call: Call) -> int:
    """Run a call under EXPLAIN (ANALYZE, BUFFERS); returns shared and local buffers, hit or read.

    What the statements inside of the function touch is counted with the call.
    """
    explain = sql.SQL("explain (analyze, buffers, timing off, format json) ") + sql.SQL(call.text)
    query = psycopg.ClientCursor(connection).mogrify(explain, call.values)
    row = connection.execute(query).fetchone()
    assert row is not None
    plan = (row[0] if isinstance(row[0], list) else json.loads(row[0]))[0]["Plan"]
    kinds = ("Shared Hit", "Shared Read", "Local Hit", "Local Read", "Temp Read", "Temp Written")
    return sum(int(plan.get(f"{kind} Blocks", 0)) for kind in kinds)


def nested_plans(server: Cluster, database: str, calls: Sequence[Call]) -> list[Mapping[str, Any]]:
    """Run calls as the ordinary login with auto_explain; returns the plans of all statements."""
    plans: list[Mapping[str, Any]] = []
    with server.connect(database) as connection:
        connection.execute("load 'auto_explain'")
        for setting, value in (
            ("log_min_duration", "0"), ("log_analyze", "on"), ("log_timing", "off"),
            ("log_nested_statements", "on"), ("log_format", "json"), ("log_level", "notice"),
        ):  # fmt: skip
            connection.execute(f"set auto_explain.{setting} = '{value}'")
        connection.execute(f"set session authorization {LOGIN}")
        connection.add_notice_handler(
            lambda notice: plans.extend(_plan_of(notice.message_primary or ""))
        )
        for call in calls:
            connection.execute(call.text, call.values)
    return plans


def _plan_of(message: str) -> Iterator[Mapping[str, Any]]:
    _, found, plan = message.partition("plan:\n")
    if found:
        yield json.loads(plan)


def offences(plans: Sequence[Mapping[str, Any]]) -> list[str]:
    """The nodes that sort, scan or throw away more than BIG rows."""
    found = []
    for plan in plans:
        for node in _nodes(plan["Plan"]):
            rows = int(node.get("Actual Rows", 0) * node.get("Actual Loops", 1))
            removed = int(node.get("Rows Removed by Filter", 0))
            if rows > BIG or removed > BIG:
                relation = node.get("Relation Name", "")
                statement = " ".join(str(plan.get("Query Text", "")).split())[:80]
                found.append(f"{node['Node Type']} {relation} ({rows} rows): {statement}")
    return found


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)
