# SPDX-License-Identifier: Apache-2.0
"""agent.direct: routers go straight to the engine where the agent has nothing to add, and nothing is lost by it."""
import signal
import socket
import threading

import pytest

from clients import Stream, engine_state
from cluster import ask, free_port, until
from engine_nodes import sections
from forgetful_engine import Forgetful
from several import Several

PROMPT = list(range(40))
ROUTES = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello there"}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello there"}], "stream": True}),
    ("/v1/completions", {"prompt": "once upon a time"}),
    ("/v1/completions", {"prompt": "once upon a time", "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/responses", {"input": "hello"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "stream": True}),
    ("/v1/embeddings", {"input": "hello"}),
    ("/api/chat", {"messages": [{"role": "user", "content": "hello"}], "stream": False}),
    ("/api/generate", {"prompt": "hello"}),
    ("/v1/chat/completions", {"messages": "no list"}),
]


def kv_events():
    """The arguments of an engine that publishes KV events, and its agent's settings."""
    at, replay = f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}"
    return ["--kv-events", at, "--kv-events-replay", replay], {"kv_events": at, "kv_events_replay": replay}


def add(cluster, name, *args, direct="auto", events=True, **keys):
    """A node whose engine publishes KV events, unless |events| is false."""
    publish, heard = kv_events() if events else ([], {})
    node = cluster.node(name, *publish, *args, sections={"engine": {**heard, **keys}, "agent": {"direct": direct}})
    node.publish, node.heard = publish, heard
    return node


def announced(node):
    (engine,) = ask(node.admin_port, "GET", "/engines").json()["engines"]
    return engine["residency"] == "events"


def up(cluster, *args, router=None, **more):
    cluster.router(router)
    node = add(cluster, "a", *args, **more)
    cluster.wait_ready(1)
    if more.get("events", True):
        until(lambda: announced(node), "the engine's events are heard")
    return node


def sent(cluster, outcome="engine"):
    return cluster.metric("cgn_direct_total", outcome=outcome)


def goes_direct(cluster, want=True):
    """Send one request; return whether it went straight to the engine, as the access log and explain say."""
    before = sent(cluster)
    r = cluster.ask("POST", "/v1/completions", {"model": "sim", "prompt": "probe", "max_tokens": 1})
    assert r.status == 200, r.body
    went = until(lambda: [e for e in cluster.router_process.events("gateway.request")
                          if e["id"] == r.headers["x-request-id"]], "the access log has it")[0]["direct"]
    assert went == (sent(cluster) > before)
    return went


def wait_direct(cluster):
    until(lambda: goes_direct(cluster), "requests go straight to the engine")


def bare(body):
    """An answer without what differs from one request to the next: ids and instants."""
    import re
    body = re.sub(rb'"(id|created|created_at|item_id|total_duration|load_duration|prompt_eval_duration|eval_duration|completed_at)":\s*("[^"]*"|\d+)',
                  b"", body)
    return re.sub(rb"[0-9a-f]{16,}", b"", body)


def answers(cluster):
    got = []
    for path, body in ROUTES:
        r = cluster.ask("POST", path, {"model": "sim", "max_tokens": 8, **body}, {"X-Request-Id": "same"})
        kept = {k: v for k, v in r.headers.items() if k in ("content-type", "x-cgn-node", "x-request-id")}
        got.append((path, r.status, kept, bare(r.body)))
    return got


def test_answers_are_the_same_straight_and_by_the_agent(cluster):
    node = up(cluster, "--time-scale", "0")
    wait_direct(cluster)
    before = sent(cluster)
    straight = answers(cluster)
    assert sent(cluster) - before >= len(ROUTES) - 2
    assert cluster.metric("cgn_direct_total", outcome="agent") == 0
    node.agent.stop()
    until(lambda: cluster.states() == {}, "the node has left")
    node.agent, node.agent_port, node.admin_port = cluster.agent("a", node.engine_port)
    cluster.wait_ready(1)
    before = sent(cluster)
    assert answers(cluster) == straight
    assert sent(cluster) == before


@pytest.mark.parametrize("why", ["off", "no_events", "key", "base"])
def test_where_something_would_be_lost_the_agent_relays(cluster, why, tmp_path):
    keys, more = {}, {}
    if why == "off":
        more["direct"] = "off"
    elif why == "no_events":
        more["events"] = False
    elif why == "key":
        (tmp_path / "key").write_text("secret\n")
        keys["api_key_file"] = str(tmp_path / "key")
    cluster.router()
    node = add(cluster, "a", "--time-scale", "0", **more, **keys)
    cluster.wait_ready(1)
    if why != "no_events":
        until(lambda: announced(node), "the engine's events are heard")
    if why == "base":
        node.agent.stop()
        until(lambda: cluster.states() == {}, "the node has left")
        node.admin_port = cluster.agent("a", node.engine_port, {"agent": {"direct": "auto"}, "engine": {
            "url": f"http://127.0.0.1:{node.engine_port}/v1", **node.heard}})[2]
        cluster.wait_ready(1)
    for _ in range(3):
        assert not goes_direct(cluster)


def test_auto_needs_an_engine_on_this_machine(cluster):
    """The engine has another address of this machine, which the agent's own address does not show."""
    cluster.router()
    port, (publish, heard) = free_port(), kv_events()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no address but the loopback")
        mine = s.getsockname()[0]
    cluster.run("engine-a", "cgn-sim", "--listen", f"0.0.0.0:{port}", "--model", "sim", *publish)
    keys = {"url": f"http://{mine}:{port}", **heard}
    agent, _, admin = cluster.agent("a", port, {"engine": keys, "agent": {"direct": "auto"}})
    cluster.wait_ready(1)
    until(lambda: ask(admin, "GET", "/engines").json()["engines"][0]["residency"] == "events", "the events are heard")
    assert not goes_direct(cluster)
    agent.stop()
    until(lambda: cluster.states() == {}, "the node has left")
    cluster.agent("a", port, {"engine": keys, "agent": {"direct": "on"}})
    cluster.wait_ready(1)
    wait_direct(cluster)


def test_an_engine_out_of_reach_gets_its_requests_by_the_agent(cluster):
    """The agent, which knows more, says what the node is worth, and the log says it once for each worker."""
    node = up(cluster, "--time-scale", "0")
    wait_direct(cluster)
    node.engine.signal(signal.SIGKILL)
    node.engine.wait()
    bad = [cluster.chat("x", max_tokens=1).status for _ in range(3)]
    assert set(bad) <= {502, 503}, bad
    until(lambda: cluster.states().get("a") != "ready", "the node is not ready")
    assert len(cluster.router_process.events("gateway.direct_away")) <= 2  # once for each worker
    at = node.engine_port
    cluster.engine("engine-again", *node.publish, port=at)
    cluster.wait_ready(1)
    for _ in range(5):
        assert cluster.chat("y", max_tokens=1).status == 200


def test_a_client_that_leaves_stops_the_engine(cluster):
    node = up(cluster, "--token-interval-us", "2000")
    wait_direct(cluster)
    s = Stream(cluster.http_port, "talk", max_tokens=10000, ignore_eos=True)
    s.read_until(b"data:")
    assert engine_state(node.engine_port)["running"] == 1
    s.close()
    until(lambda: engine_state(node.engine_port)["running"] == 0, "the engine runs nothing")
    until(lambda: cluster.metric("cgn_inflight") == 0, "nothing is booked")


def test_an_alias_reaches_the_engine_under_its_own_name(cluster):
    up(cluster, "--time-scale", "0", router={'models."pretty"': {"aliases": ["sim"]}})
    wait_direct(cluster)
    before = sent(cluster)
    r = cluster.ask("POST", "/v1/completions", {"model": "pretty", "prompt": "x", "max_tokens": 1})
    assert r.status == 200, r.body  # the engine has no model "pretty"
    assert sent(cluster) == before + 1


class Load:
    """Threads that ask one after another, until told to stop."""

    def __init__(self, cluster, threads=4):
        self.cluster, self.over, self.bad, self.good = cluster, False, [], 0
        self.threads = [threading.Thread(target=self.work, args=(i,)) for i in range(threads)]
        for t in self.threads:
            t.start()

    def work(self, i):
        while not self.over:
            r = self.cluster.ask("POST", "/v1/completions", {"model": "sim", "prompt": f"work {i}", "max_tokens": 4})
            if r.status == 200:
                self.good += 1
            else:
                self.bad.append(r.body)

    def more(self, n=50):
        want = self.good + n
        until(lambda: self.good >= want or self.bad, "more answers")

    def end(self):
        self.over = True
        for t in self.threads:
            t.join()
        assert self.bad == []


@pytest.mark.threads
@pytest.mark.parametrize("victim", ["engine", "agent"])
def test_a_killed_program_fails_no_request(cluster, victim):
    cluster.router()
    nodes = [add(cluster, n, "--token-interval-us", "500") for n in "ab"]
    cluster.wait_ready(2)
    until(lambda: all(announced(n) for n in nodes), "the engines' events are heard")
    wait_direct(cluster)
    load = Load(cluster)
    try:
        load.more()
        getattr(nodes[0], victim).kill()
        load.more(150)
    finally:
        load.end()
    assert sent(cluster) > 100


@pytest.mark.threads
def test_a_drain_waits_for_requests_that_the_agent_does_not_see(cluster):
    node = up(cluster, "--token-interval-us", "20000")
    wait_direct(cluster)
    s = Stream(cluster.http_port, "talk", max_tokens=100, ignore_eos=True)
    s.read_until(b"data:")
    until(lambda: ask(node.admin_port, "GET", "/engines").json()["engines"][0]["direct"] == 1, "the agent knows of it")
    node.agent.signal(signal.SIGTERM)
    had = s.got.count(b"data:")
    while s.got.count(b"data:") < had + 40:
        assert s.read()
    assert not node.agent.events("agent.leave")  # an engine of its own would be stopped
    s.read_until(b"[DONE]")
    s.close()
    assert node.agent.wait() == 0
    assert node.agent.events("agent.leave") and not node.agent.events("agent.drain_timeout")


@pytest.mark.threads
def test_routers_learn_of_each_others_direct_requests(tmp_path):
    with Several(tmp_path) as c:
        publish, heard = kv_events()
        c.static_nodes("a", "--decode-ms", "40", *publish, sections={"engine": heard, "agent": {"direct": "auto"}})
        one, two = c.routers(2)
        until(lambda: one.nodes() and two.nodes(), "both know the node")

        def straight():
            assert one.chat("x", max_tokens=1).status == 200
            return any(e["direct"] for e in one.process.events("gateway.request"))
        until(straight, "requests go straight to the engine")
        got = [Stream(one.http_port, f"talk {i}", max_tokens=4000) for i in range(3)]
        for s in got:
            s.read_until(b"data:")
        until(lambda: two.others()["a"] == 3 and one.others()["a"] == 0, lambda: f"each knows: {one.others()} {two.others()}")
        until(lambda: two.others("decoding") == {"a": 3}, "and that their answers have begun")
        for s in got:
            s.reset()
        until(lambda: two.others()["a"] == 0, "they are gone")


def test_a_direct_stream_ends_when_the_agent_says_that_its_engine_is_stalled(cluster):
    """The router's own limit is far away."""
    node = up(cluster, "--token-interval-us", "4000", router={"router": {"stall_timeout": "300s"}, "router.breaker": {"open_for": "300s"}}, stall_timeout="1s")
    wait_direct(cluster)
    s = Stream(cluster.http_port, max_tokens=4000, ignore_eos=True).read_until(b"data: ")
    node.engine.signal(signal.SIGSTOP)
    assert b"engine_failed" in s.read_until(b"\r\n0\r\n\r\n").got
    assert cluster.status()["nodes"][0]["breaker"]["text"].startswith("open: stalled")
    node.engine.signal(signal.SIGCONT)
    until(lambda: cluster.states()["a"] == "ready", "it is back")


def test_a_direct_stream_goes_on_while_the_agent_is_silent(cluster):
    """The engine brings a byte now and then, so it lives: the agent's silence says nothing of it."""
    cluster.common = {"cluster": {"lease": "60s"}}
    node = up(cluster, "--token-interval-us", "900000", router={"router": {"stall_timeout": "2s"}})
    wait_direct(cluster)
    s = Stream(cluster.http_port, max_tokens=7, ignore_eos=True).read_until(b"data: ")
    node.agent.signal(signal.SIGSTOP)
    until(lambda: cluster.router_process.events("router.agent_silent"), "the router knows")
    assert b"event: error" not in s.read_until(b"[DONE]").got
    node.agent.signal(signal.SIGCONT)
    until(lambda: cluster.states()["a"] == "ready", "it is back")


def test_a_connection_that_the_engine_had_closed_fails_no_request(cluster):
    with Forgetful() as engine:
        cluster.router({"router": {"worker_threads": 1}, **sections([engine])})
        cluster.wait_ready(1)
        for _ in range(6):
            assert cluster.ask("POST", "/v1/chat/completions", {"model": "m", "messages": []}).status == 200
        assert engine.closed >= 3
        told = until(lambda: len(e := [e for e in cluster.router_process.events("gateway.request") if e["model"]]) == 6 and e, "all are logged")
        assert {e["tries"] for e in told} == {1}  # nor does it count as a failure of the engine
