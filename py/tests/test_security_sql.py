"""What a database login can do to a session of its own, and what it can find out with one.

Rules d3 to d9 of docs/faults.md, as far as they are about sessions and files: names that a session
defines do not get in between, settings of a session show nothing, and every statement that is made
of text is listed here, by file.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from security_kit import Bound, World, created, is_uuid, values_of, worker_functions, world
from test_doctor import cron_database

__all__ = ["cron_database"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def here(cluster_url: str, template: str) -> Iterator[World]:
    with world(cluster_url, template) as made:
        yield made


@pytest.fixture
def bound(here: World) -> Iterator[Bound]:
    made = Bound(here)
    yield made
    made.close()


SHADOWS: LiteralString = """
    select format('create temp table %I (id text)', c.relname) from pg_class c
    where c.relnamespace = 'switchboard'::regnamespace and c.relkind in ('r', 'v')
    union all
    select format('create domain pg_temp.%I as pg_catalog.bool', t.typname) from pg_type t
    where t.typnamespace = 'pg_catalog'::regnamespace
        and t.typname in ('text', 'uuid', 'jsonb', 'timestamptz', 'bytea', 'int4', 'interval')
    union all
    select format('create function pg_temp.%I(%s) returns %s language plpgsql as %L', p.proname,
        pg_get_function_identity_arguments(p.oid), pg_get_function_result(p.oid),
        'begin raise exception ''hijacked''; end')
    from pg_proc p where p.pronamespace = 'switchboard'::regnamespace and p.prokind = 'f'
    union all
    select format('create function pg_temp.%I(%s) returns %s language plpgsql as %L', p.proname,
        pg_get_function_identity_arguments(p.oid), pg_get_function_result(p.oid),
        'begin raise exception ''hijacked''; end')
    from pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace
        and p.proname in ('clock_timestamp', 'pg_has_role', 'jsonb_build_object', 'sha256')
        and p.pronargs <= 2 and p.provariadic = 0
"""


def test_rule_d3_what_a_session_defines_gets_in_between_nothing(here: World, bound: Bound) -> None:
    """Tables, types and functions of every name that a function of ours uses, in pg_temp."""
    functions = worker_functions(here)
    assert len(functions) > 25
    calls = {one["name"]: values_of(here, one["arguments"]) for one in functions}
    before = {name: lasting(bound.ask(name, own)[0]) for name, own in calls.items()}
    rows = here.db.connection.execute(SHADOWS).fetchall()
    shadows = [next(iter(row.values())) for row in rows]
    assert len(shadows) > 300
    bound.connection.rollback()
    for shadow in shadows:
        bound.connection.execute(shadow)
    bound.connection.execute("set search_path = pg_temp, public, pg_catalog")
    bound.connection.commit()
    after = {name: lasting(bound.ask(name, own)[0]) for name, own in calls.items()}
    assert not [name for name, got in after.items() if "hijacked" in got]
    assert after == before
    with pytest.raises(psycopg.errors.RaiseException, match="hijacked"):
        bound.connection.execute("select pg_temp.tick()")
    bound.connection.rollback()


def lasting(got: list[Any]) -> str:
    """What a call gave, without what is new in each: ids, times, spans and lease tokens."""
    text = str(created((0, json.dumps(got, default=str)))[1])
    return re.sub(r'"[A-Za-z0-9_-]{12}"|\b\d+\.\d+\b', "<new>", text)


# What any login may set for itself; log_error_verbosity and the like are the superuser's.
SHOW_ALL: tuple[LiteralString, ...] = (
    "set client_min_messages = 'debug5'",
    "set debug_pretty_print = off",
    "set debug_print_plan = on",
    "set plan_cache_mode = force_custom_plan",
    "set plpgsql.print_strict_params = on",
    "set trace_notify = on",
    "set trace_sort = on",
)


def test_rule_d4_settings_of_a_session_show_nothing_of_others(here: World, bound: Bound) -> None:
    """Plans of inner statements are sent to who asks for them: nobody else's values are in them."""
    told: list[str] = []
    bound.connection.add_notice_handler(
        lambda one: told.append(f"{one.message_primary} {one.message_detail} {one.context}")
    )
    for setting in SHOW_ALL:
        bound.connection.execute(setting)
    bound.connection.commit()
    said = [here.them.names[name] for name in ("endpoint", "slug", "todo")]
    for function in worker_functions(here):
        own = values_of(here, function["arguments"])
        for argument in [name for name in own if name.endswith("_id")]:
            for name in said if argument != "p_actor_human_id" else ():
                bound.ask(function["name"], {**own, argument: name})
    shown = " ".join(" ".join(told).split())  # trees are wrapped anywhere
    assert "{PLANNEDSTMT" in shown
    assert as_constant(said[0].encode()) in shown, "this test looks for what is never shown"
    for name in {*here.them.names.values()} - {*said}:
        forms = [name, as_constant(name.encode())]
        if is_uuid(name):
            forms.append(as_constant(bytes.fromhex(name.replace("-", ""))))
        assert not [form for form in forms if form in shown], name


def as_constant(value: bytes) -> str:
    """Bytes as they stand in a tree."""
    return " ".join(str(byte - 256 if byte > 127 else byte) for byte in value)


def test_a_login_that_sits_in_a_transaction_is_taken_everything_at_once(here: World) -> None:
    """It holds up who revokes its endpoint; who unbinds it is not held up, nor is anybody else."""
    db = here.db
    own = db.vend("sits", human_id=here.me.human, verbs=["set_admission_policy"])
    bound = Bound(here, own)
    budget = "select switchboard.set_admission_policy(null, 'inbox', '{\"max_in_flight\": 1}')"
    revoke = "select switchboard.revoke_endpoint(%s)"
    bound.connection.execute(budget)
    db.rows("set lock_timeout = '300ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        db.rows(revoke, own.id)
    db.rows("select switchboard.unbind_login(%s)", bound.login)
    with pytest.raises(psycopg.DatabaseError, match="no such endpoint"):
        bound.connection.execute(budget)
    assert db.value("select switchboard.tick()") is not None
    assert db.rows(revoke, db.vend("beside", human_id=here.me.human).id)
    bound.close()
    assert db.rows(revoke, own.id)
    db.rows("reset lock_timeout")


# ---- statements made of text


MADE_OF_TEXT = {
    "db/bootstrap.sql": [
        "format('create role %I nologin', v_pair[1])",
        "format('comment on role %I is %L', v_pair[1], v_pair[2])",
        "format('grant switchboard_owner to %I', v_login)",
        "format('create schema %I authorization switchboard_owner', v_pair[1])",
        "format('comment on schema %I is %L', v_pair[1], v_pair[2])",
    ],
    # made of signatures and names of roles as the catalog writes them
    "db/functions/90_grants.sql": ["v_change", "v_change"],
}
EXECUTE = re.compile(r"(?im)^\s*(?:return query |open \w+ for )?execute\s+(.*?);")


def test_rule_d6_statements_made_of_text_are_these() -> None:
    """In SQL: by file. What a function has is in db/tests/security.sql: none."""
    found = {}
    for path in sorted((ROOT / "db").rglob("*.sql")):
        if "tests" in path.parts or path.name == "schema.sql":
            continue
        if statements := EXECUTE.findall(path.read_text()):
            found[str(path.relative_to(ROOT))] = statements
    assert found == MADE_OF_TEXT
    grants = (ROOT / "db" / "functions" / "90_grants.sql").read_text()
    made = re.findall(r"format\('([^']*)'", grants)
    assert made == [
        "revoke all on function %s from %s cascade",
        "grant execute on function %s to %s",
        "grant usage on schema switchboard to %I",
    ]


# Names of literals that statements of the shell are put together from; mypy holds them to that
# (LiteralString), here it is seen that no other names come in.
PARTS = {"FIELDS", "call", "DATABASE"}


def test_rule_d6_the_shell_puts_no_value_into_a_statement() -> None:
    """Whatever is executed is a literal, or made of literals, or composed by psycopg.sql."""
    named = set()
    for path in sorted((ROOT / "py" / "switchboard").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in ("execute", "executemany", "row", "rows", "value", "copy"):
                continue
            if node.args and isinstance(node.args[0], ast.JoinedStr | ast.BinOp):
                kinds = (ast.Constant, ast.Name, ast.expr_context, ast.operator)
                shape = (ast.JoinedStr, ast.FormattedValue, ast.BinOp)
                for part in ast.walk(node.args[0]):
                    assert isinstance(part, (*kinds, *shape)), (path.name, ast.unparse(node))
                    named |= {part.id} if isinstance(part, ast.Name) else set()
    assert named == PARTS


# ---- pg_cron


def test_rule_d9_only_who_migrates_may_use_the_schema_of_pg_cron(cron_database: str) -> None:
    with psycopg.connect(cron_database, autocommit=True) as owner:
        rows = owner.execute(
            "select a.grantee::regrole::text from pg_namespace n, aclexplode(n.nspacl) a"
            " where n.nspname = 'cron' and a.grantee <> n.nspowner"
        ).fetchall()
        assert [row[0] for row in rows if row[0] == "-" or row[0].startswith("switchboard")] == []
        jobs = owner.execute(
            "select username, command from cron.job where jobname like 'switchboard %'"
            " and database = current_database()"
        ).fetchall()
    assert jobs
    assert all("switchboard_" not in login for login, _ in jobs)
