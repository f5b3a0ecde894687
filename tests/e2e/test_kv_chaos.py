# SPDX-License-Identifier: Apache-2.0
"""Programs around cgn-kvcached when it is killed, stopped or told to end under load, when disk or memory are
full, and when the clock jumps: each caller gets a right answer, and everything works again afterwards."""
import concurrent.futures
import contextlib
import random
import signal
import threading
import time

import pytest

import kvbulk
from cluster import BUILD, SANITIZER, scaled, until
from kvpeers import Peer, bootstrap
from kvports import GRPC_PUT_MAX, PORTS, Gone
from test_sim_store import Sim, chain, tokens

FREE = ("--prefill-tokens-per-s", "0")  # no prefill time to compare with: a peer is always asked
ANSWERED = 496  # the last block of a prompt of 512 tokens is computed


@pytest.fixture
def world(tmp_path):
    """start(kind, ...): start a program; each one is checked and stopped at the end of the test."""
    with contextlib.ExitStack() as stack:
        def start(kind, *args, **more):
            p = kind(tmp_path, *args, **more)
            stack.callback(p.close if hasattr(p, "close") else lambda: ended(p))
            return p
        start.pki = bootstrap(tmp_path / "pki", "a", "b")
        yield start


def ended(p):
    trouble = p.trouble()
    p.stop()
    trouble = trouble or p.trouble()
    assert not trouble, trouble


def pair(world):
    """Two nodes with a store each, which are peers, and a sim each."""
    a = world(Peer, world.pki, "a", worker_threads=1)
    b = world(Peer, world.pki, "b", [a], worker_threads=1)
    b.ready()
    return a, b, world(Sim, "one", a.uds, *FREE), world(Sim, "two", b.uds, *FREE)


# ---- two nodes, and prompts that both have ----

def shared(world, a, b, one, two, seed):
    """Node two gets from its peer what node one computed."""
    ids = tokens(seed)
    until(lambda: one.store()["ready"] and two.store()["ready"], lambda: (one.store(), two.store()))
    before, had = one.store()["put"], two.store()["loaded_peer"]
    one.prompt(ids)
    one.until_store("put", before + 32)
    for digest in chain(ids):
        b.hears(digest + bytes(4))
    assert two.cached(ids) == ANSWERED
    assert two.store()["loaded_peer"] == had + 31


def crowd(sims, expected, rounds, answers, wrong):
    """Send prompts from a small pool to both nodes; note each answer as it comes."""
    def client(seed):
        dice = random.Random(seed)
        for _ in range(rounds):
            i = dice.choice(list(expected))
            choices = sims[seed % len(sims)].prompt(tokens(i))["choices"]
            if choices != expected[i]:
                wrong.append(i)
            answers.append(i)
    return [threading.Thread(target=client, args=(seed,)) for seed in range(4)]


@pytest.mark.both
@pytest.mark.parametrize("victim", [0, 1], ids=["of the node that has them", "of the node that fetches"])
def test_a_store_is_killed_under_two_sims(world, victim):
    a, b, one, two = pair(world)
    alone = world(Sim, "alone", "/nonexistent.sock")
    expected = {i: alone.prompt(tokens(i))["choices"] for i in range(1, 9)}
    shared(world, a, b, one, two, 100)
    for i in (1, 2, 3):  # these certainly come from the peer
        one.prompt(tokens(i))
    one.until_store("put", 4 * 32)
    b.hears(chain(tokens(3))[0] + bytes(4))  # the block that was put last
    answers, wrong = [], []
    threads = crowd((one, two), expected, scaled(25, 10), answers, wrong)
    for t in threads:
        t.start()
    until(lambda: len(answers) > 20 and two.store()["loaded_peer"] > 31, lambda: (len(answers), two.store()))
    store = (a, b)[victim]
    store.process.kill()
    for t in threads:
        t.join()
    assert not wrong and len(answers) == 4 * scaled(25, 10)
    assert [s.store()["wrong"] for s in (one, two)] == [0, 0]
    store.restart()
    b.ready()
    shared(world, a, b, one, two, 200)
    assert [s.store()["wrong"] for s in (one, two)] == [0, 0]


@pytest.mark.parametrize("who", [0, 1], ids=["of the node that has them", "of the node that fetches"])
def test_a_store_stands_still_under_two_sims(world, who):
    a, b, one, two = pair(world)
    alone = world(Sim, "alone", "/nonexistent.sock")
    expected = {i: alone.prompt(tokens(i))["choices"] for i in range(1, 7)}
    for i in expected:
        one.prompt(tokens(i))
    one.until_store("put", 32 * len(expected))
    for i in expected:
        b.hears(chain(tokens(i))[-1] + bytes(4))
    store = (a, b)[who]
    store.process.signal(signal.SIGSTOP)
    try:
        answers, wrong = [], []
        threads = crowd((one, two), expected, 2, answers, wrong)
        for t in threads:
            t.start()
        for t in threads:
            t.join()  # each client has a timeout of its own, so none hangs
        assert not wrong and len(answers) == 8
    finally:
        store.process.signal(signal.SIGCONT)
    b.ready()
    shared(world, a, b, one, two, 300)
    assert [s.store()["wrong"] for s in (one, two)] == [0, 0]


# ---- SIGTERM under load ----

class Kept(kvbulk.Store):
    """A store with all ports, and an SSD tier that takes every value."""

    def __init__(self, folder, **kv):
        super().__init__(folder, **{"ram": "256MiB", "ssd": "1GiB", "ssd_dir": str(folder / "ssd"), "ssd_admission": "all", "resp_listen": "",
                                    "drain_timeout": "20s", **kv})


def value(name, version=0, most=GRPC_PUT_MAX):
    dice = random.Random(f"{name} {version}")
    return dice.randbytes(dice.choice([1, 700, 3000, 20000, dice.randrange(most), most]))


@pytest.mark.both
@pytest.mark.parametrize("port", PORTS, ids=lambda p: p.name)
def test_terminated_under_load(world, port):
    """Every put value is there at the next start; every value being read came whole, or the client got an
    error."""
    store = world(Kept)
    acked, wrong, ends = set(), [], []

    def client(seed):
        c, dice = port(store), random.Random(seed)
        try:
            for i in range(10000):
                name = f"{seed}/{i}"
                c.put(name, value(name))
                acked.add(name)
                name = f"{seed}/{dice.randrange(i + 1)}"
                if c.get(name) != value(name):
                    wrong.append(name)
        except Gone as e:
            ends.append(str(e))
        finally:
            c.close()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(client, seed) for seed in range(4)]
        until(lambda: len(acked) >= scaled(400, 60) or ends, lambda: f"{len(acked)} are put")
        assert not ends, ends
        store.process.signal(signal.SIGTERM)
        for r in runs:
            r.result()
    assert store.process.wait() == 0
    assert not wrong and len(ends) == 4, (wrong, ends)
    store.restart()
    assert store.stats()["ssd_skipped"] == 0
    c = port(store)
    lost = [n for n in acked if c.get(n) != value(n)]
    assert not lost, f"{len(lost)} of {len(acked)}: {sorted(lost)[:10]}"
    c.close()


# ---- the wall clock jumps ----

class Clock:
    """The clock of the programs started under it: the machine's own plus some seconds."""

    def __init__(self, folder, patch):
        self.file = folder / "clock"
        self.set(0)
        patch.setenv("LD_PRELOAD", str(BUILD / "tests/helpers/clock_shift.so"))
        patch.setenv("CGN_CLOCK_SHIFT", str(self.file))

    def set(self, seconds):
        new = self.file.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self.file)


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """A clock for the programs started from here on. Request this fixture after those whose programs must
    keep the right time."""
    if SANITIZER:
        pytest.skip("a sanitizer's runtime wants to be loaded first")
    return Clock(tmp_path, monkeypatch)


DAY = 86400


@pytest.mark.plain
def test_a_clock_that_jumps_ends_what_has_an_end_and_no_more(world, clock):
    store = world(Kept, ssd_ttl="1h")
    c = PORTS[0](store)
    for i in range(40):
        c.put(f"k{i}", value(f"k{i}"))
    soon = int(time.time() * 1000) + 600_000
    for i in range(10):
        c.put(f"ends{i}", b"x" * 100, expires=soon)
    until(lambda: store.stats()["ssd_queue_bytes"] == 0 and store.stats()["ssd"]["blocks"] == 50, store.stats)

    def holds(*names):
        return [n for n in names if c.get(n) == (b"x" * 100 if n.startswith("ends") else value(n))]
    ends, stays = [f"ends{i}" for i in range(10)], [f"k{i}" for i in range(40)]
    for shift in (-10 * DAY, 300, -DAY, 0):
        clock.set(shift)
        assert holds(*ends, *stays) == [*ends, *stays], shift
    clock.set(30 * DAY)  # kv.ssd_ttl uses a clock that does not jump
    assert holds(*ends, *stays) == stays
    until(lambda: store.stats()["ram"]["blocks"] == 40, store.stats)
    clock.set(0)
    assert holds(*stays) == stays
    clock.set(-300)  # across a restart, too
    c.close()
    assert store.process.stop() == 0
    store.restart()
    c = PORTS[0](store)
    assert holds(*stays) == stays
    c.close()


@pytest.mark.plain
def test_certificates_that_a_clock_ends_are_good_again(world, clock):
    a = world(Peer, world.pki, "a", worker_threads=1)
    b = world(Peer, world.pki, "b", [a], worker_threads=1)
    a.put(kvbulk.key("x"), b"value")
    b.hears(kvbulk.key("x"))
    clock.set(40 * 365 * DAY)
    assert b.get(kvbulk.key("x")) == b"value"  # open connections stay
    a.process.signal(signal.SIGSTOP)
    until(lambda: b.peers()[a.address]["state"] != "ready", b.peers)
    a.process.signal(signal.SIGCONT)
    until(lambda: b.peers()[a.address]["state"] == "down" and "certificate" in b.peers()[a.address].get("why", ""), b.peers)
    clock.set(0)
    b.ready()
    a.put(kvbulk.key("y"), b"value")
    b.hears(kvbulk.key("y"))
    assert b.get(kvbulk.key("y")) == b"value"
