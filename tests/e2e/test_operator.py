# SPDX-License-Identifier: Apache-2.0
"""cgn-operator without a Kubernetes: its documents, as its OpenAPI file describes them."""
import json

from cluster import ROOT, Process, ask, free_port, toml, until

SPEC = json.loads((ROOT / "docs/reference/admin-operator.openapi.json").read_text())


def up(port):
    try:
        return ask(port, "GET", "/healthz").status == 200
    except OSError:
        return False


def test_a_replica_that_does_not_lead_says_so(tmp_path):
    port = free_port()
    (tmp_path / "kube.json").write_text(json.dumps({"clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}], "users": [{"name": "u", "user": {}}],
                                                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "n"}}], "current-context": "x"}))
    (tmp_path / "o.toml").write_text(toml({"cluster": {"kubernetes_config": str(tmp_path / "kube.json")}, "operator": {"listen": f"127.0.0.1:{port}"}}))
    operator = Process(tmp_path, "operator", "cgn-operator", "--config", tmp_path / "o.toml")
    try:
        until(lambda: up(port), operator.log)
        assert ask(port, "GET", "/status").json() == {"leads": False}
        refused = ask(port, "GET", "/status?watch=1")
        assert refused.status == 400 and "takes no parameters" in refused.json()["error"]["message"]
        schema = SPEC["components"]["schemas"]["OperatorStatus"]
        assert schema["required"] == ["leads"] and schema["properties"]["watches"]["additionalProperties"] == {"type": "boolean"}
    finally:
        operator.stop()
    assert not operator.trouble()
