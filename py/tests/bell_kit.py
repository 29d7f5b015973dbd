"""Clients that hold a stream open: one that hears bells, and one that takes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from conftest import Endpoint, RawSession, Served, until

from switchboard.listener import Listener

LISTENERS = (
    "select pid from pg_stat_activity where datname = current_database()"
    " and application_name = 'switchboard' and state = 'idle'"
    " and (query ~* '^(un)?listen' or query = 'select 1')"
)


class Ears:
    """A session with its stream open, and the bells that came on it.

    Args:
        served: where.
        endpoint: whose.
        told: called with the todo of each bell.
    """

    def __init__(
        self, served: Served, endpoint: Endpoint, told: Callable[[str], None] = lambda _: None
    ) -> None:
        self.told = told
        self.session = RawSession(served.url, endpoint)
        self.bells: list[dict[str, Any]] = []
        self.at: dict[str, float] = {}
        self.opened, self.ended = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()
        assert self.opened.wait(20), "the stream opens"

    def _listen(self) -> None:
        with contextlib.suppress(httpx2.HTTPError, httpx2.StreamError, OSError, AssertionError):
            self._read()
        self.ended.set()

    def _read(self) -> None:
        with self.session.stream() as stream:
            assert stream.status_code == 200
            self.opened.set()
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    message = json.loads(line.removeprefix("data: "))
                    assert message["method"] == "notifications/claude/channel"
                    todo = message["params"]["meta"]["todo_id"]
                    self.bells.append(message["params"])
                    self.at[todo] = time.monotonic()  # last: hears() waits for it
                    self.told(todo)

    @property
    def ids(self) -> list[str]:
        """The todos it was rung for, in order."""
        return [bell["meta"]["todo_id"] for bell in list(self.bells)]

    def hears(self, todo: str, seconds: float = 15.0) -> dict[str, Any]:
        """Wait for the bell of this todo; less than DUE_SECONDS, so that a note has told of it."""
        until(lambda: todo in self.at, f"a bell rings for {todo}", seconds)
        return next(bell for bell in self.bells if bell["meta"]["todo_id"] == todo)

    def close(self) -> None:
        """Go away without a word."""
        for connection in self._sockets():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.thread.join(10)
        self.session.http.close()

    def _sockets(self) -> list[socket.socket]:
        pool = self.session.http._transport._pool  # type: ignore[attr-defined]
        return [c._connection._network_stream._sock for c in pool.connections]


class Stuck:
    """A session whose stream is opened and never read, with as small a buffer as there is."""

    def __init__(self, served: Served, endpoint: Endpoint) -> None:
        self.session = RawSession(served.url, endpoint)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        self.socket.connect(("127.0.0.1", served.settings.port))
        headers = {**self.session.headers, "host": f"127.0.0.1:{served.settings.port}"}
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        request = f"GET /mcp/{endpoint.slug} HTTP/1.1\r\n{''.join(lines)}\r\n"
        self.socket.sendall(request.encode())
        head = self.socket.recv(15, socket.MSG_WAITALL)
        assert head == b"HTTP/1.1 200 OK", head

    def close(self) -> None:
        self.socket.close()
        self.session.http.close()


def listener_pid(db: Any) -> int | None:
    """The backend of a gateway's connection that listens."""
    rows = db.rows(LISTENERS)
    return rows[0]["pid"] if rows else None


def hold_back(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Listeners begin to listen only while this is set; it is."""
    may_listen, self_test = threading.Event(), Listener._self_test
    may_listen.set()

    async def held(self: Listener, connection: Any) -> None:
        while not may_listen.is_set():  # noqa: ASYNC110 (it is set by another thread)
            await asyncio.sleep(0.01)
        await self_test(self, connection)

    monkeypatch.setattr(Listener, "_self_test", held)
    return may_listen
