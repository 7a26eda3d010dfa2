"""Alerts and dashboard name metrics that exist, and use them as what they are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from haservices.metrics.figures import (
    FAMILIES,
    FIGURES,
    INFO,
    LATENCIES,
    OTHERS,
    metric_name,
)


pytestmark = pytest.mark.proves("F1")

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = (DEPLOY / "prometheus" / "lodestar.rules.yml").read_text(encoding="utf-8")
FIRED = (DEPLOY / "prometheus" / "lodestar.test.yml").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads(
    (DEPLOY / "grafana" / "lodestar.json").read_text(encoding="utf-8")
)
LABELS = {
    "instance",
    "job",
    "job_id",
    "state",
    "kind",
    "le",
    "code",
    "reason",
    "status",
}


def metrics() -> set[str]:
    """Return the names of all samples that any role serves."""
    found = set()
    for role, figures in FIGURES.items():
        for name, figure in figures.items():
            found.add(metric_name(role, figure.name or name))
        for family in FAMILIES[role]:
            found.add(metric_name(role, f"{family.name}_total"))
        for name in OTHERS[role]:
            whole = metric_name(role, name)
            is_histogram = name == LATENCIES
            parts = ("_bucket", "_count", "_sum") if is_histogram else ("",)
            found |= {whole + part for part in parts}
        if INFO[role]:
            found.add(metric_name(role, "info"))
    return found


def expressions() -> Iterator[str]:
    """Yield every expression of the alerts and of the dashboard."""
    blocks = re.findall(
        r"^        expr: (?:\|\n((?:          .*\n)+)|(.*)\n)", RULES, re.MULTILINE
    )
    yield from (block or line for block, line in blocks)
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])


EXPRESSIONS = list(expressions())


def test_there_are_expressions() -> None:
    """Those of all alerts, and of all panels."""
    targets = sum(len(panel["targets"]) for panel in DASHBOARD["panels"])
    assert len(EXPRESSIONS) == len(re.findall(r"- alert: ", RULES)) + targets > targets


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_uses_what_there_is(expression: str) -> None:
    """Metrics and labels that are served; rates of counters, and of these alone."""
    named = set(re.findall(r"\b(lodestar_\w+)", expression))
    assert named <= metrics()
    assert named or "up{" in expression
    rated = set(re.findall(r"(?:rate|increase)\((lodestar_\w+)", expression))
    assert rated == {one for one in named if one.endswith(("_total", "_bucket"))}
    assert set(re.findall(r"[{,] ?(\w+)=", expression)) <= LABELS
    for grouped in re.findall(r"by \(([^)]*)\)", expression):
        assert set(grouped.split(", ")) <= LABELS


class TestAlerts:
    """deploy/prometheus."""

    def test_what_is_looked_at_for_growth_is_there_from_the_start(self) -> None:
        """
        F1: a counter that appears with 1 has not grown, and would raise no alert.

        A query whose batch a full store has refused does not try it a second time.
        """
        known = {
            (metric_name(role, f"{family.name}_total"), family.label, value)
            for role, families in FAMILIES.items()
            for family in families
            for value in family.known
        }
        looked_at = set(re.findall(r'increase\((\w+){(\w+)="(\w+)"}', RULES))
        assert looked_at
        assert looked_at - known == set()

    def test_every_defect_raises_an_alert(self) -> None:
        """F1: also one of a gateway, and of a message that cannot be encoded."""
        (alert,) = re.findall(r"- alert: LodestarDefect\n(?:.+\n)+", RULES)
        defects = {
            metric_name(role, figure.name or name)
            for role, figures in FIGURES.items()
            for name, figure in figures.items()
            if "each is a defect" in figure.help
        }
        assert set(re.findall(r"increase\((\w+)", alert)) == defects

    def test_what_is_refused_for_want_of_storage_raises_an_alert(self) -> None:
        """
        F1: wherever it is counted.

        A batch that a full store could not take was refused before it was decided: no
        job is stopped then, and nothing told of it but the age of the state.
        """
        counted = {
            (metric_name(role, f"{family.name}_total"))
            for role in ("proxy", "node")
            for family in FAMILIES[role]
            if family.label == "code"
        }
        told = set(re.findall(r'increase\((\w+){code="storage"}', RULES))
        assert told == counted

    def test_each_says_what_is_wrong_and_what_to_do(self) -> None:
        """With a severity, a summary and a description, of labels that there are."""
        alerts = RULES.split("- alert: ")[1:]
        assert len(alerts) >= 10
        for alert in alerts:
            assert re.search(
                r"^          severity: (critical|warning)$", alert, re.MULTILINE
            )
            for name in ("summary", "description"):
                assert re.search(rf'^          {name}: "[^"]+"$', alert, re.MULTILINE)
        assert set(re.findall(r"\$labels\.(\w+)", RULES)) <= LABELS

    def test_each_is_made_to_fire(self) -> None:
        """The test for promtool has every alert, and no other."""
        alerts = set(re.findall(r"- alert: (\w+)", RULES))
        assert set(re.findall(r'alertname="(\w+)"', FIRED)) == alerts

    def test_promtool_agrees(self) -> None:
        """Prometheus itself reads the rules, and each fires when it should."""
        promtool = shutil.which("promtool")
        if promtool is None:
            pytest.skip("promtool is not installed; Debian has it in 'prometheus'")
        for what, name in (("check", "rules"), ("test", "test")):
            done = subprocess.run(
                [promtool, what, "rules", f"lodestar.{name}.yml"],
                cwd=DEPLOY / "prometheus",
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr

    def test_promtool_agrees_with_the_page(self, tmp_path: Path) -> None:
        """The configuration in the how-to is one, with the rules under rule_files."""
        promtool = shutil.which("promtool")
        if promtool is None:
            pytest.skip("promtool is not installed; Debian has it in 'prometheus'")
        page = DEPLOY.parent / "docs" / "howto" / "watch-a-cluster.md"
        (block,) = re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        (tmp_path / "lodestar.rules.yml").write_text(RULES, encoding="utf-8")
        (tmp_path / "prometheus.yml").write_text(block, encoding="utf-8")
        done = subprocess.run(
            [promtool, "check", "config", str(tmp_path / "prometheus.yml")],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 rule files found" in done.stdout


def test_the_dashboard_can_be_imported() -> None:
    """Panels have numbers and places of their own, and the data source is chosen."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["name"], variable["type"]) == ("datasource", "datasource")
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
