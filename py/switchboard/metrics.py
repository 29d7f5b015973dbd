"""``/metrics`` for Prometheus: what the database counts, and how often it could not be asked.

No metric is named here but the two that are this process's own: its version, and the collectors
that failed. The others come from ``metrics()``, one statement a collector, so that one that fails
or takes too long is left out and leaves the rest alone. At most one scrape is collected at a time,
and those who ask meanwhile get what it finds.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import psycopg
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from switchboard import __version__, logs
from switchboard.auth import bearer
from switchboard.db import METRIC_COLLECTORS, METRICS, Database
from switchboard.errors import ErrorTable, own, rate_limited
from switchboard.guard import problem_response

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.requests import Request

    from switchboard.limits import RateLimit

logger = logging.getLogger(__name__)

COLLECTOR_SECONDS = 3.0
KEEP_SECONDS = 1.0
KINDS = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
REGISTER = "register"  # the collector that says which there are

Row = tuple[str, str, str, dict[str, str], float]


class Metrics:
    """Answers scrapes.

    Args:
        database: what is counted.
        failures: how often an address may show a wrong token.
        token: the bearer token that is asked for.
    """

    def __init__(self, database: Database, failures: RateLimit, token: str) -> None:
        self._database = database
        self._failures = failures
        self._token = token.encode()
        self._errors: Counter[str] = Counter()
        self._turn = asyncio.Lock()
        self._text = b""
        self._collected_at = float("-inf")

    async def show(self, request: Request) -> Response:
        """Answer one scrape; a wrong token is the same 401 as everywhere."""
        client = request.client.host if request.client else ""
        given = bearer(request.headers.getlist("authorization"))
        if not hmac.compare_digest(given, self._token):
            wait = self._failures.take(client)
            problem = rate_limited(wait) if wait else own("unauthenticated")
            return problem_response(problem, ErrorTable())
        asked_at = time.monotonic()
        async with self._turn:
            if self._collected_at < asked_at - KEEP_SECONDS:
                self._text = await self._collect()
                self._collected_at = time.monotonic()
        return Response(self._text, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _collect(self) -> bytes:
        started = time.perf_counter()
        rows: list[Row] = []
        failed: list[str] = []
        collectors = await self._read(REGISTER, METRIC_COLLECTORS, (), failed)
        for collector in collectors[0][0] if collectors else ():
            self._errors[collector] += 0
            rows += await self._read(collector, METRICS, (collector,), failed)
        self._errors.update(failed)
        logs.event("metrics", failed=failed, ms=logs.milliseconds(started))
        return exposition([*rows, *self._own()])

    async def _read(
        self, collector: str, query: Any, params: Sequence[str], failed: list[str]
    ) -> list[Any]:
        try:
            async with asyncio.timeout(COLLECTOR_SECONDS):
                return await self._database.rows(query, params)
        except (psycopg.Error, TimeoutError) as error:
            logger.warning("metrics of %s not read: %s", collector, type(error).__name__)
            failed.append(collector)
            return []

    def _own(self) -> Iterable[Row]:
        yield "switchboard_build_info", "gauge", "The version.", {"version": __version__}, 1.0
        text = "How often the metrics of a collector could not be read."
        for collector, count in self._errors.items():
            labels = {"collector": collector}
            yield "switchboard_metrics_collection_errors_total", "counter", text, labels, count


class _Samples(Collector):
    """Rows as the families that prometheus-client writes."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._families: dict[str, Metric] = {}
        for name, kind, text, labels, value in rows:
            family = self._families.get(name)
            if family is None:
                family = self._families[name] = KINDS[kind](name, text)
            sample = name if kind == "gauge" else name.removesuffix("_total") + "_total"
            family.add_sample(sample, labels, value)

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self._families.values()


def exposition(rows: Iterable[Row]) -> bytes:
    """Rows in Prometheus' text format; a metric's rows may be anywhere among the others."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Samples(rows))
    return generate_latest(registry)
