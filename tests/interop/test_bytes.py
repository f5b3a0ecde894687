# SPDX-License-Identifier: Apache-2.0
"""The bytes of an answer, with Python's own client over HTTP/1.1 and curl over HTTP/1.1 and HTTP/2: the
gateway's bytes equal the engine's."""
import concurrent.futures
import http.client
import json
import re
import subprocess

import pytest

from conftest import until

ASK = {"model": "sim", "messages": [{"role": "user", "content": "Tell me about the sea."}], "max_tokens": 30}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
ROWS = {
    "chat": ("/v1/chat/completions", ASK),
    "chat streamed": ("/v1/chat/completions", ASK | STREAM | {"logprobs": True}),
    "a chat of 200 kB": ("/v1/chat/completions", ASK | {"x_unknown": "\u4e16" * 33000}),
    "a stream of 5000 tokens": ("/v1/chat/completions", ASK | STREAM | {"max_tokens": 5000, "ignore_eos": True}),
    "completions": ("/v1/completions", {"model": "sim", "prompt": ["a", "b"], "max_tokens": 9}),
    "completions streamed": ("/v1/completions", {"model": "sim", "prompt": "a", "max_tokens": 9, **STREAM}),
    "responses": ("/v1/responses", {"model": "sim", "input": "a", "max_output_tokens": 9}),
    "responses streamed": ("/v1/responses", {"model": "sim", "input": "a", "max_output_tokens": 9, "stream": True}),
    "messages": ("/v1/messages", {"model": "sim", "max_tokens": 9, "messages": ASK["messages"]}),
    "messages streamed": ("/v1/messages", {"model": "sim", "max_tokens": 9, "messages": ASK["messages"], "stream": True}),
    "embeddings": ("/v1/embeddings", {"model": "sim", "input": ["a", "b"]}),
    "rerank": ("/v1/rerank", {"model": "sim", "query": "sea", "documents": ["the sea", "a tree"]}),
    "score": ("/v1/score", {"model": "sim", "text_1": "sea", "text_2": ["the sea", "a tree"]}),
    "tokenize": ("/tokenize", {"model": "sim", "prompt": "one two three"}),
    "detokenize": ("/detokenize", {"model": "sim", "tokens": [1582]}),
    "the engine's refusal": ("/v1/chat/completions", ASK | {"max_tokens": -1}),
    "the engine's refusal of a stream": ("/v1/chat/completions", ASK | STREAM | {"max_tokens": -1}),
}


def bare(body):
    """Return the answer without times and ids: an engine makes new ones for each answer."""
    body = re.sub(rb'"(created|created_at)":\d+', rb'"\1":0', body)
    body = re.sub(rb"interop|req-[0-9a-f]{24}", b"ID", body)  # where keys are asked for, engines get an id of the router's own
    return re.sub(rb"\b(call|msg)_[0-9a-f]{24}\b", rb"\1_", body)


def headers(gateway):
    key = {"Authorization": f"Bearer {gateway.key}"} if gateway.key else {}
    return {"Content-Type": "application/json", "X-Request-Id": "interop", **key}


def connect(gateway):
    if gateway.secure:
        return http.client.HTTPSConnection("localhost", gateway.cluster.http_port, timeout=30, context=gateway.tls)
    return http.client.HTTPConnection("localhost", gateway.cluster.http_port, timeout=30)


def post(connection, path, body, headers):
    connection.request("POST", path, json.dumps(body), headers)
    r = connection.getresponse()
    return r.status, r.headers["Content-Type"], bare(r.read())


def curl(gateway, url, version, path, body):
    """Return (HTTP version, status, content type, body)."""
    argv = ["curl", "-sS", "-N", version, "-m", "30", "-w", "%{stderr}%{http_version} %{http_code} %{content_type}", "--data-binary", "@-", url + path]
    for name, value in headers(gateway).items():
        argv += ["-H", f"{name}: {value}"]
    if gateway.secure and url.startswith("https"):
        argv += ["--cacert", str(gateway.pki / "ca.pem")]
    done = subprocess.run(argv, input=json.dumps(body).encode(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    spoken, status, kind = done.stderr.decode().split(" ", 2)
    return spoken, int(status), kind, bare(done.stdout)


@pytest.mark.parametrize("row", ROWS)
def test_a_keep_alive_connection_carries_the_engines_bytes(gateway, row):
    path, body = ROWS[row]
    direct, routed = http.client.HTTPConnection("127.0.0.1", gateway.twin_port, timeout=30), connect(gateway)
    for _ in range(3):  # cold, then warm
        got = post(routed, path, body, headers(gateway))
        assert got == post(direct, path, body, headers(gateway))
        assert got[0] == (400 if "refusal" in row else 200), got
        assert got[2].endswith(b"data: [DONE]\n\n") or not (row.startswith(("chat streamed", "completions streamed")))
    direct.close()
    routed.close()


@pytest.mark.parametrize("version,spoken", [("--http1.1", "1.1"), ("--http2", "2")])
@pytest.mark.parametrize("row", ["chat", "chat streamed", "a chat of 200 kB", "a stream of 5000 tokens", "messages streamed", "embeddings", "the engine's refusal"])
def test_curl_gets_the_engines_bytes(gateway, row, version, spoken):
    """HTTP/2 by ALPN with TLS, by prior knowledge without TLS."""
    path, body = ROWS[row]
    if spoken == "2" and not gateway.secure:
        version = "--http2-prior-knowledge"
    direct = curl(gateway, gateway.direct, "--http1.1", path, body)
    routed = curl(gateway, gateway.url, version, path, body)
    assert routed[0] == spoken
    assert routed[1:] == direct[1:]
    assert direct[1] == (400 if "refusal" in row else 200)


def test_one_http2_connection_carries_many_streams(gateway):
    """curl's multiplexing: 20 transfers at once, each with its own answer."""
    argv = ["curl", "-sS", "--parallel", "--parallel-max", "20", "--http2" if gateway.secure else "--http2-prior-knowledge"]
    if gateway.secure:
        argv += ["--cacert", str(gateway.pki / "ca.pem")]
    out = gateway.cluster.folder / "many"
    out.mkdir(exist_ok=True)
    for i in range(20):
        body = json.dumps(ASK | STREAM | {"messages": [{"role": "user", "content": f"number {i}"}]})
        argv += (["--next"] if i else []) + ["-o", str(out / str(i)), "-d", body, gateway.url + "/v1/chat/completions"]
        for name, value in headers(gateway).items():
            argv += ["-H", f"{name}: {value}"]
        if gateway.secure and i:
            argv += ["--cacert", str(gateway.pki / "ca.pem")]
    subprocess.run(argv, check=True, timeout=60)
    direct = http.client.HTTPConnection("127.0.0.1", gateway.twin_port, timeout=30)
    for i in range(20):
        body = ASK | STREAM | {"messages": [{"role": "user", "content": f"number {i}"}]}
        assert bare((out / str(i)).read_bytes()) == post(direct, "/v1/chat/completions", body, headers(gateway))[2]
    direct.close()


def test_curl_killed_ends_it_in_the_engine(gateway):
    body = json.dumps(ASK | STREAM | {"model": "slow", "max_tokens": 20000, "ignore_eos": True})
    argv = ["curl", "-sS", "-N", "--http2" if gateway.secure else "--http2-prior-knowledge", "-d", body, gateway.url + "/v1/chat/completions"]
    for name, value in headers(gateway).items():
        argv += ["-H", f"{name}: {value}"]
    if gateway.secure:
        argv += ["--cacert", str(gateway.pki / "ca.pem")]
    before = gateway.slow_state()
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as client:
        assert client.stdout.readline().startswith(b"data: ")
        client.kill()
    until(lambda: gateway.slow_state()["running"] == 0, "the engine sees its request closed")
    after = gateway.slow_state()
    assert after["aborted"] == before["aborted"] + 1 and after["recent"][0]["tokens"] < 1000


def test_clients_at_once_get_their_own_answers(gateway):
    def one(i):
        body = ASK | STREAM | {"messages": [{"role": "user", "content": f"client {i}"}], "max_tokens": 200, "ignore_eos": True}
        c = connect(gateway)
        got = post(c, "/v1/chat/completions", body, headers(gateway))
        c.close()
        return body, got
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(one, range(64)))
    direct = http.client.HTTPConnection("127.0.0.1", gateway.twin_port, timeout=30)
    for body, got in answers:
        assert got == post(direct, "/v1/chat/completions", body, headers(gateway))
    direct.close()
