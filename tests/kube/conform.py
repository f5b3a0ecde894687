# SPDX-License-Identifier: Apache-2.0
"""kubeconform with strict schemas that are made here, and not fetched: those of a real API server, and those of CustomResourceDefinitions."""
import json
import subprocess

import yaml

from chart import ROOT, helm_path

REFERENCE = "#/components/schemas/"
META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
LOCATION = "{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json"


def strict(node):
    """Return a schema of OpenAPI as JSON schema in which an object has no properties but those that are named."""
    if isinstance(node, list):
        return [strict(n) for n in node]
    if not isinstance(node, dict):
        return node
    out = {}
    for key, value in node.items():
        if key == "$ref":
            out[key] = value.replace(REFERENCE, "#/definitions/")
        elif key in ("properties", "definitions"):
            out[key] = {name: strict(below) for name, below in value.items()}
        elif key not in ("default", "enum", "example"):
            out[key] = strict(value)
        else:
            out[key] = value
    if node.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if isinstance(node.get("properties"), dict) and "additionalProperties" not in node and not node.get("x-kubernetes-preserve-unknown-fields"):
        out["additionalProperties"] = False
    if node.get("nullable") and "type" in out:
        out["type"] = [out["type"], "null"]
    return out


def references(node):
    if isinstance(node, list):
        for n in node:
            yield from references(n)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref" and isinstance(value, str):
                yield value.rsplit("/", 1)[1]
            else:
                yield from references(value)


def closure(schema, known):
    """Return the definitions that |schema| needs."""
    out, wanted = {}, list(references(schema))
    while wanted:
        name = wanted.pop()
        if name not in out:
            out[name] = known[name]
            wanted.extend(references(known[name]))
    return out


class Schemas:
    """A folder of schemas, one for each kind."""

    def __init__(self, folder, kube):
        self.folder = folder
        metadata = {}
        for path in json.loads(kube.kubectl("get", "--raw", "/openapi/v3").stdout)["paths"]:
            if path.startswith(("api/", "apis/")) and "cognitora.dev" not in path:
                known = json.loads(kube.kubectl("get", "--raw", f"/openapi/v3/{path}").stdout).get("components", {}).get("schemas", {})
                known = {name: strict(schema) for name, schema in known.items()}
                self._builtin(known)
                metadata = metadata or (closure({"$ref": f"/{META}"}, known) if META in known else {})
        definitions = [*(ROOT / "deploy/kustomize/crds").glob("*.yaml"), *(f for f in (self._tools() / "crds").glob("*.yaml"))]
        for file in definitions:
            for crd in yaml.safe_load_all(file.read_text()):
                self._custom(crd, metadata)

    @staticmethod
    def _tools():
        return type(ROOT)(helm_path()).parent

    def _write(self, group, version, kind, schema, known):
        group = group or version  # kubeconform's word for the group of Service and Pod
        text = {"$schema": "http://json-schema.org/draft-07/schema#", "allOf": [schema], "definitions": closure(schema, known)}
        (self.folder / f"{group}_{version}_{kind.lower()}.json").write_text(json.dumps(text))

    def _builtin(self, known):
        for name, schema in known.items():
            kinds = schema.get("x-kubernetes-group-version-kind", [])
            if len(kinds) == 1:
                k = kinds[0]
                self._write(k["group"], k["version"], k["kind"], {"$ref": f"#/definitions/{name}"}, known)

    def _custom(self, crd, metadata):
        spec = crd["spec"]
        for v in spec["versions"]:
            schema = strict(v["schema"]["openAPIV3Schema"])
            schema["properties"] = {**schema["properties"], "apiVersion": {"const": f"{spec['group']}/{v['name']}"}, "kind": {"const": spec["names"]["kind"]},
                                    "metadata": {"$ref": f"#/definitions/{META}"}}
            self._write(spec["group"], v["name"], spec["names"]["kind"], schema, metadata)

    def kinds(self):
        return len(list(self.folder.glob("*.json")))

    def look(self, text):
        """Return (objects that are valid, [the errors of the others]) of the objects in a text of YAML."""
        done = subprocess.run([self._tools() / "kubeconform", "-strict", "-verbose", "-output", "json", "-schema-location", f"{self.folder}/{LOCATION}"],
                              input=text, capture_output=True, text=True, timeout=120)
        resources = json.loads(done.stdout)["resources"]
        wrong = [r for r in resources if r["status"] != "statusValid"]
        assert (done.returncode != 0) == bool(wrong), done.stderr
        return len(resources) - len(wrong), [f"{r['kind']} {r['name']}: {r['status']} {r['msg']}" for r in wrong]
