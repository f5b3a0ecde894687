# SPDX-License-Identifier: Apache-2.0
"""Circuit breakers, the stall watchdog of streams, retries: a failing node gets no requests, then one probe
at a time, and then full traffic again."""
import signal
import subprocess
import time

import pytest

from clients import Load, Stream, engine_state, set_faults
from cluster import BUILD, scaled, until

FAST = ("--time-scale", "0")
PACED = ("--token-interval-us", "4000")
DEAF_AGENT = {"engine": {"stall_timeout": "0s"}}  # so that the router notices the stall, not the agent
FOREVER = "300s"


def up(cluster, *nodes, router=None, sections=None):
    cluster.router(router)
    for name, args in zip("abcdef", nodes):
        cluster.node(name, *args, sections=sections)
    cluster.wait_ready(len(nodes))
    return cluster


def breaker(cluster, name):
    return next(n["breaker"] for n in cluster.status()["nodes"] if n["id"] == name)


def chats(cluster, n, **more):
    """Return the nodes that answered |n| different prompts."""
    return [cluster.chat(f"prompt {i} {more}", max_tokens=2).headers.get("x-cgn-node") for i in range(n)]


def pinned(cluster, node, text="go", **body):
    """Return a stream from that node whose answer has begun."""
    body = {"max_tokens": 4000, "ignore_eos": True, **body}
    return Stream(cluster.http_port, text, fields={"X-Cgn-Node": node}, **body).read_until(b"data: ")


def read_all(s):
    return s.read_until(b"\r\n0\r\n\r\n").got


def ended_badly(got):
    return b"event: error" in got and b"engine_failed" in got and b"[DONE]" not in got


# ---- breakers ----

def test_failures_in_a_row_take_a_node_out(cluster):
    up(cluster, FAST, (*FAST, "--fault", "http500"), router={"router.breaker": {"failures": 3, "open_for": FOREVER}})
    until(lambda: set(chats(cluster, 6)) == {"a"} and breaker(cluster, "b")["state"] == "open", "b is out")
    b = breaker(cluster, "b")
    assert b["why"] == "failures" and b["text"].startswith("open: 3 failures, ") and b["text"].endswith(" s left"), b
    assert 0 < b["left_ms"] <= 300_000 * 1.25 + 1
    retries = cluster.metric("cgn_retries_total")
    assert set(chats(cluster, 20, again=1)) == {"a"}
    assert cluster.metric("cgn_retries_total") == retries == 3  # no request went to b any more
    assert cluster.metric("cgn_breaker_state", node="b") == 2 and cluster.metric("cgn_breaker_state", node="a") == 0
    assert cluster.metric("cgn_ejections_total", node="b", reason="failures") == 1
    table = subprocess.run([BUILD / "src/ctl/cgn-ctl", "cluster", "nodes", "--router", f"127.0.0.1:{cluster.grpc_port}"],
                           capture_output=True, text=True, timeout=60).stdout
    assert "BREAKER" in table and "open: 3 failures, " in table and "closed" in table, table
    said = cluster.router_process.events("router.breaker")
    assert [(e["node"], e["state"]) for e in said] == [("b", "open")], said


def test_what_is_load_or_the_clients_fault_does_not_count(cluster):
    up(cluster, FAST, router={"router.breaker": {"failures": 1, "open_for": FOREVER}})
    for fault in ("http429", "http400", "http404"):
        set_faults(cluster.nodes["a"].engine_port, fault)
        assert cluster.chat("x").status == int(fault[4:])
        assert breaker(cluster, "a")["state"] == "closed", fault


def test_a_probe_closes_it_again(cluster):
    up(cluster, FAST, (*FAST, "--fault", "refuse"), router={"router.breaker": {"failures": 2, "open_for": "50ms"}})
    until(lambda: chats(cluster, 4) and cluster.metric("cgn_ejections_total", node="b") >= 2, "b was out, and is out again")
    set_faults(cluster.nodes["b"].engine_port)
    until(lambda: "b" in chats(cluster, 4), "b is used again")
    until(lambda: chats(cluster, 4) and breaker(cluster, "b")["text"] == "closed", "its breaker is closed")
    states = [e["state"] for e in cluster.router_process.events("router.breaker") if e["node"] == "b"]
    assert states[:2] == ["open", "half-open"] and states[-1] == "closed", states


@pytest.mark.both
@pytest.mark.threads
def test_half_open_lets_one_request_in(cluster):
    up(cluster, FAST, (*FAST, "--fault", "http500"), router={"router.breaker": {"failures": 2, "open_for": "50ms"}})
    until(lambda: chats(cluster, 4) and cluster.metric("cgn_ejections_total", node="b") >= 1, "b is out")
    set_faults(cluster.nodes["b"].engine_port, "hang")
    load = Load(cluster, n=6)
    until(lambda: breaker(cluster, "b")["text"] == "half-open: a request is trying it", "the probe is out")
    until(lambda: load.reached(scaled(100)), "others go on meanwhile")
    b = next(n for n in cluster.status()["nodes"] if n["id"] == "b")
    assert b["router_inflight"] == 1 and engine_state(cluster.nodes["b"].engine_port)["running"] <= 1, b
    cluster.nodes["b"].engine.kill()  # the end of the probe, which goes to another node
    load.end()
    assert load.ends["answered"] == load.sent, (load.ends, load.statuses)


def test_the_last_one_is_tried_whatever_its_breaker_says(cluster):
    up(cluster, (*FAST, "--fault", "refuse"), FAST, router={"router.breaker": {"failures": 1, "open_for": FOREVER}})
    until(lambda: chats(cluster, 1) and breaker(cluster, "a")["state"] == "open", "a is out")
    set_faults(cluster.nodes["b"].engine_port, "refuse")
    assert cluster.chat("x").status == 503
    assert breaker(cluster, "a")["state"] == breaker(cluster, "b")["state"] == "open"
    set_faults(cluster.nodes["a"].engine_port, "http500")
    set_faults(cluster.nodes["b"].engine_port, "http500")
    assert cluster.chat("y").status == 500  # the engine's own error, not the router's "no node"
    set_faults(cluster.nodes["a"].engine_port)
    set_faults(cluster.nodes["b"].engine_port)
    assert cluster.chat("z").status == 200
    assert "closed" in {breaker(cluster, "a")["state"], breaker(cluster, "b")["state"]}


def test_what_was_tried_is_not_the_last_one(cluster):
    """The panic rule is for the case that all breakers are open: a node that is up and fails gets the
    request, and its stopped neighbour does not."""
    up(cluster, FAST, (*FAST, "--fault", "http500"), router={"router.breaker": {"failures": 2, "open_for": FOREVER}})
    until(lambda: chats(cluster, 4) and breaker(cluster, "b")["state"] == "open", "b is out")
    set_faults(cluster.nodes["a"].engine_port, "http503")
    retries = cluster.metric("cgn_retries_total")
    a = cluster.chat("x")
    assert a.status == 503 and a.headers["x-cgn-node"] == "a" and cluster.metric("cgn_retries_total") == retries


# ---- streams that stall ----

STALL = {"router": {"stall_timeout": "500ms"}, "router.breaker": {"open_for": FOREVER}}


@pytest.mark.threads
def test_a_stopped_engine_is_noticed_in_its_streams(cluster):
    up(cluster, PACED, PACED, router=STALL, sections=DEAF_AGENT)
    streams = [pinned(cluster, "b", f"long {i}") for i in range(4)]
    cluster.nodes["b"].engine.signal(signal.SIGSTOP)
    for s in streams:
        assert ended_badly(read_all(s)), s.got[-300:]
    assert breaker(cluster, "b")["why"] == "stall" and breaker(cluster, "b")["text"].startswith("open: stalled, ")
    assert cluster.metric("cgn_stalls_total", node="b") == 1
    assert set(chats(cluster, 10)) == {"a"}
    until(lambda: all(n["router_inflight"] == 0 for n in cluster.status()["nodes"]), "no booking is left")
    cluster.nodes["b"].engine.signal(signal.SIGCONT)
    until(lambda: engine_state(cluster.nodes["b"].engine_port)["running"] == 0, "it sees that nobody waits")


def test_what_waits_at_a_stalled_node_goes_elsewhere(cluster):
    cluster.common['models."sim"'] = {"tokens": "bytes"}  # otherwise the stalled engine is asked to tokenize first, which takes as long as its stall
    up(cluster, PACED, PACED, router={**STALL, "router": {"stall_timeout": "1s"}}, sections=DEAF_AGENT)
    talk = next(t for t in (f"conversation {i} " * 60 for i in range(50)) if cluster.chat(t, max_tokens=1).headers["x-cgn-node"] == "b")
    stream = pinned(cluster, "b")
    cluster.nodes["b"].engine.signal(signal.SIGSTOP)
    a = cluster.chat(talk, max_tokens=1)  # its prefix is at b
    assert a.status == 200 and a.headers["x-cgn-node"] == "a"
    assert ended_badly(read_all(stream))
    assert cluster.metric("cgn_retries_total", reason="stall") >= 1
    cluster.nodes["b"].engine.signal(signal.SIGCONT)


def test_a_stream_that_stops_in_a_node_that_lives_is_given_up_alone(cluster):
    """By the last limit only, and it says nothing against a node that serves others."""
    up(cluster, PACED, router={"router": {**STALL["router"], "stream_idle_timeout": "2s"}, "router.breaker": {"failures": 1}}, sections=DEAF_AGENT)
    engine = cluster.nodes["a"].engine_port
    alive = pinned(cluster, "a", "one that goes on")
    set_faults(engine, "stall-after=5")
    dead = pinned(cluster, "a", "one that stops")
    set_faults(engine)
    assert ended_badly(read_all(dead))
    (cut,) = cluster.router_process.events("gateway.stream_cut")
    assert "stream_idle_timeout" in cut["why"], cut
    assert breaker(cluster, "a")["text"] == "closed" and cluster.metric("cgn_stalls_total") == 0
    assert alive.read() and not ended_badly(alive.got)
    alive.close()


def test_an_engine_that_is_slow_is_not_stalled(cluster):
    up(cluster, ("--token-interval-us", "300000"), router=STALL, sections=DEAF_AGENT)
    a = cluster.chat("slowly", stream=True, max_tokens=8, ignore_eos=True)
    assert a.events()[-1] == (None, "[DONE]") and breaker(cluster, "a")["text"] == "closed"


def test_a_client_that_does_not_read_is_not_a_stalled_engine(cluster):
    up(cluster, FAST, router={"router": {"stall_timeout": "100ms"}}, sections=DEAF_AGENT)
    s = Stream(cluster.http_port, max_tokens=12000, ignore_eos=True, receive_buffer=16384)
    s.read_until(b"data: ")
    for _ in range(100):  # other requests are served meanwhile, far longer than the stall timeout
        assert set(chats(cluster, 4)) == {"a"}
    assert s.read_until(b"[DONE]") and b"event: error" not in s.got
    assert cluster.metric("cgn_stalls_total") == 0


def test_a_router_that_was_stopped_does_not_blame_its_nodes(cluster):
    up(cluster, PACED, PACED, router={"router": {**STALL["router"], "stream_idle_timeout": "1s"}}, sections=DEAF_AGENT)
    streams = [pinned(cluster, node, f"{node} {i}", max_tokens=1000) for node in "ab" for i in range(4)]
    cluster.router_process.signal(signal.SIGSTOP)
    time.sleep(3)  # longer than the timeouts of a stall and of a silent stream, and than a lease
    cluster.router_process.signal(signal.SIGCONT)
    for s in streams:
        assert b"event: error" not in s.read_until(b"[DONE]").got
    assert cluster.metric("cgn_stalls_total") == 0 and breaker(cluster, "a")["text"] == breaker(cluster, "b")["text"] == "closed"
    assert not cluster.router_process.events("state.lease_ended")


# ---- outliers ----

def busy_until(cluster, what, why):
    """Run a load whose requests all succeed, until what() is true."""
    load = Load(cluster, n=6)
    until(what, why, wait_s=90)
    load.end()
    assert not load.ends["broken"] and not load.ends["wrong"], (load.ends, load.wrong)
    return load


def test_a_slow_node_is_taken_out_by_comparison(cluster):
    up(cluster, ("--decode-ms", "2"), ("--decode-ms", "2"), ("--decode-ms", "20"),
       router={"router": {"policy": "round_robin"}, "router.breaker": {"open_for": FOREVER}})
    load = busy_until(cluster, lambda: breaker(cluster, "c")["state"] == "open", lambda: f"c is out: {cluster.status()['nodes']}")
    why = breaker(cluster, "c")["why"]
    assert why in ("outlier_token", "outlier_first_byte") and load.ends["answered"] == load.sent
    assert cluster.metric("cgn_ejections_total", node="c", reason=why) == 1
    assert breaker(cluster, "a")["state"] == breaker(cluster, "b")["state"] == "closed"
    assert set(chats(cluster, 6)) == {"a", "b"}


@pytest.mark.parametrize("how, fault, settings", [
    ("outlier_errors", "http500@0.6", {"failures": 0, "failure_share": 0}),
    ("share", "http500@0.9", {"failures": 0, "outliers": False}),
])
def test_a_node_that_fails_often_is_taken_out(cluster, how, fault, settings):
    up(cluster, FAST, FAST, (*FAST, "--fault", fault),
       router={"router": {"policy": "round_robin"}, "router.breaker": {"open_for": FOREVER, **settings}})
    busy_until(cluster, lambda: breaker(cluster, "c")["state"] == "open", lambda: f"c is out: {cluster.status()['nodes']}")
    assert breaker(cluster, "c")["why"] == how
    assert breaker(cluster, "a")["state"] == breaker(cluster, "b")["state"] == "closed"


# ---- faults that agents notice ----

def test_an_agent_notices_a_stopped_engine(cluster):
    up(cluster, PACED, PACED, router={"router": {"stall_timeout": "0s"}}, sections={"engine": {"stall_timeout": "1s"}})
    stream = pinned(cluster, "b")
    cluster.nodes["b"].engine.signal(signal.SIGSTOP)
    until(lambda: cluster.states()["b"] == "joining", "its engine is not ready")
    assert ended_badly(read_all(stream))
    assert cluster.metric("cgn_stalls_total", node="b") >= 1
    assert [e for e in cluster.nodes["b"].agent.events("engine.unready") if "stalled" in e["why"]]
    assert set(chats(cluster, 6)) == {"a"}
    cluster.nodes["b"].engine.signal(signal.SIGCONT)
    until(lambda: cluster.states()["b"] == "ready", "it is back")
    until(lambda: "b" in chats(cluster, 8), "and used: nobody waits for its breaker")


def test_a_busy_engine_that_answers_its_checks_is_not_stalled(cluster):
    """An engine that begins no answer for a long time, as with long prompts."""
    up(cluster, (*FAST, "--fault", "hang"), sections={"engine": {"stall_timeout": "200ms"}},
       router={"router": {"first_byte_timeout": "6s"}})
    assert cluster.chat("x").status == 504
    assert cluster.states()["a"] == "ready" and not cluster.nodes["a"].agent.events("engine.unready")


@pytest.mark.threads
def test_a_silent_agent_loses_its_streams_and_comes_back(cluster):
    cluster.common = {"cluster": {"lease": "60s"}}
    up(cluster, PACED, PACED, router={"router": {"stall_timeout": "0s"}})
    stream = pinned(cluster, "b")
    cluster.nodes["b"].agent.signal(signal.SIGSTOP)
    until(lambda: cluster.states()["b"] == "down", "it is down long before its lease ends")
    assert ended_badly(read_all(stream))
    assert set(chats(cluster, 6)) == {"a"}
    cluster.nodes["b"].agent.signal(signal.SIGCONT)
    until(lambda: cluster.states()["b"] == "ready", "it is back")
    until(lambda: "b" in chats(cluster, 8), "and used again")


# ---- retries ----

def test_what_is_retried_is_configured(cluster):
    up(cluster, FAST, (*FAST, "--fault", "http500"), router={"router.retry": {"on": ["connect"]}, "router.breaker": {"failures": 0}})
    until(lambda: 500 in {cluster.chat(f"p{i}").status for i in range(6)}, "an answer of b is passed on")
    assert cluster.metric("cgn_retries_total") == 0
    set_faults(cluster.nodes["b"].engine_port, "refuse")
    assert {cluster.chat(f"q{i}").status for i in range(12)} == {200}
    assert cluster.metric("cgn_retries_total", reason="failed") > 0


def test_an_unknown_cause_of_retries_is_an_error(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('[router.retry]\non = ["connect", "5XX"]\n')
    got = subprocess.run([BUILD / "src/router/cgn-router", "--check", "--config", path], capture_output=True, text=True, timeout=60)
    assert got.returncode == 3 and "5XX" in got.stderr and "connect, reset, 5xx, error, refused, 429, timeout, stall" in got.stderr, got


def test_retries_have_a_budget(cluster):
    up(cluster, FAST, (*FAST, "--fault", "http429"), router={"router": {"worker_threads": 1}, "router.retry": {"budget": 0}})
    seen = []
    until(lambda: seen.append(cluster.chat(f"p{len(seen)}", max_tokens=1).status) or 429 in seen, "what is left of the reserve is used up")
    assert cluster.metric("cgn_retries_denied_total") >= 1 and cluster.metric("cgn_retries_total") >= 50
