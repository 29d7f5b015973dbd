"""A database login bound to one endpoint: what is another's is to it what was never minted.

The functions are taken from the catalog: one that is granted to workers later is tried, too.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import psycopg
import pytest
from chaos_sessions import CLAIM_NEXT, COMPLETE, Session, many
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import Jsonb

from switchboard.migrate import migrate

UNKNOWN = "01890000-0000-7000-8000-00000000dead"
MALFORMED = ["", " ", "x", "{" + UNKNOWN + "}", UNKNOWN.replace("-", ""), UNKNOWN + " ", "0" * 36]
MALFORMED += ["' or true --", "\u00fc" * 36, "-" * 36, "z" * 10_000, "null", UNKNOWN[:-1] + "g"]
FUNCTIONS: LiteralString = (
    "select p.proname as name, p.proargnames[1:p.pronargs] as arguments from pg_proc p"
    " where p.pronamespace = 'switchboard'::regnamespace and p.prokind = 'f'"
    " and has_function_privilege('switchboard_worker', p.oid, 'execute') order by 1"
)
STORED: LiteralString = (
    "select t.ctid::text, t.xmin::text, t.xmax::text, t.* from switchboard.todos t"
    " where t.endpoint_id = %s order by t.id"
)
Bound = Callable[..., Session]


@pytest.fixture
def bound(db: Any, database: str, until: Callable[..., Any]) -> Iterator[Bound]:
    """Sessions of a login that is bound to an endpoint; its settings come as keywords."""
    name = f"worker_{uuid.uuid4().hex[:8]}"
    password = conninfo_to_dict(database).get("password") or "secret"
    create = sql.SQL("create role {} login password {} in role switchboard_worker")
    db.connection.execute(create.format(sql.Identifier(name), sql.Literal(password)))
    opened: list[Session] = []

    def connect(endpoint: Any = None, **settings: str) -> Session:
        if endpoint is not None:
            db.rows("select switchboard.bind_login(%s, %s)", endpoint.id, name)
        dsn = make_conninfo(database, user=name, password=password)
        opened.append(Session(dsn, **settings))
        return opened[-1]

    yield connect
    for session in opened:
        session.connection.close()
    alive = "select 1 from pg_stat_activity where usename = %s"
    until(lambda: not db.rows(alive, name), "its sessions have ended")
    for end in ("drop owned by {}", "drop role {}"):
        db.connection.execute(sql.SQL(end).format(sql.Identifier(name)))


@pytest.fixture
def theirs(db: Any) -> dict[str, Any]:
    """The endpoint of somebody else, with todos in every state, a delivery, and a lease."""
    other = db.vend("b", ("inbox", "other"))
    ids = {}
    for name in ("pending", "claimed", "parked", "done"):
        query = "select id from switchboard.create_todo(%s, 'inbox', %s, '{}', %s)"
        ids[name] = str(db.value(query, other.id, name, f"key {name}"))
    claim = "select lease_token from switchboard.claim(%s, %s, 'w')"
    token = [db.value(claim, other.id, ids[name]) for name in ("done", "parked", "claimed")][-1]
    db.rows("select switchboard.complete(%s, %s, 'w')", other.id, ids["done"])
    db.rows("select switchboard.fail(%s, %s, 'w')", other.id, ids["parked"])
    receiver = db.value(
        "select switchboard.create_webhook(%s, 'github', 'other', '\\xaa', %s)", other.id, b"d" * 32
    )
    hook = db.value("select switchboard.create_notify_hook(%s, 'https://example.org/')", other.id)
    deliver = (
        "select switchboard.receive_delivery(%s, 'd', 'push', '{}', '{}', 'application/json', '{}')"
    )
    ids["delivered"] = db.value(deliver, b"d" * 32)["todos"][0]["id"]
    event = "select event_id from switchboard.todos where event_id is not null"
    ids["event"] = str(db.value(event))
    ids["receiver"], ids["hook"] = receiver["webhook_id"], hook["hook_id"]
    return {"endpoint": other.id, "ids": ids, "token": token}


PURE = {"admission_window"}  # it reads nothing of anybody's


def arguments(names: list[str], endpoint: str | None, todo: str, token: str) -> list[Any] | None:
    """A value for each argument; None when the function knows no endpoint."""
    values = {
        "p_endpoint_id": endpoint,
        "p_id": todo,
        "p_ids": [todo],
        "p_webhook_id": todo,
        "p_hook_id": todo,
        "p_target_endpoint_id": todo,
        "p_owner": "w",
        "p_queue": "inbox",
        "p_queues": ["inbox"],
        "p_title": "a title",
        "p_payload": Jsonb({}),
        "p_idempotency_key": "key pending",
        "p_kind": None,
        "p_source": None,
        "p_assignee": None,
        "p_max_attempts": 5,
        "p_todos": Jsonb(many(1, idempotency_key="key pending")),
        "p_state": None,
        "p_limit": 5,
        "p_offset": 0,
        "p_lease_ttl_seconds": 30,
        "p_lease_token": token,
        "p_lease_tokens": [token],
        "p_result": None,
        "p_policy": Jsonb({"max_in_flight": 1}),
        "p_actor_human_id": None,
    }
    if "p_endpoint_id" not in names:
        return None
    assert set(names) <= set(values), f"teach this test the arguments {set(names) - set(values)}"
    return [values[name] for name in names]


def answer(session: Session, function: str, names: list[str], values: list[Any]) -> str:
    """All that a caller gets, with the ids that it passed itself left out."""
    marks = sql.SQL(", ").join(sql.SQL("{} => %s").format(sql.Identifier(name)) for name in names)
    query = sql.SQL("select * from switchboard.{}({})").format(sql.Identifier(function), marks)
    try:
        got: Any = session.connection.execute(query, values).fetchall()
    except psycopg.Error as error:
        told = error.diag
        got = [error.sqlstate, told.message_primary, told.message_detail, told.message_hint]
        got += [told.context, told.schema_name, told.table_name, told.constraint_name]
    text = json.dumps(got, default=str)
    for name, value in zip(names, values, strict=True):
        if name.removesuffix("s").endswith("_id"):
            given = value if isinstance(value, list) else [value]
            for passed in [one for one in given if one is not None]:
                text = text.replace(json.dumps(passed), '"what was passed"')
    return text


def test_of_another_endpoint_a_bound_login_learns_and_changes_nothing(
    db: Any, bound: Bound, theirs: dict[str, Any]
) -> None:
    """B's endpoint and B's ids get what unknown ones get, word for word, from every function."""
    verbs = [row["name"] for row in db.rows("select name from switchboard.tools()")]
    own = db.vend("a", ("inbox", "other"), verbs=verbs)
    session = bound(own)
    before = db.rows(STORED, theirs["endpoint"])
    tried = []
    for function in db.rows(FUNCTIONS):
        name, names = function["name"], function["arguments"] or []
        if arguments(names, None, UNKNOWN, "") is None:
            assert names == [] or name in PURE, f"{name} takes no endpoint: teach this test"
            continue

        def ask(
            endpoint: str | None, todo: str, token: str, name: str = name, names: Any = names
        ) -> str:
            values = arguments(names, endpoint, todo, token)
            assert values is not None
            return answer(session, name, names, values)

        unknown = ask(UNKNOWN, UNKNOWN, "A" * 12)
        for todo in theirs["ids"].values():
            assert ask(theirs["endpoint"], todo, theirs["token"]) == unknown, name
        for odd in MALFORMED:
            assert ask(odd, UNKNOWN, "A" * 12) == unknown, (name, odd)
        tried.append(name)
        if not {"p_id", "p_ids"} & set(names):
            continue
        for endpoint in (own.id, own.id.upper(), None):  # its own, under B's ids
            missing = ask(endpoint, UNKNOWN, "A" * 12)
            for todo in [*theirs["ids"].values(), *MALFORMED]:
                assert ask(endpoint, todo, theirs["token"]) == missing, (name, todo)
    assert {"claim", "complete_batch", "create_todos", "queue_counts", "read_event"} <= set(tried)
    assert db.rows(STORED, theirs["endpoint"]) == before, "a row of B's was written or locked"
    assert db.value("select count(*) from switchboard.todos where endpoint_id = %s", own.id) == 0


def test_what_a_bound_login_may_not_execute_or_read_it_cannot(db: Any, bound: Bound) -> None:
    session = bound(db.vend("a"))
    tables = db.rows(
        "select c.oid::regclass::text as name from pg_class c"
        " where c.relnamespace = 'switchboard'::regnamespace and c.relkind in ('r', 'v', 'p')"
    )
    for table in tables:
        for verb in ("select from", "delete from"):
            query = f"{verb} {table['name']}"
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.connection.execute(query.encode())
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.rows("select switchboard.tick()")


def test_fault_67_what_a_bound_login_does_to_its_session_disturbs_nobody(
    db: Any, database: str, bound: Bound
) -> None:
    """Locks, bells, settings and a transaction left open; its own calls do what they always do."""
    own, other = db.vend("a"), db.vend("b")
    db.rows("select switchboard.create_todos(%s, %s)", other.id, Jsonb(many(3)))
    session = bound(own)
    verbs = [row["name"] for row in db.rows("select name from switchboard.tools()")]
    db.rows("update switchboard.endpoints set verbs = %s", verbs)
    for setting in (
        "set switchboard.test_now = '2000-01-01'",
        "set search_path = pg_temp, public, pg_catalog",
        "set default_transaction_isolation = 'read committed'",
        "set timezone = 'Asia/Kathmandu'",
        "set datestyle = 'ISO, DMY'",
        "set intervalstyle = 'sql_standard'",
        "set bytea_output = 'escape'",
        "set extra_float_digits = -15",
        "set plan_cache_mode = 'force_custom_plan'",
        "set enable_indexscan = off",
        "set enable_indexonlyscan = off",
        "set enable_hashjoin = off",
        "set enable_mergejoin = off",
        "set client_min_messages = 'debug1'",
        "create temp table todos (id int)",
        "create temp table settings (is_test bool, test_now timestamptz)",
        "insert into pg_temp.settings values (true, '2000-01-01')",
        "create temp table endpoints (id int)",
        "create function pg_temp.now() returns timestamptz return '2000-01-01'::timestamptz",
        "create function pg_temp.scope(text, text) returns uuid return null::uuid",
        "listen todo_ready",
        "listen switchboard_control",
        "notify todo_ready, 'nonsense'",
        "notify switchboard_control, 'nonsense'",
        "select count(pg_advisory_lock(n)) from generate_series(-1000, 1000) n",
        "select count(pg_advisory_lock(n, n)) from generate_series(0, 500) n",
        "select pg_advisory_lock(hashtext('switchboard'))",
    ):
        session.connection.execute(setting.encode())
    for refused in ("set session_replication_role = replica", "set role switchboard_owner"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.connection.execute(refused.encode())
    made = session.row("select * from switchboard.create_todo(null, 'inbox', 'mine')")
    assert abs(made["created_at"] - datetime.now(UTC)) < timedelta(minutes=1)
    session.rows("begin")
    taken = session.row(CLAIM_NEXT, None, "w")
    assert taken["id"] == made["id"]
    assert taken["endpoint_id"] == uuid.UUID(own.id)

    neighbour = Session(database)
    with neighbour.connection:
        claimed = neighbour.row(CLAIM_NEXT, other.id, "w")
        done = neighbour.row(COMPLETE, other.id, claimed["id"], "w", claimed["lease_token"])
        assert done["state"] == "done"
        swept = neighbour.row("select switchboard.tick()")["tick"]
        assert swept
        assert not re.search("error", json.dumps(swept)), swept
        neighbour.rows("select switchboard.create_todos(%s, %s)", own.id, Jsonb(many(1)))
        neighbour.rows("select switchboard.set_default_lease(%s, 60)", own.id)
        migrate(database, lambda _: None)
        neighbour.rows("select switchboard.revoke_endpoint(%s)", other.id)
    session.rows("rollback")
    assert session.row(CLAIM_NEXT, None, "w")["id"] == made["id"]
