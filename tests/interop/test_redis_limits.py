# SPDX-License-Identifier: Apache-2.0
"""Limits that several routers share in a real Redis, and a Redis that fails under load."""
import concurrent.futures
import shutil
import signal
import subprocess
import time

import pytest
from cluster import BUILD, Cluster, free_port, until
from test_names import ONE, TWO, place  # noqa: F401 (a fixture)

pytestmark = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
SLOW_RATE = {"rps": 0.001, "burst": 40}  # so slow that time does not matter: 40, and then none for a quarter of an hour
PASSWORD = "correct horse"


class Redis:
    """A redis-server of the test's own. It can be started and stopped repeatedly."""

    def __init__(self, folder, *args, tls=None, host="127.0.0.1", port=None):
        self.folder, self.args, self.tls, self.host, self.port, self.popen = folder, args, tls, host, port or free_port(), None

    def start(self, *args):
        port = ["--port", "0", "--tls-port", self.port, "--tls-cert-file", self.tls / "router.pem", "--tls-key-file", self.tls / "router.key",
                "--tls-ca-cert-file", self.tls / "ca.pem", "--tls-auth-clients", "no"] if self.tls else ["--port", self.port]
        argv = ["redis-server", "--bind", self.host, "--save", "", "--appendonly", "no", "--dir", self.folder, *port, *self.args, *args]
        with open(self.folder / "redis.log", "ab") as log:
            self.popen = subprocess.Popen(list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(lambda: "PONG" in self.cli("ping"), lambda: (self.folder / "redis.log").read_text())

    def cli(self, *args):
        argv = ["redis-cli", "-h", self.host, "-p", self.port, "--no-auth-warning"]
        argv += ["--tls", "--cacert", self.tls / "ca.pem"] if self.tls else []
        argv += ["-a", PASSWORD] if "--requirepass" in self.args else []
        return subprocess.run(list(map(str, argv + list(args))), capture_output=True, text=True, timeout=30).stdout

    def signal(self, signo):
        self.popen.send_signal(signo)

    def kill(self):
        if self.popen is not None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.kill()
            self.popen.wait()
            self.popen = None


@pytest.fixture
def redis(tmp_path):
    r = Redis(tmp_path)
    yield r
    r.kill()


class Pair:
    """Two routers of one name, with a node each, and a common Redis."""

    def __init__(self, folder, limits, n=2, **more):
        self.clusters = []
        for i in range(n):
            (folder / f"c{i}").mkdir()
            self.clusters.append(Cluster(folder / f"c{i}"))
        self.sections = {"router.rate_limit": limits, **more}

    def __enter__(self):
        for c in self.clusters:
            c.router(self.sections)
            c.node("a", "--time-scale", "0")
            c.wait_ready(1)
        return self

    def __exit__(self, kind, *_):
        trouble = [t for c in self.clusters for t in c.close()]
        assert kind is not None or not trouble, "\n".join(trouble)

    def on_redis(self, n=None):
        """Wait until all workers of all routers count in Redis (2 a router)."""
        want = 2 if n is None else n
        until(lambda: all(c.metric("cgn_rate_limit_store", store="redis") == want for c in self.clusters), lambda: self.logs())

    def logs(self):
        return "\n".join(c.logs(8) for c in self.clusters)

    def ask(self, n, **more):
        """Send n requests, spread over the routers, 8 at a time; return [status]."""
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda i: self.clusters[i % len(self.clusters)].chat("hello", max_tokens=2, **more).status, range(n)))


def shared(redis, **more):
    return {**SLOW_RATE, "redis_url": f"redis://127.0.0.1:{redis.port}", "redis_timeout": "2s", **more}


def test_two_routers_share_one_limit(tmp_path, redis):
    redis.start()
    with Pair(tmp_path, shared(redis)) as p:
        p.on_redis()
        statuses = p.ask(120)
        # exactly the bucket, over four workers of two routers: Redis runs one script after another
        assert statuses.count(200) == 40 and statuses.count(429) == 80
        refused = p.clusters[1].chat("hello")
        assert refused.status == 429 and 900 < int(refused.headers["retry-after"]) <= 1000
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        keys = redis.cli("keys", "cgn:*").split()
        assert [k for k in keys if k.startswith("cgn:{cognitora}:rl:a:127.0.0.1:r:")], keys
        ttl = int(redis.cli("pttl", [k for k in keys if ":a:" in k][0]))
        assert 39_000_000 < ttl <= 40_000_000  # a bucket that is full again expires


def test_uploads_are_whole_while_redis_is_asked(tmp_path, redis):
    """The body comes before Redis answers: nothing of it is lost."""
    redis.start()
    with Pair(tmp_path, shared(redis, rps=1000, burst=1000), n=1, batch={"enabled": True}) as p:
        p.on_redis()
        for size in (1, 70000, 300000):
            form = (b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
                    + b"x" * size + b"\r\n--b--\r\n")
            made = p.clusters[0].ask("POST", "/v1/files", form, {"Content-Type": "multipart/form-data; boundary=b"})
            assert made.status == 200 and made.json()["bytes"] == size, made.body
            batch = p.clusters[0].ask("POST", "/v1/batches", {"input_file_id": made.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"})
            assert batch.status == 200, batch.body


def test_tokens_are_settled_there(tmp_path, redis):
    redis.start()
    limits = shared(redis, rps=0, burst=0, tokens_per_minute=1000)
    with Pair(tmp_path, limits) as p:
        p.on_redis()
        # each request may take 900 and takes some ten: without refunds, the second would be refused
        for i in range(12):
            a = p.clusters[i % 2].chat("hello", max_tokens=4 if i % 3 else 900 - 60 * i)
            assert a.status == 200, a.body
        assert int(a.headers["x-ratelimit-limit-tokens"]) == 1000
        failing = p.clusters[0].chat("hello", max_tokens=1001)
        assert failing.status == 429 and "too large" in failing.json()["error"]["message"] and "retry-after" not in failing.headers


def test_a_flushed_script_is_sent_again(tmp_path, redis):
    redis.start()
    with Pair(tmp_path, shared(redis), n=1) as p:
        p.on_redis()
        assert p.ask(4) == [200] * 4
        assert "OK" in redis.cli("script", "flush")
        assert p.ask(60).count(200) == 36
        assert p.clusters[0].metric("cgn_rate_limit_store", store="redis") == 2


def test_killed_and_started_again_under_load(tmp_path, redis):
    """No request fails or hangs because of Redis: while it is away, each router allows at most the limit by
    itself."""
    redis.start()
    with Pair(tmp_path, shared(redis, redis_timeout="500ms")) as p:
        p.on_redis()
        assert p.ask(60).count(200) == 40
        redis.kill()
        until(lambda: all(c.metric("cgn_rate_limit_store", store="local") == 2 for c in p.clusters), p.logs)
        statuses = p.ask(200)
        assert set(statuses) == {200, 429}
        assert statuses.count(200) == 80  # 40 of each router, by its own table
        redis.start()
        p.on_redis()
        assert p.ask(100).count(200) == 40  # Redis has lost all buckets
        for c in p.clusters:
            log = c.router_process.log()
            assert log.count("router.limit_store_away") == 1 and log.count("router.limit_store_back") == 1, log


def test_stopped_it_costs_one_timeout(tmp_path, redis):
    redis.start()
    with Pair(tmp_path, shared(redis, redis_timeout="300ms"), n=1) as p:
        p.on_redis()
        redis.signal(signal.SIGSTOP)
        statuses = p.ask(100)
        assert set(statuses) == {200, 429} and statuses.count(200) == 40
        assert p.clusters[0].metric("cgn_rate_limit_store", store="local") == 2
        redis.signal(signal.SIGCONT)
        p.on_redis()
        assert p.clusters[0].router_process.log().count("router.limit_store_away") == 1
        assert p.ask(4, model="sim")  # the requests go on


def test_it_is_followed_when_its_name_moves(place):  # noqa: F811
    old = Redis(place.folder, host=ONE)
    new = Redis(place.folder, host=TWO, port=old.port)
    try:
        old.start()
        new.start()
        place.router({"router.rate_limit": {**SLOW_RATE, "redis_url": f"redis://engine.test:{old.port}", "redis_timeout": "2s"}})
        place.node("a", "--time-scale", "0")
        place.wait_ready(1)
        until(lambda: place.metric("cgn_rate_limit_store", store="redis") == 2, "the workers count in Redis")
        assert place.chat("hello", max_tokens=2).status == 200 and old.cli("dbsize").strip() != "0"
        place.name_is(TWO)
        until(lambda: place.chat("hello", max_tokens=2).status and new.cli("dbsize").strip() != "0", "they count in the other one")
    finally:
        old.kill()
        new.kill()


@pytest.mark.parametrize("wrong", ["password", "replica", "garbage", "port"])
def test_what_cannot_be_used_makes_limits_local(tmp_path, redis, wrong):
    says = {"password": "WRONGPASS", "replica": "READONLY", "garbage": "not a Redis", "port": "refused"}[wrong]
    secret = tmp_path / "secret"
    secret.write_text("wrong\n")
    limits = shared(redis)
    if wrong == "password":
        redis.args = ("--requirepass", PASSWORD)
        limits["redis_password_file"] = str(secret)
    if wrong == "replica":
        redis.start("--replicaof", "127.0.0.1", str(free_port()))
    elif wrong in ("password", "garbage"):
        redis.start()
    with Pair(tmp_path, limits, n=1) as p:
        c = p.clusters[0]
        if wrong == "garbage":  # the router's own HTTP port speaks no RESP
            c.router_process.signal(signal.SIGTERM)
            c.router_process.wait(10)
            p.sections["router.rate_limit"]["redis_url"] = f"redis://127.0.0.1:{c.nodes['a'].engine_port}"
            c.processes.remove(c.router_process)
            c.router(p.sections)
            c.wait_ready(1)
        assert p.ask(60).count(200) == 40
        until(lambda: "router.limit_store_away" in c.router_process.log(), p.logs)
        assert says.lower() in c.router_process.log().lower(), c.router_process.log()
        assert PASSWORD not in c.router_process.log() and "wrong" not in c.router_process.log().replace("WRONGPASS", "")
        if wrong == "replica":
            assert "OK" in redis.cli("replicaof", "no", "one")
            p.on_redis()
        if wrong == "password":
            assert "OK" in redis.cli("config", "set", "requirepass", "wrong")
            p.on_redis()


def test_with_tls_and_a_password(tmp_path):
    pki = tmp_path / "pki"
    subprocess.run([BUILD / "src/ctl/cgn-ctl", "pki", "bootstrap", "--out", pki], check=True, capture_output=True)
    r = Redis(tmp_path, "--requirepass", PASSWORD, tls=pki)
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD + "\n")
    try:
        r.start()
        limits = shared(r, redis_url=f"rediss://127.0.0.1:{r.port}/3", redis_password_file=str(secret), redis_ca_file=str(pki / "ca.pem"))
        with Pair(tmp_path, limits) as p:
            p.on_redis()
            assert p.ask(90).count(200) == 40
        assert "cgn:{cognitora}:rl:" in r.cli("-n", "3", "keys", "*")
    finally:
        r.kill()


def test_a_user_with_no_more_rights_than_needed(tmp_path, redis):
    redis.start()
    rights = "on >narrow ~cgn:* -@all +eval +evalsha +script|load +time +get +set +del +select".split()
    assert "OK" in redis.cli("acl", "setuser", "limits", *rights)
    secret = tmp_path / "secret"
    secret.write_text("narrow\n")
    with Pair(tmp_path, shared(redis, redis_url=f"redis://limits@127.0.0.1:{redis.port}/1", redis_password_file=str(secret)), n=1) as p:
        p.on_redis()
        assert p.ask(60).count(200) == 40
        redis.cli("script", "flush")
        assert p.ask(8).count(429) == 8
        assert p.clusters[0].metric("cgn_rate_limit_store", store="redis") == 2


def test_over_a_unix_socket(tmp_path):
    r = Redis(tmp_path, "--unixsocket", str(tmp_path / "r.sock"))
    try:
        r.start()
        with Pair(tmp_path, shared(r, redis_url=f"unix:{tmp_path}/r.sock?db=2"), n=1) as p:
            p.on_redis()
            assert p.ask(60).count(200) == 40
    finally:
        r.kill()


def budgets(redis, *texts, **more):
    """Budgets of all clients together, and no rates."""
    return {"redis_url": f"redis://127.0.0.1:{redis.port}", "redis_timeout": "2s"}, {'tenants."-"': {"budgets": list(texts)}, **more}


def day_field(redis, key="b:t:-:requests:day"):
    """The windows of a budget in Redis: {number of the day: spent}."""
    words = redis.cli("hgetall", "cgn:{cognitora}:rl:" + key).split()
    return {int(n): int(spent) for n, spent in zip(words[::2], words[1::2])}


def test_two_routers_share_budgets(tmp_path, redis):
    redis.start()
    limits, sections = budgets(redis, "30 requests/day", "1k requests/month", "2M tokens/minute")
    with Pair(tmp_path, limits, **sections) as p:
        p.on_redis()
        until(lambda: 86400 - time.time() % 86400 > 60, lambda: "the day ends", wait_s=90)
        statuses = p.ask(80)
        assert statuses.count(200) == 30 and statuses.count(429) == 50
        refused = p.clusters[1].chat("hello")
        error = refused.json()["error"]
        assert error["code"] == "insufficient_quota" and "30 requests/day, of which 30 are spent" in error["message"], error
        ends = 86400 - time.time() % 86400
        assert abs(int(refused.headers["retry-after"]) - ends) < 30
        assert day_field(redis) == {int(time.time() // 86400): 30}
        year, month = time.gmtime()[:2]
        assert day_field(redis, "b:t:-:requests:month") == {(year - 1970) * 12 + month - 1: 30}
        ttl = int(redis.cli("ttl", "cgn:{cognitora}:rl:b:t:-:requests:day"))
        assert ends + 86400 - 30 < ttl <= ends + 86400 + 30


def test_budgets_are_settled_there(tmp_path, redis):
    redis.start()
    limits, sections = budgets(redis, "1000 tokens/day", "100 USD/day", **{'prices."*"': {"input": 1000, "output": 3000}})
    with Pair(tmp_path, limits, **sections) as p:
        p.on_redis()
        tokens = money = 0
        for i in range(6):  # each may take 900 and takes some ten
            a = p.clusters[i % 2].chat("hello", max_tokens=900, stop=[" "])
            assert a.status == 200, a.body
            usage = a.json()["usage"]
            tokens += usage["total_tokens"]
            money += usage["prompt_tokens"] * 1000000 + usage["completion_tokens"] * 3000000
            until(lambda: list(day_field(redis, "b:t:-:tokens:day").values()) == [tokens], lambda: f"{day_field(redis, 'b:t:-:tokens:day')} {tokens}")
        assert list(day_field(redis, "b:t:-:money:day").values()) == [money]


def test_without_redis_a_router_goes_on_with_what_it_knew(tmp_path, redis):
    redis.start()
    limits, sections = budgets(redis, "40 requests/month")
    with Pair(tmp_path, limits, **sections) as p:
        p.on_redis()
        assert p.ask(30) == [200] * 30
        redis.kill()
        until(lambda: all(c.metric("cgn_rate_limit_store", store="local") == 2 for c in p.clusters), p.logs)
        statuses = p.ask(60)  # neither router begins anew; the last that it knew may lack some of the other's
        assert 20 <= statuses.count(200) <= 30 and statuses.count(429) == 60 - statuses.count(200), statuses


def test_a_clock_of_redis_that_went_back_reopens_nothing(tmp_path, redis):
    redis.start()
    limits, sections = budgets(redis, "5 requests/day")
    with Pair(tmp_path, limits, n=1, **sections) as p:
        p.on_redis()
        today = int(time.time() // 86400)
        redis.cli("hset", "cgn:{cognitora}:rl:b:t:-:requests:day", today + 3, 5)  # the clock was ahead
        assert p.ask(2) == [429, 429]
        assert day_field(redis)[today] == 5
