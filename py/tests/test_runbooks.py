"""docs/runbooks.md: the page, and its runbooks about work that does not move.

A test is named after the heading that it follows. It makes the symptom (with the test clock, not by
waiting), runs the queries as they stand in the page, as the login that the page names, expects the
row that the text describes, types the remedy of the page, and looks until the page's «over when».
Others are followed in the files that FOLLOWED names.
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
import yaml
from conftest import Endpoint, Sql
from runbook_kit import (
    PAGE,
    RUNBOOKS,
    Desk,
    Row,
    Runbook,
    bury,
    claim,
    complete,
    fail,
    forgotten,
    symptoms,
)

from switchboard import doctor_runbooks

pytest_plugins = ["runbook_desk"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLLOWED = ("test_runbooks.py", "test_runbooks_beside.py", "test_runbooks_database.py")
# By whoever starts and stops what they are about.
ELSEWHERE = {
    "pg_cron-does-not-tick": "test_cron.py",
    "the-embedded-database-does-not-start": "test_embedded.py",
    "servers-run-different-versions": "test_watch_files.py",
}


@pytest.fixture
def database(wiped: str) -> str:
    return wiped


# --- the page ---


def test_each_runbook_is_in_the_table_and_whole() -> None:
    listed = [one.anchor for one in symptoms()]
    assert sorted(listed) == sorted(RUNBOOKS)
    assert len(listed) == len(set(listed)) >= 20
    for one in RUNBOOKS.values():
        assert "**Over when** " in one.text, one.title
        assert "**Seen as** " in one.text, one.title


def test_each_runbook_is_followed_by_a_test() -> None:
    tests = "".join((HERE / name).read_text() for name in FOLLOWED)
    for key in RUNBOOKS.keys() - ELSEWHERE.keys():
        assert f"def test_{key.replace('-', '_')}" in tests, key
    for key, file in ELSEWHERE.items():
        assert key in RUNBOOKS
        assert (HERE / file).exists()


def test_each_alert_leads_to_the_runbook_that_names_it() -> None:
    groups = yaml.safe_load((ROOT / "ops" / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = {rule["alert"]: rule["annotations"]["runbook"] for g in groups for rule in g["rules"]}
    named = {alert: f"docs/runbooks.md#{one.anchor}" for one in symptoms() for alert in one.alerts}
    assert rules == named
    for one in symptoms():
        for alert in one.alerts:
            assert alert in RUNBOOKS[one.anchor].text, alert


def test_each_check_of_doctor_leads_to_the_runbook_that_names_it() -> None:
    named = {check: one.anchor for one in symptoms() for check in one.checks}
    others = {check for check, key in named.items() if key == doctor_runbooks.OTHERS}
    assert {c: key for c, key in named.items() if c not in others} == doctor_runbooks.RUNBOOKS
    for check, key in named.items():
        assert doctor_runbooks.runbook(check) == f"docs/runbooks.md#{key}"
        assert f"*{check}" in RUNBOOKS[key].text, check
    assert doctor_runbooks.runbook("hook 0190").endswith("#a-hook-is-disabled")
    assert doctor_runbooks.runbook("sweep prune").endswith("#sweeps-are-late")


def test_no_query_changes_anything() -> None:
    """Whoever is tired may run any query of the page twice."""
    for language, body in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        if language == "sql":
            assert not re.search(r"\b(update|delete|insert|terminate|prune|tick)\b", body), body


@pytest.mark.parametrize("key", RUNBOOKS)
def test_tables_speak_of_what_the_queries_show(key: str) -> None:
    """What stands in backquotes in the first column of «it shows» is a column of a query."""
    asked = "\n".join(RUNBOOKS[key].queries())
    tables = re.findall(r"^\| it shows (?:\|.*\n)+", RUNBOOKS[key].text, re.MULTILINE)
    for table in tables:
        for first in re.findall(r"^\| (.*?) \|", table, re.MULTILINE)[2:]:
            for column in re.findall(r"`([a-z_]+)`", first):
                assert re.search(rf"\b{column}\b", asked), column


# --- work that does not move ---


def test_a_queue_stands_still(desk: Desk, db: Sql, agent: Endpoint, book: Runbook) -> None:
    desk.stop_clock()
    db.create(agent, "nobody comes")
    desk.wait(minutes=11)
    (row,) = desk.ask(book, queue="inbox", held=0, granted=True, waiting=1)
    assert row["status"] in (None, "open")
    assert row["oldest"] == timedelta(minutes=11)
    assert desk.ask(book, 1) == []
    complete(db, agent, claim(db, agent))
    assert desk.ask(book) == []


def test_a_queue_stands_still_whose_endpoint_lost_it(
    desk: Desk, db: Sql, agent: Endpoint, book: Runbook
) -> None:
    db.create(agent, "x")
    desk.command("endpoint grant agent -q reviews")
    assert desk.ask(book, queue="inbox", granted=False, waiting=1)
    text = book.remedy("switchboard endpoint grant", SLUG="agent", QUEUE="reviews")
    desk.command(text.removeprefix("switchboard ") + " -q inbox")
    assert desk.ask(book, queue="inbox", granted=True)


def test_a_queue_stands_still_while_all_are_parked(
    desk: Desk, db: Sql, agent: Endpoint, book: Runbook
) -> None:
    todo = db.create(agent, "x")
    fail(db, agent, claim(db, agent), "try later")
    assert desk.ask(book, queue="inbox", waiting=0, parked=1)
    desk.do(book, "switchboard todo retry", ID=todo)
    assert desk.ask(book, queue="inbox", waiting=1, parked=0)


def test_a_queue_stands_still_for_somebody_who_is_not_there(
    desk: Desk, db: Sql, agent: Endpoint, book: Runbook
) -> None:
    assign = "select from switchboard.create_todo(%s, 'inbox', 'x', p_assignee => 'grace')"
    db.rows(assign, agent.id)
    assert desk.ask(book, 1, slug="agent", queue="inbox", assignee="grace", active=True, count=1)
    complete(db, agent, claim(db, agent, "grace"), "grace")
    assert desk.ask(book, 1) == []
    db.create(agent, "of an endpoint that is over")
    db.rows("update switchboard.endpoints set expires_at = now()")
    assert desk.ask(book, 1, active=False, assignee=None)
    db.rows("select switchboard.tick()")
    assert desk.ask(book, 1) == []


def test_a_queue_grows(desk: Desk, db: Sql, agent: Endpoint, book: Runbook) -> None:
    def look() -> Row:
        (row,) = desk.ask(book, queue="inbox")
        return row

    before = look()
    for number in range(5):
        db.create(agent, f"todo {number}")
    complete(db, agent, claim(db, agent))
    after = look()
    assert (after["created"] - before["created"], after["done"] - before["done"]) == (5, 1)
    assert (after["waiting"], after["held"]) == (4, 0)
    for worker in ("w2", "w3", "w4", "w5"):  # the remedy: more workers
        complete(db, agent, claim(db, agent, worker), worker)
    assert look()["created"] == after["created"]
    assert look()["done"] - after["done"] == 4
    assert look()["waiting"] == 0


def test_leases_lapse(desk: Desk, db: Sql, agent: Endpoint, book: Runbook) -> None:
    desk.stop_clock()
    db.create(agent, "longer than its lease")
    for _ in range(2):
        claim(db, agent, "slow")
        desk.wait(seconds=301)
        db.rows("select switchboard.tick()")
    (row,) = desk.ask(book, slug="agent", queue="inbox", owner="slow", lapsed=2)
    assert row["held_s"] == pytest.approx(301)
    desk.do(book, "switchboard endpoint lease", SLUG="agent")
    todo = claim(db, agent, "slow")
    desk.wait(seconds=1700)
    db.rows("select switchboard.tick()")
    complete(db, agent, todo, "slow")
    assert desk.ask(book) == [row], "latest does not move any more"


def test_a_todo_stays_claimed(desk: Desk, db: Sql, agent: Endpoint, book: Runbook) -> None:
    desk.stop_clock()
    todo = db.create(agent, "its holder is gone")
    claim(db, agent, "gone", 86400)
    desk.wait(hours=2)
    (row,) = desk.ask(book, slug="agent", owner="gone", lapsed=False)
    desk.do(book, "switchboard todo release", ID=row["id"])
    assert desk.ask(book) == []
    with pytest.raises(psycopg.Error, match="the todo is pending"):
        complete(db, agent, todo, "gone")
    claim(db, agent, "next", 60)
    desk.wait(seconds=61)
    assert desk.ask(book, owner="next", lapsed=True)
    assert claim(db, agent, "third") == todo


def test_dead_letters_pile_up(desk: Desk, db: Sql, agent: Endpoint, book: Runbook) -> None:
    todos = [bury(db, agent, f"todo {n}", "the printer is on fire") for n in range(3)]
    (row,) = desk.ask(book, slug="agent", queue="inbox", error="the printer is on fire", count=3)
    for todo in todos:
        desk.do(book, "switchboard todo retry", ID=todo)
        complete(db, agent, claim(db, agent))
    assert desk.ask(book) == []
    assert row["latest"] is not None


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ("--max-in-flight 0", "paused"),
        ("--per-day 1", "window_exhausted"),
        ("--max-in-flight 1", "in_flight_full"),
        ("--per-day 5", "admission_unavailable"),
    ],
)
def test_a_budget_lets_nothing_through(
    desk: Desk, db: Sql, agent: Endpoint, book: Runbook, limits: str, reason: str
) -> None:
    assert desk.command(f"queue budget set agent inbox {limits}")[0] == 0
    db.create(agent, "one"), db.create(agent, "two")
    if reason == "admission_unavailable":
        db.rows("update switchboard.admission_policies set window_tz = 'Mars/Olympus'")
    elif reason != "paused":
        claim(db, agent)
    assert f"\n| {reason} | " in book.text
    (row,) = desk.ask(book, slug="agent", queue="inbox", reason=reason)
    assert row["exact"] is (reason == "window_exhausted")
    desk.do(book, "switchboard queue budget set", SLUG="agent", QUEUE="inbox")
    assert desk.ask(book) == []
    assert desk.command(f"queue budget set agent inbox {limits}")[0] == 0
    desk.do(book, "switchboard queue budget clear", SLUG="agent", QUEUE="inbox")
    assert desk.ask(book) == []


def test_sweeps_are_late(desk: Desk, db: Sql, agent: Endpoint, book: Runbook) -> None:
    desk.stop_clock()
    db.rows("select switchboard.tick()")
    desk.wait(minutes=3)
    assert {row["age"] for row in desk.ask(book)} == {timedelta(minutes=3)}
    desk.do(book, "switchboard tick")
    assert {row["age"] for row in desk.ask(book, last_error=None)} == {timedelta(0)}


def test_sweeps_are_late_because_one_waits_for_a_lock(
    desk: Desk, db: Sql, agent: Endpoint, book: Runbook
) -> None:
    with forgotten(db.dsn) as other:
        other.execute("lock table switchboard.admission_windows in access exclusive mode")
        db.rows("select switchboard.tick()")
        late = [row for row in desk.ask(book) if row["last_error"]]
        assert {row["last_error"] for row in late} == {"55P03"}
        holders = desk.ask(RUNBOOKS["an-old-snapshot-is-held-claims-become-slow"])
        assert other.info.backend_pid in {int(r["name"]) for r in holders if r["name"].isdigit()}
        other.rollback()
    desk.stop_clock()
    desk.wait(seconds=31)
    desk.do(book, "switchboard tick")
    assert len(desk.ask(book, last_error=None)) == len(desk.ask(book)) == 8
