"""What a form's fields become: arguments of an operation, as JSON text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchboard.board_forms import FORMS, blank, document, filled, policy, read_fields
from switchboard.errors import Problem

BY_PATH = {form.path: form for form in FORMS}


def body(path: str, sent: str) -> object:
    return json.loads(BY_PATH[path].body(read_fields(sent.encode())))


@pytest.mark.parametrize(
    ("path", "sent", "arguments"),
    [
        ("/todos/{id}/claim", "csrf=x&lease_ttl_seconds=", {}),
        ("/todos/{id}/claim", "lease_ttl_seconds=+600+", {"lease_ttl_seconds": 600}),
        ("/todos/{id}/claim", "lease_ttl_seconds=soon", {"lease_ttl_seconds": "soon"}),
        ("/todos/{id}/claim", "lease_ttl_seconds=007", {"lease_ttl_seconds": 7}),
        ("/todos/{id}/complete", "result=&force=1", {"force": True}),
        ("/todos/{id}/complete", "result=%7B%22a%22%3A1%7D", {"result": {"a": 1}}),
        ("/todos/{id}/complete", "result=all+fine%0D%0Aindeed", {"result": "all fine\nindeed"}),
        ("/todos/{id}/fail", "result=null&force=yes", {"result": None}),
        ("/todos/{id}/retry", "csrf=x", {}),
        (
            "/endpoints",
            "slug=reviewer&queues=a%2C+b%0D%0Ac&verb=claim&verb=get_todo&webhook_max=2&days=30",
            {
                "slug": "reviewer",
                "queues": ["a", "b", "c"],
                "verbs": ["claim", "get_todo"],
                "webhook_max": 2,
                "expires_in_days": 30,
            },
        ),
        # Nothing ticked is a grant without verbs, not the default one.
        (
            "/endpoints/{slug}/grant",
            "queues=a&webhook_max=1",
            {"queues": ["a"], "verbs": [], "webhook_max": 1},
        ),
        ("/endpoints/{slug}/rotate", "grace_seconds=60", {"grace_seconds": 60}),
        ("/endpoints/{slug}/revoke", "confirm=reviewer", {}),
        ("/deliveries/{id}/replay", "endpoint=", {}),
        ("/deliveries/{id}/replay", "endpoint=beta", {"endpoint": "beta"}),
    ],
)
def test_arguments(path: str, sent: str, arguments: object) -> None:
    assert body(path, sent) == arguments


def test_numbers_of_a_result_stay_as_they_were_written() -> None:
    written = '{"exact": 1234567890.12345678901234567890, "big": 1e400}'
    assert document([f" {written}\n"]) == written


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a":', "[" * 5000])
def test_what_is_no_json_is_a_text(text: str) -> None:
    assert json.loads(document([text]) or "") == text


@given(st.text(max_size=200))
def test_any_text_is_a_document(text: str) -> None:
    made = document([text])
    assert made is None if not text.strip() else json.loads(made or "") is not ...


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        ("max_in_flight=3&period=day&tz=UTC", {"max_in_flight": 3}),
        (
            "max_in_flight=&max_claims_per_window=40&period=day&tz=UTC&start=&weekday=Mon",
            {"max_claims_per_window": 40, "window": {"period": "day", "tz": "UTC"}},
        ),
        (
            "max_claims_per_window=0&period=week&tz=Europe%2FWarsaw&start=06%3A00&weekday=Fri",
            {
                "max_claims_per_window": 0,
                "window": {
                    "period": "week",
                    "tz": "Europe/Warsaw",
                    "start": "06:00",
                    "weekday": "Fri",
                },
            },
        ),
        ("max_in_flight=lots", {"max_in_flight": "lots"}),
        ("", {}),
    ],
)
def test_a_budget(sent: str, wanted: object) -> None:
    assert json.loads(policy(read_fields(sent.encode()))) == wanted


@pytest.mark.parametrize("sent", [b"a=%ff", b"a=\xff", b"&".join([b"a=1"] * 300)])
def test_a_body_that_is_no_form_is_refused(sent: bytes) -> None:
    with pytest.raises(Problem) as refused:
        read_fields(sent)
    assert refused.value.code == "invalid_argument"


def test_a_refused_form_keeps_what_was_typed() -> None:
    shown = {"verbs": [{"name": "claim", "default": True}, {"name": "retry", "default": False}]}
    assert blank("endpoints", shown)["verbs"] == ["claim"]
    problem = Problem("invalid_argument", "slug must be short", {"field": "slug"})
    form = filled("endpoints", read_fields(b"slug=Nope&queues=a&verb=retry"), shown, problem)
    assert (form["slug"], form["queues"], form["verbs"]) == ("Nope", "a", ["retry"])
    assert (form["field"], form["error"]) == ("slug", "slug must be short")


def test_every_form_goes_back_to_a_page_of_ours() -> None:
    for form in FORMS:
        values = dict.fromkeys(("id", "slug", "queue"), "x")
        assert form.back.format(**values).startswith("/")
        assert form.path.startswith("/")
