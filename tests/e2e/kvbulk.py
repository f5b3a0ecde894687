# SPDX-License-Identifier: Apache-2.0
"""The descriptor path of cgn-kvcached, implemented from docs/fleet/kv/README.md alone; and a daemon to test."""
import hashlib
import mmap
import os
import shutil
import socket
import struct
import tempfile

from cluster import Process, ask, free_port, toml, until

HELLO, LOOKUP, GET, RELEASE, PUT, REMOVE, PIN, WATCH = range(1, 9)
WELCOME, INFOS, VALUE, COUNT, FAILED, CHANGES = range(65, 71)
PEERS, VERIFY = 1, 2
CHECKSUM, IF_ABSENT, FILE = 1, 2, 4
RESET, SYNCED = 1, 2
FOREVER = 2**64 - 1


def key(name, segment=0):
    return hashlib.sha256(name.encode()).digest() + struct.pack("<I", segment)


class Refused(Exception):
    def __init__(self, status, sentence):
        super().__init__(f"{status}: {sentence}")
        self.status, self.sentence = status, sentence


class Info:
    SIZE = 40

    def __init__(self, b):
        self.size, self.checksum, self.tokens, tiers, self.created, self.expires = struct.unpack("<QQIIQQ", b)
        self.tiers, self.pinned = tiers & 0xf, tiers >> 31 == 1


class Value:
    def __init__(self, lease, info, model, name, extents, memory):
        self.lease, self.info, self.model, self.name, self.extents, self.memory = lease, info, model, name, extents, memory

    def read(self):
        return b"".join(self.memory[o:o + n] for o, n in self.extents)


class Bulk:
    """One connection."""

    def __init__(self, path, hello=True, wait_s=30):
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.s.connect(path)  # waits while the backlog is full; with a timeout it would fail
        self.s.settimeout(wait_s)
        self.ids = 0
        self.memory = None
        if hello:
            self.hello()

    def close(self):
        self.s.close()
        if self.memory:
            self.memory.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, kind, body=b"", flags=0, count=0, ident=None, fds=(), budget_ms=0):
        self.ids += 1
        ident = self.ids if ident is None else ident
        packet = struct.pack("<BBHIQ", kind, flags, count, budget_ms, ident) + body
        socket.send_fds(self.s, [packet], list(fds)) if fds else self.s.send(packet)
        return ident

    def receive(self):
        """Return (type, flags, count, id, body, descriptors); type None: the daemon ended the connection."""
        packet, fds, flags, _ = socket.recv_fds(self.s, 65536, 4)
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        if not packet:
            return None, 0, 0, 0, b"", fds
        kind, flags, count, zero, ident = struct.unpack("<BBHIQ", packet[:16])
        assert zero == 0
        return kind, flags, count, ident, packet[16:], fds

    def ask(self, kind, body=b"", flags=0, count=0, fds=(), budget_ms=0):
        ident = self.send(kind, body, flags, count, fds=fds, budget_ms=budget_ms)
        got, flags, count, answered, body, fds = self.receive()
        if got == FAILED:
            status, n = struct.unpack("<IH", body[:6])
            assert len(body) == 6 + n
            raise Refused(status, body[6:].decode())
        assert got is not None, "the daemon ended the connection"
        assert answered == ident
        return got, flags, count, body, fds

    def hello(self, version=1):
        got, _, _, body, fds = self.ask(HELLO, struct.pack("<8sI", b"CGNKVBLK", version))
        assert got == WELCOME
        (self.version, self.max_calls, self.max_leases, self.max_inline, self.lease_bytes, self.lease_ms,
         self.arena_bytes) = struct.unpack("<IIIIQQQ", body)
        if fds:
            self.memory = mmap.mmap(fds[0], self.arena_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
            os.close(fds[0])

    def lookup(self, keys):
        got, _, count, body, _ = self.ask(LOOKUP, b"".join(keys), count=len(keys))
        assert got == INFOS and count == len(keys)
        return [Info(body[i:i + Info.SIZE]) for i in range(0, len(body), Info.SIZE)]

    def get(self, k, flags=0, budget_ms=0):
        return self.value(self.ask(GET, k, flags, budget_ms=budget_ms))

    def value(self, answer):
        got, _, count, body, fds = answer
        assert got == VALUE
        (lease,), info, at = struct.unpack("<Q", body[:8]), Info(body[8:48]), 48
        texts = []
        for _ in range(2):
            (n,) = struct.unpack("<H", body[at:at + 2])
            texts.append(body[at + 2:at + 2 + n].decode())
            at += 2 + n
        extents = [struct.unpack("<QQ", body[at + 16 * i:at + 16 * i + 16]) for i in range(count)]
        assert len(body) == at + 16 * count
        memory = self.memory
        if fds:
            memory = mmap.mmap(fds[0], info.size, mmap.MAP_SHARED, mmap.PROT_READ)
            os.close(fds[0])
        return Value(lease, info, *texts, extents, memory)

    def release(self, *leases):
        self.send(RELEASE, b"".join(struct.pack("<Q", n) for n in leases), count=len(leases))

    @staticmethod
    def put_body(k, size, value=b"", offset=0, model="", name="", tokens=0, expires=0, checksum=0):
        return (k + struct.pack("<QQQIQQ", size, checksum, offset, tokens, 0, expires) + struct.pack("<H", len(model)) + model.encode()
                + struct.pack("<H", len(name)) + name.encode() + value)

    def put(self, k, value, flags=0, **more):
        got, _, count, body, _ = self.ask(PUT, self.put_body(k, len(value), value, **more), flags)
        assert got == INFOS and count == 1
        return Info(body)

    def put_fd(self, k, fd, size, offset=0, flags=0, **more):
        got, _, count, body, _ = self.ask(PUT, self.put_body(k, size, offset=offset, **more), flags | FILE, fds=[fd])
        assert got == INFOS and count == 1
        return Info(body)

    def put_any(self, k, value, **more):
        if len(value) <= self.max_inline:
            return self.put(k, value, **more)
        with memory_file(value) as f:
            return self.put_fd(k, f.fileno(), len(value), **more)

    def remove(self, keys):
        got, _, _, body, _ = self.ask(REMOVE, b"".join(keys), count=len(keys))
        assert got == COUNT
        return struct.unpack("<I", body)[0]

    def pin(self, k, for_ms=FOREVER):
        got, _, _, body, _ = self.ask(PIN, k + struct.pack("<Q", for_ms))
        assert got == INFOS
        return Info(body)

    def changes(self):
        """Read one CHANGES: (reset, synced, [(key, tiers, size)])."""
        got, flags, count, _, body, _ = self.receive()
        assert got == CHANGES
        rows = []
        for i in range(count):
            row = body[48 * i:48 * i + 48]
            rows.append((row[:36], *struct.unpack("<IQ", row[36:])))
        return bool(flags & RESET), bool(flags & SYNCED), rows

    def ended(self):
        """Return the sentence with which the daemon ended the connection; "" without one."""
        got, _, _, _, body, _ = self.receive()
        if got is None:
            return ""
        assert got == FAILED
        assert self.receive()[0] is None
        return body[6:].decode()


def memory_file(value):
    f = os.fdopen(os.memfd_create("value"), "w+b")
    f.write(value)
    f.flush()
    return f


class Store:
    """A cgn-kvcached."""

    def __init__(self, folder, sections=None, **kv):
        self.dir = tempfile.mkdtemp(prefix="cgn-kv-")  # a Unix socket's path must be short
        self.uds, self.bulk = f"{self.dir}/s", f"{self.dir}/s.bulk"
        self.port, self.admin = free_port(), free_port()
        config = {"kv": {"ram": "64MiB", "uds": self.uds, "listen": f"127.0.0.1:{self.port}", "resp_listen": "", "transport": "off", "listen_admin": f"127.0.0.1:{self.admin}", "worker_threads": 2, **kv},
                  "log": {"level": "info", "format": "json"}}
        for section, keys in (sections or {}).items():
            config.setdefault(section, {}).update(keys)
        path = folder / "kv.toml"
        path.write_text(toml(config))
        self.process = Process(folder, "kvcached", "cgn-kvcached", "--config", path)
        self.wait()

    def wait(self):
        def ready():
            assert self.process.alive(), self.process.log()
            try:
                return ask(self.admin, "GET", "/readyz").status == 200
            except OSError:
                return False
        until(ready, "the store is ready")

    def restart(self):
        self.process.start()
        self.wait()

    def stats(self):
        return ask(self.admin, "GET", "/store").json()

    def close(self):
        trouble = self.process.trouble()
        if self.process.alive():
            self.process.stop()
        trouble = trouble or self.process.trouble()
        shutil.rmtree(self.dir, ignore_errors=True)
        assert not trouble, trouble
