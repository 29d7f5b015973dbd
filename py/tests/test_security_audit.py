"""scripts/audit.py: what is a failure, and what is only said. Who is asked is played here."""

from __future__ import annotations

import importlib.util
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def load() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


audit = load()
HERE = {"h11": "0.16.0", "jinja2": "3.1.6"}


def index(rows: list[dict[str, Any]], status: int = 0) -> Any:
    """A pip-audit that knows this; what it was asked is kept."""
    asked: list[str] = []

    def run(command: list[str], _: Path) -> tuple[int, str]:
        asked.append(Path(command[command.index("-r") + 1]).read_text())
        known = [row for row in rows if row["name"] in asked[-1]]
        return status, json.dumps({"dependencies": known})

    run.asked = asked  # type: ignore[attr-defined]
    return run


def row(name: str, *flaws: str) -> dict[str, Any]:
    found = [{"id": one, "fix_versions": ["9.9"]} for one in flaws]
    return {"name": name, "version": HERE[name], "vulns": found}


def test_a_known_flaw_is_a_failure() -> None:
    run = index([row("h11"), row("jinja2", "GHSA-1", "GHSA-2")], status=1)
    found, unknown = audit.ask_index(HERE, [], run)
    assert [line.split(",")[0] for line in found] == [
        "jinja2 3.1.6: GHSA-1",
        "jinja2 3.1.6: GHSA-2",
    ]
    assert unknown == []
    assert run.asked[-1] == "h11==0.16.0\njinja2==3.1.6\n"


def test_an_index_without_advisories_is_asked_once_and_said() -> None:
    """A mirror answers for no package: pip-audit calls that a success."""
    skipped = [{"name": name, "skip_reason": "not found"} for name in HERE]
    run = index(skipped)
    found, unknown = audit.ask_index(HERE, [], run)
    assert found == []
    assert "no advisories here" in unknown[0]
    assert len(run.asked) == 1


@pytest.mark.parametrize(
    "answer", [(124, ""), (127, ""), (1, "Traceback"), (0, "{}"), (1, '{"error": {}}')]
)
def test_who_does_not_answer_is_said_and_no_failure(answer: tuple[int, str]) -> None:
    def run(*_: Any) -> tuple[int, str]:
        return answer

    for found, unknown in (audit.ask_index(HERE, [], run), audit.ask_npm(".", run)):
        assert found == []
        assert len(unknown) == 1


def test_npm_counts_from_high_on() -> None:
    def answer(**counts: int) -> tuple[int, str]:
        zero = dict.fromkeys(("info", "low", "moderate", "high", "critical"), 0)
        return 1, json.dumps({"metadata": {"vulnerabilities": {**zero, **counts}}})

    assert audit.ask_npm(".", lambda *_: answer(moderate=3)) == ([], [])
    found, _ = audit.ask_npm(".", lambda *_: answer(high=1, critical=1))
    assert "2 serious" in found[0]


def test_what_takes_too_long_or_is_not_there_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(audit, "SECONDS", 0.2)
    assert audit.run([sys.executable, "-c", "input()"], tmp_path)[0] in (1, 124)
    assert audit.run([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path) == (124, "")
    assert audit.run(["no-such-program"], tmp_path) == (127, "")


def test_a_version_below_the_least_is_a_failure() -> None:
    needed = {"h11": ["0.16.0", "CVE-2025-43859"]}
    assert audit.too_old({"h11": "0.16.0"}, needed, "here") == []
    assert audit.too_old({"other": "0.1"}, needed, "here") == []
    assert "CVE-2025-43859" in audit.too_old({"h11": "0.9.0"}, needed, "here")[0]


def test_every_package_of_the_image_has_a_pin_that_is_admitted() -> None:
    pinned, _ = audit.pins("h11==0.16.0 # why\nuvicorn==0.54.0\n# what builds the package\nx==1\n")
    assert pinned == {"h11": "0.16.0", "uvicorn": "0.54.0"}
    there = audit.installed("switchboard")
    assert audit.loose_ends({"click": "8.5.1"}, {}, ["click>=8.2,<9"]) == []
    assert "no pin" in audit.loose_ends({}, {}, ["click>=8.2,<9"])[0]
    assert "is needed" in audit.loose_ends({"click": "9.0"}, {}, ["click>=8.2,<9"])[0]
    only = {"uvicorn": there["uvicorn"]}
    assert "h11 is needed by uvicorn" in "\n".join(audit.loose_ends(only, there, []))


def test_licences_are_those_that_are_allowed() -> None:
    allowed = tomllib.loads((ROOT / "scripts" / "advisories.toml").read_text())["licences"]
    assert audit.licence("psycopg") == ["LGPL-3.0-only"]
    assert audit.licence("cryptography") == ["Apache-2.0", "BSD-3-Clause"]
    for name in audit.installed("switchboard"):
        assert {*audit.licence(name)} <= {*allowed["allowed"]}, name


def test_nothing_is_wrong_today(capsys: pytest.CaptureFixture[str]) -> None:
    """Without asking anybody; `make lint` asks."""
    assert audit.main(["--offline"]) == 0, capsys.readouterr().err
    assert "not audited: nobody was asked" in capsys.readouterr().out
