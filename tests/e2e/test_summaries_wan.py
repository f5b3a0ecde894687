# SPDX-License-Identifier: Apache-2.0
"""Four clusters whose ways are 40, 80 and 150 ms long, there and back, and lose one packet of a hundred."""
import contextlib

import pytest

from cluster import until
from test_quic_weather import REASON
from test_summaries import World
from wan_way import WanWay

pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")
WAYS_MS = {"b": 40, "c": 80, "d": 150}


class FarWorld(World):
    def link(self, x, y, **more):
        super().link(x, y, **more)
        way = self.ways[y] = self.stack.enter_context(contextlib.closing(WanWay(f"w{y}", ("127.0.0.1", self.gates[x, y]), 0.01, WAYS_MS[y] / 2000)))
        self.rows[x][f'peers."{y}"']["url"] = f"https://localhost:{way.port}"


@pytest.fixture
def world(tmp_path, request):
    with contextlib.ExitStack() as stack:
        w = FarWorld(stack, tmp_path)
        w.ways = {}
        yield w
        if getattr(request.node, "failed", False):
            print(*(c.logs() for c in w.c.values()), sep="\n")


@pytest.mark.slow
def test_prompts_go_where_their_prefix_is_over_long_ways_and_a_partition_loses_nothing(world):
    world.begin("b", "c", "d")
    for seed, name in enumerate("bcd", 1):
        world.warm(name, seed)
    for name in "bcd":
        world.knows(name, 100)
        assert world.peer("a", name)["rtt_ms"] >= WAYS_MS[name]
    world.hold()
    for seed, name in enumerate("bcd", 1):
        assert world.send(seed).headers["x-cgn-peer"] == name
    assert world.send(4).headers["x-cgn-peer"] == "b"  # cached nowhere: the nearest one
    world.ways["d"].wire.dark = True
    until(lambda: world.peer("a", "d")["state"] == "lost", "d is lost")
    for seed in (1, 2, 3):  # what only d has is computed where it takes least
        assert world.send(seed).headers["x-cgn-peer"] == ("b", "c", "b")[seed - 1]
    world.ways["d"].wire.dark = False
    world.met("a", "d")
    world.warm("d", 5)
    world.knows("d", 200)
    assert world.send(5).headers["x-cgn-peer"] == "d"
    until(lambda: all(w.wire.lost > 0 for w in world.ways.values()), "each way has lost packets")
