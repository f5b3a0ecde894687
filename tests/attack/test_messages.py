# SPDX-License-Identifier: Apache-2.0
"""Messages that are made to end a program: deeper than its stack, larger in memory than on the wire, for every gRPC method of every port."""
import re
import struct

import pytest

import h2raw
from cluster import ROOT, ask, free_port, until
from h2raw import H2, frame
from kvbulk import Store

FAST = ("--time-scale", "0")
PICKER = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
HEALTH = "/grpc.health.v1.Health/Check"


def varint(n):
    out = b""
    while n > 0x7f:
        out, n = out + bytes([n & 0x7f | 0x80]), n >> 7
    return out + bytes([n])


def member(number, value):
    """A member of a message: |value| is its bytes."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def nested(depth, numbers=(6, 1)):
    """A google.protobuf.Value with lists in lists (Value.list_value, ListValue.values)."""
    p = b""
    for _ in range(depth):
        p = member(numbers[0], member(numbers[1], p))
    return p


def picker_message(depth):
    """A ProcessingRequest with a body and with metadata whose value is nested so deep."""
    return b"\x22\x02\x10\x01" + member(8, member(1, member(2, member(1, member(2, nested(depth))))))


HOSTILE = {
    "deep values": picker_message(5000),
    "deep members": nested(5000, (1, 1)),
    "empty messages": member(1, b"") * 200_000,
    "a huge length": b"\x0a" + varint((1 << 31) - 1) + b"x",
    "an endless varint": b"\x08" + b"\xff" * 64,
    "groups": b"\x0b" * 5000,
}


def methods():
    """Each gRPC method of our services, as the proto files have them."""
    found = []
    for f in sorted((ROOT / "proto/cognitora/v1").glob("*.proto")):
        text = re.sub(r"//.*", "", f.read_text())
        for service, body in re.findall(r"service (\w+) \{(.*?)\n\}", text, re.S):
            found += [f"/cognitora.v1.{service}/{m}" for m in re.findall(r"rpc (\w+)\(", body)]
    return found


def call(h2, stream, path, message):
    """Send a call with one message and its end; windows of 64 KiB are not waited for: the port answers before it has all, or the test has sent it."""
    h2.send(frame(h2raw.HEADERS, h2raw.END_HEADERS, stream, h2raw.grpc_block(path)))
    data = struct.pack(">BI", 0, len(message)) + message
    for i in range(0, min(len(data), 60000), 16000):
        last = i + 16000 >= len(data)
        h2.send(frame(h2raw.DATA, h2raw.END_STREAM if last else 0, stream, data[i:min(i + 16000, 60000)]))


def ended(h2, stream):
    """Wait for the end of a stream, by trailers or a reset; False: the connection ended first."""
    return any(f.stream == stream and (f.type == h2raw.RST_STREAM or f.type == h2raw.HEADERS and f.flags & h2raw.END_STREAM) for f in h2.frames())


def answered(h2, stream):
    """Wait for the beginning of an answer: bytes that a method does not know are no reason to refuse them, and a watch never ends."""
    return any(f.stream == stream and f.type in (h2raw.RST_STREAM, h2raw.HEADERS, h2raw.DATA) for f in h2.frames())


def knock(port, path, message):
    h2 = H2(port)
    call(h2, 1, path, message)
    if len(message) < 55000:
        assert answered(h2, 1), (path, "the connection ended")
    h2.sock.close()


def is_healthy(port):
    h2 = H2(port)
    call(h2, 1, HEALTH, b"")
    assert ended(h2, 1)
    h2.sock.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    from cluster import Cluster
    folder = tmp_path_factory.mktemp("messages")
    with Cluster(folder) as c:
        c.picker = free_port()
        c.router({"router.selection": {"enabled": True}, "router.picker": {"listen": f"127.0.0.1:{c.picker}"}})
        c.node("a", *FAST)
        c.wait_ready(1)
        store = Store(folder, ram="64MiB")
        c.ports = {"router": c.grpc_port, "agent": c.nodes["a"].agent_port, "picker": c.picker, "store": store.uds}
        c.programs = {"router": c.router_process, "agent": c.nodes["a"].agent, "picker": c.router_process, "store": store.process}
        try:
            yield c
        finally:
            store.close()


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("port", ["router", "agent", "picker", "store"])
def test_no_message_ends_a_program(world, port, what):
    for path in [*methods(), PICKER, HEALTH]:
        knock(world.ports[port], path, HOSTILE[what])
        assert world.programs[port].alive(), world.programs[port].log()[-2000:]
    is_healthy(world.ports[port])


def test_a_picker_refuses_deep_values_and_serves_shallow_ones(world):
    """The proxy's stream with a deep value ends at once, with an error; one that is nested as people nest goes on."""
    deep, shallow = H2(world.picker), H2(world.picker)
    for h2, depth in ((deep, 5000), (shallow, 3)):
        h2.send(frame(h2raw.HEADERS, h2raw.END_HEADERS, 1, h2raw.grpc_block(PICKER)))
        m = picker_message(depth)
        data = struct.pack(">BI", 0, len(m)) + m
        for i in range(0, len(data), 16000):
            h2.send(frame(h2raw.DATA, 0, 1, data[i:i + 16000]))
    assert ended(deep, 1)
    assert world.router_process.alive()
    until(lambda: ask(world.http_port, "GET", "/healthz").status == 200, "the gateway answers")
    deep.sock.close()
    shallow.sock.close()


@pytest.mark.parametrize("body", ["[" * 100_000, '{"a":' * 50_000, '{"model":"sim","messages":' + "[" * 5000 + "]" * 5000 + "}",
                                  '{"model":"sim","messages":[{"role":"user","content":' + '[{"type":"text","text":' * 2000 + '"x"' + "}]" * 2000 + "}]}"], ids=["arrays", "objects", "messages", "parts"])
def test_deep_json_is_refused(world, body):
    """JSON has a depth of at most 128 at every port that takes it."""
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/api/chat", "/select", "/tokenize"):
        r = ask(world.http_port, "POST", path, body.encode())
        assert 400 <= r.status < 500, (path, r.status, r.body[:200])
    for path in ("/policy", "/models", "/login"):
        assert ask(world.admin_port, "POST", path, body.encode()).status in (400, 403, 404, 405, 413, 415), path
    assert world.router_process.alive()
