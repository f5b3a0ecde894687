# SPDX-License-Identifier: Apache-2.0
"""The audit log: who changed what and who was refused, in a chain that shows every change of the file."""
import hashlib
import json
import os
import signal
import socket
import subprocess

import pytest

from cluster import BUILD, WAIT_S, ask, audit_lines, json_lines, until

CTL, METRICS = str(BUILD / "src/ctl/cgn-ctl"), str(BUILD / "src/metrics/cgn-metrics")
FAST = ("--time-scale", "0")


@pytest.fixture
def audited(cluster, tmp_path):
    keys = str(tmp_path / "keys")
    cluster.embed_key = ctl("key", "create", "--file", keys, "--scopes", "embed", "--tenant", "acme").stdout.strip()

    def begin(**more):
        file = tmp_path / "audit.jsonl"
        cluster.router({"router": {"worker_threads": 1}, "security": {"audit_file": str(file), **more}, "auth": {"enabled": True, "api_keys_file": keys}})
        return file
    return begin


def ctl(*args):
    return subprocess.run([CTL, *map(str, args)], capture_output=True, text=True, timeout=30)


def refusals(file):
    return file.with_name(file.name + ".refused")


def verify(*args):
    return ctl("audit", "verify", *args)


def test_changes_and_refusals_are_lines_of_a_chain(cluster, audited):
    file = audited()
    cluster.node("a", *FAST)
    cluster.wait_ready()
    at = ("--router", f"127.0.0.1:{cluster.grpc_port}")
    secret = "cgn-not-a-key"
    assert cluster.ask("POST", "/v1/chat/completions?x=secret", {"model": "sim", "messages": []}, {"Authorization": f"Bearer {secret}", "X-Request-Id": "r1"}).status == 401
    assert cluster.ask("POST", "/v1/chat/completions", {"model": "sim", "messages": []}, {"Authorization": f"Bearer {cluster.embed_key}"}).status == 403
    assert ctl("cluster", "cordon", "a", *at).returncode == 0
    assert ctl("cluster", "set-policy", "--policy", "predicted", *at).returncode == 0
    assert ask(cluster.admin_port, "POST", "/nodes/a/uncordon", None, {"X-Cgn-Page": "1"}).status == 200
    assert ask(cluster.admin_port, "POST", "/nodes/a/uncordon", None, {}).status == 403
    until(lambda: len(audit_lines(file, "admin.request")) == 2, "the last line is written")
    assert [e["decision"] for e in audit_lines(file, "program.start")] == ["allowed"]
    unknown, lacks = audit_lines(file, "gateway.request")
    assert (unknown["decision"], unknown["why"], unknown["object"], unknown["request"]) == ("refused", "invalid_api_key", "POST /v1/chat/completions", "r1")
    assert unknown["by"] == "address" and unknown["from"].startswith("127.0.0.1:")
    assert (lacks["by"], lacks["tenant"], lacks["why"]) == ("key", "acme", "insufficient_scope") and len(lacks["name"]) == 8
    assert [(e["object"], e["decision"]) for e in audit_lines(file, "node.cordon")] == [("a", "allowed")]
    assert json.loads(audit_lines(file, "policy.set")[0]["object"])["policy"] == "predicted"
    done, refused = audit_lines(file, "admin.request")
    assert (done["object"], done["decision"], refused["decision"]) == ("POST /nodes/a/uncordon", "allowed", "refused") and refused["why"] == "not_the_page"
    assert secret not in file.read_text() and cluster.embed_key not in file.read_text() and "x=secret" not in file.read_text()
    assert cluster.metric("cgn_audit_events_total", decision="refused") == 3
    assert {e["decision"] for e in json_lines(file)} == {"allowed"} and {e["decision"] for e in json_lines(refusals(file))} == {"refused"}
    assert verify(refusals(file)).returncode == 0
    raw = file.read_bytes().splitlines()
    assert all(json.loads(b)["prev"] == hashlib.sha256(a).hexdigest() for a, b in zip(raw, raw[1:]))
    checked = verify(file)
    assert checked.returncode == 0 and f"{len(raw)} lines in 1 files are whole: 1 to {len(raw)}" in checked.stdout, checked
    head = hashlib.sha256(raw[-1]).hexdigest()
    assert f"head {head}" in checked.stdout and verify(file, "--head", head).returncode == 0
    for change, why in ((lambda t: t[:1] + t[2:], "lines were removed"), (lambda t: [t[0].replace(b"allowed", b"refused")] + t[1:], "one of the two was changed"),
                        (lambda t: t[:2] + t[1:], "removed, inserted or moved"), (lambda t: t + [b"{}"], 'has no "seq"')):
        bad = file.with_name("bad")
        bad.write_bytes(b"\n".join(change(raw)) + b"\n")
        r = verify(bad)
        assert r.returncode == 8 and why in r.stderr and f"{bad}:" in r.stderr, r
    bad.write_bytes(b"\n".join(raw[:-1]) + b"\n")
    assert verify(bad).returncode == 0 and "cut off at the end" in verify(bad, "--head", head).stderr
    bad.write_bytes(b"\n".join(raw))
    assert "the file was cut there" in verify(bad).stderr


def test_the_chain_goes_on_over_rotation_reload_and_kill(cluster, audited):
    file = audited(audit_size="64KiB", audit_files=3)
    with socket.create_connection(("127.0.0.1", cluster.http_port), timeout=WAIT_S) as s:
        s.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 250)
        got = b""
        while got.count(b"HTTP/1.1 401 ") < 250:
            more = s.recv(1 << 16)
            assert more, got[-500:]
            got += more
    until(lambda: cluster.metric("cgn_audit_events_total", decision="refused") == 250, "all are counted")
    moved = file.with_name("moved")

    def refused():
        """Each line is a refusal, or the sum of one source's others in a second."""
        objects = [e["object"] for e in audit_lines(file, "gateway.request")]
        return sum(int(o.split()[0]) if " more " in o else 1 for o in objects)
    until(lambda: refused() == 250, "those that have no line of their own are counted")
    assert len(audit_lines(file, "gateway.request")) < 50
    os.rename(file, moved)
    cluster.router_process.signal(signal.SIGHUP)
    until(lambda: audit_lines(file, "config.reload"), "the reload is in the new file")
    checked = verify(moved, file)
    assert checked.returncode == 0 and "in 2 files are whole" in checked.stdout, checked
    cluster.router_process.kill()
    with open(file, "ab") as f:
        f.write(b'{"event":"half a li')
    last = json_lines(file)[-1]["seq"]
    cluster.router_process.start()
    until(lambda: json_lines(file)[-1]["seq"] > last, "the restarted router goes on")
    assert verify(moved, file).returncode == 0
    assert cluster.router_process.events("audit.torn")


def test_own_rotation_loses_nothing(cluster, audited):
    file = audited(audit_size="64KiB", audit_files=3)
    page = {"X-Cgn-Page": "1"}
    while not (file.with_name(file.name + ".1")).exists():
        assert ask(cluster.admin_port, "POST", "/nodes/nobody/cordon", None, page).status == 404
    checked = verify(file)
    assert checked.returncode == 0 and " files are whole: 1 to" in checked.stdout, checked
    assert cluster.router_process.stop() == 0
    cluster.router_process.start()
    until(lambda: json_lines(file)[-1]["event"] == "program.start", "the chain goes on")
    checked = verify(file)
    assert checked.returncode == 0 and f'to {json_lines(file)[-1]["seq"]}' in checked.stdout, checked
    second = subprocess.run([METRICS, "--listen", "127.0.0.1:0"], env={**os.environ, "COGNITORA__SECURITY__AUDIT_FILE": str(file)}, capture_output=True, text=True, timeout=20)
    assert second.returncode == 1 and "another process writes" in second.stderr, second


def test_a_file_that_is_no_audit_log_or_another_programs(cluster, tmp_path):
    file = tmp_path / "other"
    file.write_text("127.0.0.1 - - GET /\n")
    env = {**os.environ, "COGNITORA__SECURITY__AUDIT_FILE": str(file)}
    start = [METRICS, "--listen", "127.0.0.1:0"]
    r = subprocess.run(start, env=env, capture_output=True, text=True, timeout=20)
    assert r.returncode == 3 and "security.audit_file" in r.stderr and "is not an audit log" in r.stderr and "move the file away" in r.stderr, r
    assert file.read_text() == "127.0.0.1 - - GET /\n"
    env["COGNITORA__SECURITY__AUDIT_FILE"] = str(tmp_path / "nowhere" / "file")
    r = subprocess.run(start, env=env, capture_output=True, text=True, timeout=20)
    assert r.returncode != 0 and "nowhere/file" in r.stderr and "No such file" in r.stderr, r
