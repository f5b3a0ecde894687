# SPDX-License-Identifier: Apache-2.0
"""An engine or its node dies during a streamed answer, and another engine continues it: the client sees the
same answer as from an engine that lived."""
import http.client
import json
import re
import signal
import threading
import time

import pytest

from cluster import WAIT_S, ask, until

ROUTER = {"router": {"resume": True}, "router.breaker": {"failures": 0}}
SLOW = ("--decode-ms", "4", "--max-tokens-default", "300")
CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Tell me of the sea. " * 40}], "stream": True, "max_tokens": 120}
TEXT = {"model": "sim", "prompt": "Once upon a time, by the sea " * 30, "stream": True, "max_tokens": 120}
PATHS = {"chat": ("/v1/chat/completions", CHAT), "text": ("/v1/completions", TEXT)}
CHAT_PATH = PATHS["chat"][0]
USAGE = {"stream_options": {"include_usage": True}}


def bare(body):
    """Return the event without fields that differ between requests or between a cold and a warm cache."""
    body = re.sub(rb'"id":"[\w.-]+"', b'"id":""', re.sub(rb'"created":\d+', b'"created":0', body))
    return re.sub(rb'"cached_tokens":\d+', b'"cached_tokens":0', body)


def names(body):
    return set(re.findall(rb'"id":"([^"]+)"', body)), set(re.findall(rb'"created":(\d+)', body))


class Stream(threading.Thread):
    """A request whose bytes are collected as they come."""

    def __init__(self, cluster, path, body, headers=None):
        super().__init__(daemon=True)
        self.cluster, self.path, self.body, self.headers = cluster, path, body, headers or {}
        self.got, self.status, self.fields, self.error = b"", 0, {}, None
        self.start()

    def run(self):
        c = http.client.HTTPConnection("127.0.0.1", self.cluster.http_port, timeout=WAIT_S)
        try:
            c.request("POST", self.path, json.dumps(self.body), {"Content-Type": "application/json"} | self.headers)
            r = c.getresponse()
            self.status, self.fields = r.status, {k.lower(): v for k, v in r.getheaders()}
            while piece := r.read1(65536):
                self.got += piece
        except Exception as e:  # pylint: disable=broad-except
            self.error = e
        finally:
            c.close()

    def wait_for(self, events):
        until(lambda: self.got.count(b"\n\n") >= events or not self.is_alive(), f"{events} events")
        assert self.is_alive(), self.got
        return self.fields["x-cgn-node"]

    def end(self):
        self.join(WAIT_S)
        assert not self.is_alive() and self.error is None, self.error
        return self.got


def two(cluster, router=None, args=SLOW):
    cluster.router(router or ROUTER)
    for name in "ab":
        cluster.node(name, *args)
    cluster.wait_ready(2)


def whole(cluster, path, body):
    """Return the client's answer when no engine dies."""
    return bare(cluster.ask("POST", path, body).body)


def request_log(cluster):
    return next((e for e in reversed(cluster.router_process.events("gateway.request")) if e["path"].startswith("/v1/")), None)


def is_seamless(cluster, got, expected, tries=2):
    ids, created = names(got)
    assert bare(got) == expected
    assert len(ids) == 1 and len(created) == 1 and got.count(b"[DONE]") == 1
    log = until(lambda: (e := request_log(cluster)) and e["outcome"] == "resumed" and e, lambda: str(request_log(cluster)))
    assert log["tries"] == tries and log["status"] == 200


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize("victim", ["engine", "agent"])
def test_kill_nine_in_mid_stream(cluster, kind, victim):
    path, body = PATHS[kind]
    two(cluster)
    expected = whole(cluster, path, body | USAGE)
    s = Stream(cluster, path, body | USAGE)
    node = cluster.nodes[s.wait_for(20)]
    (node.engine if victim == "engine" else node.agent).kill()
    is_seamless(cluster, s.end(), expected)
    assert cluster.metric("cgn_resumes_total", outcome="resumed") == 1


@pytest.mark.parametrize("limit", ["stall_timeout", "stream_idle_timeout"])
def test_a_stopped_engine(cluster, limit):
    two(cluster, ROUTER | {"router": {"resume": True, "stall_timeout": "0s"} | {limit: "700ms"}})
    expected = whole(cluster, *PATHS["chat"])
    s = Stream(cluster, *PATHS["chat"])
    node = cluster.nodes[s.wait_for(20)]
    node.engine.signal(signal.SIGSTOP)
    is_seamless(cluster, s.end(), expected)
    assert (cluster.metric("cgn_stalls_total", node=node.name) > 0) == (limit == "stall_timeout")


@pytest.mark.parametrize("fault", ["cut-after=0", "cut-after=1", "cut-after=37", "cut-after=119", "cut-after=120", "truncated-chunk", "stall-after=50"])
@pytest.mark.parametrize("kind", ["chat", "text"])
def test_faults_wherever_they_strike(cluster, kind, fault):
    path, body = PATHS[kind]
    two(cluster, ROUTER | {"router": {"resume": True, "stream_idle_timeout": "700ms"}})
    expected = whole(cluster, path, body | USAGE)
    for node in cluster.nodes.values():
        assert ask(node.engine_port, "POST", "/sim/faults", {"faults": [f"{fault}@nth=1"]}).status == 200
    # Each node has the prompt once: the first one asked, and then the other one, which still has its own fault to come, unless it was never asked.
    other = next(iter(cluster.nodes.values()))
    assert ask(other.engine_port, "POST", "/sim/faults", {"faults": []}).status == 200
    for _ in range(4):
        assert bare(cluster.ask("POST", path, body | USAGE).body) == expected
    assert cluster.metric("cgn_resumes_total") == cluster.metric("cgn_resumes_total", outcome="resumed") + cluster.metric(
        "cgn_resumes_total", outcome="completed")


def test_twice_in_a_row(cluster):
    cluster.router(ROUTER)
    for name in "abc":
        cluster.node(name, *SLOW)
    cluster.wait_ready(3)
    expected = whole(cluster, CHAT_PATH, CHAT | USAGE)
    s = Stream(cluster, CHAT_PATH, CHAT | USAGE)
    first = s.wait_for(15)
    cluster.nodes[first].engine.kill()
    until(lambda: cluster.metric("cgn_resumes_total", outcome="resumed") == 1, "it goes on")
    s.wait_for(60)
    second = [n for n in "abc" if n != first and running(cluster.nodes[n])]
    assert len(second) == 1
    cluster.nodes[second[0]].agent.kill()
    is_seamless(cluster, s.end(), expected, 3)
    assert cluster.metric("cgn_resumes_total", outcome="resumed") == 2


def running(node):
    return ask(node.engine_port, "GET", "/sim/state").json()["running"] > 0


def is_cut(got):
    return b"event: error" in got and b"engine_failed" in got and b"[DONE]" not in got


def test_no_other_node_is_there(cluster):
    cluster.router(ROUTER)
    cluster.node("a", *SLOW)
    cluster.wait_ready(1)
    s = Stream(cluster, CHAT_PATH, CHAT)
    s.wait_for(10)
    cluster.nodes["a"].engine.kill()
    got = s.end()
    assert is_cut(got) and got.index(b"\n\nevent: error") > 0
    assert b"the engine died while it answered, and the answer was not continued: no other node that can continue it is ready" in got
    assert cluster.metric("cgn_resumes_total", outcome="no_node") == 1
    assert until(lambda: (e := request_log(cluster)) and e["outcome"] == "cut" and e, "logged")["resumes"] == 0


def test_the_other_one_refuses(cluster):
    """The answer cannot be resumed: the client gets an error instead of the rest of the answer."""
    two(cluster)
    s = Stream(cluster, CHAT_PATH, CHAT)
    first = s.wait_for(10)
    other = next(n for n in cluster.nodes.values() if n.name != first)
    assert ask(other.engine_port, "POST", "/sim/faults", {"faults": ["http400"]}).status == 200
    cluster.nodes[first].engine.kill()
    assert is_cut(s.end())
    assert cluster.metric("cgn_resumes_total", outcome="failed") == 1


def test_the_other_one_is_full_for_a_while(cluster):
    """Half an answer waits for room, and goes on before requests that have nothing yet."""
    two(cluster, ROUTER | {"router.admission": {"max_concurrent_per_replica": 1}})
    long = CHAT | {"max_tokens": 400}
    expected = whole(cluster, CHAT_PATH, long)
    other = http.client.HTTPConnection("127.0.0.1", cluster.http_port, timeout=WAIT_S)
    other.request("POST", CHAT_PATH, json.dumps(CHAT | {"messages": [{"role": "user", "content": "Tell me of the hills."}], "max_tokens": 3000}))
    answer = other.getresponse()
    first = Stream(cluster, CHAT_PATH, long)
    victim = cluster.nodes[first.wait_for(20)]
    assert answer.status == 200 and answer.getheader("x-cgn-node") != victim.name and answer.read1()
    victim.engine.kill()
    until(lambda: cluster.metric("cgn_queue_depth") == 1, lambda: cluster.scrape())
    waits = [Stream(cluster, CHAT_PATH, CHAT | {"max_tokens": 5}, {"X-Cgn-Priority": "high"}) for _ in range(3)]
    until(lambda: cluster.metric("cgn_queue_depth") == 4, lambda: cluster.scrape())
    answer.close()
    other.close()
    shown = until(lambda: (text := cluster.scrape()) and cluster.metric("cgn_resumes_total", text, outcome="resumed") == 1 and text, "it goes on")
    assert cluster.metric("cgn_queue_depth", shown) >= 3  # the others still wait, as one place is all there is
    is_seamless(cluster, first.end(), expected)
    assert all(b"[DONE]" in s.end() for s in waits)
    log = {e["id"]: e for e in cluster.router_process.events("gateway.request") if e["path"].startswith("/v1/")}
    order = [e["outcome"] for e in log.values() if e["outcome"] in ("ok", "resumed")][-4:]
    assert "resumed" in order[:2], order  # a worker may log an answer that began later a moment earlier


@pytest.mark.parametrize("resume", ["1", "0"])
def test_a_node_that_was_asked_for_dies(cluster, resume):
    """X-Cgn-Node says who is to answer. That node is gone: any other one goes on, unless the client wants no such answer."""
    two(cluster)
    expected = whole(cluster, *PATHS["chat"])
    s = Stream(cluster, *PATHS["chat"], {"X-Cgn-Node": "a", "X-Cgn-Resume": resume})
    assert s.wait_for(20) == "a"
    cluster.nodes["a"].engine.kill()
    if resume == "1":
        is_seamless(cluster, s.end(), expected)
    else:
        assert b"event: error" in s.end()


def test_the_other_one_has_no_room(cluster):
    """The leg that continues an answer waits in the queue and is turned away: the client has half an answer, which ends with an error event."""
    two(cluster, ROUTER | {"router.admission": {"max_concurrent_per_replica": 1, "queue_timeout": "300ms"}})
    first = Stream(cluster, *PATHS["chat"])
    victim = cluster.nodes[first.wait_for(20)]
    other = Stream(cluster, CHAT_PATH, CHAT | {"messages": [{"role": "user", "content": "Tell me of the hills."}], "max_tokens": 1000})
    assert cluster.nodes[other.wait_for(5)] is not victim
    victim.engine.kill()
    got = first.end()
    assert first.status == 200 and b"event: error" in got and b"[DONE]" not in got
    log = until(lambda: (e := request_log(cluster)) and e["outcome"] == "cut" and e, lambda: str(request_log(cluster)))
    assert log["status"] == 200 and log["not_resumed"] == "no_room", log
    assert b"the answer was not continued: no node that serves sim had room in time" in got, got
    assert b"[DONE]" in other.end()
    assert cluster.ask("GET", "/healthz").status == 200


def test_half_an_answer_waits_before_all_others(cluster):
    """Each node has as much as it may. The rest of an answer, whose client named the node that died, waits for the other node, and is
    next there although another request came first."""
    two(cluster, ROUTER | {"router": {"resume": True, "worker_threads": 1}, "router.admission": {"max_concurrent_per_replica": 1, "queue_timeout": "60s"}},
        ("--decode-ms", "8", "--max-tokens-default", "300"))
    asked = CHAT | {"max_tokens": 300}
    expected = whole(cluster, CHAT_PATH, asked)
    first = Stream(cluster, CHAT_PATH, asked, {"X-Cgn-Node": "a"})
    assert first.wait_for(20) == "a"
    other = Stream(cluster, CHAT_PATH, CHAT | {"messages": [{"role": "user", "content": "Tell me of the hills."}], "max_tokens": 300})
    assert other.wait_for(5) == "b"
    assert ask(cluster.admin_port, "POST", "/nodes/a/cordon", None, {"X-Cgn-Page": "1"}).status == 200  # the next request waits for b alone
    last = Stream(cluster, CHAT_PATH, CHAT | {"messages": [{"role": "user", "content": "Tell me of the woods."}]})
    until(lambda: cluster.metric("cgn_queue_depth", model="sim") == 1, "it waits")
    cluster.nodes["a"].engine.kill()
    assert bare(first.end()) == expected
    assert b"[DONE]" in other.end() and b"[DONE]" in last.end()
    def ended():
        return [e["outcome"] for e in cluster.router_process.events("gateway.request") if e["path"] == CHAT_PATH]
    until(lambda: len(ended()) == 4, ended)
    assert ended() == ["ok", "ok", "resumed", "ok"]


def test_off_unless_asked_for(cluster):
    two(cluster, {"router.breaker": {"failures": 0}})
    for headers, resumes in ((None, False), ({"X-Cgn-Resume": "0"}, False), ({"X-Cgn-Resume": "1"}, True)):
        expected = whole(cluster, CHAT_PATH, CHAT)
        s = Stream(cluster, CHAT_PATH, CHAT, headers)
        node = cluster.nodes[s.wait_for(10)]
        node.engine.kill()
        got = s.end()
        assert (bare(got) == expected) if resumes else is_cut(got)
        node.engine.start()
        cluster.wait_ready(2)
    assert cluster.metric("cgn_resumes_total") == 1
    bad = cluster.ask("POST", CHAT_PATH, CHAT, {"X-Cgn-Resume": "please"})
    assert bad.status == 400 and "X-Cgn-Resume" in bad.json()["error"]["message"]


def test_zero_turns_it_off(cluster):
    two(cluster)
    s = Stream(cluster, CHAT_PATH, CHAT, {"X-Cgn-Resume": "0"})
    cluster.nodes[s.wait_for(10)].engine.kill()
    assert is_cut(s.end())
    assert cluster.metric("cgn_resumes_total") == 0


@pytest.mark.parametrize("body", [
    CHAT | {"n": 2}, CHAT | {"logprobs": True}, CHAT | {"response_format": {"type": "json_object"}},
    CHAT | {"tools": [{"type": "function", "function": {"name": "sea", "parameters": {"type": "object", "properties": {
        f"p{i}": {"type": "string"} for i in range(60)}}}}]}])
def test_what_can_not_be_gone_on_with(cluster, body):
    two(cluster, args=("--decode-ms", "60"))
    s = Stream(cluster, CHAT_PATH, body)
    cluster.nodes[s.wait_for(4)].engine.kill()
    got = s.end()
    assert is_cut(got) and b"and the answer was not continued: the " in got, got
    assert cluster.metric("cgn_resumes_total", outcome="unresumable") == 1
    log = until(lambda: (e := request_log(cluster)) and e["outcome"] == "cut" and e, lambda: str(request_log(cluster)))
    assert log["not_resumed"] in ("several", "logprobs", "grammar", "content"), log


@pytest.mark.parametrize("body, headers", [
    (CHAT | {"response_format": {"type": "json_object"}}, {}), (CHAT | {"logprobs": True, "top_logprobs": 2}, {}), (CHAT, {"X-Cgn-Resume": "exact"})])
def test_what_is_repeated(cluster, body, headers):
    """At temperature 0 the other engine says all again, and the client gets what it lacks."""
    two(cluster, args=("--decode-ms", "30"))
    body = body | USAGE | {"temperature": 0, "max_tokens": 30}
    expected = whole(cluster, CHAT_PATH, body)
    s = Stream(cluster, CHAT_PATH, body, headers)
    cluster.nodes[s.wait_for(4)].engine.kill()
    is_seamless(cluster, s.end(), expected)


def test_another_answer_is_no_repetition(cluster):
    """The other engine has another seed: the client gets no mixture, and is told so."""
    cluster.router(ROUTER)
    cluster.node("a", *SLOW, "--seed", "1")
    cluster.node("b", *SLOW, "--seed", "2")
    cluster.wait_ready(2)
    s = Stream(cluster, CHAT_PATH, CHAT | {"temperature": 0}, {"X-Cgn-Resume": "exact"})
    cluster.nodes[s.wait_for(20)].engine.kill()
    got = s.end()
    assert is_cut(got) and b"not continued: the engine that was to repeat the answer said something else" in got, got[-500:]
    log = until(lambda: (e := request_log(cluster)) and e["outcome"] == "cut" and e, lambda: str(request_log(cluster)))
    assert log["not_resumed"] == "differs" and log["tries"] == 2, log
    assert cluster.metric("cgn_breaker_transitions_total", to="open") == 0


def test_only_engines_that_can_continue_are_asked(cluster):
    """An OpenAI-compatible engine can't resume unless configured; any engine can resume an answer without text."""
    cluster.router(ROUTER)
    cluster.node("a", *SLOW)
    cluster.node("b", *SLOW, sections={"engine": {"kind": "openai_compat"}})
    cluster.wait_ready(2)
    bodies = [CHAT | {"messages": [{"role": "user", "content": f"{i} times the sea"}]} for i in range(8)]
    expected = [whole(cluster, CHAT_PATH, b) for b in bodies]
    streams = [Stream(cluster, CHAT_PATH, b) for b in bodies]
    hit = [s.wait_for(5) for s in streams]
    assert set(hit) == {"a", "b"}
    cluster.nodes["a"].engine.kill()
    for s, node, e in zip(streams, hit, expected):
        got = s.end()
        assert is_cut(got) if node == "a" else bare(got) == e
    assert cluster.metric("cgn_resumes_total", outcome="no_node") == hit.count("a")


def test_an_engine_that_is_said_to_continue(cluster):
    """The token count is an estimate then, but an answer without a limit needs none."""
    cluster.router(ROUTER)
    for name in "ab":
        cluster.node(name, *SLOW, sections={"engine": {"kind": "openai_compat", "resume": "continue"}})
    cluster.wait_ready(2)
    body = {k: v for k, v in CHAT.items() if k != "max_tokens"}
    expected = whole(cluster, CHAT_PATH, body)
    s = Stream(cluster, CHAT_PATH, body)
    cluster.nodes[s.wait_for(20)].engine.kill()
    is_seamless(cluster, s.end(), expected)


def test_beyond_its_memory(cluster):
    two(cluster, ROUTER | {"router": {"resume": True, "resume_size": "1KiB"}})
    s = Stream(cluster, CHAT_PATH, CHAT | {"messages": [{"role": "user", "content": "much " * 1000}]})
    cluster.nodes[s.wait_for(10)].engine.kill()
    assert is_cut(s.end())
    assert cluster.metric("cgn_resumes_total", outcome="no_memory") == 1


def test_many_at_once(cluster):
    """Every stream of a node that dies continues on another node, each with its own text."""
    two(cluster)
    bodies = [CHAT | USAGE | {"messages": [{"role": "user", "content": f"the {i}th sea " * (i + 1)}]} for i in range(12)]
    expected = [whole(cluster, CHAT_PATH, b) for b in bodies]
    streams = [Stream(cluster, CHAT_PATH, b) for b in bodies]
    hit = [s.wait_for(8) for s in streams]
    cluster.nodes["a"].agent.kill()
    for s, e in zip(streams, expected):
        assert bare(s.end()) == e
    assert cluster.metric("cgn_resumes_total", outcome="resumed") == hit.count("a") > 0
    until(lambda: cluster.metric("cgn_inflight") == 0, "nothing is left behind")


def test_the_node_that_holds_the_prompt_goes_on(cluster):
    """The chain of prompt and text begins with the prompt's chain: the node that has it in its cache is chosen."""
    cluster.router(ROUTER)
    for name in "abc":
        cluster.node(name, *SLOW, "--kv-digests")
    cluster.wait_ready(3)
    prompt = CHAT | {"messages": [{"role": "user", "content": "a long prompt that two nodes know " * 200}]}
    first = cluster.ask("POST", CHAT_PATH, prompt).headers["x-cgn-node"]
    cluster.nodes[first].agent.signal(signal.SIGSTOP)
    until(lambda: cluster.states().get(first) != "ready", "it is down")
    second = cluster.ask("POST", CHAT_PATH, prompt).headers["x-cgn-node"]
    assert second != first
    cluster.nodes[first].agent.signal(signal.SIGCONT)
    cluster.wait_ready(3)
    until(lambda: all(cluster.metric("cgn_index_held", node=n) > 20 for n in (first, second)), "the index knows both")
    s = Stream(cluster, CHAT_PATH, prompt)
    at = s.wait_for(10)
    assert at in (first, second)
    cluster.nodes[at].engine.kill()
    s.end()
    log = until(lambda: (e := request_log(cluster)) and e["outcome"] == "resumed" and e, "resumed")
    assert log["node"] == ({first, second} - {at}).pop() and log["blocks_held"] > 20


def test_a_client_that_goes_meanwhile(cluster):
    two(cluster)
    s = http.client.HTTPConnection("127.0.0.1", cluster.http_port, timeout=WAIT_S)
    s.request("POST", CHAT_PATH, json.dumps(CHAT), {"Content-Type": "application/json"})
    r = s.getresponse()
    r.readline()
    node = cluster.nodes[r.headers["x-cgn-node"]]
    other = next(n for n in cluster.nodes.values() if n is not node)
    assert ask(other.engine_port, "POST", "/sim/faults", {"faults": ["hang"]}).status == 200
    node.engine.kill()
    until(lambda: cluster.router_process.events("gateway.resume"), "it is asked to go on")
    r.close()
    s.close()
    until(lambda: cluster.metric("cgn_inflight") == 0, "all is given back")
    until(lambda: (e := request_log(cluster)) and e["outcome"] == "client_gone", lambda: str(request_log(cluster)))


def test_a_slow_reader(cluster):
    """Back-pressure and an engine that dies: no byte is lost or repeated."""
    two(cluster, args=("--decode-ms", "0.3"))
    body = CHAT | {"max_tokens": 12000, "ignore_eos": True}
    s = http.client.HTTPConnection("127.0.0.1", cluster.http_port, timeout=WAIT_S)
    s.request("POST", CHAT_PATH, json.dumps(body), {"Content-Type": "application/json"})
    r = s.getresponse()
    node = cluster.nodes[r.headers["x-cgn-node"]]
    got = r.read1(1000)
    time.sleep(0.5)
    node.engine.kill()
    got += r.read()
    s.close()
    assert bare(got) == whole(cluster, CHAT_PATH, body)


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_a_node_goes_on_under_its_own_name_of_the_model(cluster, kind):
    """The client asks by an alias, and each node serves the model under another name: all events have the alias."""
    path, body = PATHS[kind]
    asked = body | USAGE | {"model": "alias"}
    cluster.common = {"models.sim": {"aliases": ["org/sim", "alias"]}}
    cluster.router(ROUTER | {"router": {"resume": True, "policy": "round_robin", "worker_threads": 1}})
    cluster.node("a", *SLOW)
    cluster.node("b", *SLOW, model="org/sim")
    cluster.wait_ready(2)
    expected = whole(cluster, path, asked)
    assert expected.count(b'"model":"alias"') == expected.count(b"data: {") > 100
    for resumed, victim in enumerate("ab", 1):
        for name, node in cluster.nodes.items():
            faults = ["cut-after=37@nth=1"] if name == victim else []
            assert ask(node.engine_port, "POST", "/sim/faults", {"faults": faults}).status == 200
        for _ in range(3):  # at least one of them to the victim
            assert bare(cluster.ask("POST", path, asked).body) == expected
        assert cluster.metric("cgn_resumes_total", outcome="resumed") >= resumed
