"""Create rate: create_todo, bell included, beside a bare insert of the same row with its pg_notify.

The bare table has the columns and indexes of todos, and nothing is checked. Commits with a NOTIFY
queue for one lock of PostgreSQL's, which bounds both; bulk goes through create_todos, which rings
once, so its rate per todo is measured against the single rate. Runs take turns, and the median of
their ratios counts.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from bench.cluster import Cluster, cluster
from bench.pgbench import Load, run
from bench.product import LOGIN, PAYLOAD, Product, install, make_login
from bench.report import Report, progress

if TYPE_CHECKING:
    from bench.options import Options

CLIENTS = 16
BATCH_CLIENTS = 4
BATCH = 100
TARGET = 0.70
BATCH_TARGET = 12.0
ROUNDS = 5
SECONDS = 4

BARE = f"""\
with made as (insert into public.bench_todos (endpoint_id, id, queue, trust_mode, title, payload) \
values (:endpoint::uuid, gen_random_uuid(), 'bench', 'sql', 'Bench todo', '{PAYLOAD}') \
returning id) select id, pg_notify('todo_ready', :endpoint::text || chr(58) || 'bench') from made;
"""
OURS = f"""\
select id, created from switchboard.create_todo(p_endpoint_id => :endpoint, p_queue => 'bench', \
p_title => 'Bench todo', p_payload => '{PAYLOAD}');
"""
BULK = f"""\
select count(*) from switchboard.create_todos(:endpoint, (select jsonb_agg(jsonb_build_object(\
'queue', 'bench', 'title', 'Bench todo', 'payload', '{PAYLOAD}'::jsonb)) \
from generate_series(1, {BATCH})));
"""


def measure(options: Options) -> bool:
    """Run the benchmark; returns whether the promises were kept."""
    report = Report("creates", options.quick)
    rounds = 2 if options.quick else ROUNDS
    seconds = options.seconds or (1 if options.quick else SECONDS)
    with cluster(options.server or "15") as server:
        make_login(server)
        product = install(server)
        endpoint = product.vend("creates", ["bench"])
        with server.connect(product.database) as admin:
            admin.execute(
                "create table public.bench_todos (like switchboard.todos including all)"
                " with (fillfactor = 80)"
            )
            admin.execute(f"grant insert, select on public.bench_todos to {LOGIN}")
            admin.execute(f"grant usage on schema switchboard to {LOGIN}")
        loads = {
            name: Load(name, product.database, LOGIN, script, {"endpoint": endpoint})
            for name, script in (("bare", BARE), ("ours", OURS), ("bulk", BULK))
        }
        single(report, server, product, loads, rounds, seconds)
        bulk(report, server, product, loads, rounds, seconds)
    return report.close()


def single(
    report: Report,
    server: Cluster,
    product: Product,
    loads: dict[str, Load],
    rounds: int,
    seconds: float,
) -> None:
    """One todo a transaction."""
    rates = turns(server, product, loads, ("bare", "ours"), CLIENTS, rounds, seconds)
    ratio = median(ours / bare for ours, bare in zip(rates["ours"], rates["bare"], strict=True))
    row = [CLIENTS, median(rates["bare"]), median(rates["ours"]), ratio]
    report.table("create_todo", ["clients", "bare insert", "create_todo", "share"], [row])
    report.at_least(f"create_todo at {CLIENTS} clients, of a bare insert", ratio, TARGET)


def bulk(
    report: Report,
    server: Cluster,
    product: Product,
    loads: dict[str, Load],
    rounds: int,
    seconds: float,
) -> None:
    """A hundred todos a transaction."""
    rates = turns(server, product, loads, ("ours", "bulk"), BATCH_CLIENTS, rounds, seconds)
    pairs = zip(rates["bulk"], rates["ours"], strict=True)
    ratio = median(BATCH * many / one for many, one in pairs)
    row = [BATCH_CLIENTS, median(rates["ours"]), BATCH * median(rates["bulk"]), ratio]
    headers = ["clients", "create_todo", f"create_todos of {BATCH}, per todo", "times"]
    report.table("create_todos", headers, [row])
    report.at_least(f"create_todos of {BATCH} at {BATCH_CLIENTS} clients", ratio, BATCH_TARGET)


def turns(
    server: Cluster,
    product: Product,
    loads: dict[str, Load],
    names: tuple[str, ...],
    clients: int,
    rounds: int,
    seconds: float,
) -> dict[str, list[float]]:
    """Run the loads in turns; the rates of each."""
    rates: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(1, rounds + 1):
        with server.connect(product.database) as admin:
            admin.execute("truncate public.bench_todos")
            admin.execute("checkpoint")
        for name in names:
            rates[name].append(run(server, loads[name], clients, seconds=seconds).rate)
        shown = ", ".join(f"{name} {series[-1]:.0f}" for name, series in rates.items())
        progress(f"{clients} clients, round {turn} of {rounds}: {shown} a second")
    return rates
