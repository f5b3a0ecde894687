# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry's own collector (main.go), built once into the cache of Go."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
from cluster import BUILD, Cluster, Process, free_port, until  # noqa: E402


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if call.when == "call":
        item.failed = outcome.get_result().failed


@pytest.fixture
def cluster(tmp_path, request):
    with Cluster(tmp_path) as c:
        yield c
        if getattr(request.node, "failed", False):
            print(c.logs())


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    assert go, "no go: install golang-go"
    out = tmp_path_factory.mktemp("collector") / "collector"
    built = subprocess.run([go, "build", "-o", out, "."], cwd=HERE, capture_output=True, text=True, timeout=1200, env={"GOFLAGS": "-mod=readonly", **os.environ})
    assert built.returncode == 0, built.stderr
    return out


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    subprocess.run([BUILD / "src/ctl/cgn-ctl", "pki", "bootstrap", "--out", folder], check=True, capture_output=True, timeout=60)
    return folder


class Collector(Process):
    """The collector prints each span (its debug exporter); |spans| reads them."""

    def __init__(self, folder, program, tls=None):
        self.port = {"grpc": free_port(), "http/protobuf": free_port()}
        files = f", tls: {{cert_file: {tls}/router.pem, key_file: {tls}/router.key}}" if tls else ""
        config = folder / "collector.yaml"
        config.write_text(f"""
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: "127.0.0.1:{self.port['grpc']}"{files}}}
      http: {{endpoint: "127.0.0.1:{self.port['http/protobuf']}"{files}}}
exporters:
  debug: {{verbosity: detailed}}
service:
  telemetry: {{metrics: {{level: none}}, logs: {{encoding: console}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [debug]}}
""")
        super().__init__(folder, "collector", str(program), "--config", config)

    def ready(self):
        until(lambda: "Everything is ready" in self.log(), self.log)
        return self

    def spans(self):
        """A list of maps: service, name, trace, span, parent, kind, status and attributes."""
        found = []
        for part in re.split(r"ResourceSpans #\d+$", self.log(), flags=re.M)[1:]:
            head, *spans = re.split(r"^Span #\d+$", part, flags=re.M)
            resource = dict(re.findall(r"-> ([\w.]+): \w+\((.*)\)", head))
            for s in spans:
                line = dict(re.findall(r"^    ([A-Z][\w ]*?) +: ?(.*)$", s, re.M))
                found.append({"resource": resource, "service": resource["service.name"], "name": line["Name"], "trace": line["Trace ID"], "span": line["ID"],
                              "parent": line["Parent ID"], "kind": line["Kind"], "status": line["Status code"],
                              "attributes": dict(re.findall(r"-> ([\w.]+): \w+\((.*)\)", s))})
        return found


@pytest.fixture
def start(tmp_path, program):
    """Start collectors; the last lines of one that fails its test are shown by the test's message."""
    running = []

    def begin(**more):
        c = Collector(tmp_path, program, **more)
        running.append(c)
        return c.ready()
    yield begin
    for c in running:
        c.kill()
