# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl cluster set-policy: shown, changed while the router runs, kept across a restart, refused with a reason."""
import json
import subprocess

import pytest

from cluster import BUILD, ask, until

CTL = str(BUILD / "src/ctl/cgn-ctl")
FAST = ("--time-scale", "0")


def ctl(cluster, *args):
    return subprocess.run([CTL, "cluster", *args, "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, text=True, timeout=60)


def begin(cluster, sections=None):
    router = cluster.router(sections)
    until(lambda: cluster.listens(cluster.grpc_port, router), "its gRPC port listens")
    return router


def policy(cluster):
    r = ctl(cluster, "set-policy", "-o", "json")
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


def test_it_is_shown_and_changed_and_outlives_a_restart(cluster):
    begin(cluster, {"router": {"policy": "weighted"}, "router.score_weights": {"kv": 0.4, "load": 0.4}})
    for name in "ab":
        cluster.node(name, *FAST)
    cluster.wait_ready()
    p = policy(cluster)
    assert (p["policy"], p["policy_from"], p["weights_from"], p["trouble"]) == ("weighted", "configuration", "configuration", "")
    assert p["weights"] == {"kv": 0.4, "load": 0.4, "power": 0.1, "capacity": 0.1}

    r = ctl(cluster, "set-policy", "--policy", "round_robin")
    assert r.returncode == 0 and "round_robin (from " in r.stdout, r.stdout + r.stderr
    nodes = [cluster.chat("one and the same prompt", max_tokens=1).headers["x-cgn-node"] for _ in range(8)]
    assert abs(nodes.count("a") - nodes.count("b")) <= 2, nodes  # each of the two workers has its own turn
    assert ctl(cluster, "set-policy", "--weights", "kv=0.5,load=0.3").returncode == 0
    file = cluster.state_dir / "cognitora.policy"
    assert json.loads(file.read_text()) == {"policy": "round_robin", "weights": {"kv": 0.5, "load": 0.3, "power": 0.1, "capacity": 0.1}}

    cluster.router_process.stop()
    cluster.router_process.start()
    cluster.wait_ready()
    p = policy(cluster)
    assert (p["policy"], p["policy_from"], p["weights"]["kv"], p["weights_from"]) == ("round_robin", str(file), 0.5, str(file))
    status = ctl(cluster, "status").stdout
    assert f"policy    round_robin (from {file})" in status and "kv 0.5, load 0.3" in status
    assert json.loads(ctl(cluster, "status", "-o", "json").stdout)["routing"]["policy"] == "round_robin"

    assert ctl(cluster, "set-policy", "--weights", "kv=0.1, load=0.7").returncode == 0
    assert policy(cluster)["weights"] == {"kv": 0.1, "load": 0.7, "power": 0.1, "capacity": 0.1}
    assert ctl(cluster, "set-policy", "--reset").returncode == 0
    assert not file.exists()
    assert policy(cluster)["weights"]["kv"] == 0.4 and policy(cluster)["policy_from"] == "configuration"
    assert cluster.chat("hello").status == 200


@pytest.mark.parametrize("args, said", [
    (["--policy", "fastest"], '"fastest" is not a policy; they are kv, weighted, predicted, round_robin, random, least_loaded, power_of_two, session'),
    (["--weights", "kv=0.9"], "are 1.35 together: they must be 1"),
    (["--weights", "kv=1.5,load=-0.5"], "the weight kv is 1.5: weights are from 0 to 1"),
    (["--weights", "kv=much"], 'the weight kv is "much": it must be a number'),
    (["--weights", "kv"], "it must be like kv=0.5"),
    (["--weights", "luck=1"], 'no weight "luck"; they are kv, load, power and capacity'),
    (["--reset", "--policy", "kv"], "a reset goes with neither"),
])
def test_mistakes_change_nothing_and_are_named(cluster, args, said):
    begin(cluster)
    r = ctl(cluster, "set-policy", *args)
    assert r.returncode not in (0, -6, -11) and said in r.stderr, r.stderr
    assert policy(cluster)["policy_from"] == "configuration"
    assert not (cluster.state_dir / "cognitora.policy").exists()


def test_a_broken_file_is_refused_and_said(cluster):
    (cluster.state_dir / "cognitora.policy").write_text('{"policy": "weighted", "weights": {"kv": 1}}')
    router = begin(cluster)
    until(lambda: router.events("router.policy_refused"), "it says so")
    event = router.events("router.policy_refused")[0]
    assert event["where"].endswith("/cognitora.policy") and 'lacks the number "load"' in event["why"]
    p = policy(cluster)
    assert p["policy_from"] == "configuration" and 'lacks the number "load"' in p["trouble"]
    assert "TROUBLE" in ctl(cluster, "status").stdout
    assert ctl(cluster, "set-policy", "--policy", "random").returncode == 0
    p = policy(cluster)
    assert p["policy"] == "random" and p["trouble"] == ""


def test_what_can_not_be_kept_is_not_done(cluster):
    begin(cluster, {"cluster": {"state_dir": "/proc/nowhere"}})
    cluster.node("a", *FAST)
    cluster.wait_ready()
    r = ctl(cluster, "set-policy", "--policy", "random")
    assert r.returncode == 1 and "cluster.state_dir" in r.stderr, r.stderr
    assert policy(cluster)["policy"] != "random"
    assert ctl(cluster, "cordon", "a").returncode == 1
    assert ctl(cluster, "drain", "a").returncode == 1
    router = cluster.router_process
    assert not router.events("router.set_policy") and not router.events("router.cordon")  # the log does not say that it was done
    (said,) = router.events("router.set_policy_failed")
    assert "cluster.state_dir" in said["why"] and said["then"] == "the policy stays as it was" and '"random"' in said["document"]
    assert [(e["node"], e["cordon"]) for e in router.events("router.cordon_failed")] == [("a", True)] * 2
    assert cluster.states() == {"a": "ready"}
    assert ask(cluster.admin_port, "GET", "/healthz").status == 200
