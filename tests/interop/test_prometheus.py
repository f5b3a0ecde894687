# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus with our rules scrapes a real cluster: the dashboards' panels have data, and an engine that dies becomes an alert. The
dashboards fit Grafana's own model of them (PyPI's grafana-foundation-sdk, made from Grafana's schemas)."""
import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request

import pytest

from cluster import ROOT, free_port, until
from fake_bmc import Bmc
from kvbulk import Bulk, Store, key
from test_metrics_scrape import Metrics as Scraper
from test_power import Metrics, bmcs, credentials

DEPLOY = ROOT / "deploy/prometheus"
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
# What this cluster has nothing of: a queue, GPUs, counters of energy, engines that publish events, a store that is full or has an SSD or peers.
NO_DATA = {"Queue", "Refused", "Evictions", "SSD writes", "SSD skipped", "Peers", "Gaps in KV events", "Joules per token", "GPU power"}


def lost(ours, theirs, path=""):
    """Yield the path of each value of |ours| that |theirs| lacks, or has otherwise."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in ours:
            yield from lost(ours[name], theirs[name], f"{path}.{name}") if name in theirs else [f"{path}.{name}"]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, (a, b) in enumerate(zip(ours, theirs)):
            yield from lost(a, b, f"{path}[{i}]")
    elif ours != theirs:
        yield f"{path}: {ours!r} became {theirs!r}"


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda p: p.stem)
def test_a_dashboard_fits_grafanas_model(path):
    """What Grafana's model does not know, a misspelt name for one, is lost on the way through it."""
    grafana = pytest.importorskip("grafana_foundation_sdk.models.dashboard") if not os.environ.get("CI") else __import__(
        "grafana_foundation_sdk.models.dashboard", fromlist=["Dashboard"])
    from grafana_foundation_sdk.cog import encoder, plugins
    plugins.register_default_plugins()

    def through(board):
        return json.loads(encoder.JSONEncoder().encode(grafana.Dashboard.from_json(board)))
    board = json.loads(path.read_text())
    assert list(lost(board, through(board))) == []
    board["panels"][0]["targets"][0]["expression"] = "up"
    assert list(lost(board, through(board))) == [".panels[0].targets[0].expression"]
    ids = [p["gridPos"] for p in board["panels"]]
    assert all(0 <= g["x"] and g["x"] + g["w"] <= 24 for g in ids) and len({(g["x"], g["y"]) for g in ids}) == len(ids)


@pytest.fixture
def stores(tmp_path):
    opened = []

    def open_store(**kv):
        opened.append(Store(tmp_path, **kv))
        return opened[-1]
    yield open_store
    for s in opened:
        s.close()


@pytest.fixture
def rack(tmp_path):
    """cgn-metrics, and a machine with a BMC."""
    with Bmc(user="cgn") as bmc:
        m = Metrics(tmp_path, bmcs(a={"url": bmc.url, **credentials(tmp_path)}))
        yield m
        m.process.kill()


def test_it_scrapes_records_and_alerts(cluster, stores, rack, tmp_path):
    assert shutil.which("prometheus"), "scripts/test installs it"
    cluster.router()
    node = cluster.node("a", "--time-scale", "0")
    store = stores(ram="16MiB")
    with Bulk(store.bulk) as c:
        c.put_any(key("k"), b"value", model="sim")
    cluster.wait_ready(1)
    port = free_port()
    for f in DEPLOY.glob("*.rules.yml"):
        text = f.read_text().replace("[5m]", "[10s]").replace("[15m]", "[10s]").replace("for: 2m", "for: 0s")
        (tmp_path / f.name).write_text(text)
    config = (DEPLOY / "scrape.example.yml").read_text().replace("15s", "1s")
    config = config.replace("127.0.0.1:9091", f"127.0.0.1:{cluster.admin_port}").replace("127.0.0.1:7081", f"127.0.0.1:{node.admin_port}")
    config = config.replace("127.0.0.1:7093", f"127.0.0.1:{store.admin}").replace("127.0.0.1:9092", f"127.0.0.1:{rack.port}")
    (tmp_path / "prometheus.yml").write_text(config)
    log = open(tmp_path / "prometheus.log", "wb")
    p = subprocess.Popen(["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
                          f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)

    def ask(path, **query):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10) as r:
            return json.load(r)["data"]

    def value(expr):
        try:
            found = ask("query", query=expr)["result"]
        except OSError:
            return None
        return float(found[0]["value"][1]) if found else None

    def told():
        return (tmp_path / "prometheus.log").read_text()
    try:
        def busy():
            cluster.chat("hello " * 50, max_tokens=2)
            return (value('max(cognitora:requests:rate5m{model="sim"})') or 0) > 0 and (value("cognitora:cache_hit_ratio:rate15m") or 0) > 0
        until(busy, told, step_s=0.2)
        up = {r["metric"]["job"]: r["value"][1] for r in ask("query", query="up")["result"]}
        assert up["cgn-router"] == up["cgn-agent"] == "1"
        assert value("cgn_engine_ready") == 1
        panels = {(b.stem, p["title"]): t["expr"] for b in DASHBOARDS for p in json.loads(b.read_text())["panels"] for t in p["targets"]}

        def empty():
            cluster.chat("hello " * 50, max_tokens=20, stream=True)
            asked = {at: ask("query", query=expr.replace("[5m]", "[10s]").replace("$__rate_interval", "10s"))["result"] for at, expr in panels.items()}
            return {at[1] for at, found in asked.items() if not found}
        until(lambda: empty() <= NO_DATA, lambda: f"no data: {empty() - NO_DATA}", step_s=0.2)
        node.engine.kill()
        until(lambda: {a["labels"]["alertname"] for a in ask("alerts")["alerts"] if a["state"] == "firing"} >= {"CognitoraEngineNotReady"}, told, wait_s=90)
    finally:
        p.terminate()
        p.wait(30)
        log.close()


def test_one_text_of_a_cluster(cluster, tmp_path):
    """Prometheus takes /federate of cgn-metrics as it is: no line is refused, and each program's series are told apart."""
    cluster.router()
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready(1)
    assert cluster.chat("hello", max_tokens=2).status == 200
    m = Scraper(tmp_path, {}, discover=True, scrape_routers=[f"127.0.0.1:{cluster.grpc_port}"])
    port, log = free_port(), open(tmp_path / "prometheus.log", "wb")
    (tmp_path / "prometheus.yml").write_text("global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: cognitora\n  honor_labels: true\n"
                                             f"  metrics_path: /federate\n  static_configs:\n  - targets: ['127.0.0.1:{m.port}']\n")
    p = subprocess.Popen(["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
                          f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)

    def found(expr):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': expr})}", timeout=10) as r:
                return json.load(r)["data"]["result"]
        except OSError:
            return []
    try:
        router = f"router/127.0.0.1:{cluster.grpc_port}"
        until(lambda: {r["metric"]["cgn_target"] for r in found("cgn_build_info")} == {router, "agent/a"}, lambda: found("cgn_build_info"), step_s=0.2)
        assert all(r["value"][1] == "1" for r in found('up{job="cognitora"}')) and found('up{job="cognitora"}')
        assert float(found(f'sum(cgn_requests_total{{cgn_target="{router}"}})')[0]["value"][1]) >= 1
        assert found("cgn_build_info{cgn_target='agent/a'}")[0]["metric"]["instance"] == m.targets()["agent/a"]["url"]
        checked = subprocess.run(["promtool", "check", "metrics"], input=m.text(), capture_output=True, text=True)
        assert "error" not in checked.stderr.lower() and checked.returncode in (0, 3), checked  # 3: words about names of process_*
    finally:
        p.terminate()
        p.wait(30)
        m.process.kill()
        log.close()
