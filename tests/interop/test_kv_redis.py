# SPDX-License-Identifier: Apache-2.0
"""The store with Redis' own programs, ioredis and redis-py, and with the calls of LMCache's Redis connector."""
import asyncio
import os
import shutil
import subprocess

import pytest
from conftest import HERE
from resp_raw import Store

IOREDIS = (HERE / "node_modules" / "ioredis").is_dir() and shutil.which("node")
tools = pytest.mark.skipif(not os.environ.get("CI") and not shutil.which("redis-cli"), reason="redis-tools are not installed")
MIB = 1 << 20


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path, ram="512MiB") as s:
        yield s


def cli(store, *args, data=None):
    done = subprocess.run(["redis-cli", "-s", store.uds, *map(str, args)], input=data, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@tools
def test_redis_cli(store):
    value = os.urandom(3 * MIB).replace(b"\n", b"x")
    assert cli(store, "ping") == b"PONG\n"
    assert cli(store, "-x", "set", "k", data=value) == b"OK\n"
    assert cli(store, "get", "k") == value + b"\n"
    assert cli(store, "-3", "hello", "3").startswith(b"server redis")
    assert cli(store, "--scan", "--pattern", "k*") == b"k\n"
    assert b"unknown command 'flushall'" in cli(store, "flushall")
    assert cli(store, data=b"set a 1\nget a\nttl a\n") == b"OK\n1\n-1\n"
    many = b"".join(b"*3\r\n$3\r\nSET\r\n$%d\r\nn%d\r\n$1\r\nv\r\n" % (len(b"n%d" % i), i) for i in range(10_000))
    assert b"errors: 0, replies: 10000" in cli(store, "--pipe", data=many)
    assert cli(store, "dbsize") == b"10002\n"
    assert b"PONG" in subprocess.run(["redis-cli", "-p", str(store.port), "ping"], capture_output=True, timeout=30).stdout


@tools
def test_redis_benchmark(store):
    done = subprocess.run(["redis-benchmark", "-s", store.uds, "-t", "ping,set,get,mset", "-n", "2000", "-d", "20000", "-r", "100", "-P", "8", "--csv"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "Error" not in done.stdout + done.stderr, done.stdout + done.stderr
    assert all(f'"{name}"' in done.stdout for name in ("PING_INLINE", "PING_MBULK", "SET", "GET", "MSET (10 keys)")), done.stdout


@pytest.mark.skipif(not os.environ.get("CI") and not IOREDIS, reason="no ioredis: npm install in tests/interop")
def test_ioredis(store):
    env = {**os.environ, "CGN_RESP": store.uds, "CGN_RESP_PORT": str(store.port)}
    done = subprocess.run(["node", "--test", "ioredis.test.mjs"], cwd=HERE, env=env, timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    assert done.returncode == 0 and "pass 5" in done.stdout, done.stdout


@pytest.fixture(scope="session")
def linear(tmp_path_factory):
    """Build the checker of histories (linear/main.go)."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    program = tmp_path_factory.mktemp("linear") / "linear"
    if go:
        built = subprocess.run([go, "build", "-o", program, "."], cwd=HERE / "linear", capture_output=True, text=True, timeout=300,
                               env={"GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", **os.environ})
        if built.returncode == 0:
            return program
    why = f"no checker of histories: {built.stderr.strip().splitlines()[-1:]}" if go else "no go: install golang-go"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def test_answers_of_all_workers_have_one_order(tmp_path, linear):
    with Store(tmp_path, ram="512MiB", workers=4) as s:
        for seed in range(3):
            done = subprocess.run([linear, "-addr", f"127.0.0.1:{s.port}", "-clients", "50", "-seed", str(seed)], capture_output=True, text=True, timeout=200)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py(store, protocol):
    redis = pytest.importorskip("redis")
    r = redis.Redis(unix_socket_path=store.uds, protocol=protocol, client_name="me", socket_timeout=90)
    for size in (0, 5, 5000, 65536, 64 * MIB):
        value = os.urandom(size)
        assert r.set(b"\x00\r\n%d" % size, value) and r.get(b"\x00\r\n%d" % size) == value
    with r.pipeline(transaction=False) as p:
        for i in range(500):
            p.set(f"k{i}", b"v" * i, ex=100).get(f"k{i}").ttl(f"k{i}")
        got = p.execute()
    assert all(got[3 * i] and got[3 * i + 1] == b"v" * i and 0 < got[3 * i + 2] <= 100 for i in range(500))
    assert r.mset({"a": "1", "b": "2"}) and r.mget("a", "nope", "b") == [b"1", None, b"2"]
    assert r.set("a", "x", nx=True) is None and r.set("a", "x", xx=True, get=True) == b"1"
    assert len(set(r.scan_iter(match="k*", count=50))) == 500
    assert r.exists("a", "b", "nope") == 2 and r.delete("a", "b", "nope") == 2 and r.type("k1") == b"string"
    assert r.info()["role"] == "master" and r.config_get("maxclients") and r.client_getname() in ("me", b"me") and r.client_id() > 0
    assert r.expire("k1", 5) and r.persist("k1") and r.pttl("k1") == -1 and r.getrange("k9", 0, 2) == b"vvv" and r.strlen("k9") == 9
    assert len(r.client_list()) >= 1 and "get" in r.command()
    with pytest.raises(redis.ResponseError, match="unknown command"):
        r.lpush("l", 1)
    with pytest.raises(redis.ResponseError, match="67108864"):
        r.set("large", b"x" * (64 * MIB + 1))
    assert r.ping()


def test_redis_py_with_a_password(tmp_path):
    redis = pytest.importorskip("redis")
    (tmp_path / "pw").write_text("correct horse")
    with Store(tmp_path, resp_password_file=str(tmp_path / "pw")) as s:
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=s.port).ping()
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=s.port, password="wrong").ping()
        for protocol in (2, 3):
            assert redis.from_url(f"redis://:correct%20horse@127.0.0.1:{s.port}/0", protocol=protocol).ping()


def test_what_lmcache_asks(store):
    """Make the calls of LMCache's connector: a pool from a redis:// URL; EXISTS <key>metadata; GET
    <key>metadata, GET <key>kv_bytes; SET kv_bytes, then metadata."""
    pytest.importorskip("redis")
    import redis.asyncio as redis

    async def lmcache():
        pool = redis.ConnectionPool.from_url(f"redis://127.0.0.1:{store.port}", max_connections=150, socket_timeout=90)
        r = redis.Redis.from_pool(pool)
        keys = [f"meta-llama/Llama-3.1-8B-Instruct@1@0@{i:x}@bfloat16" for i in range(40)]
        chunk = {k: os.urandom(2 * MIB) for k in keys}

        async def put(key):
            await r.set(key + "kv_bytes", memoryview(chunk[key]))
            await r.set(key + "metadata", b"\x01" * 28)

        async def get(key):
            meta = await r.get(key + "metadata")
            return None if meta is None else await r.get(key + "kv_bytes")

        assert not await r.exists(keys[0] + "metadata")
        await asyncio.gather(*(put(k) for k in keys))
        assert all([bool(await r.exists(k + "metadata")) for k in keys])
        assert await asyncio.gather(*(get(k) for k in keys)) == [chunk[k] for k in keys]
        found = [k async for k in r.scan_iter(match="*metadata")]
        assert sorted(found) == sorted((k + "metadata").encode() for k in keys)
        await r.delete(keys[0] + "metadata")
        assert await get(keys[0]) is None
        await r.aclose()

    asyncio.run(lmcache())
