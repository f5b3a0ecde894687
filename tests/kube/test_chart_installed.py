# SPDX-License-Identifier: Apache-2.0
"""The chart in a real API server: installed, upgraded, rolled back, uninstalled, in a namespace that enforces the Pod Security Standard "restricted"."""
import shutil
import subprocess

import pytest

from chart import CHART, ROOT, helm, objects, values_file
from cluster import until
from test_chart import MATRIX

RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
OURS = "app.kubernetes.io/instance=cognitora"
# Kinds that the Prometheus operator would bring: with any content.
MONITORING = [{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"{plural}.monitoring.coreos.com"},
               "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": {"plural": plural, "singular": plural[:-1], "kind": kind},
                        "versions": [{"name": "v1", "served": True, "storage": True,
                                      "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}}
              for plural, kind in (("servicemonitors", "ServiceMonitor"), ("prometheusrules", "PrometheusRule"))]


@pytest.fixture(scope="module")
def chart(tmp_path_factory):
    """The chart without the version that it asks for: an API server that Go's module proxy gave says v0.0.0."""
    folder = tmp_path_factory.mktemp("chart") / "cognitora"
    shutil.copytree(CHART, folder)
    about = folder / "Chart.yaml"
    about.write_text("".join(line for line in about.read_text().splitlines(True) if not line.startswith("kubeVersion:")))
    return folder


@pytest.fixture(scope="module")
def machines(kube):
    for name in ("gpu-a", "gpu-b", "gpu-c"):
        kube.machine(name)
    kube.apply(*MONITORING)
    until(lambda: kube.kubectl("get", "servicemonitors", "-A", check=False).returncode == 0, "the API server serves ServiceMonitors", wait_s=60)


@pytest.fixture
def strict(kube, machines, space):
    kube.kubectl("label", "namespace", space, RESTRICTED)
    return space


def release(kube, space, verb, *args):
    return helm(verb, *args, "-n", space, "--kubeconfig", kube.kubeconfig)


def running(kube, space):
    """Return the pods' phases by component."""
    out = {}
    for pod in kube.get("pods", "-n", space, "-l", OURS)["items"]:
        if "deletionTimestamp" not in pod["metadata"]:
            out.setdefault(pod["metadata"]["labels"]["app.kubernetes.io/component"], []).append(pod["status"].get("phase"))
    return out


def expect(kube, space, **counts):
    until(lambda: running(kube, space) == {k: ["Running"] * n for k, n in counts.items()}, lambda: f"{counts} run: {running(kube, space)}", wait_s=120, step_s=0.3)


def secrets(kube, space):
    return {s["metadata"]["name"]: s["data"] for s in kube.get("secrets", "-n", space, "-l", OURS)["items"]}


def hashes(kube, space):
    return {d["metadata"]["name"]: d["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for d in kube.get("deployments", "-n", space)["items"]}


def test_install_upgrade_rollback_uninstall(kube, chart, strict):
    release(kube, strict, "install", "cognitora", chart)
    expect(kube, strict, router=1, agent=2, metrics=1)
    before, made = secrets(kube, strict), hashes(kube, strict)
    assert set(before) == {"cognitora-ca", "cognitora-keys"}
    warned = release(kube, strict, "upgrade", "cognitora", chart, "--set", "router.replicas=2,etcd.persistence=false,agent.replicas=3")
    assert "warn" not in warned.stderr.lower(), warned.stderr
    expect(kube, strict, router=2, agent=3, metrics=1, etcd=3)
    assert secrets(kube, strict) == before, "an upgrade keeps CA and keys"
    assert all(hashes(kube, strict)[name] != made[name] for name in made), "pods with other settings are replaced"
    release(kube, strict, "rollback", "cognitora", "1")
    expect(kube, strict, router=1, agent=2, metrics=1)
    assert secrets(kube, strict) == before and hashes(kube, strict) == made
    release(kube, strict, "uninstall", "cognitora", "--wait", "--timeout", "100s")
    kinds = "deployments,statefulsets,daemonsets,services,configmaps,secrets,serviceaccounts,networkpolicies,poddisruptionbudgets,ingresses,horizontalpodautoscalers"
    assert kube.get(kinds, "-n", strict, "-l", "app.kubernetes.io/part-of=cognitora")["items"] == []
    until(lambda: running(kube, strict) == {}, "no pod is left", wait_s=60)


def test_replicas_that_are_scaled_stay_over_upgrades(kube, chart, strict):
    """With an autoscaler the chart names no replicas: what was set by the subresource "scale" outlives an upgrade and a rollback."""
    values = ["router.autoscaling.enabled=true", "router.autoscaling.minReplicas=1", "agent.autoscaling.enabled=true", "agent.autoscaling.minReplicas=1",
              "cluster.stateBackend=kubernetes"]
    release(kube, strict, "install", "cognitora", chart, "--set", ",".join(values))

    def replicas():
        return {d["metadata"]["name"]: d["spec"]["replicas"] for d in kube.get("deployments", "-n", strict)["items"]}
    for name, n in (("router", 2), ("agent", 3)):
        kube.kubectl("scale", "deployment", f"cognitora-{name}", "-n", strict, f"--replicas={n}")
    release(kube, strict, "upgrade", "cognitora", chart, "--set", ",".join([*values, "router.drainSeconds=60", "agent.drainSeconds=60"]))
    expect(kube, strict, router=2, agent=3, metrics=1)
    assert replicas() == {"cognitora-router": 2, "cognitora-agent": 3, "cognitora-metrics": 1}
    release(kube, strict, "rollback", "cognitora", "1")
    assert replicas() == {"cognitora-router": 2, "cognitora-agent": 3, "cognitora-metrics": 1}
    targets = {h["metadata"]["name"]: h["spec"]["scaleTargetRef"]["name"] for h in kube.get("hpa", "-n", strict)["items"]}
    assert targets == {"cognitora-router": "cognitora-router", "cognitora-agent": "cognitora-agent"}
    release(kube, strict, "uninstall", "cognitora")


def test_an_upgrade_without_changes_replaces_nothing(kube, chart, strict):
    release(kube, strict, "install", "cognitora", chart)
    expect(kube, strict, router=1, agent=2, metrics=1)
    before = sorted(p["metadata"]["uid"] for p in kube.get("pods", "-n", strict)["items"])
    release(kube, strict, "upgrade", "cognitora", chart)
    observed = [d["metadata"]["generation"] == d["status"].get("observedGeneration") for d in kube.get("deployments", "-n", strict)["items"]]
    assert all(observed) and sorted(p["metadata"]["uid"] for p in kube.get("pods", "-n", strict)["items"]) == before
    release(kube, strict, "uninstall", "cognitora")


def test_membership_in_kubernetes_has_its_rights_and_no_more(kube, chart, strict):
    release(kube, strict, "install", "cognitora", chart, "--set", "cluster.stateBackend=kubernetes")
    may = {"router": {"leases": "get list watch create update", "secrets": "create", "secrets/cognitora.state": "get list watch patch"},
           "agent": {"leases": "get list watch create patch delete", "secrets": "", "secrets/cognitora.state": "list watch"},
           "metrics": {"leases": "", "secrets": "", "secrets/cognitora-ca": ""}}
    for account, rights in may.items():
        for what, verbs in rights.items():
            for verb in ("get", "list", "watch", "create", "update", "patch", "delete"):
                who = f"system:serviceaccount:{strict}:cognitora-{account}"
                said = kube.kubectl("auth", "can-i", verb, what, "-n", strict, "--as", who, check=False).stdout.strip()
                assert said == ("yes" if verb in verbs.split() else "no") or what != "secrets" and verb == "create", (account, verb, what, said)
    release(kube, strict, "uninstall", "cognitora")


@pytest.mark.parametrize("case", MATRIX)
def test_the_api_server_takes_the_objects(kube, strict, tmp_path, case):
    """Every field is known and valid, and pods that break the standard "restricted" would be warned of."""
    values = {**MATRIX[case], "agent": {**MATRIX[case].get("agent", {}), "modelsVolume": {}}} if case == "llama" else MATRIX[case]
    text = helm("template", "cognitora", CHART, "-n", strict, "--kube-version", "1.35.0", "-f", values_file(tmp_path, values)).stdout
    said = kube.kubectl("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-n", strict, "-f", "-", text=text)
    assert "Warning" not in said.stderr, said.stderr
    assert said.stdout.count("(server dry run)") == len(objects(text))


def test_the_quickstart_is_the_chart_s_and_is_taken(kube, machines):
    done = subprocess.run([ROOT / "scripts/gen-quickstart", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kube.kubectl("apply", "-k", ROOT / "deploy/quickstart")
    expect(kube, "cognitora", router=1, agent=2, metrics=1)
    kube.kubectl("delete", "-k", ROOT / "deploy/quickstart", "--wait=false")
