# SPDX-License-Identifier: Apache-2.0
"""Resources end in order: pods of pools with their streams first, then routers. A pod that still drains is one that kwok leaves alone."""
import json

from cluster import until
from operator_world import cluster, pool, ready

HOLD = "example.org/stream"


def finalizers(kube, kind, name, space, *values):
    kube.kubectl("patch", kind, name, "-n", space, "--type=merge", "-p", json.dumps({"metadata": {"finalizers": list(values)}}))


def hold(kube, pod, space):
    """Keep a pod as long as it may drain: kwok leaves pods with this annotation alone."""
    kube.kubectl("annotate", "pod", pod, "-n", space, "kwok.x-k8s.io/status=custom")


def let_go(kube, pod, space):
    """The kubelet's word that the pod has ended."""
    kube.kubectl("delete", "pod", pod, "-n", space, "--force", "--grace-period=0")


def exists(kube, kind, name, space):
    return kube.kubectl("get", kind, name, "-n", space, check=False).returncode == 0


def delete(kube, kind, name, space):
    kube.kubectl("delete", kind, name, "-n", space, "--wait=false")


def gone(kube, kind, name, space):
    until(lambda: not exists(kube, kind, name, space), lambda: kube.kubectl("get", kind, name, "-n", space, "-o", "yaml", check=False).stdout, wait_s=90, step_s=0.2)


def condition(kube, kind, name, space, what="Deleting"):
    status = kube.get(kind, name, "-n", space).get("status", {})
    return next((c for c in status.get("conditions", []) if c["type"] == what), None)


def reasons(kube, space, name):
    return [e["reason"] for e in kube.get("events", "-n", space)["items"] if e["involvedObject"]["name"] == name and e.get("source", {}).get("component") == "cgn-operator"]


def up(kube, space, **spec):
    kube.apply(cluster(space), pool(space, **spec))
    ready(kube, "ic", "prod", space, 1)
    ready(kube, "mp", "chat", space, spec.get("replicas", 1))


def test_a_pool_stays_until_its_pods_have_ended_and_says_so(operator, installed, space):
    kube = installed
    up(kube, space, replicas=2)
    hold(kube, "chat-0", space)
    delete(kube, "mp", "chat", space)
    said = until(lambda: (c := condition(kube, "mp", "chat", space)) and "(1 left)" in c["message"] and c,
                 lambda: json.dumps(kube.get("mp", "chat", "-n", space).get("status")), wait_s=60, step_s=0.1)
    assert said["status"] == "True" and said["reason"] == "Draining" and "StatefulSet chat" in said["message"], said
    status = kube.get("mp", "chat", "-n", space)["status"]
    assert status["phase"] == "Deleting" and condition(kube, "mp", "chat", space, "Ready")["status"] == "False"
    assert exists(kube, "service", "chat", space)
    let_go(kube, "chat-0", space)
    gone(kube, "mp", "chat", space)
    gone(kube, "service", "chat", space)
    assert {"Draining", "Drained"} <= set(reasons(kube, space, "chat")), reasons(kube, space, "chat")
    assert operator.metric("cgn_operator_failures_total") == 0


def test_the_routers_of_a_cluster_end_after_the_pods_of_its_pools(operator, installed, space):
    kube = installed
    up(kube, space)
    hold(kube, "chat-0", space)
    delete(kube, "ic", "prod", space)
    said = until(lambda: condition(kube, "ic", "prod", space), lambda: json.dumps(kube.get("ic", "prod", "-n", space)))
    assert said["message"] == "waits for the pods of 1 ModelPool to end: chat", said
    until(lambda: (c := condition(kube, "mp", "chat", space, "Ready")) and c["reason"] == "ClusterDeleting" and "StatefulSet chat" in c["message"],
          lambda: json.dumps(kube.get("mp", "chat", "-n", space)["status"]), wait_s=60, step_s=0.1)
    operator.rest()
    router = kube.get("deployment", "prod-router", "-n", space)
    assert "deletionTimestamp" not in router["metadata"] and router["status"]["readyReplicas"] == 1
    assert exists(kube, "rolebinding", "prod-router", space) and exists(kube, "rolebinding", "prod-agent", space)
    held = next(p["metadata"]["name"] for p in kube.get("pods", "-n", space)["items"] if p["metadata"]["name"].startswith("prod-router"))
    hold(kube, held, space)
    let_go(kube, "chat-0", space)
    until(lambda: (c := condition(kube, "ic", "prod", space)) and "Deployment prod-router" in c["message"],
          lambda: json.dumps(kube.get("ic", "prod", "-n", space)["status"]), wait_s=60, step_s=0.1)
    assert exists(kube, "rolebinding", "prod-router", space)
    let_go(kube, held, space)
    gone(kube, "ic", "prod", space)
    gone(kube, "configmap", "prod-config", space)
    until(lambda: condition(kube, "mp", "chat", space, "Ready")["reason"] == "ClusterMissing", "the pool says that its cluster is gone")
    kube.apply(cluster(space))
    ready(kube, "mp", "chat", space, 1)


def test_objects_that_are_gone_are_not_waited_for(operator, installed, space):
    """Somebody deleted everything while no operator was there, and the resources too."""
    kube = installed
    up(kube, space)
    operator.rest()
    operator.process.stop()
    delete(kube, "mp", "chat", space)
    delete(kube, "ic", "prod", space)
    assert "deletionTimestamp" in kube.get("mp", "chat", "-n", space)["metadata"], "the finalizer keeps it"
    kube.kubectl("delete", "statefulset,deployment,service,configmap,role,rolebinding,serviceaccount,pdb", "--all", "-n", space)
    operator.process.start()
    gone(kube, "mp", "chat", space)
    gone(kube, "ic", "prod", space)


def test_a_namespace_is_deleted_with_all_that_is_in_it(operator, installed, space):
    kube = installed
    up(kube, space)
    kube.kubectl("delete", "namespace", space, "--wait=false")
    until(lambda: kube.kubectl("get", "namespace", space, check=False).returncode != 0,
          lambda: kube.kubectl("get", "namespace", space, "-o", "yaml", check=False).stdout + operator.process.log()[-2000:], wait_s=120, step_s=0.5)


def test_finalizers_of_others_are_kept(operator, installed, space):
    kube = installed
    kube.apply(cluster(space), {**pool(space), "metadata": {"name": "chat", "namespace": space, "finalizers": [HOLD]}})
    ready(kube, "mp", "chat", space, 1)
    assert kube.get("mp", "chat", "-n", space)["metadata"]["finalizers"] == [HOLD, "cognitora.dev/drain"]
    delete(kube, "mp", "chat", space)
    until(lambda: kube.get("mp", "chat", "-n", space)["metadata"]["finalizers"] == [HOLD], lambda: kube.get("mp", "chat", "-n", space)["metadata"], wait_s=60)
    finalizers(kube, "mp", "chat", space)
    gone(kube, "mp", "chat", space)
