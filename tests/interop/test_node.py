# SPDX-License-Identifier: Apache-2.0
"""Clients from npm; each of their files is one test per gateway."""
import os
import shutil
import subprocess

import pytest

from conftest import HERE

pytestmark = pytest.mark.skipif(not os.environ.get("CI") and not ((HERE / "node_modules").is_dir() and shutil.which("node")),
                                reason="no node, or no node_modules: npm install in tests/interop")


@pytest.mark.parametrize("client", ["openai", "anthropic", "grpc"])
def test_npm(gateway, client):
    done = subprocess.run(["node", "--test", f"{client}.test.mjs"], cwd=HERE, env=gateway.env(), timeout=120, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert "# pass 0" not in done.stdout and "ℹ pass 0" not in done.stdout, done.stdout
