# SPDX-License-Identifier: Apache-2.0
"""One client for each port of cgn-kvcached, with the same four verbs: put(name, value), get(name) (None: a
miss), remove(name), close(). A returned value is whole, or Gone is raised: the store ended the connection,
or refused the call with a sentence."""
import hashlib

import h2raw
import kvbulk
from cluster import WAIT_S
from h2raw import H2, frame
from resp_raw import Raw, Wrong

WINDOW = 1 << 30
NOT_FOUND = 5
GRPC_PUT_MAX = 60000  # a put that fits a stream's first window


class Gone(Exception):
    pass


def digest(name):
    return hashlib.sha256(name.encode()).digest()


class Descriptor:
    """Read values out of the store's memory; the caller compares the value, so the checksum is not compared
    here."""
    name = "descriptor"

    def __init__(self, store):
        self.at = store.bulk
        self.open()

    def open(self):
        try:
            self.c = kvbulk.Bulk(self.at, wait_s=WAIT_S)
        except (OSError, AssertionError) as e:
            raise Gone(f"no connection: {e}") from e

    def run(self, what):
        try:
            return what()
        except kvbulk.Refused as e:
            if e.status == NOT_FOUND:
                return None
            raise Gone(str(e)) from e
        except (ConnectionError, AssertionError) as e:  # the connection ended in between
            raise Gone(f"ended: {e}") from e

    def put(self, name, value, **more):
        self.run(lambda: self.c.put_any(kvbulk.key(name), value, **more))

    def get(self, name, flags=0):
        v = self.run(lambda: self.c.get(kvbulk.key(name), flags))
        if v is None:
            return None
        value = v.read()
        self.run(lambda: self.c.release(v.lease))
        return value

    def remove(self, name):
        return self.run(lambda: self.c.remove([kvbulk.key(name)]))

    def close(self):
        self.c.close()


class Resp:
    name = "resp"

    def __init__(self, store):
        self.at = f"{store.uds}.resp"
        self.open()

    def open(self):
        try:
            self.c = Raw(self.at)
        except OSError as e:
            raise Gone(f"no connection: {e}") from e

    def ask(self, *args):
        try:
            got = self.c.ask(*args)
        except (ConnectionError, AssertionError) as e:
            raise Gone(f"ended: {e}") from e
        if isinstance(got, Wrong):
            raise Gone(got)
        return got

    def put(self, name, value):
        assert self.ask("SET", digest(name).hex(), value) == b"OK"

    def get(self, name):
        return self.ask("GET", digest(name).hex())

    def remove(self, name):
        return self.ask("DEL", digest(name).hex())

    def close(self):
        self.c.close()


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, value):
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def message(body):
    return b"\0" + len(body).to_bytes(4, "big") + body


def messages(data):
    while data:
        n = int.from_bytes(data[1:5], "big")
        if len(data) < 5 + n:
            raise Gone("a message is cut short")
        yield data[5:5 + n]
        data = data[5 + n:]


def fields(data):
    """Return the (number, value) pairs of a protobuf message."""
    at = 0

    def number():
        nonlocal at
        n = shift = 0
        while True:
            n |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                return n
    while at < len(data):
        tag = number()
        size = {0: None, 1: 8, 2: -1, 5: 4}[tag & 7]
        if size is None:
            yield tag >> 3, number()
            continue
        size = number() if size < 0 else size
        yield tag >> 3, data[at:at + size]
        at += size


class Grpc:
    """A connection for each call, over the Unix socket: the TCP port has TLS where there are certificates."""
    name = "grpc"

    def __init__(self, store):
        self.at = store.uds

    def call(self, method, *parts):
        """Return the messages of the answer: none where the store refuses."""
        try:
            h2 = H2(self.at, settings=b"\0\4" + WINDOW.to_bytes(4, "big"))
        except OSError as e:
            raise Gone(f"no connection: {e}") from e
        try:
            h2.send(frame(h2raw.WINDOW_UPDATE, payload=WINDOW.to_bytes(4, "big")))
            h2.send(frame(h2raw.HEADERS, h2raw.END_HEADERS, 1, h2raw.grpc_block(f"/cognitora.v1.Kv/{method}")))
            body = b"".join(message(p) for p in parts)
            for at in range(0, len(body), 16384):
                h2.send(frame(h2raw.DATA, h2raw.END_STREAM if at + 16384 >= len(body) else 0, 1, body[at:at + 16384]))
            data, end = h2.answer(1)
        finally:
            h2.close()
        if end != "end":
            raise Gone(f"the call was {end}")
        return list(messages(data))

    def put(self, name, value):
        head = field(1, field(1, digest(name))) + field(2, len(value))
        if not self.call("Put", field(1, head) + field(2, value)):
            raise Gone("refused")

    def get(self, name):
        chunks = self.call("Get", field(1, field(1, digest(name))))
        if not chunks:
            return None
        size = next((v for n, v in fields(next(v for n, v in fields(chunks[0]) if n == 1)) if n == 3), 0)
        value = b"".join(v for c in chunks for n, v in fields(c) if n == 2)
        if len(value) != size:
            raise Gone("ended in the middle of a value")
        return value

    def remove(self, name):
        return self.call("Remove", field(1, field(1, digest(name))))

    def open(self):
        pass

    def close(self):
        pass


PORTS = (Descriptor, Resp, Grpc)
