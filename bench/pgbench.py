"""pgbench as the load: one call runs one script for some seconds and reads what it says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from bench.cluster import BenchError, Cluster


@dataclass(frozen=True)
class Load:
    """What pgbench runs: a script in a database as a login.

    Attributes:
        name: what tables call it.
        database, user: where, and as whom.
        script: pgbench's own language; one run of it is one cycle.
        variables: values for ``:name`` in the script.
    """

    name: str
    database: str
    user: str
    script: str
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What one run gave.

    Attributes:
        rate: cycles per second; of a timed run, without its warm-up.
        cycles: how many were done, the warm-up's included.
        statement_ms: mean milliseconds of each statement of the script, by its text.
        spans: cycles per second of each second, without the warm-up.
    """

    rate: float
    cycles: int
    statement_ms: Mapping[str, float]
    spans: tuple[float, ...]


def run(
    cluster: Cluster,
    load: Load,
    clients: int,
    *,
    seconds: float | None = None,
    cycles_each: int | None = None,
    statements: bool = False,
) -> Outcome:
    """Run a load for some whole seconds, or for a number of cycles per client.

    A timed run has a warm-up before it: the first call of a session compiles functions and plans
    statements, which takes a hundred times as long as later calls, and workers keep their sessions.

    Raises:
        BenchError: a client failed; a benchmark with failing clients measures nothing.
    """
    script = cluster.folder / f"{load.name.replace(' ', '_')}.pgbench"
    script.write_text(load.script)
    command = [
        str(cluster.program("pgbench")), "--no-vacuum", "--protocol=prepared",
        f"--file={script}", f"--client={clients}", f"--jobs={min(clients, 2)}",
        f"--host={cluster.folder}", f"--username={load.user}", "--progress=1",
        *(f"--define={name}={value}" for name, value in load.variables.items()),
    ]  # fmt: skip
    port = dict(part.split("=", 1) for part in cluster.dsn().split())["port"]
    command.append(f"--port={port}")
    warm_up = 0 if seconds is None else 1 + clients // 12
    if seconds is not None:
        command.append(f"--time={warm_up + max(1, round(seconds))}")
    if cycles_each is not None:
        command.append(f"--transactions={cycles_each}")
    if statements:
        command.append("--report-per-command")
    command.append(load.database)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return _read(done, load.name, warm_up)


def _read(done: subprocess.CompletedProcess[str], name: str, warm_up: int) -> Outcome:
    rate = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
    cycles = re.search(r"actually processed: (\d+)", done.stdout)
    failed = re.search(r"^number of failed transactions: ([1-9]\d*)", done.stdout, re.MULTILINE)
    aborted = "aborted" in done.stderr
    if done.returncode != 0 or rate is None or cycles is None or failed or aborted:
        wrong = [line for line in done.stderr.splitlines() if not line.startswith("progress:")]
        raise BenchError(f"pgbench failed on {name}:\n" + "\n".join(wrong[-12:]))
    shown = re.findall(r"^progress: [\d.]+ s, ([\d.]+) tps", done.stderr, re.MULTILINE)
    spans = tuple(float(span) for span in shown[warm_up:])
    return Outcome(
        rate=fmean(spans) if warm_up and spans else float(rate[1]),
        cycles=int(cycles[1]),
        statement_ms=_statement_times(done.stdout),
        spans=spans,
    )


def _statement_times(report: str) -> dict[str, float]:
    """Read pgbench's ``latency  failures  statement`` lines (older ones have no failures)."""
    times: dict[str, float] = {}
    for line in report.partition("statement latencies")[2].splitlines()[1:]:
        found = re.match(r"\s+([\d.]+)\s+(?:\d+\s+)?(\S.*)$", line)
        if found:
            times[found[2]] = float(found[1])
    return times
