"""The case that the stall nudge is for, as `make demo-stall` plays it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from switchboard import demo_stall
from switchboard.errors import Problem
from switchboard.signing import sign


def test_the_reported_case_of_spec_0038(tmp_path: Path) -> None:
    env = {**os.environ, "SWITCHBOARD_DATA": str(tmp_path / "untouched"), "TMPDIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-m", "switchboard", "demo", "--stall"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert [line for line in run.stdout.splitlines() if line[:1].isdigit()][-1][:2] == "7."
    assert run.stdout.count("completed it and exited") == 3
    assert run.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_what_goes_another_way_is_refused() -> None:
    with pytest.raises(Problem, match=r"The todos left: expected 1, found 2\."):
        demo_stall._expect("todos left", 2, 1)


def test_the_launcher_starts_one_at_a_time_and_only_for_genuine_calls() -> None:
    started: list[str] = []
    consumer = demo_stall.Consumer()

    def work(todo_id: str) -> str:
        started.append(todo_id)
        assert consumer.turns.acquire(timeout=10)
        return todo_id

    launcher = demo_stall.Launcher(work, "whsec_c2VjcmV0")

    def call(number: int, secret: bytes = b"whsec_c2VjcmV0") -> Any:
        headers = sign(f"msg_{number}", 1, b"{}", [secret])
        return launcher.take(headers, {"todo_id": str(number), "reason": "created"}, b"{}")

    assert call(1)
    assert call(2)
    assert not call(3, b"whsec_b3RoZXI=")
    consumer.turns.release()
    demo_stall.wait(lambda: launcher.results == ["1"], "the first one")
    consumer.turns.release()
    assert call(4)
    demo_stall.wait(lambda: launcher.results == ["1", "4"], "the next one")
    assert (started, len(launcher.reasons)) == (["1", "4"], 3)
