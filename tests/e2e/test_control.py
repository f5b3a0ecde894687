# SPDX-License-Identifier: Apache-2.0
"""What a router tells its operator of nodes, models and traffic, and what it does with their orders."""
import json
import subprocess

from clients import Stream
from cluster import BUILD, ask, until
from several import Several

CTL = str(BUILD / "src/ctl/cgn-ctl")
FAST = ("--time-scale", "0")
STATES = ("joining", "ready", "cordoned", "draining", "down")


def ctl(grpc_port, *args):
    done = subprocess.run([CTL, "cluster", *args, "--router", f"127.0.0.1:{grpc_port}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown_state(cluster, node):
    """Return the states in which the metric has the node: one of them, or none where it is not known."""
    text = cluster.scrape()
    return [s for s in STATES if cluster.metric("cgn_node_state", text, node=node, state=s) == 1]


def test_a_nodes_states_are_in_the_metrics_and_the_log(cluster):
    router = cluster.router()
    cluster.node("a", *FAST)
    cluster.node("b", *FAST)
    cluster.wait_ready()
    assert shown_state(cluster, "a") == shown_state(cluster, "b") == ["ready"]
    ctl(cluster.grpc_port, "cordon", "a")
    until(lambda: shown_state(cluster, "a") == ["cordoned"], lambda: f"a is cordoned: {shown_state(cluster, 'a')}")
    assert shown_state(cluster, "b") == ["ready"]
    assert {cluster.chat(f"p{i}", max_tokens=1).headers["x-cgn-node"] for i in range(6)} == {"b"}
    ctl(cluster.grpc_port, "uncordon", "a")
    until(lambda: shown_state(cluster, "a") == ["ready"], "a is ready")
    seen = [e["state"] for e in router.events("router.node_state") if e["node"] == "a"]
    assert seen[-3:] == ["ready", "cordoned", "ready"] and all(x != y for x, y in zip(seen, seen[1:])), seen
    assert cluster.nodes["a"].agent.stop() == 0
    until(lambda: not shown_state(cluster, "a"), "a has left the metrics")
    assert 'node="a"' not in cluster.scrape(), "no series of it remains"
    assert [e["node"] for e in router.events("router.node_gone")] == ["a"]
    assert "a" not in cluster.states() and cluster.chat("x", max_tokens=1).headers["x-cgn-node"] == "b"


def test_what_runs_is_in_the_metrics(cluster):
    cluster.router()
    cluster.node("a", "--token-interval-us", "20000")
    cluster.wait_ready()
    held = [Stream(cluster.http_port, f"s{i}", max_tokens=5000, ignore_eos=True).read_until(b"data: ") for i in range(3)]
    until(lambda: cluster.metric("cgn_inflight", node="a") == cluster.metric("cgn_connections", port="http") == 3, "three run, over three connections")
    assert cluster.metric("cgn_others_inflight", node="a") == 0 and 0 <= cluster.metric("cgn_load_age_seconds", node="a") < 60
    (shown,) = cluster.status()["nodes"]
    assert shown["router_inflight"] == 3 and shown["load"]["yours"] in (0, 3) and shown["engines"][0]["models"] == ["sim"]
    for s in held:
        s.reset()
    until(lambda: cluster.metric("cgn_inflight", node="a") == cluster.metric("cgn_connections", port="http") == 0, "none is left")


def test_traffic_of_the_last_minute(cluster):
    cluster.router()
    cluster.node("a", "--token-interval-us", "3000")
    cluster.wait_ready()
    usage = [cluster.chat("x" * 900, max_tokens=2).json()["usage"] for _ in range(4)]
    assert cluster.chat("x", model="none").status == 404

    def told():
        status = json.loads(ctl(cluster.grpc_port, "status", "-o", "json"))
        return status["traffic"]["requests"] >= 4 and status
    status = until(told, "four are counted")
    t = status["traffic"]
    assert t["prompt_tokens"] == sum(u["prompt_tokens"] for u in usage)
    assert t["cached_tokens"] == sum(u.get("prompt_tokens_details", {}).get("cached_tokens", 0) for u in usage) > 300
    assert abs(t["requests_per_second"] * t["window_ms"] / 1000 - t["requests"]) < 0.01
    assert 0 < t["ttft_p50_ms"] <= t["ttft_p95_ms"] < 30_000
    assert status["nodes"]["ready"] == 1 and status["models"] == ["sim"]
    (prompt,) = status["prompts"]
    assert (prompt["model"], prompt["tokens"], prompt["why"], prompt["ready_nodes"]) == ("sim", "engine", "its engines tell tokens", 1)


def test_how_prompts_become_blocks_is_logged_when_it_changes(cluster):
    cluster.common = {"models.bytes": {"tokens": "bytes", "block_bytes": 128}, "models.absent": {"aliases": ["later"]}}
    router = cluster.router()

    def said(model):
        return [(e["tokens"], e["why"], e["block"], e["block_of"]) for e in router.events("router.model_tokens") if e["model"] == model]
    until(lambda: said("absent"), "models of the configuration are told of without a node")
    cluster.node("a", *FAST)
    cluster.node("b", *FAST, model="bytes")
    cluster.wait_ready()
    assert said("sim") == [("engine", "its engines tell tokens", 16, "tokens")]
    assert {row[1:] for row in said("bytes")} == {("as configured", 128, "bytes")}
    assert said("absent")[-1][1] == "no node has it"
    before = len(router.events("router.model_tokens"))
    ctl(cluster.grpc_port, "cordon", "a")
    until(lambda: cluster.states()["a"] == "cordoned", "the view was published again")
    assert cluster.chat("x", model="bytes", max_tokens=1).status == 200
    told = {(e["model"], e["tokens"]) for e in router.events("router.model_tokens")[before:]}
    assert not told & {("bytes", "bytes"), ("absent", said("absent")[0][0])}, "what did not change is not told again"


def test_a_node_of_a_list_is_cordoned_by_either_name(tmp_path):
    """The list has addresses; the agents have ids."""
    with Several(tmp_path) as c:
        c.static_nodes("ab", *FAST)
        one, = c.routers(1)
        grpc = next(line.split(":")[-1].strip('"') for line in (tmp_path / "router-0.toml").read_text().splitlines() if line.startswith("listen_grpc"))
        for name in ("a", f"127.0.0.1:{c.nodes['a'].agent_port}"):
            ctl(grpc, "cordon", name)
            until(lambda: one.states() == {"a": "cordoned", "b": "ready"}, lambda: f"{name} is cordoned: {one.states()}")
            assert {one.chat(f"{name} {i}", max_tokens=1).headers["x-cgn-node"] for i in range(4)} == {"b"}
            ctl(grpc, "uncordon", name)
            until(lambda: one.states() == {"a": "ready", "b": "ready"}, lambda: f"{name} is back: {one.states()}")


def test_a_reload_that_fails_in_part_keeps_the_rest(cluster):
    """A file of the access log that cannot be opened is named; the other changes count."""
    cluster.router({"router": {"access_log": str(cluster.folder / "access.log")}})
    cluster.node("a", *FAST)
    cluster.wait_ready()
    router = cluster.router_process
    cluster.config("router", {"router": {"listen": f"127.0.0.1:{cluster.http_port}", "listen_grpc": f"127.0.0.1:{cluster.grpc_port}",
                                         "listen_admin": f"127.0.0.1:{cluster.admin_port}", "worker_threads": 2, "access_log": "/nowhere/access.log"},
                              'models."sim"': {"aliases": ["other"]}})
    router.signal(1)
    (said,) = until(lambda: router.events("svc.reloaded_in_part"), "the reload ended")
    assert said["refused"] == 1 and "router.access_log" in said["why"] and "/nowhere/access.log" in said["why"]
    assert router.events("router.access_log_refused")[0]["then"] == "the old file stays"
    until(lambda: cluster.chat("x", model="other", max_tokens=1).status == 200, "the alias counts")
    until(lambda: '"model":"sim"' in (cluster.folder / "access.log").read_text(), "the old file has its line")
    assert ask(cluster.admin_port, "GET", "/healthz").status == 200
