# SPDX-License-Identifier: Apache-2.0
"""A real llama-server whose slots the agent assigns: saved states are restored from cgn-kvcached, and the
answers equal those of a cold run."""
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading

import pytest

import tiny_lora
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


def deltas(answer):
    return [e["choices"][0]["delta"].get("content") for _, d in answer.events() if d != "[DONE]" for e in [json.loads(d)] if e["choices"]]


def node_of(w, name="a"):
    return next(n for n in w.c.status()["nodes"] if n["id"] == name)


def kvcached(c, name, sections=None, **kv):
    """Start a cgn-kvcached; return its Unix socket. Its admin port is c.store_admin[name]."""
    uds = str(c.folder / f"{name}.sock")
    c.store_admin[name] = free_port()
    c.run(f"kvcached-{name}", "cgn-kvcached", "--config", c.config(f"kvcached-{name}", {
        "kv": {"uds": uds, "ram": "256MiB", "listen": f"127.0.0.1:{free_port()}", "listen_admin": f"127.0.0.1:{c.store_admin[name]}",
               "resp_listen": f"127.0.0.1:{free_port()}", "worker_threads": 1, **kv}, **(sections or {})}))
    until(lambda: os.path.exists(uds + ".bulk"), "the store listens")
    return uds


class World:
    """A router, stores, agents with a managed llama-server each, and a llama-server that never has a prompt
    in its cache."""

    def __init__(self, folder, binary, router=None):
        self.answers = self.cold_answers = 0
        self.c, self.binary, self.agents, self.admin, self.engine, self.twin = Cluster(folder), binary, {}, {}, {}, None
        self.c.MODEL, self.c.store_admin = "tiny", {}
        self.model = folder / "tiny.gguf"
        subprocess.run([sys.executable, ROOT / "scripts/run/tiny-gguf.py", self.model], check=True, stdout=subprocess.DEVNULL)
        self.twin_port = free_port()
        argv = [binary, "--model", self.model, "--host", "127.0.0.1", "--port", str(self.twin_port), "--threads", "1", "--parallel", "1",
                "--ctx-size", str(CONTEXT), "--cache-ram", "0"]
        with open(folder / "twin.log", "wb") as log:
            self.twin = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.c.router({"models.tiny": {"block_bytes": 32}, **(router or {})})

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
        """Check that the answer equals that of a cold run, or that of a llama-server with the prompt in its
        own slot. The two differ for some prompts of a model whose next tokens are all about equally
        likely, because one token is summed in another order than many."""
        got = self.c.ask("POST", path, body, headers)
        text, cold = text_of(got), self.cold(path, body)
        self.cold_answers += text == cold
        self.answers += 1
        if text != cold:
            assert text == text_of(ask(self.twin_port, "POST", path, body)), (text, cold)
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
        trouble = self.c.close()
        assert not trouble, "\n".join(trouble)


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
    assert cached(w.asked(TEXT, completion(other))) < 16  # another prompt has the only slot now
    w.saved(2)
    # Exactly the same, longer, branching in the middle, on and beside a block boundary.
    prompts = [one, one + text_of(first) + prose(3, 20), one[:600] + prose(4, 30), one[:32 * 20], one[:32 * 20 + 1], one[:32 * 20 - 1] + "!"]
    for i, prompt in enumerate(prompts):
        common = len(os.path.commonprefix([prompt, one + text_of(first)]))
        got = w.asked(TEXT, completion(prompt))
        tokens = got.json()["usage"]["prompt_tokens"]
        # Bytes are about tokens in this model; a few lie where the two differ.
        assert cached(got) >= tokens * common / len(prompt) * 0.9 - 40, (i, cached(got), tokens, common)
        assert cached(w.asked(TEXT, completion(other))) > 500  # this prompt takes the slot again, and is restored too
    kept = w.kept()
    assert kept["restores"] >= 2 * len(prompts) - 2 and kept["restore_failures"] == 0 and kept["save_failures"] == 0, kept
    assert kept["restored_tokens"] > 3000 and kept["strays"] == 0 and kept["spared_ms"] > 0, kept
    assert w.cold_answers == w.answers
    until(lambda: not os.listdir(slot_dir), lambda: f"no file stays behind: {os.listdir(slot_dir)}")


def test_a_state_comes_back_from_ssd(world):
    w = world
    w.node("a", kvcached(w.c, "a", ram="16MiB", ssd="1GiB", ssd_admission="all", ssd_dir=str(w.c.folder / "ssd"), index_dir=str(w.c.folder / "index")))
    w.ready()
    prompts = [prose(i, 400) for i in range(8)]  # 4 MB each: RAM holds a few
    for i, p in enumerate(prompts):
        w.asked(TEXT, completion(p, 4))
        w.saved(i + 1)
    # The router knows the tiers of the states.
    until(lambda: (t := node_of(w)["cache"]) and t["ssd"] > 100 and t["ram"] > 50 and t["gpu"] > 20, lambda: node_of(w)["cache"])
    for p in prompts:
        assert cached(w.asked(TEXT, completion(p, 4))) > 1500
    metrics = ask(w.admin["a"], "GET", "/metrics").body.decode()
    assert w.c.metric("cgn_slot_restores_total", metrics, outcome="ssd") > 0, metrics
    assert w.kept()["restores"] == len(prompts) and w.kept()["restore_failures"] == 0, w.kept()


def test_chats_and_responses_have_slots_too(world):
    w = world
    w.node("a", kvcached(w.c, "a"))
    w.ready()
    messages = [{"role": "system", "content": prose(1, 120)}, {"role": "user", "content": prose(2, 30)}]
    chat = {"model": "tiny", "messages": messages, "max_tokens": 20, "temperature": 0, "seed": 1}
    first = w.asked(CHAT, chat)
    w.saved(1)
    w.asked(TEXT, completion(prose(3, 200)))
    w.saved(2)
    messages += [{"role": "assistant", "content": text_of(first)}, {"role": "user", "content": prose(4, 10)}]
    got = w.asked(CHAT, chat | {"messages": messages})
    assert cached(got) > 600
    # Streamed, with llama-server's own fields, as without an agent.
    stream = chat | {"stream": True, "stream_options": {"include_usage": True}}
    assert deltas(w.c.ask("POST", CHAT, stream)) == deltas(ask(w.twin_port, "POST", CHAT, stream | {"cache_prompt": False}))
    # The agent leaves these alone: a client's own slot, a request without cache, and several answers.
    for body in (completion(prose(5, 40), id_slot=0), completion(prose(5, 40), cache_prompt=False)):
        w.asked(TEXT, body)
    responses = w.c.ask("POST", "/v1/responses", {"model": "tiny", "input": prose(6, 80), "max_output_tokens": 8, "temperature": 0})
    assert responses.status == 200, responses.body
    again = w.asked(CHAT, chat | {"messages": messages})
    assert cached(again) > 600, w.kept()


def test_a_slot_that_others_use_is_noticed(world):
    w = world
    w.node("a", kvcached(w.c, "a"))
    w.ready()
    one = prose(1, 200)
    w.asked(TEXT, completion(one))
    w.saved(1)
    assert w.kept()["slots"][0]["blocks"] > 20
    got = ask(w.engine["a"], "POST", TEXT, completion(prose(9, 100)))
    assert got.status == 200
    until(lambda: w.kept()["strays"] == 1, lambda: w.kept())
    assert w.kept()["slots"][0]["blocks"] == 0
    assert cached(w.asked(TEXT, completion(one))) > 500  # from the store
    # The engine's own interface without slots: /v1/messages takes any slot.
    got = w.c.ask("POST", "/v1/messages", {"model": "tiny", "max_tokens": 4, "temperature": 0, "messages": [{"role": "user", "content": prose(8, 50)}]})
    assert got.status == 200
    until(lambda: w.kept()["strays"] >= 2, lambda: w.kept())


def test_a_restarted_engine_and_a_restarted_agent_have_it_back(world):
    w = world
    w.node("a", kvcached(w.c, "a"))
    w.ready()
    one = prose(1, 300)
    w.asked(TEXT, completion(one))
    w.saved(1)
    pid = ask(w.admin["a"], "GET", "/engines").json()["engines"][0]["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: ask(w.admin["a"], "GET", "/engines").json()["engines"][0]["pid"] not in (0, pid), "it is started again")
    until(lambda: w.kept()["at_work"], "and works")
    w.c.wait_ready(1)
    assert cached(w.asked(TEXT, completion(one))) > 1000
    assert w.kept()["restores"] == 1
    # Another agent of the same node learns the saved states from the store.
    w.agents["a"].stop()
    w.agents["a"].start()
    until(lambda: w.c.states().get("a") == "ready" and w.kept()["at_work"], "the agent is back")
    until(lambda: w.kept()["states"] == 1, lambda: w.kept())
    blocks = w.kept()["state_blocks"]
    assert blocks > 40
    until(lambda: node_of(w)["cache"]["blocks"] >= blocks, lambda: f"the router is told: {w.c.status()}")
    assert cached(w.asked(TEXT, completion(one))) > 1000


def test_a_store_that_dies_and_comes_back(world):
    w = world
    w.node("a", kvcached(w.c, "a"))
    w.ready()
    store = next(p for p in w.c.processes if p.name == "kvcached-a")
    one = prose(1, 200)
    w.asked(TEXT, completion(one))
    w.saved(1)
    store.kill()
    until(lambda: not w.kept()["at_work"], "the agent notices")
    until(lambda: node_of(w)["cache"]["source"] == "sent", lambda: w.c.status())
    assert w.kept()["states"] == 0
    for i in range(3):
        w.asked(TEXT, completion(prose(20 + i, 100)))
    store.start()
    until(lambda: w.kept()["at_work"], lambda: w.kept())
    w.asked(TEXT, completion(one))
    w.saved(2)
    w.asked(TEXT, completion(prose(2, 200)))
    assert cached(w.asked(TEXT, completion(one))) > 500


def test_a_store_that_stands_still(world):
    """A request during the fault waits for its state for engine.kv_restore_timeout, and is answered;
    afterwards all is as before."""
    w = world
    w.node("a", kvcached(w.c, "a"), kv_restore_timeout="300ms")
    w.ready()
    store = next(p for p in w.c.processes if p.name == "kvcached-a")
    one, other = prose(1, 200), prose(2, 200)
    for i, prompt in enumerate((one, other)):
        w.asked(TEXT, completion(prompt))
        w.saved(i + 1)
    restored = w.kept()["restores"]
    store.signal(signal.SIGSTOP)
    for prompt in (one, other, prose(3, 100), one):
        w.asked(TEXT, completion(prompt), {"X-Cgn-Deadline-Ms": "20000"})
    assert w.kept()["restores"] == restored
    store.signal(signal.SIGCONT)
    until(lambda: w.kept()["at_work"], lambda: w.kept())

    def comes_back():
        w.asked(TEXT, completion(prose(random.randrange(1 << 30), 200)))  # takes the slot
        return cached(w.asked(TEXT, completion(one))) > 500 and w.kept()["restores"] > restored
    until(comes_back, lambda: w.kept())


def test_a_storm_of_conversations(world):
    """More conversations than slots, all at once, some clients hanging up: every answer equals that of a cold
    run."""
    w = world
    slot_dir = w.node("a", kvcached(w.c, "a"), slots=2)
    w.ready()
    expected, wrong = {}, []
    prompts = [prose(i // 3, 60) + prose(i, 20 + i) for i in range(12)]
    for p in prompts:
        expected[p] = {w.cold(TEXT, completion(p, 12)), text_of(ask(w.twin_port, "POST", TEXT, completion(p, 12)))}

    def talk(seed):
        rng = random.Random(seed)
        for _ in range(12):
            p = rng.choice(prompts)
            if rng.random() < 0.15:
                hang_up(w, p)
                continue
            got = w.c.ask("POST", TEXT, completion(p, 12))
            if got.status != 200 or text_of(got) not in expected[p]:
                wrong.append((p[:40], got.status, got.body[:300]))
    threads = [threading.Thread(target=talk, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[:3]
    until(lambda: all(s["use"] == "idle" for s in w.kept()["slots"]), lambda: w.kept())
    kept = w.kept()
    assert kept["restores"] > 0 and kept["save_failures"] == 0, kept
    until(lambda: not os.listdir(slot_dir), lambda: f"no file stays behind: {os.listdir(slot_dir)}")


def hang_up(w, prompt):
    c = http.client.HTTPConnection("127.0.0.1", w.c.http_port, timeout=5)
    body = json.dumps(completion(prompt, 500, stream=True, ignore_eos=True)).encode()
    c.request("POST", TEXT, body, {"Content-Type": "application/json"})
    c.sock.settimeout(0.05)
    try:
        c.getresponse().read(100)
    except OSError:
        pass
    c.close()


def test_another_adapter_under_the_same_name(world):
    """A state computed with other weights is not found, whatever the file's name; neither is a state of a
    request with its own choice of adapters."""
    w = world
    adapter = w.c.folder / "adapter.gguf"
    tiny_lora.write(adapter, 1)
    w.node("a", kvcached(w.c, "a"), extra_args=["--lora", str(adapter)])
    w.ready()
    one, other = completion(prose(1, 200)), completion(prose(2, 200))

    def go(body):
        got = w.c.ask("POST", TEXT, body)
        return text_of(got), cached(got)

    def again():
        w.agents["a"].stop()
        w.agents["a"].start()
        until(lambda: w.c.states().get("a") == "ready" and w.kept()["at_work"], "the agent is back")
    first, none = go(one)
    assert none == 0 and first != w.cold(TEXT, one)  # the adapter does change the model
    w.saved(1)
    again()
    until(lambda: w.kept()["states"] == 1, lambda: w.kept())
    text, had = go(one)
    assert text == first and had > 500
    # Once without its adapter: later requests must not get this state as the conversation's.
    for body in (one, other):
        text, had = go(body | {"lora": [{"id": 0, "scale": 0.0}]})
        assert text == w.cold(TEXT, body) and had < 16
    saves = w.kept()["saves"]
    text, had = go(one)
    assert text == first, "with its adapter again"
    assert w.kept()["prompts"]["alone"] == 2 and w.kept()["saves"] == saves, w.kept()
    tiny_lora.write(adapter, 2)
    again()
    text, had = go(one)
    assert had == 0 and text != first
    assert w.kept()["prompts"]["none"] == 1, w.kept()


def test_an_adapter_that_counts_otherwise_while_it_runs(world):
    """POST /lora-adapters: a state computed with one scale is never used with another."""
    w = world
    adapter = w.c.folder / "adapter.gguf"
    tiny_lora.write(adapter, 1)
    w.node("a", kvcached(w.c, "a"), extra_args=["--lora", str(adapter)])
    w.ready()
    one, other = completion(prose(1, 200)), completion(prose(2, 200))

    def go(body):
        got = w.c.ask("POST", TEXT, body)
        return text_of(got), cached(got)

    def scale(to):
        assert ask(w.engine["a"], "POST", "/lora-adapters", [{"id": 0, "scale": to}]).status == 200

    def changes(n, states):
        until(lambda: len(w.agents["a"].events("slot.adapters")) == n and w.kept()["at_work"] and w.kept()["states"] == states, lambda: w.kept())

    first, _ = go(one)
    assert first != w.cold(TEXT, one)
    w.saved(1)
    scale(0.0)
    assert go(other)[0] == w.cold(TEXT, other)
    changes(1, 0)
    text, had = go(one)
    assert text == w.cold(TEXT, one) and had < 16
    w.saved(2)
    scale(1.0)
    assert go(other)[0] != w.cold(TEXT, other)
    changes(2, 1)
    text, had = go(one)
    assert text == first and had > 500, w.kept()
