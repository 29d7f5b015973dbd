"""How a client reaches the queue: over SQL, over MCP, or as a sender of webhooks.

Each answers a call with an ``Outcome``: done, refused (it certainly did not happen) or unknown. A
failure is refused only when that is sure: an ERROR of PostgreSQL rolls the call back, the product's
own refusals come before anything is written. A lost connection, a FATAL, an HTTP status of the
5xx kind or a timeout say nothing about what happened.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, LiteralString, Protocol

import httpx2
import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from chaos.history import OK, REFUSED, UNKNOWN

Row = dict[str, Any]
VERSION = "2025-11-25"
# SQLSTATEs by the name under which scenarios allow them.
CODES = {
    "SB400": "invalid_argument", "SB401": "unauthenticated", "SB403": "forbidden",
    "SB404": "not_found", "SB409": "conflict", "SB411": "ceiling_exceeded", "SB413": "too_large",
    "SB429": "deferred", "SB430": "rate_limited", "SB500": "internal", "SB503": "unavailable",
    "40001": "serialization", "40P01": "deadlock", "55P03": "lock_timeout", "57014": "canceled",
    "53100": "disk_full", "25006": "read_only", "53300": "too_many_connections",
}  # fmt: skip
# What a server answers that could not ask its database, or lost it while it did.
UNSURE = ("unavailable", "internal")
SQL: dict[str, LiteralString] = {
    "claim_next": "select * from switchboard.claim_next(%s, %s, %s, %s)",
    "claim": "select * from switchboard.claim(%s, %s, %s, %s)",
    "claim_batch": "select * from switchboard.claim_batch(%s, %s, %s, %s, %s)",
    "heartbeat": "select * from switchboard.heartbeat(%s, %s, %s, %s, %s)",
    "complete": "select * from switchboard.complete(%s, %s, %s, %s, %s)",
    "fail": "select * from switchboard.fail(%s, %s, %s, %s, %s)",
    "release": "select * from switchboard.release(%s, %s, %s, %s)",
    "retry": "select * from switchboard.retry(%s, %s)",
    "complete_batch": "select * from switchboard.complete_batch(%s, %s, %s, %s)",
    "force_release": "select * from switchboard.release_any_endpoint(%s, null, true)",
    "force_complete": "select * from switchboard.complete_any_endpoint(%s, %s, null, true)",
    "create": "select * from switchboard.create_todo(%s, %s, %s, %s, %s, %s, null, null, %s)",
    "create_batch": "select * from switchboard.create_todos(%s, %s)",
}
LOOK: LiteralString = "select id from switchboard.list_todos(%s, null, %s, 10)"
LEVELS = {
    "repeatable read": psycopg.IsolationLevel.REPEATABLE_READ,
    "serializable": psycopg.IsolationLevel.SERIALIZABLE,
}
# What a history keeps of a todo: enough to judge by.
KEPT = (
    "id", "endpoint_id", "queue", "state", "kind", "owner", "lease_token", "lease_expires_at",
    "claimed_at", "attempt", "max_attempts", "claims", "created_at", "updated_at", "completed_at",
    "next_retry_at", "created", "outcome",
)  # fmt: skip


@dataclass
class Outcome:
    """What came back: ``end`` as in histories, the code when it is not ok, the todos when it is."""

    end: str
    code: str = ""
    todos: list[Row] = field(default_factory=list)


class NotThere(Exception):  # noqa: N818 (an answer: nothing was called)
    """Nobody can be reached, so nothing was called."""


class Hands(Protocol):
    """A way to the queue. ``open`` connects, or raises ``NotThere``; ``call`` never raises."""

    def open(self, endpoint: Row) -> None:
        """Be connected."""

    def call(self, op: str, args: Row) -> Outcome:
        """Call ``op``."""

    def look(self, endpoint: Row, state: str) -> list[str]:
        """Ids of some todos in a state; none when it cannot be said."""


class SqlHands:
    """A database session. See ``worker`` for what the options mean."""

    def __init__(self, options: Row, owner: str) -> None:
        self.options, self.owner = options, owner
        self.connection: psycopg.Connection[Row] | None = None
        self.level = LEVELS.get(options.get("isolation", ""))

    def open(self, endpoint: Row) -> None:
        """Be connected, with the timeouts and the isolation of the options."""
        if self.connection is not None and not self.connection.closed:
            return
        try:
            self.connection = psycopg.connect(
                self.options["url"], autocommit=self.level is None, row_factory=dict_row,
                connect_timeout=5, application_name=self.owner,
                **({} if self.options.get("prepare", True) else {"prepare_threshold": None}),
            )  # fmt: skip
            if self.level is not None:
                self.connection.isolation_level = self.level
            for name in ("statement_timeout", "lock_timeout"):
                if value := self.options.get(name):
                    self.connection.execute("select set_config(%s, %s, false)", (name, str(value)))
            if self.level is not None:
                self.connection.commit()
        except psycopg.Error as error:
            self._drop()
            raise NotThere from error

    def call(self, op: str, args: Row) -> Outcome:
        """Call the function; a refusal rolls back."""
        connection = self.connection
        if connection is None:
            return Outcome(UNKNOWN, "connection")
        query, values = self._query(op, args)
        try:
            cursor = connection.execute(query, values)
            rows = cursor.fetchall()
            if self.level is not None:
                connection.commit()
        except psycopg.Error as error:
            return self._failed(error)
        return Outcome(OK, todos=[{k: row[k] for k in KEPT if k in row} for row in rows])

    def look(self, endpoint: Row, state: str) -> list[str]:
        """The newest ten, the oldest ten of the pending."""
        if self.connection is None:
            return []
        try:
            rows = self.connection.execute(LOOK, (endpoint["id"], state)).fetchall()
            if self.level is not None:
                self.connection.commit()
        except psycopg.Error as error:
            self._failed(error)
            return []
        return [str(row["id"]) for row in rows]

    def _failed(self, error: psycopg.Error) -> Outcome:
        state = error.sqlstate
        connection = self.connection
        lost = connection is None or connection.closed or connection.broken
        if state is None or state.startswith(("08", "57P")) or lost:
            self._drop()
            return Outcome(UNKNOWN, "connection")
        if self.level is not None and connection is not None:
            try:
                connection.rollback()
            except psycopg.Error:
                self._drop()
        return Outcome(REFUSED, CODES.get(state, state))

    def _drop(self) -> None:
        if self.connection is not None:
            with contextlib.suppress(psycopg.Error):
                self.connection.close()
        self.connection = None

    def _query(self, op: str, args: Row) -> tuple[LiteralString, tuple[Any, ...]]:
        endpoint, todo, lease = args.get("endpoint"), args.get("todo"), args.get("lease")
        result = Jsonb(args.get("result") or {})
        token = args.get("token")
        by_todo = (endpoint, todo, self.owner)
        if op == "claim":
            if todo:
                return SQL["claim"], (*by_todo, lease)
            queues, limit = args.get("queues"), args.get("limit", 1)
            if limit > 1:
                return SQL["claim_batch"], (endpoint, self.owner, limit, queues, lease)
            return SQL["claim_next"], (endpoint, self.owner, queues, lease)
        if op == "create":
            return self._create(endpoint, args["todos"])
        values: dict[str, tuple[Any, ...]] = {
            "heartbeat": (*by_todo, lease, token),
            "complete": (*by_todo, result, token),
            "fail": (*by_todo, result, token),
            "release": (*by_todo, token),
            "retry": (endpoint, todo),
            "complete_batch": (endpoint, self.owner, args.get("todos"), args.get("tokens")),
            "force_release": (todo,),
            "force_complete": (todo, result),
        }
        return SQL[op], values[op]

    def _create(self, endpoint: Any, todos: list[Row]) -> tuple[LiteralString, tuple[Any, ...]]:
        if len(todos) == 1:
            one = todos[0]
            fields = (one["queue"], one["title"], Jsonb({"by": self.owner}), one.get("key"))
            return SQL["create"], (endpoint, *fields, one.get("kind"), one.get("max_attempts", 5))
        elements = [
            {("idempotency_key" if k == "key" else k): v for k, v in one.items()} for one in todos
        ]
        return SQL["create_batch"], (endpoint, Jsonb(elements))


class McpHands:
    """MCP over HTTP, as bytes on the wire: a session for each endpoint."""

    def __init__(self, options: Row, owner: str) -> None:
        self.options, self.owner = options, owner
        self.http = httpx2.Client(timeout=float(options.get("timeout", 10)))
        self.sessions: dict[str, str] = {}
        self.numbers = itertools.count(1)
        self.by_id = {endpoint["id"]: endpoint for endpoint in options["endpoints"]}

    def open(self, endpoint: Row) -> None:
        """Have a session on this endpoint."""
        if endpoint["id"] in self.sessions:
            return
        hello = {
            "protocolVersion": VERSION, "capabilities": {},
            "clientInfo": {"name": "chaos", "version": "1"},
        }  # fmt: skip
        try:
            answer = self._post(endpoint, "initialize", hello)
            if answer.status_code != 200:
                raise NotThere
            self.sessions[endpoint["id"]] = answer.headers["mcp-session-id"]
            self._post(endpoint, "notifications/initialized", None)
        except httpx2.HTTPError as error:
            self.sessions.pop(endpoint["id"], None)
            raise NotThere from error

    def call(self, op: str, args: Row) -> Outcome:
        """Call the tool."""
        endpoint = self.by_id[args["endpoint"]]
        tool, arguments = self._tool(op, args)
        try:
            answer = self._post(endpoint, "tools/call", {"name": tool, "arguments": arguments})
        except httpx2.TimeoutException:
            return Outcome(UNKNOWN, "timeout")
        except httpx2.HTTPError:
            return Outcome(UNKNOWN, "connection")
        if answer.status_code == 404:  # of a server before
            self.sessions.pop(endpoint["id"], None)
            return Outcome(REFUSED, "no_session")
        if answer.status_code != 200:
            return _by_status(answer.status_code)
        try:
            body = answer.json()
        except ValueError:  # cut short
            return Outcome(UNKNOWN, "connection")
        content: Row = (body.get("result") or {}).get("structuredContent") or {
            "error": {"code": f"rpc {body.get('error', {}).get('code')}"}
        }
        if error := content.get("error"):
            code = str(error["code"])
            return Outcome(UNKNOWN if code in UNSURE else REFUSED, code)
        return Outcome(OK, todos=self._todos(content, args))

    def tool(self, endpoint: Row, name: str, arguments: Row) -> Row:
        """The structured content of a tool's answer, for who sets things up."""
        params = {"name": name, "arguments": arguments}
        content: Row = self._post(endpoint, "tools/call", params).json()["result"]
        structured: Row = content["structuredContent"]
        return structured

    def look(self, endpoint: Row, state: str) -> list[str]:
        """None: agents are not told of what they do not hold."""
        return []

    def _post(self, endpoint: Row, method: str, params: Any) -> httpx2.Response:
        headers = {
            "authorization": f"Bearer {endpoint['credential']}",
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        }
        if session := self.sessions.get(endpoint["id"]):
            headers |= {"mcp-session-id": session, "mcp-protocol-version": VERSION}
        message: Row = {"jsonrpc": "2.0", "method": method}
        if not method.startswith("notifications/"):
            message["id"] = next(self.numbers)
        if params is not None:
            message["params"] = params
        address = f"{self.options['server']}/mcp/{endpoint['slug']}"
        return self.http.post(address, content=json.dumps(message), headers=headers)

    def _tool(self, op: str, args: Row) -> tuple[str, Row]:
        lease = {"lease_ttl_seconds": args["lease"]} if "lease" in args else {}
        if op == "claim":
            queues = {"queues": args["queues"]} if args.get("queues") else {}
            return "claim_next", {**lease, **queues}
        if op == "retry":
            return op, {"id": args["todo"]}
        result = {"result": args["result"]} if args.get("result") else {}
        return op, {"id": args["todo"], "lease_token": args["token"], **lease, **result}

    def _todos(self, content: Row, args: Row) -> list[Row]:
        todo = content.get("todo")
        if not todo:
            return []
        return [{"endpoint_id": args["endpoint"], **{k: todo[k] for k in KEPT if k in todo}}]


class HookHands:
    """A sender of signed deliveries, GitHub's way."""

    def __init__(self, options: Row) -> None:
        self.http = httpx2.Client(timeout=float(options.get("timeout", 10)))
        self.server = options["server"]

    def deliver(self, hook: Row, delivery: str) -> Outcome:
        """Send one delivery."""
        body = json.dumps({"action": "opened", "delivery": delivery}).encode()
        digest = hmac.digest(hook["secret"].encode(), body, hashlib.sha256).hex()
        headers = {
            "content-type": "application/json",
            "x-github-event": "pull_request",
            "x-github-delivery": delivery,
            "x-hub-signature-256": f"sha256={digest}",
        }
        try:
            answer = self.http.post(self.server + hook["path"], content=body, headers=headers)
        except httpx2.TimeoutException:
            return Outcome(UNKNOWN, "timeout")
        except httpx2.HTTPError:
            return Outcome(UNKNOWN, "connection")
        if answer.status_code != 202:
            return _by_status(answer.status_code)
        try:
            todos: list[Row] = answer.json()["todos"]
        except ValueError:
            return Outcome(UNKNOWN, "connection")
        return Outcome(OK, todos=todos)


def _by_status(status: int) -> Outcome:
    """An HTTP answer that is neither yes nor a tool's refusal."""
    if status >= 500:
        return Outcome(UNKNOWN, "unavailable" if status == 503 else f"http {status}")
    return Outcome(REFUSED, "rate_limited" if status == 429 else f"http {status}")


def moment(value: Any) -> datetime | None:
    """A time of an answer, however it came."""
    return datetime.fromisoformat(value) if isinstance(value, str) else value
