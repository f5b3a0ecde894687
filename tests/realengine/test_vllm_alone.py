# SPDX-License-Identifier: Apache-2.0
"""A vLLM of its own for each test: managed by the agent, without prefix cache, with two data-parallel ranks."""
import json
import os
import pathlib
import random
import signal
import subprocess

import pytest

from cluster import BUILD, Node, free_port
from engines import BLOCK, MODEL, READY_S, Vllm, ask, environment, free_ports, until, words
from test_vllm import chat, predicted, usage


@pytest.fixture
def single(made, tmp_path):
    started = []

    def start(*flags, **more):
        started.append(Vllm(tmp_path, "single", *flags, made=made, **more))
        return started[-1].start().wait()
    yield start
    for e in started:
        e.kill()


def managed(made, port):
    venv, model = made
    events = [f"tcp://127.0.0.1:{free_ports(1)}" for _ in range(2)]
    return {"kind": "vllm", "managed": True, "binary": str(venv / "bin/vllm"), "model": MODEL, "model_path": str(model), "n_ctx": 8192,
            "url": f"http://127.0.0.1:{port}", "ready_timeout": f"{READY_S}s", "restart_backoff": "50ms", "stall_timeout": "60s",
            "kv_events": events[0], "kv_events_replay": events[1], "env": [f"{k}={v}" for k, v in environment().items()],
            "extra_args": ["--enforce-eager", "--block-size", str(BLOCK), "--enable-prompt-tokens-details"]}


def engine_pids(port):
    """Return the processes whose command line serves at this port."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            argv = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"serve" in argv and str(port).encode() in argv and any(a.endswith(b"/vllm") for a in argv):
            found.append(int(entry.name))
    return found


def test_a_managed_vllm_is_killed_and_comes_back(world, made):
    """What --print-argv prints is the command line that runs. After kill -9 the agent starts it again, and its cache is empty."""
    port = free_port()
    world.common = {f'models."{MODEL}"': {"tokenizer": str(made[1] / "tokenizer.json"), "block_tokens": BLOCK}}
    world.router()
    agent, agent_port, admin = world.agent("m", port, {"engine": managed(made, port)})
    world.nodes["m"] = Node("m", None, agent, port, agent_port, admin)
    printed = json.loads(subprocess.run([BUILD / "src/agent/cgn-agent", "--config", world.folder / "agent-m.toml", "--print-argv"], check=True,
                                        capture_output=True, text=True).stdout)
    printed = printed[0] if isinstance(printed, list) else printed
    until(lambda: world.states().get("m") == "ready", lambda: world.logs(), READY_S, 0.2)
    pid = engine_pids(port)[0]
    running = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
    assert running[-len(printed["argv"]) + 1:] == printed["argv"][1:]
    until(lambda: world.ask("GET", "/readyz").status == 200, "the workers know of it")
    text = words(120, random.Random(5))
    until(lambda: predicted(world.post("/v1/chat/completions", chat(text)))[0] > 2, "the prompt is known")
    os.kill(pid, signal.SIGKILL)
    until(lambda: world.states().get("m") != "ready", "the loss is noticed")
    until(lambda: world.states().get("m") == "ready", lambda: world.logs(), READY_S, 0.2)
    first = until(lambda: (lambda a: a if a.status == 200 else None)(world.post("/v1/chat/completions", chat(text))), "it answers")
    assert (predicted(first)[0], usage(first.body, "chat")[1]) == (0, 0)
    until(lambda: predicted(world.post("/v1/chat/completions", chat(text)))[0] > 2, "its events are followed again")
    agent.stop()
    assert engine_pids(port) == []


def test_without_prefix_cache_nothing_is_predicted(world, single, made):
    e = single("--no-enable-prefix-caching")
    world.begin([e], made[1], source="none")
    for _ in range(5):
        a = world.post("/v1/chat/completions", chat(words(120, random.Random(5))))
        assert a.status == 200 and usage(a.body, "chat")[1] == 0
        assert predicted(a)[0] == 0


def test_two_ranks(world, single, made):
    """Both ranks' events fill the index, and each prompt that comes again is predicted as found at most."""
    e = single("--data-parallel-size", "2", ranks=2)
    world.begin([e], made[1])
    for i in range(12):
        a = world.post("/v1/chat/completions", chat(words(120, random.Random(i % 6))))
        assert a.status == 200
    state = until(lambda: (lambda s: s if s["blocks"] > 0 else None)(world.residency("single")), "the index is filled")
    assert state["source"] == "events"
    assert ask(e.port, "GET", "/metrics").body.decode().count('vllm:num_requests_running{engine="1"') == 1
