# SPDX-License-Identifier: Apache-2.0
"""spec.stores of an InferenceCluster: block stores in a StatefulSet, against a real API server, and the programs with the rendered settings."""
import json

import pytest

from cluster import until
from operator_world import cluster, pool
from pods import Pods, usable
from resp_raw import Raw, Wrong

STORES = {"replicas": 3, "ramGib": 1, "passwordSecret": "kv"}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kv"}, "stringData": {"password": "s3cret"}}


def volumes(kube, space, n):
    """Make the disks of a storage class of the namespace's name: no provisioner is here."""
    for i in range(n):
        kube.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"{space}-{i}"},
                    "spec": {"capacity": {"storage": "20Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": space, "hostPath": {"path": "/tmp/none"}}})


def pods(kube, space):
    """Return {pod: its image, and whether it is ready}, in the order in which they were made."""
    items = kube.get("pods", "-n", space, "-l", "app.kubernetes.io/component=kvcached")["items"]
    items.sort(key=lambda p: (p["metadata"]["creationTimestamp"], p["metadata"]["name"]))
    return {p["metadata"]["name"]: any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions", [])) for p in items}


def all_ready(kube, space, n):
    wanted = [f"prod-kvcached-{i}" for i in range(n)]
    until(lambda: sorted(pods(kube, space)) == wanted and all(pods(kube, space).values()), lambda: f"{pods(kube, space)}", wait_s=120, step_s=0.3)
    return wanted


def test_stores_have_names_volumes_and_an_order(operator, installed, space):
    kube = installed
    volumes(kube, space, 4)
    kube.apply({**SECRET, "metadata": {"name": "kv", "namespace": space}})
    stores = {**STORES, "ssdGib": 10, "storageClassName": space}
    kube.apply(cluster(space, stores=stores), pool(space))
    all_ready(kube, space, 3)
    claims = {c["metadata"]["name"]: c for c in kube.get("pvc", "-n", space)["items"]}
    assert set(claims) == {f"kv-prod-kvcached-{i}" for i in range(3)} and {c["spec"]["resources"]["requests"]["storage"] for c in claims.values()} == {"11Gi"}
    budget = kube.get("pdb", "prod-kvcached", "-n", space)
    assert budget["spec"]["maxUnavailable"] == 1 and budget["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] == "kvcached"
    services = {s["metadata"]["name"]: s["spec"] for s in kube.get("services", "-n", space)["items"]}
    assert services["prod-kvcached"]["clusterIP"] == "None" and services["prod-kvcached"]["publishNotReadyAddresses"]
    assert services["prod-kv"]["ports"][0]["port"] == 7092 and services["prod-kv"]["clusterIP"] != "None"
    engine = kube.get("statefulset", "chat", "-n", space)["spec"]["template"]["spec"]["initContainers"][0]
    assert {e["name"]: e.get("value") for e in engine["env"]}["COGNITORA_KV_URL"] == f"redis://:$(COGNITORA_KV_PASSWORD)@prod-kv.{space}.svc:7092"
    # Another number of stores: all of them learn of each other, and the volumes stay with their names.
    kube.apply(cluster(space, stores={**stores, "replicas": 4}))
    all_ready(kube, space, 4)
    assert "prod-kvcached-3.prod-kvcached" in kube.get("configmap", "prod-config", "-n", space)["data"]["cognitora.toml"]
    until(lambda: {p["metadata"]["annotations"]["cognitora.dev/stores"] for p in kube.get("pods", "-n", space, "-l", "app.kubernetes.io/component=kvcached")["items"]} == {"4"},
          lambda: f"{pods(kube, space)}", wait_s=120, step_s=0.3)
    uids = {c["metadata"]["name"]: c["metadata"]["uid"] for c in kube.get("pvc", "-n", space)["items"]}
    assert all(uids[n] == c["metadata"]["uid"] for n, c in claims.items()) and len(uids) == 4
    operator.rest()
    applies = operator.metric("cgn_operator_applies_total")
    kube.apply(cluster(space))  # no stores any more: their volumes go with them
    until(lambda: not pods(kube, space) and not kube.get("pvc", "-n", space)["items"], lambda: f"{pods(kube, space)}", wait_s=120, step_s=0.3)
    operator.rest()
    assert operator.metric("cgn_operator_applies_total") > applies and operator.metric("cgn_operator_failures_total") == 0
    gone = kube.kubectl("get", "statefulset,service,pdb", "-n", space, "-l", "app.kubernetes.io/component=kvcached", "-o", "name").stdout
    assert gone == ""


@pytest.mark.parametrize("stores, said", [
    ({"ramGib": 1}, "passwordSecret"),
    ({"ramGib": 0, "passwordSecret": "kv"}, "stores.ramGib must be at least 1"),
    ({**STORES, "replicas": 0}, "leave stores out for none"),
    ({**STORES, "replicas": 65}, "stores.replicas must be from 1 to 64"),
    ({**STORES, "ssdGib": -1}, "stores.ssdGib must not be negative"),
    ({**STORES, "storageClassName": "fast"}, "set stores.ssdGib too"),
    ({**STORES, "ssdGib": 1, "storageClassName": ""}, "leave it out for the default class"),
    ({**STORES, "passwordSecret": "K v"}, "must be the name of a Secret"),
])
def test_mistakes_are_refused_in_sentences(installed, space, stores, said):
    done = installed.kubectl("apply", "-f", "-", text=json.dumps(cluster(space, stores=stores)), check=False)
    assert done.returncode != 0 and said in done.stderr, done.stderr


@pytest.mark.parametrize("change, said", [({"ssdGib": 20}, "stores.ssdGib is the size of volumes that exist"),
                                          ({"storageClassName": "other"}, "stores.storageClassName is that of volumes that exist")])
def test_volumes_that_exist_are_not_changed(installed, space, change, said):
    stores = {**STORES, "ssdGib": 10, "storageClassName": "fast"}
    installed.apply(cluster(space, stores=stores))
    done = installed.kubectl("apply", "-f", "-", text=json.dumps(cluster(space, stores={**stores, **change})), check=False)
    assert done.returncode != 0 and said in done.stderr, done.stderr
    installed.apply(cluster(space, stores={**stores, "replicas": 2, "ramGib": 2}))  # others may change


def redis(store):
    """Return a client of a store that has said the password."""
    c = Raw((store.address, 7092))
    assert c.ask("AUTH", "s3cret") == b"OK"
    return c


def rendered(kube, space):
    """Return the objects of the stores' pods, as an image's start runs them, without the membership, for which no API server is reachable there."""
    stores = kube.get("statefulset", "prod-kvcached", "-n", space)
    spec = stores["spec"]["template"]["spec"]
    spec["securityContext"]["runAsUser"] = spec["containers"][0]["securityContext"]["runAsUser"]
    spec["containers"][0].update(command=["cgn-kvcached"], args=["--config", "/etc/cognitora/cognitora.toml"])
    config = kube.get("configmap", "prod-config", "-n", space)
    assert 'state_backend = "kubernetes"' in config["data"]["cognitora.toml"]
    config["data"]["cognitora.toml"] = config["data"]["cognitora.toml"].replace('state_backend = "kubernetes"', 'state_backend = "embedded"')
    services = kube.get("services", "-n", space)["items"]
    return [stores, config, *services, *kube.get("secrets", "-n", space)["items"]]


@pytest.mark.skipif(usable() is not None, reason=str(usable()))
def test_the_stores_are_peers_and_keep_their_blocks(operator, installed, space, tmp_path):
    kube = installed
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    kube.apply({**SECRET, "metadata": {"name": "kv", "namespace": space}})
    kube.apply(cluster(space, metrics={"enabled": False}, stores={**STORES, "ssdGib": 1}))
    until(lambda: kube.kubectl("get", "statefulset/prod-kvcached", "secret/prod-kvcached-tls", "-n", space, check=False).returncode == 0,
          lambda: operator.process.log()[-3000:], wait_s=60)
    with Pods(tmp_path, rendered(kube, space)) as world:
        stores = world.start("kvcached", 3)
        for s in stores:
            s.wait_ready("kvcached")
        stranger = Raw((stores[0].address, 7092))
        assert isinstance(stranger.ask("GET", "k1"), Wrong)  # without the password
        clients = [redis(s) for s in stores]
        value = b"block" * 40000
        assert clients[0].ask("SET", "k1", value) == b"OK"
        for c, store in zip(clients[1:], stores[1:]):
            until(lambda: c.ask("GET", "k1") == value, lambda: store.log("kvcached"))  # noqa: B023
        assert isinstance(clients[0].ask("DEL", "k1"), Wrong)  # engines may not remove blocks
        # One ends and comes back with its name and its volume: the blocks on SSD are there, in no other store's memory.
        for store in stores:
            assert store.terminate() == {"kvcached": 0}
        stores[0].spawn(stores[0].container("kvcached"))
        stores[0].wait_ready("kvcached")
        assert redis(stores[0]).ask("GET", "k1") == value
