# SPDX-License-Identifier: Apache-2.0
"""deploy/quickstart/cognitora.yaml: the pods that it describes, run without a cluster, answer. tests/kube checks that the chart renders it."""
import json
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "kube"))
from cluster import SANITIZER  # noqa: E402
from pods import Pods, ask, usable  # noqa: E402
from chart import quickstart  # noqa: E402

pytestmark = [pytest.mark.plain, pytest.mark.skipif(bool(SANITIZER), reason="pods have no folder for a sanitizer's reports"),
              pytest.mark.skipif(usable() is not None, reason=str(usable()))]


def test_the_quickstart_answers(tmp_path):
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    with Pods(tmp_path, quickstart()) as pods:
        router, = pods.make("router", 1)
        agent, = pods.make("agent", 1)
        for pod in pods.pods:
            pod.start()
        agent.wait_ready("agent")
        router.wait_ready("router")
        body = {"model": "sim", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        status, answer = ask(router, 8080, "POST", "/v1/chat/completions", body)
        assert status == 200 and json.loads(answer)["usage"]["completion_tokens"] == 4, answer
