# SPDX-License-Identifier: Apache-2.0
"""docs/reference/admin*.openapi.json: a foreign validator accepts them, and the router's documents are as it says."""
import json
import sys

import jsonschema
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from cluster import ROOT, ask
sys.path.insert(0, str(ROOT / "tests/e2e"))
from test_documents import busy, document  # noqa: E402, F401

SPEC = json.loads((ROOT / "docs/reference/admin.openapi.json").read_text())


def closed(schema):
    """Return the schema with no other members than those that it names."""
    if isinstance(schema, dict):
        return {k: closed(v) for k, v in schema.items()} | ({"additionalProperties": False} if "properties" in schema else {})
    return [closed(v) for v in schema] if isinstance(schema, list) else schema


def wrong_with(path, answer, which=0):
    schema = SPEC["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    name = schema.get("anyOf", [schema])[which]["$ref"].rsplit("/", 1)[1]
    return [f"{e.json_path}: {e.message}" for e in jsonschema.Draft202012Validator(closed(SPEC["components"]["schemas"][name])).iter_errors(answer)]


def test_a_foreign_validator_accepts_the_files():
    for file in sorted((ROOT / "docs/reference").glob("admin*.openapi.json")):
        validate(json.loads(file.read_text()))
    assert list(OpenAPIV31SpecValidator({**SPEC, "paths": {"nodes": {}}}).iter_errors())  # it can refuse


def test_documents_are_as_the_file_says(busy):
    for path in SPEC["paths"]:
        assert wrong_with(path, document(busy.home, path)) == [], path
    assert wrong_with("/index", document(busy.home, "/index?node=small"), 1) == []
    assert wrong_with("/queue", {**document(busy.home, "/queue"), "more": 1}) and wrong_with("/nodes", {})


def test_a_path_takes_the_parameters_of_the_file_and_refuses_others(busy):
    for path, how in SPEC["paths"].items():
        known = {p["name"]: p["schema"] for p in how["get"].get("parameters", [])}
        refused = ask(busy.home.admin_port, "GET", f"{path}?nobody_knows=1")
        error = refused.json()["error"]
        assert refused.status == 400 and error["code"] == "bad_query" and all(name in error["message"] for name in known), error
        for name, schema in known.items():
            for good in schema.get("enum", [str(schema[m]) for m in ("minimum", "maximum") if m in schema]):
                assert ask(busy.home.admin_port, "GET", f"{path}?{name}={good}").status == 200, (path, name, good)
            bad = ["nothing"] if "enum" in schema else [str(schema["maximum"] + 1), "x"] if "maximum" in schema else ["x" * (schema["maxLength"] + 1)] if "maxLength" in schema else ["then"]
            for value in bad:
                assert ask(busy.home.admin_port, "GET", f"{path}?{name}={value}").status == 400, (path, name, value)
