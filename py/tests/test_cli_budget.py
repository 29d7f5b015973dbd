"""Budgets on the command line: `switchboard queue budget`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Endpoint, Sql
from hook_kit import vend

from switchboard import cli

Run = Callable[..., tuple[int, Any]]
SET = ("queue", "budget", "set", "agent", "inbox")


@pytest.fixture
def agent(db: Sql) -> Endpoint:
    return vend(db, "agent", ("inbox", "mail"))


@pytest.fixture
def run(
    database: str,
    agent: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Run]:
    """Run a command with --json, or as people do: exit status and what it printed."""
    for name in [name for name in os.environ if name.startswith("SWITCHBOARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SWITCHBOARD_DATABASE_URL", database)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()

    def command(*arguments: str, text: bool = False) -> tuple[int, Any]:
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, *([] if text else ["--json"])])
        printed = capsys.readouterr()
        status = int(ended.value.code or 0)
        if text or status == 2:
            return status, printed.out + printed.err
        return status, json.loads(printed.out)

    yield command
    monkeypatch.undo()
    time.tzset()


def claim(db: Sql, agent: Endpoint, count: int) -> int:
    rows = db.rows("select id from switchboard.claim_batch(%s, 'w', %s)", agent.id, count)
    return len(rows)


def test_set_replaces_the_whole_and_says_how_it_stands(run: Run) -> None:
    where = ("--tz", "america/los_angeles", "--max-in-flight", "3")
    status, made = run(*SET, "--per-day", "100", *where)
    assert status == 0
    window = {"period": "day", "tz": "America/Los_Angeles", "start": "00:00"}
    policy = {"max_in_flight": 3, "max_claims_per_window": 100, "window": window}
    assert made["policy"] == policy
    assert (made["status"], made["used"], made["in_flight"]) == ("open", 0, 0)
    assert run(*SET, "--max-in-flight", "2")[1]["policy"] == {"max_in_flight": 2}
    week = run(*SET, "--per-week", "7", "--weekday", "Sun", "--start", "06:30")[1]["policy"][
        "window"
    ]
    assert week == {"period": "week", "tz": "UTC", "start": "06:30", "weekday": "Sun"}


def test_show_tells_what_is_used_and_when_it_resets_in_both_zones(
    run: Run, db: Sql, agent: Endpoint
) -> None:
    run(*SET, "--per-day", "2", "--tz", "Asia/Tokyo", "--max-in-flight", "5")
    for _ in range(3):
        db.rows("select id from switchboard.create_todo(%s, 'inbox', 't')", agent.id)
    assert claim(db, agent, 5) == 2
    status, shown = run("queue", "budget", "show", "agent", "inbox", text=True)
    assert status == 0
    lines = dict(line.split("  ", 1) for line in shown.splitlines() if "  " in line.strip())
    lines = {key.strip(): value.strip() for key, value in lines.items()}
    assert lines["used"] == "2 of 2 a day"
    assert lines["in flight"] == "2 of 5"
    assert lines["pending"] == "1"
    assert lines["status"].startswith("window_exhausted")
    assert lines["window"] == "each day from 00:00 Asia/Tokyo"
    assert lines["resets"].endswith("00:00 Asia/Tokyo")
    assert " CE" in shown, "and on the clock of whoever asks"
    assert "create" in shown
    assert "Windows" in shown
    status, table = run("queue", "budget", "show", text=True)
    assert status == 0
    assert "2 of 2" in table
    assert "Asia/Tokyo" in table
    assert " CE" in table
    assert "endpoint:agent" in table
    (one,) = run("queue", "budget", "show", "agent")[1]["budgets"]
    assert (one["used"], one["remaining"], one["status"]) == (2, 0, "window_exhausted")
    whole = run("queue", "budget", "show", "agent", "inbox")[1]
    assert [window["used"] for window in whole["windows"]] == [2]
    assert [entry["action"] for entry in whole["audit"]] == ["create"]


def test_clear_opens_the_queue_and_keeps_the_audit(run: Run) -> None:
    assert run(*SET, "--per-day", "0")[1]["status"] == "paused"
    assert run("queue", "budget", "clear", "agent", "inbox")[0] == 0
    run(*SET, "--max-in-flight", "0")
    assert run("queue", "budget", "show", "agent", "inbox")[1]["status"] == "paused"
    assert run("queue", "budget", "clear", "agent", "inbox") == (
        0,
        {"queue": "inbox", "cleared": True},
    )
    whole = run("queue", "budget", "show", "agent", "inbox")[1]
    assert whole["policy"] is None
    assert [entry["action"] for entry in whole["audit"]] == ["delete", "create"] * 2
    status, shown = run("queue", "budget", "show", "agent", "inbox", text=True)
    assert (status, "has no budget" in shown) == (0, True)
    status, refused = run("queue", "budget", "clear", "agent", "inbox")
    assert (status, refused["code"]) == (1, "not_found")


def test_a_zone_that_is_gone_is_flagged(run: Run, db: Sql) -> None:
    assert "0 of 5 an hour" in run(*SET, "--per-hour", "5", text=True)[1]
    db.rows("update switchboard.admission_policies set window_tz = 'Mars/Olympus' returning 1")
    for command in (("show", "agent", "inbox"), ("show",)):
        status, shown = run("queue", "budget", *command, text=True)
        assert (status, "admission_unavailable" in shown) == (0, True), shown
        assert "UNKNOWN ZONE Mars/Olympus" in shown
    db.rows("update switchboard.admission_policies set max_in_flight = 0 returning 1")
    for command in (("show", "agent", "inbox"), ("show",)):
        status, shown = run("queue", "budget", *command, text=True)
        assert (status, "paused" in shown, "UNKNOWN ZONE" in shown) == (0, True, True), shown


def test_a_zone_named_like_an_abbreviation_has_its_summer_time(run: Run, db: Sql) -> None:
    db.rows(
        "update switchboard.settings set is_test = true,"
        " test_now = '2026-07-01 12:00+00' returning 1"
    )
    run(*SET, "--per-day", "2", "--tz", "EET")
    shown = run("queue", "budget", "show", "agent", "inbox", text=True)[1]
    assert "Thu 2026-07-02 00:00 EET" in shown
    assert "Wed 2026-07-01 23:00 CEST" in shown


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--per-day", "1", "--tz", "Mars/Olympus"), "policy.window.tz"),
        (("--per-day", "1", "--start", "24:00"), "policy.window.start"),
        (("--per-week", "1", "--weekday", "Monday"), "policy.window.weekday"),
        (("--per-day", "1", "--weekday", "Mon"), "policy.window.weekday"),
        (("--per-day", "-1"), "policy.max_claims_per_window"),
        (("--max-in-flight", "10001"), "policy.max_in_flight"),
        ((), "policy"),
    ],
)
def test_a_refusal_names_the_field(run: Run, arguments: tuple[str, ...], field: str) -> None:
    status, refused = run(*SET, *arguments)
    assert (status, refused["code"], refused["field"]) == (1, "invalid_argument", field)


@pytest.mark.parametrize(
    "arguments", [("--per-day", "1", "--per-hour", "1"), ("--tz", "UTC", "--max-in-flight", "1")]
)
def test_what_cannot_be_meant_is_not_understood(run: Run, arguments: tuple[str, ...]) -> None:
    assert run(*SET, *arguments)[0] == 2


@pytest.mark.parametrize("endpoint", ["nobody", "", "a b", "018f0000-0000-7000-8000-000000000000"])
def test_unknown_scopes_are_not_found(run: Run, endpoint: str) -> None:
    commands = [("show", endpoint), *((verb, endpoint, "inbox") for verb in ("show", "clear"))]
    for command in [*commands, ("set", endpoint, "inbox", "--max-in-flight", "1")]:
        status, refused = run("queue", "budget", *command)
        assert (status, refused["code"]) == (1, "not_found"), command


def test_an_endpoint_may_be_named_by_its_id(run: Run, agent: Endpoint) -> None:
    assert run("queue", "budget", "set", agent.id, "mail", "--max-in-flight", "1")[0] == 0
    assert run("queue", "budget", "show", agent.id, "mail")[1]["scope"] == "endpoint:agent"


def test_people_are_told_what_they_cannot_see_in_numbers(
    run: Run, db: Sql, agent: Endpoint
) -> None:
    assert run("queue", "budget", "show", text=True) == (0, "(none)\n")
    run(*SET, "--max-in-flight", "1")
    for _ in range(2):
        db.rows("select id from switchboard.create_todo(%s, 'inbox', 't')", agent.id)
    assert claim(db, agent, 2) == 1
    db.rows("select switchboard.set_grant(%s, array['mail'])", agent.id)
    shown = run("queue", "budget", "show", "agent", "inbox", text=True)[1]
    assert ", perhaps" in shown, "a lease may end sooner"
    assert "does not name this queue any more" in shown
    assert "Windows" not in shown
    status, shown = run(*SET, "--max-in-flight", "2", text=True)
    assert (status, "forbidden" in shown) == (1, True)


def test_help_has_an_example_and_vend_warns(run: Run) -> None:
    for command in ("show", "set", "clear"):
        assert (
            "Example: switchboard queue budget"
            in run("queue", "budget", command, "--help", text=True)[1]
        )
    help_of_vend = run("endpoint", "vend", "--help", text=True)[1]
    assert "set_admission_policy" in help_of_vend
    assert "its own" in help_of_vend
