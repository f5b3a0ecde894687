# SPDX-License-Identifier: Apache-2.0
"""How many pods a ModelPool has, and where: an autoscaler of Kubernetes writes the count, or each machine has one pod."""
import json

import pytest

from cluster import until
from operator_world import cluster, pool, ready
from test_operator_end import exists, gone


def replicas(kube, space):
    return kube.get("statefulset", "chat", "-n", space)["spec"]["replicas"]


def test_an_autoscaler_writes_the_count_and_nobody_writes_it_back(operator, installed, space):
    """The controller of Kubernetes raises the count to min, without any metric."""
    kube = installed
    kube.apply(cluster(space), pool(space, autoscaling={"min": 2, "max": 8, "target": 16}))
    ready(kube, "mp", "chat", space, 2)
    hpa = kube.get("hpa", "chat", "-n", space)
    assert hpa["spec"]["scaleTargetRef"] == {"apiVersion": "cognitora.dev/v1alpha1", "kind": "ModelPool", "name": "chat"}
    assert hpa["spec"]["metrics"][0]["pods"]["metric"]["name"] == "cgn_engine_requests_running"
    assert next(c for c in hpa["status"]["conditions"] if c["type"] == "AbleToScale")["status"] == "True", hpa["status"]
    writers = {m["manager"] for m in kube.get("mp", "chat", "-n", space, "--show-managed-fields")["metadata"]["managedFields"]
               if "f:replicas" in m["fieldsV1"].get("f:spec", {})}
    assert writers == {"kube-controller-manager"}, writers
    kube.kubectl("scale", "mp", "chat", "-n", space, "--replicas=5")
    ready(kube, "mp", "chat", space, 5)
    kube.kubectl("patch", "mp", "chat", "-n", space, "--type=merge", "-p", json.dumps({"spec": {"engine": {"args": ["--seed", "7"]}}}))
    operator.rest()
    assert replicas(kube, space) == 5 and kube.get("mp", "chat", "-n", space)["spec"]["replicas"] == 5
    assert operator.metric("cgn_operator_drifts_total") == 0, "statuses that controllers write are no drift"
    kube.kubectl("patch", "hpa", "chat", "-n", space, "--type=merge", "-p", '{"spec":{"maxReplicas":99}}')
    until(lambda: kube.get("hpa", "chat", "-n", space)["spec"]["maxReplicas"] == 8, "drift of the autoscaler is undone")
    kube.kubectl("patch", "mp", "chat", "-n", space, "--type=json", "-p", '[{"op":"remove","path":"/spec/autoscaling"}]')
    gone(kube, "hpa", "chat", space)
    operator.rest()
    assert replicas(kube, space) == 5 and operator.metric("cgn_operator_failures_total") == 0


def test_a_pool_has_a_pod_on_each_machine(operator, installed, space):
    kube = installed
    for name in ("a", "b"):
        kube.machine(f"{space}-{name}")
        kube.kubectl("label", "node", f"{space}-{name}", f"pool={space}")
    kube.apply(cluster(space), pool(space, placement="DaemonSet", nodeSelector={"pool": space}))
    ready(kube, "mp", "chat", space, 2)
    pods = [p for p in kube.get("pods", "-n", space)["items"] if p["metadata"]["name"].startswith("chat-")]
    assert sorted(p["spec"]["nodeName"] for p in pods) == [f"{space}-a", f"{space}-b"]
    env = {e["name"]: e.get("value") for e in pods[0]["spec"]["containers"][0]["env"]}
    assert env["COGNITORA__AGENT__NODE_ID"] == "chat-$(NODE_NAME)"
    assert not exists(kube, "pdb", "chat", space)
    kube.machine(f"{space}-c")
    kube.kubectl("label", "node", f"{space}-c", f"pool={space}")
    ready(kube, "mp", "chat", space, 3)
    kube.kubectl("patch", "mp", "chat", "-n", space, "--type=merge", "-p", '{"spec":{"placement":"StatefulSet"}}')
    gone(kube, "daemonset", "chat", space)
    ready(kube, "mp", "chat", space, 1)
    assert exists(kube, "pdb", "chat", space)
    kube.kubectl("patch", "mp", "chat", "-n", space, "--type=merge", "-p", '{"spec":{"placement":"DaemonSet","nodeSelector":{"pool":"no-such-machine"}}}')
    until(lambda: kube.get("mp", "chat", "-n", space)["status"]["conditions"][0]["reason"] == "NoMachines", lambda: kube.get("mp", "chat", "-n", space)["status"])
    kube.kubectl("delete", "mp", "chat", "-n", space)
    assert not exists(kube, "daemonset", "chat", space)


@pytest.mark.parametrize("spec, said", [
    ({"placement": "Everywhere"}, "placement must be StatefulSet (replicas pods) or DaemonSet (one pod on each machine)"),
    ({"placement": "DaemonSet", "autoscaling": {"max": 2, "target": 4}}, "autoscaling cannot be set with it"),
    ({"autoscaling": {"target": 4}}, "autoscaling.max is missing"),
    ({"autoscaling": {"max": 2}}, "autoscaling.target is missing"),
    ({"autoscaling": {"min": 0, "max": 2, "target": 4}}, "autoscaling.min must be at least 1"),
    ({"autoscaling": {"min": 3, "max": 2, "target": 4}}, "autoscaling.min must not be more than autoscaling.max"),
    ({"autoscaling": {"max": 5000, "target": 4}}, "autoscaling.max must be from 1 to 4096"),
    ({"autoscaling": {"max": 2, "target": 0}}, "autoscaling.target must be from 1"),
    ({"autoscaling": {"max": 2, "target": 4, "metric": "moon"}}, "autoscaling.metric must be running, waiting or cpu"),
])
def test_mistakes_are_refused_in_sentences(installed, space, spec, said):
    done = installed.kubectl("apply", "-f", "-", text=json.dumps(pool(space, **spec)), check=False)
    assert done.returncode != 0 and said in done.stderr, done.stderr
