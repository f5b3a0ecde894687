# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl bench replay, bench workload and bench chat --trace: the output is deterministic, well formed and
right, and a replay ranks policies as real programs do."""
import datetime
import json
import os
import pathlib
import xml.dom.minidom

import pytest

from cluster import free_port
from test_ctl import fine, refused

POLICIES = "kv,weighted,predicted,round_robin,random,least_loaded,power_of_two,session"


def line(at, length, out, ids, **more):
    return json.dumps({"timestamp": at, "input_length": length, "output_length": out, "hash_ids": ids, **more}) + "\n"


def replay(*args):
    return json.loads(fine("bench", "replay", *args, "-o", "json"))


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Make long prompts of a chat service, as in the published conversation trace."""
    path = tmp_path_factory.mktemp("traces") / "service.jsonl"
    fine("bench", "workload", "service", "--requests", "5000", "--rate", "3.4", "--out", path)
    return path


def one_cache(trace, blocks=None):
    """Return the share of blocks that one cache would have found, by the simplest algorithm."""
    held, found, asked = {}, 0, 0
    for text in trace.read_text().splitlines():
        for i in json.loads(text)["hash_ids"]:
            asked += 1
            found += i in held
            held.pop(i, None)
            held[i] = True
            if blocks and len(held) > blocks:
                del held[next(iter(held))]
    return found / asked


def test_json_has_what_was_promised(service):
    r = replay(service, "--policy", POLICIES, "--limit", "600", "--caches", "100,2000")
    assert (r["bench"], r["trace"], r["requests"], r["nodes"], r["blocks"], r["block_tokens"]) == ("replay", "service.jsonl", 600, 8, 2000, 512)
    assert [x["policy"] for x in r["results"]] == POLICIES.split(",")
    for x in r["results"]:
        assert 0 < x["hit_ratio"] <= x["ideal_hit_ratio"] == r["ideal_hit_ratio"] < 1
        assert x["hit_ratio"] == pytest.approx(x["cached_blocks"] / x["prompt_blocks"])
        assert x["done"] == x["requests"] == 600 and x["refused"] == 0
        for times in ("ttft_ms", "itl_ms"):
            assert 0 < x[times]["p50"] <= x[times]["p90"] <= x[times]["p99"] <= x[times]["max"]
        assert x["ttft_ms"]["count"] == 600
        assert 1 <= x["imbalance"] <= 8 and 1 <= x["imbalance_requests"] <= 8
    assert [c["blocks"] for c in r["one_cache"]] == [100, 2000]


def test_caches_are_what_plain_ones_find(service):
    r = replay(service, "--policy", "round_robin", "--caches", "1000,10000")
    assert r["ideal_hit_ratio"] == pytest.approx(one_cache(service))
    assert [c["hit_ratio"] for c in r["one_cache"]] == pytest.approx([one_cache(service, 1000), one_cache(service, 10000)])


def promised(trace, times):
    """Unlimited caches: nearly all blocks that any cache could find; 8 x 2000 blocks: |times| as many as
    round robin; neither at the cost of balance."""
    unlimited = {x["policy"]: x for x in replay(trace, "--blocks", "0", "--policy", "kv,round_robin")["results"]}
    small = {x["policy"]: x for x in replay(trace, "--blocks", "2000", "--policy", "kv,round_robin")["results"]}
    assert unlimited["kv"]["evicted_blocks"] == 0 and small["kv"]["evicted_blocks"] > 0
    assert unlimited["kv"]["hit_ratio"] >= 0.97 * unlimited["kv"]["ideal_hit_ratio"]
    assert small["kv"]["hit_ratio"] >= times * small["round_robin"]["hit_ratio"]
    for kv, turn in ((unlimited["kv"], unlimited["round_robin"]), (small["kv"], small["round_robin"])):
        assert kv["ttft_ms"]["p50"] < turn["ttft_ms"]["p50"] and kv["ttft_ms"]["p99"] < turn["ttft_ms"]["p99"]
        for of in ("mean", "p50", "p99"):
            assert kv["itl_ms"][of] <= 1.03 * turn["itl_ms"][of]
        assert kv["imbalance"] < 1.25


@pytest.mark.slow
def test_what_was_promised_of_kv_holds(service):
    promised(service, 2.5)


@pytest.mark.skipif("CGN_TRACE" not in os.environ, reason="CGN_TRACE names Mooncake's conversation_trace.jsonl, which is not in the repository")
def test_the_published_trace():
    r = replay(os.environ["CGN_TRACE"], "--policy", "kv", "--caches", "1000,5000,10000,30000")
    assert r["requests"] == 12031 and round(r["ideal_hit_ratio"], 4) == 0.3664
    assert [100 * c["hit_ratio"] for c in r["one_cache"]] == pytest.approx([4.5, 11.0, 21.1, 32.6], abs=0.06)
    promised(os.environ["CGN_TRACE"], 3)


def test_the_same_seed_prints_the_same_bytes(service, tmp_path):
    args = ("bench", "replay", service, "--limit", "1500", "--policy", POLICIES, "--seed", "7", "-o", "json")
    plots = tmp_path / "a.svg", tmp_path / "b.svg"
    assert fine(*args, "--plot", plots[0]) == fine(*args, "--plot", plots[1])
    assert plots[0].read_bytes() == plots[1].read_bytes()
    assert fine("bench", "workload", "rag", "--seed", "3", "--requests", "300") == fine("bench", "workload", "rag", "--seed", "3", "--requests", "300")
    assert fine("bench", "workload", "rag", "--seed", "3", "--requests", "300") != fine("bench", "workload", "rag", "--seed", "4", "--requests", "300")


@pytest.mark.parametrize("kind", ["chat", "agents", "rag", "shared-prompts", "service", "documents"])
def test_a_generated_workload_is_what_its_file_is(kind, tmp_path):
    shape = ("--requests", "800", "--rate", "10", "--seed", "5")
    fine("bench", "workload", kind, *shape, "--out", tmp_path / kind)
    made, read = replay("--generate", kind, *shape), replay(tmp_path / kind, "--seed", "5")
    assert made == read and made["trace"] == kind and made["requests"] == 800


def test_the_plot_is_a_picture(service, tmp_path):
    odd = tmp_path / "a&<b.jsonl"
    odd.write_text("".join(service.open().readlines()[:200]))
    fine("bench", "replay", odd, "--policy", "kv,round_robin", "--plot", tmp_path / "p.svg")
    svg = xml.dom.minidom.parse(str(tmp_path / "p.svg")).documentElement
    assert svg.tagName == "svg" and svg.getAttribute("viewBox")
    words = [t.firstChild.data for t in svg.getElementsByTagName("text")]
    assert any("a&<b.jsonl" in w for w in words) and words.count("round_robin") == 1 and "time to first token" in words
    assert len(svg.getElementsByTagName("polyline")) == 2
    for p in svg.getElementsByTagName("polyline"):
        points = [tuple(map(float, xy.split(","))) for xy in p.getAttribute("points").split()]
        assert points == sorted(points, key=lambda xy: (xy[0], -xy[1])) and len(points) > 100
    assert "cannot write" in refused(8, "bench", "replay", odd, "--plot", tmp_path / "no/p.svg")


def test_the_table_names_the_bounds(service):
    table = fine("bench", "replay", service, "--limit", "100", "--policy", "kv,session", "--blocks", "0").splitlines()
    assert "unlimited" in table[0] and "ideal" in table[0] and table[1].startswith("POLICY") and [t.split()[0] for t in table[2:]] == ["kv", "session"]


def test_two_pools_are_compared_with_as_many_nodes_of_both_roles():
    """Under long prompts one prefill and one decode node beat two nodes of both roles in the time per token."""
    args = ("--generate", "documents", "--requests", "600", "--rate", "1.5", "--blocks", "0", "--prefill", "1", "--decode", "1", "--policy", "kv")
    r = replay(*args)
    pools, both = r["results"]
    assert r["nodes"] == 2 and r["network"]["bytes_per_s"] == 10 * 2**30
    assert (pools["prefill_nodes"], pools["decode_nodes"], both["prefill_nodes"]) == (1, 1, 0)
    assert pools["done"] == both["done"] == 600
    assert pools["request_itl_ms"]["p99"] < 0.6 * both["request_itl_ms"]["p99"]
    assert 0.5 < pools["split_ratio"] < 1 and both["split_ratio"] == 0 and both["kv_bytes_moved"] == 0
    assert pools["kv_bytes_moved"] == pools["kv_tokens_moved"] * 131072 > 4000 * 131072 * pools["split"]
    slow = replay(*args, "--bandwidth", "0.1")["results"][0]
    assert slow["split"] < pools["split"] / 2, "a slow network is noticed"
    forced = replay(*args, "--set", "router.disagg.colocate_below_tokens=1")["results"][0]
    assert forced["split"] == 600
    table = fine("bench", "replay", *args).splitlines()
    assert table[1].startswith("NODES") and table[2].startswith("1P + 1D") and table[3].startswith("2 both")
    assert "give both" in refused(2, "bench", "replay", "--generate", "documents", "--prefill", "1")


def test_bad_traces_and_flags(tmp_path):
    trace = tmp_path / "t.jsonl"
    for text, says in (("", "holds no request"), ("\n\n", "holds no request"), ("{", "line 1 is not JSON"), (line(0, 600, 1, [1]) + "[]\n", "line 2 is not a JSON object"),
                       (line(5, 9, 1, [1]) + line(4, 9, 1, [1]), 'line 2: "timestamp" 4 is before'), (line(0, 0, 1, [1]), '"input_length" is 0'),
                       (line(0, 9, 1, []), '"hash_ids" is empty'), (line(0, 9, 1, ["x"]), '"hash_ids" holds "x"'),
                       (line(0, 600, 1, [1, 2]) + line(1, 9000, 1, [1, 2]), 'line 2: 2 "hash_ids" do not fit')):
        trace.write_text(text)
        said = refused(2, "bench", "replay", trace)
        assert str(trace) in said and says in said, said
    trace.write_text(line(0, 9, 1, [1]))
    assert "they are kv, weighted, predicted" in refused(2, "bench", "replay", trace, "--policy", "kv,best")
    assert '"" is not a policy' in refused(2, "bench", "replay", trace, "--policy", "kv,,random")
    assert "--nodes takes" in refused(2, "bench", "replay", trace, "--nodes", "0")
    assert "--speed takes a number from" in refused(2, "bench", "replay", trace, "--speed", "0")
    assert "--caches takes" in refused(2, "bench", "replay", trace, "--caches", "1,x")
    assert "either a trace file or --generate" in refused(2, "bench", "replay")
    assert "either a trace file or --generate" in refused(2, "bench", "replay", trace, "--generate", "chat")
    assert "there are chat, agents" in refused(2, "bench", "replay", "--generate", "chats")
    assert "there are chat, agents" in refused(2, "bench", "workload", "talk")
    assert "--rate takes" in refused(2, "bench", "workload", "chat", "--rate", "0")
    assert "router.score_weights.kv" in refused(2, "bench", "replay", trace, "--set", "router.score_weight.kv=1")
    assert "none" in refused(1, "bench", "replay", tmp_path / "none")


def test_weights_change_what_is_chosen(service):
    args = (service, "--limit", "1500", "--policy", "weighted")
    cached = replay(*args)["results"][0]
    blind = replay(*args, *(x for w in ("kv=0", "load=1", "power=0", "capacity=0") for x in ("--set", f"router.score_weights.{w}")))["results"][0]
    assert blind["hit_ratio"] < 0.7 * cached["hit_ratio"]


def test_engines_are_as_they_are_said_to_be(service):
    args = (service, "--limit", "300", "--policy", "round_robin")
    r = replay(*args)
    assert r["engine"] == {"prefill_tokens_per_s": 20000, "decode_ms": 12, "batch_effect": 0.01, "max_batch": 256, "step_tokens": 2048,
                           "kv_read_ns": 0, "attention_ns": 0, "overlap": False} and r["events"]
    slow = replay(*args, "--decode-ms", "30", "--batch-effect", "0", "--prefill-tokens-per-s", "5000")
    assert slow["engine"]["decode_ms"] == 30 and slow["results"][0]["itl_ms"]["p50"] == pytest.approx(30)
    assert slow["results"][0]["ttft_ms"]["p50"] > 3 * r["results"][0]["ttft_ms"]["p50"]
    assert "less than --max-batch" in refused(2, "bench", "replay", service, "--step-tokens", "10")


def test_a_profile_is_an_engine_whose_flags_can_be_changed(service):
    args = (service, "--limit", "300", "--policy", "round_robin", "--profile", "h100-llama-8b")
    r, other = replay(*args), replay(*args, "--kv-read-ns", "0", "--decode-ms", "30")
    assert r["engine"]["overlap"] and r["engine"]["kv_read_ns"] > 10 and r["engine"]["attention_ns"] > 0.1
    assert other["engine"] == r["engine"] | {"kv_read_ns": 0, "decode_ms": 30}
    assert other["results"][0]["itl_ms"]["p50"] > r["results"][0]["itl_ms"]["p50"] > r["engine"]["decode_ms"]
    assert "cgn-sim --help lists them" in refused(2, "bench", "replay", service, "--profile", "h100")


def access_line(at_ms, prompt, answer, ttft, total, **more):
    at = datetime.datetime.fromtimestamp(1.8e9 + (at_ms + total) / 1000, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:23] + "Z"
    return json.dumps({"time": at, "event": "gateway.request", "node": "n", "model": "m", "outcome": "ok", "status": 200, "tries": 1, "disagg": "", "queued_ms": 0,
                       "stream": True, "ttft_ms": ttft, "total_ms": total, "prompt_tokens": prompt, "completion_tokens": answer, "cached_tokens": 0} | more) + "\n"


def test_a_fit_finds_the_engine_of_an_access_log(tmp_path):
    """One request after the other: 50 us for a prompt token, 10 ms a step and 100 ns more for each token of context, 2 ms of delay."""
    log, text, at = tmp_path / "access.log", "not JSON\n", 0
    for i in range(120):
        prompt, answer = 100 + i * 97 % 1900, 10 + i * 31 % 200
        ttft = 2 + 0.05 * prompt
        total = ttft + (answer - 1) * (10 + 1e-4 * (prompt + answer / 2))
        text += access_line(at, prompt, answer, ttft, total)
        text += access_line(at, prompt, answer, ttft, total, model="other") + access_line(at, 10, 10, 1, 2, tries=2)
        at += total + 50
    log.write_text(text)
    r = json.loads(fine("bench", "fit", log, "--model", "m", "-o", "json"))
    terms = {t["term"]: t for t in r["results"]}
    assert (r["requests"], r["passed_over"], r["nodes"]) == (120, 120, 1)
    assert terms["prompt token"]["ns"] == pytest.approx(50e3, rel=0.02) and terms["step"]["ns"] == pytest.approx(10e6, rel=0.02)
    assert terms["context"]["ns"] == pytest.approx(100, rel=0.1) and terms["delay"]["ns"] == pytest.approx(2e6, rel=0.2)
    assert not terms["sequence"]["known"] and not terms["attention"]["known"] and not r["overlap"]
    # The model has no number for what is unknown.
    assert all((t["ns"], t["value"], t["error"]) == (None, None, None) for t in terms.values() if not t["known"])
    assert r["model_ttft_p50_ms"] == pytest.approx(r["ttft_p50_ms"], rel=0.02)
    table = fine("bench", "fit", log, "--node", "n")
    assert table.startswith("240 requests of 1 nodes; 120 lines passed over\nTERM")
    flags, unknown = fine("bench", "fit", log, "--model", "m").splitlines()[-2:]
    assert "--prefill-tokens-per-s" in flags and "--attention-ns" not in flags
    assert unknown.startswith("unknown:") and "attention (--attention-ns)" in unknown
    # The terms of this log predict those of another one.
    model = tmp_path / "model.json"
    model.write_text(json.dumps(r))
    other = json.loads(fine("bench", "fit", log, "--model", "m", "--terms", model, "-o", "json"))
    assert other["requests"] == 120 and all(other[k] == pytest.approx(r[k], rel=0.01) for k in r if k.endswith("_ms"))
    model.write_text('{"results": [{"term": "step", "ns": null}]}')
    assert "does not tell the time of a prompt token" in refused(2, "bench", "fit", log, "--terms", model)
    model.write_text("[]")
    assert "is not what bench fit -o json prints" in refused(2, "bench", "fit", log, "--terms", model)
    assert "has 0 requests that a fit can use, of 0" in refused(2, "bench", "fit", log, "--node", "other")
    assert "less than --max-batch" in refused(2, "bench", "fit", log, "--step-tokens", "10")


def test_a_router_that_is_not_told_goes_by_what_it_sent(service):
    args = (service, "--limit", "2000", "--blocks", "0", "--policy", "kv")
    told, guessed = replay(*args)["results"][0], replay(*args, "--no-events")["results"][0]
    assert guessed["hit_ratio"] == pytest.approx(told["hit_ratio"], rel=0.05)


def test_bench_chat_plays_a_trace(cluster, tmp_path):
    """Equal ids are equal words: the engine finds as many of them in its cache as the ids predict, on the
    nodes that the answers name."""
    cluster.router({"router": {"policy": "round_robin"}})
    for name in ("a", "b"):
        cluster.node(name, "--time-scale", "0", "--kv-blocks", "4096")
    cluster.wait_ready()
    cluster_states = cluster.states()
    assert set(cluster_states) == {"a", "b"}
    trace = tmp_path / "t.jsonl"
    # The same prompt eight times, a second apart: each node computes it once.
    trace.write_text("".join(line(1000 * i, 1000, 3, [1, 2], session_id=i) for i in range(8)))
    url = f"http://127.0.0.1:{cluster.http_port}"
    r = json.loads(fine("bench", "chat", "--url", url, "--trace", trace, "--speed", "20", "--ignore-eos", "-o", "json"))
    assert r["answered"] == r["sent"] == r["with_usage"] == 8 and r["failed"] == 0 and r["speed"] == 20
    assert {n["node"]: (n["requests"], n["share"], n["answer_tokens"]) for n in r["nodes"]} == {"a": (4, 0.5, 12), "b": (4, 0.5, 12)}
    assert r["imbalance"] == r["imbalance_requests"] == 1
    assert 8 * 1000 <= r["prompt_tokens"] <= 8 * 1020  # the template's own tokens
    assert 6 * 980 < r["cached_tokens"] < 6 * 1020 and r["hit_ratio"] == pytest.approx(r["cached_tokens"] / r["prompt_tokens"])
    assert r["itl_ms"]["count"] == 8 * 2 and r["request_itl_ms"]["count"] == 8
    text = fine("bench", "chat", "--url", url, "--trace", trace, "--speed", "100", "--limit", "2", "--no-stream")
    assert "found in cache" in text and "a  " in text and "2 requests" in text


def test_bench_chat_refuses_bad_traces(tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.write_text(line(0, 9, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]))
    url = ("--url", f"http://127.0.0.1:{free_port()}")
    assert f"{trace} line 1" in refused(2, "bench", "chat", *url, "--trace", trace)
    assert "--speed takes" in refused(2, "bench", "chat", *url, "--trace", trace, "--speed", "-1")


def live(cluster_of, folder, trace, policy):
    with cluster_of(folder) as c:
        c.router({"router": {"policy": policy}})
        for name in "abcd":
            events, again = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
            c.node(name, "--time-scale", "0.1", "--kv-blocks", "16384", "--kv-events", events, "--kv-events-replay", again,
                   sections={"engine": {"kv_events": events, "kv_events_replay": again}})
        c.wait_ready()
        return json.loads(fine("bench", "chat", "--url", f"http://127.0.0.1:{c.http_port}", "--trace", trace, "--speed", "10", "--ignore-eos", "-o", "json"))


@pytest.mark.slow
def test_a_replay_ranks_as_real_programs_do(tmp_path):
    from cluster import Cluster
    trace = tmp_path / "agents.jsonl"
    fine("bench", "workload", "agents", "--requests", "150", "--rate", "3", "--out", trace)
    replayed = {x["policy"]: x for x in replay(trace, "--nodes", "4", "--blocks", "4096", "--policy", "kv,round_robin")["results"]}
    sent = {}
    for policy in ("kv", "round_robin"):
        folder = pathlib.Path(tmp_path / policy)
        folder.mkdir()
        sent[policy] = live(Cluster, folder, trace, policy)
        assert sent[policy]["answered"] == sent[policy]["sent"] == 150
    assert replayed["kv"]["hit_ratio"] > replayed["round_robin"]["hit_ratio"] + 0.1
    assert sent["kv"]["hit_ratio"] > sent["round_robin"]["hit_ratio"] + 0.1
    for policy in ("kv", "round_robin"):
        assert sent[policy]["hit_ratio"] == pytest.approx(replayed[policy]["hit_ratio"], abs=0.1)


# ---- bench evict ----


def found(trace, blocks, first_in):
    """Return the hits of prompts in one cache, FIFO or LRU, each inserted from its last block on, by the
    simplest algorithm."""
    held, hits, asked = {}, 0, 0
    for text in trace.read_text().splitlines():
        ids = json.loads(text)["hash_ids"]
        n = next((i for i, b in enumerate(ids) if b not in held), len(ids))
        hits, asked = hits + n, asked + len(ids)
        for b in [*reversed(ids[:n]), *reversed(ids[n:])]:
            if b in held and first_in:
                continue
            if held.pop(b, None) is None and len(held) == blocks:
                del held[next(iter(held))]
            held[b] = True
    return hits / asked


def test_what_a_cache_would_have_found(service):
    r = json.loads(fine("bench", "evict", service, "--limit", "1500", "--blocks", "300,2000,1000000", "-o", "json"))
    got = {(x["policy"], x["blocks"]): x["hit_ratio"] for x in r["results"]}
    assert (r["trace"], r["requests"], r["shards"], r["begin_first"]) == ("service.jsonl", 1500, 1, False)
    short = service.with_name("short.jsonl")
    short.write_text("".join(service.read_text().splitlines(keepends=True)[:1500]))
    for blocks in (300, 2000):
        assert got["lru", blocks] == pytest.approx(found(short, blocks, False))
        assert got["fifo", blocks] == pytest.approx(found(short, blocks, True))
        assert got["lru", blocks] < got["evict", blocks] < got["offline", blocks] < r["ideal_hit_ratio"] + 1e-9
    for policy in ("evict", "lru", "fifo", "s3-fifo", "offline"):
        assert got[policy, 1000000] == pytest.approx(r["ideal_hit_ratio"]) == pytest.approx(one_cache(short))


def test_bench_evict_for_people_and_its_refusals(service):
    table = fine("bench", "evict", "--generate", "rag", "--requests", "500", "--blocks", "500", "--shards", "4", "--policy", "evict,offline").splitlines()
    assert table[0].startswith("500 requests") and table[1].split() == ["FOUND", "500", "BLOCKS", "NS", "A", "BLOCK"]
    assert [t.split()[0] for t in table[2:]] == ["evict", "offline"]
    text = fine("bench", "evict", "--help")
    assert "the optimum, computed with knowledge of all later requests" in text and "round_robin" not in text and "agents" in text
    assert "give either a trace file or --generate" in refused(2, "bench", "evict")
    assert "there are evict, lru, fifo, s3-fifo, offline" in refused(2, "bench", "evict", service, "--policy", "lru,mru")
    assert "each once" in refused(2, "bench", "evict", service, "--policy", "lru,lru")
    assert "--blocks" in refused(2, "bench", "evict", service, "--blocks", "3", "--shards", "4")


def test_queue_policies_are_replayed(tmp_path):
    """One node that runs one request at a time: long prompts come first, then a short one of another tenant, due in 5 s."""
    long = [line(i, 20480, 2, list(range(40 * i, 40 * i + 40)), tenant="batch") for i in range(12)]
    trace = tmp_path / "crowd.jsonl"

    def refused_of(queue, **more):
        trace.write_text("".join(long) + line(20, 512, 2, [9999], deadline_ms=5000, **more))
        args = "--nodes", "1", "--policy", "kv", "--queue", queue, "--set", "router.admission.max_concurrent_per_replica=1"
        x = replay(trace, *args)["results"][0]
        assert x["done"] + x["refused"] == 13 and x["refused"] == x.get("refused_unmeetable", 0)
        return x["refused"]

    assert refused_of("fcfs", tenant="batch") == 1
    assert refused_of("wspt", tenant="batch") == 0
    assert refused_of("deadline", tenant="batch") == 0
    assert refused_of("fcfs", tenant="people") == 0
    assert refused_of("fcfs", tenant="batch", priority=9) == 0
    assert "not fcfs, wspt or deadline" in refused(2, "bench", "replay", trace, "--queue", "lifo")


# ---- bench energy ----

def energy(*args):
    return json.loads(fine("bench", "energy", *args, "-o", "json"))


def test_energy_compares_levers_with_round_robin(service):
    """The same trace gives the same joules; those of the requests and of idle nodes are all of them; each lever spares
    some, and the first token comes no later than with round robin."""
    args = (service, "--limit", "3000", "--blocks", "0")
    r = energy(*args)
    assert r == energy(*args)
    by = {x["policy"]: x for x in r["results"]}
    assert list(by) == ["round_robin", "kv", "kv + energy", "kv + energy + park"]
    for x in by.values():
        assert x["done"] == 3000 and x["refused"] == 0
        assert x["requests_joules"] + x["idle_joules"] == pytest.approx(x["joules"], rel=0.05)
        assert x["tokens_per_joule"] == pytest.approx(x["answer_tokens"] / x["joules"])
        assert x["curve_error"] < 0.1
    joules = [x["joules"] for x in by.values()]
    assert joules == sorted(joules, reverse=True)
    assert by["kv + energy + park"]["times_round_robin"] > 1.2
    assert by["kv + energy"]["ttft_ms"]["p99"] <= by["round_robin"]["ttft_ms"]["p99"]
    assert 0 < by["kv + energy + park"]["parked"]


def test_energy_keeps_a_budget(service):
    r = energy(service, "--limit", "800", "--budget", "2500", "--gpu", "h200")
    assert r["gpu"] == "h200"
    by = {x["policy"]: x for x in r["results"]}
    assert by["kv"]["most_watts"] > 2500 >= by["kv + energy"]["most_watts"]
    assert by["kv + energy"]["done"] == 800 and by["kv + energy"]["waited"] > 0


def test_energy_says_what_it_does_not_take(service):
    assert "--gpu is v100, not h100 or h200" in refused(2, "bench", "energy", service, "--gpu", "v100")
    assert "give either a trace file or --generate KIND" in refused(2, "bench", "energy")


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    """Make conversations, which regions keep apart, at a rate that the nodes of one region cannot follow in its peak."""
    path = tmp_path_factory.mktemp("traces") / "talk.jsonl"
    fine("bench", "workload", "service", "--requests", "1500", "--rate", "12", "--out", path)
    return path


CLUSTERS = ("--clusters", "3", "--nodes", "2", "--wan-ms", "40,80,150", "--wan-loss", "1", "--day-swing", "0.8", "--blocks", "1500")


def modes(r):
    return {x["mode"]: x for x in r["results"]}


def test_clusters_share_their_load(talk):
    r = replay(talk, *CLUSTERS)
    assert (r["clusters"], r["nodes"], r["wan_ms"], r["wan_loss"]) == (3, 2, [40, 80, 150], 0.01)
    m = modes(r)
    local, fed, one = m["local only"], m["federation"], m["one cluster"]
    for x in (local, fed, one):
        assert x["requests"] == x["done"] == x["ttft_ms"]["count"] == 1500 and x["refused"] == x["broken"] == 0
    assert one["hits_of_one_cluster"] == one["ttft_p90_of_one_cluster"] == 1
    assert fed["ttft_p90_of_one_cluster"] == pytest.approx(fed["ttft_ms"]["p90"] / one["ttft_ms"]["p90"])
    assert fed["ttft_ms"]["p90"] < local["ttft_ms"]["p90"]
    assert fed["left"] == sum(fed["left_by"].values()) == sum(fed["left_by_cluster"]) > 0 and "left" not in local
    assert sum(fed["requests_by_cluster"]) == 1500 and min(fed["requests_by_cluster"]) > 100
    assert fed["summaries"] > 0 and fed["summary_bytes"] > 0 and fed["summaries_diverged"] == 0
    seconds = fed["summary_bytes"] / fed["summary_bytes_per_s"]
    of_a_way = fed["summary_bytes_per_s"] * 8 / 1000 / 6
    assert fed["kbit_per_s_per_million_blocks"] == pytest.approx(of_a_way / fed["summary_blocks"] * 1e6) and seconds > 60
    assert 0 <= fed["mispredicted"] <= fed["predicted"] <= fed["left"]


def test_clusters_are_the_same_for_a_seed(talk):
    assert replay(talk, *CLUSTERS) == replay(talk, *CLUSTERS)
    assert replay(talk, *CLUSTERS) != replay(talk, *CLUSTERS, "--seed", "2")


def test_a_cut_loses_nothing(talk):
    r = replay(talk, *CLUSTERS, "--cut", "A-B@20s-50s", "--cut", "C-A@30s-60s", "--set", "router.resume=true", "--set", "router.federation.affinity=2")
    fed = modes(r)["federation"]
    assert fed["done"] == 1500 and fed["broken"] == 0 and fed["peers_lost"] >= 4
    assert [(c["from_cluster"], c["to_cluster"], c["begin_s"], c["end_s"]) for c in fed["cuts"]] == [(0, 1, 20, 50), (2, 0, 30, 60)]
    for c in fed["cuts"]:
        assert c["left_for_ms"] < 1000


def test_clusters_in_a_table(talk):
    out = fine("bench", "replay", talk, *CLUSTERS, "--cut", "A-B@20s-50s")
    assert "3 clusters of 2 nodes of 1500 blocks" in out and "cut A-B: requests left for" in out
    for mode in ("local only", "federation", "one cluster"):
        assert f"\n{mode}" in out


@pytest.mark.parametrize("flags, why", [
    (("--cut", "A-D@1s-2s"), "A to C"),
    (("--cut", "A-B@5s-2s"), "A-B@FROM-TO"),
    (("--cut", "A-B@5-x"), "A-B@FROM-TO"),
    (("--wan-loss", "60"), "--wan-loss"),
    (("--clusters", "17"), "--clusters"),
    (("--wan-ms", "a"), "--wan-ms"),
    (("--day-swing", "1"), "--day-swing"),
    (("--blocks", "0"), "1 block"),
    (("--nodes", "2000"), "4096"),
])
def test_clusters_refuse_bad_flags(talk, flags, why):
    given = [x for pair in zip(CLUSTERS[::2], CLUSTERS[1::2]) if pair[0] not in flags for x in pair]
    assert why in refused(2, "bench", "replay", talk, *given, *flags)
