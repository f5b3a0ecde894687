# SPDX-License-Identifier: Apache-2.0
"""Two routers with router.autoscaler and a real etcd: one decides, and after its kill -9 the other one does."""
import json
import os
import shutil
import threading

import pytest

from cluster import BUILD, ask, free_port, until
from several import Several
from test_etcd_cluster import PREFIX, Etcd

pytestmark = pytest.mark.skipif(not shutil.which("etcd") and not os.environ.get("CI"), reason="no etcd: apt-get install etcd-server etcd-client")
SCALER = {"enabled": True, "up_window": "1s", "down_window": "1s", "idle": "1h", "wake_time": "7s", "ttft": "0s", "itl": "0s"}


class World(Several):
    def begin(self):
        self.etcd = Etcd(self.folder)
        self.etcd.wait()
        self.common["cluster"] = {"state_backend": "etcd", "etcd_endpoints": [self.etcd.url], "lease": "2s"}
        for name in "abc":
            self.agent(name, free_port(), {"engine": {"managed": True, "model_path": "sim", "binary": str(BUILD / "src/sim/cgn-sim"),
                                                      "extra_args": ["--decode-ms", "20"], "stop_grace": "2s"}})
        self.routers(2, {"router.autoscaler": SCALER, "router.admission": {"max_concurrent_per_replica": 4}})

    def close(self):
        trouble = super().close()
        if hasattr(self, "etcd"):
            self.etcd.kill()
        return trouble

    def leaders(self):
        return [r for r in self.made if r.process.alive() and scaler(r)["leads"]]

    def orders(self):
        """Return the orders of both routers by their logs: (action, nodes)."""
        return [(e["action"], e["nodes"]) for r in self.made for e in r.process.events("router.scale") if "ordered" in e["then"]]

    def written(self):
        """Return how often etcd's document of wanted models was written."""
        found = json.loads(self.etcd.ctl("get", PREFIX + "models", "--prefix", "-w", "json")).get("kvs", [])
        return sum(kv["version"] for kv in found)


def scaler(router):
    return ask(router.admin_port, "GET", "/autoscaler").json()


def ready(router):
    return scaler(router)["models"][0]["ready"] if scaler(router)["models"] else None


@pytest.fixture
def world(tmp_path):
    with World(tmp_path) as w:
        w.begin()
        yield w


def test_one_router_decides_and_the_other_follows_it(world):
    until(lambda: len(world.leaders()) == 1, "one leads")
    [first] = world.leaders()
    [second] = [r for r in world.made if r is not first]
    until(lambda: ready(first) == 1, lambda: scaler(first))
    assert world.leaders() == [first] and not scaler(second)["decisions"]
    assert sorted(n for _, n in world.orders()) == sorted(set(n for _, n in world.orders())) and len(world.orders()) == 2
    assert world.written() == 2, "each order is written once"
    first.process.kill()
    until(lambda: world.leaders() == [second], lambda: scaler(second))
    threads = [threading.Thread(target=second.chat, args=(f"load {i}",), kwargs={"max_tokens": 150, "ignore_eos": True}) for i in range(8)]
    for t in threads:
        t.start()
    until(lambda: ready(second) >= 2, lambda: scaler(second))
    for t in threads:
        t.join()
    ups = [o for o in world.orders() if o[0] == "up"]
    assert ups and world.written() == len(world.orders()), (world.orders(), world.written())
