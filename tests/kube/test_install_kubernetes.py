# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl install and uninstall kubernetes against a real API server. No kubelet runs the operator's pods: the test runs the operator's program, with
the rights that were installed."""
import json
import os
import subprocess

import pytest
from test_operator import Operator

from cluster import BUILD

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
        again = ctl("install", "kubernetes", "--namespace", "own", "--image-prefix", "registry.test/c/", "--image-tag", "9")
        assert "-  replicas: 0" in again and "+  replicas: 2" in again  # what the test changed, and nothing of the cluster
        assert "ModelPool" not in again
        kube.kubectl("scale", "deployment", "cgn-operator", "-n", "cognitora-system", "--replicas=2")
        assert "nothing to do" in ctl("install", "kubernetes", "--namespace", "own", "--image-prefix", "registry.test/c/", "--image-tag", "9", "--apply")
        said = ctl("install", "kubernetes", "--namespace", "own", "--image-prefix", "registry.test/c/", "--image-tag", "9", "--replicas", "3", "--apply")
        assert "inferencecluster.cognitora.dev/cognitora condition met" in said
        assert kube.get("modelpool", "cognitora", "-n", "own")["spec"]["replicas"] == 3
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
