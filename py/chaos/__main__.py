"""``scripts/chaos [SCENARIO…]``: run scenarios, each with some seeds, and judge them."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chaos import report
from chaos.cluster import make_template
from chaos.run import run
from chaos.scenario import Scenario, load
from chaos.small_disk import NoSmallDiskError

KIND = "SWITCHBOARD_CHAOS_SERVER"
RUNNING: set[subprocess.Popen[bytes]] = set()  # the processes of runs


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 when every run was good, 1 when one was not, 2 for a usage that is none."""
    options = parse(arguments)
    scenarios = load()
    unknown = [name for name in options.names if name not in scenarios]
    if unknown:
        report.say(f"unknown: {', '.join(unknown)}. Known: {', '.join(scenarios)}")
        return 2
    if options.list:
        report.listing(scenarios.values())
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception: all is ended
    if options.one:
        return be_one(scenarios[options.names[0]], options)
    chosen = [scenarios[name] for name in options.names or scenarios]
    return run_all(chosen, options)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=report.ABOUT)
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help="all of them without one")
    parser.add_argument("--list", action="store_true", help="show the scenarios")
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults in each run (60)")
    parser.add_argument("--seeds", type=seeds, default=(1,), help="as 1-5 or 1,4 (1)")
    parser.add_argument("--seed", dest="seeds", type=seeds, help="the same, for one")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side (1)")
    parser.add_argument("--keep", type=Path, help="leave histories and logs here")
    parser.add_argument(
        "--server", default=os.environ.get(KIND) or "embedded", choices=("embedded", "debian"),
        help=f"PostgreSQL 18 or 15 (also {KIND})",
    )  # fmt: skip
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # be the process of one run
    parser.add_argument("--template", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def seeds(text: str) -> tuple[int, ...]:
    """``1-5`` or ``1,4`` or ``7``.

    Raises:
        ValueError: it is none of these.
    """
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def be_one(scenario: Scenario, options: argparse.Namespace) -> int:
    """Run one scenario with one seed, and leave the verdict in its folder."""
    folder: Path = options.one
    try:
        verdict = run(
            scenario, options.seeds[0], options.seconds, folder, options.template, options.server
        )
    except NoSmallDiskError as error:
        report.say(str(error))
        return report.LEFT_OUT
    report.write(verdict, folder / report.VERDICT)
    return 0 if verdict.good else 1


def run_all(chosen: list[Scenario], options: argparse.Namespace) -> int:
    """Each scenario with each seed, ``--jobs`` at a time."""
    with tempfile.TemporaryDirectory(prefix="sbc-", dir=_short_tmp()) as name:
        work = Path(name)
        work.chmod(0o711)
        templates = {}
        for kind in sorted({scenario.server_kind or options.server for scenario in chosen}):
            report.say(f"making a {kind} PostgreSQL to copy …")
            templates[kind] = make_template(work / f"template-{kind}", kind)
        results: list[report.Result] = []

        def go(number: int, scenario: Scenario, seed: int) -> None:
            kind = scenario.server_kind or options.server
            folder = work / f"r{number}"
            begun = time.monotonic()
            code = _process(scenario, seed, kind, folder, templates[kind], options.seconds)
            result = report.Result(
                scenario.name, seed, time.monotonic() - begun, code,
                report.read(folder / report.VERDICT), folder / "run.log",
            )  # fmt: skip
            results.append(result)
            report.progress(result, options.seconds)
            _put_away(folder, options.keep, f"{scenario.name}-{seed}")

        todo = [(s, seed) for seed in options.seeds for s in chosen]
        pool = ThreadPoolExecutor(options.jobs)
        try:
            for made in [pool.submit(go, n, *pair) for n, pair in enumerate(todo)]:
                made.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in RUNNING:
                process.terminate()
            raise
        finally:
            pool.shutdown()
    report.table(results)
    return 0 if all(result.good for result in results) else 1


def _process(
    scenario: Scenario, seed: int, kind: str, folder: Path, template: Path, seconds: float
) -> int:
    """A process of its own for one run; its exit code."""
    command = [sys.executable, "-m", "chaos", scenario.name, "--seed", str(seed)]
    command += ["--seconds", str(seconds), "--server", kind]
    command += ["--one", str(folder), "--template", str(template)]
    with folder.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        RUNNING.add(process)
        code = process.wait()
        RUNNING.discard(process)
    folder.mkdir(exist_ok=True)
    folder.with_suffix(".log").rename(folder / "run.log")
    return code


def _put_away(folder: Path, keep: Path | None, name: str) -> None:
    """Keep histories and logs where they are wanted; the data goes."""
    shutil.rmtree(folder / "data", ignore_errors=True)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(keep / name, ignore_errors=True)
        shutil.copytree(folder, keep / name, ignore=shutil.ignore_patterns(".s.*"))
    shutil.rmtree(folder, ignore_errors=True)


def _short_tmp() -> str:
    """A socket's path may have 107 bytes: a deep TMPDIR would not do."""
    tmp = tempfile.gettempdir()
    return tmp if len(tmp) < 60 else "/tmp"  # noqa: S108


if __name__ == "__main__":
    sys.exit(main())
