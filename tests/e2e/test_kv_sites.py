# SPDX-License-Identifier: Apache-2.0
"""Block stores of other sites: each site has its own CA, pinned; blocks go only where their tenant and model may."""
import contextlib
import os
import shutil
import signal
import subprocess

import pytest

from cluster import BUILD, WAIT_S, ask, free_port, until
from kvbulk import Bulk, Refused, key
from kvpeers import CTL, MIB, REMOTE, bootstrap, pattern, security
from kvsites import Sites, site_of
from slots_world import PAGE, World, prompt_of

OPEN = {"tenants": ["acme", "-"], "models": ["llama-*"]}


@pytest.fixture
def sites(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Sites(tmp_path, stack)


def pair(sites, **more):
    """Store a of the east lets blocks of acme go west, where b asks for them."""
    a = sites.start("a", "east", "west", **OPEN, **more)
    b = sites.start("b", "west", "east", to=["a"], **OPEN)
    until(lambda: b.site("east")["ready"] == 1, lambda: b.peers())
    return a, b


def missing(p, tenant, k):
    with pytest.raises(Refused) as e:
        p.get_for(tenant, k)
    return e.value.sentence


def kill_and_restart(p):
    p.process.signal(signal.SIGKILL)
    until(lambda: not p.process.alive(), "it is gone")
    p.restart()


def test_blocks_of_a_tenant_that_may_leave_are_fetched(sites):
    a, b = pair(sites)
    a.put_for("acme", key("x"), pattern(MIB // 32))
    until(lambda: b.hears_of("acme", key("x")), lambda: b.peers())
    assert b.get_for("acme", key("x")) == (pattern(MIB // 32), "llama-8b")
    assert b.site("east")["bytes_in"] == a.site("west")["bytes_out"] == MIB // 32
    assert b.metric("cgn_kv_site_bytes_total", site="east", direction="in") == MIB // 32
    assert a.metric("cgn_kv_site_bytes_total", site="west", direction="out") == MIB // 32
    assert a.site("west")["state"] == b.site("east")["state"] == "open"
    # a request that needs no key is of the tenant "-", which is named too
    a.put_for("-", key("y"), b"value")
    until(lambda: b.hears_of("-", key("y")), lambda: b.peers())
    assert b.get_for("-", key("y"))[0] == b"value"


def test_what_may_not_leave_is_neither_told_nor_sent_nor_asked_for(sites):
    """A tenant that is not named, a model that is not named, a block of nobody known: the other site learns nothing, whatever is
    put, read, replaced and removed here, and after kill -9. The blocks of acme go on."""
    more = {"ssd": "256MiB", "ssd_dir": str(sites.folder / "ssd"), "ssd_admission": "all"}
    a = sites.start("a", "east", "west", **OPEN, **more)
    b = sites.start("b", "west", "east", to=["a"], **OPEN)
    held = {"secret": "hospital", "odd model": "acme", "nobody's": ""}

    def put_all(turn):
        for name, tenant in held.items():
            a.put_for(tenant, key(name), pattern(2000, turn), model="qwen" if name == "odd model" else "llama-8b")
        a.put_for("acme", key(f"open {turn}"), pattern(40_000, turn))

    for turn in range(3):
        put_all(turn)
        if turn == 1:
            a.put_for("hospital", key("gone"), b"x")
            with Bulk(a.bulk) as c:
                c.remove([key("gone")])
        until(lambda t=turn: b.hears_of("acme", key(f"open {t}")), lambda: b.peers())
        assert b.get_for("acme", key(f"open {turn}"))[0] == pattern(40_000, turn)
        for name, tenant in held.items():
            # the changes of these came before those of "open", which b has heard of
            for who in ("acme", "hospital", "-", ""):
                assert not b.tiers_for(who, key(name))
                missing(b, who, key(name))
            assert a.get_for(tenant, key(name))[0] == pattern(2000, turn)
        until(lambda: a.stats()["ssd"]["blocks"] >= 3 + turn + 1, lambda: a.stats())
        kill_and_restart(a)
        until(lambda: b.site("east")["ready"] == 1, lambda: b.peers())
        until(lambda t=turn: b.peers()[f"east/127.0.0.1:{sites.door['a']}"]["blocks"] == t + 1, lambda: b.peers())
        for name in held:
            assert not b.tiers_for("acme", key(name)) and a.get_for("", key(name))[0] == pattern(2000, turn)
    assert b.holds() == {key(f"open {t}") for t in range(3)}
    assert b.peers()[f"east/127.0.0.1:{sites.door['a']}"]["blocks"] == 3
    for why in ("no tenant", "tenant", "model"):
        until(lambda w=why: a.metric("cgn_kv_site_withheld_total", site="west", why=w) > 0, why)


def test_a_tenant_that_may_not_leave_is_not_asked_for_elsewhere(sites):
    """The question names a prompt, so it is not sent either."""
    a, b = pair(sites)
    a.put_for("acme", key("x"), b"value")
    until(lambda: b.hears_of("acme", key("x")), lambda: b.peers())
    for tenant in ("hospital", ""):
        assert not b.tiers_for(tenant, key("x"))
        missing(b, tenant, key("x"))
    row = b.peers()[f"east/127.0.0.1:{sites.door['a']}"]
    assert row["fetched"] == row["missed"] == row["busy"] == row["failed"] == 0


def test_a_fetched_block_keeps_its_tenant(sites):
    """It goes on to stores of the same site, and to no third site that may not have it."""
    a, b = pair(sites)
    third = bootstrap(sites.folder / "north", "n")
    sites.pki["north"] = third
    a.put_for("acme", key("x"), b"value")
    until(lambda: b.hears_of("acme", key("x")), lambda: b.peers())
    b.get_for("acme", key("x"))
    sites.door["b2"], sites.door["n"] = (free_port() for _ in range(2))
    b2 = sites.start("b2", "west", "north", tenants=["other"], models=["*"], near=[b])
    n = sites.start("n", "north", "west", to=["b2"], tenants=["*"], models=["*"])
    until(lambda: b2.tiers_for("acme", key("x")) & REMOTE, lambda: b2.peers())
    assert b2.get_for("acme", key("x"))[0] == b"value"
    b2.put_for("other", key("y"), b"other")
    until(lambda: n.hears_of("other", key("y")), lambda: n.peers())
    assert not n.tiers_for("acme", key("x")) and b2.site("north")["withheld_tenant"] > 0
    assert b2.site("north")["withheld_no_tenant"] == 0


def test_old_clients_store_blocks_that_stay(sites):
    """A client of version 1 of the socket cannot say for whom: nothing of it leaves."""
    a, b = pair(sites)
    a.put(key("old"), b"value", model="llama-8b")
    a.put_for("acme", key("new"), b"value")
    until(lambda: b.hears_of("acme", key("new")), lambda: b.peers())
    assert not b.tiers_for("acme", key("old"))
    assert a.site("west")["withheld_no_tenant"] > 0


def test_a_site_without_lists_gets_nothing(sites):
    a = sites.start("a", "east", "west")
    b = sites.start("b", "west", "east", to=["a"], tenants=["*"], models=["*"])
    until(lambda: b.site("east")["ready"] == 1, lambda: b.peers())
    a.put_for("acme", key("x"), b"value")
    until(lambda: a.site("west")["withheld_tenant"] > 0, lambda: a.site("west"))
    assert not b.tiers_for("acme", key("x")) and a.site("west")["state"] == "closed" and b.holds() == set()


def test_what_a_site_may_not_send_is_not_stored(sites):
    """b takes models llama-* from the east; a would send all."""
    a = sites.start("a", "east", "west", tenants=["*"], models=["*"])
    b = sites.start("b", "west", "east", to=["a"], **OPEN)
    a.put_for("acme", key("x"), b"value", model="qwen")
    until(lambda: b.hears_of("acme", key("x")), lambda: b.peers())
    assert "may not send" in missing(b, "acme", key("x"))
    assert b.holds() == set()


# ---- who is believed ----

def test_each_port_believes_one_ca(sites):
    """A store with a certificate of our own CA is refused at a site's port, one of the site at ours; both say why, and count."""
    a, b = pair(sites)
    # a2 has a certificate of the east, and asks at a's port for the west; b2 has one of the west, and asks at a's own port
    sites.door["a2"], sites.door["b2"] = 0, 0
    a2 = sites.start("a2", "east", "west", to=["a"], door=0, ca_file=f"{sites.pki['west']}/ca.pem", **OPEN)
    until(lambda: a.site("west")["handshakes_failed"] > 0, lambda: a.site("west"))
    until(lambda: a2.peers()[f"west/127.0.0.1:{sites.door['a']}"].get("why"), lambda: a2.peers())
    assert a2.site("west")["ready"] == 0 and a.site("west")["guests"] == 1
    until(lambda: a.metric("cgn_kv_site_handshakes_total", site="west", outcome="failed") > 0, "it is counted")
    until(lambda: "kvcached.site_refused" in a.process.log(), "it is logged")
    b2 = sites.start("b2", "west", "east", door=0, to=["a"], near=[a], **OPEN)
    until(lambda: b2.site("east")["ready"] == 1, lambda: b2.peers())
    until(lambda: b2.peers()[a.address]["state"] == "down" and b2.peers()[a.address].get("why"), lambda: b2.peers())
    # all the while blocks move
    a.put_for("acme", key("x"), b"value")
    until(lambda: b.hears_of("acme", key("x")), lambda: b.peers())
    assert b.get_for("acme", key("x"))[0] == b"value"


@pytest.mark.parametrize("leaf", ["ops", "router"])
def test_only_stores_of_a_site_count_as_the_site(sites, leaf):
    """A person or a router of the site has a certificate of its CA, and gets no blocks and gives none."""
    a = sites.start("a", "east", "west", to=["b"], **OPEN)
    b = sites.start("b", "west", "east", to=["a"], cert=leaf, **OPEN)
    until(lambda: "role kvcached" in a.peers()[f"west/127.0.0.1:{sites.door['b']}"].get("why", ""), lambda: a.peers())
    until(lambda: a.process.events("kvpeer.guest_refused"), "the store there is refused too")
    assert a.site("west")["guests"] == a.site("west")["ready"] == 0
    a.put_for("acme", key("x"), b"value")
    assert not b.hears_of("acme", key("x"))


def test_a_ca_is_rotated_without_a_restart(sites):
    a, b = pair(sites)
    fresh = bootstrap(sites.folder / "fresh", "b")
    # b shows a certificate of the new CA, which a does not believe yet
    for name in ("b.pem", "b.key", "ca.pem"):
        shutil.copy(fresh / name, sites.pki["west"] / f"{name}.new")
    old_ca = (sites.pki["west"] / "ca.pem").read_bytes()
    for name in ("b.pem", "b.key"):
        os.replace(sites.pki["west"] / f"{name}.new", sites.pki["west"] / name)
    kill_and_restart(b)
    until(lambda: a.site("west")["handshakes_failed"] > 0 and a.site("west")["last_refusal"], lambda: a.site("west"))
    until(lambda: b.site("east")["ready"] == 0 and next(iter(b.peers().values())).get("why"), lambda: b.peers())
    a.put_for("acme", key("x"), b"value")
    assert a.get_for("acme", key("x"))[0] == b"value", "the store itself goes on"
    # both CAs for a while, read at SIGHUP
    (sites.pki["west"] / "ca.pem").write_bytes(old_ca + (sites.pki["west"] / "ca.pem.new").read_bytes())
    a.process.signal(signal.SIGHUP)
    until(lambda: b.site("east")["ready"] == 1, lambda: b.site("east"))
    until(lambda: b.hears_of("acme", key("x")), lambda: b.peers())
    assert b.get_for("acme", key("x"))[0] == b"value"


def test_a_site_with_our_ca_is_refused(sites):
    """It would believe every certificate of this cluster."""
    copy = sites.folder / "copy.pem"
    shutil.copy(sites.pki["east"] / "ca.pem", copy)
    for ca, what in ((copy, "has the CA that signed security.cert_file"), (sites.pki["east"] / "ca.pem", "is security.ca_file")):
        with pytest.raises(AssertionError) as e:
            sites.start("a", "east", "west", ca_file=str(ca), **OPEN)
        assert what in str(e.value)
        text = sites.folder / "a" / "kv.toml"
        done = subprocess.run([BUILD / "src/kvcached/cgn-kvcached", "--config", text, "--check"], capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode != 0 and what in done.stdout + done.stderr


# ---- who says whose a block is ----

def test_the_router_says_whose_a_state_is(sites, tmp_path, request):
    """From the API key over agent and slot manager to the store: the states of llama-server's slots have tenants. Those of acme can
    be had in the west, those of a hospital cannot."""
    keys = tmp_path / "keys"
    tokens = {}
    for tenant in ("acme", "hospital"):
        done = subprocess.run([CTL, "key", "create", "--file", keys, "--tenant", tenant], check=True, capture_output=True, text=True, timeout=WAIT_S)
        tokens[tenant] = {"Authorization": f"Bearer {done.stdout.split()[0]}"}
    folder = tmp_path / "world"
    folder.mkdir()
    door = sites.door["a"]
    w = World(folder, slots=2, router={"auth": {"enabled": True, "api_keys_file": str(keys)}},
              store={"security": security(sites.pki["east"], "a"), "agent": {"node_id": "a"},
                     'kv_sites."west"': {"ca_file": f"{sites.pki['west']}/ca.pem", "listen": f"127.0.0.1:{door}", "tenants": ["acme"], "models": ["tiny"]}})
    request.addfinalizer(lambda: w.close(False))
    b = sites.start("b", "west", "east", to=["a"], tenants=["*"], models=["*"])
    until(lambda: b.site("east")["ready"] == 1, lambda: b.peers())

    def told():
        return next(iter(b.peers().values()))["blocks"]

    w.asked(prompt_of(1), tokens["hospital"])
    until(lambda: ask(w.store_admin, "GET", "/store").json()["ram"]["blocks"] > 0 and w.kept()["saves"] == 1, lambda: w.kept())
    until(lambda: site_of(w.store_admin)["withheld_tenant"] > 0, lambda: site_of(w.store_admin))
    assert told() == 0
    w.asked(prompt_of(2), tokens["acme"])
    until(lambda: w.kept()["saves"] == 2, lambda: w.kept())
    until(lambda: told() > PAGE, lambda: b.peers())  # a link for each block of the prompt, and the state
    assert told() <= PAGE + 2
    assert site_of(w.store_admin)["withheld_no_tenant"] == 0
