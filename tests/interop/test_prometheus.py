# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus with our rules scrapes a real cluster; an engine that dies becomes an alert."""
import json
import shutil
import subprocess
import urllib.parse
import urllib.request

from cluster import ROOT, free_port, until

DEPLOY = ROOT / "deploy/prometheus"


def test_it_scrapes_records_and_alerts(cluster, tmp_path):
    assert shutil.which("prometheus"), "scripts/test installs it"
    cluster.router()
    node = cluster.node("a", "--time-scale", "0")
    cluster.wait_ready(1)
    port = free_port()
    for f in DEPLOY.glob("*.rules.yml"):
        text = f.read_text().replace("[5m]", "[10s]").replace("[15m]", "[10s]").replace("for: 2m", "for: 0s")
        (tmp_path / f.name).write_text(text)
    config = (DEPLOY / "scrape.example.yml").read_text().replace("15s", "1s")
    config = config.replace("127.0.0.1:9091", f"127.0.0.1:{cluster.admin_port}").replace("127.0.0.1:7081", f"127.0.0.1:{node.admin_port}")
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
        node.engine.kill()
        until(lambda: {a["labels"]["alertname"] for a in ask("alerts")["alerts"] if a["state"] == "firing"} >= {"CognitoraEngineNotReady"}, told, wait_s=90)
    finally:
        p.terminate()
        p.wait(30)
        log.close()
