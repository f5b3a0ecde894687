# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl model load, unload and ls: LoRA adapters that agents load into engines while these run."""
import contextlib
import json
import subprocess
import threading

import pytest

from clients import Stream
from cluster import BUILD, ask, free_port, until

CTL = str(BUILD / "src/ctl/cgn-ctl")
FAST = ("--time-scale", "0")
LORA = (*FAST, "--lora")
VLLM = {"engine": {"kind": "vllm"}}


def model(cluster, *args, code=0):
    done = subprocess.run([CTL, "model", *args, "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == code or (code and done.returncode), done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def places(cluster, name):
    """Return {node: state} of a model, as model ls tells it."""
    listed = json.loads(model(cluster, "ls", "-o", "json")).get("models", [])
    return {p["node"]: p["state"] for m in listed if m["name"] == name for p in m.get("places", [])}


def served(cluster):
    return sorted(m["id"] for m in cluster.ask("GET", "/v1/models").json()["data"])


def at_engine(node):
    return sorted(m["id"] for m in ask(node.engine_port, "GET", "/v1/models").json()["data"])


def status(cluster, name):
    return cluster.chat("hello", model=name, max_tokens=2).status


@pytest.fixture
def lora(tmp_path):
    folder = tmp_path / "lora"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    return str(folder)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_adapter_is_loaded_served_and_unloaded(cluster, lora, kind):
    cluster.router()
    nodes = [cluster.node(n, *LORA, sections={"engine": {"kind": kind}}) for n in "ab"]
    cluster.wait_ready()
    assert status(cluster, "de") == 404
    shown = model(cluster, "load", "de", "--lora", lora, "--base", "sim", "--wait", "--timeout", "20s")
    assert shown.count("ready") >= 2, shown
    assert places(cluster, "de") == {"a": "ready", "b": "ready"} and places(cluster, "sim") == {"a": "ready", "b": "ready"}
    assert [at_engine(n) for n in nodes] == [["de", "sim"]] * 2
    until(lambda: served(cluster) == ["de", "sim"], "it is among the models")
    assert status(cluster, "de") == 200
    model(cluster, "unload", "de", "--node", "a", "--wait", "--timeout", "20s")
    assert places(cluster, "de") == {"a": "unloaded", "b": "ready"}
    assert at_engine(nodes[0]) == ["sim"] and status(cluster, "de") == 200
    model(cluster, "unload", "de", "--wait", "--timeout", "20s")
    assert [at_engine(n) for n in nodes] == [["sim"]] * 2
    until(lambda: served(cluster) == ["sim"], "it is gone")
    assert status(cluster, "de") == 404


def test_an_adapter_stays_until_its_streams_end(cluster, lora):
    """Requests that wait at the engine, that are answered, and that come as a whole all hold it; those of the base model do not."""
    cluster.router()
    node = cluster.node("a", "--lora", "--decode-ms", "25", sections={**VLLM, "agent": {"drain_timeout": "60s", "direct": "off"}})
    cluster.wait_ready()
    model(cluster, "load", "de", "--lora", lora, "--base", "sim", "--wait", "--timeout", "20s")
    until(lambda: status(cluster, "de") == 200, "it is served")
    other = Stream(cluster.http_port, model="sim", max_tokens=4000, ignore_eos=True)
    other.read_until(b'"content"')
    for whole in (False, True):
        stream = Stream(cluster.http_port, model="de", max_tokens=80, ignore_eos=True, stream=not whole)
        if not whole:
            stream.read_until(b'"content"')
        model(cluster, "unload", "de")
        until(lambda: places(cluster, "de") == {"a": "draining"}, "it drains")
        done = threading.Event()
        gone = []

        def watch():
            while not done.is_set():
                gone.append(at_engine(node) == ["sim"])
                done.wait(0.05)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            stream.read_until(b'"finish_reason":"length"' if whole else b"[DONE]")
        finally:
            done.set()
            watcher.join()
        assert not any(gone[:-2]) and len(gone) > 3, gone
        stream.close()
        until(lambda: at_engine(node) == ["sim"], "it is unloaded then")
        if not whole:
            model(cluster, "load", "de", "--lora", lora, "--base", "sim", "--wait", "--timeout", "20s")
            until(lambda: status(cluster, "de") == 200, "it is served again")
    other.close()


def test_a_node_has_its_own_version_of_an_adapter(cluster, lora, tmp_path):
    cluster.router()
    nodes = [cluster.node(n, *LORA, sections=VLLM) for n in "ab"]
    cluster.wait_ready()
    second = tmp_path / "second"
    second.mkdir()
    (second / "adapter_config.json").write_text("{}")

    def loads(node):
        return [e["path"] for e in node.agent.events("engine.adapter_loaded")]

    def paths():
        listed = json.loads(model(cluster, "ls", "-o", "json"))["models"]
        return {p["node"]: p["loraPath"] for m in listed if m["name"] == "de" for p in m["places"]}

    model(cluster, "load", "de", "--lora", lora, "--base", "sim", "--wait", "--timeout", "20s")
    model(cluster, "load", "de", "--lora", str(second), "--base", "sim", "--node", "a", "--wait", "--timeout", "20s")
    assert paths() == {"a": str(second), "b": lora} and places(cluster, "de") == {"a": "ready", "b": "ready"}
    until(lambda: loads(nodes[0]) == [lora, str(second)], lambda: loads(nodes[0]))
    assert loads(nodes[1]) == [lora] and not nodes[1].agent.events("engine.adapter_unloaded")
    model(cluster, "unload", "de", "--node", "a", "--wait", "--timeout", "20s")
    model(cluster, "load", "de", "--node", "a", "--wait", "--timeout", "20s")  # what it had
    assert loads(nodes[0]) == [lora, str(second), str(second)] and loads(nodes[1]) == [lora]
    model(cluster, "load", "de", "--lora", str(second), "--base", "sim", "--wait", "--timeout", "20s")
    until(lambda: loads(nodes[1]) == [lora, str(second)], lambda: loads(nodes[1]))
    assert loads(nodes[0]) == [lora, str(second), str(second)]


def test_sglang_is_asked_for_an_adapter_after_its_base_model(cluster, lora):
    """SGLang answers for the base model to the adapter's name alone. Clients see the name that they wrote."""
    cluster.router()
    node = cluster.node("a", *LORA, sections={"engine": {"kind": "sglang"}})
    cluster.wait_ready()
    model(cluster, "load", "de", "--lora", lora, "--base", "sim", "--wait", "--timeout", "20s")
    until(lambda: status(cluster, "de") == 200, "it is served")

    text = "the quick brown fox jumps over the lazy dog " * 20

    def cached(port, name, **more):
        a = ask(port, "POST", "/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": text}], "max_tokens": 2, **more})
        return a.json()["model"], a.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached(cluster.http_port, "sim") == ("sim", 0)
    assert cached(cluster.http_port, "de") == ("de", 0)  # not the base model's blocks
    hit = cached(cluster.http_port, "sim")[1]
    assert cached(cluster.http_port, "de") == ("de", hit) and hit > 0
    assert cached(node.engine_port, "de", cache_salt="s")[1] == 0 and cached(node.engine_port, "sim", cache_salt="s")[1] == hit
    streamed = cluster.chat("hello", model="de", max_tokens=6, stream=True)
    assert b'"model":"de"' in streamed.body and b"sim:de" not in streamed.body


def test_what_is_wanted_outlives_router_agent_and_engine(cluster, lora):
    router = cluster.router()
    a = cluster.node("a", *LORA, sections=VLLM)
    cluster.wait_ready()
    model(cluster, "load", "de", "--lora", lora, "--base", "sim", "--wait", "--timeout", "20s")
    router.kill()
    router.start()
    until(lambda: places_or_none(cluster, "de") == {"a": "ready"}, "a restarted router knows it")
    until(lambda: status(cluster, "de") == 200, "it is served")
    a.agent.kill()
    a.engine.kill()
    a.engine.start()  # without the adapter
    a.agent.start()
    until(lambda: at_engine_or_none(a) == ["de", "sim"], "the restarted engine has it again")
    until(lambda: status(cluster, "de") == 200, "it is served again")
    b = cluster.node("b", *LORA, sections=VLLM)
    until(lambda: at_engine(b) == ["de", "sim"], "a node that joins later loads it")
    until(lambda: places(cluster, "de") == {"a": "ready", "b": "ready"}, "it is shown there")


def places_or_none(cluster, name):
    try:
        return places(cluster, name)
    except AssertionError:
        return None


def at_engine_or_none(node):
    try:
        return at_engine(node)
    except OSError:
        return None


def test_a_load_that_fails_says_why_and_a_new_order_is_tried_at_once(cluster, lora, tmp_path):
    cluster.router()
    cluster.node("a", *LORA, sections=VLLM)
    cluster.node("b", *FAST, sections=VLLM)  # without the routes for adapters
    cluster.wait_ready()
    said = model(cluster, "load", "de", "--lora", str(tmp_path / "nowhere"), "--base", "sim", "--node", "a", "--wait", "--timeout", "20s", code=1)
    assert "node a failed" in said and "No adapter found for" in said and "nowhere" in said, said
    shown = model(cluster, "ls")
    assert "failed" in shown and "No adapter found" in shown, shown
    assert status(cluster, "de") == 404 and status(cluster, "sim") == 200
    model(cluster, "load", "de", "--lora", lora, "--base", "sim", "--node", "a", "--wait", "--timeout", "20s")
    said = model(cluster, "load", "fr", "--lora", lora, "--base", "sim", "--node", "b", "--wait", "--timeout", "20s", code=1)
    assert "node b failed" in said and "does not load adapters while it runs" in said, said
    assert places(cluster, "de") == {"a": "ready"}


def test_orders_that_cannot_be_obeyed_are_refused_at_once(cluster, lora):
    cluster.router()
    cluster.node("a", *LORA, sections=VLLM)
    cluster.node("c", *LORA)
    cluster.wait_ready()
    load = ("load", "de", "--lora", lora, "--base")
    assert "kind sim, which loads no LoRA adapters" in model(cluster, *load, "sim", "--node", "c", code=1)
    assert "no node nobody is known" in model(cluster, *load, "sim", "--node", "nobody", code=1)
    assert 'serves the base model "other"' in model(cluster, *load, "other", code=1)
    assert 'has the model "de"' in model(cluster, "load", "de", code=1)
    assert "both --lora PATH and --base MODEL" in model(cluster, "load", "de", "--lora", lora, code=1)
    assert "has the name of its base model" in model(cluster, "load", "sim", "--lora", lora, "--base", "sim", code=1)
    assert 'has the model "de"' in model(cluster, "unload", "de", code=1)
    assert places(cluster, "de") == {}
    model(cluster, *load, "sim", "--wait", "--timeout", "20s")
    assert places(cluster, "de") == {"a": "ready"}  # the node that cannot is not meant


def test_the_simulator_is_as_strict_as_vllm(cluster, lora):
    engine, port = cluster.engine("e", *LORA)
    def ask_it(path, **body):
        r = ask(port, "POST", path, body)
        return r.status, r.body.decode()
    assert ask_it("/v1/load_lora_adapter", lora_name="x", lora_path=lora) == (200, "Success: LoRA adapter 'x' added successfully.")
    code, said = ask_it("/v1/load_lora_adapter", lora_name="x", lora_path=lora)
    assert code == 400 and "has already been loaded" in said
    assert ask_it("/v1/load_lora_adapter", lora_name="y")[0] == 400
    assert ask_it("/v1/load_lora_adapter", lora_name="y", lora_path="/nowhere")[0] == 404
    assert ask_it("/v1/unload_lora_adapter", lora_name="x")[0] == 200
    assert ask_it("/v1/unload_lora_adapter", lora_name="x")[0] == 404
    assert ask_it("/v1/unload_lora_adapter", lora_name="sim")[0] == 404  # the base model
    plain, port = cluster.engine("plain", port=free_port())
    assert ask_it("/v1/load_lora_adapter", lora_name="x", lora_path=lora)[0] == 404


# ---- engines' own models ----
def own(cluster, name="sim"):
    """Return {node: (wanted, state)} of an engine's own model."""
    listed = json.loads(model(cluster, "ls", "-o", "json")).get("models", [])
    return {p["node"]: (p.get("wanted", "").removeprefix("WANTED_").lower(), p["state"]) for m in listed if m["name"] == name for p in m.get("places", [])}


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_model_sleeps_and_wakes(cluster, kind):
    cluster.router()
    for n in "ab":
        cluster.node(n, *FAST, "--sleep", sections={"engine": {"kind": kind}})
    cluster.wait_ready()
    prompt = "the same long prompt " * 50
    for _ in range(4):
        assert cluster.chat(prompt, max_tokens=2).status == 200
    shown = model(cluster, "sleep", "sim", "--node", "a", "--wait", "--timeout", "20s")
    assert "asleep" in shown and own(cluster) == {"a": ("asleep", "asleep"), "b": ("", "ready")}
    assert all(cluster.chat(prompt, max_tokens=2).headers["x-cgn-node"] == "b" for _ in range(6))
    model(cluster, "sleep", "sim", "--wait", "--timeout", "20s")
    until(lambda: cluster.chat("x", max_tokens=2).status == 503, "none is awake")
    refused = cluster.chat("x", max_tokens=2)
    assert int(refused.headers["retry-after"]) > 0 and "sim" in refused.body.decode()
    model(cluster, "wake", "sim", "--node", "a", "--wait", "--timeout", "20s")
    until(lambda: cluster.chat("x", max_tokens=2).status == 200, "a is awake")
    a = cluster.chat(prompt, max_tokens=2)
    assert a.headers["x-cgn-node"] == "a" and a.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # its cache was empty, and that was known
    assert int(a.headers["x-cgn-cache-hit"].split("/")[0]) == 0
    cluster.nodes["b"].agent.kill()
    cluster.nodes["b"].agent.start()
    until(lambda: own(cluster).get("b") == ("asleep", "asleep"), "a restarted agent keeps it asleep")
    model(cluster, "load", "sim", "--wait", "--timeout", "20s")
    assert own(cluster) == {"a": ("loaded", "ready"), "b": ("loaded", "ready")}


def test_streams_end_before_an_engine_sleeps(cluster):
    cluster.router()
    cluster.node("a", "--decode-ms", "30", "--sleep", sections=VLLM)
    cluster.wait_ready()
    with contextlib.closing(Stream(cluster.http_port, "hello", max_tokens=100, ignore_eos=True)) as s:
        s.read_until(b"data: ")
        model(cluster, "sleep", "sim")
        until(lambda: own(cluster)["a"][1] == "draining", lambda: own(cluster))
        assert cluster.chat("x", max_tokens=1).status == 503
        s.read_until(b"[DONE]")
    until(lambda: own(cluster)["a"][1] == "asleep", "it sleeps")


def test_engines_that_cannot_sleep_say_so(cluster):
    cluster.router()
    cluster.node("a", *FAST, sections=VLLM)
    cluster.wait_ready()
    said = model(cluster, "sleep", "sim", "--wait", "--timeout", "20s", code=9)
    assert "sim on node a failed" in said and "was not started so that it can sleep" in said, said
    assert cluster.chat("x", max_tokens=1).status == 200  # it serves on
    assert "does not manage engine" in model(cluster, "unload", "sim", code=9)
    assert 'has the model "nothing"' in model(cluster, "unload", "nothing", code=9)
    assert "without --lora and --node" in model(cluster, "load", "sim", "--replicas", "1", "--node", "a", code=2)
    assert "2 replicas are wanted, and 1 nodes have the model" in model(cluster, "load", "sim", "--replicas", "2", code=9)
    cluster.node("b", *FAST)
    cluster.wait_ready()
    assert "which cannot sleep (vllm and sglang can)" in model(cluster, "sleep", "sim", "--node", "b", code=9)


def managed(cluster, name):
    port = free_port()
    agent, _, admin = cluster.agent(name, port, {"engine": {
        "managed": True, "model_path": "sim", "binary": str(BUILD / "src/sim/cgn-sim"), "extra_args": ["--decode-ms", "20"], "stop_grace": "2s"}})
    return agent, admin, port


def pid_of(admin):
    return ask(admin, "GET", "/engines").json()["engines"][0]["pid"]


def test_managed_engines_are_stopped_and_started(cluster):
    cluster.router()
    nodes = {n: managed(cluster, n) for n in "ab"}
    cluster.wait_ready(2)
    with contextlib.closing(Stream(cluster.http_port, "hello", max_tokens=30, ignore_eos=True)) as s:
        s.read_until(b"data: ")
        model(cluster, "unload", "sim")
        s.read_until(b"[DONE]")  # no stream is cut
    until(lambda: own(cluster) == {n: ("unloaded", "stopped") for n in "ab"}, lambda: own(cluster))
    assert [pid_of(admin) for _, admin, _ in nodes.values()] == [0, 0]
    assert cluster.chat("x", max_tokens=1).status == 503
    nodes["a"][0].kill()
    nodes["a"][0].start()
    until(lambda: own(cluster).get("a") == ("unloaded", "stopped"), "it stays stopped after the agent's restart")
    assert pid_of(nodes["a"][1]) == 0
    shown = model(cluster, "load", "sim", "--replicas", "1", "--wait", "--timeout", "30s")
    assert "ready" in shown and sorted(state for _, state in own(cluster).values()) == ["ready", "stopped"]
    until(lambda: cluster.chat("x", max_tokens=1).status == 200, "one serves it")
    model(cluster, "load", "sim", "--replicas", "2", "--wait", "--timeout", "30s")
    assert own(cluster) == {n: ("loaded", "ready") for n in "ab"}
    served_by = next(n for n in "ab")
    model(cluster, "unload", "sim", "--node", served_by, "--wait", "--timeout", "30s")
    assert own(cluster)[served_by] == ("unloaded", "stopped") and cluster.chat("x", max_tokens=1).status == 200
