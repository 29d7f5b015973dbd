"""Scenarios of a full disk.

Where tables lie, it makes calls fail (53100) while reading and what needs no new page go on. Where
the write-ahead log lies, PostgreSQL stops. Both lose nothing, and go on by themselves, or after a
start, once there is room.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import psycopg

from chaos.scenario import scenario
from chaos.scenarios_kill import AWAY
from chaos.scenarios_sweeps import sweep_again
from chaos.small_disk import SmallDisk

if TYPE_CHECKING:
    from chaos.stage import Stage

FULL = "No space left on device"
DISKS: dict[str, SmallDisk] = {}


def _move_to_small_disk(stage: Stage, part: str, megabytes: int) -> None:
    disk = SmallDisk(stage.postgres, part, megabytes)
    disk.mount()
    DISKS[str(stage.folder)] = disk
    stage.server.wait_ready()


def tables_on_small_disk(stage: Stage) -> None:
    """Before the load: the tables' folder goes to a tmpfs."""
    _move_to_small_disk(stage, "base", 128)


def log_on_small_disk(stage: Stage) -> None:
    """Before the load: the write-ahead log goes to a tmpfs."""
    _move_to_small_disk(stage, "pg_wal", 160)


def to_large_disk(stage: Stage) -> None:
    """Before the drain: the data goes to a disk with room."""
    DISKS.pop(str(stage.folder)).give_back()
    sweep_again(stage)


def _said(stage: Stage, words: str) -> int:
    return stage.postgres.log.read_text(errors="replace").count(words)


@scenario(
    "disk-full",
    provokes=("full", "went_on", "disk_full"),
    allows=("disk_full", *AWAY),
    prepare=tables_on_small_disk,
    heal=to_large_disk,
)
def disk_full(stage: Stage) -> None:
    """The disk of the tables, a small tmpfs, is full for seconds (53100); PostgreSQL stays up."""
    disk, postmaster = DISKS[str(stage.folder)], stage.postgres.pid
    while stage.goes_on():
        stage.pause(1.0, 4.0)
        before, end = _said(stage, FULL), time.monotonic() + stage.random.uniform(3.0, 8.0)
        with stage.postgres.admin() as old:  # nothing can be cleaned, so that each row needs room
            old.execute("begin isolation level repeatable read")
            old.execute("select count(*) from switchboard.todos")
            while stage.goes_on() and time.monotonic() < end:
                disk.fill()
                stage.pause(0.1, 0.3)
        disk.empty()
        if _said(stage, FULL) > before:
            stage.saw("full")
        if stage.postgres.runs and stage.postgres.pid == postmaster:
            stage.saw("went_on")


@scenario(
    "log-disk-full",
    provokes=("stopped", "relisten"),
    allows=("disk_full", *AWAY),
    postgres={"max_wal_size": "64MB", "min_wal_size": "32MB", "wal_recycle": "off"},
    prepare=log_on_small_disk,
    heal=to_large_disk,
)
def log_disk_full(stage: Stage) -> None:
    """The disk of the write-ahead log is full: PostgreSQL panics, and is started with room."""
    disk = DISKS[str(stage.folder)]
    while stage.goes_on():
        stage.pause(4.0, 8.0)
        before, end = _said(stage, "PANIC"), time.monotonic() + 8.0
        disk.fill()
        while time.monotonic() < end and _said(stage, "PANIC") == before:
            _switch_segment(stage)
            stage.pause(0.2, 0.4)
        if _said(stage, "PANIC") > before:
            stage.saw("stopped")
        stage.pause(0.0, 2.0)
        disk.empty()
        stage.postgres.start()
        stage.postgres.wait_ready()


def _switch_segment(stage: Stage) -> None:
    """Have the log go on in a new file, for which there is no room."""
    with contextlib.suppress(psycopg.Error), stage.postgres.admin() as admin:
        admin.execute("select pg_switch_wal()")
