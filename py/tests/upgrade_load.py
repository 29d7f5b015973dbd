"""A database of an older release: filled with all that it knows, and at work while it is upgraded.

Everything goes through calls that the older release had, by the names of their columns, as its
clients call them: todos over SQL by a worker's own login, over MCP by a server process of that
release, and by signed deliveries to that server. What was acknowledged is kept here, and compared
with the database afterwards.
"""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
from conftest import KEY, Endpoint, RawSession, Sql, until
from intake_kit import Receiver
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from upgrade_kit import Release

from switchboard.secrets import Keyring, digest

Row = dict[str, Any]
VERBS = ["create_todo", "claim", "claim_next", "heartbeat", "complete", "fail", "release", "retry"]
HOOK_SECRET = b"x" * 32
SECRET, TOKEN = "secret-of-the-older-release", "token-of-the-older-release"
# What a call that is under way meets when what its function builds, reads or calls is replaced.
INTERRUPTED = ("42846", "42804", "42883", "42703", "XX000")
PAUSE = 0.01  # seconds between the calls of a client: the machine has other work

CREATE: LiteralString = (
    "select id, created from switchboard.create_todo(%s, %s, %s, p_idempotency_key => %s,"
    " p_max_attempts => %s)"
)
CLAIM: LiteralString = "select id, lease_token from switchboard.claim(%s, %s, 'worker', 600)"
CLAIM_NEXT: LiteralString = (
    "select id, lease_token from switchboard.claim_next(%s, 'worker', %s, 600)"
)
COMPLETE: LiteralString = (
    "select id, state from switchboard.complete(%s, %s, 'worker', '{\"a\": 1}', %s)"
)
FAIL: LiteralString = (
    "select id, state, dead_letter from switchboard.fail(%s, %s, 'worker', '{\"e\": 1}', %s)"
)
HEARTBEAT: LiteralString = "select id from switchboard.heartbeat(%s, %s, 'worker', 600, %s)"
RELEASE: LiteralString = "select id, state from switchboard.release(%s, %s, 'worker', %s)"
STATES: LiteralString = (
    "select id::text, state::text, due_at is null as is_final, idempotency_key"
    " from switchboard.todos"
)
ENDS: LiteralString = (
    "select todo_id::text as id, count(*) as n from switchboard.todo_attempts"
    " where state = 'done' group by 1"
)


@dataclass
class Books:
    """What was acknowledged, by id of the todo."""

    created: dict[str, str] = field(default_factory=dict)  # to its idempotency key
    done: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    held: dict[str, str] = field(default_factory=dict)  # open lease to its token
    deliveries: dict[str, str] = field(default_factory=dict)  # delivery to its todo

    def add(self, other: Books) -> None:
        """Take over what another client was told; a key or an end belongs to one of them only."""
        assert not self.created.keys() & other.created.keys()
        assert not self.done & other.done
        assert not self.dead & other.dead
        self.created |= other.created
        self.done |= other.done
        self.dead |= other.dead
        self.held |= other.held
        self.deliveries |= other.deliveries


class Place:
    """A database that an older release filled.

    Args:
        dsn: a superuser's.
        login: of a worker, which is bound to the first endpoint here.
        release: whose functions are in force.
    """

    def __init__(self, dsn: str, login: str, release: Release) -> None:
        self.dsn, self.login, self.release = dsn, login, release
        self.db = Sql(dsn)
        self.books = Books()
        queues = ("inbox", "direct", "shared", "kept", "hooks")
        self.alpha = self.db.vend("alpha", queues, verbs=VERBS)
        more = {"verbs": [*VERBS, "create_webhook"], "webhook_max": 3}
        self.beta = self.db.vend("beta", queues, **more)
        self.db.rows("select from switchboard.bind_login(%s, %s)", self.alpha.id, login)
        self._fill()

    def _fill(self) -> None:
        """A todo in every state, under keys; a receiver; a hook and budgets where there are any."""
        for number in range(3):
            self.keep(f"waits {number}")
            todo, token = self.claim_kept(f"held {number}")
            self.books.held[todo] = token
        todo, token = self.claim_kept("is done")
        assert self.db.row(COMPLETE, self.alpha.id, todo, token)["state"] == "done"
        self.books.done.add(todo)
        todo, token = self.claim_kept("is dead", attempts=1)
        assert self.db.row(FAIL, self.alpha.id, todo, token)["dead_letter"]
        self.books.dead.add(todo)
        todo, token = self.claim_kept("is parked")
        self.parked = todo
        assert not self.db.row(FAIL, self.alpha.id, todo, token)["dead_letter"]
        self.receiver(TOKEN)
        if not self.release.is_from("0.2.0"):
            self.lose_a_receiver()
        if self.release.is_from("0.2.0"):
            self.hook = self.db.value(
                "select switchboard.create_notify_hook(%s, %s, '{kept}', %s)",
                self.alpha.id,
                "https://hooks.invalid/x",
                Keyring([KEY]).seal(HOOK_SECRET),
            )["hook_id"]
        if self.release.is_from("0.3.0"):
            window = {"period": "day", "start": "00:00", "tz": "Europe/Berlin"}
            policy = {"max_in_flight": 8, "max_claims_per_window": 1000, "window": window}
            budget = "select switchboard.set_admission_policy(%s, %s, %s)"
            self.db.rows(budget, self.alpha.id, "kept", json.dumps(policy))
            todo, token = self.claim_kept("is counted")
            self.books.held[todo] = token

    def receiver(self, token: str) -> str:
        """A receiver of the second endpoint; its id."""
        query: LiteralString = "select switchboard.create_webhook(%s, 'github', 'hooks', %s, %s)"
        sealed = Keyring([KEY]).seal(SECRET.encode())
        return str(self.db.value(query, self.beta.id, sealed, digest(token))["webhook_id"])

    def lose_a_receiver(self) -> None:
        """A delivery whose receiver is deleted by hand: 0.1.0 had no command for it."""
        receiver = self.receiver("lost")
        self.db.rows(
            "select switchboard.receive_delivery(%s, 'lost', 'push', '{}', '{\"a\": 1}',"
            " 'application/json', '{\"a\": 1}')",
            digest("lost"),
        )
        self.db.rows("delete from switchboard.endpoint_webhooks where id = %s", receiver)
        (event,) = self.db.rows("select todo_id::text from switchboard.events")
        self.books.deliveries["lost"] = event["todo_id"]
        self.books.created[event["todo_id"]] = f"{receiver}:lost"

    def keep(self, key: str, attempts: int = 5) -> str:
        """A todo in the queue that no worker claims from; its id."""
        row = self.db.row(CREATE, self.alpha.id, "kept", key, key, attempts)
        assert row["created"], row
        self.books.created[str(row["id"])] = key
        return str(row["id"])

    def claim_kept(self, key: str, attempts: int = 5) -> tuple[str, str]:
        """A todo of that queue, and the open lease of it."""
        todo = self.keep(key, attempts)
        return todo, self.db.row(CLAIM, self.alpha.id, todo)["lease_token"]


class Client:
    """Something that works in a thread until it is told to stop; ``error`` is how it died."""

    name = ""

    def __init__(self, place: Place) -> None:
        self.place, self.books, self.cycles, self.interrupted = place, Books(), 0, 0
        self.error: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), f"{type(self).__name__} hangs"

    def _run(self) -> None:
        try:
            while not self._over.wait(PAUSE):
                self.cycle()
                self.cycles += 1
        except BaseException as error:
            self.error = error

    def cycle(self) -> None:
        """One round of calls; raises what no release may answer."""
        raise NotImplementedError


class SqlWorker(Client):
    """A worker over SQL, with its own login; its statements are prepared, as psycopg does."""

    def __init__(self, place: Place, name: str) -> None:
        super().__init__(place)
        self.name = name
        dsn = make_conninfo(place.dsn, user=place.login, password="hunter2")
        self.connection: psycopg.Connection[Row] = psycopg.connect(
            dsn, autocommit=True, row_factory=dict_row
        )
        self.me = place.alpha.id

    def stop(self) -> None:
        super().stop()
        self.connection.close()

    def ask(self, query: LiteralString, *params: Any) -> Row:
        row = self.try_to(query, *params)
        assert row is not None, query
        return row

    def try_to(self, query: LiteralString, *params: Any) -> Row | None:
        try:
            return self.connection.execute(query, params).fetchone()
        except psycopg.Error as error:
            if error.sqlstate not in INTERRUPTED:
                raise
        self.interrupted += 1
        return self.connection.execute(query, params).fetchone()

    def cycle(self) -> None:
        kind = self.cycles % 5
        key, attempts = f"{self.name} {self.cycles}", 1 if kind == 3 else 5
        queue = "shared" if kind == 4 else "direct"
        made = self.ask(CREATE, self.me, queue, key, key, attempts)
        assert made["created"]
        todo = str(made["id"])
        self.books.created[todo] = key
        if kind == 4:
            self.share()
            return
        token = self.ask(CLAIM, self.me, todo)["lease_token"]
        if kind == 3:
            assert self.ask(FAIL, self.me, todo, token)["dead_letter"]
            self.books.dead.add(todo)
        else:
            self.ask(HEARTBEAT, self.me, todo, token)
            self.complete(todo, token)

    def share(self) -> None:
        """Take what is oldest, give it back, take and complete what is oldest then."""
        if claimed := self.try_to(CLAIM_NEXT, self.me, ["shared"]):
            ticket = str(claimed["id"]), claimed["lease_token"]
            assert self.ask(RELEASE, self.me, *ticket)["state"] == "pending"
        if claimed := self.try_to(CLAIM_NEXT, self.me, ["shared"]):
            self.complete(str(claimed["id"]), claimed["lease_token"])

    def complete(self, todo: str, token: str) -> None:
        assert self.ask(COMPLETE, self.me, todo, token)["state"] == "done"
        self.books.done.add(todo)


class McpWorker(Client):
    """An agent of the second endpoint, in a session with the older server."""

    def __init__(self, place: Place, url: str) -> None:
        super().__init__(place)
        self.session = RawSession(url, place.beta)

    def stop(self) -> None:
        super().stop()
        self.session.http.close()

    def ask(self, tool: str, **arguments: Any) -> Row:
        answer = self.session.call(tool, **arguments)
        if answer.get("error", {}).get("code") == "internal":
            self.interrupted += 1
            answer = self.session.call(tool, **arguments)
        return answer

    def cycle(self) -> None:
        key = f"mcp {self.cycles}"
        made = self.ask("create_todo", queue="inbox", title=key, idempotency_key=key)
        assert made.get("created"), made
        self.books.created[made["todo"]["id"]] = key
        todo = self.ask("claim_next", queues=["inbox"])["todo"]
        ticket = {"id": todo["id"], "lease_token": todo["lease_token"]}
        done = self.ask("complete", **ticket)
        assert done["todo"]["state"] == "done", done
        self.books.done.add(todo["id"])


class Deliveries(Client):
    """A sender of signed deliveries to the older server; each comes twice."""

    def __init__(self, place: Place, url: str) -> None:
        super().__init__(place)
        self.url = url
        self.receiver = Receiver(self, place.beta, target_queue="hooks")  # type: ignore[arg-type]

    def session(self, endpoint: Endpoint) -> RawSession:
        return RawSession(self.url, endpoint)

    def stop(self) -> None:
        super().stop()
        self.receiver.session.http.close()

    def cycle(self) -> None:
        delivery = str(uuid.uuid4())
        for time_it_comes in range(2):
            answer = self.receiver.send(delivery=delivery)
            if answer.status_code == 500:  # the sender tries again
                self.interrupted += 1
                answer = self.receiver.send(delivery=delivery)
            assert answer.status_code == 202, f"{answer.status_code} {answer.text}"
            body = answer.json()
            assert body["created"] == (not time_it_comes), body
            (todo,) = body["todos"]
            self.books.deliveries[delivery] = todo["id"] if isinstance(todo, dict) else todo
        self.books.created[self.books.deliveries[delivery]] = f"{self.receiver.id}:{delivery}"


class Load:
    """All clients at once, while its context lasts; then their books go to the place's."""

    def __init__(self, place: Place, clients: list[Client]) -> None:
        self.place, self.clients = place, clients

    def __enter__(self) -> Load:
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.stop()
        for client in self.clients:
            self.place.books.add(client.books)

    def goes_on(self, rounds: int = 4) -> None:
        """Return when every client has done so many more rounds; fails when one of them died."""
        before = [client.cycles for client in self.clients]

        def moved() -> bool:
            for client in self.clients:
                if client.error is not None:
                    raise client.error
            now = [client.cycles for client in self.clients]
            return all(n >= b + rounds for n, b in zip(now, before, strict=True))

        until(moved, "every client goes on", 60)
