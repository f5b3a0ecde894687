# SPDX-License-Identifier: Apache-2.0
"""Everything at once, for a while: all ports, peers, both tiers and noise, compared with a model.
$CGN_SOAK_SECONDS makes it longer."""
import collections
import os
import random
import re
import socket
import threading
import time

import pytest

import kvbulk
from cluster import SANITIZER, until
from kvports import GRPC_PUT_MAX, PORTS, Gone

SECONDS = float(os.environ.get("CGN_SOAK_SECONDS", "5"))
MIB = 1 << 20
RAM, SSD = 48 * MIB, 64 * MIB
# Beside the arena, as in docs/fleet/kv/README.md: RocksDB 48 MiB; changes and tables 4; 124 bytes for each of the few entries; a connection's buffers
# (a megabyte of an unfinished command, two of answers) for a dozen connections. The memory that malloc keeps for each thread is included.
ANON = 160 * MIB
KEYS = 60
SIZES = [0, 1, 900, 1500, 5000, 33000, GRPC_PUT_MAX, 200_000, MIB, 3 * MIB + 5]


def value(name, version):
    dice = random.Random(f"{name} {version}")
    return dice.randbytes(dice.choice(SIZES[:7] if version % 3 else SIZES))


class Client:
    """A client that owns some keys, which no other client writes: a read returns the last value or nothing.
    Each act goes through a random port."""

    def __init__(self, store, seed, stop):
        self.store, self.seed, self.stop, self.dice = store, seed, stop, random.Random(seed)
        self.may = {}  # name: versions, one of which may be there
        self.ports, self.wrong, self.done, self.refused, self.version = {}, [], 0, collections.Counter(), 0
        self.thread = threading.Thread(target=self.run)

    def port(self):
        kind = self.dice.choice(PORTS)
        if kind not in self.ports:
            self.ports[kind] = kind(self.store)
        return kind, self.ports[kind]

    def run(self):
        while not self.stop.is_set() and not self.wrong:
            kind, c = self.port()
            name = f"{self.seed}/{self.dice.randrange(KEYS)}"
            try:
                self.act(kind, c, name)
                self.done += 1
            except Gone as e:  # too many requests at once; a connection that ended is opened again
                self.refused[f"{kind.name}: {e}"] += 1
                self.ports.pop(kind).close()
            except Exception as e:  # noqa: BLE001 the thread's error is stored
                self.wrong.append(f"{kind.name} {name}: {e!r}")
        for c in self.ports.values():
            c.close()

    def act(self, kind, c, name):
        what = self.dice.random()
        if what < 0.35:
            self.version += 1
            v = value(name, self.version)
            if kind.name == "grpc" and len(v) > GRPC_PUT_MAX:
                return
            before, self.may[name] = self.may.get(name, set()), self.may.get(name, set()) | {self.version}
            c.put(name, v)
            self.may[name] = {self.version}
            assert before is not None
        elif what < 0.45:
            c.remove(name)
            self.may[name] = set()
        else:
            got = c.get(name)
            if got is not None and not any(got == value(name, v) for v in self.may.get(name, ())):
                self.wrong.append(f"{kind.name} {name}: {len(got)} bytes that are none of {self.may.get(name)}")


def fetches(a, b, stop, seen, wrong):
    """A value that is put once on one node comes whole on the other, or not at all."""
    n = 0
    while not stop.is_set():
        n += 1
        name = f"once {n}"
        try:
            a.put(kvbulk.key(name), value(name, n))
            for _ in range(20):
                with kvbulk.Bulk(b.bulk) as c:
                    v = c.get(kvbulk.key(name), kvbulk.PEERS)
                    if v.read() != value(name, n):
                        wrong.append(name)
                    seen.append(name)
                break
        except kvbulk.Refused:
            time.sleep(0.02)


def noise(store, stop):
    dice = random.Random(3)
    while not stop.is_set():
        for family, kind, at in ((socket.AF_UNIX, socket.SOCK_STREAM, store.uds), (socket.AF_UNIX, socket.SOCK_SEQPACKET, store.bulk),
                                 (socket.AF_UNIX, socket.SOCK_STREAM, store.uds + ".resp"), (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", store.port)),
                                 (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", store.quic))):
            with socket.socket(family, kind) as s:
                s.settimeout(5)
                try:
                    s.connect(at)
                    s.send(dice.choice([b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""]) + dice.randbytes(dice.randrange(1, 1500)))
                except OSError:
                    pass
        time.sleep(0.01)


def memory(store, name):
    with open(f"/proc/{store.process.pid}/status") as f:
        return int(re.search(rf"^{name}:\s+(\d+) kB", f.read(), re.M).group(1)) * 1024


@pytest.mark.both
@pytest.mark.threads
def test_soak(world):
    a = world("a", ram=str(RAM), ssd=str(SSD), ssd_dir=str(world.folder / "ssd"), ssd_admission="all")
    b = world("b", [a], ram="32MiB", worker_threads=1)
    b.ready()
    stop, seen, wrong = threading.Event(), [], []
    clients = [Client(a, i, stop) for i in range(5)]
    threads = [c.thread for c in clients] + [threading.Thread(target=fetches, args=(a, b, stop, seen, wrong)), threading.Thread(target=noise, args=(a, stop))]
    for t in threads:
        t.start()
    end, most = time.monotonic() + SECONDS, {"RssAnon": 0, "RssShmem": 0}
    try:
        while (time.monotonic() < end or sum(c.done for c in clients) < 300 or not seen) and not wrong and not any(c.wrong for c in clients):
            st = a.stats()
            for tier, budget in (("ram", RAM), ("ssd", SSD)):
                if st[tier]["bytes"] > budget or st[tier]["budget_bytes"] > budget:
                    wrong.append(f"over the budget: {st}")
            most = {name: max(n, memory(a, name)) for name, n in most.items()}
            time.sleep(0.05)
    finally:
        stop.set()
        for t in threads:
            t.join()
    print({"acts": sum(c.done for c in clients), "refused": sum((c.refused for c in clients), collections.Counter()), "fetched": len(seen), **{k: v >> 20 for k, v in most.items()}})
    assert not wrong and not any(c.wrong for c in clients), wrong + [w for c in clients for w in c.wrong]
    assert most["RssShmem"] <= RAM
    assert SANITIZER or most["RssAnon"] <= ANON, most
    assert a.stats()["corrupt"] == b.stats()["corrupt"] == 0
    until(lambda: a.process.descriptors() < 150, "connections are closed")
    # No lease of a client that has left is held.
    until(lambda: emptied(a, clients), a.stats)


def emptied(a, clients):
    with kvbulk.Bulk(a.bulk) as c:
        for client in clients:
            c.remove([kvbulk.key(f"{client.seed}/{i}") for i in range(KEYS)])
        _, _, rows = True, True, []
        c.send(kvbulk.WATCH)
        synced = False
        while not synced:
            _, synced, more = c.changes()
            rows += more
    with kvbulk.Bulk(a.bulk) as c:
        keys = [row[0] for row in rows if row[1]]
        for at in range(0, len(keys), 1000):
            c.remove(keys[at:at + 1000])
    return a.stats()["ram"]["bytes"] == 0 and a.stats()["ssd"]["blocks"] == 0
