"""The whole queue against a plain-Python model (chaos_model.py), step by step, by hypothesis.

SWITCHBOARD_MODEL_SECONDS says how long it tries (60); SWITCHBOARD_MODEL_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections import Counter

import psycopg
import pytest
from chaos_machine import TimeIsOver
from chaos_queue import Queue
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.internal.conjecture import engine
from hypothesis.stateful import run_state_machine_as_test
from psycopg.rows import dict_row

SECONDS = float(os.environ.get("SWITCHBOARD_MODEL_SECONDS", "60"))
HYPOTHESIS = settings(
    max_examples=10**6,  # the time ends it
    stateful_step_count=60,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
# What every run of some length must have come by, or the machine tests less than it says.
WANTED = (
    "deduplicated",
    "claimed pending",
    "claimed claimed",
    "claimed failed",
    "more due than are looked at",
    "complete to done",
    "fail to failed parked",
    "fail to failed",
    "release to pending",
    "release to failed",
    "retried",
    "reaped to pending",
    "reaped to dead letter",
    "pruned",
)
ENOUGH_STEPS = 20_000


@pytest.mark.timeout(SECONDS + 200)
def test_the_database_does_what_the_model_says(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MAX_SHRINKING_SECONDS", 60)  # of a failure; five minutes are long
    number = int(os.environ.get("SWITCHBOARD_MODEL_SEED", random.randrange(10**6)))
    sys.stdout.write(f"to repeat: SWITCHBOARD_MODEL_SEED={number}\n")
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as connection:
        raise_marks_often(connection)
        parts = {"connection": connection, "until": time.monotonic() + SECONDS, "seen": Counter()}
        machine = type("Machine", (Queue,), parts)
        with pytest.raises(TimeIsOver):
            run_state_machine_as_test(seed(number)(machine), settings=HYPOTHESIS)
    seen = machine.seen
    sys.stdout.write(f"{dict(sorted(seen.items()))}\n")
    if seen["done"] > ENOUGH_STEPS:
        assert [name for name in WANTED if not seen[name]] == []


def raise_marks_often(connection: psycopg.Connection[dict[str, object]]) -> None:
    """A claim in 300 moves the low-water mark; here most do."""
    query = (
        "select pg_get_functiondef(p.oid) as text from pg_proc p"
        " where p.pronamespace = 'switchboard'::regnamespace and p.prosrc ~ 'random\\(\\) < '"
    )
    names = []
    for row in connection.execute(query).fetchall():
        text = str(row["text"])
        names += re.findall(r"FUNCTION switchboard\.(\w+)", text)
        connection.execute(re.sub(r"random\(\) < [0-9.]+", "random() < 0.6", text).encode())
    assert "claim_next" in names, "claims raise the mark in another way: teach raise_marks_often"
