"""docs/security.md promises nothing that no test holds."""

from __future__ import annotations

import re

import pytest
from test_faults_table import ROOT, is_there

PAGE = (ROOT / "docs" / "security.md").read_text()
TABLES = re.findall(
    r"^\| promise \| held by \|\n\| --- \| --- \|\n((?:\|.*\|\n)+)", PAGE, re.MULTILINE
)
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for table in TABLES
    for line in table.strip().splitlines()
]


def test_every_section_of_promises_is_read() -> None:
    assert len(TABLES) == PAGE.count("| promise | held by |") == 5
    assert len(ROWS) > 20
    assert all(len(row) == 2 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_promise_is_held_by_tests_that_exist(row: list[str]) -> None:
    named = re.findall(r"`([^`]+)`", row[1])
    assert named, row[0]
    for name in named:
        assert is_there(name), f"{row[0]}: no test {name}"
