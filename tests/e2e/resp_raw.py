# SPDX-License-Identifier: Apache-2.0
"""A block store and a hand-written RESP client, for input that no well-behaved client sends."""
import pathlib
import socket

from cluster import WAIT_S, Process, ask, free_port, toml, until


class Store:
    """cgn-kvcached with a RESP port on TCP and on a Unix socket."""

    def __init__(self, folder, ram="256MiB", workers=2, **keys):
        self.folder = pathlib.Path(folder)
        self.port, self.admin, uds = free_port(), free_port(), self.folder / "kv.sock"
        self.uds = f"{uds}.resp"
        kv = {"ram": ram, "worker_threads": workers, "uds": str(uds), "listen": f"127.0.0.1:{free_port()}", "resp_listen": f"127.0.0.1:{self.port}",
              "listen_admin": f"127.0.0.1:{self.admin}", **keys}
        (self.folder / "kv.toml").write_text(toml({"log": {"format": "json"}, "kv": kv}))
        self.process = Process(self.folder, "kvcached", "cgn-kvcached", "--config", self.folder / "kv.toml")
        until(lambda: self.process.events("svc.ready") or not self.process.alive(), self.process.log)
        assert self.process.alive(), self.process.log()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        status = self.process.stop()
        trouble = self.process.trouble()
        assert kind is not None or (status == 0 and not trouble), trouble or self.process.log()

    def connect(self, tcp=False, **kw):
        return Raw(("127.0.0.1", self.port) if tcp else self.uds, **kw)

    def tier(self):
        return ask(self.admin, "GET", "/store").json()["ram"]


class Raw:
    def __init__(self, addr, wait_s=WAIT_S):
        self.s = socket.socket(socket.AF_UNIX if isinstance(addr, str) else socket.AF_INET)
        self.s.settimeout(wait_s)
        self.s.connect(addr)
        self.f = self.s.makefile("rb", buffering=1 << 16)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.f.close()
        self.s.close()

    def send(self, data):
        self.s.sendall(data)

    def read(self):
        """Return one answer: bytes, int, None, a list, or Wrong."""
        line = self.f.readline()
        assert line.endswith(b"\r\n"), f"the connection ended: {line!r}"
        kind, text = line[:1], line[1:-2]
        if kind == b"+":
            return text
        if kind == b"-":
            return Wrong(text.decode())
        if kind == b":":
            return int(text)
        if kind == b"_":
            return None
        if kind in (b"$", b"="):
            return None if text == b"-1" else self.exactly(int(text) + 2)[:-2]
        if kind == b"*":
            return None if text == b"-1" else [self.read() for _ in range(int(text))]
        if kind == b"%":
            return {self.read(): self.read() for _ in range(int(text))}
        raise AssertionError(line)

    def exactly(self, n):
        data = self.f.read(n)
        assert len(data) == n, "the connection ended"
        return data

    def ask(self, *args):
        self.send(command(*args))
        return self.read()

    def at_end(self):
        """Return whether the peer closed, whatever it sent before."""
        try:
            while self.s.recv(65536):
                pass
            return True
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def rest(self):
        """Return all bytes until the peer closes."""
        got = b""
        try:
            while more := self.s.recv(65536):
                got += more
        except ConnectionResetError:
            pass
        return got


class Wrong(str):
    """An error answer."""


def command(*args):
    args = [a if isinstance(a, (bytes, bytearray)) else str(a).encode() for a in args]
    return b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a) for a in args)
