"""/metrics: who may scrape, what is exact, what is left out.

What the numbers are is db/tests/71_metrics.sql.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx2
import psycopg
import pytest
from conftest import Served, Sql
from prometheus_client.parser import text_string_to_metric_families

from switchboard import __version__
from switchboard.metrics import exposition

TOKEN = "a token of the scraper"
KEEP = "switchboard.metrics.KEEP_SECONDS"

# What interfaces.md promises.
PROMISED = {
    "switchboard_queue_todos",
    "switchboard_queue_oldest_pending_seconds",
    "switchboard_todos_created_total",
    "switchboard_todos_claimed_total",
    "switchboard_todos_completed_total",
    "switchboard_todo_leases_expired_total",
    "switchboard_todo_attempts_total",
    "switchboard_webhook_deliveries_total",
    "switchboard_notify_hook_notifications_total",
    "switchboard_admission_policies",
    "switchboard_admission_deferred_todos",
    "switchboard_admission_charged_total",
    "switchboard_admission_refusals_total",
    "switchboard_sweep_age_seconds",
    "switchboard_metrics_collection_errors_total",
    "switchboard_build_info",
}


@pytest.fixture
def scraped(serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setattr(KEEP, -1.0)
    return serve(metrics_token=TOKEN)


def scrape(served: Served) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Samples by name and labels."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    response = httpx2.get(f"{served.url}/metrics", headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            key = tuple(sorted(sample.labels.items()))
            assert key not in found.setdefault(sample.name, {})
            found[sample.name][key] = sample.value
    return found


def of_queue(samples: dict[tuple[tuple[str, str], ...], float], queue: str) -> float:
    return sum(value for labels, value in samples.items() if ("queue", queue) in labels)


def test_without_a_token_there_is_no_such_route(served: Served) -> None:
    answer = httpx2.get(f"{served.url}/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert httpx2.get(f"{served.url}/metrics").status_code == 404


@pytest.mark.parametrize(
    "header", [None, "Bearer", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x"]
)
def test_a_wrong_token_is_401(scraped: Served, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    answer = httpx2.get(f"{scraped.url}/metrics", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert "switchboard_" not in answer.text


def test_who_guesses_tokens_waits(serve: Callable[..., Served]) -> None:
    served = serve(metrics_token=TOKEN, failure_rate=0.01, failure_burst=2)
    answers = [httpx2.get(f"{served.url}/metrics").status_code for _ in range(3)]
    assert answers == [401, 401, 429]
    scrape(served)


def test_every_metric_of_the_interface_is_there(scraped: Served, db: Sql) -> None:
    alpha = db.vend("alpha", ("inbox", "busy"))
    for number in range(3):
        db.create(alpha, str(number), "busy")
    db.create(alpha, "x")
    db.value(
        "select switchboard.claim(%s, id::text, 'w', 1) from switchboard.todos limit 1", alpha.id
    )
    db.rows("update switchboard.todos set due_at = now() - interval '1 s' where state = 'claimed'")
    db.rows("select * from switchboard.reap_expired()")
    db.value(
        "select switchboard.complete(%s, c.id::text, 'w')"
        " from switchboard.claim_next(%s, 'w', '{inbox}') c",
        alpha.id,
        alpha.id,
    )
    policy = '{"max_in_flight": 0}'
    db.value(
        "select switchboard.set_admission_policy(%s, 'busy', %s, %s)", alpha.id, policy, db.human
    )
    db.value("select switchboard.note_refusal(%s, 'busy', 'paused')", alpha.id)
    db.rows(
        "insert into switchboard.delivery_totals values (0, 'github', 'signed', 'accepted', '', 3),"
        " (1, 'github', 'signed', 'accepted', '', 4)"
    )
    db.rows("insert into switchboard.notify_totals select 0, 'todo.ready', 'delivered', 2")
    found = scrape(scraped)
    assert set(found) == PROMISED
    assert found["switchboard_build_info"] == {(("version", __version__),): 1}
    errors = found["switchboard_metrics_collection_errors_total"]
    assert set(errors.values()) == {0}
    assert len(errors) == len(db.value("select switchboard.metric_collectors()"))
    (deliveries,) = found["switchboard_webhook_deliveries_total"].values()
    assert deliveries == 7
    text = str(found)
    assert alpha.id not in text
    assert "alpha" not in text


def test_charged_is_claimed_over_one_queue_and_window(scraped: Served, db: Sql) -> None:
    """SPEC-0030: the counter equals todos_claimed_total over the same queue and window."""
    alpha = db.vend("alpha", ("inbox", "free"))
    query = "select switchboard.set_admission_policy(%s, 'inbox', %s, %s)"
    policy = (
        '{"max_in_flight": 50, "max_claims_per_window": 40,'
        ' "window": {"period": "day", "tz": "UTC", "start": "00:00"}}'
    )
    db.value(query, alpha.id, policy, db.human)
    for number in range(60):
        db.create(alpha, str(number), "free" if number % 6 == 0 else "inbox")

    def work(number: int) -> None:
        owner = f"w{number}"
        with psycopg.connect(db.dsn, autocommit=True) as connection:
            for turn in range(30):
                row = connection.execute(
                    "select id::text from switchboard.claim_next(%s, %s)", [alpha.id, owner]
                ).fetchone()
                if row is None:
                    return
                end = ("complete", "fail", "release")[turn % 3]
                if turn % 5:  # some keep it
                    connection.execute(
                        f"select switchboard.{end}(%s, %s, %s)", [alpha.id, row[0], owner]
                    )

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    def check() -> dict[str, Any]:
        found = scrape(scraped)
        charged = of_queue(found["switchboard_admission_charged_total"], "inbox")
        assert charged == of_queue(found["switchboard_todos_claimed_total"], "inbox") == 40
        assert charged == of_queue(found["switchboard_todo_attempts_total"], "inbox")
        assert charged == db.value("select sum(used) from switchboard.admission_windows")
        assert ("queue", "free") not in {
            label for labels in found["switchboard_admission_charged_total"] for label in labels
        }
        assert found["switchboard_admission_refusals_total"]
        return {name: values for name, values in found.items() if name.endswith("_total")}

    before = check()
    # Neither time, nor folds and prunes, nor the end of the policy takes a counter back.
    db.value("select switchboard.tick()")
    assert check() == before
    db.value("select switchboard.set_retention(%s, p_rows => 0)", alpha.id)
    assert db.value("select switchboard.prune()") > 0
    assert check() == before
    db.value("select switchboard.clear_admission_policy(%s, 'inbox', %s)", alpha.id, db.human)
    found = scrape(scraped)
    assert of_queue(found["switchboard_admission_charged_total"], "inbox") == 40
    assert "switchboard_admission_policies" not in found


def test_what_cannot_be_read_is_left_out_and_counted(scraped: Served, db: Sql) -> None:
    db.create(db.vend("alpha"), "x")
    db.rows("alter function switchboard.queue_metrics() rename to gone")
    for times in (1, 2):
        found = scrape(scraped)
        states = {dict(labels)["state"] for labels in found["switchboard_queue_todos"]}
        assert states == {"dead"}  # of another collector
        assert "switchboard_todos_created_total" in found
        errors = found["switchboard_metrics_collection_errors_total"]
        assert errors[(("collector", "queues"),)] == times
        assert sum(errors.values()) == times
    db.rows("alter function switchboard.gone() rename to queue_metrics")
    found = scrape(scraped)
    assert found["switchboard_queue_todos"][(("queue", "inbox"), ("state", "pending"))] == 1
    assert found["switchboard_metrics_collection_errors_total"][(("collector", "queues"),)] == 2


def test_a_collector_that_hangs_is_given_up(
    scraped: Served, db: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchboard.metrics.COLLECTOR_SECONDS", 0.3)
    with psycopg.connect(db.dsn) as blocker:
        blocker.execute("lock table switchboard.notify_totals in access exclusive mode")
        found = scrape(scraped)
    assert (
        found["switchboard_metrics_collection_errors_total"][(("collector", "notifications"),)] == 1
    )
    assert "switchboard_todos_created_total" not in found  # there is none yet
    assert scrape(scraped)["switchboard_build_info"]


def test_without_a_database_the_process_still_answers(serve: Callable[..., Served]) -> None:
    served = serve(
        metrics_token=TOKEN, database_url="postgresql://nobody@127.0.0.1:1/none", pool_wait=0.2
    )
    found = scrape(served)
    assert set(found) == {"switchboard_build_info", "switchboard_metrics_collection_errors_total"}
    assert found["switchboard_metrics_collection_errors_total"] == {(("collector", "register"),): 1}


def test_scrapes_share_what_was_just_collected(serve: Callable[..., Served], db: Sql) -> None:
    served = serve(metrics_token=TOKEN)
    db.create(db.vend("alpha"), "x")
    scrape(served)
    db.rows("alter function switchboard.queue_metrics() rename to gone")
    assert "switchboard_queue_todos" in scrape(served)


def test_labels_are_escaped() -> None:
    rows = [("a_total", "counter", "b", {"queue": 'x"\n\\'}, 1.0), ("c", "gauge", "d", {}, 2.0)]
    text = exposition([*rows, ("a_total", "counter", "b", {"queue": "y"}, 3.0)]).decode()
    assert 'a_total{queue="x\\"\\n\\\\"} 1.0' in text
    assert text.count("# TYPE a_total counter") == 1
    assert "_created" not in text
