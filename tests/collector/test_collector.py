# SPDX-License-Identifier: Apache-2.0
"""Spans, taken by OpenTelemetry's own collector. Run by `scripts/test collector`; not in CI, where PyPI's opentelemetry-proto reads them
(tests/interop/test_tracing.py): the collector takes minutes to compile."""
import pytest

from cluster import until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, CALLER = PARENT.split("-")[1:3]
BOTH = pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
NAMES = {"POST /v1/chat/completions", "pick", "answer leg", "relay", "engine"}


@pytest.fixture
def point(monkeypatch):
    def at(collector, protocol, scheme="http", **more):
        values = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"{scheme}://localhost:{collector.port[protocol]}", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
                  "OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_RESOURCE_ATTRIBUTES": "rack=r7", **more}
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))
    return at


def failures(cluster):
    return [e for p in cluster.processes for e in p.events("tracing.export_failed")]


def one_request(cluster):
    cluster.router()
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready(1)
    cluster.chat("hello " * 100, {"traceparent": PARENT}, max_tokens=3, stream=True)


@BOTH
def test_it_takes_the_spans_of_a_request(cluster, start, point, protocol):
    collector = start()
    point(collector, protocol)
    one_request(cluster)
    until(lambda: {s["name"] for s in collector.spans()} >= NAMES, collector.log)
    spans = collector.spans()
    assert {s["trace"] for s in spans} == {TRACE} and {s["status"] for s in spans} == {"Unset"}
    (root,) = [s for s in spans if s["name"].startswith("POST")]
    (leg,) = [s for s in spans if s["name"] == "answer leg"]
    relay = next(s for s in spans if s["name"] == "relay" and s["parent"] == leg["span"])
    engine = next(s for s in spans if s["name"] == "engine" and s["parent"] == relay["span"])
    assert root["parent"] == CALLER and leg["parent"] == root["span"] and (root["kind"], leg["kind"]) == ("Server", "Client")
    assert root["attributes"]["http.response.status_code"] == "200" and engine["attributes"]["cgn.engine"] == "sim"
    assert (root["service"], engine["service"]) == ("cgn-router", "cgn-agent") and root["resource"]["rack"] == "r7"
    assert cluster.metric("cgn_spans_total", outcome="failed") in (0, None)


@BOTH
def test_it_takes_them_by_tls(cluster, start, point, protocol, certificates):
    collector = start(tls=certificates)
    point(collector, protocol, "https", OTEL_EXPORTER_OTLP_CERTIFICATE=certificates / "ca.pem")
    one_request(cluster)
    until(lambda: {s["name"] for s in collector.spans()} >= NAMES, collector.log)


@BOTH
def test_a_certificate_of_another_ca_is_refused(cluster, start, point, protocol, certificates):
    collector = start(tls=certificates)
    point(collector, protocol, "https")  # the system's CAs did not sign it
    one_request(cluster)
    until(lambda: any("certificate" in e["why"] for e in failures(cluster)), cluster.logs)
    assert collector.spans() == []


@BOTH
def test_it_is_away_and_comes_back(cluster, start, point, protocol):
    collector = start()
    point(collector, protocol)
    collector.kill()
    one_request(cluster)
    until(lambda: failures(cluster), cluster.logs)
    collector.start()
    until(lambda: {s["name"] for s in collector.spans()} >= NAMES, collector.log)
