"""The dashboard and the alerts that are shipped: they load, and every name in them is one that a job has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.ops.server.metrics import FAMILIES, JOB_LABEL

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "penstock.json").read_text(encoding="utf-8"))
RULES: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]

FUNCTIONS = {
    "abs", "avg", "ceil", "changes", "clamp_max", "clamp_min", "count", "delta", "deriv", "floor", "histogram_quantile",
    "increase", "irate", "label_replace", "max", "max_over_time", "min", "min_over_time", "rate", "resets", "round",
    "sum", "time", "topk",
}  # fmt: skip
WORDS = {"and", "bool", "by", "group_left", "group_right", "ignoring", "offset", "on", "or", "unless", "without"}
OURS = {JOB_LABEL, "le"}

TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
PAIRS = {")": "(", "]": "[", "}": "{"}


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        yield panel
        yield from panel.get("panels", ())


def expressions() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']} {target['refId']}", target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield f"annotation {annotation['name']}", annotation["expr"]
    for rule in ALERTS:
        yield f"alert {rule['alert']}", rule["expr"]


EXPRESSIONS = dict(expressions())
every_expression = pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=list(EXPRESSIONS))


def plain(expression: str) -> str:
    """With Grafana's variables filled in, and texts emptied."""
    return TEXT.sub('""', expression.replace("$__rate_interval", "5m"))


def families(expression: str) -> set[str]:
    return set(re.findall(r"\bpenstock_\w+", plain(expression)))


def family_of(name: str) -> str | None:
    """The family that a series belongs to: a histogram's has three endings."""
    if name in FAMILIES and FAMILIES[name].kind != "histogram":
        return name
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return base if base != name and base in FAMILIES and FAMILIES[base].kind == "histogram" else None


@every_expression
def test_every_metric_is_one_that_a_job_has(expression: str) -> None:
    names = families(expression)
    assert names or re.search(r"\bup\b", expression)  # Prometheus's own, of every target
    assert [name for name in names if family_of(name) is None] == []


@every_expression
def test_every_label_is_one_that_the_metric_has(expression: str) -> None:
    for name, inside in re.findall(r"\b(penstock_\w+)\{([^}]*)\}", plain(expression)):
        family = family_of(name)
        assert family is not None
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside)) <= {*FAMILIES[family].labels, *OURS}, name
    known = OURS.union(*(FAMILIES[family].labels for name in families(expression) if (family := family_of(name))))
    for inside in re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", plain(expression)):
        assert {label.strip() for label in inside.split(",") if label.strip()} <= known


@every_expression
def test_counters_are_only_seen_through_rates(expression: str) -> None:
    for name in families(expression):
        if (FAMILIES.get(name) is not None and FAMILIES[name].kind == "counter") or name.endswith("_bucket"):
            assert re.search(rf"\b(rate|increase|changes|irate|resets)\({name}\b", expression), name


@every_expression
def test_expressions_are_well_formed(expression: str) -> None:
    text = plain(expression)
    assert "$" not in text
    opened: list[str] = []
    for sign in text:
        if sign in PAIRS.values():
            opened.append(sign)
        elif sign in PAIRS:
            assert opened, text
            assert opened.pop() == PAIRS[sign], text
    assert opened == []
    called = set(re.findall(r"\b([a-z_]+)\s*\(", text)) - WORDS
    assert called <= FUNCTIONS
    assert not re.search(r"(==|!=|<=|>=|[-+*/%^<>]|\band|\bor|\bunless)\s*$", text), "ends in an operator"
    assert all(re.fullmatch(r"\d+[smhdw]", span) for span in re.findall(r"\[([^\]]*)\]", text))


@every_expression
def test_prometheus_s_grammar_takes_them(expression: str) -> None:
    parser = pytest.importorskip("promql_parser", reason="promql-parser of the group dev is not installed")
    parser.parse(expression.replace("$__rate_interval", "5m"))


def test_alerts_say_what_is_wrong_and_how_bad_it_is() -> None:
    names = [rule["alert"] for rule in ALERTS]
    assert len(set(names)) == len(names)
    for rule in ALERTS:
        assert re.fullmatch(r"Penstock[A-Z]\w+", rule["alert"])
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"\d+[smhd]", str(rule.get("for", "1m")))
        used = [FAMILIES[found] for name in families(rule["expr"]) if (found := family_of(name))]
        told = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        assert told <= {*(label for family in used for label in family.labels), JOB_LABEL, "instance"}, rule["alert"]


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(DASHBOARD)
    every = list(panels())
    assert len({panel["id"] for panel in every}) == len(every)
    for panel in every:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__rate_interval", "__all"}
    assert used == variables
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            assert [family_of(name) for name in re.findall(r"penstock_\w+", variable["definition"])] != [None]


def test_nothing_in_them_is_fetched_from_another_host() -> None:
    for path in DEPLOY.rglob("*.*"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<!k8s://)https?://", text), path  # a cluster's own API is no other host
