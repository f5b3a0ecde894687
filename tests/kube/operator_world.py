# SPDX-License-Identifier: Apache-2.0
"""cgn-operator and its resources, for tests."""
import json
import time

from cluster import ROOT, Process, ask, free_port, toml, until

KUSTOMIZE = ROOT / "deploy/kustomize"


class Operator:
    """The program, with the rights of its service account."""

    def __init__(self, kube, folder, name="operator", **settings):
        self.kube, self.port = kube, free_port()
        token = kube.kubectl("create", "token", "cgn-operator", "-n", "cognitora-system", "--duration", "1h").stdout.strip()
        (folder / f"{name}.json").write_text(json.dumps(kube.config_of({"token": token}, namespace="cognitora-system")))
        (folder / f"{name}.toml").write_text(toml({"cluster": {"kubernetes_config": str(folder / f"{name}.json")}, "log": {"format": "json"},
                                                   "operator": {"listen": f"127.0.0.1:{self.port}", "lease": "3s", **settings}}))
        self.process = Process(folder, name, "cgn-operator", "--config", folder / f"{name}.toml")

    def status(self):
        try:
            return ask(self.port, "GET", "/status").json()
        except OSError:
            return {}

    def metric(self, name):
        for line in ask(self.port, "GET", "/metrics").body.decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        return 0.0

    def rest(self):
        """Wait until there is nothing to do: twice, because an event may be on its way."""
        for _ in range(2):
            until(lambda: self.status().get("rests"), lambda: f"{self.status()} {self.process.log()[-3000:]}", wait_s=120)
            time.sleep(0.3)

    def stop(self):
        self.process.stop()
        assert not self.process.trouble(), self.process.trouble()


def install(kube):
    """Install the kinds and the rights; the operator is the test's own process."""
    kube.kubectl("apply", "--server-side", "-k", KUSTOMIZE)
    kube.kubectl("scale", "deployment", "cgn-operator", "-n", "cognitora-system", "--replicas=0")
    for crd in ("inferenceclusters", "modelpools", "routingpolicies"):
        kube.kubectl("wait", "--for=condition=Established", f"crd/{crd}.cognitora.dev", "--timeout=60s")
    kube.machine("gpu-1")


def cluster(space, name="prod", **spec):
    return {"apiVersion": "cognitora.dev/v1alpha1", "kind": "InferenceCluster", "metadata": {"name": name, "namespace": space}, "spec": spec}


def pool(space, name="chat", **spec):
    return {"apiVersion": "cognitora.dev/v1alpha1", "kind": "ModelPool", "metadata": {"name": name, "namespace": space}, "spec": {"model": "sim-8b", **spec}}


def policy(space, **spec):
    return {"apiVersion": "cognitora.dev/v1alpha1", "kind": "RoutingPolicy", "metadata": {"name": "main", "namespace": space}, "spec": spec}


def ready(kube, kind, name, space, n):
    def look():
        status = kube.get(kind, name, "-n", space).get("status", {})
        return status.get("phase") == "Ready" and status.get("readyReplicas") == n and status
    return until(look, lambda: json.dumps(kube.get(kind, name, "-n", space).get("status")), wait_s=90, step_s=0.2)
