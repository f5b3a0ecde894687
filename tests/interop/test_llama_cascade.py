# SPDX-License-Identifier: Apache-2.0
"""A cascade of two real llama-servers with tiny random models: answers that pass, and answers that do not."""
import contextlib
import re
import subprocess
import sys

import pytest

from clients import Stream
from cluster import ROOT, Cluster, ask, free_port, until

# The random model produces any bytes; only these are text, and none of them merges with its neighbour into a token.
LETTERS = set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ")
ASK = {"model": "large", "temperature": 0, "seed": 1, "max_tokens": 40, "ignore_eos": True, "logit_bias": [[i, False] for i in range(265) if i not in LETTERS]}
PROMPTS = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "Tell me about the sea, please."}]}, "/v1/completions": {"prompt": "Once upon a time"}}


class Pair:
    def __init__(self, folder, binary, threshold):
        self.cluster, self.ports, self.servers = Cluster(folder), {}, contextlib.ExitStack()
        self.cluster.router({"router.cascade": {"enabled": True, "small_model": "small", "large_model": "large", "confidence_threshold": threshold, "calibration_share": 0,
                                                "tokens": 8, "pregate": 1}})
        for name, seed in (("small", 1), ("large", 7)):
            weights, port = folder / f"{name}.gguf", free_port()
            subprocess.run([sys.executable, ROOT / "scripts/run/tiny-gguf.py", weights, str(seed)], check=True, stdout=subprocess.DEVNULL)
            argv = [binary, "--model", weights, "--alias", name, "--host", "127.0.0.1", "--port", str(port), "--threads", "1", "--n-gpu-layers", "0",
                    "--parallel", "1", "--batch-size", "32", "--ubatch-size", "1", "--slots"]
            with open(folder / f"{name}.log", "wb") as log:
                server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self.servers.callback(lambda server=server: (server.kill(), server.wait()))
            self.cluster.agent(name, port, {"engine": {"kind": "llama_cpp", "model": name}})
            self.ports[name] = port
        self.cluster.wait_ready(2)

    def ask(self, path, stream, cascade=None, **more):
        fields = {"X-Cgn-Cascade": cascade} if cascade else {}
        a = self.cluster.ask("POST", path, {**ASK, **PROMPTS[path], "stream": stream, **more}, fields)
        assert a.status == 200, a.body
        return a.headers["x-cgn-cascade-step"], plain(a.body)

    def is_idle(self, name):
        return not any(s["is_processing"] for s in ask(self.ports[name], "GET", "/slots").json())

    def end(self):
        self.servers.close()
        return self.cluster.close()


def plain(body):
    """Return |body| without the members that are new in each answer, of which the cached part of the prompt is one."""
    body = re.sub(rb'"timings":\{[^}]*\},?', b"", body)
    return re.sub(rb'"(id|created|cached_tokens)":("[^"]*"|\d+)', rb'"\1":0', body)


@pytest.fixture(scope="module", params=[-100, 0])
def pair(request, binary, tmp_path_factory):
    it = Pair(tmp_path_factory.mktemp("pair"), binary, request.param)
    it.passes = request.param < 0
    try:
        yield it
    finally:
        trouble = it.end()
    assert not trouble, "\n".join(trouble)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PROMPTS)
def test_the_client_sees_one_normal_answer(pair, path, stream):
    small, large = pair.ask(path, stream, "only-small")[1], pair.ask(path, stream, "off")[1]
    assert small != large
    step, got = pair.ask(path, stream)
    if pair.passes:
        assert step.startswith("1/2; outcome=released; tokens=8; confidence=-") and got == small and b'"token"' not in got
    else:
        assert step.startswith("2/2; outcome=escalated; tokens=8; confidence=-") and got == large


def test_a_wrong_start_ends_at_the_small_model(pair):
    if pair.passes:
        pytest.skip("nothing is cancelled where all passes")
    with contextlib.closing(Stream(pair.cluster.http_port, "Tell me about the sea.", **{**ASK, "max_tokens": 20_000})) as s:
        s.read_until(b'"content":"')
        assert b"2/2; outcome=escalated" in s.got
        until(lambda: pair.is_idle("small"), "llama-server stops what was cancelled")
        assert not pair.is_idle("large")


def test_a_client_keeps_the_logprobs_that_it_asks_for(pair):
    step, got = pair.ask("/v1/chat/completions", False, logprobs=True, top_logprobs=3)
    assert step.startswith("1/2; outcome=released" if pair.passes else "2/2; outcome=escalated") and b'"top_logprobs":[{' in got
