# SPDX-License-Identifier: Apache-2.0
"""cgn-kvcached's gRPC with clients that no library would be: slow, dishonest, very many. (Well-behaved ones:
tests/interop.)"""
import hashlib
import socket
import struct

import pytest

import h2raw
import kvbulk
from cluster import SANITIZER, WAIT_S, scaled, until
from h2raw import H2, frame
from kvbulk import Bulk, Refused, Store, key
from kvports import field


@pytest.fixture
def store(tmp_path, request):
    s = Store(tmp_path, **{"ram": "64MiB", **getattr(request, "param", {})})
    yield s
    s.close()


# ---- protobuf and gRPC written by hand ----

def kv_key(name):
    return field(1, hashlib.sha256(name.encode()).digest())


def message(body, length=None):
    return struct.pack(">BI", 0, len(body) if length is None else length) + body


def call(h2, stream, method, body=None, end=True):
    h2.send(frame(h2raw.HEADERS, h2raw.END_HEADERS, stream, h2raw.grpc_block(f"/cognitora.v1.Kv/{method}")))
    if body is not None:
        h2.send(frame(h2raw.DATA, h2raw.END_STREAM if end else 0, stream, body))


def status(h2, stream):
    """Return the grpc-status of the trailers that end a stream, read from their HPACK bytes; -1: the stream
    was reset, or the connection cut."""
    for f in h2.frames():
        if f.stream == stream and f.type == h2raw.RST_STREAM:
            return -1
        if f.stream == stream and f.type == h2raw.HEADERS and f.flags & h2raw.END_STREAM:
            return f.payload
    return -1


def put_head(name, size):
    return message(field(1, field(1, kv_key(name)) + field(2, size)))


# ---- clients that do not read ----

@pytest.mark.parametrize("store", [{"ram": "64MiB", "lease_timeout": "700ms"}], indirect=True)
def test_slow_readers_hold_little_and_not_for_ever(store):
    value = b"\x5a" * (4 << 20)
    with Bulk(store.bulk) as c:
        for i in range(6):
            c.put_any(key(f"v{i}"), value)
        before = store.process.rss_kib()
        slow = []
        for i in range(24):
            h2 = H2(store.port)
            for stream in range(1, 9, 2):
                call(h2, stream, "Get", message(field(1, kv_key(f"v{i % 6}"))))
            slow.append(h2)
        lends(c, 1)  # others continue, or are refused because too much is being read
        grown = store.process.rss_kib() - before
        print(f"96 slow calls: {grown} KiB")
        assert grown < 96 * 1024  # one write queue of at most 256 KiB and a chunk for each
        until(lambda: lends(c, 4), "what slow readers held is free again")
        for h2 in slow:
            h2.sock.close()


def lends(c, n):
    leases = []
    try:
        for i in range(n):
            leases.append(c.get(key(f"v{i}")).lease)
        return True
    except Refused as e:
        assert e.status == 8
        return False
    finally:
        if leases:
            c.release(*leases)


@pytest.mark.parametrize("store", [{"ram": "64MiB", "lease_timeout": "700ms"}], indirect=True)
def test_promises_of_bytes_that_never_come(store):
    """Send the heads of puts without values: at most half of the tier is reserved for them, and comes free
    again."""
    h2 = H2(store.port)
    for stream in range(1, 201, 2):
        call(h2, stream, "Put", put_head(f"p{stream}", 4 << 20), end=False)
    ends = {}
    for f in h2.frames():
        if f.type in (h2raw.HEADERS, h2raw.RST_STREAM) and f.flags & h2raw.END_STREAM:
            ends[f.stream] = f.payload
        if len(ends) == 100:
            break
    assert len(ends) == 100  # most at once, the others after the longest wait for values
    with Bulk(store.bulk) as c:
        until(lambda: store.stats()["ram"]["bytes"] == 0, "nothing is set aside any more")
        c.put_any(key("v0"), b"x" * (20 << 20))
        assert lends(c, 1)
    h2.sock.close()


# ---- invalid calls ----

def test_lies_about_lengths(store):
    before = store.process.rss_kib()
    for body in (message(b"", length=0xffffffff), message(b"x" * 100, length=2 << 20), message(b"x", length=100),
                 b"\x01" + message(b"abc")[1:], b"\x07" + message(b"abc")[1:], b"\0\0"):
        h2 = H2(store.port)
        call(h2, 1, "Get", body)
        assert status(h2, 1) != b""
        h2.sock.close()
    assert store.process.rss_kib() < before + 4096
    with Bulk(store.bulk) as c:
        c.put(key("a"), b"abc")


def test_bytes_that_are_no_message(store):
    bodies = [b"\xff" * 50, field(1, b"\xff" * 10), field(1, field(1, b"short")), field(1, kv_key("x"))[:-1], b"\x0a\x00" * 5000]
    for method in ("Lookup", "BatchLookup", "Get", "Put", "Pin", "Promote", "Remove"):
        for body in bodies:
            h2 = H2(store.port)
            call(h2, 1, method, message(body))
            end = status(h2, 1)
            assert end != -1 and end
            h2.sock.close()


def test_a_client_without_grpc_is_refused(store):
    for noise in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00" + b"x" * 512, b"\0" * 1000, b"*1\r\n$4\r\nPING\r\n"):
        with socket.create_connection(("127.0.0.1", store.port), timeout=30) as s:
            s.sendall(noise)
            try:
                while s.recv(65536):
                    pass
            except ConnectionError:
                pass


@pytest.mark.both
def test_ten_thousand_connections(store):
    """Connections on TCP and on the Unix socket, each greeted; the memory for each is bounded, and calls
    continue."""
    n = scaled(10000, 1000)
    before = store.process.rss_kib()
    open_, greeted = [], []
    try:
        for i in range(n):
            s = socket.socket(socket.AF_UNIX if i % 2 else socket.AF_INET)
            s.connect(store.uds if i % 2 else ("127.0.0.1", store.port))  # waits while the backlog is full
            s.settimeout(WAIT_S)
            s.sendall(h2raw.PREFACE + frame(h2raw.SETTINGS))
            open_.append(s)
            if len(open_) % 64 == 0 or len(open_) == n:  # a full backlog would drop connections, and the kernel tries again much later
                for s in open_[len(greeted):]:
                    greeted.append(s.recv(9, socket.MSG_WAITALL)[3])
        assert greeted == [h2raw.SETTINGS] * n
        h2 = H2(store.port)
        call(h2, 1, "Lookup", message(field(1, kv_key("x"))))
        assert status(h2, 1) not in (-1, b"")
        h2.sock.close()
        grown = store.process.rss_kib() - before
        print(f"{n} connections: {grown} KiB, {grown * 1024 // n} bytes each")
        assert grown < 48 * n
    finally:
        for s in open_:
            s.close()
    until(lambda: store.process.descriptors() < 200, "all of them are closed")


@pytest.mark.slow
@pytest.mark.both
def test_a_watcher_that_does_not_read_is_ended(store):
    h2 = H2(store.port)
    call(h2, 1, "Watch", message(b""))
    with Bulk(store.bulk) as c:
        before = store.process.rss_kib()
        changes = 0
        while changes < 200000:  # more than the ring, the socket and the flow control window hold
            for i in range(64):
                c.send(kvbulk.PUT, c.put_body(key(f"k{i}"), 1, b"x"))
            for _ in range(64):
                c.receive()
            changes += 64
        assert SANITIZER or store.process.rss_kib() < before + 16384  # a sanitizer keeps freed memory
        for f in h2.frames():
            if f.type == h2raw.DATA:
                h2.send(frame(h2raw.WINDOW_UPDATE, 0, 0, struct.pack(">I", len(f.payload))) if f.payload else b"")
                h2.send(frame(h2raw.WINDOW_UPDATE, 0, 1, struct.pack(">I", len(f.payload))) if f.payload else b"")
            if f.stream == 1 and f.type == h2raw.HEADERS and f.flags & h2raw.END_STREAM:
                break
        else:
            raise AssertionError("the watch was not ended")
    h2.sock.close()
