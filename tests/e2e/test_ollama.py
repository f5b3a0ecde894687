# SPDX-License-Identifier: Apache-2.0
"""Ollama's API on the gateway: the same engines, routing, limits and counts as for OpenAI's."""
import gzip
import http.server
import json
import re
import socket
import subprocess
import threading

import pytest

import media_engine
from clients import head_of
from cluster import BUILD, until

FAST = ("--time-scale", "0")


@pytest.fixture
def up(cluster):
    cluster.common = {'models."sim"': {"aliases": ["llama3"]}}
    cluster.router()
    cluster.node("a", *FAST)
    cluster.wait_ready(1)
    return cluster


def lines(answer):
    assert answer.headers["content-type"] == "application/x-ndjson", answer.headers
    assert answer.body.endswith(b"\n")
    return [json.loads(line) for line in answer.body.splitlines()]


def chat(text="tell me about the sea", **more):
    return {"model": "sim", "messages": [{"role": "user", "content": text}], "options": {"num_predict": 12, "seed": 1}, **more}


def openai(cluster, body, path="/v1/chat/completions"):
    return cluster.ask("POST", path, {"model": "sim", "max_tokens": 12, "seed": 1, **body}).json()


def counts(last, usage):
    assert last["done"] is True and last["total_duration"] > 0
    assert (last["prompt_eval_count"], last["eval_count"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert 0 < last["prompt_eval_duration"] <= last["total_duration"] and last["eval_duration"] <= last["total_duration"]
    assert last["load_duration"] == 0


def test_a_chat_streams_lines_with_openais_text(up):
    whole = openai(up, {"messages": chat()["messages"]})
    a = up.ask("POST", "/api/chat", chat())
    got = lines(a)
    assert a.status == 200 and a.headers["x-cgn-node"] == "a" and "x-request-id" in a.headers
    assert "".join(x["message"]["content"] for x in got) == whole["choices"][0]["message"]["content"]
    assert [x["done"] for x in got] == [False] * (len(got) - 1) + [True] and len(got) > 5
    assert {x["model"] for x in got} == {"sim"} and all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", x["created_at"]) for x in got)
    assert got[-1]["done_reason"] == "length"
    counts(got[-1], whole["usage"])


def test_a_whole_chat_is_one_object(up):
    whole = openai(up, {"messages": chat()["messages"]})
    a = up.ask("POST", "/api/chat", chat(stream=False))
    got = a.json()
    assert (a.status, a.headers["content-type"]) == (200, "application/json") and a.headers["content-length"] == str(len(a.body))
    assert got["message"] == {"role": "assistant", "content": whole["choices"][0]["message"]["content"]}
    counts(got, whole["usage"])


def test_a_prompt_a_raw_prompt_and_vectors(up):
    whole = openai(up, {"messages": [{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}]})
    ask = {"model": "sim", "options": {"num_predict": 12, "seed": 1}}
    got = lines(up.ask("POST", "/api/generate", {**ask, "prompt": "hi", "system": "be short"}))
    assert "".join(x["response"] for x in got) == whole["choices"][0]["message"]["content"]
    counts(got[-1], whole["usage"])
    raw = openai(up, {"prompt": "once"}, "/v1/completions")
    got = up.ask("POST", "/api/generate", {**ask, "prompt": "once", "raw": True, "stream": False}).json()
    assert got["response"] == raw["choices"][0]["text"]
    vectors = openai(up, {"input": ["a", "b"]}, "/v1/embeddings")
    got = up.ask("POST", "/api/embed", {"model": "sim", "input": ["a", "b"]}).json()
    assert got["embeddings"] == [d["embedding"] for d in vectors["data"]] and got["prompt_eval_count"] == vectors["usage"]["prompt_tokens"]
    assert up.ask("POST", "/api/embeddings", {"model": "sim", "prompt": "a"}).json() == {"embedding": vectors["data"][0]["embedding"]}


def test_tools_and_schemas(up):
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
    body = {"messages": [{"role": "user", "content": "use weather"}], "tools": [tool]}
    whole = openai(up, {**body, "max_tokens": 200, "tool_choice": "auto"})["choices"][0]["message"]
    ask = chat(**body, stream=False) | {"options": {"num_predict": 200, "seed": 1}}
    got = up.ask("POST", "/api/chat", ask).json()["message"]
    theirs = [{"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])} for c in whole.get("tool_calls") or []]
    ours = [{k: c["function"][k] for k in ("name", "arguments")} for c in got.get("tool_calls", [])]
    assert ours == theirs
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    got = up.ask("POST", "/api/chat", chat(format=schema, stream=False, options={"num_predict": 200})).json()
    assert isinstance(json.loads(got["message"]["content"])["n"], int)


def test_names(up):
    tags = up.ask("GET", "/api/tags").json()["models"]
    assert {m["name"] for m in tags} == {"sim", "llama3"} and all(len(m["digest"]) == 64 and m["model"] == m["name"] for m in tags)
    assert [m["name"] for m in up.ask("GET", "/api/ps").json()["models"]] == ["sim"]
    for name in ("sim", "sim:latest", "llama3", "llama3:latest"):
        got = up.ask("POST", "/api/chat", chat(model=name, stream=False))
        assert (got.status, got.json().get("model")) == (200, name), got.body
        assert up.ask("POST", "/api/show", {"model": name}).json()["capabilities"]
    assert up.ask("POST", "/api/show", {"name": "sim"}).status == 200
    for path in ("/api/chat", "/api/show", "/api/generate", "/api/embed"):
        for body in (chat(model="none", prompt="x", input="x"), {"model": "none"}):
            a = up.ask("POST", path, body)
            assert a.status == 404 and set(a.json()) == {"error"} and "none" in a.json()["error"]
    version = up.ask("GET", "/api/version").json()
    assert version["version"].count(".") == 2 and version["cognitora"]


def test_errors_have_ollamas_shape(up):
    rows = [("POST", "/api/chat", b"{", 400, "JSON"), ("POST", "/api/chat", b"[]", 400, "object"), ("POST", "/api/chat", {}, 400, "model"),
            ("POST", "/api/chat", chat(options=3), 400, "options"), ("POST", "/api/generate", {"model": "sim", "prompt": "x", "context": [1]}, 400, "context"),
            ("GET", "/api/chat", None, 405, "POST"), ("POST", "/api/nothing", {}, 404, "no route"), ("POST", "/api/pull", {}, 501, "not managed"),
            ("POST", "/api/chat", chat(options={"num_predict": 10**8}), 400, "context length")]  # the last is the engine's own
    for method, path, body, status, what in rows:
        a = up.ask(method, path, body)
        assert a.status == status and set(a.json()) == {"error"} and what in a.json()["error"], (path, body, a.body)


def test_large_bodies_and_their_bounds(up):
    """A body over 256 KiB is translated beside the worker."""
    text = "w\u00f6rds " * 60_000
    for name in ("sim", "sim:latest", "llama3:latest"):
        a = up.ask("POST", "/api/chat", chat(text, model=name, stream=False, options={"num_predict": 3, "num_ctx": 1 << 20}))
        assert a.status == 400 and "context length" in a.json()["error"], a.body[:200]  # the engine read all of it
    assert up.ask("POST", "/api/chat", chat(text, options=3)).status == 400
    many = b",".join(b'"a%d":1' % i for i in range(50_000))
    refused = up.ask("POST", "/api/chat", b'{"model":"sim","messages":[],' + many + b"}")
    assert refused.status == 400 and "members" in refused.json()["error"]
    twice = up.ask("POST", "/api/chat", b'{"model":"sim","Model":"other","messages":[]}')
    assert twice.status == 400 and set(twice.json()) == {"error"}


def test_a_request_without_a_prompt_loads(up):
    a = up.ask("POST", "/api/generate", {"model": "sim"})
    assert a.status == 200 and (a.json()["done"], a.json()["done_reason"]) == (True, "load")
    assert up.ask("POST", "/api/chat", {"model": "sim", "messages": [], "keep_alive": 0}).json()["done_reason"] == "unload"


def test_bodies_without_a_type_reach_the_engine_as_json(cluster):
    """curl -d sends a form's type; Ollama's own clients send none."""
    seen = []
    server, port = media_engine.serve(seen=seen)
    agent = cluster.agent("m", port, {"engine": {"kind": "openai_compat"}})[0]
    cluster.router()
    cluster.wait_ready(1)
    for kind in ({"Content-Type": "application/x-www-form-urlencoded"}, {}, {"Content-Type": "application/json"}):
        cluster.ask("POST", "/api/chat", json.dumps(chat(stream=False)).encode(), kind)
        assert seen.pop() == ("/v1/chat/completions", ["application/json"]), kind
        assert not seen
    agent.stop()
    server.shutdown()


class OddEngine(http.server.BaseHTTPRequestHandler):
    """An engine whose answer is the prompt: what a client says is what it streams, compressed if it begins with "gzip"."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, body, kind, **fields):
        self.send_response(200)
        for name, value in {"Content-Type": kind, "Content-Length": len(body), **fields}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send(json.dumps({"data": [{"id": "sim"}]}).encode(), "application/json")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "messages" not in body:
            return self.send_error(404)
        says = body["messages"][0]["content"].encode()
        if says.startswith(b"gzip"):
            return self.send(gzip.compress(says[4:]), "text/event-stream", **{"Content-Encoding": "gzip"})
        return self.send(says, "text/event-stream")


def test_an_odd_answer_is_understood_or_an_error(cluster):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), OddEngine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    agent = cluster.agent("odd", server.server_address[1], {"engine": {"kind": "openai_compat"}})[0]
    cluster.router()
    cluster.wait_ready(1)

    def event(finish=None, **delta):
        return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]})}\n\n"

    def call(tool, arguments):
        return event(tool_calls=[{"index": 0, "id": tool, "type": "function", "function": {"name": tool, "arguments": arguments}}])

    rows = [(event(content="a") + event("stop", content="b").strip(), {"content": "ab"}, None),
            (call("f", '{"x":1}') + call("g", {"y": 2}) + event("tool_calls"), {"tools": [("f", {"x": 1}), ("g", {"y": 2})]}, None),
            (event(content=[{"type": "text", "text": "ab"}]) + "data: [DONE]\n\n", {"content": "ab"}, None),
            (event(content="a") + event("abort"), None, "abort"),
            (event(content="a") + 'data: {"object": "error", "message": "boom"}\n\n', None, "boom"),
            ("data: [DONE]\n\n", None, "nothing"),
            ("gzip" + event("stop", content="a"), None, "compressed")]
    for says, has, error in rows:
        for stream in (True, False):
            a = cluster.ask("POST", "/api/chat", chat(says, stream=stream))
            got = [json.loads(line) for line in a.body.splitlines()]
            if error:
                assert set(got[-1]) == {"error"} and error in got[-1]["error"] and not any(x.get("done") for x in got), (says, a.body)
                continue
            assert a.status == 200 and got[-1]["done"], (says, a.body)
            text = "".join(x["message"]["content"] for x in got)
            tools = [(c["function"]["name"], c["function"]["arguments"]) for x in got for c in x["message"].get("tool_calls", [])]
            assert (text, tools) == (has.get("content", ""), has.get("tools", [])), (says, a.body)
    agent.stop()
    server.shutdown()


def test_they_are_routed_counted_explained_and_limited(cluster):
    cluster.router({"router.rate_limit": {"rps": 0.001, "burst": 4}})
    for name in "ab":
        cluster.node(name, *FAST)
    cluster.wait_ready(2)
    text = "a long prompt about nothing " * 60
    first, second = (cluster.ask("POST", "/api/chat", chat(text)) for _ in range(2))
    held, blocks = map(int, second.headers["x-cgn-cache-hit"].split("/"))
    assert held == blocks > 4 and second.headers["x-cgn-node"] == first.headers["x-cgn-node"]
    same = cluster.chat(text, max_tokens=1)  # the prefix is the one of OpenAI's API
    assert same.headers["x-cgn-cache-hit"] == f"{blocks}/{blocks}"
    shown = cluster.ask("POST", "/api/chat", chat(text), {"X-Cgn-Explain": "1"})
    assert json.loads(shown.headers["x-cgn-explain"])
    limited = cluster.ask("POST", "/api/chat", chat())
    assert limited.status == 429 and "retry-after" in limited.headers and set(limited.json()) == {"error"}
    cluster.counts(4, "cgn_requests_total", model="sim", code="200")
    assert cluster.metric("cgn_tokens_total", kind="completion") >= 36
    until(lambda: [e["path"] for e in cluster.router_process.events("gateway.request")].count("/api/chat") == 4, "each has a line")


def test_a_refusing_node_is_replaced(cluster):
    cluster.router()
    cluster.node("a", *FAST, "--fault", "http500")
    cluster.node("b", *FAST)
    cluster.wait_ready(2)
    for _ in range(4):
        a = cluster.ask("POST", "/api/chat", chat(stream=False))
        assert (a.status, a.headers["x-cgn-node"]) == (200, "b")


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_dies_ends_the_answer_with_an_error(cluster, stream):
    cluster.router()
    cluster.node("a", *FAST, "--fault", "cut-after:3")
    cluster.wait_ready(1)
    a = cluster.ask("POST", "/api/chat", chat(stream=stream))
    if stream:
        got = lines(a)
        assert a.status == 200 and set(got[-1]) == {"error"} and not any(x.get("done") for x in got)
    else:
        assert a.status == 502 and set(a.json()) == {"error"}


def test_a_dead_engines_answer_is_resumed(cluster):
    cluster.router({"router": {"resume": True}})
    cluster.node("a", *FAST)
    cluster.wait_ready(1)
    whole = cluster.ask("POST", "/api/chat", chat(stream=False)).json()["message"]["content"]
    cluster.node("b", *FAST, "--fault", "cut-after:3")
    cluster.wait_ready(2)
    for stream in (False, True) * 3:
        a = cluster.ask("POST", "/api/chat", chat(stream=stream))
        got = lines(a) if stream else [a.json()]
        assert a.status == 200 and got[-1]["done"] and "".join(x["message"]["content"] for x in got) == whole
    assert cluster.metric("cgn_resumes_total", outcome="resumed") >= 1


def test_a_client_that_leaves_frees_the_engine(cluster):
    cluster.router()
    cluster.node("a", "--token-interval-us", "20000")
    cluster.wait_ready(1)
    data = json.dumps(chat(options={"num_predict": 5000})).encode()
    with socket.create_connection(("127.0.0.1", cluster.http_port), timeout=20) as s:
        s.sendall(head_of(len(data), "/api/chat") + data)
        got = b""
        while b'"done":false}\n' not in got:
            got += s.recv(65536)
    until(lambda: cluster.status()["nodes"][0]["router_inflight"] == 0, "the booking is given back")


def test_keys_and_scopes(cluster):
    out = subprocess.run([BUILD / "src/ctl/cgn-ctl", "key", "create", "--file", cluster.folder / "keys", "--scopes", "embed", "-o", "json"],
                         check=True, capture_output=True, text=True).stdout
    key = {"Authorization": f"Bearer {json.loads(out)['key']}"}
    cluster.router({"auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")}})
    cluster.node("a", *FAST)
    cluster.wait_ready(1)
    assert cluster.ask("POST", "/api/chat", chat()).status == cluster.ask("GET", "/api/tags").status == 401
    assert cluster.ask("POST", "/api/chat", chat(), key).status == 403
    assert cluster.ask("POST", "/api/embed", {"model": "sim", "input": "x"}, key).status == 200
    assert cluster.ask("GET", "/api/version").status == 200
