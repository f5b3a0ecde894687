# SPDX-License-Identifier: Apache-2.0
import json
import os
import time

import pytest

from engines import BLOCK, MODEL, Missing, Vllm, ask, prepare, until
from cluster import Cluster, Node


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if call.when == "call":
        item.failed = outcome.get_result().failed


def pytest_addoption(parser):
    parser.addoption("--sglang-engines", help="the same for test_sglang_pair.py: a prefill and a decode SGLang; SIDE is the prefill engine's bootstrap port")
    parser.addoption("--engines", help="two vLLMs that run already, with the flags of the fixture `pair`: HTTP:SIDE:EVENTS:REPLAY,... ports")


@pytest.fixture(scope="session")
def made():
    """(virtual environment, model folder); without them all tests are left out, except where CGN_REALENGINE=must."""
    try:
        return prepare()
    except Missing as why:
        (pytest.fail if os.environ.get("CGN_REALENGINE") == "must" else pytest.skip)(f"no real vLLM: {why}")


@pytest.fixture(scope="session")
def pair(made, request, tmp_path_factory):
    """Two vLLMs that publish KV events, serve a LoRA and hand prompts over by NIXL."""
    folder = tmp_path_factory.mktemp("pair")
    pair = [Vllm(folder, name, "--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"known={made[1]}/lora", made=made, nixl=True) for name in "ab"]
    given = request.config.getoption("--engines")
    if given:
        for e, ports in zip(pair, given.split(",")):
            e.at(*map(int, ports.split(":")))
        yield pair
        return
    try:
        for e in pair:
            e.start()
        yield [e.wait() for e in pair]
    finally:
        for e in pair:
            e.kill()


class World(Cluster):
    """A router that reads the model's tokenizer, and an agent for each engine."""
    MODEL = MODEL

    def begin(self, engines, model, tokens="file", router=None, agents=None, source="events"):
        """Start all; |agents|: sections of each agent in addition to its [engine]; |source|: what the router must know blocks from."""
        files = {"tokenizer": str(model / "tokenizer.json")} if tokens == "file" else {}
        names = [MODEL, "known", "late"]
        # The agent hashes what the engine's events name, so it needs the block size too.
        self.common = {f'models."{n}"': {"tokens": tokens, "block_tokens": BLOCK, **files} for n in names}
        self.router(router)
        for i, e in enumerate(engines):
            more = dict((agents or [{}, {}])[i])
            section = {**e.section(), **more.pop("engine", {})}
            agent, port, admin = self.agent(e.name, e.port, {"engine": section, **more})
            self.nodes[e.name] = Node(e.name, None, agent, e.port, port, admin)
        self.wait_ready()
        for n in self.nodes.values():
            until(lambda n=n: self.current(n.name, source), lambda: f"{n.name} tells by {source}: {self.status()}")
        return self

    def current(self, name, source):
        state = self.residency(name)
        return state["source"] == source and state["state"] == "agreed"

    def residency(self, name):
        return ask(self.admin_port, "GET", "/index").json()["nodes"][name]

    def post(self, path, body, **headers):
        return ask(self.http_port, "POST", path, body, headers, wait_s=120)

    def explain(self, answer):
        a = ask(self.admin_port, "GET", "/explain/" + answer.headers["x-request-id"])
        return a.json()["requests"][0] if a.status == 200 else {}

    def settle(self, name):
        """Wait until the events of the node's engine have come: none in a tenth of a second."""
        def seen():
            return ask(self.nodes[name].admin_port, "GET", "/engines").json()["engines"][0]["kv_events"]["ranks"]

        def quiet():
            before = seen()
            time.sleep(0.1)
            return seen() == before
        until(quiet, lambda: seen())

    def cached(self, answer):
        """Return how many tokens the router predicted to be cached."""
        return until(lambda: self.explain(answer).get("cached_tokens"), "the request is accounted for")["predicted"]


@pytest.fixture
def world(tmp_path, request):
    with World(tmp_path) as c:
        yield c
        if getattr(request.node, "failed", False):
            print(json.dumps(c.status())[:4000], c.logs(25))
