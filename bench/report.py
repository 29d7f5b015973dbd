"""What a benchmark says: progress, tables, promises kept or missed, a JSON result."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "local"

Cell = str | int | float


def progress(text: str) -> None:
    """Say what goes on, with the time, on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@dataclass
class Report:
    """The result of one benchmark.

    Attributes:
        name: the benchmark's name, and the stem of its JSON file.
        quick: a smoke run; its figures are printed, its promises are not judged.
        figures: everything measured, for the JSON file.
        checks: the promises: text, value, the bound, and whether it was kept.
    """

    name: str
    quick: bool = False
    figures: dict[str, object] = field(default_factory=dict)
    checks: list[dict[str, object]] = field(default_factory=list)

    def table(self, title: str, headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Print a table, and keep its rows for the JSON file."""
        lines = [list(headers), *([_shown(cell) for cell in row] for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
        print(f"\n{title}")
        for number, line in enumerate(lines):
            cells = [
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            print("  " + "  ".join(cells).rstrip())
            if number == 0:
                print("  " + "  ".join("-" * width for width in widths))
        self.figures[title] = [dict(zip(headers, row, strict=True)) for row in rows]

    def at_least(self, what: str, value: float, bound: float) -> None:
        self._check(what, value, ">=", bound, value >= bound)

    def at_most(self, what: str, value: float, bound: float) -> None:
        self._check(what, value, "<=", bound, value <= bound)

    def _check(self, what: str, value: float, sign: str, bound: float, kept: bool) -> None:
        check = {"what": what, "value": value, "sign": sign, "bound": bound, "kept": kept}
        self.checks.append(check)

    def close(self) -> bool:
        """Print the promises and write the JSON file.

        Returns:
            Whether every promise was kept; always true for a quick run.
        """
        print()
        for check in self.checks:
            kept = "kept  " if check["kept"] else "MISSED"
            value, bound = check["value"], check["bound"]
            print(f"  {kept}  {check['what']}: {value:.4g} ({check['sign']} {bound:.4g})")
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        path.write_text(
            json.dumps(
                {
                    "benchmark": self.name,
                    "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    "quick": self.quick,
                    "cores": os.cpu_count(),
                    "machine": platform.machine(),
                    "figures": self.figures,
                    "checks": self.checks,
                },
                indent=2,
            )
            + "\n"
        )
        if self.quick:
            print("  (a quick run: too short to judge)")
        return self.quick or all(bool(check["kept"]) for check in self.checks)


def _shown(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.2f}"
    return str(cell)
