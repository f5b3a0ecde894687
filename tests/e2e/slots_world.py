# SPDX-License-Identifier: Apache-2.0
"""A router, a store, and agents in front of fake llama-servers whose slots they assign."""
import os
import random

from cluster import Cluster, ask, free_port, until
from odd_llama import Engine, answer_to

TEXT = "/v1/completions"
PAGE = 40  # blocks of a prompt


def prompt_of(seed):
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz ", k=32 * PAGE))


class World:
    def __init__(self, folder, slots=1, start=True, router=None, store=None):
        self.c = c = Cluster(folder)
        c.MODEL = "tiny"
        self.engine, self.uds, self.slot_dir = Engine(folder, slots), str(folder / "kv.sock"), None
        self.store_admin = free_port()
        self.store = c.run("store", "cgn-kvcached", "--config", c.config("store", {"kv": {
            "quic_listen": f"127.0.0.1:{free_port()}", "uds": self.uds, "ram": "64MiB", "listen": f"127.0.0.1:{free_port()}", "listen_admin": f"127.0.0.1:{self.store_admin}",
            "resp_listen": f"127.0.0.1:{free_port()}", "worker_threads": 1}, **(store or {})}))
        until(lambda: os.path.exists(self.uds + ".bulk"), "the store listens")
        self.model = {'models."tiny"': {"block_bytes": 32, "tokens": "bytes"}}
        c.router({**self.model, **(router or {})})
        if start:
            self.agent, _, self.admin = self.start("a")
            c.wait_ready(1)
            until(lambda: self.kept()["at_work"], lambda: self.kept())

    def start(self, name, of=None, role="both", **engine):
        of = of or self.engine
        return self.c.agent(name, of.port, {"agent": {"kv_uds": self.uds, "role": role}, **self.model, "engine": {
            "kind": "llama_cpp", "model": "tiny", "slot_dir": str(of.folder), "kv_save_min_tokens": 64, "kv_save_idle": "20ms",
            "kv_restore_timeout": "1s", **engine}})

    def kept(self):
        return ask(self.admin, "GET", "/engines").json()["engines"][0]["kept_slots"]

    def metric(self, name, **labels):
        return self.c.metric(name, ask(self.admin, "GET", "/metrics").body.decode(), **labels)

    def asked(self, prompt, headers=None, **more):
        """Send a prompt and check that the answer is the engine's answer to that prompt."""
        got = self.c.ask("POST", TEXT, {"model": "tiny", "prompt": prompt, "max_tokens": 4, **more}, headers)
        assert got.status == 200, got.body
        assert got.json()["choices"][0]["text"] == answer_to(prompt)
        return got.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    def idle(self):
        until(lambda: all(s["use"] == "idle" for s in self.kept()["slots"]), lambda: self.kept())

    def clean(self, descriptors):
        """Check that no file and no descriptor is left."""
        self.idle()
        until(lambda: not os.listdir(self.engine.folder), lambda: f"left behind: {os.listdir(self.engine.folder)}")
        until(lambda: self.agent.descriptors() <= descriptors + 4, lambda: f"{self.agent.descriptors()} descriptors, {descriptors} before")
        assert self.agent.alive()

    def close(self, failed):
        if failed:
            print(self.c.logs())
        trouble = self.c.close()
        self.engine.close()
        assert failed or not trouble, "\n".join(trouble)
