# SPDX-License-Identifier: Apache-2.0
"""The budget of power, measured: agents read a fake RAPL whose counter follows the engine: 100 W idle, 250 W and 20 for each request that runs,
prompts and answers alike, whole and streamed. What the counter shows stays within the budget and 5 %, or the router says that it does not."""
import itertools
import signal
import subprocess
import threading
import time

import pytest

from cluster import BUILD, WAIT_S, Cluster, until
from test_energy import Gpu, agent_metric, known, logged, put

CTL = BUILD / "src/ctl/cgn-ctl"


def draws(running):
    return 250 + 20 * running if running else 100


class Rapl(Gpu):
    """A processor's package whose counter follows an engine's running requests. A limit of None: it has none, as AMD's."""

    def __init__(self, path, limit_w):
        self.zone, self.limit_w, self.turns = path.with_suffix(".sys") / "class/powercap/intel-rapl:0", limit_w, []
        put(self.zone / "name", "package-0\n")
        put(self.zone / "max_energy_range_uj", "262143328850\n")
        if limit_w:
            put(self.zone / "constraint_0_power_limit_uw", f"{int(limit_w * 1e6)}\n")
        super().__init__(path)

    def write(self, now_w):
        put(self.zone / "energy_uj", f"{int((1000 + self.joules) * 1e6)}\n")

    def run(self):
        at = time.monotonic()
        while not self.ended:
            n = self.running() if self.port else 0
            now = time.monotonic()
            self.joules += draws(n) * (now - at)
            self.busy_joules += draws(n) * (now - at) if n else 0
            self.turns.append((now, self.joules))
            at = now
            self.write(draws(n))
            time.sleep(0.03)

    def highest(self, since):
        """Return the highest mean power of a second."""
        turns = [t for t in self.turns if t[0] >= since]
        most, i = 0, 0
        for at, joules in turns:
            while at - turns[i][0] > 1:
                i += 1
            if at - turns[i][0] > 0.9:
                most = max(most, (joules - turns[i][1]) / (at - turns[i][0]))
        return most


@pytest.fixture
def world(tmp_path, monkeypatch):
    clusters, nodes = [], []

    def start(names, budget, limit_w=700, engine=("--decode-ms", "10"), agents=None, engines=None, **sections):
        c = Cluster(tmp_path)
        clusters.append(c)
        c.router({"router.energy": {"mode": "on", "budget": budget, "ms_per_joule": 0}, "router": {"policy": "kv"}, **sections})
        by = {}
        for name in names:
            p = by[name] = Rapl(tmp_path / f"cpu-{name}", limit_w)
            nodes.append(p)
            monkeypatch.setenv("FAKE_NVML", str(tmp_path / "none"))
            c.node(name, *engine, *(engines or {}).get(name, ()),
                   sections={"agent": {"sysfs": str(p.path.with_suffix(".sys")), **(agents or {}).get(name, {})}, "engine": {"kind": "sim"}})
            p.port = c.nodes[name].engine_port
            p.start()
        c.wait_ready(len(names))
        for name in names:
            until(lambda: known(c, name), c.logs)
        return c, by

    yield start
    for p in nodes:
        p.ended = True
    for p in nodes:
        if p.is_alive():
            p.join()
    for c in clusters:
        c.__exit__(None)


def clients(c, n, seconds, kind, tokens=100):
    """Let |n| clients ask for so long; return the statuses. Whole, streamed, mixed, or bursty: all at once, and then none for a while."""
    end, said = time.monotonic() + seconds, []

    def one(i):
        for turn in itertools.count():
            if time.monotonic() >= end:
                return
            if kind == "bursty" and int(time.monotonic()) % 6 >= 3:
                time.sleep(0.1)  # the pause between two bursts
                continue
            streamed = kind == "streamed" or (kind != "whole" and (i + turn) % 2 == 1)
            said.append(c.chat(f"client {i} turn {turn}", max_tokens=tokens, stream=streamed, ignore_eos=True).status)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return said


def status_text(c):
    order = [CTL, "cluster", "status", "--router", f"127.0.0.1:{c.grpc_port}"]
    return subprocess.run(order, check=True, capture_output=True, text=True, timeout=WAIT_S).stdout


def learned(c, names):
    """One request after the other, until the watts of an idle node and of one stream are known."""
    for name in names:
        until(lambda: c.chat(f"learn {time.monotonic()}", max_tokens=60, headers={"X-Cgn-Node": name}).status in (200, 503) and
              all(n["watts"]["decode"][0] > 240 for n in c.status()["nodes"] if n["id"] == name), c.status)


@pytest.mark.slow
@pytest.mark.plain
@pytest.mark.parametrize("budget, n, kind, limit_w", [(300, 4, "whole", 700), (400, 8, "whole", None), (400, 6, "streamed", 400), (400, 8, "mixed", 700),
                                                      (400, 8, "bursty", None)])
def test_measured_power_stays_within_the_budget(world, budget, n, kind, limit_w):
    c, nodes = world(["a"], budget, limit_w, **{"router.admission": {"queue_timeout": "60s"}})
    clients(c, n, 6, kind)  # the curve is learned
    since, before = time.monotonic(), len(c.router_process.events("router.power_budget_passed"))
    said = clients(c, n, 8, kind)
    most, passed = nodes["a"].highest(since), c.router_process.events("router.power_budget_passed")[before:]
    assert said and set(said) == {200}, said
    assert most <= budget * 1.05 or passed, (most, budget)
    assert most <= budget * 1.15, (most, passed)  # in no second was it forgotten
    assert most > 250 and agent_metric(c, "a", "cgn_node_joules_total", '{phase="decode"}') is not None


def test_a_budget_of_less_than_one_request_is_said_to_be_too_low(world):
    """Nothing is known at first: one request is tried, and the counter shows that it is too much."""
    c, nodes = world(["a"], 200)
    until(lambda: c.chat(f"try {time.monotonic()}", max_tokens=100, ignore_eos=True).status == 503, c.logs)
    refused = c.chat("no more", max_tokens=10)
    assert refused.status == 503 and refused.json()["error"]["code"] == "power_budget" and "even alone" in refused.json()["error"]["message"]
    until(lambda: c.router_process.events("router.power_budget_passed"), c.logs)
    until(lambda: c.router_process.events("router.power_budget_too_low"), c.logs)
    assert "NO POWER" in status_text(c), status_text(c)
    until(lambda: c.metric("cgn_energy_measured_watts") < 200, lambda: c.metric("cgn_energy_measured_watts"))


def test_a_budget_that_is_lowered_while_requests_run(world):
    """None that runs is ended; no other one is sent until they have ended, and meanwhile the router says that the nodes draw more."""
    c, nodes = world(["a"], 600)
    learned(c, "a")
    running = [threading.Thread(target=c.chat, args=(f"long {i}",), kwargs={"max_tokens": 400, "stream": i % 2 == 1, "ignore_eos": True}) for i in range(4)]
    for t in running:
        t.start()
    until(lambda: c.metric("cgn_energy_measured_watts") > 310, lambda: c.metric("cgn_energy_measured_watts"))
    lower(c, nodes["a"].path.parent, 600, 300)
    until(lambda: c.router_process.events("router.power_budget_passed"), c.logs)
    assert "OVER POWER" in status_text(c), status_text(c)
    late = c.chat("waits for the others", max_tokens=20)
    assert late.status == 200 and max(x["queued_ms"] for x in logged(c, 2)) > 0
    for t in running:
        t.join()
    until(lambda: c.router_process.events("router.power_budget_kept"), c.logs)


def lower(c, folder, was, to):
    file = folder / "router.toml"
    text = file.read_text()
    assert f"budget = {was}" in text
    file.write_text(text.replace(f"budget = {was}", f"budget = {to}"))
    c.router_process.signal(signal.SIGHUP)
