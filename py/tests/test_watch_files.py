"""The dashboard and the alerts: what they name is what /metrics prints.

Every expression is parsed as Prometheus would, and followed from its selectors outward, so that a
label in a matcher, a grouping, a legend or an annotation is one that is there at that point.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import promql_parser as promql
import pytest
import yaml
from conftest import Sql
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "ops" / "grafana" / "switchboard.json").read_text())
RULES_FILE = ROOT / "ops" / "prometheus" / "alerts.yml"
RULES = [
    rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]
]
PAGE = (ROOT / "docs" / "monitoring.md").read_text()

OF_TARGETS = {"job", "instance"}  # labels that Prometheus itself puts on what it scrapes
OF_PROMETHEUS = {"up": OF_TARGETS}
GRAFANA = {"$__rate_interval": "5m", "$__range": "1h", "$job": "switchboard", "$queue": ".*"}
SETS = ("and", "or", "unless")

Series = dict[str, set[str]]


def plain(expression: str) -> str:
    """An expression of the dashboard with something in place of Grafana's variables."""
    for variable, value in GRAFANA.items():
        expression = expression.replace(variable, value)
    return expression


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def targets() -> Iterator[tuple[str, dict[str, Any]]]:
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target


def every_expression() -> dict[str, str]:
    shown = {f"panel {title} {t['refId']}": plain(t["expr"]) for title, t in targets()}
    return {**shown, **{f"alert {rule['alert']}": rule["expr"] for rule in RULES}}


def selectors(expression: str) -> list[promql.VectorSelector]:
    found: list[promql.VectorSelector] = []

    def note(node: Any) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append(node)

    promql.walk(promql.parse(expression), pre_visit=note)
    return found


def labels_of(node: Any, series: Series) -> set[str]:
    """The labels of what an expression answers; fails where one is used that is not there."""
    match node:
        case promql.VectorSelector():
            assert node.name in series, f"no series {node.name}"
            used = {matcher.name for matcher in node.matchers.matchers}
            assert used <= series[node.name], f"{node.name} has no {used - series[node.name]}"
            return series[node.name]
        case promql.MatrixSelector():
            return labels_of(node.vector_selector, series)
        case promql.AggregateExpr():
            inner = labels_of(node.expr, series)
            if node.modifier is None:
                return set()
            kept = set(node.modifier.labels)
            assert kept <= inner, f"by {kept - inner}"
            return kept if node.modifier.type == promql.AggModifierType.By else inner - kept
        case promql.BinaryExpr():
            return of_both(node, labels_of(node.lhs, series), labels_of(node.rhs, series))
        case promql.Call():
            arguments = [labels_of(argument, series) for argument in node.args]
            return set() if node.func.name == "absent" else set().union(*arguments)
        case promql.ParenExpr() | promql.UnaryExpr():
            return labels_of(node.expr, series)
        case promql.NumberLiteral() | promql.StringLiteral():
            return set()
    raise AssertionError(f"{type(node).__name__} is not followed yet")


def of_both(node: promql.BinaryExpr, left: set[str], right: set[str]) -> set[str]:
    """The labels of a binary expression whose sides have those."""
    matching = node.modifier.matching if node.modifier else None
    if matching is None:
        assert not left or not right or left == right, f"{left} never match {right}"
        return left or right
    on = set(matching.labels)
    assert matching.type == promql.LabelModifierType.Include, "say `on`"
    assert on <= left, f"on {on - left} of the left side"
    assert on <= right, f"on {on - right} of the right side"
    return left if str(node.op) in SETS else on


@pytest.fixture
def series(serve: Callable[..., Any], db: Sql, monkeypatch: pytest.MonkeyPatch) -> Series:
    """What /metrics prints when there is something of everything: names and labels."""
    alpha = db.vend("alpha", ("inbox", "busy"))
    for queue in ("busy", "inbox", "inbox"):
        db.create(alpha, "x", queue)
    claim = "select id::text from switchboard.claim_next(%s, 'w', '{inbox}')"
    db.value("select switchboard.complete(%s, %s, 'w')", alpha.id, db.value(claim, alpha.id))
    db.value(claim, alpha.id)
    db.rows("update switchboard.todos set due_at = now() - interval '1 s' where state = 'claimed'")
    db.rows("select * from switchboard.reap_expired()")
    policy = "select switchboard.set_admission_policy(%s, 'busy', '{\"max_in_flight\": 0}', %s)"
    db.value(policy, alpha.id, db.human)
    db.value("select switchboard.note_refusal(%s, 'busy', 'paused')", alpha.id)
    db.rows(
        "insert into switchboard.delivery_totals values (0, 'github', 'signed', 'refused', '', 1)"
    )
    db.rows("insert into switchboard.notify_totals select 0, 'todo.ready', 'failed', 1")
    served = serve(metrics_token="t")
    text = httpx2.get(f"{served.url}/metrics", headers={"authorization": "Bearer t"}).text
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture
def scraped(series: Series) -> Series:
    """The same in Prometheus, with what that adds."""
    return {name: labels | OF_TARGETS for name, labels in series.items()} | OF_PROMETHEUS


def test_series_and_labels_are_what_metrics_prints(scraped: Series) -> None:
    wrong = {}
    for name, expression in every_expression().items():
        try:
            labels_of(promql.parse(expression), scraped)
        except (AssertionError, ValueError) as error:
            wrong[name] = str(error).splitlines()[0]
    assert not wrong


def test_legends_and_annotations_use_labels_that_are_left(scraped: Series) -> None:
    for title, target in targets():
        named = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]))
        assert named <= labels_of(promql.parse(plain(target["expr"])), scraped), title
    for rule in RULES:
        text = " ".join(rule["annotations"].values())
        named = set(re.findall(r"\$labels\.(\w+)", text))
        assert named <= labels_of(promql.parse(rule["expr"]), scraped), rule["alert"]


def test_each_metric_is_on_the_dashboard_and_on_the_page(series: Series) -> None:
    shown = {node.name for _, target in targets() for node in selectors(plain(target["expr"]))}
    assert series.keys() <= shown
    assert not [name for name in series if f"`{name}`" not in PAGE]


@pytest.mark.parametrize("name", every_expression())
def test_values_in_matchers_are_ones_that_there_are(name: str) -> None:
    """A misspelt state matches nothing, and nobody is told."""
    known = "".join(path.read_text() for path in sorted((ROOT / "db").glob("*/*.sql")))
    for node in selectors(every_expression()[name]):
        for matcher in node.matchers.matchers:
            if matcher.name in OF_TARGETS or matcher.value in ("", ".*"):
                continue
            for value in matcher.value.split("|"):
                assert f"'{value}'" in known, f"{matcher.name}={value}"


@pytest.mark.parametrize("name", every_expression())
def test_no_todo_is_counted_once_for_each_server(name: str) -> None:
    """Servers print the same numbers: a sum needs a max over them below it."""
    own = {"switchboard_metrics_collection_errors_total", "switchboard_build_info", "up"}

    def check(node: Any) -> None:
        if isinstance(node, promql.AggregateExpr) and str(node.op) in ("sum", "avg"):
            inner = node.expr
            per_server = isinstance(inner, promql.AggregateExpr) and str(inner.op) == "max"
            assert per_server or {n.name for n in selectors(inner.prettify())} <= own

    promql.walk(promql.parse(every_expression()[name]), pre_visit=check)


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    titles = [panel["title"] for panel in panels()]
    assert len(titles) >= 20
    assert DASHBOARD["schemaVersion"] >= 39
    assert "id" not in DASHBOARD, "an id is of one Grafana"
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "queue"]
    assert variables["datasource"]["type"] == "datasource"
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["description"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references))
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            assert 'job="$job"' in target["expr"], panel["title"]
    by_queue = [t["expr"] for _, t in targets() if "queue=~" in t["expr"]]
    assert len(by_queue) > 15


def test_panels_lie_side_by_side() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]


def test_an_alert_says_what_to_do() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names)) >= 12
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket", "info")
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}, rule["alert"]
        assert f"| {rule['alert']} |" in PAGE, "docs/monitoring.md lists the alerts"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_the_runbook_of_an_alert_is_there(rule: dict[str, Any]) -> None:
    path, _, fragment = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}
    assert fragment in anchors


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool (prometheus) is not installed")
def test_promtool_agrees() -> None:
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]):
        done = subprocess.run(
            ["promtool", *command],
            cwd=RULES_FILE.parent,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
