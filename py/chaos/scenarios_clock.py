"""A clock that jumps: a machine that slept, a time server that came back, and summer time.

Leases lapse and backoffs end at once, so that what was late by minutes is late by hours; that may
cost attempts, and nothing else. A budget by the day of a zone that changes its clock has a day of
23 or 25 hours then: it neither counts twice nor forgets.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from chaos.load import set_budgets
from chaos.moved_clock import MovedClock, next_change
from chaos.scenario import scenario

if TYPE_CHECKING:
    from chaos.stage import Stage

# By an hour, by half an hour, and at midnight.
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana")
CLAIMS_A_DAY = 3
# Where the clock is put, in minutes from the change.
JUMPS = (-1440, -1380, -95, -61, -30, -0.05, 14, 29.9, 44, 59.95, 75, 121, 700, 1379.95, 1439.95)
CLOCKS: dict[str, tuple[MovedClock, datetime]] = {}


def begin_before_a_change(stage: Stage) -> None:
    """Before the load: a day before a zone's clock is changed, budgets by the day of that zone.

    The day of the budget begins in the middle of what is skipped, or shown twice.
    """
    with stage.postgres.admin() as admin:
        real = admin.execute("select now() as n").fetchall()[0]["n"]
    zone = stage.random.choice(ZONES)
    after = real + timedelta(days=stage.random.choice((0, 183)))
    change, size = next_change(zone, after)
    shown = (change - timedelta(minutes=1)).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    label = shown + timedelta(minutes=1) + size / 2
    window = {"period": "day", "tz": zone, "start": f"{label:%H:%M}"}
    stage.place.budgets["hourly"] = {"max_claims_per_window": CLAIMS_A_DAY, "window": window}
    CLOCKS[str(stage.folder)] = MovedClock(stage.postgres, change - timedelta(hours=26)), change
    with stage.postgres.admin() as admin:
        set_budgets(admin, stage.place, stage.place.budgets)
    stage.say(f"{zone} is put by {size} at {change}, days begin at {window['start']}")


def let_all_be_due(stage: Stage) -> None:
    """Before the drain: every backoff is over. The clock goes on."""
    clock, _ = CLOCKS.pop(str(stage.folder))
    clock.jump(clock.now() + timedelta(minutes=20))


@scenario(
    "clock-jump",
    provokes=("jumped", "crossed", "window_exhausted"),
    warns=("settings", "stalled"),
    prepare=begin_before_a_change,
    heal=let_all_be_due,
)
def clock_jump(stage: Stage) -> None:
    """The clock jumps by minutes and hours over summer time, with budgets by the day."""
    clock, change = CLOCKS[str(stage.folder)]
    for number, minutes in enumerate(JUMPS, start=1):
        at = change + timedelta(minutes=minutes, seconds=stage.random.uniform(0, 1))
        before = clock.now()
        if at > before:
            clock.jump(at)
            stage.saw("jumped")
        pause = stage.left - stage.seconds * (1 - number / len(JUMPS))
        stage.pause(pause, pause)
        if before < change <= clock.now():
            stage.saw("crossed")
