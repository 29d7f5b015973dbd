"""admission_window() against zoneinfo: every zone, around every change of its clock.

The oracle knows no trick of the SQL. The boundary of a label is by its definition the earliest of
all instants that could be it, those at which some offset of the zone shows the label and those at
which the clock is changed, at which the clock then shows the label or later. PostgreSQL and Python
may have different editions of the tz data: what is near a time at which they differ is not counted.

SWITCHBOARD_ZONES_SHARE (1) says of how many different clocks one is tried around its changes.
"""

from __future__ import annotations

import os
import struct
import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import TZPATH, ZoneInfo, available_timezones

import pytest
from conftest import Sql
from hypothesis import given, settings
from hypothesis import strategies as st

MINUTE, HOUR, DAY, WEEK = 60, 3600, 86400, 7 * 86400
SECONDS = {"hour": HOUR, "day": DAY, "week": WEEK}
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONDAY = 4 * DAY  # 1970-01-05
YEARS = (2020, 2035)
SHARE = int(os.environ.get("SWITCHBOARD_ZONES_SHARE", "1"))
# Stranger ones of the past: skipped days, half hours, midnights, three hours, a week of summer.
PAST = (
    ("Pacific/Apia", 2011, 2012),
    ("Pacific/Fakaofo", 2011, 2012),
    ("Pacific/Kwajalein", 1993, 1993),
    ("Pacific/Kiritimati", 1994, 1995),
    ("Pacific/Enderbury", 1994, 1995),
    ("Pacific/Bougainville", 2014, 2015),
    ("Australia/Lord_Howe", 1985, 2019),
    ("Antarctica/Casey", 2009, 2019),
    ("Antarctica/Troll", 2005, 2019),
    ("Africa/Monrovia", 1971, 1972),
    ("America/Sao_Paulo", 1999, 2019),
    ("America/Recife", 1999, 2002),
    ("America/Caracas", 2007, 2016),
    ("America/Argentina/Tucuman", 2003, 2009),
    ("Asia/Pyongyang", 2015, 2018),
    ("Asia/Kathmandu", 1985, 1986),
    ("Asia/Gaza", 2008, 2019),
    ("Africa/Cairo", 2010, 2014),
    ("Europe/Lisbon", 1992, 1996),
    ("Europe/London", 1970, 1973),
)


class Change(NamedTuple):
    """An instant from which a clock is another number of seconds ahead of UTC than before."""

    at: int
    before: int
    after: int


class Case(NamedTuple):
    """A question and the oracle's answer; instants in microseconds of Unix time."""

    period: str
    zone: str
    start: str
    weekday: str
    at: int
    window_start: int
    window_end: int


class Clock:
    """The local clock of a zone from one year to another, in seconds of Unix time."""

    def __init__(self, zone: str, first: int, last: int) -> None:
        self.zone, self.info = zone, ZoneInfo(zone)
        year = [int(datetime(y, 1, 1, tzinfo=UTC).timestamp()) for y in (first, last + 1)]
        self.grid = range(year[0] - 30 * DAY, year[1] + 30 * DAY, 3 * DAY)
        self.changes = [
            change for left, right in pairwise(self.grid) for change in self.within(left, right)
        ]
        self.inside = [c for c in self.changes if year[0] <= c.at < year[1]]

    def ahead(self, at: int) -> int:
        """How many seconds the clock is ahead of UTC."""
        offset = datetime.fromtimestamp(at, self.info).utcoffset()
        assert offset is not None
        return offset.days * DAY + offset.seconds

    def within(self, left: int, right: int) -> Iterator[Change]:
        """The change between two times, if any."""
        before, after = self.ahead(left), self.ahead(right)
        while before != after and right - left > 1:
            middle = (left + right) // 2
            left, right = (middle, right) if self.ahead(middle) == before else (left, middle)
        if before != after:
            yield Change(right, before, self.ahead(right))

    def boundary(self, label: int) -> int:
        """The first instant at which the clock shows a label (local time as if UTC), or later."""
        near = [c for c in self.changes if abs(c.at - label) < 3 * DAY]
        offsets = {o for c in near for o in (c.before, c.after)} or {self.ahead(label)}
        could_be = [label - o for o in offsets] + [c.at for c in near]
        return min(t for t in could_be if t + self.ahead(t) >= label)

    def samples(self) -> list[int]:
        """Times at which another clock must agree to be the same one."""
        return sorted({*self.grid, *(t for c in self.changes for t in (c.at - 1, c.at))})


def question(period: str, label: int) -> tuple[str, str]:
    """The start and the weekday (or nothing) of windows that have a label."""
    minute = label % DAY // MINUTE
    start = f"{minute // 60:02}:{minute % 60:02}"
    return start, WEEKDAYS[(label - MONDAY) // DAY % 7] if period == "week" else ""


def around(clock: Clock, period: str, label: int, middle: int, odd: list[int]) -> Iterator[Case]:
    """Cases at odd times, and just before, at and after the two boundaries on either side."""
    step = SECONDS[period]
    reach = (DAY + max(odd) - min(odd)) // step + 4
    boundaries = sorted({clock.boundary(label + k * step) for k in range(-reach, reach + 1)})
    place = bisect_right(boundaries, middle)
    chosen = boundaries[place - 2 : place + 2]
    assert len(chosen) == 4
    start, weekday = question(period, label)
    instants = {b * 10**6 + d for b in chosen for d in (-1, 0, 1)} | {t * 10**6 for t in odd}
    for at in instants:
        i = bisect_right(boundaries, at // 10**6)
        assert 0 < i < len(boundaries)
        ends = boundaries[i - 1] * 10**6, boundaries[i] * 10**6
        yield Case(period, clock.zone, start, weekday, at, *ends)


def near_change(clock: Clock, change: Change) -> Iterator[Case]:
    """Windows that start before, at the ends of, in and after what a change skips or repeats."""
    low, high = sorted((change.at + change.before, change.at + change.after))
    low, high = low // MINUTE * MINUTE, -(-high // MINUTE) * MINUTE
    middle = (low + high) // 2 // MINUTE * MINUTE
    labels = {low - MINUTE, low, low + MINUTE, middle, high - MINUTE, high, high + MINUTE}
    span = abs(change.after - change.before)
    odd = [change.at - span // 2, change.at - 1, change.at, change.at + span // 2, change.at + span]
    for period in SECONDS:
        seen = set()
        for label in sorted(labels):
            if (key := label % HOUR if period == "hour" else label) not in seen:
                seen.add(key)
                yield from around(clock, period, label, change.at, odd)


def any_time(clock: Clock, number: int) -> Iterator[Case]:
    """A few windows, somewhere: for every name, whether or not its clock is ever changed."""
    for k, period in enumerate(SECONDS):
        middle = clock.grid[20 + (number * 7 + k * 501) % (len(clock.grid) - 40)]
        label = (middle + clock.ahead(middle)) // DAY * DAY + (number * 37 % 1440) * MINUTE
        yield from around(clock, period, label, middle, [middle])


def set_zone(db: Sql, zone: str) -> None:
    db.row("select set_config('TimeZone', %s, false)", zone)


def zones(db: Sql) -> list[str]:
    """The names of zones that the server and Python know."""
    rows = db.rows("select name from pg_timezone_names where name !~ '^(posix|right)/' order by 1")
    known = available_timezones()
    strange = {"localtime", "posixrules", "Factory"}
    return [n for row in rows if (n := row["name"]) not in strange and n in known]


def differences(db: Sql, clock: Clock) -> tuple[int, ...]:
    """Times at which the server's clock of the zone is not Python's."""
    set_zone(db, clock.zone)
    samples = clock.samples()
    query = """
        select array_agg(extract(epoch from to_timestamp(s)::timestamp)::bigint - s order by s)
        from unnest(%s::bigint[]) s"""
    theirs = db.value(query, samples)
    return tuple(t for t, o in zip(samples, theirs, strict=True) if o != clock.ahead(t))


class Comparison:
    """Cases for the server, without those that are near a difference of the tz data."""

    def __init__(self, db: Sql) -> None:
        self.db = db
        self.counted: Counter[str] = Counter()
        self.left_out = 0
        self.lines: list[str] = []

    def add(self, cases: Iterable[Case], differences: tuple[int, ...]) -> None:
        for case in cases:
            at = case.at // 10**6
            i = bisect_left(differences, at - 20 * DAY)
            if i < len(differences) and differences[i] < at + 20 * DAY:
                self.left_out += 1
            else:
                self.counted[case.zone] += 1
                self.lines.append(",".join(map(str, case)))

    def check(self) -> None:
        """Ask the server; the answers are the oracle's."""
        columns = "period text, zone text, start text, weekday text, at bigint, f bigint, t bigint"
        self.db.rows(f"create temporary table cases ({columns})")
        copying = "copy cases from stdin (format csv)"
        with self.db.connection.cursor() as cursor, cursor.copy(copying) as copy:
            copy.write("\n".join(self.lines) + "\n")
        answers = self.db.row("""
            select count(*) as asked,
                (array_agg(row(c.*, w.*)::text) filter (
                    where w.window_start is distinct from to_timestamp(c.f / 1e6)
                       or w.window_end is distinct from to_timestamp(c.t / 1e6)))[1:20] as wrong
            from cases c
            cross join lateral switchboard.admission_window(
                c.period, c.zone, c.start, c.weekday, to_timestamp(c.at / 1e6)) w""")
        self.db.rows("drop table cases")
        assert answers == {"asked": self.counted.total(), "wrong": None}

    def report(self, what: str) -> None:
        share = f"{self.counted.total()} counted, {self.left_out} left out"
        sys.stdout.write(f"{what}: {share}, {len(self.counted)} zones\n")


def test_every_zone_around_every_change_from_2020_to_2035(db: Sql) -> None:
    clocks = [Clock(name, *YEARS) for name in zones(db)]
    assert len(clocks) > 500
    changes, anywhere = Comparison(db), Comparison(db)
    distinct: set[Any] = set()
    for number, clock in enumerate(clocks):
        other = differences(db, clock)
        anywhere.add(any_time(clock, number), other)
        if (key := (clock.ahead(clock.grid[0]), *clock.changes, other)) not in distinct:
            distinct.add(key)
            for change in clock.inside if len(distinct) % SHARE == 0 else ():
                changes.add(near_change(clock, change), other)
    for comparison, what in ((changes, "around changes"), (anywhere, "anywhere")):
        comparison.report(what)
        comparison.check()
        assert comparison.left_out < comparison.counted.total() / 3
    assert changes.counted.total() > 200_000 / SHARE
    assert len(changes.counted) > 30 / SHARE
    assert anywhere.counted.total() > 15_000
    assert len(anywhere.counted) > 500


def test_strange_changes_of_the_past(db: Sql) -> None:
    comparison = Comparison(db)
    for zone, first, last in PAST:
        clock = Clock(zone, first, last)
        assert clock.inside, zone
        other = differences(db, clock)
        for change in clock.inside:
            comparison.add(near_change(clock, change), other)
    comparison.report("the past")
    comparison.check()
    assert set(comparison.counted) >= {"Pacific/Apia", "Australia/Lord_Howe"}
    assert len(comparison.counted) > 15
    assert comparison.counted.total() > 50_000


@cache
def century(zone: str) -> Clock:
    return Clock(zone, 1990, 2100)


@st.composite
def instants(draw: st.DrawFn, clock: Clock) -> int:
    """Microseconds of Unix time: anywhere, or near a change of the clock."""
    if clock.inside and draw(st.booleans()):
        change = draw(st.sampled_from(clock.inside))
        return (change.at + draw(st.integers(-2 * DAY, 2 * DAY))) * 10**6
    return draw(st.integers(clock.grid[15], clock.grid[-15])) * 10**6 + draw(st.integers(0, 999999))


LOOK = """
    select w.*, to_timestamp(%(at)s / 1e6) as at, n.window_start as next, p.window_end as previous,
        extract(epoch from w.window_start::timestamp)::bigint as shown,
        (select extract(epoch from max((w.window_start - h * interval '10 minutes')::timestamp))
         from generate_series(1, 300) h)::bigint as shown_before,
        extract(epoch from (w.window_start - interval '1 us')::timestamp) as shown_last
    from switchboard.admission_window(
            %(period)s, %(zone)s, %(start)s, %(weekday)s, to_timestamp(%(at)s / 1e6)) w
    cross join lateral switchboard.admission_window(
            %(period)s, %(zone)s, %(start)s, %(weekday)s, w.window_end) n
    cross join lateral switchboard.admission_window(
            %(period)s, %(zone)s, %(start)s, %(weekday)s, w.window_start - interval '1 us') p"""


def test_windows_hold_their_instant_and_tile_and_begin_at_labels(db: Sql) -> None:
    names = zones(db)

    @settings(max_examples=500, deadline=None, database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        zone = data.draw(st.sampled_from(names))
        period = data.draw(st.sampled_from(list(SECONDS)))
        minute = data.draw(st.integers(0, 1439))
        day = data.draw(st.integers(0, 6))
        at = data.draw(instants(century(zone)))
        set_zone(db, zone)
        start, weekday = question(period, MONDAY + day * DAY + minute * MINUTE)
        asked = {"at": at, "period": period, "zone": zone, "start": start, "weekday": weekday}
        found = db.connection.execute(LOOK, asked).fetchone()
        assert found is not None
        # to UTC: aware datetimes of one zone are compared by the clock, which may go back
        times = [found[n].astimezone(UTC) for n in ("window_start", "at", "window_end")]
        assert times[0] <= times[1] < times[2]
        assert found["next"].astimezone(UTC) == times[2]
        assert found["previous"].astimezone(UTC) == times[0]
        phase = MONDAY + day * DAY + minute * MINUTE
        label = found["shown"] - (found["shown"] - phase) % SECONDS[period]
        assert found["shown_before"] < label
        assert found["shown"] == label or found["shown_last"] < label

    check()


def offsets_of(file: bytes) -> Iterator[tuple[int, int]]:
    """The times of a TZif file from which an offset counts."""
    counts = struct.unpack(">6l", file[20:44])
    isut, isstd, leap, times, types, letters = counts
    body = 44 + times * 5 + types * 6 + letters + leap * 8 + isstd + isut
    _, _, _, times, types, _ = struct.unpack(">6l", file[body + 20 : body + 44])
    at = struct.unpack_from(f">{times}q", file, body + 44)
    index = struct.unpack_from(f">{times}B", file, body + 44 + times * 8)
    offset = [
        struct.unpack_from(">l", file, body + 44 + times * 9 + k * 6)[0] for k in range(types)
    ]
    return zip(at, (offset[k] for k in index), strict=True)


def test_no_clock_was_ever_changed_there_and_back_within_32_hours() -> None:
    pauses: list[tuple[int, str]] = []
    for name in available_timezones():
        for path in [Path(p, name) for p in TZPATH if Path(p, name).is_file()][:1]:
            offsets = list(offsets_of(path.read_bytes()))
            changes = [b[0] for a, b in pairwise(offsets) if a[1] != b[1] and b[0] >= 0]
            pauses += [(right - left, name) for left, right in pairwise(changes)]
    if not pauses:
        pytest.skip("no TZif files here")
    assert min(pauses)[0] > 32 * HOUR
