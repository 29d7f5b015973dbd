"""Somebody dies, or stands still for longer than his lease, under load."""

from __future__ import annotations

import contextlib

import psutil

from chaos.scenario import scenario
from chaos.stage import Stage

# What callers may be told while PostgreSQL or the server is away; the outcome is then unknown.
AWAY = ("connection", "timeout", "unavailable", "no_session")


@scenario("worker-killed", provokes=("worker_killed",))
def worker_killed(stage: Stage) -> None:
    """Workers and producers get kill -9, one at a time, and are started again."""
    while stage.goes_on():
        stage.pause(0.4, 2.0)
        acting = [client for client in stage.clients if client.acts]  # who has come to something
        if not acting:
            continue
        client = stage.random.choice(acting)
        client.kill()
        stage.saw("worker_killed")
        stage.pause(0.0, 0.5)
        client.start()


@scenario("worker-paused", provokes=("worker_paused",), allows=("timeout",))
def worker_paused(stage: Stage) -> None:
    """Workers stand still (SIGSTOP) past their lease, one or two at a time, and go on."""
    while stage.goes_on():
        stage.pause(0.3, 1.0)
        paused = stage.random.sample(stage.workers, stage.random.choice((1, 1, 2)))
        for worker in paused:
            worker.stop_signal()
        stage.pause(1.2, 3.5)
        for worker in paused:
            worker.cont_signal()
            stage.saw("worker_paused")


@scenario("server-killed", provokes=("server_killed", "relisten"), allows=AWAY)
def server_killed(stage: Stage) -> None:
    """`switchboard serve` gets kill -9, and is started again at once or after a while."""
    while stage.goes_on():
        stage.pause(2.0, 6.0)
        stage.server.kill()
        stage.saw("server_killed")
        stage.pause(0.0, 1.5)
        stage.server.start()


@scenario("backend-killed", provokes=("backend_killed", "relisten"), allows=AWAY)
def backend_killed(stage: Stage) -> None:
    """Sessions of the database end, one at a time: pg_terminate_backend, now and then kill -9."""
    while stage.goes_on():
        stage.pause(0.3, 1.5)
        if pids := stage.backends():
            stage.kill_backend(stage.random.choice(pids), hard=stage.random.random() < 0.1)
            stage.saw("backend_killed")


@scenario("all-backends-killed", provokes=("all_killed", "relisten"), allows=AWAY)
def all_backends_killed(stage: Stage) -> None:
    """All sessions of the database end at one moment."""
    while stage.goes_on():
        stage.pause(1.5, 4.0)
        for pid in stage.backends():
            stage.kill_backend(pid, hard=False)
        stage.saw("all_killed")


@scenario("postgres-killed", provokes=("postgres_killed", "relisten"), allows=AWAY)
def postgres_killed(stage: Stage) -> None:
    """PostgreSQL gets kill -9, its processes too, or is stopped as pg_ctl -m immediate does."""
    while stage.goes_on():
        stage.pause(2.0, 5.0)
        how = stage.random.choice(("postmaster", "everybody", "immediate"))
        if how == "immediate":
            stage.postgres.stop("immediate")
        else:
            children = psutil.Process(stage.postgres.pid).children(recursive=True)
            stage.postgres.kill()
            for process in children if how == "everybody" else ():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        stage.saw("postgres_killed")
        stage.pause(0.0, 1.0)
        stage.postgres.start()
