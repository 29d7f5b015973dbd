"""What a scenario can reach: the clock of its run, PostgreSQL, the server, the clients."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import psycopg

from chaos.cluster import Cluster
from chaos.load import Place
from chaos.processes import Client, Server
from chaos.scenario import Scenario

BACKENDS = (
    "select pid from pg_stat_activity where backend_type = 'client backend'"
    " and datname = current_database() and pid <> pg_backend_pid() and application_name <> 'chaos'"
    " and (%(name)s::text is null or application_name = %(name)s)"
)


class Stage:
    """One run.

    Attributes:
        scenario: what goes wrong.
        seed: of the run; ``random`` follows from it.
        seconds: how long the faults last.
        folder: of the run: histories, logs, data.
        postgres: its database server.
        server: its `switchboard serve`.
        place: endpoints, receivers and budgets; there once ``prepare`` is called.
        workers, producers: the clients; there once ``prepare`` is called, not started then.
        seen: what ``saw`` counted.
        props: what the scenario has put up beside them; taken down at the end of the run.
        limits_raised_at: the database's time at which the budgets were raised.
    """

    def __init__(
        self, scenario: Scenario, seed: int, seconds: float, folder: Path, postgres: Cluster,
        server: Server,
    ) -> None:  # fmt: skip
        self.scenario, self.seed, self.seconds, self.folder = scenario, seed, seconds, folder
        self.postgres, self.server = postgres, server
        self.random = random.Random(f"{scenario.name} {seed}")  # noqa: S311
        self.place = Place()
        self.workers: list[Client] = []
        self.producers: list[Client] = []
        self.seen: Counter[str] = Counter()
        self.end: float | None = None
        self.props = contextlib.ExitStack()

    # -- time -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The seconds of the run begin now."""
        self.end = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """Seconds that are left of the run; all of them before it begins."""
        return self.seconds if self.end is None else self.end - time.monotonic()

    def goes_on(self) -> bool:
        """Whether the run's seconds are not over."""
        return self.left > 0

    def pause(self, least: float, most: float) -> None:
        """Wait a random time between these, but not beyond the end of the run."""
        time.sleep(max(0.0, min(self.random.uniform(least, most), self.left)))

    # -- what is said -----------------------------------------------------------------------------

    def saw(self, name: str, n: int = 1) -> None:
        """Count what happened: ``provokes`` asks for it."""
        self.seen[name] += n

    def say(self, text: str) -> None:
        """A line into the run's output (``run.log``)."""
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        sys.stdout.flush()

    # -- sessions of the database -----------------------------------------------------------------

    def backends(self, application: str | None = None) -> list[int]:
        """Process ids of client sessions in the database, ours left out; none when it is down.

        Args:
            application: only those of this application_name: ``switchboard`` is the server, a
                client's is its name.
        """
        with contextlib.suppress(psycopg.OperationalError), self.postgres.admin() as admin:
            rows = admin.execute(BACKENDS, {"name": application}).fetchall()
            return [int(row["pid"]) for row in rows]
        return []

    def kill_backend(self, pid: int, hard: bool | None = None) -> None:
        """End a session.

        Args:
            pid: its process.
            hard: SIGKILL, after which PostgreSQL ends all sessions and recovers; else
                pg_terminate_backend; None: by chance, hard once in four times.
        """
        if hard is None:
            hard = self.random.random() < 0.25
        if hard:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return
        with contextlib.suppress(psycopg.OperationalError), self.postgres.admin() as admin:
            admin.execute("select pg_terminate_backend(%s)", (pid,))

    # -- everything -------------------------------------------------------------------------------

    @property
    def clients(self) -> list[Client]:
        """Workers and producers."""
        return [*self.workers, *self.producers]

    def start_clients(self) -> None:
        """Start all clients that do not run."""
        for client in self.clients:
            client.start()

    def wait_acting(self, seconds: float = 180.0) -> None:
        """Return when every client that was started has made a call.

        Raises:
            TimeoutError: one has not within ``seconds``.
        """
        end = time.monotonic() + seconds
        while left := [client for client in self.clients if client.wanted and not client.acts]:
            if time.monotonic() > end:
                raise TimeoutError(f"{left[0].name} does nothing:\n{left[0].last_words()}")
            time.sleep(0.05)

    def heal(self) -> None:
        """PostgreSQL, the server and the workers run, and nobody stands still; returns then.

        Raises:
            ClusterError, TimeoutError: one of them does not come back.
        """
        for process in (self.server, *self.clients):
            process.cont_signal()
        self.postgres.start()
        self.postgres.wait_ready()
        self.server.start()
        self.server.wait_ready()
        for client in self.workers:
            client.start()

    def end_all(self) -> None:
        """Kill what still runs."""
        for process in (*self.clients, self.server):
            with contextlib.suppress(Exception):
                process.cont_signal()
                process.kill()
        with contextlib.suppress(Exception):
            self.props.close()
        self.postgres.end()
