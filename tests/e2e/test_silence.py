# SPDX-License-Identifier: Apache-2.0
"""A stream that brings nothing for a long time: its engine may work. What is blamed, and what is not, by what a second witness says:
the agent, or the router's own checks of an engine without an agent."""
import threading
import time

import pytest

from clients import Stream
from cluster import scaled, until
from engine_nodes import sections
from quiet_engine import QuietEngine

STALL = {"stall_timeout": "200ms"}
FOREVER = {"router.breaker": {"failures": 1, "open_for": "300s"}}


def with_quiet(cluster, way, engine, **router):
    """A router with |engine| as its only node, by an agent or without."""
    cluster.common['models."sim"'] = {"tokens": "bytes"}
    more = {"router": {**STALL, **router}, **FOREVER}
    cluster.router(sections([engine], **more) if way == "bare" else more)
    if way == "agent":
        cluster.agent("quiet", engine.port, {"engine": {"kind": "vllm"}})
    cluster.wait_ready(1)


def breaker(cluster):
    return cluster.status()["nodes"][0]["breaker"]["text"]


def in_background(what):
    got = []
    t = threading.Thread(target=lambda: got.append(what()), daemon=True)
    t.start()
    return lambda: t.join() or got[0]


def whole(stream):
    return stream.read_until(b"\r\n0\r\n\r\n").got


def why_cut(cluster):
    return [e["why"] for e in cluster.router_process.events("gateway.stream_cut")]


@pytest.mark.parametrize("way", ["agent", "bare"])
def test_a_silent_stream_of_an_engine_that_answers_its_checks_goes_on(cluster, way):
    with QuietEngine() as engine:
        with_quiet(cluster, way, engine)
        paused = Stream(cluster.http_port, "pause").read_until(b'"a"')
        waiting = in_background(lambda: cluster.chat("wait"))
        until(lambda: "wait" in engine.asked, "the second request waits for its first byte")
        time.sleep(1.5)  # seven times the limit of a silence
        assert breaker(cluster) == "closed" and cluster.chat("other").status == 200
        engine.go.set()
        assert paused.read_until(b"[DONE]") and b"event: error" not in paused.got
        assert waiting().status == 200
        assert cluster.metric("cgn_stalls_total") == 0 and breaker(cluster) == "closed" and not why_cut(cluster)


@pytest.mark.parametrize("way", ["agent", "bare"])
def test_a_silent_stream_of_an_engine_that_answers_no_check_ends(cluster, way):
    with QuietEngine() as engine:
        with_quiet(cluster, way, engine)
        paused = Stream(cluster.http_port, "pause").read_until(b'"a"')
        engine.deaf.set()
        assert b"engine_failed" in whole(paused)
        assert "stalled" in why_cut(cluster)[0] and breaker(cluster).startswith("open: stalled")
        assert cluster.metric("cgn_stalls_total") == 1


@pytest.mark.parametrize("works", [False, True])
def test_the_last_limit_blames_an_engine_only_if_it_works_for_nobody(cluster, works):
    with QuietEngine() as engine:
        with_quiet(cluster, "bare", engine, stream_idle_timeout="3s")
        paused = Stream(cluster.http_port, "pause").read_until(b'"a"')
        ended = in_background(lambda: whole(paused))
        until(lambda: setattr(engine, "tokens", engine.tokens + works) or why_cut(cluster), "the stream is given up", step_s=0.1)
        assert b"engine_failed" in ended()
        assert "stream_idle_timeout" in why_cut(cluster)[0]
        assert cluster.metric("cgn_stalls_total") == 0
        assert breaker(cluster) == "closed" if works else breaker(cluster).startswith("open: 1 failure")


@pytest.mark.both
def test_requests_that_lose_their_place_in_the_memory_go_on(cluster):
    """More streams than the KV memory holds: the engine takes some out until others have ended."""
    cluster.router({"router": STALL, "router.breaker": {"failures": 1}})
    cluster.node("a", "--decode-ms", "2", "--kv-blocks", "64")
    cluster.wait_ready(1)
    streams = [Stream(cluster.http_port, f"tale {i}", max_tokens=scaled(600, 400), ignore_eos=True) for i in range(4)]
    for s in streams:
        assert s.read_until(b"[DONE]") and b"event: error" not in s.got
    assert cluster.metric("cgn_stalls_total") == 0 and breaker(cluster) == "closed"


@pytest.mark.parametrize("way", ["agent", "bare"])
def test_counters_that_go_up_and_down_are_said_once(cluster, way):
    with QuietEngine() as engine:
        engine.jumps = True
        with_quiet(cluster, way, engine)
        until(lambda: engine.readings > 5, "the counters have fallen several times")
        said = [e for p in cluster.processes for e in p.events("engine.restarted")]
        assert len(said) == 1 and said[0]["times"] == 1, said  # those of the next minute are counted in one line then
