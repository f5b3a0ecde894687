# SPDX-License-Identifier: Apache-2.0
"""Hostile callers: what they send, whom they say they are, and what they try to keep from others. Helpers are those of tests/e2e."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from cluster import Cluster  # noqa: E402


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
