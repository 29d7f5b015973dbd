"""Switchboard as it is measured: migrated by its own command, called by an ordinary login.

``bench_app`` is what a gateway's login is: a member of switchboard_app without any right to a
table, with the time-outs that the gateway pins on its connections. Loading in bulk is the only
thing done past the functions, by the superuser, with sql/fill.sql.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.cluster import BenchError, Cluster
from bench.pgbench import Load

LOGIN = "bench_app"
FILL = (Path(__file__).parent / "sql" / "fill.sql").read_text()

# About what a small webhook leaves: 200 bytes.
PAYLOAD = (
    '{"action": "opened", "number": 42, "repository": "acme/widgets", "sender": "octocat", '
    '"title": "Widgets spin the wrong way round", "url": '
    '"https://example.org/acme/widgets/pull/42", "draft": false}'
)

CYCLE = """\
select id, queue, kind, title, payload, attempt, lease_token from switchboard.claim_next(\
p_endpoint_id => :endpoint, p_owner => 'bench-' || :client_id, p_queues => :queues::text[]) \\gset
select state from switchboard.complete(p_endpoint_id => :endpoint, p_id => :id, \
p_owner => 'bench-' || :client_id, p_result => '{"ok": true}', p_lease_token => :lease_token);
"""


@dataclass(frozen=True)
class Product:
    """A database that `switchboard migrate` has made."""

    cluster: Cluster
    database: str

    def vend(self, slug: str, queues: Sequence[str]) -> str:
        """Vend an endpoint; returns its id."""
        with self.cluster.connect(self.database) as admin:
            row = admin.execute(
                """select endpoint_id::text from switchboard.vend_endpoint(
                       p_human_id => (select id from switchboard.humans where name = 'bench'),
                       p_slug => %s, p_queues => %s)""",
                [slug, list(queues)],
            ).fetchone()
        if row is None:
            raise BenchError("vend_endpoint returned no row")
        return str(row[0])

    def fill(
        self,
        endpoint: str,
        queues: Sequence[str],
        count: int,
        *,
        state: str = "pending",
        assignee: str | None = None,
        age: timedelta = timedelta(0),
        step: timedelta = timedelta(microseconds=20),
    ) -> None:
        """Load todos in bulk, the newest of them ``age`` old."""
        if count <= 0:
            return
        oldest = datetime.now(UTC) - age - step * count
        with self.cluster.connect(self.database) as admin, admin.transaction():
            admin.execute(
                FILL,
                {
                    "endpoint": endpoint, "queues": list(queues), "count": count, "state": state,
                    "assignee": assignee, "oldest": oldest, "step": step, "payload": PAYLOAD,
                    "numbered": "Bench todo",
                },
            )  # fmt: skip
            admin.execute(
                """update switchboard.queue_marks set pending_from = least(pending_from, %s)
                    where endpoint_id = %s::uuid and queue = any(%s) and %s = 'pending'""",
                [oldest, endpoint, list(queues), state],
            )

    def pending(self, endpoint: str, queue: str) -> int:
        with self.cluster.connect(self.database) as admin:
            row = admin.execute(
                """select count(*) from switchboard.todos
                    where endpoint_id = %s and queue = %s and assignee is null
                      and state = 'pending'""",
                [endpoint, queue],
            ).fetchone()
        return int(str(row[0])) if row else 0

    def top_up(self, endpoint: str, queue: str, backlog: int) -> None:
        """Bring the backlog of one queue back to its size, with todos newer than all others."""
        self.fill(endpoint, [queue], backlog - self.pending(endpoint, queue))

    def settle(self) -> None:
        """What autovacuum and the server's tick do in the long run."""
        with self.cluster.connect(self.database) as admin:
            admin.execute("vacuum analyze")
        self.tick()

    def tick(self) -> None:
        with self.cluster.connect(self.database) as admin:
            admin.execute("select switchboard.tick()")

    def cycle(self, name: str, endpoint: str, queues: Sequence[str]) -> Load:
        """claim_next over these queues, complete with the lease token."""
        return self.load(name, CYCLE, endpoint, queues)

    def load(self, name: str, script: str, endpoint: str, queues: Sequence[str]) -> Load:
        variables = {"endpoint": endpoint, "queues": "{" + ",".join(queues) + "}"}
        return Load(name, self.database, LOGIN, script, variables)


def install(cluster: Cluster, database: str = "bench", patch: Path | None = None) -> Product:
    """Make a database, migrate it by the product's command, add a human ``bench``.

    The login of make_login() becomes a member of switchboard_app.

    Args:
        cluster: the server.
        database: its name.
        patch: SQL to run as switchboard_owner after migrating: an experiment with a function.

    Raises:
        BenchError: migrate failed.
    """
    with cluster.connect() as admin:
        admin.execute(f"create database {database}")
    environment = {**os.environ, "SWITCHBOARD_DATABASE_URL": cluster.url(database)}
    done = subprocess.run(
        [sys.executable, "-m", "switchboard", "migrate"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise BenchError(f"switchboard migrate failed:\n{done.stdout}{done.stderr}")
    with cluster.connect(database) as admin:
        if patch is not None:
            admin.execute("set role switchboard_owner")
            admin.execute(patch.read_bytes())
            admin.execute("reset role")
        admin.execute(f"grant switchboard_app to {LOGIN}")
        admin.execute("select switchboard.create_human('bench')")
        # Nothing measured here may be pruned away while it is measured.
        admin.execute("update switchboard.settings set retention_rows = 1000000000")
    return Product(cluster, database)


def make_login(cluster: Cluster) -> None:
    """The login of every contender; time-outs as on the gateway's connections."""
    with cluster.connect() as admin:
        admin.execute(f"create role {LOGIN} login")
        for setting, value in (
            ("statement_timeout", "10s"),
            ("lock_timeout", "5s"),
            ("idle_in_transaction_session_timeout", "60s"),
            ("default_transaction_isolation", "read committed"),
        ):
            admin.execute(f"alter role {LOGIN} set {setting} = '{value}'")
