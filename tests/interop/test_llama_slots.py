# SPDX-License-Identifier: Apache-2.0
"""A real llama-server whose slots the agent assigns: what a slot held comes back from cgn-kvcached, and the answers are those of a cold run."""
import os
import random
import signal
import subprocess
import sys
import threading

import pytest

from cluster import ROOT, Cluster, ask, free_port, until

WORDS = "sea wind salt gull rope tide moon sand wave ship fog bell star dune reef kelp foam crab harbour night".split()
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CONTEXT = 6144


def prose(seed, n):
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(n))


def completion(prompt, n=24, **more):
    return {"model": "tiny", "prompt": prompt, "max_tokens": n, "temperature": 0, "seed": 1, **more}


def text_of(answer):
    assert answer.status == 200, answer.body
    choice = answer.json()["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def cached(answer):
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def kvcached(c, name, **kv):
    """A cgn-kvcached; its Unix socket."""
    uds = str(c.folder / f"{name}.sock")
    c.run(f"kvcached-{name}", "cgn-kvcached", "--config", c.config(f"kvcached-{name}", {
        "kv": {"uds": uds, "ram": "256MiB", "listen_admin": f"127.0.0.1:{free_port()}", "worker_threads": 1, **kv}}))
    until(lambda: os.path.exists(uds + ".bulk"), "the store listens")
    return uds


class World:
    """A router, stores, agents with a managed llama-server each, and a llama-server that never has anything in cache."""

    def __init__(self, folder, binary):
        self.c, self.binary, self.agents, self.admin, self.engine, self.twin = Cluster(folder), binary, {}, {}, {}, None
        self.c.MODEL = "tiny"
        self.model = folder / "tiny.gguf"
        subprocess.run([sys.executable, ROOT / "scripts/run/tiny-gguf.py", self.model], check=True, stdout=subprocess.DEVNULL)
        self.twin_port = free_port()
        argv = [binary, "--model", self.model, "--host", "127.0.0.1", "--port", str(self.twin_port), "--threads", "1", "--parallel", "1",
                "--ctx-size", str(CONTEXT), "--cache-ram", "0"]
        with open(folder / "twin.log", "wb") as log:
            self.twin = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.c.router({"models.tiny": {"block_bytes": 32}})

    def node(self, name, uds, slots=1, agent=None, **engine):
        port = self.engine[name] = free_port()
        slot_dir = self.c.folder / f"slots-{name}"
        self.agents[name], _, self.admin[name] = self.c.agent(name, port, {
            "agent": {"kv_uds": uds, **(agent or {})}, "models.tiny": {"block_bytes": 32},
            "engine": {"kind": "llama_cpp", "managed": True, "binary": self.binary, "model": "tiny", "model_path": str(self.model), "slots": slots,
                       "n_threads": 1, "n_ctx": CONTEXT * slots, "slot_dir": str(slot_dir), "restart_backoff": "50ms", "kv_save_min_tokens": 64,
                       "kv_save_idle": "20ms", **engine}})
        return slot_dir

    def ready(self):
        self.c.wait_ready(len(self.agents))
        for name in self.agents:
            until(lambda n=name: self.kept(n)["at_work"], lambda n=name: f"{n} keeps its slots: {self.kept(n)}")
        until(self.twin_answers, "the twin is ready")

    def twin_answers(self):
        try:
            return ask(self.twin_port, "GET", "/health").status == 200
        except OSError:
            return False

    def kept(self, name="a"):
        return ask(self.admin[name], "GET", "/engines").json()["engines"][0]["kept_slots"]

    def cold(self, path, body):
        got = ask(self.twin_port, "POST", path, body | {"cache_prompt": False})
        assert cached(got) == 0
        return text_of(got)

    def asked(self, path, body, headers=None):
        """The answer, which is that of a cold run."""
        got = self.c.ask("POST", path, body, headers)
        assert text_of(got) == self.cold(path, body)
        return got

    def saved(self, n, name="a"):
        until(lambda: self.kept(name)["saves"] >= n, lambda: f"{n} states are saved: {self.kept(name)}")
        return self.kept(name)

    def close(self):
        for a in self.agents.values():
            a.stop()
        if self.twin:
            self.twin.kill()
            self.twin.wait()
        self.c.close()


@pytest.fixture
def world(binary, tmp_path):
    w = World(tmp_path, binary)
    try:
        yield w
    finally:
        w.close()


def test_what_a_slot_held_comes_back(world):
    w = world
    slot_dir = w.node("a", kvcached(w.c, "a"))
    w.ready()
    one, other = prose(1, 200), prose(2, 200)
    first = w.asked(TEXT, completion(one))
    assert cached(first) == 0
    w.saved(1)
    assert cached(w.asked(TEXT, completion(other))) < 16  # the only slot is another's now
    w.saved(2)
    # Exactly the same, longer, branching in the middle, on and beside the boundary of a block.
    prompts = [one, one + text_of(first) + prose(3, 20), one[:600] + prose(4, 30), one[:32 * 20], one[:32 * 20 + 1], one[:32 * 20 - 1] + "!"]
    for i, prompt in enumerate(prompts):
        common = len(os.path.commonprefix([prompt, one + text_of(first)]))
        got = w.asked(TEXT, completion(prompt))
        tokens = got.json()["usage"]["prompt_tokens"]
        # Bytes are about tokens in this model; a few lie where the two differ.
        assert cached(got) >= tokens * common / len(prompt) * 0.9 - 40, (i, cached(got), tokens, common)
        assert cached(w.asked(TEXT, completion(other))) > 500  # which takes the slot again, and has it back too
    kept = w.kept()
    assert kept["restores"] >= 2 * len(prompts) - 2 and kept["restore_failures"] == 0 and kept["save_failures"] == 0, kept
    assert kept["restored_tokens"] > 3000 and kept["strays"] == 0 and kept["spared_ms"] > 0, kept
    until(lambda: not [f for f in os.listdir(slot_dir)], lambda: f"no file stays behind: {os.listdir(slot_dir)}")
