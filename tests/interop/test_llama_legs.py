# SPDX-License-Identifier: Apache-2.0
"""Two real llama-servers, two block stores: a state computed on one node is fetched by the other over QUIC,
and prefill and decode are separate roles."""
import json
import signal
import subprocess

import pytest

from cluster import BUILD, ask, free_port, until
from kvpeers import bootstrap, security
from test_llama_slots import CHAT, TEXT, World, cached, completion, kvcached, node_of, prose

DISAGG = {"router.disagg": {"enabled": True, "colocate_below_tokens": 64}}


class Pair(World):
    """Nodes a and b, each with a store that fetches from the other's store."""

    def __init__(self, folder, binary, router=None, roles=(None, None), **engine):
        super().__init__(folder, binary, router)
        pki = bootstrap(folder / "pki", "a", "b")
        quic = {name: free_port() for name in "ab"}
        for name, other, role in (("a", "b", roles[0]), ("b", "a", roles[1])):
            uds = kvcached(self.c, name, {"security": security(pki, name), "agent": {"node_id": name}, "cluster": {"router": f"127.0.0.1:{free_port()}"}},
                           transport="quic", quic_listen=f"127.0.0.1:{quic[name]}", peers=[f"127.0.0.1:{quic[other]}"])
            self.node(name, uds, agent={"role": role} if role else None, **engine)
        self.ready()
        until(lambda: all("kv" in node_of(self, n) for n in "ab"), lambda: f"both tell of their stores: {self.c.status()['nodes']}")
        until(lambda: all(self.peer_ready(n) for n in "ab"), "both stores hear of each other")

    def peer_ready(self, name):
        return any(p["state"] == "ready" for p in ask(self.c.store_admin[name], "GET", "/peers").json()["peers"])


def pin(node):
    return {"X-Cgn-Node": node}


def test_what_one_node_computed_is_decoded_on_another(binary, tmp_path):
    w = Pair(tmp_path, binary)
    try:
        prompt = prose(1, 400)
        first = w.asked(TEXT, completion(prompt), pin("a"))
        assert cached(first) == 0
        w.saved(1, "a")
        until(lambda: ask(w.c.store_admin["b"], "GET", "/peers").json()["peers"][0]["blocks"] > 0, "b hears what a holds")
        second = w.asked(TEXT, completion(prompt + " and then"), pin("b"))
        assert second.headers["x-cgn-node"] == "b"
        assert cached(second) > 0.9 * first.json()["usage"]["prompt_tokens"], second.json()["usage"]
        kept = w.kept("b")
        assert kept["restores"] == 1 and kept["restored_tokens"] > 1000, kept
    finally:
        w.close()


def test_an_engine_that_is_put_to_rest_leaves_its_states_to_other_nodes(binary, tmp_path):
    w = Pair(tmp_path, binary, kv_save_idle="1h")
    try:
        prompt = prose(1, 400)
        first = w.asked(TEXT, completion(prompt), pin("a"))
        assert cached(first) == 0 and w.kept("a")["saves"] == 0
        subprocess.run([BUILD / "src/ctl/cgn-ctl", "model", "unload", "tiny", "--node", "a", "--router", f"127.0.0.1:{w.c.grpc_port}"], check=True,
                       capture_output=True, timeout=60)
        until(lambda: ask(w.admin["a"], "GET", "/engines").json()["engines"][0]["pid"] == 0, "the engine of a is stopped")
        until(lambda: ask(w.c.store_admin["b"], "GET", "/peers").json()["peers"][0]["blocks"] > 0, "b hears what a's store holds")
        second = w.asked(TEXT, completion(prompt + " and then"))
        assert second.headers["x-cgn-node"] == "b"
        assert cached(second) > 0.9 * first.json()["usage"]["prompt_tokens"], second.json()["usage"]
    finally:
        w.close()


@pytest.fixture
def legs(binary, tmp_path):
    w = Pair(tmp_path, binary, DISAGG, ("prefill", "decode"))
    try:
        yield w
    finally:
        w.close()


def requests(w):
    return [e for e in w.c.router_process.events("gateway.request") if e["method"] == "POST"]


def last(w):
    return requests(w)[-1]


def test_prefill_and_decode_are_separate_roles(legs):
    w = legs
    for i, (path, body) in enumerate([(TEXT, completion(prose(1, 300))), (TEXT, completion(prose(2, 300), stream=True)),
                                      (CHAT, {"model": "tiny", "max_tokens": 24, "temperature": 0, "seed": 1,
                                              "messages": [{"role": "user", "content": prose(3, 300)}]})]):
        if body.get("stream"):
            got = w.c.ask("POST", path, body)
            text = "".join(json.loads(d)["choices"][0]["text"] for _, d in got.events() if d != "[DONE]")
            assert text == w.cold(path, body | {"stream": False})
        else:
            got = w.asked(path, body)
            assert cached(got) > 500, got.json()["usage"]
        assert got.headers["x-cgn-node"] == "b"
        log = until(lambda n=i: len(requests(w)) > n and last(w), "logged")
        assert log["disagg"] == "prefilled" and log["prefill_node"] == "a" and log["prefill_ms"] > 0 and log["node"] == "b", log
    assert w.c.metric("cgn_disagg_total", outcome="prefilled") == 3
    assert w.kept("b")["restores"] == 3 and w.kept("a")["restores"] == 0
    # Little to compute: the answering node computes it.
    short = w.asked(TEXT, completion("A short one, of two blocks or so, no more."))
    assert short.headers["x-cgn-node"] == "b" and w.c.metric("cgn_disagg_total", outcome="colocated") == 1
    until(lambda: last(w)["disagg"] == "colocated" and not last(w)["prefill_node"], lambda: last(w))
    # The same for a prompt whose state it has already.
    again = w.asked(TEXT, completion(prose(3, 300)))
    assert again.headers["x-cgn-node"] == "b"
    told = ask(w.c.admin_port, "GET", "/explain/" + requests(w)[0]["id"]).body.decode()
    assert '"leg":"prefill"' in told and '"leg":"answer"' in told, told


def test_a_prefill_node_that_dies_costs_a_request_nothing_but_time(legs):
    w = legs
    w.agents["a"].signal(signal.SIGSTOP)
    got = w.asked(TEXT, completion(prose(7, 300)))
    assert got.headers["x-cgn-node"] == "b" and cached(got) == 0
    assert w.c.metric("cgn_disagg_total", outcome="failed") + w.c.metric("cgn_disagg_total", outcome="no_node") == 1
    until(lambda: last(w)["disagg"] in ("failed", "no_node"), lambda: last(w))
    w.agents["a"].signal(signal.SIGCONT)
