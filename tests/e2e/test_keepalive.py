# SPDX-License-Identifier: Apache-2.0
"""router.sse_keepalive: comments in a stream that brings nothing, before the first byte too, and how failures end such a stream."""
import json
import threading
import time

import pytest

from clients import Stream
from cluster import until
from engine_nodes import sections
from hook_service import HookService
from quiet_engine import STREAM, WHOLE, QuietEngine

COMMENT = b": keep-alive\n\n"
END = b"\r\n0\r\n\r\n"


@pytest.fixture
def quiet(cluster):
    """Start a router with engines that are silent, whose clients get a comment each 100 ms."""
    engines = []

    def start(*names, keepalive="100ms", more=None):
        cluster.common['models."sim"'] = {"tokens": "bytes"}
        engines.extend(QuietEngine(name) for name in names)
        cluster.router(sections(engines, **{"router": {"sse_keepalive": keepalive, **(more or {}).pop("router", {})}, **(more or {})}))
        cluster.wait_ready(len(names))
        return engines

    yield start
    for e in engines:
        e.__exit__()


def stream(cluster, text, *args, **more):
    return Stream(cluster.http_port, text, *args, **more)


def parts(got):
    """Return (status line, fields, body) of an answer with chunks."""
    head, _, rest = got.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            break
        body, rest = body + rest[:n], rest[n + 2:]
    lines = head.decode().split("\r\n")
    return lines[0], {k.lower(): v for k, _, v in (x.partition(": ") for x in lines[1:])}, body


def access(cluster, request_id):
    return cluster.router_process.tells("gateway.request", id=request_id)[0]


def intervals(n, stream):
    """Wait until |n| comments more have come in the stream."""
    want = stream.got.count(COMMENT) + n
    while stream.got.count(COMMENT) < want:
        assert stream.read(), stream.got


def test_comments_come_before_the_first_byte_and_between_events(cluster, quiet):
    (engine,) = quiet("a")
    waits = stream(cluster, "wait").read_until(COMMENT)
    assert waits.got.startswith(b"HTTP/1.1 200") and not engine.go.is_set()
    pauses = stream(cluster, "pause").read_until(b'"a"').read_until(COMMENT)
    crlf = stream(cluster, "pause crlf").read_until(b'"a"').read_until(COMMENT)
    half = stream(cluster, "half").read_until(COMMENT)  # what came of an event waits for its rest
    coded = stream(cluster, "pause coded").read_until(b'"a"')
    intervals(5, pauses)
    engine.go.set()
    for s in (waits, pauses, half):
        status, fields, body = parts(s.read_until(END).got)
        assert "200" in status and fields["content-type"] == "text/event-stream" and fields["x-request-id"]
        assert body.replace(COMMENT, b"") == b"".join(STREAM) and COMMENT in body
    assert parts(crlf.read_until(END).got)[2].replace(COMMENT, b"") == b"".join(STREAM).replace(b"\n", b"\r\n")
    assert parts(coded.read_until(END).got)[2] == b"".join(STREAM)  # nothing into bytes that are coded


def test_others_get_no_comments(cluster, quiet):
    (engine,) = quiet("a")
    asked = []
    whole = threading.Thread(target=lambda: asked.append(cluster.chat("wait")))
    whole.start()
    lines = stream(cluster, "wait", path="/api/chat")  # Ollama's lines
    quote = stream(cluster, "wait", fields={"X-Cgn-Explain": "1"})  # wants a field of the head
    until(lambda: engine.asked.count("wait") == 3, "all wait")
    pauses = stream(cluster, "pause", path="/api/chat").read_until(b'"a"')
    intervals(5, stream(cluster, "pause"))
    engine.go.set()
    whole.join()
    assert asked[0].body == WHOLE
    for s in (lines, pauses, quote):
        assert b"keep-alive" not in s.read_until(END).got.partition(b"\r\n\r\n")[2]
    assert "x-cgn-explain" in parts(quote.got)[1]


def test_off_by_default(cluster, quiet):
    (engine,) = quiet("a", keepalive="0s")
    s = stream(cluster, "pause").read_until(b'"a"')
    time.sleep(0.3)
    engine.go.set()
    status, fields, body = parts(s.read_until(END).got)
    assert body == b"".join(STREAM) and fields["x-cgn-node"] == "a"


@pytest.mark.parametrize("path, body", [
    ("/v1/chat/completions", {}),
    ("/v1/messages", {"max_tokens": 9}),
    ("/v1/responses", {"input": "wait 400"}),
])
def test_a_failure_after_the_head_is_the_error_event_of_the_api(cluster, quiet, path, body):
    (engine,) = quiet("a")
    s = stream(cluster, "wait 400", path=path, **body).read_until(COMMENT)
    engine.go.set()
    status, fields, got = parts(s.read_until(END).got)
    assert "200" in status
    event = got.replace(COMMENT, b"").decode()
    assert event.startswith("event: error\ndata: ") and event.endswith("\n\n"), got
    error = json.loads(event.removeprefix("event: error\ndata: "))
    text = error["error"]["message"] if "error" in error else error["message"]
    assert text == 'no "such" thing', error
    if path == "/v1/chat/completions":
        assert error["error"]["code"] == "odd" and error["error"]["type"] == "invalid_request_error"
    assert access(cluster, fields["x-request-id"])["status"] == 400


def test_what_is_no_stream_and_what_is_refused_by_the_router(cluster, quiet):
    (engine,) = quiet("a", more={"router.retry": {"attempts": 1}})
    plain, cut = (stream(cluster, text).read_until(COMMENT) for text in ("wait plain", "wait cut"))
    engine.go.set()
    for s, text, code in ((plain, "no event stream", "engine_failed"), (cut, "the engine", None)):
        _, fields, got = parts(s.read_until(END).got)
        error = json.loads(got.replace(COMMENT, b"").decode().removeprefix("event: error\ndata: "))["error"]
        assert text in error["message"] and code in (None, error["code"]), error
        assert access(cluster, fields["x-request-id"])["status"] >= 500
        assert b"[DONE]" not in got


def test_another_node_answers_though_the_head_is_sent(cluster, quiet):
    a, b = quiet("a", "b")
    s = stream(cluster, "wait or cut").read_until(COMMENT)
    first, other = (a, b) if a.asked else (b, a)
    first.cuts = True
    first.go.set()
    until(lambda: other.asked, "it goes to the other node")
    other.go.set()
    assert parts(s.read_until(END).got)[2].replace(COMMENT, b"") == b"".join(STREAM)
    assert cluster.metric("cgn_retries_total") == 1


def test_an_answer_that_is_checked_has_no_early_head(cluster, quiet):
    with HookService() as hook:
        (engine,) = quiet("a", more={"hooks": {"after_url": hook.url("/after")}})
        s = stream(cluster, "wait")
        until(lambda: engine.asked, "the engine has it")
        time.sleep(0.3)
        engine.go.set()
        _, fields, got = parts(s.read_until(END).got)
        assert fields["x-cgn-node"] == "a" and got == b"".join(STREAM)


def test_a_client_that_leaves_and_a_request_that_waits_for_room(cluster, quiet):
    (engine,) = quiet("a", more={"router.admission": {"max_concurrent_per_replica": 1}})
    there = stream(cluster, "wait").read_until(COMMENT)
    queued = stream(cluster, "wait").read_until(COMMENT)
    gone = stream(cluster, "wait").read_until(COMMENT)
    gone.reset()
    assert engine.asked == ["wait"]
    engine.go.set()
    for s in (there, queued):
        assert parts(s.read_until(END).got)[2].replace(COMMENT, b"") == b"".join(STREAM)
    until(lambda: [e for e in cluster.router_process.events("gateway.request") if e["outcome"] == "client_gone"], "it is logged")
