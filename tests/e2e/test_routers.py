# SPDX-License-Identifier: Apache-2.0
"""Several routers over the same nodes learn of each other's load through the agents, and choose like one
router."""
import signal
import threading

import pytest

from clients import Stream
from cluster import until
from several import Several, Spread

SLOW = ("--decode-ms", "40")


@pytest.fixture
def several(tmp_path):
    with Several(tmp_path) as c:
        yield c


def streams(router, n, tag, **more):
    """Start that many answers in flight."""
    got = [Stream(router.http_port, f"{tag} {i}", max_tokens=4000, **more) for i in range(n)]
    for s in got:
        s.read_until(b"data:")
    return got


def test_what_one_router_has_there_the_others_know(several):
    several.static_nodes("ab", *SLOW)
    one, two, three = several.routers(3)
    mine, theirs = streams(one, 4, "one"), streams(two, 2, "two")

    def agreed():
        a, b, idle = one.inflight(), two.inflight(), three.inflight()
        return (sum(a.values()) == 4 and sum(b.values()) == 2 and sum(idle.values()) == 0
                and one.others() == b and two.others() == a and three.others() == {i: a[i] + b[i] for i in a})
    until(agreed, lambda: f"all know it all: {one.nodes()} {two.nodes()} {three.nodes()}")
    until(lambda: one.others("decoding") == two.inflight(), lambda: f"all of them decode: {one.others('decoding')} {two.inflight()}")
    until(lambda: one.others("queued_tokens") == {"a": 0, "b": 0}, "all of them have begun")
    until(lambda: all(three.metric("cgn_others_inflight", i) == n for i, n in three.others().items()), "and so do its metrics")
    for s in mine:
        s.reset()
    until(lambda: sum(three.others().values()) == 2 and sum(two.others().values()) == 0, "those that went are not counted")
    for s in theirs:
        s.reset()
    until(lambda: not any(three.others().values()), "nobody has anything")


def test_prompts_that_wait_are_counted_in_tokens(several):
    several.static_nodes("a", "--prefill-tokens-per-s", "200", "--step-tokens", "64")
    one, two = several.routers(2)
    t = threading.Thread(target=lambda: one.chat("word " * 400, max_tokens=1))
    t.start()
    try:
        tokens = until(lambda: two.others("queued_tokens")["a"], "its tokens are told")
        assert 100 <= tokens <= 2000
        assert two.others()["a"] == 1 and two.others("decoding")["a"] == 0
    finally:
        t.join()
    until(lambda: two.others("queued_tokens") == {"a": 0}, "it was computed")


def test_work_of_unknown_routers_counts_too(several):
    several.static_nodes("a", *SLOW)
    one, = several.routers(1)
    engine = several.nodes["a"].engine_port
    direct = [Stream(engine, f"direct {i}", max_tokens=4000) for i in range(3)]
    mine = streams(one, 2, "mine")
    until(lambda: one.others() == {"a": 3}, lambda: f"three are somebody else's: {one.nodes()}")
    for s in mine + direct:
        s.reset()
    until(lambda: one.others() == {"a": 0}, "all went")


def test_a_killed_routers_requests_are_counted_no_more(several):
    several.static_nodes("abcd", *SLOW)
    one, two, three = several.routers(3)
    gone, kept = streams(one, 8, "one"), streams(two, 3, "two")
    until(lambda: sum(three.others().values()) == 11, "all are known")
    one.process.kill()
    until(lambda: three.others() == two.inflight() and not any(two.others().values()), lambda: f"the truth: {three.nodes()}")
    assert sum(two.inflight().values()) == 3
    assert three.chat("still served", max_tokens=1).status == 200
    for s in gone + kept:
        s.close()


def test_an_agent_that_is_silent_gets_nothing(several):
    several.static_nodes("ab")
    one, two = several.routers(2)
    stopped = several.nodes["a"].agent
    assert one.nodes()["a"]["load_age_ms"] < 4000
    stopped.signal(signal.SIGSTOP)
    until(lambda: one.nodes()["a"]["load_age_ms"] > 1500, "its load gets old for all to see")
    for r in (one, two):
        until(lambda r=r: r.states() == {"a": "down", "b": "ready"}, lambda r=r: f"it is out: {r.states()}")
        assert r.metric("cgn_load_age_seconds", "a") >= 3
        assert r.others()["a"] == 0
        assert {r.chat(f"q {i}", max_tokens=1).headers["x-cgn-node"] for i in range(6)} == {"b"}
    assert one.process.events("router.agent_silent")
    stopped.signal(signal.SIGCONT)
    for r in (one, two):
        until(lambda r=r: r.states() == {"a": "ready", "b": "ready"}, lambda r=r: f"it is back: {r.states()}")
        until(lambda r=r: r.nodes()["a"]["load_age_ms"] < 1500, "its load is fresh")


def test_a_paused_router_takes_no_peer_for_silent(several):
    several.static_nodes("ab")
    one, = several.routers(1)
    one.process.signal(signal.SIGSTOP)
    threading.Event().wait(7)
    one.process.signal(signal.SIGCONT)
    until(lambda: one.nodes()["a"]["load_age_ms"] < 1500, "it hears them")
    assert one.states() == {"a": "ready", "b": "ready"}
    assert not one.process.events("router.agent_silent")


@pytest.mark.slow
def test_three_routers_spread_load_as_one_does(several):
    several.static_nodes("abcdef", "--prefill-tokens-per-s", "4000", "--decode-ms", "15")
    routers = several.routers(3)
    alone = Spread(routers[:1], 12, 8, "alone").run()
    shared = Spread(routers, 12, 8, "shared").run()
    print("busiest node's requests, fullest node's requests under way, over the mean: one router", alone, "three", shared)
    assert shared[0] <= 1.35 * alone[0], (alone, shared)
    assert shared[1] <= 1.35 * alone[1], (alone, shared)  # 1.1 as measured; routers without knowledge of each other: half as much again
