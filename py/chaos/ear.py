"""An agent that waits for work at the server, to see whether it is woken; with its own histories.

It has an endpoint and a queue that no client of the load works on. Nothing but a note of the
database, or a server that looks for what it missed, ends its waiting before the time is up.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.hands import McpHands, Row, SqlHands
from chaos.history import OK, Writer
from chaos.load import VERBS

if TYPE_CHECKING:
    from chaos.stage import Stage

QUEUE = "ear"
WAIT_SECONDS = 50
LEASE = 60


class _Waiting(McpHands):
    """Its claims wait."""

    def _tool(self, op: str, args: Row) -> tuple[str, Row]:
        tool, arguments = super()._tool(op, args)
        return tool, {**arguments, "wait_seconds": WAIT_SECONDS} if op == "claim" else arguments


class Ear:
    """The agent, and who makes work for it.

    Args:
        stage: with a server that answers.
    """

    def __init__(self, stage: Stage) -> None:
        with stage.postgres.admin() as admin:
            vended = admin.execute(
                "select endpoint_id::text as id, slug, credential"
                " from switchboard.vend_endpoint(%s, 'ear', %s, %s)",
                (stage.place.human, [QUEUE], VERBS),
            ).fetchall()
        self.endpoint: Row = vended[0]
        options = {"server": stage.server.url, "endpoints": vended, "timeout": WAIT_SECONDS + 10}
        self.agent = _Waiting(options, "agent:ear")
        self.maker = SqlHands({"url": stage.postgres.url("operator")}, "ear-maker")
        self.claims = _writer(stage.folder, "ear", "agent:ear")
        self.creates = _writer(stage.folder, "ear-maker", "ear-maker")
        self.agent.open(self.endpoint)
        self.thread = ThreadPoolExecutor(1, "ear")
        self.made = 0

    def listen(self) -> Future[float]:
        """Begin to wait for work; the time (monotonic) at which there was some, done by then.

        The future fails with ``LookupError`` when there was none for ``WAIT_SECONDS``.
        """
        return self.thread.submit(self._wait)

    def make_work(self) -> None:
        """Create a todo for it."""
        self.made += 1
        args = {
            "endpoint": self.endpoint["id"],
            "todos": [{"queue": QUEUE, "title": f"ear {self.made}"}],
        }
        self.maker.open(self.endpoint)
        n = self.creates.begin("create", **args)
        outcome = self.maker.call("create", args)
        self.creates.end(n, outcome.end, outcome.code, {"todos": outcome.todos})

    def _wait(self) -> float:
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            self.agent.open(self.endpoint)
            todos = self._call("claim", {"endpoint": self.endpoint["id"], "lease": LEASE})
            if todos:
                heard = time.monotonic()
                token = todos[0]["lease_token"]
                done = {"endpoint": self.endpoint["id"], "todo": todos[0]["id"], "token": token}
                self._call("complete", {**done, "result": {"token": token}})
                return heard
        raise LookupError(f"an agent waited {WAIT_SECONDS} s in vain for work that was there")

    def _call(self, op: str, args: Row) -> list[Row]:
        n = self.claims.begin(op, **args)
        outcome = self.agent.call(op, args)
        answer = {"todos": outcome.todos} if outcome.end == OK else None
        self.claims.end(n, outcome.end, outcome.code, answer)
        return outcome.todos


def _writer(folder: Path, name: str, owner: str) -> Writer:
    return Writer(folder / f"{name}.jsonl", name, owner)
