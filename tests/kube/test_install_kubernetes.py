# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl install and uninstall kubernetes against a real API server. No kubelet runs the operator's pods: the test runs the operator's program, with
the rights that were installed."""
import json
import os
import subprocess

import pytest
from test_operator import Operator

from cluster import BUILD, until

CTL = BUILD / "src/ctl/cgn-ctl"


@pytest.fixture
def ctl(kube):
    def run(*args, code=0):
        env = {**os.environ, "KUBECONFIG": str(kube.kubeconfig), "PATH": f"{kube.bin}:{os.environ['PATH']}"}
        done = subprocess.run([CTL, *args], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr
    return run


def names(kube, kind):
    return kube.kubectl("get", kind, "-A", "-o", "name", "--ignore-not-found", check=False).stdout.split()


def owners_of_replicas(kube):
    """Return the field managers that own replicas of the pool."""
    fields = kube.get("modelpool", "cognitora", "-n", "own", "--show-managed-fields")["metadata"]["managedFields"]
    return {f["manager"] for f in fields if "f:replicas" in f["fieldsV1"].get("f:spec", {})}


def scaled_by_others(kube, ctl, operator):
    """Replicas that an autoscaler, or kubectl scale, has set by the subresource "scale" stay as they are when the installation is applied again."""
    images = ("--image-prefix", "registry.test/c/", "--image-tag", "9")

    def install(*more, code=0):
        return ctl("install", "kubernetes", "--namespace", "own", *images, *more, code=code)

    def replicas():
        return kube.get("modelpool", "cognitora", "-n", "own")["spec"]["replicas"]
    assert owners_of_replicas(kube) == {"cgn-ctl"}  # --replicas 3 was given
    assert "nothing to do" in install("--apply") and replicas() == 3 and owners_of_replicas(kube) == {"cgn-ctl"}
    kube.kubectl("scale", "modelpool", "cognitora", "-n", "own", "--replicas=5")
    assert owners_of_replicas(kube) == {"kubectl"}
    assert "nothing to do" in install("--apply") and replicas() == 5
    said = install("--model", "sim-1b", "--apply")  # another member changes: replicas are not touched
    assert "-  replicas" not in said and replicas() == 5 and owners_of_replicas(kube) == {"kubectl"}
    said = install("--replicas", "2", "--apply", code=1)
    assert "\"kubectl\" has set the 5 replicas" in said and "kubectl scale modelpool cognitora --replicas=2" in said and replicas() == 5
    # An autoscaler: the operator makes it, and the controller of Kubernetes itself raises the replicas to its minimum.
    kube.kubectl("patch", "modelpool", "cognitora", "-n", "own", "--type=merge", "-p", '{"spec":{"autoscaling":{"min":6,"max":8,"target":4}}}')
    until(lambda: replicas() == 6, lambda: kube.kubectl("describe", "hpa", "-n", "own", check=False).stdout, wait_s=120)
    assert owners_of_replicas(kube) == {"kube-controller-manager"}
    operator.rest()
    assert "nothing to do" in install("--model", "sim-1b", "--apply") and replicas() == 6
    install("--model", "sim-8b", "--apply")
    assert replicas() == 6 and owners_of_replicas(kube) == {"kube-controller-manager"}
    assert "is scaled by its autoscaler (spec.autoscaling)" in install("--replicas", "2", "--apply", code=2) and replicas() == 6
    operator.rest()
    assert kube.get("statefulset", "cognitora", "-n", "own")["spec"]["replicas"] == 6


def test_installed_changed_and_removed(kube, ctl, tmp_path):
    if names(kube, "crd/modelpools.cognitora.dev"):
        pytest.skip("another test has installed the operator in this Kubernetes: run this file alone")
    said = ctl("install", "kubernetes", "--namespace", "own")
    assert "+kind: CustomResourceDefinition" in said and '"kind":"ModelPool"' in said and "nothing was applied; with --apply this would be" in said
    assert not names(kube, "crd/modelpools.cognitora.dev") and "namespace/own" not in names(kube, "namespace")
    kube.machine("install-1")
    said = ctl("install", "kubernetes", "--namespace", "own", "--image-prefix", "registry.test/c/", "--image-tag", "9", "--wait", "0s", "--apply")
    assert "service/cognitora-router" in said
    deployment = kube.get("deployment", "cgn-operator", "-n", "cognitora-system")["spec"]["template"]["spec"]["containers"][0]
    assert deployment["image"] == "registry.test/c/cgn-operator:9"
    assert {e["name"]: e["value"] for e in deployment["env"]}["COGNITORA__OPERATOR__IMAGE_PREFIX"] == "registry.test/c/"
    kube.kubectl("scale", "deployment", "cgn-operator", "-n", "cognitora-system", "--replicas=0")  # this test's own process acts
    operator = Operator(kube, tmp_path)
    try:
        operator.rest()
        kube.kubectl("get", "deployment", "cognitora-router", "-n", "own")
        assert owners_of_replicas(kube) == set()  # one replica, by the kind's default
        again = ctl("install", "kubernetes", "--namespace", "own", "--image-prefix", "registry.test/c/", "--image-tag", "9")
        assert "-  replicas: 0" in again and "+  replicas: 2" in again  # what the test changed, and nothing of the cluster
        assert "ModelPool" not in again
        kube.kubectl("scale", "deployment", "cgn-operator", "-n", "cognitora-system", "--replicas=2")
        assert "nothing to do" in ctl("install", "kubernetes", "--namespace", "own", "--image-prefix", "registry.test/c/", "--image-tag", "9", "--apply")
        said = ctl("install", "kubernetes", "--namespace", "own", "--image-prefix", "registry.test/c/", "--image-tag", "9", "--replicas", "3", "--apply")
        assert "inferencecluster.cognitora.dev/cognitora condition met" in said
        assert kube.get("modelpool", "cognitora", "-n", "own")["spec"]["replicas"] == 3
        scaled_by_others(kube, ctl, operator)
        # Another cluster keeps the operator.
        ctl("install", "kubernetes", "--namespace", "more", "--image-prefix", "registry.test/c/", "--image-tag", "9", "--apply")
        said = ctl("uninstall", "kubernetes", "--namespace", "more")
        assert "keep    the operator: own/cognitora uses it" in said and "nothing was removed" in said
        ctl("uninstall", "kubernetes", "--namespace", "more", "--apply")
        assert names(kube, "inferenceclusters") == ["inferencecluster.cognitora.dev/cognitora"]
        operator.rest()
        said = ctl("uninstall", "kubernetes", "--namespace", "own", "--apply")
        assert "the namespace own stays" in said
        assert not names(kube, "crd/modelpools.cognitora.dev") and "namespace/cognitora-system" not in names(kube, "namespace")
        assert "nothing is installed" in ctl("uninstall", "kubernetes", "--apply", code=1)
    finally:
        operator.process.stop()


def test_a_kubernetes_that_is_away_is_named(ctl, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
                                  "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
                                  "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}))
    done = subprocess.run([CTL, "install", "kubernetes"], env={**os.environ, "KUBECONFIG": str(config)}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 4 and "no Kubernetes answers" in done.stderr and "127.0.0.1:9" in done.stderr
    assert "context \"nowhere\" does not exist" in ctl("install", "kubernetes", "--context", "nowhere", code=4)
