# SPDX-License-Identifier: Apache-2.0
"""Rates of requests and tokens: per key, tenant and address, over several workers, settled, and changed by a
reload."""
import concurrent.futures
import json
import signal
import struct
import subprocess
import time

import pytest
from clients import Stream
from cluster import BUILD, scaled, until
from h2raw import DATA, END_HEADERS, END_STREAM, H2, HEADERS, frame, request_block

CTL = BUILD / "src/ctl/cgn-ctl"
SLOW_RATE = {"rps": 0.001, "burst": 30}  # so slow that time does not matter


def key(folder, name, tenant="", *more):
    out = subprocess.run([CTL, "key", "create", "--file", folder / "keys", "--name", name, "--tenant", tenant, "-o", "json", *more], check=True,
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


def test_a_stream_whose_client_asks_for_no_usage_costs_its_tokens(cluster):
    start(cluster, {"tokens_per_minute": 3000})
    for _ in range(2):
        a = cluster.chat("hello", max_tokens=400, stream=True, ignore_eos=True)
        assert a.status == 200 and b'"usage":{' not in a.body and 400 <= a.body.count(b"data:") <= 404
        assert int(a.headers["x-ratelimit-remaining-tokens"]) <= 2600
    until(lambda: cluster.router_process.log().count('"completion_tokens":400') >= 2, "both are over")
    left = int(cluster.chat("x", max_tokens=1).headers["x-ratelimit-remaining-tokens"])
    assert 2100 < left < 2500, left  # 50 come back each second


def test_a_request_that_fails_costs_nothing(cluster):
    cluster.common['models."sim"'] = {"aliases": []}  # known, although no node has the model
    node = start(cluster, {"tokens_per_minute": 1000, **SLOW_RATE, "burst": 3})
    node.agent.signal(signal.SIGKILL)
    node.agent.may_end = True
    for _ in range(6):
        assert cluster.chat("hello", max_tokens=900).status == 503


@pytest.mark.both
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


def test_the_answer_tells_what_is_left(cluster):
    """OpenAI's fields: the limit that is nearest to being reached, of requests and of tokens."""
    with_key = key(cluster.folder, "one", "acme")
    start(cluster, {"rps": 0.001, "burst": 30, "tokens_per_minute": 6_000_000}, auth={"enabled": True, "api_keys_file": str(cluster.folder / "keys")},
          **{'tenants."acme"': {"rps": 0.001, "burst": 3, "tokens_per_minute": 60_000_000}})
    for left in (2, 1, 0):
        h = cluster.chat("hello", with_key, max_tokens=2).headers
        assert (h["x-ratelimit-limit-requests"], h["x-ratelimit-remaining-requests"]) == ("3", str(left))
        assert h["x-ratelimit-limit-tokens"] == "6000000" and 5_999_000 < int(h["x-ratelimit-remaining-tokens"]) < 6_000_000
        full_in = (3 - left) * 1000 / 60  # minutes, less those that have passed
        assert full_in - 5 < int(h["x-ratelimit-reset-requests"].split("m")[0]) <= full_in and h["x-ratelimit-reset-tokens"].endswith("ms")
    refused = cluster.chat("hello", with_key, max_tokens=2)
    error = refused.json()["error"]
    assert refused.status == 429 and error["type"] == "requests" and error["code"] == "rate_limit_exceeded"
    assert "the tenant has 0.001 requests a second, 3 at once" in error["message"] and "this request needs 1" in error["message"]
    assert 900 < int(refused.headers["retry-after"]) <= 1000 and f'try again in {refused.headers["retry-after"]} s' in error["message"]
    scraped = cluster.scrape()
    assert cluster.metric("cgn_rate_limited_total", scraped, kind="tenant_requests") == cluster.metric("cgn_rate_limited_total", scraped) == 1


def test_requests_without_an_answer_cost_no_tokens(cluster):
    """Counting and tokenizing take from the requests only; embeddings reserve no answer; a chat reserves what it asks for."""
    rate = 600_000_000  # full again at once
    start(cluster, {"rps": 0.001, "burst": 100, "tokens_per_minute": rate})
    tokens = cluster.ask("POST", "/tokenize", {"model": "sim", "prompt": "hello"})
    assert tokens.status == 200 and "x-ratelimit-remaining-tokens" not in tokens.headers and tokens.headers["x-ratelimit-remaining-requests"] == "99"

    def reserved(path, **body):
        time.sleep(0.05)
        return rate - int(cluster.ask("POST", path, {"model": "sim", **body}).headers["x-ratelimit-remaining-tokens"])
    prompt = "a long text " * 200
    embedded = reserved("/v1/embeddings", input=prompt)
    completed = reserved("/v1/completions", prompt=prompt, max_tokens=1000, stop=[" "])
    assert 200 < embedded < 1200 and 900 < completed - embedded < 1100, (embedded, completed)


def test_what_can_never_pass_is_told_so(cluster):
    start(cluster, {"tokens_per_minute": 500})
    refused = cluster.chat("hello", max_tokens=501)
    error = refused.json()["error"]
    assert refused.status == 429 and error["type"] == "tokens" and "the request is too large: it may take" in error["message"]
    assert "the address has 500 tokens a minute" in error["message"] and refused.headers["x-should-retry"] == "false"
    assert cluster.metric("cgn_rate_limited_total", kind="address_tokens") == 1
    assert cluster.chat("hello", max_tokens=100).status == 200, "what was refused took nothing"


@pytest.mark.parametrize("more", [[("prefer", "if-available")], []])
def test_a_refusal_that_is_not_read_keeps_no_rate(cluster, more):
    """Of two requests that may be made, one is at work. Another finds no room, and its client has no window for the refusal."""
    start(cluster, {"rps": 0.001, "burst": 2}, node=("--fault", "hang"), **{"router.admission": {"max_concurrent_per_replica": 1, "queue_timeout": "200ms"}})
    held = Stream(cluster.http_port, "held")
    until(lambda: cluster.metric("cgn_inflight") == 1, "it is at work")
    blind = H2(cluster.http_port, settings=struct.pack(">HI", 4, 0))
    blind.send(frame(HEADERS, END_HEADERS, 1, request_block(more=more)) + frame(DATA, END_STREAM, 1, b'{"model":"sim","messages":[{"role":"user","content":"x"}]}'))
    assert next(f for f in blind.frames() if f.stream == 1).type == HEADERS  # and nothing behind it
    assert cluster.chat("again", {"Prefer": "if-available"}).status == 503
    held.close()
    blind.close()
