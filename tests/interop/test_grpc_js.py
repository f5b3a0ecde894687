# SPDX-License-Identifier: Apache-2.0
"""Run grpc_js.test.mjs as one test of this suite: node's own report is shown on failure."""
import os
import pathlib
import subprocess

import pytest

from etcd_world import BUILD

HERE = pathlib.Path(__file__).resolve().parent


@pytest.mark.skipif(not os.environ.get("CI") and not (HERE / "node_modules" / "@grpc" / "grpc-js").exists(), reason="npm install was not possible: no grpc-js")
def test_grpc_js():
    done = subprocess.run(["node", "--test", "--test-timeout=60000", "grpc_js.test.mjs"], cwd=HERE, env={**os.environ, "CGN_BUILD": str(BUILD)},
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
