# SPDX-License-Identifier: Apache-2.0
"""cgn-sim's KV events: a subscriber's index equals the simulator's blocks, block for block, in every format;
and faults on demand."""
import concurrent.futures
import http.client
import json
import random
import socket

import pytest

from cluster import free_port
from kvwire import Index, Peer, Subscriber, events_of, replay, root_digest, next_digest, short, unpack
from test_sim import Sim, run, start  # noqa: F401 (a fixture)

FORMATS = ["vllm", "vllm-array", "vllm-map", "sglang", "sglang-old", "sglang-map"]
TIERS = ["GPU", "CPU", "STORAGE"]
SMALL = ["--time-scale", "0", "--kv-blocks", "96"]
EVENTS = ["--kv-events", "tcp://127.0.0.1:0", "--kv-events-replay", "tcp://127.0.0.1:0"]


def ranks(sim):
    answer = sim.ask("/sim/blocks")
    assert answer.status == 200, answer.body
    return answer.json()["ranks"]


def held(rank, tiers=TIERS):
    return {t: sorted(rank[t]) for t in tiers}


def load(sim, seed, n=60, salts=("", "pepper"), models=("sim",), groups=12):
    """Send prompts that share beginnings, to a cache that can't hold them all."""
    rng = random.Random(seed)
    for _ in range(n):
        group = rng.randrange(groups)
        words = [f"word{group}x{i}" for i in range(rng.randrange(20, 120))]
        body = {"model": models[group % len(models)], "prompt": " ".join(words), "max_tokens": rng.randrange(1, 40), "ignore_eos": True}
        if salts[group % len(salts)]:
            body["cache_salt"] = salts[group % len(salts)]
        assert sim.ask("/v1/completions", body).status == 200


def rebuilt(rank, **how):
    index, i = Index(**how), -1
    for i, (_, number, payload) in enumerate(replay(rank["replay"])):
        assert number == i
        index.apply(payload, rank["rank"])
    assert rank["next_batch"] == i + 1
    return index


def agree(sim, tiers=TIERS, **how):
    for rank in ranks(sim):
        index = rebuilt(rank, **how)
        assert {t: index.tier(t) for t in tiers} == held(rank, tiers)


# ---- the index and the blocks ----


def test_digests_are_those_of_the_prompt(start):
    sim = start(*SMALL, "--kv-digests")
    tokens = list(range(1000, 1032))
    assert sim.ask("/v1/completions", {"prompt": tokens, "max_tokens": 1, "cache_salt": "s"}).status == 200
    first = next_digest(root_digest("sim", "s"), tuple(tokens[:16]))
    second = next_digest(first, tuple(tokens[16:]))
    (rank,) = ranks(sim)
    assert held(rank) == {"GPU": sorted([short(first), short(second)]), "CPU": [], "STORAGE": []}
    assert "events" not in rank


def test_no_digests_unless_wanted(start):
    answer = start(*SMALL).ask("/sim/blocks")
    assert answer.status == 404 and b"--kv-digests" in answer.body


@pytest.mark.parametrize("form", FORMATS)
def test_events_rebuild_the_cache(start, form):
    sim = start(*SMALL, *EVENTS, "--kv-events-format", form)
    load(sim, 1, salts=("",) if form == "sglang-old" else ("", "pepper"))
    (rank,) = ranks(sim)
    assert len(rank["GPU"]) > 90 and rank["next_batch"] > 60
    agree(sim)
    assert sim.ask("/reset_prefix_cache", method="POST").json() == {"success": True}
    assert ranks(sim)[0]["GPU"] == []
    load(sim, 2, n=5, salts=("",))
    agree(sim)


@pytest.mark.parametrize("form", ["vllm", "vllm-array", "sglang", "sglang-map"])
@pytest.mark.parametrize("described", [[], ["--kv-events-describe"]])
def test_tiers(start, form, described):
    sim = start(*SMALL, *EVENTS, *described, "--kv-events-format", form, "--cpu-blocks", "64", "--disk-blocks", "128")
    load(sim, 3, n=120)
    (rank,) = ranks(sim)
    assert len(rank["CPU"]) == 64 and len(rank["STORAGE"]) > 50
    kv = sim.state()["kv"]
    assert kv["cpu_restored"] > 0 and kv["disk_restored"] > 0
    agree(sim)
    below = [e for _, _, p in replay(rank["replay"]) for e in events_of(p)[0]
             if e["type"] == "BlockStored" and e["medium"] not in ("GPU",)]
    assert all(bool(e["token_ids"]) == bool(described or form.startswith("sglang")) for e in below)
    assert {e["medium"] for e in below} == ({"CPU", "STORAGE"} if form.startswith("vllm") else {"CPU_PINNED", "DISK"})


def test_restored_blocks_count_as_cached(start):
    sim = start(*SMALL, "--kv-digests", "--cpu-blocks", "4096")

    def cached(i):
        usage = sim.ask("/v1/completions", {"prompt": [2000 + i] * 800, "max_tokens": 1}).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert [cached(i) for i in range(8)] == [0] * 8
    assert [cached(i) for i in range(8)] == [784] * 8
    assert sim.state()["kv"]["cpu_restored"] > 100


@pytest.mark.threads
def test_ranks_have_endpoints_of_their_own(start):
    sim = start(*SMALL, *EVENTS, "--workers", "3")
    load(sim, 4, n=90)
    assert sim.ask("/sim/fill", {"blocks": 10, "seed": 9}).json() == {"filled": [10, 10, 10]}
    each = ranks(sim)
    assert [r["rank"] for r in each] == [0, 1, 2]
    assert len({r["events"] for r in each} | {r["replay"] for r in each}) == 6
    assert all(len(r["GPU"]) > 9 for r in each)
    agree(sim)


def test_rank_ports_follow_each_other(start):
    port = free_port(2)
    sim = start(*SMALL, "--workers", "2", "--kv-events", f"tcp://127.0.0.1:{port}")
    assert [r["events"] for r in ranks(sim)] == [f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}"]
    assert [r["replay"] for r in ranks(sim)] == ["", ""]


def test_ipc(start, tmp_path):
    sim = start(*SMALL, "--workers", "2", "--kv-events", f"ipc://{tmp_path}/e", "--kv-events-replay", f"ipc://{tmp_path}/r")
    assert [r["events"] for r in ranks(sim)] == [f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/e_dp1"]
    load(sim, 5, n=20)
    agree(sim)


@pytest.mark.parametrize("hashes", ["int", "bytes"])
def test_groups_are_told_apart(start, hashes):
    sim = start(*SMALL, *EVENTS, "--kv-groups", "3", "--kv-events-hash", hashes)
    load(sim, 6)
    agree(sim, groups=3)
    stored = [e for _, _, p in replay(ranks(sim)[0]["replay"]) for e in events_of(p)[0] if e["type"] == "BlockStored"]
    assert {(e["group_idx"], e["kv_cache_spec_kind"], e.get("kv_cache_spec_sliding_window")) for e in stored} == {
        (0, "full_attention", None), (1, "sliding_window", 1024), (2, "sliding_window", 1024)}
    assert {type(h) for e in stored for h in e["block_hashes"]} == {bytes if hashes == "bytes" else int}


def test_a_second_model_is_a_lora(start):
    sim = start(*SMALL, *EVENTS, "--model", "base", "--model", "tuned")
    load(sim, 7, models=("base", "tuned"))
    agree(sim, models=("base", "tuned"))
    tokens = list(range(500, 516))
    assert sim.ask("/v1/completions", {"model": "tuned", "prompt": tokens, "max_tokens": 1}).status == 200
    assert short(next_digest(root_digest("tuned"), tuple(tokens))) in ranks(sim)[0]["GPU"]


def test_pictures_are_extra_keys(start):
    sim = start(*SMALL, *EVENTS, "--block-tokens", "32")
    content = [{"type": "text", "text": "what is this " * 10}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    assert sim.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "cache_salt": "s"}).status == 200
    agree(sim)
    keys = [k for _, _, p in replay(ranks(sim)[0]["replay"]) for e in events_of(p)[0] for k in e["extra_keys"]]
    assert keys[0] == ["s"] or keys[0][-1] == "s"
    seen = [k[0] for k in keys if k and isinstance(k[0], list)]
    assert len(seen) in (8, 9) and len({name for name, _ in seen}) == 1  # 256 tokens of 32 a block, aligned or not
    assert all(b[1] == a[1] - 32 for a, b in zip(seen, seen[1:]))


# ---- the wire ----


def test_live_messages(start):
    sim = start(*SMALL, *EVENTS, "--kv-events-topic", "kv@10.0.0.1:8000@sim")
    (rank,) = ranks(sim)
    sub, other = Subscriber(rank["events"], "kv@"), Subscriber(rank["events"], "nothing")
    first = begin(sim, sub)
    index = Index()
    load(sim, 8)
    assert sim.ask("/reset_prefix_cache", method="POST").json() == {"success": True}
    (rank,) = ranks(sim)
    seen = []
    while not seen or seen[-1] < rank["next_batch"] - 1:
        topic, number, payload = sub.batch()
        assert topic == "kv@10.0.0.1:8000@sim"
        seen.append(number)
        index.apply(payload, 0)
    assert seen == list(range(first, rank["next_batch"]))
    assert index.tier("GPU") == [] and len(seen) > 60
    assert other.poll(0.1) is None


def begin(sim, sub):
    """Wait for the subscription: reset the cache until a batch comes, read the batches, and return the number
    of the next one."""
    number = None

    def poke():
        nonlocal number
        sim.ask("/reset_prefix_cache", method="POST")
        number = sub.poll(0.05)
        return number is not None

    Sim.wait_for(poke)
    following = ranks(sim)[0]["next_batch"]
    while number != following - 1:
        number = sub.batch()[1]
    return following


@pytest.mark.parametrize("form, topic", [("vllm", "t"), ("vllm-map", "t"), ("vllm-array", None), ("sglang", None), ("sglang-map", None)])
def test_replay_says_the_topic_or_not(start, form, topic):
    sim = start(*SMALL, *EVENTS, "--kv-events-format", form, "--kv-events-topic", "t")
    load(sim, 9, n=10)
    (rank,) = ranks(sim)
    whole = replay(rank["replay"])
    assert {t for t, _, _ in whole} == {topic}
    assert replay(rank["replay"], 3) == whole[3:]
    assert replay(rank["replay"], 10**6) == []


def test_a_bad_replay_request_is_passed_over(start):
    sim = start(*SMALL, *EVENTS)
    load(sim, 10, n=3)
    (rank,) = ranks(sim)
    peer = Peer(rank["replay"], "DEALER")
    for parts in ([b"x"], [b"", b"short"], [b"a", b"b", b"c"]):
        for i, part in enumerate(parts):
            peer.frame(int(i < len(parts) - 1), part)
    assert len(replay(rank["replay"])) == rank["next_batch"]


def test_the_buffer_is_bounded(start):
    sim = start(*SMALL, *EVENTS, "--kv-events-buffer", "7")
    load(sim, 11, n=30)
    (rank,) = ranks(sim)
    assert [n for _, n, _ in replay(rank["replay"])] == list(range(rank["next_batch"] - 7, rank["next_batch"]))


SHAPES = {
    "vllm": (list, 3, dict), "vllm-array": (list, 3, list), "vllm-map": (dict, 3, dict),
    "sglang": (list, 3, list), "sglang-old": (list, 2, list), "sglang-map": (list, 3, dict),
}


@pytest.mark.parametrize("form", FORMATS)
def test_shapes(start, form):
    sim = start(*SMALL, *EVENTS, "--kv-events-format", form)
    assert sim.ask("/v1/completions", {"prompt": list(range(300, 332)), "max_tokens": 1, "cache_salt": "s"}).status == 200
    batch = unpack(replay(ranks(sim)[0]["replay"])[0][2])
    outer, length, inner = SHAPES[form]
    events = batch["events"] if outer is dict else batch[1]
    assert type(batch) is outer and len(batch) == length and {type(e) for e in events} == {inner}
    assert len(events) == (1 if form.startswith("vllm") else 2)  # SGLang: page by page
    e = events[0]
    if form == "vllm":
        assert list(e) == ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
                           "extra_keys", "group_idx", "kv_cache_spec_kind"]
        assert e["extra_keys"] == [["s"], None] and e["token_ids"] == list(range(300, 332)) and e["medium"] == "GPU"
    if form == "vllm-array":
        assert len(e) == 12 and e[2] is None and e[8] == [["s"], None] and e[9:] == [0, "full_attention", None]
    if form == "sglang":
        assert len(e) == 8 and e[6] == "GPU" and e[7] == {"cache_salt": "s"}
    if form == "sglang-old":
        assert len(e) == 6
    if form == "sglang-map":
        assert e["cache_salt"] == "s" and "lora_name" not in e


@pytest.mark.parametrize("flags, code, says", [
    (["--kv-events", "nonsense"], 2, "tcp://host:port"), (["--kv-events-replay", "tcp://127.0.0.1:1"], 2, "needs --kv-events"),
    (["--kv-events", "tcp://127.0.0.1:0", "--kv-events-format", "x"], 2, "sglang-map")])
def test_flag_errors(flags, code, says):
    r = run("--listen", "127.0.0.1:0", *flags)
    assert r.returncode == code and says in r.stderr


def test_a_port_in_use_exits_7():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        r = run("--listen", "127.0.0.1:0", "--kv-events", f"tcp://127.0.0.1:{s.getsockname()[1]}")
    assert r.returncode == 7


# ---- faults ----


@pytest.fixture
def watched(start):
    sim = start(*SMALL, *EVENTS)
    (rank,) = ranks(sim)
    sub = Subscriber(rank["events"])
    following = begin(sim, sub)

    def ask(i):
        assert sim.ask("/v1/completions", {"prompt": [3000 + i] * 33, "max_tokens": 1}).status == 200

    return sim, sub, ask, following


def numbers(sub, n):
    return [sub.batch()[1] for _ in range(n)]


def test_lost_batches_are_in_the_replay(watched):
    sim, sub, ask, b = watched
    sim.faults("kv-lose@nth=2")
    for i in range(3):
        ask(i)
    assert numbers(sub, 2) == [b, b + 2]
    assert [n for _, n, _ in replay(ranks(sim)[0]["replay"], b)] == [b, b + 1, b + 2]
    agree(sim)


def test_dropped_batches_are_gone(watched):
    sim, sub, ask, b = watched
    sim.faults("kv-drop@nth=2")
    for i in range(3):
        ask(i)
    assert numbers(sub, 2) == [b, b + 2]
    assert [n for _, n, _ in replay(ranks(sim)[0]["replay"], b)] == [b, b + 2]


def test_batches_twice_and_swapped(watched):
    sim, sub, ask, b = watched
    sim.faults("kv-twice@nth=1", "kv-swap@nth=2")
    for i in range(4):
        ask(i)
    assert numbers(sub, 5) == [b, b, b + 2, b + 1, b + 3]
    agree(sim)


def test_garbage_is_no_msgpack(watched):
    sim, sub, ask, b = watched
    sim.faults("kv-garbage@nth=1")
    ask(0)
    ask(1)
    _, number, payload = sub.batch()
    assert number == b
    with pytest.raises(KeyError):
        unpack(payload)
    assert sub.batch()[1] == b + 1
    agree(sim)


def test_unknown_events_come_first(watched):
    sim, sub, ask, b = watched
    sim.faults("kv-alien")
    ask(0)
    events, _ = events_of(sub.batch()[2])
    assert [e["type"] for e in events] == ["BlockTeleported", "BlockStored"]
    agree(sim)


def test_silence_uses_no_numbers(watched):
    sim, sub, ask, b = watched
    sim.faults("kv-silent")
    ask(0)
    assert len(ranks(sim)[0]["GPU"]) == 2
    sim.faults()
    ask(1)
    assert numbers(sub, 1) == [b]
    assert len(rebuilt(ranks(sim)[0]).tier("GPU")) == 2
    assert len(ranks(sim)[0]["GPU"]) == 4


def test_restart_begins_again(watched):
    sim, sub, ask, b = watched
    ask(0)
    sim.faults("kv-restart@nth=1")
    ask(1)
    assert ranks(sim)[0]["GPU"] == [] and ranks(sim)[0]["next_batch"] == 0
    assert replay(ranks(sim)[0]["replay"]) == []
    ask(2)
    assert numbers(sub, 3) == [b, b + 1, 0]
    agree(sim)
    assert len(ranks(sim)[0]["GPU"]) == 2


def test_a_deaf_router(watched):
    sim, sub, ask, b = watched
    ask(0)
    sim.faults("kv-deaf@nth=1")
    (rank,) = ranks(sim)
    peer = Peer(rank["replay"], "DEALER")
    peer.frame(1, b"")
    peer.frame(0, bytes(8))
    assert not peer.hears(0.2)
    assert len(replay(rank["replay"])) == rank["next_batch"]  # the second is answered


@pytest.mark.threads
def test_crowds_preemptions_and_aborts_stay_true(start):
    """Requests that extend each other, clients that leave during an answer, restarts and resets during
    requests."""
    sim = start("--time-scale", "0.01", "--kv-blocks", "64", *EVENTS, "--workers", "2", "--cpu-blocks", "48", "--disk-blocks", "64",
                "--max-batch", "6", "--fault", "kv-restart@0.01", "--fault", "cut-after=20@0.1", "--fault", "kv-lose@0.3")

    def client(i):
        rng = random.Random(i)
        for k in range(25):
            body = {"prompt": [4000 + rng.randrange(6)] * rng.randrange(20, 200), "max_tokens": rng.randrange(1, 150), "ignore_eos": True,
                    "stream": True}
            try:
                if rng.random() < 0.2:
                    conn = sim.connect()
                    conn.request("POST", "/v1/completions", json.dumps(body))
                    conn.getresponse().read(200)
                    conn.close()
                else:
                    sim.ask("/v1/completions", body)
            except http.client.IncompleteRead:
                pass  # the fault that cuts the connection
            if rng.random() < 0.05:
                sim.ask("/reset_prefix_cache?reset_running_requests=true", method="POST")

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))
    Sim.wait_for(lambda: sim.state()["running"] + sim.state()["waiting"] == 0)
    state = sim.state()
    assert state["preemptions"] > 0 and state["aborted"] > 0 and state["kv"]["cpu_restored"] > 0
    agree(sim)


@pytest.mark.threads
def test_everything_at_once_stays_true(start):
    sim = start(*SMALL, *EVENTS, "--workers", "2", "--cpu-blocks", "64", "--disk-blocks", "64", "--kv-groups", "2", "--max-batch", "4",
                "--fault", "kv-lose@0.2", "--fault", "kv-twice@0.2", "--fault", "kv-swap@0.2", "--fault", "kv-garbage@0.1",
                "--fault", "kv-restart@0.02")
    load(sim, 12, n=150)
    agree(sim, groups=2)


# ---- fill ----


def test_fill(start):
    sim = start("--time-scale", "0", "--kv-blocks", "5000", *EVENTS)
    assert sim.ask("/sim/fill", {"blocks": 4000, "seed": 1}).json() == {"filled": [4000]}
    (rank,) = ranks(sim)
    assert len(rank["GPU"]) == 4000 and rank["next_batch"] == 4
    agree(sim)
    again = start("--time-scale", "0", "--kv-blocks", "5000", "--kv-digests")
    assert again.ask("/sim/fill", {"blocks": 4000, "seed": 1, "chain": 64}).json() == {"filled": [4000]}
    assert held(ranks(again)[0]) == held(rank)
    for body in ({}, {"blocks": 0}, {"blocks": 5001}, {"blocks": 1, "chain": 0}, {"blocks": "x"}):
        assert again.ask("/sim/fill", body).status == 400
    assert again.ask("/sim/fill", {"blocks": 5000, "seed": 2}).json() == {"filled": [5000]}
    assert len(ranks(again)[0]["GPU"]) == 5000
