"""The command line, as it is used: one `switchboard up`, commands beside it, its end."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from conftest import busy
from psycopg.conninfo import make_conninfo

from switchboard import cli, embedded, embedded_socket
from switchboard.datafolder import DataFolder

ROOT = Path(__file__).resolve().parents[2]
Until = Callable[..., Any]


class Up:
    """A running `switchboard up` of a data folder, on a free port."""

    def __init__(self, path: Path, **more: str) -> None:
        self.folder = DataFolder(path)
        self.log = path.parent / f"{path.name}.log"
        clean = {key: v for key, v in os.environ.items() if not key.startswith("SWITCHBOARD_")}
        self.env = {**clean, "SWITCHBOARD_DATA": str(path), "SWITCHBOARD_PORT": "0", **more}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "switchboard", "up", "--json"],
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=path.parent,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        self.facts: dict[str, Any] = json.loads(line)

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Stop it; the seconds that took."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(20)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return time.monotonic() - began


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("up") / "it's data")
    yield running
    if running.process.poll() is None:
        running.stop()
    embedded_socket.forget(running.folder)


@pytest.fixture
def run(
    up: Up, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, Any]]:
    """Run a command beside `up` with --json: exit status and what it printed."""
    monkeypatch.setenv("SWITCHBOARD_DATA", str(up.folder.path))
    for name in ("SWITCHBOARD_DATABASE_URL", "SWITCHBOARD_PORT"):
        monkeypatch.delenv(name, raising=False)

    def command(*arguments: str, text: bool = False) -> tuple[int, Any]:
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, *([] if text else ["--json"])])
        printed = capsys.readouterr()
        status = int(ended.value.code or 0)
        return status, printed.out + printed.err if text else json.loads(printed.out)

    return command


Run = Callable[..., tuple[int, Any]]


def test_what_up_shows_works_as_it_stands(up: Up, run: Run) -> None:
    sent = subprocess.run(
        ["sh", "-c", up.facts["webhook_command"]], capture_output=True, text=True, check=True
    )
    answer = json.loads(sent.stdout)
    assert answer["verified"] is True, answer
    status, shown = run("todo", "show", answer["todos"][0]["id"])
    assert status == 0
    assert shown["todo"]["queue"] == "github"
    psql = subprocess.run(
        up.facts["psql"] + " -XAtc 'select count(*) from switchboard.todos'",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(psql.stdout) >= 1
    server = up.facts["mcp"]["mcpServers"]["switchboard"]
    hello = httpx2.post(
        server["url"],
        headers={**server["headers"], "accept": "application/json, text/event-stream"},
        json={
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        },
    )
    assert hello.status_code == 200


def test_everything_that_up_leaves_is_private(up: Up) -> None:
    for name in ("first.json", "secret.key", "running.json", "socket.json", "postgres.log"):
        assert stat.S_IMODE((up.folder.path / name).stat().st_mode) == 0o600, name


def test_the_server_logs_in_with_the_least_it_needs(up: Up, run: Run) -> None:
    place = up.folder.running() or {}
    gateway = embedded.url(Path(place["socket"]), embedded.GATEWAY)
    with psycopg.connect(gateway, autocommit=True) as connection:
        assert connection.execute("select switchboard.sweep_age()").fetchone()
        for forbidden in ("select * from switchboard.todos", "select switchboard.list_humans()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(forbidden.encode())


def test_a_todo_through_every_transition(run: Run) -> None:
    status, pushed = run("todo", "push", "agent", "Éclair", "-q", "inbox", "--payload", '{"a": 1}')
    assert (status, pushed["created"], pushed["todo"]["payload"]) == (0, True, {"a": 1})
    todo = pushed["todo"]["id"]
    assert run("todo", "claim", todo)[1]["todo"]["owner"] == "op:operator"
    assert run("todo", "heartbeat", todo, "--lease-ttl", "900")[0] == 0
    assert run("todo", "release", todo)[1]["todo"]["state"] == "pending"
    run("todo", "claim", todo)
    assert run("todo", "fail", todo, "--result", '"no"')[1]["todo"]["result"] == "no"
    assert run("todo", "retry", todo)[1]["todo"]["attempt"] == 0
    run("todo", "claim", todo)
    assert run("todo", "complete", todo, "--result", "{}")[1]["todo"]["state"] == "done"
    status, shown = run("todo", "show", todo)
    outcomes = [attempt["outcome"] for attempt in shown["attempts"]]
    assert outcomes == ["released", "failed", "done"]
    status, again = run("todo", "complete", todo)
    assert (status, again["code"]) == (1, "conflict")
    listed = run("todo", "list", "-e", "agent", "-q", "inbox", "-s", "done")[1]["todos"]
    assert todo in [row["id"] for row in listed]


def test_the_same_key_is_the_same_todo(run: Run) -> None:
    first = run("todo", "push", "agent", "One", "-q", "inbox", "--key", "k")[1]
    second = run("todo", "push", "agent", "Two", "-q", "inbox", "--key", "k")[1]
    assert (first["created"], second["created"]) == (True, False)
    assert first["todo"]["id"] == second["todo"]["id"]


def test_payloads_from_a_file_and_from_standard_input(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.json").write_text('{"from": "file"}')
    pushed = run("todo", "push", "agent", "x", "-q", "inbox", "--payload", f"@{tmp_path}/p.json")
    assert pushed[1]["todo"]["payload"] == {"from": "file"}
    with open(tmp_path / "p.json") as standard_input:
        monkeypatch.setattr("sys.stdin", standard_input)
        pushed = run("todo", "push", "agent", "x", "-q", "inbox", "--payload", "-")
    assert pushed[1]["todo"]["payload"] == {"from": "file"}


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["todo", "show", "not-a-uuid"], "not_found"),
        (["todo", "show", "01900000-0000-7000-8000-000000000000"], "not_found"),
        (["todo", "complete", "' or 1=1"], "not_found"),
        (["todo", "list", "-e", "nobody"], "not_found"),
        (["todo", "list", "-s", "asleep"], "invalid_argument"),
        (["todo", "list", "-n", "0"], "invalid_argument"),
        (["todo", "push", "nobody", "x", "-q", "inbox"], "not_found"),
        (["todo", "push", "nobody", "x"], "not_found"),
        (["todo", "push", "agent", "x"], "invalid_argument"),
        (["todo", "push", "agent", "x", "-q", "elsewhere"], "forbidden"),
        (["todo", "push", "agent", "x", "-q", "inbox", "--payload", "{"], "invalid_argument"),
        (["todo", "push", "agent", "x", "-q", "inbox", "--payload", "@/none"], "invalid_argument"),
        (["todo", "push", "agent", "x", "-q", "inbox", "--payload", "null"], "invalid_argument"),
        (["todo", "push", "agent", "x\x00y", "-q", "inbox"], "invalid_argument"),
        (["todo", "push", "agent", "\udc80", "-q", "inbox"], "invalid_argument"),
        (["human", "add", "operator"], "conflict"),
        (["human", "add", ""], "invalid_argument"),
        (["endpoint", "vend", "agent"], "conflict"),
        (["endpoint", "vend", "Not A Slug"], "invalid_argument"),
        (["endpoint", "vend", "x", "--human", "nobody"], "not_found"),
        (["endpoint", "vend", "x", "--verb", "fly"], "invalid_argument"),
        (["endpoint", "vend", "x", "--expires-at", "soon"], "invalid_argument"),
        (["endpoint", "rotate", "nobody"], "not_found"),
        (["endpoint", "revoke", "nobody"], "not_found"),
        (["webhook", "create", "nobody", "-q", "inbox"], "not_found"),
        (["webhook", "create", "agent", "-q", "inbox"], "ceiling_exceeded"),
    ],
)
def test_a_refusal_is_an_error_body_and_status_1(run: Run, command: list[str], code: str) -> None:
    status, body = run(*command)
    assert (status, body["code"]) == (1, code)
    assert isinstance(body["error"], str)
    text_status, text = run(*command, text=True)
    assert text_status == 1
    assert body["error"].splitlines()[0] in text
    assert "Traceback" not in text


@pytest.mark.parametrize("command", [["fly"], ["todo", "push"], ["todo", "list", "-n", "many"], []])
def test_what_is_not_understood_is_status_2(run: Run, command: list[str]) -> None:
    status, text = run(*command, text=True)
    assert status == 2
    assert "Usage" in text


def test_an_endpoint_from_vending_to_revoking(up: Up, run: Run) -> None:
    status, vended = run("endpoint", "vend", "life", "-q", "a", "-q", "b", "--verb", "claim_next")
    assert status == 0
    assert vended["credential"].startswith("sbk_")
    server = vended["mcp"]["mcpServers"]["switchboard"]
    assert server["url"] == f"{up.facts['url']}/mcp/life"
    assert _authenticates(up, "life", vended["credential"])
    (row,) = [row for row in run("endpoint", "list")[1]["endpoints"] if row["slug"] == "life"]
    assert (row["queues"], row["verbs"], row["active"]) == (["a", "b"], ["claim_next"], True)
    rotated = run("endpoint", "rotate", "life")[1]["credential"]
    assert _authenticates(up, "life", rotated)
    assert not _authenticates(up, "life", vended["credential"])
    run("todo", "push", "life", "x", "-q", "a")
    assert run("endpoint", "revoke", "life") == (0, {"slug": "life", "dead_lettered": 1})
    assert not _authenticates(up, "life", rotated)


def _authenticates(up: Up, slug: str, credential: str) -> bool:
    place = up.folder.running() or {}
    gateway = embedded.url(Path(place["socket"]), embedded.GATEWAY)
    with psycopg.connect(gateway) as connection:
        digest = hashlib.sha256(credential.encode()).digest()
        row = connection.execute(
            "select switchboard.authenticate(%s, %s) is not null", [slug, digest]
        ).fetchone()
    return row == (True,)


def test_a_receiver_made_here_takes_what_the_sender_signs(up: Up, run: Run) -> None:
    run("endpoint", "vend", "hooked", "-q", "in")
    made = run("webhook", "create", "hooked", "-q", "in", "--signing-secret", "s3cret")[1]
    body = b'{"action":"opened"}'
    signature = hmac.new(b"s3cret", body, hashlib.sha256).hexdigest()
    headers = {
        "X-GitHub-Event": "issues",
        "X-GitHub-Delivery": "d1",
        "X-Hub-Signature-256": f"sha256={signature}",
    }
    assert made["ingest_url"].startswith(up.facts["url"] + "/webhooks/w/")
    assert httpx2.post(made["ingest_url"], content=body, headers=headers).status_code == 202
    forged = {**headers, "X-Hub-Signature-256": "sha256=" + "0" * 64}
    assert httpx2.post(made["ingest_url"], content=body, headers=forged).status_code == 401
    listed = run("webhook", "list", "hooked")[1]["webhooks"]
    assert [row["webhook_id"] for row in listed] == [made["webhook_id"]]
    assert "s3cret" not in json.dumps(listed)


def test_doctor_finds_nothing_wrong(run: Run, until: Until) -> None:
    until(lambda: run("health")[1]["sweep_age_seconds"] is not None, "the server has swept")
    status, report = run("doctor", "--deep")
    wrong = [check for check in report["checks"] if check["level"] != "ok"]
    assert (status, wrong) == (0, [])
    names = {check["name"] for check in report["checks"]}
    assert names >= {"data folder", "database", "migrations", "functions", "roles", "sweeps"}
    assert names >= {"server", "notifications", "snapshots", "secret key", "todos", "settings"}


def test_doctor_and_commands_without_a_database(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHBOARD_DATA", str(tmp_path / "none"))
    status, body = run("todo", "list")
    assert (status, body["code"]) == (1, "unavailable")
    assert "make up" in body["error"]
    assert run("doctor")[0] == 1
    url = "postgresql://me:hunter2@127.0.0.1:1/x"
    monkeypatch.setenv("SWITCHBOARD_DATABASE_URL", url)
    status, body = run("todo", "list")
    assert (status, body["code"]) == (1, "unavailable")
    assert "hunter2" not in json.dumps(body)


def test_a_database_that_was_never_migrated_says_so(
    cluster_url: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHBOARD_DATABASE_URL", make_conninfo(cluster_url, dbname="template1"))
    status, body = run("todo", "list")
    assert (status, body["code"]) == (1, "unavailable")
    assert "switchboard migrate" in body["error"]


def test_tick_sweeps(database: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHBOARD_DATABASE_URL", database)
    status, first = run("tick")
    assert status == 0
    assert "reap_expired" in first
    assert run("tick") == (0, {})


def test_a_bad_setting_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHBOARD_POOL_SIZE", "many")
    status, body = run("todo", "list")
    assert (status, body["code"]) == (1, "invalid_argument")
    assert "SWITCHBOARD_POOL_SIZE" in body["error"]


def test_serve_without_a_database_says_what_to_do(run: Run) -> None:
    status, body = run("serve")
    assert (status, body["code"]) == (1, "invalid_argument")
    assert "SWITCHBOARD_DATABASE_URL" in body["error"]


def test_a_second_up_says_that_it_runs(up: Up, run: Run) -> None:
    status, body = run("up")
    assert (status, body["code"]) == (1, "conflict")
    assert body["pid"] == up.process.pid
    assert body["url"] == up.facts["url"]
    assert "already running" in body["error"]


def test_a_taken_port_is_refused_before_anything_starts(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv("SWITCHBOARD_DATA", str(tmp_path / "data"))
        monkeypatch.setenv("SWITCHBOARD_PORT", str(port))
        status, body = run("up")
    assert (status, body["code"]) == (1, "conflict")
    assert f"SWITCHBOARD_PORT={port + 1}" in body["error"]
    assert not (tmp_path / "data" / "postgres").exists()


def test_up_on_a_database_of_ones_own(database: str, tmp_path: Path) -> None:
    first = Up(tmp_path / "data", SWITCHBOARD_DATABASE_URL=database)
    assert first.stop(signal.SIGINT) < 5 * busy()
    second = Up(tmp_path / "data", SWITCHBOARD_DATABASE_URL=database)
    second.stop()
    assert first.process.returncode == second.process.returncode == 0
    assert second.facts["credential"] == first.facts["credential"]
    assert second.facts["credential_valid"]
    assert not (tmp_path / "data" / "postgres").exists()


def test_up_again_after_any_death_shows_the_same(tmp_path: Path, until: Until) -> None:
    path = tmp_path / "data"
    before = {place: place.stat().st_mode for place in (tmp_path, *tmp_path.parents)}
    first = Up(path)
    pushed = subprocess.run(
        [sys.executable, "-m", "switchboard", "todo", "push", "agent", "kept", "-q", "inbox"],
        env=first.env,
        check=True,
        capture_output=True,
    )
    assert pushed.stdout.startswith(b"Pushed ")
    assert first.stop() < 5 * busy()
    assert first.process.returncode == 0
    second = Up(path)
    second.stop(signal.SIGKILL)
    third = Up(path)
    listed = subprocess.run(
        [sys.executable, "-m", "switchboard", "todo", "list", "--json"],
        env=third.env,
        check=True,
        capture_output=True,
    )
    third.stop()
    for facts in (second.facts, third.facts):
        assert facts["credential"] == first.facts["credential"]
        assert facts["signing_secret"] == first.facts["signing_secret"]
        assert facts["credential_valid"]
    assert [todo["title"] for todo in json.loads(listed.stdout)["todos"]] == ["kept"]
    assert {place: place.stat().st_mode for place in before} == before
    log = first.log.read_text()
    for secret in (first.facts["credential"], first.facts["signing_secret"]):
        assert secret not in log
    assert first.facts["ingest_url"].rpartition("/")[2] not in log


def test_demo_does_the_main_job_twice_in_a_row(tmp_path: Path) -> None:
    env = {**os.environ, "SWITCHBOARD_DATA": str(tmp_path / "untouched"), "TMPDIR": str(tmp_path)}
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-m", "switchboard", "demo"],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        assert "The database says: done." in run.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
def test_make_help_names_every_target() -> None:
    run = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for target in ("up", "demo", "test", "bench", "chaos", "lint", "serve", "migrate"):
        assert f"make {target} " in run.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
@pytest.mark.parametrize(
    ("version", "says"),
    [("(3, 9)", "Python 3.11 or newer is needed"), ("(3, 12)", "apt install python3-venv")],
)
def test_make_says_what_is_missing(tmp_path: Path, version: str, says: str) -> None:
    """With a Python that is too old, or without venv."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("python3", "python3.14", "python3.13", "python3.12", "python3.11", "python"):
        fake = programs / name
        fake.write_text(
            "#!/bin/sh\n"
            f'exec "{sys.executable}" -c \'import sys; sys.version_info = {version};'
            ' sys.modules.update(ensurepip=None, venv=None); exec(sys.argv[1])\' "$2"\n'
        )
        fake.chmod(0o755)
    run = subprocess.run(
        ["make", "up"],
        cwd=folder,
        env={"PATH": f"{programs}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert says in run.stderr
    assert not (folder / ".venv").exists()
