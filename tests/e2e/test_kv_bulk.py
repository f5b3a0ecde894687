# SPDX-License-Identifier: Apache-2.0
"""The descriptor path of cgn-kvcached from an independent client: values in and out without a copy by the
daemon, and invalid input."""
import errno
import mmap
import os
import random
import signal
import socket
import stat
import struct
import threading
import time

import pytest

import kvbulk
from cluster import scaled, until
from kvbulk import Bulk, Refused, Store, key, memory_file


@pytest.fixture
def store(tmp_path, request):
    s = Store(tmp_path, **getattr(request, "param", {}))
    yield s
    s.close()


def pattern(n, seed=1):
    return random.Random(seed).randbytes(n)


def test_the_socket_is_for_the_group(store):
    assert stat.S_IMODE(os.stat(store.bulk).st_mode) == 0o660


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 61440, 61441, 65536, 1000001, 8 << 20])
def test_what_is_put_comes_back(store, size):
    value = pattern(size)
    with Bulk(store.bulk) as c:
        info = c.put_any(key("a"), value, model="m", name="n:a", tokens=16)
        assert (info.size, info.tokens, info.tiers & 2) == (size, 16, 2)
        v = c.get(key("a"))
        assert v.read() == value
        assert (v.model, v.name, v.info.checksum) == ("m", "n:a", info.checksum)
        assert v.info.created > 1_600_000_000_000
        c.release(v.lease)
        assert c.lookup([key("a"), key("b")])[1].tiers == 0


def test_another_process_sees_it(store):
    value = pattern(300000)
    with Bulk(store.bulk) as a, Bulk(store.bulk) as b:
        a.put_any(key("a"), value)
        assert b.get(key("a")).read() == value


def test_the_memory_is_for_reading_only(store):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(store.bulk)
    s.send(struct.pack("<BBHIQ8sI", kvbulk.HELLO, 0, 0, 0, 1, b"CGNKVBLK", 1))
    _, fds, _, _ = socket.recv_fds(s, 65536, 4)
    assert len(fds) == 1
    size = os.fstat(fds[0]).st_size
    with pytest.raises(PermissionError):
        mmap.mmap(fds[0], size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    for attempt in (lambda: os.pwrite(fds[0], b"x", 0), lambda: os.ftruncate(fds[0], 0), lambda: os.ftruncate(fds[0], size * 2)):
        with pytest.raises(OSError):
            attempt()
    again = None
    try:  # neither through /proc
        again = os.open(f"/proc/self/fd/{fds[0]}", os.O_RDWR)
        with pytest.raises(PermissionError):
            mmap.mmap(again, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as e:
        assert e.errno in (errno.EACCES, errno.EPERM)
    for fd in fds + ([again] if again is not None else []):
        os.close(fd)
    s.close()


def test_verbs(store):
    with Bulk(store.bulk) as c:
        keys = [key(f"k{i}") for i in range(50)]
        for i, k in enumerate(keys):
            c.put(k, b"x" * i)
        assert [i.size for i in c.lookup(keys)] == list(range(50))
        with pytest.raises(Refused, match="has a value") as e:
            c.put(keys[0], b"new", flags=kvbulk.IF_ABSENT)
        assert e.value.status == 6
        assert c.put(keys[0], b"new").size == 3
        assert c.pin(keys[1]).pinned
        assert not c.pin(keys[1], 0).pinned
        with pytest.raises(Refused) as e:
            c.pin(key("nowhere"))
        assert e.value.status == 5
        assert c.remove(keys[:10] + [key("nowhere")]) == 10
        with pytest.raises(Refused) as e:
            c.get(keys[0])
        assert e.value.status == 5
        with pytest.raises(Refused, match="checksum") as e:
            c.put(keys[0], b"abc", flags=kvbulk.CHECKSUM, checksum=1)
        assert e.value.status == 3
        assert c.lookup(keys[:1])[0].tiers == 0
        info = c.lookup([keys[20]])[0]
        assert c.put(keys[20], b"x" * 20, flags=kvbulk.CHECKSUM, checksum=info.checksum).checksum == info.checksum


def test_a_file_from_its_middle(store, tmp_path):
    value = pattern(3 << 20)
    path = tmp_path / "f"
    path.write_bytes(b"junk" * 1000 + value + b"more")
    with Bulk(store.bulk) as c, open(path, "rb") as f:
        c.put_fd(key("f"), f.fileno(), len(value), offset=4000)
        assert c.get(key("f")).read() == value


def test_watch(store):
    with Bulk(store.bulk) as c, Bulk(store.bulk) as w:
        held = {key(f"k{i}") for i in range(700)}
        for k in held:
            c.put(k, b"abc")
        w.send(kvbulk.WATCH)
        seen, first, synced = {}, True, False
        while not synced:
            reset, synced, rows = w.changes()
            assert reset == first
            first = False
            seen.update({k: (tiers, size) for k, tiers, size in rows})
        assert set(seen) == held and all(v == (2, 3) for v in seen.values())
        c.remove([key("k0")])
        c.put(key("new"), b"abcd")
        while key("new") not in seen:
            for k, tiers, size in w.changes()[2]:
                seen[k] = (tiers, size)
        assert seen[key("k0")][0] == 0 and seen[key("new")] == (2, 4)


def test_a_watch_tells_each_value_once_and_then_only_changes(store):
    """One reset, every value of the snapshot once, one end of the snapshot; an empty store has both in one message."""
    with Bulk(store.bulk) as c:
        with Bulk(store.bulk) as w:
            w.send(kvbulk.WATCH)
            reset, synced, rows = w.changes()
            while not synced:
                again, synced, more = w.changes()
                assert not again
                rows += more
            assert reset and rows == []
        keys = [key(f"k{i}") for i in range(1500)]
        for k in keys:
            c.put(k, b"abc")
        for _ in range(2):  # a second watcher has a snapshot of its own
            with Bulk(store.bulk) as w:
                w.send(kvbulk.WATCH)
                got, resets, synced = [], 0, 0
                while not synced:
                    reset, end, rows = w.changes()
                    got, resets, synced = got + rows, resets + reset, synced + end
                assert sorted(k for k, _, _ in got) == sorted(keys) and resets == 1, (len(got), resets)
                assert {(tiers, size) for _, tiers, size in got} == {(2, 3)}
                for i in range(5):
                    c.put(key(f"new{i}"), b"x" * i)
                    reset, end, rows = w.changes()
                    assert rows == [(key(f"new{i}"), 2, i)] and not reset and not end
                assert c.remove([key(f"new{i}") for i in range(5)]) == 5
                gone = []
                while len(gone) < 5:
                    reset, end, rows = w.changes()
                    gone += rows
                    assert not reset and not end
                assert [(k, tiers) for k, tiers, _ in gone] == [(key(f"new{i}"), 0) for i in range(5)]


def test_a_pin_lasts_as_long_as_it_was_asked_for(store):
    with Bulk(store.bulk) as c:
        for name in "abc":
            c.put(key(name), b"x")
        assert c.pin(key("a"), 3_600_000).pinned and c.pin(key("b")).pinned
        c.pin(key("c"), 1)
        until(lambda: not c.lookup([key("c")])[0].pinned, "a millisecond has passed")
        assert [i.pinned for i in c.lookup([key("a"), key("b")])] == [True, True]
        assert c.pin(key("a"), kvbulk.FOREVER - 1).pinned and not c.pin(key("a"), 0).pinned and not c.lookup([key("a")])[0].pinned


@pytest.mark.slow
@pytest.mark.parametrize("store", [{"ram": "16MiB"}], indirect=True)
def test_a_watcher_that_sleeps_begins_again(store):
    with Bulk(store.bulk) as c, Bulk(store.bulk) as w:
        w.send(kvbulk.WATCH)
        assert w.changes()[0]
        changes = 0
        while changes < 300000:  # more than the ring and the socket hold
            for i in range(64):
                c.send(kvbulk.PUT, c.put_body(key(f"k{i}"), 1, b"x"))
            for i in range(64):
                assert c.receive()[0] == kvbulk.INFOS
            changes += 64
        c.put(key("last"), b"x")
        seen, resets = {}, 0
        while key("last") not in seen:
            reset, _, rows = w.changes()
            if reset:
                seen, resets = {}, resets + 1
            seen.update({k: tiers for k, tiers, _ in rows})
        assert resets >= 1


# ---- leases ----

@pytest.mark.parametrize("store", [{"ram": "16MiB"}], indirect=True)
def test_what_is_lent_stays(store):
    value = pattern(1 << 20)
    with Bulk(store.bulk) as c, Bulk(store.bulk) as writer:
        c.put_any(key("held"), value)
        v = c.get(key("held"))
        for i in range(64):  # four times what fits
            writer.put_any(key(f"other{i}"), pattern(1 << 20, i))
        assert v.read() == value
        c.remove([key("held")])
        for i in range(64):
            writer.put_any(key(f"more{i}"), pattern(1 << 20, i))
        assert v.read() == value  # valid even after its removal


@pytest.mark.parametrize("store", [{"ram": "16MiB"}], indirect=True)
def test_lending_has_its_bounds(store):
    clients = [Bulk(store.bulk) for _ in range(4)]
    c = clients[0]
    keys = [key(f"k{i}") for i in range(12)]
    for i, k in enumerate(keys):
        c.put_any(k, pattern(1 << 20, i))
    held = 0
    with pytest.raises(Refused, match="release some first") as e:
        for k in keys:
            c.get(k)
            held += 1
    assert e.value.status == 8 and held == 4  # a quarter of the tier
    for other in clients[1:]:
        try:
            for k in keys:
                other.get(k)
                held += 1
        except Refused as refused:
            assert refused.status == 8
    assert held == 8  # half of the tier, in all
    c.close()
    with Bulk(store.bulk) as fresh:
        until(lambda: gets(fresh, keys[0]), "what a client held is free when it is gone")
    for other in clients[1:]:
        other.close()


def gets(c, k):
    try:
        c.get(k)
        return True
    except Refused:
        return False


def test_a_client_holds_so_many_leases(store):
    with Bulk(store.bulk) as c:
        c.put(key("a"), b"abc")
        leases = [c.get(key("a")).lease for _ in range(c.max_leases)]
        assert len(set(leases)) == c.max_leases
        with pytest.raises(Refused, match="release some first"):
            c.get(key("a"))
        c.release(*leases[:2])
        assert c.get(key("a")).lease not in leases
        c.release(*leases[:2], 0, 2**64 - 1)  # unknown leases: no effect
        assert c.get(key("a")).read() == b"abc"


@pytest.mark.parametrize("store", [{"lease_timeout": "300ms", "ram": "16MiB"}], indirect=True)
def test_a_client_that_never_releases_is_cut_off(store):
    with Bulk(store.bulk) as c, Bulk(store.bulk) as good:
        assert c.lease_ms == 300
        c.put(key("a"), b"abc")
        c.get(key("a"))
        good.release(good.get(key("a")).lease)
        assert "kv.lease_timeout" in c.ended()
        store.process.tells("kvcached.bulk_client")
        assert good.get(key("a")).read() == b"abc"


def test_a_client_that_dies_leaves_nothing(store):
    value = pattern(2 << 20)
    with Bulk(store.bulk) as c:
        c.put_any(key("a"), value)
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                try:
                    child = Bulk(store.bulk)
                    for _ in range(8):
                        child.get(key("a"))
                    os.kill(os.getpid(), signal.SIGKILL)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        until(lambda: gets(c, key("a")), "leases of the dead are free")
        before = store.process.descriptors()
        assert before < 100


# ---- invalid clients ----

def hostile_packets():
    head = struct.pack("<BBHIQ", kvbulk.GET, 0, 0, 0, 1)
    yield "no bytes that mean anything", b"\xff" * 40, "type 255"
    yield "a short head", b"\x03", "not what its fields say"
    yield "a key cut short", head + b"k" * 35, "not what its fields say"
    yield "a key too long", head + b"k" * 37, "not what its fields say"
    yield "a flag", struct.pack("<BBHIQ", kvbulk.GET, 64, 0, 0, 1) + b"k" * 36, "flags that do not exist"
    yield "a list of nothing", struct.pack("<BBHIQ", kvbulk.LOOKUP, 0, 0, 0, 1), "LOOKUP of nothing"
    yield "a list that lies", struct.pack("<BBHIQ", kvbulk.LOOKUP, 0, 1000, 0, 1) + b"k" * 36, "not what its fields say"
    yield "a list too long", struct.pack("<BBHIQ", kvbulk.LOOKUP, 0, 1281, 0, 1) + b"k" * 36 * 1281, "1281 items"
    yield "a server's word", struct.pack("<BBHIQI", kvbulk.COUNT, 0, 0, 0, 1, 7), "cannot be of type"
    yield "hello again", struct.pack("<BBHIQ8sI", kvbulk.HELLO, 0, 0, 0, 1, b"CGNKVBLK", 1), "HELLO comes first, and once"
    yield "a value too short", struct.pack("<BBHIQ", kvbulk.PUT, 0, 0, 0, 1) + Bulk.put_body(key("x"), 10, b"abc"), "PUT of 10 bytes brings 3"
    yield "a name too long", struct.pack("<BBHIQ", kvbulk.PUT, 0, 0, 0, 1) + Bulk.put_body(key("x"), 0, name="n" * 1025), "not what"


@pytest.mark.parametrize("what, packet, sentence", list(hostile_packets()), ids=lambda v: v if isinstance(v, str) and " " in v else "")
def test_nonsense_is_named_and_ends_it(store, what, packet, sentence):
    with Bulk(store.bulk) as c:
        c.s.send(packet)
        assert sentence in c.ended()
    with Bulk(store.bulk) as c:
        c.put(key("a"), b"fine")


def test_a_client_without_a_greeting_is_cut_off(store):
    for packet in (struct.pack("<BBHIQ", kvbulk.LOOKUP, 0, 1, 0, 1) + key("a"), struct.pack("<BBHIQ8sI", 1, 0, 0, 0, 1, b"SOMEBODY", 1),
                   b"GET / HTTP/1.1\r\n\r\n"):
        with Bulk(store.bulk, hello=False) as c:
            c.s.send(packet)
            assert c.ended()
    with Bulk(store.bulk, hello=False) as c:
        with pytest.raises(Refused, match="speaks versions 1 to 2, not 0") as e:
            c.hello(0)
        assert e.value.status == 12
    with Bulk(store.bulk, hello=False) as c:
        c.hello(3)  # a client of a later version learns which one both speak
        assert c.version == 2


def test_descriptors_that_are_none(store, tmp_path):
    with Bulk(store.bulk) as c:
        with pytest.raises(Refused, match="none did"):
            c.ask(kvbulk.PUT, c.put_body(key("x"), 10), kvbulk.FILE)
        read_end, write_end = os.pipe()
        a, b = socket.socketpair()
        directory = os.open(tmp_path, os.O_RDONLY)
        null, zero = os.open("/dev/null", os.O_RDONLY), os.open("/dev/zero", os.O_RDONLY)
        for fd in (read_end, write_end, a.fileno(), directory, null, zero):
            with pytest.raises(Refused, match="no regular file") as e:
                c.put_fd(key("x"), fd, 10)
            assert e.value.status == 3
        with memory_file(b"x" * 100) as f:
            with pytest.raises(Refused, match="has 100 bytes: no 101 from 0 on"):
                c.put_fd(key("x"), f.fileno(), 101)
            with pytest.raises(Refused, match="has 100 bytes"):
                c.put_fd(key("x"), f.fileno(), 1, offset=2**63)
            with pytest.raises(Refused, match="at most 67108864"):
                c.put_fd(key("x"), f.fileno(), (64 << 20) + 1)
        path = tmp_path / "w"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.write(fd, b"x" * 10)
        with pytest.raises(Refused, match="cannot be read"):  # opened for writing only
            c.put_fd(key("x"), fd, 10)
        assert c.lookup([key("x")])[0].tiers == 0
        for n in (read_end, write_end, directory, null, zero, fd):
            os.close(n)
        a.close(), b.close()
        before = store.process.descriptors()
        for _ in range(200):  # descriptors without a request for one
            with memory_file(b"x") as f:
                c.ask(kvbulk.LOOKUP, key("x"), count=1, fds=[f.fileno()])
        assert store.process.descriptors() <= before + 1


def test_a_file_that_shrinks_under_us(store):
    """The owner of the file may truncate it while it is read: the daemon never crashes, and stored values are
    whole."""
    stop = threading.Event()
    f = memory_file(b"\0" * (8 << 20))

    def saw():
        while not stop.is_set():
            f.truncate(1 << 20)
            f.truncate(8 << 20)

    t = threading.Thread(target=saw)
    t.start()
    try:
        with Bulk(store.bulk) as c:
            ends = []
            for i in range(60):
                try:
                    c.put_fd(key("s"), f.fileno(), 8 << 20)
                    ends.append("stored")
                    v = c.get(key("s"), kvbulk.VERIFY)
                    assert len(v.read()) == 8 << 20
                    c.release(v.lease)
                except Refused as e:
                    assert e.status == 3 and ("ends at" in e.sentence or "has 1048576 bytes" in e.sentence)
                    ends.append("refused")
            assert "refused" in ends
    finally:
        stop.set()
        t.join()
        f.close()


def test_many_calls_at_once(store):
    """More than the daemon takes from one client: the rest waits in the socket, and all calls are answered."""
    value = pattern(4 << 20)
    with Bulk(store.bulk) as c, memory_file(value) as f:
        done = threading.Event()

        def send():
            for i in range(500):
                c.send(kvbulk.PUT, c.put_body(key(f"k{i % 4}"), len(value)), kvbulk.FILE, ident=1000 + i, fds=[f.fileno()])
            done.set()

        t = threading.Thread(target=send)
        t.start()
        seen = set()
        while len(seen) < 500:
            kind, _, _, ident, _, _ = c.receive()
            assert kind in (kvbulk.INFOS, kvbulk.FAILED)  # there is not room for all calls in flight
            seen.add(ident)
        t.join()
        assert done.is_set() and seen == set(range(1000, 1500))
        assert c.get(key("k3")).read() == value


def test_a_client_that_does_not_read_is_not_read_from(store):
    with Bulk(store.bulk) as c, Bulk(store.bulk) as other:
        c.put(key("a"), b"abc")
        before = store.process.rss_kib()
        c.s.setblocking(False)
        packet = struct.pack("<BBHIQ", kvbulk.LOOKUP, 0, 1000, 0, 1) + key("a") * 1000
        sent = 0
        stuck = time.monotonic() + 2
        while time.monotonic() < stuck:
            try:
                c.s.send(packet)
                sent += 1
            except BlockingIOError:
                time.sleep(0.01)
        assert sent < 1000
        assert other.get(key("a")).read() == b"abc"
        assert store.process.rss_kib() < before + 8192


@pytest.mark.both
def test_ten_thousand_connections(store):
    n = scaled(10000, 1000)
    before = store.process.rss_kib()
    clients = []
    try:
        for _ in range(n):
            clients.append(Bulk(store.bulk, hello=False))
        random.shuffle(clients)
        for c in clients[:200]:
            c.hello()
            c.lookup([key("a")])
        grown = store.process.rss_kib() - before
        print(f"{n} connections: {grown} KiB, {grown * 1024 // n} bytes each")
        assert grown < 4 * n  # KiB
        with Bulk(store.bulk) as c:
            c.put(key("a"), b"abc")
            assert c.get(key("a")).read() == b"abc"
    finally:
        for c in clients:
            c.close()
    until(lambda: store.process.descriptors() < 100, "all of them are closed")


def test_killed_under_load(store):
    """kill -9, again and again, while clients read and write: each client sees the end, and a new daemon
    serves the same path."""
    value = pattern(256 << 10)
    stop = threading.Event()
    wrong, rounds = [], [0] * 4

    def client(i):
        while not stop.is_set():
            try:
                with Bulk(store.bulk, wait_s=10) as c:
                    while not stop.is_set():
                        c.put_any(key(f"c{i}"), value)
                        v = c.get(key(f"c{i}"))
                        if v.read() != value:
                            wrong.append(i)
                        c.release(v.lease)
                        rounds[i] += 1
            except (OSError, AssertionError, Refused):
                time.sleep(0.01)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    try:
        for _ in range(5):
            before = list(rounds)
            until(lambda: all(r > b for r, b in zip(rounds, before)), "all clients get on")
            store.process.kill()
            store.restart()
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert not wrong


def test_drain_ends_it(store):
    with Bulk(store.bulk) as c:
        c.put(key("a"), b"abc")
        lease = c.get(key("a"))
        assert store.process.stop() == 0
        assert lease.read() == b"abc"  # the memory stays as long as it is mapped
        assert c.receive()[0] is None
    assert not os.path.exists(store.bulk)
