# SPDX-License-Identifier: Apache-2.0
"""Waiting for room: real routers, agents and engines that run few requests at once."""
import hashlib
import signal
import subprocess
import threading
import time

import pytest

from clients import set_faults
from cluster import BUILD, Answer, ask, until
from test_router import Stream, error_of, up

pytestmark = pytest.mark.threads
CTL = BUILD / "src/ctl/cgn-ctl"

# Each running request gets a token every 20 ms: a request of 10 tokens takes a fifth of a second, however slow the machine is.
SLOW = ("--token-interval-us", "20000", "--kv-blocks", "65536")
ONE = (*SLOW, "--max-batch", "1")


def admission(n=2, **keys):
    """Wait until a node has |n| requests: of two, one runs and one follows."""
    return {"router.admission": {"max_concurrent_per_replica": n, **keys}}


def small(cluster, *nodes, router=None, **keys):
    return up(cluster, *(nodes or (ONE,)), router={**(router or {}), **admission(**keys)})


class Crowd:
    """Requests of many clients at once, and the order of their answers."""

    def __init__(self, cluster):
        self.cluster, self.order, self.answers, self.threads = cluster, [], {}, []
        self.lock = threading.Lock()

    def send(self, name, headers=None, path="/v1/chat/completions", body=None, max_tokens=10):
        body = body or {"model": "sim", "messages": [{"role": "user", "content": name}], "max_tokens": max_tokens, "ignore_eos": True}

        def run():
            try:
                answer = ask(self.cluster.http_port, "POST", path, body, headers, wait_s=120)
            except OSError as e:
                answer = Answer(0, [], str(e).encode())
            with self.lock:
                self.order.append(name)
                self.answers[name] = answer

        t = threading.Thread(target=run, daemon=True)
        t.start()
        self.threads.append(t)
        return self

    def wait(self):
        for t in self.threads:
            t.join(120)
            assert not t.is_alive()
        return self

    def statuses(self):
        return sorted(a.status for a in self.answers.values())


def depth(cluster):
    return sum(q["requests"] for q in ask(cluster.admin_port, "GET", "/queue").json()["queues"])


def depth_is(cluster, n):
    until(lambda: depth(cluster) == n, lambda: f"{n} wait, not {depth(cluster)}")


def inflight(cluster):
    return sum(n["router_inflight"] for n in cluster.status()["nodes"])


def hold(cluster, n=2):
    """Start streams that last long enough, one after another, so that their order is known."""
    held = []
    for i in range(n):
        held.append(Stream(cluster, max_tokens=3000, ignore_eos=True))
        until(lambda: inflight(cluster) == i + 1, "it is booked")
    return held


def test_a_request_without_room_waits_and_is_served(cluster):
    small(cluster, (*SLOW, "--max-batch", "2"), n=3)
    crowd = Crowd(cluster)
    for i in range(14):
        crowd.send(f"r{i}")
    seen = []
    until(lambda: seen.append((depth(cluster), inflight(cluster))) or len(crowd.order) == 14, "all are answered")
    crowd.wait()
    assert crowd.statuses() == [200] * 14
    assert max(d for d, _ in seen) > 0, "somebody waited"
    assert max(n for _, n in seen) == 3, "no more than it may have"
    depth_is(cluster, 0)
    until(lambda: cluster.metric("cgn_queue_seconds_count", model="sim") >= 8, "they are counted")
    assert cluster.metric("cgn_queue_depth", model="sim") == 0
    assert cluster.metric("cgn_rejected_total") == 0
    waited = [e["queued_ms"] for e in cluster.router_process.events("gateway.request") if e["model"] == "sim"]
    assert max(waited) > 100 and min(waited) == 0


def test_a_full_queue_says_for_how_long_and_that_is_true(cluster):
    small(cluster, max_queue=3)
    crowd = Crowd(cluster)
    for i in range(8):  # so that the engine's speed is known
        crowd.send(f"warm {i}", max_tokens=20)
        until(lambda: depth(cluster) + inflight(cluster) + len(crowd.order) > i, "it came")
        until(lambda: depth(cluster) < 3, "there is room for the next one")
    crowd.wait()
    assert crowd.statuses() == [200] * 8
    crowd = Crowd(cluster)
    for i in range(2 + 3):
        crowd.send(f"r{i}", max_tokens=20)
    until(lambda: inflight(cluster) == 2 and depth(cluster) == 3, "the queue is full")
    refused = cluster.chat("one more")
    after = int(refused.headers["retry-after"])
    assert refused.status == 503 and error_of(refused)["code"] == "queue_full" and 1 <= after < 30
    time.sleep(after)
    assert cluster.chat("again", max_tokens=2).status == 200
    crowd.wait()
    assert crowd.statuses() == [200] * 5
    cluster.counts(1, "cgn_rejected_total", reason="queue_full")


def test_waiting_ends(cluster):
    small(cluster, ("--fault", "hang"), n=1, queue_timeout="300ms")
    held = Stream(cluster)
    until(lambda: inflight(cluster) == 1, "it is booked")
    a = cluster.chat("x")
    assert a.status == 503 and error_of(a)["code"] == "queue_timeout" and int(a.headers["retry-after"]) >= 1
    depth_is(cluster, 0)
    cluster.counts(1, "cgn_rejected_total", reason="queue_timeout")
    b = cluster.chat("x", {"X-Cgn-Deadline-Ms": "50"})
    assert b.status == 503 and error_of(b)["code"] == "slo_unmeetable" and int(b.headers["retry-after"]) >= 1
    held.close()


def test_headers_that_mean_nothing_are_named(cluster):
    small(cluster)
    for name, values in {"X-Cgn-Priority": ("urgent", "10", "-1", "5 "), "X-Cgn-Deadline-Ms": ("0", "soon", "-5", "3600001", "1.5")}.items():
        for value in values:
            a = cluster.chat("x", {name: value})
            if value.strip() == "5":
                assert a.status == 200
                continue
            assert a.status == 400 and error_of(a)["param"] == name and name in error_of(a)["message"], value
    for value in ("high", "LOW", "normal", "0", "9"):
        assert cluster.chat("x", {"X-Cgn-Priority": value, "X-Cgn-Deadline-Ms": "60000"}, max_tokens=2).status == 200


def test_a_client_that_does_not_wait_is_refused_at_once(cluster):
    small(cluster, n=2)
    for prefer in ("if-available", "respond-async, If-Available; x=1"):
        a = cluster.chat("room", {"Prefer": prefer}, max_tokens=2)
        assert a.status == 200 and a.headers["preference-applied"] == "if-available"
    until(lambda: inflight(cluster) == 0, "both have ended")
    held = hold(cluster)
    refused = cluster.chat("no room", {"Prefer": "if-available"})
    assert refused.status == 503 and error_of(refused)["code"] == "would_wait" and "busy" in error_of(refused)["message"]
    assert int(refused.headers["retry-after"]) >= 1 and refused.headers["preference-applied"] == "if-available"
    until(lambda: cluster.metric("cgn_rejected_total", reason="would_wait") == 1, "it is counted")
    assert depth(cluster) == 0 and inflight(cluster) == 2
    crowd = Crowd(cluster).send("waits", {"Prefer": "wait=10, if-available=no"}, max_tokens=2)  # neither is the preference
    depth_is(cluster, 1)
    for h in held:
        h.close()
    crowd.wait()
    assert crowd.statuses() == [200] and "preference-applied" not in crowd.answers["waits"].headers


def test_a_client_that_does_not_wait_is_told_of_a_model_without_nodes(cluster):
    small(cluster, n=2, node_wait="60s")
    assert cluster.chat("x", max_tokens=2).status == 200
    cluster.nodes["a"].engine.kill()
    until(lambda: not any(n["state"] == "ready" for n in cluster.status()["nodes"]), "the router knows")
    refused = cluster.chat("x", {"Prefer": "if-available"})
    assert refused.status == 503 and error_of(refused)["code"] == "would_wait" and int(refused.headers["retry-after"]) >= 2
    assert depth(cluster) == 0


def test_the_engine_sees_neither_header(cluster):
    small(cluster)
    a = cluster.chat("x", {"X-Cgn-Priority": "low", "X-Cgn-Deadline-Ms": "60000"}, max_tokens=2)
    assert a.status == 200
    requests = ask(cluster.nodes["a"].engine_port, "GET", "/sim/requests")
    assert requests.status == 404 or b"x-cgn" not in requests.body.lower()


def test_a_higher_priority_goes_first(cluster):
    small(cluster, n=1)
    held = hold(cluster, 1)
    crowd = Crowd(cluster)
    for i, priority in enumerate(("low", "low", "normal", "normal", "high", "high")):
        crowd.send(f"{priority} {i}", {"X-Cgn-Priority": priority})
        depth_is(cluster, i + 1)
    for s in held:
        s.close()
    crowd.wait()
    assert crowd.statuses() == [200] * 6
    assert [name.split()[0] for name in crowd.order] == ["high"] * 2 + ["normal"] * 2 + ["low"] * 2


def hinted(text, max_tokens=2, **hints):
    return {"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "ignore_eos": True, "nvext": {"agent_hints": hints}}


def test_agents_hint_at_their_priority(cluster):
    small(cluster, n=1)
    held = hold(cluster, 1)
    crowd = Crowd(cluster)
    waits = [("background", -3, None), ("usual", None, None), ("urgent", 3, None), ("header", 9, "0")]  # the header counts
    for i, (name, priority, header) in enumerate(waits):
        hints = {"osl": 2, "of_the_engine": "as it is", **({} if priority is None else {"priority": priority})}
        crowd.send(name, {"X-Cgn-Priority": header} if header else None, body=hinted(name, **hints))
        depth_is(cluster, i + 1)
    shown = sorted(s["priority"] for q in ask(cluster.admin_port, "GET", "/queue").json()["queues"] for s in q["tenants"])
    assert shown == [0, 2, 5, 8]
    for s in held:
        s.close()
    crowd.wait()
    assert crowd.statuses() == [200] * 4 and crowd.order == ["urgent", "usual", "background", "header"]
    refused = cluster.ask("POST", "/v1/chat/completions", hinted("x", priority="high"))
    assert refused.status == 400 and (error_of(refused)["code"], error_of(refused)["param"]) == ("invalid_hint", "nvext.agent_hints.priority")


def keys_of(cluster, *names):
    lines = [f"{n} sha256:{hashlib.sha256(n.encode()).hexdigest()} chat,embed 2026-01-31T08:00:00Z {n}\n" for n in names]
    keys = cluster.folder / "keys"
    keys.write_text("".join(lines))
    cluster.common = {**cluster.common, "auth": {"enabled": True, "api_keys_file": str(keys)}}


def as_key(name, **more):
    return {"Authorization": f"Bearer {name}", **more}


def test_tenants_take_turns(cluster):
    keys_of(cluster, "greedy", "modest")
    small(cluster, n=1)
    held = [Stream(cluster, as_key("greedy"), max_tokens=3000, ignore_eos=True) for _ in range(1)]
    until(lambda: inflight(cluster) == 1, "it is booked")
    crowd = Crowd(cluster)
    for i in range(18):
        crowd.send(f"greedy {i}", as_key("greedy"), max_tokens=5)
        depth_is(cluster, i + 1)
    for i in range(6):
        crowd.send(f"modest {i}", as_key("modest"), max_tokens=5)
        depth_is(cluster, 18 + i + 1)
    shown = {s["tenant"]: s["requests"] for q in ask(cluster.admin_port, "GET", "/queue").json()["queues"] for s in q["tenants"]}
    assert shown == {"greedy": 18, "modest": 6}
    for s in held:
        s.close()
    crowd.wait()
    assert crowd.statuses() == [200] * 24
    # alternately
    assert sum(name.startswith("modest") for name in crowd.order[:12]) == 6, crowd.order


def test_sessions_that_used_little_go_first(cluster):
    small(cluster, n=1, queue_policy="sessions")
    (held,) = hold(cluster, 1)
    crowd = Crowd(cluster)
    for i in range(6):  # one agent asks a lot at once, then two others ask once, and a client without a session, which counts as one
        crowd.send(f"greedy {i} " + "word " * 3000, {"X-Cgn-Session": "greedy"}, max_tokens=5)
        depth_is(cluster, i + 1)
    for i, head in enumerate(({"session-id": "modest"}, {"X-Cgn-Session": "other"})):
        crowd.send(f"modest {i}", head, max_tokens=5)
        depth_is(cluster, 6 + i + 1)
    held.close()
    crowd.wait()
    assert crowd.statuses() == [200] * 8
    names = [" ".join(name.split()[:2]) for name in crowd.order]
    assert names[0] == "greedy 0" and set(names[1:3]) == {"modest 0", "modest 1"}, names
    said = {s["id"]: s for s in ask(cluster.admin_port, "GET", "/sessions").json()["sessions"]}
    assert said["greedy"]["recent_tokens"] > said["modest"]["recent_tokens"] > 0
    assert said["127.0.0.1"]["from"] == "key"  # the held stream named no session


def test_the_queue_is_shown_with_who_waits(cluster):
    keys_of(cluster, "acme", "beta")
    cluster.common['tenants."acme"'] = {"max_priority": 9}
    small(cluster, n=1)
    held = [Stream(cluster, as_key("acme"), max_tokens=3000, ignore_eos=True)]
    until(lambda: inflight(cluster) == 1, "it is booked")
    crowd = Crowd(cluster)
    for i, (text, key, priority) in enumerate((("long " * 400, "acme", "high"), ("short", "acme", "high"), ("short too", "beta", "normal"))):
        crowd.send(text, as_key(key, **{"X-Cgn-Priority": priority}))
        depth_is(cluster, i + 1)
    assert cluster.metric("cgn_queue_depth", model="sim") == 3
    status = subprocess.run([CTL, "cluster", "status", "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, text=True, timeout=60).stdout
    assert ", 3 waiting" in status, status

    def shown():
        said = ask(cluster.admin_port, "GET", "/queue").json()
        return said if min(t["oldest_ms"] for t in said["queues"][0]["tenants"]) > 0 else None
    (q,) = until(shown, "some time has passed")["queues"]
    assert (q["model"], q["role"], q["requests"], q["retries"]) == ("sim", "generation", 3, 0)
    rows = {t["tenant"]: t for t in q["tenants"]}
    assert {name: t["requests"] for name, t in rows.items()} == {"acme": 2, "beta": 1}
    assert rows["acme"]["priority"] != rows["beta"]["priority"] and rows["acme"]["oldest_ms"] >= rows["beta"]["oldest_ms"]
    assert rows["acme"]["tokens"] > 200 > rows["beta"]["tokens"] > 0 and q["tokens"] == sum(t["tokens"] for t in rows.values())
    for s in held:
        s.close()
    crowd.wait()
    assert crowd.statuses() == [200] * 3
    depth_is(cluster, 0)
    assert cluster.metric("cgn_queue_depth", model="sim") == 0
    cluster.counts(3, "cgn_queue_seconds_count", model="sim")


def test_a_request_whose_deadline_the_queue_cannot_meet_is_told_at_once(cluster):
    """Once the queue's speed is known, a request that would wait for longer than it has is refused before it waits."""
    small(cluster, n=1)
    warm = Crowd(cluster)
    for i in range(3):
        warm.send(f"warm {i}", max_tokens=5)
    warm.wait()
    crowd = Crowd(cluster)
    for i in range(5):
        crowd.send(f"r{i}", max_tokens=15)
    until(lambda: depth(cluster) == 4, "four wait")
    (q,) = ask(cluster.admin_port, "GET", "/queue").json()["queues"]
    assert q["wait_ms"] > 20, q
    refused = cluster.chat("x", {"X-Cgn-Deadline-Ms": "20"}, max_tokens=2)
    assert refused.status == 503 and error_of(refused)["code"] == "slo_unmeetable" and int(refused.headers["retry-after"]) >= 1
    crowd.wait()
    assert crowd.statuses() == [200] * 5


def test_a_key_goes_no_higher_than_its_tenant_may(cluster):
    keys_of(cluster, "boss", "clerk")
    cluster.common['tenants."clerk"'] = {"max_priority": 2}
    cluster.common['tenants."boss"'] = {"max_priority": 9}
    small(cluster, n=1)
    held = [Stream(cluster, as_key("boss"), max_tokens=3000, ignore_eos=True) for _ in range(1)]
    until(lambda: inflight(cluster) == 1, "it is booked")
    crowd = Crowd(cluster)
    for i, (key, priority) in enumerate((("clerk", "high"), ("boss", "normal"), ("boss", "high"))):
        crowd.send(f"{key} {priority}", as_key(key, **{"X-Cgn-Priority": priority}))
        depth_is(cluster, i + 1)
    for s in held:
        s.close()
    crowd.wait()
    assert crowd.order == ["boss high", "boss normal", "clerk high"]


def test_a_client_that_goes_leaves_the_queue_at_once(cluster):
    small(cluster)
    held = hold(cluster)
    waiting = [Stream(cluster, max_tokens=3000, ignore_eos=True) for _ in range(5)]
    depth_is(cluster, 5)
    for s in waiting:
        s.close()
    depth_is(cluster, 0)
    for s in held:
        s.close()
    until(lambda: inflight(cluster) == 0, "nobody is there any more")
    assert cluster.chat("x", max_tokens=2).status == 200


def test_clients_that_go_when_they_are_let_in_leave_no_place_taken(cluster):
    small(cluster)
    for _ in range(6):
        streams = [Stream(cluster, max_tokens=3000, ignore_eos=True) for _ in range(8)]
        until(lambda: inflight(cluster) == 2, "two are in")
        for s in streams:  # the running requests end first, and their followers when their turns come
            s.close()
    until(lambda: inflight(cluster) == 0 and depth(cluster) == 0, "nobody is there any more")
    crowd = Crowd(cluster)
    for i in range(6):
        crowd.send(f"r{i}", max_tokens=3)
    crowd.wait()
    assert crowd.statuses() == [200] * 6


def test_a_node_that_comes_takes_from_the_queue(cluster):
    small(cluster)
    held = hold(cluster)
    crowd = Crowd(cluster)
    for i in range(3):
        crowd.send(f"r{i}")
    depth_is(cluster, 3)
    cluster.node("b", *ONE)
    crowd.wait()
    assert crowd.statuses() == [200] * 3
    assert {a.headers["x-cgn-node"] for a in crowd.answers.values()} == {"b"}
    for s in held:
        s.close()


def test_requests_wait_for_a_node_that_is_started_again(cluster):
    cluster.common = {'models."sim"': {"aliases": []}}
    small(cluster, node_wait="60s")
    held = hold(cluster)
    crowd = Crowd(cluster)
    for i in range(3):
        crowd.send(f"r{i}")
    depth_is(cluster, 3)
    node = cluster.nodes["a"]
    node.agent.kill()
    until(lambda: "ready" not in cluster.states().values(), "it has gone")
    for s in held:
        s.close()
    crowd.send("late")
    depth_is(cluster, 4)  # the requests that first took the place of a cut stream are back
    node.agent.start()
    crowd.wait()
    assert crowd.statuses() == [200] * 4


def test_without_any_node_waiting_ends_soon(cluster):
    cluster.common = {'models."sim"': {"aliases": []}}
    small(cluster, node_wait="500ms")
    held = hold(cluster)
    crowd = Crowd(cluster)
    for i in range(3):
        crowd.send(f"r{i}")
    depth_is(cluster, 3)
    cluster.nodes["a"].agent.kill()
    crowd.wait()
    assert crowd.statuses() == [503] * 3
    assert {error_of(a)["code"] for a in crowd.answers.values()} == {"no_node"}
    assert all(int(a.headers["retry-after"]) > 0 for a in crowd.answers.values())
    del held


def test_a_node_on_trial_takes_one_and_the_others_keep_their_turn(cluster):
    small(cluster, ("--time-scale", "0"), ("--time-scale", "0", "--fault", "http500"), n=4, router={"router.breaker": {"failures": 2, "open_for": "3s"}})
    until(lambda: cluster.chat("x", max_tokens=2) and cluster.metric("cgn_ejections_total", node="b") >= 1, "b is out")
    for name in "ab":
        set_faults(cluster.nodes[name].engine_port, "hang")
    crowd = Crowd(cluster)
    for i in range(4 + 6):
        crowd.send(f"r{i}")

    def on_trial():
        return next(n for n in cluster.status()["nodes"] if n["id"] == "b")["router_inflight"] == 1

    until(on_trial, "b is half-open, and one request tries it")
    (q,) = ask(cluster.admin_port, "GET", "/queue").json()["queues"]
    assert q["requests"] == 5 == sum(t["requests"] for t in q["tenants"]), q  # requests that were admitted and came back are in no tenant's part
    for name in "ab":
        set_faults(cluster.nodes[name].engine_port)
        cluster.nodes[name].engine.kill()


def test_an_engine_that_dies_leaves_the_queue_to_the_other(cluster):
    small(cluster, ONE, ONE)
    held = hold(cluster, 4)
    crowd = Crowd(cluster)
    for i in range(4):
        crowd.send(f"r{i}")
    depth_is(cluster, 4)
    cluster.nodes["a"].engine.kill()
    for s in held:
        s.close()
    crowd.wait()
    assert crowd.statuses() == [200] * 4
    assert {a.headers["x-cgn-node"] for a in crowd.answers.values()} == {"b"}


def test_a_drain_serves_those_who_wait(cluster):
    small(cluster, router={"router": {"drain_timeout": "60s"}})
    crowd = Crowd(cluster)
    for i in range(8):
        crowd.send(f"r{i}")
    until(lambda: depth(cluster) >= 5, "some wait")
    assert cluster.router_process.stop() == 0
    crowd.wait()
    assert crowd.statuses() == [200] * 8


def test_a_drain_that_takes_too_long_sends_them_elsewhere(cluster):
    small(cluster, router={"router": {"drain_timeout": "2s"}})
    held = hold(cluster)
    crowd = Crowd(cluster)
    for i in range(3):
        crowd.send(f"r{i}")
    depth_is(cluster, 3)
    assert cluster.router_process.stop() == 0
    crowd.wait()
    assert crowd.statuses() == [503] * 3
    assert {error_of(a)["code"] for a in crowd.answers.values()} == {"draining"}
    del held


def test_a_reload_changes_the_rules_for_those_who_wait(cluster):
    small(cluster, n=1)
    held = hold(cluster, 1)
    crowd = Crowd(cluster)
    long, short = "word " * 600, "word "
    for i, text in enumerate((long, short)):
        crowd.send(text)
        depth_is(cluster, i + 1)
    mine = {"router": {"listen": f"127.0.0.1:{cluster.http_port}", "listen_grpc": f"127.0.0.1:{cluster.grpc_port}",
                       "listen_admin": f"127.0.0.1:{cluster.admin_port}", "worker_threads": 2}}
    cluster.config("router", {**mine, **admission(queue_policy="wspt", n=1, max_queue=2)})
    cluster.router_process.signal(signal.SIGHUP)
    until(lambda: ask(cluster.admin_port, "GET", "/queue").json()["max_queue"] == 2, "it has read them")
    assert error_of(cluster.chat("x"))["code"] == "queue_full"
    for s in held:
        s.close()
    crowd.wait()
    assert crowd.order == [short, long]


def test_prompts_alone_have_a_queue_of_their_own(cluster):
    small(cluster, max_queue=2)
    held = hold(cluster)
    crowd = Crowd(cluster)
    for i in range(2):
        crowd.send(f"chat {i}")
        crowd.send(f"embed {i}", path="/v1/embeddings", body={"model": "sim", "input": f"text {i}"})
    depth_is(cluster, 4)
    roles = {q["role"]: q["requests"] for q in ask(cluster.admin_port, "GET", "/queue").json()["queues"]}
    assert roles == {"generation": 2, "prompt_only": 2}
    for s in held:
        s.close()
    crowd.wait()
    assert crowd.statuses() == [200] * 4
