# SPDX-License-Identifier: Apache-2.0
"""Bodies and heads that are large or odd: what a request costs the router is never a node's fault, and what is
not meant for the other side does not reach it."""
import contextlib
import fcntl
import http.client
import http.server
import json
import resource
import select
import socket
import struct
import termios
import threading

import pytest

from clients import Stream, head_of
from cluster import ask, until

FAST = ("--time-scale", "0", "--max-model-len", "1000000", "--kv-blocks", "100000")
STRICT = {"router.breaker": {"failures": 1, "open_for": "300s"}}
JSON = {"content-type": "application/json"}


def up(cluster, *nodes, router=None):
    cluster.router(router)
    for name in nodes:
        cluster.node(name, *FAST)
    cluster.wait_ready(len(nodes))
    return cluster


def post(cluster, body, path="/v1/chat/completions", headers=None):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(cluster.http_port, "POST", path, raw, {**JSON, **(headers or {})})


def breakers(cluster):
    return {n["id"]: n["breaker"]["state"] for n in cluster.status()["nodes"]}


def chat(**more):
    return {"model": "sim", "max_tokens": 2, "messages": [{"role": "user", "content": "go"}], **more}


def small_tools(n):
    """Return a list of |n| tools of about 450 bytes each."""
    fields = {f"field_{i}": {"type": "string", "description": "one"} for i in range(8)}
    return [{"type": "function", "function": {"name": f"tool_{i}", "description": "does a thing",
                                              "parameters": {"type": "object", "properties": fields}}}
            for i in range(n)]


def test_many_tools_blame_no_node(cluster):
    up(cluster, "a", "b", router={**STRICT, "models.sim": {"tokens": "bytes"}})
    body = json.dumps(chat(tools=small_tools(644))).encode()
    assert 250_000 < len(body) < 400_000
    answers = [post(cluster, body).status for _ in range(4)]
    assert answers == [200] * 4
    assert breakers(cluster) == {"a": "closed", "b": "closed"}
    assert cluster.metric("cgn_retries_total") == 0


def test_a_long_salt_with_an_escape_blames_no_node(cluster):
    up(cluster, "a", "b", router=STRICT)
    for key in ("cache_salt", "lora_path"):
        answer = post(cluster, chat(**{key: "\n" + "s" * 524_000}))
        assert answer.headers.get("x-cgn-node") in "ab", (key, answer.body[:300])  # the engine's answer
    assert breakers(cluster) == {"a": "closed", "b": "closed"}


def test_a_model_name_of_half_a_megabyte_is_not_found(cluster):
    up(cluster, "a", router=STRICT)
    answer = post(cluster, {**chat(), "model": "\n" + "m" * 524_000})
    assert answer.status == 404 and answer.json()["error"]["code"] == "model_not_found", answer.body[:300]


def limit_descriptors(process, n):
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (n, hard))


def test_a_router_without_descriptors_blames_no_node(cluster):
    up(cluster, "a", router=STRICT)
    c = http.client.HTTPConnection("127.0.0.1", cluster.http_port, timeout=60)
    c.request("GET", "/v1/models")
    assert c.getresponse().read()
    before = resource.prlimit(cluster.router_process.pid, resource.RLIMIT_NOFILE)[0]
    limit_descriptors(cluster.router_process, 3)
    c.request("POST", "/v1/chat/completions", json.dumps(chat()), JSON)
    answer = c.getresponse()
    error = json.loads(answer.read())["error"]
    limit_descriptors(cluster.router_process, before)
    assert (answer.status, error["code"]) == (503, "no_memory") and "descriptors" in error["message"], error
    assert answer.headers["Retry-After"]
    assert breakers(cluster) == {"a": "closed"}
    assert post(cluster, chat()).status == 200


def test_an_agent_without_descriptors_blames_no_engine(cluster):
    cluster.router({**STRICT, "router": {"worker_threads": 1}})
    cluster.node("a", "--token-interval-us", "4000")
    cluster.wait_ready(1)
    agent = cluster.nodes["a"].agent
    # Each stream holds a connection to the engine; the first one also opens the router's to the agent.
    streams = [Stream(cluster.http_port, max_tokens=4000, ignore_eos=True).read_until(b"data: ")]
    before = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)[0]
    limit_descriptors(agent, 3)
    while b" 200 " in streams[-1].got and len(streams) < 9:
        streams.append(Stream(cluster.http_port, max_tokens=4000, ignore_eos=True).read_until(b"\r\n\r\n"))
    refused = streams[-1].read_until(b"}}").got
    limit_descriptors(agent, before)
    assert refused.startswith(b"HTTP/1.1 503 ") and b"Too many open files" in refused, refused
    assert breakers(cluster) == {"a": "closed"} and cluster.states() == {"a": "ready"}
    assert post(cluster, chat()).status == 200
    for s in streams:
        s.close()


HOSTS_OWN = {"Set-Cookie": "a=b", "Strict-Transport-Security": "max-age=9", "Access-Control-Allow-Origin": "*",
             "Alt-Svc": "h3=\":443\"", "X-Kept": "yes"}


class HostedEngine(http.server.BaseHTTPRequestHandler):
    """An engine as behind a hosted service: its answers speak to browsers about its own host."""
    protocol_version = "HTTP/1.1"
    seen = []

    def log_message(self, *_):
        pass

    def reply(self, value):
        raw = json.dumps(value).encode()
        self.send_response(200)
        for name, text in {**HOSTS_OWN, "Content-Type": "application/json", "Content-Length": len(raw)}.items():
            self.send_header(name, str(text))
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self):
        self.reply({"object": "list", "data": [{"id": "sim", "object": "model"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(self.headers)
        self.reply({"id": "x", "choices": []})


def test_fields_about_hosts_and_accounts_stay_where_they_belong(cluster, tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), HostedEngine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    key = tmp_path / "key"
    key.write_text("operator-key")
    key.chmod(0o600)
    cluster.router()
    cluster.agent("a", server.server_port, {"engine": {"kind": "openai_compat", "api_key_file": str(key)}})
    cluster.wait_ready(1)
    answer = post(cluster, chat(), headers={"OpenAI-Organization": "org", "OpenAI-Project": "p", "OpenAI-Beta": "b"})
    server.shutdown()
    server.server_close()
    assert answer.status == 200 and answer.headers["x-kept"] == "yes"
    assert not [n for n in answer.headers if n in {k.lower() for k in HOSTS_OWN} - {"x-kept"}], answer.headers
    asked = HostedEngine.seen[-1]
    assert asked["Authorization"] == "Bearer operator-key" and asked["OpenAI-Beta"] == "b"
    assert asked["OpenAI-Organization"] is None and asked["OpenAI-Project"] is None


@pytest.mark.parametrize("raw, key", [
    ('{"model":"sim","model":"sim"}', "model"), ('{"model":"sim","Model":"other"}', "model"),
    ('{"model":"sim","str\\u0065am":true,"stream":false}', "stream"), ('{"model":"sim","MESSAGES":[]}', "messages"),
    ('{"model":"sim","N":4}', "n"), ('{"model":"sim","prompt":"a","prompt":"b"}', "prompt"),
    ('{"model":"sim","user":"a","User":"b","tools":[{"Model":1}]}', None),
    ('{"model":"sim","me\u017f\u017fages":[]}', "messages")])
def test_routing_keys_are_there_once_and_as_written(cluster, raw, key):
    cluster.router()
    answer = post(cluster, raw.encode())
    error = answer.json()["error"]
    if key is None:
        assert error["code"] in ("no_node", "model_not_found"), error  # the body is fine; there is no node
        return
    assert (answer.status, error["param"]) == (400, key) and key in error["message"], error
    assert error["code"] in ("duplicate_key", "ambiguous_key"), error


@pytest.mark.parametrize("member", [b'"\\u006d":1,', b'"":1,'])
def test_millions_of_members_are_refused(cluster, member):
    cluster.router()
    answer = post(cluster, b'{"model":"sim",' + member * 1_000_000 + b'"z":1}')
    assert (answer.status, answer.json()["error"]["code"]) == (400, "too_many_members"), answer.body


def unsent(s):
    """Return the bytes that the peer's kernel does not have yet."""
    return struct.unpack("i", fcntl.ioctl(s, termios.TIOCOUTQ, b"\0" * 4))[0]


@pytest.mark.threads
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
def test_a_large_body_holds_up_no_other_request(cluster, path):
    """The large body is refused as soon as it is read, so on a worker that reads it in its turn the other request
    could only be answered afterwards."""
    cluster.router({"router": {"worker_threads": 1}})
    cluster.node("a", *FAST)
    cluster.wait_ready(1)
    odd = b'{"model":"nobody\'s","messages":[{"role":"user",' + b'"\\u006d":1,' * 3_000_000 + b'"content":"x"}]}'
    large = socket.create_connection(("127.0.0.1", cluster.http_port))
    large.sendall(head_of(len(odd), path) + odd[:-1])
    other = http.client.HTTPConnection("127.0.0.1", cluster.http_port, timeout=60)
    for _ in range(3):  # the worker takes what has come
        until(lambda: unsent(large) == 0, "the worker takes the body")
        other.request("GET", "/v1/models")
        assert other.getresponse().read()
    large.sendall(odd[-1:])
    until(lambda: unsent(large) == 0, "the body is there")
    other.request("POST", "/v1/chat/completions", json.dumps(chat()), JSON)
    assert other.getresponse().status == 200
    assert select.select([large], [], [], 0)[0] == [], "the large body was answered first"
    assert large.recv(4096).startswith(b"HTTP/1.1 404 ")
    large.close()


def test_a_client_that_leaves_while_its_body_is_read(cluster):
    up(cluster, "a", router={"router": {"max_body": "32MiB", "max_inflight_body": "100MiB"}})
    odd = b'{"model":"sim","messages":[{"role":"user",' + b'"\\u006d":1,' * 2_000_000 + b'"content":"x"}]}'
    for _ in range(8):  # more than fit at once: the memory of those that left is given back
        s = socket.create_connection(("127.0.0.1", cluster.http_port))
        with contextlib.suppress(OSError):  # a refused body is not read to its end
            s.sendall(head_of(len(odd)) + odd)
        s.close()

    def is_taken():
        with contextlib.suppress(OSError):
            return post(cluster, odd).status in (200, 400)
    until(is_taken, "the bodies are given back")


def test_large_bodies_reach_engines_and_have_chains(cluster):
    up(cluster, "a", "b")
    text = "all work and no play " * 50_000
    first = post(cluster, {**chat(), "messages": [{"role": "user", "content": text}]})
    again = post(cluster, {**chat(), "messages": [{"role": "user", "content": text}]})
    assert (first.status, again.status) == (200, 200), first.body[:300]
    assert again.headers["x-cgn-node"] == first.headers["x-cgn-node"]
    assert again.headers["x-cgn-cache-hit"].split("/")[0] != "0"
    ollamas = post(cluster, {"model": "sim", "stream": False, "messages": [{"role": "user", "content": text}],
                             "options": {"num_predict": 2}}, path="/api/chat")
    assert ollamas.status == 200 and ollamas.json()["done"], ollamas.body[:300]
