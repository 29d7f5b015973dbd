"""Hooks on the command line, and docs/hooks.md: every program and command of it is run."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from conftest import KEY, Endpoint, Served, Sql, free_port, until
from hook_kit import outbox, plain_hook, receiving, totals, vend
from psycopg import sql
from psycopg.conninfo import make_conninfo

from switchboard import cli, cli_hook
from switchboard.config import Settings
from switchboard.outbound import Outbound
from switchboard.secrets import Keyring
from switchboard.signing import sign

Run = Callable[..., tuple[int, Any]]
NOBODY = "01900000-0000-7000-8000-000000000000"
URL = "https://93.184.216.34/wake"
PAGE = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")


@pytest.fixture
def agent(db: Sql) -> Endpoint:
    return vend(db, "agent", ("in", "out", "inbox"))


@pytest.fixture
def run(
    database: str,
    agent: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run a command with --json, or as people do: exit status and what it printed."""
    for name in [name for name in os.environ if name.startswith("SWITCHBOARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SWITCHBOARD_DATABASE_URL", database)
    monkeypatch.setenv("SWITCHBOARD_SECRET_KEY", base64.b64encode(KEY).decode())

    def command(*arguments: str, text: bool = False) -> tuple[int, Any]:
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, *([] if text else ["--json"])])
        printed = capsys.readouterr()
        status = int(ended.value.code or 0)
        return status, printed.out + printed.err if text else json.loads(printed.out)

    return command


def stored(db: Sql, hook_id: str) -> dict[str, Any]:
    return db.row("select * from switchboard.notify_hooks where id = %s", hook_id)


def test_create_shows_the_secret_once_and_stores_it_sealed(run: Run, db: Sql) -> None:
    status, made = run("hook", "create", "agent", URL, "-q", "out", "-q", "in")
    assert status == 0
    assert set(made) == {"hook_id", "url", "queues", "signing_secret"}
    assert (made["url"], made["queues"]) == (URL, ["in", "out"])
    row = stored(db, made["hook_id"])
    assert Keyring((KEY,)).open(bytes(row["sealed_secret"])).decode() == made["signing_secret"]
    assert len(base64.b64decode(made["signing_secret"].removeprefix("whsec_"), validate=True)) == 32
    status, listed = run("hook", "list", "agent")
    (hook,) = listed["hooks"]
    assert (hook["hook_id"], hook["enabled"], hook["waiting"]) == (made["hook_id"], True, 0)
    assert made["signing_secret"][6:] not in json.dumps(listed)
    status, text = run("hook", "create", "agent", URL, text=True)
    assert (status, "Warning" in text) == (0, False)
    assert re.search(
        r"^Hook [-0-9a-f]{36}: https\S+ is called when a todo in any of its queues becomes ready\.$"
        r"\n\nFor the receiver; shown this once:\n\n  secret  whsec_\S{44}$",
        text,
        re.MULTILINE,
    )
    status, text = run("hook", "list", "agent", text=True)
    assert text.splitlines()[0].split()[:4] == ["endpoint", "hook_id", "url", "queues"]
    assert [line.split()[2:5] for line in text.splitlines()[1:]] == [
        [URL, "in,out", "true"],
        [URL, "all", "true"],
    ]


def test_an_endpoint_may_be_named_by_its_id(run: Run, agent: Endpoint) -> None:
    status, made = run("hook", "create", agent.id, URL)
    assert (status, made["queues"]) == (0, None)
    assert run("hook", "list", agent.id)[1]["hooks"][0]["hook_id"] == made["hook_id"]


@pytest.mark.parametrize("url", ["http://93.184.216.34/", "https://127.0.0.1/", "https://[::1]/"])
def test_create_warns_of_an_address_that_is_not_called(run: Run, url: str) -> None:
    """It is the server's settings that count."""
    status, made = run("hook", "create", "agent", url)
    assert (status, made["url"]) == (0, url)
    assert made["warning"].startswith("With the settings of this shell")
    status, text = run("hook", "create", "agent", url, text=True)
    assert status == 0
    assert "\nWarning: With the settings of this shell" in text


def test_rotate_gives_a_new_secret_and_enables(run: Run, db: Sql, agent: Endpoint) -> None:
    made = run("hook", "create", "agent", URL)[1]
    db.rows("update switchboard.notify_hooks set failures = 10, disabled_at = now()")
    assert run("hook", "list", "agent")[1]["hooks"][0]["enabled"] is False
    status, turned = run("hook", "rotate", "agent", made["hook_id"])
    assert (status, turned["enabled"], turned["hook_id"]) == (0, True, made["hook_id"])
    row = stored(db, made["hook_id"])
    secrets = [bytes(row[name]) for name in ("sealed_secret", "previous_secret")]
    opened = [Keyring((KEY,)).open(secret).decode() for secret in secrets]
    assert opened == [turned["signing_secret"], made["signing_secret"]]
    assert opened[0] != opened[1]
    assert run("hook", "list", "agent")[1]["hooks"][0]["enabled"] is True
    status, text = run("hook", "rotate", "agent", made["hook_id"], text=True)
    assert text.startswith("Rotated, and enabled. Its calls are signed with the previous secret,")
    assert "  secret  whsec_" in text


def test_delete_and_counts(run: Run, db: Sql, agent: Endpoint) -> None:
    made = run("hook", "create", "agent", URL)[1]
    db.create(agent, "work")
    assert run("hook", "list", "agent")[1]["hooks"][0]["waiting"] == 1
    status, gone = run("hook", "delete", "agent", made["hook_id"])
    assert (status, gone) == (0, {"hook_id": made["hook_id"], "deleted": True})
    assert run("hook", "list", "agent")[1] == {"hooks": []}
    assert run("hook", "list", "agent", text=True) == (0, "(none)\n")
    assert run("hook", "counts")[1] == {"counts": []}
    db.rows("select switchboard.count_notification('delivered', 3)")
    assert run("hook", "counts")[1] == {
        "counts": [{"type": "todo.ready", "outcome": "delivered", "total": 3}]
    }
    text = run("hook", "counts", text=True)[1]
    assert [line.split() for line in text.splitlines()] == [
        ["type", "outcome", "total"],
        ["todo.ready", "delivered", "3"],
    ]
    other = run("hook", "create", "agent", URL)[1]["hook_id"]
    text = run("hook", "delete", "agent", other, text=True)[1]
    assert text == f"Deleted {other}: it is called no more. The todos stay.\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("create", "nobody", URL), "not_found"),
        (("create", "agent", "wake me"), "invalid_argument"),
        (("create", "agent", URL, "-q", "other"), "forbidden"),
        (("create", "agent", URL, "-q", "Not A Queue"), "invalid_argument"),
        (("list", "nobody"), "not_found"),
        (("rotate", "agent", NOBODY), "not_found"),
        (("rotate", "agent", "nonsense"), "not_found"),
        (("rotate", "nobody", NOBODY), "not_found"),
        (("delete", "agent", NOBODY), "not_found"),
        (("delete", "nobody", NOBODY), "not_found"),
    ],
)
def test_what_is_refused_says_why(run: Run, arguments: tuple[str, ...], code: str) -> None:
    status, answer = run("hook", *arguments)
    assert (status, answer["code"]) == (1, code)
    status, text = run("hook", *arguments, text=True)
    assert status == 1
    assert text.startswith(f"{code}: ")


def test_a_hook_of_another_endpoint_is_not_there(run: Run, db: Sql) -> None:
    made = run("hook", "create", "agent", URL)[1]
    vend(db, "other")
    for verb in ("rotate", "delete"):
        status, answer = run("hook", verb, "other", made["hook_id"])
        assert (status, answer["code"]) == (1, "not_found")
    assert len(run("hook", "list", "agent")[1]["hooks"]) == 1


def test_an_endpoint_has_five_hooks(run: Run) -> None:
    for _ in range(5):
        assert run("hook", "create", "agent", URL)[0] == 0
    assert run("hook", "create", "agent", URL)[1]["code"] == "ceiling_exceeded"


@pytest.mark.parametrize("name", ["create", "list", "rotate", "delete", "counts"])
def test_help_has_an_example_and_json(run: Run, name: str) -> None:
    status, text = run("hook", name, "--help", text=True)
    assert status == 0
    assert f"Example: switchboard hook {name}" in text
    assert "--json" in text


# docs/hooks.md


def block(language: str, holding: str = "") -> str:
    """The only block of the page in this language that holds a text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (found,) = [text for text in blocks if holding in text]
    return str(found)


def test_every_block_of_the_page_is_tried_here() -> None:
    assert re.findall(r"^```(\w+)$", PAGE, re.MULTILINE) == [
        "sh",
        "json",
        "http",
        "json",
        "python",
        "js",
        "sh",
        "sh",
        "sh",
    ]


def test_the_commands_of_the_page_work(run: Run, db: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> str:
        return ""

    monkeypatch.setattr(cli_hook, "_refusal", nothing)  # worker.example.org is nowhere
    typed = [line.split()[1:] for line in PAGE.splitlines() if line.startswith("switchboard hook ")]
    assert [words[1] for words in typed] == ["create", "list", "rotate", "delete", "list", "counts"]
    hook_id = ""
    for words in typed:
        status, answer = run(*[hook_id if word == "HOOK" else word for word in words])
        assert status == 0, answer
        hook_id = answer.get("hook_id", hook_id)


@pytest.mark.anyio
async def test_the_settings_for_receivers_on_this_machine_work() -> None:
    words = block("sh", "make up").split()
    assert words[-2:] == ["make", "up"]
    out = Outbound(Settings.from_env(dict(word.split("=", 1) for word in words[:-2])))
    try:
        await out.vet("http://127.0.0.1:9000/wake")
    finally:
        await out.aclose()


def allowing(receiver_port: int) -> dict[str, Any]:
    return {
        "outbound_http": True,
        "outbound_private": ("127.0.0.0/8",),
        "outbound_ports": (receiver_port,),
    }


def test_what_is_sent_looks_like_on_the_page(
    serve: Callable[..., Served], db: Sql, agent: Endpoint
) -> None:
    with receiving() as receiver:
        arguments = json.loads(block("json", '"url"'))
        served = serve(**allowing(receiver.port))
        session = served.session(agent)
        made = session.call("create_notify_hook", **{**arguments, "url": receiver.url})
        assert set(made) == {"hook_id", "url", "queues", "signing_secret"}
        db.rows(
            "select switchboard.create_todo(%s, 'inbox', 'a', p_kind => 'k', p_source => 's')",
            agent.id,
        )
        (call,) = until(lambda: receiver.calls, "the call arrives")
    assert set(call.json) == set(json.loads(block("json", '"reason"')))
    head = block("http").splitlines()
    said = {line.split(": ")[0].lower(): line.split(": ")[1] for line in head[1:]}
    assert said.keys() <= call.headers.keys()
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature", "content-type"):
        sent, shown = (re.sub(r"[\w/+]", "x", text) for text in (call.headers[name], said[name]))
        assert sent[:6] == shown[:6]
        assert len(call.headers[name]) == len(said[name])


@contextmanager
def program(command: list[str], log: Path, **env: str) -> Iterator[int]:
    """A receiver's program that listens, at the port given; what it prints goes to ``log``."""
    port = free_port()
    with log.open("wb") as output:
        running = subprocess.Popen(
            command,
            env={**os.environ, **env, "PORT": str(port), "PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=output,
        )

    def answers() -> bool:
        assert running.poll() is None, log.read_text()
        try:
            httpx2.get(f"http://127.0.0.1:{port}/", timeout=5, trust_env=False)
        except httpx2.ConnectError:
            return False
        except httpx2.HTTPError:
            return True
        return True

    try:
        until(answers, "it listens")
        yield port
    finally:
        running.kill()
        running.wait()


def deliver(port: int, secret: str, call: dict[str, Any], **changes: Any) -> int:
    """Send a call as a server does, but for the changes; the status of the answer."""
    body = json.dumps(call, ensure_ascii=False).encode()
    at = changes.pop("at", int(time.time()))
    headers = sign(changes.pop("id", "msg_" + uuid.uuid4().hex), at, body, [secret.encode()])
    headers |= {name.replace("_", "-"): value for name, value in changes.items()}
    url = f"http://127.0.0.1:{port}/wake"
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return httpx2.post(url, content=body, headers=raw, trust_env=False).status_code


def refuses(port: int, secret: str, call: dict[str, Any]) -> None:
    """The receiver takes nothing that is not genuine and fresh."""
    other = "whsec_" + base64.b64encode(os.urandom(32)).decode()
    assert deliver(port, other, call) == 401
    for change in (
        {"at": int(time.time()) - 400},
        {"at": int(time.time()) + 400},
        {"webhook_signature": "v1,é"},
        {"webhook_signature": "v1"},
        {"webhook_signature": ""},
        {"webhook_timestamp": "soon"},
        {"webhook_id": "msg_another"},
    ):
        assert deliver(port, secret, call, **change) == 401, change


@contextmanager
def bound_login(db: Sql, endpoint: Endpoint) -> Iterator[str]:
    """The address of a database login that is bound to the endpoint."""
    login, password = f"hook_{uuid.uuid4().hex[:12]}", uuid.uuid4().hex
    role = sql.Identifier(login)
    create = sql.SQL("create role {} login password {} in role switchboard_worker")
    db.connection.execute(create.format(role, sql.Literal(password)))
    db.value("select switchboard.bind_login(%s, %s)", endpoint.id, login)
    try:
        yield make_conninfo(db.dsn, user=login, password=password)
    finally:
        db.connection.execute(sql.SQL("drop role {}").format(role))


def test_the_receiver_in_python_works(
    serve: Callable[..., Served], db: Sql, agent: Endpoint, tmp_path: Path
) -> None:
    def state(todo: str) -> str:
        row = db.row("select state::text from switchboard.get_todo(%s, %s)", agent.id, todo)
        return str(row["state"])

    hook, secret = plain_hook(db, agent, "http://127.0.0.1:1/")
    with (
        bound_login(db, agent) as login,
        program(
            [sys.executable, "-c", block("python")],
            tmp_path / "log",
            SECRET=secret,
            DATABASE_URL=login,
        ) as port,
    ):
        url = f"http://127.0.0.1:{port}/wake"
        db.rows("update switchboard.notify_hooks set url = %s", url)
        serve(**allowing(port))
        first = db.create(agent, "called for")
        until(lambda: state(first) == "done", "the todo of the call is done")
        assert until(lambda: totals(db), "the call is settled") == {"delivered": 1}
        # From here on the calls are the test's: nothing else makes one.
        db.rows("select switchboard.delete_notify_hook(%s, %s)", agent.id, hook)
        waits = db.create(agent, "waits")
        call = {"type": "todo.ready", "reason": "created", "todo_id": waits}
        refuses(port, secret, call)
        assert state(waits) == "pending"
        # A reason of a later version is a wake like every other; so was `stalled` before SPEC-0038.
        assert deliver(port, secret, {**call, "reason": "of 2040"}, id="msg_1") == 204
        until(lambda: state(waits) == "done", "the todo of an unknown reason is done")
        left, right = db.create(agent, "left"), db.create(agent, "right")
        assert deliver(port, secret, {**call, "todo_id": right}, id="msg_1") == 204  # seen before
        assert deliver(port, secret, {**call, "todo_id": waits}, id="msg_2") == 204  # is done
        until(lambda: state(left) == "done", "it took another one instead")
        assert state(right) == "pending"
        assert deliver(port, secret, {**call, "todo_id": right}, id="msg_3") == 204
        until(lambda: state(right) == "done", "the other one is done")
        assert deliver(port, secret, {**call, "todo_id": NOBODY}, id="msg_4") == 204  # nothing left
    lines = (tmp_path / "log").read_text().splitlines()
    titles = [line for line in lines if line.startswith("working on")]
    assert titles == [f"working on {title}" for title in ("called for", "waits", "left", "right")]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not here")
def test_the_receiver_for_node_works(
    serve: Callable[..., Served], db: Sql, agent: Endpoint, tmp_path: Path
) -> None:
    (tmp_path / "receiver.mjs").write_text(block("js"), encoding="utf-8")
    _, secret = plain_hook(db, agent, "http://127.0.0.1:1/")
    log = tmp_path / "log"
    with program(["node", str(tmp_path / "receiver.mjs")], log, SECRET=secret) as port:
        db.rows("update switchboard.notify_hooks set url = %s", f"http://127.0.0.1:{port}/wake")
        serve(**allowing(port))
        todo = db.create(agent, "called for é")
        until(lambda: outbox(db, todo)[0]["outcome"] == "delivered", "the call is taken")
        call = {"type": "todo.ready", "reason": "of 2040", "todo_id": "é"}
        refuses(port, secret, call)
        for number in (1, 1, 2):
            assert deliver(port, secret, call, id=f"msg_{number}") == 204
        expected = f"claim {todo}\nclaim é\nclaim é\n"
        until(lambda: log.read_text(encoding="utf-8") == expected, "each is taken once")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here")
def test_the_check_in_a_shell_works(
    serve: Callable[..., Served], db: Sql, agent: Endpoint, tmp_path: Path
) -> None:
    with receiving() as receiver:
        hook, old = plain_hook(db, agent, receiver.url)
        new = "whsec_" + base64.b64encode(os.urandom(32)).decode()
        sealed = Keyring((KEY,)).seal(new.encode())
        db.rows("select switchboard.rotate_notify_hook(%s, %s, %s)", agent.id, hook, sealed)
        serve(**allowing(receiver.port))
        db.create(agent, "é")
        (call,) = until(lambda: receiver.calls, "the call arrives")
    (tmp_path / "body.json").write_bytes(call.body)

    def verdict(secret: str, **changes: str) -> str:
        env = {
            "SECRET": secret,
            "ID": call.id,
            "TIMESTAMP": call.headers["webhook-timestamp"],
            "SIGNATURE": call.headers["webhook-signature"],
        }
        done = subprocess.run(
            ["sh", "-euc", block("sh", "openssl")],
            env={**os.environ, **env, **changes},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.strip()

    assert [verdict(old), verdict(new)] == ["genuine"] * 2
    assert verdict("whsec_" + base64.b64encode(bytes(32)).decode()) == "forged"
    assert verdict(new, ID="msg_another") == "forged"
    (tmp_path / "body.json").write_bytes(call.body + b"\n")
    assert verdict(new) == "forged"
