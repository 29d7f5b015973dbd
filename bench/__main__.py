"""``bench/run [NAME…]``: run benchmarks by name, all of them when none is named."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.cluster import BenchError
from bench.options import Options
from bench.report import RESULTS, progress

BENCHMARKS = (
    "cycle", "backlog", "snapshot", "exactly-once", "buffers", "scaling", "hidden", "http-overhead",
    "intake", "creates", "doorbell", "budget", "board",
)  # fmt: skip


def main() -> int:
    """Returns 0 when every promise was kept, 1 when one was missed, 2 when something is missing."""
    parser = argparse.ArgumentParser(
        prog="bench/run",
        description="Measures Switchboard on a PostgreSQL server of its own. docs/benchmarks.md "
        "says what each benchmark promises.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="a smoke run; judges nothing")
    parser.add_argument("--server", help="15, 17, … (Debian's packages) or embedded (the wheel's)")
    parser.add_argument("--seconds", type=float, help="length of one timed run")
    parser.add_argument("--no-peers", action="store_true", help="leave pgmq and Procrastinate out")
    parser.add_argument("--patch", type=Path, help="cycle: SQL of a second, changed database")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}. Known: {', '.join(BENCHMARKS)}")
    options = Options(
        quick=arguments.quick,
        server=arguments.server,
        seconds=arguments.seconds,
        peers=not arguments.no_peers,
        patch=arguments.patch,
    )
    results = {name: _run(name, options) for name in arguments.names or BENCHMARKS}
    print()
    for name, (code, seconds) in results.items():
        print(f"{('kept', 'MISSED', 'NOT RUN')[code]:8}{name} ({seconds:.0f} s)")
    print(f"results: {RESULTS.relative_to(RESULTS.parents[2])}/")
    return max(code for code, _ in results.values())


def _run(name: str, options: Options) -> tuple[int, float]:
    """Run one benchmark; returns its exit code and how many seconds it took."""
    measure: Callable[[Options], bool]
    measure = importlib.import_module(f"bench.{name.replace('-', '_')}").measure
    progress(f"== {name}")
    begun = time.monotonic()
    try:
        code = 0 if measure(options) else 1
    except BenchError as error:
        print(f"error: {name}: {error}", file=sys.stderr)
        code = 2
    return code, time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main())
