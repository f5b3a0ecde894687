# SPDX-License-Identifier: Apache-2.0
"""The Helm chart: what it renders is valid for Kubernetes and for our programs, and the pods answer."""
import base64
import json
import re
import ssl
import subprocess
import threading

import pytest
import yaml

from chart import CHART, KUBE_VERSION, ROOT, containers, find, helm, refusal, render, workloads
from cluster import BUILD, until
from pods import Pods, ask, usable
from resp_raw import Raw, Wrong

in_pods = pytest.mark.skipif(usable() is not None, reason=str(usable()))

CASCADE = {"enabled": True, "smallModel": "s", "largeModel": "l", "gate": "logprob", "confidenceThreshold": -1.5, "tokens": 8, "calibrationShare": 0.05,
           "maxError": 0.2, "judgeModel": "e", "judgeSimilarity": 0.8, "pregate": 0.95}
SEEDS = {"router": {"scoreWeights": {"kv": 0.5, "load": 0.3, "power": 0.1, "capacity": 0.1}, "admission": {"maxQueue": 64, "ttftSloMs": 800, "queueTimeoutMs": 5000},
                    "rateLimit": {"rps": 50, "burst": 100}, "cascade": CASCADE,
                    "disagg": {"enabled": True, "colocateBelowTokens": 256}},
         "metrics": {"serviceMonitor": True, "prometheusRule": True, "dashboards": True, "labels": {"release": "prometheus"}}}
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
GPU = {"nodeSelector": {"nvidia.com/gpu.present": "true"}, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}], "gpus": 2}
MATRIX = {
    "default": {},
    "seeds": SEEDS,
    "two-routers": {"router": {"replicas": 2, "ingress": {"enabled": True, "host": "llm.example.net", "tlsSecret": "t"}}},
    "own-etcd": {"router": {"replicas": 2}, "etcd": {"endpoints": ["http://etcd.db.svc:2379"]}},
    "autoscaled": {"router": {"autoscaling": {"enabled": True}, "service": {"type": "LoadBalancer"}}},
    "agents-autoscaled": {"agent": {"kind": "StatefulSet", "autoscaling": {"enabled": True, "metric": "cpu", "target": 70}}},
    "kubernetes": {"router": {"replicas": 2}, "cluster": {"stateBackend": "kubernetes"}},
    "pools": {"settings": {"inference_pools": {"llama": {"kv_events_port": 5557}, "other": {"namespace": "elsewhere", "pool": "q"}}}},
    "no-certificates": {"pki": {"createCa": False}, "auth": {"enabled": False}},
    "no-certificates-two-routers": {"pki": {"createCa": False}, "router": {"replicas": 2}, "etcd": {"replicas": 1, "persistence": False}},
    "no-store": {"kvcached": {"enabled": False}, "metrics": {"enabled": False}, "networkPolicy": {"enabled": False}},
    "daemonset-ssd": {"agent": {"kind": "DaemonSet"}, "kvcached": {"ramGib": 2, "ssdGib": 10, "storageClassName": "local"}},
    "statefulset-ssd": {"agent": {"kind": "StatefulSet"}, "kvcached": {"ssdGib": 10}},
    "stores": {"kvcached": {"stores": {"replicas": 3}}},
    "stores-ssd": {"kvcached": {"enabled": False, "stores": {"replicas": 2, "ssdGib": 10, "storageClassName": "fast", "passwordSecret": "kv"}}, "router": {"replicas": 2},
                   "cluster": {"stateBackend": "kubernetes"}, "metrics": {"serviceMonitor": True}},
    "vllm": {"agent": {**GPU, "engine": "vllm", "model": {"name": "llama3-8b", "path": "meta-llama/Llama-3.1-8B-Instruct", "contextTokens": 8192}, "memoryFraction": 0.9,
                       "engineEnv": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}],
                       "modelsVolume": {"persistentVolumeClaim": {"claimName": "models"}}}, "models": {"llama3-8b": {"aliases": ["gpt-4o"]}}},
    "sglang": {"agent": {**GPU, "engine": "sglang", "model": {"name": "qwen", "path": "Qwen/Qwen3-8B", "contextTokens": 4096}, "memoryFraction": 0.85}},
    "llama": {"agent": {"engine": "llama_cpp", "model": {"name": "tiny", "path": "/models/tiny.gguf", "contextTokens": 2048}, "modelsVolume": {"hostPath": {"path": "/models"}}}},
    "hosted": {"agent": {"engine": "openai_compat", "engineUrl": "https://api.example.com/v1", "engineApiKeySecret": "api", "model": {"name": "hosted"}}},
    "https": {"router": {"tlsSecret": "gateway"}},
    "operator": {"operator": {"enabled": True}, "networkPolicy": {"monitoringFrom": [{"namespaceSelector": {}}]}},
    "operator-own-namespace": {"operator": {"enabled": True, "crds": False, "ownNamespaceOnly": True, "replicas": 1}},
    "settings": {"settings": {"log": {"level": "debug"}, "router": {"retry": {"attempts": 5}, "policy": "weighted"}}, "models": {"a.b/c": {"block_tokens": 32}}},
}


@pytest.fixture
def folder(tmp_path):
    """A folder that the pods' user may enter."""
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("more", [(), ("--set", "operator.enabled=true")])
def test_lint(more):
    helm("lint", "--strict", "--kube-version", KUBE_VERSION, CHART, *more)


@pytest.mark.parametrize("case", MATRIX)
def test_pods_are_restricted(case, tmp_path):
    """The Pod Security Standard "restricted", but for the volume of models, which is the user's."""
    for w in workloads(render(tmp_path, MATRIX[case])):
        pod = w["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["automountServiceAccountToken"] and not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        for c in containers(w):
            assert c["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}, c["name"]
            names = {v["name"] for v in (*pod.get("volumes", []), *({"name": t["metadata"]["name"]} for t in w["spec"].get("volumeClaimTemplates", [])))}
            assert c["name"] not in ("engine", "pki", "etcd") or "token" not in {m["name"] for m in c["volumeMounts"]}
            assert {m["name"] for m in c["volumeMounts"]} <= names, (w["metadata"]["name"], c["name"])
        for v in pod.get("volumes", []):
            assert "hostPath" not in v or v["name"] == "models"
        # Only the init container that signs the pod's own certificate reads the CA's key.
        assert {c["name"] for c in containers(w) for m in c["volumeMounts"] if m["name"] == "authority"} <= {"pki"}


def test_monitoring_objects_are_the_repository_s(tmp_path):
    objs = render(tmp_path, SEEDS)
    rules = {r.get("alert") or r.get("record") for o in objs if o["kind"] == "PrometheusRule" for g in o["spec"]["groups"] for r in g["rules"]}
    assert rules == {r.get("alert") or r.get("record") for f in ("alerts", "recording")
                     for g in yaml.safe_load((ROOT / f"deploy/prometheus/{f}.rules.yml").read_text())["groups"] for r in g["rules"]}
    boards = {name: json.loads(text) for o in objs if "grafana_dashboard" in o["metadata"]["labels"] for name, text in o["data"].items()}
    assert boards == {f.name: json.loads(f.read_text()) for f in (ROOT / "deploy/grafana").glob("*.json")}
    for o in objs:
        if o["kind"] in ("ServiceMonitor", "PrometheusRule"):
            assert o["metadata"]["labels"]["release"] == "prometheus"


@pytest.mark.parametrize("values, sentence", [
    ({"router": {"replicas": 2}, "cluster": {"stateBackend": "embedded"}}, "need cluster.stateBackend etcd or kubernetes"),
    ({"agent": {"engine": "llama_cpp"}}, "needs agent.model.path"),
    ({"agent": {"engine": "openai_compat"}}, "needs agent.engineUrl"),
    ({"router": {"ingress": {"enabled": True}}}, "needs router.ingress.host"),
    ({"agent": {"kind": "DaemonSet", "autoscaling": {"enabled": True}}}, "agent.autoscaling cannot be enabled with it"),
    ({"agent": {"autoscaling": {"enabled": True, "minReplicas": 9}}}, "agent.autoscaling.minReplicas is above maxReplicas"),
    ({"settings": {"router": {"casade": {"enabled": True}}}}, "'casade' not allowed"),
    ({"settings": {"router": {"policy": "fastest"}}}, "value must be one of 'kv', 'weighted'"),
    ({"settings": {"models": {"m": {"block_tokens": 0}}}}, "minimum: got 0, want 1"),
    ({"models": {"m": {"aliasses": ["n"]}}}, "'aliasses' not allowed"),
    ({"router": {"cascade": {"tokens": 33}}}, "maximum: got 33, want 32"),
    ({"kvcached": {"stores": {"replicas": 2, "storageClassName": "fast"}}}, "set kvcached.stores.ssdGib too"),
    ({"kvcached": {"stores": {"replicas": 65}}}, "maximum: got 65, want 64"),
    ({"auth": {"enabled": False, "existingSecret": "s"}}, "auth.enabled is false"),
    ({"etcd": {"existingSecret": "s"}}, "belongs to etcd.endpoints"),
    ({"router": {"replica": 2}}, "'replica' not allowed"),
    ({"operator": {"replicas": 0}}, "minimum: got 0, want 1"),
    ({"agent": {"kind": "Job"}}, "'Deployment', 'StatefulSet', 'DaemonSet'"),
])
def test_wrong_values_are_refused_with_a_sentence(tmp_path, values, sentence):
    assert sentence in refusal(tmp_path, values)


def test_each_value_has_a_description():
    schema = json.loads((CHART / "values.schema.json").read_text())
    seen = []

    def walk(path, node, value):
        assert node["description"].endswith("."), path
        seen.append(path)
        for key, below in node.get("properties", {}).items():
            walk(f"{path}.{key}", below, None)
        for key, item in (value or {}).items() if isinstance(value, dict) and "properties" in node else ():
            assert key in node["properties"], f"{path}.{key}"
            walk(f"{path}.{key}", node["properties"][key], item)
    walk("", schema, yaml.safe_load((CHART / "values.yaml").read_text()))
    assert len(seen) > 100


def test_a_package_has_the_files_of_deploy(tmp_path):
    helm("package", CHART, "-d", tmp_path)
    package, = tmp_path.glob("*.tgz")
    text = helm("template", "c", package, "--kube-version", KUBE_VERSION, "--set", "metrics.dashboards=true,metrics.prometheusRule=true").stdout
    assert text.count("grafana_dashboard") == len(list((ROOT / "deploy/grafana").glob("*.json"))) and "CognitoraEngineNotReady" in text


def gateway_secret(folder):
    """Return a secret with a certificate for HTTPS."""
    subprocess.run([BUILD / "src/ctl/cgn-ctl", "pki", "bootstrap", "--out", folder / "gw", "--leaf", "router"], check=True, capture_output=True)
    files = {"tls.crt": folder / "gw/router.pem", "tls.key": folder / "gw/router.key"}
    return {"kind": "Secret", "metadata": {"name": "gateway"}, "data": {k: base64.b64encode(f.read_bytes()).decode() for k, f in files.items()}}


# ---- what the programs say to the settings

@in_pods
@pytest.mark.parametrize("case", MATRIX)
def test_programs_take_the_settings(case, folder):
    """Each container with settings runs with --check: it reads every file that a start needs, in its pod."""
    objs = render(folder, MATRIX[case])
    objs += [{"kind": "Secret", "metadata": {"name": name}, "data": {file: base64.b64encode(b"k").decode()}} for name, file in (("api", "api-key"), ("kv", "password"))]
    objs += [gateway_secret(folder)]
    checked = []
    with Pods(folder, objs) as pods:
        for w in workloads(objs):
            component = w["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
            pod, = pods.make(component, 1)
            pod.prepare()
            for c in pod.lasting():
                if c["command"][0].startswith("cgn-") and c["name"] != "engine":
                    said = pod.run(c, "--check")
                    checked.append(c["name"])
                    if case == "seeds" and c["name"] == "router":
                        keys = {re.sub("(?=[A-Z])", "_", k).lower(): json.dumps(v) for k, v in CASCADE.items()}
                        assert all(f"{k} = {v}" in said for k, v in keys.items()), said
                    if case == "settings":
                        assert 'level = "debug"' in said and ("attempts = 5" in said or c["name"] != "router"), said
    values = {k: {**VALUES[k], **MATRIX[case].get(k, {})} for k in ("agent", "kvcached")}
    stores = int(values["kvcached"]["enabled"] and values["agent"]["enabled"]) + int(bool(values["kvcached"]["stores"].get("replicas")))
    assert "router" in checked and ("agent" in checked) == values["agent"]["enabled"] and checked.count("kvcached") == stores


@pytest.mark.parametrize("case", ["vllm", "sglang", "llama"])
def test_engines_start_as_the_agent_would_start_them(case, tmp_path):
    """The engine's container and a managed engine of cgn-agent have the same arguments."""
    objs = render(tmp_path, MATRIX[case])
    engine = next(c for c in containers(find(objs, "Deployment", "cognitora-agent")) if c["name"] == "engine")
    v = MATRIX[case]["agent"]
    bind = {"kv_events": "ipc:///run/engine/kv.events", "kv_events_replay": "ipc:///run/engine/kv.replay"} if case != "llama" else {}
    keys = {"kind": v["engine"], "managed": True, "url": "http://127.0.0.1:8000", "model": v["model"]["name"], "model_path": v["model"]["path"],
            "n_ctx": v["model"]["contextTokens"], **bind, **({"tp": 2, "memory_fraction": v["memoryFraction"]} if "gpus" in v else {})}
    config = tmp_path / "agent.toml"
    config.write_text("[engine]\n" + "".join(f"{k} = {json.dumps(x)}\n" for k, x in keys.items()))
    plan = json.loads(subprocess.run([BUILD / "src/agent/cgn-agent", "--config", config, "--print-argv"], check=True, capture_output=True, text=True).stdout)
    plan = plan[0] if isinstance(plan, list) else plan.get("engines", [plan])[0]

    def shape(argv):
        return [json.loads(w) if w.startswith("{") else w for w in argv]
    assert shape([*engine["command"], *engine["args"]])[1:] == shape(plan["argv"])[1:]


# ---- pods that answer

def chat(router, key, text, **more):
    body = {"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}
    return ask(router, 8080, "POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {key}"})


def secret(objs, name, key):
    return base64.b64decode(find(objs, "Secret", name)["data"][key]).decode()


@in_pods
def test_a_release_answers(folder):
    objs = render(folder, {})
    key = secret(objs, "cognitora-keys", "api-key")
    with Pods(folder, objs) as pods:
        router, = pods.make("router", 1)
        agents = pods.make("agent", 2)
        metrics, = pods.make("metrics", 1)
        for pod in pods.pods:
            pod.start()
        for pod, name in ((agents[0], "agent"), (agents[1], "agent"), (router, "router"), (metrics, "metrics")):
            pod.wait_ready(name)
        status, answer = chat(router, key, "hello")
        assert status == 200 and json.loads(answer)["usage"]["completion_tokens"] > 0, answer
        assert chat(router, "cgn_wrong", "hello")[0] == 401
        assert agents[0].probe("kvcached", "livenessProbe") == 200
        until(lambda: "kvpeer.ready" in agents[0].log("kvcached", 100), "the stores of both pods are peers")
        # Admin ports: Prometheus' key reads metrics and nothing else, by the name and the CA that a ServiceMonitor has.
        ca = folder / "ca.pem"
        ca.write_text(secret(objs, "cognitora-ca", "ca.pem"))
        strict = ssl.create_default_context(cafile=ca)
        strict.check_hostname = False  # the address is the pod's; ServiceMonitors name the server
        scrape = {"Authorization": "Bearer " + secret(objs, "cognitora-keys", "metrics-key")}
        assert "cgn_requests_total" in ask(router, 9091, "GET", "/metrics", headers=scrape, tls=True, context=strict)[1]
        assert "cgn_engine_ready" in ask(agents[1], 7081, "GET", "/metrics", headers=scrape, tls=True, context=strict)[1]
        assert ask(router, 9091, "GET", "/config", headers=scrape, tls=True)[0] == 403
        assert ask(router, 9091, "GET", "/nodes", tls=True)[0] == 401
        until(lambda: "cgn_engine_ready" in ask(metrics, 9092, "GET", "/federate", headers=scrape, tls=True)[1], "metrics has scraped the agents")


@in_pods
def test_stores_of_their_own_share_blocks_with_those_beside_the_agents(folder):
    """Three pods of the StatefulSet and an agent's pod: what one store took, every other has; after a restart too, by its volume."""
    objs = render(folder, {"kvcached": {"stores": {"replicas": 3, "ramGib": 1, "ssdGib": 1}}, "metrics": {"enabled": False}})
    password = secret(objs, "cognitora-kv-password", "password")
    with Pods(folder, objs) as pods:
        router, = pods.make("router", 1)
        agent, = pods.make("agent", 1)
        stores = pods.make("kvcached", 3)
        for pod in pods.pods:
            pod.start()
        agent.wait_ready("agent")
        for store in stores:
            store.wait_ready("kvcached")
        env = agent.env(agent.container("engine"), {"COGNITORA_KV_PASSWORD": password})
        assert env["COGNITORA_KV_URL"] == f"redis://:{password}@cognitora-kv.ai.svc:7092"

        def client(pod):
            c = Raw((pod.address, 7092))
            assert c.ask("AUTH", password) == b"OK"
            return c
        assert isinstance(Raw((stores[0].address, 7092)).ask("GET", "k"), Wrong)
        value = b"block" * 40000
        assert client(stores[0]).ask("SET", "k", value) == b"OK"
        for store in stores[1:]:
            until(lambda: client(store).ask("GET", "k") == value, lambda: store.log("kvcached"))  # noqa: B023
        until(lambda: all(f"{s.name}.cognitora-kvcached" in agent.log("kvcached", 400) or s.address in agent.log("kvcached", 400) for s in stores),
              lambda: f"the store beside the agent knows them:\n{agent.log('kvcached', 100)}")
        for store in stores:
            assert store.terminate() == {"kvcached": 0}
        stores[0].spawn(stores[0].container("kvcached"))
        stores[0].wait_ready("kvcached")
        assert client(stores[0]).ask("GET", "k") == value


@in_pods
def test_the_gateway_speaks_https(folder):
    objs = [*render(folder, {"router": {"tlsSecret": "gateway"}, "kvcached": {"enabled": False}}), gateway_secret(folder)]
    with Pods(folder, objs) as pods:
        router, = pods.make("router", 1)
        agent, = pods.make("agent", 1)
        for pod in pods.pods:
            pod.start()
        router.wait_ready("router")  # the probe is HTTPS
        key = {"Authorization": "Bearer " + secret(objs, "cognitora-keys", "api-key")}
        assert ask(router, 8080, "GET", "/v1/models", headers=key, tls=True)[0] == 200


@in_pods
def test_no_stream_is_cut_when_an_agent_s_pod_ends(folder):
    objs = render(folder, {"agent": {"engineArgs": ["--decode-ms", "60"]}, "kvcached": {"enabled": False}, "metrics": {"enabled": False}})
    key = secret(objs, "cognitora-keys", "api-key")
    with Pods(folder, objs) as pods:
        router, = pods.make("router", 1)
        agent, = pods.make("agent", 1)
        for pod in pods.pods:
            pod.start()
        agent.wait_ready("agent")
        router.wait_ready("router")
        got = []
        asker = threading.Thread(target=lambda: got.append(chat(router, key, "a long story", stream=True, max_tokens=40, ignore_eos=True)))
        asker.start()
        until(lambda: re.search(r"cgn_inflight\S* [1-9]", metrics_of(router, objs)), "the stream runs")
        ended = agent.terminate()
        asker.join()
        assert got[0][0] == 200 and got[0][1].count("data: {") >= 40 and got[0][1].rstrip().endswith("data: [DONE]"), got
        assert ended == {"agent": 0, "engine": 143} or ended == {"agent": 0, "engine": 0}, ended


def metrics_of(router, objs):
    return ask(router, 9091, "GET", "/metrics", headers={"Authorization": "Bearer " + secret(objs, "cognitora-keys", "metrics-key")}, tls=True)[1]


@in_pods
def test_two_routers_share_an_etcd_of_three(folder):
    objs = render(folder, {"router": {"replicas": 2}, "metrics": {"enabled": False}})
    key = secret(objs, "cognitora-keys", "api-key")
    with Pods(folder, objs) as pods:
        members = pods.make("etcd", 3)
        routers, agents = pods.make("router", 2), pods.make("agent", 1)
        for pod in pods.pods:
            pod.start()
        for pod in members:
            until(lambda: ask(pod, 2381, "GET", "/health")[0] == 200 if reachable(pod, 2381) else False, lambda: f"etcd is healthy:\n{pod.log('etcd')}")
        agents[0].wait_ready("agent")
        for router in routers:
            router.wait_ready("router")
            assert chat(router, key, "hello")[0] == 200
        assert '"state_backend": "etcd"' not in routers[0].log("router")  # the log never prints settings


def reachable(pod, port):
    try:
        return bool(ask(pod, port, "GET", "/health"))
    except OSError:
        return False
