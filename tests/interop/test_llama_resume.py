# SPDX-License-Identifier: Apache-2.0
"""Two real llama-servers with a tiny random model: one is killed during an answer, the other continues it."""
import contextlib
import http.client
import json
import subprocess
import sys
import threading

import pytest

from cluster import ROOT, Cluster, ask, free_port, until

ROUTER = {"router": {"resume": True}, "router.breaker": {"failures": 0}}
# The random model produces any bytes; only these are text, and none of them merges with its neighbour into a token.
LETTERS = set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ")
ASK = {"model": "tiny", "temperature": 0, "seed": 1, "max_tokens": 3000, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
       "logit_bias": [[i, False] for i in range(265) if i not in LETTERS]}
CHAT = ("/v1/chat/completions", ASK | {"messages": [{"role": "user", "content": "Tell me about the sea, please. " * 4}]})
TEXT = ("/v1/completions", ASK | {"prompt": "Once upon a time, by the sea, " * 4})


class Servers:
    """Two nodes with a llama-server each, started by the test, so that the test can kill it."""

    # a prompt is computed token by token, as an answer is: both are bit for bit the same
    ONE_BY_ONE = ("--batch-size", "32", "--ubatch-size", "1")

    def __init__(self, folder, binary, options=ONE_BY_ONE):
        self.cluster, self.model, self.binary, self.ports, self.servers = Cluster(folder), folder / "tiny.gguf", binary, {}, {}
        self.options = options

    def server(self, name):
        argv = [self.binary, "--model", self.model, "--alias", "tiny", "--host", "127.0.0.1", "--port", str(self.ports[name]), "--threads", "1",
                "--n-gpu-layers", "0", "--parallel", "1", *self.options]
        with open(self.cluster.folder / f"{name}.log", "ab") as log:
            self.servers[name] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(lambda: self.answers(name), f"{name} is ready")

    def begin(self):
        subprocess.run([sys.executable, ROOT / "scripts/run/tiny-gguf.py", self.model], check=True, stdout=subprocess.DEVNULL)
        self.cluster.router(ROUTER)
        for name in "ab":
            self.ports[name] = free_port()
            self.server(name)
            self.cluster.agent(name, self.ports[name], {"engine": {"kind": "llama_cpp", "model": "tiny"}})
        self.cluster.wait_ready(2)

    def answers(self, name):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return ask(self.ports[name], "GET", "/health").status == 200
        return False

    def kill(self, name):
        self.servers[name].kill()
        self.servers[name].wait()

    def end(self):
        for name in self.servers:
            self.kill(name)
        return self.cluster.close()


    def cut(self, path, body, events, headers=None):
        """Ask, kill the server that answers after |events| events, and start it again; return what the client got."""
        c = http.client.HTTPConnection("127.0.0.1", self.cluster.http_port, timeout=60)
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        r = c.getresponse()
        name, got = r.headers["x-cgn-node"], b""
        while got.count(b"\n\n") < events:
            more = r.read1(4096)
            assert more, got
            got += more
        killer = threading.Thread(target=self.kill, args=(name,))
        killer.start()
        got += r.read()
        killer.join()
        c.close()
        self.server(name)
        self.cluster.wait_ready(2)
        return got


@pytest.fixture(scope="module", params=[Servers.ONE_BY_ONE], ids=["one-by-one"])
def llamas(binary, tmp_path_factory, request):
    it = Servers(tmp_path_factory.mktemp("llamas"), binary, request.param)
    try:
        it.begin()
        yield it
    finally:
        trouble = it.end()
    assert not trouble, "\n".join(trouble)


def read(body):
    """Return (text, ids, finish reasons, the last usage) of an event stream."""
    text, ids, ends, usage = "", set(), [], None
    for block in body.decode().split("\n\n"):
        if not block.startswith("data: {"):
            continue
        chunk = json.loads(block[6:])
        ids.add(chunk["id"])
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            ends += [choice["finish_reason"]] if choice["finish_reason"] else []
    return text, ids, ends, usage


@pytest.mark.parametrize("path,body", [CHAT, TEXT], ids=["chat", "text"])
def test_one_llama_server_goes_on_for_another(llamas, path, body):
    whole = ask(llamas.ports["a"], "POST", path, body)
    text, _, ends, usage = read(whole.body)
    assert len(text) == 3000 and ends == ["length"] and len(set(text)) > 1
    before = llamas.cluster.metric("cgn_resumes_total", outcome="resumed")
    got = llamas.cut(path, body, 500)
    again, ids, ends, told = read(got)
    assert again == text and len(ids) == 1 and ends == ["length"] and got.endswith(b"data: [DONE]\n\n") and b"event: error" not in got
    assert (told["prompt_tokens"], told["completion_tokens"], told["total_tokens"]) == (
        usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
    assert llamas.cluster.metric("cgn_resumes_total", outcome="resumed") == before + 1


@pytest.mark.parametrize("llamas", [()], ids=["batches"], indirect=True)
@pytest.mark.parametrize("stops", [False, True], ids=["plain", "stops"])
def test_what_is_repeated_is_exact_with_any_batch(llamas, stops):
    """A continued text is a prompt, and the last bits of its numbers are others than when it was generated. A repetition has
    the same ones, if no cache shortens its prompt. Stop strings are half seen, also where the answer is cut."""
    path, body = CHAT[0], CHAT[1] | {"max_tokens": 500, "cache_prompt": False}
    if stops:
        text, *_ = read(ask(llamas.ports["a"], "POST", path, body).body)
        body |= {"stop": [text[90:92] + "~", text[91] + "~", text[93:96] + "~~"]}
    whole = read(ask(llamas.ports["a"], "POST", path, body).body)
    got = llamas.cut(path, body, 80, {"X-Cgn-Resume": "exact"})
    again = read(got)
    assert again[0] == whole[0] and again[2] == whole[2] and len(again[1]) == 1, (again[0], whole[0])
    assert again[3]["completion_tokens"] == whole[3]["completion_tokens"] and got.endswith(b"data: [DONE]\n\n")
