# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl context: addresses and certificates from a file, against a router that wants both."""
import json
import os
import stat
import subprocess

import pytest

from cluster import BUILD, Cluster, until
from kvpeers import bootstrap, security

CTL = BUILD / "src/ctl/cgn-ctl"


@pytest.fixture
def ctl(tmp_path):
    """Runs cgn-ctl with an own folder of configuration."""
    def run(*args, **env):
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("CGN_", "COGNITORA__", "XDG_"))}
        return subprocess.run([CTL, *map(str, args)], env={**keep, "XDG_CONFIG_HOME": str(tmp_path / "config"), **env}, capture_output=True, text=True,
                              timeout=60, cwd=tmp_path)
    return run


def fine(r):
    assert r.returncode == 0, r.stderr
    return r.stdout


def test_a_cluster_with_certificates_needs_no_flags(ctl, tmp_path):
    pki = bootstrap(tmp_path / "pki", "router", "admin")
    (tmp_path / "cluster").mkdir()
    with Cluster(tmp_path / "cluster") as c:
        c.router({"security": {**security(pki, "router"), "require_mtls": True}})
        at = f"127.0.0.1:{c.grpc_port}"
        fine(ctl("context", "set", "prod", "--router", at, "--ca", "pki/ca.pem", "--cert", "pki/admin.pem", "--key", "pki/admin.key"))
        until(lambda: ctl("cluster", "status").returncode == 0, "the first context is the current one")
        fine(ctl("context", "set", "lab", "--router", "127.0.0.1:1"))
        assert "cluster   cognitora" in fine(ctl("cluster", "status"))
        fine(ctl("context", "use", "lab"))
        away = ctl("cluster", "status")
        assert away.returncode == 4 and "127.0.0.1:1 of context lab does not answer" in away.stderr, away.stderr
        # the flag beats $CGN_CONTEXT, which beats the file; flags and $CGN_ROUTER beat the context
        fine(ctl("cluster", "status", CGN_CONTEXT="prod"))
        assert ctl("cluster", "status", "--context", "lab", CGN_CONTEXT="prod").returncode == 4
        fine(ctl("cluster", "status", "--context", "prod", CGN_CONTEXT="lab"))
        assert ctl("cluster", "status", "--context", "prod", CGN_ROUTER="127.0.0.1:1").returncode == 4
        fine(ctl("cluster", "status", "--context", "prod", "--router", at, CGN_ROUTER="127.0.0.1:1"))
        none = ctl("cluster", "status", "--context", "", "--router", at)  # without the certificates
        assert none.returncode != 0
        os.chmod(pki / "admin.key", 0o644)
        refused = ctl("cluster", "status", "--context", "prod")
        assert refused.returncode == 1 and "chmod 600" in refused.stderr and "admin.key" in refused.stderr


def test_the_file_is_written_shown_and_guarded(ctl, tmp_path):
    file = tmp_path / "config/cognitora/contexts.toml"
    assert fine(ctl("context", "ls")).split() == ["NAME", "CURRENT", "ROUTER", "KV", "TLS"]
    assert ctl("context", "show").returncode == 1
    (tmp_path / "ca.pem").write_text("")
    assert "saved; it is the current one" in fine(ctl("context", "set", "a.b-1", "--router", "h:1", "--ca", "ca.pem"))
    fine(ctl("context", "set", "b", "--kv", "gpu-07:7090"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    rows = json.loads(fine(ctl("context", "ls", "-o", "json")))
    assert [(r["name"], r["current"], r["router"], r["kv"], r["tls"]) for r in rows] == [("a.b-1", "*", "h:1", "", "yes"), ("b", "", "", "gpu-07:7090", "no")]
    fine(ctl("context", "set", "a.b-1", "--kv", "h:2"))  # other values stay
    shown = json.loads(fine(ctl("context", "show", "-o", "json")))
    assert (shown["router"], shown["kv"], shown["ca"], shown["file"]) == ("h:1", "h:2", str(tmp_path / "ca.pem"), str(file))
    fine(ctl("context", "set", "a.b-1", "--ca", ""))
    assert "ca " not in fine(ctl("context", "show", "a.b-1")) and "router    h:1" in fine(ctl("context", "show", "a.b-1"))
    assert "no context is current now" in fine(ctl("context", "delete", "a.b-1"))
    assert [r["name"] for r in json.loads(fine(ctl("context", "ls", "-o", "json")))] == ["b"]
    for words, why in ((("use", "zz"), "no context 'zz'"), (("set", "a/b"), "cannot be the name"), (("set", "c", "--ca", "none.pem"), "none.pem"),
                       (("set", "c", "--cert", "ca.pem"), "--cert and --key"), (("delete", "zz"), "no context 'zz'")):
        r = ctl("context", *words)
        assert r.returncode in (1, 2) and why in r.stderr, (words, r)
    assert [r["name"] for r in json.loads(fine(ctl("context", "ls", "-o", "json")))] == ["b"]  # nothing half done
    other = tmp_path / "other.toml"
    assert fine(ctl("context", "ls", CGN_CONTEXTS=str(other))).count("\n") == 1
    # who may write the file chooses which router gets the orders
    file.chmod(0o620)
    r = ctl("cluster", "status")
    assert r.returncode == 1 and "can be changed by others: chmod 600" in r.stderr
    file.chmod(0o600)
    file.write_text('current = "b"\n[contexts.b]\nrooter = "h:1"\n')
    r = ctl("cluster", "status")
    assert r.returncode != 0 and f"{file}:3:1" in r.stderr, r.stderr
    r = ctl("cluster", "status", "--context", "", "--router", "127.0.0.1:1")
    assert r.returncode == 4, r.stderr
