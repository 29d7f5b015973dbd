"""``switchboard top``: the queues, live in a terminal.

A frame is one call of ``queue_overview()``; rates are the difference of its counters between two
of them, by the database's clock. It holds one connection and asks only while it runs. The screen
is rich's; keys are read from the terminal by hand, since that is all there is to it.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from switchboard import printing
from switchboard.cli_database import Operator, operate
from switchboard.cli_health import OVERVIEW
from switchboard.cli_options import ENDPOINT, json_option, settings
from switchboard.cli_webhook import endpoint_id

if TYPE_CHECKING:
    from switchboard.top_screen import Look

Row = Mapping[str, Any]


@click.command()
@click.option("-e", "--endpoint", type=ENDPOINT, help="The queues of this endpoint only.")
@click.option(
    "--every",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Print one frame and end.")
@json_option
def top(endpoint: str | None, every: float, once: bool, as_json: bool) -> None:
    """Watch the queues: what waits, who holds what, how fast it goes, what is stuck.

    Keys: q ends, left and right choose the column to sort by, r turns the order around, up and
    down scroll, p stands still. Rates are between two looks; --once and --json look twice, too,
    and print the second: --every says how far apart they are.

    Example: switchboard top --once --every 5
    """
    with operate(settings()) as (operator, _):
        found = endpoint_id(operator, endpoint)
        slug = found and operator.value(
            "select slug from switchboard.list_endpoints() where endpoint_id = %s::uuid", [found]
        )
        looks = watch(operator, slug)
        first = next(looks)
        if once or as_json or not sys.stdout.isatty():
            time.sleep(every if first.rows else 0)
            seen = next(looks)
            if as_json:
                shown = {"sweep_age_seconds": seen.sweep_age, "queues": seen.rows}
                printing.result(shown, True, [])
            else:
                show(seen)
            return
        with keys() as pressed:
            live(looks, first, every, pressed)


def watch(operator: Operator, slug: str | None) -> Iterator[Look]:
    """Look, and look again, whenever the next one is asked for."""
    from switchboard.top_screen import Look  # rich costs what other commands need not pay

    before: dict[tuple[str, str], Row] = {}
    while True:
        rows = [row for row in operator.rows(OVERVIEW) if slug in (None, row["endpoint"])]
        age = operator.value("select extract(epoch from switchboard.sweep_age())::float8")
        shown = [with_rates(row, before.get((row["endpoint"], row["queue"]))) for row in rows]
        before = {(row["endpoint"], row["queue"]): row for row in rows}
        yield Look(shown, rows[0]["seen_at"] if rows else None, age)


def with_rates(row: Row, before: Row | None) -> dict[str, Any]:
    """A queue with what is derived: what is deferred, ages, and rates since ``before``."""
    oldest = row["oldest_waiting_at"]
    shown = {
        **row,
        "deferred": row["waiting"] if row["status"] not in (None, "open") else 0,
        "oldest_seconds": None if oldest is None else (row["seen_at"] - oldest).total_seconds(),
        "in_per_second": None,
        "done_per_second": None,
    }
    seconds = (row["seen_at"] - before["seen_at"]).total_seconds() if before else 0.0
    if before and seconds > 0:
        for name, counter in (("in_per_second", "created"), ("done_per_second", "done")):
            shown[name] = round(max(0, row[counter] - before[counter]) / seconds, 2)
    return shown


def show(seen: Look) -> None:
    """Print one frame."""
    from rich.console import Console

    from switchboard.top_screen import View, frame

    console = Console(file=sys.stdout, highlight=False)
    console.print(frame(seen, View(), console.width, None))


def live(looks: Iterator[Look], seen: Look, every: float, pressed: Iterator[str | None]) -> None:
    """Show frames until q is pressed."""
    from rich.console import Console
    from rich.live import Live

    from switchboard.top_screen import View, frame

    console, view = Console(highlight=False), View()
    due, drawn = time.monotonic() + every, None
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        while not view.is_over:
            if time.monotonic() >= due and not view.is_paused:
                seen, due = next(looks), time.monotonic() + every
            size = console.size
            if (shown := (seen.seen_at, seen.sweep_age, size, repr(view))) != drawn:
                screen.update(frame(seen, view, size.width, size.height), refresh=True)
                drawn = shown
            key = next(pressed)
            if key is not None:
                view.press(key)


ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}


@contextlib.contextmanager
def keys(wait: float = 0.25) -> Iterator[Iterator[str | None]]:
    """The keys that are pressed at the terminal, one by one; None when ``wait`` seconds passed."""
    import termios  # there is none on Windows
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield _read_keys(terminal, wait)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _read_keys(terminal: int, wait: float) -> Iterator[str | None]:
    while True:
        if not select.select([terminal], [], [], wait)[0]:
            yield None
            continue
        text = os.read(terminal, 64).decode(errors="replace")
        if not text:  # the terminal is gone
            yield "q"
        while text:
            if text.startswith(("\x1b[", "\x1bO")) and len(text) >= 3:
                yield ARROWS.get(text[2], "")
                text = text[3:]
            else:
                yield "tab" if text[0] == "\t" else text[0]
                text = text[1:]
