"""What people see: the list, a line for each run, the table, and how to repeat what was wrong."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chaos.scenario import Scenario
from chaos.verdict import KINDS, Verdict

VERDICT = "verdict.json"
LEFT_OUT = 77  # exit code of a run that cannot be made here
ABOUT = "Breaks things under load and judges what came of it; docs/chaos.md says more."
SHOWN = 12  # violations of a run


@dataclass(frozen=True)
class Result:
    """A run and what came of it; without a verdict it did not come to its end."""

    scenario: str
    seed: int
    seconds: float
    code: int
    verdict: Verdict | None
    log: Path

    @property
    def good(self) -> bool:
        """Whether it ended, and nothing was wrong or missing; or it cannot be made here."""
        return self.left_out or (self.code == 0 and self.verdict is not None and self.verdict.good)

    @property
    def left_out(self) -> bool:
        """Whether it takes powers that are missing here."""
        return self.code == LEFT_OUT


def say(text: str) -> None:
    """A line for people."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def listing(scenarios: Iterable[Scenario]) -> None:
    """The scenarios, one a line."""
    for scenario in scenarios:
        say(f"{scenario.name:<22} {scenario.summary}")


def write(verdict: Verdict, path: Path) -> None:
    """Keep a verdict as JSON."""
    path.write_text(json.dumps(vars(verdict), indent=1) + "\n")


def read(path: Path) -> Verdict | None:
    """A verdict that was kept, if there is one."""
    if not path.exists():
        return None
    fields = json.loads(path.read_text())
    fields["coverage"] = Counter(fields["coverage"])
    fields["violations"] = [(kind, text) for kind, text in fields["violations"]]
    return Verdict(**fields)


def progress(result: Result, seconds: float) -> None:
    """A line for a run that ended, and what was wrong with it."""
    verdict = result.verdict
    name = f"{result.scenario} seed {result.seed}"
    if result.left_out:
        say(f"left out {name}: {result.log.read_text(errors='replace').splitlines()[-1]}")
    elif verdict is None:
        log = result.log.read_text(errors="replace").splitlines()[-25:]
        say(f"BROKEN   {name} ({result.seconds:.0f} s)\n" + "\n".join("  " + line for line in log))
    else:
        seen = ", ".join(f"{k} {n}" for k, n in sorted(verdict.coverage.items()))
        say(
            f"{'good' if result.good else 'WRONG':<8} {name} ({result.seconds:.0f} s): "
            f"{verdict.attempted} calls, {verdict.todos} todos; {seen}"
        )
        for kind, text in verdict.violations[:SHOWN]:
            say(f"  {kind}: {text}")
        if len(verdict.violations) > SHOWN:
            say(f"  … and {len(verdict.violations) - SHOWN} more")
        if verdict.missing:
            say(f"  never seen, though it was to be provoked: {', '.join(verdict.missing)}")
    if not result.good:
        say(f"  repeat: scripts/chaos {result.scenario} --seed {result.seed} --seconds {seconds:g}")


def table(results: Iterable[Result]) -> None:
    """All runs, one a line, by scenario and seed."""
    say("")
    head = (
        "scenario",
        "seed",
        "calls",
        "ok",
        "refused",
        "unknown",
        *KINDS,
        "stale refused",
        "most",
    )
    rows: list[tuple[str, ...]] = [head]
    for result in sorted(results, key=lambda r: (r.scenario, r.seed)):
        verdict = result.verdict
        if verdict is None:
            why = "left out" if result.left_out else "did not end"
            rows.append((result.scenario, str(result.seed), why))
            continue
        numbers = [verdict.attempted, verdict.acknowledged, verdict.refused, verdict.unknown]
        numbers += [verdict.count(kind) for kind in KINDS]
        numbers += [verdict.coverage["stale_refused"]]
        most = [*verdict.most_in_flight.items(), *verdict.most_charged.items()]
        rows.append(
            (result.scenario, str(result.seed), *map(str, numbers),
             " ".join(f"{queue} {n}" for queue, n in most))
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows if len(row) > i) for i in range(len(head))]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())
