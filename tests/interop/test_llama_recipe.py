# SPDX-License-Identifier: Apache-2.0
"""Recipes with a real llama-server, brought up and down as by a user."""
import os
import re

import pytest

from cluster import ask, until
from recipe_tree import Recipe


@pytest.fixture
def disagg(binary, tmp_path):
    r = Recipe(tmp_path, "tiny/llama-cpp/disagg", ("router", "agent", "kvcached", "ctl"))
    yield r
    r.close()


def test_prefill_and_decode_on_different_nodes(disagg):
    r = disagg
    up = r.up()
    assert up.returncode == 0 and "2 nodes are ready" in up.stdout, up.stdout + up.stderr
    pki = r.run_dir / "pki"
    names = {f"{n}.{k}" for n in ("router", "agent-prefill", "agent-decode", "kv-prefill", "kv-decode", "admin", "ca") for k in ("pem", "key")}
    assert set(os.listdir(pki)) == names and all((pki / n).stat().st_mode & 0o77 == 0 for n in names if n.endswith("key"))

    def peers(port):
        return {p["node"]: p["state"] for p in ask(r.port[port], "GET", "/peers").json()["peers"]}
    until(lambda: peers(7193) == {"llama-prefill": "ready"} and peers(7093) == {"llama-decode": "ready"}, lambda: f"{peers(7093)} {peers(7193)}")

    def asked(prompt, name):
        got = ask(r.port[8080], "POST", "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 8}, {"X-Request-Id": name})
        assert got.status == 200 and got.headers["x-cgn-node"] == "llama-decode", got.body
        return got.json()["usage"]
    usage = asked("the tide comes in and the tide goes out, says the gull; " * 30, "one")
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.9 * usage["prompt_tokens"] > 900
    kept = [ask(r.port[p], "GET", "/engines").json()["engines"][0]["kept_slots"] for p in (7081, 7181)]
    assert kept[0]["saves"] == 1 and kept[0]["prompts"]["none"] == 1 and kept[0]["restores"] == 0, kept
    assert kept[1]["restores"] == kept[1]["prompts"]["peer"] == 1 and kept[1]["saves"] == 0, kept
    # The output for the operator, with the certificate made for that operator.
    security = [f"--{flag}={pki / f}" for flag, f in (("ca", "ca.pem"), ("cert", "admin.pem"), ("key", "admin.key"))]
    told = r.run("cgn-ctl", "explain", "one", "-o", "json", "--router", f"127.0.0.1:{r.port[9090]}", *security)
    assert re.findall(r'"leg": *"(\w+)"', told.stdout) == ["prefill", "answer"], told.stdout + told.stderr
    assert r.run("cgn-ctl", "explain", "one", "--router", f"127.0.0.1:{r.port[9090]}").returncode != 0, "without one he is refused"
    # A prompt with little to compute stays on the answering node.
    assert asked("A short one, of two blocks or so, no more.", "two")["prompt_tokens"] < 64
    metrics = ask(r.port[9091], "GET", "/metrics").body.decode()
    assert 'cgn_disagg_total{outcome="prefilled"} 1' in metrics and 'cgn_disagg_total{outcome="colocated"} 2' in metrics  # and the recipe's own "Hi"
    hello = r.run("scripts/run/hello.sh")
    assert hello.returncode == 0 and "answered by node llama-decode" in hello.stdout, hello.stdout + hello.stderr
    down = r.down()
    assert down.returncode == 0 and down.stdout.count("stopped ") == 5, down.stdout + down.stderr
    assert r.processes() == []


def test_two_models_of_which_one_fits(binary, tmp_path):
    r = Recipe(tmp_path, "tiny/llama-cpp/swap", ("router", "agent", "kvcached", "ctl"))
    try:
        up = r.up()
        assert up.returncode == 0 and "tiny tiny-2 answers" in up.stdout, up.stdout + up.stderr

        def loaded():
            return [e["name"] for e in ask(r.port[7081], "GET", "/engines").json()["engines"] if e["pid"]]

        def asked(model, prompt):
            got = ask(r.port[8080], "POST", "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 8})
            assert got.status == 200, got.body
            return got.json()["usage"]
        text = "the tide comes in and the tide goes out, says the gull; " * 20
        asked("tiny", text)
        assert loaded() == ["first"]
        asked("tiny-2", "Hello")
        assert loaded() == ["second"]
        usage = asked("tiny", text + "and the moon?")
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0.9 * usage["prompt_tokens"] > 900 and loaded() == ["first"]
        assert r.down().returncode == 0
    finally:
        r.close()
