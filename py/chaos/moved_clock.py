"""A database whose clock is ours: the test clock of the installation, which runs, and jumps.

``switchboard.now()`` is one row of settings there. A thread writes it twenty times a second, so
that the clock runs as fast as ours, from wherever it was put; it runs until PostgreSQL is ended.
"""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import psycopg

from chaos.cluster import Cluster

BEAT_SECONDS = 0.05
FAR = timedelta(days=400)


def next_change(zone: str, after: datetime) -> tuple[datetime, timedelta]:
    """The first change of a zone's offset that is two days or more after an instant, and its size.

    Args:
        zone: one whose clock is changed at least once a year.
        after: aware.

    Raises:
        ValueError: it is not changed within 400 days.
    """
    place = ZoneInfo(zone)

    def offset(at: datetime) -> timedelta:
        return at.astimezone(place).utcoffset() or timedelta()

    begin = after.astimezone(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(days=2)
    hours = (begin + timedelta(minutes=30 * n) for n in range(int(FAR / timedelta(minutes=30))))
    for before, at in pairwise(hours):
        if offset(before) != offset(at):
            return at, offset(at) - offset(before)
    raise ValueError(f"the clock of {zone} is not changed within {FAR}")


class MovedClock:
    """The clock of a cluster's database, from now on.

    Args:
        cluster: a throw-away one.
        start: what its clock shows first.
    """

    def __init__(self, cluster: Cluster, start: datetime) -> None:
        self._cluster = cluster
        self._origin = time.monotonic()
        self._start = start
        self._lock = threading.Lock()
        self._write_once()
        self._thread = threading.Thread(target=self._run, daemon=True, name="moved clock")
        self._thread.start()

    def now(self) -> datetime:
        """What it shows, or will within a beat."""
        return self._start + timedelta(seconds=time.monotonic() - self._origin)

    def jump(self, to: datetime) -> None:
        """Put it forward; returns when every session sees it.

        Raises:
            ValueError: that would put it back.
        """
        with self._lock:
            if to < self.now():
                raise ValueError("the clock is only put forward")
            self._start, self._origin = to, time.monotonic()
        self._write_once()

    def _write(self, connection: psycopg.Connection[dict[str, object]]) -> None:
        with self._lock:
            connection.execute("update switchboard.settings set test_now = %s", [self.now()])

    def _write_once(self) -> None:
        with self._cluster.admin() as admin:
            admin.execute("update switchboard.settings set is_test = true")
            self._write(admin)

    def _run(self) -> None:
        with contextlib.suppress(psycopg.Error), self._cluster.admin() as admin:
            admin.execute("set synchronous_commit = off")
            while True:
                self._write(admin)
                time.sleep(BEAT_SECONDS)
