# SPDX-License-Identifier: Apache-2.0
"""Two real SGLangs on the CPU, one of them for prefill, one for decode, that hand prompts over by Mooncake's transfer engine over TCP: both legs at
once, which meet by host, port and room at the prefill engine's bootstrap server."""
import http.client
import json
import random

import pytest

from engines import MODEL, Missing, Sglang, prepare_mooncake, prepare_sglang, until, words


@pytest.fixture(scope="module")
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    try:
        made = prepare_sglang(folder)
        more = prepare_mooncake(made[0] / "bin/python")
    except Missing as why:
        pytest.skip(f"no pair of SGLangs: {why}")
    engines = [Sglang(folder, name, made=made, more=more) for name in "pd"]
    side = engines[0].side
    for e, role in zip(engines, ("prefill", "decode")):
        e.argv += ["--disaggregation-mode", role, "--disaggregation-bootstrap-port", str(side), "--disaggregation-transfer-backend", "mooncake_tcp"]
    given = request.config.getoption("--sglang-engines")
    if given:
        for e, ports in zip(engines, given.split(",")):
            e.at(*map(int, ports.split(":")))
        yield engines
        return
    try:
        for e in engines:
            e.start()
        yield [e.wait() for e in engines]
    finally:
        for e in engines:
            e.kill()


@pytest.fixture
def split(world, pair):
    p, d = pair
    roles = [{"agent": {"role": role}, "engine": {"handoff": "sglang", "handoff_port": p.side}} for role in ("prefill", "decode")]
    world.begin(pair, p.model, router={"router.disagg": {"enabled": True}, "router.retry": {"attempts": 4}}, agents=roles)
    until(lambda: sum(bool(e.get("handoff")) for n in world.status()["nodes"] for e in n["engines"]) == 2, lambda: world.status())
    return world


def body_of(text, **more):
    return {"model": MODEL, "temperature": 0, "max_tokens": 12, "messages": [{"role": "user", "content": text}], **more}


def said(answer):
    """Return (text, finish reason, tokens of the prompt, tokens of the answer)."""
    assert answer.status == 200, answer.body
    if not answer.body.startswith(b"data:"):
        doc = answer.json()
        c = doc["choices"][0]
        return c["message"]["content"] if "message" in c else c["text"], c["finish_reason"], doc["usage"]["prompt_tokens"], doc["usage"]["completion_tokens"]
    parts = [json.loads(t) for _, t in answer.events() if t.startswith("{")]
    choices = [c for part in parts for c in part["choices"]]
    text = "".join((c["delta"].get("content") or "") if "delta" in c else c["text"] for c in choices)
    usage = [part["usage"] for part in parts if part.get("usage")][-1]
    return text, [c["finish_reason"] for c in choices if c["finish_reason"]][-1], usage["prompt_tokens"], usage["completion_tokens"]


def test_prompts_are_handed_over(split, pair):
    """Plain and streamed, both APIs, lists of prompts: streams say what documents say, and each prompt is handed over."""
    p, d = pair
    rng = random.Random(random.SystemRandom().random())
    for i in range(12):
        text = f"{rng.random()} " + words(20 + 15 * i, rng)
        path, body = ("/v1/completions", {"model": MODEL, "temperature": 0, "max_tokens": 12, "prompt": text}) if i % 4 == 3 else ("/v1/chat/completions", body_of(text))
        plain = split.post(path, body)
        streamed = split.post(path, {**body, "stream": True, "stream_options": {"include_usage": True}})
        assert plain.headers["x-cgn-node"] == d.name and plain.headers.get("content-type") == "application/json"
        assert said(plain) == said(streamed) and said(plain)[3] == 12
        assert b"bootstrap_" not in plain.body + streamed.body
    assert split.metric("cgn_disagg_total", outcome="prefilled") == 24
    several = split.post("/v1/chat/completions", body_of(text, n=2))  # the pair would wait for ever
    assert several.status == 501 and "several answers" in several.json()["error"]["message"], several.body
    prompts = split.post("/v1/completions", {"model": MODEL, "temperature": 0, "max_tokens": 4, "prompt": ["one and", "two and"]})
    assert prompts.status == 200 and len(prompts.json()["choices"]) == 2, prompts.body


def test_none_of_the_pair_answers_alone(split, pair):
    """Neither engine of the pair answers a request without a room, so the answers are those of two legs."""
    p, d = pair
    for e in pair:
        assert e.ask("/v1/chat/completions", body_of("hello")).status == 400
    first, again = (split.post("/v1/chat/completions", body_of("the same prompt " * 30)) for _ in range(2))
    assert said(first)[0] == said(again)[0]
    until(lambda: again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "the prefill engine's cache is used, and the client is told")


def test_a_client_that_leaves_ends_both_legs(split, pair):
    p, d = pair
    c = http.client.HTTPConnection("127.0.0.1", split.http_port)
    c.request("POST", "/v1/chat/completions", json.dumps(body_of(words(100, random.Random(1)), stream=True, max_tokens=6000, ignore_eos=True)),
              {"Content-Type": "application/json"})
    c.getresponse().read(100)
    until(lambda: d.metric("sglang:num_running_reqs") >= 1, "the decode engine works")
    c.sock.close() if c.sock else None
    c.close()
    until(lambda: d.metric("sglang:num_running_reqs") + p.metric("sglang:num_running_reqs") == 0, "both have stopped")
