# SPDX-License-Identifier: Apache-2.0
"""The reason for each decision: the header, /explain, cgn-ctl explain; and the decisions of the other
policies."""
import http.client
import json
import socket
import subprocess
import threading
import time

import pytest

from cluster import BUILD, ask, until

CTL = str(BUILD / "src/ctl/cgn-ctl")
FAST = ("--time-scale", "0")
PROMPT = "once upon a time there was a long prompt " * 60


def begin(cluster, names="ab", router=None, engine=FAST):
    process = cluster.router(router)
    until(lambda: cluster.listens(cluster.grpc_port, process), "its gRPC port listens")
    for name in names:
        cluster.node(name, *engine)
    cluster.wait_ready()


def explain(cluster, request_id):
    """Return everything recorded for this id, once its end is recorded."""
    def over():
        a = ask(cluster.admin_port, "GET", f"/explain/{request_id}")
        assert a.status == 200, a.body
        requests = a.json()["requests"]
        return all(not r["in_flight"] for r in requests) and requests
    return until(over, "the request's end is on record")


def ctl(cluster, *args):
    return subprocess.run([CTL, "explain", *args, "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, text=True, timeout=60)


def test_a_cold_request_and_a_cached_one(cluster):
    begin(cluster, router={"router": {"worker_threads": 1, "policy": "weighted"}})
    first = cluster.chat(PROMPT, {"X-Request-Id": "cold"}, max_tokens=4)
    second = cluster.chat(PROMPT, {"X-Request-Id": "warm"}, max_tokens=4)
    node = second.headers["x-cgn-node"]
    assert first.status == second.status == 200 and first.headers["x-cgn-node"] == node
    cold, warm = explain(cluster, "cold"), explain(cluster, "warm")
    assert len(cold) == len(warm) == 1
    cold, warm = cold[0], warm[0]
    for r, held in ((cold, 0), (warm, 1)):
        (t,) = r["tries"]
        assert (t["try"], t["policy"], t["verdict"], t["node"], t["unit"]) == (1, "weighted", "picked", node, "score")
        assert sorted(c["node"] for c in t["candidates"]) == ["a", "b"] and t["candidates_not_kept"] == 0
        won, lost = t["candidates"]
        assert won["node"] == node and (won["why"], lost["why"]) == ("won", "eligible")
        assert won["held_blocks"] == held * t["blocks"] and lost["held_blocks"] == 0 and t["common_blocks"] == 0
        assert won["held_by_tier"] == {"gpu": won["held_blocks"], "ram": 0, "ssd": 0, "remote": 0}
        for c in (won, lost):
            assert c["score"] == pytest.approx(sum(c["terms"].values()), abs=1e-5)
        assert t["margin"] == pytest.approx(won["score"] - lost["score"], abs=1e-5) and t["over"] == lost["node"]
        assert r["end"]["status"] == 200 and r["end"]["node"] == node and r["end"]["tries"] == 1
        assert r["end"]["prompt_tokens"] > 100 and r["end"]["completion_tokens"] == 4
        assert r["ttft_ms"]["actual"] >= r["ttft_ms"]["node_actual"] > 0
    assert warm["tries"][0]["candidates"][0]["terms"]["kv"] == pytest.approx(0.55, abs=0.001)
    assert cold["ttft_ms"]["node_predicted"] > warm["ttft_ms"]["node_predicted"] >= 0
    assert cold["cached_tokens"] == {"predicted": 0, "actual": 0}
    assert warm["cached_tokens"]["actual"] > 100 and warm["cached_tokens"]["predicted"] > 100
    assert cold["tries"][0]["chain"] == warm["tries"][0]["chain"]


def test_the_list_agrees_with_the_details_of_a_request_that_waited(cluster):
    """Waiting is a decision and no try, and the time to its first byte begins with its arrival."""
    begin(cluster, "a", {"router": {"worker_threads": 1}, "router.admission": {"max_concurrent_per_replica": 1}}, ("--decode-ms", "10"))
    beside = threading.Thread(target=cluster.chat, args=("it takes a while",), kwargs={"max_tokens": 60, "ignore_eos": True})
    beside.start()
    until(lambda: cluster.status()["nodes"][0]["load"]["inflight"] == 1, cluster.logs)
    assert cluster.chat("behind it", {"X-Request-Id": "waited"}, max_tokens=2).status == 200
    beside.join()
    (told,) = explain(cluster, "waited")
    assert len(told["tries"]) == 2 and told["end"]["tries"] == 1, told
    head, *rows = [x.split("  ") for x in ctl(cluster, "--last", "2").stdout.splitlines() if x]
    head, (row,) = [x.strip() for x in head if x.strip()], [[c.strip() for c in x if c.strip()] for x in rows if "waited" in x]
    shown = dict(zip(head, row))
    assert shown["TRIES"] == "1", shown
    assert float(shown["TTFT MS"]) == pytest.approx(told["ttft_ms"]["actual"], rel=0.01), shown
    assert float(shown["TTFT MS"]) > 2 * told["ttft_ms"]["node_actual"] > 0, told["ttft_ms"]


def test_the_header_tells_the_client_that_asks(cluster):
    begin(cluster)
    assert "x-cgn-explain" not in cluster.chat("hello").headers
    assert "x-cgn-explain" not in cluster.chat("hello", {"X-Cgn-Explain": "0"}).headers
    a = cluster.chat(PROMPT, {"X-Cgn-Explain": "1"}, stream=True, max_tokens=2)
    told = json.loads(a.headers["x-cgn-explain"])
    assert told["node"] == a.headers["x-cgn-node"] and len(a.headers["x-cgn-explain"]) <= 4096
    assert [c["node"] for c in told["candidates"]][0] == told["node"] and len(told["candidates"]) == 2
    assert "once upon" not in a.headers["x-cgn-explain"]
    for name in "ab":
        subprocess.run([CTL, "cluster", "cordon", name, "--router", f"127.0.0.1:{cluster.grpc_port}"], check=True, capture_output=True)
    until(lambda: cluster.chat("hello").status == 503, "nobody is left")
    a = cluster.chat("hello", {"X-Cgn-Explain": "1", "X-Request-Id": "nobody"})
    assert json.loads(a.headers["x-cgn-explain"])["verdict"] == "nobody"
    (r,) = explain(cluster, "nobody")
    assert r["tries"][0]["verdict"] == "nobody" and r["end"]["status"] == 503 and r["end"]["outcome"] == "no_node"


def test_a_retried_request_shows_each_try(cluster):
    begin(cluster, "a", {"router": {"worker_threads": 1}, "router.retry": {"backoff": "0ms"}})
    cluster.node("b", *FAST, "--fault", "http500")
    cluster.wait_ready()
    for i in range(50):
        a = cluster.chat(f"{i} {PROMPT}", {"X-Request-Id": f"q{i}"}, max_tokens=1)
        assert a.status == 200 and a.headers["x-cgn-node"] == "a"
        (r,) = explain(cluster, f"q{i}")
        if len(r["tries"]) > 1:
            break
    assert [(t["try"], t["node"]) for t in r["tries"]] == [(1, "b"), (2, "a")]
    again = r["tries"][1]
    assert {c["node"]: c["why"] for c in again["candidates"]} == {"a": "won", "b": "tried"} and "over" not in again
    assert r["end"]["tries"] == 2
    shown = ctl(cluster, f"q{i}").stdout
    assert f"try 1, policy {again['policy']}: b" in shown and f"try 2, policy {again['policy']}: a" in shown and "tried" in shown


def test_one_id_many_times_and_strange_ones(cluster):
    begin(cluster, "a")
    for _ in range(3):
        cluster.chat("hello", {"X-Request-Id": "same"}, max_tokens=1)
        explain(cluster, "same")  # its end is recorded: the next request, possibly on the other worker, is newer
        time.sleep(0.005)
    times = [r["at"] for r in explain(cluster, "same")]
    assert len(times) == 3 and times == sorted(times, reverse=True)
    strange = "a/b?c=%41&d"
    assert cluster.chat("hello", {"X-Request-Id": strange}, max_tokens=1).headers["x-request-id"] == strange
    (r,) = explain(cluster, "a%2fb%3Fc%3d%2541%26d")
    assert r["id"] == strange
    assert ctl(cluster, strange).returncode == 0
    minted = cluster.chat("hello", max_tokens=1).headers["x-request-id"]
    assert explain(cluster, minted)[0]["id"] == minted


def test_what_is_not_known_is_said(cluster):
    begin(cluster, "a")
    cluster.chat("hello", max_tokens=1)
    a = ask(cluster.admin_port, "GET", "/explain/never-heard")
    assert a.status == 404 and a.json()["error"]["code"] == "no_request"
    assert 'no request "never-heard" is on record' in a.json()["error"]["message"] and "reaches back" in a.json()["error"]["message"]
    r = ctl(cluster, "never-heard")
    assert r.returncode != 0 and 'no request "never-heard" is on record' in r.stderr
    for query in ("last=0", "last=101", "last=x", "session=" + "x" * 400, "detail=some", "lst=1"):
        for path in ("/explain", "/explain/"):
            assert ask(cluster.admin_port, "GET", f"{path}?{query}").status == 400, (path, query)
    assert ask(cluster.admin_port, "GET", "/explain/x?last=1").status == 400
    assert ask(cluster.admin_port, "GET", "/explain/" + "x" * 129).status == 400
    assert ask(cluster.admin_port, "GET", "/explain/" + "x" * 4000).status == 400
    assert ask(cluster.admin_port, "GET", "/explain/%00x").status == 400
    assert ctl(cluster, "--last", "0").returncode == 2


def test_the_last_ones(cluster):
    begin(cluster)
    ids = []
    for i in range(30):
        ids.append(cluster.chat(f"question {i}", max_tokens=1).headers["x-request-id"])
        time.sleep(0.003)  # two workers have no order within a millisecond
    until(lambda: not any(r["in_flight"] for r in ask(cluster.admin_port, "GET", "/explain?last=100").json()["requests"]), "all are over")
    told = ask(cluster.admin_port, "GET", "/explain?last=7").json()
    assert sorted(r["id"] for r in told["requests"]) == sorted(ids[-7:])
    assert told["record"]["decisions"] == 30 and told["record"]["bytes"] <= 16 << 20
    assert len(ask(cluster.admin_port, "GET", "/explain").json()["requests"]) == 20
    table = ctl(cluster, "--last", "5").stdout.splitlines()
    assert table[0].split()[:4] == ["AT", "ID", "MODEL", "NODE"] and len(table) == 6
    assert len(json.loads(ctl(cluster, "--last", "5", "-o", "json").stdout)["requests"]) == 5


def test_a_full_record_forgets_the_oldest(cluster):
    begin(cluster, "a", {"router": {"worker_threads": 1, "explain_size": "64KiB"}})
    ids = [cluster.chat("hello", max_tokens=1).headers["x-request-id"] for _ in range(600)]
    explain(cluster, ids[-1])
    assert ask(cluster.admin_port, "GET", f"/explain/{ids[0]}").status == 404
    record = ask(cluster.admin_port, "GET", "/explain?last=1").json()["record"]
    assert record["decisions"] == 600 and record["bytes"] <= 64 << 10 and record["entries"] < 1200


def test_it_can_be_off_and_must_not_be_too_small(cluster):
    begin(cluster, "a", {"router": {"explain_size": "0B"}})
    told = cluster.chat("hello", {"X-Cgn-Explain": "1", "X-Request-Id": "r"}, max_tokens=1).headers["x-cgn-explain"]
    assert json.loads(told)["node"] == "a"
    a = ask(cluster.admin_port, "GET", "/explain/r")
    assert a.status == 404 and "router.explain_size is 0" in a.json()["error"]["message"]
    assert "router.explain_size is 0" in ctl(cluster, "r").stderr
    small = cluster.run("small", "cgn-router", "--config", cluster.config("small", {"router": {"listen": "127.0.0.1:0", "listen_grpc": "127.0.0.1:0",
                        "listen_admin": "127.0.0.1:0", "worker_threads": 2, "explain_size": "100KiB"}}))
    assert small.wait() != 0 and "router.explain_size leaves a worker 51200 bytes: it needs at least 65536" in small.log()


def test_a_client_that_asks_and_leaves_harms_no_other(cluster):
    begin(cluster)
    stop = threading.Event()

    def load():
        while not stop.is_set():
            cluster.chat("hello", max_tokens=1)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for t in threads:
        t.start()
    for i in range(200):
        with socket.create_connection(("127.0.0.1", cluster.admin_port)) as s:
            s.sendall(b"GET /explain?last=100 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            if i % 2:
                s.recv(1)
    stop.set()
    for t in threads:
        t.join()
    until(lambda: cluster.chat("hello", max_tokens=1).status == 200 and len(ask(cluster.admin_port, "GET", "/explain?last=100").json()["requests"]) == 100, cluster.logs)


def test_shadows_agree_with_a_count_by_hand(cluster):
    shadows = ["round_robin", "predicted", "least_loaded"]
    begin(cluster, "abc", {"router": {"worker_threads": 1, "policy": "weighted", "shadow": [*shadows, "kv", "predicted"]}})
    ids = [cluster.chat(f"{i % 4} {PROMPT}", max_tokens=1).headers["x-request-id"] for i in range(40)]
    decisions = [explain(cluster, i)[0]["tries"][0] for i in ids]
    scraped = cluster.scrape()
    status = json.loads(subprocess.run([CTL, "cluster", "status", "-o", "json", "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, check=True).stdout)
    for name in shadows:
        mine = [(d, s) for d in decisions for s in d["shadows"] if s["policy"] == name]
        assert len(mine) == 40
        for d, s in mine:
            assert s["agrees"] == (s["node"] == d["node"])
            cost = {c["node"]: sum(c["predicted_ms"].values()) for c in d["candidates"]}
            assert s["believed_ms"] == pytest.approx(0 if s["agrees"] else cost[d["node"]] - cost[s["node"]], rel=1e-3, abs=1e-3)
        agree = sum(s["agrees"] for _, s in mine)
        assert cluster.metric("cgn_shadow_decisions_total", scraped, policy=name, agree="yes") == agree
        assert cluster.metric("cgn_shadow_decisions_total", scraped, policy=name, agree="no") == 40 - agree
        for who, sign in (("shadow", 1), ("chosen", -1)):
            seconds = sum(s["believed_ms"] * sign for _, s in mine if s["believed_ms"] * sign > 0) / 1e3
            assert cluster.metric("cgn_shadow_believed_seconds_sum", scraped, policy=name, cheaper=who) == pytest.approx(seconds, rel=1e-3, abs=1e-5)
        held = {who: cluster.metric("cgn_shadow_cached_tokens_total", scraped, policy=name, of=who) for who in ("shadow", "chosen")}
        blocks = sum(s["held_blocks"] for _, s in mine), sum(d["candidates"][0]["held_blocks"] for d, _ in mine)
        assert held["chosen"] > 0 and held["shadow"] / held["chosen"] == pytest.approx(blocks[0] / blocks[1], rel=0.02)
        (row,) = [s for s in status["shadows"] if s["policy"] == name]
        assert (row["agreed"], row["differed"]) == (agree, 40 - agree)
    assert cluster.metric("cgn_shadow_decisions_total", scraped, policy="round_robin", agree="no") > 0
    assert "round_robin" in ctl(cluster, ids[-1]).stdout


def test_shadows_live_and_sampled(cluster):
    begin(cluster, router={"router": {"worker_threads": 1}})
    cluster.chat("hello", max_tokens=1)
    assert "cgn_shadow_decisions_total{" not in cluster.scrape()
    path = cluster.folder / "router.toml"
    path.write_text(path.read_text().replace("[router]", '[router]\nshadow = ["random"]\nshadow_sample = 0.25'))
    cluster.router_process.signal(1)
    until(lambda: cluster.router_process.events("svc.reloaded"), "it is loaded")
    for _ in range(40):
        assert cluster.chat("hello", max_tokens=1).status == 200
    assert cluster.metric("cgn_shadow_decisions_total", policy="random") == pytest.approx(10, abs=1)
    bad = cluster.run("bad", "cgn-router", "--check", "--config", cluster.config("bad", {"router": {"shadow": ["best"]}}))
    assert bad.wait() == 3 and '"best" is not a policy; they are kv, weighted' in bad.log()


def test_a_request_that_waited_shows_why(cluster):
    begin(cluster, "a", {"router": {"worker_threads": 1}, "router.admission": {"max_concurrent_per_replica": 1}}, engine=("--time-scale", "1"))
    first = threading.Thread(target=lambda: cluster.chat("hello", max_tokens=30))
    first.start()
    until(lambda: cluster.status()["nodes"][0]["router_inflight"] == 1, "the first is there")
    assert cluster.chat("you too", {"X-Request-Id": "second"}, max_tokens=1).status == 200
    first.join()
    (r,) = explain(cluster, "second")
    assert [t["verdict"] for t in r["tries"]] == ["all_full", "picked"]
    assert [c["why"] for c in r["tries"][0]["candidates"]] == ["full"]
    assert "every node has all the requests" in ctl(cluster, "second").stdout


def test_the_time_of_a_request_by_phase(cluster):
    """A node with room for one request: the second one waits, and its record says how long."""
    begin(cluster, names="a", router={"router.admission": {"max_concurrent_per_replica": 1}}, engine=("--token-interval-us", "20000"))
    first = threading.Thread(target=cluster.chat, args=("one", {"X-Request-Id": "one"}), kwargs={"max_tokens": 15, "stream": True})
    first.start()
    until(lambda: ask(cluster.admin_port, "GET", "/nodes").json()["nodes"][0]["router_inflight"] == 1, "the node is full")
    cluster.chat("two", {"X-Request-Id": "two"}, max_tokens=15, stream=True)
    first.join()
    (one,), (two,) = explain(cluster, "one"), explain(cluster, "two")
    for r in (one, two):
        phases = r["end"]["phases_ms"]
        assert sum(phases.values()) == pytest.approx(r["end"]["total_ms"], rel=0.03, abs=1)
        assert phases["stream"] > 0 and phases["prefill"] == 0 and r["end"]["stream"]
    assert one["end"]["phases_ms"]["queue"] == 0
    # The second one waited while the first one was answered.
    assert 0 < two["end"]["phases_ms"]["queue"] < two["end"]["total_ms"]


def test_brief_records_have_no_candidates(cluster):
    begin(cluster)
    cluster.chat("hello", {"X-Request-Id": "one"}, max_tokens=2)
    explain(cluster, "one")
    (r,) = ask(cluster.admin_port, "GET", "/explain?last=1&detail=brief").json()["requests"]
    assert r["id"] == "one" and r["tries"][0]["node"] in "ab" and "candidates" not in r["tries"][0]
    assert "candidates" in ask(cluster.admin_port, "GET", "/explain?last=1").json()["requests"][0]["tries"][0]


def test_sessions_follow_a_shadow_and_what_it_brings_is_measured(cluster):
    """Half of the sessions follow kv in a fleet that goes round; a session never changes its policy, and the figures are those of the answers."""
    begin(cluster, "abc", {"router": {"worker_threads": 2, "policy": "round_robin", "shadow": ["kv"], "shadow_share": 0.5}})
    policies, cached = {}, {}
    for turn in range(5):
        for i in range(50):
            a = cluster.chat(f"{i} " + PROMPT * (1 + turn), {"X-Request-Id": f"s{i}t{turn}", "X-Cgn-Session": f"s{i}"}, max_tokens=2)
            assert a.status == 200
            (tried,) = explain(cluster, f"s{i}t{turn}")[0]["tries"]
            policies.setdefault(i, set()).add(tried["policy"])
            usage = a.json()["usage"]
            sums = cached.setdefault(tried["policy"], [0, 0, 0])
            for k, v in enumerate((1, usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"])):
                sums[k] += v
    assert all(len(p) == 1 for p in policies.values()), policies
    assert set(cached) == {"round_robin", "predicted"} and min(n for n, _, _ in cached.values()) >= 100, cached
    status = json.loads(subprocess.run([CTL, "cluster", "status", "-o", "json", "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, check=True).stdout)
    (row,) = status["shadows"]
    figures = {f["figure"]: f for f in row["figures"]}
    assert row["share"] == 0.5 and set(figures) == {"ttft", "itl", "finish", "cached", "failed"}
    assert all((f["n_live"], f["n_shadow"]) == (cached["round_robin"][0], cached["predicted"][0]) for name, f in figures.items() if name != "itl"), figures
    ratio = {p: c / of for p, (_, c, of) in cached.items()}
    assert ratio["predicted"] > 1.5 * ratio["round_robin"]
    assert figures["cached"]["verdict"] == "better" and figures["cached"]["low"] > 0, figures["cached"]
    assert figures["cached"]["shadow"] == pytest.approx(ratio["predicted"], rel=0.1)
    assert figures["failed"]["verdict"] == "unclear" and figures["failed"]["live"] == 0
    shown = subprocess.run([CTL, "cluster", "status", "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, text=True, check=True).stdout
    assert "50 % of the sessions follow it" in shown and "measured cached" in shown, shown
    until(lambda: cluster.metric("cgn_shadow_measured_requests", policy="predicted", figure="cached") == cached["predicted"][0], cluster.logs)
    assert cluster.metric("cgn_shadow_measured_ratio", policy="predicted", figure="cached", end="low") > 0
    # Another live policy begins a new comparison.
    subprocess.run([CTL, "cluster", "set-policy", "--policy", "random", "--router", f"127.0.0.1:{cluster.grpc_port}"], check=True, capture_output=True)
    cluster.chat("hello", max_tokens=1)
    status = json.loads(subprocess.run([CTL, "cluster", "status", "-o", "json", "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, check=True).stdout)
    assert all(f["n_live"] + f["n_shadow"] <= 1 and f["verdict"] == "too few" for f in status["shadows"][0]["figures"])
