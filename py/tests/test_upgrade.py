"""Upgrades: from every release to the newest, at work, twice, and with the migrator killed.

Each release of db/releases.toml makes a database with its own program (upgrade_kit.py), which is
filled and kept at work (upgrade_load.py) while it is brought up to date. Afterwards nothing is lost
and nothing is there twice, and the schema is that of a fresh installation, grants included.

SWITCHBOARD_UPGRADE_KILLS (1) says how often a migrator is killed in each upgrade; from 2 on, as in
`make chaos`, every release's server runs along (else those of the oldest and of the last), and each
release is also brought to each one after it by that one's own program.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, LiteralString, cast

import httpx2
import psycopg
import pytest
from conftest import KEY, RawSession, Served, Sql, fresh, until
from intake_kit import names, proof
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg_pool import PoolTimeout
from upgrade_kit import (
    NEWEST,
    OLD,
    RELEASES,
    ROOT,
    Program,
    Release,
    changes,
    functions,
    program,
    schema,
)
from upgrade_load import (
    CLAIM,
    COMPLETE,
    CREATE,
    ENDS,
    SECRET,
    STATES,
    TOKEN,
    Client,
    Deliveries,
    Load,
    McpWorker,
    Place,
    SqlWorker,
)

from switchboard import lacking
from switchboard.migrate import migrate
from switchboard.migrate_connection import MigrateError
from switchboard.secrets import Keyring

KILLS = int(os.environ.get("SWITCHBOARD_UPGRADE_KILLS", "1"))
THOROUGH = KILLS > 1
SEED = int(os.environ.get("SWITCHBOARD_UPGRADE_SEED", random.randrange(10**6)))
SERVED = [release.name for release in (OLD if THOROUGH else [OLD[0], OLD[-1]])]
LONGEST = 1.2  # seconds that a migrate takes, about: it is killed somewhere within

Make = Callable[[Release], str]
each_old = pytest.mark.parametrize("release", OLD, ids=[release.name for release in OLD])
PAIRS = [
    pytest.param(old, new, id=f"{old.name} to {new.name}")
    for new in RELEASES
    for old in RELEASES
    if new is not NEWEST and old.is_from(new.databases_from) and not old.is_from(new.name)
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Release], Program]:
    folder = tmp_path_factory.mktemp("releases")
    return lambda release: program(release, folder)


@pytest.fixture(scope="module")
def made_by(cluster_url: str, programs: Callable[[Release], Program]) -> Iterator[Make]:
    """A database as the program of a release makes it: to be cloned, not to be changed."""
    made: dict[str, str] = {}
    with contextlib.ExitStack() as stack:

        def make(release: Release) -> str:
            if release.name not in made:
                name, dsn = stack.enter_context(fresh(cluster_url, "template0"))
                programs(release).migrate(dsn)
                made[release.name] = name
            return made[release.name]

        yield make


@pytest.fixture
def clone(cluster_url: str, made_by: Make) -> Iterator[Make]:
    """A superuser's DSN of a database of a release, which the test may change."""
    with contextlib.ExitStack() as stack:
        yield lambda release: stack.enter_context(fresh(cluster_url, made_by(release)))[1]


@pytest.fixture
def login(cluster_url: str) -> Iterator[str]:
    """A worker's login; its databases go first."""
    name = sql.Identifier(f"sbtest_{uuid.uuid4().hex[:12]}")
    with psycopg.connect(cluster_url, autocommit=True) as admin:
        create = "create role {} login password 'hunter2' in role switchboard_worker"
        admin.execute(sql.SQL(create).format(name))
        yield name.as_string().strip('"')
        admin.execute(sql.SQL("drop role {}").format(name))


# The table


def test_the_table_and_the_changelog_say_the_same() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    titles = [section.splitlines()[0] for section in sections]
    dates = [f"{r.name} ({r.date})" if r.commit else f"{r.name} (being made)" for r in RELEASES]
    assert titles == dates[::-1]
    for section, release in zip(sections, RELEASES[::-1], strict=True):
        first = " ".join(section.split("\n\n")[1].split())
        assert first == " ".join(release.statement().split()), release.name


def test_every_migration_came_with_one_release() -> None:
    listed = [name for release in RELEASES for name in release.migrations]
    there = sorted(path.stem for path in (ROOT / "db/migrations").glob("[0-9]*"))
    assert listed == there
    assert [release.name for release in RELEASES if not release.commit] == [NEWEST.name]


@pytest.mark.parametrize("place", range(1, len(RELEASES)), ids=[r.name for r in RELEASES[1:]])
def test_what_a_release_edited_is_said(place: int, programs: Callable[[Release], Program]) -> None:
    """Nothing notices an edited migration in a database that has it (so fell 0.2.0)."""
    before, after = (programs(release).root for release in RELEASES[place - 1 : place + 1])
    shared = sorted((before / "db/migrations").glob("[0-9]*"))
    assert shared
    edited = [
        path.stem
        for path in shared
        if path.read_bytes() != (after / "db/migrations" / path.name).read_bytes()
    ]
    assert edited == list(RELEASES[place].edited)
    new = {path.stem for path in (after / "db/migrations").glob("[0-9]*")}
    assert sorted(new - {path.stem for path in shared}) == list(RELEASES[place].migrations)


@pytest.mark.parametrize("place", range(1, len(RELEASES)), ids=[r.name for r in RELEASES[1:]])
def test_what_callers_of_the_release_before_meet(
    place: int, cluster_url: str, made_by: Make, template: str
) -> None:
    """By the catalogs: whose answer is wider, what is gone; old processes go on where none is."""
    old, new = RELEASES[place - 1 : place + 1]
    names = [made_by(old), template if new is NEWEST else made_by(new)]
    found = [functions(make_conninfo(cluster_url, dbname=n)) for n in names]
    assert len(found[0]) > 100
    wider, gone = changes(*found)
    assert (wider, gone) == (list(new.wider), list(new.gone))
    assert bool(gone) == bool(new.despite)


# Upgrades


@each_old
def test_from_a_release_at_work_to_the_newest(
    release: Release,
    clone: Make,
    login: str,
    database: str,
    programs: Callable[[Release], Program],
    serve: Callable[..., Served],
    tmp_path: Path,
) -> None:
    """Killed, then run twice: no call fails, and what was acknowledged is there, once."""
    luck = random.Random(f"{SEED} {release.name}")
    moments = [round(luck.uniform(0, LONGEST), 3) for _ in range(KILLS)]
    place = Place(clone(release), login, release)
    with place.db.connection, noted(f"SWITCHBOARD_UPGRADE_SEED={SEED}, killed after {moments} s"):
        clients = at_work(place, programs, moments, tmp_path / "server.log")
        interrupted = [client.interrupted for client in clients]
        assert max(interrupted) <= release.is_interrupted_by(NEWEST), interrupted
        is_like_a_fresh_one(place.dsn, database)
        nothing_is_lost(place)
        what_was_kept_still_works(place)
        served = serve(database_url=place.dsn, listen_url=place.dsn)
        credentials_and_secrets_are_known(place, served.url)


@contextlib.contextmanager
def noted(note: str) -> Iterator[None]:
    """Say with a failure how to repeat it."""
    try:
        yield
    except BaseException as error:
        error.add_note(note)
        raise


def at_work(
    place: Place, programs: Callable[[Release], Program], moments: list[float], log: Path
) -> list[Client]:
    """Upgrade the place while its clients work: killed at these moments, then twice to the end."""
    clients: list[Client] = [SqlWorker(place, "a"), SqlWorker(place, "b")]
    with contextlib.ExitStack() as stack:
        if place.release.name in SERVED:
            url = stack.enter_context(programs(place.release).serve(place.dsn, log))
            clients += [McpWorker(place, url), Deliveries(place, url)]
            if place.release.is_from("0.3.0"):
                stack.callback(answers_operators, place, url)  # when all is over
        load = stack.enter_context(Load(place, clients))
        load.goes_on()
        for seconds in moments:
            programs(NEWEST).migrate_and_die(place.dsn, seconds)
            load.goes_on(2)
        for _ in range(2):
            migrate(place.dsn, lambda _: None)
            load.goes_on()
    return clients


def answers_operators(place: Place, url: str) -> None:
    """REST of the older server, on the newer functions."""
    token = place.db.value(
        "select token from switchboard.create_operator_token(%s, 'tests')", place.db.human
    )
    headers = {"authorization": f"Bearer {token}"}
    answer = httpx2.get(f"{url}/api/v1/todos?limit=3", headers=headers)
    assert (answer.status_code, len(answer.json()["todos"])) == (200, 3), answer.text


def is_like_a_fresh_one(dsn: str, database: str) -> None:
    """Tables, functions and grants are those of an installation of today."""
    there, wanted = functions(dsn), functions(database)
    assert there.keys() == wanted.keys()
    assert {n: f.all for n, f in there.items()} == {n: f.all for n, f in wanted.items()}
    assert [f.roles for f in there.values()] == [wanted[name].roles for name in there]
    assert schema(dsn) == schema(database)
    with psycopg.connect(dsn) as one, psycopg.connect(database) as other:
        for query in BESIDE:
            rows = [connection.execute(query).fetchall() for connection in (one, other)]
            assert rows[0] == rows[1], query


BESIDE: tuple[LiteralString, ...] = (
    "select migration_id from switchboard_migrations._yoyo_migration order by 1",
    "select name, sha256 from switchboard_migrations.function_files order by 1",
    (
        "select oid::regclass::text from pg_class"
        " where relnamespace = 'switchboard_migrations'::regnamespace order by 1"
    ),
    "select from switchboard_migrations.yoyo_lock",
)


def nothing_is_lost(place: Place) -> None:
    """Every todo is one that somebody was told of, under its key, and ended as he was told."""
    books, rows = place.books, place.db.rows(STATES)
    there = {row["id"]: row for row in rows}
    keys = {i: row["idempotency_key"] for i, row in there.items()}
    assert keys == books.created
    assert {i for i, row in there.items() if row["state"] == "done"} == books.done
    dead = {i for i, row in there.items() if row["state"] == "failed" and row["is_final"]}
    assert dead == books.dead
    assert {row["id"]: row["n"] for row in place.db.rows(ENDS)} == dict.fromkeys(books.done, 1)
    assert place.db.rows("select * from switchboard.unsound_todos()") == []
    events = place.db.rows("select delivery_id, todo_id::text as todo from switchboard.events")
    assert {row["delivery_id"]: row["todo"] for row in events} == books.deliveries
    assert len(events) == len(books.deliveries)


def what_was_kept_still_works(place: Place) -> None:
    """Open leases end, keys keep others away, secrets open, hooks and budgets are as they were."""
    books, db, alpha = place.books, place.db, place.alpha.id
    claimed = db.rows("select id::text from switchboard.todos where state = 'claimed'")
    assert {row["id"] for row in claimed} == books.held.keys()
    if place.release.is_from("0.3.0"):
        query = "select status, used, in_flight from switchboard.admission_status(%s, 'kept')"
        assert db.row(query, alpha) == {"status": "open", "used": 1, "in_flight": len(books.held)}
    for todo, token in books.held.items():
        assert db.row(COMPLETE, alpha, todo, token)["state"] == "done"
    row = db.row(CREATE, alpha, "kept", "waits 0", "waits 0", 5)
    assert not row["created"]
    assert books.created[str(row["id"])] == "waits 0"
    sealed = db.rows("select sealed from switchboard.list_sealed()")
    opened = [Keyring([KEY]).open(bytes(row["sealed"])) for row in sealed]
    assert SECRET.encode() in opened
    if not place.release.is_from("0.2.0"):
        query = (
            "select e.source_type, e.queue, switchboard.read_event(t.endpoint_id::text,"
            " t.event_id::text) ->> 'text' as text from switchboard.todos t"
            " join switchboard.events e on (e.endpoint_id, e.id) = (t.endpoint_id, t.event_id)"
            " where e.delivery_id = 'lost'"
        )
        assert db.row(query) == {"source_type": "github", "queue": "hooks", "text": '{"a": 1}'}
    if place.release.is_from("0.2.0"):
        hooks = db.rows("select hook_id, enabled from switchboard.list_notify_hooks(%s)", alpha)
        assert [(str(h["hook_id"]), h["enabled"]) for h in hooks] == [(str(place.hook), True)]


def credentials_and_secrets_are_known(place: Place, url: str) -> None:
    """A server of today takes the deliveries of the older receiver, and its agent claims them."""
    body = b'{"action": "opened"}'
    headers = names("github", "after the upgrade") | proof("github", SECRET.encode(), body, "", 0)
    with httpx2.Client() as sender:
        for created in (1, 0):
            answer = sender.post(f"{url}/webhooks/w/{TOKEN}", content=body, headers=headers)
            assert (answer.status_code, answer.json()["created"]) == (202, created), answer.text
    (event,) = place.db.rows("select todo_id from switchboard.events where delivery_id ~ ' '")
    session = RawSession(url, place.beta)
    with contextlib.closing(session.http):
        todo = session.call("claim_next", queues=["hooks"])["todo"]
        while todo["id"] != str(event["todo_id"]):  # older deliveries wait before it
            todo = session.call("claim_next", queues=["hooks"])["todo"]
        done = session.call("complete", id=todo["id"], lease_token=todo["lease_token"])
        assert done["todo"]["state"] == "done"


def test_every_migration_can_run_again(database: str, cluster_url: str, template: str) -> None:
    """As it does when the migrator was killed between a migration and its mark."""
    with psycopg.connect(database) as connection:
        connection.execute("delete from switchboard_migrations._yoyo_migration")
    lines: list[str] = []
    migrate(database, lines.append)
    assert sum(line.startswith("Applying") for line in lines) == len(
        list((ROOT / "db/migrations").glob("[0-9]*"))
    )
    is_like_a_fresh_one(database, make_conninfo(cluster_url, dbname=template))


def test_a_server_says_that_its_database_was_not_migrated(
    clone: Make, serve: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    """Once, by name, and nothing where all is there."""
    serve(database_url=(dsn := clone(OLD[0])), listen_url=dsn)
    said = "the database lacks what this server calls"
    until(lambda: said in caplog.text, "it says so")
    (line,) = [record.getMessage() for record in caplog.records if said in record.getMessage()]
    assert "call_board" in line
    assert "switchboard migrate" in line
    assert "call_tool" not in line


def test_nothing_is_lacking_where_all_is_there(database: str) -> None:
    """Every function that the server calls is there, and its login may execute it."""
    with psycopg.connect(database) as connection:
        connection.execute("set role switchboard_app")
        assert len(lacking.called()) > 20
        assert connection.execute(lacking.LACKING, [lacking.called()]).fetchone() == ([],)


@pytest.mark.anyio
async def test_what_is_lacking_is_asked_until_there_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No connection was free when the server started, as when all come back at once."""
    monkeypatch.setattr(lacking, "PAUSE", 0.0)
    answers: list[Any] = [PoolTimeout(), PoolTimeout(), ["tick"]]

    class Database:
        async def value(self, *_: Any, **__: Any) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    await lacking.report(cast("Any", Database()))
    assert answers == []
    late, said = [record.getMessage() for record in caplog.records]
    assert late == "functions not looked for yet: PoolTimeout"
    assert said.startswith("the database lacks what this server calls (tick)")


# Rollback


def test_a_release_without_migrations_can_be_taken_back(
    clone: Make, database: str, programs: Callable[[Release], Program]
) -> None:
    """The program of the release before puts its functions back; the newest then does so again."""
    before, place = OLD[-1], Sql(database)
    with place.connection:
        alpha = place.vend("alpha")
        todo = place.create(alpha, "kept")
        done = programs(before).run("migrate", dsn=database)
        if NEWEST.migrations:
            assert done.returncode == 1, done.stdout
        else:
            assert done.returncode == 0, done.stderr
            wanted, there = functions(clone(before)), functions(database)
            assert {n: there[n].all for n in wanted} == {n: f.all for n, f in wanted.items()}
        token = place.row(CLAIM, alpha.id, todo)["lease_token"]
        migrate(database, lambda _: None)
        assert place.row(COMPLETE, alpha.id, todo, token)["state"] == "done"
    assert functions(database).keys() >= functions(clone(before)).keys()


@pytest.mark.parametrize("release", OLD[:-1], ids=[release.name for release in OLD[:-1]])
def test_an_older_program_leaves_newer_tables_alone(
    release: Release, database: str, programs: Callable[[Release], Program]
) -> None:
    """Those before 0.5.0 do not look: PostgreSQL or a trigger of ours stops them."""
    before = {name: function.all for name, function in functions(database).items()}
    done = programs(release).run("migrate", dsn=database)
    assert done.returncode == 1
    reason = r"This program is older than the database|cannot change return type"
    assert re.search(reason, done.stderr), done.stderr
    assert {name: function.all for name, function in functions(database).items()} == before
    assert not is_locked(database)


def test_a_database_of_a_newer_version_is_refused(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(
            "insert into switchboard_migrations._yoyo_migration (migration_hash, migration_id)"
            " values ('x', '9999.to_come')"
        )
        connection.execute("drop function switchboard.sweep_age()")
    with pytest.raises(MigrateError, match=r"it has 9999\.to_come, which version .* does not know"):
        migrate(database, lambda _: None)
    assert "switchboard.sweep_age()" not in functions(database)
    assert not is_locked(database)


def is_locked(dsn: str) -> bool:
    """Whether yoyo's lock was left."""
    with psycopg.connect(dsn) as connection:
        return bool(connection.execute("select from switchboard_migrations.yoyo_lock").fetchall())


@pytest.mark.skipif(not THOROUGH, reason="every pair of releases: make chaos")
@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_each_release_migrates_those_that_it_says(
    old: Release, new: Release, clone: Make, programs: Callable[[Release], Program]
) -> None:
    dsn, fresh_one = clone(old), clone(new)
    programs(new).migrate(dsn)
    assert schema(dsn) == schema(fresh_one)
    assert functions(dsn).keys() == functions(fresh_one).keys()


@pytest.mark.skipif(not THOROUGH, reason="what the CHANGELOG says of more columns: make chaos")
def test_a_select_star_that_is_kept_prepared_needs_a_new_connection(clone: Make) -> None:
    dsn = clone(OLD[1])
    query: LiteralString = "select * from switchboard.list_todos(%s)"
    no_one = [str(uuid.uuid4())]
    with psycopg.connect(dsn, autocommit=True) as kept:
        kept.execute(query, no_one, prepare=True)
        migrate(dsn, lambda _: None)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="must not change result type"):
            kept.execute(query, no_one)
    with psycopg.connect(dsn, autocommit=True) as anew:
        anew.execute(query, no_one, prepare=True)
