"""The picture of ``switchboard top``: queues as a table, whatever the terminal's width.

It is a function of what was seen and of what the keys chose; ``cli_top`` looks and shows. Colour
only repeats what a word or a number says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from switchboard import printing

Row = Mapping[str, Any]

COUNTS = ("waiting", "deferred", "held", "parked", "dead")
SORTS = ("queue", *COUNTS, "oldest", "in", "done")
KEYS = "q end  ←→ sort  r reverse  ↑↓ scroll  p pause"
LONG = {**{name: name for name in SORTS}, "in": "in/s", "done": "done/s"}
SHORT = {
    **LONG,
    "waiting": "wait",
    "deferred": "defer",
    "parked": "park",
    "oldest": "old",
    "done": "out/s",
}
WIDEST, WIDE, NARROW = 150, 100, 72
LEFT_OUT = ("parked", "in", "done")  # of a narrow terminal
CAP = 100_000  # where queue_overview() stops counting
CHROME = 7  # lines of a frame that are no queue
LATE_SECONDS = 90
STYLES = {
    "waiting": "bold",
    "deferred": "yellow",
    "held": "cyan",
    "parked": "yellow",
    "dead": "red",
}
SHORT_STATUS = {
    "window_exhausted": "spent",
    "in_flight_full": "full",
    "paused": "paused",
    "admission_unavailable": "UNREADABLE",
}


@dataclass(frozen=True)
class Look:
    """What was seen at one time.

    Attributes:
        rows: one a queue, with rates.
        seen_at: by the database's clock; None when there is no queue.
        sweep_age: seconds, None: never.
    """

    rows: list[dict[str, Any]]
    seen_at: datetime | None
    sweep_age: float | None


@dataclass
class View:
    """What the keys change."""

    sort: int = 0
    is_reversed: bool = False
    is_paused: bool = False
    is_over: bool = False
    skipped: int = 0

    def press(self, key: str) -> None:
        """Do what a key stands for."""
        match key:
            case "q" | "\x03" | "\x04":
                self.is_over = True
            case "right" | "tab":
                self.sort = (self.sort + 1) % len(SORTS)
            case "left":
                self.sort = (self.sort - 1) % len(SORTS)
            case "r":
                self.is_reversed = not self.is_reversed
            case "p" | " ":
                self.is_paused = not self.is_paused
            case "down":
                self.skipped += 1
            case "up":
                self.skipped = max(0, self.skipped - 1)


def frame(seen: Look, view: View, width: int, height: int | None) -> Group:
    """One picture.

    Args:
        seen: what there is.
        view: how it is sorted, and from where on it is shown.
        width: of the terminal.
        height: of the terminal; None: every queue is shown.
    """
    rows = ordered(seen.rows, SORTS[view.sort], view.is_reversed)
    room = len(rows) if height is None else max(1, height - CHROME)
    view.skipped = min(view.skipped, max(0, len(rows) - room))
    shown = rows[view.skipped : view.skipped + room]
    parts: list[Any] = [heading(seen), Text(), table_of(shown, view, width)]
    if not rows:
        parts.append(Text("No queue yet: `switchboard endpoint vend SLUG` makes one.", "dim"))
    if height is not None:
        above, below = view.skipped, len(rows) - view.skipped - len(shown)
        more = f"  {above} above, {below} below." if above or below else ""
        stopped = "STANDING STILL  " if view.is_paused else ""
        parts += [Text(), Text(f"{stopped}{KEYS}{more}", "dim", no_wrap=True)]
    return Group(*parts)


def heading(seen: Look) -> Text:
    """Sums over all queues, the time, and the sweeps."""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("switchboard", "bold")
    for name in COUNTS:
        total = sum(row[name] for row in seen.rows)
        capped = any(row["capped"] for row in seen.rows)
        line.append(f"  {name} ")
        line.append(number(total, capped and name != "deferred"), STYLES[name] if total else "dim")
    late = seen.sweep_age is None or seen.sweep_age > LATE_SECONDS
    swept = "sweeps never ran" if seen.sweep_age is None else f"swept {age(seen.sweep_age)} ago"
    line.append("\n")
    if seen.seen_at is not None:
        line.append(f"{seen.seen_at:%H:%M:%S %Z}  ", "dim")
    for label, name in (("in", "in_per_second"), ("done", "done_per_second")):
        line.append(f"{label} {rate(sum(row[name] or 0 for row in seen.rows))}/s  ")
    line.append(swept + ("  LATE" if late else ""), "bold red" if late else "dim")
    stalled = sum(row["nudges"] is not None for row in seen.rows)
    line.append("  stalled queues ")
    line.append(str(stalled), "bold red" if stalled else "dim")
    return line


def table_of(rows: Sequence[Row], view: View, width: int) -> Table:
    """The queues; a narrow terminal gets shorter names, and the narrowest fewer columns."""
    wide = width >= WIDE
    table = Table(box=None, pad_edge=False, padding=(0, 2 if wide else 1, 0, 0))
    table.width = min(width, WIDEST)
    shown = [name for name in SORTS if width >= NARROW or name not in LEFT_OUT]
    table.add_column("endpoint", no_wrap=True, overflow="ellipsis", ratio=1, header_style="dim")
    for name in shown:
        mark = ("▲" if view.is_reversed else "▼") if SORTS[view.sort] == name else ""
        is_name = name == "queue"
        table.add_column(
            (LONG if wide else SHORT)[name] + mark,
            justify="left" if is_name else "right",
            no_wrap=True,
            overflow="ellipsis" if is_name else "fold",
            ratio=1 if is_name else None,
            header_style="bold underline" if mark else "dim",
        )
    table.add_column("budget", no_wrap=True, overflow="ellipsis", header_style="dim")
    for row in rows:
        style = "" if row["granted"] else "dim"
        endpoint = Text(printing.visible(row["endpoint"]), style)
        table.add_row(endpoint, *(cell(row, name, style) for name in shown), notes(row, wide))
    return table


def cell(row: Row, name: str, style: str) -> Text:
    """What stands in one column of a queue's line."""
    if name == "queue":
        return Text(printing.visible(row["queue"]), style)
    if name in COUNTS:
        capped = row["capped"] and row[name] >= CAP
        return Text(number(row[name], capped), STYLES[name] if row[name] else "dim")
    if name == "oldest":
        oldest = row["oldest_seconds"]
        return Text("-", "dim") if oldest is None else Text(age(oldest))
    value = row[f"{name}_per_second"]
    return Text("-" if value is None else rate(value), "" if value else "dim")


def notes(row: Row, wide: bool) -> Text:
    """The budget of a queue, that it stalls, that it is no longer granted; in words."""
    said: list[tuple[str, str]] = []
    if row["nudges"] is not None:
        said.append((f"STALLED {row['nudges']}", "bold red"))
    if row["max_claims_per_window"] is not None:
        used = "?" if row["used"] is None else row["used"]
        said.append((f"{used}/{row['max_claims_per_window']}", ""))
    if wide and row["max_in_flight"] is not None:
        said.append((f"held {row['in_flight']}/{row['max_in_flight']}", ""))
    if row["status"] not in (None, "open"):
        status = SHORT_STATUS.get(row["status"], str(row["status"]))
        if wide and (at := row["next_eligible_at"]) is not None:
            status += f" for {age((at - row['seen_at']).total_seconds())}"
        said.append((status, "yellow"))
    if not row["granted"]:
        said.append(("not granted", "dim"))
    return Text(" ").join(Text(text, style) for text, style in said)


def ordered(rows: Sequence[Row], by: str, is_reversed: bool) -> list[Row]:
    """Queues by name, or the most first."""
    if by == "queue":
        return sorted(rows, key=lambda row: (row["endpoint"], row["queue"]), reverse=is_reversed)
    key = {"oldest": "oldest_seconds", "in": "in_per_second", "done": "done_per_second"}.get(by, by)
    return sorted(rows, key=lambda row: row[key] or 0, reverse=not is_reversed)


def number(value: int, is_capped: bool = False) -> str:
    """A count in at most five characters."""
    more = "+" if is_capped else ""
    for size, unit in ((1_000_000, "M"), (10_000, "k")):
        if value >= size:
            return f"{value // (size if unit == 'M' else 1000)}{unit}{more}"
    return f"{value}{more}"


def rate(value: float) -> str:
    """A rate in at most five characters."""
    return f"{value:.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def age(seconds: float) -> str:
    """A duration in at most four characters."""
    span = timedelta(seconds=max(0, seconds))
    if span.days >= 1:
        return f"{span.days}d"
    for size, unit in ((3600, "h"), (60, "m")):
        if span.seconds >= size:
            return f"{span.seconds // size}{unit}"
    return f"{span.seconds}s"
