# SPDX-License-Identifier: Apache-2.0
"""Rules and dashboards: promtool reads them, and each alert fires when it should. scripts/check-metric-names checks the
names and labels."""
import json
import re
import subprocess

import pytest

from cluster import ROOT

PROMETHEUS, GRAFANA = ROOT / "deploy/prometheus", ROOT / "deploy/grafana"
DASHBOARDS = sorted(GRAFANA.glob("*.json"))
pytestmark = pytest.mark.plain


def promtool(*args, cwd=PROMETHEUS):
    done = subprocess.run(["promtool", *map(str, args)], capture_output=True, text=True, timeout=60, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rules_are_valid_and_fire_when_they_should():
    promtool("check", "config", "scrape.example.yml")
    promtool("check", "rules", "recording.rules.yml", "alerts.rules.yml")
    assert "SUCCESS" in promtool("test", "rules", "alerts.test.yml")


def test_each_alert_has_its_section_in_the_runbook():
    text = (PROMETHEUS / "alerts.rules.yml").read_text()
    sections = re.findall(r"^## (Cognitora\w+)$", (ROOT / "docs/operate/alerts.md").read_text(), re.M)
    assert re.findall(r"alert: (\w+)", text) == sections
    assert re.findall(r"runbook: (\S+)", text) == [f"docs/operate/alerts.md#{name.lower()}" for name in sections]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda p: p.stem)
def test_a_dashboard_asks_what_prometheus_understands(path, tmp_path):
    board = json.loads(path.read_text())
    panels = board["panels"]
    assert panels and all(p["title"] and p["description"] for p in panels)
    assert board["uid"].startswith("cognitora-") and [v["name"] for v in board["templating"]["list"]] == ["datasource"]
    rules = [{"record": f"x:y{i}_{k}", "expr": t["expr"]} for i, p in enumerate(panels) for k, t in enumerate(p["targets"])]
    (tmp_path / "r.yml").write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))
    promtool("check", "rules", tmp_path / "r.yml")
    recorded = set(re.findall(r"record: (\S+)", (PROMETHEUS / "recording.rules.yml").read_text()))
    assert set(re.findall(r"cognitora:[\w:]+", path.read_text())) <= recorded
