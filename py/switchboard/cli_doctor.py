"""``switchboard doctor``: what is wrong, what is late, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict

import click

from switchboard import printing
from switchboard.cli_options import json_option
from switchboard.cli_options import settings as read_settings
from switchboard.doctor_runbooks import runbook

MARKS = {"ok": "ok   ", "warning": "WARN ", "error": "ERROR"}


@click.command()
@click.option("--deep", is_flag=True, help="Also see whether every todo is sound: reads all.")
@json_option
def doctor(deep: bool, as_json: bool) -> None:
    """Check the installation. Exits 1 only when something is an error.

    Each check is ok, a warning (it works, but late or at a risk) or an error (something does not
    work), and says what to do, and which runbook says more.

    Example: switchboard doctor
    """
    from switchboard.doctor import examine  # its HTTP client costs what others need not pay

    findings = list(examine(read_settings(), deep=deep))
    lines = []
    for one in findings:
        lines.append(f"{MARKS[one.level]}  {one.name}: {printing.visible(one.found)}")
        if one.advice:
            lines.append(f"       → {printing.visible(one.advice)}")
            lines.append(f"       see {runbook(one.name)}")
    failed = any(one.level == "error" for one in findings)
    checks = [
        {**asdict(one), "runbook": runbook(one.name) if one.advice else None} for one in findings
    ]
    report = {"ok": not failed, "checks": checks}
    printing.result(report, as_json, lines)
    if failed:
        raise click.exceptions.Exit(1)
