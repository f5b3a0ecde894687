# SPDX-License-Identifier: Apache-2.0
"""A real SGLang on the CPU behind agent and router. It cannot hand prompts over there: the packages of its transfer backends (NIXL, Mooncake)
move memory of GPUs."""
import json
import os
import pathlib
import random
import signal
import subprocess

import pytest

from adapters import load_and_unload
from cluster import BUILD, Node, free_port
from engines import BLOCK, MODEL, READY_S, SGLANG_FLAGS, Missing, Sglang, ask, prepare_sglang, sglang_environment, until, without_ids, words
from test_vllm import PROMPTS, SHAPES, chat, leave_while_it_answers, predicted, usage


@pytest.fixture(scope="module")
def made_sglang(tmp_path_factory):
    try:
        return prepare_sglang(tmp_path_factory.mktemp("stub"))
    except Missing as why:
        pytest.skip(f"no real SGLang: {why}")


SGLANG_LORA = ["--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "q_proj", "v_proj", "--lora-backend", "torch_native"]


@pytest.fixture(scope="module")
def sglang(made_sglang, tmp_path_factory):
    e = Sglang(tmp_path_factory.mktemp("sglang"), "s", *SGLANG_LORA, made=made_sglang)
    try:
        yield e.start().wait()
    finally:
        e.kill()


@pytest.mark.parametrize("shape", SHAPES)
def test_answers_are_the_engines(world, sglang, shape):
    """Except for ids and times, the bytes through the router are those of the engine, which has the prompt cached both times."""
    world.begin([sglang], sglang.model)
    path, body_of = SHAPES[shape]
    rng = random.Random(shape)
    for _ in range(3):
        body = body_of(words(rng.randint(3, 150), rng))
        sglang.ask(path, body)
        for _ in range(5):  # an engine sends several tokens in one event when its own loop is late
            direct, relayed = sglang.ask(path, body), world.post(path, body)
            if without_ids(relayed.body) == without_ids(direct.body):
                break
        assert relayed.status == direct.status
        assert without_ids(relayed.body) == without_ids(direct.body)
        assert relayed.headers["content-type"] == direct.headers["content-type"]


@pytest.mark.parametrize("source", ["file", "engine"])
def test_prompts_are_counted_as_the_engine_does(world, sglang, source):
    """The blocks of each prompt are those that the engine counts, and it predicts the whole prompt when it comes again."""
    world.begin([sglang], sglang.model, tokens=source)
    rng = random.Random(source)
    for name in ("assistant", "special words", "spaces"):
        body = {**chat(words(70, rng)), **PROMPTS[name]}
        body["messages"] = [{"role": "system", "content": words(90, rng)}, *body["messages"]]
        first = world.post("/v1/chat/completions", body)
        assert first.status == 200, (name, first.body)
        tokens, _ = usage(first.body, "chat")
        assert predicted(first)[1] == tokens // BLOCK, name
        again = world.post("/v1/chat/completions", body)
        assert world.cached(again) == usage(again.body, "chat")[1] == (tokens - 1) // BLOCK * BLOCK, name


def test_a_conversation_of_twenty_turns_is_predicted(world, sglang):
    """SGLang publishes an answer's last block when it is idle again, some milliseconds after the answer: each turn waits for that."""
    world.begin([sglang], sglang.model)
    rng, rows = random.Random(20), []
    messages = [{"role": "system", "content": f"{random.SystemRandom().random()} " + words(60, rng)}]
    for turn in range(20):
        messages.append({"role": "user", "content": words(rng.randint(5, 60), rng)})
        a = world.post("/v1/chat/completions", {**chat(""), "messages": messages, "max_tokens": rng.randint(4, 24)})
        assert a.status == 200, a.body
        rows.append((turn, usage(a.body, "chat")[1], world.cached(a)))
        messages.append({"role": "assistant", "content": a.json()["choices"][0]["message"]["content"]})
        world.settle("s")
    assert not [row for row in rows if row[1] != row[2]], rows
    assert rows[-1][1] > 0, rows


def test_its_events_fill_the_index(world, sglang):
    """A prompt's blocks are held once its events came, and no longer when the cache was emptied."""
    world.begin([sglang], sglang.model)
    sglang.ask("/flush_cache", {})
    text = f"{random.SystemRandom().random()} " + words(150, random.Random("events"))
    until(lambda: world.post("/v1/chat/completions", chat("hi")).status == 200 and world.residency("s")["blocks"] < 3, "the cache is known to be empty")
    tokens, _ = usage(world.post("/v1/chat/completions", chat(text)).body, "chat")
    until(lambda: world.residency("s")["blocks"] >= tokens // BLOCK, lambda: world.residency("s"))
    assert sglang.ask("/flush_cache", {}).status == 200
    until(lambda: world.post("/v1/chat/completions", chat("hi")).status == 200 and world.residency("s")["blocks"] < 3, lambda: world.residency("s"))


def test_adapters_by_cgn_ctl(world, sglang):
    """SGLang knows an adapter as BASE:ADAPTER, and has prefix blocks for each."""
    world.begin([sglang], sglang.model)
    lora = str(sglang.model / "lora")
    load_and_unload(world, sglang, lora, ("/load_lora_adapter", "/unload_lora_adapter", lambda name: f"{MODEL}:{name}"), "/nowhere/lora")
    assert sglang.ask("/load_lora_adapter", {"lora_name": "known", "lora_path": lora}).status == 200
    text = f"{random.random()} " + words(100, random.Random("known"))
    assert usage(world.post("/v1/chat/completions", chat(text)).body, "chat")[1] == 0
    first = until(lambda: (lambda a: a if a.status == 200 else None)(world.post("/v1/chat/completions", chat(text, model="known"))), "the model is known")
    assert world.cached(first) == usage(first.body, "chat")[1] == 0
    again = world.post("/v1/chat/completions", chat(text, model="known"))
    assert world.cached(again) == usage(again.body, "chat")[1] > 0
    assert sglang.ask("/unload_lora_adapter", {"lora_name": "known"}).status == 200


def test_a_client_that_leaves_ends_the_engines_work(world, sglang):
    world.begin([sglang], sglang.model)
    with leave_while_it_answers(world):
        until(lambda: sglang.metric("sglang:num_running_reqs") == 1, "the engine works")
    until(lambda: sglang.metric("sglang:num_running_reqs") == 0, "the engine was told to stop")


def processes_of(port):
    """Return the main processes of an SGLang that serves at this port."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            argv = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sglang.launch_server" in argv and str(port).encode() in argv:
            found.append(int(entry.name))
    return sorted(found)


def test_a_managed_sglang_is_killed_and_comes_back(world, made_sglang):
    """What --print-argv prints is what runs; after kill -9 the agent starts it again, and its cache is empty."""
    venv, model, stub = made_sglang
    port = free_port()
    world.common = {f'models."{MODEL}"': {"tokenizer": str(model / "tokenizer.json"), "block_tokens": BLOCK}}
    world.router()
    engine = {"kind": "sglang", "managed": True, "binary": str(venv / "bin/python"), "model": MODEL, "model_path": str(model),
              "url": f"http://127.0.0.1:{port}", "ready_timeout": f"{READY_S}s", "restart_backoff": "50ms", "stall_timeout": "60s",
              "env": [f"{k}={v}" for k, v in sglang_environment(stub).items()], "extra_args": SGLANG_FLAGS}
    agent, agent_port, admin = world.agent("m", port, {"engine": engine})
    world.nodes["m"] = Node("m", None, agent, port, agent_port, admin)
    printed = json.loads(subprocess.run([BUILD / "src/agent/cgn-agent", "--config", world.folder / "agent-m.toml", "--print-argv"], check=True,
                                        capture_output=True, text=True).stdout)
    until(lambda: world.states().get("m") == "ready", lambda: world.logs(), READY_S, 0.2)
    pid = processes_of(port)[0]
    assert pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")[1:] == printed["argv"][1:]
    until(lambda: world.ask("GET", "/readyz").status == 200, "the workers know of it")
    text = words(120, random.Random(5))
    until(lambda: predicted(world.post("/v1/chat/completions", chat(text)))[0] > 2, "the prompt is known")
    until(lambda: world.residency("m")["source"] == "events", "its events are followed")
    os.kill(pid, signal.SIGKILL)
    until(lambda: world.states().get("m") != "ready", "the loss is noticed")
    until(lambda: world.states().get("m") == "ready", lambda: world.logs(), READY_S, 0.2)
    first = until(lambda: (lambda a: a if a.status == 200 else None)(world.post("/v1/chat/completions", chat(text))), "it answers")
    assert (predicted(first)[0], usage(first.body, "chat")[1]) == (0, 0)
    until(lambda: predicted(world.post("/v1/chat/completions", chat(text)))[0] > 2, "its events are followed again")
    agent.stop()
    assert processes_of(port) == []
    assert ask(world.admin_port, "GET", "/healthz").status == 200
