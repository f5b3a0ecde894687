# SPDX-License-Identifier: Apache-2.0
"""Whose fault a failure is: a request that fails at every node blames none of them, and a node that fails for all is found."""
import contextlib
import json
import subprocess

import pytest

from cluster import BUILD, until
from engine_nodes import sections
from failing_engine import ANSWER, COMPLETION, ERROR, JSON, SSE, Engine, event

FOREVER = {"open_for": "300s", "outliers": False}
# {what an engine does with a poisonous request: what FAILURES or Engine.fails call it}
POISON = {
    "http500": "http500",
    "nothing": "no_stream",
    "only_done": "empty_stream",
    "whitespace": (200, JSON, [b" \n \n"]),
    "error": "in_band",
    "late_error": (200, SSE, [ANSWER[0], event({"error": ERROR})]),
    "half_an_event": (200, SSE, [ANSWER[0], ANSWER[1][:-9]]),
    "cut": (200, SSE, [ANSWER[0], ANSWER[1], None]),
    "hangs_up": "hangs_up",
    "head_alone": (200, SSE, [None]),
}


def poisoned_by(way):
    """Return how an engine answers: every request but those with poison."""
    return lambda path, asked: POISON[way] if "poison" in json.dumps(asked) else None


@pytest.fixture
def tenants(cluster, tmp_path):
    """A router with engines a, b, ... and a function that asks for a tenant."""
    keys = tmp_path / "keys"
    keys.write_text("")
    made = {}
    for tenant in ("p", "q"):
        got = subprocess.run([BUILD / "src/ctl/cgn-ctl", "key", "create", "--file", keys, "--tenant", tenant, "--scopes", "chat,admin", "-o", "json"],
                             capture_output=True, text=True, timeout=60, check=True)
        made[tenant] = {"Authorization": "Bearer " + json.loads(got.stdout)["key"]}
    with contextlib.ExitStack() as stack:
        def start(*engines, breaker=None, retry=None):
            for e in engines:
                stack.callback(e.close)
            cluster.router(sections(engines, **{"auth": {"enabled": True, "api_keys_file": str(keys)},
                                                "router.breaker": {**FOREVER, **(breaker or {})}, "router.retry": {"budget": 1.0, **(retry or {})}}))
            cluster.wait_ready(len(engines))

            def ask(tenant, text, stream=True, **fields):
                body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": text}], "max_tokens": 9}
                return cluster.ask("POST", "/v1/chat/completions", body, {**made[tenant], **fields})
            return ask
        yield start


def breaker(cluster, name):
    return next(n["breaker"] for n in cluster.status()["nodes"] if n["id"] == name)


def is_good(r):
    return r.status == 200 and (r.body == b"".join(ANSWER) or r.body.startswith(b"{") and r.json() == COMPLETION)


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("way", POISON)
def test_a_tenant_that_sends_poison_takes_no_node_from_the_others(cluster, tenants, way, attempts):
    a, b = (Engine(name, ["m"], poisoned_by(way)) for name in "ab")
    ask = tenants(a, b, retry={"attempts": attempts})
    for turn in range(3):
        for i in range(12):
            assert not is_good(ask("p", f"{turn} {i * 7} poison", stream=way != "whitespace"))
            assert breaker(cluster, "a")["state"] == breaker(cluster, "b")["state"] == "closed", (turn, i)
        before = len(a.seen), len(b.seen)
        for i in range(8):
            assert is_good(ask("q", f"{turn} {i * 7} is fine"))
        assert len(a.seen) > before[0] and len(b.seen) > before[1], turn  # both still take part
    assert cluster.metric("cgn_ejections_total") == 0
    if attempts > 1 and way in ("http500", "nothing", "error", "hangs_up", "head_alone"):
        told = cluster.router_process.events("gateway.fails_everywhere")
        assert {(e["tenant"], e["nodes"], e["model"]) for e in told} == {("p", 2, "m")}, told


@pytest.mark.parametrize("way", ["http500", "nothing", "late_error", "cut", "hangs_up"])
def test_the_only_node_is_blamed_by_different_requests(cluster, tenants, way):
    a = Engine("a", ["m"], poisoned_by(way))
    ask = tenants(a)
    for _ in range(8):  # a client that repeats itself is one witness
        assert not is_good(ask("p", "the same poison"))
    assert breaker(cluster, "a")["text"] == "closed: 1 failure in a row"
    for i in range(4):
        assert breaker(cluster, "a")["state"] == "closed", i
        assert not is_good(ask("pq"[i % 2], f"poison {i * 7}"))
    assert breaker(cluster, "a")["text"].startswith("open: 5 failures, ")
    assert is_good(ask("q", "fine")) and breaker(cluster, "a")["state"] == "closed"  # the last node is tried all the same


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("way", POISON)
def test_a_node_that_fails_for_all_is_out_soon(cluster, tenants, way, attempts):
    """Mixed traffic of two tenants, one of which sends poison too: the breaker of the node that fails every request opens."""
    a, b = Engine("a", ["m"], lambda path, asked: POISON[way]), Engine("b", ["m"], poisoned_by(way))
    ask = tenants(a, b, retry={"attempts": attempts})
    good = 0
    for i in range(60):
        good += is_good(ask("pq"[i % 2], f"{i * 7} is fine", stream=way != "whitespace"))
        if i % 5 == 0:
            assert not is_good(ask("p", f"{i * 7} poison", stream=way != "whitespace"))
    assert breaker(cluster, "a")["state"] == "open" and breaker(cluster, "b")["state"] == "closed"
    late = way in ("late_error", "half_an_event", "cut")  # those can't be taken back
    assert good == 60 if attempts > 1 and not late else good >= 45, good
    assert len(a.seen) <= 20, len(a.seen)


def once(node):
    return {"X-Cgn-Retry": "off", "X-Cgn-Node": node}


@pytest.mark.parametrize("way", ["http500", "late_error", "cut", "hangs_up"])
def test_poison_between_good_requests_takes_no_node_either(cluster, tenants, way):
    """No other node gets the request, so that there is one witness, and the tenant's good requests are answered."""
    engines = [Engine(name, ["m"], poisoned_by(way)) for name in "abc"]
    ask = tenants(*engines, breaker={"failures": 3})
    for i in range(60):
        assert not is_good(ask("p", f"{i * 7} poison", **once("abc"[i % 3])))
        assert i % 3 or is_good(ask("p", f"{i * 7} is fine", **once("abc"[i // 10 % 3])))
    assert cluster.metric("cgn_ejections_total") == 0


@pytest.mark.parametrize("way", ["http500", "late_error", "cut", "hangs_up"])
def test_one_tenant_without_retries_finds_the_node_that_fails(cluster, tenants, way):
    a, b = Engine("a", ["m"], lambda path, asked: POISON[way]), Engine("b", ["m"])
    ask = tenants(a, b)
    for i in range(10):
        assert is_good(ask("p", f"{i * 7} is fine", **once("ab"[i % 2]))) == (i % 2 == 1)
        assert breaker(cluster, "a")["state"] == ("open" if i >= 8 else "closed"), i
    assert breaker(cluster, "b")["text"] == "closed"


def test_poison_is_no_probe(cluster, tenants):
    a, b = Engine("a", ["m"], "http500"), Engine("b", ["m"], poisoned_by("http500"))
    ask = tenants(a, b, breaker={"failures": 2, "open_for": "50ms"})
    until(lambda: is_good(ask("q", str(len(b.seen)))) and breaker(cluster, "a")["state"] == "half-open", "a was out")
    a.fails = poisoned_by("http500")
    ejections = cluster.metric("cgn_ejections_total", node="a")

    def probe():
        before = len(a.seen)
        assert ask("p", f"{before} {len(b.seen)} poison").status == 500
        return len(a.seen) > before
    for _ in range(3):
        until(probe, "poison was the probe of a")
        assert breaker(cluster, "a")["state"] == "half-open" and cluster.metric("cgn_ejections_total", node="a") == ejections
    until(lambda: is_good(ask("q", str(len(b.seen)))) and breaker(cluster, "a")["state"] == "closed", "a good request closes it")
    assert breaker(cluster, "b")["state"] == "closed"


@pytest.mark.parametrize("agents", [False, True])
def test_a_request_that_kills_engines_gets_two_of_them(cluster, agents):
    """It is sent to no third one, on new connections and on kept ones."""
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(contextlib.closing(Engine(name, ["m"], lambda path, asked: "hangs_up" if "poison" in json.dumps(asked) else None)))
                   for name in "abcd"]
        cluster.router({**({} if agents else sections(engines)), "router.breaker": {"failures": 0, "failure_share": 0},
                        "router.retry": {"budget": 1.0, "attempts": 4}})
        for e in engines if agents else ():
            cluster.agent(e.name, e.port, {"engine": {"kind": "openai_compat"}})
        cluster.wait_ready(4)

        def ask(text):
            return cluster.ask("POST", "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": text}]})
        for i in range(6):
            r = ask(f"{i} poison")
            hit = [e.name for e in engines if any(f"{i} poison" in json.dumps(asked) for _, asked, _ in e.seen)]
            assert len(hit) == 2 and r.status == 503 and r.json()["error"]["code"] == "engine_unavailable", (hit, r.body)
            for k in range(4):
                assert ask(f"{i} {k} fine").status == 200
        for e in engines[:3]:  # refusing connections is no death: the fourth is reached
            e.close()
        assert ask("and now").status == 200
