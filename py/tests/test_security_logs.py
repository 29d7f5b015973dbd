"""Secrets of a whole run are in no log: not of the server, not of PostgreSQL, in no note, no row.

What can be kept out of PostgreSQL's log whatever its settings are, and what only its settings keep
out, is said in docs/security.md; both are tried here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import security_run as scenario
from security_server import Run, running

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Everything, once."""
    with running() as made:
        token, endpoint = scenario.by_command(made)
        scenario.over_mcp(made, endpoint)
        scenario.over_rest(made, token)
        scenario.on_the_board(made, token)
        scenario.failing(made, endpoint)
        scenario.commands_that_look(made)
        scenario.quiet_part(made, endpoint)
        made.end()
        yield made


def found(run: Run, texts: dict[str, str]) -> list[tuple[str, str, str]]:
    """Where which secret is, with what stands around it."""
    return [
        (where, what, text[max(0, at - 80) : at + 20])
        for where, text in texts.items()
        for what, secret in run.secrets.items()
        if (at := text.find(secret)) >= 0
    ]


def test_rule_d8_no_secret_of_a_whole_run_is_in_a_log(run: Run) -> None:
    """Nor in what commands print when they look, nor in a note to who listens."""
    texts = run.written()
    assert len(run.secrets) > 60
    assert {
        "mcp.call",
        "webhook.delivery",
        "rest.call",
        "board.sign_in",
        "outbound.failed",
    } <= events(run)
    assert found(run, texts) == []


def events(run: Run) -> set[Any]:
    """The kinds of lines that the server wrote."""
    lines = run.log.read_text().splitlines()
    return {json.loads(line)["event"] for line in lines if line.startswith("{")}


def test_rule_d8_secrets_are_stored_as_digests_or_sealed(run: Run) -> None:
    allowed = {what for what in run.secrets if what.startswith("quiet")}  # the title of a todo
    stored = {"the tables": run.stored()}
    assert {what for _, what, _ in found(run, stored)} == allowed


def test_what_the_log_of_postgresql_shows_without_the_setting(run: Run) -> None:
    """Said in docs/security.md: with parameters in its log, payloads are in it."""
    logs = [text for name, text in run.written().items() if "postgresql-" in name]
    server = run.log.read_text()
    for payload in run.payloads.values():
        assert any(payload in text for text in logs)
        assert payload not in server
