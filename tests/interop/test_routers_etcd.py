# SPDX-License-Identifier: Apache-2.0
"""Three routers that learn of six nodes from Debian's etcd, and of each other's load from the nodes' agents."""
import os
import shutil
import threading

import pytest

from cluster import until
from several import Several, Spread
from test_etcd_cluster import Etcd

NODES = "abcdef"
pytestmark = pytest.mark.skipif(not shutil.which("etcd") and not os.environ.get("CI"), reason="no etcd: apt-get install etcd-server etcd-client")


class World(Several):
    def begin(self):
        self.etcd = Etcd(self.folder)
        self.etcd.wait()
        self.common["cluster"] = {"state_backend": "etcd", "etcd_endpoints": [self.etcd.url]}
        for name in NODES:
            self.node(name, "--prefill-tokens-per-s", "4000", "--decode-ms", "15")
        self.routers(3)

    def close(self):
        trouble = super().close()
        if hasattr(self, "etcd"):
            self.etcd.kill()
        return trouble


@pytest.fixture
def world(tmp_path):
    with World(tmp_path) as w:
        w.begin()
        yield w


def test_load_is_spread_as_by_one_and_a_dead_router_is_forgotten(world):
    one, two, three = world.made
    alone = Spread([one], 12, 8, "alone").run()
    shared = Spread(world.made, 12, 8, "shared").run()
    print("busiest node's requests, fullest node's requests under way, over the mean: one router", alone, "three", shared)
    assert shared[0] <= 1.35 * alone[0], (alone, shared)
    assert shared[1] <= 1.35 * alone[1], (alone, shared)  # 1.1 as measured; routers without knowledge of each other: half as much again

    def load(router, n):
        def client(i):
            try:
                router.chat(f"long {router.http_port} {i}", max_tokens=400)
            except OSError:
                pass  # the process was killed
        threads = [threading.Thread(target=client, args=(i,)) for i in range(n)]
        for t in threads:
            t.start()
        return threads
    threads = load(one, 9) + load(two, 5)
    until(lambda: sum(three.others().values()) == 14, lambda: f"all are known: {three.others()}")
    until(lambda: sum(two.others().values()) == 9, lambda: f"those of one: {two.others()}")
    one.process.kill()
    until(lambda: three.others() == two.inflight() and not any(two.others().values()), lambda: f"the truth: {three.others()} {two.inflight()}")
    for t in threads:
        t.join()
    until(lambda: not any(three.others().values()), "nothing is left")
