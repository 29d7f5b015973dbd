"""What a gateway remembers of receivers, and how fast it hears that it is no longer so."""

import asyncio
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Served, until
from intake_kit import BODY, SIGNED, Receiver, counts, set_clock, vend

from switchboard import receiver_cache
from switchboard.db import Database
from switchboard.receiver_cache import ReceiverCache
from switchboard.secrets import Keyring, digest

FORGED = {"x_hub_signature_256": "sha256=" + "0" * 64}
Asked = Callable[[], list[str]]


@pytest.fixture
def served(serve) -> Served:
    """A gateway that forgets nothing by the time alone."""
    return serve(auth_cache=60.0)


@pytest.fixture
def receiver(served, db) -> Receiver:
    made = Receiver(served, vend(db, "alpha"))
    served.wait_told(db)
    return made


@pytest.fixture
def asked(monkeypatch) -> Iterator[Asked]:
    """Which functions a gateway called for deliveries since this was last asked."""
    statements: list[str] = []
    row = Database.row

    async def noted(self, query, params=(), **options):
        statements.append(query)
        return await row(self, query, params, **options)

    monkeypatch.setattr(Database, "row", noted)

    def since() -> list[str]:
        found = [q.split(".")[1].split("(")[0] for q in statements]
        statements.clear()
        return [name for name in found if name in ("webhook_for", "receive_delivery")]

    return since


@pytest.fixture
def deaf(monkeypatch) -> None:
    """Nothing is heard on the control channel."""
    monkeypatch.setattr(ReceiverCache, "drop", lambda *_: None)


def test_a_delivery_to_a_known_receiver_is_one_round_trip(receiver: Receiver, asked: Asked) -> None:
    assert receiver.send().status_code == 202
    asked()
    for _ in range(3):
        assert receiver.send().status_code == 202
    assert asked() == ["receive_delivery"] * 3
    receiver.post(BODY, {})
    assert asked() == [], "without a signature nothing is asked at all"


def test_a_deleted_receiver_takes_nothing_though_it_is_remembered(
    deaf: None, receiver: Receiver, asked: Asked, db
) -> None:
    assert receiver.send().status_code == 202
    db.rows("select switchboard.delete_webhook(%s, %s)", receiver.endpoint.id, receiver.id)
    asked()
    gone = receiver.send()
    assert (gone.status_code, gone.json()["code"]) == (404, "not_found")
    assert asked() == ["receive_delivery"]
    assert receiver.send().content == gone.content, "as any unknown address"
    assert asked() == ["webhook_for"], "it is forgotten"
    assert receiver.send(**FORGED).status_code == 404
    assert db.value("select count(*) from switchboard.events") == 1
    until(lambda: counts(db).get(("", "refused", "unknown")) == 3, "they are counted")


def test_a_forgery_for_a_deleted_receiver_is_404_too(deaf: None, receiver: Receiver, db) -> None:
    assert receiver.send().status_code == 202
    receiver.session.call("delete_webhook", webhook_id=receiver.id)
    assert receiver.send(**FORGED).status_code == 404


@pytest.mark.parametrize("source_type", SIGNED)
def test_a_rotation_just_made_is_looked_up_before_anything_is_refused(
    deaf: None, served, db, asked: Asked, source_type: str
) -> None:
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    assert receiver.send().status_code == 202
    turned = receiver.rotate()
    asked()
    assert receiver.send(secret=turned["signing_secret"]).status_code == 202
    assert asked() == ["webhook_for", "receive_delivery"]
    assert receiver.send(secret=turned["signing_secret"]).status_code == 202
    assert asked() == ["receive_delivery"]
    assert receiver.send(secret="neither").status_code == 401
    assert asked() == ["webhook_for"], "once"


def test_forgeries_above_the_rate_ask_nothing(serve, db, asked: Asked) -> None:
    served = serve(failure_rate=0.01, failure_burst=2, auth_cache=60.0)
    receiver = Receiver(served, vend(db, "alpha"))
    served.wait_told(db)
    assert receiver.send().status_code == 202
    asked()
    assert [receiver.send(**FORGED).status_code for _ in range(2)] == [401, 401]
    assert asked() == ["webhook_for"] * 2
    assert [receiver.send(**FORGED).status_code for _ in range(3)] == [429] * 3
    assert asked() == []


def test_the_control_channel_ends_what_is_remembered(receiver: Receiver, asked: Asked, db) -> None:
    """The secret is changed behind the back of all functions, and said to be."""
    assert receiver.send().status_code == 202
    sealed = Keyring(receiver.served.settings.secret_keys).seal(b"another")
    db.rows("update switchboard.endpoint_webhooks set sealed_secret = %s", sealed)
    assert receiver.send().status_code == 202, "remembered"
    db.rows("select pg_notify('switchboard_control', %s)", receiver.endpoint.id)
    until(lambda: receiver.send().status_code == 401, "the old secret is forgotten")
    assert receiver.send(secret="another").status_code == 202


def test_a_note_about_another_endpoint_changes_nothing(
    receiver: Receiver, asked: Asked, db, monkeypatch
) -> None:
    assert receiver.send().status_code == 202
    heard: list[str | None] = []
    drop = ReceiverCache.drop

    def noted(self, endpoint_id: str | None = None) -> None:
        drop(self, endpoint_id)
        heard.append(endpoint_id)

    monkeypatch.setattr(ReceiverCache, "drop", noted)
    asked()
    other = vend(db, "beta").id
    db.rows("select pg_notify('switchboard_control', %s)", other)
    until(lambda: other in heard, "it is heard")
    assert receiver.send().status_code == 202
    assert asked() == ["receive_delivery"]


def test_a_listener_that_lost_its_connection_counts_as_a_change(
    receiver: Receiver, asked: Asked, db
) -> None:
    assert receiver.send().status_code == 202
    asked()
    assert db.value(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity"
        " where application_name = 'switchboard' and datname = current_database()"
    )

    def looked_up() -> bool:
        receiver.send()
        return "webhook_for" in asked()

    until(looked_up, "it is looked up again")
    receiver.served.wait_listening()
    assert receiver.send().status_code == 202


def test_an_address_that_comes_to_be_is_served_at_once(deaf: None, served, db) -> None:
    """That there is nothing is not remembered."""
    receiver = Receiver(served, vend(db, "alpha"), "open")
    made = receiver.token
    receiver.url = receiver.url.replace(made, "to-come")
    assert receiver.send().status_code == 404
    db.rows("update switchboard.endpoint_webhooks set token_digest = %s", digest("to-come"))
    assert receiver.send().status_code == 202


def test_time_goes_on_while_a_receiver_is_remembered(served, db) -> None:
    """By the database's clock when it was asked, and as much later as it is here."""
    receiver = Receiver(served, vend(db, "alpha"), "stripe")
    set_clock(db, 2_000_000_000)
    assert receiver.send(at=2_000_000_000).status_code == 202
    assert receiver.send(at=2_000_000_300).status_code == 202
    assert receiver.send().status_code == 401, "the time of this machine"
    set_clock(db, None)


class FakeDatabase:
    """Answers every look-up, but for those of unknown addresses."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.before_answer: Callable[[], None] = lambda: None

    async def value(self, query: str, params: tuple[bytes], **_: Any) -> Any:
        self.asked.append(params[0])
        await asyncio.sleep(0)
        self.before_answer()
        if params[0] == b"unknown":
            return None
        named = {"webhook_id": params[0].decode(), "endpoint_id": params[0].decode()[0]}
        return {**named, "source_type": "github", "sealed_secrets": ["00ff"], "now": 100}


@pytest.fixture
def clock(monkeypatch) -> types.SimpleNamespace:
    """The clock of the module; it stands until a test moves it."""
    time = types.SimpleNamespace(at=1000.0)
    time.monotonic = lambda: time.at
    monkeypatch.setattr(receiver_cache, "time", time)
    return time


def cache(keep: float = 5.0, most: int = 3) -> tuple[ReceiverCache, FakeDatabase]:
    database = FakeDatabase()
    made: Any = database
    return ReceiverCache(made, keep, most), database


@pytest.mark.anyio
async def test_an_answer_is_kept_for_a_while_and_its_time_goes_on(clock) -> None:
    kept, _ = cache()
    assert kept.get(b"a1") is None
    found = await kept.look_up(b"a1")
    assert found is not None
    assert (found.sealed, found.now, found.time()) == ([b"\x00\xff"], 100, 100)
    clock.at += 4.9
    assert kept.get(b"a1") is found
    assert found.time() == pytest.approx(104.9)
    clock.at += 0.2
    assert kept.get(b"a1") is None


@pytest.mark.anyio
async def test_nothing_is_kept_with_a_time_of_nothing_and_of_unknown_addresses(clock) -> None:
    kept, _ = cache(keep=0.0)
    assert await kept.look_up(b"a1")
    assert kept.get(b"a1") is None
    kept, _ = cache()
    for _ in range(3):
        assert await kept.look_up(b"unknown") is None
    assert (kept.get(b"unknown"), len(kept)) == (None, 0)


@pytest.mark.anyio
async def test_the_one_asked_for_longest_ago_is_forgotten(clock) -> None:
    kept, _ = cache(most=3)
    for name in (b"a1", b"a2", b"a3"):
        await kept.look_up(name)
    await kept.look_up(b"a1")
    await kept.look_up(b"a4")
    assert len(kept) == 3
    assert [kept.get(name) is not None for name in (b"a1", b"a2", b"a3", b"a4")] == [1, 0, 1, 1]


@pytest.mark.anyio
async def test_what_was_asked_before_a_drop_is_used_and_not_kept(clock) -> None:
    kept, database = cache()
    database.before_answer = lambda: kept.drop("z")
    assert await kept.look_up(b"a1")
    assert kept.get(b"a1") is None


@pytest.mark.anyio
async def test_a_drop_is_about_one_endpoint_or_all_and_leaves_who_is_proven(clock) -> None:
    kept, _ = cache()
    for name in (b"a1", b"a2", b"b1"):
        await kept.look_up(name)
        kept.prove(name)
    kept.drop("a")
    assert [kept.get(name) is not None for name in (b"a1", b"a2", b"b1")] == [0, 0, 1]
    kept.drop(None)
    assert kept.get(b"b1") is None
    assert all(kept.is_proven(name) for name in (b"a1", b"a2", b"b1"))
    await kept.look_up(b"a1")
    assert kept.is_proven(b"a1")
    kept.forget(b"a1")
    assert not kept.is_proven(b"a1")
    kept.prove(b"never seen")
    assert not kept.is_proven(b"never seen")
