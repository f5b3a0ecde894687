# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl kv and bench kv on a running store."""
import json
import os
import subprocess

import pytest

from cluster import BUILD
from kvbulk import Bulk, Store, key
from terminal import on_terminal

CTL = BUILD / "src" / "ctl" / "cgn-ctl"


@pytest.fixture
def store(tmp_path):
    s = Store(tmp_path, ram="64MiB")
    yield s
    s.close()


def ctl(store, *args, rc=0, stdin=b"", env=None):
    where = [] if env else ["--uds", store.uds]
    done = subprocess.run([CTL, *args, *where], input=stdin, capture_output=True, timeout=120, env={**os.environ, **(env or {})})
    assert done.returncode == rc, done.stderr.decode()
    return done.stdout if rc == 0 else done.stderr.decode()


def test_a_value_in_and_out(store, tmp_path):
    value = os.urandom(700001)
    (tmp_path / "v").write_bytes(value)
    put = json.loads(ctl(store, "kv", "put", "name", "--file", tmp_path / "v", "--model", "m", "--tokens", "16", "--ttl", "1h", "-o", "json"))
    assert put["size"] == len(value) and put["tiers"] == "ram" and put["expires_unix_ms"] - put["created_unix_ms"] == 3600000
    assert ctl(store, "kv", "get", "name") == value
    assert ctl(store, "kv", "get", put["key"]) == value
    ctl(store, "kv", "get", "name", "--out", tmp_path / "w")
    assert (tmp_path / "w").read_bytes() == value
    assert "has a value" in ctl(store, "kv", "put", "name", "--if-absent", rc=1, stdin=b"x")
    ctl(store, "kv", "put", "name", stdin=b"")
    assert ctl(store, "kv", "get", "name") == b""
    digest = "ab" * 32 + ":7"
    ctl(store, "kv", "put", digest, stdin=b"segment")
    with Bulk(store.bulk) as c:
        assert c.get(b"\xab" * 32 + b"\x07\0\0\0").read() == b"segment"
    assert ctl(store, "kv", "rm", "name", digest, "nothing") == b"2 removed\n"
    assert "name: no tier holds" in ctl(store, "kv", "get", "name", rc=1)
    assert "name: " in ctl(store, "kv", "pin", "name", rc=1)


def test_a_value_reaches_a_terminal_only_when_asked_to(store, tmp_path):
    ctl(store, "kv", "put", "name", stdin=b"\x1b]0;owned\x07")
    get = (CTL, "kv", "get", "name", "--uds", store.uds)
    code, text, err = on_terminal(*get)
    assert code == 2 and text == "" and "--out FILE" in err and "--raw" in err, (code, text, err)
    assert on_terminal(*get, "--raw")[:2] == (0, "\x1b]0;owned\x07")
    assert on_terminal(*get, "--out", tmp_path / "v")[:2] == (0, "")


def test_lists(store):
    with Bulk(store.bulk) as c:
        for i in range(300):
            c.put(key(f"k{i}"), b"x" * i, tokens=i)
    rows = json.loads(ctl(store, "kv", "ls", "-o", "json"))
    assert sorted(r["size"] for r in rows) == list(range(300)) and all(r["tokens"] == r["size"] for r in rows)
    assert len(json.loads(ctl(store, "kv", "ls", "--limit", "7", "-o", "json"))) == 7
    prefix = rows[0]["key"][:2]
    few = json.loads(ctl(store, "kv", "ls", prefix, "-o", "json"))
    assert {r["key"] for r in few} == {r["key"] for r in rows if r["key"].startswith(prefix)}
    watched = [json.loads(line) for line in ctl(store, "kv", "watch", "--once", "-o", "json").splitlines()]
    assert {w["key"] for w in watched} == {r["key"] for r in rows}
    assert ctl(store, "kv", "ls").splitlines()[0].split()[:3] == [b"KEY", b"TIERS", b"SIZE"]


def test_orders(store):
    ctl(store, "kv", "put", "a", stdin=b"abc")
    assert json.loads(ctl(store, "kv", "pin", "a", "--for", "10m", "-o", "json"))["pinned"]
    assert not json.loads(ctl(store, "kv", "unpin", "a", "-o", "json"))["pinned"]
    assert b"is in RAM" in ctl(store, "kv", "promote", "a")
    ctl(store, "kv", "pin", "nothing", rc=1)
    stats = json.loads(ctl(store, "kv", "stats", "-o", "json"))
    assert stats["ram"]["blocks"] == 1 and stats["ram"]["bytes"] <= stats["ram"]["budget_bytes"]
    assert b"TIER" in ctl(store, "kv", "stats", env={"CGN_KV": f"127.0.0.1:{store.port}"})


def test_an_absent_store_is_an_error(store):
    assert "name another with --uds or --addr" in ctl(store, "kv", "stats", rc=4, env={"CGN_KV": "unix:/nowhere"})
    assert 'no digest begins with "Zz"' in ctl(store, "kv", "ls", "Zz", rc=2)
    assert "give --ca if it speaks TLS" in ctl(store, "kv", "stats", rc=4, env={"CGN_KV": "127.0.0.1:1"})
    assert "cannot be given together" in ctl(store, "kv", "stats", "--addr", "x:1", rc=2)


def counts_are(r, n):
    """Check each row; the two floors take turns."""
    return all(x["count"] == (n // 2 if x["op"].startswith("memcpy") else n) for x in r["results"])


def test_bench(store):
    r = json.loads(ctl(store, "bench", "kv", "--sizes", "1000,65536", "--count", "50", "-o", "json"))
    ops = {(x["op"], x["bytes"]) for x in r["results"]}
    for size in (1000, 65536):
        assert {(op, size) for op in ("memcpy", "get_descriptor", "put_descriptor", "get_grpc", "put_grpc")} <= ops
    assert ("lookup", 0) in ops
    assert r["poll_us"] == 100
    assert counts_are(r, 50) and all(x["p50_us"] > 0 and x["p99_us"] >= x["p50_us"] for x in r["results"])
    assert store.stats()["ram"]["blocks"] == 0  # the bench removes its own values


def test_bench_that_sleeps_at_once(store):
    r = json.loads(ctl(store, "bench", "kv", "--sizes", "1000", "--count", "20", "--poll-us", "0", "-o", "json"))
    assert r["poll_us"] == 0 and counts_are(r, 20)
    head, *rows = (line.split() for line in ctl(store, "bench", "kv", "--sizes", "1000", "--count", "20").decode().splitlines())
    assert head == ["OP", "BYTES", "COUNT", "P50", "P99", "MAX", "MIB/S"]
    assert {(x["op"], str(x["bytes"]), str(x["count"])) for x in r["results"]} == {tuple(row[:3]) for row in rows}
    assert all(0 <= float(row[3]) <= float(row[5]) <= float(row[7]) for row in rows), rows  # a copy of 1,000 bytes may take less than 10 ns
    assert "--poll-us" in ctl(store, "bench", "kv", "--poll-us", "1001", rc=2)
