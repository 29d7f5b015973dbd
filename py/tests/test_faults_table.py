"""docs/faults.md against the tests: every test that its tables name exists, every fault has one.

A name in the table is one of: `test_x.py::test_name` (py/tests), `file.sql::beginning of a test's
name` (db/tests), `race.spec::steps of a permutation` (db/tests/isolation), `bench/run NAME`.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PY_TESTS = ROOT / "py" / "tests"
SQL_TESTS = ROOT / "db" / "tests"
SPECS = SQL_TESTS / "isolation" / "specs"
NUMBERS = range(1, 68)
# What the queue itself must have a test for; the others come with the part they belong to.
NEEDED = (*range(1, 33), *range(40, 48), *range(49, 53), 56, *range(59, 68))
RULES = [f"w{number}" for number in range(1, 20)]  # for webhooks
REACHABLE = [f"h{number}" for number in range(1, 19)]  # for MCP and HTTP
WHERE = {"make test", "make bench", "make chaos"}


def table(label: str) -> dict[str, list[str]]:
    """The cells of each row whose first cell is ``label``, a pattern, by that cell."""
    text = (ROOT / "docs" / "faults.md").read_text()
    rows = re.findall(rf"^\| ({label}) \|(.*)\|$", text, re.MULTILINE)
    found = {key: [cell.strip() for cell in rest.split(" | ")] for key, rest in rows}
    assert len(found) == len(rows), "a fault or a rule has two rows"
    return found


TABLE = {int(number): cells for number, cells in table(r"\d+").items()}
WEBHOOKS = table(r"w\d+")
HTTP = table(r"h\d+")
NAMED: list[tuple[int | str, str]] = [
    (number, name)
    for number, cells in (*TABLE.items(), *WEBHOOKS.items(), *HTTP.items())
    for name in re.findall(r"`([^`]+)`", cells[1])
]


def is_there(name: str) -> bool:
    """Whether the test of this name exists."""
    file, _, test = name.partition("::")
    if name.startswith("bench/run "):
        bench = name.removeprefix("bench/run ")
        main = (ROOT / "bench" / "__main__.py").read_text()
        return f'"{bench}"' in main and (ROOT / f"bench/{bench.replace('-', '_')}.py").is_file()
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
    assert list(WEBHOOKS) == RULES
    assert list(HTTP) == REACHABLE
    rows = (*WEBHOOKS.values(), *HTTP.values())
    assert all(len(cells) == 4 and all(cells) for cells in rows)


@pytest.mark.parametrize("number", [*NEEDED, *RULES, *REACHABLE])
def test_a_fault_of_the_queue_has_tests_and_was_seen_red(number: int | str) -> None:
    assert [name for fault, name in NAMED if fault == number]
    _, _, where, broken = {**TABLE, **WEBHOOKS, **HTTP}[number]
    assert set(where.split(", ")) <= WHERE
    assert broken != "-"


@pytest.mark.parametrize(("number", "name"), NAMED, ids=lambda value: str(value))
def test_what_the_table_names_exists(number: int | str, name: str) -> None:
    assert is_there(name), f"{number}: no test {name}"
