# SPDX-License-Identifier: Apache-2.0
"""Bodies with a Content-Encoding: the engine gets the text on every route, and no body takes more memory than one that is sent plain."""
import gzip
import hashlib
import http.server
import json
import subprocess
import threading
import zlib

import media_engine
import pytest
from cluster import SANITIZER, ask, until
from engine_nodes import JsonHandler
from test_batch import BOUNDARY, create, ended, form, jsonl, line, results, start

MIB = 1 << 20


def raw_deflate(text):
    c = zlib.compressobj(6, zlib.DEFLATED, -15)
    return c.compress(text) + c.flush()


def zstd(text, *flags):
    return subprocess.run(["zstd", "-c", "-q", *flags], input=text, stdout=subprocess.PIPE, check=True, timeout=60).stdout


CODINGS = [("gzip", gzip.compress), ("X-Gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate), ("zstd", zstd),
           ("identity, ZSTD", zstd)]


class Engine(JsonHandler):
    """An engine that says what it got."""
    seen = []

    def do_GET(self):
        self.reply({"object": "list", "data": [{"id": "sim", "object": "model"}]})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.path, body, self.headers["Content-Encoding"]))
        self.reply({"id": "x", "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


@pytest.fixture
def engine(cluster):
    cluster.router({"router": {"max_body": "4MiB", "worker_threads": 1}})
    Engine.seen = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cluster.agent("a", server.server_port, {"engine": {"kind": "openai_compat"}})
    cluster.wait_ready(1)
    yield cluster
    server.shutdown()
    server.server_close()


def post(c, coding, raw, path="/v1/chat/completions", **more):
    return ask(c.http_port, "POST", path, raw, {"Content-Type": "application/json", "Content-Encoding": coding, **more})


def chat(n=50):
    return json.dumps({"model": "sim", "messages": [{"role": "user", "content": "hello " * n}]}).encode()


def test_engines_get_the_text_on_every_route(engine):
    for coding, encode in CODINGS:
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions", "/tokenize", "/completion"):
            assert post(engine, coding, encode(chat()), path).status == 200, (coding, path)
            assert Engine.seen[-1] == (path, chat(), None), (coding, path)
    for size in (20_000, 300_000):  # in the worker's turn; on the thread pool
        assert post(engine, "zstd", zstd(chat(size)), "/v1/messages").status == 200
        assert Engine.seen[-1][1] == chat(size)
    picture = chat() + hashlib.sha256(b"x").digest() * 4000  # too large, coded, for a worker's turn
    body = (b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsim\r\n--b\r\nContent-Disposition: form-data; name="image"; '
            b'filename="a"\r\n\r\n' + picture + b"\r\n--b--\r\n")
    form_type = {"Content-Type": "multipart/form-data; boundary=b"}
    assert post(engine, "gzip", gzip.compress(body, 0), "/v1/images/edits", **form_type).status == 200
    assert Engine.seen[-1][1] == body
    before = len(Engine.seen)
    ollamas = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "stream": False}
    post(engine, "gzip", gzip.compress(json.dumps(ollamas).encode()), "/api/chat")
    assert Engine.seen[before][0] == "/v1/chat/completions" and b"Content-Encoding" not in Engine.seen[before][1]


def test_a_mark_of_byte_order_does_not_reach_engines(engine):
    assert post(engine, "identity", b"\xef\xbb\xbf" + chat()).status == 200
    assert post(engine, "gzip", gzip.compress(b"\xef\xbb\xbf" + chat())).status == 200
    assert [s[1] for s in Engine.seen] == [chat()] * 2


def code(answer):
    return answer.status, answer.json()["error"]["code"]


def test_what_is_no_coded_body_is_refused(engine):
    c, body = engine, gzip.compress(chat())
    for coding, raw in (("gzip", body[:-3]), ("gzip", body + b"x"), ("gzip", chat()), ("gzip", body[:40] + b"\xff" + body[41:]),
                        ("deflate", zlib.compress(chat())[:-1]), ("zstd", zstd(chat())[:-2]), ("zstd", zstd(chat()) + b"\0"), ("zstd", body),
                        ("zstd", b"\x28\xb5\x2f\xfd\x00\x70\x09\x00\x00x")):  # a window of 16 MiB
        answer = post(c, coding, raw)
        assert code(answer) == (400, "invalid_encoding") and coding in answer.json()["error"]["message"], answer.body
    anthropic = post(c, "gzip", b"nothing", "/v1/messages").json()
    assert anthropic["type"] == "error" and anthropic["error"]["type"] == "invalid_request_error"
    for coding in ("br", "gzip, gzip", "zstd,gzip", "gzip;q=1"):
        answer = post(c, coding, body)
        assert code(answer) == (415, "unsupported_encoding"), coding
        assert answer.headers["accept-encoding"] == "gzip, deflate, zstd"
    assert Engine.seen == []
    assert post(c, "gzip", body).status == 200


def resident(process):
    with open(f"/proc/{process.pid}/status") as f:
        return int(next(row for row in f if row.startswith("VmRSS")).split()[1]) * 1024


@pytest.mark.slow
@pytest.mark.both
def test_bombs_are_refused_at_the_bound_of_plain_bodies(engine):
    c = engine
    zeros = bytes(512 * MIB)
    bombs = [("gzip", gzip.compress(zeros)), ("zstd", zstd(zeros)), ("zstd", zstd(zeros[:MIB]) * 512)]
    before = resident(c.router_process)
    for _ in range(4):
        for coding, raw in bombs:
            assert len(raw) < 4 * MIB
            assert code(post(c, coding, raw)) == (413, "request_too_large"), coding
    assert SANITIZER or resident(c.router_process) - before < 96 * MIB  # a sanitizer keeps what was freed
    assert code(post(c, "gzip", gzip.compress(zeros[:4 * MIB + 1]))) == (413, "request_too_large")
    exact = chat(10)
    exact = exact[:-1] + b" " * (4 * MIB - len(exact)) + b"}"
    assert len(exact) == 4 * MIB and post(c, "gzip", gzip.compress(exact)).status == 200
    until(lambda: post(c, "zstd", zstd(chat())).status == 200, "the memory is given back")


def test_files_and_batches_take_coded_bodies(cluster):
    c = cluster
    start(c, {"max_file": "2MiB"}, auth=False)
    rows = b"\xef\xbb\xbf" + jsonl([line(i) for i in range(3)])  # as some editors write it
    types = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    file = c.ask("POST", "/v1/files", zstd(form(rows)), {**types, "Content-Encoding": "zstd"})
    assert file.status == 200 and file.json()["bytes"] == len(rows), file.body
    wish = {"input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = c.ask("POST", "/v1/batches", gzip.compress(b"\xef\xbb\xbf" + json.dumps(wish).encode()),
                  {"Content-Type": "application/json", "Content-Encoding": "gzip"})
    assert batch.status == 200, batch.body
    assert len(results(c, ended(c, batch.json()))[0]) == 3
    large = form(bytes(64 * MIB))
    for coding, raw, status in (("gzip", gzip.compress(large), 413), ("zstd", zstd(large), 413), ("gzip", gzip.compress(form(rows))[:-1], 400),
                                ("zstd", zstd(form(rows)) + b"x", 400), ("br", b"x", 415)):
        refusal = c.ask("POST", "/v1/files", raw, {**types, "Content-Encoding": coding})
        assert refusal.status == status and (status != 400 or code(refusal) == (400, "invalid_encoding")), (coding, refusal.body)
    assert code(c.ask("POST", "/v1/batches", gzip.compress(b"{}")[:-1], {"Content-Encoding": "gzip"})) == (400, "invalid_encoding")
    assert code(c.ask("POST", "/v1/files", gzip.compress(b"no form"), {**types, "Content-Encoding": "gzip"})) == (400, "invalid_request")
    assert c.ask("POST", "/v1/batches", gzip.compress(b" " * MIB), {"Content-Encoding": "gzip"}).status == 413
    assert len(c.ask("GET", "/v1/files").json()["data"]) == 1 + 1  # the upload, and the batch's output
    assert ended(c, create(c, jsonl([line(9)])))["status"] == "completed"


def test_speech_is_asked_for_with_a_coded_body(cluster):
    server, port = media_engine.serve()
    cluster.router()
    cluster.agent("a", port, {"engine": {"kind": "openai_compat"}})
    cluster.wait_ready(1)
    answer = post(cluster, "gzip", gzip.compress(b'{"model":"sim","input":"hi"}'), "/v1/audio/speech")
    server.shutdown()
    server.server_close()
    assert answer.status == 200 and answer.body == media_engine.SOUND
