# SPDX-License-Identifier: Apache-2.0
"""Prompts that one engine computes and another one answers, in each dialect of hand-off, between strict simulators: the decode
leg fetches the blocks from the prefill simulator, or counts that it computed them itself."""
import concurrent.futures
import http.client
import json
import random
import signal
import subprocess
import threading

import pytest

from cluster import BUILD, Cluster, Node, ask, scaled, until

DIALECTS = ["nixl", "p2p", "mooncake", "sglang", "trtllm"]
IN_SEQUENCE = ["nixl", "p2p", "trtllm"]
ALONE = ["nixl", "p2p", "mooncake", "trtllm"]  # engines that can answer a request of which no other engine computed the prompt
BLOCK = 16


class World:
    def __init__(self, folder, kind, threshold=64, **router):
        self.c, self.kind = Cluster(folder), kind
        self.c.router({**router, "router.disagg": {"enabled": True, "colocate_below_tokens": threshold}, "router.retry": {"backoff": "1ms", "budget": 1.0, "attempts": 4},
                       'models."sim"': {"block_bytes": 64, "tokens": "bytes"}})

    def start(self, name, role, *args, kind=None, model=None, **more):
        """Start an engine and its agent, which tells how the engine hands over."""
        engine, port = self.c.engine(f"engine-{name}", "--handoff", kind or self.kind, "--role", role, "--kv-block-bytes", "1024",
                                     *(args or ("--time-scale", "0")), model=model)
        agent, agent_port, admin = self.c.agent(name, port, {"agent": {"role": role}, "engine": {"handoff": kind or self.kind, "handoff_port": port, **more}})
        self.c.nodes[name] = Node(name, engine, agent, port, agent_port, admin)
        return self.c.nodes[name]

    def ready(self):
        self.c.wait_ready()
        for n in self.c.nodes.values():
            until(lambda n=n: self.told(n), lambda n=n: ask(n.admin_port, "GET", "/engines").body)
        until(lambda: self.pairs() == len(self.c.nodes), lambda: self.c.status())
        return self

    def told(self, node):
        h = ask(node.admin_port, "GET", "/engines").json()["engines"][0]["handoff"]
        return h["known"] and f"block={BLOCK}" in h["terms"]

    def pairs(self):
        """Return how many nodes have told the router how their engines hand over."""
        return sum(bool(e.get("handoff")) and f"block={BLOCK}" in e["handoff"]["terms"] for n in self.c.status()["nodes"] for e in n["engines"])

    def stats(self, name):
        return ask(self.c.nodes[name].engine_port, "GET", "/sim/state").json()["handoff"]

    def engine_metric(self, name, metric, **labels):
        return self.c.metric(metric, ask(self.c.nodes[name].engine_port, "GET", "/metrics").body.decode(), **labels)

    def lost(self, outcome):
        return self.c.metric("cgn_handoffs_total", kind=self.kind, outcome=outcome)

    def prefilled(self):
        return self.c.metric("cgn_disagg_total", outcome="prefilled")


@pytest.fixture
def world(tmp_path, request):
    worlds = []

    def make(kind, *args, **router):
        worlds.append(World(tmp_path, kind, *args, **router))
        return worlds[-1]
    yield make
    for w in worlds:
        failed = getattr(request.node, "failed", False)
        if failed:
            print(w.c.logs())
        trouble = w.c.close()
        assert failed or not trouble, "\n".join(trouble)


def words(n, seed):
    rng = random.Random(seed)
    return " ".join("".join(rng.choices("abcdefgh", k=4)) for _ in range(n))


@pytest.mark.both
@pytest.mark.threads
@pytest.mark.parametrize("kind", DIALECTS)
def test_no_prompt_is_computed_twice(world, kind):
    """200 requests, streamed and plain, of both APIs: the decode engine computes no prompt, and each block is sent once."""
    w = world(kind)
    w.start("p", "prefill")
    w.start("d", "decode")
    w.ready()
    total = scaled(200, 40)

    def one(i):
        text, n = words(120 + i % 60, i), 1 + i % 7
        if i % 2:
            body = {"model": "sim", "prompt": text, "max_tokens": n, "stream": i % 4 == 1}
            a = w.c.ask("POST", "/v1/completions", {**body, **({"stream_options": {"include_usage": True}} if body["stream"] else {})})
        else:
            a = w.c.chat(text, max_tokens=n, stream=i % 4 == 0, **({"stream_options": {"include_usage": True}} if i % 4 == 0 else {}))
        assert a.status == 200, a.body
        assert "transfer_params\":{" not in a.body.decode(), a.body
        usage = a.json()["usage"] if i % 4 > 1 else json.loads([d for _, d in a.events() if '"usage":{' in d][-1])["usage"]
        assert usage["completion_tokens"] == n or usage["completion_tokens"] < n, usage
        assert a.headers["x-cgn-node"] == "d"
        return usage
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        usages = list(pool.map(one, range(total)))
    p, d = w.stats("p"), w.stats("d")
    assert d["recomputed"] == 0 and d["failed"] == 0, d
    assert d["taken"] == total and p["given"] == total and p["fetched"] == total, (p, d)
    assert d["bytes"] > 0 and d["bytes"] == p["bytes_sent"] == d["blocks"] * 1024, (p, d)
    assert w.engine_metric("d", "vllm:nixl_bytes_transferred_sum") == d["bytes"]
    # The decode engine computes what is behind the last full block, and the client sees what the prefill engine had cached: nothing.
    assert w.engine_metric("d", "vllm:prompt_tokens_by_source_total", source="local_compute") <= total * (BLOCK + 1)
    prompts = sum(u["prompt_tokens"] for u in usages)
    assert w.engine_metric("p", "vllm:prompt_tokens_by_source_total", source="local_compute") == prompts - sum(
        u["prompt_tokens_details"]["cached_tokens"] for u in usages)
    assert w.lost("sent") == total


SLOW = ("--prefill-tokens-per-s", "400", "--decode-ms", "1")  # a prompt of 160 tokens takes 0.4 s
PACED = ("--prefill-tokens-per-s", "0", "--decode-ms", "20")


def busy(w, name):
    return ask(w.c.nodes[name].engine_port, "GET", "/sim/state").json()["open"] > 0


def idle(w, *names):
    until(lambda: not any(busy(w, n) for n in names), "both engines have ended the request")


def later(fn, *args, **kw):
    """Run in a thread; return a function that waits for the result."""
    out = []
    t = threading.Thread(target=lambda: out.append(fn(*args, **kw)))
    t.start()

    def result():
        t.join()
        return out[0]
    return result


def text_of(answer):
    """Return the text of a streamed chat completion, which is complete."""
    assert answer.body.endswith(b"data: [DONE]\n\n"), answer.body[-300:]
    return "".join(json.loads(d)["choices"][0]["delta"].get("content", "") for _, d in answer.events() if d != "[DONE]" and json.loads(d)["choices"])


@pytest.mark.threads
@pytest.mark.parametrize("kind", DIALECTS)
def test_another_prefill_node_takes_over(world, kind):
    """kill -9 of the engine that computes the prompt: another one computes it, and the decode engine still takes it over."""
    w = world(kind)
    for name in "pq":
        w.start(name, "prefill", *SLOW)
    w.start("d", "decode")
    w.ready()
    answer = later(w.c.chat, words(150, 1), max_tokens=3)
    first = until(lambda: next((n for n in "pq" if busy(w, n)), None), "an engine computes the prompt")
    w.c.nodes[first].engine.kill()
    got = answer()
    assert got.status == 200, got.body
    if kind == "mooncake" and w.stats("d")["recomputed"] > 0:
        return  # the decode engine sees its partner die, and computes the prompt before the router has given it another one
    assert w.stats("d")["taken"] == 1 and w.stats("d")["recomputed"] == 0, w.stats("d")
    failed = w.c.router_process.events("gateway.prefill_failed")
    assert [e["node"] for e in failed] == [first], failed


@pytest.mark.parametrize("kind", ALONE)
def test_without_a_prefill_node_one_node_computes_everything(world, kind):
    w = world(kind)
    w.start("p", "prefill", *SLOW)
    w.start("d", "decode")
    w.ready()
    answer = later(w.c.chat, words(150, 1), max_tokens=3)
    until(lambda: busy(w, "p"), "the engine computes the prompt")
    w.c.nodes["p"].engine.kill()
    got = answer()
    assert got.status == 200 and got.json()["usage"]["completion_tokens"] == 3, got.body
    assert w.stats("d")["recomputed"] >= 1
    assert w.c.chat(words(150, 2), max_tokens=3).status == 200


@pytest.mark.parametrize("kind", DIALECTS)
def test_a_stopped_prefill_engine_is_given_up(world, kind):
    w = world(kind)
    for name in "pq":
        w.start(name, "prefill", *SLOW, stall_timeout="400ms")
    w.start("d", "decode")
    w.ready()
    answer = later(w.c.chat, words(150, 1), max_tokens=3)
    first = until(lambda: next((n for n in "pq" if busy(w, n)), None), "an engine computes the prompt")
    w.c.nodes[first].engine.signal(signal.SIGSTOP)
    got = answer()
    w.c.nodes[first].engine.signal(signal.SIGCONT)
    assert got.status == 200, got.body
    assert w.stats("d")["recomputed"] == 0, w.stats("d")


@pytest.mark.parametrize("kind", DIALECTS)
def test_a_cut_answer_goes_on_at_another_decode_node(world, kind):
    """kill -9 of the decode engine in the middle of its answer."""
    w = world(kind)
    w.start("p", "prefill")
    for name in "de":
        w.start(name, "decode", *PACED)
    w.ready()
    text = words(150, 1)
    answer = later(w.c.chat, text, max_tokens=60, stream=True, ignore_eos=True, headers={"X-Cgn-Resume": "1"})
    first = until(lambda: next((n for n in "de" if busy(w, n)), None), "an engine answers")
    until(lambda: w.engine_metric(first, "vllm:generation_tokens_total") > 5, "some tokens were given")
    w.c.nodes[first].engine.kill()
    got = answer()
    assert got.status == 200 and text_of(got) == text_of(w.c.chat(text, max_tokens=60, stream=True, ignore_eos=True))
    if kind != "sglang":
        assert w.lost("used") == 1


@pytest.mark.parametrize("kind", DIALECTS)
def test_a_prefill_leg_that_errs_behind_a_200_is_given_to_another_node(world, kind):
    w = world(kind)
    w.start("p", "prefill", "--time-scale", "0", "--fault", "error-200")
    w.start("q", "prefill")
    w.start("d", "decode")
    w.ready()

    def asked():
        a = w.c.chat(words(150, random.random()), max_tokens=3, ignore_eos=True)
        assert a.status == 200 and a.json()["usage"]["completion_tokens"] == 3, a.body
        return next(n for n in w.c.status()["nodes"] if n["id"] == "p")["breaker"]["text"] != "closed"
    until(asked, "the node that errs was asked, and is blamed")
    assert w.c.router_process.events("gateway.prefill_failed")[0]["node"] == "p"


@pytest.mark.parametrize("kind", DIALECTS)
def test_a_failed_decode_leg_is_repeated(world, kind):
    """The hand-off of a decode leg that failed is used up: the next node computes the prompt, or gets another hand-off."""
    fault = "error-200" if kind in ("sglang", "mooncake") else "http500"
    w = world(kind)
    w.start("p", "prefill")
    for name in "de":
        w.start(name, "decode", "--time-scale", "0", "--fault", f"{fault}@nth=1")
    w.start("f", "decode")
    w.ready()

    def one(_):
        a = w.c.chat(words(150, random.random()), max_tokens=3, ignore_eos=True)
        assert a.status == 200 and a.json()["usage"]["completion_tokens"] == 3, a.body

    def failed():
        with concurrent.futures.ThreadPoolExecutor(8) as pool:  # at once, so that each node gets some
            list(pool.map(one, range(8)))
        return w.lost("used")
    until(failed, "a node failed")


@pytest.mark.parametrize("kind", ["nixl", "p2p", "trtllm"])
def test_an_expired_lease_is_computed_again(world, kind):
    w = world(kind)
    w.start("p", "prefill", "--time-scale", "0", "--handoff-lease-ms", "1")
    w.start("d", "decode")
    w.ready()

    def late(i):
        a = w.c.chat(words(150, i), max_tokens=3)
        assert a.status == 200 and a.json()["usage"]["completion_tokens"] == 3, a.body
        return w.stats("d")["recomputed"]
    n = until(lambda: late(random.random()), "a prompt came too late")
    assert n >= 1 and w.stats("p")["expired"] >= 1
    assert w.engine_metric("p", "vllm:nixl_num_kv_expired_reqs_total") >= 1


@pytest.mark.parametrize("how", [("--build", "9.9"), ("--block-tokens", "32")])
def test_engines_that_differ_are_no_pair(world, how):
    w = world("nixl")
    w.start("p", "prefill")
    w.start("d", "decode", "--time-scale", "0", *how)
    w.c.wait_ready()
    until(lambda: ask(w.c.nodes["d"].admin_port, "GET", "/engines").json()["engines"][0]["handoff"]["known"], "known")
    until(lambda: sum(bool(e.get("handoff")) for n in w.c.status()["nodes"] for e in n["engines"]) == 2, lambda: w.c.status())

    def told():
        assert w.c.chat(words(150, random.random()), max_tokens=2).status == 200
        return w.c.router_process.events("gateway.handoff_mismatch")
    lines = until(told, "the log tells what differs")
    assert {lines[-1]["prefill_node"], lines[-1]["node"]} == {"p", "d"}
    assert ("build=0.1.0+sim and build=9.9" if how[0] == "--build" else "block=16 and block=32") in lines[-1]["differ"], lines
    assert w.stats("p")["given"] == 0 and w.stats("d")["failed"] == 0
    rows = json.loads(subprocess.run([BUILD / "src/ctl/cgn-ctl", "cluster", "nodes", "-o", "json", "--router", f"127.0.0.1:{w.c.grpc_port}"],
                                     capture_output=True, check=True).stdout)
    assert {r["node"]: r["handoff"].split()[0] for r in rows} == {"p": "nixl", "d": "nixl"} and len({r["handoff"] for r in rows}) == 2, rows


def test_engines_that_answer_only_in_pairs_say_so(world):
    """SGLang's engines of role prefill and decode: no pair, no answer, and the error says why."""
    w = world("sglang")
    w.start("p", "prefill")
    w.start("d", "decode")
    w.ready()
    other = w.c.ask("POST", "/v1/responses", {"model": "sim", "input": words(150, 1), "max_output_tokens": 3})
    assert other.status == 501 and "hand over no requests for /v1/responses" in other.json()["error"]["message"], other.body
    several = w.c.chat(words(150, 1), n=2, max_tokens=3)  # SGLang sends them all with the same room, and waits for ever
    assert several.status == 501 and "several answers (n)" in several.json()["error"]["message"], several.body
    vectors = w.c.ask("POST", "/v1/embeddings", {"model": "sim", "input": words(150, 1)})
    assert vectors.status == 501 and "hand over no requests for /v1/embeddings" in vectors.json()["error"]["message"], vectors.body
    prompts = w.c.ask("POST", "/v1/completions", {"model": "sim", "prompt": [words(150, 1), words(150, 2)], "max_tokens": 3})
    assert prompts.status == 200 and len(prompts.json()["choices"]) == 2, prompts.body
    assert w.c.chat("short", max_tokens=2).status == 200  # a prompt without a full block, too
    w.c.nodes["p"].engine.kill()
    refused = w.c.chat(words(150, 2), max_tokens=3)
    assert refused.status == 503 and "answer only in pairs" in refused.json()["error"]["message"], refused.body


@pytest.mark.threads
@pytest.mark.parametrize("kind", DIALECTS)
@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_a_client_that_leaves_ends_both_legs(world, kind, leg):
    w = world(kind)
    w.start("p", "prefill", *(SLOW if leg == "prefill" else ("--time-scale", "0")))
    w.start("d", "decode", *PACED)
    w.ready()
    c = http.client.HTTPConnection("127.0.0.1", w.c.http_port)
    c.request("POST", "/v1/chat/completions", json.dumps({"model": "sim", "max_tokens": 2000, "ignore_eos": True, "stream": True, "messages": [
        {"role": "user", "content": words(150, 1)}]}), {"Content-Type": "application/json"})
    until(lambda: busy(w, "p" if leg == "prefill" else "d"), "the leg runs")
    if leg == "decode":
        c.getresponse().read(10)
    c.close()
    idle(w, "p", "d")
    until(lambda: all(n["router_inflight"] == 0 for n in w.c.status()["nodes"]), lambda: w.c.status())


@pytest.mark.parametrize("kind", DIALECTS)
def test_options_of_the_answer_reach_the_decode_leg(world, kind):
    w = world(kind)
    w.start("p", "prefill")
    w.start("d", "decode")
    w.ready()
    text = words(150, 1)
    a = w.c.chat(text, max_tokens=4, logprobs=True, top_logprobs=2, ignore_eos=True).json()
    assert len(a["choices"][0]["logprobs"]["content"]) == 4 and w.stats("d")["recomputed"] == 0
    stop = w.c.chat(text, max_tokens=50, ignore_eos=True).json()["choices"][0]["message"]["content"].split()[5]
    a = w.c.chat(text, max_tokens=50, ignore_eos=True, stop=[stop]).json()
    assert a["choices"][0]["finish_reason"] == "stop" and a["choices"][0]["stop_reason"] == stop
    given, recomputed = w.stats("p")["given"], w.stats("d")["recomputed"]
    several = w.c.chat(words(150, 2), max_tokens=4, n=3, ignore_eos=True)
    # One consumer takes a prompt over, so that vLLM's and TensorRT-LLM's decode nodes compute a prompt of several answers. SGLang's cannot.
    assert several.status == (501 if kind == "sglang" else 200)
    assert several.status == 501 or len(several.json()["choices"]) == 3
    assert w.stats("p")["given"] == given
    assert (w.stats("d")["recomputed"] > recomputed) == (kind != "sglang")
    for key, value in {"kv_transfer_params": {"remote_host": "10.0.0.1"}, "bootstrap_host": "10.0.0.1", "disaggregated_params": {}}.items():
        refused = w.c.chat(text, **{key: value})
        assert refused.status == 400 and refused.json()["error"]["code"] == "reserved_key", refused.body
        assert refused.json()["error"]["param"] == key


@pytest.mark.parametrize("kind", DIALECTS)
def test_a_prompt_that_the_engines_call_bad_is_the_clients_fault(world, kind):
    """The client gets the engines' 400, not a 503 for the want of another prefill node."""
    w = world(kind)
    w.start("p", "prefill", "--time-scale", "0", "--max-model-len", "256")
    w.start("d", "decode", "--time-scale", "0", "--max-model-len", "256")
    w.ready()
    for stream in (False, True):
        a = w.c.chat(words(400, 1), max_tokens=4, stream=stream)
        assert a.status == 400 and "256" in a.json()["error"]["message"], a.body
    assert w.c.chat(words(100, 1), max_tokens=4).status == 200
    assert all(n["breaker"]["state"] == "closed" for n in w.c.status()["nodes"])


def usage_of(path, usage):
    """Return (tokens of the prompt, those of them that were found cached), as the API of |path| counts."""
    if path == "/v1/messages":  # Anthropic's input_tokens are the others
        read = usage.get("cache_read_input_tokens", 0)
        return usage["input_tokens"] + read + usage.get("cache_creation_input_tokens", 0), read
    if path == "/v1/responses":
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def usages_of(answer, stream):
    """Return each usage of the answer: of a document, or of the events that have one."""
    documents = [json.loads(d) for _, d in answer.events() if d != "[DONE]"] if stream else [answer.json()]
    inner = [part for d in documents for part in (d, d.get("message"), d.get("response")) if part]
    return [part["usage"] for part in inner if part.get("usage")]


OPTIONS = [{}, {"logprobs": True}, {"n": 3}, {"stop": ["zzz"]}]
ROUTES = [("/v1/chat/completions", "messages", options) for options in OPTIONS] + [
    ("/v1/completions", "prompt", options) for options in ({}, {"logprobs": 1}, {"n": 3}, {"stop": ["zzz"]})] + [
    ("/v1/responses", "input", {}), ("/v1/messages", "messages", {}), ("/v1/messages", "messages", {"stop_sequences": ["zzz"]})]


@pytest.mark.parametrize("kind", DIALECTS)
def test_usage_is_true_over_both_legs(world, kind):
    """Each answer counts the whole prompt, and as cached what the engine that computed it found cached: nothing at first, the first
    part when the prompt comes again and is longer. In streams each event that counts says the same."""
    w = world(kind)
    w.start("p", "prefill")
    w.start("d", "decode")
    w.ready()

    def computed():
        return w.engine_metric("p", "vllm:prompt_tokens_by_source_total", source="local_compute")
    for i, (path, key, options) in enumerate(ROUTES):
        if "n" in options:
            continue  # one node computes it, or none
        if kind in ("sglang", "trtllm") and path in ("/v1/responses", "/v1/messages"):
            continue
        for stream in (False, True):
            body = {"model": "sim", "stream": stream, **options}
            body["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 3
            if stream and "completions" in path:
                body["stream_options"] = {"include_usage": True}
            seen, text = [], words(100, 4 * i + stream)
            for text in (text, text + " " + words(100, 4 * i + stream + 2)):
                before, sent = computed(), w.lost("sent")
                a = w.c.ask("POST", path, {**body, key: [{"role": "user", "content": text}] if key == "messages" else text})
                assert a.status == 200 and w.lost("sent") == sent + 1, (path, options, a.body)
                counts = {usage_of(path, u) for u in usages_of(a, stream)}
                assert len(counts) == 1, (path, options, stream, a.body)
                seen += counts
                assert "n" in options or seen[-1][0] - seen[-1][1] == computed() - before, (path, options, stream, a.body)
            (first, nothing), (both, cached) = seen
            assert nothing < BLOCK and both == first + 100 and first - BLOCK <= cached <= first, (path, options, stream, seen)
    assert w.stats("d")["recomputed"] == 0


# ---- by cost: router.disagg without colocate_below_tokens ----

class Streams:
    """Streams that run on a node until the end of the with block."""

    def __init__(self, w, node, n):
        self.w, self.node, self.n, self.open = w, node, n, []

    def __enter__(self):
        for i in range(self.n):
            c = http.client.HTTPConnection("127.0.0.1", self.w.c.http_port, timeout=60)
            body = {"model": "sim", "messages": [{"role": "user", "content": f"stream {i}"}], "max_tokens": 4000, "ignore_eos": True, "stream": True}
            c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json", "X-Cgn-Node": self.node})
            r = c.getresponse()
            assert r.status == 200 and r.read(10)
            self.open.append(c)
        return self

    def __exit__(self, *_):
        for c in self.open:
            c.close()


def split_of(w, answer):
    """Return the costs of the decision for this answer."""
    told = ask(w.c.admin_port, "GET", "/explain/" + answer.headers["x-request-id"]).json()["requests"][0]
    return told["tries"][0]["split"], told


def test_a_prompt_moves_when_it_would_stall_streams(world):
    w = world("nixl", 0)
    w.start("p", "prefill", "--decode-ms", "20")
    w.start("d", "decode", "--decode-ms", "20")
    w.ready()
    alone = w.c.chat(words(1000, 1), max_tokens=2)
    split, _ = split_of(w, alone)
    assert alone.headers["x-cgn-node"] == "d" and (split["chosen"], split["by"]) == ("whole", "cost"), split
    assert w.stats("p")["given"] == 0
    with Streams(w, "d", 8):
        a = w.c.chat(words(1000, 2), max_tokens=10, ignore_eos=True)
        split, told = split_of(w, a)
        assert (split["chosen"], split["by"]) == ("pair", "cost") and split["pair"]["cost_ms"] < split["whole"]["cost_ms"], split
        assert (split["pair"]["prefill"], split["pair"]["decode"]) == ("p", "d") and split["moved_tokens"] >= 1000, split
        assert [t["leg"] for t in told["tries"]] == ["prefill", "answer"] and a.headers["x-cgn-node"] == "d"
        short = w.c.chat("a short one", max_tokens=2)
        assert split_of(w, short)[0]["chosen"] == "whole"
        # The next turn is computed where the conversation is, because little of it is new: both nodes hold it, and the speeds that were
        # measured decide between them.
        again = w.c.chat(words(1000, 2) + " and more", max_tokens=2)
        assert split_of(w, again)[0]["chosen"] in ("whole", "continues") and again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 900
    assert w.stats("p")["given"] == w.stats("d")["taken"] == 1 and w.prefilled() == 1
    assert sum(w.c.metric("cgn_disagg_total", outcome=o) for o in ("colocated", "continued")) == 3


def test_a_prefill_node_answers_where_decode_nodes_are_full(world):
    w = world("nixl", 0, **{"router.admission": {"max_concurrent_per_replica": 3}})
    w.start("p", "prefill", "--decode-ms", "20")
    w.start("d", "decode", "--decode-ms", "20")
    w.ready()
    with Streams(w, "d", 3):
        a = w.c.chat(words(1000, 1), max_tokens=2)
        split, _ = split_of(w, a)
        assert a.status == 200 and a.headers["x-cgn-node"] == "p", a.headers
        assert split["chosen"] == "continues" and split["whole"]["cost_ms"] is split["pair"]["cost_ms"] is None, split
    assert w.c.metric("cgn_disagg_total", outcome="continued") == 1
    until(lambda: all(n["router_inflight"] == 0 for n in w.c.status()["nodes"]), "the streams have ended")
    assert w.c.chat(words(1000, 2), max_tokens=50, ignore_eos=True).headers["x-cgn-node"] == "d"


def test_a_prefill_node_answers_at_once_before_a_deadline(world):
    """A request that would wait for a decode node does not, although it has a deadline: the prefill node has room."""
    w = world("nixl", 0, **{"router.admission": {"max_concurrent_per_replica": 3}})
    w.start("p", "prefill", "--decode-ms", "20")
    w.start("d", "decode", "--decode-ms", "20")
    w.ready()
    with Streams(w, "d", 3):
        a = w.c.chat(words(100, 1), max_tokens=2, headers={"X-Cgn-Deadline-Ms": "5000"})
        assert a.status == 200 and a.headers["x-cgn-node"] == "p", a.body


@pytest.mark.threads
def test_waiting_requests_get_the_room_of_prefill_nodes(world):
    """All nodes are full, a request waits, and the first place that gets free is at a prefill node."""
    w = world("nixl", 0, **{"router.admission": {"max_concurrent_per_replica": 3}})
    w.start("p", "prefill", "--decode-ms", "20")
    w.start("d", "decode", "--decode-ms", "20")
    w.ready()
    with Streams(w, "d", 3):
        with Streams(w, "p", 3):
            waiting = [later(w.c.chat, words(100, i), max_tokens=2) for i in range(2)]
            until(lambda: w.c.metric("cgn_queue_depth") == 2, lambda: w.c.scrape())
        for answer in waiting:
            a = answer()
            assert a.status == 200 and a.headers["x-cgn-node"] == "p", a.body
    assert w.c.metric("cgn_disagg_total", outcome="continued") == 2


def test_a_deadline_that_only_a_pair_meets_is_kept(world):
    """The decode node computes prompts slowly; the router has seen that the prefill node does not."""
    w = world("nixl", 0)
    w.start("p", "prefill", "--decode-ms", "20")
    w.start("d", "decode", "--prefill-tokens-per-s", "400", "--decode-ms", "20")
    w.ready()
    assert w.c.chat(words(300, 1), max_tokens=10, ignore_eos=True, stream=True, headers={"X-Cgn-Node": "d"}).status == 200
    deadline = {"X-Cgn-Deadline-Ms": "1200"}
    refused = w.c.chat(words(1000, 2), max_tokens=10, ignore_eos=True, headers=deadline)
    assert refused.status == 503 and refused.json()["error"]["code"] == "slo_unmeetable", refused.body
    with Streams(w, "d", 8):
        until(lambda: w.c.chat(words(1000, random.random()), max_tokens=10, ignore_eos=True).status == 200 and w.prefilled() >= 2, "the prefill node's speed is known")
    until(lambda: all(n["router_inflight"] == 0 for n in w.c.status()["nodes"]), "the streams have ended")
    a = w.c.chat(words(1000, 3), max_tokens=10, ignore_eos=True, headers=deadline)
    assert a.status == 200 and split_of(w, a)[0]["chosen"] == "pair", a.body


def test_bodies_of_legs_stay_within_the_bound(world):
    """A body whose two further copies do not fit into router.max_inflight_body is computed by one node."""
    w = world("nixl", 64, **{"router": {"max_body": "1MiB", "max_inflight_body": "2MiB"}})
    w.start("p", "prefill")
    w.start("d", "decode")
    w.ready()
    long = w.c.chat(words(150, 1), max_tokens=2, user="x" * 900000)
    assert long.status == 200 and w.lost("no_memory") == 1 and w.stats("p")["given"] == 0, w.c.scrape()
    assert w.c.chat(words(150, 2), max_tokens=2).status == 200 and w.stats("p")["given"] == 1
