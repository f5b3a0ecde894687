# SPDX-License-Identifier: Apache-2.0
"""What is told of a request once it is over (the access log, metrics), and what the router learns from its answer."""
import time

from clients import Stream
from cluster import ask, until

FAST = ("--time-scale", "0")
PROMPT = "a long prompt about nothing in particular " * 40


def begin(cluster, *nodes, router=None, **sections):
    cluster.router({"router": {"worker_threads": 1, **(router or {})}, **sections})
    for name, args in zip("abc", nodes or (FAST,)):
        cluster.node(name, *args)
    cluster.wait_ready()


def line_of(cluster, name):
    """Return the access log's line of the request with this id."""
    return until(lambda: next((e for e in cluster.router_process.events("gateway.request") if e["id"] == name), None), f"{name} is logged")


def test_a_line_tells_what_the_client_saw(cluster):
    begin(cluster, ("--token-interval-us", "5000"))
    for name, held in (("cold", 0), ("warm", 1)):
        answer = cluster.ask("POST", "/v1/chat/completions?secret=yes",
                             {"model": "sim", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 7, "ignore_eos": True}, {"X-Request-Id": name})
        usage, e = answer.json()["usage"], line_of(cluster, name)
        assert (e["method"], e["path"], e["model"], e["node"], e["status"], e["outcome"]) == ("POST", "/v1/chat/completions", "sim", "a", 200, "ok")
        assert e["bytes"] == len(answer.body) and e["tries"] == 1 and e["resumes"] == 0 and e["stream"] is False
        assert (e["prompt_tokens"], e["completion_tokens"]) == (usage["prompt_tokens"], 7)
        assert f'{e["blocks_held"]}/{e["blocks"]}' == answer.headers["x-cgn-cache-hit"]
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        assert e["cached_tokens"] == e["cached_predicted"] == cached and (cached > 200) == bool(held)
        assert 0 < e["ttft_ms"] <= e["total_ms"] and e["pick_ms"] <= e["total_ms"] and e["queued_ms"] == 0
        assert e["peer"].startswith("127.0.0.1:") and not e.get("retried") and not e.get("prefill_node") and not e.get("key")


def test_each_end_has_its_status_and_outcome(cluster):
    begin(cluster, ("--token-interval-us", "2000"))
    engine = cluster.nodes["a"].engine_port
    assert cluster.chat("x", {"X-Request-Id": "stream"}, stream=True, max_tokens=3).status == 200
    e = line_of(cluster, "stream")
    assert e["stream"] is True and (e["status"], e["outcome"]) == (200, "ok") and e["completion_tokens"] == 3  # though the client did not ask
    more = {"stream": True, "max_tokens": 3, "stream_options": {"include_usage": True}, "ignore_eos": True}
    assert cluster.chat("x", {"X-Request-Id": "usage"}, **more).status == 200
    assert line_of(cluster, "usage")["completion_tokens"] == 3
    s = Stream(cluster.http_port, "x", fields={"X-Request-Id": "gone"}, max_tokens=5000, ignore_eos=True).read_until(b"data: ")
    s.reset()
    e = line_of(cluster, "gone")
    assert (e["status"], e["outcome"], e["node"]) == (499, "client_gone", "a") and e["bytes"] > 0
    assert cluster.ask("POST", "/v1/chat/completions", {"model": "nope"}, {"X-Request-Id": "unknown"}).status == 404
    e = line_of(cluster, "unknown")
    assert e["status"] == 404 and e["outcome"] != "ok" and not e["node"] and e["tries"] == 0 and e["ttft_ms"] == 0
    assert ask(engine, "POST", "/sim/faults", {"faults": ["cut-after=2"]}).status == 200
    assert b'"engine_failed"' in cluster.chat("x", {"X-Request-Id": "cut"}, stream=True, max_tokens=50).body
    e = line_of(cluster, "cut")
    assert e["status"] == 200 and e["outcome"] == "cut"


def test_metrics_of_a_model(cluster):
    """Each answer is once in each of them, and the tokens are the engine's."""
    begin(cluster)
    prompt = completion = 0
    for i in range(4):
        usage = cluster.chat(PROMPT, max_tokens=5, ignore_eos=True).json()["usage"]
        prompt, completion = prompt + usage["prompt_tokens"], completion + usage["completion_tokens"]
    cached = cluster.chat(PROMPT, max_tokens=5, ignore_eos=True).json()["usage"]
    prompt, completion = prompt + cached["prompt_tokens"], completion + cached["completion_tokens"]
    hit = cached["prompt_tokens_details"]["cached_tokens"]

    def all_told():
        text = cluster.scrape()
        return cluster.metric("cgn_requests_total", text, model="sim", code="200") == 5 and text
    text = until(all_told, "five are counted")
    for name in ("request", "ttft"):
        assert cluster.metric(f"cgn_{name}_seconds_count", text, model="sim") == 5, name
        assert cluster.metric(f"cgn_{name}_seconds_sum", text, model="sim") > 0
    assert cluster.metric("cgn_itl_seconds_count", text) == 0 and cluster.metric("cgn_queue_seconds_count", text) == 0
    assert cluster.metric("cgn_tokens_total", text, kind="prompt") == prompt
    assert cluster.metric("cgn_tokens_total", text, kind="completion") == completion == 25
    for kind in ("predicted", "actual"):
        assert cluster.metric("cgn_cached_tokens_total", text, node="a", kind=kind) == 4 * hit > 800, kind
    assert cluster.ask("POST", "/v1/chat/completions", {"model": "nope"}).status == 404
    assert cluster.chat("x", {"X-Cgn-Node": "zz"}).status == 503
    text = until(lambda: cluster.metric("cgn_requests_total", model="sim") == 6 and cluster.scrape(), "the sixth is counted")
    assert cluster.metric("cgn_requests_total", text, model="sim", code="503") == 1
    assert cluster.metric("cgn_request_seconds_count", text, model="sim") == 6
    assert cluster.metric("cgn_ttft_seconds_count", text, model="sim") == 5, "no engine answered it"
    assert cluster.metric("cgn_requests_total", text, model="nope") == 0, "names of clients make no series"


def test_the_time_between_chunks_is_measured(cluster):
    begin(cluster, ("--token-interval-us", "20000"))
    assert cluster.chat("x", stream=True, max_tokens=12, ignore_eos=True).status == 200
    text = until(lambda: cluster.metric("cgn_requests_total", model="sim") == 1 and cluster.scrape(), "it is counted")
    n = cluster.metric("cgn_itl_seconds_count", text, model="sim")
    assert 3 <= n <= 14 and cluster.metric("cgn_itl_seconds_sum", text, model="sim") > 0.05


def test_a_cache_that_forgets_is_not_believed(cluster):
    """The engine loses its cache before each request: the trust in what was sent there falls, and with little trust nothing
    counts as held that was found missing."""
    begin(cluster)
    engine = cluster.nodes["a"].engine_port
    hits = []
    for i in range(40):
        answer = cluster.chat(PROMPT, {"X-Request-Id": f"turn-{i}"}, max_tokens=1)
        hits.append(int(answer.headers["x-cgn-cache-hit"].split("/")[0]))
        e = line_of(cluster, f"turn-{i}")
        assert e["cached_tokens"] == 0 and (e["cached_predicted"] > 200) == (hits[-1] > 0)
        assert ask(engine, "POST", "/reset_prefix_cache").status == 200
        if i > 1 and hits[-1] == 0:
            break
    assert hits[:2] == [0, hits[1]] and hits[1] > 5 and hits[-1] == 0, hits
    predicted = cluster.metric("cgn_cached_tokens_total", node="a", kind="predicted")
    assert predicted > 200 and cluster.metric("cgn_cached_tokens_total", node="a", kind="actual") == 0


def test_answers_teach_how_long_answers_are(cluster):
    """A request without max_tokens reserves the mean of the model's answers: 256 tokens before the first, then a sixteenth of
    each difference more."""
    rate = 600_000_000  # full again at once
    begin(cluster, **{"router.rate_limit": {"tokens_per_minute": rate}})

    def reserved(path="/v1/chat/completions", **more):
        time.sleep(0.05)  # ten thousand tokens a millisecond
        answer = cluster.chat("hello", **more)
        assert answer.status == 200, answer.body
        return rate - int(answer.headers["x-ratelimit-remaining-tokens"])

    prompt = reserved(max_tokens=40, ignore_eos=True) - 40
    assert 0 < prompt < 100

    def unlimited():  # engines answer such a request with two choices, from which nothing is learned
        return reserved(n=2, stop=[" "]) - prompt

    # each change of the mean is by a sixteenth of the difference, and the first answer is the mean
    first = unlimited()
    assert abs(first - 40) <= 12, first
    reserved(max_tokens=360, ignore_eos=True)
    second = unlimited()
    assert 12 <= second - first <= 24, (first, second)
    reserved(max_tokens=360, n=2, ignore_eos=True)
    assert unlimited() == second, "several choices are not one answer"


def test_answers_teach_how_many_tokens_a_block_of_bytes_has(cluster):
    """The engine counts its tokens, and a block of bytes then has its share of them: here twice as many as are assumed."""
    begin(cluster, router={"shadow": ["round_robin"]}, **{'models."sim"': {"tokens": "bytes"}})
    text = "".join(f"{i % 10} " for i in range(2000))
    first = cluster.chat(text, max_tokens=1)
    tokens = first.json()["usage"]["prompt_tokens"]
    blocks = int(first.headers["x-cgn-cache-hit"].split("/")[1])
    assert tokens / blocks > 80 or tokens / blocks < 50, "a block does not have the assumed 64 tokens"
    for _ in range(4):
        assert cluster.chat(text, max_tokens=1).headers["x-cgn-cache-hit"] == f"{blocks}/{blocks}"
    held = cluster.metric("cgn_shadow_cached_tokens_total", policy="round_robin", of="chosen")
    assert abs(held - 4 * tokens) < 0.15 * 4 * tokens, (held, tokens, blocks)
