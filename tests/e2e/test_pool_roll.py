# SPDX-License-Identifier: Apache-2.0
"""The pods of a ModelPool, as cgn-operator makes them, are replaced as a rolling update replaces them, under load: no stream is cut and no request is refused."""
import collections
import copy
import http.client
import json
import threading

import pytest

from cluster import ROOT, Cluster, until
from kubelet import Pod

TOKENS = 250


def pod_spec(*engine_args, drain=None):
    """Return the pod of a ModelPool of the simulator: the unit test policy_desired holds the file to what the operator makes."""
    objects = json.loads((ROOT / "tests/unit/desired/pool-sim.json").read_text())["objects"]
    spec = copy.deepcopy(next(o for o in objects if o["kind"] == "StatefulSet")["spec"]["template"]["spec"])
    spec["initContainers"][0]["args"] += engine_args
    if drain:
        next(e for e in spec["containers"][0]["env"] if e["name"].endswith("DRAIN_TIMEOUT"))["value"] = f"{drain}s"
        spec["terminationGracePeriodSeconds"] = drain + 30
    return spec


class World:
    def __init__(self, folder, spec):
        self.cluster, self.spec, self.pods = Cluster(folder), spec, {}
        self.cluster.MODEL = "sim-8b"
        self.cluster.router()
        self.config = self.cluster.config("pods", {"engine": {"ready_interval": "50ms"}, "security": {"insecure": True}})

    def begin(self):
        for name in ("chat-0", "chat-1"):
            self.start(name)
        self.cluster.wait_ready(2)

    def start(self, name):
        self.pods[name] = Pod(self.cluster.folder, name, self.spec, self.config)

    def stream(self, node):
        """Begin a stream of a node and read its first event; return what reads the rest."""
        c = http.client.HTTPConnection("127.0.0.1", self.cluster.http_port, timeout=60)
        c.request("POST", "/v1/chat/completions", json.dumps({"model": "sim-8b", "stream": True, "ignore_eos": True, "max_tokens": TOKENS,
                                                              "messages": [{"role": "user", "content": f"to {node}"}]}), {"X-Cgn-Node": node})
        r = c.getresponse()
        assert r.status == 200 and r.getheader("X-Cgn-Node") == node, r.read()
        r.readline()
        return lambda: [json.loads(line[6:]) if line != b"data: [DONE]" else "DONE" for line in r.read().split(b"\n") if line.startswith(b"data: ")]

    def close(self):
        for pod in self.pods.values():
            pod.close()
        assert not (trouble := self.cluster.close()), trouble


@pytest.fixture
def world(tmp_path, request):
    w = World(tmp_path, pod_spec("--token-interval-us", "10000", **getattr(request, "param", {})))
    try:
        w.begin()
        yield w
    finally:
        w.close()


class Clients:
    """New requests without a pause, until they are stopped."""

    def __init__(self, cluster, n=3):
        self.cluster, self.over, self.seen, self.lock = cluster, threading.Event(), collections.Counter(), threading.Lock()
        self.threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(n)]
        for t in self.threads:
            t.start()

    def _ask(self, i):
        n = 0
        while not self.over.is_set():
            n += 1
            a = self.cluster.chat(f"client {i}, request {n}", max_tokens=3)
            with self.lock:
                self.seen[a.status if a.status != 200 else a.headers["x-cgn-node"]] += 1

    def count(self):
        with self.lock:
            return sum(self.seen.values())

    def more(self, n=30):
        want = self.count() + n
        until(lambda: self.count() >= want, lambda: self.seen)

    def stop(self):
        self.over.set()
        for t in self.threads:
            t.join()
        return self.seen


def test_a_rolling_update_cuts_no_stream_and_refuses_no_request(world):
    clients = Clients(world.cluster)
    try:
        for name, other in (("chat-0", "chat-1"), ("chat-1", "chat-0")):
            clients.more()
            rest = world.stream(name)
            pod = world.pods[name]
            pod.end()
            until(lambda: world.cluster.states()[name] == "draining", lambda: world.cluster.states())
            before = clients.seen[name]
            clients.more(20)
            assert clients.seen[name] - before <= len(clients.threads), "new requests go elsewhere"  # those that ran end there
            events = rest()
            assert events[-1] == "DONE" and not any("error" in e for e in events), events[-3:]
            assert events[-2]["choices"][0]["finish_reason"] == "length", events[-2]
            assert pod.ended() == {"agent": 0, "engine": 0} and not pod.killed, (pod.status, pod.killed, pod.log("agent"))
            assert "agent.drain_timeout" not in pod.log("agent")
            world.start(name)  # the pod that takes its place has its name
            world.cluster.wait_ready(2)
    finally:
        seen = clients.stop()
    assert set(seen) == {"chat-0", "chat-1"}, seen


@pytest.mark.parametrize("world", [{"drain": 1}], indirect=True)
def test_a_stream_that_outlasts_the_drain_timeout_ends_with_an_error_and_not_by_sigkill(world):
    rest = world.stream("chat-0")
    pod = world.pods["chat-0"]
    pod.end()
    events = rest()
    assert "error" in events[-1] and "DONE" not in events, events[-2:]
    assert pod.ended() == {"agent": 0, "engine": 0} and not pod.killed, (pod.status, pod.log("agent"))
    assert world.cluster.chat("hello").headers["x-cgn-node"] == "chat-1"
