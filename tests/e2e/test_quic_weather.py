# SPDX-License-Identifier: Apache-2.0
"""QUIC between two network namespaces with real IP stacks. The wire between them is a pair of TUN devices and
a thread that delays, loses and swaps packets: every kernel has TUN devices, few have the netem scheduler."""
import heapq
import json
import os
import pathlib
import random
import re
import select
import struct
import subprocess
import threading
import time

import pytest

BUILD = pathlib.Path(os.environ.get("CGN_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
PEER = BUILD / "quic_peer"
WAIT_S = 120
MTU = 1500
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000


def ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True)


def why_not():
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"cgnq{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except (OSError, subprocess.CalledProcessError) as e:
        return f"no network namespaces or no TUN here: {e}"
    return None


REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


class Wire(threading.Thread):
    """Two namespaces, 10.77.0.1 and 10.77.0.2, and the faults between them."""

    def __init__(self, loss=0.0, delay=0.0, swap=0.0, tag="q"):
        super().__init__(daemon=True)
        self.loss, self.delay, self.swap = loss, delay, swap
        self.rng, self.dark, self.stop, self.carried, self.lost = random.Random(4711), False, False, 0, 0
        self.names = [f"cgn{tag}{os.getpid()}{side}" for side in "ab"]
        self.fds = []
        for i, name in enumerate(self.names):
            ip("netns", "add", name)
            self.fds.append(self.tun(name, i + 1))
        self.start()

    @staticmethod
    def tun(ns, host):
        import fcntl
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", ns[-15:].encode(), IFF_TUN | IFF_NO_PI))
        dev = ns[-15:]
        ip("link", "set", dev, "netns", ns)
        ip("-n", ns, "link", "set", dev, "mtu", str(MTU), "txqueuelen", "2000", "up")
        ip("-n", ns, "link", "set", "lo", "up")
        ip("-n", ns, "addr", "add", f"10.77.0.{host}/24", "dev", dev)
        return fd

    def run(self):
        queue, n = [], 0
        while not self.stop:
            wait = max(0.0, min(0.05, queue[0][0] - time.monotonic())) if queue else 0.05
            for fd in select.select(self.fds, [], [], wait)[0]:
                for _ in range(64):
                    try:
                        p = os.read(fd, 65536)
                    except BlockingIOError:
                        break
                    self.carried += 1
                    if self.dark or self.rng.random() < self.loss:
                        self.lost += 1
                        continue
                    late = self.delay * (1.5 if self.rng.random() < self.swap else 1.0)
                    n += 1
                    heapq.heappush(queue, (time.monotonic() + late, n, self.fds[1 - self.fds.index(fd)], p))
            now = time.monotonic()
            while queue and queue[0][0] <= now:
                _, _, to, p = heapq.heappop(queue)
                try:
                    os.write(to, p)
                except OSError:
                    self.lost += 1  # as a full queue would

    def close(self):
        self.stop = True
        self.join()
        for fd in self.fds:
            os.close(fd)
        for name in self.names:
            ip("netns", "del", name)

    def argv(self, side, *args):
        return ["ip", "netns", "exec", self.names[side], str(PEER), *map(str, args)]


@pytest.fixture
def wire(request):
    w = Wire(**getattr(request, "param", {}))
    yield w
    w.close()


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    d = tmp_path_factory.mktemp("quic")
    subprocess.run([PEER, "certs", d], check=True)
    return d


class Server:
    def __init__(self, wire, certs, addr="10.77.0.1:7091", *more):
        self.p = subprocess.Popen(wire.argv(0, "serve", addr, certs, "test/1", *more), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.p.stdout.readline().startswith("listening ")

    def end(self):
        out, _ = self.p.communicate("", timeout=WAIT_S)
        assert self.p.returncode == 0
        return out


def fetch(wire, certs, size, streams, rounds, cc="cubic"):
    return subprocess.Popen(wire.argv(1, "fetch", "10.77.0.1:7091", certs, "test/1", size, streams, rounds, cc),
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(p):
    out, err = p.communicate(timeout=WAIT_S)
    assert p.returncode == 0, err
    return json.loads(out)


WEATHERS = [{}, {"loss": 0.01, "delay": 0.01}, {"loss": 0.05}, {"delay": 0.01, "swap": 0.1}, {"loss": 0.03, "delay": 0.003, "swap": 0.05}]


@pytest.mark.parametrize("wire", WEATHERS, indirect=True, ids=lambda w: "-".join(f"{k}{v}" for k, v in w.items()) or "calm")
@pytest.mark.parametrize("cc", ["cubic", "bbr"])
def test_blocks_arrive_whole(wire, certs, cc):
    s = Server(wire, certs, "10.77.0.1:7091", "plain", cc)
    got = result(fetch(wire, certs, 1 << 20, 4, 2, cc))
    out = s.end()
    print(json.dumps(got), out)
    assert got["streams"] == 4 and "accepted=1 failed=0" in out
    assert wire.loss == 0 or wire.lost > 0


def test_any_address_answers_from_the_one_that_was_asked(wire, certs):
    ip("-n", wire.names[0], "addr", "add", "10.77.0.9/24", "dev", wire.names[0][-15:])
    s = Server(wire, certs, "0.0.0.0:7091", "retry")
    got = result(fetch(wire, certs, 100000, 3, 3))
    assert got["rounds"] == 3
    assert int(re.search(r"retries=(\d+)", s.end())[1]) >= 1  # a packet that is sent again is answered again


def test_a_peer_that_dies_in_the_middle_is_an_error(wire, certs):
    s = Server(wire, certs)
    f = fetch(wire, certs, 60 << 20, 4, 1)
    time.sleep(0)  # the kill may come at any moment; none is special
    s.p.kill()
    s.p.wait()
    _, err = f.communicate(timeout=WAIT_S)
    assert f.returncode == 1 and err.startswith("quic_peer: ")
    s.p.stdin.close()
    s.p.stdout.close()
