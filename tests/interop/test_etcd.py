# SPDX-License-Identifier: Apache-2.0
"""Membership in a real etcd: joining, leaving, dying, and the faults of etcd itself."""
import json
import signal
import subprocess

import pytest

from cluster import BUILD, Cluster
from etcd_world import World, free_port, until

N1, N2 = "/cognitora/cognitora/nodes/n1", "/cognitora/cognitora/nodes/n2"


@pytest.fixture
def world(tmp_path):
    w = World(tmp_path)
    yield w
    w.close()


def router(w, config, name="router"):
    return w.demo(name, config, "watch")


def agent(w, config, node="n1", addr="127.0.0.1:7080"):
    a = w.demo(node, config, "announce", node, addr)
    a.expect("connected")
    return a


def test_a_node_joins_changes_and_leaves(world):
    e = world.etcd()
    config = world.config(e.url)
    r = router(world, config)
    r.expect("connected")
    a = agent(world, config)
    r.expect("node n1 127.0.0.1:7080")
    assert '"address":"127.0.0.1:7080"' in e.ctl("get", N1).stdout
    a.say("draining")
    r.expect("node n1 127.0.0.1:7080 draining")
    a.say("ready")
    r.expect("node n1 127.0.0.1:7080")
    a.say("quit")
    a.expect("left")
    r.expect("gone n1")
    assert e.keys() == []


def test_a_second_agent_with_the_id_is_refused_by_name(world):
    e = world.etcd()
    config = world.config(e.url)
    r = router(world, config)
    r.expect("connected")
    first = agent(world, config)
    r.expect("node n1 127.0.0.1:7080")
    second = world.demo("second", config, "announce", "n1", "127.0.0.1:7999")
    said, = second.expect("disconnected")
    assert '"n1"' in said and "127.0.0.1:7080" in said, said
    first.say("draining")
    r.expect("node n1 127.0.0.1:7080 draining")
    first.kill()
    again = agent(world, config)  # a restarted agent need not wait for the lease of the one before
    r.expect("node n1 127.0.0.1:7080")
    again.say("quit")
    r.expect("gone n1", "node n1 127.0.0.1:7999")
    second.expect("connected")


def test_a_late_router_sees_everybody(world):
    e = world.etcd()
    config = world.config(e.url)
    agent(world, config, "n1")
    agent(world, config, "n2", "127.0.0.1:7081")
    e.ctl("put", "/cognitora/cognitora/cordon/n2", "true")
    router(world, config).expect("node n1", "node n2", "cordon n2", "connected")


def test_a_killed_agent_goes_with_its_lease(world):
    e = world.etcd()
    config = world.config(e.url)
    r = router(world, config)
    r.expect("connected")
    a = agent(world, config)
    r.expect("node n1")
    a.kill()
    r.expect("gone n1")


def test_a_live_agent_outlasts_its_lease(world):
    e = world.etcd()
    config = world.config(e.url, lease="3s")
    r = router(world, config)
    r.expect("connected")
    agent(world, config)
    r.expect("node n1")
    r.silent(7)


def test_cordons_persist_and_reach_every_router(world):
    e = world.etcd()
    config = world.config(e.url)
    one, two = router(world, config, "one"), router(world, config, "two")
    one.expect("connected")
    two.expect("connected")
    one.say("cordon n1")
    one.expect("cordon n1", "FINE")
    two.expect("cordon n1")
    e.kill()
    one.expect("disconnected")
    two.expect("disconnected")
    e.start()
    one.expect("connected")
    two.expect("connected")
    router(world, config, "three").expect("cordon n1", "connected")
    two.say("uncordon n1")
    two.expect("uncordon n1", "FINE")
    one.expect("uncordon n1")
    one.say("cordon a/b")
    one.expect("INVALID")


def test_a_cordon_without_etcd_is_refused_in_words(world):
    r = router(world, world.config(f"http://127.0.0.1:{free_port()}"))
    r.expect("disconnected")
    r.say("cordon n1")
    assert "Connection refused" in r.expect("UNAVAILABLE")[0]


def test_etcd_is_killed_and_comes_back(world):
    """No member is lost, no event is repeated, and the watch goes on."""
    e = world.etcd()
    config = world.config(e.url)
    r = router(world, config)
    r.expect("connected")
    a = agent(world, config)
    r.expect("node n1")
    for _ in range(2):
        e.kill()
        r.expect("disconnected")
        a.expect("disconnected")
        r.silent(4)  # longer than the lease: the members stay
        e.start()
        r.expect("connected")
        a.expect("connected")
    a.say("draining")
    r.expect("node n1 127.0.0.1:7080 draining")


def test_an_agent_that_died_while_etcd_was_away_goes(world):
    e = world.etcd()
    config = world.config(e.url)
    r = router(world, config)
    r.expect("connected")
    a = agent(world, config)
    r.expect("node n1")
    e.kill()
    r.expect("disconnected")
    a.kill()
    e.start()
    r.expect("connected")
    r.expect("gone n1")


def test_a_compaction_that_was_missed_leads_to_a_fresh_look(world):
    e = world.etcd()
    config = world.config(e.url)
    e.ctl("put", N1, '{"id":"n1","address":"h:1"}')
    e.ctl("put", N2, '{"id":"n2","address":"h:2"}')
    r = router(world, config)
    r.expect("node n1", "node n2", "connected")
    e.kill()
    r.expect("disconnected")
    e.start(client=free_port())  # at an address that the router does not know
    e.ctl("del", N1)
    e.ctl("put", N2, '{"id":"n2","address":"h:22"}')
    for i in range(20):
        e.ctl("put", "/other", str(i))
    e.ctl("compact", str(e.revision()))
    e.kill()
    e.start()
    r.expect("node n2 h:22", "gone n1", "connected")
    e.ctl("put", N1, '{"id":"n1","address":"h:111"}')
    r.expect("node n1 h:111")


def test_a_compaction_while_watching_is_not_noticed(world):
    e = world.etcd()
    r = router(world, world.config(e.url))
    r.expect("connected")
    for i in range(5):
        e.ctl("put", N1, '{"id":"n1","address":"h:%d"}' % i)
        r.expect(f"node n1 h:{i}")
        e.ctl("compact", str(e.revision()))
    e.ctl("del", N1)
    r.expect("gone n1")


def test_etcd_loses_its_data(world):
    """The old revision is invalid: routers list again, agents get a new lease."""
    e = world.etcd()
    config = world.config(e.url)
    e.ctl("put", N2, '{"id":"n2","address":"h:2"}')
    for i in range(20):
        e.ctl("put", "/other", str(i))
    r = router(world, config)
    r.expect("node n2", "connected")
    a = agent(world, config)
    r.expect("node n1")
    e.kill()
    e.wipe()
    r.expect("disconnected")
    a.expect("disconnected")
    e.start()
    a.expect("connected")
    until(lambda: r.lines.qsize() >= 2, "the router says something")
    told = r.expect("gone n2", "connected", *(["gone n1", "node n1"] if "gone n1" in list(r.lines.queue) else []))
    assert "gone n2" in told
    until(lambda: N1 in e.keys(), "n1 is registered again")


def test_a_revoked_lease_is_replaced(world):
    e = world.etcd()
    config = world.config(e.url)
    r = router(world, config)
    r.expect("connected")
    agent(world, config)
    r.expect("node n1")
    lease = e.ctl("lease", "list").stdout.split()[-1]
    e.ctl("lease", "revoke", lease)
    r.expect("gone n1")
    r.expect("node n1")


def test_nonsense_in_etcd_is_ignored(world):
    e = world.etcd()
    r = router(world, world.config(e.url))
    r.expect("connected")
    for key, value in [(N1, "nonsense"), (N1, '{"id":"n2","address":"h:1"}'), (N1, '{"id":"n1"}'), (N1 + "/x", "{}"),
                       ("/cognitora/cognitora/nodes/", "{}"), ("/cognitora/cognitora/routing/policy", "{}"),
                       ("/cognitora/cognitoranodes/n1", '{"id":"n1","address":"h:1"}')]:
        e.ctl("put", key, value)
    e.ctl("put", N2, '{"id":"n2","address":"h:2","unknown":[1],"startedUnixMs":"7"}')
    r.expect("node n2")


def test_many_nodes_come_in_pages(world):
    e = world.etcd()
    n = 600
    for start in range(0, n, 100):
        nodes = [json.dumps({"id": f"n{i:04}", "address": f"h:{i + 1}"}) for i in range(start, start + 100)]
        puts = [f"put /cognitora/cognitora/nodes/n{start + k:04} {json.dumps(node)}" for k, node in enumerate(nodes)]
        e.ctl("txn", stdin="\n" + "\n".join(puts) + "\n\n\n")
    r = router(world, world.config(e.url))
    r.expect(*[f"node n{i:04}" for i in range(n)], "connected")


def test_the_next_endpoint_is_tried(world):
    e = world.etcd()
    config = world.config(f"http://127.0.0.1:{free_port()}", e.url, f"http://127.0.0.1:{free_port()}")
    a = agent(world, config)
    r = router(world, config)
    lines = r.expect("node n1", "connected")
    assert len(lines) == 2
    r.say("cordon n1")
    r.expect("cordon n1", "FINE")
    a.say("quit")
    a.expect("left")
    r.expect("gone n1")


def test_a_member_of_three_is_killed(world):
    """The other members go on, and so do router and agents; an isolated member decides nothing."""
    members = world.etcd_cluster(3)
    config = world.config(*[m.url for m in members], lease="20s")
    r = router(world, config)
    r.expect("connected")
    a = agent(world, config)
    r.expect("node n1")
    members[0].kill()  # the member that router and agents talk to
    r.expect("disconnected", "connected")
    a.say("draining")
    r.expect("node n1 127.0.0.1:7080 draining")
    members[1].popen.send_signal(signal.SIGSTOP)
    r.expect("disconnected", wait_s=60)  # its streams are open and silent: only the probe detects the fault
    members[1].popen.send_signal(signal.SIGCONT)
    r.expect("connected", wait_s=60)
    assert not any(line.startswith("gone") for line in r.seen)


def test_tls_with_client_certificates(world, tmp_path):
    tls = tmp_path / "tls"
    tls.mkdir()

    def openssl(*args):
        subprocess.run(["openssl", *args], cwd=tls, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test ca", "-days", "2")
    for name in ("etcd", "client"):
        (tls / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", f"{name}.crt", "-days", "2", "-extfile", f"{name}.ext")
    e = world.etcd(tls)
    ca, cert, key = (str(tls / f) for f in ("ca.crt", "client.crt", "client.key"))
    config = world.config(e.url, etcd_ca_file=ca, etcd_cert_file=cert, etcd_key_file=key)
    r = router(world, config)
    r.expect("connected")
    agent(world, config)
    r.expect("node n1")
    e.kill()
    r.expect("disconnected")
    e.start()
    r.expect("connected")
    router(world, world.config(e.url, etcd_ca_file=ca), "nobody").expect("disconnected")  # without a certificate of its own
    router(world, world.config(e.url), "stranger").expect("disconnected")  # does not know etcd's CA


def test_wanted_adapters_reach_agents_by_every_router(world, tmp_path):
    """A second router, which was not asked, tells a node that joins later; both see the other's orders."""
    e = world.etcd()
    lora = tmp_path / "lora"
    lora.mkdir()
    (lora / "adapter_config.json").write_text("{}")
    def ctl(router, *args):
        done = subprocess.run([BUILD / "src/ctl/cgn-ctl", "model", *args, "--router", f"127.0.0.1:{router.grpc_port}"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout
    (tmp_path / "1").mkdir(), (tmp_path / "2").mkdir()
    with Cluster(tmp_path / "1") as one, Cluster(tmp_path / "2") as two:
        for c in (one, two):
            c.common = world.config(e.url)
            c.router()
        one.node("a", "--time-scale", "0", "--lora", sections={"engine": {"kind": "vllm"}})
        one.wait_ready(1), two.wait_ready(1)
        ctl(one, "load", "de", "--lora", str(lora), "--base", "sim", "--wait", "--timeout", "20s")
        assert "/cognitora/cognitora/models/wanted" in e.keys()
        until(lambda: two.chat("x", model="de", max_tokens=1).status == 200, "the other router serves it")
        ctl(two, "load", "fr", "--lora", str(lora), "--base", "sim", "--wait", "--timeout", "20s")
        assert "de" in ctl(one, "ls") and "fr" in ctl(one, "ls")
        one.router_process.kill()
        two.node("b", "--time-scale", "0", "--lora", sections={"engine": {"kind": "vllm"}})
        until(lambda: ctl(two, "ls").count("ready") == 6, lambda: f"both nodes have all: {ctl(two, 'ls')}")
        ctl(two, "unload", "de", "--wait", "--timeout", "20s")
        until(lambda: two.chat("x", model="de", max_tokens=1).status == 404, "it is gone")
