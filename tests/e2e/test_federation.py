# SPDX-License-Identifier: Apache-2.0
"""Clusters that forward requests to each other ([peers], kind = "cognitora"): three clusters, each with a CA of its own."""
import contextlib
import http.client
import signal
import ssl

import pytest

from clients import Stream
from cluster import WAIT_S, Answer, Cluster, ask, free_port, until
from test_limits import key
from test_load import pki

SLOW = ("--token-interval-us", "20000")
FAST = ("--time-scale", "0")


class Fed:
    """Clusters by name. gates[(x, y)]: the port of y where requests of x come in."""

    def __init__(self, stack, folder):
        self.stack, self.folder, self.c, self.pki, self.rows = stack, folder, {}, {}, {}
        self.gates = {}

    def add(self, *names):
        for name in names:
            (self.folder / name).mkdir()
            self.c[name] = self.stack.enter_context(Cluster(self.folder / name))
            self.c[name].common = {"cluster": {"name": name}}
            self.pki[name], self.rows[name] = pki(self.folder / name / "pki"), {}

    def link(self, x, y, **more):
        """Let requests of |x| leave for |y|."""
        port = self.gates[x, y] = free_port()
        for here, there in ((x, y), (y, x)):
            self.rows[here].setdefault(f'peers."{there}"', {
                "kind": "cognitora", "ca_file": str(self.pki[there] / "ca.pem"),
                "cert_file": str(self.pki[here] / "router.pem"), "key_file": str(self.pki[here] / "router.key")})
        self.rows[x][f'peers."{y}"'] |= {"url": f"https://localhost:{port}", "models": ["sim"], "tenants": ["*"], **more}
        self.rows[y][f'peers."{x}"'] |= {"listen": f"127.0.0.1:{port}", "accepts": ["sim"], "accepts_tenants": ["*"]}

    def start(self, name, engine=None, **sections):
        c = self.c[name]
        fed = {"router.federation": {"enabled": True, "margin": "0s"},
               "router.admission": {"max_concurrent_per_replica": 1, "node_wait": "0s"}, **self.rows[name]}
        for section, keys in sections.items():
            fed.setdefault(section, {}).update(keys)
        c.router(fed)
        if engine:
            c.node(f"{name}1", *engine)
            until(lambda: list(c.states().values()) == ["ready"], f"{name} is ready")
        return c

    def peer(self, x, y):
        return next(p for p in ask(self.c[x].admin_port, "GET", "/peers").json()["peers"] if p["peer"] == y)

    def met(self, x, y):
        until(lambda: self.peer(x, y)["state"] == "ready", lambda: f"{x} knows of {y}: {self.peer(x, y)}")

    def requests(self, name, n=0):
        """Return the lines of the access log, once there are |n|: a line may be written after the client has its answer."""
        def lines():
            return self.c[name].router_process.events("gateway.request")
        until(lambda: len(lines()) >= n, f"{n} requests in the log of {name}")
        return lines()

    def knock(self, x, y, method, path, certs=None, headers=None):
        """Ask the port of |y| for |x| with the certificate in |certs| (None: without one)."""
        ctx = ssl.create_default_context(cafile=str(self.pki[y] / "ca.pem"))
        if certs:
            ctx.load_cert_chain(certs / "router.pem", certs / "router.key")
        c = http.client.HTTPSConnection("localhost", self.gates[x, y], timeout=WAIT_S, context=ctx)
        try:
            c.request(method, path, None if method == "GET" else b"{}", headers or {})
            r = c.getresponse()
            return Answer(r.status, r.getheaders(), r.read())
        finally:
            c.close()


@pytest.fixture
def fed(tmp_path, request):
    with contextlib.ExitStack() as stack:
        f = Fed(stack, tmp_path)
        yield f
        if getattr(request.node, "failed", False):
            print(*(c.logs() for c in f.c.values()), sep="\n")


def test_a_request_is_forwarded_with_its_tenant_and_counted_at_its_origin(fed):
    fed.add("a", "b")
    fed.link("a", "b")
    acme = key(fed.c["a"].folder, "one", "acme")
    fed.start("b", FAST, **{"router.rate_limit": {"tokens_per_minute": 1}})
    fed.start("a", auth={"enabled": True, "api_keys_file": str(fed.c["a"].folder / "keys")}, **{'tenants."acme"': {"rps": 1, "burst": 2}})
    fed.met("a", "b")
    assert fed.peer("a", "b")["rtt_ms"] > 0 and fed.peer("b", "a")["state"] == "only sends"
    forged = {"X-Cgn-Tenant": "root", "X-Cgn-Via": "b", "X-Request-Id": "mine", "X-Cgn-Session": "s1"}
    for _ in range(2):
        a = fed.c["a"].chat("hello", {**acme, **forged}, max_tokens=4)
        assert a.status == 200 and a.headers["x-cgn-peer"] == "b", (a.status, a.body)
    assert fed.c["a"].chat("hello", acme, max_tokens=4).status == 429
    lines = fed.requests("b", 2)
    assert [(e["from"], e["tenant"], e["id"], e["session"], e["node"]) for e in lines] == [("a", "a/acme", "mine", "s1", "b1")] * 2
    assert [e["from"] for e in fed.requests("a", 3)] == [""] * 3


def test_the_port_of_a_peer_is_for_that_peer_and_for_requests(fed):
    fed.add("a", "b", "c")
    fed.link("a", "b")
    fed.start("b", FAST)
    assert fed.knock("a", "b", "GET", "/healthz", fed.pki["a"]).status == 200
    for path in ("/v1/models", "/version", "/v1/batches"):
        assert fed.knock("a", "b", "GET", path, fed.pki["a"]).status == 404, path
    assert fed.knock("a", "b", "POST", "/v1/chat/completions", fed.pki["a"], {"X-Cgn-Tenant": "a b"}).status == 400
    for stranger in (None, fed.pki["c"], fed.pki["b"]):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            fed.knock("a", "b", "GET", "/healthz", stranger)
    # Its headers mean nothing on the port of clients.
    assert fed.c["b"].chat("hello", {"X-Cgn-Via": "b", "X-Cgn-Tenant": "root", "X-Request-Id": "mine"}, max_tokens=1).status == 200
    assert [e["tenant"] for e in until(lambda: [e for e in fed.requests("b") if e["id"] == "mine"], "it is logged")] == ["-"]


def test_only_models_that_the_peer_accepts_are_answered(fed):
    fed.add("a", "b")
    fed.link("a", "b")
    fed.rows["b"]['peers."a"']["accepts"] = ["other*"]
    fed.start("b", FAST)
    fed.start("a")
    fed.met("a", "b")
    assert fed.c["a"].chat("hello", max_tokens=1).status == 503
    [line] = fed.requests("b", 1)
    assert line["status"] == 404 and line["outcome"] == "model_not_found"


@pytest.mark.parametrize("hops", [1, 2])
def test_a_request_leaves_at_most_max_hops_clusters(fed, hops):
    fed.add("a", "b", "c")
    fed.link("a", "b")
    fed.link("b", "c")
    rule = {"router.federation": {"max_hops": hops}}
    fed.start("c", FAST, **rule)
    fed.start("b", **rule)
    fed.start("a", **rule)
    fed.met("b", "c")
    fed.met("a", "b")
    a = fed.c["a"].chat("hello", max_tokens=4)
    assert a.status == (200 if hops == 2 else 503), a.body
    assert [e["from"] for e in fed.requests("c", hops - 1)] == ["b"] * (hops - 1)


def test_a_request_that_comes_back_is_refused(fed):
    fed.add("a", "b", "c")
    for x, y in ("ab", "bc", "ca"):
        fed.link(x, y)
    for name in "abc":
        fed.start(name, **{"router.federation": {"max_hops": 8}})
    for x, y in ("ab", "bc", "ca"):
        fed.met(x, y)
    assert fed.c["a"].chat("hello", max_tokens=4).status == 503
    assert [len(fed.requests(name, n)) for name, n in (("a", 2), ("b", 1), ("c", 1))] == [2, 1, 1]
    assert sorted(e["status"] for e in fed.requests("a")) == [503, 508]


def test_what_a_peer_has_no_room_for_waits_at_its_origin(fed):
    fed.add("a", "b")
    fed.link("a", "b")
    b, a = fed.start("b", SLOW), fed.start("a", SLOW)
    fed.met("a", "b")
    held = [Stream(c.http_port, "hold", model="sim", max_tokens=4000, ignore_eos=True).read_until(b"data:") for c in (a, b)]
    waiting = Stream(a.http_port, "wait", model="sim", max_tokens=2)
    until(lambda: a.metric("cgn_queue_depth", model="sim") == 1, "it waits at its origin")
    def told():  # b says that it has no room: in its summary, or in its answer
        scraped = a.scrape()
        return sum(a.metric("cgn_away_total", scraped, peer="b", outcome=o) for o in ("refused", "full"))
    until(told, "b had no room")
    assert b.metric("cgn_queue_depth") == 0
    held[0].close()
    assert b"x-cgn-node: a1" in waiting.read_until(b"[DONE]").got.lower()


def test_a_peer_that_falls_silent_is_lost_and_its_requests_go_on_here(fed):
    fed.add("a", "b")
    fed.link("a", "b", first_byte_timeout="60s")
    fed.start("b", SLOW)
    fed.start("a", FAST, router={"resume": True})
    fed.met("a", "b")
    fed.c["a"].nodes["a1"].agent.signal(signal.SIGSTOP)
    until(lambda: "ready" not in fed.c["a"].states().values(), "a has no node")
    s = Stream(fed.c["a"].http_port, "go", model="sim", max_tokens=100, ignore_eos=True).read_until(b"data:")
    assert b"x-cgn-peer: b" in s.got.lower()
    fed.c["a"].nodes["a1"].agent.signal(signal.SIGCONT)
    fed.c["a"].wait_ready()
    fed.c["b"].router_process.signal(signal.SIGSTOP)
    got = s.read_until(b"0\r\n\r\n").got
    assert b"event: error" not in got and b"[DONE]" in got, got[-300:]
    assert fed.peer("a", "b")["state"] == "lost"
    fed.c["b"].router_process.signal(signal.SIGCONT)
    fed.met("a", "b")


def test_a_cluster_that_is_killed_in_its_answer_cuts_it(fed):
    fed.add("a", "b")
    fed.link("a", "b")
    fed.start("b", SLOW)
    fed.start("a")
    fed.met("a", "b")
    s = Stream(fed.c["a"].http_port, "go", model="sim", max_tokens=400, ignore_eos=True).read_until(b"data:")
    fed.c["b"].router_process.kill()
    got = s.read_until(b"0\r\n\r\n").got
    assert b"event: error" in got and b"[DONE]" not in got
    fed.c["a"].counts(1, "cgn_away_total", peer="b", outcome="cut")


@pytest.mark.parametrize("resume, more, goes_on", [("continue", {}, True), ("none", {}, False), ("none", {"temperature": 0, "logprobs": True}, True)])
def test_an_answer_that_broke_off_goes_on_at_the_next_peer(fed, resume, more, goes_on):
    """What can be repeated needs no word of how the peer's engines continue a text."""
    fed.add("a", "b", "c")
    fed.link("a", "b")
    fed.link("a", "c", resume=resume)
    fed.start("b", SLOW)
    fed.start("a", router={"resume": True})
    fed.met("a", "b")
    s = Stream(fed.c["a"].http_port, "go", model="sim", max_tokens=400, ignore_eos=True, **more).read_until(b"data:")
    fed.start("c", ("--time-scale", "0"))
    fed.met("a", "c")
    fed.c["b"].router_process.kill()
    got = s.read_until(b"0\r\n\r\n").got
    assert (b"[DONE]" in got, b"event: error" in got) == (goes_on, not goes_on), got[-400:]
    fed.c["a"].counts(1, "cgn_away_total", peer="b", outcome="cut")
    fed.c["a"].counts(goes_on, "cgn_away_total", peer="c", outcome="answered")
    fed.c["a"].counts(1, "cgn_resumes_total", outcome="resumed" if goes_on else "no_node")


def test_answers_of_a_peer_that_is_gone_wait_for_room_at_home(fed):
    """Requests leave because the home cluster is full. When their peer is gone, the rest of each answer waits at home."""
    fed.add("a", "b")
    fed.link("a", "b")
    fed.start("b", SLOW, **{"router.admission": {"max_concurrent_per_replica": 8}})
    fed.start("a", ("--token-interval-us", "1000"), router={"resume": True})
    fed.met("a", "b")
    port = fed.c["a"].http_port
    held = Stream(port, "hold", model="sim", max_tokens=300, ignore_eos=True).read_until(b"data:")
    fed.c["a"].nodes["a1"].engine.signal(signal.SIGSTOP)
    streams = [Stream(port, f"go {i}", model="sim", max_tokens=300, ignore_eos=True).read_until(b"data:") for i in range(6)]
    fed.c["b"].router_process.kill()
    until(lambda: fed.c["a"].metric("cgn_queue_depth") == 6, lambda: fed.c["a"].scrape())
    fed.c["a"].nodes["a1"].engine.signal(signal.SIGCONT)
    for s in [held, *streams]:
        got = s.read_until(b"0\r\n\r\n").got
        assert b"[DONE]" in got and b"event: error" not in got, got[-400:]
    fed.c["a"].counts(6, "cgn_resumes_total", outcome="resumed")
