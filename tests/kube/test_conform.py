# SPDX-License-Identifier: Apache-2.0
"""Every manifest that the repository has or renders is what Kubernetes, and the definitions of others' kinds, allow, to the last member (kubeconform)."""
import json
import re

import pytest
import yaml

from chart import CHART, KUBE_VERSION, NAMESPACE, ROOT, helm, objects, values_file
from conform import Schemas
from test_chart import MATRIX

EXAMPLES = [(f, m[1]) for f in sorted((ROOT / "docs").rglob("*.md")) for m in re.finditer(r"^```yaml\n(.*?)^```", f.read_text(), re.M | re.S)
            if all(o.get("apiVersion") and o.get("metadata") for o in objects(m[1]))]


@pytest.fixture(scope="module")
def schemas(kube, tmp_path_factory):
    s = Schemas(tmp_path_factory.mktemp("schemas"), kube)
    assert s.kinds() > 80
    return s


def conforms(schemas, text):
    valid, wrong = schemas.look(text)
    assert not wrong, "\n".join(wrong)
    assert valid == len(objects(text)) > 0
    return objects(text)


def rendered(folder, case):
    return helm("template", "cognitora", CHART, "-n", NAMESPACE, "--kube-version", KUBE_VERSION, "-f", values_file(folder, MATRIX[case])).stdout


@pytest.mark.parametrize("case", MATRIX)
def test_the_chart(schemas, case, tmp_path):
    kinds = {o["kind"] for o in conforms(schemas, rendered(tmp_path, case))}
    assert case != "seeds" or {"ServiceMonitor", "PrometheusRule"} <= kinds
    assert case != "operator" or "CustomResourceDefinition" in kinds


@pytest.mark.parametrize("folder", ["kustomize", "kustomize/inference-pool", "quickstart"])
def test_a_base_of_kustomize(schemas, kube, folder):
    conforms(schemas, kube.kubectl("kustomize", ROOT / "deploy" / folder).stdout)


def test_the_quickstart_as_one_file(schemas):
    conforms(schemas, (ROOT / "deploy/quickstart/cognitora.yaml").read_text())


@pytest.mark.parametrize("file, text", EXAMPLES, ids=[f"{f.stem}-{i}" for i, (f, _) in enumerate(EXAMPLES)])
def test_the_examples_of_the_documents(schemas, file, text):
    conforms(schemas, text)


@pytest.mark.parametrize("file", sorted((ROOT / "tests/unit/desired").glob("*.json")), ids=lambda f: f.stem)
def test_what_the_operator_makes(schemas, file):
    """The API server drops members that it does not know from a patch, and does not tell the program."""
    conforms(schemas, yaml.safe_dump_all(json.loads(file.read_text())["objects"]))


def changed(text, kind, path, value):
    """Return the first object of |kind| in |text|, with another value at |path|; None removes it."""
    o = next(o for o in objects(text) if o["kind"] == kind)
    at = o
    for word in path[:-1]:
        at = at[word]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return yaml.safe_dump(o)


POD = ("spec", "template", "spec", "containers", 0)


@pytest.mark.parametrize("case, kind, path, value, said", [
    ("default", "Deployment", ("spec", "replica"), 2, "replica"),
    ("default", "Deployment", ("spec", "replicas"), "two", "/spec/replicas"),
    ("default", "Deployment", ("spec", "selector"), None, "selector"),
    ("default", "Deployment", (*POD, "readinesProbe"), {}, "readinesProbe"),
    ("default", "Deployment", (*POD, "ports"), [{"containerPort": "http"}], "containerPort"),
    ("default", "NetworkPolicy", ("spec", "ingres"), [], "ingres"),
    ("seeds", "ServiceMonitor", ("spec", "endpoint"), [], "endpoint"),
    ("seeds", "PrometheusRule", ("spec", "groups", 0, "rules", 0, "expression"), "1", "expression"),
    ("operator", "CustomResourceDefinition", ("spec", "versions", 0, "serve"), True, "serve"),
])
def test_a_wrong_object_is_found(schemas, tmp_path, case, kind, path, value, said):
    valid, wrong = schemas.look(changed(rendered(tmp_path, case), kind, path, value))
    assert valid == 0 and len(wrong) == 1 and "statusInvalid" in wrong[0] and said in wrong[0], wrong


@pytest.mark.parametrize("text, said", [
    ("{apiVersion: cognitora.dev/v1alpha1, kind: ModelPool, metadata: {name: p}, spec: {model: m, replica: 2}}", "replica"),
    ("{apiVersion: cognitora.dev/v1alpha1, kind: InferenceCluster, metadata: {name: c}, spec: {router: {replicas: two}}}", "/spec/router/replicas"),
    ("{apiVersion: cognitora.dev/v1alpha1, kind: RoutingPolicy, metadata: {name: r, lables: {}}, spec: {}}", "lables"),
    ("{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: p}, spec: {selector: {matchLabels: {a: b}}, targetPort: 1}}", "targetPort"),
    ("{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: r}, spec: {rules: [{backendRef: []}]}}", "backendRef"),
    ("{apiVersion: apps/v1, kind: Deploiment, metadata: {name: d}}", "Deploiment"),
    ("apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 1}]}\nspec: {ports: [{port: 2}]}\n", "spec"),
])
def test_a_wrong_text_is_found(schemas, text, said):
    valid, wrong = schemas.look(text)
    assert valid == 0 and len(wrong) == 1 and said in wrong[0], wrong
