# SPDX-License-Identifier: Apache-2.0
"""A real llama-server, managed by cgn-agent, with a tiny random model: its text is nonsense, but
deterministic at temperature 0."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from cluster import ROOT, Cluster, ask, free_port, until

ASK = {"model": "tiny", "temperature": 0, "seed": 1, "max_tokens": 40, "messages": [{"role": "user", "content": "Tell me about the sea, please. " * 4}]}
ENDLESS = ASK | {"max_tokens": 30000, "ignore_eos": True, "stream": True}


class Llama:
    """A router, an agent that runs a llama-server, and a twin of that server."""

    def __init__(self, folder, binary):
        self.cluster, self.folder, self.binary, self.twin, self.agent = Cluster(folder), folder, binary, None, None
        self.port, self.twin_port = free_port(), free_port()

    def begin(self):
        model = self.folder / "tiny.gguf"
        subprocess.run([sys.executable, ROOT / "scripts/run/tiny-gguf.py", model], check=True, stdout=subprocess.DEVNULL)
        argv = [self.binary, "--model", model, "--alias", "tiny", "--host", "127.0.0.1", "--port", str(self.twin_port), "--threads", "1",
                "--n-gpu-layers", "0", "--parallel", "1"]
        with open(self.folder / "twin.log", "wb") as log:
            self.twin = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.cluster.router()
        self.agent = self.cluster.agent("llama", self.port, {"engine": {
            "kind": "llama_cpp", "managed": True, "binary": self.binary, "model": "tiny", "model_path": str(model), "slots": 1, "n_threads": 1,
            "restart_backoff": "50ms"}})[0]
        self.cluster.wait_ready(1)
        until(lambda: self.answers(self.twin_port), "the twin is ready")

    def end(self):
        if self.agent:
            self.agent.stop()  # ends its engine too
        if self.twin:
            self.twin.kill()
            self.twin.wait()
        self.cluster.close()

    @staticmethod
    def answers(port):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return ask(port, "GET", "/health").status == 200
        return False

    def engine_pid(self):
        """Return the agent's descendant whose command line has this port."""
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                argv = (entry / "cmdline").read_bytes().split(b"\0")
                if b"tiny.gguf" in b" ".join(argv) and str(self.port).encode() in argv:
                    return int(entry.name)
        return None

    def slot(self):
        return ask(self.port, "GET", "/slots").json()[0]


@pytest.fixture(scope="module")
def llama(binary, tmp_path_factory):
    it = Llama(tmp_path_factory.mktemp("llama"), binary)
    try:
        it.begin()
        yield it
    finally:
        it.end()
    assert it.engine_pid() is None, "the agent left its engine behind"


def bare(body):
    """Return the answer without fields that differ between requests: id, times, durations."""
    body = re.sub(rb'"id":"chatcmpl-\w+"', b'"id":""', re.sub(rb'"created":\d+', b'"created":0', body))
    return re.sub(rb'"(\w+_ms|\w+_per_second)":[0-9.e+-]+', rb'"\1":0', body)


def test_the_bytes_are_llama_servers(llama):
    path = "/v1/chat/completions"
    for body in (ASK, ASK, ASK | {"stream": True}, ASK | {"stream": True, "stream_options": {"include_usage": True}},
                 ASK | {"logprobs": True, "top_logprobs": 2}, ASK | {"max_tokens": 1000, "ignore_eos": True, "stream": True},
                 ASK | {"response_format": {"type": "json_object"}}):
        direct, routed = ask(llama.twin_port, "POST", path, body), llama.cluster.ask("POST", path, body)
        assert routed.status == direct.status == 200, (routed.body, direct.body)
        assert routed.headers["content-type"] == direct.headers["content-type"]
        assert bare(routed.body) == bare(direct.body)
        assert len(routed.body) > 400


def test_the_second_request_finds_its_prompt_cached(llama):
    body = ASK | {"messages": [{"role": "user", "content": "something else entirely " * 30}]}
    first, second = (llama.cluster.ask("POST", "/v1/chat/completions", body) for _ in range(2))
    usage = [json.loads(a.body)["usage"] for a in (first, second)]
    assert usage[0]["prompt_tokens_details"]["cached_tokens"] < usage[0]["prompt_tokens"] // 2
    assert usage[1]["prompt_tokens_details"]["cached_tokens"] >= usage[1]["prompt_tokens"] - 2
    held, blocks = map(int, second.headers["x-cgn-cache-hit"].split("/"))
    assert held == blocks > 0 and first.headers["x-cgn-cache-hit"].startswith("0/")


def test_what_it_lacks(llama):
    embed = {"model": "tiny", "input": "x"}
    direct, routed = (f("POST", "/v1/embeddings", embed) for f in (lambda *a: ask(llama.twin_port, *a), llama.cluster.ask))
    assert (routed.status, routed.body) == (direct.status, direct.body) == (501, direct.body)
    score = llama.cluster.ask("POST", "/v1/score", {"model": "tiny", "text_1": "a", "text_2": "b"})
    assert score.status == 501 and score.json()["error"]["message"]
    for path in ("/v1/audio/speech", "/v1/audio/translations", "/v1/images/generations", "/v1/moderations"):
        lacks = llama.cluster.ask("POST", path, {"model": "tiny", "input": "x"})
        assert ask(llama.twin_port, "POST", path, {"model": "tiny", "input": "x"}).status == 404
        assert lacks.status == 501 and path in lacks.json()["error"]["message"]


def test_its_own_routes(llama):
    """llama-server's routes outside of OpenAI's API: its clients find them at the gateway."""
    once = {"model": "tiny", "prompt": "Once upon a time", "n_predict": 12, "temperature": 0, "seed": 1}
    chat = {"model": "tiny", "messages": ASK["messages"]}
    for path, body in (("/completion", once), ("/completions", once), ("/completion", once | {"stream": True}), ("/apply-template", chat),
                       ("/infill", once | {"input_prefix": "def a(", "input_suffix": "):"}), ("/embedding", {"model": "tiny", "content": "x"}),
                       ("/embeddings", {"model": "tiny", "content": "x"}), ("/rerank", {"model": "tiny", "query": "a", "documents": ["b"]}),
                       ("/reranking", {"model": "tiny", "query": "a", "documents": ["b"]})):
        direct, routed = ask(llama.twin_port, "POST", path, body), llama.cluster.ask("POST", path, body)
        assert (routed.status, routed.headers["content-type"]) == (direct.status, direct.headers["content-type"]), (path, routed.body)
        assert text_of(routed) == text_of(direct), path
    routed = llama.cluster.ask("GET", "/props?model=tiny")
    assert routed.status == 200 and routed.json()["total_slots"] == 1
    until(lambda: counted(llama, "/completion"), "the tokens of a native answer are counted")
    assert all(e["completion_tokens"] == 12 and e["prompt_tokens"] > 3 for e in counted(llama, "/completion"))


def text_of(answer):
    if answer.headers["content-type"].startswith("text/event-stream"):
        return "".join(json.loads(data)["content"] for _, data in answer.events())
    value = answer.json()
    return {k: value[k] for k in ("content", "prompt", "error", "tokens_predicted") if k in value} if isinstance(value, dict) else value


def counted(llama, path):
    return [e for e in llama.cluster.router_process.events("gateway.request") if e["path"] == path and e["status"] == 200]


def test_its_own_count_of_tokens(llama):
    body = {"model": "tiny", "messages": ASK["messages"], "system": "be short"}
    direct, routed = (f("POST", "/v1/messages/count_tokens", body) for f in (lambda *a: ask(llama.twin_port, *a), llama.cluster.ask))
    assert (routed.status, routed.body) == (direct.status, direct.body) == (200, direct.body)
    used = llama.cluster.ask("POST", "/v1/messages", body | {"max_tokens": 1}).json()["usage"]
    assert routed.json()["input_tokens"] == used["input_tokens"] + used.get("cache_read_input_tokens", 0)


def test_a_client_that_goes_frees_the_slot(llama):
    done_before = llama.slot().get("id_task")
    c = http.client.HTTPConnection("127.0.0.1", llama.cluster.http_port, timeout=30)
    c.request("POST", "/v1/chat/completions", json.dumps(ENDLESS), {"Content-Type": "application/json"})
    r = c.getresponse()
    for _ in range(20):
        r.readline()
    assert llama.slot()["is_processing"]
    r.close()
    c.close()
    slot = until(lambda: (s := llama.slot())["is_processing"] is False and s, "the slot is free")
    assert slot.get("id_task") != done_before
    assert slot["n_prompt_tokens"] < 20000, "it went on to the end"  # the prompt, and the part of 30,000 tokens that was produced
    assert llama.cluster.ask("POST", "/v1/chat/completions", ASK).status == 200


def test_kill_nine_and_traffic_goes_on(llama):
    c = http.client.HTTPConnection("127.0.0.1", llama.cluster.http_port, timeout=30)
    c.request("POST", "/v1/chat/completions", json.dumps(ENDLESS), {"Content-Type": "application/json"})
    r = c.getresponse()
    r.readline()
    first = llama.engine_pid()
    os.kill(first, signal.SIGKILL)
    rest = r.read()
    assert b"event: error" in rest and b"[DONE]" not in rest
    c.close()
    until(lambda: llama.engine_pid() not in (None, first), "the agent starts another")
    until(lambda: llama.cluster.ask("POST", "/v1/chat/completions", ASK).status == 200, "it serves")
    direct, routed = ask(llama.twin_port, "POST", "/tokenize", {"model": "tiny", "content": "one two"}), llama.cluster.ask(
        "POST", "/tokenize", {"model": "tiny", "content": "one two"})
    assert routed.status == 200 and routed.body == direct.body
    assert "SIGKILL" in llama.agent.log() or "signal 9" in llama.agent.log()
