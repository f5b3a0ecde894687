# SPDX-License-Identifier: Apache-2.0
"""Clients of a gateway that sends comments while nothing else comes (router.sse_keepalive): OpenAI's for Python and Node,
Anthropic's, curl, and Ollama's, which gets none."""
import os
import shutil
import subprocess

import pytest

from conftest import HERE, Cluster

openai = pytest.importorskip("openai")
ASK = {"messages": [{"role": "user", "content": "Tell me about the sea."}], "max_tokens": 6}


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A token each 150 ms, a comment each 40 ms; the model "hangs" gives no first byte within 1.5 s."""
    with Cluster(tmp_path_factory.mktemp("keepalive")) as c:
        c.router({"router": {"sse_keepalive": "40ms", "first_byte_timeout": "1500ms"}, "router.breaker": {"failures": 0},
                  'models."slow"': {"tokens": "bytes"}, 'models."hangs"': {"tokens": "bytes"}})
        c.node("a", "--token-interval-us", "150000", model="slow")
        c.node("b", "--fault", "hang", model="hangs")
        c.wait_ready(2)
        yield c


def test_openai_for_python(slow):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{slow.http_port}/v1", api_key="none", max_retries=0) as c:
        whole = c.chat.completions.create(model="slow", **ASK).choices[0].message.content
        chunks = list(c.chat.completions.create(model="slow", stream=True, **ASK))
        assert "".join(x.choices[0].delta.content or "" for x in chunks if x.choices) == whole
        events = list(c.responses.create(model="slow", input="hello", max_output_tokens=6, stream=True))
        assert events[-1].type in ("response.completed", "response.incomplete")
        with pytest.raises(openai.APIError, match="first byte"):
            list(c.chat.completions.create(model="hangs", stream=True, **ASK))


@pytest.mark.skipif(not os.environ.get("CI") and not ((HERE / "node_modules").is_dir() and shutil.which("node")),
                    reason="no node, or no node_modules: npm install in tests/interop")
def test_npm(slow):
    done = subprocess.run(["node", "--test", "keepalive.test.mjs"], cwd=HERE, timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, env={**os.environ, "CGN_URL": f"http://127.0.0.1:{slow.http_port}", "CGN_KEY": ""})
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("http", ["--http1.1", "--http2-prior-knowledge"])
def test_curl(slow, http):
    got = subprocess.run(["curl", "-sN", http, f"http://127.0.0.1:{slow.http_port}/v1/chat/completions", "-H", "Content-Type: application/json",
                          "-d", '{"model": "slow", "stream": true, "max_tokens": 6, "messages": [{"role": "user", "content": "hi"}]}'],
                         capture_output=True, text=True, timeout=60)
    blocks = got.stdout.split("\n\n")
    assert got.returncode == 0 and blocks[0] == ": keep-alive" and "data: [DONE]" in blocks, got
    assert all(b in ("", ": keep-alive") or b.startswith("data: {") or b == "data: [DONE]" for b in blocks), got.stdout


def test_ollama_gets_none(slow):
    ollama = pytest.importorskip("ollama")
    parts = list(ollama.Client(f"http://127.0.0.1:{slow.http_port}").chat("slow", ASK["messages"], stream=True, options={"num_predict": 6}))
    assert parts[-1].done and "keep-alive" not in "".join(p.message.content for p in parts)
