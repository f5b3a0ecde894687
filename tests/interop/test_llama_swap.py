# SPDX-License-Identifier: Apache-2.0
"""Two real llama-servers of which one fits: a conversation goes on after another model had the memory, without
prefill, and says what it would have said without the swap."""
import concurrent.futures
import json
import subprocess
import sys

import pytest

from cluster import ROOT, Cluster, ask, free_port, toml, until
from test_llama_slots import cached, kvcached, prose, text_of

CHAT = "/v1/chat/completions"
CONTEXT = 6144


class Laptop:
    """One agent with two engines, "anna" and "bert", of which one is loaded; and a llama-server with anna's
    weights that is never unloaded."""

    def __init__(self, folder, binary, store=True, **agent):
        self.c = c = Cluster(folder)
        c.store_admin = {}
        self.weights, self.port = folder / "tiny.gguf", {n: free_port() for n in ("anna", "bert", "twin")}
        subprocess.run([sys.executable, ROOT / "scripts/run/tiny-gguf.py", self.weights], check=True, stdout=subprocess.DEVNULL)
        other = folder / "other.gguf"
        subprocess.run([sys.executable, ROOT / "scripts/run/tiny-gguf.py", other, "7"], check=True, stdout=subprocess.DEVNULL)
        with open(folder / "twin.log", "wb") as log:
            self.twin = subprocess.Popen([binary, "--model", self.weights, "--host", "127.0.0.1", "--port", str(self.port["twin"]), "--threads", "1", "--parallel", "1",
                                          "--ctx-size", str(CONTEXT), "--cache-ram", "0"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        c.router()
        port, self.admin = free_port(), free_port()
        more = {"kv_uds": kvcached(c, "laptop")} if store else {}
        text = toml({"cluster": {"router": f"127.0.0.1:{c.grpc_port}", "state_dir": str(c.state_dir)}, "log": {"level": "info", "format": "json"},
                     "agent": {"heartbeat": "200ms", "listen": f"127.0.0.1:{port}", "listen_admin": f"127.0.0.1:{self.admin}", "node_id": "laptop",
                               "max_loaded": 1, "swap_residence": "200ms", **more, **agent}})
        for name, weights in (("anna", self.weights), ("bert", other)):
            keys = {"name": name, "kind": "llama_cpp", "managed": True, "model": name, "model_path": str(weights), "binary": str(binary), "slots": 1, "n_threads": 1,
                    "n_ctx": CONTEXT, "url": f"http://127.0.0.1:{self.port[name]}", "ready_interval": "20ms", "kv_save_min_tokens": 64}
            if store:
                keys["slot_dir"] = str(folder / f"slots-{name}")
            text += "[[engines]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items())
        (folder / "agent.toml").write_text(text)
        self.agent = c.run("agent", "cgn-agent", "--config", folder / "agent.toml")
        c.wait_ready(1)
        until(self.twin_answers, "the twin is ready")

    def twin_answers(self):
        try:
            return ask(self.port["twin"], "GET", "/health").status == 200
        except OSError:
            return False

    def loaded(self):
        return [e["name"] for e in ask(self.admin, "GET", "/engines").json()["engines"] if e["pid"]]

    def close(self):
        self.agent.stop()
        self.twin.kill()
        self.twin.wait()
        trouble = self.c.close()
        assert not trouble, "\n".join(trouble)


@pytest.fixture
def laptop(binary, tmp_path):
    made = []

    def start(**more):
        made.append(Laptop(tmp_path, binary, **more))
        return made[0]
    try:
        yield start
    finally:
        for one in made:
            one.close()


def body_of(model, messages, n=16):
    return {"model": model, "messages": messages, "max_tokens": n, "temperature": 0, "seed": 1}


def turn(one, messages, question):
    """Ask anna the next question; return her answer and the tokens of the prompt and of its cached part."""
    messages.append({"role": "user", "content": question})
    got = one.c.ask("POST", CHAT, body_of("anna", messages))
    text = text_of(got)
    twin = ask(one.port["twin"], "POST", CHAT, body_of("anna", messages))
    assert text == text_of(twin), "as without the swap"
    messages.append({"role": "assistant", "content": text})
    usage = got.json()["usage"]
    return usage["prompt_tokens"], cached(got), usage["completion_tokens"], cached(twin)


def test_a_conversation_survives_the_swap(laptop):
    one = laptop()
    messages = [{"role": "system", "content": prose(1, 150)}]
    tokens, hit, said, _ = turn(one, messages, prose(2, 20))
    assert hit == 0 and one.loaded() == ["anna"]
    for i in range(3):
        got = one.c.ask("POST", CHAT, body_of("bert", [{"role": "user", "content": prose(10 + i, 60)}]))
        assert got.status == 200 and one.loaded() == ["bert"]
        history = tokens + said
        tokens, hit, said, unswapped = turn(one, messages, prose(20 + i, 8))
        assert one.loaded() == ["anna"]
        # As much is computed as in an engine that was never unloaded: the new question, and a few tokens of the last answer's
        # end, which the template writes otherwise.
        assert hit >= unswapped - 1 and hit >= history - 20 and hit > tokens * 0.9, (hit, unswapped, history, tokens)
    metrics = ask(one.admin, "GET", "/metrics").body.decode()
    assert one.c.metric("cgn_slot_restores_total", metrics, engine="anna", outcome="ram") >= 3
    assert one.c.metric("cgn_swap_loads_total", metrics, outcome="ok") == 7


def test_without_a_store_the_prompt_is_computed_again(laptop):
    one = laptop(store=False)
    messages = [{"role": "system", "content": prose(1, 150)}]
    turn(one, messages, prose(2, 20))
    assert one.c.ask("POST", CHAT, body_of("bert", [{"role": "user", "content": "hello"}])).status == 200
    assert turn(one, messages, prose(3, 8))[1] == 0


def test_many_requests_for_both_models_at_once(laptop):
    one = laptop()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(one.c.ask, "POST", CHAT, body_of(("anna", "bert")[i % 2], [{"role": "user", "content": prose(i, 20)}], 4)) for i in range(12)]
        assert [f.result().status for f in asked] == [200] * 12
