# SPDX-License-Identifier: Apache-2.0
"""Traces, read by OpenTelemetry's own protocol definitions and gRPC stubs (PyPI's opentelemetry-proto)."""
import concurrent.futures
import contextlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

import pytest

from cluster import BUILD, until
from conftest import certificates
from kvpeers import Peer, bootstrap
from slots_world import World, prompt_of

grpc = pytest.importorskip("grpc") if not os.environ.get("CI") else __import__("grpc")
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc  # noqa: E402
from opentelemetry.proto.trace.v1 import trace_pb2  # noqa: E402

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, CALLER = PARENT.split("-")[1:3]


class Collector:
    """Collect exported spans. |answer|: statuses for the next exports; then all are taken."""

    def __init__(self):
        self.requests, self.fields, self.answer, self.pause, self.rejects, self.retry_after, self.times = [], [], [], 0, 0, 0, []
        self.lock = threading.Lock()

    def take(self, message, fields):
        time.sleep(self.pause)
        with self.lock:
            self.times.append(time.monotonic())
            if self.answer:
                return self.answer.pop(0)
            self.requests.append(message)
            self.fields.append(fields)
        return None

    def response(self):
        """The answer to a taken export; |rejects|: the spans that it says it refused."""
        part = trace_service_pb2.ExportTracePartialSuccess(rejected_spans=self.rejects, error_message="too old") if self.rejects else None
        return trace_service_pb2.ExportTraceServiceResponse(partial_success=part)

    @property
    def spans(self):
        """All spans, as (service, span)."""
        with self.lock:
            return [({a.key: a.value.string_value for a in rs.resource.attributes}["service.name"], s)
                    for m in self.requests for rs in m.resource_spans for ss in rs.scope_spans for s in ss.spans]

    def __enter__(self):
        return self


class OverHttp(Collector):
    protocol = "http/protobuf"

    def __enter__(self):
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
                status = collector.take(trace_service_pb2.ExportTraceServiceRequest.FromString(body), dict(self.headers)) or 200
                answer = collector.response().SerializeToString() if status == 200 else b""
                self.send_response(status)
                if status == 429:
                    self.send_header("retry-after", str(collector.retry_after))
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class OverGrpc(Collector):
    protocol, scheme = "grpc", "http"

    def listen(self):
        return self.server.add_insecure_port("127.0.0.1:0")

    def __enter__(self):
        collector = self

        class Service(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request, context):
                status = collector.take(request, dict(context.invocation_metadata()))
                if status:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
                return collector.response()

        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), self.server)
        port = self.listen()
        self.server.start()
        self.url = f"{self.scheme}://localhost:{port}"
        return self

    def __exit__(self, *_):
        self.server.stop(None)


class OverTls(OverGrpc):
    scheme = "https"

    def listen(self):
        self.folder = certificates(pathlib.Path(tempfile.mkdtemp()))
        pair = tuple((self.folder / f"router.{end}").read_bytes() for end in ("key", "pem"))
        return self.server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))

    def __exit__(self, *_):
        super().__exit__()
        shutil.rmtree(self.folder)


@pytest.fixture(params=[OverHttp, OverGrpc])
def collector(request, monkeypatch):
    with request.param() as c:
        for name, value in (("ENDPOINT", c.url), ("PROTOCOL", c.protocol), ("HEADERS", "x-tenant=ops%20team,Authorization=Bearer%20key")):
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_" + name, value)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,rack=r%2C7")
        yield c


def attributes(span):
    def plain(v):
        return getattr(v, v.WhichOneof("value"))
    return {a.key: plain(a.value) for a in span.attributes}


def test_the_spans_of_a_request(cluster, collector):
    cluster.router()
    cluster.node("a", "--token-interval-us", "2000")
    cluster.wait_ready(1)
    before = time.time_ns()
    cluster.chat("hello " * 100, {"traceparent": PARENT, "x-request-id": "traced"}, max_tokens=5, stream=True)
    cluster.chat("not sampled", {"traceparent": PARENT[:-2] + "00"}, max_tokens=2)
    until(lambda: {s.name for _, s in collector.spans} >= {"POST /v1/chat/completions", "pick", "answer leg", "relay", "engine"}, lambda: [s.name for _, s in collector.spans])
    every = [s for _, s in collector.spans]

    def below(parent, name):
        (span,) = [s for s in every if s.name == name and s.parent_span_id == parent.span_id]
        return span
    assert {s.trace_id.hex() for s in every} == {TRACE} and len({s.span_id for s in every}) == len(every)
    (root,) = [s for s in every if s.name == "POST /v1/chat/completions"]  # none of the second request
    pick, leg, tokens = (below(root, name) for name in ("pick", "answer leg", "tokens"))
    relay = below(leg, "relay")
    engine = below(relay, "engine")
    below(below(tokens, "relay"), "engine")  # the engine was asked for the prompt's tokens
    spans = {s.name: s for s in (root, pick, leg, relay, engine)}
    assert root.parent_span_id.hex() == CALLER
    assert pick.parent_span_id == leg.parent_span_id == root.span_id
    assert relay.parent_span_id == leg.span_id and engine.parent_span_id == relay.span_id
    assert all(len(s.span_id) == 8 for s in every)
    assert (root.kind, relay.kind) == (trace_pb2.Span.SPAN_KIND_SERVER,) * 2
    assert (leg.kind, engine.kind) == (trace_pb2.Span.SPAN_KIND_CLIENT,) * 2
    for outer, inner in ((root, leg), (leg, relay), (relay, engine)):
        assert outer.start_time_unix_nano <= inner.start_time_unix_nano + 2_000_000 and inner.end_time_unix_nano <= outer.end_time_unix_nano + 2_000_000
    assert before - 2_000_000 < root.start_time_unix_nano < root.end_time_unix_nano < time.time_ns()
    about = attributes(root)
    assert about["http.response.status_code"] == 200 and about["gen_ai.request.model"] == "sim" and about["cgn.request_id"] == "traced" and about["cgn.stream"] is True
    assert attributes(leg)["cgn.node"] == "a" and attributes(engine)["cgn.engine"] == "sim"
    decision = json.loads(attributes(pick)["cgn.decision"])
    assert decision["node"] == "a" and decision["candidates"][0]["node"] == "a"
    services = {n: s for s, n in {(service, s.name) for service, s in collector.spans}}
    assert services["pick"] == "cgn-router" and services["engine"] == "cgn-agent"
    fields = {k.lower(): v for k, v in collector.fields[0].items()}
    assert fields["x-tenant"] == "ops team" and fields["authorization"] == "Bearer key"
    about = {a.key: a.value.string_value for a in collector.requests[0].resource_spans[0].resource.attributes}
    assert about["deployment.environment.name"] == "test" and about["rack"] == "r,7" and about["service.version"]


def test_a_request_without_a_caller_and_the_share_of_traces(cluster, collector, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "1")
    cluster.router()
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready(1)
    cluster.chat("hello", max_tokens=2)
    until(lambda: {s.name for _, s in collector.spans} >= {"POST /v1/chat/completions", "engine"}, "both programs export")
    chat = [s for _, s in collector.spans if s.name in ("POST /v1/chat/completions", "answer leg", "relay", "engine")]
    assert len({s.trace_id for s in chat}) == 1 and next(s for s in chat if s.name.startswith("POST")).parent_span_id == b""


def test_a_collector_that_is_away_slow_and_refuses(cluster, collector, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
    collector.answer = [503, 503]
    cluster.router()
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready(1)
    cluster.chat("hello", max_tokens=2)
    until(lambda: any(s.name == "engine" for _, s in collector.spans), "the spans are sent again")
    collector.pause = 2
    for i in range(60):
        assert cluster.chat(f"hello {i}", max_tokens=1).status == 200
    until(lambda: cluster.metric("cgn_spans_total", outcome="dropped") > 0, "what does not fit is dropped and counted")
    collector.pause = 0
    sent = cluster.metric("cgn_spans_total", outcome="exported")
    cluster.chat("again", max_tokens=1)
    until(lambda: cluster.metric("cgn_spans_total", outcome="exported") > sent, "it goes on")


@pytest.mark.parametrize("collector", [OverTls], indirect=True)
def test_a_collector_with_a_certificate(cluster, collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(collector.folder / "ca.pem"))
    cluster.router()
    cluster.ask("POST", "/v1/chat/completions", {}, {"traceparent": PARENT})  # a request that is refused has a span too
    until(lambda: collector.spans, cluster.logs)


def test_a_collector_that_refuses_a_part(cluster, collector):
    collector.rejects = 2
    cluster.router()
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready(1)
    cluster.chat("hello", {"traceparent": PARENT}, max_tokens=1)
    until(lambda: cluster.metric("cgn_spans_total", outcome="failed") == 2, "what was refused is counted")
    (said,) = [e for p in cluster.processes if p.name == "router" for e in p.events("tracing.spans_refused")]
    assert said["spans"] == 2 and said["why"] == "too old"


@pytest.mark.parametrize("collector", [OverHttp], indirect=True)
def test_a_collector_that_asks_for_a_pause(cluster, collector):
    """Retry-After is longer than the first pause of our own."""
    collector.answer, collector.retry_after = [429], 2
    cluster.router()
    cluster.ask("POST", "/v1/chat/completions", {}, {"traceparent": PARENT})  # a request that is refused has a span too
    until(lambda: collector.spans, "the spans are sent again")
    assert collector.times[1] - collector.times[0] >= 2


@pytest.mark.parametrize("name, value, said", [
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4317", "http://host:port"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://", "http://host:port"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://h:x", "address of a collector"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf and grpc"),
    ("OTEL_TRACES_SAMPLER", "jaeger_remote", "always_on"), ("OTEL_TRACES_SAMPLER_ARG", "7", "from 0 to 1"), ("OTEL_BSP_SCHEDULE_DELAY", "soon", "not a number"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "novalue", "key=value"), ("OTEL_RESOURCE_ATTRIBUTES", "novalue", "key=value"),
    ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip", "none"), ("OTEL_TRACES_EXPORTER", "zipkin", "otlp and none")])
def test_a_wrong_variable_is_named(tmp_path, name, value, said):
    env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", name: value}
    done = subprocess.run([BUILD / "src/agent/cgn-agent", "--set", "agent.listen=127.0.0.1:0", "--set", "agent.listen_admin=127.0.0.1:0"],
                          env=env, capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert done.returncode == 3 and name in done.stderr and said in done.stderr, done


def test_an_engine_gets_the_trace(cluster, collector):
    """An engine that says which head it got: the trace goes on below the agent's call."""
    seen = []

    class Engine(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def reply(self, body):
            body = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.reply({"object": "list", "data": [{"id": "plain", "object": "model"}]})

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            seen.append(self.headers["traceparent"])
            self.reply({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cluster.router()
    cluster.agent("a", server.server_address[1], {"engine": {"kind": "openai_compat"}})
    cluster.wait_ready(1)
    cluster.ask("POST", "/v1/chat/completions", {"model": "plain", "messages": [{"role": "user", "content": "x"}]}, {"traceparent": PARENT, "tracestate": "vendor=1"})
    until(lambda: any(s.name == "engine" for _, s in collector.spans), "the agent's span is there")
    span = next(s for _, s in collector.spans if s.name == "engine")
    assert seen == [f"00-{TRACE}-{span.span_id.hex()}-01"]
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("collector", [OverGrpc], indirect=True)
def test_a_block_store_continues_the_trace_of_a_script(tmp_path, collector):
    """cgn-ctl passes $TRACEPARENT on; what has no trace has no span."""
    pki = bootstrap(tmp_path / "pki", "a", "b")
    with contextlib.ExitStack() as stack:
        a = Peer(tmp_path, pki, "a")
        stack.callback(a.close)
        b = Peer(tmp_path, pki, "b", [a])
        stack.callback(b.close)

        def ctl(store, *args, parent=PARENT, **more):
            env = {**os.environ, "TRACEPARENT": parent, "CGN_CONTEXT": ""}
            return subprocess.run([BUILD / "src/ctl/cgn-ctl", "kv", *args, "--uds", store.uds], env=env, capture_output=True, timeout=30, **more)
        assert ctl(a, "put", "k", input=b"value" * 100).returncode == 0
        assert ctl(a, "get", "k", parent=PARENT[:-2] + "00").stdout == b"value" * 100  # the caller's trace is not sampled
        assert ctl(a, "get", "k", parent="no trace\r\nx: y").stdout == b"value" * 100
        b.ready()
        until(lambda: ctl(b, "get", "k", "--peers", parent="").stdout == b"value" * 100, "b hears of it")
        assert ctl(b, "rm", "k", parent="").returncode == 0
        assert ctl(b, "get", "k", "--peers").stdout == b"value" * 100
        assert ctl(b, "get", "none").returncode == 1
        assert ctl(b, "watch", "--once").returncode == 0
        until(lambda: len(collector.spans) >= 5, lambda: collector.spans)
    spans = [s for service, s in collector.spans if service == "cgn-kvcached"]
    put, got, fetch, missing = (next(s for s in spans if test(s)) for test in (
        lambda s: s.name == "kv put", lambda s: s.name == "kv get" and not s.status.code, lambda s: s.name == "kv fetch", lambda s: s.name == "kv get" and s.status.code))
    (watch,) = [s for s in spans if s.name == "kv watch"]  # a client that leaves its watch is no error
    assert len(spans) == 5 and not watch.status.code and {s.trace_id.hex() for s in spans} == {TRACE}
    assert {s.parent_span_id.hex() for s in (put, got, missing)} == {CALLER} and fetch.parent_span_id == got.span_id
    assert attributes(put)["cgn.kv.bytes"] == attributes(got)["cgn.kv.bytes"] == attributes(fetch)["cgn.kv.bytes"] == 500 and attributes(missing)["cgn.code"] == "NOT_FOUND"
    assert got.start_time_unix_nano <= fetch.start_time_unix_nano <= fetch.end_time_unix_nano <= got.end_time_unix_nano + 2_000_000


@pytest.mark.parametrize("collector", [OverHttp], indirect=True)
def test_a_slot_that_gets_its_state_back(tmp_path, collector, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    w = World(tmp_path)
    try:
        w.asked(prompt_of(1))
        w.asked(prompt_of(2))
        until(lambda: w.kept()["states"] > 0, lambda: w.kept())  # before the store told of it, it would be looked up
        w.asked(prompt_of(1))

        def slots():
            return [attributes(s) for _, s in collector.spans if s.name == "slot"]
        until(lambda: len(slots()) >= 3, lambda: slots())
        assert [a["cgn.slot.outcome"] for a in slots()] == ["none", "none", "ram"] and slots()[2]["cgn.slot.restore_ms"] > 0
    finally:
        w.close(False)
