# SPDX-License-Identifier: Apache-2.0
"""A real vLLM behind agent and router: the bytes that clients get, the tokens that the router counts, and the cached tokens that it
predicts, each against what the engine itself says."""
import concurrent.futures
import contextlib
import json
import random
import socket
import subprocess

import pytest

from adapters import load_and_unload, model, state
from cluster import BUILD
from engines import BLOCK, MODEL, ask, until, without_ids, words


def usage(body, path):
    """Return (tokens of the prompt, cached tokens) as the engine counted."""
    if isinstance(body, bytes) and body.startswith(b"data:"):
        body = [line[6:] for line in body.split(b"\n") if b'"usage":{' in line][-1]
    u = json.loads(body)["usage"]
    if path.endswith("responses"):
        return u["input_tokens"], u["input_tokens_details"]["cached_tokens"]
    if path.endswith("messages"):
        read = u.get("cache_read_input_tokens") or 0
        return u["input_tokens"] + read + (u.get("cache_creation_input_tokens") or 0), read
    return u["prompt_tokens"], (u.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def predicted(answer):
    """Return (blocks that the node holds, blocks of the prompt) as the router predicted. Of a prompt that is held to its end, vLLM
    computes the last block again, to have a first token: World.cached knows that."""
    return tuple(map(int, answer.headers["x-cgn-cache-hit"].split("/")))


def chat(text, **more):
    return {"model": MODEL, "temperature": 0, "max_tokens": 8, "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": text}], **more}


SHAPES = {
    "chat": ("/v1/chat/completions", lambda t: chat(t, logprobs=True, top_logprobs=2, return_token_ids=True)),
    "chat streamed": ("/v1/chat/completions", lambda t: chat(t, stream=True, stream_options={"include_usage": True}, return_token_ids=True)),
    "completion": ("/v1/completions", lambda t: {"model": MODEL, "temperature": 0, "max_tokens": 8, "prompt": t, "logprobs": 1}),
    "completion streamed": ("/v1/completions", lambda t: {"model": MODEL, "temperature": 0, "max_tokens": 8, "prompt": t, "stream": True}),
    "messages": ("/v1/messages", lambda t: {"model": MODEL, "temperature": 0, "max_tokens": 8, "messages": [{"role": "user", "content": t}]}),
    "messages streamed": ("/v1/messages", lambda t: {"model": MODEL, "temperature": 0, "max_tokens": 8, "stream": True,
                                                    "messages": [{"role": "user", "content": t}]}),
    "refused": ("/v1/chat/completions", lambda t: chat(t, temperature=-1)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_answers_are_the_engines(world, pair, made, shape):
    """Except for ids and times, the bytes through the router are those of the engine, which has the prompt cached both times."""
    world.begin(pair[:1], made[1])
    path, body_of = SHAPES[shape]
    rng = random.Random(shape)
    for _ in range(3):
        body = body_of(words(rng.randint(3, 150), rng))
        pair[0].ask(path, body)
        for _ in range(5):  # an engine sends several tokens in one event when its own loop is late
            direct, relayed = pair[0].ask(path, body), world.post(path, body)
            if without_ids(relayed.body) == without_ids(direct.body):
                break
        assert relayed.status == direct.status
        assert without_ids(relayed.body) == without_ids(direct.body)
        assert relayed.headers["content-type"] == direct.headers["content-type"]


PROMPTS = {
    "tools": {"tool_choice": "none", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two "}]}]},
    "assistant": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]},
    "continued": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "add_generation_prompt": False,
                  "continue_final_message": True},
    "special words": {"messages": [{"role": "user", "content": "<|eot_id|> and <|begin_of_text|>"}]},
    "spaces": {"messages": [{"role": "user", "content": "  \n\n two  spaces\t\r\n "}]},
}


@pytest.mark.parametrize("source", ["file", "engine"])
def test_prompts_are_counted_as_the_engine_does(world, pair, made, source):
    """The blocks of each prompt are those that the engine counts, and it predicts the whole prompt when it comes again."""
    world.begin(pair[:1], made[1], tokens=source)
    rng = random.Random(source)
    for name, more in PROMPTS.items():
        body = {**chat(words(70, rng)), **more}
        body["messages"] = [{"role": "system", "content": words(90, rng)}, *body["messages"]]
        first = world.post("/v1/chat/completions", body)
        assert first.status == 200, (name, first.body)
        tokens, _ = usage(first.body, "chat")
        assert predicted(first)[1] == tokens // BLOCK, name
        engine = ask(pair[0].port, "POST", "/tokenize", {k: body[k] for k in body if k in ("model", "messages", "tools", "add_generation_prompt",
                                                                                         "continue_final_message")}).json()
        assert engine["count"] == tokens, name
        again = world.post("/v1/chat/completions", body)
        assert world.cached(again) == usage(again.body, "chat")[1] == (tokens - 1) // BLOCK * BLOCK, name


def test_predicted_tokens_of_a_conversation(world, pair, made):
    """20 turns, each sent at once after the answer: the router predicts what the engine finds in its cache."""
    world.begin(pair, made[1])
    rng = random.Random(2)
    messages, rows = [{"role": "system", "content": words(60, rng)}], []
    for turn in range(20):
        messages.append({"role": "user", "content": words(rng.randint(5, 60), rng)})
        a = world.post("/v1/chat/completions", {"model": MODEL, "temperature": 0, "max_tokens": 24, "messages": messages})
        assert a.status == 200, a.body
        tokens, cached = usage(a.body, "chat")
        rows.append((turn, a.headers["x-cgn-node"], tokens, cached, world.cached(a)))
        messages.append({"role": "assistant", "content": a.json()["choices"][0]["message"]["content"]})
    assert all(cached == said for _, _, _, cached, said in rows), rows
    assert rows[-1][3] > 0, rows


def mixed(rng, i, systems):
    kind = rng.choice(["chat", "chat", "cmpl", "ids", "messages", "stream", "salt", "tools", "parts", "lora"])
    system, text = rng.choice(systems), words(rng.randint(2, 120), rng) if rng.random() < .6 else rng.choice(systems)[:200]
    base, messages = {"model": MODEL, "temperature": 0, "max_tokens": 4}, [{"role": "system", "content": system}, {"role": "user", "content": text}]
    match kind:
        case "cmpl":
            return kind, "/v1/completions", {**base, "prompt": system + text}
        case "ids":
            ids = random.Random(i % 5)
            return kind, "/v1/completions", {**base, "prompt": [ids.randrange(100, 3000) for _ in range(rng.randint(33, 300))]}
        case "messages":
            return kind, "/v1/messages", {**base, "system": system, "messages": messages[1:]}
        case "salt":
            base["cache_salt"] = f"s{rng.randrange(2)}"
        case "tools":
            base |= PROMPTS["tools"]
        case "parts":
            messages[1] = {"role": "user", "content": [{"type": "text", "text": text}, {"type": "text", "text": "and"}]}
        case "stream":
            base |= {"stream": True, "stream_options": {"include_usage": True}}
        case "lora":
            base["model"] = "known"
    return kind, "/v1/chat/completions", {**base, "messages": messages}


def test_predicted_tokens_of_mixed_requests(world, pair, made):
    """200 requests of all shapes, with salts and a LoRA, one after the other."""
    world.begin(pair, made[1])
    systems = [words(80, random.Random(i)) for i in range(4)]
    wrong, cached_tokens = [], 0
    for i in range(200):
        kind, path, body = mixed(random.Random(1000 + i), i, systems)
        a = world.post(path, body)
        assert a.status == 200, (kind, a.body)
        tokens, cached = usage(a.body, path)
        cached_tokens += cached
        if (world.cached(a), predicted(a)[1]) != (cached, tokens // BLOCK):
            wrong.append((i, kind, a.headers["x-cgn-node"], tokens, cached, a.headers["x-cgn-cache-hit"]))
    assert not wrong, (len(wrong), wrong[:20])
    assert cached_tokens > 10000


def test_tenants_find_their_own_prompts_only(world, pair, made, tmp_path):
    """vLLM hashes the tenant's salt, at each API that has prompts; the router predicts what it counts."""
    keys = {t: subprocess.run([BUILD / "src/ctl/cgn-ctl", "key", "create", "--file", tmp_path / "keys", "--tenant", t], check=True, capture_output=True,
                              text=True).stdout.strip() for t in ("a", "b")}
    world.begin(pair[:1], made[1], router={"auth": {"enabled": True, "api_keys_file": str(tmp_path / "keys")}})
    text = words(150, random.Random("tenants"))
    for path, body in (("/v1/chat/completions", chat(f"1 {text}")), ("/v1/completions", {"model": MODEL, "max_tokens": 4, "prompt": f"2 {text}"}),
                       ("/v1/messages", {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": f"3 {text}"}]}),
                       ("/v1/responses", {"model": MODEL, "max_output_tokens": 4, "input": f"4 {text}"})):
        found = []
        for tenant in ("a", "a", "b", "b"):
            a = world.post(path, {**body, "cache_salt": "my own"}, Authorization=f"Bearer {keys[tenant]}")
            assert a.status == 200, (path, a.body)
            found.append(usage(a.body, path)[1])
            assert world.cached(a) == found[-1], (path, tenant)
            world.settle(pair[0].name)
        assert found[0] < 2 * BLOCK and found[2] == found[0] and found[1] == found[3] > 100, (path, found)


@contextlib.contextmanager
def leave_while_it_answers(world):
    """A client whose long answer has begun; it is gone at the end."""
    body = json.dumps(chat("go on", max_tokens=7000, ignore_eos=True, stream=True)).encode()
    with socket.create_connection(("127.0.0.1", world.http_port)) as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert b"data:" in s.recv(65536) + s.recv(65536)
        yield


def test_a_client_that_leaves_ends_the_engines_work(world, pair, made):
    world.begin(pair[:1], made[1])
    with leave_while_it_answers(world):
        until(lambda: pair[0].metric("vllm:num_requests_running") == 1, "the engine works")
    until(lambda: pair[0].metric("vllm:num_requests_running") == 0, "the engine was told to stop")


def test_a_lora_loaded_while_it_runs(world, pair, made):
    """Loaded at the engine, it becomes a model of the router, with blocks of its own."""
    e = pair[0]
    world.begin([e], made[1])
    text = f"{random.random()} " + words(100, random.Random("late"))
    world.post("/v1/chat/completions", chat(text))
    assert e.ask("/v1/load_lora_adapter", {"lora_name": "late", "lora_path": str(made[1] / "lora")}).status in (200, 400)  # 400: an earlier run loaded it
    first = until(lambda: (lambda a: a if a.status == 200 else None)(world.post("/v1/chat/completions", chat(text, model="late"))), "the model is known")
    assert world.cached(first) == usage(first.body, "chat")[1] == 0
    again = world.post("/v1/chat/completions", chat(text, model="late"))
    assert world.cached(again) == usage(again.body, "chat")[1] > 0
    assert e.ask("/v1/unload_lora_adapter", {"lora_name": "late"}).status == 200
    until(lambda: world.post("/v1/chat/completions", chat(text, model="late")).status in (404, 503), "the model is gone")


def test_adapters_by_cgn_ctl(world, pair, made):
    world.begin(pair[:1], made[1])
    load_and_unload(world, pair[0], str(made[1] / "lora"), ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", lambda name: name), "No adapter found for")


def test_sleep_and_wake_by_cgn_ctl(world, pair, made):
    """On a CPU vLLM stops its scheduler and empties its cache, and gives no memory back. Its cache is empty after the wake."""
    world.begin(pair[:1], made[1])
    text = f"{random.random()} " + words(60, random.Random("sleep"))
    before = world.post("/v1/chat/completions", chat(text))
    assert before.status == 200
    for order, said, asleep in (("sleep", "asleep", True), ("wake", "ready", False)):
        code, shown = model(world, order, MODEL, "--wait", "--timeout", "60s")
        assert code == 0 and state(world, MODEL) == [said], shown
        assert ask(pair[0].port, "GET", "/is_sleeping").json() == {"is_sleeping": asleep}
    after = until(lambda: (lambda a: a if a.status == 200 else None)(world.post("/v1/chat/completions", chat(text))), "it serves again")
    assert after.json()["choices"][0]["message"] == before.json()["choices"][0]["message"] and usage(after.body, "chat")[1] == 0


def test_a_cache_that_is_emptied_is_noticed(world, pair, made):
    """vLLM publishes events when it computes something: an idle engine publishes it with the next request."""
    world.begin(pair[:1], made[1])
    text = words(150, random.Random("reset"))
    until(lambda: predicted(world.post("/v1/chat/completions", chat(text)))[0] > 2, "the prompt is known")
    assert pair[0].ask("/reset_prefix_cache", {}).status == 200
    until(lambda: world.post("/v1/chat/completions", chat("hi")).status == 200 and world.metric("cgn_index_held", node=pair[0].name) < 3, "little is held")


def test_many_at_once(world, pair, made):
    """Requests of four threads: what a shared prefix costs is predicted for the second and later ones."""
    world.begin(pair, made[1])
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda i: world.post("/v1/chat/completions", chat(words(60, random.Random(i % 7)))), range(40)))
    assert all(a.status == 200 for a in answers)
    assert sum(predicted(a)[0] for a in answers) > 0


def test_stored_responses_are_continued_and_fetched(world, pair, made):
    """Each response is known to one engine: requests that name it get there, plain and streamed, though the policy takes turns."""
    world.begin(pair, made[1], router={"router": {"policy": "round_robin"}})
    rng, by_port = random.Random(6), {e.name: e for e in pair}
    for i in range(6):
        body = {"model": MODEL, "input": words(20, rng), "max_output_tokens": 8, "temperature": 0, "store": True, "stream": i % 2 == 1}
        first = world.post("/v1/responses", body)
        assert first.status == 200, first.body
        events = [json.loads(t) for _, t in first.events()] if body["stream"] else []
        said = events[-1]["response"] if events else first.json()
        home = first.headers["x-cgn-node"]
        assert [e["type"] for e in events][:1] in ([], ["response.created"]) and said["status"] in ("completed", "incomplete")
        for e in pair:
            assert ask(e.port, "GET", f"/v1/responses/{said['id']}").status == (200 if e.name == home else 404)
        fetched = ask(world.http_port, "GET", f"/v1/responses/{said['id']}")
        assert fetched.status == 200 and fetched.body == ask(by_port[home].port, "GET", f"/v1/responses/{said['id']}").body
        for stream in (False, True):
            then = world.post("/v1/responses", {**body, "input": "and then?", "stream": stream, "previous_response_id": said["id"]})
            assert then.status == 200 and then.headers["x-cgn-node"] == home, then.body
            if not stream:
                assert then.json()["usage"]["input_tokens"] > said["usage"]["input_tokens"]
    assert world.post("/v1/responses", {**body, "stream": False, "previous_response_id": "resp_unknown"}).status == 404
