# SPDX-License-Identifier: Apache-2.0
"""A way for TCP between two programs of this machine that is as long and as bad as one between continents: each
connection is one of two real IP stacks, in two network namespaces, with the wire of test_quic_weather between them."""
import contextlib
import ctypes
import os
import selectors
import socket
import threading

from test_quic_weather import Wire

CLONE_NEWNET = 0x40000000
NEAR, FAR, PORT = 0, 1, 7443


class WanWay:
    """Connections to self.port of this machine reach |to|, host and port, by the wire."""

    def __init__(self, tag, to, loss, delay):
        self.to, self.pairs = to, []
        self.wire = Wire(loss=loss, delay=delay, tag=tag)
        self.far = self.within(FAR, lambda: socket.create_server(("10.77.0.2", PORT), backlog=64))
        self.front = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.front.getsockname()[1]
        for run in (self.enter, self.leave):
            threading.Thread(target=run, daemon=True).start()

    def within(self, side, make):
        """Return what |make| returns in the namespace of that side of the wire."""
        got = []

        def run():
            fd = os.open(f"/run/netns/{self.wire.names[side]}", os.O_RDONLY)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNET) == 0:  # of this thread alone
                    got.append(make())
            except OSError as e:
                got.append(e)
            finally:
                os.close(fd)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if not got or isinstance(got[0], OSError):
            raise got[0] if got else OSError("no namespace")
        return got[0]

    def enter(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.cross, args=(self.front.accept()[0],), daemon=True).start()

    def cross(self, near):
        try:
            far = self.within(NEAR, lambda: socket.create_connection(("10.77.0.2", PORT), timeout=30))
        except OSError:
            near.close()
            return
        self.pump(near, far)

    def leave(self):
        with contextlib.suppress(OSError):
            while True:
                far = self.far.accept()[0]
                try:
                    threading.Thread(target=self.pump, args=(far, socket.create_connection(self.to)), daemon=True).start()
                except OSError:
                    far.close()

    @staticmethod
    def pump(a, b):
        """Carry bytes both ways until one side ends."""
        for s in (a, b):
            s.settimeout(None)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with selectors.DefaultSelector() as waits, a, b, contextlib.suppress(OSError):
            waits.register(a, selectors.EVENT_READ, b)
            waits.register(b, selectors.EVENT_READ, a)
            while True:
                for key, _ in waits.select():
                    got = key.fileobj.recv(65536)
                    if not got:
                        return
                    key.data.sendall(got)

    def close(self):
        for s in (self.front, self.far):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()
        self.wire.close()
