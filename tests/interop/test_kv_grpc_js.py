# SPDX-License-Identifier: Apache-2.0
"""Run kv_grpc_js.test.mjs with two stores, one in clear and one with the cluster's certificates: node's own
report is shown on failure."""
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
from cluster import BUILD  # noqa: E402
from kvbulk import Store  # noqa: E402


@pytest.mark.skipif(not os.environ.get("CI") and not (HERE / "node_modules" / "@grpc" / "grpc-js").exists(), reason="npm install was not possible: no grpc-js")
def test_kv_grpc_js(tmp_path):
    pki = tmp_path / "pki"
    subprocess.run([BUILD / "src" / "ctl" / "cgn-ctl", "pki", "bootstrap", "--out", pki], check=True, capture_output=True)
    clear, tls = tmp_path / "clear", tmp_path / "tls"
    clear.mkdir(), tls.mkdir()
    a = Store(clear, ram="256MiB")
    b = Store(tls, ram="64MiB", uds="",
              sections={"security": {"ca_file": str(pki / "ca.pem"), "cert_file": str(pki / "agent.pem"), "key_file": str(pki / "agent.key"),
                                     "require_mtls": True}})
    env = {**os.environ, "KV_UDS": a.uds, "KV_ADDR": f"127.0.0.1:{a.port}", "KV_TLS_ADDR": f"localhost:{b.port}", "KV_PKI": str(pki)}
    try:
        done = subprocess.run(["node", "--test", "--test-timeout=120000", "kv_grpc_js.test.mjs"], cwd=HERE, env=env, capture_output=True, text=True,
                              timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        b.close()
        a.close()
