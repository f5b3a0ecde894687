# SPDX-License-Identifier: Apache-2.0
"""Ollama's clients from PyPI and npm, and curl, against a gateway in front of a real llama-server."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from cluster import ROOT, Cluster, free_port

HERE = pathlib.Path(__file__).resolve().parent
ollama = pytest.importorskip("ollama") if not os.environ.get("CI") else __import__("ollama")

OPTIONS = {"temperature": 0, "seed": 1, "num_predict": 12}
MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]
TOOL = {"type": "function", "function": {"name": "weather", "description": "the weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def served(binary, tmp_path_factory):
    """Return the cluster: model "tiny" writes, model "vectors" embeds."""
    folder = tmp_path_factory.mktemp("ollama")
    model = folder / "tiny.gguf"
    subprocess.run([sys.executable, ROOT / "scripts/run/tiny-gguf.py", model], check=True, stdout=subprocess.DEVNULL)
    with Cluster(folder) as c:
        c.router()
        agents = [c.agent(name, free_port(), {"engine": {
            "kind": "llama_cpp", "managed": True, "binary": binary, "model": name, "model_path": str(model), "slots": 1, "n_threads": 1,
            "extra_args": extra}})[0] for name, extra in (("tiny", []), ("vectors", ["--embeddings", "--pooling", "mean"]))]
        c.wait_ready(2)
        yield c
        for agent in agents:
            agent.stop()


@pytest.fixture
def client(served):
    return ollama.Client(host=f"http://127.0.0.1:{served.http_port}")


def test_a_chat_has_the_text_and_counts_of_openais_api(served, client):
    theirs = served.ask("POST", "/v1/chat/completions", {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "temperature": 0, "seed": 1}).json()
    whole = client.chat(model="tiny", messages=MESSAGES, options=OPTIONS)
    assert whole.message.content == theirs["choices"][0]["message"]["content"] and whole.done and whole.done_reason == "length"
    parts = list(client.chat(model="tiny:latest", messages=MESSAGES, options=OPTIONS, stream=True))
    assert "".join(p.message.content or "" for p in parts) == whole.message.content
    assert [p.done for p in parts] == [False] * (len(parts) - 1) + [True]
    for last in (whole, parts[-1]):
        assert (last.prompt_eval_count, last.eval_count) == (theirs["usage"]["prompt_tokens"], 12)
        assert 0 < last.prompt_eval_duration < last.total_duration and 0 < last.eval_duration < last.total_duration


def test_a_prompt_with_and_without_a_template(served, client):
    raw = served.ask("POST", "/v1/completions", {"model": "tiny", "prompt": "once", "max_tokens": 12, "temperature": 0, "seed": 1}).json()
    assert client.generate(model="tiny", prompt="once", raw=True, options=OPTIONS).response == raw["choices"][0]["text"]
    parts = list(client.generate(model="tiny", prompt="once", system="be short", options=OPTIONS, stream=True))
    assert parts[-1].done and parts[-1].eval_count == 12 and len(parts) > 2


def test_a_schema_holds(client):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    got = client.chat(model="tiny", messages=MESSAGES, format=schema, options=OPTIONS | {"num_predict": 200})
    assert isinstance(json.loads(got.message.content)["n"], int)


def test_tools_and_their_results(client):
    """The tiny model calls nothing by itself: the conversation with a call and its result has to be taken."""
    talk = [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Oslo"}}}]},
            {"role": "tool", "tool_name": "weather", "content": "rain"}]
    got = client.chat(model="tiny", messages=talk, tools=[TOOL], options=OPTIONS)
    assert got.done and got.prompt_eval_count > 0


def test_vectors(served, client):
    theirs = served.ask("POST", "/v1/embeddings", {"model": "vectors", "input": ["a", "b"]}).json()
    got = client.embed(model="vectors", input=["a", "b"])
    assert [list(v) for v in got.embeddings] == [d["embedding"] for d in theirs["data"]]
    assert got.prompt_eval_count == theirs["usage"]["prompt_tokens"]
    assert list(client.embeddings(model="vectors", prompt="a").embedding) == theirs["data"][0]["embedding"]


def test_lists_and_errors(client):
    assert sorted(m.model for m in client.list().models) == ["tiny", "vectors"]
    assert len(client.ps().models) == 2 and "completion" in client.show("tiny").capabilities
    with pytest.raises(ollama.ResponseError) as e:
        client.chat(model="nope", messages=MESSAGES)
    assert e.value.status_code == 404 and "nope" in e.value.error
    with pytest.raises(ollama.ResponseError) as e:  # the engine's own refusal: the tiny model sees no images
        client.chat(model="tiny", messages=[{"role": "user", "content": "look", "images": [PIXEL]}])
    assert e.value.status_code >= 400 and "image" in e.value.error


def test_curl_without_a_type(served):
    body = {"model": "tiny", "messages": MESSAGES, "options": OPTIONS}
    done = subprocess.run(["curl", "-sN", f"http://127.0.0.1:{served.http_port}/api/chat", "-d", json.dumps(body)], check=True,
                          capture_output=True, text=True, timeout=60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["done"] and lines[-1]["eval_count"] == 12


@pytest.mark.skipif(not os.environ.get("CI") and not ((HERE / "node_modules/ollama").is_dir() and shutil.which("node")),
                    reason="no node, or no node_modules: npm install in tests/interop")
def test_npm(served):
    env = {**os.environ, "CGN_URL": f"http://127.0.0.1:{served.http_port}"}
    done = subprocess.run(["node", "--test", "ollama.test.mjs"], cwd=HERE, env=env, timeout=120, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert "# pass 0" not in done.stdout and "ℹ pass 0" not in done.stdout, done.stdout
