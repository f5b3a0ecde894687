# SPDX-License-Identifier: Apache-2.0
"""What the page asks of the admin port, without a browser; interop has it in Chromium."""
import json
import re

import pytest

from cluster import ask, until

PAGE = {"x-cgn-page": "1"}


@pytest.fixture
def pair(cluster):
    cluster.router()
    cluster.node("a", "--time-scale", "0")
    cluster.node("b", "--time-scale", "0")
    cluster.wait_ready(2)
    return cluster


def test_its_files_load_nothing_from_elsewhere(pair):
    seen = 0
    for path in ("/page/", "/page/page.css", "/page/page.js", "/page/views.js", "/page/request.js"):
        a = ask(pair.admin_port, "GET", path)
        assert a.status == 200 and "default-src 'none'" in a.headers["content-security-policy"]
        assert not re.search(rb"""(src|href)="(https?:)?//|url\(|import\(|@import""", a.body), path
        seen += len(a.body)
    assert seen < 150_000
    assert ask(pair.admin_port, "GET", "/page/../config").status == 404
    assert ask(pair.admin_port, "POST", "/page/").status == 405


def test_a_browser_is_sent_to_it(pair):
    a = ask(pair.admin_port, "GET", "/", headers={"accept": "text/html,application/xhtml+xml;q=0.9"})
    assert (a.status, a.headers["location"]) == (302, "page/")
    assert ask(pair.admin_port, "GET", "/").json()["program"] == "cgn-router"


def order(c, path, headers=PAGE):
    a = ask(c.admin_port, "POST", path, headers=headers)
    return a.status, a.json().get("error", {}).get("code")


def test_orders_are_taken_from_the_page_of_this_machine_only(pair):
    def cordoned():
        return [n["id"] for n in ask(pair.admin_port, "GET", "/nodes").json()["nodes"] if n["cordoned"]]
    assert order(pair, "/nodes/a/cordon", {}) == (403, "not_the_page")
    for headers in ({"host": "attacker.example"}, {"host": "attacker.example:9091"}, {"x-forwarded-for": "198.51.100.7"}, {"forwarded": "for=198.51.100.7"}):
        assert order(pair, "/nodes/a/cordon", {**PAGE, **headers}) == (403, "not_direct")
    assert order(pair, "/nodes/nobody/cordon") == (404, "no_node")
    for path in ("/nodes/a/", "/nodes/a", "/nodes//cordon", "/nodes/a/drain", "/nodes/" + "a" * 2000 + "/cordon", "/nodes/a%00b/cordon"):
        assert order(pair, path)[0] == 404, path
    assert cordoned() == []
    assert order(pair, "/nodes/%61/cordon") == (200, None)
    assert cordoned() == ["a"]
    assert {pair.chat("hello", max_tokens=1).headers["x-cgn-node"] for _ in range(5)} == {"b"}
    assert order(pair, "/nodes/a/uncordon", {**PAGE, "host": "localhost"}) == (200, None)
    assert cordoned() == []
    assert [(e["node"], e["cordoned"], e["by"]) for e in pair.processes[0].events("router.cordon")] == [("a", True, "page"), ("a", False, "page")]


def test_the_playground_is_the_gateway(pair):
    rq = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "stream": True}
    assert ask(pair.admin_port, "POST", "/playground/v1/chat/completions", rq).status == 403
    a = ask(pair.admin_port, "POST", "/playground/v1/chat/completions", rq, PAGE)
    assert a.status == 200 and a.headers["x-cgn-node"] in "ab" and a.headers["content-type"].startswith("text/event-stream")
    assert a.body.rstrip().endswith(b"data: [DONE]")
    refused = ask(pair.admin_port, "POST", "/playground/v1/chat/completions", {**rq, "model": "none"}, PAGE)
    assert refused.status == 404 and refused.json()["error"]["code"] == "model_not_found"
    assert order(pair, "/playground/metrics") == (404, "not_found")


def test_a_playground_that_is_left_ends_its_request(cluster):
    cluster.router()
    cluster.node("a", "--token-interval-us", "50000")
    cluster.wait_ready(1)
    import http.client
    c = http.client.HTTPConnection("127.0.0.1", cluster.admin_port, timeout=20)
    c.request("POST", "/playground/v1/chat/completions", json.dumps(
        {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2000, "stream": True}), PAGE)
    r = c.getresponse()
    assert r.read(20)
    r.close()
    c.close()
    until(lambda: cluster.metric("cgn_inflight", node="a") == 0, "the request ends with its reader")


def test_tenants_and_the_last_hour(pair):
    for _ in range(3):
        pair.chat("hello " * 50, max_tokens=2)
    until(lambda: pair.metric("cgn_tenant_requests_total", tenant="-") == 3, "three requests are counted")
    assert pair.metric("cgn_tenant_tokens_total", tenant="-", kind="completion") == 6
    h = ask(pair.admin_port, "GET", "/history").json()
    lengths = {len(v) for v in h.values() if isinstance(v, list)}
    assert len(lengths) == 1 and h["seconds_per_point"] == 10
