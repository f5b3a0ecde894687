# SPDX-License-Identifier: Apache-2.0
"""What the page asks of the admin port, without a browser; interop has it in Chromium."""
import json
import re
import signal
import subprocess

import pytest

from cluster import BUILD, ask, free_port, toml, until

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
    for path in ("/page/", "/page/page.css", "/page/page.js", "/page/views.js", "/page/request.js", "/page/several.js"):
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
    for headers in ({"host": "attacker.example"}, {"host": "attacker.example:9091"}):
        assert order(pair, "/nodes/a/cordon", {**PAGE, **headers}) == (403, "another_name")
    for headers in ({"x-forwarded-for": "198.51.100.7"}, {"forwarded": "for=198.51.100.7"}):
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


@pytest.fixture
def several(pair, tmp_path):
    """cgn-metrics in front of the router, of one that is away, and of a port that answers garbage."""
    port, gone = free_port(), free_port()
    file = tmp_path / "metrics.toml"

    def write(*routers):
        file.write_text(toml({"metrics": {"listen": f"127.0.0.1:{port}", "routers": list(routers)}}))
    write(f"here=http://127.0.0.1:{pair.admin_port}", f"http://127.0.0.1:{gone}")
    process = pair.run("metrics", "cgn-metrics", "--config", file, "--set", "log.format=json")
    until(lambda: pair.listens(port, process), "cgn-metrics listens")
    return port, gone, process, write


def test_the_page_of_several_routers_reads_each_of_them(pair, several):
    port, gone, process, write = several
    assert ask(port, "GET", "/", headers={"accept": "text/html"}).headers["location"] == "page/"
    html = ask(port, "GET", "/page/")
    assert b"<html data-routers" in html.body and b"data-routers" not in ask(pair.admin_port, "GET", "/page/").body
    assert ask(port, "GET", "/page/several.js").status == 200
    assert [r["name"] for r in ask(port, "GET", "/routers").json()["routers"]] == ["here", f"127.0.0.1:{gone}"]
    assert sorted(n["id"] for n in ask(port, "GET", "/routers/here/nodes").json()["nodes"]) == ["a", "b"]
    until(lambda: b"cgn_requests_total" in ask(port, "GET", "/routers/here/metrics").body, "a request was counted")
    pair.chat("hello", max_tokens=1)
    assert len(ask(port, "GET", "/routers/here/explain?last=1&detail=brief").json()["requests"]) == 1
    away = ask(port, "GET", f"/routers/127.0.0.1%3A{gone}/nodes")
    assert (away.status, away.json()["error"]["code"]) == (502, "router_away")
    for path in ("/routers/nobody/nodes", "/routers/here/config", "/routers/here/", "/routers/here", "/routers/here/../config", "/routers//nodes"):
        assert ask(port, "GET", path).status == 404, path
    assert ask(port, "GET", "/routers/here/explain/" + "x" * 3000).status in (404, 413, 414)
    write(f"there=http://127.0.0.1:{pair.admin_port}")
    process.signal(signal.SIGHUP)
    until(lambda: [r["name"] for r in ask(port, "GET", "/routers").json()["routers"]] == ["there"], process.log)
    write("a=http://127.0.0.1:1", "a=http://127.0.0.1:2")
    process.signal(signal.SIGHUP)
    said = until(lambda: process.events("svc.reloaded_in_part"), process.log)
    assert 'two routers are called' in json.dumps(said)
    assert ask(port, "GET", "/routers/there/nodes").status == 200, "those of before stay"


def test_orders_reach_the_router_from_this_machine_only(pair, several):
    port = several[0]
    chat = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "stream": True}
    for headers, code in (({}, "not_the_page"), ({**PAGE, "host": "attacker.example"}, "another_name"), ({**PAGE, "x-forwarded-for": "198.51.100.7"}, "not_direct")):
        for path in ("/routers/here/nodes/a/cordon", "/routers/here/playground/v1/chat/completions"):
            a = ask(port, "POST", path, chat, headers)
            assert (a.status, a.json()["error"]["code"]) == (403, code)
    for path in ("/routers/here/model", "/routers/nobody/nodes/a/cordon", "/routers/here/playground/metrics"):
        assert ask(port, "POST", path, headers=PAGE).status == 404
    assert ask(port, "POST", "/routers/here/nodes/a/cordon", headers=PAGE).status == 200
    assert [n["id"] for n in ask(port, "GET", "/routers/here/nodes").json()["nodes"] if n["cordoned"]] == ["a"]
    a = ask(port, "POST", "/routers/here/playground/v1/chat/completions", chat, PAGE)
    assert a.status == 200 and a.headers["x-cgn-node"] == "b" and a.body.rstrip().endswith(b"data: [DONE]")


@pytest.mark.parametrize("entry, why", [("r1=ftp://x", "http://"), ("=http://x", "1 to 63"), ("a b=http://x", "1 to 63"), ("r/1=http://x", "1 to 63"), ("r1", "http://")])
def test_routers_that_cannot_be_used_are_named(tmp_path, entry, why):
    (tmp_path / "m.toml").write_text(toml({"metrics": {"routers": [entry]}}))
    done = subprocess.run([str(BUILD / "src/metrics/cgn-metrics"), "--config", str(tmp_path / "m.toml"), "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "metrics.routers" in done.stderr and why in done.stderr, done.stderr
