# SPDX-License-Identifier: Apache-2.0
"""cgn-sim with its blocks in cgn-kvcached: computed blocks are found again after the cache evicted them, by
the same sim and by another one; for every fault of the store, prompts are answered rightly."""
import concurrent.futures
import signal
import socket
import struct

import pytest

from cluster import Process, ask, free_port, until
from kvwire import Index, next_digest, replay, root_digest, short

BLOCK, BYTES = 16, 65536
SMALL = ["--time-scale", "0", "--kv-blocks", "40"]  # one prompt, and a few blocks more
MASK = (1 << 64) - 1


def tokens(seed, n=512):
    return [(seed * 7919 + i * 31) % 40000 + 300 for i in range(n)]


def chain(ids, model="sim"):
    out, last = [], root_digest(model)
    for i in range(0, len(ids) - BLOCK + 1, BLOCK):
        last = next_digest(last, tuple(ids[i:i + BLOCK]))
        out.append(last)
    return out


def mix(x):
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def value(digest, n=BYTES):
    words = struct.unpack("<4Q", digest)
    return b"".join(struct.pack("<Q", mix(words[i % 4] + i * 0x9E3779B97F4A7C15 & MASK)) for i in range(n // 8))


class Store(Process):
    def __init__(self, folder, name="kvcached", ram="64MiB", **more):
        self.uds, self.resp_port, self.admin_port = f"{folder}/{name}.sock", free_port(), free_port()
        sets = {"kv.ram": ram, "kv.uds": self.uds, "kv.resp_listen": f"127.0.0.1:{self.resp_port}", "kv.listen_admin": f"127.0.0.1:{self.admin_port}",
                "kv.listen": "", "kv.worker_threads": 1, **more}
        conf = folder / f"{name}.toml"
        conf.write_text("")
        super().__init__(folder, name, "cgn-kvcached", "--config", conf, *(a for k, v in sets.items() for a in ("--set", f"{k}={v}")))
        self.wait_ready()

    def wait_ready(self):
        def answers():
            assert self.alive(), self.log()
            try:
                return ask(self.admin_port, "GET", "/readyz").status == 200
            except OSError:
                return False
        until(answers, self.log)

    def holds(self, tier):
        return ask(self.admin_port, "GET", "/store").json()[tier]["blocks"]

    def redis(self, *args):
        """Send one command; return the answer as bytes, a number or None."""
        with socket.create_connection(("127.0.0.1", self.resp_port), timeout=20) as s:
            args = [a if isinstance(a, bytes) else str(a).encode() for a in args]
            s.sendall(b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a) for a in args))
            f = s.makefile("rb")
            line = f.readline().rstrip(b"\r\n")
            assert not line.startswith(b"-"), line
            if line[:1] == b":":
                return int(line[1:])
            if line[:1] == b"$":
                return None if line == b"$-1" else f.read(int(line[1:]) + 2)[:-2]
            return line[1:]


class Sim(Process):
    def __init__(self, folder, name, uds, *flags):
        self.port = free_port()
        super().__init__(folder, name, "cgn-sim", "--listen", f"127.0.0.1:{self.port}", "--kv-uds", uds, *SMALL, *flags)
        until(self.listens, self.log)

    def listens(self):
        assert self.alive(), self.log()
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def prompt(self, ids, **more):
        answer = ask(self.port, "POST", "/v1/completions", {"prompt": ids, "max_tokens": 4, **more})
        assert answer.status == 200, answer.body
        return answer.json()

    def cached(self, ids, **more):
        return self.prompt(ids, **more)["usage"]["prompt_tokens_details"]["cached_tokens"]

    def store(self):
        return ask(self.port, "GET", "/sim/state").json()["store"]

    def until_store(self, key, n):
        until(lambda: self.store()[key] >= n, lambda: f"{key} {n}: {self.store()}")

    def connected(self):
        until(lambda: self.store()["ready"], self.log)

    def gpu(self):
        (rank,) = ask(self.port, "GET", "/sim/blocks").json()["ranks"]
        return set(rank["GPU"])


@pytest.fixture
def start(tmp_path):
    """start(Store) or start(Sim, name, uds, *flags)."""
    running = []

    def one(kind, *args, **more):
        running.append(kind(tmp_path, *args, **more))
        if kind is Sim and len(running) > 1:
            running[-1].connected()
        return running[-1]

    yield one
    trouble = [p.trouble() for p in running]
    for p in reversed(running):
        p.stop()
    assert not any(trouble), trouble


def test_what_the_cache_forgot_comes_back(start):
    store = start(Store)
    sim = start(Sim, "sim", store.uds)
    a, b = tokens(1), tokens(2)
    cold = sim.prompt(a)
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    sim.until_store("put", 32)
    for digest in chain(a):  # stored under the full digest, with the right content
        assert store.redis("GET", digest.hex()) == value(digest)
    assert sim.cached(b) == 0
    assert not set(map(short, chain(a))) <= sim.gpu()
    warm = sim.prompt(a)
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 496  # the last block is computed, for its last token
    assert warm["choices"] == cold["choices"]
    stats = sim.store()
    assert 20 < stats["loaded_ram"] <= 31 and (stats["wrong"], stats["lost"], stats["not_put"], stats["put_failed"]) == (0, 0, 0, 0)
    assert set(map(short, chain(a))) <= sim.gpu()


def test_another_sim_finds_what_one_computed(start):
    store = start(Store)
    one, two = start(Sim, "one", store.uds), start(Sim, "two", store.uds)
    shared, tail = tokens(3, 320), tokens(4, 192)
    one.prompt(shared)
    one.until_store("put", 20)
    assert two.cached(shared + tail) == 320
    assert two.cached(shared + tail, cache_salt="another") == 0  # other chains
    assert two.store()["loaded_ram"] == 20


def test_what_left_ram_comes_back_from_ssd(start, tmp_path):
    store = start(Store, ram="16MiB", **{"kv.ssd_dir": tmp_path / "ssd", "kv.ssd": "1GiB", "kv.ssd_admission": "all"})
    sim = start(Sim, "sim", store.uds)
    answers = {}
    for i in range(1, 13):  # 24 MiB in all
        answers[i] = sim.prompt(tokens(i))["choices"]
        sim.until_store("put", 32 * i)
        # values that come faster than the store writes are left out
        until(lambda: store.holds("ssd") >= 32 * i, lambda: f"{store.holds('ssd')} of {32 * i} on SSD")
    assert store.holds("ram") < 32 * 12
    for i in range(1, 13):
        warm = sim.prompt(tokens(i))
        assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 496 and warm["choices"] == answers[i]
    stats = sim.store()
    assert stats["loaded_ssd"] > 20 and (stats["wrong"], stats["lost"], stats["put_failed"]) == (0, 0, 0)
    store.kill()  # values on SSD are there again
    store.start()
    store.wait_ready()
    sim.connected()
    assert sim.cached(tokens(2)) == 496 and sim.store()["wrong"] == 0


def test_events_tell_what_was_loaded(start):
    store = start(Store)
    sim = start(Sim, "sim", store.uds, "--kv-events", "tcp://127.0.0.1:0", "--kv-events-replay", "tcp://127.0.0.1:0")
    for seed in (1, 2, 1, 3, 2, 1):
        sim.prompt(tokens(seed))
        sim.until_store("put", 32 if seed == 1 else 0)
    assert sim.store()["loaded_ram"] > 40
    (rank,) = ask(sim.port, "GET", "/sim/blocks").json()["ranks"]
    index = Index()
    for _, _, payload in replay(rank["replay"]):
        index.apply(payload, 0)
    assert index.tier("GPU") == sorted(rank["GPU"]) and not rank["CPU"] and not rank["STORAGE"]


def test_a_wrong_value_is_computed_again(start):
    store = start(Store)
    one, two = start(Sim, "one", store.uds), start(Sim, "two", store.uds)
    ids = tokens(5)
    one.prompt(ids)
    one.until_store("put", 32)
    digests = chain(ids)
    store.redis("SET", digests[10].hex(), value(digests[11]))  # the value of another block
    store.redis("SET", digests[20].hex(), b"too short")
    assert two.cached(ids) == 160
    assert two.store()["wrong"] >= 1
    store.redis("DEL", digests[0].hex())
    three = start(Sim, "three", store.uds)
    assert three.cached(ids) == 0
    assert three.store()["loaded_ram"] == 0
    three.until_store("had", 31)  # what was computed is stored again where it is missing
    assert three.store()["put"] == 1


def test_two_prompts_of_a_request_are_loaded(start):
    store = start(Store)
    one, two = start(Sim, "one", store.uds), start(Sim, "two", store.uds)
    a, b = tokens(6, 160), tokens(7, 192)
    one.prompt(a)
    one.prompt(b)
    one.until_store("put", 22)
    both = two.prompt([a, b])
    assert two.store()["loaded_ram"] == 9 + 11, two.store()  # the last block of each is computed
    assert [c["text"] for c in both["choices"]] == [one.prompt(p)["choices"][0]["text"] for p in (a, b)]


def test_without_a_store_all_is_computed(start, tmp_path):
    sim = start(Sim, "sim", str(tmp_path / "nobody.sock"))
    assert sim.cached(tokens(1)) == 0
    assert sim.cached(tokens(1)) == 496  # the sim's own cache
    assert sim.store()["ready"] is False and sim.store()["not_put"] > 0
    assert sim.log().count("not there") == 1


def test_the_store_is_killed_while_prompts_run(start):
    store = start(Store)
    sims = [start(Sim, name, store.uds, "--kv-blocks", "200") for name in ("one", "two")]

    def load(sim, seed):
        return [len(sim.prompt(tokens(seed * 100 + i % 9))["choices"]) for i in range(60)]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(load, sims[i % 2], i // 2) for i in range(8)]
        sims[1].until_store("loaded_ram", 1)
        store.kill()
        assert all(n == 1 for r in runs for n in r.result())
    assert not any(s.store()["ready"] or s.store()["wrong"] for s in sims)
    store.start()
    store.wait_ready()
    for s in sims:
        s.connected()
    put = sims[0].store()["put"]
    sims[0].prompt(tokens(9999))
    sims[0].until_store("put", put + 32)
    assert sims[1].cached(tokens(9999)) == 496


def test_a_stopped_store_delays_but_blocks_no_request(start):
    store = start(Store)
    sim = start(Sim, "sim", store.uds)
    sim.prompt(tokens(1))
    sim.until_store("put", 32)
    sim.prompt(tokens(2))
    store.signal(signal.SIGSTOP)
    try:
        assert sim.cached(tokens(1)) < 496
    finally:
        store.signal(signal.SIGCONT)
    assert sim.alive() and store.alive()
