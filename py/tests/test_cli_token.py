"""`switchboard human add` and `switchboard human token`, against a database of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from conftest import Served, Sql

from switchboard import cli

Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def run(database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on this test's database: its status and its JSON, or with ``text`` its text."""
    monkeypatch.setenv("SWITCHBOARD_DATABASE_URL", database)

    def call(*command: str, text: bool = False) -> tuple[int, Any]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main([*command] if text else [*command, "--json"])
        printed = capsys.readouterr().out
        return int(end.value.code or 0), printed if text else json.loads(printed)

    return call


def reaches(served: Served, token: str) -> bool:
    headers = {"authorization": f"Bearer {token}"}
    return httpx2.get(f"{served.url}/api/v1/admission", headers=headers).status_code == 200


def test_a_token_from_making_to_revoking(run: Run, served: Served) -> None:
    status, added = run("human", "add", "ada")
    assert status == 0
    assert set(added) == {"id", "name", "token"}
    assert reaches(served, added["token"])
    status, made = run("human", "token", "create", "ada", "laptop", "--expires-at", "2999-01-01")
    assert (status, made["name"], made["expires_at"][:4]) == (0, "laptop", "2999")
    assert reaches(served, made["token"])
    tokens = run("human", "token", "list", "ada")[1]["tokens"]
    assert [(one["name"], one["active"]) for one in tokens] == [("first", True), ("laptop", True)]
    assert "sbo_" not in json.dumps(tokens)
    assert len(run("human", "token", "list")[1]["tokens"]) == 2
    revoked = run("human", "token", "revoke", "ada", "laptop")
    assert revoked == (0, {"token_id": made["token_id"]})
    assert not reaches(served, made["token"])
    assert reaches(served, added["token"])


def test_a_person_reads_it_once(run: Run) -> None:
    status, text = run("human", "add", "ada", text=True)
    assert status == 0
    assert text.count("sbo_") == 1
    status, text = run("human", "token", "create", "ada", "x", text=True)
    assert "curl -H 'Authorization: Bearer sbo_" in text
    assert "sbo_" not in run("human", "token", "list", text=True)[1]
    assert run("human", "token", "revoke", "ada", "x", text=True)[1] == "Revoked x of ada.\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["add", "ada"], "conflict"),
        (["add", ""], "invalid_argument"),
        (["token", "create", "nobody", "x"], "not_found"),
        (["token", "create", "ada", "first"], "conflict"),
        (["token", "create", "ada", ""], "invalid_argument"),
        (["token", "create", "ada", "x", "--expires-at", "soon"], "invalid_argument"),
        (["token", "create", "ada", "x", "--expires-at", "2001-01-01"], "invalid_argument"),
        (["token", "list", "nobody"], "not_found"),
        (["token", "revoke", "ada", "nothing"], "not_found"),
    ],
)
def test_a_refusal_is_an_error_body(run: Run, command: list[str], code: str) -> None:
    run("human", "add", "ada")
    status, body = run("human", *command)
    assert (status, body["code"]) == (1, code)


def test_a_human_without_a_token_is_not_made(run: Run, db: Sql) -> None:
    db.rows("alter table switchboard.operator_tokens add check (name <> 'first')")
    assert run("human", "add", "ada")[0] == 1
    assert run("human", "list")[1] == {"humans": []}


@pytest.mark.parametrize("command", ["add", "token create", "token list", "token revoke"])
def test_help_has_an_example(run: Run, command: str) -> None:
    _, text = run("human", *command.split(), "--help", text=True)
    assert f"Example: switchboard human {command}" in text
