# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 frames written by hand, to send what no client library sends. Heads are HPACK literals without
indexing; answers are not decoded."""
import collections
import socket
import struct

from cluster import WAIT_S

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
ACK = END_STREAM = 1
END_HEADERS = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

Frame = collections.namedtuple("Frame", "type flags stream payload")


def frame(kind, flags=0, stream=0, payload=b"", length=None):
    """Build a frame. |length|: a false length for the frame's head."""
    n = len(payload) if length is None else length
    return struct.pack(">I", n)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    def string(s):
        s = s.encode() if isinstance(s, str) else s
        assert len(s) < 127
        return bytes([len(s)]) + s
    return b"\0" + string(name) + string(value)


def block(fields):
    return b"".join(literal(k, v) for k, v in fields)


def request_block(path="/v1/chat/completions", more=(), method="POST"):
    return block([(":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost"),
                  ("content-type", "application/json"), *more])


def grpc_block(path):
    return block([(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"), ("te", "trailers"),
                  ("content-type", "application/grpc")])


class H2:
    def __init__(self, port, settings=b""):
        """Connect. |port|: a port of this machine, or the path of a Unix socket."""
        if isinstance(port, str):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(port)
            self.sock.settimeout(WAIT_S)
        else:
            self.sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # without it, a frame waits for the acknowledgement of the previous one
        self.raw, self.alive = b"", True
        self.send(PREFACE + frame(SETTINGS, payload=settings))

    def send(self, data):
        """Return False when the peer reads no more: it has closed, or it stopped reading."""
        try:
            self.sock.sendall(data)
        except (ConnectionError, TimeoutError):
            self.alive = False
        return self.alive

    def frames(self):
        """Yield frames until the peer ends; acknowledge settings."""
        while True:
            while len(self.raw) >= 9:
                n = int.from_bytes(self.raw[:3], "big")
                if len(self.raw) < 9 + n:
                    break
                f = Frame(self.raw[3], self.raw[4], int.from_bytes(self.raw[5:9], "big"), self.raw[9:9 + n])
                self.raw = self.raw[9 + n:]
                if f.type == SETTINGS and not f.flags & ACK:
                    self.send(frame(SETTINGS, ACK))
                yield f
            try:
                more = self.sock.recv(65536)
            except ConnectionError:
                return
            if not more:
                return
            self.raw += more

    def goaway(self):
        """Return the error code of the GOAWAY that ends this connection; None when the connection was cut
        without one."""
        code = None
        for f in self.frames():
            if f.type == GOAWAY:
                code = int.from_bytes(f.payload[4:8], "big")
        return code

    def answer(self, stream):
        """Return (bytes of DATA, "end" | "reset" | "closed") of a stream."""
        data = b""
        for f in self.frames():
            if f.stream != stream:
                continue
            if f.type == DATA:
                data += f.payload
            if f.type == RST_STREAM:
                return data, "reset"
            if f.type in (DATA, HEADERS) and f.flags & END_STREAM:
                return data, "end"
        return data, "closed"

    def close(self):
        self.sock.close()
