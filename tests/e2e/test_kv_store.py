# SPDX-License-Identifier: Apache-2.0
"""cgn-kvcached as an operator sees it: refused configurations, memory within the budget, reports, and
shutdown."""
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import pytest

from cluster import BUILD, SANITIZER, Process, ask, scaled, until
from kvbulk import Bulk, Refused, Store, key

MIB = 1 << 20
ELSEWHERE = '[kv]\nlisten_admin = "127.0.0.1:0"\n'  # not at the default address, where a store of this machine may be
KVCACHED = BUILD / "src" / "kvcached" / "cgn-kvcached"


@pytest.fixture
def store(tmp_path, request):
    s = Store(tmp_path, **getattr(request, "param", {}))
    yield s
    s.close()


def refused(tmp_path, text, before=()):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    env = {k: v for k, v in os.environ.items() if not k.startswith("COGNITORA__")}
    got = subprocess.run([*before, KVCACHED, "--config", path], env=env, capture_output=True, text=True, timeout=30)
    assert got.returncode not in (0, None) and got.returncode > 0, got.stderr
    return got.stderr


@pytest.mark.parametrize("line, named", [
    ('ram = "1MiB"', "kv.ram"),
    ('ram = "plenty"', "kv.ram"),
    ('ram = "64TiB"', "kv.ram"),
    ("worker_threads = 1000", "kv.worker_threads"),
    ('listen_admin = "nowhere"', "nowhere"),
    ('rams = "1GiB"', "kv.rams"),
])
def test_wrong_settings_are_named(tmp_path, line, named):
    said = refused(tmp_path, f"[kv]\n{line}\n")
    assert named in said, said


@pytest.fixture
def group():
    """A control group of 96 MiB, where this machine allows one: a prefix for a command line that runs in it."""
    top = pathlib.Path("/sys/fs/cgroup")
    v1 = (top / "memory").is_dir()
    at = (top / "memory" if v1 else top) / f"cgn-test-{os.getpid()}"
    try:
        at.mkdir()
        (at / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(96 * MIB))
    except OSError as e:
        if at.is_dir():
            at.rmdir()
        pytest.skip(f"no control group of our own: {e}")
    yield ["sh", "-c", f'echo $$ > {at}/cgroup.procs && exec "$0" "$@"']
    until(lambda: not (at / "cgroup.procs").read_text(), "nobody is in it")
    at.rmdir()


@pytest.mark.plain
@pytest.mark.skipif(bool(SANITIZER), reason="a sanitizer's own memory")
def test_more_than_its_control_group_may_use_is_refused(tmp_path, group):
    said = refused(tmp_path, f'{ELSEWHERE}ram = "128MiB"\n', group)
    assert "kv.ram is 134217728 bytes" in said and "no more than 100663296" in said and "/cgn-test-" in said, said


@pytest.mark.plain
@pytest.mark.skipif(bool(SANITIZER), reason="a sanitizer's own memory")
def test_within_its_control_group_it_serves(tmp_path, group):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvbulk.Process", within(group))
        store = Store(tmp_path, ram="80MiB")
    try:
        assert store.process.events("kvcached.memory_tight")
        with Bulk(store.bulk) as c:
            for i in range(200):  # more than fits
                c.put_any(key(f"k{i}"), value(i, MIB))
                assert c.lookup([key(f"k{i}")])[0].size == MIB
            v = c.get(key("k199"))
            assert v.read() == value(199, MIB)
    finally:
        store.close()


def within(group):
    """Start a process in the group."""
    class Inside(Process):
        def start(self):
            if self.argv[:2] != group[:2]:
                self.argv = group + self.argv
            super().start()
    return Inside


@pytest.mark.plain
@pytest.mark.parametrize("limit", ["-f 65536", "-v 65536"], ids=["of files", "of addresses"])
@pytest.mark.skipif(bool(SANITIZER), reason="a sanitizer's own memory")
def test_a_limit_of_the_shell_is_told(tmp_path, limit):
    said = refused(tmp_path, f'{ELSEWHERE}ram = "256MiB"\n', ["sh", "-c", f'ulimit {limit} && exec "$0" "$@"'])
    assert "memory for values" in said, said


def memory_kib(store, field):
    with open(f"/proc/{store.process.pid}/status") as f:
        return int(re.search(rf"^{field}:\s+(\d+) kB", f.read(), re.M).group(1))


def value(n, size):
    return (n.to_bytes(8, "little") * (size // 8 + 1))[:size]


@pytest.mark.both
@pytest.mark.parametrize("store", [{"ram": "16MiB"}], indirect=True)
def test_the_budget_holds_in_a_storm(store):
    """Writers of all sizes, and readers that hold their values, for a while: the memory never exceeds the
    budget, by the store's own account and by the kernel's."""
    wrong, done = [], threading.Event()

    def ride(seed):
        n, held = seed, []
        with Bulk(store.bulk) as c:
            while not done.is_set():
                n = (n * 1103515245 + 12345) % (1 << 31)
                size = [100, 5000, 40000, 200000, 3 * MIB][n % 5] + n % 1000
                try:
                    c.put_any(key(f"k{n % 200}"), value(n % 200, size))
                    got = c.get(key(f"k{(n >> 8) % 200}"))
                except Refused:  # absent, or all values are held
                    continue
                if got.read() != value((n >> 8) % 200, got.info.size):
                    wrong.append(f"k{(n >> 8) % 200} is not what was put")
                held.append(got.lease)
                if len(held) > 4:
                    c.release(held.pop(0))

    threads = [threading.Thread(target=ride, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for _ in range(scaled(40, 10)):
        ram = store.stats()["ram"]
        if not ram["bytes"] <= ram["budget_bytes"] == 16 * MIB:
            wrong.append(f"over the budget: {ram}")
        if memory_kib(store, "RssShmem") > 16 * 1024:
            wrong.append("the kernel counts more than the budget")
        time.sleep(0.025)
    done.set()
    for t in threads:
        t.join()
    assert not wrong, wrong[:5]
    ram = store.stats()["ram"]
    assert ram["evictions"] > 0 and ram["hits"] > 0
    with Bulk(store.bulk) as c:
        c.remove([key(f"k{i}") for i in range(200)])
    until(lambda: store.stats()["ram"]["bytes"] == 0, lambda: f"all comes free: {store.stats()}")


@pytest.mark.plain
@pytest.mark.skipif(bool(SANITIZER), reason="a sanitizer's own memory")
@pytest.mark.parametrize("store", [{"ram": "1GiB"}], indirect=True)
def test_a_large_budget_takes_nothing_before_it_is_used(store):
    assert memory_kib(store, "VmRSS") < 64 * 1024


def test_what_it_says_of_itself(store):
    with Bulk(store.bulk) as c:
        c.put(key("a"), b"x" * 5000)
        c.release(c.get(key("a")).lease)
        with pytest.raises(Refused):
            c.get(key("b"))
        st = store.stats()
        assert st["ram"]["blocks"] == 1 and st["ram"]["value_bytes"] == 5000 and st["ram"]["bytes"] == 65536
        assert st["ram"]["hits"] == 1 and st["misses"] == 1 and st["corrupt"] == 0 and st["index_bytes"] > 0
        text = ask(store.admin, "GET", "/metrics").body.decode()
        assert 'cgn_kv_lookup_seconds_count{tier="ram",outcome="hit"} 1' in text
        assert 'cgn_kv_lookup_seconds_count{tier="ram",outcome="miss"} 1' in text
        until(lambda: 'cgn_kv_blocks{tier="ram"} 1' in ask(store.admin, "GET", "/metrics").body.decode(), "the gauge follows")


def test_what_expired_is_gone_and_swept(store):
    with Bulk(store.bulk) as c:
        soon = int(time.time() * 1000) + 200
        for i in range(50):
            c.put(key(f"k{i}"), b"x" * 100, expires=soon)
        c.put(key("stays"), b"y")
        until(lambda: c.lookup([key("k0")])[0].tiers == 0, "it ends")
        until(lambda: store.stats()["ram"]["blocks"] == 1, "it is swept without being asked for")
        assert c.get(key("stays")).read() == b"y"


@pytest.mark.parametrize("store", [{"drain_timeout": "2s"}], indirect=True)
def test_terminated_while_blocks_are_held(store):
    c = Bulk(store.bulk)
    c.put_any(key("a"), value(7, 3 * MIB))
    held = c.get(key("a"))
    store.process.signal(signal.SIGTERM)
    assert store.process.wait() == 0
    assert held.read() == value(7, 3 * MIB)  # the mapping belongs to this process
    c.close()
    store.restart()
    assert store.stats()["ram"]["blocks"] == 0


@pytest.mark.parametrize("store", [{"drain_timeout": "60s"}], indirect=True)
def test_a_second_signal_ends_the_wait_for_held_blocks(store):
    c = Bulk(store.bulk)
    c.put_any(key("a"), value(7, 3 * MIB))
    held = c.get(key("a"))
    store.process.signal(signal.SIGTERM)
    until(lambda: store.process.events("svc.drain"), "it drains")
    store.process.signal(signal.SIGINT)
    assert store.process.wait() in (0, 130, -signal.SIGINT), store.process.log()  # the signal may meet a program that ends
    assert held.read() == value(7, 3 * MIB)
    c.close()
