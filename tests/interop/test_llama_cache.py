# SPDX-License-Identifier: Apache-2.0
"""Two real llama-servers: the router's predictions of their caches against their reports, over conversations
of several turns."""
import random
import subprocess
import sys

import pytest

from cluster import ROOT, Cluster, free_port, until

WORDS = "sea wind salt gull rope tide moon sand wave ship fog bell star dune reef kelp foam crab harbour night".split()


@pytest.fixture
def pair(binary, tmp_path):
    model = tmp_path / "tiny.gguf"
    subprocess.run([sys.executable, ROOT / "scripts/run/tiny-gguf.py", model], check=True, stdout=subprocess.DEVNULL)
    with Cluster(tmp_path) as c:
        c.MODEL = "tiny"
        c.router({"models.tiny": {"block_bytes": 32}})
        # A slot for each conversation, wherever it goes: an engine that needs a slot drops a conversation without a word.
        agents = [c.agent(name, free_port(), {"engine": {"kind": "llama_cpp", "managed": True, "binary": binary, "model": "tiny",
                                                         "model_path": str(model), "slots": 4, "n_threads": 1, "n_ctx": 16384},
                                              "models.tiny": {"block_bytes": 32}})[0] for name in ("a", "b")]
        c.wait_ready(2)
        try:
            yield c
        finally:
            for a in agents:
                a.stop()  # ends its engine too


def logged(c):
    return {e["id"]: e for e in c.router_process.events("gateway.request") if e["method"] == "POST"}


def talk(c, seed, turns):
    """Four conversations, in turns, each with a system text of its own."""
    rng = random.Random(seed)

    def text(n):
        return " ".join(rng.choice(WORDS) for _ in range(n))
    talks = [[{"role": "system", "content": text(40 + 10 * i)}] for i in range(4)]
    for _ in range(turns):
        messages = rng.choice(talks)
        messages.append({"role": "user", "content": text(rng.randint(8, 30))})
        got = c.ask("POST", "/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": rng.randint(8, 40),
                                                     "temperature": 0, "seed": 1})
        assert got.status == 200, got.body
        yield got
        messages.append({"role": "assistant", "content": got.json()["choices"][0]["message"]["content"]})


def test_predicted_is_what_llama_server_reports(pair):
    answers = list(talk(pair, 1, 40))
    until(lambda: len(logged(pair)) == len(answers), "all of them are written down")
    rows = [(e["node"], got.headers["x-cgn-cache-hit"], e["prompt_tokens"], e["cached_predicted"], e["cached_tokens"])
            for got in answers for e in [logged(pair)[got.headers["x-request-id"]]]]
    scraped = pair.scrape()
    predicted, actual = (pair.metric("cgn_cached_tokens_total", scraped, kind=k) for k in ("predicted", "actual"))
    assert (predicted, actual) == (sum(r[3] for r in rows), sum(r[4] for r in rows)) and actual > 0
    assert abs(predicted - actual) <= 0.02 * actual, "\n".join(map(str, [(predicted, actual), *rows]))
    assert len({r[0] for r in rows}) == 2, "both take part"
    until(lambda: pair.metric("cgn_source_trust", node="a") == pair.metric("cgn_source_trust", node="b") == 1, "both are believed")
