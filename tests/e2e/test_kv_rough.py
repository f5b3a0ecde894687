# SPDX-License-Identifier: Apache-2.0
"""Blocks over a path that loses, delays, reorders, repeats and damages datagrams, or that breaks."""
import contextlib
import random
import threading

import pytest

from cluster import scaled, until
from kvbulk import PEERS, Bulk, Refused, key
from kvpeers import Peer, bootstrap
from rough_way import RoughWay

MIB = 1 << 20


def pattern(n, seed=1):
    return random.Random(seed).randbytes(n)


@pytest.fixture
def world(tmp_path):
    pki = bootstrap(tmp_path / "pki", "a", "b", "c")
    with contextlib.ExitStack() as stack:
        def start(name, peers=(), **kv):
            p = Peer(tmp_path, pki, name, peers, **kv)
            stack.callback(p.close)
            return p

        def rough(to, **fate):
            way = RoughWay(("127.0.0.1", to.quic), **fate)
            stack.callback(way.end)
            return way
        start.rough = rough
        yield start


@pytest.mark.parametrize("fate", [
    {"loss": 0.03},
    {"delay_s": (0.0, 0.004)},  # reorders, too
    {"loss": 0.01, "delay_s": (0.001, 0.003), "repeat": 0.05, "damage": 0.01},
], ids=["loss", "reordering", "everything"])
@pytest.mark.both
def test_every_byte_comes_over_a_rough_way(world, fate):
    a = world("a")
    way = world.rough(a, **fate)
    b = world("b", [way])
    sizes = [0, 1, 1199, 65536, 300001] * scaled(4, 1) + [3 * MIB]
    for i, n in enumerate(sizes):
        a.put(key(f"{i}"), pattern(n, i))
    b.ready()
    for i, n in enumerate(sizes):
        b.hears(key(f"{i}"))
        assert b.get(key(f"{i}")) == pattern(n, i)
    assert fate.get("loss", 0) == 0 or way.lost > 0
    assert fate.get("damage", 0) == 0 or way.damaged > 0
    assert b.metric("cgn_kv_peer_corrupt_total") == 0  # QUIC let no damaged byte through


def test_over_a_long_way_a_block_is_fetched_only_where_that_beats_computing_it(world):
    a = world("a", region="virginia")
    way = world.rough(a, delay_s=(0.04, 0.04))
    b = world("b", [way], region="frankfurt")
    a.put(key("x"), pattern(65536))
    b.ready()
    b.hears(key("x"))
    with Bulk(b.bulk) as c:
        with pytest.raises(Refused):
            c.get(key("x"), PEERS, budget_ms=60)  # less than a round trip, before anything was fetched
        assert b.metric("cgn_kv_peer_bytes_total", direction="in") == 0
        assert c.get(key("x"), PEERS, budget_ms=60_000).read() == pattern(65536)


@pytest.mark.parametrize("other", [True, False], ids=["another has it", "nobody else has it"])
def test_the_way_ends_in_the_middle(world, other):
    value = pattern(24 * MIB)
    a = world("a", ram="256MiB", rack="r", egress_limit="32MiB")
    a.put(key("x"), value)
    way = world.rough(a)
    peers = [way]
    if other:
        c = world("c", ram="256MiB")
        c.put(key("x"), value)
        peers.append(c)
    b = world("b", peers, ram="256MiB", rack="r")
    b.ready(len(peers))
    b.hears(key("x"))
    until(lambda: all(p["blocks"] == 1 for p in b.peers().values()), b.peers)
    before, got = b.used(), []

    def get():
        try:
            got.append(b.get(key("x")))
        except Refused:
            got.append(None)
    t = threading.Thread(target=get)
    t.start()
    until(lambda: b.metric("cgn_kv_peer_bytes_total", direction="in") > MIB or got, "bytes come")
    way.close_way()
    t.join(60)
    assert got == [value if other else None]
    if not other:
        until(lambda: b.used() == before, "what was set aside is free again")
    until(lambda: b.peers()[way.address]["state"] != "ready", b.peers)
