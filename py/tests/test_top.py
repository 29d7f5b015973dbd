"""`switchboard top`: what it says, at every width, and what its keys do."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from conftest import Sql
from rich.console import Console

from switchboard import cli, cli_top
from switchboard.top_screen import Look, View, age, frame, number, ordered, rate

NOW = datetime(2026, 11, 30, 6, 30, tzinfo=UTC)
NAMES = ("endpoint", "queue", "waiting", "held", "parked", "dead")


def row(**changes: Any) -> dict[str, Any]:
    """A queue, as queue_overview() answers it."""
    quiet: dict[str, Any] = {
        "endpoint": "agent",
        "queue": "inbox",
        "granted": True,
        **dict.fromkeys(("waiting", "held", "parked", "dead", "created", "done"), 0),
        "capped": False,
        "oldest_waiting_at": None,
        **dict.fromkeys(("status", "used", "max_claims_per_window", "in_flight"), None),
        **dict.fromkeys(("max_in_flight", "window_resets_at", "next_eligible_at", "nudges"), None),
        "seen_at": NOW,
    }
    return {**quiet, **changes}


def look(*rows: dict[str, Any], sweep_age: float | None = 4.0) -> Look:
    return Look([cli_top.with_rates(one, None) for one in rows], NOW, sweep_age)


def drawn(seen: Look, width: int = 80, height: int | None = None, view: View | None = None) -> str:
    console = Console(file=StringIO(), width=width, highlight=False)
    console.print(frame(seen, view or View(), width, height))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


BUSY = row(
    queue="github",
    waiting=1234,
    held=3,
    parked=2,
    dead=7,
    oldest_waiting_at=NOW - timedelta(hours=3),
    status="window_exhausted",
    used=100,
    max_claims_per_window=100,
    in_flight=3,
    max_in_flight=5,
    next_eligible_at=NOW + timedelta(minutes=90),
    nudges=4,
)


def test_a_frame_says_in_words_what_is_stuck() -> None:
    text = drawn(look(row(), BUSY), 140)
    (line,) = [line for line in text.splitlines() if "github" in line]
    for word in ("agent", "1234", "3h", "STALLED 4", "100/100", "held 3/5", "spent for 1h"):
        assert word in line, line
    assert "waiting 1234  deferred 1234  held 3  parked 2  dead 7" in text
    assert "06:30:00 UTC" in text
    assert "swept 4s ago  stalled queues 1" in text


@pytest.mark.parametrize("width", [40, 60, 72, 80, 100, 140, 300])
@pytest.mark.parametrize("height", [5, 12, 40])
def test_no_line_is_wider_than_the_terminal_and_no_frame_higher(width: int, height: int) -> None:
    long = row(endpoint="e" * 63, queue="q" * 63, waiting=100_000, capped=True)
    text = drawn(look(*[long] * 30, BUSY), width, height)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 8)


def test_two_queues_of_a_long_endpoint_can_be_told_apart_at_80_columns() -> None:
    rows = [row(endpoint="a-rather-long-name-of-an-agent", queue=name) for name in ("one", "two")]
    text = drawn(look(*rows))
    assert "one " in text
    assert "two " in text


def test_what_others_wrote_does_not_steer_the_terminal() -> None:
    text = drawn(look(row(endpoint="a\x1b[2Jb", queue="[bold]c")))
    assert "\x1b[2J" not in text
    assert "[bold]c" in text


@pytest.mark.parametrize(("sweep_age", "said"), [(None, "never ran"), (91.0, "LATE")])
def test_late_sweeps_are_named(sweep_age: float | None, said: str) -> None:
    assert said in drawn(look(row(), sweep_age=sweep_age))
    assert "LATE" not in drawn(look(row(), sweep_age=90.0))


def test_nothing_at_all_says_what_to_do() -> None:
    assert "endpoint vend" in drawn(Look([], None, None))


def test_rates_are_differences_by_the_clock_of_the_database() -> None:
    first = row(created=10, done=5)
    later = row(created=30, done=6, seen_at=NOW + timedelta(seconds=4))
    seen = cli_top.with_rates(later, first)
    assert (seen["in_per_second"], seen["done_per_second"]) == (5.0, 0.25)
    assert cli_top.with_rates(first, None)["in_per_second"] is None
    assert cli_top.with_rates(first, first)["in_per_second"] is None


def test_order() -> None:
    rows = look(row(queue="b", waiting=5), row(queue="a", waiting=9), row(queue="c")).rows
    by = lambda *how: "".join(one["queue"] for one in ordered(rows, *how))  # noqa: E731
    assert (by("queue", False), by("queue", True)) == ("abc", "cba")
    assert (by("waiting", False), by("waiting", True)) == ("abc", "cba")
    assert by("oldest", False) == "bac"


def test_keys() -> None:
    view, seen = View(), look(*[row(queue=f"q{n:02}") for n in range(20)])
    for key in ("right", "down", "down", "r"):
        view.press(key)
    text = drawn(seen, 80, 12, view)
    assert (view.sort, view.skipped, view.is_reversed) == (1, 2, True)
    assert "2 above, 13 below" in text
    for _ in range(40):
        view.press("down")
    drawn(seen, 80, 12, view)
    assert view.skipped == 15
    for key in ("left", "left", "up", "p"):
        view.press(key)
    assert (view.sort, view.skipped, view.is_paused, view.is_over) == (8, 14, True, False)
    assert "STANDING STILL" in drawn(seen, 80, 12, view)
    view.press("x")
    view.press("q")
    assert view.is_over


def test_what_a_terminal_sends_is_read_as_keys() -> None:
    ours, theirs = os.pipe()
    pressed = cli_top._read_keys(ours, 0.01)
    assert next(pressed) is None
    os.write(theirs, b"\x1b[A\x1bOCr\t\x1b[Zq")
    assert [next(pressed) for _ in range(6)] == ["up", "right", "r", "tab", "", "q"]
    os.close(theirs)
    assert next(pressed) == "q"
    os.close(ours)


def test_numbers_are_short() -> None:
    assert [number(n) for n in (0, 9999, 10_000, 123_456, 3_200_000)] == [
        "0",
        "9999",
        "10k",
        "123k",
        "3M",
    ]
    assert number(100_000, True) == "100k+"
    assert [rate(n) for n in (0, 0.25, 3.14, 99.96, 250.4)] == ["0", "0.2", "3.1", "100.0", "250"]
    assert [age(n) for n in (-1, 59, 60, 3599, 86_399, 1e6)] == [
        "0s",
        "59s",
        "1m",
        "59m",
        "23h",
        "11d",
    ]


# As it is used.


@pytest.fixture
def agent(db: Sql, database: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SWITCHBOARD_DATABASE_URL", database)
    agent = db.vend("agent", queues=("inbox", "reviews"))
    for number_ in range(3):
        db.create(agent, f"todo {number_}")
    db.vend("other")
    return agent


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["top", "--every", "0.2", *arguments])
    return int(ended.value.code or 0)


def test_once_prints_one_frame(agent: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--once") == 0
    text = capsys.readouterr().out
    assert text.count("switchboard") == 1
    assert "reviews" in text
    assert "\x1b" not in text
    assert run("--once", "-e", "other") == 0
    assert "reviews" not in capsys.readouterr().out
    assert run("-e", "nobody") == 1


def test_json_is_one_object(agent: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "-e", "agent") == 0
    told = json.loads(capsys.readouterr().out)
    assert [(q["queue"], q["waiting"]) for q in told["queues"]] == [("inbox", 3), ("reviews", 0)]
    assert told["queues"][0]["in_per_second"] == 0


def test_no_endpoint_is_no_fault(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHBOARD_DATABASE_URL", database)
    assert run("--once") == 0
    assert "endpoint vend" in capsys.readouterr().out


class Terminal:
    """`switchboard top` in a terminal of its own."""

    def __init__(self) -> None:
        self.seen = ""
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(sys.executable, [sys.executable, "-m", "switchboard", "top", "--every", "0.2"])
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))

    def wait(self, text: str) -> None:
        end = time.monotonic() + 30
        while text not in self.seen:
            assert time.monotonic() < end, self.seen[-3000:]
            if select.select([self.file], [], [], 0.1)[0]:
                self.seen += os.read(self.file, 65536).decode(errors="replace")

    def press(self, text: str) -> None:
        self.seen = ""
        os.write(self.file, text.encode())

    def ended(self) -> int:
        """Its exit status, when what it still says was read."""
        try:
            while data := os.read(self.file, 65536):
                self.seen += data.decode(errors="replace")
        except OSError:
            pass  # that is how Linux says that the other end is closed
        os.close(self.file)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(agent: Any) -> Iterator[Callable[[], Terminal]]:
    started: list[Terminal] = []

    def start() -> Terminal:
        started.append(Terminal())
        return started[-1]

    yield start
    for one in started:
        try:
            os.kill(one.pid, 9)
            os.waitpid(one.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # it has ended


def test_it_is_live_and_leaves_the_terminal_as_it_was(
    terminal: Callable[[], Terminal], db: Sql, agent: Any
) -> None:
    screen = terminal()
    screen.wait("inbox")
    screen.seen = ""
    for number_ in range(74):
        db.create(agent, f"more {number_}")
    screen.wait(" 77\x1b")
    screen.press("p")
    screen.wait("STANDING STILL")
    screen.press("q")
    assert screen.ended() == 0
    assert "\x1b[?1049l" in screen.seen  # back from the other screen
    assert "\x1b[?25h" in screen.seen  # and the cursor is there


def test_a_database_that_goes_away_ends_it(terminal: Callable[[], Terminal], db: Sql) -> None:
    screen = terminal()
    screen.wait("inbox")
    db.rows(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
        " and pid <> pg_backend_pid()"
    )
    assert screen.ended() == 1
    assert "unavailable" in screen.seen
    assert "Traceback" not in screen.seen
