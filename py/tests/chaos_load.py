"""The load of test_restart.py: a sender, and workers as ``chaos_load.py JOURNAL sql|mcp …``.

A worker writes what was acknowledged to it into its journal, one JSON object a line. All workers
share an owner, so that only the token tells their leases apart, and some todos they keep until the
lease has lapsed, to be refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import hmac
import json
import os
import random
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, LiteralString, Protocol
from urllib.parse import urlsplit

import httpx2
import psycopg
from chaos_sessions import COMPLETE, Conflict, Row, Session
from conftest import Endpoint, RawSession, until

LEASE = 1
AHEAD = 60  # todos that nobody has completed yet, about
OWNER = "agent:chaos"
CLAIM: LiteralString = "select * from switchboard.claim_next(%s, %s, null, %s)"
CREATE: LiteralString = "select id from switchboard.create_todo(%s, 'inbox', 'made by a worker')"


class Lost(Exception):  # noqa: N818 (what the worker meets on purpose)
    """No answer: whether it was done is not known."""


class Hands(Protocol):
    """How a worker reaches the queue."""

    def claim(self) -> Row | None: ...

    def complete(self, todo: str, token: str) -> bool: ...

    def create(self) -> str | None: ...

    def close(self) -> None: ...


class SqlHands:
    def __init__(self, dsn: str, endpoint: str) -> None:
        self.endpoint = endpoint
        with lost_if(psycopg.OperationalError):
            self.session = Session(dsn)

    def claim(self) -> Row | None:
        with lost_if(psycopg.OperationalError):
            return next(iter(self.session.rows(CLAIM, self.endpoint, OWNER, LEASE)), None)

    def complete(self, todo: str, token: str) -> bool:
        with lost_if(psycopg.OperationalError), contextlib.suppress(Conflict):
            self.session.rows(COMPLETE, self.endpoint, todo, OWNER, token)
            return True
        return False

    def create(self) -> str | None:
        with lost_if(psycopg.OperationalError):
            return str(self.session.row(CREATE, self.endpoint)["id"])

    def close(self) -> None:
        self.session.connection.close()


class McpHands:
    def __init__(self, url: str, slug: str, credential: str) -> None:
        address = urlsplit(url)
        with lost_if(OSError):  # asked first, because making a client costs more than a question
            socket.create_connection((address.hostname, address.port), 5).close()
        self.session = RawSession(url, Endpoint("", slug, credential), start=False)
        try:
            with lost_if(httpx2.TransportError, AssertionError):
                self.session.start()
        except Lost:
            self.close()
            raise

    def call(self, tool: str, **arguments: Any) -> Any:
        request = self.session.request("tools/call", {"name": tool, "arguments": arguments})
        with lost_if(httpx2.TransportError):
            response = self.session.post(request)
        if response.status_code in (404, 503):  # the session of a server before; no database
            raise Lost
        content = response.json()["result"]["structuredContent"]
        if content.get("error", {}).get("code") == "unavailable":
            raise Lost
        return content

    def claim(self) -> Row | None:
        content: Row = self.call("claim_next", lease_ttl_seconds=LEASE)
        return content.get("todo")

    def complete(self, todo: str, token: str) -> bool:
        content = self.call("complete", id=todo, lease_token=token)
        assert content.get("error", {}).get("code") in (None, "conflict"), content
        return "error" not in content

    def create(self) -> str | None:
        return None

    def close(self) -> None:
        self.session.http.close()


HANDS = {"sql": SqlHands, "mcp": McpHands}


@contextlib.contextmanager
def lost_if(*errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise Lost from error


def work(journal: Path, kind: str, *arguments: str) -> None:
    """Claim, write it down, complete, write it down, until killed."""
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    kept: list[tuple[float, str, str]] = []
    hands: Hands | None = None

    def note(what: str, todo: str, token: str = "", **facts: Any) -> None:
        entry = {"what": what, "id": todo, "token": token, **facts}
        os.write(file, (json.dumps(entry, default=str) + "\n").encode())

    def end(own: Hands, todo: str, token: str) -> None:
        note("complete" if own.complete(todo, token) else "refused", todo, token)

    def step(own: Hands) -> bool:
        if kept and kept[0][0] <= time.monotonic():
            _, *ended = heapq.heappop(kept)
            end(own, *ended)
            return True
        row = own.claim()
        if row is None:
            return False
        todo, token, attempt = row["id"], row["lease_token"], row["attempt"]
        note("claim", todo, token, seq=attempt, until=row["lease_expires_at"])
        if attempt == 1 and random.randrange(10) == 0:  # comes back when another holds it
            heapq.heappush(kept, (time.monotonic() + LEASE * 1.3, todo, token))
        elif attempt == 2:  # the other
            heapq.heappush(kept, (time.monotonic() + LEASE * 0.7, todo, token))
        else:
            end(own, todo, token)
            if random.randrange(5) == 0 and (made := own.create()):
                note("create", made)
        return True

    def go_on() -> bool:
        nonlocal hands
        try:
            hands = hands or HANDS[kind](*arguments)
            return step(hands)
        except Lost:
            if hands:
                hands.close()
            hands = None
            return False

    while True:
        until(go_on, "there is work", 90)


class Sender(threading.Thread):
    """GitHub, which sends each delivery until it is taken, and never more than AHEAD too many."""

    def __init__(self, url: str, secret: str, done: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self.url, self.secret, self.done = url, secret.encode(), done
        self.stopped = threading.Event()
        self.taken: dict[str, str] = {}
        self.strange: list[str] = []

    def run(self) -> None:
        with httpx2.Client(timeout=15) as http:
            while not self.stopped.is_set():
                delivery = str(uuid.uuid4())
                until(lambda: self.stopped.is_set() or self.behind(), "todos are done", 120)
                until(partial(self.send, http, delivery), "the delivery is taken", 120)

    def end(self) -> None:
        self.stopped.set()
        self.join(30)
        assert not self.is_alive()

    def behind(self) -> bool:
        return len(self.taken) - self.done() < AHEAD

    def send(self, http: httpx2.Client, delivery: str) -> bool:
        body = json.dumps({"action": "opened", "delivery": delivery}).encode()
        headers = {
            "content-type": "application/json",
            "x-github-event": "pull_request",
            "x-github-delivery": delivery,
            "x-hub-signature-256": "sha256=" + hmac.digest(self.secret, body, hashlib.sha256).hex(),
        }
        try:
            answer = http.post(self.url, content=body, headers=headers)
        except httpx2.TransportError:
            return False
        if answer.status_code == 202:
            self.taken[delivery] = answer.json()["todos"][0]["id"]
        elif answer.status_code != 503:
            self.strange.append(f"{answer.status_code} {answer.text}")
        return answer.status_code == 202


if __name__ == "__main__":
    work(Path(sys.argv[1]), *sys.argv[2:])
