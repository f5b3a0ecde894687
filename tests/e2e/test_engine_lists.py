# SPDX-License-Identifier: Apache-2.0
"""What an engine's list of models tells, beyond names: how many there are, what each is like, and which are loaded."""
import subprocess

import pytest

from cluster import BUILD, until
from engine_nodes import sections
from listing_engine import ListingEngine
from test_doctor import finds
from test_explain import explain

MOST = 4096


@pytest.fixture
def engines():
    made = []

    def make(*args, **more):
        made.append(ListingEngine(*args, **more))
        return made[-1]

    yield make
    for e in made:
        e.close()


def ctl(cluster, *words):
    r = subprocess.run([BUILD / "src/ctl/cgn-ctl", *words, "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, text=True, timeout=60,
                       check=False)
    return r.stdout + r.stderr


def chat(cluster, model, text="hi"):
    return cluster.ask("POST", "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": text}]})


def start(cluster, *nodes, **more):
    cluster.router(sections(nodes, **more))
    cluster.wait_ready(len(nodes))


def test_thousands_of_models_are_served_and_the_rest_is_said(cluster, engines):
    e = engines("big", {f"org/model-{i}": {} for i in range(MOST + 104)})
    start(cluster, e, **{"router": {"worker_threads": 1}})
    assert len(cluster.ask("GET", "/v1/models").json()["data"]) == len(cluster.ask("GET", "/api/tags").json()["models"]) == MOST
    for i in (0, 257, 4095):
        assert chat(cluster, f"org/model-{i}").status == 200
    assert chat(cluster, f"org/model-{MOST}").status == 404
    (cut,) = cluster.router_process.events("engine.models_cut")
    assert cut["models"] == MOST and cut["left_out"] == 104
    told = ctl(cluster, "cluster", "nodes")
    assert "104 names of its engine's list" in told and f"and {MOST - 16} more" in told
    assert cluster.status()["nodes"][0]["engines"][0]["models_left_out"] == 104
    assert cluster.status()["nodes"][0]["engines"][0]["ready"]
    finds("warning", "104 names of its engine's list", "nodes", cluster.folder / "router.toml", "router")
    # A series for each of the first 512 models and no more
    for i in range(520):
        assert chat(cluster, f"org/model-{i}").status == 200
    page = cluster.scrape()
    assert cluster.metric("cgn_requests_total", page, model="org/model-1", code="200") == 1
    assert cluster.metric("cgn_requests_total", page, model="other", code="200") >= 5


@pytest.mark.slow
@pytest.mark.parametrize("mib", [2, 17])  # longer than a check reads, and than is read of a list
def test_a_list_that_is_too_long_takes_no_engine_out(cluster, engines, mib):
    e = engines("big", {"m": {}})
    e.settings |= {"kind": "openai_compat"}
    start(cluster, e, **{"router": {"worker_threads": 1}})
    assert chat(cluster, "m").status == 200
    long = '{"object":"list","data":[{"id":"m","object":"model"}' + "".join(f',{{"id":"x{i}","object":"model","about":"{"y" * 4000}"}}' for i in range(mib * 256)) + "]}"
    e.got = lambda path: (long, 200) if path == "/v1/models" else ({}, 404)
    asked = len(e.asked)
    until(lambda: e.asked[asked:].count("/v1/models") > 8, "the list was read some times")
    assert chat(cluster, "m").status == 200
    assert cluster.status()["nodes"][0]["engines"][0]["ready"]
    assert not cluster.router_process.events("engine.check_failed")


def test_a_model_keeps_what_its_engines_tell(cluster, engines):
    card = {"root": "/models/a", "max_model_len": 32768, "capabilities": ["completion", "vision"]}
    wide = engines("wide", {"a": card, "b": {}}, owner="vllm")
    narrow = engines("narrow", {"a": card | {"max_model_len": 4096}}, owner="vllm")
    narrow.settings |= {"kind": "openai_compat", "model": "a"}  # a name that is configured is described by the list too
    start(cluster, wide, narrow, **{'models."a"': {"aliases": ["short"]}})

    def shown():
        a = cluster.ask("GET", "/v1/models/a").json()
        return a if a.get("max_model_len") == 4096 else None
    a = until(shown, "the least context wins")
    assert a["root"] == "/models/a" and a["owned_by"] == "cognitora" and a["capabilities"] == card["capabilities"] and a["created"] > 1.7e9
    by_id = {m["id"]: m for m in cluster.ask("GET", "/v1/models").json()["data"]}
    assert by_id["a"] == a and by_id["short"] == a | {"id": "short"} and "root" not in by_id["b"]
    show = cluster.ask("POST", "/api/show", {"model": "a"}).json()
    assert show["model_info"][show["model_info"]["general.architecture"] + ".context_length"] == 4096
    assert show["capabilities"] == card["capabilities"]
    # The time in the list changes with each answer: the router makes nothing of it.
    until(lambda: narrow.asked.count("/v1/models") >= 4, "the list was read again")
    assert len(cluster.router_process.events("engine.models")) == 1
    narrow.entries["a"]["max_model_len"] = 2048
    until(lambda: cluster.ask("GET", "/v1/models/a").json().get("max_model_len") == 2048, "a change is read")


def test_two_models_that_engines_load_stay_where_they_are(cluster, engines):
    nodes = [engines(name, {"m1": {}, "m2": {}}, holds=1) for name in "ab"]
    start(cluster, *nodes)
    until(lambda: "loadable" in ctl(cluster, "cluster", "nodes"), "the engines' states are known")
    homes = {}
    for i in range(12):
        for model in ("m1", "m2"):
            r = chat(cluster, model, f"question {i} for {model}")
            assert r.status == 200
            homes.setdefault(model, set()).add(r.headers["x-cgn-node"])
    assert sum(e.loads for e in nodes) == 2 and len(homes["m1"]) == len(homes["m2"]) == 1 and homes["m1"] != homes["m2"]
    until(lambda: ctl(cluster, "cluster", "nodes").count("(loaded)") == 2, "what is loaded is told")
    assert [m["name"] for m in cluster.ask("GET", "/api/ps").json()["models"]] == ["m1", "m2"]
    r = chat(cluster, "m1", "why here?")
    (told,) = explain(cluster, r.headers["x-request-id"])
    by_node = {c["node"]: c["predicted_ms"] for c in told["tries"][0]["candidates"]}
    (here,), (there,) = homes["m1"], homes["m2"]
    assert by_node[here]["load"] == by_node[here]["evict"] == 0 and by_node[there]["load"] > 0 and by_node[there]["evict"] > 0
    # Clients of Ollama that ask to load a model are answered here: the engines load by themselves.
    assert cluster.ask("POST", "/api/generate", {"model": "m1"}).json()["done_reason"] == "load"


def test_a_model_that_moves_is_found_on_its_new_node(cluster, engines):
    a, b = engines("a", {"m": {}, "base": {}}), engines("b", {"base": {}})
    start(cluster, a, b)
    assert chat(cluster, "m").headers["x-cgn-node"] == "a"
    for there, gone in ((b, a), (a, b)):
        there.entries = there.entries | {"m": {}}
        gone.entries = {"base": {}}
        r = chat(cluster, "m")
        assert (r.status, r.headers["x-cgn-node"]) == (200, there.name)
    # A model that is nowhere any more is 404.
    a.entries = {"base": {}}
    assert chat(cluster, "m").status == 404


def test_an_idle_engine_falls_asleep_and_stays_ready(cluster, engines):
    e = engines("s", {"tiny": {}}, sleeps_after=2, owner="llamacpp")
    start(cluster, e)
    assert chat(cluster, "tiny").status == 200
    until(e.is_asleep, "it sleeps")
    until(lambda: "tiny (asleep)" in ctl(cluster, "cluster", "nodes"), "the sleep is told")
    n = len(e.asked)
    until(lambda: "/health" in e.asked[n:] and e.asked[n:].count("/metrics") >= 2, "it is watched on")
    assert e.is_asleep() and "/slots" not in e.asked[n:] and cluster.states() == {"s": "ready"}
    assert chat(cluster, "tiny").status == 200 and not e.is_asleep()
    assert len(cluster.router_process.events("engine.unready")) == 0


@pytest.mark.slow
@pytest.mark.parametrize("agent", [False, True])
@pytest.mark.parametrize("none", [[], None])
def test_an_engine_whose_list_became_empty_serves_nothing(cluster, engines, agent, none):
    """One empty list is no proof. Ollama without a model has null in its place."""
    e, other = engines("a", {"m": {}, "base": {}}), engines("b", {"base": {}})
    e.settings |= {"kind": "vllm"}  # its checks ask /health, so that each list is read for its models
    cluster.router(sections([other] if agent else [e, other]))
    if agent:
        teller, _, _ = cluster.agent("a", e.port, {"engine": {"kind": "vllm"}})
    else:
        teller = cluster.router_process
    cluster.wait_ready(2)
    assert chat(cluster, "m").headers["x-cgn-node"] == "a"
    e.blanks = 1
    until(lambda: e.blanks == 0, "an empty list was read")
    n = e.asked.count("/v1/models")
    until(lambda: e.asked.count("/v1/models") > n, "the list was read again")
    assert chat(cluster, "m").status == 200 and not teller.events("engine.models_unknown")
    kept, e.entries = e.entries, {}
    e.none = none
    until(lambda: chat(cluster, "m").status == 404, "the model is unknown")
    assert chat(cluster, "base").headers["x-cgn-node"] == "b"
    until(lambda: "lists none" in ctl(cluster, "cluster", "nodes"), "the reason is told")
    assert [x["why"] for x in teller.events("engine.models_unknown")] == ["/v1/models lists none"]
    e.entries = kept
    until(lambda: chat(cluster, "m").status == 200, "the model is back")
    assert "lists none" not in ctl(cluster, "cluster", "nodes")
