"""Migrating while work goes on: again and again, twice at once, and killed.

A migrate replays every function and, here, migrations whose marks were removed, as an upgrade does.
Callers wait for it, or fail with a code that asks for another try.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, LiteralString

from chaos.processes import PACKAGES
from chaos.scenario import scenario

if TYPE_CHECKING:
    from chaos.stage import Stage

MARKS: LiteralString = "select migration_id as id from switchboard_migrations._yoyo_migration"
FORGET: LiteralString = "delete from switchboard_migrations._yoyo_migration where migration_id = %s"
LIMIT_SECONDS = 120.0
WAYS = ("migrated", "migrated_together", "migrate_killed")


class MigrateFailedError(Exception):
    """A migrate that nobody killed did not come to its end; the text says what it said."""


def start(stage: Stage) -> subprocess.Popen[str]:
    """Start ``switchboard migrate`` on the run's database."""
    return subprocess.Popen(
        [sys.executable, "-m", "switchboard", "migrate", "--url", stage.postgres.url()],
        env={**os.environ, "PYTHONPATH": PACKAGES}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def finish(running: subprocess.Popen[str]) -> str:
    """Wait for its end, and return what it said.

    Raises:
        MigrateFailedError: it failed, or takes over two minutes.
    """
    try:
        said, _ = running.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        running.kill()
        said, _ = running.communicate()
        raise MigrateFailedError(f"migrate did not end:\n{said}") from None
    if running.returncode:
        raise MigrateFailedError(f"migrate exited with {running.returncode}:\n{said}")
    return said


def forget_some(stage: Stage) -> None:
    """Remove the marks of one or two migrations, so that the next migrate applies them again."""
    with stage.postgres.admin() as admin:
        marks = [row["id"] for row in admin.execute(MARKS).fetchall()]
        for mark in stage.random.sample(marks, min(len(marks), 2)):
            admin.execute(FORGET, [mark])


def migrate_to_the_end(stage: Stage) -> None:
    """Before the drain: whatever a killed one left is mended by the next."""
    finish(start(stage))


@scenario(
    "migration-under-load",
    provokes=WAYS,
    allows=("lock_timeout", "deadlock", "unavailable"),
    heal=migrate_to_the_end,
)
def migration_under_load(stage: Stage) -> None:
    """`switchboard migrate` again and again: alone, twice at once, killed half way."""
    ways = stage.random.sample(WAYS, len(WAYS))
    for number, way in enumerate(itertools.cycle(ways)):
        if number >= len(ways) and not stage.goes_on():
            break
        stage.pause(0.5, 2.0)
        if stage.random.random() < 0.6:
            forget_some(stage)
        running = [start(stage) for _ in range(2 if way == "migrated_together" else 1)]
        if way == "migrate_killed":
            time.sleep(stage.random.uniform(0.5, 4.0))
            running[0].kill()
            running[0].communicate()
        else:
            for one in running:
                finish(one)
        stage.saw(way)
