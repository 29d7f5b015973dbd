"""Counting what is turned away: in batches, kept when they fail, complete at the end."""

import asyncio
import json
from collections import Counter
from typing import Any

import psycopg
import pytest
from conftest import logged, until
from intake_kit import BODY, SIGNED, TRUST, TYPES, Receiver, counts, vend

from switchboard import tally as module
from switchboard.receiver_cache import Receiver as Known
from switchboard.senders import SENDERS
from switchboard.tally import Kind, Tally

MISSING = Kind("refused", "missing", "github", "signed")


class FakeDatabase:
    """Adds up what it is handed; fails while ``error`` says so."""

    def __init__(self) -> None:
        self.counted: Counter[Kind] = Counter()
        self.calls = 0
        self.begun: asyncio.Queue[None] = asyncio.Queue()
        self.error: BaseException | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def value(self, query: str, params: tuple[str], **_: Any) -> None:
        assert "count_deliveries" in query
        self.calls += 1
        self.begun.put_nowait(None)
        await self.gate.wait()
        if self.error:
            raise self.error
        for row in json.loads(params[0]):
            n = row.pop("n")
            self.counted[Kind(**row)] += n


@pytest.fixture
def fake() -> FakeDatabase:
    return FakeDatabase()


@pytest.fixture
def tally(fake: Any) -> Tally:
    return Tally(fake)


@pytest.mark.anyio
async def test_many_are_one_call_and_none_is_none(tally: Tally, fake: FakeDatabase) -> None:
    await tally.flush()
    assert fake.calls == 0
    for _ in range(1000):
        tally.add(MISSING)
        tally.add(Kind("limited"))
    await tally.flush()
    await tally.flush()
    assert fake.calls == 1
    assert fake.counted == {MISSING: 1000, Kind("limited"): 1000}


@pytest.mark.anyio
@pytest.mark.parametrize("error", [psycopg.OperationalError("secret"), RuntimeError("a fault")])
async def test_what_fails_is_kept_and_said_once(
    tally: Tally, fake: FakeDatabase, error: Exception, caplog
) -> None:
    fake.error = error
    for _ in range(3):
        tally.add(MISSING)
        await tally.flush()
    told = [record for record in caplog.records if record.name == "switchboard.tally"]
    if isinstance(error, psycopg.Error):
        assert len(told) == 1
        assert "secret" not in caplog.text
    fake.error = None
    await tally.flush()
    assert fake.counted == {MISSING: 3}


@pytest.mark.anyio
async def test_what_is_counted_during_a_hand_over_is_not_lost(
    tally: Tally, fake: FakeDatabase
) -> None:
    fake.gate.clear()
    tally.add(MISSING)
    first = asyncio.create_task(tally.flush())
    await fake.begun.get()
    tally.add(MISSING)
    second = asyncio.create_task(tally.flush())
    await asyncio.sleep(0)
    assert fake.calls == 1, "one at a time"
    fake.gate.set()
    await asyncio.gather(first, second)
    assert fake.counted == {MISSING: 2}


@pytest.mark.anyio
async def test_it_hands_over_by_itself_and_once_more_at_the_end(
    tally: Tally, fake: FakeDatabase, monkeypatch
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.0)
    tally.add(MISSING)
    running = asyncio.create_task(tally.run())
    async with asyncio.timeout(5):
        await fake.begun.get()
        fake.gate.clear()
        tally.add(MISSING)
        await fake.begun.get()
    tally.add(MISSING)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    fake.gate.set()
    await tally.close()
    assert fake.counted == {MISSING: 3}, "also what was under way; nothing twice"


@pytest.mark.anyio
async def test_the_end_does_not_wait_for_a_database_that_does_not_answer(
    tally: Tally, fake: FakeDatabase, monkeypatch
) -> None:
    monkeypatch.setattr(module, "LAST_SECONDS", 0.01)
    fake.gate.clear()
    tally.add(MISSING)
    async with asyncio.timeout(5):
        await tally.close()
    fake.gate.set()
    await tally.flush()
    assert fake.counted == {MISSING: 1}


def test_the_database_agrees_on_types_and_trust(db) -> None:
    rows = db.rows("select source_type, trust_mode from switchboard.source_types()")
    trust = {row["source_type"]: row["trust_mode"] for row in rows}
    assert trust == TRUST
    assert set(trust) == set(SENDERS)
    for source_type in trust:
        assert Known("w", "e", source_type, (), 0, 0).trust_mode == trust[source_type]


WHY = {
    "missing": {"signature": None},
    "malformed": {"signature": "nonsense"},
    "mismatch": {"secret": "another"},
    "stale": {"at": 1_000_000_000},
}


@pytest.mark.parametrize("source_type", SIGNED)
def test_every_reason_is_counted_and_logged_and_none_is_told(
    served, db, caplog, source_type: str
) -> None:
    caplog.set_level("INFO")
    receiver = Receiver(served, vend(db, "alpha"), source_type)
    timed = source_type in ("stripe", "slack", "standard", "cairn")
    answers, expected = set(), []
    for reason, how in WHY.items():
        if reason == "stale" and not timed:
            continue
        options: dict[str, Any] = dict(how)
        body = receiver.body("d-1", options.get("at"))
        headers = receiver.headers(
            body, "d-1", **{k: v for k, v in options.items() if v and k != "signature"}
        )
        if "signature" in how:
            name = next(name for name in headers if "signature" in name)
            headers.pop(name)
            headers |= {name: how["signature"]} if how["signature"] else {}
        refused = receiver.post(body, headers)
        assert refused.status_code == 401, reason
        answers.add((refused.content, str(sorted(refused.headers.items()))))
        expected.append(reason)
    assert len({content for content, _ in answers}) == 1
    lines = logged(caplog, "webhook.delivery", len(expected))
    assert [(line["outcome"], line["reason"]) for line in lines] == [
        ("unauthenticated", reason) for reason in expected
    ]
    wanted = {(source_type, "refused", reason): 1 for reason in expected}
    until(lambda: counts(db) == wanted, "each is counted")


def test_a_stopped_server_has_handed_over_everything(serve, db, monkeypatch) -> None:
    monkeypatch.setattr(module, "LAST_SECONDS", 10.0)
    served = serve()
    receivers = [Receiver(served, vend(db, f"e-{name}"), name) for name in TYPES]
    for receiver in receivers:
        twice = [(b"x-delivery-id", b"a"), (b"x-delivery-id", b"b")]
        assert receiver.post(BODY, twice).status_code == 401
    for receiver in receivers:
        receiver.session.http.close()
    served.sessions.clear()
    served.stop()
    found = counts(db)
    assert sum(found.values()) == len(TYPES)
    assert {provider for provider, _, _ in found} == set(TYPES)
