# SPDX-License-Identifier: Apache-2.0
"""Roles in certificates: who may announce a node, send an agent requests, give orders, and exchange blocks. Ports that other machines reach."""
import json
import os
import signal
import socket
import subprocess

import pytest

from cluster import BUILD, WAIT_S, Cluster, ask, audited, free_port, until
from kvbulk import Refused, Store, key
from kvpeers import CTL, Peer, bootstrap, rotate, security

FAST = ("--time-scale", "0")
LEAVES = ("router", "a", "b", "metrics", "admin", "bob=viewer", "night=shift", "bare=none", "kv=kvcached", "stranger=operator@a")


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return bootstrap(tmp_path_factory.mktemp("pki"), *LEAVES)


def of(pki, name, **more):
    return {"security": {**security(pki, name), "require_mtls": True, **more}}


@pytest.fixture(scope="module")
def world(pki, tmp_path_factory):
    """A router and node a, with certificates of their own."""
    folder = tmp_path_factory.mktemp("world")
    with Cluster(folder) as c:
        c.audit = folder / "audit.jsonl"
        c.router({**of(pki, "router", audit_file=str(c.audit)), 'roles."shift"': {"allow": ["node.cordon:a", "status.read"]}})
        c.node("a", *FAST, sections=of(pki, "a"))
        c.wait_ready(1)
        yield c


def ctl(pki, name, router, *args):
    who = ("--ca", pki / "ca.pem", "--cert", pki / f"{name}.pem", "--key", pki / f"{name}.key") if name else ()
    return subprocess.run([CTL, *map(str, args), "--router", f"127.0.0.1:{router}", *map(str, who)], capture_output=True, text=True, timeout=WAIT_S)


ORDERS = {"node.cordon": ("cluster", "cordon", "a"), "node.drain": ("cluster", "drain", "a"), "policy.set": ("cluster", "set-policy", "--policy", "random"),
          "model.change": ("model", "unload", "sim")}


@pytest.mark.parametrize("name", ["bob", "a", "router", "metrics", "bare", "kv"])
def test_only_an_operator_gives_orders(world, pki, name):
    for action, order in ORDERS.items():
        done = ctl(pki, name, world.grpc_port, *order)
        lacks = "status.read" if name in ("bare", "kv") and action in ("policy.set", "model.change") else action  # these ask for both
        assert done.returncode == 1 and f"lacks the permission {lacks}" in done.stderr, (action, done)
        audited(world.audit, lacks, by="certificate", name=name, decision="refused")
    assert world.states() == {"a": "ready"} and world.chat("still").status == 200


def test_an_operator_does(world, pki):
    assert ctl(pki, "admin", world.grpc_port, "cluster", "cordon", "a").returncode == 0
    until(lambda: world.status()["nodes"][0]["cordoned"], world.status)
    assert ctl(pki, "admin", world.grpc_port, "cluster", "uncordon", "a").returncode == 0
    until(lambda: not world.status()["nodes"][0]["cordoned"], world.status)


def test_who_looks_may_look(world, pki):
    for name in ("bob", "a", "metrics", "router", "night"):
        assert "cluster" in ctl(pki, name, world.grpc_port, "cluster", "status").stdout, name
    assert "lacks the permission status.read" in ctl(pki, "bare", world.grpc_port, "cluster", "status").stderr
    assert ctl(pki, "", world.grpc_port, "cluster", "status").returncode != 0


def test_a_role_of_the_configuration_holds_for_its_objects_and_after_a_reload(world, pki):
    assert ctl(pki, "night", world.grpc_port, "cluster", "uncordon", "a").returncode == 0
    refused = ctl(pki, "night", world.grpc_port, "cluster", "cordon", "b")
    assert refused.returncode == 1 and "lacks the permission node.cordon:b" in refused.stderr, refused
    assert "lacks the permission node.drain" in ctl(pki, "night", world.grpc_port, "cluster", "drain", "a").stderr
    config = world.folder / "router.toml"
    text = config.read_text()
    config.write_text(text.replace('"node.cordon:a", ', ""))
    world.router_process.signal(signal.SIGHUP)
    until(lambda: ctl(pki, "night", world.grpc_port, "cluster", "uncordon", "a").returncode == 1, world.logs)
    config.write_text(text.replace('"node.cordon:a"', '"node.cordon:"'))
    world.router_process.signal(signal.SIGHUP)
    until(lambda: world.router_process.events("svc.reload_failed"), world.logs)
    config.write_text(text)
    world.router_process.signal(signal.SIGHUP)
    until(lambda: ctl(pki, "night", world.grpc_port, "cluster", "uncordon", "a").returncode == 0, world.logs)


@pytest.mark.parametrize("name, node", [("b", "a2"), ("b", "a"), ("router", "router"), ("admin", "admin"), ("stranger", "a"), ("bare", "b"), ("kv", "kv")])
def test_nobody_announces_a_node_that_is_not_his(world, pki, name, node):
    """An agent with the certificate of another node, or of no agent."""
    _, port = world.engine(f"engine-{name}-{node}", *FAST)
    rogue, _, _ = world.agent(node, port, of(pki, name))
    try:
        until(lambda: any("lacks the permission node.announce" in e["why"] for e in rogue.events("state.not_registered")), rogue.log)
        shown = "a" if name == "stranger" else name
        audited(world.audit, "node.announce", name=shown, decision="refused")
        assert world.states() == {"a": "ready"} and len(world.status()["nodes"]) == 1
    finally:
        rogue.stop()


def test_only_a_router_sends_an_agent_requests(world, pki):
    ask_agent = BUILD / "agent_ask"
    for name in ("a", "b", "admin", "bob", "metrics", "bare", "router"):
        env = {**os.environ, "ASK_CA": f"{pki}/ca.pem", "ASK_CERT": f"{pki}/{name}.pem", "ASK_KEY": f"{pki}/{name}.key"}
        done = subprocess.run([ask_agent, f"127.0.0.1:{world.nodes['a'].agent_port}", "generate", "model=sim"], env=env, capture_output=True, text=True,
                              input='{"model":"sim","messages":[{"role":"user","content":"x"}],"max_tokens":1}', timeout=WAIT_S)
        assert ("lacks the permission node.generate" in done.stdout + done.stderr) == (name != "router"), (name, done)


def test_certificates_of_earlier_times_are_let_in_by_a_setting(world, pki):
    config = world.folder / "router.toml"
    text = config.read_text()
    config.write_text(text.replace("require_mtls = true", "require_mtls = true\nlegacy_roles = true"))
    world.router_process.signal(signal.SIGHUP)
    until(lambda: ctl(pki, "bare", world.grpc_port, "cluster", "status").returncode == 0, world.logs)
    assert ctl(pki, "bob", world.grpc_port, "cluster", "cordon", "a").returncode == 1
    config.write_text(text)
    world.router_process.signal(signal.SIGHUP)
    until(lambda: ctl(pki, "bare", world.grpc_port, "cluster", "status").returncode == 1, world.logs)


def test_a_certificate_of_another_cluster_counts_for_nothing(world, pki, tmp_path):
    subprocess.run([CTL, "pki", "bootstrap", "--out", pki, "--name", "other", "--leaf", "boss=operator"], check=True, capture_output=True, timeout=WAIT_S)
    done = ctl(pki, "boss", world.grpc_port, "cluster", "cordon", "a")
    assert done.returncode == 1 and "names no role in this cluster" in done.stderr, done


# ---- blocks ----

def test_stores_give_blocks_to_stores(pki, tmp_path):
    a, value = Peer(tmp_path, pki, "a"), b"x" * 5000
    b = stranger = None
    try:
        b = Peer(tmp_path, pki, "b", peers=[a])
        b.ready()
        a.put(key("one"), value)
        b.hears(key("one"))
        assert b.get(key("one")) == value
        stranger = Peer(tmp_path, pki, "c", peers=[a], cert="bob")
        until(lambda: "lacks the permission kv." in json.dumps(stranger.peers()), stranger.peers)
        until(lambda: a.process.events("kvpeer.guest_refused"), a.process.log)
        with pytest.raises(Refused):
            stranger.get(key("one"))
    finally:
        for p in (a, b, stranger):
            if p is not None:
                p.close()


def kv(pki, name, store, *args):
    return subprocess.run([CTL, "kv", *args, "--addr", f"127.0.0.1:{store.port}", "--ca", pki / "ca.pem", "--cert", pki / f"{name}.pem", "--key", pki / f"{name}.key"],
                          capture_output=True, text=True, timeout=WAIT_S)


def test_who_may_read_write_and_remove_blocks(pki, tmp_path):
    s = Store(tmp_path, of(pki, "kv"))
    value = tmp_path / "value"
    value.write_bytes(b"some bytes")
    try:
        want = {"bob": (1, 1, 1, 0), "b": (0, 0, 1, 0), "admin": (0, 0, 0, 0), "metrics": (1, 1, 1, 0), "bare": (1, 1, 1, 1)}
        for name, codes in want.items():
            orders = (("put", "k", "--file", str(value)), ("get", "k"), ("rm", "k"), ("stats",))
            done = [kv(pki, name, s, *o) for o in orders]
            assert tuple(d.returncode for d in done) == codes, (name, done)
            assert all("lacks the permission" in d.stderr for d in done if d.returncode), (name, done)
    finally:
        s.close()


def redis(port, *commands):
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as s:
        out = b""
        for c in commands:
            s.sendall(c + b"\r\n")
            while not (got := s.recv(65536)).endswith(b"\r\n"):
                out += got
            out += got
    return out.decode().splitlines()


def test_the_password_of_the_redis_port_gives_a_role(tmp_path):
    (tmp_path / "password").write_text("word\n")
    big = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$8000\r\n" + b"v" * 8000
    for role, may in (("operator", (1, 1, 1)), ("kvcached", (1, 1, 0)), ("router", (0, 1, 0)), ("viewer", (0, 0, 0))):
        s = Store(tmp_path, resp_listen=f"127.0.0.1:{(port := free_port())}", resp_password_file=str(tmp_path / "password"), resp_role=role)
        try:
            said = redis(port, b"AUTH word", b"SET k v", big, b"EXISTS k", b"DEL k", b"PING")
            for at, allowed in ((1, may[0]), (2, may[0]), (3, may[1]), (4, may[2])):
                assert said[at].startswith("-NOPERM") != bool(allowed), (role, said)
            assert said[0] == "+OK" and said[5] == "+PONG"
        finally:
            s.close()


# ---- ports that other machines reach ----

def program(name, *settings):
    return [BUILD / "src" / name.removeprefix("cgn-") / name, *(x for s in settings for x in ("--set", s))]


PORTS = [("cgn-router", "router.listen_grpc", "mtls"), ("cgn-router", "router.listen_admin", "cert"), ("cgn-agent", "agent.listen", "mtls"),
         ("cgn-agent", "agent.listen_admin", "cert"), ("cgn-kvcached", "kv.listen", "mtls"), ("cgn-kvcached", "kv.listen_admin", "cert"), ("cgn-metrics", "metrics.listen", "cert")]


@pytest.mark.parametrize("name, setting, need", PORTS)
def test_a_port_for_orders_is_not_open_to_everybody(pki, name, setting, need):
    for addr in ("0.0.0.0:0", "[::]:0"):
        bare = subprocess.run([*program(name, f"{setting}={addr}"), "--check"], capture_output=True, text=True, timeout=WAIT_S)
        assert bare.returncode == 3 and f"{setting} {addr} can be reached from other machines" in bare.stderr + bare.stdout, bare
        assert "security.insecure" in bare.stderr + bare.stdout
    files = [f"security.{k}={v}" for k, v in security(pki, "router").items()]
    for more, fine in ((["security.insecure=true"], True), ([*files, "security.require_mtls=true"], True), (files, need == "cert"), (files[1:], False)):
        done = subprocess.run([*program(name, f"{setting}=0.0.0.0:0", *more), "--check"], capture_output=True, text=True, timeout=WAIT_S)
        assert ("can be reached" not in done.stderr + done.stdout) == fine, (more, done)


def test_open_ports_are_told_of(tmp_path):
    with Cluster(tmp_path) as c:
        r = c.router({"router": {"listen_grpc": f"0.0.0.0:{c.grpc_port}"}, "security": {"insecure": True}})
        c.node("a", *FAST, sections={"security": {"insecure": True}, "agent": {"listen": f"0.0.0.0:{(port := free_port())}", "advertise": f"127.0.0.1:{port}"}})
        (said,) = until(lambda: r.events("svc.insecure"), r.log)
        assert f"router.listen_grpc 0.0.0.0:{c.grpc_port}" in said["ports"] and said["level"] == "warn"
        until(lambda: c.states() == {"a": "ready"}, c.logs)
        text = ctl(None, "", c.grpc_port, "cluster", "status").stdout
        assert f"INSECURE  router: everybody who reaches router.listen_grpc 0.0.0.0:{c.grpc_port}" in text and "INSECURE  1 node: everybody" in text, text
        assert json.loads(ctl(None, "", c.grpc_port, "cluster", "status", "-o", "json").stdout)["insecure"].startswith("router.listen_grpc")
