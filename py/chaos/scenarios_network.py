"""Scenarios of the network: what stands between clients, server and database fails.

Answers that are lost, late or cut in half, requests that arrive twice, a listener that hears
nothing, a pooler, and a server with far too few connections. A call whose answer was lost may have
happened: the histories say so, and the judge finds out from the rest. Nothing may hang: whoever
waits is served, or told when to come back.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from chaos.crowd import Crowd, judge
from chaos.doubled import SUFFIX, judge_pairs
from chaos.ear import Ear
from chaos.holding import undone
from chaos.pgbouncer import PgBouncer
from chaos.proxy import Proxy
from chaos.scenario import scenario
from chaos.scenarios_sweeps import sweep_again

if TYPE_CHECKING:
    from chaos.stage import Stage

# Of a listener whose own note was late or lost on its way: it is deaf as far as it can know.
DEAF = ("The database takes LISTEN but delivers nothing",)
LOST = ("connection", "timeout", "unavailable", "no_session")
POOL_SIZE, POOL_WAIT = 2, 1
CALLS, STREAMS = 50, 20
ANSWER_SECONDS = 15.0  # a wait for a connection, one for a lock, and two slow cores
RECOVER_SECONDS = 15.0
RELISTEN_SECONDS = 15.0


PROXIES: WeakKeyDictionary[Stage, dict[str, Proxy]] = WeakKeyDictionary()
BOUNCERS: WeakKeyDictionary[Stage, PgBouncer] = WeakKeyDictionary()


def in_turn(stage: Stage, ways: Sequence[str]) -> Iterator[str]:
    """Each of the ways, in a random order, again and again until the run's seconds are over."""
    while True:
        for way in stage.random.sample(ways, len(ways)):
            if not stage.goes_on():
                return
            yield way


def require(holds: object, otherwise: str) -> None:
    """End the run as failed unless this holds."""
    if not holds:
        raise AssertionError(otherwise)


# -- a pool of two ---------------------------------------------------------------------------------


@scenario(
    "small-pool",
    provokes=("503", "served", "recovered"),
    allows=("unavailable", "timeout", "canceled"),
    server={"POOL_SIZE": POOL_SIZE, "POOL_WAIT": POOL_WAIT},
    producers={"poison": 0.08},
    heal=sweep_again,
)
def small_pool(stage: Stage) -> None:
    """50 calls and 20 streams at once for two connections that are held up: 503, never a hang."""
    with stage.postgres.admin() as admin:
        crowd = Crowd(admin, stage.server.url, stage.place)
    while stage.goes_on():
        stage.pause(0.5, 2.0)
        if stage.random.random() < 0.7:
            with undone(stage) as connection:
                connection.execute("lock table switchboard.todos in access exclusive mode")
                _rush(stage, crowd)
        else:
            _rush(stage, crowd)
        _recovers(stage, crowd)


def _rush(stage: Stage, crowd: Crowd) -> None:
    counts, wrong = judge(crowd.rush(CALLS, STREAMS), ANSWER_SECONDS)
    for name, count in counts.items():
        stage.saw(name, count)
    stage.say(f"a crowd: {dict(counts)}")
    require(not wrong, f"of {CALLS} calls and {STREAMS} streams: {'; '.join(wrong[:5])}")
    sessions = len(stage.backends("switchboard"))
    require(sessions <= POOL_SIZE + 2, f"{sessions} sessions for a pool of {POOL_SIZE}")


def _recovers(stage: Stage, crowd: Crowd) -> None:
    """When nobody is in the way, a few of each are served soon."""
    end = time.monotonic() + RECOVER_SECONDS
    while True:
        answers = crowd.rush(6, 4)
        if all(answer.served for answer in answers):
            stage.saw("recovered")
            return
        unserved = [answer for answer in answers if not answer.served]
        require(time.monotonic() < end, f"not recovered: {unserved[:3]}")
        time.sleep(0.3)


# -- the listener ----------------------------------------------------------------------------------


def prepare_listener(stage: Stage) -> None:
    """The server listens by way of a proxy."""
    proxy = _proxy(stage, "listener", stage.postgres.url("gateway"))
    _serve(stage, LISTEN_URL=proxy.url)


@scenario(
    "listener-cut",
    provokes=("relisten", "cut", "silent", "refused", "found"),
    allows=("unavailable", "no_session"),
    producers={"poison": 0.08},
    logs=DEAF,
    prepare=prepare_listener,
    heal=lambda stage: heal_proxies(stage),
)
def listener_cut(stage: Stage) -> None:
    """What listens is reset, turned away or falls silent; what it missed is found."""
    proxy, ear = PROXIES[stage]["listener"], Ear(stage)
    for way in in_turn(stage, ("cut", "silent", "refused", "ended")):
        stage.pause(0.2, 1.0)
        waiting = ear.listen()
        stage.pause(0.5, 1.0)  # by then it waits
        known = proxy.seen["connections"]
        _deafen(stage, proxy, way)
        ear.make_work()
        stage.pause(0.2, 11.0 if way == "silent" else 4.0)
        proxy.heal()
        healed = time.monotonic()
        late = waiting.result() - healed
        require(late < RELISTEN_SECONDS, f"work was found {late:.1f} s after the network was back")
        stage.saw("found")
        while not stage.server.is_ready():
            away = time.monotonic() - healed
            require(away < RELISTEN_SECONDS, f"the server does not listen after {away:.1f} s")
            time.sleep(0.1)
        stage.saw("relisten", int(proxy.seen["connections"] > known))
        stage.say(
            f"{way}: found after {late:.1f} s, listening after {time.monotonic() - healed:.1f} s"
        )


def _deafen(stage: Stage, proxy: Proxy, way: str) -> None:
    if way == "silent":
        proxy.break_(silent=True)
    elif way == "ended":  # by the database, before it is cut off
        proxy.break_(refusing=True)
        for pid in _listeners(stage):
            stage.kill_backend(pid, hard=False)
    else:
        proxy.break_(refusing=way == "refused")
        proxy.cut()
    stage.saw("refused" if way == "ended" else way)


def _listeners(stage: Stage) -> list[int]:
    """The sessions that listen: whatever else they do, they have said so last or asked for 1."""
    with stage.postgres.admin() as admin:
        rows = admin.execute(
            "select pid from pg_stat_activity where application_name = 'switchboard'"
            " and query ~* '^(un)?listen|^select 1$'"
        )
        return [row["pid"] for row in rows]


# -- a pooler --------------------------------------------------------------------------------------

# What the server pins in its start-up packet, which a pooler does not take: docs/operations.md.
OF_LOGIN = (
    "alter role gateway set default_transaction_isolation = 'read committed'",
    "alter role gateway set statement_timeout = '10s'",
    "alter role gateway set lock_timeout = '5s'",
    "alter role gateway set idle_in_transaction_session_timeout = '60s'",
    "alter role operator set statement_timeout = '20s'",
)


def prepare_pooler(stage: Stage) -> None:
    """Everybody passes PgBouncer, but for the listener."""
    with stage.postgres.admin() as admin:
        for statement in OF_LOGIN:
            admin.execute(statement)
    bouncer = PgBouncer(stage.folder / "pgbouncer", stage.postgres.url("gateway"))
    BOUNCERS[stage] = stage.props.enter_context(bouncer)
    for client in stage.clients:
        told = {"url": bouncer.url("operator"), "prepare": False, "statement_timeout": None}
        client.options.update(told)
    _serve(
        stage,
        DATABASE_URL=bouncer.url("gateway"),
        LISTEN_URL=stage.postgres.url("gateway"),
        PREPARE_STATEMENTS="false",
    )


@scenario(
    "pgbouncer",
    provokes=("pooled", "pooler_killed", "pooler_stopped", "listener_ended", "relisten"),
    allows=(*LOST, "canceled", "lock_timeout"),
    producers={"poison": 0.08},
    prepare=prepare_pooler,
    heal=lambda stage: BOUNCERS[stage].start(),
)
def pgbouncer(stage: Stage) -> None:
    """All share two connections a login through PgBouncer, which dies at times."""
    bouncer = BOUNCERS[stage]
    for way in in_turn(stage, ("killed", "stopped", "listener", "backends")):
        for _ in range(3):
            stage.pause(0.2, 1.5)
            _is_pooled(stage)
        if way == "killed":
            bouncer.kill()
        elif way == "stopped":
            bouncer.stop()
        elif way == "listener":
            for pid in _listeners(stage):
                stage.kill_backend(pid, hard=False)
                stage.saw("listener_ended")  # that another listens then, the run's watcher sees
        elif way == "backends":
            for pid in stage.backends()[:2]:
                stage.kill_backend(pid, hard=False)
        if way in ("killed", "stopped"):
            stage.saw(f"pooler_{way}")
            stage.pause(0.0, 1.5)
            bouncer.start()


def _is_pooled(stage: Stage) -> None:
    """No login has more sessions than the pool; the operator has both while all want one."""
    with stage.postgres.admin() as admin:
        rows = admin.execute(
            "select usename as login, count(*) as sessions from pg_stat_activity"
            " where backend_type = 'client backend' and application_name <> 'chaos'"
            " and query !~* '^(un)?listen|^select 1$' group by 1"
        ).fetchall()
    sessions = {row["login"]: row["sessions"] for row in rows}
    stage.saw("pooled", int(sessions.get("operator") == POOL_SIZE))
    require(max(sessions.values(), default=0) <= POOL_SIZE + 1, f"more than a pool: {sessions}")


# -- answers ---------------------------------------------------------------------------------------


def prepare_proxies(stage: Stage) -> None:
    """Everybody passes a proxy: to the database, to the server, and the server to its database."""
    database = _proxy(stage, "database", stage.postgres.url("operator"))
    inner = _proxy(stage, "inner", stage.postgres.url("gateway"))
    outer = _proxy(stage, "outer", stage.server.url)
    for client in stage.clients:
        client.options.update({"url": database.url, "server": outer.url, "timeout": 5})
    hosts = f"127.0.0.1:{stage.server.port} 127.0.0.1:{outer.port}"
    _serve(stage, DATABASE_URL=inner.url, LISTEN_URL=inner.url, ALLOWED_HOSTS=hosts)


def heal_proxies(stage: Stage) -> None:
    """No faults any more; what happened is counted."""
    for name, proxy in PROXIES[stage].items():
        proxy.heal()
        stage.say(f"{name}: {dict(proxy.seen)}")
        for what in ("lost_requests", "lost_answers", "torn_answers"):
            stage.saw(what, proxy.seen[what])


@scenario(
    "lost-responses",
    provokes=("lost_requests", "lost_answers", "torn_answers", "connection", "unavailable"),
    allows=LOST,
    producers={"poison": 0.12},  # of fewer todos than elsewhere
    logs=DEAF,
    prepare=prepare_proxies,
    heal=heal_proxies,
)
def lost_responses(stage: Stage) -> None:
    """Connections end before a request, after its answer was made, or in the midst of it."""
    proxies = list(PROXIES[stage].values())
    while stage.goes_on():
        for proxy in proxies:
            proxy.break_(
                lost_requests=stage.random.uniform(0.0, 0.04),
                lost_answers=stage.random.uniform(0.0, 0.08),
                torn_answers=stage.random.uniform(0.0, 0.04),
            )
        stage.pause(1.0, 5.0)
        if stage.random.random() < 0.3:
            stage.random.choice(proxies).cut()


@scenario(
    "slow-network",
    provokes=("slow", "silent", "timeout"),
    allows=LOST,
    producers={"poison": 0.12},  # of fewer todos than elsewhere
    logs=DEAF,
    prepare=prepare_proxies,
    heal=heal_proxies,
)
def slow_network(stage: Stage) -> None:
    """Every piece is late, by up to a third of a second; at times one way falls silent."""
    proxies = list(PROXIES[stage].values())
    while stage.goes_on():
        for proxy in proxies:
            most = stage.random.choice((0.0, 0.02, 0.1, 0.33))
            proxy.break_(delay=(most / 4, most), silent=False)
            stage.saw("slow", int(most > 0))
        stage.pause(1.0, 4.0)
        if stage.random.random() < 0.5:
            stage.random.choice(proxies).break_(silent=True)
            stage.saw("silent")
            stage.pause(1.0, 9.0)


# -- requests that come twice ----------------------------------------------------------------------


def judge_doubles(stage: Stage) -> None:
    """Of each pair one was refused, or both say the same."""
    lines: Iterable[str] = (
        line for path in stage.folder.glob(f"*{SUFFIX}") for line in path.read_text().splitlines()
    )
    counts, wrong = judge_pairs(lines)
    for name, count in counts.items():
        stage.saw(name, count)
    stage.say(f"pairs: {dict(counts)}")
    require(not wrong, f"{len(wrong)} pairs that cannot be: {'; '.join(wrong[:3])}")


@scenario(
    "doubled-responses",
    provokes=("second_refused", "second_same"),
    allows=("no_session",),
    workers={"twice": True},
    producers={"twice": True, "poison": 0.08},
    heal=judge_doubles,
)
def doubled_responses(stage: Stage) -> None:
    """A client library sends every request twice, one after the other or both at once."""
    while stage.goes_on():
        stage.pause(1.0, 2.0)


# -- what they share -------------------------------------------------------------------------------


def _proxy(stage: Stage, name: str, upstream: str) -> Proxy:
    """A proxy of this run, taken down at its end."""
    proxy = stage.props.enter_context(Proxy(upstream, random.Random(f"{name} {stage.seed}")))  # noqa: S311
    PROXIES.setdefault(stage, {})[name] = proxy
    return proxy


def _serve(stage: Stage, **settings: Any) -> None:
    """Start the server anew with these settings."""
    stage.server.end()
    stage.server.settings.update(settings)
    stage.server.start()
    stage.server.wait_ready()
