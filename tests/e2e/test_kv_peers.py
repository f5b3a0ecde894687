# SPDX-License-Identifier: Apache-2.0
"""Blocks that move between nodes over QUIC: found, fetched, verified; peers that die, stop, lie or are
strangers; and limits."""
import json
import random
import signal
import subprocess
import threading
import time

import pytest

from cluster import WAIT_S, ask, free_port, scaled, until
from kvbulk import GET, PEERS, Bulk, Refused, key
from kvpeers import CTL, MIB, REMOTE, bootstrap, pattern, rotate, security, tiers
from resp_raw import Raw, command


def missing(p, k):
    with pytest.raises(Refused) as e:
        p.get(k)
    return e.value.sentence


# ---- found and fetched ----

@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_put_on_one_is_got_on_the_other(world, workers):
    a = world("a", worker_threads=workers)
    b = world("b", [a], worker_threads=workers)
    values = {f"block {i}": pattern(n, i) for i, n in enumerate((0, 1, 65536, MIB, 20 * MIB + 77))}
    for name, value in values.items():
        a.put(key(name), value, model="m", tokens=16)
    b.ready()
    for name, value in values.items():
        b.hears(key(name))
        assert b.get(key(name), peers=True) == value
        assert b.get(key(name), peers=False) == value  # there is room, so the block stays
    assert b.peers()["127.0.0.1:%d" % a.quic]["fetched"] == len(values)
    assert b.metric("cgn_kv_peer_fetch_seconds_count", outcome="hit") == len(values)
    assert b.metric("cgn_kv_peer_bytes_total", direction="in") == sum(map(len, values.values()))
    assert a.metric("cgn_kv_peer_bytes_total", direction="out") == sum(map(len, values.values()))


def test_peers_are_counted(world):
    """Peers by state, handshakes of both sides, packets and bytes; a peer that ends is down, and what it had is a miss."""
    a = world("a")
    b = world("b", [a])
    a.put(key("x"), pattern(MIB))
    b.hears(key("x"))
    assert b.get(key("x")) == pattern(MIB)
    until(lambda: b.metric("cgn_kv_peers", state="ready") == 1, lambda: b.peers())
    assert b.metric("cgn_kv_peers", state="down") == 0 and a.metric("cgn_kv_peers", state="ready") == 0
    until(lambda: b.metric("cgn_quic_handshakes_total", outcome="dialled") == a.metric("cgn_quic_handshakes_total", outcome="accepted") == 1, "one each")
    until(lambda: b.metric("cgn_quic_bytes_total", direction="in") > MIB and a.metric("cgn_quic_bytes_total", direction="out") > MIB, "its bytes")
    assert b.metric("cgn_quic_bytes_total", direction="out") < MIB and b.metric("cgn_quic_packets_total", direction="in") > 20
    for p in (a, b):
        assert p.metric("cgn_quic_connections", state="open") == 1 and p.metric("cgn_quic_connections", state="handshake") == 0
        assert p.metric("cgn_quic_handshakes_total", outcome="failed") == p.metric("cgn_quic_handshakes_total", outcome="refused") == 0
    a.put(key("y"), b"value")
    b.hears(key("y"))
    a.process.stop()
    until(lambda: b.metric("cgn_kv_peers", state="down") == 1 and b.metric("cgn_kv_peers", state="ready") == 0, lambda: b.peers())
    with Bulk(b.bulk) as c:
        until(lambda: tiers(c, key("y")) == 0, "nobody has it")
    missing(b, key("y"))
    assert b.get(key("x")) == pattern(MIB), "what was fetched stays"


def test_a_peer_is_asked_only_when_the_asker_allows_it(world):
    a = world("a")
    b = world("b", [a])
    a.put(key("x"), b"value")
    b.hears(key("x"))
    with Bulk(b.bulk) as c:
        assert c.lookup([key("x")])[0].tiers == 0
        assert tiers(c, key("x")) == REMOTE
    with pytest.raises(Refused):
        b.get(key("x"), peers=False)
    assert b.get(key("x")) == b"value"


def test_a_revoked_peer_is_asked_no_more(world, tmp_path):
    pki = bootstrap(tmp_path / "own", "a", "b", "c")
    subprocess.run([CTL, "pki", "crl", "--renew", "--dir", pki], check=True, capture_output=True, timeout=WAIT_S)

    def peer(name, peers=()):
        return world(name, peers, pki=pki, sections={"security": {**security(pki, name), "crl_file": f"{pki}/crl.pem"}})
    a, c = peer("a"), peer("c")
    b = peer("b", [a, c])
    for p, name in ((a, "x"), (c, "y"), (a, "z")):
        p.put(key(name), name.encode())
        b.hears(key(name))
    assert b.get(key("x")) == b"x" and b.peers()[a.address]["state"] == "ready"
    subprocess.run([CTL, "pki", "revoke", "a", "--dir", pki], check=True, capture_output=True, timeout=WAIT_S)
    b.process.signal(signal.SIGHUP)
    until(lambda: "revoked" in b.peers()[a.address].get("why", ""), b.peers)
    assert b.peers()[a.address]["state"] != "ready" and b.get(key("y")) == b"y"
    missing(b, key("z"))


def test_the_redis_port_reads_what_peers_have(world):
    """GET, MGET and GETRANGE bring a peer's value in its place among the answers; commands that change a value know only this
    store's."""
    a = world("a")
    b = world("b", [a], resp_listen=f"127.0.0.1:{(port := free_port())}")
    values = {f"k{i}": pattern(n, i) for i, n in enumerate((3, 70_000, 2 * MIB, 500))}
    for name, value in values.items():
        a.put(key(name), value)
    for name in values:
        b.hears(key(name))

    def hexa(name):
        return key(name)[:32].hex()
    with Raw(("127.0.0.1", port)) as c:
        for command_of in (("GETDEL", hexa("k0")), ("SET", hexa("k0"), "v", "XX")):
            assert c.ask(*command_of) is None, "only this store's values are changed"
        c.send(command("PING") + command("GET", hexa("k2")) + command("GETRANGE", hexa("k1"), 10, 19) + command("MGET", hexa("k0"), "none", hexa("k3"))
               + command("PING", "x"))
        assert [c.read() for _ in range(5)] == [b"PONG", values["k2"], values["k1"][10:20], [values["k0"], None, values["k3"]], b"x"]
        assert c.ask("STRLEN", hexa("k2")) == 2 * MIB and c.ask("GET", hexa("k1")) == values["k1"], "what was fetched stays here"
    assert b.metric("cgn_kv_peer_fetch_seconds_count", outcome="hit") == 4


def test_a_peer_is_asked_only_when_that_beats_recomputing(world):
    a = world("a")
    b = world("b", [a])
    big = pattern(32 * MIB)
    a.put(key("big"), big)
    b.hears(key("big"))
    with Bulk(b.bulk) as c:
        with pytest.raises(Refused):
            c.get(key("big"), PEERS, budget_ms=1)  # no network brings 32 MiB in a millisecond
        assert c.get(key("big"), PEERS, budget_ms=60000).read() == big


def ctl(p, *args, rc=0):
    done = subprocess.run([CTL, "kv", "peers", "--uds", p.uds, *args], capture_output=True, timeout=WAIT_S)
    assert done.returncode == rc, done.stderr.decode()
    return (done.stderr if rc else done.stdout).decode()


def test_an_operator_is_told_of_peers(world, tmp_path):
    a = world("a", worker_threads=3)
    c = world("c", pki=bootstrap(tmp_path / "strange", "c"))
    b = world("b", [a, c], worker_threads=3, rack="r1")
    a.put(key("x"), pattern(MIB))
    b.hears(key("x"))
    assert b.get(key("x")) == pattern(MIB)
    until(lambda: "refused" in b.peers()[c.address].get("why", "") or "issuer" in b.peers()[c.address].get("why", ""), b.peers)
    told = json.loads(ctl(b, "-o", "json"))
    assert told["node"] == "b" and told["rack"] == "r1" and told["quic_address"] == b.address and told["fetching"] == 0
    rows = {row["address"]: row for row in told["peers"]}
    near, strange = rows[a.address], rows[c.address]
    assert near["certificate"] == "a" and near["name"] == "a" and near["state"] == "ready" and near["why"] == "" and near["blocks"] == 1
    assert near["fetched"] == 1 and near["fetched_bytes"] == MIB and near["rtt_us"] > 0 and near["bytes_per_second"] > 0
    assert strange["state"] in ("down", "connecting") and strange["name"] == "" and strange["certificate"] == ""
    assert "issuer is unknown" in strange["why"] or "CA is unknown" in strange["why"]
    assert told["handshakes_failed"] > 0 and told["last_refusal"] and told["last_refusal_ms"] >= 0
    text = ctl(b)
    for word in ("b, reached at", "refusals", "PEER", a.address, c.address, "ready", strange["why"][-20:]):
        assert word in text
    # a serves peers that a does not dial; the row of a peer with that name shows the bytes
    a.process.stop()
    config = next((world.folder / "a").glob("*.toml"))
    config.write_text(config.read_text().replace("peers = []", f'peers = ["{b.address}"]'))
    a.restart()
    a.ready()
    a.put(key("y"), pattern(MIB))
    b.hears(key("y"))
    b.get(key("y"))
    [row] = json.loads(ctl(a, "-o", "json"))["peers"]
    assert row["name"] == "b" and row["served"] == 1 and row["served_bytes"] == MIB
    until(lambda: a.metric("cgn_quic_handshakes_total", outcome="accepted") > 0 and a.metric("cgn_quic_packets_total", direction="out") > 100
          and a.metric("cgn_quic_bytes_total", direction="out") > MIB and a.metric("cgn_quic_connections", state="open") == 2, "metrics")
    alone = world("d", transport="off", cert="a")
    assert "blocks do not move" in ctl(alone, rc=1)


def test_what_is_removed_is_heard_of(world):
    a = world("a")
    b = world("b", [a])
    a.put(key("x"), b"value")
    b.hears(key("x"))
    with Bulk(a.bulk) as c:
        c.remove([key("x")])
    with Bulk(b.bulk) as c:
        until(lambda: tiers(c, key("x")) == 0, "b hears that it is gone")
    missing(b, key("x"))


@pytest.mark.both
@pytest.mark.threads
def test_many_clients_want_many_blocks(world):
    a = world("a", worker_threads=2)
    b = world("b", [a], worker_threads=3)
    names = [f"block {i}" for i in range(scaled(60, 20))]
    for i, name in enumerate(names):
        a.put(key(name), pattern(200000 + i, i))
    b.ready()
    for name in names:
        b.hears(key(name))
    wrong = []

    def client(seed):
        order = list(enumerate(names))
        random.Random(seed).shuffle(order)
        for i, name in order:
            if b.get(key(name)) != pattern(200000 + i, i):
                wrong.append(name)
    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert a.metric("cgn_kv_peer_bytes_total", direction="out") == sum(200000 + i for i in range(len(names)))  # each once


def test_a_list_that_is_the_same_everywhere_may_name_oneself(world):
    a = world("a")
    b = world("b", [a])
    b.process.stop()
    config = next((world.folder / "b").glob("*.toml"))
    config.write_text(config.read_text().replace(f'"{a.address}"', f'"{a.address}", "{b.address}"'))
    b.restart()
    until(lambda: {p["state"] for p in b.peers().values()} == {"ready", "left alone"}, b.peers)
    assert b.peers()[b.address]["why"] == "it is this node itself"


# ---- membership ----

def test_the_router_tells_stores_of_each_other(world, cluster):
    cluster.common["security"] = security(world.pki, "router")
    cluster.router()
    member = {"cluster": {"state_backend": "embedded", "router": f"127.0.0.1:{cluster.grpc_port}"}}
    a, b = (world(name, sections=member, rack="r") for name in "ab")
    for p in (a, b):
        cluster.node(p.name, sections={"agent": {"kv_uds": p.uds}, "kv": {"rack": "r"}})
    a.ready()
    b.ready()
    assert {n: p["distance"] for n, p in b.peers().items()} == {"a": "rack"}
    a.put(key("x"), b"value")
    b.hears(key("x"))
    assert b.get(key("x")) == b"value"
    # a cordoned node is not asked, and is asked again afterwards
    for verb, names in (("cordon", []), ("uncordon", ["a"])):
        subprocess.run([CTL, "cluster", verb, "a", "--router", f"127.0.0.1:{cluster.grpc_port}", "--ca", world.pki / "ca.pem"], check=True, capture_output=True, timeout=WAIT_S)
        until(lambda names=names: list(b.peers()) == names, b.peers)
    b.ready()
    # for the router, the agent's death is the node's death
    cluster.nodes["a"].agent.kill()
    until(lambda: not b.peers(), b.peers)
    # while the router is away, the known members stay
    cluster.nodes["a"].agent.start()
    b.ready()
    cluster.router_process.kill()
    until(lambda: b.process.events("state.stores_unknown"), "b notices")
    a.put(key("y"), b"value")
    b.hears(key("y"))
    assert b.get(key("y")) == b"value"


def test_stores_that_start_before_their_nodes_hear_of_each_other_soon(world, cluster):
    """Membership must not wait for a heartbeat: requests come as soon as nodes are ready."""
    cluster.common["security"] = security(world.pki, "router")
    cluster.router()
    a, b = (world(name, sections={"cluster": {"state_backend": "embedded", "router": f"127.0.0.1:{cluster.grpc_port}", "lease": "3m"},
                                  "agent": {"node_id": name, "heartbeat": "1m"}}) for name in "ab")
    until(lambda: a.process.events("state.stores_known") and b.process.events("state.stores_known"), "the router answered: nobody is there")
    for p in (a, b):
        cluster.node(p.name, sections={"agent": {"kv_uds": p.uds}})
    a.ready()
    b.ready()


# ---- faults ----

def flood(p, names, out, stop):
    """Get the names one after the other; |out| has name and value, or None for a clean miss."""
    for name in names:
        if stop.is_set():
            return
        try:
            out.append((name, p.get(key(name))))
        except Refused:
            out.append((name, None))


@pytest.mark.parametrize("other", [True, False], ids=["another has it", "nobody else has it"])
def test_a_peer_is_killed_in_the_middle(world, other):
    a = world("a", ram="512MiB", egress_limit="32MiB")  # slow enough to be killed during the fetch
    c = world("c", ram="512MiB") if other else None
    b = world("b", [p for p in (a, c) if p], ram="256MiB")
    value = pattern(48 * MIB)
    for p in (a, c):
        if p:
            p.put(key("x"), value)
    b.ready(2 if other else 1)
    b.hears(key("x"))
    before = b.used()
    got, stop = [], threading.Event()
    t = threading.Thread(target=flood, args=(b, ["x"], got, stop))
    t.start()
    until(lambda: b.metric("cgn_kv_peer_bytes_total", direction="in") > MIB or got, "bytes come")
    a.process.kill()
    t.join(60)
    assert not t.is_alive()
    if other:
        assert got == [("x", value)]
    else:
        assert got == [("x", None)]
        until(lambda: b.used() == before, "what was set aside is free again")
        with Bulk(b.bulk) as bulk:
            until(lambda: tiers(bulk, key("x")) == 0, "a is gone with all it had")
    a.restart()  # the peer is found again
    a.put(key("y"), b"value")
    b.hears(key("y"))
    assert b.get(key("y")) == b"value"


def test_a_client_that_leaves_ends_its_fetch(world):
    a = world("a", ram="256MiB", egress_limit="16MiB")  # slow enough for the client to leave during the fetch
    b = world("b", [a], ram="128MiB")
    value = pattern(32 * MIB)
    a.put(key("x"), value)
    b.ready()
    b.hears(key("x"))
    before = b.used()
    with Bulk(b.bulk) as c:
        c.send(GET, key("x"), PEERS)
        until(lambda: b.metric("cgn_kv_peer_bytes_total", direction="in") > MIB, "bytes come")
    until(lambda: b.used() == before, "what was set aside is free again")
    assert b.metric("cgn_kv_peer_bytes_total", direction="in") < 32 * MIB
    a.put(key("y"), b"value")
    b.hears(key("y"))
    assert b.get(key("y")) == b"value"


def test_a_peer_is_stopped_in_the_middle(world):
    a = world("a", ram="512MiB", egress_limit="32MiB", rack="r")
    c = world("c", ram="512MiB")
    b = world("b", [a, c], ram="256MiB", rack="r")  # a is nearer
    value = pattern(24 * MIB)
    for p in (a, c):
        p.put(key("x"), value)
    b.ready(2)
    b.hears(key("x"))
    until(lambda: all(p["blocks"] == 1 for p in b.peers().values()), b.peers)
    got, stop = [], threading.Event()
    t = threading.Thread(target=flood, args=(b, ["x"], got, stop))
    t.start()
    until(lambda: b.metric("cgn_kv_peer_bytes_total", direction="in") > MIB or got, "bytes come")
    a.process.signal(signal.SIGSTOP)
    t.join(60)
    assert got == [("x", value)]
    assert c.metric("cgn_kv_peer_bytes_total", direction="out") > 0  # the fetch continued where the stopped peer left it
    until(lambda: b.peers()[a.address]["state"] != "ready", b.peers)
    a.process.signal(signal.SIGCONT)
    b.ready(2)


def test_a_stranger_is_refused_both_ways(world, tmp_path):
    strange = bootstrap(tmp_path / "strange", "c")
    a = world("a")
    c = world("c", [a], pki=strange)
    b = world("b", [a, c])
    a.put(key("x"), b"value")
    c.put(key("y"), b"value")
    b.ready()
    b.hears(key("x"))
    for p, peer in ((b, c), (c, a)):
        until(lambda p=p, peer=peer: p.peers()[peer.address]["state"] == "down" and p.peers()[peer.address]["why"], p.peers)
    missing(b, key("y"))
    missing(c, key("x"))
    assert a.metric("cgn_kv_peer_bytes_total", direction="out") == 0


def test_without_certificates_there_is_no_quic(world, tmp_path):
    a = world("a", sections={"security": {}})
    assert a.process.events("kvcached.no_peers")
    assert ask(a.admin, "GET", "/peers").status == 404
    off = world("b", transport="off")
    assert not off.process.events("kvcached.no_peers")
    assert ask(off.admin, "GET", "/peers").status == 404


@pytest.mark.both
def test_certificates_change_while_blocks_move(world):
    a = world("a", ram="128MiB")
    b = world("b", [a], ram="128MiB")
    names = [f"block {i}" for i in range(scaled(120, 40))]
    for i, name in enumerate(names):
        a.put(key(name), pattern(300000, i))
    b.ready()
    for name in names:
        b.hears(key(name))
    got, stop = [], threading.Event()
    t = threading.Thread(target=flood, args=(b, names, got, stop))
    t.start()
    for p in (a, b):
        rotate(world.pki, p.name)
        p.process.signal(signal.SIGHUP)
    t.join(120)
    assert [v for _, v in got] == [pattern(300000, i) for i in range(len(names))]
    # the new certificates are in use: a store with only these is let in
    c = world("c", [a, b])
    c.ready(2)
    a.process.stop()
    a.restart()
    b.ready()
    assert not a.process.events("kvcached.tls_reload") and not b.process.events("kvcached.tls_reload")


def test_the_egress_limit_is_kept(world):
    limit = 8 * MIB
    a = world("a", egress_limit="8MiB")
    b = world("b", [a])
    for i in range(4):
        a.put(key(f"{i}"), pattern(4 * MIB, i))
    b.ready()
    for i in range(4):
        b.hears(key(f"{i}"))
    began = time.monotonic()
    threads = [threading.Thread(target=b.get, args=(key(f"{i}"),)) for i in range(4)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        sent, passed = a.metric("cgn_kv_peer_bytes_total", direction="out"), time.monotonic() - began
        assert sent <= limit * passed + limit / 50 + 256 * 1024  # the bucket, and a piece
        time.sleep(0.05)
    assert a.metric("cgn_kv_peer_bytes_total", direction="out") == 16 * MIB


def test_a_busy_peer_says_so(world):
    a = world("a", egress_streams=1, egress_limit="8MiB")
    b = world("b", [a])
    a.put(key("1"), pattern(8 * MIB, 1))
    a.put(key("2"), pattern(MIB, 2))
    b.ready()
    b.hears(key("1"))
    b.hears(key("2"))
    t = threading.Thread(target=b.get, args=(key("1"),))
    t.start()
    until(lambda: b.metric("cgn_kv_peer_bytes_total", direction="in") > 0, "the first one is under way")
    missing(b, key("2"))
    t.join()
    assert a.metric("cgn_kv_peer_refused_total", status="busy") == 1
    assert b.get(key("2")) == pattern(MIB, 2)  # now there is room


def test_a_store_ends_while_it_serves_and_fetches(world):
    a = world("a", egress_limit="8MiB", drain_timeout="200ms")
    b = world("b", [a], drain_timeout="200ms")
    a.put(key("1"), pattern(16 * MIB, 1))
    b.ready()
    b.hears(key("1"))
    for p in (b, a):
        got = []
        t = threading.Thread(target=lambda: got.append(missing_or_gone(b, key("1"))))
        t.start()
        until(lambda: b.metric("cgn_kv_peer_bytes_total", direction="in") > 0, "bytes come")
        assert p.process.stop() == 0
        t.join(60)
        assert got
        if p is b:
            b.restart()
            b.ready()
            b.hears(key("1"))


def missing_or_gone(p, k):
    try:
        p.get(k)
    except (Refused, AssertionError, OSError):
        return True
    return False
