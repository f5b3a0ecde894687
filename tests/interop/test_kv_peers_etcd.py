# SPDX-License-Identifier: Apache-2.0
"""Stores that learn of each other from a real etcd: nodes that join, are cordoned, drain and leave, and an
etcd that is unreachable."""
import json

import pytest

from etcd_world import World, until
from kvbulk import key
from kvpeers import Peer, bootstrap

NODES, CORDON = "/cognitora/cognitora/nodes/", "/cognitora/cognitora/cordon/"


@pytest.fixture
def world(tmp_path):
    w = World(tmp_path)
    yield w
    w.close()


def node_json(p, **more):
    return json.dumps({"id": p.name, "address": "127.0.0.1:1", "kv": {"quicAddress": p.address, "rack": "r", "region": "eu"}, **more})


def test_stores_find_each_other_in_etcd(world, tmp_path):
    e = world.etcd()
    pki = bootstrap(tmp_path / "pki", "a", "b")
    member = {"cluster": {"state_backend": "etcd", "etcd_endpoints": [e.url]}}
    a, b = (Peer(tmp_path, pki, name, sections=member, rack="r", region="eu") for name in "ab")
    try:
        for p in (a, b):
            e.ctl("put", NODES + p.name, node_json(p))
        a.ready()
        b.ready()
        assert {n: p["distance"] for n, p in b.peers().items()} == {"a": "rack"}
        a.put(key("x"), b"value")
        b.hears(key("x"))
        assert b.get(key("x")) == b"value"
        for change, undo in ((("put", CORDON + "a", "true"), ("del", CORDON + "a")),
                             (("put", NODES + "a", node_json(a, draining=True)), ("put", NODES + "a", node_json(a))),
                             (("put", NODES + "a", '{"id":"a","address":"127.0.0.1:1"}'), ("put", NODES + "a", node_json(a))),
                             (("del", NODES + "a"), ("put", NODES + "a", node_json(a)))):
            e.ctl(*change)
            until(lambda: not b.peers(), lambda: f"{change}: {b.peers()}")
            e.ctl(*undo)
            b.ready()
        e.kill()
        until(lambda: b.process.events("state.stores_unknown"), "b notices that etcd is away")
        a.put(key("y"), b"value")
        b.hears(key("y"))
        assert b.get(key("y")) == b"value"
    finally:
        for p in (b, a):
            p.close()
