"""The TypeScript clients, where node is there; npm ci brings them from the lock file."""

import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "ts"
pytestmark = pytest.mark.skipif(
    not (shutil.which("node") and shutil.which("npm")), reason="node and npm are not installed"
)


@pytest.fixture(scope="session")
def packages() -> Path:
    """The installed packages; a lock file newer than them means installing again.

    Two runs of the suite share the folder (`make test` has one per PostgreSQL), and `npm ci` begins
    by emptying it: one installs, the other waits and finds it done.
    """
    marker = HERE / "node_modules" / ".package-lock.json"
    lock = HERE / "package-lock.json"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not marker.exists() or marker.stat().st_mtime < lock.stat().st_mtime:
            command = ["npm", "ci", "--no-audit", "--no-fund"]
            subprocess.run(command, cwd=HERE, check=True, timeout=110)
    return HERE


@pytest.mark.parametrize("kind", ["sdk", "client", "client-auto"])
def test_the_typescript_client_drains_the_queue(served, db, packages: Path, kind: str) -> None:
    alpha = db.vend("alpha")
    todo = db.create(alpha, "look at this")
    done = subprocess.run(
        ["node", "drain.mjs", kind, f"{served.url}/mcp/alpha", alpha.credential],
        cwd=packages, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    saw = json.loads(done.stdout)
    assert "claim_next" in saw.pop("instructions")
    assert "claim_next" in saw.pop("tools")
    assert saw == {
        "kind": kind,
        "session": True,
        "version": "2025-11-25",
        "claimed": "look at this",
        "heartbeat": "claimed",
        "completed": "done",
        "empty": True,
        "conflict": [True, "conflict"],
        "missing": [True, "not_found"],
        "unknown": -32602,
    }
    row = db.row("select state::text, result from switchboard.todos where id = %s", todo)
    assert row == {"state": "done", "result": {"by": kind}}


@pytest.mark.parametrize("kind", ["sdk", "client", "client-auto"])
def test_the_typescript_client_is_rung_and_waits(
    served, db, until, packages: Path, kind: str
) -> None:
    alpha = db.vend("alpha")
    served.wait_listening()
    with subprocess.Popen(
        ["node", "ring.mjs", kind, f"{served.url}/mcp/alpha", alpha.credential],
        cwd=packages, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as client:  # fmt: skip
        try:
            until(served.app.state.sessions.streams, "its stream is open", 30)
            todo = db.create(alpha, "for you")
            until(lambda: len(served.app.state.waiting) == 1, "it waits", 30)
            db.create(alpha, "one more")
            output, errors = client.communicate(timeout=30)
        finally:
            client.kill()
    assert client.returncode == 0, errors
    assert json.loads(output) == {
        "kind": kind,
        "capability": {"claude/channel": {}},
        "bell": {
            "method": "notifications/claude/channel",
            "params": {
                "content": "Todo ready on queue inbox: for you",
                "meta": {"todo_id": todo, "queue": "inbox"},
            },
        },
        "claimed": "for you",
        "pulled": "one more",
    }
