# SPDX-License-Identifier: Apache-2.0
"""The chart's cgn-operator: its objects are taken by a real API server, and its rights are enough for what it does."""
import json

import pytest

from chart import find, render
from cluster import Process, free_port, toml, until
from test_operator import cluster


def component(objs):
    return [o for o in objs if o["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "operator"]


def test_it_is_left_out_unless_it_is_enabled(tmp_path):
    assert not component(render(tmp_path, {}))


def test_it_is_two_pods_with_a_policy_and_definitions_that_stay(tmp_path):
    objs = component(render(tmp_path, {"operator": {"enabled": True}, "networkPolicy": {"monitoringFrom": [{"namespaceSelector": {}}]}}))
    deployment, = (o for o in objs if o["kind"] == "Deployment")
    container, = deployment["spec"]["template"]["spec"]["containers"]
    env = {e["name"]: e["value"] for e in container["env"]}
    assert deployment["spec"]["replicas"] == 2 and "COGNITORA__OPERATOR__NAMESPACE" not in env
    assert container["image"] == f"{env['COGNITORA__OPERATOR__IMAGE_PREFIX']}cgn-operator:{env['COGNITORA__OPERATOR__IMAGE_TAG']}"
    policy = find(objs, "NetworkPolicy", "cognitora-operator")
    assert policy["spec"]["ingress"] == [{"ports": [{"port": 9093}], "from": [{"namespaceSelector": {}}]}]
    assert find(objs, "PodDisruptionBudget", "cognitora-operator")["spec"]["maxUnavailable"] == 1
    crds = {o["metadata"]["name"]: o["metadata"]["annotations"] for o in objs if o["kind"] == "CustomResourceDefinition"}
    assert set(crds) == {f"{n}.cognitora.dev" for n in ("inferenceclusters", "modelpools", "routingpolicies")}
    assert all(a == {"helm.sh/resource-policy": "keep"} for a in crds.values())


@pytest.mark.parametrize("own", [False, True])
def test_its_rights_are_enough(own, kube, space, tmp_path):
    """With the rights of its service account it makes a cluster, certificates included. |own|: those of one namespace."""
    objs = component(render(tmp_path, {"operator": {"enabled": True, "ownNamespaceOnly": own}}))
    for o in objs:
        if o["kind"] == "Deployment":
            o["spec"]["replicas"] = 0  # this test's own process acts
        if "namespace" in o["metadata"]:
            o["metadata"]["namespace"] = space
        for subject in o.get("subjects", []):
            subject["namespace"] = space
    assert own == (not any(o["kind"] == "ClusterRole" for o in objs)) == any(o["kind"] == "Role" for o in objs)
    kube.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objs}))
    kube.kubectl("wait", "--for=condition=Established", "crd/inferenceclusters.cognitora.dev", "--timeout=60s")
    token = kube.kubectl("create", "token", "cognitora-operator", "-n", space, "--duration", "1h").stdout.strip()
    (tmp_path / "kube.json").write_text(json.dumps(kube.config_of({"token": token}, namespace=space)))
    settings = {"listen": f"127.0.0.1:{free_port()}", "lease": "3s", "namespace": space}
    (tmp_path / "operator.toml").write_text(toml({"cluster": {"kubernetes_config": str(tmp_path / "kube.json")}, "operator": settings, "log": {"format": "json"}}))
    p = Process(tmp_path, "operator", "cgn-operator", "--config", tmp_path / "operator.toml")
    try:
        kube.apply(cluster(space))

        def reasons():
            conditions = kube.get("ic", "prod", "-n", space).get("status", {}).get("conditions", [])
            return {c["type"]: c["reason"] for c in conditions}
        until(lambda: reasons().get("CertificatesReady") == "Issued" and reasons().get("Ready") in ("AllReady", "ReplicasNotReady"), lambda: f"{reasons()} {p.log()[-2000:]}", wait_s=60)
        assert kube.get("deployment", "prod-router", "-n", space)
        assert not p.events("operator.reconcile_failed") and not p.events("operator.watch_lost"), p.log()[-2000:]
    finally:
        p.stop()
        kube.kubectl("delete", "-f", "-", "--wait=false", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": [o for o in objs if o["kind"] in ("ClusterRole", "ClusterRoleBinding")] or [o for o in objs if o["kind"] == "PodDisruptionBudget"]}))
