"""``switchboard demo``: the main job once, from nothing, in a place of its own.

It starts `switchboard up` as anyone would, on a throw-away data folder and a free port, sends one
signed GitHub delivery over HTTP, and lets an MCP client claim, heartbeat and complete the todo. It
believes only what the database says at the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from switchboard import embedded_socket
from switchboard.cli_database import operate
from switchboard.config import Settings
from switchboard.datafolder import DataFolder
from switchboard.errors import Problem

Say = Callable[[str], None]

REAL_PAYLOAD = Path("../shared/cases/webhooks/github.pull_request.json")
START_SECONDS = 120.0
STOP_SECONDS = 15.0


def run(say: Say) -> list[str]:
    """Do it all, and clean up.

    Args:
        say: called with one line at each step.

    Returns:
        The lines said.

    Raises:
        Problem: a step failed; the message names it.
    """
    told: list[str] = []

    def step(line: str) -> None:
        told.append(line)
        say(line)

    name, body = payload()
    step("1. Starting PostgreSQL and the server in a throw-away folder …")
    with server() as (folder, started):
        facts = wait_until_ready(folder, started)
        url = facts["url"]
        step(f"   serving {url}")
        todo_id = send(facts, body)
        step(f"2. Sent {name} ({len(body)} bytes), signed: todo {todo_id}")
        with failures_named("the agent's session"):
            anyio.run(_agent, facts, todo_id, step)
        state = _state(folder, todo_id)
        if state != "done":
            raise Problem("internal", f"The database says that the todo is {state}, not done.")
        step("7. The database says: done. Stopping …")
    return told


def payload() -> tuple[str, bytes]:
    """The real delivery of the project's cases where it is there, else the one that we ship."""
    if REAL_PAYLOAD.is_file():
        return "a real pull_request delivery", REAL_PAYLOAD.read_bytes()
    shipped = resources.files("switchboard").joinpath("demo_pull_request.json")
    return "a sample pull_request delivery", shipped.read_bytes()


@contextlib.contextmanager
def server(**more: str) -> Iterator[tuple[DataFolder, subprocess.Popen[bytes]]]:
    """`switchboard up` in a folder that is removed at the end.

    Args:
        more: settings, as in the environment.
    """
    place = Path(tempfile.mkdtemp(prefix="switchboard-demo-"))
    folder = DataFolder(place / "data")
    env = {key: value for key, value in os.environ.items() if not key.startswith("SWITCHBOARD_")}
    env |= {"SWITCHBOARD_DATA": str(folder.path), "SWITCHBOARD_PORT": "0", **more}
    try:
        with open(place / "log", "wb") as log:
            started = subprocess.Popen(
                [sys.executable, "-m", "switchboard", "up"],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield folder, started
        finally:
            started.send_signal(signal.SIGTERM)
            try:
                started.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()
    finally:
        if folder.exists():
            embedded_socket.forget(folder)
        shutil.rmtree(place, ignore_errors=True)


def wait_until_ready(folder: DataFolder, started: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What `up` wrote for those who come after it, once the server answers."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and started.poll() is None:
        about = folder.running() or {} if folder.exists() else {}
        first = folder.read_json("first.json") if "socket" in about else None
        if first is not None and _answers(about["url"]):
            return {**first, "url": about["url"]}
        time.sleep(0.05)
    lines = (folder.path.parent / "log").read_text(errors="replace").splitlines()[-20:]
    text = "The server did not come up. It said:\n" + "\n".join("  " + line for line in lines)
    raise Problem("unavailable", text)


def _answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/readyz", timeout=5, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


def send(facts: dict[str, Any], body: bytes) -> str:
    """Deliver the payload as GitHub would; the todo's id."""
    signature = hmac.new(facts["signing_secret"].encode(), body, hashlib.sha256).hexdigest()
    answer = httpx2.post(
        facts["url"] + facts["ingest_path"],
        content=body,
        headers={
            "Content-Type": "application/json",
            "X-GitHub-Event": "pull_request",
            "X-GitHub-Delivery": str(uuid.uuid4()),
            "X-Hub-Signature-256": f"sha256={signature}",
        },
        timeout=30,
        trust_env=False,
    )
    if answer.status_code != 202:
        raise Problem("internal", f"The delivery was answered {answer.status_code}: {answer.text}")
    return str(answer.json()["todos"][0]["id"])


async def _agent(facts: dict[str, Any], todo_id: str, step: Say) -> None:
    """The drain loop of an agent, for one todo."""
    headers = {"Authorization": f"Bearer {facts['credential']}"}
    url = f"{facts['url']}/mcp/{facts['slug']}"
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        tools = (await client.list_tools()).tools
        step(f"3. An MCP client is connected; its tools: {', '.join(t.name for t in tools)}")
        claimed = await call(client, "claim_next", {})
        todo = claimed.get("todo") or {}
        if todo.get("id") != todo_id:
            raise Problem("internal", f"claim_next gave {todo.get('id')}, not {todo_id}.")
        step(f"4. Claimed: {todo['title']!r}, until {todo['lease_expires_at']}")
        held = {"id": todo_id, "lease_token": todo["lease_token"]}
        renewed = await call(client, "heartbeat", held)
        step(f"5. Still working: the lease now ends at {renewed['todo']['lease_expires_at']}")
        ended = await call(client, "complete", {**held, "result": {"summary": "Reviewed."}})
        step(f"6. Completed: the answer says {ended['todo']['state']}")


async def call(client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The structured content of a tool's answer.

    Raises:
        Problem: it was refused.
    """
    answer = await client.call_tool(tool, arguments)
    if answer.is_error or answer.structured_content is None:
        raise Problem("internal", f"{tool} was refused: {answer.structured_content}")
    return dict(answer.structured_content)


@contextlib.contextmanager
def failures_named(what: str) -> Iterator[None]:
    """Turn whatever a client library raises, task groups included, into one refusal."""
    try:
        yield
    except Exception as error:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, Problem):
            raise error from None
        raise Problem("internal", f"In {what}: {type(error).__name__}: {error}") from None


def _state(folder: DataFolder, todo_id: str) -> str:
    """What the database says, without the server."""
    with operate(Settings(data_dir=folder.path)) as (operator, _):
        query = "select state from switchboard.get_todo_any_endpoint(p_id => %s)"
        return str(operator.value(query, [todo_id]))
