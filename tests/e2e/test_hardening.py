# SPDX-License-Identifier: Apache-2.0
"""Peers that break the rules of HTTP/1.1, HTTP/2 and gRPC on the real ports: they are refused, the engine
gets none of it, and other clients are served."""
import json
import os
import socket
import struct

import pytest

import h2raw
from clients import engine_state, head_of
from cluster import WAIT_S, Cluster, ask, scaled, until
from h2raw import H2, frame
from smuggling import AS_CHUNK, BAD_HEADS, BODY, CHAT, CHUNKED, request, shapes

SHAPES = shapes()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """One cluster for all tests in this file: it has to survive them all."""
    with Cluster(tmp_path_factory.mktemp("hardening")) as c:
        c.common['models."sim"'] = {"tokens": "bytes"}  # the engine gets only what clients sent, no tokenize requests of the router
        c.router({"router": {"head_timeout": "500ms", "body_timeout": "500ms", "max_body": "1MiB"}})
        c.node("a", "--time-scale", "0")
        c.wait_ready(1)
        yield c


@pytest.fixture
def intact(served):
    """After the test, the same processes serve, and the engine got only valid requests."""
    engine = served.nodes["a"].engine_port
    before = engine_state(engine)["requests"]
    pids = [p.pid for p in served.processes]
    yield served
    assert engine_state(engine)["requests"] == before, "a bad request came to the engine"
    assert all(p.alive() for p in served.processes) and pids == [p.pid for p in served.processes]
    assert served.chat("still there?", max_tokens=1).status == 200
    until(lambda: served.metric("cgn_inflight") == 0, "nothing is booked")


def talk(port, data, then=b""):
    """Send, and read until the other side ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as s:
        try:
            s.sendall(data)
            if then:
                s.sendall(then)
        except ConnectionError:
            pass  # the server refused before it had read everything; its answer is still to be read
        got = b""
        while True:
            try:
                more = s.recv(65536)
            except ConnectionResetError:
                return got
            if not more:
                return got
            got += more


def refused(got, statuses):
    """Expect one error answer with a JSON body, then the end."""
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 "), got[:200]
    assert int(head.split()[1]) in statuses, got[:300]
    assert b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    assert error["message"] and error["type"]


# ---- HTTP/1.1 ----

@pytest.mark.parametrize("shape", SHAPES)
def test_smuggling_shapes(intact, shape):
    refused(talk(intact.http_port, SHAPES[shape]), {400, 501, 505})


@pytest.mark.parametrize("what, data", [
    ("a long target", b"POST /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ("a long field", CHAT + b"Host: localhost\r\nX-A: " + b"a" * 70000 + b"\r\n\r\n"),
    ("a long name", CHAT + b"Host: localhost\r\n" + b"a" * 70000 + b": x\r\n\r\n"),
    ("a head without an end", CHAT + b"Host: localhost\r\n" + b"X-A: bbbbbbbb\r\n" * 9000),
    ("many fields", CHAT + b"Host: localhost\r\n" + b"".join(b"X-%d: x\r\n" % i for i in range(500)) + b"\r\n"),
])
def test_heads_too_large(intact, what, data):
    refused(talk(intact.http_port, data), {431})


def test_trailers_and_chunk_extensions_are_bounded(intact):
    endless = request(CHUNKED, body=b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)) + b"X-Trailer: yes\r\n" * 20000
    refused(talk(intact.http_port, endless), {400, 431})
    refused(talk(intact.http_port, request(CHUNKED, body=b"1;" + b"e" * 100000)), {400, 413, 431})


def test_a_body_that_lies(intact):
    refused(talk(intact.http_port, request(b"Content-Length: %d\r\n" % (1 << 40))), {413})
    refused(talk(intact.http_port, request(b"Content-Length: %d\r\n" % (len(BODY) + 10))), {408})  # no second answer comes


def test_a_head_that_trickles_is_timed_out(intact):
    """A byte now and then does not keep a head alive: the timeout is for the whole head."""
    with socket.create_connection(("127.0.0.1", intact.http_port), timeout=0.1) as s:
        got, sent = b"", 0
        trickle = CHAT + b"X-A: " + b"a" * 10000
        while b"\r\n\r\n" not in got:
            assert sent < len(trickle), "it let the head trickle for ever"
            try:
                s.sendall(trickle[sent:sent + 1])
                sent += 1
                more = s.recv(65536)
                assert more, "closed without a word"
                got += more
            except TimeoutError:
                continue
        refused(got, {408})


def test_half_a_head_is_timed_out(intact):
    got = talk(intact.http_port, CHAT + b"Host: localhost\r\n")
    refused(got, {408})


def test_pipelined_requests_are_answered_in_turn(served):
    one = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    chat = head_of(len(BODY)) + BODY
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    got = talk(served.http_port, one + chat + one + last)
    assert got.count(b"HTTP/1.1 200 OK\r\n") == 4, got
    assert got.index(b'"list"') < got.index(b"chat.completion") < got.rindex(b'"list"') < got.rindex(b'"ok"')


def test_a_bad_request_behind_a_good_one_gets_its_own_answer(served):
    before = engine_state(served.nodes["a"].engine_port)["requests"]
    got = talk(served.http_port, head_of(len(BODY)) + BODY + SHAPES["length and chunked"])
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    refused(got[got.rindex(b"HTTP/1.1 "):], {400})
    assert engine_state(served.nodes["a"].engine_port)["requests"] == before + 1


@pytest.mark.both
def test_a_flood_of_pipelined_requests_is_slowed_or_refused_not_kept(served):
    rss = served.router_process.rss_kib()
    n = scaled(20000)
    with socket.create_connection(("127.0.0.1", served.http_port), timeout=1) as s:
        try:
            for _ in range(n // 100):
                s.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)  # no answer is read
        except (TimeoutError, ConnectionError):
            pass
        assert served.chat("somebody else", max_tokens=1).status == 200
        assert served.router_process.rss_kib() - rss < 24 * 1024  # 20,000 requests that were kept would be more than 100 MiB
    assert served.chat("and after", max_tokens=1).status == 200


# ---- HTTP/2 ----

ENHANCE_YOUR_CALM, INTERNAL, FLOW_CONTROL, PROTOCOL, FRAME_SIZE, COMPRESSION = 0xb, 0x2, 0x3, 0x1, 0x6, 0x9


def ports(cluster):
    """The three servers of HTTP/2, and a known path of each."""
    return {"http": (cluster.http_port, "/v1/chat/completions"), "grpc": (cluster.grpc_port, "/cognitora.v1.Control/Status"),
            "agent": (cluster.nodes["a"].agent_port, "/cognitora.v1.Agent/Watch")}


def head(where, path):
    return h2raw.request_block(path) if where == "http" else h2raw.grpc_block(path)


def rapid_reset(where, path):
    block, n = head(where, path), 1
    while True:
        yield frame(h2raw.HEADERS, h2raw.END_HEADERS, n, block) + frame(h2raw.RST_STREAM, 0, n, struct.pack(">I", 8))
        n += 2


def continuation(where, path):
    yield frame(h2raw.HEADERS, 0, 1, head(where, path))
    while True:
        yield frame(h2raw.CONTINUATION, 0, 1, h2raw.literal("x-a", "b" * 100) * 20)


def empty_continuation(where, path):
    yield frame(h2raw.HEADERS, 0, 1, head(where, path))
    while True:
        yield frame(h2raw.CONTINUATION, 0, 1)


def settings(where, path):
    while True:
        yield frame(h2raw.SETTINGS, payload=struct.pack(">HI", 4, 65535))


def ping(where, path):
    while True:
        yield frame(h2raw.PING, payload=b"12345678")


def empty_data(where, path):
    yield frame(h2raw.HEADERS, h2raw.END_HEADERS, 1, head(where, path))
    while True:
        yield frame(h2raw.DATA, 0, 1)


def priority(where, path):
    while True:
        yield frame(h2raw.PRIORITY, 0, 1, struct.pack(">IB", 0, 16))


@pytest.mark.both
@pytest.mark.threads
@pytest.mark.parametrize("where", ["http", "grpc", "agent"])
@pytest.mark.parametrize("flood", [rapid_reset, continuation, empty_continuation, settings, ping, empty_data, priority])
def test_floods_end_the_connection(intact, flood, where):
    port, path = ports(intact)[where]
    rss = [p.rss_kib() for p in intact.processes]
    h = H2(port)
    made = flood(where, path)
    for _ in range(600):
        if not h.send(b"".join(next(made) for _ in range(100))):
            break
    assert h.goaway() in (None, ENHANCE_YOUR_CALM, INTERNAL)  # INTERNAL: nghttp2's own limit of resets
    h.close()
    if not os.environ.get("CGN_SANITIZER"):
        assert all(p.rss_kib() - was < 16 * 1024 for p, was in zip(intact.processes, rss))


BREACHES = {
    "window overflow": (frame(h2raw.WINDOW_UPDATE, payload=struct.pack(">I", 0x7fffffff)) * 2, FLOW_CONTROL),
    "window update of 0": (frame(h2raw.WINDOW_UPDATE, payload=struct.pack(">I", 0)), PROTOCOL),
    "initial window too large": (frame(h2raw.SETTINGS, payload=struct.pack(">HI", 4, 0x80000000)), FLOW_CONTROL),
    "frame too large": (frame(h2raw.DATA, 0, 1, b"x" * 20000), FRAME_SIZE),
    "frame that says 16 MiB": (frame(h2raw.HEADERS, h2raw.END_HEADERS, 1, b"x" * 30000, length=0xffffff), FRAME_SIZE),
    "ping of 7 bytes": (frame(h2raw.PING, payload=b"1234567"), FRAME_SIZE),
    "settings of 5 bytes": (frame(h2raw.SETTINGS, payload=b"12345"), FRAME_SIZE),
    "garbage for HPACK": (frame(h2raw.HEADERS, h2raw.END_HEADERS, 1, b"\xff" * 50), COMPRESSION),
    "an index out of the table": (frame(h2raw.HEADERS, h2raw.END_HEADERS, 1, b"\xbe"), COMPRESSION),
    "an even stream": (frame(h2raw.HEADERS, h2raw.END_HEADERS, 2, h2raw.request_block()), PROTOCOL),
    "data before a head": (frame(h2raw.DATA, 0, 1, b"x"), PROTOCOL),
    "continuation of nothing": (frame(h2raw.CONTINUATION, h2raw.END_HEADERS, 1, b""), PROTOCOL),
    "a ping inside a head": (frame(h2raw.HEADERS, 0, 1, h2raw.request_block()) + frame(h2raw.PING, payload=b"12345678"), PROTOCOL),
    "push promise": (frame(5, h2raw.END_HEADERS, 1, b"\0\0\0\2"), PROTOCOL),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_breaches_of_http2_end_the_connection(intact, breach):
    data, code = BREACHES[breach]
    for where in ("http", "grpc", "agent"):
        h = H2(ports(intact)[where][0])
        h.send(data)
        got = h.goaway()
        h.close()
        assert got in (None, code), (where, hex(got))


@pytest.mark.parametrize("bad", BAD_HEADS)
def test_bad_heads_over_http2_reach_no_engine(intact, bad):
    h = H2(intact.http_port)
    h.send(frame(h2raw.HEADERS, h2raw.END_HEADERS, 1, h2raw.request_block(more=BAD_HEADS[bad]))
           + frame(h2raw.DATA, h2raw.END_STREAM, 1, BODY))
    data, how = h.answer(1)
    assert how != "end" or b'"error"' in data, (how, data)
    h.close()


def test_a_good_request_over_http2(served):
    h = H2(served.http_port)
    h.send(frame(h2raw.HEADERS, h2raw.END_HEADERS, 1, h2raw.request_block()) + frame(h2raw.DATA, h2raw.END_STREAM, 1, BODY))
    data, how = h.answer(1)
    assert how == "end" and json.loads(data)["object"] == "chat.completion"
    h.close()


def test_more_streams_than_allowed_are_refused(served):
    h = H2(served.http_port)
    n = 2000
    for i in range(n):
        h.send(frame(h2raw.HEADERS, h2raw.END_HEADERS, 2 * i + 1, h2raw.request_block()))  # the bodies never come
    h.sock.settimeout(WAIT_S)
    refused_streams = 0
    for f in h.frames():
        refused_streams += f.type == h2raw.RST_STREAM and int.from_bytes(f.payload, "big") == 7
        if refused_streams > 100 or f.type == h2raw.GOAWAY:
            break
    else:
        raise AssertionError("all streams were taken")
    h.close()
    assert served.chat("others", max_tokens=1).status == 200


# ---- gRPC ----

def message(payload, flag=0, length=None):
    return struct.pack(">BI", flag, len(payload) if length is None else length) + payload


LIES = {
    "longer than it is": message(b"\x0a\x03abc", length=100),
    "four gigabytes": message(b"\x0a\x03abc", length=0xffffffff),
    "larger than allowed": message(b"x" * 15000, length=64 << 20),
    "compressed": message(b"\x0a\x03abc", flag=1),
    "an unknown flag": message(b"\x0a\x03abc", flag=7),
    "a truncated prefix": b"\0\0\0",
    "no message": b"",
    "truncated protobuf": message(b"\x0a\x7fabc"),
    "a wrong wire type": message(b"\x0f\x01"),
    "garbage": message(bytes(range(128, 256))),
    "an endless varint": message(b"\xff" * 30),
    "bytes after the message": message(b"") + b"\1\2",
    "two messages": message(b"") * 2,
}


def grpc(port, path, data):
    h = H2(port)
    h.send(frame(h2raw.HEADERS, h2raw.END_HEADERS, 1, h2raw.grpc_block(path)) + frame(h2raw.DATA, h2raw.END_STREAM, 1, data))
    got = h.answer(1)
    h.close()
    return got


@pytest.mark.parametrize("lie", LIES)
def test_grpc_lengths_that_lie(intact, lie):
    data, how = grpc(intact.grpc_port, "/cognitora.v1.Control/Status", message(b""))
    assert how == "end" and len(data) > 10  # an answer would be right too
    for port, path in ((intact.grpc_port, "/cognitora.v1.Control/Cordon"), (intact.grpc_port, "/cognitora.v1.Router/Announce"),
                       (intact.nodes["a"].agent_port, "/cognitora.v1.Agent/Generate")):
        data, how = grpc(port, path, LIES[lie])
        assert data == b"" and how in ("end", "reset", "closed"), (path, data, how)
    assert list(intact.states()) == ["a"]


def test_an_unfinished_grpc_call_delays_no_other(intact):
    held = []
    for port, path in ((intact.grpc_port, "/cognitora.v1.Router/Announce"), (intact.nodes["a"].agent_port, "/cognitora.v1.Agent/Generate")):
        for _ in range(50):
            h = H2(port)
            h.send(frame(h2raw.HEADERS, h2raw.END_HEADERS, 1, h2raw.grpc_block(path))
                   + frame(h2raw.DATA, 0, 1, message(b"x", length=1 << 20)))
            held.append(h)
    assert intact.states() == {"a": "ready"}
    data, how = grpc(intact.grpc_port, "/cognitora.v1.Control/Status", message(b""))
    assert how == "end" and data
    engine = intact.nodes["a"].engine_port
    assert ask(engine, "GET", "/health").status == 200
    for h in held:
        h.close()


def test_an_agent_is_not_asked_for_what_is_no_request(intact):
    for path in ("/cognitora.v1.Agent/Nothing", "/", "/cognitora.v1.Nobody/Generate", "/../etc/passwd"):
        data, how = grpc(intact.nodes["a"].agent_port, path, message(b""))
        assert data == b"", (path, data)


# ---- admin ports ----

def test_admin_ports_stand_garbage(intact):
    for port in (intact.admin_port, intact.nodes["a"].admin_port):
        for shape in ("length and chunked", "bare LF", "garbage", "two lengths", "NUL in a name"):
            refused(talk(port, SHAPES[shape]), {400})
        refused(talk(port, b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"), {431})
        got = talk(port, b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 50000000\r\n\r\n", b"x" * 5000000)
        assert got[:13] in (b"HTTP/1.1 413 ", b"HTTP/1.1 405 ", b"")
        assert ask(port, "GET", "/healthz").status == 200
        assert ask(port, "GET", "/metrics").status == 200
        for path in ("/../../etc/passwd", "/nodes/../config%00", "/%ff%fe", "//", "/metrics/x"):
            assert ask(port, "GET", path).status in (400, 404), path
