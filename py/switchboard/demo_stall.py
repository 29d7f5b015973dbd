"""``switchboard demo --stall``: the case that the stall nudge is for, on a clock that is moved.

A consumer that a hook starts claims one todo and exits. Three deliveries come at once, so it is
started for the first and busy while the other two are called for: two todos are left, every call
is spent, and nothing comes any more. What is then to be seen: nudges start it until the queue is
empty, and after that nobody is called.

The server is the real one, in a throw-away place; its database is marked as one for tests, whose
clock stands still until it is moved here.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import psycopg

from switchboard import demo, embedded
from switchboard.cli_database import Operator, operate
from switchboard.cli_database import keyring as keys_of
from switchboard.cli_endpoint import human_id
from switchboard.cli_hook import make_hook
from switchboard.cli_webhook import make_webhook
from switchboard.config import Settings
from switchboard.datafolder import DataFolder
from switchboard.errors import Problem
from switchboard.signing import sign

SLUG, QUEUE = "lane", "lane-l"
SECONDS = 30.0  # that anything may take
VERSION = "2025-11-25"
CLIENT = {"name": "consumer", "version": "1"}
QUIET_HOURS = (1, 6, 24, 24 * 7)


@dataclass
class Launcher:
    """A receiver that starts a one-shot consumer, unless one is running.

    Attributes:
        work: what a consumer does with the id of the todo that it is started for.
        secret: signs the calls.
        reasons: of the calls that came, in order.
        results: what the consumers said, in order.
        failed: what went wrong with one.
    """

    work: Callable[[str], str]
    secret: str = ""
    reasons: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    failed: list[Exception] = field(default_factory=list)
    _busy: threading.Lock = field(default_factory=threading.Lock)

    def take(self, headers: dict[str, str], body: dict[str, Any], raw: bytes) -> bool:
        """Take a call; false when its signature does not hold."""
        at = int(headers["webhook-timestamp"])
        expected = sign(headers["webhook-id"], at, raw, [self.secret.encode()])
        if not hmac.compare_digest(
            expected["webhook-signature"].encode(), headers["webhook-signature"].encode()
        ):
            return False
        if self._busy.acquire(blocking=False):
            threading.Thread(target=self._consume, args=(body["todo_id"],), daemon=True).start()
        self.reasons.append(body["reason"])
        return True

    def _consume(self, todo_id: str) -> None:
        try:
            result = self.work(todo_id)
        except Exception as error:
            self.failed.append(error)
        else:
            self._busy.release()  # before anybody is told: the next one may start
            self.results.append(result)


@dataclass
class Stage:
    """The parts of the play.

    Attributes:
        owner: a connection of the database's owner, who may move its clock.
        operator: who asks how things are.
        launcher: what the hook calls.
        now: where the clock stands.
    """

    owner: psycopg.Connection[Any]
    operator: Operator
    launcher: Launcher
    now: datetime

    def move(self, step: timedelta) -> None:
        """Move the clock for everybody, the server, too."""
        self.now += step
        self.owner.execute(
            "update switchboard.settings set is_test = true, test_now = %s", [self.now]
        )

    def sweep(self) -> None:
        """Have the sweeps run, as pg_cron does or the server itself, and the calls made."""
        self.operator.value("select switchboard.tick()")
        wait(lambda: self._swept_at() == self.now, "the sweep")
        wait(lambda: self.waiting() == 0, "the calls")

    def pending(self) -> int:
        """How many todos are pending in the queue."""
        query = (
            "select pending from switchboard.queue_counts("
            "p_endpoint_id => switchboard.find_endpoint(%s)::text) where queue = %s"
        )
        return int(self.operator.value(query, [SLUG, QUEUE]) or 0)

    def waiting(self) -> int:
        """How many calls are to be made yet."""
        query = (
            "select waiting from switchboard.list_notify_hooks("
            "p_endpoint_id => switchboard.find_endpoint(%s)::text)"
        )
        return int(self.operator.value(query, [SLUG]))

    def ledger(self) -> int:
        """How many queues the nudge ledger holds."""
        row = self.owner.execute("select count(*) from switchboard.queue_stall_nudges").fetchone()
        return int(row[0]) if row else 0

    def _swept_at(self) -> datetime:
        query = "select last_run_at from switchboard.sweep_status() where name = 'sweep_stalled'"
        found: datetime = self.operator.value(query)
        return found


def run(say: demo.Say) -> list[str]:
    """Do it all, and clean up.

    Args:
        say: called with one line at each step.

    Returns:
        The lines said.

    Raises:
        Problem: a step failed, or went another way; the message names it.
    """
    told: list[str] = []

    def step(line: str) -> None:
        told.append(line)
        say(line)

    consumer = Consumer()
    launcher = Launcher(consumer.work)
    with _serving(launcher) as port:
        step("1. Starting PostgreSQL and the server in a throw-away folder …")
        allowed = {
            "SWITCHBOARD_OUTBOUND_HTTP": "true",
            "SWITCHBOARD_OUTBOUND_PRIVATE": "127.0.0.0/8",
            "SWITCHBOARD_OUTBOUND_PORTS": str(port),
        }
        with demo.server(**allowed) as (folder, started):
            facts = demo.wait_until_ready(folder, started)
            with _staged(folder, launcher) as stage:
                step(f"   serving {facts['url']}; its clock stands at {stage.now:%H:%M:%S}")
                made = _furnish(folder, stage, f"http://127.0.0.1:{port}/wake")
                launcher.secret = made["hook_secret"]
                consumer.url = f"{facts['url']}/mcp/{SLUG}"
                consumer.credential = made["credential"]
                step(f"2. Endpoint {SLUG}, queue {QUEUE}. A hook starts a consumer that takes one")
                _play({**facts, **made}, stage, consumer, step)
                step("   It held. Stopping …")
    return told


def _play(facts: dict[str, Any], stage: Stage, consumer: Consumer, step: demo.Say) -> None:
    launcher = stage.launcher
    name, body = demo.payload()
    for _ in range(3):
        demo.send(facts, body)
        stage.move(timedelta(seconds=1))
    wait(lambda: len(launcher.reasons) == 3 and stage.waiting() == 0, "the three calls")
    step(f"3. Sent {name} three times: three todos, and a call for each")
    _consume(stage, consumer)
    _expect("calls", launcher.reasons, ["created"] * 3)
    _expect("todos left", stage.pending(), 2)
    step(f"   The first call started a consumer. It {launcher.results[0]}")
    step("   The other two calls came while it ran, and started nothing. Left: 2 todos, no call")
    stage.move(timedelta(minutes=4))
    stage.sweep()
    _expect("calls", len(launcher.reasons), 3)
    step("4. 4 minutes later nothing has come in, and nobody was called")
    for seconds, left in ((60, 1), (30, 0)):
        stage.move(timedelta(seconds=seconds))
        stage.sweep()
        _expect("calls", launcher.reasons[5 - left - 1 :], ["stalled"])
        _consume(stage, consumer)
        _expect("todos left", stage.pending(), left)
        step(f"{6 - left}. {seconds} seconds later the queue is nudged, and a consumer started")
        step(f"   It {launcher.results[-1]}. Left: {left}")
    for hours in QUIET_HOURS:
        stage.move(timedelta(hours=hours))
        stage.sweep()
    _expect("calls in the week after", len(launcher.reasons), 5)
    _expect("entries in the nudge ledger", stage.ledger(), 0)
    step("7. A week later: no further call, and the nudge ledger is empty")


def _consume(stage: Stage, consumer: Consumer) -> None:
    """Let the consumer that was started do its work, a second after it was called."""
    launcher = stage.launcher
    expected = len(launcher.results) + 1
    stage.move(timedelta(seconds=1))
    consumer.turns.release()
    wait(lambda: launcher.failed or len(launcher.results) == expected, f"consumer {expected}")
    if launcher.failed:
        raise launcher.failed[0]


@dataclass
class Consumer:
    """What is started: it claims one todo over MCP, completes it, and is gone.

    It opens no stream, as one that is started for one todo: no doorbell rings for it.

    Attributes:
        url, credential: of the endpoint.
        turns: one for each that may begin; it takes its time, and the clock stands still.
    """

    url: str = ""
    credential: str = ""
    turns: threading.Semaphore = field(default_factory=partial(threading.Semaphore, 0))

    def work(self, todo_id: str) -> str:
        """Do it; what it did."""
        if not self.turns.acquire(timeout=SECONDS):
            raise Problem("internal", "A consumer was started and never had its turn.")
        headers = {
            "Authorization": f"Bearer {self.credential}",
            "Accept": "application/json, text/event-stream",
        }
        with httpx2.Client(headers=headers, timeout=SECONDS, trust_env=False) as http:
            hello = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": CLIENT}
            started = self._send(http, "initialize", hello, id=1)
            http.headers["Mcp-Session-Id"] = started.headers["mcp-session-id"]
            http.headers["Mcp-Protocol-Version"] = VERSION
            self._send(http, "notifications/initialized")
            todo = self._call(http, "claim", {"id": todo_id})["todo"]
            self._call(http, "complete", {"id": todo_id, "lease_token": todo["lease_token"]})
            http.delete(self.url)
        return f"claimed todo {todo_id}, completed it and exited"

    def _call(self, http: httpx2.Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        asked = {"name": tool, "arguments": arguments}
        result = self._send(http, "tools/call", asked, id=2).json()["result"]
        if result["isError"]:
            raise Problem("internal", f"{tool} was refused: {result['structuredContent']}")
        content: dict[str, Any] = result["structuredContent"]
        return content

    def _send(
        self, http: httpx2.Client, method: str, params: Any = None, **more: int
    ) -> httpx2.Response:
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}, **more}
        answer = http.post(self.url, json=message)
        if not answer.is_success:
            raise Problem("internal", f"{method} was answered {answer.status_code}: {answer.text}")
        return answer


def _furnish(folder: DataFolder, stage: Stage, url: str) -> dict[str, Any]:
    """An endpoint with a receiver of deliveries and a hook."""
    row = stage.operator.row(
        "select slug, credential from switchboard.vend_endpoint("
        "p_human_id => %s, p_slug => %s, p_queues => %s)",
        [human_id(stage.operator, None), SLUG, [QUEUE]],
    )
    known = Settings(data_dir=folder.path)
    with operate(known) as (operator, place):
        keys = keys_of(known, place)
        webhook = make_webhook(operator, keys, "", SLUG, "github", QUEUE)
        hook = make_hook(operator, keys, SLUG, url, [QUEUE])
    return {
        "credential": row["credential"],
        "ingest_path": webhook["ingest_url"],
        "signing_secret": webhook["signing_secret"],
        "hook_secret": hook["signing_secret"],
    }


@contextlib.contextmanager
def _staged(folder: DataFolder, launcher: Launcher) -> Iterator[Stage]:
    """The database of the folder, made one for tests, with its clock stopped."""
    running = folder.running() or {}
    url = embedded.superuser_url(running["socket"])
    with (
        psycopg.connect(url, autocommit=True) as owner,
        operate(Settings(data_dir=folder.path)) as (operator, _),
    ):
        now: datetime = operator.value("select switchboard.now()")
        stage = Stage(owner, operator, launcher, now)
        stage.move(timedelta())
        yield stage


@contextlib.contextmanager
def _serving(launcher: Launcher) -> Iterator[int]:
    """Have the launcher answer on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            taken = launcher.take(headers, json.loads(raw), raw)
            self.send_response(202 if taken else 401)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def wait(condition: Callable[[], object], what: str) -> None:
    """Wait until something is so.

    Raises:
        Problem: it was not, in time.
    """
    end = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > end:
            raise Problem("internal", f"Waited {SECONDS:.0f} s in vain for {what}.")
        time.sleep(0.02)


def _expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Problem("internal", f"The {what}: expected {expected}, found {found}.")
