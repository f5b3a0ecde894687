# SPDX-License-Identifier: Apache-2.0
"""Upgrades and rollbacks in Kubernetes with programs of two versions at once: the chart of the kept version (scripts/build-kept) and this one, and the
operator of both."""
import os
import pathlib
import subprocess
import time

import pytest

import cluster as module
from chart import CHART, KUBE_VERSION, NAMESPACE, ROOT, find, helm, objects, values_file
from cluster import until
from kube_world import Kube
from operator_world import KUSTOMIZE, Operator, cluster, pool, ready
from pods import Pods, usable
from steady_load import Load
from test_chart import secret

VALUES = {"router": {"replicas": 2}, "agent": {"replicas": 2, "engineArgs": ["--decode-ms", "2"]}, "etcd": {"replicas": 1, "persistence": False},
          "metrics": {"enabled": False}, "kvcached": {"ramGib": 1}}


@pytest.fixture(scope="module")
def kept():
    """The build of the kept version; scripts/build-kept makes it, once."""
    if "CGN_OLD" in os.environ:
        return pathlib.Path(os.environ["CGN_OLD"]).resolve()
    done = subprocess.run([ROOT / "scripts/build-kept"], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr[-2000:]
    return pathlib.Path(done.stdout.strip())


@pytest.fixture(scope="module")
def kept_deploy(kept, tmp_path_factory):
    """The folder deploy/ of the kept version."""
    folder = tmp_path_factory.mktemp("kept")
    archive = folder / "deploy.tar"
    subprocess.run(["git", "-C", kept.parent / "source", "archive", "-o", archive, "HEAD", "deploy"], check=True)
    subprocess.run(["tar", "-C", folder, "-xf", archive], check=True)
    return folder / "deploy"


def revision(folder, chart, tag, secrets=None):
    """Return the objects of a release. |secrets|: those that an upgrade finds in the cluster and keeps."""
    values = values_file(folder, {**VALUES, "global": {"image": {"tag": tag}}})
    objs = objects(helm("template", "cognitora", chart, "-n", NAMESPACE, "--kube-version", KUBE_VERSION, "-f", values).stdout)
    return [*(o for o in objs if o["kind"] != "Secret"), *(secrets or [o for o in objs if o["kind"] == "Secret"])]


def gateway(routers):
    """Return the places where the gateway's Service sends clients."""
    return [(pod.address, 8080) for pod in routers]


def roll(pods, service, component, running, objs):
    """Replace the pods of a Deployment, as its strategy says: a new one, and when it is ready an old one ends."""
    assert find(objs, "Deployment", f"cognitora-{component}")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    for old in list(running):
        new, = pods.start(component, 1, objs)
        new.wait_ready(component, wait_s=120)
        running.append(new)
        running.remove(old)
        if component == "router":
            service.places = gateway(running)
            time.sleep(old.container("router")["lifecycle"]["preStop"]["sleep"]["seconds"])  # as the kubelet does: clients may still come
        pods.forget(old)
        ended = old.terminate()
        assert ended[component] == 0, (ended, old.log(component))
        service.more()


@pytest.mark.skipif(usable() is not None, reason=str(usable()))
@pytest.mark.parametrize("order", [("agent", "router"), ("router", "agent")], ids=("agents-first", "routers-first"))
def test_helm_upgrade_and_rollback_lose_no_request(kept, kept_deploy, tmp_path, order):
    """Two routers and two agents with a store each, one pod after the other to this version and back, under load."""
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    before = revision(tmp_path, kept_deploy / "helm/cognitora", "kept")
    after = revision(tmp_path, CHART, "new", [o for o in before if o["kind"] == "Secret"])
    with Pods(tmp_path, before, {"kept": kept}) as pods:
        pods.make("etcd", 1)
        running = {"router": pods.make("router", 2), "agent": pods.make("agent", 2)}
        for pod in list(pods.pods):
            pod.start()
        for component, made in running.items():
            for pod in made:
                pod.wait_ready(component, wait_s=120)
        key = {"Authorization": "Bearer " + secret(before, "cognitora-keys", "api-key")}
        with Load(gateway(running["router"]), key, "block " * 200, 16) as service:
            service.more()
            for objs, tag in ((after, "new"), (before, "kept")):
                for component in order:
                    roll(pods, service, component, running[component], objs)
                images = {c["image"].rpartition(":")[2] for made in running.values() for pod in made for c in pod.lasting()}
                assert images == {tag}
        assert not service.lost, service.lost[:5]
        print(f"{service.done} answers, none lost")


# ---- the operator ----

SPACE = "inference"


def install(kube, folder):
    kube.kubectl("apply", "--server-side", "--force-conflicts", "-k", folder)
    kube.kubectl("scale", "deployment", "cgn-operator", "-n", "cognitora-system", "--replicas=0")
    for crd in ("inferenceclusters", "modelpools", "routingpolicies"):
        kube.kubectl("wait", "--for=condition=Established", f"crd/{crd}.cognitora.dev", "--timeout=60s")


def pods_of(kube):
    return {p["metadata"]["uid"] for p in kube.get("pods", "-n", SPACE)["items"]}


def certificates(kube):
    return {s["metadata"]["name"]: s["data"]["tls.crt"] for s in kube.get("secrets", "-n", SPACE)["items"] if "tls.crt" in s["data"]}


def replicas(kube):
    return kube.get("statefulset", "chat", "-n", SPACE)["spec"]["replicas"]


def test_an_operator_s_upgrade_and_rollback_replace_no_pod(kept, kept_deploy, binaries, tmp_path, monkeypatch):
    """Each operator takes over from the other, with the kinds and the rights of its version: nothing of a cluster changes, and later orders are carried out."""
    def operator(name, build):
        with monkeypatch.context() as m:
            m.setattr(module, "BUILD", build)
            return Operator(kube, tmp_path, name)
    (tmp_path / "kube").mkdir()
    kube = Kube(tmp_path / "kube", binaries)
    try:
        install(kube, kept_deploy / "kustomize")
        kube.machine("gpu-1")
        kube.namespace(SPACE)
        old = operator("old", kept)
        kube.apply(cluster(SPACE, kvcached={"ramGib": 1}), pool(SPACE, replicas=2))
        ready(kube, "mp", "chat", SPACE, 2)
        ready(kube, "ic", "prod", SPACE, 1)
        old.rest()
        pods, issued = pods_of(kube), certificates(kube)
        assert len(pods) == 4 and len(issued) == 6
        # Upgrade: kinds and rights first, as kubectl apply -k does, then an operator beside the other one, which ends.
        install(kube, KUSTOMIZE)
        new = operator("new", module.BUILD)
        old.stop()
        new.rest()
        assert pods_of(kube) == pods and certificates(kube) == issued
        kube.apply(pool(SPACE, replicas=3, cascade={"confidenceThreshold": -0.5}))
        until(lambda: replicas(kube) == 3, new.process.log)
        ready(kube, "mp", "chat", SPACE, 3)
        new.rest()
        kube.apply(pool(SPACE, replicas=3))
        until(lambda: "confidence_threshold" not in kube.get("configmap", "prod-config", "-n", SPACE)["data"]["cognitora.toml"], new.process.log)
        ready(kube, "ic", "prod", SPACE, 1)
        new.rest()
        # Rollback, and back again.
        engines = {p["metadata"]["uid"] for p in kube.get("pods", "-n", SPACE, "-l", "app.kubernetes.io/component=pool")["items"]}
        assert len(engines) == 3 and len(engines & pods) == 2
        old.process.start()
        new.stop()
        install(kube, kept_deploy / "kustomize")
        kube.apply(pool(SPACE, replicas=2))
        until(lambda: replicas(kube) == 2, old.process.log)
        until(lambda: len(now := {p["metadata"]["uid"] for p in kube.get("pods", "-n", SPACE, "-l", "app.kubernetes.io/component=pool")["items"]}) == 2 and now <= engines,
              old.process.log, wait_s=60)
        assert certificates(kube) == issued
        old.stop()
    finally:
        kube.close()
