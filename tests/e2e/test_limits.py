# SPDX-License-Identifier: Apache-2.0
"""Rates of requests and tokens: per key, tenant and address, over several workers, settled, and changed by a
reload."""
import concurrent.futures
import json
import signal
import subprocess
import time

import pytest
from clients import Stream
from cluster import BUILD, scaled, until

CTL = BUILD / "src/ctl/cgn-ctl"
SLOW_RATE = {"rps": 0.001, "burst": 30}  # so slow that time does not matter


def key(folder, name, tenant=""):
    out = subprocess.run([CTL, "key", "create", "--file", folder / "keys", "--name", name, "--tenant", tenant, "-o", "json"], check=True,
                         capture_output=True, text=True).stdout
    return {"Authorization": f"Bearer {json.loads(out)['key']}"}


def start(c, limits, node=("--time-scale", "0"), **sections):
    c.router({"router": {"worker_threads": 4}, "router.rate_limit": limits, **sections})
    n = c.node("a", *node)
    c.wait_ready()
    return n


def many(c, n, headers=None):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda _: c.chat("hello", headers, max_tokens=2).status, range(n)))


def reload(c, limits, **sections):
    c.config("router", {"router": {"listen": f"127.0.0.1:{c.http_port}", "listen_grpc": f"127.0.0.1:{c.grpc_port}",
                                   "listen_admin": f"127.0.0.1:{c.admin_port}", "worker_threads": 4}, "router.rate_limit": limits, **sections})
    c.router_process.signal(signal.SIGHUP)


def test_workers_keep_one_limit_together(cluster):
    """One connection per request, over four workers: exactly the burst is granted."""
    start(cluster, SLOW_RATE)
    statuses = many(cluster, 200)
    assert statuses.count(200) == 30 and statuses.count(429) == 170
    scraped = cluster.scrape()
    assert cluster.metric("cgn_rate_limited_total", scraped, kind="address_requests") == 170
    assert cluster.metric("cgn_rejected_total", scraped, reason="rate") == 170
    # a header of the client does not change its address
    lies = {"X-Forwarded-For": "192.0.2.7", "Forwarded": "for=192.0.2.7", "X-Real-IP": "192.0.2.7", "X-Request-Id": "other", "X-Cgn-Session": "s"}
    assert cluster.chat("hello", lies).status == 429


def test_keys_and_tenants(cluster):
    one, two, alone = key(cluster.folder, "one", "acme"), key(cluster.folder, "two", "acme"), key(cluster.folder, "alone")
    start(cluster, SLOW_RATE, auth={"enabled": True, "api_keys_file": str(cluster.folder / "keys")},
          **{'tenants."acme"': {"rps": 0.001, "burst": 40}})
    assert many(cluster, 50, one).count(200) == 30  # the key's own limit
    assert many(cluster, 50, two).count(200) == 10  # the rest of the tenant's limit
    assert many(cluster, 50, alone).count(200) == 30  # another tenant is not affected
    a = cluster.chat("hello", two)
    error = a.json()["error"]
    assert a.status == 429 and error["code"] == "rate_limit_exceeded" and error["type"] == "requests" and "tenant" in error["message"]
    assert 0 < int(a.headers["retry-after"]) <= 1000
    assert (a.headers["x-ratelimit-limit-requests"], a.headers["x-ratelimit-remaining-requests"]) == ("40", "0")
    tenants = {json.loads(line)["tenant"] for line in cluster.router_process.log().splitlines() if "gateway.request" in line and '"key"' in line}
    assert "acme" in tenants and len(tenants) >= 2
    scraped = cluster.scrape()
    assert cluster.metric("cgn_rate_limited_total", scraped, kind="key_requests") == 40
    assert cluster.metric("cgn_rate_limited_total", scraped, kind="tenant_requests") == 41


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_settled_with_what_the_engine_counts(cluster, stream):
    start(cluster, {"tokens_per_minute": 2000})
    for _ in range(10):  # 1,500 are reserved each time, but the answer stops after a word
        for _ in range(20):  # the refund comes when the answer is over, which the client may know first; by time, 1,500 take 45 s
            a = cluster.chat("hello", max_tokens=1500, stop=[" "], stream=stream)
            if a.status == 200:
                break
            time.sleep(0.1)
        assert a.status == 200, a.body
        assert a.headers["x-ratelimit-limit-tokens"] == "2000"
        assert int(a.headers["x-ratelimit-remaining-tokens"]) < 500
        if not stream:
            assert a.json()["usage"]["total_tokens"] < 50
    too_large = cluster.chat("hello", max_tokens=2001)
    assert too_large.status == 429 and "retry-after" not in too_large.headers
    assert too_large.headers["x-should-retry"] == "false"


def test_a_client_that_leaves_pays_for_what_it_got(cluster):
    """1900 of 2000 are reserved; the client leaves after some events, and the rest is refunded."""
    node = start(cluster, {"tokens_per_minute": 2000}, node=("--token-interval-us", "5000"))
    for i in range(3):
        s = Stream(cluster.http_port, "hello", max_tokens=1900)
        s.read_until(b"data:")
        assert b" 200 " in s.got.split(b"\r\n", 1)[0], s.got
        s.reset()
        until(lambda: cluster.router_process.log().count("client_gone") > i, "it is accounted")
    assert node.engine.alive()


def test_a_request_that_fails_costs_nothing(cluster):
    cluster.common['models."sim"'] = {"aliases": []}  # known, although no node has the model
    node = start(cluster, {"tokens_per_minute": 1000, **SLOW_RATE, "burst": 3})
    node.agent.signal(signal.SIGKILL)
    node.agent.may_end = True
    for _ in range(6):
        assert cluster.chat("hello", max_tokens=900).status == 503


def test_limits_change_while_it_runs(cluster):
    start(cluster, SLOW_RATE)
    assert many(cluster, 40).count(200) == 30
    reload(cluster, {})
    until(lambda: cluster.chat("hello").status == 200, "the limit is gone")
    assert many(cluster, 40) == [200] * 40
    reload(cluster, {"rps": 0.001, "burst": 5})
    until(lambda: cluster.chat("hello").status == 429, "there is one again")
    reload(cluster, {"rps": 100000})
    until(lambda: cluster.chat("hello").status == 200, "a wide one")
    assert many(cluster, scaled(40)) == [200] * scaled(40)


@pytest.mark.parametrize("path,body", [
    ("/v1/completions", {"prompt": "hello", "max_tokens": 2}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": 2}),
    ("/v1/embeddings", {"input": "hello"}),
])
def test_every_dialect_is_held_to_it(cluster, path, body):
    start(cluster, {"rps": 0.001, "burst": 2, "tokens_per_minute": 500})
    answers = [cluster.ask("POST", path, {"model": "sim", **body}) for _ in range(3)]
    assert [a.status for a in answers] == [200, 200, 429], answers[0].body
    assert answers[0].headers["x-ratelimit-remaining-requests"] == "1"
    assert 0 < int(answers[0].headers["x-ratelimit-remaining-tokens"]) < 500
