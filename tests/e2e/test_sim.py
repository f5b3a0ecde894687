# SPDX-License-Identifier: Apache-2.0
"""cgn-sim from outside: routes, streams, determinism, cache, queue, aborts, faults. CGN_BUILD names the build folder (./build)."""
import base64
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import time

import pytest

from cluster import WAIT_S, free_port, steady

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("CGN_BUILD", ROOT / "build")) / "src" / "sim" / "cgn-sim"


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


class Sim:
    def __init__(self, *flags, known_port=True):
        self.port = free_port()
        # A sanitizer that holds back freed memory would look like a leak in VmRSS.
        env = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"}
        self.process = subprocess.Popen([BINARY, "--listen", f"127.0.0.1:{self.port}", *flags], stderr=subprocess.PIPE, env=env)
        if known_port:
            self.wait_for(self.listens)

    def listens(self):
        assert self.process.poll() is None, self.process.stderr.read()
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    @staticmethod
    def wait_for(condition, seconds=10):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.01)

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def ask(self, path, body=None, method=None, headers={}, conn=None):
        c = conn or self.connect()
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
        c.request(method or ("GET" if body is None else "POST"), path, data, dict(headers))
        r = c.getresponse()
        answer = Answer(r.status, dict(r.getheaders()), r.read())
        if conn is None:
            c.close()
        return answer

    def chat(self, text="Tell me about the sea.", conn=None, **more):
        body = {"model": "sim", "messages": [{"role": "user", "content": text}], **more}
        return self.ask("/v1/chat/completions", body, conn=conn)

    def text(self, *args, **more):
        return self.chat(*args, **more).json()["choices"][0]["message"]["content"]

    def state(self):
        return self.ask("/sim/state").json()

    def metric(self, name):
        lines = self.ask("/metrics").body.decode().splitlines()
        return sum(float(l.rsplit(" ", 1)[1]) for l in lines if l.startswith(name + "{") or l.startswith(name + " "))

    def faults(self, *faults):
        return self.ask("/sim/faults", {"faults": list(faults)})

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout=10)
        finally:
            self.process.kill()
            self.process.stderr.close()


@pytest.fixture
def start():
    sims = []

    def begin(*flags, **more):
        sims.append(Sim(*flags, **more))
        return sims[-1]

    yield begin
    codes = [(s.process.poll(), s.stop()) for s in sims]
    assert all(code == 0 for died, code in codes if died is None), codes


@pytest.fixture(scope="module")
def fast():
    sim = Sim("--time-scale", "0", "--model", "sim", "--model", "other")
    yield sim
    assert sim.stop() == 0


def events(body):
    """Return [(event name or None, data)]."""
    out = []
    for block in body.decode().split("\n\n"):
        if block:
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            out.append((fields.get("event"), fields["data"]))
    return out


def chunks(body):
    parts = [data for _, data in events(body)]
    assert parts[-1] == "[DONE]"
    return [json.loads(p) for p in parts[:-1]]


# ---- the command line ----


def run(*flags):
    return subprocess.run([BINARY, *flags], capture_output=True, text=True, timeout=10)


def test_help_and_version():
    assert "examples:" in run("--help").stdout
    assert run("--version").stdout.startswith("cgn-sim ")


@pytest.mark.parametrize("flags, says", [(["--modle", "x"], "did you mean --model"), (["--max-batch", "x"], "needs a number"),
                                         (["--fault", "boom"], "there are refuse"), (["--listen", "nonsense"], "nonsense")])
def test_flag_errors_exit_2(flags, says):
    r = run(*flags)
    assert r.returncode == 2 and says in r.stderr and len(r.stderr.strip().splitlines()) == 1


def test_port_in_use_exits_7(fast):
    r = run("--listen", f"127.0.0.1:{fast.port}")
    assert r.returncode == 7 and str(fast.port) in r.stderr


# ---- answers ----


def test_chat(fast):
    r = fast.chat(max_tokens=9)
    body = r.json()
    assert r.status == 200 and body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    choice = body["choices"][0]
    assert choice["finish_reason"] == "length" and choice["message"]["role"] == "assistant"
    usage = body["usage"]
    assert usage["completion_tokens"] == 9 and usage["total_tokens"] == usage["prompt_tokens"] + 9
    count = fast.ask("/tokenize", {"messages": [{"role": "user", "content": "Tell me about the sea."}]}).json()["count"]
    assert usage["prompt_tokens"] == count
    assert fast.ask("/tokenize", {"prompt": choice["message"]["content"]}).json()["count"] == 9


def test_request_id_becomes_the_id(fast):
    body = {"messages": [{"role": "user", "content": "x"}]}
    assert fast.ask("/v1/chat/completions", body, headers={"X-Request-Id": "abc-1"}).json()["id"] == "chatcmpl-abc-1"
    assert '"' not in fast.ask("/v1/chat/completions", body, headers={"X-Request-Id": 'a"b'}).json()["id"]


def test_stream_is_the_same_text(fast):
    plain = fast.chat().json()
    parts = chunks(fast.chat(stream=True, stream_options={"include_usage": True}).body)
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert parts[-1]["choices"] == [] and parts[-1]["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    assert parts[-2]["choices"][0]["finish_reason"] == "stop"
    assert "".join(p["choices"][0]["delta"].get("content", "") for p in parts[:-1]) == plain["choices"][0]["message"]["content"]
    assert len({p["id"] for p in parts}) == 1


def test_each_event_is_a_chunk_of_its_own(fast):
    with socket.create_connection(("127.0.0.1", fast.port), timeout=10) as s:
        body = json.dumps({"prompt": "x", "max_tokens": 5, "stream": True}).encode()
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        raw = b""
        while part := s.recv(65536):
            raw += part
    rest, seen = raw.split(b"\r\n\r\n", 1)[1], []
    while rest:
        size, rest = rest.split(b"\r\n", 1)
        n = int(size, 16)
        seen.append(rest[:n])
        rest = rest[n + 2:]
    assert seen[-1] == b"" and len(seen) == 5 + 2 + 1
    assert all(e.startswith(b"data: ") and e.endswith(b"\n\n") for e in seen[:-1])


def test_answers_are_a_function_of_seed_and_prompt(start, fast):
    same, other = start("--time-scale", "0"), start("--time-scale", "0", "--seed", "1")
    assert fast.text() == same.text() == fast.text()
    assert fast.text() != other.text()
    assert fast.text("another") != fast.text()
    assert fast.text(seed=1) == other.text()
    assert fast.text(cache_salt="x") == fast.text()


def test_n_choices_differ(fast):
    body = fast.chat(n=3, max_tokens=20).json()
    texts = [c["message"]["content"] for c in body["choices"]]
    assert [c["index"] for c in body["choices"]] == [0, 1, 2] and len(set(texts)) == 3
    assert texts[0] == fast.text(max_tokens=20) and body["usage"]["completion_tokens"] == 60
    parts = chunks(fast.chat(n=3, max_tokens=20, stream=True).body)
    for i in range(3):
        mine = [p["choices"][0] for p in parts if p["choices"][0]["index"] == i]
        assert "".join(c["delta"].get("content", "") for c in mine) == texts[i] and mine[-1]["finish_reason"] == "length"


def test_stop_strings(fast):
    text = fast.text(max_tokens=50)
    word = text.split()[7]
    body = fast.chat(max_tokens=50, stop=["never said", word]).json()["choices"][0]
    assert body["message"]["content"] == text[:text.index(word)]
    assert body["finish_reason"] == "stop" and body["stop_reason"] == word
    parts = chunks(fast.chat(max_tokens=50, stop=word, stream=True).body)
    assert "".join(p["choices"][0]["delta"].get("content", "") for p in parts) == text[:text.index(word)]


def test_ignore_eos_runs_to_max_tokens(fast):
    assert fast.chat(max_tokens=500, ignore_eos=True).json()["usage"]["completion_tokens"] == 500
    assert fast.chat(max_completion_tokens=3).json()["usage"]["completion_tokens"] == 3


def test_logprobs(fast):
    body = fast.chat(max_tokens=5, logprobs=True, top_logprobs=3).json()["choices"][0]
    content = body["logprobs"]["content"]
    assert "".join(t["token"] for t in content) == body["message"]["content"]
    for t in content:
        assert t["logprob"] < 0 and bytes(t["bytes"]).decode() == t["token"] and len(t["top_logprobs"]) == 3
        assert t["top_logprobs"][0]["token"] == t["token"]
    streamed = [p["choices"][0]["logprobs"] for p in chunks(fast.chat(max_tokens=5, logprobs=True, top_logprobs=3, stream=True).body)]
    assert [l["content"][0] for l in streamed if l] == content
    old = fast.ask("/v1/completions", {"prompt": "x", "max_tokens": 4, "logprobs": 2}).json()["choices"][0]
    assert "".join(old["logprobs"]["tokens"]) == old["text"] and len(old["logprobs"]["top_logprobs"][0]) == 3


WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["°C", "°F"]}}, "required": ["city"]}}}


def test_tool_calls(fast):
    assert fast.chat(tools=[WEATHER]).json()["choices"][0]["finish_reason"] == "stop"
    choice = fast.chat(tools=[WEATHER], tool_choice="required").json()["choices"][0]
    call = choice["message"]["tool_calls"][0]
    args = json.loads(call["function"]["arguments"])
    assert choice["finish_reason"] == "tool_calls" and call["function"]["name"] == "get_weather" and args["unit"] == "°C"
    parts = chunks(fast.chat("use get_weather", tools=[WEATHER], stream=True).body)
    deltas = [c["delta"]["tool_calls"][0] for p in parts for c in p["choices"] if "tool_calls" in c["delta"]]
    assert deltas[0]["function"]["name"] == "get_weather" and deltas[0]["id"].startswith("call_")
    assert json.loads("".join(d["function"]["arguments"] for d in deltas))["unit"] == "°C"
    assert parts[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_response_format(fast):
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}}}
    text = fast.text(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    assert isinstance(json.loads(text)["name"], str) and isinstance(json.loads(text)["tags"], list)
    assert isinstance(json.loads(fast.text(response_format={"type": "json_object"})), dict)


def test_images_are_tokens(fast):
    content = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    assert fast.chat(content).json()["usage"]["prompt_tokens"] > 256


def test_completions(fast):
    body = fast.ask("/v1/completions", {"prompt": ["one", "two"], "max_tokens": 4}).json()
    assert [c["index"] for c in body["choices"]] == [0, 1] and body["object"] == "text_completion"
    ids = fast.ask("/tokenize", {"prompt": "one"}).json()["tokens"]
    assert fast.ask("/v1/completions", {"prompt": ids, "max_tokens": 4}).json()["choices"][0]["text"] == body["choices"][0]["text"]


def test_responses(fast):
    body = fast.ask("/v1/responses", {"input": "hello"}).json()
    assert body["status"] == "completed" and body["output"][0]["content"][0]["type"] == "output_text"
    got = [(name, json.loads(data)) for name, data in events(fast.ask("/v1/responses", {"input": "hello", "stream": True}).body)]
    assert all(name == data["type"] for name, data in got)
    assert [d["sequence_number"] for _, d in got] == list(range(len(got)))
    text = "".join(d["delta"] for n, d in got if n == "response.output_text.delta")
    assert got[0][0] == "response.created" and got[-1][0] == "response.completed"
    assert got[-1][1]["response"]["output"][0]["content"][0]["text"] == text == body["output"][0]["content"][0]["text"]
    cut = fast.ask("/v1/responses", {"input": "hello", "max_output_tokens": 3}).json()
    assert cut["status"] == "incomplete" and cut["incomplete_details"]["reason"] == "max_output_tokens"


def test_messages(fast):
    ask = {"model": "sim", "max_tokens": 12, "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}
    body = fast.ask("/v1/messages", ask).json()
    assert body["type"] == "message" and body["stop_reason"] == "max_tokens" and body["usage"]["output_tokens"] == 12
    got = [(name, json.loads(data)) for name, data in events(fast.ask("/v1/messages", {**ask, "stream": True}).body)]
    names = [n for n, _ in got]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(d["delta"]["text"] for n, d in got if n == "content_block_delta") == body["content"][0]["text"]
    tool = {"name": "t", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    used = fast.ask("/v1/messages", {**ask, "max_tokens": 100, "tools": [tool], "tool_choice": {"type": "any"}}).json()
    assert used["stop_reason"] == "tool_use" and isinstance(used["content"][0]["input"]["a"], int)


def test_embeddings(fast):
    body = fast.ask("/v1/embeddings", {"input": ["a b", "c"], "dimensions": 8}).json()
    vectors = [d["embedding"] for d in body["data"]]
    assert [len(v) for v in vectors] == [8, 8] and vectors[0] != vectors[1]
    assert abs(sum(x * x for x in vectors[0]) - 1) < 1e-5
    coded = fast.ask("/v1/embeddings", {"input": "a b", "dimensions": 8, "encoding_format": "base64"}).json()
    decoded = struct.unpack("<8f", base64.b64decode(coded["data"][0]["embedding"]))
    assert all(abs(x - y) < 1e-6 for x, y in zip(decoded, vectors[0]))


def test_rerank_and_score(fast):
    documents = ["green land", "the blue sea", "blue"]
    results = fast.ask("/v1/rerank", {"query": "blue sea", "documents": documents, "top_n": 2}).json()["results"]
    assert [r["index"] for r in results] == [1, 2] and results[0]["document"]["text"] == "the blue sea"
    scores = [d["score"] for d in fast.ask("/v1/score", {"text_1": "blue sea", "text_2": documents}).json()["data"]]
    assert scores[1] > scores[2] > scores[0]


def test_tokenize_round_trip(fast):
    text = "Grüße, WORLD 12345!\n\t\"quoted\" \U0001f600"
    body = fast.ask("/tokenize", {"prompt": text, "return_token_strs": True}).json()
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"])
    assert fast.ask("/detokenize", {"tokens": body["tokens"]}).json()["prompt"] == text


def test_models_health_version(fast):
    cards = fast.ask("/v1/models").json()["data"]
    assert [m["id"] for m in cards] == ["sim", "other"] and cards[0]["max_model_len"] == 32768
    assert fast.ask("/health").status == 200 and fast.ask("/health").body == b""
    assert "version" in fast.ask("/version").json()


@pytest.mark.parametrize("path, body, status, code", [
    ("/v1/chat/completions", b'{"messages": [', 400, "invalid_json"),
    ("/v1/chat/completions", {"model": "gpt", "messages": [{"role": "user", "content": "x"}]}, 404, "model_not_found"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 40000}]}, 400, "context_length_exceeded"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 40000}, 400, "context_length_exceeded"),
    ("/v1/embeddings", {}, 400, "missing"), ("/v1/rerank", {"query": "x"}, 400, "missing"), ("/detokenize", {"tokens": [-1]}, 400, "invalid_value"),
    ("/nothing", {}, 404, 404), ("/health", {}, 405, 405)])
def test_errors(fast, path, body, status, code):
    r = fast.ask(path, body)
    assert r.status == status and r.json()["error"]["code"] == code and r.json()["error"]["message"]


def test_body_over_64_mib_is_413(fast):
    with socket.create_connection(("127.0.0.1", fast.port), timeout=10) as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 67108865\r\n\r\n")
        assert b" 413 " in s.recv(4096).split(b"\r\n", 1)[0]


# ---- the device ----


def cached(answer):
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_repeated_prompts_hit_the_cache(start):
    sim = start("--time-scale", "0")
    prompt = "the same long words again and over " * 20
    first, again = sim.chat(prompt), sim.chat(prompt)
    tokens = first.json()["usage"]["prompt_tokens"]
    assert cached(first) == 0 and cached(again) == (tokens - 1) // 16 * 16
    assert cached(sim.chat(prompt, cache_salt="tenant")) == 0
    assert cached(sim.chat("x" + prompt)) == 0
    # The next turn finds the answer in the cache too.
    said = again.json()["choices"][0]["message"]["content"]
    turn = sim.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": said},
                                                         {"role": "user", "content": "and then?"}]})
    assert cached(turn) > cached(again)
    assert sim.metric("vllm:prefix_cache_hits_total") == cached(again) + cached(turn)
    assert sim.state()["kv"]["used"] == 0 and sim.state()["kv"]["cached"] > 0


def test_small_caches_forget(start):
    sim = start("--time-scale", "0", "--kv-blocks", "40")
    prompt = "words to keep in mind " * 20
    sim.chat(prompt, max_tokens=1)
    assert cached(sim.chat(prompt, max_tokens=1)) > 0
    for i in range(8):
        sim.chat(f"{i} others come along here " * 20, max_tokens=1)
    assert cached(sim.chat(prompt, max_tokens=1)) == 0


def test_metrics_have_vllm_s_names(start):
    sim = start("--time-scale", "0")
    sim.chat(max_tokens=7)
    assert sim.metric("vllm:generation_tokens_total") == 7 and sim.metric("vllm:prompt_tokens_total") > 0
    text = sim.ask("/metrics").body.decode()
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total"):
        assert f'vllm:{name}{{engine="0",model_name="sim"}} ' in text
    assert 'vllm:request_success_total{engine="0",model_name="sim",finished_reason="length"} 1' in text
    assert 'block_size="16"' in text and 'num_gpu_blocks="8192"' in text
    assert 'vllm:time_to_first_token_seconds_bucket{engine="0",model_name="sim",le="+Inf"} 1' in text


class Open:
    """A streamed request that is read only as far as requested."""

    def __init__(self, sim, request_id="open", **more):
        body = json.dumps({"messages": [{"role": "user", "content": "go on"}], "stream": True, "max_tokens": 5000, "ignore_eos": True, **more})
        self.socket = socket.create_connection(("127.0.0.1", sim.port), timeout=20)
        self.socket.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: {request_id}\r\n"
                            f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        self.seen = bytearray()

    def until(self, what):
        looked = 0
        while self.seen.find(what, looked) < 0:
            looked = max(0, len(self.seen) - len(what))
            part = self.socket.recv(65536)
            assert part, bytes(self.seen)
            self.seen += part

    def rest(self):
        try:
            while part := self.socket.recv(65536):
                self.seen += part
        except ConnectionResetError:
            pass
        return self.seen

    def close(self):
        self.socket.close()


def test_requests_queue_for_batch_slots(start):
    sim = start("--max-batch", "2", "--decode-ms", "20")
    opened = [Open(sim, f"q{i}") for i in range(4)]
    sim.wait_for(lambda: (sim.state()["running"], sim.state()["waiting"]) == (2, 2))
    assert sim.metric("vllm:num_requests_running") == 2 and sim.metric("vllm:num_requests_waiting") == 2
    opened[0].close()
    sim.wait_for(lambda: sim.state()["waiting"] == 1)
    assert sim.state()["running"] == 2
    for o in opened:
        o.close()
    sim.wait_for(lambda: sim.state()["open"] == 0)


def test_requests_queue_for_kv_memory(start):
    sim = start("--kv-blocks", "20", "--decode-ms", "50")
    opened = [Open(sim, f"k{i}", max_tokens=2, messages=[{"role": "user", "content": f"{i} some more words here " * 40}]) for i in range(2)]
    sim.wait_for(lambda: sim.state()["waiting"] == 1)
    assert sim.metric("vllm:kv_cache_usage_perc") > 0.5
    for o in opened:
        o.until(b"[DONE]")
        o.close()


def test_full_queue_is_503(start):
    sim = start("--max-batch", "1", "--max-queue", "1", "--decode-ms", "50")
    opened = [Open(sim), Open(sim)]
    sim.wait_for(lambda: sim.state()["open"] == 2)
    r = sim.chat()
    assert r.status == 503 and r.json()["error"]["code"] == "queue_full" and r.headers["retry-after"] == "1"
    for o in opened:
        o.close()


def test_a_client_that_goes_frees_everything(start):
    sim = start("--decode-ms", "5")
    o = Open(sim, "gone")
    o.until(b"content")
    assert sim.state()["kv"]["used"] > 0
    closed = time.time()
    o.close()
    sim.wait_for(lambda: sim.state()["open"] == 0)
    state = sim.state()
    assert state["aborted"] == 1 and state["running"] == 0 and state["kv"]["used"] == 0
    past = state["recent"][0]
    assert past["id"] == "chatcmpl-gone" and past["end"] == "aborted"
    assert abs(past["ended_unix_ms"] / 1000 - closed) < 5
    assert sim.metric("vllm:request_success_total") == 1  # finished_reason="abort"


def test_clients_that_go_while_waiting(start):
    sim = start("--max-batch", "1", "--decode-ms", "5")
    first, second = Open(sim), Open(sim, "waiting", stream=False)
    sim.wait_for(lambda: sim.state()["waiting"] == 1)
    second.close()
    sim.wait_for(lambda: sim.state()["waiting"] == 0)
    assert sim.state()["running"] == 1
    first.close()
    sim.wait_for(lambda: sim.state()["aborted"] == 2)


def test_slow_readers_hold_back_the_stream(start):
    sim = start("--time-scale", "0", "--max-model-len", "131000")
    o = Open(sim, "slow", max_tokens=100000)
    o.until(b"content")
    rss = steady(lambda: int(next(l for l in open(f"/proc/{sim.process.pid}/status") if l.startswith("VmRSS")).split()[1]))
    assert rss < 100 * 1024  # the stream is 15 MB and is not stored
    o.until(b"[DONE]")
    assert o.seen.count(b'"delta":{"content":') == 100001
    o.close()


def test_time_passes_as_the_flags_say(start):
    sim = start("--decode-ms", "10", "--prefill-tokens-per-s", "1000")
    began = time.monotonic()
    sim.chat("word " * 200, max_tokens=11)
    assert time.monotonic() - began >= 0.29  # about 200 ms of prefill, ten decodes
    fast = start("--decode-ms", "60000", "--time-scale", "0")
    assert fast.chat(max_tokens=50).status == 200


def test_paced_streams(start):
    sim = start("--token-interval-us", "2000", "--max-batch", "1000", "--kv-blocks", "100000")
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        counts = list(pool.map(lambda i: len(chunks(sim.chat(f"{i}", stream=True, max_tokens=30, ignore_eos=True).body)), range(50)))
    assert counts == [32] * 50


def test_chunk_per_write(start):
    sim = start("--time-scale", "0", "--chunk-per-write")
    plain = start("--time-scale", "0")
    assert sim.chat(stream=True, n=2).body.count(b"data: ") == plain.chat(stream=True, n=2).body.count(b"data: ")
    trace = chunks(sim.chat(stream=True, max_tokens=20).body)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in trace) == plain.text(max_tokens=20)


def test_workers_share_the_port_and_are_counted_together(start):
    sim = start("--time-scale", "0", "--workers", "3")
    for i in range(30):
        assert sim.chat(f"{i}", max_tokens=3).status == 200
    state = sim.state()
    assert state["workers"] == 3 and state["completed"] == 30 and state["generation_tokens"] == 90
    assert sim.metric("vllm:generation_tokens_total") == 90
    assert sim.faults("http500").status == 200
    assert {sim.chat(f"{i}").status for i in range(20)} == {500}


def test_workers_share_a_port_that_the_system_chose(start):
    """With port 0, all workers listen on the port of the first one."""
    sim = start("--time-scale", "0", "--workers", "3", "--listen", "127.0.0.1:0", known_port=False)

    def ports():
        inodes = set()
        for f in os.scandir(f"/proc/{sim.process.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                inodes.add(os.readlink(f.path))
        rows = [line.split() for line in open("/proc/net/tcp")][1:]
        return [r[1] for r in rows if r[3] == "0A" and f"socket:[{r[9]}]" in inodes]
    sim.wait_for(lambda: len(ports()) == 3)
    assert len(set(ports())) == 1, ports()


def test_thousands_of_aborts_leak_nothing(start):
    sim = start("--decode-ms", "5", "--max-batch", "64")

    def storm(n):
        for i in range(n):
            o = Open(sim, f"s{i}")
            if i % 2:
                o.until(b"200 OK")
            o.close()

    def size():
        return int(next(l for l in open(f"/proc/{sim.process.pid}/status") if l.startswith("VmRSS")).split()[1])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(storm, [50] * 8))
        sim.wait_for(lambda: sim.state()["open"] == 0)
        before = size()
        list(pool.map(storm, [250] * 8))
    sim.wait_for(lambda: sim.state()["open"] == 0)
    state = sim.state()
    assert state["kv"]["used"] == 0 and state["running"] == state["waiting"] == 0
    assert state["aborted"] + state["completed"] == state["requests"]
    assert size() - before < 4096
    assert len(os.listdir(f"/proc/{sim.process.pid}/fd")) < 40


# ---- faults ----


def test_faults_are_set_and_shown(fast):
    shown = fast.faults("http500@0.5", "cut-after=3@every=2").json()["faults"]
    assert shown == ["http500@0.5", "cut-after=3@every=2"] == fast.state()["faults"]
    r = fast.faults("explode")
    assert r.status == 400 and "explode" in r.json()["error"]["message"]
    assert fast.faults().json()["faults"] == []


def test_http_faults(start):
    sim = start("--time-scale", "0", "--fault", "http503@every=2")
    assert [sim.chat().status for _ in range(4)] == [200, 503, 200, 503]
    assert sim.ask("/health").status == 200
    assert sim.state()["faulted"] == 2


def test_refuse_closes_without_a_byte(start):
    sim = start("--time-scale", "0", "--fault", "refuse@after=1")
    assert sim.chat().status == 200
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        sim.chat()


@pytest.mark.parametrize("stream", [True, False])
def test_cut_after(start, stream):
    sim = start("--time-scale", "0", "--fault", "cut-after=4")
    o = Open(sim, stream=stream)
    seen = o.rest()
    assert seen.count(b'"delta":{"content":') == (4 if stream else 0) and b"[DONE]" not in seen
    assert (b"200 OK" in seen) == stream
    sim.wait_for(lambda: sim.state()["open"] == 0)
    state = sim.state()
    assert state["faulted"] == 1 and state["aborted"] == 0 and state["recent"][0]["end"] == "cut" and state["kv"]["used"] == 0
    o.close()


def test_truncated_chunk(start):
    sim = start("--time-scale", "0", "--fault", "truncated-chunk")
    o = Open(sim)
    seen = o.rest()
    assert b"200 OK" in seen and b"[DONE]" not in seen and not seen.endswith((b"\n\n\r\n", b"0\r\n\r\n"))
    plain = Open(sim, stream=False)
    head, body = plain.rest().split(b"\r\n\r\n", 1)
    length = int(next(l.split(b":")[1] for l in head.lower().split(b"\r\n") if l.startswith(b"content-length")))
    assert 0 < len(body) < length
    o.close()
    plain.close()


def test_hang_and_stall_until_the_client_goes(start):
    sim = start("--time-scale", "0", "--fault", "hang")
    o = Open(sim)
    o.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        o.socket.recv(1)
    assert sim.state()["open"] == 1
    o.close()
    sim.wait_for(lambda: sim.state()["aborted"] == 1)
    sim.faults("stall-after=3")
    o = Open(sim)
    o.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        while o.socket.recv(65536):
            pass
    state = sim.state()
    assert state["running"] == 1 and state["kv"]["used"] > 0
    o.close()
    sim.wait_for(lambda: sim.state()["kv"]["used"] == 0)
    sim.faults()
    assert sim.chat().status == 200


def test_die_after(start):
    sim = start("--time-scale", "0", "--fault", "die-after=5")
    o = Open(sim)
    assert o.rest().count(b'"delta":{"content":') == 5
    assert sim.process.wait(timeout=10) == 1
    o.close()


def test_slow_start(start):
    sim = start("--time-scale", "0", "--fault", "slow-start=700ms")
    r = sim.ask("/health")
    assert r.status == 503 and sim.chat().status == 503
    sim.wait_for(lambda: sim.ask("/health").status == 200)
    assert sim.chat().status == 200


# ---- shutdown ----


def test_sigterm_finishes_what_is_open(start):
    sim = start("--decode-ms", "10")
    o = Open(sim, max_tokens=60)
    o.until(b"content")
    sim.process.send_signal(signal.SIGTERM)
    sim.wait_for(lambda: not sim.listens() if sim.process.poll() is None else True)
    o.until(b"[DONE]")
    o.close()
    assert sim.process.wait(timeout=10) == 0


def test_second_signal_ends_at_once(start):
    sim = start("--decode-ms", "10")
    o = Open(sim)
    o.until(b"content")
    sim.process.send_signal(signal.SIGTERM)
    sim.wait_for(lambda: not sim.listens())  # it has taken the first signal, and waits for the stream
    sim.process.send_signal(signal.SIGTERM)
    assert sim.process.wait(timeout=WAIT_S) == 143
    o.close()


def test_a_lower_clock_slows_prompts_more_than_decode(start):
    s = start("--time-scale", "0")
    assert s.ask("/sim/clock", {"share": 0.5}).json() == {"decode_time": 1.032, "prefill_time": 2.0, "watts_above_idle": 0.5624}
    assert s.ask("/sim/clock", {"share": 1}).json() == {"decode_time": 1.0, "prefill_time": 1.0, "watts_above_idle": 1.0}
    for bad in ({}, {"share": 0}, {"share": 1.01}, {"share": "half"}, []):
        r = s.ask("/sim/clock", bad)
        assert r.status == 400, bad
