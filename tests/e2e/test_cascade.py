# SPDX-License-Identifier: Apache-2.0
"""Cascades: a small model is asked first, and its answer is held back until the log-probabilities of its first tokens are judged."""
import json
import re
import subprocess

import pytest

from clients import Stream
from cluster import BUILD, ask, until
from test_queue import as_key, keys_of

FAST = ("--time-scale", "0")
EASY, HARD = 0.05, 0.95  # with skill 0.5: practically always right, and wrong
CASCADE = {"enabled": True, "small_model": "small", "large_model": "large", "confidence_threshold": -0.3, "tokens": 8,
           "calibration_share": 0}


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


def ctl(c, *args):
    return subprocess.run([BUILD / "src/ctl/cgn-ctl", *args, "--router", f"127.0.0.1:{c.grpc_port}"], check=True, capture_output=True, text=True).stdout


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
    assert 8 <= until(lambda: c.metric("cgn_cascade_wasted_tokens_total", kind="completion"), "they are counted") < 100
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


def test_an_error_behind_a_200_leads_on(pair):
    c = pair(small=("--fault", "error-200"))
    a = c.chat("hi", difficulty=EASY)
    assert a.status == 200 and a.headers["x-cgn-node"] == "l" and step(a).startswith("2/2; outcome=failed"), a.headers


def test_an_engine_that_refuses_leads_on(pair):
    c = pair(small=("--max-model-len", "16"))
    a = c.chat("word " * 40, difficulty=EASY)
    assert a.status == 200 and step(a) == "2/2; outcome=refused", a.headers


def skipped(c, n):
    """Ask |n| hard questions; return for each whether the large model was asked at once."""
    return [step(c.chat(f"hi {i}", difficulty=HARD)) == "2/2; outcome=skipped; why=pregate" for i in range(n)]


@pytest.mark.parametrize("threads", [1, 4])
def test_where_answers_hardly_pass_the_large_model_is_asked_at_once(pair, threads):
    """All workers learn together, whichever has the connection."""
    seen = skipped(pair(router={"worker_threads": threads}), 60)
    assert not any(seen[:20]) and sum(seen[20:]) > 20, seen


def test_that_answers_hardly_pass_is_known_after_kill_9(pair):
    c = pair()
    assert not any(skipped(c, 20))
    rates = lambda: "".join(p.read_text() for p in c.state_dir.glob("*.cascade-rates"))
    until(lambda: re.search(r"^cell \d+ 20000 20000$", rates(), re.M), rates)
    c.router_process.kill()
    c.router({"router.cascade": CASCADE})
    c.wait_ready()
    assert sum(skipped(c, 20)) > 10
    assert c.router_process.stop() == 0
    (path,) = c.state_dir.glob("*.cascade-rates")
    path.write_text(path.read_text().replace("cell", "sell"))
    c.router({"router.cascade": CASCADE})
    c.wait_ready()
    (line,) = c.router_process.events("statefile.set_aside")
    assert line["of"] == "rates of cascades" and not any(skipped(c, 20))


def test_a_chain_of_three(cluster):
    cluster.MODEL = "large"
    cluster.router({"router.cascade": {"enabled": True, "confidence_threshold": -0.3, "tokens": 8, "calibration_share": 0}, "models.large": {"cascade": ["small", "mid"]}})
    for name, skill in (("small", "0.3"), ("mid", "0.6"), ("large", "1")):
        cluster.node(name[0], *FAST, "--skill", skill, model=name)
    cluster.wait_ready()
    for difficulty, node in ((0.05, "s"), (0.45, "m"), (0.95, "l")):
        a = cluster.chat("hi", stream=True, difficulty=difficulty)
        assert a.headers["x-cgn-node"] == node and step(a)[0] == str("sml".index(node) + 1), a.headers
    b = cluster.chat("hi", {"X-Cgn-Explain": "1"}, difficulty=0.95)
    assert "l" in b.headers["x-cgn-explain"]


def test_a_model_may_have_a_threshold_of_its_own(cluster):
    """Every answer would pass by the threshold of all; none of the small model does by its own."""
    cluster.MODEL = "large"
    cluster.router({"router.cascade": {"enabled": True, "confidence_threshold": -100, "tokens": 8, "calibration_share": 0},
                    "models.small": {"confidence_threshold": 0}, "models.large": {"cascade": ["small", "mid"]}})
    for name in ("small", "mid", "large"):
        cluster.node(name[0], *FAST, "--skill", "0.3", model=name)
    cluster.wait_ready()
    a = cluster.chat("hi", stream=True, difficulty=HARD)
    assert step(a).startswith("2/3; outcome=released") and "threshold=-100.000" in step(a), a.headers
    assert outcome(cluster, 1, "escalated") == 1 and outcome(cluster, 2, "released") == 1


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


# ---- calibration ----

# The small model is never sure by its log-probabilities (threshold 0): only what was learned lets its answers pass.
LEARNS = {"calibration_share": 1, "confidence_threshold": 0, "max_error": 0.2, "pregate": 1}


def doubles(c):
    text = c.scrape()
    return {o: n for o in ("compared", "unclear", "busy", "failed", "dropped") if (n := int(c.metric("cgn_cascade_doubles_total", text, outcome=o)))}


def compared(c):
    return doubles(c).get("compared", 0)


def twice(c, text, **body):
    """Send a prompt and wait until it was asked again of both models; return the answer and how that ended."""
    before = doubles(c)
    a = c.chat(text, **body)
    assert a.status == 200, a.body
    until(lambda: doubles(c) != before, "it is asked again")
    (ended,) = (o for o, n in doubles(c).items() if n != before.get(o, 0))
    return a, ended


def learn(c, n, difficulty, name="q"):
    for i in range(n):
        assert twice(c, f"{name} {i}", difficulty=difficulty(i))[1] == "compared"


def asked_again(c, n):
    """Return the log's lines of the |n| requests by which prompts were asked again."""
    return until(lambda: (lines := [e for e in c.router_process.events("gateway.request") if e["id"].startswith("calibration-")]) and len(lines) >= n and lines, c.logs)


def calibrated(c):
    return c.router_process.events("cascade.calibrated")


def learned(pair, **more):
    c = pair(cascade=LEARNS, **more)
    learn(c, 50, lambda i: EASY if i % 2 else HARD)
    (line,) = until(lambda: calibrated(c), "there is a curve")
    assert (line["small"], line["large"], line["compared"]) == ("small", "large", 50) and line["error_least"] < 0.2 < line["error_most"]
    return c


@pytest.mark.threads
def test_the_gate_is_calibrated_by_asking_twice(pair):
    c = learned(pair)
    easy, _ = twice(c, "an easy one", difficulty=EASY)
    assert step(easy).startswith("1/2; outcome=released") and float(re.search(r" error=([\d.]+)", step(easy))[1]) <= 0.2, step(easy)
    hard, _ = twice(c, "a hard one", stream=True, difficulty=HARD)
    assert step(hard).startswith("2/2; outcome=escalated") and float(re.search(r" error=([\d.]+)", step(hard))[1]) > 0.2, step(hard)
    assert 0 <= c.metric("cgn_cascade_ece", small="small", large="large") < 0.2
    (row,) = json.loads(ctl(c, "cluster", "cascades", "-o", "json"))["pairs"]
    assert (row["state"], row["compared"]) == ("holds", 52) and 20 < row["different"] < 30
    assert [s["error"] for s in row["curve"]] == sorted(s["error"] for s in row["curve"])
    shown = ctl(c, "cluster", "cascades").splitlines()
    assert shown[0].split()[:3] == ["SMALL", "LARGE", "STATE"] and shown[1].split()[:4] == ["small", "large", "holds", "52"]


@pytest.mark.slow
def test_drift_switches_the_small_model_off_and_on_again(pair):
    c = learned(pair)
    learn(c, 50, lambda i: EASY, "easy")  # they pass
    assert step(twice(c, "one more", difficulty=EASY)[0]).startswith("1/2; outcome=released")
    # Another large model gives other answers to what the small one is sure of.
    c.nodes["l"].engine.kill()
    until(lambda: c.states()["l"] != "ready", "the node is not ready")
    c.node("other", *FAST, "--skill", "0.01", model="large")
    until(lambda: c.states().get("other") == "ready", "the other is ready")
    until(lambda: c.chat("x", {"X-Cgn-Cascade": "off"}).status == 200, "it is chosen")

    def drifted():
        twice(c, f"drift {compared(c)}", difficulty=EASY)
        return c.router_process.events("cascade.drifted")
    (line,) = until(drifted, c.scrape)
    assert (line["level"], line["small"], line["large"]) == ("warn", "small", "large")
    until(lambda: c.metric("cgn_cascade_drifted", small="small", large="large") == 1, "the metric says so")
    a, _ = twice(c, "while it is off", difficulty=EASY)
    assert step(a) == "2/2; outcome=skipped; why=drift" and a.headers["x-cgn-node"] == "other"
    learn(c, 49, lambda i: EASY, "again")
    until(lambda: len(calibrated(c)) == 2, "it is on again")
    assert c.metric("cgn_cascade_drifted", small="small", large="large") == 0
    a, _ = twice(c, "asked again", difficulty=EASY)  # sure of itself, and wrong
    assert step(a) == "2/2; outcome=skipped; why=learns", step(a)


def kept(c):
    """Return the router's file of what was learned."""
    return "".join(p.read_text() for p in c.state_dir.glob("*.cascade"))


def again(c, cascade=None):
    """Start the router once more; return when it has its nodes again."""
    c.router({"router.cascade": {**CASCADE, **LEARNS, **(cascade or {})}})
    c.wait_ready()


def is_gated_by_the_curve(c):
    easy, hard = c.chat("easy", difficulty=EASY), c.chat("hard", difficulty=HARD)
    assert step(easy).startswith("1/2; outcome=released") and float(re.search(r" error=([\d.]+)", step(easy))[1]) <= 0.2, step(easy)
    assert step(hard).startswith("2/2; outcome=escalated") and float(re.search(r" error=([\d.]+)", step(hard))[1]) > 0.2, step(hard)


def test_what_was_learned_survives_kill_9_and_restarts(pair):
    c = learned(pair)
    # The file is replaced as a whole, so that a router that is killed leaves one that is whole.
    until(lambda: kept(c).count("compared ") == 50 and kept(c).count("engine ") == 2, lambda: kept(c))
    was = ask(c.admin_port, "GET", "/cascades").json()["pairs"][0]
    c.router_process.kill()
    again(c, {"calibration_share": 1e-9})
    (line,) = c.router_process.events("cascade.restored")
    assert (line["small"], line["large"], line["state"], line["compared"]) == ("small", "large", "holds", 50)
    (now,) = ask(c.admin_port, "GET", "/cascades").json()["pairs"]
    assert [s["error"] for s in now["curve"]] == [s["error"] for s in was["curve"]]
    assert all(abs(a["doubt_upto"] - b["doubt_upto"]) < 1e-5 for a, b in zip(now["curve"], was["curve"]))
    is_gated_by_the_curve(c)
    # Learning goes on, and an orderly end writes the last comparisons.
    assert c.router_process.stop() == 0
    again(c)
    assert twice(c, "one more", difficulty=EASY)[1] == "compared"
    assert c.router_process.stop() == 0
    assert kept(c).count("compared ") == 51 and "\npair " in kept(c)
    again(c)
    (row,) = json.loads(ctl(c, "cluster", "cascades", "-o", "json"))["pairs"]
    assert (row["state"], row["compared"]) == ("holds", 51)


@pytest.mark.parametrize("spoil, why", [
    (lambda s: s.replace("compared ", "compared 7", 1), "damaged"), (lambda s: s[:len(s) // 2], "damaged"),
    (lambda s: s.replace("cognitora-cascade 1", "cognitora-cascade 2", 1), "version"), (lambda s: "{}", "")])
def test_a_file_that_is_not_ours_is_set_aside(pair, spoil, why):
    c = pair(cascade=LEARNS)
    assert twice(c, "one", difficulty=EASY)[1] == "compared"
    assert c.router_process.stop() == 0
    (path,) = c.state_dir.glob("*.cascade")
    bad = spoil(path.read_text())
    path.write_text(bad)
    again(c)
    (line,) = c.router_process.events("statefile.set_aside")
    assert line["of"] == "calibration of cascades" and why in line["why"], line
    assert not path.exists() or path.read_text() != bad
    assert path.with_name(path.name + ".bad").read_text() == bad
    assert ask(c.admin_port, "GET", "/cascades").json()["pairs"] == []
    assert twice(c, "two", difficulty=EASY)[1] == "compared"


def forgotten(c):
    return until(lambda: c.router_process.events("cascade.forgotten"), c.logs)


def test_what_was_learned_with_other_settings_or_of_other_models_is_forgotten(pair):
    c = learned(pair)
    assert c.router_process.stop() == 0
    again(c, {"tokens": 9})
    (line,) = forgotten(c)
    assert (line["level"], line["small"], line["compared"]) == ("warn", "small", 50) and "router.cascade.tokens" in line["why"]
    assert " error=" not in step(c.chat("easy", difficulty=EASY))
    assert c.router_process.stop() == 0
    again(c, {"tokens": 9, "small_model": "smaller"})
    assert ask(c.admin_port, "GET", "/cascades").json()["pairs"] == []


@pytest.mark.slow
def test_what_was_learned_of_another_engine_is_forgotten(pair):
    c = learned(pair)
    until(lambda: kept(c).count("engine ") == 2, lambda: kept(c))
    for part in (c.nodes["s"].agent, c.nodes["s"].engine):
        part.kill()
    c.node("t", *FAST, "--skill", "0.5", model="small", sections={"engine": {"kind": "openai_compat"}})
    (line,) = forgotten(c)
    assert (line["small"], line["large"], line["why"]) == ("small", "large", "another engine serves the small model")
    until(lambda: c.states().get("t") == "ready", c.logs)
    assert " error=" not in step(c.chat("easy", difficulty=EASY))
    until(lambda: kept(c).count("compared ") < 3, lambda: kept(c))  # the file has forgotten it too


def test_what_is_asked_again_counts_for_no_key(cluster, pair):
    """It is the tenant's, for isolation, and neither limited nor billed."""
    keys_of(cluster, "acme")
    c = pair(cascade=LEARNS, **{"router.rate_limit": {"rps": 0.001, "burst": 2}})
    a = c.chat("hi", as_key("acme"), difficulty=EASY)
    assert a.status == 200 and step(a) == "2/2; outcome=skipped; why=learns"
    until(lambda: doubles(c) == {"compared": 1}, c.scrape)
    assert c.ask("GET", "/v1/models", headers={"Authorization": "Bearer guessed-acme"}).status == 401
    until(lambda: usage_rows(c), "the client's is counted")
    rows = usage_rows(c)
    assert set(rows) == {"large"} and (rows["large"]["requests"], rows["large"]["input_tokens"]) == (1, a.json()["usage"]["prompt_tokens"])
    assert [(e["model"], e["status"], e["tenant"], e["key"], e["stream"]) for e in asked_again(c, 2)] == [(m, 200, "acme", "", False) for m in ("small", "large")]
    assert c.chat("again", as_key("acme"), difficulty=EASY).status == 200  # the second of two that are allowed
    assert c.chat("once more", as_key("acme"), difficulty=EASY).status == 429


def test_answers_that_say_nothing_are_not_learned_from(pair):
    c = pair(cascade=LEARNS)
    assert twice(c, "cut", difficulty=EASY, max_tokens=3)[1] == "compared"  # as far as it goes
    assert ask(c.admin_port, "GET", "/cascades").json()["pairs"][0]["different"] == 0
    assert twice(c, "large", difficulty=EASY, user="x" * 300_000)[1] == "dropped"
    c.nodes["s"].engine.kill()
    until(lambda: c.states()["s"] != "ready", "the node is not ready")
    assert twice(c, "nobody", difficulty=EASY)[1] == "busy"


@pytest.mark.parametrize("similarity, different", [(-1, 0), (1, 1)])
def test_a_judge_says_whether_texts_that_differ_are_alike(pair, similarity, different):
    c = pair(cascade={**LEARNS, "judge_model": "judge", "judge_similarity": similarity})
    c.node("j", *FAST, model="judge")
    c.wait_ready()
    until(lambda: c.ask("POST", "/v1/embeddings", {"model": "judge", "input": "x"}).status == 200, "the judge is there")
    assert twice(c, "a hard one", difficulty=HARD)[1] == "compared"
    (row,) = ask(c.admin_port, "GET", "/cascades").json()["pairs"]
    assert (row["compared"], row["different"]) == (1, different)
    assert [e["model"] for e in asked_again(c, 3)] == ["small", "large", "judge"]


def test_a_busy_time_puts_a_comparison_off(pair):
    """The first try finds no room; a later one waits for it."""
    c = pair(cascade=LEARNS)
    c.nodes["s"].engine.kill()
    until(lambda: c.states()["s"] != "ready", "the node is not ready")
    assert c.chat("hi", difficulty=EASY).status == 200
    c.node("t", *FAST, "--skill", "0.5", model="small")
    until(lambda: doubles(c) == {"compared": 1}, c.scrape)


def test_without_a_calibration_no_answer_passes_before_the_error_is_known(pair):
    """Settings as of the guide's example: a threshold that lets everything pass, and nothing said of calibration."""
    c = pair(**{"router.cascade": {"enabled": True, "small_model": "small", "large_model": "large", "confidence_threshold": -1.5, "pregate": 1}})
    for i in range(40):
        a, ended = twice(c, f"q {i}", difficulty=HARD)
        assert step(a) == "2/2; outcome=skipped; why=learns" and a.headers["x-cgn-node"] == "l" and ended == "compared"
    assert outcome(c, 1, "released") == 0
    (line,) = c.router_process.events("cascade.cost")
    assert line["level"] == "info" and "50 prompts at least" in line["what"] and "8 %" in line["what"], line


@pytest.mark.parametrize("more, said", [({}, "8 % of the gated prompts"), ({"calibration_share": 0}, "confidence_threshold pass, right or wrong"),
                                        ({"max_error": 0.005}, "would need 796 comparisons")])
def test_the_check_says_what_a_calibration_costs(cluster, more, said):
    path = cluster.config("costs", {"router.cascade": {"enabled": True, "small_model": "a", "large_model": "b", **more}})
    done = subprocess.run([str(BUILD / "src/router/cgn-router"), "--check", "--config", str(path)], capture_output=True, text=True)
    assert done.returncode == 0 and said in done.stderr, done


def test_a_router_that_calibrates_nothing_says_so(pair):
    c = pair()
    said = subprocess.run([BUILD / "src/ctl/cgn-ctl", "cluster", "cascades", "--router", f"127.0.0.1:{c.grpc_port}"], capture_output=True, text=True)
    assert said.returncode != 0 and "calibration_share" in said.stderr, said
    assert ask(c.admin_port, "GET", "/cascades").json() == {"calibrates": False, "pairs": []}


@pytest.mark.parametrize("caller, place, difficulty", [("off", "2/2", EASY), ("only-small", "1/2", HARD)])
def test_the_result_of_a_tool_goes_to_the_model_that_called_it(pair, caller, place, difficulty):
    c = pair()
    session = {"X-Cgn-Session": f"agent-{caller}"}
    tools = {"tools": [{"type": "function", "function": {"name": "look"}}]}
    call = c.chat("hi", {**session, "X-Cgn-Cascade": caller}, **tools, tool_choice="required")
    asked = call.json()["choices"][0]["message"]
    assert asked["tool_calls"]
    until(lambda: [s["state"] for s in ask(c.admin_port, "GET", "/sessions").json()["sessions"]] == ["tool"], "the session waits")
    messages = [{"role": "user", "content": "hi"}, asked, {"role": "tool", "tool_call_id": asked["tool_calls"][0]["id"], "content": "42"}]
    body = {"model": "large", "messages": messages, "difficulty": difficulty, **tools, "tool_choice": "none"}
    assert step(c.ask("POST", "/v1/chat/completions", body, session)) == f"{place}; outcome=passed; why=tool_loop"
    body["messages"].append({"role": "user", "content": "and now?"})
    assert "tool_loop" not in step(c.ask("POST", "/v1/chat/completions", body, session))


@pytest.mark.parametrize("way, said", [("off", "2/2; outcome=off"), ("only-small", "1/2; outcome=only_small")])
def test_a_key_may_have_its_own_way_through_cascades(cluster, pair, way, said):
    keys_of(cluster, "acme", "beta")
    keys = cluster.folder / "keys"
    keys.write_text(keys.read_text().replace("Z acme", f"Z limits=cascade={way} acme"))
    c = pair()
    for other in ({}, {"X-Cgn-Cascade": "off"}, {"X-Cgn-Cascade": "only-small"}):
        assert step(c.chat("hi", as_key("acme", **other), difficulty=EASY)) == said, other
    assert step(c.chat("hi", as_key("beta"), difficulty=EASY)).startswith("1/2; outcome=released")
