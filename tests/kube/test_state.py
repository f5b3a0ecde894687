# SPDX-License-Identifier: Apache-2.0
"""Membership in a real Kubernetes: joining, leaving, dying, and the faults of the API server."""
import base64
import json
import signal
import subprocess

import pytest

from cluster import BUILD, Cluster, until
from kube_world import Kube
from state_world import Demo


class World:
    def __init__(self, folder, kube, space, kubeconfig=None):
        self.folder, self.kube, self.space, self.parts = folder, kube, space, []
        self.kubeconfig = kubeconfig or kube.kubeconfig

    def config(self, **more):
        return {"cluster": {"state_backend": "kubernetes", "kubernetes_config": str(self.kubeconfig), "kubernetes_namespace": self.space,
                            "state_dir": str(self.folder / "state"), "lease": "3s", **more}, "agent": {"heartbeat": "500ms"}}

    def demo(self, name, *args, **more):
        d = Demo(self.folder, name, self.config(**more), *args)
        self.parts.append(d)
        return d

    def router(self, name="router", **more):
        return self.demo(name, "watch", **more)

    def agent(self, node="n1", addr="127.0.0.1:7080", name=None):
        a = self.demo(name or node, "announce", node, addr)
        a.expect("connected")
        return a

    def leases(self):
        return [o["metadata"]["name"] for o in self.kube.get("leases", "-n", self.space)["items"]]

    def secret(self):
        data = self.kube.get("secret", "cognitora.state", "-n", self.space).get("data", {})
        return {key: base64.b64decode(value).decode() for key, value in data.items()}


@pytest.fixture
def world(tmp_path, kube, space):
    w = World(tmp_path, kube, space)
    yield w
    for part in reversed(w.parts):
        part.stop()


def test_a_node_joins_changes_and_leaves(world):
    r = world.router()
    r.expect("connected")
    a = world.agent()
    r.expect("node n1 127.0.0.1:7080")
    lease = world.kube.get("lease", "cognitora.node.n1", "-n", world.space)
    assert lease["spec"]["holderIdentity"] == "127.0.0.1:7080"
    assert json.loads(lease["metadata"]["annotations"]["cognitora.dev/node"])["id"] == "n1"
    a.say("draining")
    r.expect("node n1 127.0.0.1:7080 draining")
    a.say("ready")
    r.expect("node n1 127.0.0.1:7080")
    a.say("quit")
    a.expect("left")
    r.expect("gone n1")
    assert world.leases() == []


def test_a_node_that_leaves_while_it_writes_its_lease_is_gone(world):
    """Routers see a change before its writer has the answer, which has the version that the Lease is deleted with."""
    r = world.router()
    r.expect("connected")
    for i in range(6):
        a = world.agent(f"n{i}", f"127.0.0.1:{7000 + i}")
        r.expect(f"node n{i} 127.0.0.1:{7000 + i}")
        a.say("draining")
        r.expect(f"node n{i} 127.0.0.1:{7000 + i} draining")
        a.say("quit")
        a.expect("left")
        r.expect(f"gone n{i}")
        assert world.leases() == []


def test_a_second_agent_with_the_id_is_refused_by_name(world):
    r = world.router()
    r.expect("connected")
    first = world.agent()
    r.expect("node n1 127.0.0.1:7080")
    second = world.demo("second", "announce", "n1", "127.0.0.1:7999")
    said, = second.expect("disconnected")
    assert '"n1"' in said and "127.0.0.1:7080" in said, said
    first.kill()
    again = world.agent(name="again")  # a restarted agent need not wait for the lease of the one before
    again.say("quit")
    again.expect("left")
    r.expect("gone n1", "node n1 127.0.0.1:7999")
    second.expect("connected")


def test_a_late_router_sees_everybody(world):
    world.agent("n1")
    world.agent("Node_2", "127.0.0.1:7081")  # no DNS name
    early = world.router("early")
    early.expect("node n1", "node Node_2", "connected")
    early.say("cordon Node_2")
    early.expect("cordon Node_2", "FINE")
    world.router().expect("node n1", "node Node_2", "cordon Node_2", "connected")


def test_a_killed_agent_goes_with_its_lease_and_a_live_one_stays(world):
    r = world.router()
    r.expect("connected")
    a, _ = world.agent(), world.agent("n2", "127.0.0.1:7081")
    r.expect("node n1", "node n2")
    a.kill()
    r.expect("gone n1")
    r.silent(4)  # longer than a lease: n2 renews its own
    world.agent(name="again")
    r.expect("node n1 127.0.0.1:7080")


def test_cordons_reach_every_router_and_are_written_readably(world):
    one, two = world.router("one"), world.router("two")
    one.expect("connected")
    two.expect("connected")
    one.say("cordon n1")
    one.expect("cordon n1", "FINE")
    two.expect("cordon n1")
    two.say("cordon rack:1")
    two.expect("cordon rack:1", "FINE")
    one.expect("cordon rack:1")
    assert world.secret() == {"format": "1", "cordon.n1": "true", "cordon.rack_3A1": "true"}
    one.say("uncordon n1")
    one.expect("uncordon n1", "FINE")
    two.expect("uncordon n1")
    world.kube.kubectl("delete", "secret", "cognitora.state", "-n", world.space)
    one.expect("uncordon rack:1")
    two.expect("uncordon rack:1")


def test_the_api_server_is_killed_and_comes_back(world, binaries, tmp_path):
    """Nothing is lost while it is away, and nobody is declared dead because of that."""
    k = Kube(tmp_path, binaries, small=True)
    try:
        world.kube, world.kubeconfig = k, k.kubeconfig
        k.namespace(world.space)
        r = world.router()
        r.expect("connected")
        a = world.agent()
        b = world.agent("n2", "127.0.0.1:7081")
        r.expect("node n1", "node n2")
        k.kill("apiserver")
        r.expect("disconnected")
        a.expect("disconnected")
        b.expect("disconnected")
        b.kill()
        r.silent(4)  # longer than a lease
        r.say("cordon n1")
        said, = r.expect("UNAVAILABLE")
        assert "Secret" in said, said
        k.start_apiserver()
        a.expect("connected")
        r.expect("connected")
        r.expect("gone n2")
        late = world.router("late")  # the Lease of a dead agent lasts once more for a router that sees it first
        late.expect("node n1", "node n2", "connected")
        late.expect("gone n2")
    finally:
        k.close()


def test_an_address_that_leaves_the_service_takes_its_node_along(world):
    """Before the lease ends: an agent in a pod that is gone. An agent outside of Kubernetes stays."""
    def slices(*addresses):
        world.kube.apply({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": [],
                          "metadata": {"name": "agents-1", "namespace": world.space, "labels": {"kubernetes.io/service-name": "agents"}},
                          "endpoints": [{"addresses": [a]} for a in addresses]})
    slices("10.0.0.1", "10.0.0.2")
    r = world.router(kubernetes_service="agents", lease="60s")
    r.expect("connected")
    for i, addr in enumerate(("10.0.0.1:7080", "10.0.0.2:7080", "192.168.7.7:7080")):
        a = world.demo(f"n{i}", "announce", f"n{i}", addr, lease="60s")
        a.expect("connected")
        r.expect(f"node n{i}")
        a.kill()
    slices("10.0.0.2")
    r.expect("gone n0")
    world.kube.kubectl("delete", "endpointslice", "agents-1", "-n", world.space)
    r.expect("gone n1")
    r.silent(2)


def test_nonsense_in_the_namespace_is_ignored(world):
    def lease(name, annotations, **spec):
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": world.space, "annotations": annotations,
                "labels": {"cognitora.dev/cluster": "cognitora", "cognitora.dev/record": "node"}}, "spec": spec}
    node = json.dumps({"id": "old", "address": "127.0.0.1:1"})
    fresh = {"renewTime": "2099-01-01T00:00:00.000000Z"}
    world.kube.apply(lease("a", {}, **fresh), lease("b", {"cognitora.dev/node": "{"}, **fresh), lease("c", {"cognitora.dev/node": '{"id":"a/b"}'}, **fresh),
                     lease("d", {"cognitora.dev/node": node}, renewTime="2020-01-01T00:00:00.000000Z"), lease("e", {"cognitora.dev/node": node}))
    r = world.router()
    r.expect("connected")
    world.agent()
    r.expect("node n1")


def test_a_right_that_is_missing_is_named(world, tmp_path):
    """A service account without rights: the sentence is the API server's."""
    kube, space = world.kube, world.space
    kube.kubectl("create", "serviceaccount", "poor", "-n", space)
    token = kube.kubectl("create", "token", "poor", "-n", space).stdout.strip()
    world.kubeconfig = tmp_path / "poor.json"
    world.kubeconfig.write_text(json.dumps(kube.config_of({"token": token}, namespace=space)))
    said, = world.router().expect("disconnected")
    assert "forbidden" in said and "cannot list resource" in said, said


def test_a_cluster_serves_without_etcd(kube, space, tmp_path):
    """Router and agents of the whole cluster, with their membership in Kubernetes; a cordon of cgn-ctl is kept there."""
    with Cluster(tmp_path) as c:
        c.common = {"cluster": {"state_backend": "kubernetes", "kubernetes_config": str(kube.kubeconfig), "kubernetes_namespace": space}}
        c.router()
        c.node("a", "--time-scale", "0")
        c.node("b", "--time-scale", "0")
        c.wait_ready(2)
        assert c.chat("hello").status == 200
        ctl = [BUILD / "src/ctl/cgn-ctl"]
        done = subprocess.run([*ctl, "cluster", "cordon", "a", "--router", f"127.0.0.1:{c.grpc_port}"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert {c.chat(f"again {i}").headers["x-cgn-node"] for i in range(4)} == {"b"}
        c.nodes["b"].agent.signal(signal.SIGKILL)
        c.nodes["b"].agent.wait()
        until(lambda: set(c.states()) == {"a"}, lambda: f"b left: {c.states()}")
        subprocess.run([*ctl, "cluster", "uncordon", "a", "--router", f"127.0.0.1:{c.grpc_port}"], check=True, capture_output=True)
        until(lambda: c.chat("third").status == 200, "a serves")
