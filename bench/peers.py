"""The peers measured beside Switchboard: pgmq and Procrastinate, from their own packages.

Both packages of the Python index carry the SQL that makes their tables and functions (pgmq the
script of its extension). It is unpacked into a folder of its own, outside of the project's
environment, and run as it is; the statements below are the ones that their clients send.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.cluster import BenchError, Cluster
from bench.pgbench import Load
from bench.product import LOGIN
from bench.report import progress

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".cache" / "bench-peers"
REQUIREMENTS = Path(__file__).parent / "requirements-peers.txt"

PGMQ_SQL = FOLDER / "pgmq" / "sql" / "pgmq.sql"
PGMQ_VERSION = FOLDER / "pgmq" / "sql" / "VERSION"
PROCRASTINATE_SQL = FOLDER / "procrastinate" / "sql" / "schema.sql"

PGMQ_CYCLE = """\
select msg_id, message from pgmq.read('bench', 300, 1) \\gset
select pgmq.archive('bench', :msg_id::bigint);
"""
PROCRASTINATE_CYCLE = """\
\\set worker :client_id + 1
select id, status, task_name, priority, lock, queueing_lock, args, scheduled_at, queue_name, \
attempts, worker_id from procrastinate_fetch_job_v2('{bench}'::varchar[], :worker::bigint) \\gset
select procrastinate_finish_job_v1(:id::bigint, 'succeeded', false);
"""
FLOOR_CYCLE = """\
\\set id random(1, :rows)
update minimal set state = 1 where id = :id::int;
update minimal set state = 2 where id = :id::int;
"""


def fetch() -> None:
    """Unpack the peers' packages once.

    Raises:
        BenchError: the package index did not give them.
    """
    wanted = REQUIREMENTS.read_text()
    marker = FOLDER / "requirements"
    if marker.exists() and marker.read_text() == wanted:
        return
    progress("fetching the peers' packages")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    command += ["--target", str(FOLDER), "--requirement", str(REQUIREMENTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not PGMQ_SQL.exists() or not PROCRASTINATE_SQL.exists():
        raise BenchError(
            "the peers' packages could not be fetched; --no-peers measures without them.\n"
            + done.stderr[-1000:]
        )
    marker.write_text(wanted)


class Floor:
    """Two minimal single-row updates, two commits: what any claim and complete must cost."""

    name = "floor"

    def __init__(self, cluster: Cluster, backlog: int) -> None:
        self._cluster, self._rows = cluster, backlog
        with cluster.connect() as admin:
            admin.execute("create database floor")
        with cluster.connect("floor") as connection:
            connection.execute("create table minimal (id int primary key, state int not null)")
            connection.execute(
                "insert into minimal select i, 0 from generate_series(1, %s) i", [backlog]
            )
            connection.execute(f"grant select, update on minimal to {LOGIN}")
            connection.execute("vacuum (freeze, analyze) minimal")

    def load(self) -> Load:
        return Load(self.name, "floor", LOGIN, FLOOR_CYCLE, {"rows": str(self._rows)})

    def top_up(self, _backlog: int) -> None:
        with self._cluster.connect("floor") as connection:
            connection.execute("vacuum minimal")


class Pgmq:
    """pgmq: read one message, archive it."""

    name = "pgmq"

    def __init__(self, cluster: Cluster, backlog: int, payload: str) -> None:
        self._cluster, self._payload = cluster, payload
        with cluster.connect() as admin:
            admin.execute("create database pgmq")
        with cluster.connect("pgmq") as connection:
            connection.execute(PGMQ_SQL.read_bytes())
            connection.execute("select pgmq.create('bench')")
            connection.execute(f"grant all on schema pgmq to {LOGIN}")
            connection.execute(f"grant all on all tables in schema pgmq to {LOGIN}")
            connection.execute(f"grant all on all sequences in schema pgmq to {LOGIN}")
        self.top_up(backlog)

    def load(self) -> Load:
        return Load(self.name, "pgmq", LOGIN, PGMQ_CYCLE)

    def top_up(self, backlog: int) -> None:
        with self._cluster.connect("pgmq") as connection:
            connection.execute(
                """insert into pgmq.q_bench (vt, message)
                   select clock_timestamp(), %s::jsonb
                   from generate_series(1, %s - (select count(*) from pgmq.q_bench)) i""",
                [self._payload, backlog],
            )
            connection.execute("vacuum analyze pgmq.q_bench, pgmq.a_bench")


class Procrastinate:
    """Procrastinate: fetch one job, finish it."""

    name = "procrastinate"

    def __init__(self, cluster: Cluster, backlog: int, payload: str, workers: int) -> None:
        self._cluster, self._payload = cluster, payload
        with cluster.connect() as admin:
            admin.execute("create database procrastinate")
        with cluster.connect("procrastinate") as connection:
            connection.execute(PROCRASTINATE_SQL.read_bytes())
            connection.execute(
                "select procrastinate_register_worker_v1() from generate_series(1, %s)", [workers]
            )
            connection.execute(f"grant all on all tables in schema public to {LOGIN}")
            connection.execute(f"grant all on all sequences in schema public to {LOGIN}")
            # Loading 250,000 jobs would ring 250,000 bells in one commit; the cycle rings none.
            connection.execute(
                "alter table procrastinate_jobs disable trigger "
                "procrastinate_jobs_notify_queue_job_inserted_v1"
            )
        self.top_up(backlog)

    def load(self) -> Load:
        return Load(self.name, "procrastinate", LOGIN, PROCRASTINATE_CYCLE)

    def top_up(self, backlog: int) -> None:
        with self._cluster.connect("procrastinate") as connection:
            connection.execute(
                """insert into procrastinate_jobs (queue_name, task_name, args)
                   select 'bench', 'bench.task', %s::jsonb
                   from generate_series(1, %s - (select count(*) from procrastinate_jobs
                                                 where status = 'todo')) i""",
                [self._payload, backlog],
            )
            connection.execute("vacuum analyze procrastinate_jobs, procrastinate_events")
