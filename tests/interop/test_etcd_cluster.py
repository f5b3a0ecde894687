# SPDX-License-Identifier: Apache-2.0
"""A whole cluster on Debian's etcd: two routers and two agents that serve during the faults of etcd."""
import contextlib
import json
import os
import shutil
import signal
import subprocess

import pytest

from cluster import Cluster, ask, free_port, until
from conftest import FAST, ctl

ETCD = shutil.which("etcd")
pytestmark = pytest.mark.skipif(not ETCD and not os.environ.get("CI"), reason="no etcd: apt-get install etcd-server etcd-client")
PREFIX = "/cognitora/cognitora/"


class Etcd:
    """One member on the loopback; the same data and ports after a kill -9."""

    def __init__(self, folder, pki=None):
        self.folder, self.pki, self.port, self.peer = folder, pki, free_port(), free_port()
        self.scheme = "https" if pki else "http"
        self.url = f"{self.scheme}://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        """Start without waiting: the clients must tolerate that."""
        peer = f"http://127.0.0.1:{self.peer}"
        argv = [ETCD, "--data-dir", self.folder / "etcd", "--name", "e", "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"e={peer}"]
        if self.pki:
            argv += ["--cert-file", self.pki / "etcd.pem", "--key-file", self.pki / "etcd.key", "--client-cert-auth", "--trusted-ca-file", self.pki / "ca.pem"]
        with open(self.folder / "etcd.log", "ab") as log:
            self.popen = subprocess.Popen(list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait(self):
        until(self.answers, "etcd answers")

    def answers(self):
        with contextlib.suppress(subprocess.CalledProcessError):
            return bool(self.ctl("endpoint", "health"))
        return False

    def ctl(self, *args):
        argv = ["etcdctl", "--endpoints", self.url]
        if self.pki:
            argv += ["--cacert", self.pki / "ca.pem", "--cert", self.pki / "admin.pem", "--key", self.pki / "admin.key"]
        return subprocess.run(list(map(str, [*argv, *args])), check=True, capture_output=True, text=True, timeout=30,
                              env={**os.environ, "ETCDCTL_API": "3"}).stdout or "done"

    def keys(self):
        return [k.removeprefix(PREFIX) for k in self.ctl("get", "--prefix", PREFIX, "--keys-only").split() if k.startswith(PREFIX)]

    def revision(self):
        return json.loads(self.ctl("get", PREFIX, "-w", "json"))["header"]["revision"]

    def kill(self):
        self.popen.kill()
        self.popen.wait()


class World(Cluster):
    """Two routers, two agents, one etcd."""

    def begin(self, tls):
        folder = self.folder
        pki = folder / "pki" if tls else None
        if tls:
            ctl("pki", "bootstrap", "--out", pki, "--leaf", "etcd", "--leaf", "router", "--leaf", "agent", "--leaf", "admin")
        self.etcd = Etcd(folder, pki)
        self.etcd.wait()
        cluster = {"state_backend": "etcd", "etcd_endpoints": [self.etcd.url]}
        if tls:
            cluster |= {"etcd_ca_file": str(pki / "ca.pem"), "etcd_cert_file": str(pki / "agent.pem"), "etcd_key_file": str(pki / "agent.key")}
        self.common = {"cluster": cluster}
        self.router()
        first = self.http_port, self.grpc_port, self.admin_port
        self.http_port, self.grpc_port, self.admin_port = free_port(), free_port(), free_port()
        listen = {"listen": f"127.0.0.1:{self.http_port}", "listen_grpc": f"127.0.0.1:{self.grpc_port}", "listen_admin": f"127.0.0.1:{self.admin_port}"}
        self.second = self.run("router-2", "cgn-router", "--config", self.config(
            "router-2", {"router": listen | {"worker_threads": 1}, "router.admission": {"node_wait": "300ms"}}))
        self.routers = [first, (self.http_port, self.grpc_port, self.admin_port)]
        self.http_port, self.grpc_port, self.admin_port = first
        for name in "ab":
            self.node(name, *FAST)
        self.expect({"a": "ready", "b": "ready"})

    def close(self):
        super().close()
        if hasattr(self, "etcd"):
            self.etcd.kill()

    def expect(self, states, wait_s=30):
        """Wait until both routers have exactly these nodes, and serve."""
        for http_port, _, admin_port in self.routers:
            until(lambda: self.seen(admin_port) == states, f"the router at {admin_port} sees {states}, not {self.seen(admin_port)}", wait_s)
            until(lambda: self.chat_at(http_port).status == 200, "it serves")

    @staticmethod
    def seen(admin_port):
        with contextlib.suppress(OSError, ValueError):
            return {n["id"]: n["state"] for n in ask(admin_port, "GET", "/nodes").json()["nodes"]}
        return None

    def chat_at(self, port, text="hello"):
        return ask(port, "POST", "/v1/chat/completions", {"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 2})

    def everybody_serves(self, n=10):
        for http_port, _, _ in self.routers:
            answers = [self.chat_at(http_port, f"question {i}") for i in range(n)]
            assert {a.status for a in answers} == {200}
        return {a.headers["x-cgn-node"] for a in answers}


def new_model(port):
    return ask(port, "POST", "/v1/chat/completions", {"model": "new", "messages": []})


@pytest.fixture(scope="module", params=["clear", "tls"])
def world(request, tmp_path_factory):
    with World(tmp_path_factory.mktemp("etcd-" + request.param)) as w:
        w.begin(request.param == "tls")
        yield w


@pytest.fixture(autouse=True)
def logs(world, request):
    yield
    if getattr(request.node, "failed", False):
        print(world.logs(15))


def test_nodes_are_under_leases(world):
    assert sorted(world.etcd.keys()) == ["nodes/a", "nodes/b"]
    node = json.loads(world.etcd.ctl("get", PREFIX + "nodes/a", "--print-value-only"))
    assert node["id"] == "a" and node["address"].endswith(str(world.nodes["a"].agent_port))
    leases = json.loads(world.etcd.ctl("get", PREFIX + "nodes/a", "-w", "json"))["kvs"][0]["lease"]
    assert leases > 0


def test_a_killed_agent_is_gone_with_its_lease_and_comes_back(world):
    world.nodes["b"].agent.kill()
    world.expect({"a": "ready"})
    assert world.etcd.keys() == ["nodes/a"]
    assert world.everybody_serves() == {"a"}
    world.nodes["b"].agent.start()
    world.expect({"a": "ready", "b": "ready"})


def test_etcd_dies_and_comes_back(world):
    world.etcd.kill()
    for _ in range(3):
        world.everybody_serves()
    for http_port, _, _ in world.routers:  # a model that came meanwhile is not known; clients repeat a 503, and no 404
        until(lambda port=http_port: "its source does not answer" in new_model(port).body.decode(), "the router knows that etcd is away")
        assert new_model(http_port).status == 503 and new_model(http_port).headers["retry-after"]
        assert ask(http_port, "GET", "/v1/models/new").status == 503 and ask(http_port, "POST", "/api/show", {"model": "new"}).status == 503
        assert ask(http_port, "GET", "/v1/models").json()["data"]  # what is known
    world.etcd.start()
    world.etcd.wait()
    world.expect({"a": "ready", "b": "ready"})
    until(lambda: all(new_model(port).status == 404 for port, _, _ in world.routers), "the membership is known again")
    until(lambda: sorted(k for k in world.etcd.keys() if k.startswith("nodes/")) == ["nodes/a", "nodes/b"], "both have leases again")
    world.nodes["a"].agent.stop()  # changes are seen again from here on
    world.expect({"b": "ready"})
    world.nodes["a"].agent.start()
    world.expect({"a": "ready", "b": "ready"})


def test_a_router_that_starts_while_etcd_is_away_serves_its_last_nodes(world):
    http_port, _, admin_port = world.routers[1]
    members = world.state_dir / "cognitora.members"
    until(lambda: members.exists() and {n["id"] for n in json.loads(members.read_text())["nodes"]} == {"a", "b"}, "the membership is stored")
    world.etcd.kill()
    world.second.stop()
    world.second.start()
    until(lambda: world.seen(admin_port) == {"a": "ready", "b": "ready"}, lambda: f"the last nodes: {world.seen(admin_port)}")
    until(lambda: world.chat_at(http_port).status == 200, "it serves")
    status = ask(admin_port, "GET", "/nodes").json()
    assert status["state_stale"] and not status["state_connected"]
    assert 'cgn_state_stale{what="members"} 1' in ask(admin_port, "GET", "/metrics").body.decode()
    stale = world.second.events("state.members_stale")[-1]
    assert stale["nodes"] == 2 and stale["file"] == str(members)
    unknown = ask(http_port, "POST", "/v1/chat/completions", {"model": "nobody", "messages": []})
    assert unknown.status == 503 and unknown.headers["retry-after"] and "membership was not heard" in unknown.body.decode()
    world.etcd.start()
    world.etcd.wait()
    until(lambda: not ask(admin_port, "GET", "/nodes").json()["state_stale"], "the membership is heard")
    world.expect({"a": "ready", "b": "ready"})
    until(lambda: ask(http_port, "POST", "/v1/chat/completions", {"model": "nobody", "messages": []}).status == 404, "nothing is missing")


def test_compaction_behind_a_router_that_was_away(world):
    for _ in range(5):
        world.etcd.ctl("put", PREFIX + "models/x", "{}")
    world.etcd.ctl("compact", str(world.etcd.revision()), "--physical")
    world.expect({"a": "ready", "b": "ready"})
    world.second.signal(signal.SIGSTOP)  # the watch falls behind
    world.nodes["b"].agent.stop()
    until(lambda: "nodes/b" not in world.etcd.keys(), "b left")
    for _ in range(5):
        world.etcd.ctl("put", PREFIX + "models/x", "{}")
    world.etcd.ctl("compact", str(world.etcd.revision()), "--physical")
    world.etcd.kill()  # so that the watch restarts at a revision that is compacted
    world.second.signal(signal.SIGCONT)
    world.etcd.start()
    world.etcd.wait()
    world.expect({"a": "ready"})
    world.nodes["b"].agent.start()
    world.expect({"a": "ready", "b": "ready"})
    world.etcd.ctl("del", PREFIX + "models/x")


def test_a_cordon_is_everyones_and_outlives_everything(world):
    first, second = (["--router", f"127.0.0.1:{grpc}"] for _, grpc, _ in world.routers)
    ctl("cluster", "cordon", "a", *first)
    world.expect({"a": "cordoned", "b": "ready"})
    assert "cordon/a" in world.etcd.keys()
    assert world.everybody_serves() == {"b"}
    world.etcd.kill()
    world.second.kill()
    world.second.start()  # before etcd
    world.etcd.start()
    world.etcd.wait()
    world.expect({"a": "cordoned", "b": "ready"})
    ctl("cluster", "uncordon", "a", *second)
    world.expect({"a": "ready", "b": "ready"})
    assert not [k for k in world.etcd.keys() if k.startswith("cordon/")]


def test_a_cordon_written_by_hand_counts(world):
    world.etcd.ctl("put", PREFIX + "cordon/b", "1")
    world.expect({"a": "ready", "b": "cordoned"})
    world.etcd.ctl("del", PREFIX + "cordon/b")
    world.expect({"a": "ready", "b": "ready"})


def policies(world):
    return [json.loads(ctl("cluster", "set-policy", "-o", "json", "--router", f"127.0.0.1:{grpc}")) for _, grpc, _ in world.routers]


def both(world, policy, wait_s=5):
    until(lambda: {p["policy"] for p in policies(world)} == {policy}, lambda: f"both choose by {policy}: {policies(world)}", wait_s)


def test_a_policy_is_everyones(world):
    key = PREFIX + "routing/policy"
    before = policies(world)[0]["policy"]
    second = ["--router", f"127.0.0.1:{world.routers[1][1]}"]
    ctl("cluster", "set-policy", "--policy", "predicted", "--weights", "kv=0.5,load=0.3", *second)
    assert json.loads(world.etcd.ctl("get", key, "--print-value-only"))["policy"] == "predicted"
    both(world, "predicted")
    assert {(p["policy_from"], p["weights"]["kv"]) for p in policies(world)} == {(key, 0.5)}
    world.etcd.ctl("put", key, '{"policy": "session"}')  # written by hand
    both(world, "session")
    assert {p["weights_from"] for p in policies(world)} == {"configuration"}

    world.etcd.ctl("put", key, '{"policy": "sesion"}')
    until(lambda: all('"sesion" is not a policy' in p["trouble"] for p in policies(world)), "both refuse it")
    both(world, "session")  # the last valid one stays
    refused = world.second.events("router.policy_refused")[-1]
    assert refused["where"] == key and '"sesion" is not a policy' in refused["why"]
    world.everybody_serves()

    world.etcd.kill()
    with pytest.raises(subprocess.CalledProcessError) as refused:
        ctl("cluster", "set-policy", "--policy", "random", "--timeout", "25s", *second)
    assert "etcd did not take the policy" in refused.value.stderr, refused.value.stderr
    both(world, "session")
    world.second.kill()
    world.second.start()  # before etcd
    world.etcd.start()
    world.etcd.wait()
    world.expect({"a": "ready", "b": "ready"})
    ctl("cluster", "set-policy", "--policy", "random", *second)
    both(world, "random", 30)
    ctl("cluster", "set-policy", "--reset", *second)
    both(world, before)
    assert not [k for k in world.etcd.keys() if k.startswith("routing/")]


def test_a_stranger_is_not_let_in(world, tmp_path):
    if world.etcd.pki is None:
        pytest.skip("this etcd asks for no certificate")
    ctl("pki", "bootstrap", "--out", tmp_path / "foreign")
    foreign = {"etcd_cert_file": str(tmp_path / "foreign/agent.pem"), "etcd_key_file": str(tmp_path / "foreign/agent.key")}
    agent = world.agent("stranger", world.nodes["a"].engine_port, {"cluster": foreign})[0]
    until(lambda: agent.events("state.not_registered"), "it is told that it could not register")
    assert "nodes/stranger" not in world.etcd.keys()
    agent.kill()
    world.expect({"a": "ready", "b": "ready"})
