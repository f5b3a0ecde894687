# SPDX-License-Identifier: Apache-2.0
"""Quotes: what a request will take, told before it is sent, and compared with what it took."""
import concurrent.futures
import json
import subprocess

from cluster import BUILD, ask, until
from test_queue import SLOW, hold
from test_router import FAST, Stream, error_of, up

CTL = BUILD / "src/ctl/cgn-ctl"
PRICES = {"prices.sim": {"input": 1.0, "output": 2.0}}
FIGURES = ("ttft_ms", "finish_ms", "cost", "joules")


def body(text="hello", model="sim", **more):
    return {"model": model, "messages": [{"role": "user", "content": text}], "stream": True, **more}


def quote(cluster, query="", headers=None, **more):
    return cluster.ask("POST", f"/v1/quote{query}", body(**more), headers)


def engine_requests(node):
    """Return the requests that the engine has ended or still has, by its own count."""
    lines = ask(node.engine_port, "GET", "/metrics").body.decode().splitlines()
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith(("vllm:request_success_total", "vllm:num_requests_")))


def key(folder, *args):
    out = subprocess.run([CTL, "key", "create", "--file", folder / "keys", "-o", "json", *args], check=True, capture_output=True, text=True).stdout
    return {"Authorization": f"Bearer {json.loads(out)['key']}"}


def test_a_quote_asks_no_engine_and_says_what_it_knows(cluster):
    up(cluster, FAST, router=PRICES)
    a = quote(cluster, max_tokens=20)
    q = a.json()
    assert a.status == 200 and q["object"] == "quote" and q["model"] == "sim" and q["coverage"] == 0.9
    assert q["state"] == "ready" and q["node"] == "a" and "queue_position" not in q
    for figure in FIGURES[:3]:
        v = q[figure]
        assert 0 <= v["low"] <= v["expected"] <= v["high"] and v["samples"] == 0, figure
    assert q["joules"] is None and q["currency"] == "USD"  # no agent counts energy here
    assert q["completion_tokens"]["high"] == 20 and q["prompt_tokens"] > 0 and q["cached_tokens"] == 0
    assert engine_requests(cluster.nodes["a"]) == 0 and cluster.metric("cgn_inflight") == 0
    # the form of other routes: by their path, which may be escaped
    for query, its in (("?for=/v1/completions", {"model": "sim", "prompt": "hi"}), ("?for=%2Fv1%2Fresponses", {"model": "sim", "input": "hi"}),
                       ("?for=/v1/messages", {"model": "sim", "max_tokens": 5, "messages": []}), ("?for=/v1/embeddings", {"model": "sim", "input": "hi"})):
        a = cluster.ask("POST", "/v1/quote" + query, its)
        assert a.status == 200, (query, a.body)
    assert a.json()["completion_tokens"]["high"] == 0 and a.json()["finish_ms"] == a.json()["ttft_ms"]
    for path, its in (("/v1/quote?for=/tokenize", body()), ("/v1/quote?for=/v1/quote", body()), ("/v1/quote?for=", body())):
        a = cluster.ask("POST", path, its)
        assert a.status == 400 and error_of(a)["param"] == "for", path
    assert cluster.ask("GET", "/v1/quote").status == 405
    assert quote(cluster, model="nobody").status == 404
    assert cluster.ask("POST", "/v1/quote", b"{").status == 400
    assert engine_requests(cluster.nodes["a"]) == 0


def test_intervals_are_learned_and_counted(cluster):
    """Each request gets its quote in a header that it asks for; at the end its figures are inside of the intervals or not."""
    up(cluster, FAST, router=PRICES)
    plain = cluster.ask("POST", "/v1/chat/completions", body("x", max_tokens=4))
    assert plain.status == 200 and "x-cgn-quote" not in plain.headers
    for i in range(49):
        a = cluster.ask("POST", "/v1/chat/completions", body(f"{i} " + "word " * 100, max_tokens=10, ignore_eos=True), {"X-Cgn-Quote": "1"})
        told = json.loads(a.headers["x-cgn-quote"])
        assert told["state"] == "ready" and told["node"] == "a" and "\n" not in a.headers["x-cgn-quote"]
    until(lambda: quote(cluster).json()["cost"]["samples"] == 50, "all are learned from")
    q = quote(cluster, text="49 " + "word " * 100, max_tokens=10).json()
    assert all(q[f]["samples"] == 50 for f in FIGURES[:3])
    assert q["cost"]["high"] < 4 * q["cost"]["low"]  # as the answers were alike, the first wide interval is gone
    text = cluster.scrape()
    for figure in ("ttft", "finish", "cost"):
        # 20 of 50 had too few before them; one more if the 20th was not yet learned from when the 21st asked.
        assert cluster.metric("cgn_quote_covered_total", text, figure=figure) in (29, 30), figure
    assert cluster.metric("cgn_quote_covered_total", text, figure="joules") == 0
    # explain has the quote beside what the request took
    end = ask(cluster.admin_port, "GET", f"/explain/{a.headers['x-request-id']}").json()["requests"][0]["end"]
    for figure in FIGURES[:3]:
        assert end["quote"][figure]["actual"] > 0, figure
        assert abs(end["quote"][figure]["high"] - told[figure]["high"]) < 0.01 * told[figure]["high"], figure
    assert "joules" not in end["quote"]
    assert cluster.metric("cgn_quote_covered_total", text, figure="cost", side="inside") >= 20


def test_the_quote_of_a_busy_cluster_has_a_place_in_the_queue(cluster):
    up(cluster, (*SLOW, "--max-batch", "1"), router={"router.admission": {"max_concurrent_per_replica": 2}})
    held = hold(cluster, 2)
    q = quote(cluster).json()
    assert q["state"] == "full" and q["queue_position"] == 1 and "node" not in q
    assert q["ttft_ms"]["expected"] > 0
    waits = [Stream(cluster, max_tokens=2) for _ in range(2)]
    until(lambda: cluster.metric("cgn_queue_depth") == 2, "two wait")
    until(lambda: quote(cluster).json()["queue_position"] == 3, "the next one is the third")
    for s in held + waits:
        s.sock.close()


def test_no_node_and_switched_off(cluster):
    up(cluster, FAST, router={'models."ghost"': {"block_bytes": 256}})
    a = quote(cluster, model="ghost")
    assert a.status == 200 and a.json()["state"] == "no_node" and all(a.json()[f] is None for f in FIGURES)
    # switched off
    path = cluster.folder / "router.toml"
    path.write_text(path.read_text() + "\n[router.quote]\nenabled = false\n")
    cluster.router_process.signal(1)
    until(lambda: quote(cluster).status == 501, "quotes are off")
    a = cluster.ask("POST", "/v1/chat/completions", body(), {"X-Cgn-Quote": "1"})
    assert a.status == 200 and "x-cgn-quote" not in a.headers
    assert "router.quote.enabled" in error_of(quote(cluster))["message"]


def test_callers_are_told_only_what_they_may_use(cluster):
    chat, embed = key(cluster.folder, "--name", "chat", "--scopes", "chat"), key(cluster.folder, "--name", "embed", "--scopes", "embed")
    other = key(cluster.folder, "--name", "other", "--scopes", "chat", "--models", "llama*")
    up(cluster, FAST, router={"auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")},
                              "router.rate_limit": {"rps": 0.001, "burst": 3, "tokens_per_minute": 1}})
    assert quote(cluster).status == 401
    assert quote(cluster, headers=other).status == 404  # as a model that does not exist
    assert quote(cluster, headers=embed).status == 403
    assert cluster.ask("POST", "/v1/quote?for=/v1/embeddings", {"model": "sim", "input": "x"}, embed).status == 200
    # a request of the rate limit, and no token of it
    assert [quote(cluster, headers=chat).status for _ in range(4)] == [200, 200, 200, 429]


def test_deadlines_are_decided_by_the_quote(cluster):
    """An answer of ten tokens that comes as a whole takes a fifth of a second. The prediction of a deadline does not count them; a quote does."""
    up(cluster, SLOW)
    asked = {"max_tokens": 10, "ignore_eos": True}
    for i in range(3):  # until the node's speed is measured
        assert cluster.chat(f"{i} " + "word " * 1500, stream=True, max_tokens=2).status == 200
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(a.status == 200 for a in pool.map(lambda i: cluster.chat(f"hello {i}", **asked), range(24)))
    late = {"X-Cgn-Deadline-Ms": "100"}
    assert cluster.chat("by the prediction", late, **asked).status == 200
    path = cluster.folder / "router.toml"
    path.write_text(path.read_text() + "\n[router.admission]\ndeadline_confidence = 0.9\n")
    cluster.router_process.signal(1)
    a = until(lambda: (x := cluster.chat("by the quote", late, **asked)).status == 503 and x, "it is refused")
    assert error_of(a)["code"] == "slo_unmeetable" and "retry-after" not in a.headers  # an idle node could not either
    assert cluster.chat("in time", {"X-Cgn-Deadline-Ms": "60000"}, **asked).status == 200


def test_the_verb(cluster):
    up(cluster, FAST, router=PRICES)
    file = cluster.folder / "question.txt"
    file.write_text("why?\n" * 100)
    command = [CTL, "quote", "--url", f"http://127.0.0.1:{cluster.http_port}", "--prompt-file", file, "--max-tokens", "20"]
    run = lambda *more: subprocess.run([*command, *more], capture_output=True, text=True)
    assert json.loads(run("--model", "sim", "-o", "json").stdout)["completion_tokens"]["high"] == 20
    rows = {x.split()[0]: x.split()[1:] for x in run("--model", "sim").stdout.splitlines()[2:]}
    assert set(rows) == {"state", "ttft_ms", "finish_ms", "cost", "completion_tokens"} and rows["cost"][3] == "USD" and rows["state"] == ["ready"]
    missing = run("--model", "nobody")
    assert missing.returncode != 0 and "the model `nobody` does not exist here" in missing.stderr
    assert run().returncode != 0 and "--model" in run().stderr
