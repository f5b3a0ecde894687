# SPDX-License-Identifier: Apache-2.0
"""Two versions in one cluster: every pair of programs, rolling upgrades and downgrades under load, and state that both read."""
import contextlib
import itertools
import subprocess

import pytest

import cluster as module
import kept_state
from cluster import Cluster, ask, free_port, until
from kvbulk import key as block_key
from kvpeers import Peer, bootstrap, pattern
from several import Several
from slots_world import World, prompt_of
from steady_load import Load
from test_federation import Fed
from test_systemd import Manager

PAIRS = [dict(zip(("cgn-router", "cgn-agent", "cgn-kvcached", "cgn-ctl"), which)) for which in itertools.product(("old", "new"), repeat=4)]
MIXED = [p for p in PAIRS if len(set(p.values())) > 1]


def asked(versions, c, *args):
    done = subprocess.run([versions.path("cgn-ctl"), *args, "--router", f"127.0.0.1:{c.grpc_port}"], capture_output=True, text=True)
    assert done.returncode == 0, (args, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("which", MIXED, ids=lambda w: "-".join(f"{p.removeprefix('cgn-')}_{v}" for p, v in w.items()))
def test_any_mixture_serves(versions, tmp_path, which):
    """Registration, a watch, requests, a node's cache in the store, and the orders of an operator."""
    versions.of.update(which)
    w = World(tmp_path)
    with w.c as c:
        prompt = prompt_of(1)
        assert w.asked(prompt) == 0
        w.idle()
        assert w.asked(prompt) > 0, "the router sent it to the slot that has it"
        w.asked(prompt_of(2))  # takes the one slot: the first prompt goes to the store
        w.idle()
        assert w.asked(prompt) > 0, (w.kept(), c.logs())
        assert "ready" in asked(versions, c, "cluster", "nodes")
        assert "tiny" in asked(versions, c, "cluster", "status")
        assert "a cordoned" in asked(versions, c, "cluster", "cordon", "a")
        until(lambda: c.states() == {"a": "cordoned"}, c.logs)
        asked(versions, c, "cluster", "uncordon", "a")
        until(lambda: c.states() == {"a": "ready"}, c.logs)
        asked(versions, c, "cluster", "set-policy", "--policy", "least_loaded")
        w.asked(prompt)
        assert "least_loaded" in asked(versions, c, "explain")


@pytest.mark.parametrize("a, b", [("old", "new"), ("new", "old")])
def test_stores_fetch_from_each_other(versions, tmp_path, a, b):
    pki = bootstrap(tmp_path / "pki", "a", "b")
    versions.set(a, "cgn-kvcached")
    one = Peer(tmp_path, pki, "a")
    versions.set(b, "cgn-kvcached")
    two = Peer(tmp_path, pki, "b", [one])
    try:
        two.ready()
        for name, size in (("small", 100), ("large", 3 << 20)):
            one.put(block_key(name), pattern(size), model="m", tokens=16)
            two.hears(block_key(name))
            assert two.get(block_key(name)) == pattern(size)
    finally:
        two.close()
        one.close()


@pytest.mark.parametrize("metrics, others", [("old", "new"), ("new", "old")])
def test_metrics_of_the_other_version_are_collected(versions, tmp_path, metrics, others):
    versions.set(others)
    versions.set(metrics, "cgn-metrics")
    with Cluster(tmp_path) as c:
        c.router()
        c.node("a", "--time-scale", "0")
        c.wait_ready()
        port = free_port()
        p = c.run("metrics", "cgn-metrics", "--config", c.config("metrics", {"metrics": {
            "listen": f"127.0.0.1:{port}", "scrape_routers": [f"127.0.0.1:{c.grpc_port}"], "scrape_interval": "300ms", "scrape_timeout": "200ms"}}))
        until(lambda: c.listens(port, p), p.log)
        until(lambda: b'cgn_scrape_targets{state="up"} 2' in ask(port, "GET", "/metrics").body, p.log)


@pytest.mark.parametrize("here, there", [("old", "new"), ("new", "old")])
def test_a_cluster_forwards_to_one_of_the_other_version(versions, tmp_path, here, there):
    """Requests leave, and the summary of the other cluster is read."""
    with contextlib.ExitStack() as stack:
        fed = Fed(stack, tmp_path)
        fed.add("a", "b")
        fed.link("a", "b")
        versions.set(there)
        fed.start("b", ("--time-scale", "0"), **{"router.federation": {"summary_interval": "200ms"}})
        versions.set(here)
        fed.start("a", **{"router.federation": {"summary_interval": "200ms"}})
        fed.met("a", "b")
        a = fed.c["a"].chat("hello", max_tokens=4)
        assert a.status == 200 and a.headers["x-cgn-peer"] == "b", (a.status, a.body)

        def summaries(outcome):
            return fed.c["a"].metric("cgn_federation_summaries_total", peer="b", outcome=outcome)
        until(lambda: summaries("whole") + summaries("changes") > 0, fed.c["a"].scrape)
        assert summaries("refused") == 0


# ---- rolling, under load ----

def replace(process, ready, load):
    """End a program as its service manager does, and start the version that is set now. Meanwhile clients of a router wait in its sockets,
    which the manager keeps."""
    assert process.stop() == 0, process.log()[-2000:]
    if "router" not in process.name:
        load.more()
    process.start()
    until(lambda: ready() or not process.alive(), process.log)
    assert process.alive(), process.log()[-2000:]
    load.more()


def managed_routers(c, versions, monkeypatch, tmp_path, n):
    """Start |n| routers, each under a service manager that keeps its sockets."""
    managers, plain = [], module.Process
    for i in range(n):
        (tmp_path / f"manager-{i}").mkdir()
        managers.append(Manager(tmp_path / f"manager-{i}"))

        class Placed(managers[i].starter()):
            def start(self):
                versions.place(self)
                super().start()
        monkeypatch.setattr(module, "Process", Placed)
        c.routers(1)
    monkeypatch.setattr(module, "Process", plain)
    return managers


@pytest.mark.parametrize("order", [("cgn-agent", "cgn-kvcached", "cgn-router"), ("cgn-router", "cgn-kvcached", "cgn-agent")], ids=("agents-first", "routers-first"))
def test_a_rolling_upgrade_and_downgrade_lose_no_request(versions, monkeypatch, tmp_path, order):
    """Two routers, three nodes and a store, one program after the other to the new version and back, under load."""
    versions.set("old")
    with Several(tmp_path) as c:
        uds = tmp_path / "s"
        store = c.run("store", "cgn-kvcached", "--config", c.config("store", {"kv": {
            "uds": str(uds), "ram": "64MiB", "transport": "off", "listen": f"127.0.0.1:{free_port()}", "listen_admin": f"127.0.0.1:{free_port()}", "resp_listen": ""}}))
        until(lambda: "svc.ready" in store.log(), store.log)
        c.static_nodes("abc", "--token-interval-us", "2000", sections={"agent": {"kv_uds": str(uds)}})
        managers = managed_routers(c, versions, monkeypatch, tmp_path, 2)
        routers = c.made

        def everybody():
            return all(list(r.states().values()).count("ready") == 3 for r in routers if r.process.alive())

        def again(process):
            before = process.log().count("svc.ready")
            return lambda: process.log().count("svc.ready") > before and everybody()
        parts = {"cgn-agent": [n.agent for n in c.nodes.values()], "cgn-kvcached": [store], "cgn-router": [r.process for r in routers]}
        with Load([("127.0.0.1", r.http_port) for r in routers]) as load:
            load.more()
            for version, programs in (("new", order), ("old", order)):
                for program in programs:
                    versions.set(version, program)
                    for process in parts[program]:
                        replace(process, again(process), load)
            for program, processes in parts.items():
                for p in processes:
                    assert p.argv[0] == str(versions.path(program)) and versions.of[program] == "old"
        assert not load.lost, load.lost[:5]
        print(f"{load.done} answers, none lost")
        for m in managers:
            m.close()


# ---- state ----

@pytest.mark.parametrize("first, then", [("old", "new"), ("new", "old")], ids=("upgrade-and-back", "downgrade-and-back"))
def test_a_routers_state_is_read_by_both(versions, tmp_path, first, then):
    versions.set(first)
    with Cluster(tmp_path) as c:
        want = kept_state.make(c)
        for version in (then, first):
            versions.set(version)
            assert c.router_process.stop() == 0
            ready = c.router_process.log().count("svc.ready")
            c.router_process.start()
            until(lambda: c.router_process.log().count("svc.ready") > ready and c.states().get("a") == "ready" and c.states().get("b") == "cordoned", c.logs)
            kept_state.check(c, want)
            assert c.chat("more", c.headers, max_tokens=3).status == 200
            want["used"] += 1
            until(lambda: kept_state.told(c, c.ask("GET", f"/v1/batches/{want['batch']}", headers=c.headers).json())["used"] == want["used"], c.logs)
            want["spent"] = kept_state.told(c, c.ask("GET", f"/v1/batches/{want['batch']}", headers=c.headers).json())["spent"]


@pytest.mark.parametrize("first, then", [("old", "new"), ("new", "old")], ids=("upgrade-and-back", "downgrade-and-back"))
def test_a_stores_blocks_are_read_by_both(versions, tmp_path, first, then):
    versions.set(first)
    store = kept_state.store_at(tmp_path, tmp_path / "ssd")
    try:
        kept_state.fill(store)
        for version in (then, first):
            versions.set(version)
            assert store.process.stop() == 0
            store.restart()
            kept_state.has_all(store)
    finally:
        store.close()
