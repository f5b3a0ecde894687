# SPDX-License-Identifier: Apache-2.0
"""The gateway's surface beside OpenAI's chat: errors in each API's shape, methods, and the page at /."""
import json
import socket
import subprocess

import pytest

from cluster import BUILD, ask

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
    anthropic(cluster.ask("POST", MESSAGES, b"{}", key | {"Content-Encoding": "gzip"}), 415, "invalid_request_error")
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
            s.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{{".encode())
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
        assert cluster.ask("HEAD", "/v1/models/none").status == 404


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
