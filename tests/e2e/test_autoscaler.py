# SPDX-License-Identifier: Apache-2.0
"""router.autoscaler: engines that agents start and stop by the load, down to none and back."""
import contextlib
import json
import signal
import subprocess
import threading
import time

import pytest

from clients import Stream
from cluster import BUILD, ask, free_port, until
from kvwire import blake3

CTL = str(BUILD / "src/ctl/cgn-ctl")
QUICK = {"enabled": True, "up_window": "1s", "down_window": "1s", "idle": "1s", "wake_time": "7s", "ttft": "0s", "itl": "0s"}


def managed(cluster, name, *args):
    """Start an agent that manages a cgn-sim, and gives streams hardly any time when an operator stops it."""
    cluster.agent(name, free_port(), {"agent": {"drain_timeout": "100ms"}, "engine": {
        "managed": True, "model_path": "sim", "binary": str(BUILD / "src/sim/cgn-sim"), "extra_args": ["--decode-ms", "20", *args], "stop_grace": "2s"}})


def fleet(cluster, names, **settings):
    cluster.router({"router.autoscaler": {**QUICK, **settings}, "router.admission": {"max_concurrent_per_replica": 8}})
    for n in names:
        managed(cluster, n)
    cluster.wait_ready(len(names))


def scaler(cluster):
    return ask(cluster.admin_port, "GET", "/autoscaler").json()


def ready(cluster):
    return scaler(cluster)["models"][0]["ready"]


def places(cluster):
    done = subprocess.run([CTL, "model", "ls", "-o", "json", "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, text=True, timeout=60, check=True)
    return {p["node"]: p["state"] for m in json.loads(done.stdout).get("models", []) for p in m.get("places", [])}


def test_shadow_says_and_does_nothing(cluster):
    fleet(cluster, "abc", mode="shadow")
    until(lambda: scaler(cluster)["decisions"], cluster.logs)
    d = scaler(cluster)["decisions"][0]
    assert (d["model"], d["role"], d["action"], d["have"], d["want"], d["by"]) == ("sim", "both", "down", 3, 1, 1)
    assert "needs 1 replica; there are 3" in d["why"] and d["then"] == "nothing: router.autoscaler.mode is shadow" and d["nodes"] == "c"
    assert list(places(cluster).values()) == ["ready"] * 3
    shown = subprocess.run([CTL, "cluster", "scale", "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, text=True, timeout=60, check=True)
    assert "router.autoscaler: shadow" in shown.stdout and d["why"] in shown.stdout
    assert cluster.metric("cgn_autoscaler_replicas", model="sim", role="both", state="wanted") == 1
    assert cluster.metric("cgn_autoscaler_replicas", model="sim", role="both", state="ready") == 3
    assert cluster.metric("cgn_autoscaler_decisions_total", model="sim", action="down") >= 1


def test_shrinks_without_cutting_a_stream_and_grows(cluster):
    """Streams that last longer than agent.drain_timeout end regularly, the node with the useful cache stays, load wakes the others, and an end
    of the autoscaler wakes all."""
    fleet(cluster, "abc")
    hot = "a long document " * 400
    node = cluster.chat(hot, max_tokens=1).headers["x-cgn-node"]
    with contextlib.ExitStack() as all_of:
        streams = [all_of.enter_context(contextlib.closing(Stream(cluster.http_port, f"{i} {time.monotonic()}", max_tokens=110, ignore_eos=True)))
                   for i in range(3)]
        for s in streams:
            s.read_until(b"data: ")
        cluster.chat(hot, max_tokens=1)
        until(lambda: list(places(cluster).values()).count("draining") >= 1, lambda: (places(cluster), scaler(cluster)))
        for s in streams:
            s.read_until(b"[DONE]")
    until(lambda: sorted(places(cluster).values()) == ["ready", "stopped", "stopped"], lambda: (places(cluster), scaler(cluster)))
    assert places(cluster)[node] == "ready"
    threads = [threading.Thread(target=cluster.chat, args=(f"load {i}",), kwargs={"max_tokens": 100, "ignore_eos": True}) for i in range(12)]
    for t in threads:
        t.start()
    until(lambda: scaler(cluster)["models"][0]["wake_seconds"] < 7, lambda: scaler(cluster))  # one is awake again, and the time was measured
    assert "stopped" in places(cluster).values()
    file = cluster.folder / "router.toml"
    file.write_text(file.read_text().replace("enabled = true", "enabled = false"))
    cluster.router_process.signal(signal.SIGHUP)
    until(lambda: list(places(cluster).values()) == ["ready"] * 3, lambda: places(cluster))
    for t in threads:
        t.join()


def test_requests_wait_for_a_model_without_replicas(cluster):
    fleet(cluster, "a", min_replicas=0)
    assert cluster.chat("x", max_tokens=1).status == 200
    until(lambda: places(cluster) == {"a": "stopped"}, lambda: (places(cluster), scaler(cluster)))
    assert "no request ran or waited for" in scaler(cluster)["decisions"][0]["why"]
    # A load balancer sends requests only to a router that is ready, and clients ask only for models that they see.
    assert ask(cluster.admin_port, "GET", "/readyz").status == cluster.ask("GET", "/readyz").status == 200
    assert [m["id"] for m in cluster.ask("GET", "/v1/models").json()["data"]] == ["sim"]
    assert cluster.ask("GET", "/v1/models/sim").status == 200 and cluster.ask("GET", "/api/tags").json()["models"][0]["model"] == "sim"
    answer = cluster.chat("y", max_tokens=1)
    assert answer.status == 200, answer.body
    assert scaler(cluster)["decisions"][0]["action"] == "up" and scaler(cluster)["decisions"][0]["nodes"] == "a"


def test_retry_after_tells_how_long_a_wake_takes(cluster):
    """The engine takes longer to start than a request may wait."""
    cluster.router({"router.autoscaler": {**QUICK, "min_replicas": 0}, "router.admission": {"queue_timeout": "300ms", "node_wait": "0s"}})
    managed(cluster, "a", "--fault", "slow-start=1500ms")
    cluster.wait_ready(1)
    until(lambda: places(cluster) == {"a": "stopped"}, lambda: (places(cluster), scaler(cluster)))
    answer = cluster.chat("x", max_tokens=1)
    assert answer.status == 503 and answer.json()["error"]["code"] == "queue_timeout"
    assert 5 <= int(answer.headers["retry-after"]) <= 7  # wake_time, as nothing was measured


@pytest.mark.parametrize("settings, says", [
    ({"router.autoscaler": {"enabled": True}, "router.energy": {"park": "sleep"}}, "both decide which engines rest"),
    ({"router.autoscaler": {"enabled": True, "min_replicas": 3, "max_replicas": 2}}, "is less than router.autoscaler.min_replicas"),
    ({'models."sim"': {"replicas": "4-2"}}, 'must be the least and the most, such as "1-4"'),
])
def test_settings_that_cannot_be_are_refused(cluster, settings, says):
    done = subprocess.run([str(BUILD / "src/router/cgn-router"), "--check", "--config", str(cluster.config("bad", settings))], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 3 and says in done.stderr + done.stdout


@pytest.mark.slow
def test_prefill_and_decode_go_and_come_together(cluster):
    """A request that waits wakes one node of each role; a stream on the decode node keeps the prefill node, which has nothing to do."""
    cluster.router({"router.autoscaler": {**QUICK, "min_replicas": 0, "idle": "1s"}, "router.disagg": {"enabled": True},
                    'models."sim"': {"block_bytes": 64, "tokens": "bytes"}})
    for name, role in (("p", "prefill"), ("d", "decode")):
        port = free_port()
        cluster.agent(name, port, {"agent": {"role": role}, "engine": {
            "managed": True, "model_path": "sim", "binary": str(BUILD / "src/sim/cgn-sim"), "handoff": "nixl", "handoff_port": port,
            "extra_args": ["--decode-ms", "20", "--handoff", "nixl", "--role", role, "--kv-block-bytes", "1024"], "stop_grace": "2s"}})

    def are_ready():
        return {m["role"]: m["ready"] for m in scaler(cluster)["models"]}

    def told(action):
        return [d["role"] for d in scaler(cluster)["decisions"] if d["action"] == action]
    until(lambda: are_ready() == {"prefill": 0, "decode": 0} and sorted(told("down")) == ["decode", "prefill"], lambda: json.dumps(scaler(cluster), indent=1))
    s = Stream(cluster.http_port, max_tokens=3000, ignore_eos=True)
    until(lambda: are_ready() == {"prefill": 1, "decode": 1}, lambda: json.dumps(scaler(cluster), indent=1))
    assert sorted(told("up")) == ["decode", "prefill"]
    until(lambda: [m["inflight"] for m in scaler(cluster)["models"]] == [1, 1], lambda: json.dumps(scaler(cluster), indent=1))
    s.close()
    until(lambda: are_ready() == {"prefill": 0, "decode": 0} and len(told("down")) == 4, lambda: json.dumps(scaler(cluster), indent=1))
    assert sorted(told("down")) == ["decode", "decode", "prefill", "prefill"] and sorted(told("up")) == ["decode", "prefill"]


def usual_loads(cluster, load):
    """Write the file of a router that has seen |load| on two days, in the quarters of an hour around now."""
    slot = int(time.time()) // 900
    lines = [f"day {s % 96} {int(load * 1000)} 2\n" for s in range(slot - 1, slot + 5)]
    text = "".join(["cognitora-autoscaler 1\n", "group 0 sim\n", *lines])
    file = cluster.state_dir / f"cognitora.127.0.0.1:{cluster.http_port}.autoscaler"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "sum " + blake3(text.encode()).hex() + "\n")
    return file


@pytest.mark.slow
def test_the_usual_load_of_the_time_of_day_makes_replicas(cluster):
    """Nothing is asked: what a router learned before its restart is enough."""
    settings = {"min_replicas": 0, "idle": "1s"}
    fleet(cluster, "abc", **settings)
    until(lambda: scaler(cluster)["models"] and ready(cluster) == 0, lambda: json.dumps(scaler(cluster), indent=1))
    cluster.router_process.stop()
    usual_loads(cluster, 1.0)
    cluster.router({"router.autoscaler": {**QUICK, **settings, "time_of_day": True}, "router.admission": {"max_concurrent_per_replica": 8}})
    until(lambda: scaler(cluster)["models"] and ready(cluster) == 2, lambda: json.dumps(scaler(cluster), indent=1))
    g, d = scaler(cluster)["models"][0], [d for d in scaler(cluster)["decisions"] if d["action"] == "up"][-1]
    assert g["expected"] == 1 and g["want"] == 2 and g["inflight"] == 0 and "at this time of day" in d["why"], (g, d)


def test_a_damaged_file_of_usual_loads_is_set_aside(cluster):
    fleet(cluster, "a", time_of_day=True)
    cluster.router_process.stop()
    file = usual_loads(cluster, 1.0)
    file.write_text(file.read_text().replace("1000 2", "2000 2"))
    cluster.router({"router.autoscaler": {**QUICK, "time_of_day": True}})
    until(lambda: scaler(cluster)["models"], cluster.logs)
    assert scaler(cluster)["models"][0]["expected"] == 0 and file.with_name(file.name + ".bad").exists() and not file.exists()
