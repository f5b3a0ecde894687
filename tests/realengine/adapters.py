# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters that `cgn-ctl model load` brings into a real engine: what vLLM and SGLang must both show."""
import json
import random
import subprocess

from cluster import BUILD
from engines import MODEL, until

CTL = BUILD / "src/ctl/cgn-ctl"


def model(world, *args):
    """Run cgn-ctl model; return (exit status, what it printed)."""
    done = subprocess.run([CTL, "model", *args, "--router", f"127.0.0.1:{world.grpc_port}"], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def state(world, name):
    rows = json.loads(model(world, "ls", "-o", "json")[1]).get("models", [])
    return [p["state"] for m in rows if m["name"] == name for p in m.get("places", [])]


def text_of(answer):
    assert answer.status == 200, answer.body
    return answer.json()["choices"][0]["message"]["content"]


def load_and_unload(world, engine, lora, at_engine, refusal):
    """|at_engine|: (path to load, path to unload, how a request to the engine names an adapter); |refusal|: its words for a wrong path."""
    load, unload, named = at_engine
    body = {"model": MODEL, "temperature": 0, "max_tokens": 12, "messages": [{"role": "user", "content": f"{random.random()} count the sheep"}]}

    code, said = model(world, "load", "wrong", "--lora", "/nowhere/lora", "--base", MODEL, "--wait", "--timeout", "60s")
    assert code != 0 and refusal in said and state(world, "wrong") == ["failed"], said
    assert model(world, "unload", "wrong", "--wait", "--timeout", "60s")[0] == 0  # the engine does not have it

    code, said = model(world, "load", "late", "--lora", lora, "--base", MODEL, "--wait", "--timeout", "60s")
    assert code == 0 and state(world, "late") == ["ready"], said
    until(lambda: world.post("/v1/chat/completions", {**body, "model": "late"}).status == 200, "it is served")
    relayed = world.post("/v1/chat/completions", {**body, "model": "late"})
    assert relayed.json()["model"] == "late"
    assert text_of(relayed) == text_of(engine.ask("/v1/chat/completions", {**body, "model": named("late")}))
    assert text_of(relayed) != text_of(world.post("/v1/chat/completions", body))

    assert engine.ask(load, {"lora_name": "twice", "lora_path": lora}).status == 200  # by another hand
    code, said = model(world, "load", "twice", "--lora", lora, "--base", MODEL, "--wait", "--timeout", "60s")
    assert code == 0 and state(world, "twice") == ["ready"], said

    assert engine.ask(unload, {"lora_name": "twice"}).status == 200
    for name in ("late", "twice"):
        code, said = model(world, "unload", name, "--wait", "--timeout", "60s")
        assert code == 0, said
        until(lambda name=name: world.post("/v1/chat/completions", {**body, "model": name}).status in (404, 503), "it is gone")  # 503: the name is configured
