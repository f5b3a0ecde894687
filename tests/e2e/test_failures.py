# SPDX-License-Identifier: Apache-2.0
"""Programs that die, stop or misbehave under load: other requests are unharmed, counters are right, and a
program that comes back is used again."""
import json
import pathlib
import resource
import signal
import socket
import subprocess
import threading

import pytest

from clients import Load, Stream, chat_body, engine_state, set_faults
from cluster import BUILD, ask, free_port, scaled, until

FAST = ("--time-scale", "0")
PACED = ("--token-interval-us", "4000")


def up(cluster, *nodes, router=None, **named):
    cluster.router(router)
    for name, args in zip("abcdef", nodes):
        cluster.node(name, *args, **named)
    cluster.wait_ready(len(nodes))
    return cluster


def quiet(cluster, *engines):
    """Wait until no request is open or booked anywhere."""
    until(lambda: cluster.metric("cgn_inflight") == 0, "cgn_inflight is back at 0")
    until(lambda: all(n["router_inflight"] == 0 for n in cluster.status()["nodes"]), "no booking is left")
    for name in engines:
        until(lambda n=name: engine_state(cluster.nodes[n].engine_port)["running"] == 0, f"engine {name} runs nothing")


def more(load, n):
    """Wait until |n| more requests have ended."""
    target = sum(load.ends.values()) + n
    until(lambda: load.reached(target), lambda: f"{target} requests have ended: {load.ends}")


def agree(cluster, load):
    """Check that the router counted every request of |load| once, with the client's result."""
    want = {200: load.ends["answered"] + load.ends["cut"], 499: 0, **{c: load.statuses[c] for c in (404, 502, 503, 504)}}
    until(lambda: load.counted() == want, lambda: f"the counters agree: {load.counted()} {want} {load.sent}", wait_s=10)
    assert load.sent == sum(want.values())


def ctl(cluster, *args, **how):
    return subprocess.run([BUILD / "src/ctl/cgn-ctl", *args, "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True,
                          text=True, timeout=60, **how)


# ---- kill -9 under load ----

@pytest.mark.both
@pytest.mark.threads
@pytest.mark.parametrize("victim", ["agent", "engine"])
def test_killing_a_part_under_load_harms_only_what_it_was_streaming(cluster, victim):
    up(cluster, PACED, PACED, PACED)
    load = Load(cluster, n=8)
    more(load, scaled(60))
    getattr(cluster.nodes["b"], victim).kill()
    until(lambda: cluster.states().get("b") != "ready", "b is not ready any more")
    more(load, scaled(60))
    load.end()
    assert not load.ends["broken"] and not load.ends["refused"], (load.ends, load.statuses)
    assert load.ends["cut"] <= 8 and set(load.nodes_cut) <= {"b", "?"}, load.nodes_cut
    quiet(cluster, "a", "c")
    agree(cluster, load)
    part = getattr(cluster.nodes["b"], victim)
    part.start()
    until(lambda: cluster.states().get("b") == "ready", "b is back")
    until(lambda: any(cluster.chat(f"new {i}", max_tokens=1).headers["x-cgn-node"] == "b" for i in range(8)), "b is used again")


@pytest.mark.both
@pytest.mark.threads
def test_killing_the_only_engine_refuses_until_it_is_back(cluster):
    up(cluster, PACED)
    load = Load(cluster, n=4)
    more(load, scaled(30))
    engine = cluster.nodes["a"].engine
    engine.kill()
    more(load, scaled(30))
    until(lambda: load.ends["refused"], "requests are refused")  # after router.admission.node_wait
    engine.start()
    until(lambda: cluster.states().get("a") == "ready", "a is back")
    before = load.ends["answered"]
    until(lambda: load.ends["answered"] > before + 10, "requests are answered again")
    load.end()
    assert not load.ends["broken"] and load.ends["refused"] and set(load.statuses) <= {502, 503}, (load.ends, load.statuses)
    assert load.ends["cut"] <= 4
    quiet(cluster, "a")
    agree(cluster, load)


@pytest.mark.both
@pytest.mark.threads
def test_killing_the_router_under_load(cluster):
    up(cluster, PACED, PACED)
    load = Load(cluster, n=6)
    more(load, scaled(40))
    cluster.router_process.kill()
    for node in cluster.nodes.values():  # its requests all end, although no FIN was sent
        until(lambda n=node: engine_state(n.engine_port)["running"] == 0, f"engine {node.name} is free")
    broken = load.ends["broken"]
    until(lambda: load.ends["broken"] > broken, "clients see that nobody listens")
    cluster.router_process.start()
    cluster.wait_ready(2)
    answered = load.ends["answered"]
    until(lambda: load.ends["answered"] > answered + scaled(40), "requests are answered again")
    load.end()
    # Streams that ran when it died end without [DONE]; http.client calls that an incomplete read.
    assert load.ends["cut"] <= 6
    assert load.sent == sum(load.ends[k] for k in ("answered", "cut", "refused", "broken"))
    assert set(load.statuses) <= {503, 404}, load.statuses  # the router listens a moment before its agents have announced themselves
    quiet(cluster, "a", "b")


def test_prefixes_are_known_again_after_the_router_was_killed(cluster):
    up(cluster, FAST, FAST, FAST)
    talks = [f"conversation {i} " * 60 for i in range(24)]
    where = {t: cluster.chat(t, max_tokens=1).headers["x-cgn-node"] for t in talks}
    assert len(set(where.values())) == 3
    known = until(lambda: cluster.metric("cgn_index_blocks"), "the record's size is told")
    cluster.router_process.kill()
    cluster.router_process.start()
    cluster.wait_ready(3)
    until(lambda: cluster.metric("cgn_index_blocks") >= known, "the agents told what they hold")
    for t in talks:
        a = cluster.chat(t, max_tokens=1)
        held, blocks = map(int, a.headers["x-cgn-cache-hit"].split("/"))
        assert a.headers["x-cgn-node"] == where[t] and held == blocks > 0, (a.headers, where[t])


# ---- stopped, not dead ----

def test_a_stopped_engine_is_passed_over(cluster):
    up(cluster, FAST, FAST, router={"router": {"first_byte_timeout": "500ms"}})
    cluster.nodes["b"].engine.signal(signal.SIGSTOP)
    for i in range(6):
        a = cluster.chat(f"prompt {i}", max_tokens=2)
        assert a.status == 200 and a.headers["x-cgn-node"] == "a"
    cluster.nodes["b"].engine.signal(signal.SIGCONT)
    until(lambda: cluster.states().get("b") == "ready", "b is ready")
    until(lambda: any(cluster.chat(f"later {i}", max_tokens=1).headers["x-cgn-node"] == "b" for i in range(8)), "b is used again")
    quiet(cluster, "a", "b")


@pytest.mark.both
@pytest.mark.threads
def test_a_stopped_agent_is_gone_with_its_lease_and_comes_back(cluster):
    cluster.common = {"cluster": {"lease": "1s"}}
    up(cluster, FAST, FAST, router={"router": {"first_byte_timeout": "1s"}})
    load = Load(cluster, n=4)
    more(load, scaled(20))
    cluster.nodes["b"].agent.signal(signal.SIGSTOP)
    until(lambda: "b" not in cluster.states(), "its lease ends")
    more(load, scaled(40))
    cluster.nodes["b"].agent.signal(signal.SIGCONT)
    until(lambda: cluster.states().get("b") == "ready", "b is back")
    more(load, scaled(20))
    load.end()
    assert load.ends["answered"] + load.ends["cut"] == load.sent, (load.ends, load.statuses)
    assert load.ends["cut"] <= 4
    quiet(cluster, "a", "b")
    agree(cluster, load)


# ---- engines that fail while they answer ----

ROUTES = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}),
    ("/v1/responses", {"input": "x"}),
]


def response_failed(answer):
    """The stream of a response ends as its API says, and its events are numbered on."""
    *events, (name, last) = answer.events()
    events, last = [data for _, data in events if data.endswith("}")], json.loads(last)  # the engine may die in the middle of an event
    assert name == last["type"] == "response.failed", answer.body[-300:]
    assert last["response"]["id"] == json.loads(events[0])["response"]["id"] and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error" and last["response"]["model"] == "sim"
    assert last["sequence_number"] == len(events) and answer.body.count(b'"response.failed"') == 1


def test_a_stream_that_dies_ends_with_an_error_event_on_every_route(cluster):
    up(cluster, FAST)
    engine = cluster.nodes["a"].engine_port
    for fault in ("cut-after=3", "truncated-chunk"):
        set_faults(engine, fault)
        for route, body in ROUTES:
            tokens = {"max_output_tokens" if "input" in body else "max_tokens": 40}
            a = cluster.ask("POST", route, {"model": "sim", "stream": True, "ignore_eos": True, **tokens, **body})
            if a.status != 200:  # it broke before any byte was sent
                assert a.status in (502, 503), (route, fault, a.status, a.body)
                continue
            name, data = a.events()[-1]
            assert b"[DONE]" not in a.body and b"message_stop" not in a.body and b"response.completed" not in a.body
            if route == "/v1/responses":
                response_failed(a)
                continue
            error = json.loads(data)["error"]
            kind = ("type", "api_error") if route == "/v1/messages" else ("code", "engine_failed")  # Anthropic's errors have no code
            assert name == "error" and error[kind[0]] == kind[1], (route, fault, a.body[-300:])
    set_faults(engine)
    assert cluster.chat("and again", max_tokens=2).status == 200
    quiet(cluster, "a")


@pytest.mark.both
def test_faults_by_chance_add_up(cluster):
    """Half of the requests of two of three engines fail: each request is answered, or cut if its answer had
    begun, and counted."""
    up(cluster, (*FAST, "--fault", "refuse@0.25", "--fault", "http500@0.25"), FAST,
       (*FAST, "--fault", "http503@0.3", "--fault", "cut-after=4@0.2"))
    load = Load(cluster, n=6)
    more(load, scaled(300))
    load.end()
    assert load.ends["answered"] > load.sent // 2
    assert not load.ends["broken"] and not load.ends["refused"], (load.ends, load.statuses)
    assert set(load.nodes_cut) <= {"c", "?"}, load.nodes_cut
    agree(cluster, load)
    assert cluster.metric("cgn_retries_total") > 0
    quiet(cluster, "a", "b", "c")


def test_two_static_nodes_with_one_id(cluster):
    _, engine = cluster.engine("engine", *FAST)
    agents = []
    for name in "ab":
        agents.append(cluster.agent(name, engine, {"agent": {"node_id": "same"}}))
    addresses = [f"127.0.0.1:{port}" for _, port, _ in agents]
    router = cluster.router({"cluster": {"state_backend": "static", "nodes": addresses}})
    refused = until(lambda: [n for n in cluster.status()["nodes"] if "taken" in n["reason"]], cluster.status)[0]
    owner = until(lambda: [n for n in cluster.status()["nodes"] if n["state"] == "ready"], cluster.status)[0]
    assert owner["id"] == "same" and owner["address"] in refused["reason"] and refused["address"] in refused["reason"]
    assert len([e for e in router.events("router.watch_lost") if "taken" in e["why"]]) == 1
    agents[addresses.index(owner["address"])][0].kill()
    until(lambda: [n["address"] for n in cluster.status()["nodes"] if n["state"] == "ready"] == [refused["address"]], cluster.status)


def test_a_second_agent_with_the_id_of_a_live_one_is_refused(cluster):
    up(cluster, FAST)
    first = cluster.nodes["a"]
    second, port, _ = cluster.agent("b", first.engine_port, {"agent": {"node_id": "a"}})
    said = until(lambda: second.events("state.not_registered"), "it is refused")[-1]
    assert '"a"' in said["why"] and f"127.0.0.1:{first.agent_port}" in said["why"]
    told = cluster.router_process.events("state.node_refused")
    assert len(told) == 1 and told[0]["level"] == "warn" and told[0]["address"] == f"127.0.0.1:{port}"
    assert [n["address"] for n in cluster.status()["nodes"]] == [f"127.0.0.1:{first.agent_port}"]
    assert cluster.chat("x").status == 200
    first.agent.kill()
    until(lambda: [n["address"] for n in cluster.status()["nodes"] if n["state"] == "ready"] == [f"127.0.0.1:{port}"], cluster.status)


def test_an_engine_that_cannot_be_reached_is_named(cluster):
    cluster.router()
    agent, _, _ = cluster.agent("a", free_port())
    row = until(lambda: [n for n in cluster.status()["nodes"] if n["reason"]], cluster.status)[0]
    assert row["state"] == "joining" and "engine sim" in row["reason"] and "refused" in row["reason"]
    said = agent.events("engine.check_failed")
    assert len(said) == 1 and said[0]["level"] == "warn" and "refused" in said[0]["why"]
    table = ctl(cluster, "cluster", "nodes")
    assert "a is joining: engine sim: " in table.stdout, table
    wide = ctl(cluster, "cluster", "nodes", "-o", "wide").stdout
    assert "REASON" in wide and "refused" in wide, wide


def test_an_engine_that_ends_is_named_until_it_is_back(cluster):
    cluster.router()
    node = cluster.node("a", *FAST)
    cluster.wait_ready(1)
    node.engine.kill()
    said = until(lambda: node.agent.events("engine.check_failed"), "it is said")
    assert said[0]["level"] == "warn"
    until(lambda: "engine sim" in cluster.status()["nodes"][0]["reason"], cluster.status)
    node.engine.start()
    until(lambda: cluster.status()["nodes"][0]["reason"] == "" and cluster.states()["a"] == "ready", cluster.status)


# ---- drain ----

@pytest.mark.threads
def test_drain_waits_for_running_requests(cluster):
    up(cluster, ("--token-interval-us", "10000"), ("--token-interval-us", "10000"))
    load = Load(cluster, n=4, tokens=10)
    streams = [Stream(cluster.http_port, f"long {i}", max_tokens=100, ignore_eos=True) for i in range(8)]
    for s in streams:
        s.read_until(b"data: ")
    assert any(b"x-cgn-node: b" in s.got.lower() for s in streams)
    drained = []
    waiter = threading.Thread(target=lambda: drained.append(ctl(cluster, "cluster", "drain", "b")))
    waiter.start()
    until(lambda: cluster.states()["b"] in ("cordoned", "draining"), "b takes nothing new")
    for s in streams:
        assert s.read_until(b"[DONE]").got.count(b"data: ") > 100
        s.close()
    waiter.join()
    assert drained[0].returncode == 0, drained[0].stderr
    assert engine_state(cluster.nodes["b"].engine_port)["running"] == 0
    assert {cluster.chat(f"p{i}", max_tokens=1).headers["x-cgn-node"] for i in range(6)} == {"a"}
    load.end()
    assert load.ends["answered"] == load.sent, (load.ends, load.statuses)


@pytest.mark.parametrize("part, signo", [("router", signal.SIGINT), ("agent", signal.SIGINT), ("engine", signal.SIGINT), ("engine", signal.SIGTERM)])
def test_a_second_signal_ends_a_drain_that_waits_for_a_request(cluster, part, signo):
    up(cluster, ("--token-interval-us", "100000"))
    stream = Stream(cluster.http_port, "long", max_tokens=600, ignore_eos=True)
    stream.read_until(b"data: ")
    node = cluster.nodes["a"]
    p = {"router": cluster.router_process, "agent": node.agent, "engine": node.engine}[part]
    p.signal(signal.SIGTERM)
    until(lambda: "svc.drain" in p.log() or "sim.drain" in p.log(), "it drains")
    p.signal(signo)
    assert p.wait() == 128 + signo, p.log()
    stream.read_all() if part == "router" else stream.read_until(b"event: error")
    assert b"[DONE]" not in stream.got
    stream.close()


def test_a_second_signal_ends_an_agent_that_takes_leave_of_a_silent_router(cluster):
    agent = up(cluster, FAST).nodes["a"].agent
    cluster.router_process.signal(signal.SIGSTOP)
    agent.signal(signal.SIGTERM)
    until(lambda: agent.events("agent.leave"), "it leaves")
    agent.signal(signal.SIGINT)
    assert agent.wait() == 130, agent.log()


def test_a_request_that_is_refused_everywhere_is_counted_once(cluster):
    up(cluster, (*FAST, "--fault", "refuse"), (*FAST, "--fault", "refuse"), (*FAST, "--fault", "refuse"))
    for _ in range(5):
        assert cluster.ask("POST", "/v1/chat/completions", chat_body()).status == 503
    until(lambda: cluster.metric("cgn_requests_total", code="503", model="sim") == 5, "five refusals")
    quiet(cluster, "a", "b", "c")


def cpu_ticks(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_descriptors_that_run_out_are_told_and_leave_room_for_operators(cluster):
    up(cluster, FAST)
    router = cluster.router_process
    before = router.descriptors()
    limit = before + 60
    resource.prlimit(router.pid, resource.RLIMIT_NOFILE, (limit, limit))
    crowd = []
    try:
        for _ in range(120):
            s = socket.socket()
            s.setblocking(False)
            s.connect_ex(("127.0.0.1", cluster.http_port))
            crowd.append(s)
        said = until(lambda: router.events("svc.descriptors_exhausted"), "the log names the shortage")[0]
        assert said["limit"] == limit and said["level"] == "warn"
        assert cluster.metric("cgn_descriptors_exhausted_total") > 0
        assert ask(cluster.admin_port, "GET", "/healthz").status == 200
        rests = cluster.metric("cgn_descriptors_exhausted_total")
        used = cpu_ticks(router)
        until(lambda: cluster.metric("cgn_descriptors_exhausted_total") > rests + 20, "the listeners rest on and on")
        assert cpu_ticks(router) - used < 50, "the listeners rest instead of spinning"
        assert len(router.events("svc.descriptors_exhausted")) == 1, "one line, not one for each rest"
    finally:
        for s in crowd:
            s.close()
    until(lambda: router.descriptors() <= before + 5, "the crowd has gone")
    assert cluster.chat("again", max_tokens=1).status == 200


# ---- a router that starts ----

def away(cluster, **router):
    """Start a router whose etcd is away."""
    dead = f"http://127.0.0.1:{free_port()}"
    return cluster.router({"cluster": {"state_backend": "etcd", "etcd_endpoints": [dead]}, "router.admission": {"node_wait": "200ms"}, **router})


def test_a_router_without_nodes_says_later_and_not_never(cluster):
    away(cluster)
    answer = cluster.chat("hello")
    assert answer.status == 503 and answer.headers["retry-after"] and answer.json()["error"]["code"] == "no_node"
    assert cluster.ask("GET", "/v1/models/sim").status == 503


def test_a_request_waits_for_the_first_node(cluster):
    cluster.router()
    answers = []
    asking = threading.Thread(target=lambda: answers.append(cluster.chat("hello")))
    asking.start()
    cluster.node("a", "--time-scale", "0")
    asking.join()
    assert answers[0].status == 200
    cluster.wait_ready(1)
    assert cluster.chat("hello", model="nobody").status == 404


def test_the_last_membership_serves_while_etcd_is_away(cluster):
    router = cluster.router()
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready(1)
    stored = cluster.state_dir / "cognitora.members"
    until(lambda: stored.exists() and '"sim"' in stored.read_text(), "the membership is stored")
    router.stop()
    cluster.processes.remove(router)
    router = away(cluster)
    cluster.wait_ready(1)
    assert cluster.chat("hello").status == 200
    assert cluster.status()["state_stale"] and not cluster.status()["state_connected"]
    assert cluster.metric("cgn_state_stale") == 1
    assert router.events("state.members_stale")[0]["nodes"] == 1
    assert cluster.chat("hello", model="nobody").status == 503


def test_a_stored_membership_that_is_damaged_is_ignored(cluster):
    (cluster.state_dir / "cognitora.members").write_bytes(b'{"format":"cognitora members 1","nodes":[{"id":"a"')
    router = away(cluster)
    assert cluster.chat("hello").status == 503
    said = until(lambda: router.events("state.members_unreadable"), "it is said")
    assert said[0]["file"].endswith("cognitora.members") and "column" in said[0]["why"]
    assert not cluster.status()["state_stale"]


def test_many_models_do_not_fill_the_log(cluster):
    cluster.common = {f"models.m{i}": {} for i in range(500)}
    router = cluster.router()
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready(1)
    assert 0 < len(router.events("router.model_tokens")) <= 50
