# SPDX-License-Identifier: Apache-2.0
"""What a token takes at two other clusters, measured there, decides where a request leaves for."""
import itertools
import json

import pytest

from cluster import ask, until
from test_energy import LIBRARY, Gpu
from test_kv_events import endpoints
from test_summaries import ENGINE, World, world  # noqa: F401

ABOVE_IDLE = {"b": 3, "c": 0.1}  # times what an H100 takes beyond 120 W


class Powered(World):
    """Engines on GPUs whose counters the agents read; those of b take much more power."""

    def power(self, monkeypatch, folder):
        self.gpus, self.folder_, self.patch = {}, folder, monkeypatch

    def engine(self, name):
        g = self.gpus[name] = Gpu(self.folder_ / f"gpu-{name}")
        g.above_idle = ABOVE_IDLE[name]
        g.write(0)
        self.patch.setenv("FAKE_NVML", str(g.path))
        self.patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        events = endpoints()
        self.c[name].node(f"{name}1", *ENGINE, "--kv-events", events[0], "--kv-events-replay", events[1],
                          sections={"agent": {"nvml": LIBRARY, "sysfs": str(g.path.with_suffix(".sys"))},
                                    "engine": {"kv_events": events[0], "kv_events_replay": events[1]}})
        g.port = self.c[name].nodes[f"{name}1"].engine_port
        g.start()


@pytest.fixture
def powered(world, monkeypatch, tmp_path):  # noqa: F811
    world.__class__ = Powered
    world.power(monkeypatch, tmp_path)
    yield world
    for g in world.gpus.values():
        g.ended = True
        g.join()


@pytest.mark.slow
@pytest.mark.plain
def test_joules_that_were_measured_decide(powered):
    """The beginning of the prompt is cached at b, and c takes fewer joules for all of it."""
    powered.begin("b", "c", rules={"energy_weight": 100})
    seeds = itertools.count(2)

    def joules():
        """Let both peers compute a prompt more; return what a token takes at each, as cluster a was told."""
        powered.warm("b", next(seeds))
        powered.warm("c", next(seeds))
        rows = {name: powered.peer("a", name).get("models") for name in "bc"}
        return {name: models[0]["joules_per_token"] if models else 0 for name, models in rows.items()}
    told = until(lambda: (j := joules()) and 0 < 1.5 * j["c"] < j["b"] and j, joules, wait_s=120)
    powered.warm("b", 1)  # a quarter of the prompt is cached at b
    powered.knows("b", 100 * next(seeds) // 2)
    powered.hold()
    body = powered.body(1)
    a = ask(powered.c["a"].http_port, "POST", "/v1/completions", body | {"prompt": body["prompt"] + list(range(4800))}, {"X-Cgn-Explain": "1"})
    assert a.status == 200, a.body
    rows = {p["peer"]: p for p in json.loads(a.headers["x-cgn-explain"])["peers"]}
    assert a.headers["x-cgn-peer"] == "c" and rows["b"]["held_blocks"] == 100 and rows["b"]["joules"] > rows["c"]["joules"] > 0, (told, rows)
