"""What the tests of security share: two humans with something of everything, and their server.

A name is whatever a caller may name a thing by: an id, a slug, a scope, a queue, a key, a token.
What somebody else's names are worth to a caller is what names of nothing are worth.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, quote_plus

import httpx2
import psycopg
from conftest import KEY, Endpoint, Served, Sql, free_port, fresh
from markupsafe import escape
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import Jsonb
from rest_kit import FREE

from switchboard.config import Settings

UNKNOWN = "01890000-0000-7000-8000-00000000dead"
QUEUES = ("inbox", "other")


class Holder:
    """A human with an endpoint that may do everything, and one of each thing on it.

    Attributes:
        ids: of the todo in each state, the event, the receiver and the hook, by kind.
        names: what else things of this human are called, by kind.
    """

    def __init__(self, db: Sql, name: str) -> None:
        self.db, self.name = db, name
        self.human = db.value("select id from switchboard.create_human(%s)", name)
        verbs = [row["name"] for row in db.rows("select name from switchboard.tools()")]
        types = [
            row["name"]
            for row in db.rows("select source_type as name from switchboard.source_types()")
        ]
        grant: dict[str, Any] = {"human_id": self.human, "verbs": verbs, "webhook_max": 1000}
        grant["webhook_source_types"] = types
        self.endpoint: Endpoint = db.vend(f"{name}-desk", (*QUEUES, f"{name}-queue"), **grant)
        self.key = f"a key of {name}"
        self.ids = {"todo": self._todo(self.key)}
        self._furnish()
        token = "select * from switchboard.create_operator_token(%s, %s)"
        made = db.row(token, self.human, f"a token of {name}")
        self.token = str(made["token"])
        self.names = {
            "endpoint": self.endpoint.id,
            "slug": self.endpoint.slug,
            "scope": f"endpoint:{self.endpoint.slug}",
            "scope by id": f"endpoint:{self.endpoint.id}",
            "queue": f"{name}-queue",
            "token": str(made["token_id"]),
            "token's name": f"a token of {name}",
            "human": str(self.human),
            "key": self.key,
            "other key": f"looked for by {name}",
            **self.ids,
        }

    def _todo(self, key: str | None = None, queue: str = "inbox") -> str:
        query = "select id from switchboard.create_todo(%s, %s, 'a title', '{}', %s)"
        return str(self.db.value(query, self.endpoint.id, queue, key))

    def _claimed(self, key: str | None = None) -> tuple[str, str]:
        made = self._todo(key)
        query = "select lease_token from switchboard.claim(%s, %s, %s)"
        return made, str(self.db.value(query, self.endpoint.id, made, f"agent:{self.name}-desk"))

    def _furnish(self) -> None:
        db, endpoint, owner = self.db, self.endpoint.id, f"agent:{self.name}-desk"
        self.ids["claimed"], self.lease = self._claimed(f"looked for by {self.name}")
        for name, verb in (("done", "complete"), ("dead", "fail")):
            self.ids[name] = self._claimed()[0]
            db.rows("update switchboard.todos set max_attempts = 1 where id = %s", self.ids[name])
            db.rows(f"select switchboard.{verb}(%s, %s, %s)", endpoint, self.ids[name], owner)
        token = self.name.ljust(32, "-").encode()
        create = "select switchboard.create_webhook(%s, 'github', 'inbox', '\\xaa', %s)"
        self.ids["receiver"] = db.value(create, endpoint, token)["webhook_id"]
        create = "select switchboard.create_notify_hook(%s, 'https://x.example/')"
        self.ids["hook"] = db.value(create, endpoint)["hook_id"]
        db.rows("select switchboard.hold_webhook(%s, true)", self.ids["receiver"])
        deliver = (
            "select switchboard.receive_delivery(%s, 'd', 'push', '{}', '{}', 'text/plain', '{}')"
        )
        self.ids["quarantined"] = db.value(deliver, token)["todos"][0]["id"]
        event = "select event_id from switchboard.todos where id = %s"
        self.ids["event"] = str(db.value(event, self.ids["quarantined"]))
        policy = "select switchboard.set_admission_policy(%s, %s, %s)"
        for queue in ("inbox", f"{self.name}-queue"):
            db.rows(policy, endpoint, queue, json.dumps({"max_in_flight": 9}))


class World:
    """A server, somebody who asks, and somebody whom that is none of the business of."""

    def __init__(self, dsn: str) -> None:
        port = free_port()
        self.dsn = dsn
        self.db = Sql(dsn)
        self.me, self.them = Holder(self.db, "mine"), Holder(self.db, "theirs")
        self.db.rows("select switchboard.tick()")
        settings = Settings(
            database_url=dsn,
            port=port,
            public_url=f"http://127.0.0.1:{port}",
            secret_keys=(KEY,),
            shutdown_timeout=1.0,
            tick_interval=3600.0,  # sweeps write rows of everybody's
            outbound_private=("127.0.0.0/8",),
            **FREE,  # type: ignore[arg-type]
        )
        self.served = Served(settings)

    def stored(self, holder: Holder) -> list[Any]:
        """Every row of the holder's, with what tells whether it was written or locked."""
        tables = self.db.rows(
            "select c.oid::regclass::text as name from pg_class c join pg_attribute a"
            " on a.attrelid = c.oid and a.attname = 'endpoint_id'"
            " where c.relnamespace = 'switchboard'::regnamespace and c.relkind = 'r' order by 1"
        )
        return [
            self.db.rows(
                f"select t.ctid::text, t.xmin::text, t.xmax::text, t.* from {table['name']} t"
                " where endpoint_id = %s order by t.ctid",
                holder.endpoint.id,
            )
            for table in tables
        ]


@contextlib.contextmanager
def world(cluster_url: str, template: str) -> Iterator[World]:
    """A world of its own, served, for the time of the block."""
    with fresh(cluster_url, template) as (_, dsn):
        made = World(dsn)
        with made.db.connection:
            made.served.start()
            try:
                yield made
            finally:
                for session in made.served.sessions:
                    session.http.close()
                made.served.stop()


def told(answer: httpx2.Response, *said: str) -> tuple[Any, ...]:
    """All of an answer that a caller can compare, with what the caller said itself left out.

    Args:
        answer: of any route.
        said: the names that the request held.
    """
    text = answer.text
    headers = {k: v for k, v in answer.headers.items() if k not in ("date", "content-length")}
    kept = json.dumps(sorted(headers.items()))
    for one in sorted(said, key=len, reverse=True):
        forms = (json.dumps(one)[1:-1], html.escape(one), str(escape(one)))
        for form in (*forms, quote(one, safe=""), quote(one), quote_plus(one), one):
            if form:
                text, kept = text.replace(form, "<said>"), kept.replace(form, "<said>")
    return answer.status_code, text, kept


def is_uuid(name: str) -> bool:
    return re.fullmatch("[0-9a-f-]{36}", name) is not None


def created(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """An answer without what is new in each: ids and times of what was made."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>", answer[1])
    text = re.sub(r"\d{4}-\d\d-\d\d[T ][0-9:.]+(\+00:00|Z)", "<time>", text)
    return answer[0], text, *answer[2:]


# ---- a login that is bound to an endpoint


COUNTED = (
    "select relname, seq_scan, seq_tup_read, idx_scan, idx_tup_fetch, n_tup_ins, n_tup_upd,"
    " n_tup_del from pg_stat_xact_user_tables where schemaname = 'switchboard' order by relname"
)


class Bound:
    """A session of a login that is bound to an endpoint, and looks at what its calls cost."""

    def __init__(self, here: World, endpoint: Endpoint | None = None) -> None:
        self._here = here
        own = endpoint or here.me.endpoint
        password = conninfo_to_dict(here.dsn).get("password") or "secret"
        self.login = f"bound_{own.id[-12:]}"
        create = sql.SQL("create role {} login password {} in role switchboard_worker")
        made = create.format(sql.Identifier(self.login), sql.Literal(password))
        here.db.connection.execute(made)
        here.db.rows("select switchboard.bind_login(%s, %s)", own.id, self.login)
        dsn = make_conninfo(here.dsn, user=self.login, password=password)
        self.connection = psycopg.connect(dsn)

    def counts(self) -> list[Any]:
        return self.connection.execute(COUNTED).fetchall()

    def ask(self, function: str, arguments: dict[str, Any]) -> tuple[Any, ...]:
        """What a call gives, and how many rows of which tables it read; nothing of it stays."""
        marks = [sql.SQL("{} => %s").format(sql.Identifier(name)) for name in arguments]
        query = sql.SQL("select * from switchboard.{}({})").format(
            sql.Identifier(function), sql.SQL(", ").join(marks)
        )
        got: list[Any]
        with self.connection.transaction(force_rollback=True):
            before = {row[0]: row[1:] for row in self.counts()}
            try:
                with self.connection.transaction():
                    got = self.connection.execute(query, list(arguments.values())).fetchall()
            except psycopg.Error as error:
                told = error.diag
                got = [error.sqlstate, told.message_primary, told.message_detail]
                got += [told.message_hint, told.context, told.constraint_name]
            read = [
                (row[0], *(a - b for a, b in zip(row[1:], before[row[0]], strict=True)))
                for row in self.counts()
            ]
        return got, read

    def close(self) -> None:
        """End the session, and the login with it."""
        here = self._here
        self.connection.close()
        here.db.rows("delete from switchboard.endpoint_logins where login = %s", self.login)
        for end in ("drop owned by {}", "drop role {}"):
            here.db.connection.execute(sql.SQL(end).format(sql.Identifier(self.login)))


FUNCTIONS = (
    "select p.proname as name, p.proargnames[1:p.pronargs] as arguments, p.pronargdefaults as more"
    " from pg_proc p where p.pronamespace = 'switchboard'::regnamespace and p.prokind = 'f'"
    " and has_function_privilege('switchboard_worker', p.oid, 'execute')"
    " and p.proargnames[1:p.pronargs] && array['p_endpoint_id'] order by 1"
)


def worker_functions(here: World) -> list[dict[str, Any]]:
    """Name and arguments of each function that a bound login may execute on an endpoint."""
    return here.db.rows(FUNCTIONS)


def values_of(here: World, arguments: list[str]) -> dict[str, Any]:
    """A call of one's own, by argument."""
    me = here.me
    todos = [{"queue": "inbox", "title": "t", "idempotency_key": "new"}]
    values = {
        "p_endpoint_id": None, "p_id": me.ids["todo"], "p_ids": [me.ids["todo"]],
        "p_webhook_id": me.ids["receiver"], "p_hook_id": me.ids["hook"], "p_owner": "w",
        "p_target_endpoint_id": me.endpoint.slug, "p_queue": "inbox", "p_queues": ["inbox"],
        "p_title": "t", "p_todos": Jsonb(todos), "p_policy": Jsonb({"max_in_flight": 3}),
        "p_idempotency_key": "new", "p_actor_human_id": None, "p_lease_token": here.them.lease,
        "p_lease_tokens": [here.them.lease],
    }  # fmt: skip
    return {name: values[name] for name in arguments if name in values}
