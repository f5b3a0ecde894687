# SPDX-License-Identifier: Apache-2.0
"""Two real vLLMs that hand prompts over by NIXL (UCX over TCP): one computes the prompt, the other one answers."""
import http.client
import json
import random

import pytest

from engines import BLOCK, MODEL, until, words


@pytest.fixture
def split(world, pair, made):
    """A prefill node, a decode node, and a router that splits every prompt of 64 tokens or more."""
    p, d = pair
    roles = [{"agent": {"role": role}, "engine": {"handoff": "nixl", "handoff_port": e.side, "stall_timeout": "120s"}} for role, e in (("prefill", p), ("decode", d))]
    world.begin(pair, made[1], router={"router.disagg": {"enabled": True, "colocate_below_tokens": 64}, "router.retry": {"attempts": 4}, "router": {"stall_timeout": "120s"}}, agents=roles)  # engines of a busy machine are slow, not dead
    until(lambda: sum(bool(e.get("handoff")) and "block=" in e["handoff"]["terms"] for n in world.status()["nodes"] for e in n["engines"]) == 2,
          lambda: world.status())
    return world


def body_of(text, **more):
    return {"model": MODEL, "temperature": 0, "max_tokens": 12, "return_token_ids": True, "messages": [{"role": "user", "content": text}], **more}


def counts(p, d):
    return {"given_up": d.metric("vllm:nixl_num_failed_transfers_total"), "expired": p.metric("vllm:nixl_num_kv_expired_reqs_total"),
            "bytes": d.metric("vllm:nixl_bytes_transferred_sum"), "hits": d.metric("vllm:external_prefix_cache_hits_total"),
            "computed": d.metric("vllm:prompt_tokens_by_source_total", source="local_compute"),
            "prompt": p.metric("vllm:prompt_tokens_by_source_total", source="local_compute")}


def test_twenty_prompts_are_handed_over(split, pair):
    """Plain and streamed, both APIs: the same tokens as one engine alone, each prompt's blocks moved, none computed again."""
    p, d = pair
    rng = random.Random(random.SystemRandom().random())
    before, asked, answers = counts(p, d), [], []
    for i in range(20):
        text = f"{rng.random()} " + words(60 + 10 * i, rng)
        path, body = ("/v1/completions", {"model": MODEL, "temperature": 0, "max_tokens": 12, "prompt": text, "return_token_ids": True}) if i % 4 == 3 else \
            ("/v1/chat/completions", body_of(text))
        a = split.post(path, {**body, **({"stream": True, "stream_options": {"include_usage": True}} if i % 4 == 1 else {})})
        assert a.status == 200 and a.headers["x-cgn-node"] == d.name, a.body
        assert b'"kv_transfer_params":{' not in a.body
        asked.append((path, body))
        answers.append(ids(a))
    after = counts(p, d)
    moved = {k: after[k] - before[k] for k in after}
    assert split.metric("cgn_disagg_total", outcome="prefilled") == 20
    assert moved["given_up"] == moved["expired"] == 0, moved
    assert moved["bytes"] > 0 and moved["hits"] > 20 * 60, moved
    # The last token of a prompt is always computed by the engine that answers.
    assert moved["computed"] <= 20 * BLOCK, moved
    assert moved["prompt"] >= moved["hits"], moved
    for (path, body), got in zip(asked, answers):
        assert ids(p.ask(path, body)) == got


def ids(answer):
    """Return the token ids of an answer, plain or streamed."""
    if answer.body.startswith(b"data:"):
        parts = [json.loads(t) for _, t in answer.events() if t.startswith("{")]
        return [i for part in parts for c in part["choices"] for i in c.get("token_ids") or []]
    return answer.json()["choices"][0]["token_ids"]


def test_a_client_that_leaves_ends_both_legs(split, pair):
    p, d = pair
    c = http.client.HTTPConnection("127.0.0.1", split.http_port)
    text = f"{random.SystemRandom().random()} " + words(200, random.Random(1))
    c.request("POST", "/v1/chat/completions", json.dumps(body_of(text, stream=True, max_tokens=6000, ignore_eos=True)), {"Content-Type": "application/json"})
    c.getresponse().read(100)
    until(lambda: d.metric("vllm:num_requests_running") == 1, "the decode engine works")
    c.sock.close() if c.sock else None
    c.close()
    until(lambda: d.metric("vllm:num_requests_running") + p.metric("vllm:num_requests_running") == 0, "both have stopped")


def test_a_dead_prefill_engine_costs_no_answer(split, pair, request):
    """kill -9 of the prefill engine: the decode engine computes the prompts. It is the last test of this pair."""
    if request.config.getoption("--engines"):
        pytest.skip("the engines are not this test's own")
    p, d = pair
    p.kill()
    for i in range(4):
        a = split.post("/v1/chat/completions", body_of(f"{random.SystemRandom().random()} " + words(100 + i, random.Random(i))))
        assert a.status == 200 and a.headers["x-cgn-node"] == d.name, a.body
    p.start().wait()
    until(lambda: split.states().get(p.name) == "ready", lambda: split.status())
    until(lambda: (split.post("/v1/chat/completions", body_of(f"{random.SystemRandom().random()} " + words(120, random.Random(3)))).status == 200
                   and split.metric("cgn_disagg_total", outcome="prefilled") > 0), "prompts are handed over again")
