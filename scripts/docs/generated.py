"""The parts of docs/*.md that the product itself dictates.

They stand between ``<!-- begin NAME … -->`` and ``<!-- end NAME -->``. Their text is in COMMENT ON,
in the essays that open the files of db/functions, in the register of tools and in the help of the
commands; the scenarios of scripts/chaos, too.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, LiteralString

import click
import psycopg
from psycopg.rows import dict_row

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = ROOT / "db" / "functions"
TARGET = re.compile(r"^([a-z][a-z-]*):.*## (.*)$", re.MULTILINE)
DEFINITION = re.compile(r"^create or replace function switchboard\.(\w+)", re.MULTILINE)
PART = re.compile(r"(<!-- begin (\w+)[^>]*-->\n).*?(<!-- end \2 -->)", re.DOTALL)
CALLERS = ("app", "operator", "worker", "readonly", "cron")
Row = dict[str, Any]

FUNCTION_ROWS: LiteralString = r"""
select p.proname as name, pg_get_function_arguments(p.oid) as arguments,
       pg_get_function_result(p.oid) as result, obj_description(p.oid, 'pg_proc') as comment,
       array(select regexp_replace(a.grantee::regrole::text, '^switchboard_', '')
             from aclexplode(p.proacl) a where a.grantee <> p.proowner) as callers
from pg_proc p where p.pronamespace = 'switchboard'::regnamespace
"""
TYPE_ROWS: LiteralString = r"""
select t.typname as name, obj_description(t.oid, 'pg_type') as comment,
       array(select a.attname || ' ' || format_type(a.atttypid, a.atttypmod) from pg_attribute a
             where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
             order by a.attnum) as fields
from pg_type t join pg_class c on c.oid = t.typrelid
where t.typnamespace = 'switchboard'::regnamespace and c.relkind = 'c'
  and obj_description(t.oid, 'pg_type') not like 'Internal%'
order by t.typname desc
"""
ROLE_ROWS: LiteralString = r"""
select r.rolname as name, shobj_description(r.oid, 'pg_authid') as comment
from pg_roles r where r.rolname = any (%s) order by array_position(%s, r.rolname::text)
"""
ERROR_ROWS: LiteralString = "select * from error_table()"
TOOL_ROWS: LiteralString = """
select name, description, input, required, name = any (default_verbs()) as granted from tools()
"""

OPERATION_ROWS: LiteralString = """
select name, method, path, description, input, required, answer from api_operations()
"""
SHAPE_ROWS: LiteralString = "select name, description, shape from api_shapes() order by name"


def parts(dsn: str) -> dict[str, str]:
    """Every generated part, by name.

    Args:
        dsn: a migrated database, by a superuser's or the owner's login.
    """
    from chaos.scenario import load
    from switchboard.cli import cli

    with psycopg.connect(dsn, row_factory=dict_row) as db:
        db.execute("set search_path = switchboard")
        functions = {row["name"]: row for row in db.execute(FUNCTION_ROWS)}
        names = ["switchboard_owner", *(f"switchboard_{name}" for name in CALLERS)]
        made = {
            "functions": function_groups(functions),
            "rows": [line for row in db.execute(TYPE_ROWS) for line in type_lines(row)],
            "roles": table(
                ("role", "is"),
                [(f"`{r['name']}`", r["comment"]) for r in db.execute(ROLE_ROWS, [names, names])],
            ),
            "errors": table(
                ("SQLSTATE", "code", "HTTP", "again?", "message"),
                [error_cells(row) for row in db.execute(ERROR_ROWS)],
            ),
            "tools": table(
                ("verb", "arguments (**bold**: required)", "granted", "what it does"),
                [tool_cells(row) for row in db.execute(TOOL_ROWS)],
            ),
            "operations": operation_groups(list(db.execute(OPERATION_ROWS))),
            "shapes": [line for row in db.execute(SHAPE_ROWS) for line in shape_lines(row)],
            "targets": table(("make", "what it does"), target_cells()),
            "commands": table(("command", "what it does"), list(command_cells(cli))),
            "scenarios": table(
                ("scenario", "what goes wrong"), [(s.name, s.summary) for s in load().values()]
            ),
        }
    return {name: "\n".join(lines) + "\n" for name, lines in made.items()}


def pages() -> list[Path]:
    """The pages that may hold generated parts."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def renewed(page: str, made: dict[str, str]) -> str:
    """A page with its generated parts replaced."""
    return PART.sub(lambda found: f"{found[1]}{made[found[2]]}{found[3]}", page)


def function_groups(functions: dict[str, Row]) -> list[str]:
    """The functions, file by file: a list of contents, then essays and entries."""
    contents, groups = list[tuple[str, str]](), list[str]()
    for path in sorted(FUNCTIONS.glob("*.sql")):
        text = path.read_text(encoding="utf-8")
        title, *essay = read_essay(text)
        defined = [functions[name] for name in DEFINITION.findall(text)]
        public = [row for row in defined if row["callers"]]
        private = [row for row in defined if not row["callers"]]
        links = ", ".join(f"[{row['name']}](#{row['name']})" for row in public)
        contents.append((f"[{title}](#{anchor(title)})", links or "(none to call)"))
        groups += ["", f"## {title}", "", f"`db/functions/{path.name}`", "", *essay]
        for row in public:
            groups += function_lines(row)
        if private:
            groups += ["", "Behind them, for the owner alone:", ""]
            groups += [f"- `{row['name']}`: {plain(row['comment'])}" for row in private]
    return [*table(("group", "functions"), contents), *groups, ""]


def function_lines(row: Row) -> list[str]:
    """One function: signature, who may call it, what it does."""
    arguments = re.split(r", (?=(?:OUT )?\w+ )", tidy(row["arguments"]))
    signature = f"{row['name']}({', '.join(arguments)})"
    if len(signature) > 100:
        signature = f"{row['name']}(\n    " + ",\n    ".join(arguments) + ")"
    result = tidy(row["result"])
    found = re.fullmatch(r"TABLE\((.*)\)", result)
    result = f"rows of ({found[1]})" if found else result.replace("SETOF ", "rows of ")
    callers = ", ".join(name for name in CALLERS if name in row["callers"])
    code = ["```", signature, f"→ {result}", "```"]
    return ["", f"### {row['name']}", "", *code, "", f"*{callers}*", "", plain(row["comment"])]


def type_lines(row: Row) -> list[str]:
    """One composite type with its fields."""
    fields = ", ".join(tidy(field) for field in row["fields"])
    return ["", f"**{row['name']}**: {plain(row['comment'])}", "", f"({fields})"]


def error_cells(row: Row) -> tuple[str, ...]:
    """One row of the error table."""
    again = "later" if row["retry"] else "no"
    return row["sqlstate"], row["code"], str(row["http_status"]), again, row["message"]


def tool_cells(row: Row) -> tuple[str, ...]:
    """One verb of the register."""
    required = set(row["required"])
    ordered = sorted(row["input"], key=lambda name: (name not in required, name))
    arguments = ", ".join(f"**{name}**" if name in required else name for name in ordered)
    granted = "by default" if row["granted"] else "by name"
    if row["name"] == "admission_status":
        granted = "with a claim"
    return f"`{row['name']}`", arguments, granted, row["description"]


def operation_groups(rows: list[Row]) -> list[str]:
    """The operations of the REST interface, a table for each kind of thing."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["path"].split("/")[3], []).append(row)
    lines = list[str]()
    for name, group in groups.items():
        head = ("operation", "arguments (**bold**: required)", "answer", "what it does")
        lines += ["", f"### {name}", "", *table(head, [operation_cells(row) for row in group])]
    return [*lines[1:], ""]


def operation_cells(row: Row) -> tuple[str, ...]:
    """One operation: what its address does not say."""
    shown = {name: one for name, one in row["input"].items() if one["in"] != "path"}
    required = set(row["required"])
    arguments = [
        (f"**{name}**" if name in required else name) + (" (query)" if one["in"] == "query" else "")
        for name, one in sorted(shown.items(), key=lambda item: (item[0] not in required, item[0]))
        if one["in"] != "whole body"
    ]
    whole = [f"the body is the {name}" for name, one in shown.items() if one["in"] == "whole body"]
    call = f"`{row['name']}` `{row['method']} {row['path'].removeprefix('/api/v1')}`"
    return call, ", ".join(arguments + whole), fields_text(row["answer"]), row["description"]


def shape_lines(row: Row) -> list[str]:
    """One shape of answers with its fields."""
    return ["", f"**{row['name']}**: {plain(row['description'])}", "", fields_text(row["shape"])]


def fields_text(shape: Row) -> str:
    """The fields of a shape, name and type; ? marks what may be left out."""
    return ", ".join(
        kind_text(kind) if name == "..." else f"{name} {kind_text(kind)}"
        for name, kind in shape.items()
    )


def kind_text(kind: Any) -> str:
    """A type of a shape, for people."""
    if isinstance(kind, list):
        return f"[{kind_text(kind[0])}]" + (" or null" if None in kind else "")
    if kind.endswith("|null"):
        return kind_text(kind.removesuffix("|null")) + " or null"
    return kind[1:].replace(",", "/") if kind.startswith("=") else f"*{kind}*"


def target_cells() -> list[tuple[str, ...]]:
    """Every target of the Makefile."""
    targets = TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8"))
    return [(f"`make {name}`", text) for name, text in targets]


def command_cells(command: click.Command, path: str = "") -> Iterator[tuple[str, str]]:
    """Every command below a group, with its arguments."""
    path = f"{path} {command.name}".strip() if path or command.name != "cli" else "switchboard"
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from command_cells(command.commands[name], path)
        return
    arguments = [p.make_metavar(click.Context(command)) for p in arguments_of(command)]
    help_lines = (command.help or "").strip().split("\n\n")[0].split()
    yield f"`{' '.join([path, *arguments])}`", " ".join(help_lines)


def arguments_of(command: click.Command) -> list[click.Parameter]:
    """The positional arguments of a command."""
    return [parameter for parameter in command.params if isinstance(parameter, click.Argument)]


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """A Markdown table."""
    cells = [head, ("---",) * len(head), *([plain(cell) for cell in row] for row in rows)]
    return ["| " + " | ".join(row) + " |" for row in cells]


def read_essay(text: str) -> list[str]:
    """The comment that opens a function file as Markdown: its title, then lines."""
    block = re.match(r"(?:--.*\n)+", text)
    lines = [line[2:].rstrip() for line in block[0].splitlines()] if block else ["Functions."]
    first = lines[0].strip()
    title = re.split(r"[:.(]", first)[0].strip()
    result, code = [title], False
    if first.rstrip(".") != title:
        result += [plain(first), ""]
    for line in lines[1:]:
        indented = line.startswith("   ")
        if indented != code:
            result += ["```"] if code else ["", "```"]
            code = indented
        result.append(line[3:] if indented else plain(line.strip()))
    if code:
        result.append("```")
    return result[:1] + [
        line for before, line in pairwise(result) if line or (before and before != result[0])
    ]


def tidy(declaration: str) -> str:
    """Types and defaults of the catalog as a person writes them."""
    text = declaration.replace("timestamp with time zone", "timestamptz")
    text = re.sub(r"::[a-z ]+(\[\])?(?=,|$)", "", text)
    return text.replace(" DEFAULT NULL", " = null").replace(" DEFAULT ", " = ")


def plain(text: str) -> str:
    """Text that Markdown shows as it stands, also within a table."""
    return re.sub(r"([<|])", r"\\\1", text)


def anchor(title: str) -> str:
    """The anchor that viewers of Markdown make of a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
