"""What the board does, by command: each acts on a database and says what it did."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Endpoint, Sql

from switchboard import cli

Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def run(database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on this test's database: its status and its JSON, or with ``text`` its text."""
    monkeypatch.setenv("SWITCHBOARD_DATABASE_URL", database)
    monkeypatch.setenv("SWITCHBOARD_SECRET_KEY", "A" * 43 + "=")

    def call(*command: str, text: bool = False) -> tuple[int, Any]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main([*command] if text else [*command, "--json"])
        printed = capsys.readouterr()
        out = printed.out + printed.err if text else json.loads(printed.out)
        return int(end.value.code or 0), out

    return call


@pytest.fixture
def agent(db: Sql) -> Endpoint:
    return db.vend("agent", queues=("inbox", "reviews"))


def test_a_lease_is_extended_under_both_names(run: Run, db: Sql, agent: Endpoint) -> None:
    todo = db.create(agent, "x")
    first = run("todo", "claim", todo, "--lease-ttl", "60")[1]["todo"]
    extended = run("todo", "extend", todo, "--lease-ttl", "7200")[1]["todo"]
    assert extended["lease_expires_at"] > first["lease_expires_at"]
    status, text = run("todo", "heartbeat", todo, text=True)
    assert status == 0
    assert f"{todo} is claimed by" in text


def test_a_command_in_the_name_of_a_person(run: Run, db: Sql, agent: Endpoint) -> None:
    db.rows("select switchboard.create_human('eve')")
    todo = db.create(agent, "x")
    assert run("todo", "claim", todo, "--human", "eve")[1]["code"] == "not_found"
    assert run("todo", "claim", todo, "--human", "nobody")[1]["code"] == "not_found"
    claimed = run("todo", "claim", todo, "--human", "tester")[1]["todo"]
    assert claimed["owner"] == "op:tester"
    assert run("todo", "complete", todo)[1]["code"] == "conflict"  # somebody else holds it
    assert run("todo", "extend", todo, "--human", "tester")[0] == 0
    assert run("todo", "release", todo, "--human", "tester")[1]["todo"]["state"] == "pending"
    run("todo", "claim", todo, "--human", "tester")
    assert run("todo", "fail", todo, "--human", "tester")[1]["todo"]["state"] == "failed"
    assert run("todo", "retry", todo, "--human", "tester")[1]["todo"]["attempt"] == 0
    run("todo", "claim", todo, "--human", "tester")
    done = run("todo", "complete", todo, "--human", "tester", "--result", "1")[1]["todo"]
    assert (done["state"], done["result"]) == ("done", 1)


def test_todos_are_found(run: Run, db: Sql, agent: Endpoint) -> None:
    ids = [db.create(agent, title) for title in ("Read the report", "Read it again", "Write")]
    run("todo", "push", "agent", "By key", "-q", "reviews", "--key", "k-1")
    found = lambda *how: [t["title"] for t in run("todo", "list", *how)[1]["todos"]]  # noqa: E731
    assert found("read") == ["Read it again", "Read the report"]
    assert found(ids[2]) == ["Write"]
    assert found("k-1") == ["By key"]
    assert found("read", "-q", "reviews") == []
    assert found("-s", "waiting", "-q", "reviews") == ["By key"]
    assert found("-s", "dead") == []
    assert found("--before", ids[1], "-n", "1") == ["Read the report"]
    assert found("-s", "pending", "-e", "agent", "-n", "1") == ["Read the report"]
    assert run("todo", "list", "x", "-s", "asleep")[1]["code"] == "invalid_argument"


def test_a_grant_is_changed(run: Run, db: Sql, agent: Endpoint) -> None:
    changed = run("endpoint", "grant", "agent", "-q", "inbox", "-q", "new")[1]["endpoint"]
    assert changed["queues"] == ["inbox", "new"]
    assert "claim" in changed["verbs"]  # what is not named stays
    changed = run(
        "endpoint", "grant", agent.id, "--verb", "claim", "--webhook-max", "7", "--source-type",
        "github",
    )[1]["endpoint"]  # fmt: skip
    assert changed["queues"] == ["inbox", "new"]
    assert (changed["verbs"], changed["webhook_max"]) == (["claim"], 7)
    assert changed["webhook_source_types"] == ["github"]
    status, text = run("endpoint", "grant", "agent", "-q", "inbox", text=True)
    assert (status, "Endpoint agent may now use" in text) == (0, True)
    assert run("endpoint", "grant", "agent", text=True)[0] == 2
    assert run("endpoint", "grant", "agent", "--verb", "fly")[1]["code"] == "invalid_argument"
    assert run("endpoint", "grant", "nobody", "-q", "x")[1]["code"] == "not_found"


def test_a_lease_and_a_retention_are_set(run: Run, db: Sql, agent: Endpoint) -> None:
    kept = "select default_lease_seconds as lease, retention_days as days, retention_rows as rows"
    kept += " from switchboard.endpoints"
    assert run("endpoint", "lease", "agent", "900")[0] == 0
    assert run("endpoint", "retention", "agent", "--days", "90", "--rows", "0")[0] == 0
    assert db.row(kept) == {"lease": 900, "days": 90, "rows": 0}
    assert (
        "90 days and 0 todos"
        in run("endpoint", "retention", "agent", "--days", "90", "--rows", "0", text=True)[1]
    )
    assert "the default" in run("endpoint", "lease", "agent", text=True)[1]
    assert run("endpoint", "retention", "agent")[0] == 0
    assert db.row(kept) == {"lease": None, "days": None, "rows": None}
    assert run("endpoint", "lease", "agent", "1")[1]["code"] == "invalid_argument"
    assert run("endpoint", "retention", "nobody")[1]["code"] == "not_found"


def test_an_endpoint_is_shown_whole(run: Run, db: Sql, agent: Endpoint) -> None:
    db.create(agent, "x")
    made = run("webhook", "create", "agent", "-q", "inbox")[1]
    hook = run("hook", "create", "agent", "https://x.example/wake")[1]
    shown = run("endpoint", "show", "agent")[1]
    assert (shown["endpoint"]["slug"], shown["endpoint"]["active"]) == ("agent", True)
    assert [(q["queue"], q["pending"]) for q in shown["queues"]] == [("inbox", 1), ("reviews", 0)]
    assert [one["webhook_id"] for one in shown["webhooks"]] == [made["webhook_id"]]
    assert [one["hook_id"] for one in shown["hooks"]] == [hook["hook_id"]]
    text = run("endpoint", "show", agent.id, text=True)[1]
    for secret in (made["signing_secret"], hook["signing_secret"], agent.credential):
        assert secret not in text
        assert secret not in json.dumps(shown)
    assert run("endpoint", "show", "nobody")[1]["code"] == "not_found"


def test_receivers_and_hooks_of_all_endpoints(run: Run, db: Sql, agent: Endpoint) -> None:
    db.vend("other")
    for slug in ("agent", "other"):
        run("webhook", "create", slug, "-q", "inbox")
        run("hook", "create", slug, f"https://{slug}.example/wake")
    for kind in ("webhook", "hook"):
        all_of_them = run(kind, "list")[1][f"{kind}s"]
        assert [one["endpoint"] for one in all_of_them] == ["agent", "other"]
        (only,) = run(kind, "list", "other")[1][f"{kind}s"]
        assert only["endpoint"] == "other"
        assert run(kind, "list", "nobody")[1]["code"] == "not_found"


def test_a_receiver_is_held_and_let_go(run: Run, db: Sql, agent: Endpoint) -> None:
    webhook = run("webhook", "create", "agent", "-q", "inbox")[1]["webhook_id"]
    assert run("webhook", "hold", webhook)[1]["held"] is True
    assert run("webhook", "unhold", webhook)[1]["held"] is False
    assert run("webhook", "hold", webhook)[1]["held"] is True
    assert run("webhook", "hold", webhook, "--off")[1]["held"] is False
    assert "Not held" in run("webhook", "unhold", webhook, text=True)[1]
    assert run("webhook", "unhold", "x")[1]["code"] == "not_found"


def test_queues_and_what_is_in_them(run: Run, db: Sql, agent: Endpoint) -> None:
    db.create(agent, "x")
    db.vend("other")
    queues = run("queue", "list")[1]["queues"]
    assert [(q["endpoint"], q["queue"], q["waiting"]) for q in queues] == [
        ("agent", "inbox", 1),
        ("agent", "reviews", 0),
        ("other", "inbox", 0),
    ]
    assert len(run("queue", "list", "other")[1]["queues"]) == 1
    assert "reviews" in run("queue", "list", "agent", text=True)[1]
    assert run("queue", "list", "nobody")[1]["code"] == "not_found"


def test_health_shows_sweeps_and_stalled_queues(run: Run, db: Sql, agent: Endpoint) -> None:
    told = run("health")[1]
    assert told["sweep_age_seconds"] is None
    assert {sweep["last_run_at"] for sweep in told["sweeps"]} == {None}
    db.value("select switchboard.tick()")
    db.create(agent, "x")
    db.rows("insert into switchboard.queue_stall_nudges (endpoint_id, queue, nudges,"
            " last_nudged_at) values (%s, 'inbox', 2, now())", agent.id)  # fmt: skip
    told = run("health")[1]
    assert told["sweep_age_seconds"] >= 0
    assert [(s["endpoint"], s["queue"], s["nudges"]) for s in told["stalled"]] == [
        ("agent", "inbox", 2)
    ]
    status, text = run("health", text=True)
    assert status == 0
    assert "reap_expired" in text
    assert "agent" in text
