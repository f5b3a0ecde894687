# SPDX-License-Identifier: Apache-2.0
"""The store as a Redis: commands, order, and misbehaving clients."""
import hashlib
import os
import random
import socket
import threading
import time

import pytest
from cluster import WAIT_S, Process, scaled, until
from resp_raw import Raw, Store, Wrong, command

MIB = 1 << 20


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path) as s:
        yield s


# ---- commands ----

def test_values_come_back_as_they_were(store):
    rnd = random.Random(1)
    with store.connect() as a, store.connect(tcp=True) as b:
        for size in (0, 1, 15, 4095, 4096, 4097, 65535, 65536, 65537, 500_000, MIB, 3 * MIB + 7):
            value, key = rnd.randbytes(size), bytes(range(256)) + b"%d" % size
            assert a.ask("SET", key, value) == b"OK"
            assert b.ask("GET", key) == value
            assert b.ask("STRLEN", key) == size
            assert a.ask("GETRANGE", key, 10, 5000) == value[10:5001]
            assert a.ask("GETRANGE", key, -20, -1) == value[-20:]
        assert a.ask("GET", "nobody") is None
        assert a.ask("GETRANGE", "nobody", 0, -1) == b""


def test_a_value_of_64_mib(store):
    value = random.Random(2).randbytes(64 * MIB)
    with store.connect() as c:
        assert c.ask("SET", "big", value) == b"OK"
        assert hashlib.sha256(c.ask("GET", "big")).digest() == hashlib.sha256(value).digest()
        wrong = c.ask("SET", "bigger", value + b"x")  # refused, and the connection stays
        assert isinstance(wrong, Wrong) and "67108864" in wrong
        assert c.ask("EXISTS", "bigger") == 0
        assert c.ask("PING") == b"PONG"


def test_set_has_its_options(store):
    with store.connect() as c:
        assert c.ask("SET", "k", "1", "XX") is None
        assert c.ask("SET", "k", "1", "NX") == b"OK"
        assert c.ask("SET", "k", "2", "NX") is None
        assert c.ask("GET", "k") == b"1"
        assert c.ask("SET", "k", "2", "XX", "GET") == b"1"
        assert c.ask("SET", "k", "3", "EX", 100) == b"OK"
        assert 0 < c.ask("TTL", "k") <= 100
        assert c.ask("SET", "k", "4", "KEEPTTL") == b"OK"
        assert 0 < c.ask("PTTL", "k") <= 100_000
        assert c.ask("SET", "k", "5") == b"OK"
        assert c.ask("TTL", "k") == -1
        assert c.ask("SET", "k", "6", "PXAT", 1) == b"OK"  # a time in the past
        assert c.ask("GET", "k") is None
        for size in (10, 100_000):
            value = b"v" * size
            assert c.ask("SET", "e", value, "PX", 60_000) == b"OK"
            assert 0 < c.ask("PTTL", "e") <= 60_000
            assert c.ask("SETNX", "e", value) == 0
            assert c.ask("SETEX", "e", 50, value) == b"OK"
            assert 0 < c.ask("TTL", "e") <= 50
            assert c.ask("GETSET", "e", b"new") == value
            assert c.ask("GETDEL", "e") == b"new"
            assert c.ask("GET", "e") is None
        assert c.ask("SET", "k", "v", "EX", 0) == "ERR invalid expire time in 'set' command"
        assert c.ask("SET", "k", "v", "EX", "1", "PX", "1") == "ERR syntax error"
        assert c.ask("SET", "k", b"x" * 9000, "WHAT") == "ERR syntax error"  # a large value that is refused at the end
        assert c.ask("EXISTS", "k") == 0


def test_expiry(store):
    with store.connect() as c:
        assert c.ask("EXPIRE", "k", 10) == 0
        assert c.ask("TTL", "k") == -2
        c.ask("SET", "k", "v")
        assert c.ask("EXPIRE", "k", 100, "XX") == 0
        assert c.ask("EXPIRE", "k", 100, "NX") == 1
        assert c.ask("EXPIRE", "k", 50, "GT") == 0
        assert c.ask("PEXPIRE", "k", 50_000, "LT") == 1
        assert 0 < c.ask("TTL", "k") <= 50
        assert c.ask("EXPIREAT", "k", int(time.time()) + 1000) == 1
        assert c.ask("PERSIST", "k") == 1
        assert c.ask("PERSIST", "k") == 0
        assert c.ask("TTL", "k") == -1
        assert c.ask("PEXPIRE", "k", 30) == 1
        until(lambda: c.ask("EXISTS", "k") == 0, "it expires")
        c.ask("SET", "k", "v")
        assert c.ask("EXPIRE", "k", -1) == 1
        assert c.ask("EXISTS", "k") == 0
        assert c.ask("EXPIRE", "k", "x") == "ERR value is not an integer or out of range"
        assert c.ask("EXPIRE", "k", 1, "NX", "GT").startswith("ERR NX and XX, GT or LT")


@pytest.mark.both
def test_a_value_is_never_seen_without_its_end(store):
    over = threading.Event()
    value = b"v" * 5000
    batch = (command("SET", "k", value, "PX", 60_000) + command("SETEX", "k", 60, value) + command("SET", "k", value, "KEEPTTL", "XX")) * 100

    def write():
        with store.connect() as c:
            while not over.is_set():
                c.send(batch)
                assert {c.read() for _ in range(300)} == {b"OK"}

    readers = [store.connect() for _ in range(8)]  # connections of both workers
    writers = [threading.Thread(target=write) for _ in range(3)]
    try:
        assert readers[0].ask("SET", "k", "v", "EX", 60) == b"OK"
        for w in writers:
            w.start()
        for i in range(scaled(160)):
            c = readers[i % 8]
            c.send(command("PTTL", "k") * 1000)
            ends = {c.read() for _ in range(1000)}
            assert min(ends) > 0, ends
    finally:
        over.set()
        for w in writers:
            w.join()
        for c in readers:
            c.close()


def test_many_keys(store):
    with store.connect() as c:
        assert c.ask("MSET", *(x for i in range(100) for x in (f"k{i}", f"v{i}"))) == b"OK"
        assert c.ask("MGET", "k1", "nope", "k99", "x" * 2000) == [b"v1", None, b"v99", None]
        assert c.ask("MSETNX", "new", "1", "k5", "2") == 0
        assert c.ask("EXISTS", "new", "k5", "k5") == 2
        assert c.ask("MSETNX", "new", "1", "new2", b"2" * 50_000) == 1
        assert c.ask("DEL", "new", "new2", "nope") == 2
        assert c.ask("UNLINK", "k0") == 1
        assert c.ask("TYPE", "k1") == b"string" and c.ask("TYPE", "k0") == b"none"
        assert c.ask("MSET", "a") == "ERR wrong number of arguments for 'mset' command"
        assert c.ask("MSET", "a", "1", "b") == "ERR wrong number of arguments for 'mset' command"
        values = [os.urandom(200_000) for _ in range(20)]
        assert c.ask("MSET", *(x for i, v in enumerate(values) for x in (f"big{i}", v))) == b"OK"
        assert c.ask("MGET", *(f"big{i}" for i in range(20))) == values
        assert c.ask("DBSIZE") == 99 + 20


def scan_all(c, *options):
    cursor, found = b"0", []
    while True:
        cursor, keys = c.ask("SCAN", cursor, *options)
        found += keys
        if cursor == b"0":
            return found


def test_scan_gives_names_back(store):
    digest = "ab" * 32
    with store.connect() as c:
        names = {b"name %d\r\n" % i for i in range(500)}
        for n in names:
            c.ask("SET", n, "v")
        c.ask("SET", digest.upper(), "v")
        c.ask("SET", f"{digest}:7", "v")
        assert set(scan_all(c)) == names | {digest.encode(), f"{digest}:7".encode()}
        assert set(scan_all(c, "COUNT", 1000, "MATCH", "name 1?\r\n")) == {b"name %d\r\n" % i for i in range(10, 20)}
        assert scan_all(c, "TYPE", "hash") == []
        assert len(set(scan_all(c, "TYPE", "string"))) == 502
        assert c.ask("SCAN", "x") == "ERR invalid cursor"
        assert c.ask("SCAN", "0", "COUNT", "0") == "ERR syntax error"
        assert c.ask("GET", digest) == b"v" and c.ask("GET", f"{digest}:8") is None


def test_a_connection_can_tell_of_itself(store):
    with store.connect() as c:
        assert c.ask("PING") == b"PONG" and c.ask("PING", "x") == b"x" and c.ask("ECHO", "y") == b"y"
        assert c.ask("CLIENT", "SETINFO", "LIB-NAME", "raw") == b"OK"
        assert c.ask("CLIENT", "SETINFO", "LIB-NAME", "a b").startswith("ERR lib-name")
        assert c.ask("CLIENT", "SETNAME", "me") == b"OK" and c.ask("CLIENT", "GETNAME") == b"me"
        me = c.ask("CLIENT", "ID")
        assert f"id={me} ".encode() in c.ask("CLIENT", "INFO") and b"lib-name=raw" in c.ask("CLIENT", "LIST")
        assert c.ask("CLIENT", "NO-EVICT", "on") == b"OK"
        assert c.ask("SELECT", 0) == b"OK" and c.ask("SELECT", 1) == "ERR DB index is out of range"
        assert c.ask("CONFIG", "GET", "save", "APPENDonly") == [b"save", b"", b"appendonly", b"no"]
        assert c.ask("COMMAND", "COUNT") == len(c.ask("COMMAND")) > 30
        assert c.ask("COMMAND", "INFO", "get", "nope") == [[b"get", 2, [b"readonly", b"fast"], 1, 1, 1, [], [], [], []], None]
        hello = c.ask("HELLO", 3, "SETNAME", "three")
        assert hello[b"proto"] == 3 and hello[b"id"] == me
        assert c.ask("GET", "nope") is None and c.ask("CLIENT", "GETNAME") == b"three"
        assert b"redis_version:" in c.ask("INFO") and isinstance(c.ask("CONFIG", "GET", "max*"), dict)
        assert c.ask("HELLO", 4) == "NOPROTO unsupported protocol version"
        assert c.ask("RESET") == b"RESET" and isinstance(c.ask("HELLO"), list)
        assert c.ask("nonsense", "a", "b\r\n") == "ERR unknown command 'nonsense', with args beginning with: 'a' 'b  ' "
        assert c.ask("GET") == "ERR wrong number of arguments for 'get' command"
        assert c.ask("QUIT") == b"OK" and c.at_end()


def near(got, seconds, unit=1):
    """Whether |got| is what is left of that many seconds, some of which the test itself took."""
    return (seconds - 300) * unit < got <= seconds * unit


@pytest.mark.parametrize("size", [3, 50_000])
def test_every_way_to_set_an_expiry(store, size):
    """What is left is the given time, in the unit of the command, for a value in the text and for one apart from it."""
    value, lasts = b"v" * size, 1_000_000
    now = int(time.time())
    rows = [
        ("SET", "k", value, "EX", lasts), ("SET", "k", value, "PX", lasts * 1000),
        ("SET", "k", value, "EXAT", now + lasts), ("SET", "k", value, "PXAT", (now + lasts) * 1000),
        ("SETEX", "k", lasts, value), ("PSETEX", "k", lasts * 1000, value),
    ]
    later = [("EXPIRE", lasts), ("PEXPIRE", lasts * 1000), ("EXPIREAT", now + lasts), ("PEXPIREAT", (now + lasts) * 1000)]
    with store.connect() as c:
        for row in rows:
            assert c.ask(*row) == b"OK", row[:2]
            assert near(c.ask("TTL", "k"), lasts) and near(c.ask("PTTL", "k"), lasts, 1000), row[0]
            assert c.ask("SET", "k", value) == b"OK" and c.ask("PTTL", "k") == -1
        for name, amount in later:
            assert c.ask(name, "k", amount) == 1
            assert near(c.ask("TTL", "k"), lasts) and near(c.ask("PTTL", "k"), lasts, 1000), name
            assert c.ask("GET", "k") == value and c.ask("PERSIST", "k") == 1
        assert c.ask("SET", "k", value, "EX", lasts) == b"OK"
        assert c.ask("SET", "k", value, "KEEPTTL") == b"OK" and near(c.ask("TTL", "k"), lasts)
        assert c.ask("GETSET", "k", value) == value and c.ask("TTL", "k") == -1


def test_conditions_of_an_expiry(store):
    """Redis's table: no expiry is later than any time."""
    with store.connect() as c:
        for old, amount, option, did in [
            (None, 500, "NX", 1), (None, 500, "XX", 0), (None, 500, "GT", 0), (None, 500, "LT", 1),
            (9000, 500, "NX", 0), (9000, 500, "XX", 1), (9000, 500, "GT", 0), (9000, 500, "LT", 1),
            (9000, 90000, "GT", 1), (9000, 90000, "LT", 0), (9000, 90000, "nx", 0), (9000, 90000, "xx", 1),
        ]:
            c.ask("SET", "k", "v", *(("EX", old) if old else ()))
            assert c.ask("EXPIRE", "k", amount, option) == did, (old, amount, option)
            left = c.ask("TTL", "k")
            assert near(left, amount) if did else near(left, old) if old else left == -1, (old, amount, option, left)
        at = (int(time.time()) + 5000) * 1000
        assert c.ask("PEXPIREAT", "k", at) == 1
        assert c.ask("PEXPIREAT", "k", at, "GT") == 0 and c.ask("PEXPIREAT", "k", at, "LT") == 0  # the same is neither
        assert c.ask("PEXPIREAT", "k", at + 1, "XX", "GT") == 1 and c.ask("PEXPIREAT", "k", at, "XX", "LT") == 1
        assert c.ask("EXPIRE", "nobody", 10, "LT") == 0 and c.ask("PERSIST", "nobody") == 0 and c.ask("PTTL", "nobody") == -2
        for option in ("XX", "GT", "LT"):
            assert c.ask("EXPIRE", "k", 1, "NX", option) == "ERR NX and XX, GT or LT options at the same time are not compatible"
        assert c.ask("EXPIRE", "k", 1, "GT", "LT") == "ERR GT and LT options at the same time are not compatible"
        assert c.ask("EXPIRE", "k", 1, "what") == "ERR Unsupported option what"
        for text in ("a\rb", "a\nb", "x" * 65):
            assert c.ask("EXPIRE", "k", 1, text) == "ERR Unsupported option"
        assert c.ask("EXPIRE", "k", 1, "x" * 64) == "ERR Unsupported option " + "x" * 64
        for name in ("expire", "pexpire", "expireat"):
            wrong = c.ask(name, "k", 2**63 - 1)
            assert wrong == (f"ERR invalid expire time in '{name}' command"), wrong
        assert near(c.ask("TTL", "k"), 5000)  # none of these changed it
        for name, amount in (("SETEX", 0), ("PSETEX", -1)):
            assert c.ask(name, "k", amount, "v") == f"ERR invalid expire time in '{name.lower()}' command"
        assert c.ask("SETEX", "k", "soon", "v") == "ERR value is not an integer or out of range"
        for amount in (0, -5):
            assert c.ask("SET", "gone", "v") == b"OK" and c.ask("EXPIRE", "gone", amount) == 1 and c.ask("EXISTS", "gone") == 0
        assert c.ask("SET", "gone", "v") == b"OK" and c.ask("EXPIREAT", "gone", 1) == 1
        assert c.ask("DBSIZE") == 1, "what has expired is removed at once"


def test_what_set_says_about_the_old_value(store):
    with store.connect() as c:
        for old, new in ((b"a", b"b"), (b"a" * 70_000, b"b" * 80_000)):
            assert c.ask("SET", "k", old, "GET") is None and c.ask("GET", "k") == old
            assert c.ask("SET", "k", new, "NX", "GET") == old and c.ask("GET", "k") == old
            assert c.ask("SET", "k", new, "GET") == old and c.ask("GET", "k") == new
            assert c.ask("GETDEL", "k") == new and c.ask("GETDEL", "k") is None
            assert c.ask("SET", "k", new, "XX", "GET") is None and c.ask("EXISTS", "k") == 0
            assert c.ask("GETSET", "k", new) is None and c.ask("GETSET", "k", old) == new
            assert c.ask("SETNX", "k", new) == 0 and c.ask("GET", "k") == old
            assert c.ask("DEL", "k") == 1 and c.ask("SETNX", "k", new) == 1 and c.ask("GETDEL", "k") == new
            assert c.ask("MSETNX", "k", new, "l", old) == 1 and c.ask("MSETNX", "m", new, "l", new) == 0
            assert c.ask("MGET", "k", "l", "m") == [new, old, None] and c.ask("DEL", "k", "l", "m") == 2


def test_a_part_of_a_value(store):
    """GETRANGE cuts as a slice of both ends does; SUBSTR is its old name."""
    for text in (b"0123456789", bytes(range(250)) * 400):
        with store.connect() as c:
            c.ask("SET", "k", text)
            n = len(text)
            for first, last in [(0, 0), (0, -1), (3, 5), (5, 3), (-3, -1), (-1, -3), (n - 1, n - 1), (n, n + 5), (0, n + 5), (-n - 5, 2), (-n, -n),
                                (2, -2), (-n - 5, -n - 1)]:
                low = max(first + n, 0) if first < 0 else first
                high = max(last + n, 0) if last < 0 else last
                want = text[low:high + 1] if not (first < 0 and last < 0 and first > last) else b""
                for name in ("GETRANGE", "SUBSTR"):
                    assert c.ask(name, "k", first, last) == want, (name, first, last)
            assert c.ask("GETRANGE", "k", "x", 1) == c.ask("GETRANGE", "k", 1, "x") == "ERR value is not an integer or out of range"


def test_a_key_has_a_greatest_length(store):
    most, over = "k" * 1024, "k" * 1025
    with store.connect() as c:
        assert c.ask("SET", most, "v") == b"OK" and c.ask("GET", most) == b"v" and c.ask("EXISTS", most) == 1
        said = "ERR a key of 1025 bytes: at most 1024"
        for row in (["GET", over], ["EXISTS", most, over], ["DEL", over], ["STRLEN", over], ["TYPE", over], ["TTL", over], ["PERSIST", over],
                    ["EXPIRE", over, 5], ["GETRANGE", over, 0, 1], ["GETDEL", over], ["SET", over, "v"], ["SETNX", over, "v"], ["GETSET", over, "v"],
                    ["SETEX", over, 5, "v"], ["SET", over, b"v" * 50_000], ["MSET", "a", "1", over, "2"], ["MSET", "a", b"1" * 50_000, over, b"2" * 50_000]):
            assert c.ask(*row) == said, row[0]
        assert c.ask("MGET", over, most) == [None, b"v"]
        assert c.ask("DBSIZE") == 1, "no part of the refused commands was done"


def info_of(c, *args):
    text = c.ask("INFO", *args).decode().removeprefix("txt:")
    return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)


def test_info_counts(store):
    with store.connect() as c, store.connect(tcp=True) as other:
        assert other.ask("PING") == b"PONG"
        was = info_of(c)
        assert "db0" not in was and was["connected_clients"] == "2" and was["process_id"] == str(store.process.pid)
        assert int(was["maxmemory"]) == 256 * MIB and was["ram_blocks"] == "0" and was["loading"] == "0" and was["role"] == "master"
        for i in range(5):
            c.ask("SET", f"k{i}", b"v" * 10_000)
        for i in range(7):
            c.ask("GET", "k0")
        for i in range(3):
            c.ask("GET", "nobody")
        now = info_of(c)
        assert now["db0"] == "keys=5,expires=0,avg_ttl=0" and now["ram_blocks"] == "5" and now["ssd_blocks"] == "0"
        assert int(now["used_memory"]) == int(now["ram_bytes"]) >= 50_000
        assert int(now["keyspace_hits"]) - int(was["keyspace_hits"]) == 7
        assert int(now["keyspace_misses"]) - int(was["keyspace_misses"]) >= 3
        assert int(now["total_commands_processed"]) - int(was["total_commands_processed"]) == 5 + 7 + 3 + 1
        assert c.ask("HELLO", 3)[b"proto"] == 3
        assert info_of(c)["db0"] == now["db0"]  # RESP3 sends it as text with a format


def test_settings_and_commands_are_told_as_libraries_ask(tmp_path):
    with Store(tmp_path, ram="128MiB", workers=1, max_connections=77, resp_idle_timeout="90s") as s, s.connect() as c:
        def config(*names):
            got = c.ask("CONFIG", "GET", *names)
            return dict(zip(got[::2], got[1::2], strict=True))
        assert config("*") == {b"save": b"", b"appendonly": b"no", b"databases": b"1", b"maxmemory": b"%d" % (128 * MIB), b"maxclients": b"77",
                               b"timeout": b"90", b"proto-max-bulk-len": b"%d" % (64 * MIB), b"io-threads": b"1"}
        assert config("MAX*", "zzz") == {b"maxmemory": b"%d" % (128 * MIB), b"maxclients": b"77"} and config("zzz") == {}
        assert c.ask("CONFIG", "SET", "save", "").startswith("ERR only CONFIG GET") and c.ask("CONFIG", "GET").startswith("ERR only CONFIG GET")
        names = c.ask("COMMAND", "LIST")
        assert len(set(names)) == c.ask("COMMAND", "COUNT") == len(c.ask("COMMAND", "INFO")) and {b"get", b"mset", b"scan"} <= set(names)
        assert c.ask("COMMAND", "DOCS") == [] and c.ask("COMMAND", "what").startswith("ERR unknown subcommand")
        rows = {row[0]: row for row in c.ask("COMMAND", "INFO", "set", "mset", "ping")}
        assert b"write" in rows[b"set"][2] and rows[b"set"][1:2] + rows[b"set"][3:6] == [-3, 1, 1, 1]
        assert rows[b"mset"][3:6] == [1, -1, 2] and b"readonly" not in rows[b"mset"][2]
        seconds, micros = map(int, c.ask("TIME"))
        assert abs(seconds - time.time()) < 300 and 0 <= micros < 1_000_000
        for wrong in ("SELECT x", "PING a b", "HELLO x", "CLIENT", "ECHO"):
            assert isinstance(c.ask(*wrong.split()), Wrong), wrong


def test_a_name_of_a_connection(store):
    with store.connect() as c, store.connect(tcp=True) as other:
        assert c.ask("CLIENT", "GETNAME") is None
        assert c.ask("CLIENT", "SETNAME", "n" * 63) == b"OK" and c.ask("CLIENT", "GETNAME") == b"n" * 63
        for wrong in ("n" * 64, "a b", "a\x7f", "a\n"):
            assert c.ask("CLIENT", "SETNAME", wrong).startswith("ERR Client names cannot contain spaces"), wrong
        assert c.ask("CLIENT", "SETINFO", "LIB-VER", "1.2") == b"OK"
        assert c.ask("CLIENT", "SETINFO", "LIB-WHAT", "1") == "ERR Unrecognized option"
        assert other.ask("CLIENT", "SETNAME", "other") == b"OK"
        mine = c.ask("CLIENT", "INFO").decode()
        fields = dict(field.split("=", 1) for field in mine.split())
        assert mine.count("\n") == 1 and fields["name"] == "n" * 63 and fields["lib-ver"] == "1.2" and fields["lib-name"] == "" and fields["resp"] == "2"
        assert int(fields["age"]) < 300 and int(fields["idle"]) < 300 and fields["db"] == "0"
        told = dict(field.split("=", 1) for field in other.ask("CLIENT", "INFO").decode().split())
        assert told["addr"].startswith("127.0.0.1:") and told["id"] != fields["id"] and told["name"] == "other"
        for option, word in (("NO-EVICT", "off"), ("NO-TOUCH", "on"), ("NO-TOUCH", "OFF"), ("REPLY", "on"), ("TRACKING", "off")):
            assert c.ask("CLIENT", option, word) == b"OK", option
        for option, word in (("NO-EVICT", "maybe"), ("REPLY", "off"), ("REPLY", "skip"), ("TRACKING", "on"), ("KILL", "x")):
            assert c.ask("CLIENT", option, word).startswith("ERR unknown subcommand"), option
        assert c.ask("AUTH", "x").startswith("ERR AUTH <password> called without any password") and c.ask("AUTH", "default", "any") == b"OK"
        assert c.ask("AUTH", "somebody", "any").startswith("WRONGPASS") and c.ask("AUTH", "a", "b", "c") == "ERR syntax error"
        assert c.ask("HELLO", 3, "SETNAME", "a b").startswith("ERR Client names") and c.ask("HELLO", 3, "SETNAME").startswith("ERR Syntax error")
        assert c.ask("HELLO", 3, "AUTH", "somebody", "any").startswith("WRONGPASS") and isinstance(c.ask("HELLO"), list), "still RESP2"
        hello = c.ask("HELLO", 3, "AUTH", "default", "any", "SETNAME", "new")
        assert hello[b"server"] == b"redis" and hello[b"mode"] == b"standalone" and hello[b"modules"] == [] and hello[b"role"] == b"master"
        assert c.ask("CLIENT", "GETNAME") == b"new" and "resp=3 " in c.ask("CLIENT", "INFO").decode()
        assert c.ask("HELLO")[b"proto"] == 3, "HELLO without a version keeps it"
        assert c.ask("RESET") == b"RESET" and c.ask("CLIENT", "GETNAME") is None


def test_client_list_has_every_connection_of_its_thread(tmp_path):
    with Store(tmp_path, workers=1) as s, s.connect() as c:
        crowd = [s.connect() for _ in range(5)]
        for i, other in enumerate(crowd):
            assert other.ask("CLIENT", "SETNAME", f"c{i}") == b"OK"
        lines = c.ask("CLIENT", "LIST").decode().splitlines()
        assert len(lines) == 6 and sum(f" name=c{i} " in line for line in lines for i in range(5)) == 5
        for other in crowd:
            other.close()
        until(lambda: len(c.ask("CLIENT", "LIST").decode().splitlines()) == 1, "those that went are not listed")


def test_scan_takes_about_as_many_as_it_was_asked_for(store):
    with store.connect() as c:
        assert scan_all(c) == []
        assert c.ask("MSET", *(x for i in range(3000) for x in (f"key{i}", "v"))) == b"OK"
        cursor, few = c.ask("SCAN", 0)
        assert cursor != b"0" and 10 <= len(few) < 100, "ten where nothing is said"
        _, one = c.ask("SCAN", 0, "COUNT", 1)
        _, many = c.ask("SCAN", 0, "COUNT", 500)
        _, most = c.ask("SCAN", 0, "COUNT", 10**9)
        assert 1 <= len(one) < 100 and 500 <= len(many) < 600 and 1024 <= len(most) < 1200, (len(one), len(many), len(most))
        assert len(set(scan_all(c, "COUNT", 300))) == 3000
        assert c.ask("SCAN", 0, "COUNT", "x") == "ERR value is not an integer or out of range"
        assert c.ask("SCAN", 0, "COUNT", -1) == "ERR syntax error"
        for options in (("MATCH",), ("COUNT",), ("TYPE",), ("WHAT", "x")):
            assert c.ask("SCAN", 0, *options) == "ERR syntax error", options


def test_a_password(tmp_path):
    (tmp_path / "pw").write_text("correct horse\n")
    with Store(tmp_path, resp_password_file=str(tmp_path / "pw")) as s, s.connect() as c:
        assert c.ask("GET", "k") == "NOAUTH Authentication required."
        assert c.ask("HELLO", 3).startswith("NOAUTH HELLO")
        assert c.ask("AUTH", "wrong").startswith("WRONGPASS")
        assert c.ask("AUTH", "other", "correct horse").startswith("WRONGPASS")
        assert c.ask("AUTH", "correct horse") == b"OK"
        assert c.ask("SET", "k", b"x" * 20_000) == b"OK"
        assert c.ask("RESET") == b"RESET" and c.ask("GET", "k").startswith("NOAUTH")
        assert c.ask("HELLO", 3, "AUTH", "default", "correct horse")[b"proto"] == 3
        for strange in (b"*11\r\n", b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16385\r\n"):
            with s.connect() as stranger:
                stranger.send(strange)
                assert "unauthenticated" in stranger.read() and stranger.at_end()


def test_other_machines_need_a_password(tmp_path):
    for addr in ("0.0.0.0:1", "[::]:1"):
        p = Process(tmp_path, "refused", "cgn-kvcached", "--set", f"kv.resp_listen={addr}", "--set", "kv.uds=", "--set", "kv.listen=127.0.0.1:0",
                    "--ram", "64MiB", "--admin", "127.0.0.1:0")
        assert p.wait() != 0 and "resp_password_file" in p.log()


# ---- order ----

def test_a_pipeline_is_answered_in_order(store):
    rnd = random.Random(3)
    values = {b"k%d" % i: rnd.randbytes(rnd.choice((3, 5000, 70_000, 300_000))) for i in range(60)}
    asked, want = [], []
    for key, value in values.items():
        asked += [command("SET", key, value), command("GET", key), command("PING"), command("MGET", key, "nope", key)]
        want += [b"OK", value, b"PONG", [value, None, value]]
    with store.connect() as c:
        sender = threading.Thread(target=c.send, args=(b"".join(asked),))
        sender.start()
        for w in want:
            assert c.read() == w
        sender.join()


def test_commands_may_come_in_any_pieces(store):
    rnd = random.Random(4)
    data = b"".join(command("SET", f"k{i}", rnd.randbytes(9000 + i)) + b"GET k%d\r\n" % i + command("STRLEN", f"k{i}") for i in range(20))
    for most in (1, 7, 1000, 30_000):
        with store.connect() as c:
            def send():
                at = 0
                while at < len(data) and (most > 1 or at < 20_000):
                    n = rnd.randint(1, most)
                    c.send(data[at:at + n])
                    at += n
                c.send(data[at:])
            sender = threading.Thread(target=send)
            sender.start()
            for i in range(20):
                assert c.read() == b"OK" and len(c.read()) == 9000 + i and c.read() == 9000 + i
            sender.join()


def test_a_half_closed_client_is_still_answered(store):
    value = os.urandom(5 * MIB)
    with store.connect() as c:
        c.send(command("SET", "k", value) + command("GET", "k") * 3)
        c.s.shutdown(socket.SHUT_WR)
        assert c.read() == b"OK" and [c.read() for _ in range(3)] == [value] * 3
        assert c.at_end()


@pytest.mark.both
def test_threads_at_one_key_never_see_a_mixture(store):
    values = [bytes([i]) * 300_000 for i in range(1, 5)]
    with store.connect() as c:
        c.ask("SET", "k", values[0])
    stop, seen = threading.Event(), []

    def write(v):
        with store.connect() as c:
            while not stop.is_set():
                assert c.ask("SET", "k", v) == b"OK"

    def read():
        with store.connect(tcp=True) as c:
            for _ in range(scaled(300)):
                got = c.ask("GET", "k")
                seen.append(got in values)

    writers = [threading.Thread(target=write, args=(v,)) for v in values]
    readers = [threading.Thread(target=read) for _ in range(3)]
    for t in writers + readers:
        t.start()
    for t in readers:
        t.join()
    stop.set()
    for t in writers:
        t.join()
    assert len(seen) == 3 * scaled(300) and all(seen)


# ---- misbehaving clients ----

HOSTILE = [
    (b"*1048577\r\n", "invalid multibulk length"),
    (b"*9999999999999999999999\r\n", "invalid multibulk length"),
    (b"*-5\r\n", "invalid multibulk length"),
    (b"*abc\r\n", "invalid multibulk length"),
    (b"*1\r\n$-1\r\n", "invalid bulk length"),
    (b"*1\r\n$-9\r\n", "invalid bulk length"),
    (b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$999999999999\r\n", "invalid bulk length"),
    (b"*1\r\n:5\r\n", "expected '$'"),
    (b"*2\r\n$3\r\nGET\r\n*1\r\n", "expected '$'"),
    (b"*1\r\n$4\r\nPINGxx", "does not end"),
    (b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5000\r\n" + b"v" * 5000 + b"xx", "does not end"),
    (b"*2\r\n$3\r\nGET\r\n$2000000\r\n", "1 MiB"),
    (b'GET "k\r\n', "unbalanced quotes"),
    (b"x" * 70_000, "too big inline"),
    (b"*" + b"1" * 5000, "invalid multibulk length"),
]


@pytest.mark.parametrize("data, why", HOSTILE, ids=range(len(HOSTILE)))
def test_a_broken_frame_is_told_and_ends_the_connection(store, data, why):
    with store.connect() as c:
        c.send(command("PING") + data)
        assert c.read() == b"PONG"
        wrong = c.read()
        assert isinstance(wrong, Wrong) and "Protocol error" in wrong and why in wrong
        assert c.at_end()
    with store.connect() as c:
        assert c.ask("PING") == b"PONG"


@pytest.mark.parametrize("head", [b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"GET /x HTTP/1.1\r\nhOsT: 127.0.0.1\r\n", b"post\r\n",
                                  b"OPTIONS * HTTP/1.1\r\nAccept: */*\r\nHost: x\r\n", command("Host:", "x")])
def test_commands_in_a_browsers_request_do_not_run(store, head):
    for _ in range(3):
        with store.connect(tcp=True) as c:
            c.send(head + b"Content-Type: text/plain\r\n\r\nSET stolen 1\r\n" + command("SET", "stolen", "1"))
            answers = c.rest()
            assert answers.count(b"-ERR") == answers.count(b"\r\n") <= 2, answers
    with store.connect() as c:
        assert c.ask("GET", "stolen") is None
        assert c.ask("SET", "post", "fine") == b"OK" and c.ask("GET", "post") == b"fine"
    assert sorted(e["since_start"] for e in store.process.events("resp.http_request")) == [1, 2, 3]


def test_noise(store):
    rnd = random.Random(5)
    for _ in range(200):
        with store.connect() as c:
            data = rnd.randbytes(rnd.randint(1, 3000))
            c.send(data if rnd.random() < 0.5 else command("GET", data, data)[:rnd.randint(1, 4000)])
    with store.connect() as c:
        assert c.ask("PING") == b"PONG"


def test_a_value_that_stops_half_way_leaves_nothing(store):
    before = store.tier()["bytes"]
    for _ in range(50):
        with store.connect() as c:
            c.send(b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$4000000\r\n" + b"v" * 100_000)
    until(lambda: store.tier()["bytes"] == before, lambda: f"{store.tier()}")
    with store.connect() as c:
        assert c.ask("EXISTS", "half") == 0


def test_promised_values_cannot_take_the_tier(store):
    """Clients that announce values and do not send them reserve no more than the bound for all clients;
    clients that hold something find room."""
    crowd = [store.connect() for _ in range(40)]
    with store.connect() as c:
        assert c.ask("SET", "kept", "v") == b"OK"
        for p in crowd:
            p.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$67108864\r\n" + b"v" * 1000)
        until(lambda: store.tier()["bytes"] >= 64 * MIB, lambda: f"{store.tier()}")
        assert c.ask("GET", "kept") == b"v" and c.ask("SET", "other", b"o" * 4000) == b"OK"
        assert store.tier()["bytes"] <= 140 * MIB
        for p in crowd:
            p.close()
        assert c.ask("SET", "large", b"l" * (64 * MIB)) == b"OK"


def test_readers_that_do_not_read_are_bounded(store):
    value = os.urandom(8 * MIB)
    with store.connect() as c:
        assert c.ask("SET", "k", value) == b"OK"
        assert c.ask("GET", "k") == value  # the client is known as one that reads its answers
        rss = store.process.rss_kib()
        crowd = [store.connect() for _ in range(100)]
        for s in crowd:
            s.send(command("GET", "k") * 50)
        store.process.tells("resp.cut")  # they wait for each other
        assert store.process.rss_kib() - rss < 64 * 1024  # of 40 GB requested
        assert c.ask("PING") == b"PONG" and c.ask("SET", "more", b"m" * MIB) == b"OK"
        assert c.ask("GET", "k") == value  # some of the clients that don't read are cut, and the others stay
        assert 0 < len(store.process.events("resp.cut")) < len(crowd)
        for s in crowd:
            s.close()
        with store.connect() as one:
            one.send(command("GET", "k") * 50)
            for _ in range(50):
                assert one.read() == value


def test_one_reader_does_not_take_what_is_for_all(store):
    """A client that requests very much at once pins only a few values, and no other client has to wait for
    it."""
    value = os.urandom(8 * MIB)
    with store.connect() as c, store.connect() as greedy, store.connect() as other:
        assert c.ask("SET", "k", value) == b"OK"
        greedy.send(command("GET", "k") * 50)
        other.send(command("MGET", *["k"] * 50))
        time.sleep(0.2)
        for _ in range(5):
            assert c.ask("GET", "k") == value
        assert not store.process.events("resp.cut")
        for _ in range(50):
            assert greedy.read() == value
        assert other.read() == [value] * 50


def test_a_waiting_client_pins_few_values(tmp_path):
    """A client that waits for room requests all values: only as many of the values after the first are pinned
    as one client may hold."""
    with Store(tmp_path, ram="64MiB", workers=1) as store, store.connect() as c:
        assert c.ask("SET", "k", os.urandom(8 * MIB)) == b"OK"
        for i in range(26):
            assert c.ask("SET", f"v{i}", os.urandom(2 * MIB)) == b"OK"
        crowd = [store.connect() for _ in range(4)]
        for s in crowd:
            s.send(b"".join(command("GET", k) for k in ["k", *(f"v{i}" for i in range(26))]))
        until(lambda: store.tier()["hits"] >= 4, lambda: f"{store.tier()}")
        assert c.ask("SET", "new", os.urandom(6 * MIB)) == b"OK"
        for s in crowd:
            s.close()


def test_a_client_that_holds_a_little_and_waits_for_more_is_cut_too(tmp_path):
    """All clients that hold something wait themselves: one of them is cut."""
    with Store(tmp_path, ram="64MiB") as store, store.connect() as c:
        small, value = os.urandom(400 * 1024), os.urandom(8 * MIB)
        assert c.ask("SET", "small", small) == b"OK" and c.ask("SET", "k", value) == b"OK"
        crowd = [store.connect() for _ in range(80)]
        for s in crowd:
            s.send(command("GET", "small") + command("GET", "k"))
        store.process.tells("resp.cut")
        assert c.ask("GET", "k") == value
        for s in crowd:
            s.close()


def test_a_slow_reader_that_keeps_its_pace_is_not_cut(tmp_path):
    """One client takes its value slowly while others wait for their turn; a client that takes nothing is cut meanwhile."""
    with Store(tmp_path, ram="64MiB", workers=1) as store, store.connect() as c:
        value = os.urandom(16 * MIB)
        assert c.ask("SET", "k", value) == b"OK"
        slow, lazy = store.connect(), store.connect()
        slow.send(command("GET", "k"))
        got = slow.s.recv(65536)
        lazy.send(command("GET", "k"))  # waits: both together are more than what readers may hold
        while not got.endswith(value[-100:] + b"\r\n"):  # longer than a client may stand still while others wait
            more = slow.s.recv(65536)
            assert more, store.process.events("resp.cut")
            got += more
            time.sleep(0.004)
        assert got == b"$%d\r\n%s\r\n" % (len(value), value)
        assert not store.process.events("resp.cut")
        assert c.ask("GET", "k") == value  # once the lazy one is cut
        (cut,) = store.process.tells("resp.cut")
        assert cut["why"] == "stalled"
        slow.close()
        lazy.close()


def test_new_clients_do_not_delay_the_cut_of_others(tmp_path):
    """Clients keep coming and have to wait, for as long as it takes: clients that do not read are found and
    cut meanwhile."""
    with Store(tmp_path, ram="64MiB", workers=1) as store, store.connect() as c:
        assert c.ask("SET", "k", os.urandom(8 * MIB)) == b"OK"
        crowd = []
        while len(crowd) < 1000 and not (len(crowd) % 50 == 0 and store.process.events("resp.cut")):
            crowd.append(store.connect())
            crowd[-1].send(command("GET", "k"))
            time.sleep(0.002)
        assert store.process.events("resp.cut")
        for s in crowd:
            s.close()


def test_commands_of_many_values_do_not_wait_for_each_other(tmp_path):
    """Each client has one half of the room for incoming values and needs more: a client that finds no room
    fails, and gives back its part."""
    with Store(tmp_path, ram="128MiB") as store:
        value = os.urandom(20 * MIB)
        crowd = [store.connect() for _ in range(2)]
        for i, c in enumerate(crowd):
            c.send(b"*5\r\n$4\r\nMSET\r\n$2\r\na%d\r\n$%d\r\n" % (i, len(value)) + value + b"\r\n$2\r\nb%d\r\n" % i)
        for c in crowd:
            c.send(b"$%d\r\n" % len(value))
        for i, c in enumerate(crowd):
            c.send(value + b"\r\n")
            said = c.read()
            assert said == b"OK" or said.startswith("OOM "), said
            assert c.ask("EXISTS", f"a{i}", f"b{i}") == (2 if said == b"OK" else 0)
            c.close()


@pytest.mark.both
def test_endless_text_is_bounded(store):
    """Commands of much text that never end: a client that would exceed the bound for all is cut, and the rest
    continue."""
    rss = store.process.rss_kib()
    head = b"*60000\r\n$4\r\nMGET\r\n" + b"$50\r\n%s\r\n" % (b"k" * 50) * 17_000  # about a MiB, incomplete
    crowd = []
    for _ in range(scaled(300)):
        c = store.connect()
        crowd.append(c)
        try:
            c.send(head)
        except (BrokenPipeError, ConnectionResetError):
            pass
    with store.connect() as c:
        assert c.ask("PING") == b"PONG"
    assert store.process.rss_kib() - rss < 2 * (64 + 64) * 1024 + 64 * 1024
    for c in crowd:
        c.close()


@pytest.mark.both
def test_ten_thousand_idle_connections(tmp_path):
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n = scaled(10_000, 500)
    if hard < n + 500:
        pytest.skip(f"at most {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with Store(tmp_path, max_connections=n + 2) as s:
            rss = s.process.rss_kib()
            crowd = []
            for i in range(n):
                c = socket.socket(socket.AF_UNIX)
                c.connect(s.uds)
                crowd.append(c)
            with s.connect() as a, s.connect(tcp=True) as b:
                assert a.ask("PING") == b"PONG" and b.ask("PING") == b"PONG"
                until(lambda: f"connected_clients:{n + 2}".encode() in a.ask("INFO"), lambda: a.ask("INFO"))
                with s.connect() as late:
                    assert late.read() == "ERR max number of clients reached" and late.at_end()
                assert (s.process.rss_kib() - rss) / n < (2 if scaled(10) == 10 else 20)  # KiB each
                for c in crowd[::100]:
                    c.sendall(command("PING"))
                    assert c.recv(7) == b"+PONG\r\n"
            for c in crowd:
                c.close()

            def alone():
                with s.connect() as a:  # refused while the ends of the others are still unread
                    return a.ask("INFO")
            until(lambda: not isinstance(info := alone(), Wrong) and b"connected_clients:1\r\n" in info, alone)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_idle_client_may_be_cut(tmp_path):
    with Store(tmp_path, resp_idle_timeout="1s") as s, s.connect() as idle, s.connect() as busy:
        assert idle.ask("PING") == b"PONG"
        until(lambda: busy.ask("PING") == b"PONG" and s.process.events("resp.cut"), "the idle one is cut", step_s=0.2)
        assert idle.at_end() and busy.ask("PING") == b"PONG"


def test_a_drain_lets_the_last_command_end(store):
    with store.connect() as c, store.connect() as idle:
        assert idle.ask("PING") == b"PONG"
        value = b"v" * (2 * MIB)
        data = command("SET", "k", value)
        c.send(data[:MIB])
        until(lambda: store.tier()["bytes"] > 0, "the value began")
        store.process.signal(15)
        assert idle.at_end()
        c.send(data[MIB:])
        assert c.read() == b"OK" and c.at_end()
        assert store.process.wait() == 0


def test_a_second_store_at_the_same_socket_is_refused(store, tmp_path):
    p = Process(tmp_path, "second", "cgn-kvcached", "--set", f"kv.uds={store.uds.removesuffix('.resp')}", "--set", "kv.resp_listen=", "--set",
                "kv.listen=127.0.0.1:0", "--ram", "64MiB", "--admin", "127.0.0.1:0")
    assert p.wait() == 7 and "stop that or choose another" in p.log()
    with Raw(store.uds) as c:
        assert c.ask("PING") == b"PONG"
