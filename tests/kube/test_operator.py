# SPDX-License-Identifier: Apache-2.0
"""cgn-operator against a real API server, with its own rights; kwok plays the machines, so that pods become Running."""
import base64
import json
import subprocess
import time
import tomllib

import pytest

from cluster import BUILD, until
from operator_world import Operator, cluster, policy, pool, ready


def test_a_cluster_and_a_pool_come_up(operator, installed, space):
    kube = installed
    kube.apply(cluster(space, router={"replicas": 2}, kvcached={"ramGib": 1}), pool(space, replicas=2))
    status = ready(kube, "ic", "prod", space, 2)
    assert status["conditions"][0]["reason"] == "AllReady" and status["observedGeneration"] == 1
    ready(kube, "mp", "chat", space, 2)
    for kind, name in (("configmap", "prod-config"), ("service", "prod-router"), ("deployment", "prod-metrics"), ("pdb", "prod-router"), ("pdb", "chat"),
                       ("role", "prod-agent"), ("rolebinding", "prod-router"), ("secret", "prod.state"), ("serviceaccount", "prod-agent")):
        managers = {m["manager"] for m in kube.get(kind, name, "-n", space, "--show-managed-fields")["metadata"]["managedFields"] if m["operation"] == "Apply"}
        assert managers == {"cgn-operator"}, (kind, managers)
    pod = kube.get("pod", "chat-0", "-n", space)["spec"]
    assert [c["name"] for c in pod["initContainers"]] == ["engine", "kvcached"] and pod["initContainers"][0]["restartPolicy"] == "Always"
    assert pod["containers"][0]["name"] == "agent" and pod["terminationGracePeriodSeconds"] > 600
    reasons = [e["reason"] for e in kube.get("events", "-n", space)["items"] if e.get("source", {}).get("component") == "cgn-operator"]
    assert "AllReady" in reasons and "ReplicasNotReady" in reasons, reasons
    shown = kube.kubectl("get", "mp", "-n", space).stdout
    assert shown.split()[:5] == ["NAME", "MODEL", "TP", "READY", "PHASE"] and "sim-8b" in shown, shown


def test_one_reconcile_for_a_change_and_none_at_rest(operator, installed, space):
    kube = installed
    kube.apply(cluster(space), pool(space, "a"), pool(space, "b"))
    ready(kube, "ic", "prod", space, 1)
    ready(kube, "mp", "a", space, 1)
    ready(kube, "mp", "b", space, 1)
    operator.rest()
    before = operator.metric("cgn_operator_reconciles_total"), operator.metric("cgn_operator_applies_total")
    operator.rest()
    assert before == (operator.metric("cgn_operator_reconciles_total"), operator.metric("cgn_operator_applies_total"))
    kube.kubectl("patch", "mp", "a", "-n", space, "--type=merge", "-p", json.dumps({"spec": {"engine": {"args": ["--seed", "7"]}}}))
    until(lambda: operator.metric("cgn_operator_applies_total") > before[1], "it is applied")
    operator.rest()
    assert operator.metric("cgn_operator_applies_total") == before[1] + 1  # the StatefulSet alone
    assert operator.metric("cgn_operator_failures_total") == 0 and operator.metric("cgn_operator_drifts_total") == 0


def test_drift_is_corrected_and_what_is_gone_comes_back(operator, installed, space):
    kube = installed
    kube.apply(cluster(space), pool(space))
    ready(kube, "mp", "chat", space, 1)
    operator.rest()
    kube.kubectl("patch", "statefulset", "chat", "-n", space, "--type=merge", "-p", '{"spec":{"replicas":7}}')
    until(lambda: kube.get("statefulset", "chat", "-n", space)["spec"]["replicas"] == 1, "the count is back")
    kube.kubectl("patch", "configmap", "prod-config", "-n", space, "--type=merge", "-p", '{"data":{"cognitora.toml":"nonsense"}}')
    until(lambda: "kubernetes" in kube.get("configmap", "prod-config", "-n", space)["data"]["cognitora.toml"], "the file is back")
    kube.kubectl("delete", "service", "prod-router", "-n", space)
    until(lambda: kube.kubectl("get", "service", "prod-router", "-n", space, check=False).returncode == 0, "the Service is back")
    operator.rest()
    assert operator.metric("cgn_operator_drifts_total") >= 2


def test_objects_of_others_are_left_alone(operator, installed, space):
    """An object that the operator did not make is neither changed nor deleted, and is named in status and event."""
    kube = installed
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prod-config", "namespace": space}, "data": {"theirs": "1"}}
    kube.apply(theirs)
    kube.apply(cluster(space))

    def condition():
        return next((c for c in kube.get("ic", "prod", "-n", space).get("status", {}).get("conditions", []) if c["type"] == "Ready"), {})
    told = until(lambda: (c := condition()).get("reason") == "ObjectOfOthers" and c, lambda: json.dumps(kube.get("ic", "prod", "-n", space).get("status")))
    assert "ConfigMap prod-config exists and was made by others" in told["message"]
    until(lambda: any(e["reason"] == "ObjectOfOthers" and e["type"] == "Warning" and "prod-config" in e["message"]
                      for e in kube.get("events", "-n", space)["items"]), "an event names it")
    assert kube.get("configmap", "prod-config", "-n", space)["data"] == {"theirs": "1"}

    kube.kubectl("delete", "configmap", "prod-config", "-n", space)  # out of the way: the next attempt goes on
    ready(kube, "ic", "prod", space, 1)
    assert kube.get("configmap", "prod-config", "-n", space)["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "cgn-operator"

    copy = kube.get("deployment", "prod-metrics", "-n", space)  # as kubectl get -o yaml | kubectl apply would make it, in another name
    labels = copy["metadata"]["labels"]
    kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "copied", "namespace": space, "labels": labels}, "data": {"theirs": "2"}})
    kube.apply(cluster(space, metrics={"enabled": False}))
    until(lambda: kube.kubectl("get", "deployment", "prod-metrics", "-n", space, check=False).returncode != 0, "ours goes")
    operator.rest()
    assert kube.get("configmap", "copied", "-n", space)["data"] == {"theirs": "2"}


def test_what_was_kept_without_its_owner_is_taken_again(operator, installed, space):
    kube = installed
    kube.apply(cluster(space))
    ready(kube, "ic", "prod", space, 1)
    operator.rest()
    uid = kube.get("service", "prod-router", "-n", space)["metadata"]["uid"]
    kube.kubectl("delete", "ic", "prod", "-n", space, "--cascade=orphan")
    until(lambda: not kube.get("service", "prod-router", "-n", space)["metadata"].get("ownerReferences"), "the Service is kept")
    kube.apply(cluster(space))
    ready(kube, "ic", "prod", space, 1)
    service = kube.get("service", "prod-router", "-n", space)["metadata"]
    assert service["uid"] == uid and service["ownerReferences"][0]["uid"] == kube.get("ic", "prod", "-n", space)["metadata"]["uid"]


def test_what_is_no_longer_wanted_goes(operator, installed, space):
    kube = installed
    kube.apply(cluster(space), pool(space))
    ready(kube, "mp", "chat", space, 1)
    kube.apply(cluster(space, metrics={"enabled": False}))
    until(lambda: kube.kubectl("get", "deployment", "prod-metrics", "-n", space, check=False).returncode != 0, "the metrics go")
    kube.kubectl("delete", "mp", "chat", "-n", space)
    until(lambda: not kube.get("statefulset", "-n", space)["items"], "Kubernetes deletes what the pool owned", wait_s=120)


def test_a_policy_reaches_routers_and_cordons_stay(operator, installed, space, tmp_path):
    kube = installed
    kube.apply(cluster(space, kvcached={"ramGib": 1, "ssdGib": 1}), pool(space))
    ready(kube, "ic", "prod", space, 1)
    ready(kube, "mp", "chat", space, 1)
    operator.rest()
    kube.kubectl("patch", "secret", "prod.state", "-n", space, "--type=merge", "-p", '{"stringData":{"cordon.n1":"true"}}')
    kube.apply(policy(space, scoreWeights={"kv": 0.4, "load": 0.4, "power": 0.1, "capacity": 0.1}, admission={"maxQueue": 7, "ttftSloMs": 800}))
    data = until(lambda: (d := kube.get("secret", "prod.state", "-n", space)["data"]).get("policy") and d, "the document is there")
    assert json.loads(base64.b64decode(data["policy"])) == {"policy": "weighted", "weights": {"kv": 0.4, "load": 0.4, "power": 0.1, "capacity": 0.1}}
    assert base64.b64decode(data["cordon.n1"]) == b"true"
    until(lambda: "max_queue = 7" in kube.get("configmap", "prod-config", "-n", space)["data"]["cognitora.toml"], "the limits are there")
    (tmp_path / "tls").mkdir()  # the files of a Secret's volume
    for name, text in kube.get("secret", "prod-router-tls", "-n", space)["data"].items():
        (tmp_path / "tls" / name).write_bytes(base64.b64decode(text))
    rendered = kube.get("configmap", "prod-config", "-n", space)["data"]["cognitora.toml"]
    (tmp_path / "cognitora.toml").write_text(rendered.replace("/etc/cognitora-tls", str(tmp_path / "tls")))
    pod = next(o for o in kube.get("statefulset", "-n", space)["items"])["spec"]["template"]["spec"]["containers"][0]
    env = {e["name"]: e["value"] for e in pod["env"] if "value" in e and "$" not in e["value"]}
    for program in ("router", "agent", "kvcached", "metrics"):  # the programs understand it
        done = subprocess.run([BUILD / f"src/{program}/cgn-{program}", "--config", tmp_path / "cognitora.toml", "--check"], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
    kube.kubectl("delete", "rp", "main", "-n", space)
    until(lambda: "policy" not in kube.get("secret", "prod.state", "-n", space)["data"], "the document goes with its RoutingPolicy")
    assert "cordon.n1" in kube.get("secret", "prod.state", "-n", space)["data"]


def test_cascades_reach_routers(operator, installed, space, tmp_path):
    kube = installed
    kube.apply(cluster(space, security={"mode": "insecure"}), policy(space, cascade={
        "enabled": True, "smallModel": "s", "largeModel": "l", "gate": "logprob", "confidenceThreshold": -2, "tokens": 8,
        "chains": [{"model": "giant", "smallModels": ["s", "l"]}], "thresholds": [{"model": "l", "confidenceThreshold": -0.5}]}))

    def settings():
        found = kube.kubectl("get", "configmap", "prod-config", "-n", space, "-o", "json", check=False)
        return json.loads(found.stdout)["data"]["cognitora.toml"] if found.returncode == 0 else ""
    (tmp_path / "cognitora.toml").write_text(until(lambda: (t := settings()) and "[router.cascade]" in t and t, "the settings are there"))
    engine = {"COGNITORA__ENGINE__KIND": "openai_compat", "COGNITORA__ENGINE__URL": "http://127.0.0.1:1"}
    for program in ("router", "agent", "kvcached", "metrics"):  # the programs understand it
        done = subprocess.run([BUILD / f"src/{program}/cgn-{program}", "--config", tmp_path / "cognitora.toml", "--check"], capture_output=True, text=True,
                              env=engine if program == "agent" else {})
        assert done.returncode == 0, done.stderr
        if program == "router":
            shown = [line.split(" #")[0].strip() for line in done.stdout.splitlines()]
            for line in ("enabled = true", 'small_model = "s"', 'large_model = "l"', "confidence_threshold = -2", 'cascade = ["s", "l"]', "confidence_threshold = -0.5"):
                assert line in shown, done.stdout
    kube.kubectl("delete", "rp", "main", "-n", space)
    until(lambda: "cascade" not in settings(), "the cascade goes with its RoutingPolicy")


def test_cascades_of_pools_reach_routers(operator, installed, space):
    """A chain comes, changes and goes with its pool; the RoutingPolicy counts first."""
    kube = installed
    kube.apply(cluster(space, security={"mode": "insecure"}), pool(space, name="large", model="l", cascade={"smallModels": ["s"]}),
               pool(space, name="small", model="s", cascade={"confidenceThreshold": -0.5}), pool(space, name="other"))

    def settings():
        found = kube.kubectl("get", "configmap", "prod-config", "-n", space, "-o", "json", check=False)
        return tomllib.loads(json.loads(found.stdout)["data"]["cognitora.toml"]) if found.returncode == 0 else {}
    until(lambda: settings().get("models") == {"l": {"cascade": ["s"]}, "s": {"confidence_threshold": -0.5}}, lambda: f"{settings()}")
    assert settings()["router"]["cascade"] == {"enabled": True}
    kube.apply(pool(space, name="large", model="l", cascade={"smallModels": ["t", "s"]}))
    until(lambda: settings()["models"]["l"] == {"cascade": ["t", "s"]}, lambda: f"{settings()}")
    kube.apply(policy(space, cascade={"enabled": True, "tokens": 8, "chains": [{"model": "l", "smallModels": ["u"]}]}))
    until(lambda: settings()["models"].get("l") == {"cascade": ["u"]} and settings()["router"]["cascade"] == {"enabled": True, "tokens": 8}, lambda: f"{settings()}")
    kube.kubectl("delete", "rp", "main", "-n", space)
    until(lambda: settings()["models"]["l"] == {"cascade": ["t", "s"]}, lambda: f"{settings()}")
    kube.kubectl("delete", "mp", "large", "-n", space)
    until(lambda: settings()["models"] == {"s": {"confidence_threshold": -0.5}} and "router" not in settings(), lambda: f"{settings()}")
    operator.rest()
    assert operator.metric("cgn_operator_failures_total") == 0


def test_a_pool_without_a_cluster_says_so_and_starts_when_there_is_one(operator, installed, space):
    kube = installed
    kube.apply(pool(space))
    status = until(lambda: kube.get("mp", "chat", "-n", space).get("status"), "it has a status")
    assert status["phase"] == "Invalid" and status["conditions"][0]["reason"] == "ClusterMissing", status
    assert "no InferenceCluster" in status["conditions"][0]["message"]
    kube.apply(cluster(space))
    ready(kube, "mp", "chat", space, 1)


@pytest.mark.parametrize("what, said", [
    (lambda s: pool(s, tensorParallel=0), "tensorParallel must be from 1 to 64 GPUs"),
    (lambda s: pool(s, dtype="float4"), "dtype must be bfloat16, float16, float8 or int8"),
    (lambda s: pool(s, engine={"kind": "vllm"}), "engine.image is missing"),
    (lambda s: pool(s, engine={"kind": "tgi", "image": "x"}), "engine.kind must be sim"),
    (lambda s: pool(s, dtype="int8"), "dtype int8 needs engine.kind sglang"),
    (lambda s: pool(s, "x" * 48), "metadata.name may have at most 47"),
    (lambda s: pool(s, drainTimeout="10 minutes"), "drainTimeout must be a time from 1s to 1h"),
    (lambda s: pool(s, drainTimeout="2h"), "drainTimeout must be a time from 1s to 1h"),
    (lambda s: pool(s, cascade={}), "cascade says nothing"),
    (lambda s: pool(s, cascade={"smallModels": ["a", "sim-8b"]}), "must not have the pool's own model"),
    (lambda s: pool(s, cascade={"smallModels": []}), "needs one to three models"),
    (lambda s: pool(s, cascade={"smallModels": ["a", "a"]}), "must name each model once"),
    (lambda s: pool(s, cascade={"confidenceThreshold": 1}), "cascade.confidenceThreshold is a mean log-probability"),
    (lambda s: cluster(s, router={"drainTimeout": "0s"}), "router.drainTimeout must be a time from 1s to 1h"),
    (lambda s: cluster(s, router={"replicas": 0}), "router.replicas must be from 1 to 100"),
    (lambda s: cluster(s, clusterName="Prod"), "clusterName must have only a to z"),
    (lambda s: cluster(s, kvcached={"ramGib": 0}), "kvcached.ramGib must be at least 1"),
    (lambda s: policy(s, scoreWeights={"kv": 0.9}), "must add up to 1"),
    (lambda s: policy(s, cascade={"enabled": True}), "cascade.enabled has no models"),
    (lambda s: policy(s, cascade={"smallModel": "a"}), "cascade.smallModel and cascade.largeModel belong together"),
    (lambda s: policy(s, cascade={"smallModel": "a", "largeModel": "a"}), "must be two models"),
    (lambda s: policy(s, cascade={"smallModel": "a", "largeModel": "b", "chains": [{"model": "b", "smallModels": ["c"]}]}), "has a chain of its own"),
    (lambda s: policy(s, cascade={"chains": [{"model": "b", "smallModels": ["a", "b"]}]}), "must not have its own model"),
    (lambda s: policy(s, cascade={"chains": [{"model": "b", "smallModels": ["a", "a"]}]}), "each of its smallModels once"),
    (lambda s: policy(s, cascade={"chains": [{"model": "b", "smallModels": []}]}), "needs one to three smallModels"),
    (lambda s: policy(s, cascade={"chains": [{"model": "b", "smallModels": ["a"]}] * 2}), "Duplicate value"),
    (lambda s: policy(s, cascade={"thresholds": [{"model": "a", "confidenceThreshold": -1}]}), "not a smaller model of a cascade"),
    (lambda s: policy(s, cascade={"gate": "vibes"}), "cascade.gate must be logprob"),
    (lambda s: policy(s, cascade={"confidenceThreshold": 0.5}), "cascade.confidenceThreshold is a mean log-probability"),
    (lambda s: policy(s, cascade={"tokens": 33}), "cascade.tokens must be from 1 to 32"),
    (lambda s: policy(s, cascade={"pregate": 2}), "cascade.pregate is a share"),
])
def test_mistakes_are_refused_in_sentences(installed, space, what, said):
    done = installed.kubectl("apply", "-f", "-", text=json.dumps(what(space)), check=False)
    assert done.returncode != 0 and said in done.stderr, done.stderr


def test_a_second_operator_takes_over(installed, space, tmp_path):
    kube = installed
    first = Operator(kube, tmp_path, "first", namespace=space)
    until(lambda: first.status().get("leads"), "the first leads", wait_s=60)
    second = Operator(kube, tmp_path, "second", namespace=space)
    try:
        until(lambda: second.status().get("leads") is False, "the second follows")
        first.process.kill()
        kube.apply(cluster(space))
        ready(kube, "ic", "prod", space, 1)
        assert second.status()["leads"]
    finally:
        second.stop()
    third = Operator(kube, tmp_path, "third", namespace=space)  # the second gave the lease up: no wait
    try:
        until(lambda: third.status().get("leads"), "the third leads")
    finally:
        third.stop()


def test_a_thousand_pools(operator, installed, space):
    """A thousand ModelPools at once: each is reconciled, nothing fails, and afterwards there is rest. The figures are printed (-s)."""
    kube, n = installed, 1000
    kube.apply(cluster(space))
    ready(kube, "ic", "prod", space, 1)
    operator.rest()
    before, began = operator.metric("cgn_operator_applies_total"), time.monotonic()
    kube.create(f"/apis/cognitora.dev/v1alpha1/namespaces/{space}/modelpools", (pool(space, f"p{i}", replicas=0) for i in range(n)))
    created = time.monotonic()
    until(lambda: operator.metric("cgn_operator_applies_total") >= before + 3 * n, lambda: operator.status(), wait_s=600, step_s=0.2)
    operator.rest()
    done = time.monotonic()
    assert operator.metric("cgn_operator_failures_total") == 0
    assert operator.metric("cgn_operator_applies_total") == before + 3 * n
    assert sum(o["status"].get("phase") == "Ready" for o in kube.get("mp", "-n", space)["items"]) == n
    quiet = operator.metric("cgn_operator_reconciles_total")
    used = time.process_time(), operator.metric("process_cpu_seconds_total")
    time.sleep(5)
    assert operator.metric("cgn_operator_reconciles_total") == quiet
    print(f"{n} pools: created in {created - began:.1f} s, done {done - created:.1f} s later; reconciles {quiet:.0f}, resident {operator.process.rss_kib() // 1024} MiB, "
          f"processor {used[1]:.1f} s in all, {operator.metric('process_cpu_seconds_total') - used[1]:.2f} s in 5 s of rest")
    began = time.monotonic()
    operator.process.stop()
    operator.process.start()
    until(lambda: operator.status().get("watches"), "it watches")
    operator.rest()
    print(f"restart: {operator.metric('cgn_operator_applies_total'):.0f} applies, at rest after {time.monotonic() - began:.1f} s")
