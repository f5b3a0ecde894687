# SPDX-License-Identifier: Apache-2.0
"""Cascades: a small model is asked first, and its answer is held back until the log-probabilities of its first tokens are judged."""
import re
import subprocess

import pytest

from clients import Stream
from cluster import BUILD, ask, until

FAST = ("--time-scale", "0")
EASY, HARD = 0.05, 0.95  # with skill 0.5: practically always right, and wrong
CASCADE = {"enabled": True, "small_model": "small", "large_model": "large", "confidence_threshold": -0.3, "tokens": 8}


@pytest.fixture
def pair(cluster):
    """Start a router with a small and a large model."""
    def begin(small=(), large=(), cascade=None, **sections):
        cluster.MODEL = "large"
        sections.setdefault("router.cascade", {**CASCADE, **(cascade or {})})
        cluster.router(sections)
        cluster.node("s", *FAST, "--skill", "0.5", *small, model="small")
        cluster.node("l", *FAST, "--skill", "1", *large, model="large")
        cluster.wait_ready()
        return cluster
    return begin


def step(answer):
    return answer.headers.get("x-cgn-cascade-step", "")


def plain(body):
    """Return |body| without what is new in each answer."""
    return re.sub(rb'"(id|created)":("[^"]*"|\d+)', rb'"\1":0', body)


def last_request(cluster):
    return [e for e in cluster.router_process.events("gateway.request") if e["path"] != "/readyz"][-1]


def usage_rows(cluster):
    return {r["model"]: r for r in ask(cluster.admin_port, "GET", "/usage?by=model").json()["usage"]}


def outcome(cluster, step, name):
    return cluster.metric("cgn_cascade_total", step=step, outcome=name)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_sure_answers_pass_unchanged_and_unsure_ones_go_to_the_large_model(pair, stream, path):
    c = pair()
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}

    def post(difficulty, **fields):
        return c.ask("POST", path, {"model": "large", "stream": stream, "difficulty": difficulty, **prompt}, fields)
    easy, small = post(EASY), post(EASY, **{"X-Cgn-Cascade": "only-small"})
    assert easy.status == 200 and step(easy).startswith("1/2; outcome=released; tokens=8; confidence="), easy.headers
    assert step(small) == "1/2; outcome=only_small" and easy.headers["x-cgn-node"] == "s"
    assert plain(easy.body) == plain(small.body) and b'"token"' not in easy.body and b"large" in easy.body
    hard, large = post(HARD), post(HARD, **{"X-Cgn-Cascade": "off"})
    assert step(hard).startswith("2/2; outcome=escalated"), hard.headers
    assert step(large) == "2/2; outcome=off" and hard.headers["x-cgn-node"] == "l"
    assert plain(hard.body) == plain(large.body)
    assert plain(hard.body) != plain(post(HARD, **{"X-Cgn-Cascade": "only-small"}).body)
    assert outcome(c, 1, "released") == 1 and outcome(c, 1, "escalated") == 1
    assert c.metric("cgn_cascade_wasted_tokens_total", model="small", kind="prompt") > 0
    assert c.metric("cgn_cascade_wasted_tokens_total", model="small", kind="completion") >= 8


def test_a_wrong_start_costs_the_tokens_that_were_held_and_no_answer(pair):
    c = pair(small=("--token-interval-us", "20000"))  # 200 tokens would take 4 s
    a = c.chat("hi", stream=True, difficulty=HARD, max_tokens=200, ignore_eos=True)
    assert a.status == 200 and step(a).startswith("2/2"), a.headers
    assert 8 <= c.metric("cgn_cascade_wasted_tokens_total", kind="completion") < 100
    line = last_request(c)
    assert line["cascade"] == "escalated" and line["cascade_step"] == 2 and line["model"] == "large" and line["wasted_tokens"] > 8
    until(lambda: c.metric("cgn_inflight", node="s") == 0, "the small model's answer was cancelled")


def test_a_client_that_asks_for_logprobs_keeps_them(pair):
    c = pair()
    a = c.chat("hi", difficulty=EASY, logprobs=True, top_logprobs=3)
    tokens = a.json()["choices"][0]["logprobs"]["content"]
    assert step(a).startswith("1/2; outcome=released") and len(tokens[0]["top_logprobs"]) == 3
    b = c.chat("hi", difficulty=EASY, logprobs=True)
    assert step(b) == "2/2; outcome=passed; why=logprobs" and b.json()["choices"][0]["logprobs"]["content"]


@pytest.mark.parametrize("more, why", [
    ({"n": 2}, "several"), ({"response_format": {"type": "json_object"}}, "structured"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}, "structured")])
def test_what_the_gate_cannot_judge_goes_to_the_large_model(pair, more, why):
    c = pair()
    a = c.chat("hi", difficulty=EASY, **more)
    assert a.status == 200 and step(a) == f"2/2; outcome=passed; why={why}" and a.headers["x-cgn-node"] == "l"


def test_other_models_routes_and_values(pair):
    c = pair()
    assert step(c.chat("hi", model="small")) == ""
    assert step(c.ask("POST", "/v1/embeddings", {"model": "large", "input": "x"})) == "2/2; outcome=passed; why=route"
    bad = c.chat("hi", {"X-Cgn-Cascade": "maybe"})
    assert bad.status == 400 and "off" in bad.json()["error"]["message"] and bad.json()["error"]["param"] == "X-Cgn-Cascade"


def test_engines_that_fail_or_give_no_logprobs_lead_on(pair):
    c = pair(small=("--no-logprobs",))
    a = c.chat("hi", difficulty=EASY)
    assert a.status == 200 and step(a) == "2/2; outcome=escalated; why=no_logprobs" and a.headers["x-cgn-node"] == "l"
    c.nodes["s"].engine.kill()
    b = c.chat("hi", difficulty=EASY)
    assert b.status == 200 and b.headers["x-cgn-node"] == "l" and step(b).startswith(("2/2; outcome=failed", "2/2; outcome=skipped"))
    until(lambda: c.states()["s"] != "ready", "the node is not ready")
    until(lambda: step(c.chat("hi", difficulty=EASY)) == "2/2; outcome=skipped; why=no_node", "it is skipped")


def test_an_engine_that_refuses_leads_on(pair):
    c = pair(small=("--max-model-len", "16"))
    a = c.chat("word " * 40, difficulty=EASY)
    assert a.status == 200 and step(a) == "2/2; outcome=refused", a.headers


def test_where_answers_hardly_pass_the_large_model_is_asked_at_once(pair):
    c = pair(router={"worker_threads": 1})
    seen = [step(c.chat(f"hi {i}", difficulty=HARD)) for i in range(60)]
    assert all(s.startswith("2/2; outcome=escalated") for s in seen[:20]), seen
    assert seen[20:].count("2/2; outcome=skipped; why=pregate") > 20, seen


def test_a_chain_of_three(cluster):
    cluster.MODEL = "large"
    cluster.router({"router.cascade": {"enabled": True, "confidence_threshold": -0.3, "tokens": 8}, "models.large": {"cascade": ["small", "mid"]}})
    for name, skill in (("small", "0.3"), ("mid", "0.6"), ("large", "1")):
        cluster.node(name[0], *FAST, "--skill", skill, model=name)
    cluster.wait_ready()
    for difficulty, node in ((0.05, "s"), (0.45, "m"), (0.95, "l")):
        a = cluster.chat("hi", stream=True, difficulty=difficulty)
        assert a.headers["x-cgn-node"] == node and step(a)[0] == str("sml".index(node) + 1), a.headers
    b = cluster.chat("hi", {"X-Cgn-Explain": "1"}, difficulty=0.95)
    assert "l" in b.headers["x-cgn-explain"]


def test_both_models_are_paid_for(pair):
    prices = {"prices.small": {"input": 1e5, "output": 1e5}, "prices.large": {"input": 1e6, "output": 1e6}}
    c = pair(**prices)
    easy, hard = c.chat("hi", difficulty=EASY).json()["usage"], c.chat("hi", difficulty=HARD).json()["usage"]
    until(lambda: len(usage_rows(c)) == 2, "both are counted")
    used = usage_rows(c)
    assert used["large"]["input_tokens"] == hard["prompt_tokens"] and used["large"]["requests"] == 1
    assert used["small"]["input_tokens"] == easy["prompt_tokens"] + hard["prompt_tokens"] and used["small"]["requests"] == 1
    saved, wasted = (c.metric("cgn_cascade_money_total", kind=k) for k in ("saved", "wasted"))
    # whole units of money are counted, right on average
    assert abs(saved - 0.9 * easy["total_tokens"]) <= 1 and abs(wasted - used["small"]["money"] + 0.1 * easy["total_tokens"]) <= 1


def test_a_client_that_leaves_while_the_answer_is_held(pair):
    c = pair(small=("--token-interval-us", "100000"))
    s = Stream(c.http_port, model="large", difficulty=EASY)
    until(lambda: c.metric("cgn_inflight", node="s") == 1, "the small model is asked")
    s.close()
    until(lambda: c.metric("cgn_inflight", node="s") == 0, "its answer was cancelled")


def test_the_settings_are_checked(cluster):
    for sections, words in (({"router.cascade": {"enabled": True, "small_model": "a"}}, "no large_model"),
                            ({"models.a": {"cascade": ["b", "a"]}}, 'has "a" twice'),
                            ({"router.cascade": {"gate": "vibes"}}, "logprob")):
        path = cluster.config("bad", sections)
        done = subprocess.run([str(BUILD / "src/router/cgn-router"), "--check", "--config", str(path)], capture_output=True, text=True)
        assert done.returncode != 0 and words in done.stderr + done.stdout, done
