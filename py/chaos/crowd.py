"""A crowd at the server's door: many calls and many streams at once, none of which changes a todo.

Calls of agents, of the REST interface and of the board come in together with streams of both kinds.
Whatever the server lacks, each has to be answered in time, and who cannot be served has to be told
when to come back: ``judge`` says who was not.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import psycopg

from chaos.hands import McpHands, Row
from chaos.load import Place
from switchboard import secrets

STREAM = {"accept": "text/event-stream"}
OPEN_SECONDS = 40.0


@dataclass
class Answer:
    """What one of the crowd got.

    Attributes:
        kind: ``agent``, ``rest``, ``board``, ``agent stream`` or ``board stream``.
        status: of HTTP; 0 when the connection ended without one, or nothing came in time.
        code: of a tool's refusal, or what went wrong; empty when all is well.
        retry_after: whether the answer says when to come back.
        seconds: how long it took.
    """

    kind: str
    status: int = 0
    code: str = ""
    retry_after: bool = False
    seconds: float = 0.0

    @property
    def served(self) -> bool:
        """Whether it got what it asked for."""
        return self.status == 200 and not self.code


class Crowd:
    """Who comes; their sessions are opened here, while there is no crowd yet.

    Args:
        admin: a superuser's connection.
        server: the server's address.
        place: whose endpoints the agents have.
    """

    def __init__(self, admin: psycopg.Connection[Row], server: str, place: Place) -> None:
        self.server = server
        token = _one(admin, "select token from switchboard.create_operator_token(%s, 'crowd')",
                     place.human)  # fmt: skip
        cookie = secrets.mint("sbs_")
        _one(admin, "select switchboard.open_session_by_token(%s, %s) as session",
             secrets.digest(token), secrets.digest(cookie))  # fmt: skip
        self.rest = {"authorization": f"Bearer {token}"}
        self.board = {"cookie": f"switchboard={cookie}"}
        self.agents: list[tuple[str, dict[str, str]]] = []
        for number in range(10):
            endpoint = place.endpoints[number % len(place.endpoints)]
            hands = McpHands({"server": server, "endpoints": place.endpoints}, "crowd")
            hands.open(endpoint)
            headers = {
                "authorization": f"Bearer {endpoint['credential']}",
                "mcp-session-id": hands.sessions[endpoint["id"]],
                "mcp-protocol-version": "2025-11-25",
            }
            self.agents.append((f"{server}/mcp/{endpoint['slug']}", headers))
            hands.http.close()

    def rush(self, calls: int, streams: int) -> list[Answer]:
        """All of them at once; returns what they got when the last has got it.

        Args:
            calls: how many calls.
            streams: how many streams, which stay open until every call is answered.
        """
        return asyncio.run(self._rush(calls, streams))

    async def _rush(self, calls: int, streams: int) -> list[Answer]:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx2.AsyncClient(timeout=OPEN_SECONDS, limits=limits) as http:
            over = asyncio.Event()
            watching = [asyncio.create_task(self._watch(http, n, over)) for n in range(streams)]
            asking = [self._timed(self._call(http, number)) for number in range(calls)]
            answers = await asyncio.gather(*asking)
            over.set()
            return [*answers, *await asyncio.gather(*watching)]

    async def _timed(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        started = time.monotonic()
        answer = await call
        answer.seconds = time.monotonic() - started
        return answer

    async def _call(self, http: httpx2.AsyncClient, number: int) -> Answer:
        kind = ("agent", "rest", "board")[number % 3]
        try:
            if kind == "agent":
                return await self._list(http, number)
            if kind == "rest":
                address = f"{self.server}/api/v1/todos?limit=5"
                return _answer(kind, await http.get(address, headers=self.rest))
            return _answer(kind, await http.get(f"{self.server}/", headers=self.board))
        except httpx2.HTTPError as error:
            return Answer(kind, code=type(error).__name__)

    async def _list(self, http: httpx2.AsyncClient, number: int) -> Answer:
        address, headers = self.agents[number % len(self.agents)]
        params = {"name": "list_todos", "arguments": {"limit": 5}}
        message = {"jsonrpc": "2.0", "id": number + 1, "method": "tools/call", "params": params}
        types = {"accept": "application/json", "content-type": "application/json"}
        given = await http.post(address, content=json.dumps(message), headers=headers | types)
        answer = _answer("agent", given)
        if answer.served:
            content = given.json()["result"]["structuredContent"]
            answer.code = content.get("error", {}).get("code", "")
        return answer

    async def _watch(self, http: httpx2.AsyncClient, number: int, over: asyncio.Event) -> Answer:
        """Open a stream, wait until it says something, and keep it until the crowd goes."""
        agent = number % 2 == 1
        kind = "agent stream" if agent else "board stream"
        address, headers = self.agents[number // 2 % len(self.agents)]
        if not agent:
            address, headers = f"{self.server}/events?page=exchange", self.board
        answer, started = Answer(kind), time.monotonic()
        try:
            async with http.stream("GET", address, headers=headers | STREAM) as given:
                answer.status, answer.retry_after = _head(given)
                if not agent:  # the head of a board's stream comes before the database is asked
                    first = await anext(given.aiter_lines(), "")
                    answer.code = "" if "hello" in first else f"ended: {first}"
                answer.seconds = time.monotonic() - started
                if answer.served:
                    await over.wait()
        except httpx2.HTTPError as error:
            answer.code = type(error).__name__
        answer.seconds = answer.seconds or time.monotonic() - started
        return answer


def judge(answers: Sequence[Answer], longest: float) -> tuple[Counter[str], list[str]]:
    """How many were served and refused, and what should not be.

    Args:
        answers: of a rush.
        longest: seconds that an answer may take.
    """
    counts: Counter[str] = Counter()
    wrong = []
    for answer in answers:
        stream_ended = answer.kind == "board stream" and answer.code.startswith("ended")
        refused = answer.status == 503 or answer.code == "unavailable" or stream_ended
        counts["served" if answer.served else "refused" if refused else "failed"] += 1
        if answer.seconds > longest:
            wrong.append(f"{answer.kind}: answered after {answer.seconds:.1f} s")
        if not (answer.served or refused):
            wrong.append(f"{answer.kind}: {answer.status} {answer.code}")
        if answer.status == 503:
            counts["503"] += 1
            if not answer.retry_after:
                wrong.append(f"{answer.kind}: 503 without Retry-After")
    return counts, wrong


def _answer(kind: str, given: httpx2.Response) -> Answer:
    status, retry_after = _head(given)
    return Answer(kind, status, retry_after=retry_after)


def _head(given: httpx2.Response) -> tuple[int, bool]:
    return given.status_code, given.headers.get("retry-after", "").isdigit()


def _one(admin: psycopg.Connection[Row], query: str, *params: Any) -> Any:
    row = admin.execute(query, params).fetchone()
    return next(iter((row or {}).values()))
