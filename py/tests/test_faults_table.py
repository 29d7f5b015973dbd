"""docs/faults.md against the tests: every test that its tables name exists, every fault has one.

A name in the table is one of: `test_x.py::test_name` (py/tests), `file.sql::beginning of a test's
name` (db/tests), `race.spec::steps of a permutation` (db/tests/isolation), `bench/run NAME`,
`scripts/chaos SCENARIO` (py/chaos).
"""

import ast
import re
from pathlib import Path

import pytest

from chaos.scenario import load

ROOT = Path(__file__).parents[2]
PY_TESTS = ROOT / "py" / "tests"
SQL_TESTS = ROOT / "db" / "tests"
SPECS = SQL_TESTS / "isolation" / "specs"
NUMBERS = range(1, 68)
RULES = [f"w{number}" for number in range(1, 20)]  # for webhooks
REACHABLE = [f"h{number}" for number in range(1, 19)]  # for MCP and HTTP
DATABASE = [f"d{number}" for number in range(1, 12)]  # for what a database login reaches
OUTBOUND = [f"o{number}" for number in range(1, 13)]  # for calls to others
WHERE = {"make test", "make bench", "make chaos"}


def table(label: str) -> dict[str, list[str]]:
    """The cells of each row whose first cell is ``label``, a pattern, by that cell."""
    text = (ROOT / "docs" / "faults.md").read_text()
    rows = re.findall(rf"^\| ({label}) \|(.*)\|$", text, re.MULTILINE)
    found = {key: [cell.strip() for cell in rest.split(" | ")] for key, rest in rows}
    assert len(found) == len(rows), "a fault or a rule has two rows"
    return found


TABLE = {int(number): cells for number, cells in table(r"\d+").items()}
BY_RULE = {**table(r"w\d+"), **table(r"h\d+"), **table(r"d\d+"), **table(r"o\d+")}
NAMED: list[tuple[int | str, str]] = [
    (number, name)
    for number, cells in (*TABLE.items(), *BY_RULE.items())
    for name in re.findall(r"`([^`]+)`", cells[1])
]


def is_there(name: str) -> bool:
    """Whether the test of this name exists."""
    file, _, test = name.partition("::")
    if name.startswith("bench/run "):
        bench = name.removeprefix("bench/run ")
        main = (ROOT / "bench" / "__main__.py").read_text()
        return f'"{bench}"' in main and (ROOT / f"bench/{bench.replace('-', '_')}.py").is_file()
    if name.startswith("scripts/chaos "):
        return name.removeprefix("scripts/chaos ") in load()
    if file.endswith(".py"):
        tree = ast.parse((PY_TESTS / file).read_text())
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        return test in [node.name for node in tree.body if isinstance(node, functions)]
    if file.endswith(".spec"):
        return f"\npermutation {test}\n" in (SPECS / file).read_text()
    text = (SQL_TESTS / file).read_text()
    return bool(test) and "'" + test.replace("'", "''") in text


def test_every_fault_has_a_row() -> None:
    assert list(TABLE) == list(NUMBERS)
    assert all(len(cells) == 4 and all(cells) for cells in TABLE.values())


def test_every_rule_has_a_row() -> None:
    assert list(BY_RULE) == [*RULES, *REACHABLE, *DATABASE, *OUTBOUND]
    assert all(len(cells) == 4 and all(cells) for cells in BY_RULE.values())


@pytest.mark.parametrize("number", [*NUMBERS, *BY_RULE])
def test_a_fault_of_the_queue_has_tests_and_was_seen_red(number: int | str) -> None:
    assert [name for fault, name in NAMED if fault == number]
    _, _, where, broken = {**TABLE, **BY_RULE}[number]
    assert set(where.split(", ")) <= WHERE
    assert broken != "-"


@pytest.mark.parametrize(("number", "name"), NAMED, ids=lambda value: str(value))
def test_what_the_table_names_exists(number: int | str, name: str) -> None:
    assert is_there(name), f"{number}: no test {name}"
