"""Faults of docs/faults.md that need several real sessions, or more rows than one can type."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import httpx2
import psycopg
import pytest
from psycopg.rows import dict_row

from switchboard.board import PAGES
from switchboard.board_forms import FORMS
from switchboard.migrate import migrate

Connection = psycopg.Connection[dict[str, Any]]
Until = Callable[..., Any]

# Rows as the functions would have left them. Claimed ones were held by `holder` and have lapsed.
FILL = """
insert into switchboard.todos (endpoint_id, id, created_at, state, queue, assignee, trust_mode,
    title, attempt, max_attempts, claims, lease_seconds, owner, claimed_at, due_at, lease_token)
select %(endpoint)s::uuid, gen_random_uuid(), at, %(state)s::switchboard.todo_state,
    (%(queues)s::text[])[1 + n %% %(many)s::int], %(assignee)s::text, 'sql', 'todo ' || n,
    c, %(max_attempts)s::int, c, nullif(60 * c, 0),
    case when c = 1 then 'holder' end, case when c = 1 then at end,
    case when c = 1 then at + interval '1 minute' end, case when c = 1 then 'token' end
from (select n, clock_timestamp() - interval '3 hours' + n * interval '1 ms' as at,
             case %(state)s::text when 'claimed' then 1 else 0 end as c
      from generate_series(1, %(count)s::int) n) s
order by case when %(shuffled)s::bool then random() end
"""


@contextmanager
def session(dsn: str) -> Iterator[Connection]:
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        yield connection


def fill(db: Any, endpoint: Any, count: int, *queues: str, **options: Any) -> None:
    fields = {"state": "pending", "assignee": None, "max_attempts": 5, "shuffled": False, **options}
    named = {"endpoint": endpoint.id, "queues": list(queues), "many": len(queues), "count": count}
    db.connection.execute(FILL, {**named, **fields})


def waits(db: Any, pid: int) -> bool:
    """Whether the session waits for a lock."""
    query = "select wait_event_type = 'Lock' as w from pg_stat_activity where pid = %s"
    return bool(db.value(query, pid))


# Claiming ------------------------------------------------------------------------------------


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def scans_of_todos(dsn: str, query: str, *params: Any) -> list[dict[str, Any]]:
    """The plan nodes that read todos in every statement inside of a call."""
    found: list[dict[str, Any]] = []

    def note(notice: psycopg.errors.Diagnostic) -> None:
        _, shown, plan = (notice.message_primary or "").partition("plan:\n")
        if shown:
            tree = json.loads(plan)["Plan"]
            found.extend(node for node in nodes(tree) if node.get("Relation Name") == "todos")

    with session(dsn) as connection:
        connection.execute("load 'auto_explain'")
        for name, value in {
            "log_min_duration": "0",
            "log_analyze": "on",
            "log_nested_statements": "on",
            "log_format": "json",
            "log_level": "notice",
        }.items():
            connection.execute(f"set auto_explain.{name} = '{value}'")
        connection.add_notice_handler(note)
        connection.execute(query, params)
    return found


def test_fault_2_pending_and_lapsed_are_separate_index_scans(db, database: str) -> None:
    alpha = db.vend("alpha")
    fill(db, alpha, 300_000, "inbox")
    fill(db, alpha, 1_000, "inbox", state="claimed")
    db.rows("analyze switchboard.todos")
    claim = "select owner, attempt from switchboard.claim_next(%s, 'w', %s)"
    assert db.row(claim, alpha.id, ["inbox"])["owner"] == "w"
    scans = scans_of_todos(database, claim, alpha.id, ["inbox"])
    read = [node for node in scans if "Scan" in node["Node Type"]]
    assert {node["Node Type"] for node in read} <= {"Index Scan", "Index Only Scan"}
    names = {node["Index Name"] for node in read}
    assert "todos_due" in names
    assert names - {"todos_due", "todos_pkey"}, "pending ones are found by an index of their own"
    for node in read:
        looked_at = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * max(
            1, node["Actual Loops"]
        )
        assert looked_at <= 64, f"{node['Index Name']} read {looked_at} rows"


def test_fault_3_what_may_not_be_taken_in_two_queues_hides_nothing_in_a_third(
    db, database: str
) -> None:
    """Deferred queues come with admission; until then: todos of somebody else."""
    costs = []
    for slug, hidden in (("undisturbed", 0), ("disturbed", 50_000)):
        endpoint = db.vend(slug, ("first", "second", "ready"))
        create = "select id from switchboard.create_todo(%s, %s, 't', p_assignee => 'ann')"
        db.rows(create, endpoint.id, "first")
        fill(db, endpoint, 2 * hidden, "first", "second", assignee="ann")
        fill(db, endpoint, 50_000, "ready")
        db.rows("vacuum analyze switchboard.todos")
        claim = (
            "explain (analyze, buffers, format json) select * from switchboard.claim_next(%s, 'w')"
        )
        seen = []
        with session(database) as worker:
            for _ in range(20):
                plan = worker.execute(claim, [endpoint.id]).fetchone()["QUERY PLAN"][0]["Plan"]
                seen.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
        taken = "select count(*) from switchboard.todos where endpoint_id = %s and owner = 'w'"
        assert db.value(taken + " and queue = 'ready'", endpoint.id) == 20
        costs.append(median(seen[6:]))
    assert costs[1] <= costs[0] / 0.7, costs


# Leases --------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["statement", "row"])
@pytest.mark.parametrize("call", ["complete", "heartbeat"])
def test_fault_10_a_sweep_that_pauses_never_overwrites_what_the_holder_did(
    db, database: str, until: Until, where: str, call: str
) -> None:
    """Paused before its first row is written, and with the row locked."""
    alpha = db.vend("alpha")
    fill(db, alpha, 1, "inbox", state="claimed")
    todo = str(db.value("select id from switchboard.todos"))
    db.rows(
        "create function public.pause() returns trigger language plpgsql as $$ begin"
        " if current_setting('test.pause', true) = 'on' then"
        " perform pg_advisory_xact_lock(10); end if; return new; end $$"
    )
    db.rows(
        f"create trigger pause before update on switchboard.todos for each {where}"
        " execute function public.pause()"
    )
    verb = f"select state from switchboard.{call}(%s, %s, 'holder')"

    def act(holder: Connection) -> str:
        try:
            return holder.execute(verb, [alpha.id, todo]).fetchone()["state"]
        except psycopg.Error as error:
            return str(error.sqlstate)

    with session(database) as sweeper, session(database) as holder, ThreadPoolExecutor(2) as pool:
        db.rows("select pg_advisory_lock(10)")
        sweeper.execute("set test.pause = 'on'")
        sweep = pool.submit(sweeper.execute, "select state from switchboard.reap_expired()")
        until(lambda: waits(db, sweeper.info.backend_pid), "the sweep pauses")
        acted = pool.submit(act, holder)
        until(lambda: acted.done() or waits(db, holder.info.backend_pid), "the holder has called")
        db.rows("select pg_advisory_unlock(10)")
        swept, answer = [row["state"] for row in sweep.result(10).fetchall()], acted.result(10)
    state = db.value("select state::text from switchboard.todos")
    # Whoever comes first has it: what the holder was told is what is stored.
    wanted = "done" if call == "complete" else "claimed"
    assert (answer, swept, state) in [(wanted, [], wanted), ("SB409", ["pending"], "pending")]


@pytest.mark.timeout(240)
def test_fault_10_ten_thousand_rounds_of_complete_against_sweep(db, database: str) -> None:
    """Both go for the todo whose lease ended first; one of them gets it, whole."""
    rounds = 10_000
    alpha = db.vend("alpha")
    fill(db, alpha, rounds, "inbox", state="claimed", max_attempts=1)
    ids = [str(r["id"]) for r in db.rows("select id from switchboard.todos order by due_at")]
    swept: set[str] = set()
    completed: set[str] = set()

    def sweep() -> None:
        with session(database) as sweeper:
            while len(swept) + len(completed) < rounds:
                for row in sweeper.execute("select id, state from switchboard.reap_expired(1)"):
                    assert row["state"] == "failed"
                    assert str(row["id"]) not in swept, "swept twice"
                    swept.add(str(row["id"]))

    def complete() -> None:
        query = "select state from switchboard.complete(%s, %s, 'holder')"
        with session(database) as holder:
            for todo in ids:
                if todo not in swept:
                    try:
                        holder.execute(query, [alpha.id, todo])
                        completed.add(todo)
                    except psycopg.Error as error:
                        assert error.sqlstate == "SB409"  # noqa: PT017

    with ThreadPoolExecutor(2) as pool:
        for job in [pool.submit(sweep), pool.submit(complete)]:
            job.result()
    assert completed
    assert swept
    assert not completed & swept
    stored = db.rows(
        "select id, state::text, completed_at is not null as ended from switchboard.todos"
    )
    assert {str(r["id"]): r["state"] for r in stored} == {
        **dict.fromkeys(completed, "done"),
        **dict.fromkeys(swept, "failed"),
    }
    assert all(row["ended"] for row in stored)
    history = db.rows(
        "select state, outcome, count(*) as n, count(distinct todo_id) as todos"
        " from switchboard.todo_attempts group by 1, 2"
    )
    assert {(r["state"], r["outcome"], r["n"], r["todos"]) for r in history} == {
        ("done", "done", len(completed), len(completed)),
        ("failed", "lapsed", len(swept), len(swept)),
    }


def test_fault_15_a_lease_from_a_transaction_three_seconds_old(
    db, database: str, until: Until
) -> None:
    alpha = db.vend("alpha")
    db.create(alpha, "work")
    with psycopg.connect(database, row_factory=dict_row) as worker:
        worker.execute("begin")
        age = "select clock_timestamp() - now() >= '3 s' as old"
        until(lambda: worker.execute(age).fetchone()["old"], "the transaction is 3 s old")
        row = worker.execute(
            "with t as materialized (select clock_timestamp() as before),"
            " c as materialized (select lease_expires_at as ends"
            " from t, lateral switchboard.claim_next(%s, 'w', null, 2) where before is not null)"
            " select before, ends, clock_timestamp() as after from t, c",
            [alpha.id],
        ).fetchone()
        worker.commit()
    lease = timedelta(seconds=2)
    assert row["before"] + lease <= row["ends"] <= row["after"] + lease
    assert db.rows("select from switchboard.claim_next(%s, 'other')", alpha.id) == []


# MCP and HTTP --------------------------------------------------------------------------------


def test_fault_51_every_id_argument_and_path_answers_malformed_ones_like_unknown_ones(
    served, db
) -> None:
    """Driven by tools/list and the routes, so that what is added later is tried, too."""
    verbs = [row["name"] for row in db.rows("select name from switchboard.tools()")]
    alpha, beta = db.vend("alpha", verbs=verbs), db.vend("beta")
    foreign = db.create(beta, "theirs")
    unknown = "01890000-0000-7000-8000-00000000dead"
    ids = [unknown, foreign, "", "x", "\u00e9" * 36, "{" + foreign + "}", foreign + "\n"]
    ids += [
        foreign.replace("-", ""),
        "-" * 36,
        "0" * 36,
        unknown[:-1] + "g",
        "x" * 5000,
        "' or 1=1",
    ]
    session_ = served.session(alpha)
    tried = []
    for tool in session_.ask("tools/list")["result"]["tools"]:
        fields = tool["inputSchema"]["properties"]
        named = dict.fromkeys(tool["inputSchema"].get("required", ()), unknown)
        for field in [name for name in fields if name == "id" or name.endswith("_id")]:
            tried.append(tool["name"])
            answers = {
                json.dumps(session_.call(tool["name"], **{**named, field: value})) for value in ids
            }
            assert len(answers) == 1, (tool["name"], answers)
            assert json.loads(answers.pop())["error"]["code"] == "not_found"
    assert {"get_todo", "claim", "rotate_webhook", "add_webhook_route"} <= {*tried}
    parameters = {r.path for r in served.app.routes if "{" in getattr(r, "path", "")}
    board = {*PAGES, *(form.path for form in FORMS), "/sign-in/{code}"}
    assert parameters - board == {"/mcp/{slug}", "/webhooks/w/{token}"}, "try the new path, too"
    for path, good in (("/mcp/", "nobody"), ("/webhooks/w/", "A" * 43)):
        answers = set()
        for value in (good, "x", "%20", unknown, "%F0%9F", "a%00b", "A" * 5000, "A" * 42 + "%0A"):
            response = httpx2.post(served.url + path + value, content=b"{}")
            answers.add((response.status_code, response.content))
        assert len(answers) == 1, (path, answers)


def test_fault_51_a_page_of_the_board_answers_malformed_ids_like_unknown_ones(served, db) -> None:
    alpha, other = db.vend("alpha"), db.value("select id from switchboard.create_human('o')")
    foreign = db.create(db.vend("beta", human_id=other), "theirs")
    token = db.value("select token from switchboard.create_operator_token(%s, 't')", db.human)
    values = [
        "01890000-0000-7000-8000-00000000dead",
        foreign,
        "beta",
        "x",
        "%20",
        "%F0%9F",
    ]
    with httpx2.Client(base_url=served.url, headers={"origin": served.url}) as http:
        http.post("/sign-in", data={"token": token, "next": "/"})
        for path in (path for path in PAGES if "{" in path):
            answers = set()
            for value in (*values, "A" * 500, f"%7B{foreign}%7D"):
                answer = http.get(path.format(id=value, slug=value, queue="inbox"))
                answers.add((answer.status_code, answer.content))
            assert len(answers) == 1, path
            assert answers.pop()[0] == 404
        assert http.get(f"/endpoints/{alpha.slug}").status_code == 200


# Operations ----------------------------------------------------------------------------------

MIGRATE = """
import sys
from switchboard.board import PAGES
from switchboard.board_forms import FORMS
from switchboard.migrate import migrate
migrate(sys.argv[1], lambda line: print(line, flush=True))
"""


MIGRATING = """
select count(distinct pid) from pg_stat_activity where datname = current_database()
    and application_name = 'switchboard migrate' and wait_event_type = 'Lock'
"""


def test_fault_56_migrating_twice_at_once_while_workers_run(
    db, serve, database: str, until: Until
) -> None:
    """No call of a worker fails, over SQL or MCP, and what was acknowledged is stored."""
    alpha = db.vend("alpha")
    beta = db.vend("beta", verbs=["create_todo", "claim_next", "complete"])
    served = serve(mcp_rate=1e6, mcp_burst=10**6)
    over = threading.Event()
    cycles: Counter[str] = Counter()

    def over_sql() -> list[str]:
        done = []
        with session(database) as worker:
            while not over.is_set():
                worker.execute("select from switchboard.create_todo(%s, 'inbox', 't')", [alpha.id])
                claim = "select id, lease_token as t from switchboard.claim_next(%s, 'w')"
                todo = worker.execute(claim, [alpha.id]).fetchone()
                ended = worker.execute(
                    "select id, state from switchboard.complete(%s, %s, 'w', null, %s)",
                    [alpha.id, str(todo["id"]), todo["t"]],
                ).fetchone()
                assert ended["state"] == "done"
                done.append(str(ended["id"]))
                cycles["sql"] += 1
        return done

    def over_mcp() -> list[str]:
        done = []
        worker = served.session(beta)
        while not over.is_set():
            assert worker.call("create_todo", queue="inbox", title="t")["created"]
            todo = worker.call("claim_next")["todo"]
            ticket = {"id": todo["id"], "lease_token": todo["lease_token"]}
            assert worker.call("complete", **ticket)["todo"]["state"] == "done"
            done.append(todo["id"])
            cycles["mcp"] += 1
        return done

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(over_sql), pool.submit(over_mcp)]
        try:
            for _ in range(3):
                before = cycles.copy()
                with psycopg.connect(database) as blocker:  # so that both are at it at once
                    blocker.execute("alter function switchboard.now() cost 100")
                    runs = [pool.submit(migrate, database, lambda _: None) for _ in range(2)]
                    until(lambda: db.value(MIGRATING) == 2, "both runs wait", 30)
                    blocker.rollback()
                for run in runs:
                    run.result(60)
                until(
                    lambda seen=before: all(
                        w.done() or cycles[k] > seen[k]
                        for k, w in zip(("sql", "mcp"), workers, strict=True)
                    ),
                    "the workers go on",
                )
        finally:
            over.set()
        acknowledged = [todo for worker in workers for todo in worker.result(30)]
    stored = "select count(*) from switchboard.todos where state = 'done' and id = any(%s::uuid[])"
    assert db.value(stored, acknowledged) == len(acknowledged) == len(set(acknowledged))
    claimed = "select count(*) from switchboard.todos where state = 'claimed'"
    assert db.value(claimed) == 0


def test_fault_56_a_migrator_killed_at_any_step_leaves_nothing_in_the_way(
    cluster_url: str, template: str, fresh_database: Callable[[], str]
) -> None:
    """From nothing: killed as it says each of its lines; the next run ends what was begun."""
    dsn = fresh_database()
    told: list[str] = []
    kills = 0
    while True:
        command = [sys.executable, "-c", MIGRATE, dsn]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            lines = []
            for line in run.stdout:
                lines.append(line.split(" left")[0])
                if len(lines) > kills:
                    run.send_signal(signal.SIGKILL)
                    kills += 1
                    break
            else:
                assert run.wait(30) == 0, lines
        told += lines
        if run.returncode == 0:
            break
        assert run.returncode == -signal.SIGKILL, lines
        assert kills < 30
    assert kills >= 4, told
    lines = []
    migrate(dsn, lines.append)
    assert any("0 of" in line for line in lines), lines
    with session(dsn) as connection:
        human = connection.execute("select id from switchboard.create_human('x')").fetchone()["id"]
        vended = connection.execute(
            "select * from switchboard.vend_endpoint(%s, 'x', '{q}')", [human]
        ).fetchone()
        create = "select created from switchboard.create_todo(%s, 'q', 't')"
        assert connection.execute(create, [str(vended["endpoint_id"])]).fetchone()["created"]
        left = connection.execute("select from switchboard_migrations.yoyo_lock").fetchall()
        assert left == []


@pytest.fixture
def fresh_database(cluster_url: str) -> Iterator[Callable[[], str]]:
    """Make an empty database; dropped at the end."""
    from conftest import fresh

    with fresh(cluster_url, "template0") as (_, dsn):
        yield lambda: dsn


T0 = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize("queues", [["inbox"], ["inbox", "other"]], ids=["one queue", "two"])
@pytest.mark.parametrize("what", ["a create committed late", "a claim rolled back late"])
def test_fault_65_what_surfaces_below_the_mark_is_claimed_within_a_sweep(
    db, database: str, what: str, queues: list[str]
) -> None:
    """The mark moves at every claim here, not at one in 300; the queue never runs empty."""
    alpha = db.vend("alpha", ("inbox", "other"))
    claim = "select id, title from switchboard.claim_next(%s, 'w', %s, 600)"

    def at(seconds: float, connection: Connection = db.connection) -> None:
        now = (T0 + timedelta(seconds=seconds)).isoformat()
        connection.execute("select set_config('switchboard.test_now', %s, false)", [now])

    def create(title: str, connection: Connection = db.connection) -> None:
        query = "select from switchboard.create_todo(%s, 'inbox', %s)"
        connection.execute(query, [alpha.id, title])

    at(-60)
    db.rows("update switchboard.sweeps set last_run_at = switchboard.now()")
    for n in range(3):
        create(f"early {n}")
    with session(database) as slow:
        slow.execute("begin")
        at(0, slow)
        if what.startswith("a create"):
            create("slow", slow)
            wanted = "slow"
        else:
            wanted = slow.execute(claim, [alpha.id, queues]).fetchone()["title"]
        for name in ("claim_next", "claim_oldest"):
            text = db.value("select pg_get_functiondef(('switchboard.' || %s)::regproc)", name)
            always, changes = re.subn(r"random\(\) < [0-9.]+", "true", text)
            assert changes, f"{name} raises the mark in another way: teach this test"
            db.connection.execute(always.encode())
        for second in range(1, 11):
            at(second)
            create(f"later {second}")
            assert db.row(claim, alpha.id, queues)["title"] != wanted
            assert db.value("select count(*) from switchboard.todos where state = 'pending'") > 0
        if wanted == "slow":  # below a claim that is not over yet no mark is moved
            marks = "select pending_from from switchboard.queue_marks where queue = 'inbox'"
            assert db.value(marks) > T0, "the mark stands above it, or this test shows nothing"
        slow.execute("commit" if wanted == "slow" else "rollback")
    at(30)
    create("much later")
    ran = db.value("select switchboard.tick()")
    assert "settle_marks" in ran
    assert db.row(claim, alpha.id, queues)["title"] == wanted


def test_fault_66_under_an_old_snapshot_claims_do_not_walk_what_is_gone(db, database: str) -> None:
    """In buffers; bench/run snapshot has the rate. Nothing dies while the snapshot is held."""
    alpha, cycles = db.vend("alpha"), 1_500
    fill(db, alpha, cycles + 100, "inbox", shuffled=True)  # each gone todo is a page of its own
    db.rows("vacuum analyze switchboard.todos")
    claim = "select id, lease_token as t from switchboard.claim_next(%s, 'w')"
    complete = "select from switchboard.complete(%s, %s, 'w', null, %s)"
    with session(database) as holder, session(database) as worker:
        holder.execute("begin isolation level repeatable read")
        holder.execute("select count(*) from switchboard.todos")
        worker.execute("select setseed(0.5)")  # when marks move is no matter of luck
        for _ in range(cycles):
            todo = worker.execute(claim, [alpha.id]).fetchone()
            worker.execute(complete, [alpha.id, str(todo["id"]), todo["t"]])
        explain = f"explain (analyze, buffers, format json) {claim}"
        plans = [worker.execute(explain, [alpha.id]).fetchone() for _ in range(20)]
        costs = [plan["QUERY PLAN"][0]["Plan"]["Shared Hit Blocks"] for plan in plans]
        assert holder.execute("select count(*) as n from switchboard.todos").fetchone()["n"]
    assert median(costs) < cycles / 2, costs
