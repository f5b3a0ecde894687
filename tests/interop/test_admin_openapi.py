# SPDX-License-Identifier: Apache-2.0
"""docs/reference/admin*.openapi.json: a foreign validator accepts them, and the router's documents are as it says."""
import json
import sys

import jsonschema
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from cluster import ROOT
sys.path.insert(0, str(ROOT / "tests/e2e"))
from test_documents import busy, document  # noqa: E402, F401

SPEC = json.loads((ROOT / "docs/reference/admin.openapi.json").read_text())


def closed(schema):
    """Return the schema with no other members than those that it names."""
    if isinstance(schema, dict):
        return {k: closed(v) for k, v in schema.items()} | ({"additionalProperties": False} if "properties" in schema else {})
    return [closed(v) for v in schema] if isinstance(schema, list) else schema


def wrong_with(path, answer):
    name = SPEC["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
    return [f"{e.json_path}: {e.message}" for e in jsonschema.Draft202012Validator(closed(SPEC["components"]["schemas"][name])).iter_errors(answer)]


def test_a_foreign_validator_accepts_the_files():
    for file in sorted((ROOT / "docs/reference").glob("admin*.openapi.json")):
        validate(json.loads(file.read_text()))
    assert list(OpenAPIV31SpecValidator({**SPEC, "paths": {"nodes": {}}}).iter_errors())  # it can refuse


def test_documents_are_as_the_file_says(busy):
    for path in SPEC["paths"]:
        assert wrong_with(path, document(busy.home, path)) == [], path
    assert wrong_with("/queue", {**document(busy.home, "/queue"), "more": 1}) and wrong_with("/nodes", {})
