# SPDX-License-Identifier: Apache-2.0
"""Embedded membership over gRPC: agents that join, leave and die, and a router that restarts."""
import subprocess

import pytest

from cluster import free_port
from state_world import Demo


@pytest.fixture
def start(tmp_path):
    demos = []

    def one(name, config, *args):
        demos.append(Demo(tmp_path, name, config, *args))
        return demos[-1]

    yield one
    for d in demos:
        d.stop()


@pytest.fixture
def config(tmp_path):
    port = free_port()
    return {
        "cluster": {"router": f"127.0.0.1:{port}", "lease": "3s", "state_dir": str(tmp_path / "state")},
        "agent": {"heartbeat": "1s"},
        "router": {"listen_grpc": f"127.0.0.1:{port}"},
    }


def router(start, config, name="router"):
    r = start(name, config, "watch")
    r.expect("connected")
    return r


def agent(start, config, node="n1"):
    return start(node, config, "announce", node, "127.0.0.1:7080")


def test_a_node_joins_changes_and_leaves(start, config):
    r = router(start, config)
    a = agent(start, config)
    a.expect("connected")
    r.expect("node n1 127.0.0.1:7080")
    a.say("draining")
    r.expect("node n1 127.0.0.1:7080 draining")
    r.silent(4)  # heartbeats renew the lease and cause no event
    a.say("quit")
    a.expect("left")
    r.expect("gone n1")


def test_a_second_agent_with_the_id_is_refused_by_name(start, config):
    r = router(start, config)
    first = agent(start, config)
    r.expect("node n1 127.0.0.1:7080")
    first.expect("connected")
    second = start("second", config, "announce", "n1", "127.0.0.1:7999")
    said, = second.expect("disconnected")
    assert '"n1"' in said and "127.0.0.1:7080" in said, said
    second.say("quit")  # takes no leave for the first
    second.expect("left")
    third = start("third", config, "announce", "n1", "127.0.0.1:7999")
    third.expect("disconnected")
    first.say("draining")
    r.expect("node n1 127.0.0.1:7080 draining")
    first.say("quit")
    r.expect("gone n1", "node n1 127.0.0.1:7999")
    third.expect("connected")


def test_a_killed_agent_goes_with_its_lease(start, config):
    r = router(start, config)
    a = agent(start, config)
    r.expect("node n1")
    a.kill()
    r.expect("gone n1")


def test_an_agent_waits_for_its_router(start, config):
    a = agent(start, config)
    assert "Connection refused" in a.expect("disconnected")[0]
    r = router(start, config)
    r.expect("node n1")
    a.expect("connected")


def test_a_restarted_router_knows_its_nodes_before_the_next_heartbeat(start, config):
    config["cluster"]["lease"] = "300s"
    config["agent"]["heartbeat"] = "60s"
    r = router(start, config)
    agents = [agent(start, config, f"n{i}") for i in range(5)]
    for a in agents:
        a.expect("connected")
    r.kill()
    router(start, config, "again").expect(*[f"node n{i}" for i in range(5)])


def test_cordons_outlive_the_router(start, config):
    r = router(start, config)
    r.say("cordon n1")
    r.expect("cordon n1", "FINE")
    r.kill()
    r = start("again", config, "watch")
    r.expect("cordon n1", "connected")
    r.say("uncordon n1")
    r.expect("uncordon n1", "FINE")


def test_another_clusters_agent_is_refused_in_words(start, config):
    r = router(start, config)
    a = agent(start, {**config, "cluster": {**config["cluster"], "name": "other"}})
    assert 'this router\'s cluster is "cognitora"' in a.expect("disconnected")[0]
    r.silent(1)


def test_an_agent_leaves_though_its_router_is_gone(start, config):
    r = router(start, config)
    a = agent(start, config)
    a.expect("connected")
    r.kill()
    a.say("quit")
    a.expect("left") if not a.lines.qsize() else a.expect("disconnected", "left")
    a.popen.wait(10)
    assert a.popen.returncode == 0


def test_mutual_tls(start, config, tmp_path):
    tls = tmp_path / "tls"
    tls.mkdir()

    def openssl(*args):
        subprocess.run(["openssl", *args], cwd=tls, check=True, capture_output=True)

    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test ca", "-days", "2")
    (tls / "ext").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name in ("router", "agent"):
        openssl("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", f"{name}.crt", "-days", "2", "-extfile", "ext")

    def security(name, **more):
        return {"security": {"ca_file": str(tls / "ca.crt"), "cert_file": str(tls / f"{name}.crt"), "key_file": str(tls / f"{name}.key"), **more}}

    r = router(start, {**config, **security("router", require_mtls=True)})
    known = agent(start, {**config, **security("agent", require_mtls=True)})
    known.expect("connected")
    r.expect("node n1")
    agent(start, config, "clear").expect("disconnected")
    agent(start, {**config, "security": {"ca_file": str(tls / "ca.crt")}}, "nameless").expect("disconnected")
    r.silent(1)
