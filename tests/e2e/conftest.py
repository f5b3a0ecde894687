# SPDX-License-Identifier: Apache-2.0
import contextlib

import pytest

from cluster import Cluster


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if call.when == "call":
        item.failed = outcome.get_result().failed


@pytest.fixture
def cluster(tmp_path, request):
    """An empty cluster: start what the test needs. When the test fails, the programs' logs are in its report."""
    with Cluster(tmp_path) as c:
        yield c
        if getattr(request.node, "failed", False):
            print(c.logs())


@pytest.fixture
def world(tmp_path):
    """Start block stores that are peers (kvpeers.Peer); each is checked and stopped at the end of the test."""
    from kvpeers import Peer, bootstrap
    pki = bootstrap(tmp_path / "pki", "a", "b", "c", "router=router+agent")
    with contextlib.ExitStack() as stack:
        def start(name, *args, **kv):
            p = Peer(tmp_path, kv.pop("pki", pki), name, *args, **kv)
            stack.callback(p.close)
            return p
        start.pki, start.folder = pki, tmp_path
        yield start
