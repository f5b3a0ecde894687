# SPDX-License-Identifier: Apache-2.0
"""Refusals, with and without a credential, never push what administrators did out of the audit log."""
import concurrent.futures
import os

from cluster import ask, audit_lines, audited, json_lines, until
from hostile import HOSTILE, start
from test_limits import key


def test_a_flood_of_refusals(cluster, tmp_path):
    file = tmp_path / "audit.jsonl"
    start(cluster, security={"audit_file": str(file), "audit_size": "64KiB", "audit_files": 2})
    embeds = key(cluster.folder, "embeds", HOSTILE, "--scopes", "embed")
    until(lambda: cluster.ask("GET", "/v1/models", headers=embeds).status == 200, "the key is known")
    assert ask(cluster.admin_port, "POST", "/nodes/n0/cordon", None, {"X-Cgn-Page": "1"}).status == 200
    audited(file, "admin.request", object="POST /nodes/n0/cordon")
    before = file.stat().st_size
    rotated = file.with_name(file.name + ".refused.1")

    def flood(headers):
        sent = 0
        while not rotated.exists():
            assert cluster.chat("hello", headers).status == (403 if headers else 401)
            sent += 1
        return sent
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        sent = sum(pool.map(flood, (None, embeds, None, embeds)))
    until(lambda: cluster.metric("cgn_audit_events_total", decision="refused") >= sent, "each is counted")
    assert file.stat().st_size == before and [e["decision"] for e in json_lines(file)] == ["allowed"] * len(json_lines(file))
    assert audit_lines(file, "admin.request", object="POST /nodes/n0/cordon")
    assert not os.path.exists(f"{file}.1")


def test_refusals_without_a_credential_are_summed(cluster, tmp_path):
    file = tmp_path / "audit.jsonl"
    start(cluster, security={"audit_file": str(file)})
    for _ in range(300):
        assert cluster.chat("hello").status == 401

    def lines():
        return audit_lines(file, "gateway.request")
    until(lambda: sum(int(e["object"].split()[0]) if " more " in e["object"] else 1 for e in lines()) == 300, "all are told")
    summed = [e for e in lines() if " more " in e["object"]]
    assert len(lines()) < 100 and all((e["from"], e["why"]) == ("127.0.0.1", "invalid_api_key") for e in summed)
