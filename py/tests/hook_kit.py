"""What the tests of hooks share: a receiver on loopback, and hooks that agents make over MCP."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import standardwebhooks
from conftest import KEY, Endpoint, RawSession, Served, Sql

from switchboard.secrets import Keyring

HOOK_VERBS = ["create_notify_hook", "list_notify_hooks", "rotate_notify_hook", "delete_notify_hook"]
VERBS = ["claim", "claim_next", "complete", "fail", "release", "retry", *HOOK_VERBS]


@dataclass(frozen=True)
class Arrival:
    """A call as the receiver got it.

    Attributes:
        at: monotonic seconds.
    """

    at: float
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def todo(self) -> str:
        return str(self.json["todo_id"])

    @property
    def reason(self) -> str:
        return str(self.json["reason"])

    def verify(self, secret: str) -> None:
        """Raises what the library of Standard Webhooks raises."""
        standardwebhooks.Webhook(secret).verify(self.body, self.headers)


Answer = Callable[[BaseHTTPRequestHandler, Arrival], None]


class HookReceiver:
    """Answers calls, and remembers them.

    Attributes:
        answer: a status, or what writes the answer.
        calls: in order of arrival.
        most: how many were under way at once; of one id, in ``most_of_one``.
    """

    def __init__(self, answer: int | Answer = 204, port: int = 0) -> None:
        self.answer = answer
        self.calls: list[Arrival] = []
        self.most = self.most_of_one = 0
        self.released = threading.Event()
        self._under_way: Counter[str] = Counter()
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver._take(self, Arrival(time.monotonic(), self.path, headers, body))

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                pass  # the caller went away

        self._server = Server(("127.0.0.1", port), Handler)
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/wake"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Answer nobody any more: connections are refused."""
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def of(self, todo: str) -> list[Arrival]:
        return [call for call in list(self.calls) if call.todo == todo]

    def _take(self, handler: BaseHTTPRequestHandler, arrival: Arrival) -> None:
        with self._lock:
            self.calls.append(arrival)
            self._under_way[arrival.id] += 1
            self.most = max(self.most, self._under_way.total())
            self.most_of_one = max(self.most_of_one, self._under_way[arrival.id])
        try:
            if isinstance(self.answer, int):
                respond(handler, self.answer)
            else:
                self.answer(handler, arrival)
        finally:
            with self._lock:
                self._under_way[arrival.id] -= 1


@contextmanager
def receiving(answer: int | Answer = 204, port: int = 0) -> Iterator[HookReceiver]:
    receiver = HookReceiver(answer, port)
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()


def respond(handler: BaseHTTPRequestHandler, status: int, **headers: str) -> None:
    """A whole answer without a body."""
    handler.send_response(status)
    for name, value in {"content_length": "0", **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()


def allowing(*receivers: HookReceiver) -> dict[str, Any]:
    """Settings of a gateway that may call these."""
    return {
        "outbound_http": True,
        "outbound_private": ("127.0.0.0/8",),
        "outbound_ports": tuple(receiver.port for receiver in receivers),
    }


def allowing_in_env(*receivers: HookReceiver) -> dict[str, str]:
    """The same, as the environment of a process."""
    return {
        "SWITCHBOARD_OUTBOUND_HTTP": "true",
        "SWITCHBOARD_OUTBOUND_PRIVATE": "127.0.0.0/8",
        "SWITCHBOARD_OUTBOUND_PORTS": ",".join(str(receiver.port) for receiver in receivers),
    }


class Hook:
    """A hook that an agent made over MCP."""

    def __init__(
        self,
        served: Served,
        endpoint: Endpoint,
        receiver: HookReceiver,
        queues: Sequence[str] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.session: RawSession = served.session(endpoint)
        arguments = {"url": receiver.url, **({"queues": list(queues)} if queues else {})}
        self.made = self.session.call("create_notify_hook", **arguments)
        assert "error" not in self.made, self.made
        self.id: str = self.made["hook_id"]
        self.secret: str = self.made["signing_secret"]

    def row(self) -> dict[str, Any]:
        """What list_notify_hooks says of it; what is NULL is left out."""
        hooks = self.session.call("list_notify_hooks")["hooks"]
        return next(row for row in hooks if row["hook_id"] == self.id)

    def rotate(self) -> str:
        """Its new secret."""
        answer = self.session.call("rotate_notify_hook", hook_id=self.id)
        assert "error" not in answer, answer
        return str(answer["signing_secret"])


def vend(db: Sql, slug: str, queues: tuple[str, ...] = ("inbox",), **more: Any) -> Endpoint:
    """An endpoint that may make hooks."""
    return db.vend(slug, queues, **{"verbs": VERBS, **more})


def plain_hook(
    db: Sql, endpoint: Endpoint, url: str, sealed: bytes | None = b"", **more: Any
) -> tuple[str, str]:
    """Make a hook in SQL: its id and its secret. ``sealed``: what is stored instead of that."""
    secret = "whsec_" + base64.b64encode(os.urandom(32)).decode()
    stored = Keyring((KEY,)).seal(secret.encode()) if sealed == b"" else sealed
    query = "select switchboard.create_notify_hook(%s, %s, %s, %s)"
    made = db.value(query, endpoint.id, url, more.get("queues"), stored)
    return str(made["hook_id"]), secret


def outbox(db: Sql, todo: str | None = None) -> list[dict[str, Any]]:
    """The rows of the outbox, oldest first; of one todo, or all."""
    return db.rows(
        "select id, hook_id, todo_id, reason, attempts, due_at, ended_at, outcome"
        " from switchboard.notify_deliveries"
        " where coalesce(todo_id = %s::uuid, true) order by id",
        todo,
    )


def totals(db: Sql) -> dict[str, int]:
    """The counters, by outcome."""
    return {
        row["outcome"]: row["total"] for row in db.rows("select * from switchboard.notify_counts()")
    }


def wake(db: Sql) -> None:
    """Have the dispatchers look, after the clock was moved."""
    db.rows("select pg_notify('switchboard_outbox', '')")
