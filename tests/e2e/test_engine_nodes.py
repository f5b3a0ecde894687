# SPDX-License-Identifier: Apache-2.0
"""[engine_nodes]: engines without an agent as nodes of the router."""
import http.client
import json
import signal
import subprocess

import pytest

from cluster import BUILD, Cluster, ask, free_port, until
from engine_nodes import Bare, Odd, TlsFront, bare_cluster, reply, sections, url_of
from test_agent import pki  # noqa: F401 (a fixture)
from test_resume import CHAT, PATHS, ROUTER, SLOW, Stream, bare

FAST = ("--time-scale", "0")
LONG = "Tell me of the long river and of its many bridges. " * 30


def node(cluster, name):
    return next((n for n in cluster.status()["nodes"] if n["id"] == name), None)


def ctl(cluster, *words):
    return subprocess.run([BUILD / "src/ctl/cgn-ctl", *words, "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, text=True,
                          timeout=120, check=False)


def heard(cluster, *names):
    """Ask each engine once, until its KV events count."""
    for name in names:
        def told(name=name):
            cluster.chat(f"hello {name}, are your events heard? " * 8, {"X-Cgn-Node": name}, max_tokens=2)
            return node(cluster, name)["cache"]["source"] == "events"
        until(told, f"the events of {name} are heard")


# ---- what clients get ----
def test_an_engine_without_an_agent_answers(cluster):
    (e,) = bare_cluster(cluster, ["a"], *FAST).values()
    assert [m["id"] for m in cluster.ask("GET", "/v1/models").json()["data"]] == ["sim"]
    for body in ({"stream": False}, {"stream": True, "stream_options": {"include_usage": True}}):
        rq = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, **body}
        own = ask(e.port, "POST", "/v1/chat/completions", rq, {"X-Request-Id": "same"})
        got = cluster.ask("POST", "/v1/chat/completions", rq, {"X-Request-Id": "same"})
        assert got.status == own.status == 200 and got.headers["x-cgn-node"] == "a"
        assert bare(got.body) == bare(own.body)
        assert got.headers["content-type"] == own.headers["content-type"]
    told = node(cluster, "a")
    assert told["origin"] == "engine_nodes" and told["engines"][0]["kind"] == "vllm" and told["address"] == f"127.0.0.1:{e.port}"
    refused = cluster.ask("POST", "/v1/chat/completions", {"model": "sim", "messages": "no list"})
    assert refused.status == ask(e.port, "POST", "/v1/chat/completions", {"model": "sim", "messages": "no list"}).status == 400


def test_tools_and_the_table_show_it(cluster):
    bare_cluster(cluster, ["a"], *FAST)
    r = ctl(cluster, "cluster", "nodes", "-o", "wide")
    assert r.returncode == 0 and "no agent" in r.stdout, r
    r = cluster.chat("hello", max_tokens=3)
    def explained():
        said = ctl(cluster, "explain", r.headers["x-request-id"]).stdout
        return "200 ok" in said and ": a\n" in said
    until(explained, "explain knows it")
    assert cluster.metric("cgn_node_state", node="a", state="ready") == 1
    cluster.counts(1, "cgn_direct_total", outcome="engine")


def test_the_prompt_is_cut_as_the_engine_tells(cluster):
    bare_cluster(cluster, ["a"], *FAST, **{'models."sim"': {"tokens": "engine"}})
    r = cluster.chat(LONG, max_tokens=2)
    log = until(lambda: [e for e in cluster.router_process.events("gateway.request") if e["id"] == r.headers["x-request-id"]], "the log has it")[0]
    assert r.status == 200 and log["tokens"] == "engine" and log["blocks"] == log["prompt_tokens"] // 16


def test_the_second_turn_goes_where_the_prefix_is(cluster):
    bare_cluster(cluster, "ab", *FAST, events=True, **{"router": {"policy": "kv"}})
    heard(cluster, "a", "b")
    for name in "ab":
        text = f"{name}: {LONG}"
        first = cluster.chat(text, {"X-Cgn-Node": name}, max_tokens=4)
        assert first.headers["x-cgn-node"] == name
        until(lambda name=name: node(cluster, name)["cache"]["gpu"] > 20, "the index has the blocks")

        def hits(name=name, text=text):
            again = cluster.chat(text, max_tokens=4)
            assert again.headers["x-cgn-node"] == name and again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
            held, of = map(int, again.headers["x-cgn-cache-hit"].split("/"))
            return held == of > 0
        until(hits, "all its blocks are known")
    until(lambda: all(node(cluster, n)["cache"]["state"] == "agreed" for n in "ab"), "the index agrees with the engines")


# ---- failures ----
@pytest.mark.parametrize("kind", PATHS)
def test_an_engine_that_dies_in_a_stream_is_resumed_by_another(cluster, kind):
    path, body = PATHS[kind]
    engines = {name: Bare(cluster, name, *SLOW) for name in "ab"}
    for e in engines.values():
        e.settings["kind"] = "sim"  # its events are tokens, so that the answer is continued to the letter
    cluster.router(sections(engines.values(), **ROUTER))
    cluster.wait_ready(2)
    whole = bare(cluster.ask("POST", path, body).body)
    s = Stream(cluster, path, body)
    victim = s.wait_for(20)
    engines[victim].process.kill()
    assert bare(s.end()) == whole
    until(lambda: node(cluster, victim)["state"] != "ready", "its end is seen")
    assert "127.0.0.1" in node(cluster, victim)["reason"]
    engines[victim].again()
    cluster.wait_ready(2)
    assert cluster.chat("back", {"X-Cgn-Node": victim}, max_tokens=2).headers["x-cgn-node"] == victim


def test_an_engine_that_was_started_again_holds_nothing(cluster):
    (e,) = bare_cluster(cluster, ["a"], *FAST, events=True).values()
    heard(cluster, "a")
    cluster.chat(LONG, max_tokens=2)
    until(lambda: node(cluster, "a")["cache"]["blocks"] > 20, "its blocks are known")
    e.process.kill()
    until(lambda: node(cluster, "a")["state"] != "ready", "its end is seen")
    until(lambda: cluster.chat("nobody there", max_tokens=2).status == 503, "the workers know that nobody is there")
    e.again()
    cluster.wait_ready(1)
    heard(cluster, "a")
    r = cluster.chat(LONG, max_tokens=2)
    assert r.status == 200 and r.json()["usage"]["prompt_tokens_details"]["cached_tokens"] < 100
    until(lambda: node(cluster, "a")["cache"]["state"] == "agreed", "the index agrees with the engine")


def test_an_engine_that_hangs_is_taken_out(cluster):
    engines = bare_cluster(cluster, "ab", *SLOW)
    engines["a"].process.signal(signal.SIGSTOP)
    until(lambda: node(cluster, "a")["state"] != "ready", "the engine that stands still is no more ready")
    assert all(cluster.chat(f"hello {i}", max_tokens=2).headers["x-cgn-node"] == "b" for i in range(4))
    engines["a"].process.signal(signal.SIGCONT)
    cluster.wait_ready(2)


MODELS = json.dumps({"data": [{"id": "sim", "owned_by": "vllm"}]}).encode()
LIES = {
    "no_http": {"/health": b"\x00\xff\x00 nonsense\r\n\r\n", "/v1/models": b"\x16\x03\x01 nonsense\r\n\r\n"},
    "models_are_no_json": {"/v1/models": reply(b"<html>hello</html>")},
    "models_are_a_number": {"/v1/models": reply(b'{"data": 7}')},
    "models_are_odd": {"/v1/models": reply(json.dumps({"data": [1, None, {"id": 3}, {"id": ""}, {"id": "x" * 5000}, {"id": "a\u0000b"}]}).encode())},
    "models_are_many": {"/v1/models": reply(json.dumps({"data": [{"id": f"m{i}"} for i in range(5000)]}).encode())},
    "models_are_deep": {"/v1/models": reply(b"[" * 100000)},
    "models_are_long": {"/v1/models": reply(b'{"data": ["' + b"x" * (6 << 20) + b'"]}')},
    "metrics_lie": {"/v1/models": reply(MODELS), "/health": reply(b""), "/metrics": reply(
        b"vllm:num_requests_running 1e400\nvllm:num_requests_waiting -5\nvllm:kv_cache_usage_perc NaN\n"
        b'vllm:cache_config_info{num_gpu_blocks="99999999999999999999",block_size="-1"} 1\n' + bytes(range(256)), kind="text/plain"),
                    "/v1/chat/completions": reply(b"{}")},
    "answers_are_garbage": {"/v1/models": reply(MODELS), "/health": reply(b""), "/v1/chat/completions": b"\xde\xad\xbe\xef\r\n\r\n"},
    "answers_are_cut": {"/v1/models": reply(MODELS), "/health": reply(b""),
                        "/v1/chat/completions": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n{"},
    "the_head_is_long": {"/v1/models": reply(MODELS), "/health": reply(b""),
                         "/v1/chat/completions": b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 200000 + b"\r\n\r\n"},
}


@pytest.mark.parametrize("lie", LIES)
def test_the_router_survives_an_engine_that_lies(cluster, lie):
    odd, good = Odd(LIES[lie]), Bare(cluster, "good", *FAST)
    try:
        cluster.router(sections([odd, good], **{"router.retry": {"attempts": 3}}))
        until(lambda: cluster.states().get("good") == "ready", "the good engine is ready")
        until(lambda: len(odd.heads) > 5 and (cluster.states()["odd"] == "ready" or node(cluster, "odd")["reason"] != ""), "the odd one was asked")
        for i in range(6):
            try:
                r = cluster.chat(f"hello {i}", max_tokens=2)
            except http.client.IncompleteRead:
                assert lie == "answers_are_cut"
                continue
            assert r.status == 200, r.body
        assert cluster.router_process.alive() and ask(cluster.admin_port, "GET", "/healthz").status == 200
        assert cluster.chat("the good one", {"X-Cgn-Node": "good"}, max_tokens=2).status == 200
        for word in (cluster.status(), ctl(cluster, "cluster", "nodes").stdout):
            json.dumps(word)
    finally:
        odd.close()


def models(*names):
    return reply(json.dumps({"data": [{"id": n} for n in names]}).encode())


def test_a_configured_name_that_the_engine_has_not(cluster):
    """Requests name an engine's only model as the engine does; an engine with several others is not ready."""
    only, several, listless = Bare(cluster, "only", *FAST), Odd({"/v1/models": models("a", "b")}, name="several"), Odd({}, name="listless")
    for e, name in ((only, "gemma"), (several, "qwen"), (listless, "any")):
        e.settings |= {"kind": "sim", "model": name}
    several.answers["/health"] = listless.answers["/health"] = reply(b"")
    try:
        cluster.router(sections([only, several, listless]))
        until(lambda: cluster.states() == {"only": "ready", "several": "joining", "listless": "ready"}, cluster.states)
        until(lambda: "lists a, b" in node(cluster, "several")["reason"] and '"qwen"' in node(cluster, "several")["reason"], lambda: node(cluster, "several"))
        assert "lists a, b" in ctl(cluster, "cluster", "nodes", "-o", "wide").stdout
        cluster.MODEL = "gemma"
        until(lambda: cluster.chat("hello", max_tokens=2).status == 200, "it is served under the configured name")
        streamed = cluster.chat("hello", max_tokens=2, stream=True)
        assert streamed.status == 200 and b"[DONE]" in streamed.body
        assert cluster.ask("POST", "/api/chat", {"model": "gemma", "messages": [{"role": "user", "content": "x"}], "stream": False}).status == 200
        assert cluster.ask("POST", "/v1/messages", {"model": "gemma", "max_tokens": 2, "messages": [{"role": "user", "content": "x"}]}).status == 200
        assert {m["id"] for m in cluster.ask("GET", "/v1/models").json()["data"]} == {"gemma", "any"}
        assert cluster.ask("POST", "/v1/chat/completions", {"model": "qwen", "messages": []}).status == 503
        several.answers["/v1/models"] = models("a", "qwen")
        until(lambda: cluster.states()["several"] == "ready", lambda: node(cluster, "several"))
    finally:
        several.close()
        listless.close()


def test_an_agents_engine_with_another_name(cluster):
    cluster.router({"router.retry": {"attempts": 1}})
    cluster.node("a", *FAST, sections={"engine": {"kind": "sim", "model": "gemma"}})
    cluster.MODEL = "gemma"
    cluster.wait_ready(1)
    assert cluster.chat("hello", max_tokens=2).status == 200
    assert [m["id"] for m in cluster.ask("GET", "/v1/models").json()["data"]] == ["gemma"]


def test_events_of_nobody_do_not_count(cluster):
    e = Bare(cluster, "a", *FAST)
    e.settings["kv_events"] = f"tcp://127.0.0.1:{free_port()}"
    cluster.router(sections([e]))
    cluster.wait_ready(1)
    first = cluster.chat(LONG, max_tokens=2)
    assert first.status == 200
    again = cluster.chat(LONG, max_tokens=2)
    held, of = map(int, again.headers["x-cgn-cache-hit"].split("/"))
    assert node(cluster, "a")["cache"]["source"] == "sent" and held == of > 0


# ---- orders ----
def test_cordon_and_drain(cluster):
    bare_cluster(cluster, "ab", *SLOW)
    s = Stream(cluster, "/v1/chat/completions", CHAT)
    busy = s.wait_for(5)
    r = ctl(cluster, "cluster", "drain", busy)
    assert r.returncode == 0 and "drained" in r.stdout, r
    assert s.end().endswith(b"data: [DONE]\n\n")
    assert cluster.states()[busy] == "cordoned"
    other = {"a": "b", "b": "a"}[busy]
    assert all(cluster.chat(f"hello {i}", max_tokens=2).headers["x-cgn-node"] == other for i in range(3))
    assert ctl(cluster, "cluster", "uncordon", busy).returncode == 0
    cluster.wait_ready(2)


def test_orders_that_need_an_agent_say_so(cluster):
    bare_cluster(cluster, ["a"], *FAST)
    for words in (("model", "unload", "sim"), ("model", "load", "x", "--lora", "/x", "--base", "sim"), ("model", "sleep", "sim")):
        r = ctl(cluster, *words)
        assert r.returncode != 0 and "without an agent" in r.stderr, r


# ---- keys, TLS ----
def test_an_engine_with_tls_and_a_key(cluster, pki, tmp_path):  # noqa: F811
    e = Bare(cluster, "a", *FAST)
    front = TlsFront(e.port, pki, "sk-engine")
    (tmp_path / "key").write_text("sk-engine\n")
    e.settings |= {"url": f"https://127.0.0.1:{front.port}/v1", "api_key_file": str(tmp_path / "key"), "ca_file": str(pki / "ca.pem")}
    wrong = Bare(cluster, "wrong", *FAST)
    wrong.settings |= {"url": e.settings["url"], "ca_file": str(pki / "ca.pem")}
    try:
        cluster.router(sections([e, wrong]))
        until(lambda: cluster.states().get("a") == "ready", "the engine is ready")
        for _ in range(3):
            r = cluster.chat("hello", {"Authorization": "Bearer the-clients"}, max_tokens=3)
            assert r.status == 200 and r.headers["x-cgn-node"] == "a", r.body
        until(lambda: "401" in node(cluster, "wrong")["reason"], lambda: node(cluster, "wrong")["reason"])
        assert "sk-engine" not in json.dumps(cluster.status()) + cluster.router_process.log()
    finally:
        front.close()


# ---- settings ----
@pytest.mark.parametrize(("keys", "says"), [
    ({}, "url is not set"),
    ({"url": "127.0.0.1:8000"}, "must be http://"),
    ({"url": "http://127.0.0.1:1", "managed": True}, "needs a cgn-agent beside the engine"),
    ({"url": "http://127.0.0.1:1", "slot_dir": "/x"}, "needs a cgn-agent beside the engine"),
    ({"url": "http://127.0.0.1:1", "handoff": "nixl"}, "needs a cgn-agent beside the engine"),
    ({"url": "http://127.0.0.1:1", "model": "m"}, "has a model and no kind"),
    ({"url": "http://127.0.0.1:1", "kind": "what"}, "llama_cpp"),
    ({"url": "http://127.0.0.1:1", "kv_events": "udp://x"}, "must be tcp://"),
    ({"url": "http://127.0.0.1:1", "kv_events_replay": "tcp://127.0.0.1:1"}, "needs kv_events"),
    ({"url": "http://127.0.0.1:1", "api_key_file": "/nowhere/key"}, "/nowhere/key"),
    ({"url": "https://127.0.0.1:1", "ca_file": "/nowhere/ca"}, "/nowhere/ca"),
])
def test_settings_that_make_no_sense_are_refused(cluster, keys, says):
    path = cluster.config("bad", {'engine_nodes."a"': keys})
    r = subprocess.run([BUILD / "src/router/cgn-router", "--config", path, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert r.returncode in (1, 3, 5) and says in r.stderr, r


def test_a_name_that_is_no_id_is_refused(cluster):
    path = cluster.config("bad", {'engine_nodes."a/b"': {"url": url_of(1)}})
    r = subprocess.run([BUILD / "src/router/cgn-router", "--config", path, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert r.returncode == 3 and "the node's id" in r.stderr, r


# ---- beside agents, and several routers ----
def test_beside_nodes_with_agents(cluster):
    e = Bare(cluster, "a", *FAST)
    cluster.router(sections([e]))
    cluster.node("b", *FAST)
    cluster.node("a", *FAST)  # its agent has the id of the engine
    until(lambda: cluster.states() == {"a": "ready", "b": "ready"}, "both are ready")
    until(lambda: cluster.router_process.events("router.node_refused"), "the agent with the same id is refused")
    assert node(cluster, "a")["origin"] == "engine_nodes" and node(cluster, "b")["origin"] == ""
    for name in "ab":
        until(lambda name=name: cluster.chat("hello", {"X-Cgn-Node": name}, max_tokens=2).headers.get("x-cgn-node") == name, f"{name} answers")


def test_two_routers_see_each_others_load(tmp_path, cluster):
    engines = bare_cluster(cluster, "ab", "--decode-ms", "20", "--max-tokens-default", "2000")
    with Cluster(tmp_path / "other" if (tmp_path / "other").mkdir() is None else None) as other:
        other.router(sections(engines.values()))
        other.wait_ready(2)
        streams = [Stream(cluster, "/v1/chat/completions", {**CHAT, "max_tokens": 1500}, {"X-Cgn-Node": "a"}) for _ in range(3)]
        for s in streams:
            assert s.wait_for(2) == "a"
        until(lambda: node(other, "a")["others"]["inflight"] >= 3, lambda: node(other, "a")["others"])
        assert node(cluster, "a")["others"]["inflight"] == 0
        assert all(other.chat(f"hello {i}", max_tokens=2).headers["x-cgn-node"] == "b" for i in range(3))
        until(lambda: node(other, "a")["load"]["running"] >= 3, "the engine's metrics say it too")
