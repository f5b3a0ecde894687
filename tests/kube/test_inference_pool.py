# SPDX-License-Identifier: Apache-2.0
"""[inference_pools]: the pods of an InferencePool as nodes, by a real API server. The test plays the kubelet: the pods have addresses of
this machine, where cgn-sims answer."""
import itertools
import json
import subprocess

import pytest

from cluster import BUILD, Cluster, Process, ask, until
from kube_world import ROOT, Kube
from test_resume import CHAT, ROUTER, SLOW, Stream, bare

FAST = ("--time-scale", "0")
_hosts = itertools.count(2)
_spaces = itertools.count(1)


@pytest.fixture(scope="module")
def api(binaries, tmp_path_factory):
    """etcd and the API server alone, so that nobody but the test changes pods. The kind is that of the extension's release."""
    done = subprocess.run([ROOT / "scripts/run/chart-tools.sh"], capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr
    k = Kube(tmp_path_factory.mktemp("pools"), binaries, small=True)
    k.kubectl("apply", "--server-side", "-f", f"{done.stdout.strip()}/crds/inference.networking.k8s.io_inferencepools.yaml")
    k.kubectl("wait", "--for=condition=Established", "crd/inferencepools.inference.networking.k8s.io", "--timeout=60s")
    yield k
    k.close()


class World:
    """A namespace with the rights of deploy/kustomize/inference-pool, and a router that has no others."""

    def __init__(self, api, folder, cluster, name="pool", port=8000):
        self.api, self.folder, self.cluster, self.name, self.port = api, folder, cluster, name, port
        self.space = api.namespace(f"pools-{next(_spaces)}")
        self.kubeconfig = folder / "router.json"
        self.engines = {}
        api.kubectl("apply", "-k", ROOT / "deploy/kustomize/inference-pool", "-n", self.space)
        token = api.kubectl("create", "token", "cgn-router", "-n", self.space, "--duration", "1h").stdout.strip()
        self.kubeconfig.write_text(json.dumps(api.config_of({"token": token}, namespace=self.space)))

    def router(self, pool=None, **more):
        self.cluster.router({"cluster": {"kubernetes_config": str(self.kubeconfig)},
                             f'inference_pools."{self.name}"': {"ready_interval": "50ms", **(pool or {})}, **more})

    def pool(self, labels=None, ports=None):
        self.api.apply({"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": self.name, "namespace": self.space},
                        "spec": {"selector": {"matchLabels": labels or {"app": "sim"}}, "targetPorts": [{"number": p} for p in ports or [self.port]],
                                 "endpointPickerRef": {"name": "picker", "port": {"number": 9002}}}})

    def engine(self, name, *args, host=None):
        """A cgn-sim at an address of its own, as a pod has one."""
        host = host or f"127.0.3.{next(_hosts)}"
        p = Process(self.folder, f"engine-{name}", "cgn-sim", "--listen", f"{host}:{self.port}", "--model", "sim", *args)
        self.cluster.processes.append(p)
        until(lambda: "sim.ready" in p.log(), "the engine listens")
        self.engines[name] = (p, host)
        return host

    def pod(self, name, host, ready=True, labels=None):
        """A pod of a machine that nobody plays: it stays until it is deleted by force."""
        self.api.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": self.space, "labels": labels or {"app": "sim"}},
                        "spec": {"nodeName": "nobody", "containers": [{"name": "engine", "image": "sim"}], "terminationGracePeriodSeconds": 600}})
        self.status(name, host, ready)

    def status(self, name, host, ready):
        state = {"phase": "Running", "podIP": host, "podIPs": [{"ip": host}] if host else [],
                 "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
        if not host:
            state.pop("podIP")
        self.api.kubectl("patch", "pod", name, "-n", self.space, "--subresource=status", "--type=merge", "-p", json.dumps({"status": state}))

    def delete(self, name, force=False):
        self.api.kubectl("delete", "pod", name, "-n", self.space, "--wait=false", *(["--grace-period=0", "--force"] if force else []))

    def node(self, pod):
        return f"{pod}.{self.space}"

    def told(self):
        (pool,) = ask(self.cluster.admin_port, "GET", "/nodes").json()["pools"]
        return pool

    def has(self, **want):
        """Wait until the router's nodes are these: pod=state."""
        want = {self.node(pod): state for pod, state in want.items()}
        until(lambda: self.cluster.states() == want, lambda: f"{self.cluster.states()}, not {want}; {self.told()}")


@pytest.fixture
def world(api, tmp_path, cluster):
    from cluster import free_port
    return World(api, tmp_path, cluster, port=free_port())


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path) as c:
        yield c
        print(c.logs())


def answered(world, n=1, **fields):
    """Send |n| requests; return the pods that answered."""
    got = set()
    for i in range(n):
        r = world.cluster.chat(f"hello {i}", fields.get("headers"), max_tokens=2)
        got.add(r.headers.get("x-cgn-node"))
    return got


def only(world, *pods, n=3):
    """Wait until these pods answer, and no others: workers hear of a change a moment after it is told."""
    want = {world.node(pod) for pod in pods}
    until(lambda: answered(world, n) == want, lambda: f"{want} answer, and no others")


def test_pods_come_and_go_with_their_readiness(world):
    world.router()
    until(lambda: "there is no InferencePool" in world.told()["why"], world.told)
    assert world.cluster.states() == {}
    world.pool()
    until(lambda: "no ready pod" in world.told()["why"], world.told)
    a = world.engine("a", *FAST)
    world.pod("a", a, ready=False)
    world.pod("x", a, labels={"app": "other"})
    world.status("a", a, True)
    world.has(a="ready")
    assert world.told() == {"name": f"{world.space}/pool", "nodes": 1, "connected": True, "why": ""}
    only(world, "a")
    b = world.engine("b", *FAST)
    world.pod("b", b)
    world.has(a="ready", b="ready")
    world.status("a", a, False)
    world.has(b="ready")
    only(world, "b")
    world.status("a", a, True)
    world.has(a="ready", b="ready")
    (row,) = [n for n in world.cluster.status()["nodes"] if n["id"] == world.node("a")]
    assert row["origin"] == f"InferencePool {world.space}/pool" and row["address"] == f"{a}:{world.port}"


def test_a_pod_that_ends_gets_nothing_new_and_its_stream_ends_in_order(world):
    world.pool()
    for name in "ab":
        world.pod(name, world.engine(name, *SLOW))
    world.router()
    world.has(a="ready", b="ready")
    whole = bare(world.cluster.ask("POST", "/v1/chat/completions", CHAT).body)
    s = Stream(world.cluster, "/v1/chat/completions", CHAT)
    busy = s.wait_for(5)
    pod = busy.split(".")[0]
    other = {"a": "b", "b": "a"}[pod]
    world.delete(pod)
    world.has(**{pod: "draining", other: "ready"})
    only(world, other, n=4)
    assert bare(s.end()) == whole
    world.delete(pod, force=True)
    world.has(**{other: "ready"})


def test_a_pod_that_is_gone_lets_its_stream_end_or_another_continues(world):
    world.pool()
    for name in "ab":
        world.pod(name, world.engine(name, *SLOW))
    world.router(pool={"kind": "sim"}, **ROUTER)
    world.has(a="ready", b="ready")
    whole = bare(world.cluster.ask("POST", "/v1/chat/completions", CHAT).body)
    s = Stream(world.cluster, "/v1/chat/completions", CHAT)
    pod = s.wait_for(10).split(".")[0]
    world.delete(pod, force=True)
    world.engines[pod][0].kill()
    assert bare(s.end()) == whole
    world.has(**{{"a": "b", "b": "a"}[pod]: "ready"})


def test_a_pod_with_another_address_is_another_engine(world):
    world.pool()
    a = world.engine("a", *FAST)
    world.pod("a", a)
    world.router()
    world.has(a="ready")
    again = world.engine("again", *FAST)
    world.status("a", again, True)
    until(lambda: [n["address"] for n in world.cluster.status()["nodes"]] == [f"{again}:{world.port}"], "the node has the new address")
    world.engines["a"][0].kill()
    world.has(a="ready")
    only(world, "a")


def test_the_pool_is_deleted_changed_and_made_again(world):
    world.pool()
    a, b = world.engine("a", *FAST), world.engine("b", *FAST)
    world.pod("a", a)
    world.pod("b", b, labels={"app": "other"})
    world.router()
    world.has(a="ready")
    world.api.kubectl("delete", "inferencepool", "pool", "-n", world.space)
    world.has()
    assert "there is no InferencePool" in world.told()["why"]
    until(lambda: world.cluster.chat("nobody", max_tokens=2).status == 503, "the workers know that nobody is there")
    r = subprocess.run([BUILD / "src/ctl/cgn-ctl", "cluster", "nodes", "--router", f"127.0.0.1:{world.cluster.grpc_port}"], capture_output=True, text=True,
                       timeout=60, check=False)
    assert r.returncode == 0 and f"there is no InferencePool {world.space}/pool" in r.stdout, r
    world.pool(labels={"app": "other"})
    world.has(b="ready")
    world.pool()
    world.has(a="ready")
    only(world, "a")


def test_each_target_port_is_a_node(world):
    from cluster import free_port
    second = free_port()
    a = world.engine("a", *FAST)
    p = Process(world.folder, "engine-second", "cgn-sim", "--listen", f"{a}:{second}", "--model", "sim", *FAST)
    world.cluster.processes.append(p)
    world.pool(ports=[world.port, second])
    world.pod("a", a)
    world.router()
    want = {f"{world.node('a')}:{port}": "ready" for port in (world.port, second)}
    until(lambda: world.cluster.states() == want, lambda: world.cluster.states())
    until(lambda: answered(world, 12) == set(want), "both ports answer")
    world.pool(ports=[second])
    world.has(a="ready")


def test_kv_events_of_pods(world):
    from cluster import free_port
    events, replay = free_port(), free_port()
    world.pool()
    for name in "ab":
        host = f"127.0.3.{next(_hosts)}"
        world.engine(name, *FAST, "--kv-events", f"tcp://{host}:{events}", "--kv-events-replay", f"tcp://{host}:{replay}", host=host)
        world.pod(name, host)
    world.router(pool={"kv_events_port": events, "kv_events_replay_port": replay}, **{"router": {"policy": "kv"}})
    world.has(a="ready", b="ready")
    rows = lambda: {n["id"]: n["cache"] for n in world.cluster.status()["nodes"]}  # noqa: E731

    for name in "ab":
        def heard(name=name):
            answered(world, headers={"X-Cgn-Node": world.node(name)})
            return rows()[world.node(name)]["source"] == "events"
        until(heard, f"the events of {name} are heard")
    text = "Tell me of the long river and of its many bridges. " * 30
    first = world.cluster.chat(text, {"X-Cgn-Node": world.node("b")}, max_tokens=2)
    assert first.headers["x-cgn-node"] == world.node("b")
    until(lambda: rows()[world.node("b")]["gpu"] > 20, "the index has the blocks")
    for _ in range(3):
        again = world.cluster.chat(text, max_tokens=2)
        assert again.headers["x-cgn-node"] == world.node("b")
        assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100


def test_while_the_api_server_is_away_the_nodes_stay(api, world):
    world.pool()
    a, b = world.engine("a", *FAST), world.engine("b", *FAST)
    world.pod("a", a)
    world.router()
    world.has(a="ready")
    api.kill("apiserver")
    try:
        until(lambda: not world.told()["connected"], "the loss is seen")
        world.has(a="ready")
        only(world, "a")
    finally:
        api.start_apiserver()
    world.pod("b", b)
    world.delete("a", force=True)
    world.has(b="ready")
    until(lambda: world.told()["connected"] and world.told()["why"] == "", world.told)


def test_without_rights_it_says_so(api, world):
    world.pool()
    world.pod("a", world.engine("a", *FAST))
    api.kubectl("delete", "rolebinding", "cgn-router-inference-pool", "-n", world.space)
    world.router()
    until(lambda: "forbidden" in world.told()["why"], world.told)
    assert world.cluster.states() == {}
    api.kubectl("apply", "-k", ROOT / "deploy/kustomize/inference-pool", "-n", world.space)
    world.has(a="ready")


def test_settings_are_checked(cluster, tmp_path):
    (tmp_path / "kube.json").write_text("{}")
    path = cluster.config("bad", {"cluster": {"kubernetes_config": str(tmp_path / "kube.json")}, 'inference_pools."P_q"': {}})
    done = subprocess.run([BUILD / "src/router/cgn-router", "--config", path, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3 and "not a name of an InferencePool" in done.stderr, done
    path = cluster.config("bad", {"cluster": {"kubernetes_config": str(tmp_path / "kube.json")}, 'inference_pools."p"': {}})
    done = subprocess.run([BUILD / "src/router/cgn-router", "--config", path, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and "kube.json" in done.stderr, done
