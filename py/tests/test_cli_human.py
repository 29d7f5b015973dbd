"""`switchboard human login` and what belongs to it, against a served gateway."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any
from urllib.parse import urlsplit

import httpx2
import psycopg
import pytest
from conftest import Served, Sql

from switchboard import cli, first

Run = Callable[..., tuple[int, Any]]
ISSUER = "https://id.example.org"


@pytest.fixture
def run(database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on this test's database: its status and its JSON, or with ``text`` its text."""
    monkeypatch.setenv("SWITCHBOARD_DATABASE_URL", database)
    for name in ("SWITCHBOARD_OIDC_ISSUER", "SWITCHBOARD_PUBLIC_URL"):
        monkeypatch.delenv(name, raising=False)

    def call(*command: str, text: bool = False) -> tuple[int, Any]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main([*command] if text else [*command, "--json"])
        printed = capsys.readouterr().out
        return int(end.value.code or 0), printed if text else json.loads(printed)

    return call


@pytest.fixture
def there(served: Served, monkeypatch: pytest.MonkeyPatch, run: Run) -> Served:
    """A server whose address the commands know, and ada."""
    monkeypatch.setenv("SWITCHBOARD_PUBLIC_URL", served.url)
    assert run("human", "add", "ada")[0] == 0
    return served


def enter(link: str) -> httpx2.Response:
    """What a person does with a link: open it, press the button."""
    parts = urlsplit(link)
    assert httpx2.get(link).status_code == 200
    return httpx2.post(link, headers={"origin": f"{parts.scheme}://{parts.netloc}"})


def test_a_link_from_printing_to_signing_out(there: Served, run: Run) -> None:
    status, made = run("human", "login", "ada")
    assert (status, made["human"]) == (0, "ada")
    assert made["url"].startswith(f"{there.url}/sign-in/sbl_")
    assert enter(made["url"]).status_code == 303
    sessions = run("human", "sessions", "ada")[1]["sessions"]
    assert [(one["human"], one["how"], one["token"]) for one in sessions] == [("ada", "link", None)]
    assert run("human", "sessions")[1]["sessions"] == sessions
    assert run("human", "sign-out", "ada", "--session", sessions[0]["session_id"]) == (
        0,
        {"closed": 1},
    )
    assert run("human", "sign-out", "ada") == (0, {"closed": 0})
    assert run("human", "sessions")[1] == {"sessions": []}


def test_a_person_reads_the_link(there: Served, run: Run) -> None:
    status, text = run("human", "login", "ada", "--minutes", "3", text=True)
    assert status == 0
    assert text.startswith("Signs ada in, once, within 3 minutes:\n\n  http://127.0.0.1:")
    assert text.count("sbl_") == 1
    assert "sb" not in run("human", "sessions", text=True)[1]
    assert run("human", "sign-out", "ada", text=True)[1] == "Signed ada out: 0 sessions ended.\n"


def test_signing_out_everywhere_ends_links_too(there: Served, run: Run) -> None:
    used, unused = (run("human", "login", "ada")[1]["url"] for _ in range(2))
    assert enter(used).status_code == 303
    assert run("human", "sign-out", "ada")[1] == {"closed": 1}
    assert enter(unused).status_code == 401


def test_identities_from_adding_to_removing(
    run: Run, db: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("human", "add", "ada")
    added = {"human": "ada", "issuer": ISSUER, "subject": "7d1c"}
    assert run("human", "identity", "add", "ada", "7d1c", "--issuer", ISSUER) == (0, added)
    listed = run("human", "identity", "list", "ada")[1]["identities"]
    assert [{name: one[name] for name in added} for one in listed] == [added]
    monkeypatch.setenv("SWITCHBOARD_OIDC_ISSUER", ISSUER)
    monkeypatch.setenv("SWITCHBOARD_OIDC_CLIENT_ID", "x")
    monkeypatch.setenv("SWITCHBOARD_OIDC_CLIENT_SECRET", "y")
    assert run("human", "identity", "remove", "ada", "7d1c") == (0, added)
    assert run("human", "identity", "list")[1] == {"identities": []}
    text = run("human", "identity", "add", "ada", "7d1c", text=True)[1]
    assert text == f"ada may sign in as 7d1c of {ISSUER}.\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["login", "nobody"], "not_found"),
        (["login", "ada", "--minutes", "0"], "invalid_argument"),
        (["login", "ada", "--minutes", "1441"], "invalid_argument"),
        (["sessions", "nobody"], "not_found"),
        (["sign-out", "nobody"], "not_found"),
        (["sign-out", "ada", "--session", "x"], "not_found"),
        (["sign-out", "ada", "--session", "01890000-0000-7000-8000-00000000dead"], "not_found"),
        (["identity", "add", "ada", "x"], "invalid_argument"),
        (["identity", "add", "ada", "x", "--issuer", "nowhere"], "invalid_argument"),
        (["identity", "add", "ada", "", "--issuer", ISSUER], "invalid_argument"),
        (["identity", "add", "nobody", "x", "--issuer", ISSUER], "not_found"),
        (["identity", "remove", "ada", "x", "--issuer", ISSUER], "not_found"),
        (["identity", "list", "nobody"], "not_found"),
    ],
)
def test_a_refusal_is_an_error_body(run: Run, command: list[str], code: str) -> None:
    run("human", "add", "ada")
    status, body = run("human", *command)
    assert (status, body["code"]) == (1, code)


def test_the_link_of_a_start_is_for_the_newcomer_only(database: str, run: Run, db: Sql) -> None:
    assert first.sign_in_link(database, "http://x") is None
    run("human", "add", "ada")
    assert first.sign_in_link(database, "http://x") is None, "whoever starts it is not ada"
    run("human", "add", first.HUMAN)
    link = first.sign_in_link(database, "http://x")
    assert link is not None
    assert link.startswith("http://x/sign-in/sbl_")
    assert first.sign_in_link(database, "http://x") != link


def test_each_start_prints_a_link_that_works_and_keeps_no_secret(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHBOARD_DATABASE_URL", database)
    monkeypatch.setenv("SWITCHBOARD_PORT", "0")
    monkeypatch.setenv("SWITCHBOARD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SWITCHBOARD_LOG_LEVEL", "debug")
    command = [sys.executable, "-m", "switchboard", "up", "--json"]
    links: list[str] = []
    cookies: list[str] = []
    for _ in range(2):
        with (tmp_path / "log").open("ab") as log, Popen(command, stdout=PIPE, stderr=log) as up:
            try:
                assert up.stdout is not None
                links.append(json.loads(up.stdout.readline())["sign_in_url"])
                entered = enter(links[-1])
                assert entered.status_code == 303
                assert enter(links[-1]).status_code == 401
                cookies.append(entered.headers["set-cookie"].partition(";")[0].partition("=")[2])
            finally:
                up.send_signal(signal.SIGTERM)
                up.wait(20)
    assert len({*links, *cookies}) == 4
    text = (tmp_path / "log").read_text()
    with psycopg.connect(database) as connection:
        for row in connection.execute("select l::text from switchboard.sign_in_links l"):
            text += row[0]
    assert "board.sign_in" in text
    secrets = [link.rpartition("/")[2] for link in links] + cookies
    assert [secret for secret in secrets if secret in text] == []


@pytest.mark.parametrize(
    "command",
    ["login", "sessions", "sign-out", "identity add", "identity list", "identity remove"],
)
def test_help_has_an_example(run: Run, command: str) -> None:
    _, text = run("human", *command.split(), "--help", text=True)
    assert f"Example: switchboard human {command}" in text
