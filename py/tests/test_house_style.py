"""Conventions that no linter knows: SQL stays in SQL, names match, nothing private is here."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "py" / "switchboard"
FUNCTIONS = ROOT / "db" / "functions"
SQL_TESTS = ROOT / "db" / "tests"

# Faults of the project's list that belong to the queue in SQL, by number.
FAULTS = (1, 2, 3, 4, *range(6, 24), 61, 63, 64, 65, 67)
# What serves people at a shell or in a browser may name verbs; the gateway may not.
FOR_PEOPLE = ("cli", "demo", "welcome", "first", "board_forms")


def verbs() -> set[str]:
    """The names in the register of tools."""
    register = (FUNCTIONS / "50_tools.sql").read_text()
    body = register[register.index("switchboard.tools()") : register.index("comment on function")]
    return set(re.findall(r"^\s+\('([a-z_]+)',", body, re.MULTILINE))


def gateway_modules() -> list[Path]:
    return [path for path in PACKAGE.glob("*.py") if not path.stem.startswith(FOR_PEOPLE)]


def tracked() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_the_register_was_read() -> None:
    assert {"claim_next", "complete", "create_webhook"} <= verbs()


@pytest.mark.parametrize("module", gateway_modules(), ids=lambda path: path.stem)
def test_python_has_no_code_per_verb(module: Path) -> None:
    texts = {
        node.value
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not texts & verbs()


@pytest.mark.parametrize("module", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_modules_are_flat_short_and_say_what_they_are(module: Path) -> None:
    assert module.parent == PACKAGE
    assert ast.get_docstring(ast.parse(module.read_text()))
    assert len(module.read_text().splitlines()) <= 400, "one concept?"


def test_every_function_file_has_a_test_file() -> None:
    missing = {path.name for path in FUNCTIONS.glob("*.sql")} - {
        path.name for path in SQL_TESTS.glob("*.sql")
    }
    assert not missing


def test_every_isolation_spec_has_an_expected_output() -> None:
    isolation = SQL_TESTS / "isolation"
    specs = {path.stem for path in (isolation / "specs").glob("*.spec")}
    assert specs
    assert specs == {path.stem for path in (isolation / "expected").glob("*.out")}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_a_test(fault: int) -> None:
    files = [*SQL_TESTS.glob("*.sql"), *(SQL_TESTS / "isolation" / "specs").glob("*.spec")]
    named = re.compile(rf"[Ff]aults? (\d+,? (and )?)*{fault}\b")
    assert any(named.search(path.read_text()) for path in files)


def test_the_schema_of_the_migrations_is_committed() -> None:
    schema = (ROOT / "db" / "schema.sql").read_text()
    assert "CREATE TABLE switchboard.todos" in schema


@pytest.mark.skipif(not tracked(), reason="no git here, or not a clone")
def test_nothing_of_this_machine_is_in_the_tree() -> None:
    home = "/" + "root" + "/"
    ours = str(ROOT) + "/"
    found = [
        path.name
        for path in tracked()
        if path.suffix in {".py", ".sql", ".md", ".toml", ".sh", ""}
        and path != Path(__file__)
        and (home in (text := path.read_text(errors="replace")) or ours in text)
    ]
    assert not found
