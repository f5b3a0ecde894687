# SPDX-License-Identifier: Apache-2.0
"""People and programs with a real OpenID provider (npm's oidc-provider) and a real Chromium: signin.test.mjs has the tests."""
import os
import pathlib
import shutil
import subprocess

import pytest

from cluster import Cluster, free_port, until

HERE = pathlib.Path(__file__).resolve().parent


def test_in_chromium(tmp_path):
    if not os.environ.get("CI") and (shutil.which("chromium") is None or not (HERE / "node_modules/oidc-provider").is_dir()):
        pytest.skip("no chromium or no oidc-provider")
    port = free_port()
    issuer = f"http://127.0.0.1:{port}"
    (tmp_path / "secret").write_text("a secret of 32 characters, or so\n")
    with Cluster(tmp_path) as c:
        base = f"http://127.0.0.1:{c.admin_port}"
        with open(tmp_path / "provider.log", "w") as log:
            provider = subprocess.Popen(["node", "provider.mjs"], cwd=HERE, stdout=log, stderr=log,
                                        env={**os.environ, "PORT": str(port), "ISSUER": issuer, "REDIRECT": base + "/login/done"})
        try:
            c.router({"auth": {"enabled": True, "oidc_issuer": issuer, "oidc_audience": "cognitora", "oidc_client_id": "page", "oidc_client_secret_file": str(tmp_path / "secret"),
                               "oidc_redirect_url": base + "/login/done", "role_claim": "roles"}})
            c.node("a")
            c.wait_ready(1)
            until(lambda: c.router_process.events("oidc.keys"), lambda: c.logs() + (tmp_path / "provider.log").read_text())
            done = subprocess.run(["node", "--test", "--test-reporter=spec", "signin.test.mjs"], cwd=HERE, capture_output=True, text=True, timeout=120,
                                  env={**os.environ, "BASE": base, "GATE": f"http://127.0.0.1:{c.http_port}", "ISSUER": issuer})
        finally:
            provider.terminate()
            provider.wait(10)
        print(done.stdout)
        assert done.returncode == 0, done.stdout + done.stderr + c.logs() + (tmp_path / "provider.log").read_text()
