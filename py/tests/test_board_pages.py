"""What SQL gives for each place and record of the board: every field of the examples, what the
templates take, and no more than a page may weigh. What is in it is db/tests/81 and 82."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Endpoint, Sql

from switchboard.board_render import Render

EXAMPLES = Path(__file__).parent / "board"
ASSETS = Path(__file__).parents[1] / "switchboard" / "static"
WEIGHT = 150_000
# Objects of which the product does not say what is in them, or says it elsewhere.
OPAQUE = {"policy", "before", "after", "verification", "headers"}
# Whole, with the frame; the shell adds these.
FRAME = {"csrf": "x" * 43, "live": False, "events": "/events?page=x", "flash": []}
HOSTILE = "<img src=x onerror=alert(1)> \N{RIGHT-TO-LEFT OVERRIDE}"


class Place:
    """A human with one of everything, or with as much as a page shows."""

    def __init__(self, db: Sql, many: int) -> None:
        self.db = db
        self.alpha = db.vend("alpha", ("inbox", "other"))
        self.beta = db.vend("beta", ("inbox",))
        for endpoint in (self.alpha, self.beta):
            self.grant(endpoint)
        self.many = [db.vend(f"place-{n}-{'x' * 40}") for n in range(many)]
        for endpoint in self.many[:30]:
            self.grant(endpoint)
            self.hook(endpoint)
            self.hook(endpoint)
            self.receiver(endpoint, "open", endpoint.slug)
        self.hook(self.alpha)
        self.receiver(self.alpha, "github", "wire")
        for _ in range(3):
            db.create(self.alpha, HOSTILE)
        db.rows("select switchboard.claim_next(%s, 'agent:alpha', '{inbox}')", self.alpha.id)
        self.budget()
        event = self.deliver("first" + HOSTILE * 400)
        db.rows("select switchboard.replay_event(%s, 'alpha', %s)", event, db.human)
        for n in range(min(many, 60)):
            self.deliver(f"{HOSTILE} {n}")
        self.event = event
        self.nudge()
        self.attach()

    def grant(self, endpoint: Endpoint) -> None:
        query = "select switchboard.set_grant(%s, null, null, 50, '{github,open}')"
        self.db.rows(query, endpoint.id)

    def hook(self, endpoint: Endpoint) -> None:
        query = "select switchboard.create_notify_hook(%s, %s, null, '\\x01')"
        self.db.rows(query, endpoint.id, f"https://hooks.example/wake/{'x' * 100}")

    def receiver(self, endpoint: Endpoint, kind: str, token: str) -> None:
        made = self.db.value(
            "select switchboard.create_webhook(%s, %s, 'inbox', '\\x01', sha256(%s))",
            endpoint.id,
            kind,
            token.encode(),
        )
        query = "select switchboard.add_webhook_route(%s, %s, 'beta')"
        self.db.rows(query, endpoint.id, made["webhook_id"])
        query = "select switchboard.rotate_webhook(%s, %s, '\\x02', sha256(%s))"
        self.db.rows(query, endpoint.id, made["webhook_id"], (token + " new").encode())

    def budget(self) -> None:
        window = {"period": "day", "tz": "Europe/Warsaw", "start": "00:00"}
        limits = {"max_in_flight": 1, "max_claims_per_window": 4, "window": window}
        for policy in (limits, {**limits, "max_in_flight": 2}):
            query = "select switchboard.set_admission_policy(%s, 'inbox', %s, %s)"
            self.db.rows(query, self.alpha.id, json.dumps(policy), self.db.human)
        self.db.rows("select switchboard.claim_next(%s, 'agent:alpha', '{inbox}')", self.alpha.id)

    def deliver(self, body: str) -> str:
        answer = self.db.value(
            "select switchboard.receive_delivery(sha256('wire'), null, 'push', %s, %s,"
            " 'text/plain', null, %s)",
            json.dumps({"x-evil": HOSTILE * 5}),
            body.encode(),
            json.dumps({"scheme": "github", "secret": "current", "signed_at": 1}),
        )
        todo = answer["todos"][0]["id"]
        return str(self.db.value("select event_id from switchboard.todos where id = %s", todo))

    def nudge(self) -> None:
        query = (
            "insert into switchboard.queue_stall_nudges"
            " (endpoint_id, queue, nudges, last_nudged_at)"
            " select e.id, 'inbox', 2, now() from switchboard.endpoints e"
        )
        self.db.rows(query)

    def attach(self) -> None:
        sessions = [{"client": None, "age": 3, "stream": True}, {"client": "claude 1", "age": 1}]
        query = "select switchboard.note_presence(gen_random_uuid(), %s, array[%s])"
        self.db.rows(query, json.dumps({self.alpha.id: sessions}), self.alpha.id)

    def pages(self) -> dict[str, dict[str, str]]:
        """Each page with what it is asked."""
        return {
            "endpoints": {},
            "endpoint": {"slug": "alpha"},
            "receivers": {},
            "hooks": {},
            "deliveries": {},
            "delivery": {"id": self.event},
            "budget": {"slug": "alpha", "queue": "inbox"},
            "health": {},
        }

    def page(self, name: str, human: Any = None, **asked: str) -> dict[str, Any]:
        query = "select switchboard.board_page(%s, %s, %s)"
        document = self.db.value(query, human or self.db.human, name, json.dumps(asked))
        assert isinstance(document, dict)
        return document


def lacks(example: Any, given: Any, path: str = "") -> list[str]:
    """Where a document has not the fields, or other kinds of values, than the example."""
    if path.rpartition(".")[2] in OPAQUE or example is None or given is None:
        return []
    if isinstance(example, dict):
        if not isinstance(given, dict):
            return [f"{path}: no object"]
        missing = [f"{path}.{key}" for key in example if key not in given]
        pairs = [(key, value, given[key]) for key, value in example.items() if key in given]
        return missing + [each for key, a, b in pairs for each in lacks(a, b, f"{path}.{key}")]
    if isinstance(example, list):
        if not isinstance(given, list):
            return [f"{path}: no list"]
        return [e for a in example for b in given for e in lacks(a, b, f"{path}.[]")]
    numbers = isinstance(example, int | float) and not isinstance(example, bool)
    kind = (int, float) if numbers else type(example)
    if not isinstance(given, kind) or (numbers and isinstance(given, bool)):
        return [f"{path}: {given!r}"]
    return []


def empty(example: Any, given: Any, path: str = "") -> list[str]:
    """Lists of which nothing was seen, so that their rows were not compared."""
    if isinstance(example, dict) and isinstance(given, dict):
        return [e for key in example for e in empty(example[key], given.get(key), f"{path}.{key}")]
    if isinstance(example, list) and example and isinstance(given, list):
        return [e for b in given[:1] for e in empty(example[0], b, path)] if given else [path]
    return []


def test_every_field_of_the_examples_is_there(db: Sql) -> None:
    place = Place(db, 0)
    for name, asked in place.pages().items():
        example = json.loads((EXAMPLES / f"{name}.json").read_text())
        given = place.page(name, **asked)
        assert lacks(example, given) == [], name
        assert empty(example, given) == [], name


def test_a_missing_field_would_be_seen() -> None:
    example = {"a": [{"b": 1, "c": None}], "d": "x"}
    assert lacks(example, {"a": [{"c": 2}], "d": "x"}) == [".a.[].b"]
    assert lacks(example, {"a": [{"b": True, "c": 2}], "d": 1}) == [".a.[].b: True", ".d: 1"]
    assert empty(example, {"a": [], "d": "x"}) == [".a"]


@pytest.mark.parametrize("many", [0, 60])
def test_the_templates_take_what_sql_gives_and_pages_stay_light(db: Sql, many: int) -> None:
    place = Place(db, many)
    render = Render()
    assets = sum(path.stat().st_size for path in ASSETS.iterdir() if path.suffix in (".css", ".js"))
    for name, asked in place.pages().items():
        text = bytes(render.page(name, place.page(name, **asked) | FRAME).body)
        assert b"<img src=x" not in text, name
        assert len(text) + assets < WEIGHT, (name, len(text))


def test_an_endpoint_with_as_much_as_it_may_have_stays_light(db: Sql) -> None:
    queues = tuple(f"queue-{n}-{'x' * 40}" for n in range(32))
    place = Place(db, 31)
    full = db.vend("full", ("inbox", *queues[1:]))
    place.grant(full)
    for n in range(30):
        place.receiver(full, "open", f"full {n}")
    for _ in range(5):
        place.hook(full)
    db.rows(
        "select switchboard.create_todo(%s, q, %s)"
        " from unnest(%s::text[]) q, generate_series(1, 70)",
        full.id,
        HOSTILE * 5,
        list(queues[1:]),
    )
    db.rows("select switchboard.claim_batch(%s, 'agent:full', 100)", full.id)
    sessions = [{"client": "x" * 80, "age": n, "stream": True} for n in range(256)]
    query = "select switchboard.note_presence(gen_random_uuid(), %s)"
    db.rows(query, json.dumps({full.id: sessions}))
    assets = sum(path.stat().st_size for path in ASSETS.iterdir() if path.suffix in (".css", ".js"))
    document = place.page("endpoint", slug="full")
    assert len(document["sessions"]) == 50
    assert len(document["receivers"]) == 20
    size = len(bytes(Render().page("endpoint", document | FRAME).body))
    assert size + assets < WEIGHT, size


def test_a_human_with_nothing_has_every_page(db: Sql) -> None:
    db.vend("alpha")
    query = "select id from switchboard.create_human('Nobody')"
    nobody, place = db.value(query), Place.__new__(Place)
    place.db = db
    for name in ("exchange", "endpoints", "receivers", "deliveries", "hooks", "health"):
        document = place.page(name, nobody)
        assert "alpha" not in json.dumps(document), name
        assert Render().page(name, document | FRAME).status_code == 200
