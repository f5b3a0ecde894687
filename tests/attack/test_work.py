# SPDX-License-Identifier: Apache-2.0
"""Few bytes that make much work, or that hold a connection for long: each is refused, and another client is answered meanwhile."""
import socket
import struct
import threading

import pytest

import h2raw
from cluster import ask, until
from h2raw import ACK, DATA, END_HEADERS, END_STREAM, H2, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame

FAST = ("--time-scale", "0")
CALM = 11
FIELDS = h2raw.block([(":method", "GET"), (":scheme", "http"), (":path", "/v1/models"), (":authority", "localhost")])
POST = h2raw.block([(":method", "POST"), (":scheme", "http"), (":path", "/v1/chat/completions"), (":authority", "localhost"), ("content-type", "application/json")])
ENTRY = b"\x40\x01x\x7f\xa1\x1e" + b"a" * 4000  # a literal with incremental indexing, of 4,000 bytes: index 62 from then on
OPEN = END_HEADERS | END_STREAM


def heads(references, n):
    """|n| requests with that many references to a field of 4,000 bytes each."""
    return frame(HEADERS, OPEN, 1, FIELDS + ENTRY) + b"".join(frame(HEADERS, OPEN, 2 * i + 3, FIELDS + b"\xbe" * references) for i in range(n))


FLOODS = {
    "a head of 60 MB": heads(15000, 1),
    "heads of 28 KB each": heads(7, 5000),
    "resets": b"".join(frame(HEADERS, OPEN, 2 * i + 1, FIELDS) + frame(RST_STREAM, 0, 2 * i + 1, struct.pack(">I", 8)) for i in range(6000)),
    "pings": frame(PING, 0, 0, b"12345678") * 6000,
    "a byte a frame": frame(HEADERS, END_HEADERS, 1, POST) + frame(DATA, 0, 1, b"x") * 6000,
    "a padded byte a frame": frame(HEADERS, END_HEADERS, 1, POST) + frame(DATA, 8, 1, b"\x05x" + bytes(5)) * 6000,
    "tiny windows": frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)) * 6000,
}


@pytest.fixture
def served(cluster):
    cluster.router({"router": {"worker_threads": 1, "body_timeout": "1s", "body_rate": 5000}, "batch": {"enabled": True}})
    cluster.node("a", *FAST)
    cluster.wait_ready(1)
    return cluster


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("port", ["http_port", "admin_port"])
def test_a_flood_ends_its_connection(served, flood, port):
    h = H2(getattr(served, port))
    next(f for f in h.frames() if f.type == SETTINGS and not f.flags & ACK)  # answered now: later, the answer would come between two parts of a frame
    code = []
    reader = threading.Thread(target=lambda: code.append(h.goaway()))
    reader.start()
    for at in range(0, len(FLOODS[flood]), 16384):
        if not h.send(FLOODS[flood][at:at + 16384]):
            break
        assert ask(served.http_port, "GET", "/v1/models").status == 200
    reader.join()
    assert code[0] in (CALM, None), "the connection was ended, or cut while it still sent"
    assert ask(getattr(served, port), "GET", "/").status in (200, 404)
    h.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files"])
def test_a_body_that_trickles_is_refused(served, path):
    """Each byte comes long before router.body_timeout."""
    with socket.create_connection(("127.0.0.1", served.http_port)) as s:
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000\r\n\r\n".encode())
        s.settimeout(0.02)
        got = b""

        def answered():
            nonlocal got
            try:
                s.sendall(b" ")
                got += s.recv(65536)
            except TimeoutError:
                pass
            return b"\r\n\r\n" in got
        until(answered, "the body is refused")
    assert got.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("body", ['"max_completion_tokens":1e400', '"max_tokens":1e30', '"max_tokens":2.5', '"temperature":-1e999'])
def test_a_number_without_end_is_refused(served, body):
    whole = b'{"model":"sim","messages":[{"role":"user","content":"x"}],' + body.encode() + b"}"
    r = served.ask("POST", "/v1/chat/completions", whole, {"Content-Type": "application/json"})
    assert (r.status, r.json()["error"]["code"]) == (400, "invalid_number")
