# SPDX-License-Identifier: Apache-2.0
"""Blocks that move between nodes under faults: bits that flip in memory and on SSD, peers that die or stop
during many large values, certificates that expire, stores that end. A value is always whole or missed."""
import contextlib
import signal
import threading
import time

import pytest

from cluster import WAIT_S, ask, scaled, until
from kvbulk import Bulk, Refused, key
from kvpeers import MIB, pattern, rotate


class Fetching:
    """Gets on threads of their own. |got|: the value by its name, or None for a clean miss."""

    def __init__(self, p, *names):
        self.p, self.got = p, {}
        self.threads = [threading.Thread(target=self.one, args=(name,)) for name in names]
        for t in self.threads:
            t.start()

    def one(self, name):
        try:
            self.got[name] = self.p.get(key(name))
        except Refused:
            self.got[name] = None

    def under_way(self, n=MIB):
        until(lambda: self.p.metric("cgn_kv_peer_bytes_total", direction="in") > n, lambda: f"{self.p.peers()} {self.p.process.log()[-2000:]}")
        return self

    def end(self):
        for t in self.threads:
            t.join(2 * WAIT_S)
        assert not any(t.is_alive() for t in self.threads)
        return self.got


def missed(p, k):
    with pytest.raises(Refused) as e:
        p.get(k)
    return e.value.sentence


def is_missed(p, k):
    try:
        p.get(k)
    except Refused:
        return True
    return False


def ssd_only(world, name, values, **kv):
    """Start a store that has |values| on its SSD and nothing in RAM."""
    p = world(name, ssd="512MiB", ssd_dir=str(world.folder / f"{name}-ssd"), ssd_admission="all", **kv)
    for k, v in values.items():
        p.put(key(k), v, model="m", tokens=16)
    until(lambda: p.stats()["ssd"]["blocks"] == len(values) and p.stats()["ssd_queue_bytes"] == 0, p.stats)
    assert p.process.stop() == 0
    p.restart()
    assert p.stats()["ram"]["blocks"] == 0 and p.stats()["ssd"]["blocks"] == len(values)
    return p


def slabs(folder, piece):
    """Return the place of |piece| in the files below |folder|."""
    return [(f, at) for f in sorted(folder.rglob("*")) if f.is_file() and (at := f.read_bytes().find(piece)) >= 0]


def damage(files):
    for path, at in files:
        with path.open("r+b") as f:
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ 4]))


# ---- values that a peer has on SSD only ----

def test_what_a_peer_has_on_ssd_only_is_fetched(world):
    values = {f"block {i}": pattern(n, i) for i, n in enumerate((1, 900, 65536, MIB, 20 * MIB + 77))}
    a = ssd_only(world, "a", values)
    b = world("b", [a])
    b.ready()
    for name, value in values.items():
        b.hears(key(name))
        assert b.get(key(name)) == value
        assert b.get(key(name), peers=False) == value
    assert b.metric("cgn_kv_peer_fetch_seconds_count", outcome="hit") == len(values)
    assert a.stats()["ssd"]["hits"] == len(values)


def test_a_slab_is_damaged(world):
    values = {"sound": pattern(3 * MIB, 1), "bad": pattern(3 * MIB, 2), "gone": pattern(3 * MIB, 3)}
    a = ssd_only(world, "a", values, rack="r")
    c = world("c")
    c.put(key("bad"), values["bad"])
    b = world("b", [a, c], rack="r")  # a is nearer
    b.ready(2)
    for name in values:
        b.hears(key(name))
    for name in ("bad", "gone"):
        files = slabs(world.folder / "a-ssd", values[name][2 * MIB:2 * MIB + 64])
        assert files
        damage(files)
    until(lambda: all(p["blocks"] > 0 for p in b.peers().values()), b.peers)
    assert b.get(key("sound")) == values["sound"]
    assert b.get(key("bad")) == values["bad"]  # the value of c
    missed(b, key("gone"))
    assert a.stats()["corrupt"] == 2
    assert b.metric("cgn_kv_peer_corrupt_total") == 0  # no part of it left a
    assert c.metric("cgn_kv_peer_bytes_total", direction="out") == 3 * MIB
    with Bulk(b.bulk) as bulk:
        assert bulk.lookup([key("gone")])[0].tiers == 0


# ---- a bit flips in the sender's memory ----

def test_a_bit_flips_in_memory_before_it_is_sent(world):
    value = pattern(3 * MIB)
    a, c = world("a", rack="r"), world("c")
    b = world("b", [a, c], rack="r")
    for p in (a, c):
        p.put(key("x"), value)
    a.put(key("y"), pattern(3 * MIB, 2))
    b.ready(2)
    b.hears(key("x"))
    b.hears(key("y"))
    until(lambda: all(p["blocks"] > 0 for p in b.peers().values()), b.peers)
    for v in (value[MIB:MIB + 64], pattern(3 * MIB, 2)[-64:]):
        places = a.places(v)
        assert len(places) == 1
        a.flip(places)
    assert b.get(key("x")) == value
    missed(b, key("y"))
    assert a.stats()["corrupt"] == 2  # a noticed it itself
    assert b.metric("cgn_kv_peer_corrupt_total") == 0
    assert c.metric("cgn_kv_peer_bytes_total", direction="out") == len(value)


@pytest.mark.parametrize("other", [True, False], ids=["another has it", "nobody else has it"])
def test_a_bit_flips_in_memory_while_it_is_sent(world, other):
    value = pattern(24 * MIB)
    a = world("a", egress_limit="16MiB", rack="r", ram="128MiB")  # slow enough for unsent bytes to change
    c = world("c", ram="128MiB") if other else None
    b = world("b", [p for p in (a, c) if p], rack="r", ram="128MiB")
    for p in (a, c):
        if p:
            p.put(key("x"), value)
    b.ready(2 if other else 1)
    b.hears(key("x"))
    until(lambda: all(p["blocks"] > 0 for p in b.peers().values()), b.peers)
    before = b.used()
    places = a.places(value[-64:])
    assert len(places) == 1
    if other:
        c.process.signal(signal.SIGSTOP)  # else b asks c as soon as a sends nothing for some milliseconds, and needs no more of a
    f = Fetching(b, "x").under_way()
    a.flip(places)
    until(lambda: b.metric("cgn_kv_peer_corrupt_total") == 1, b.peers)
    if other:
        c.process.signal(signal.SIGCONT)
    assert f.end() == {"x": value if other else None}
    assert b.metric("cgn_kv_peer_corrupt_total") == 1
    [said] = b.process.events("kvpeer.corrupt")
    assert said["peer"] == a.address
    assert b.peers()[a.address]["corrupt"] == 1
    if not other:
        until(lambda: b.used() == before, "what was set aside is free again")
        with Bulk(b.bulk) as bulk:
            assert bulk.lookup([key("x")])[0].tiers == 0
        missed(b, key("x"))  # a checks its copy now
        assert a.stats()["corrupt"] == 1


# ---- large values, several at once ----

@pytest.mark.slow
@pytest.mark.both
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["is killed", "is stopped"])
@pytest.mark.parametrize("other", [True, False], ids=["another has them", "nobody else has them"])
def test_a_peer_of_many_large_values(world, how, other):
    names = [f"large {i}" for i in range(4)]
    size = scaled(64 * MIB, 16 * MIB)
    one = pattern(size)
    values = {name: name.encode().ljust(32) + one[32:] for name in names}
    a = world("a", ram="512MiB", egress_limit="64MiB", rack="r")
    c = world("c", ram="512MiB") if other else None
    b = world("b", [p for p in (a, c) if p], ram="768MiB", rack="r")
    for name in names:
        for p in (a, c):
            if p:
                p.put(key(name), values[name])
    b.ready(2 if other else 1)
    for name in names:
        b.hears(key(name))
    until(lambda: all(p["blocks"] == len(names) for p in b.peers().values()), b.peers)
    before = b.used()
    f = Fetching(b, *names).under_way(8 * MIB)
    a.process.signal(how)
    got = f.end()
    for name in names:
        assert got[name] == (values[name] if other else None), name
    until(lambda: b.peers()[a.address]["state"] != "ready", b.peers)
    if other:
        assert c.metric("cgn_kv_peer_bytes_total", direction="out") < len(names) * size  # received bytes were not requested again
    else:
        until(lambda: b.used() == before, "what was set aside is free again")
    assert b.metric("cgn_kv_peer_corrupt_total") == 0
    if how == signal.SIGKILL:
        a.process.wait()
        a.restart()
    else:
        a.process.signal(signal.SIGCONT)
    b.ready(2 if other else 1)
    a.put(key("after"), b"value")
    b.hears(key("after"))
    assert b.get(key("after")) == b"value"


# ---- certificates ----

def test_a_certificate_expires(world):
    a = world("a")
    b = world("b", [a])
    b.ready()
    a.put(key("x"), pattern(MIB))
    b.hears(key("x"))
    ends = time.time() + 4
    rotate(world.pki, "b", valid=(-60, ends - time.time()))
    b.process.signal(signal.SIGHUP)
    until(lambda: b.process.events("svc.reloaded"), b.process.log)
    until(lambda: time.time() > ends + 1, "it has expired")
    # an open connection stays, and so do gets
    assert b.get(key("x")) == pattern(MIB)
    # a new connection is refused, whichever side dials
    a.process.kill()
    a.restart()
    c = world("c", [b])
    until(lambda: "expired" in b.peers()[a.address].get("why", ""), b.peers)
    until(lambda: "expired" in c.peers()[b.address].get("why", ""), c.peers)
    for p in (a, c):
        until(lambda p=p: p.metric("cgn_quic_handshakes_total", outcome="failed") > 0, p.peers)
    assert "expired" in ask(a.admin, "GET", "/peers").json()["last_refusal"]
    # an expired certificate does not replace a valid one
    rotate(world.pki, "a", valid=(-7200, -3600))
    a.process.signal(signal.SIGHUP)
    until(lambda: "expired" in str(a.process.events("kvcached.tls_reload")), a.process.log)
    # a fresh certificate does, without a restart
    rotate(world.pki, "b")
    b.process.signal(signal.SIGHUP)
    b.ready()
    c.ready()
    a.put(key("y"), b"value")
    b.hears(key("y"))
    assert b.get(key("y")) == b"value"


# ---- stores that end ----

def test_a_stopped_store_sends_what_it_promised(world):
    names = ["1", "2", "3"]
    values = {n: pattern(12 * MIB, int(n)) for n in names}
    a = world("a", egress_limit="24MiB", drain_timeout="30s")
    b = world("b", [a], ram="128MiB")
    for n in names:
        a.put(key(n), values[n])
    late = [f"late {i}" for i in range(30)]
    for n in late:
        a.put(key(n), b"value")
    b.ready()
    for n in (*names, *late):
        b.hears(key(n))
    f = Fetching(b, *names).under_way()
    a.process.signal(signal.SIGTERM)
    until(lambda: a.process.events("svc.drain"), a.process.log)
    until(lambda: is_missed(b, key(late.pop())), "the end is under way", step_s=0.1)  # b hears of it a moment after the log
    missed(b, key(late.pop()))  # no new fetch
    assert f.end() == values
    assert a.process.wait() == 0


def test_a_stopped_store_hands_over_what_it_fetches(world):
    names = ["1", "2", "3"]
    values = {n: pattern(12 * MIB, int(n)) for n in names}
    a = world("a", egress_limit="24MiB")
    b = world("b", [a], ram="128MiB", drain_timeout="30s")
    for n in names:
        a.put(key(n), values[n])
    b.ready()
    for n in names:
        b.hears(key(n))
    f = Fetching(b, *names).under_way()
    b.process.signal(signal.SIGTERM)
    assert f.end() == values
    assert b.process.wait() == 0


def test_both_end_at_once_in_the_midst_of_it(world):
    names = ["1", "2", "3"]
    a = world("a", egress_limit="8MiB", drain_timeout="200ms")
    b = world("b", [a], drain_timeout="200ms", ram="128MiB")
    for n in names:
        for p, m in ((a, n), (b, n + " of b")):
            p.put(key(m), pattern(8 * MIB, int(n)))
    b.ready()
    for n in names:
        b.hears(key(n))
    done = []

    def one(n):
        with contextlib.suppress(Refused, AssertionError, OSError):
            assert b.get(key(n)) == pattern(8 * MIB, int(n))
        done.append(n)
    threads = [threading.Thread(target=one, args=(n,)) for n in names]
    for t in threads:
        t.start()
    until(lambda: b.metric("cgn_kv_peer_bytes_total", direction="in") > MIB, "bytes come")
    for p in (a, b):
        p.process.signal(signal.SIGTERM)
    assert [p.process.wait() for p in (a, b)] == [0, 0]
    for t in threads:
        t.join(WAIT_S)
    assert sorted(done) == names
