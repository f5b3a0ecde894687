# SPDX-License-Identifier: Apache-2.0
"""Requests whose deadline cannot be met are refused at once, and the announced waiting time is right."""
import random
import time

import pytest

from cluster import ask, until
from test_queue import Crowd, depth, error_of, inflight, small

# A prompt of 3000 of these tokens takes a second and a half, and the router can measure that.
COMPUTES = ("--prefill-tokens-per-s", "2000", "--decode-ms", "5", "--max-batch", "1", "--kv-blocks", "65536")


def words(n, rng=random.Random(7)):
    """Return a prompt of about n tokens that no cache has seen: each number is several tokens of the
    simulator."""
    return " ".join(str(rng.randrange(100, 1000)) for _ in range(n // 2))


def taught(cluster, **admission):
    """A cluster that has seen enough streams to know the speed of its node."""
    small(cluster, COMPUTES, **admission)
    for _ in range(12):
        assert cluster.chat(words(500), max_tokens=8, stream=True, ignore_eos=True).status == 200
    return cluster


def prompt(n):
    return {"model": "sim", "max_tokens": 2, "messages": [{"role": "user", "content": words(n)}]}


def test_what_even_an_idle_node_cannot_do_is_refused_for_good(cluster):
    taught(cluster)
    a = cluster.ask("POST", "/v1/chat/completions", prompt(8000), {"X-Cgn-Deadline-Ms": "300"})
    assert a.status == 503 and error_of(a)["code"] == "slo_unmeetable" and "retry-after" not in a.headers
    assert "X-Cgn-Deadline-Ms" in error_of(a)["message"]
    assert cluster.ask("POST", "/v1/chat/completions", prompt(100), {"X-Cgn-Deadline-Ms": "20000"}).status == 200
    assert cluster.metric("cgn_rejected_total", reason="slo_unmeetable") == 1


def test_a_configured_objective_does_not_forbid_long_prompts(cluster):
    taught(cluster, ttft_slo="400ms")
    assert cluster.ask("POST", "/v1/chat/completions", prompt(8000)).status == 200


@pytest.mark.slow
@pytest.mark.parametrize("header", [{"X-Cgn-Deadline-Ms": "1500"}, None], ids=["header", "ttft_slo"])
def test_what_can_be_met_later_says_when(cluster, header):
    taught(cluster, **({} if header else {"ttft_slo": "1500ms"}))
    crowd = Crowd(cluster)
    for i in range(4):
        crowd.send(f"long {i}", {"X-Cgn-Deadline-Ms": "600000"}, body=prompt(8000))
    until(lambda: inflight(cluster) == 2 and depth(cluster) == 2, "two are there, two wait")
    a = cluster.ask("POST", "/v1/chat/completions", prompt(200), header)
    assert a.status == 503 and error_of(a)["code"] == "slo_unmeetable", a.body
    after = int(a.headers["retry-after"])
    assert after >= 1
    crowd.wait()
    assert crowd.statuses() == [200] * 4
    assert cluster.ask("POST", "/v1/chat/completions", prompt(200), header).status == 200


@pytest.mark.slow
def test_a_retry_after_the_told_time_succeeds(cluster):
    """No other request comes meanwhile, so the announced time is enough."""
    taught(cluster)
    crowd = Crowd(cluster).send("long", {"X-Cgn-Deadline-Ms": "600000"}, body=prompt(16000))
    until(lambda: inflight(cluster) == 1, "it is there")
    header = {"X-Cgn-Deadline-Ms": "1000"}
    a = cluster.ask("POST", "/v1/chat/completions", prompt(200), header)
    assert a.status == 503 and error_of(a)["code"] == "slo_unmeetable"
    time.sleep(int(a.headers["retry-after"]))
    until(lambda: cluster.ask("POST", "/v1/chat/completions", prompt(200), header).status == 200, "it is served", wait_s=3)  # a busy machine is late
    crowd.wait()
