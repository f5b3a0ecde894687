# SPDX-License-Identifier: Apache-2.0
"""The gateway's surface beside OpenAI's chat: errors in each API's shape, methods, and the page at /."""
import json
import socket
import subprocess

import pytest

import toy_tokens
from cluster import BUILD, ask, until

FAST = ("--time-scale", "0")
MESSAGES = "/v1/messages"


def up(cluster, *engine, router=None, **node):
    cluster.router(router)
    cluster.node("a", *(engine or FAST), **node)
    cluster.wait_ready(1)
    return cluster


def message(text="go", **more):
    return {"model": "sim", "max_tokens": 8, "messages": [{"role": "user", "content": text}], **more}


def anthropic(answer, status, kind):
    """Check that |answer| is an error in Anthropic's shape; return its sentence."""
    body = answer.json()
    assert answer.status == status, body
    assert set(body) == {"type", "error", "request_id"} and set(body["error"]) == {"type", "message"}, body
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["error"]["message"] and body["request_id"] == answer.headers["x-request-id"]
    return body["error"]["message"]


# ---- Anthropic's errors ----

def test_errors_of_messages_have_anthropics_shape(cluster):
    made = subprocess.run([BUILD / "src/ctl/cgn-ctl", "key", "create", "--file", cluster.folder / "keys", "--scopes", "embed", "-o", "json"],
                          check=True, capture_output=True, text=True).stdout
    chat = subprocess.run([BUILD / "src/ctl/cgn-ctl", "key", "create", "--file", cluster.folder / "keys", "-o", "json"],
                          check=True, capture_output=True, text=True).stdout
    embed, key = ({"x-api-key": json.loads(k)["key"]} for k in (made, chat))
    up(cluster, router={"router": {"max_body": "4KiB"}, "auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")},
                        'tenants."default"': {}, "router.rate_limit": {"rps": 0.001, "burst": 2}})
    anthropic(cluster.ask("POST", MESSAGES, message()), 401, "authentication_error")
    anthropic(cluster.ask("POST", MESSAGES, message(), embed), 403, "permission_error")
    assert "line 1" in anthropic(cluster.ask("POST", MESSAGES, b"{", key), 400, "invalid_request_error")
    assert "nope" in anthropic(cluster.ask("POST", MESSAGES, message(model="nope"), key), 404, "not_found_error")
    anthropic(cluster.ask("POST", MESSAGES, message("x" * 5000), key), 413, "request_too_large")
    anthropic(cluster.ask("POST", MESSAGES, b"{}", key | {"Content-Encoding": "br"}), 415, "invalid_request_error")
    assert anthropic(cluster.ask("GET", MESSAGES, None, key), 405, "invalid_request_error")
    anthropic(cluster.ask("POST", MESSAGES + "/batches", {}, key), 404, "not_found_error")
    answers = [cluster.ask("POST", MESSAGES, message(), key) for _ in range(3)]
    limited = answers[-1]
    assert [a.status for a in answers[:2]] == [200, 200] and "retry-after" in limited.headers
    anthropic(limited, 429, "rate_limit_error")
    assert cluster.ask("POST", "/v1/messagesx", {}, key).json()["error"]["code"] == "not_found"  # any other path has OpenAI's shape


def test_messages_without_a_node_or_an_answer(cluster):
    cluster.common = {'models."sim"': {"aliases": []}}
    cluster.router({"router": {"first_byte_timeout": "300ms"}, "router.retry": {"attempts": 1}})
    anthropic(cluster.ask("POST", MESSAGES, message()), 503, "overloaded_error")
    cluster.node("a", "--fault", "hang")
    cluster.wait_ready(1)
    anthropic(cluster.ask("POST", MESSAGES, message()), 504, "timeout_error")


def test_a_cut_stream_of_messages_ends_with_anthropics_error_event(cluster):
    up(cluster, "--time-scale", "0", "--fault", "cut-after:3")
    a = cluster.ask("POST", MESSAGES, message(stream=True, max_tokens=50))
    name, data = a.events()[-1]
    error = json.loads(data)
    assert a.status == 200 and name == "error"
    assert (error["type"], error["error"]["type"]) == ("error", "api_error") and error["error"]["message"]


def test_a_late_body_is_told_in_the_paths_shape(cluster):
    up(cluster, router={"router": {"body_timeout": "200ms"}})
    for path, field in ((MESSAGES, "request_timeout"), ("/v1/chat/completions", "code")):
        with socket.create_connection(("127.0.0.1", cluster.http_port), timeout=20) as s:
            s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{{".encode())
            got = b""
            while more := s.recv(65536):
                got += more
        assert got.startswith(b"HTTP/1.1 408 ")
        assert (b'"type":"error"' in got) == (path == MESSAGES), (field, got)


# ---- methods ----

GETS = ("/", "/v1/models", "/v1/models/sim", "/healthz", "/readyz", "/version")
POSTS = ("/v1/chat/completions", "/v1/messages", "/v1/embeddings", "/tokenize")


def test_head_is_answered_where_get_is(cluster):
    up(cluster)
    for path in GETS:
        get, head = cluster.ask("GET", path), cluster.ask("HEAD", path)
        assert (head.status, head.body) == (200, b"") and get.status == 200, path
        assert head.headers["content-length"] == str(len(get.body)) and head.headers["content-type"] == get.headers["content-type"]
    until(lambda: cluster.ask("HEAD", "/v1/models/none").status == 404, "the router knows which models there are")


def test_405_names_the_methods(cluster):
    up(cluster)
    for path, allow, others in [(p, "GET, HEAD", ("POST", "DELETE", "OPTIONS")) for p in GETS] + [
            (p, "POST", ("GET", "HEAD", "PUT")) for p in POSTS]:
        for method in others:
            a = cluster.ask(method, path)
            assert (a.status, a.headers.get("allow")) == (405, allow), (method, path)


def test_admin_ports_of_router_and_agent(cluster):
    up(cluster)
    for port, program, path in ((cluster.admin_port, "cgn-router", "/nodes"), (cluster.nodes["a"].admin_port, "cgn-agent", "/engines")):
        index = ask(port, "GET", "/").json()
        assert index["program"] == program and index["version"] and index["paths"][path] == "GET"
        for one in ("/", "/metrics", "/healthz", path):
            assert ask(port, "HEAD", one).status == ask(port, "GET", one).status == 200
            wrong = ask(port, "POST", one)
            assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD")


# ---- the page at / ----

@pytest.mark.parametrize("accept,kind", [(None, "application/json"), ("*/*", "application/json"), ("text/plain", "text/plain; charset=utf-8"),
                                         ("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", "text/html; charset=utf-8")])
def test_the_index_says_what_this_is(cluster, accept, kind):
    cluster.router({"router": {"worker_threads": 1}})
    a = cluster.ask("GET", "/", headers={"Accept": accept} if accept else {})
    version = cluster.ask("GET", "/version").json()["version"]
    assert (a.status, a.headers["content-type"]) == (200, kind)
    for word in ("cognitora", version, "/v1/models", "/healthz", "docs"):
        assert word in a.body.decode(), word
    if kind == "application/json":
        assert a.json()["name"] == "cognitora" and a.json()["links"]["models"] == "/v1/models"


# ---- counting tokens ----

COUNT = MESSAGES + "/count_tokens"


def count(cluster, **more):
    body = {k: v for k, v in message(**more).items() if k != "max_tokens"}
    return cluster.ask("POST", COUNT, body)


def test_tokens_are_counted_as_the_engine_counts_them(cluster):
    """The emulator has no such route: the router counts with the engine's tokenizer."""
    up(cluster)
    tool = {"name": "weather", "description": "the weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
    for more in ({}, {"text": "a longer text " * 3000}, {"system": "be short", "tools": [tool]}):
        used = cluster.ask("POST", MESSAGES, message(**more)).json()["usage"]
        counted = count(cluster, **more)
        assert counted.status == 200 and set(counted.json()) == {"input_tokens"}, counted.body
        assert counted.json()["input_tokens"] == used["input_tokens"] + used.get("cache_read_input_tokens", 0), more.keys()


def test_tokens_are_counted_by_the_models_own_files(cluster, tmp_path):
    cluster.common = {'models."sim"': {"tokenizer": str(toy_tokens.write(tmp_path / "toy"))}}
    up(cluster)
    for text in ("hello", "w\u00f6rds and words " * 4000):  # the second is longer than the blocks that routing looks at
        talk = [("system", "You are \u00e4 fox."), ("user", text)]
        for _ in range(2):
            got = count(cluster, system=talk[0][1], text=text)
            assert (got.status, got.json()) == (200, {"input_tokens": len(toy_tokens.ids_of(toy_tokens.rendered(*talk)))})
    assert cluster.chat("hello", max_tokens=1).status == 200
    assert [e["node"] for e in cluster.router_process.tells("gateway.request", 4, path=COUNT)] == [""] * 4  # no engine was asked


def test_a_count_that_nobody_can_make_is_refused_clearly(cluster):
    cluster.common = {'models."sim"': {"tokens": "bytes"}}
    up(cluster)
    assert "count_tokens" in anthropic(count(cluster), 501, "api_error")
    anthropic(count(cluster, model="nope"), 404, "not_found_error")
    picture = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x/y"}}]}]
    assert count(cluster, messages=picture).status == 501


def test_counting_teaches_no_prefix_and_takes_no_tokens(cluster):
    up(cluster, router={"router.rate_limit": {"tokens_per_minute": 1000, "rps": 1000, "burst": 1000}})
    text = "a long prompt about nothing " * 60
    assert all(count(cluster, text=text).status == 200 for _ in range(10))
    assert cluster.chat(text, max_tokens=1).headers["x-cgn-cache-hit"].startswith("0/")
