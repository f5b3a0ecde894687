# SPDX-License-Identifier: Apache-2.0
"""Sessions of agents: what names them, their turns, the tools that they wait for, and where they are shown."""
import json
import subprocess
import threading

import pytest

from cluster import BUILD, Cluster, ask, until
from test_kv_events import endpoints
from test_queue import as_key, keys_of

CTL = str(BUILD / "src/ctl/cgn-ctl")
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"tools": TOOLS, "tool_choice": "required"}


@pytest.fixture
def fleet(cluster):
    cluster.router()
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready()
    return cluster


def sessions(c):
    return ask(c.admin_port, "GET", "/sessions").json()


def only(c):
    """Return the one session, once none of its requests runs."""
    def ended():
        (s,) = sessions(c)["sessions"]
        return s["running"] == 0 and s
    return until(ended, lambda: sessions(c))


def metric(c, name, **labels):
    return c.metric(name, ask(c.admin_port, "GET", "/metrics").body.decode(), **labels)


@pytest.mark.parametrize("header,source", [
    ("X-Cgn-Session", "x-cgn-session"), ("x-claude-code-session-id", "claude-code"), ("x-session-affinity", "opencode"),
    ("session-id", "codex"), ("session_id", "codex"), ("x-dynamo-session-id", "dynamo")])
def test_the_headers_of_clients_name_sessions(fleet, header, source):
    for _ in range(2):
        assert fleet.chat("hello", {header: "s-1"}, max_tokens=2).status == 200
    s = only(fleet)
    assert (s["id"], s["from"], s["turns"], s["tenant"], s["node"], s["state"]) == ("s-1", source, 2, "-", "a", "idle")
    assert s["prompt_tokens"] > 0 and s["completion_tokens"] == 4
    assert metric(fleet, "cgn_session_turns_total", **{"from": source}) == 2


def test_tokens_of_streams_that_report_none_are_estimated(fleet):
    assert fleet.chat("hello " * 300, {"X-Cgn-Session": "s"}, max_tokens=8, stream=True).status == 200
    s = only(fleet)
    assert s["prompt_tokens"] >= 300 and s["completion_tokens"] == 8 and s["recent_tokens"] >= 300, s


def test_ours_goes_first_and_what_is_no_id_names_none(fleet):
    fleet.chat("hello", {"session-id": "codex", "X-Cgn-Session": "mine"}, max_tokens=1)
    assert only(fleet)["id"] == "mine"
    for bad in ("a b", "x" * 129, ""):
        assert fleet.chat("hello", {"X-Cgn-Session": bad}, max_tokens=1).status == 200
    assert only(fleet)["turns"] == 1
    fleet.chat("hello", {"X-Cgn-Session": "a b", "session-id": "next"}, max_tokens=1)
    assert [s["id"] for s in sessions(fleet)["sessions"]] == ["next", "mine"]


def test_equal_ids_of_two_tenants_are_two_sessions(cluster):
    keys_of(cluster, "red", "blue")
    cluster.router()
    cluster.node("a", "--time-scale", "0")
    until(lambda: cluster.chat("hello", as_key("red", **{"X-Cgn-Session": "same"}), max_tokens=1).status == 200, "the node is ready")
    assert cluster.chat("hello", as_key("blue", **{"X-Cgn-Session": "same"}), max_tokens=1).status == 200
    until(lambda: all(s["running"] == 0 for s in sessions(cluster)["sessions"]), lambda: sessions(cluster))
    assert {(s["tenant"], s["id"]) for s in sessions(cluster)["sessions"]} == {("red", "same"), ("blue", "same")}
    assert [s["turns"] for s in sessions(cluster)["sessions"] if s["tenant"] == "blue"] == [1]


def test_claude_code_names_its_session_in_the_body_too(fleet):
    body = {"model": fleet.MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}],
            "metadata": {"user_id": "user_01ab_account_23cd_session_45-ef"}}
    assert fleet.ask("POST", "/v1/messages", body).status == 200
    assert fleet.ask("POST", "/v1/messages", body, {"x-claude-code-session-id": "from-head"}).status == 200
    body["metadata"] = {"user_id": "someone"}
    assert fleet.ask("POST", "/v1/messages", body).status == 200
    assert [(s["id"], s["from"]) for s in sessions(fleet)["sessions"]] == [("from-head", "claude-code"), ("45-ef", "metadata")]


def test_a_session_waits_for_its_tool_and_the_time_is_learned(fleet):
    head = {"X-Cgn-Session": "loop"}
    shapes = [("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **CALL}),
              ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "tools": [
                  {"name": "bash", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"}}),
              ("/v1/responses", {"input": "hi", "tools": [{"type": "function", "name": "bash", "parameters": {}}], "tool_choice": "required"})]
    calls = 0
    for path, body in shapes:
        for stream in (True, False):
            got = fleet.ask("POST", path, {"model": fleet.MODEL, "stream": stream, **body}, head)
            assert got.status == 200 and b"bash" in got.body, got.body
            calls += 1
            s = only(fleet)
            assert (s["state"], s["tool"], s["tool_calls"], s["turns"]) == ("tool", "bash", calls, calls), (path, stream, s)
    until(lambda: metric(fleet, "cgn_sessions", state="tool") == 1, "the gauge follows")
    assert fleet.chat("done", head, max_tokens=1).status == 200
    s = only(fleet)
    assert s["state"] == "idle" and s["tool_ms"] > 0
    (tool,) = sessions(fleet)["tools"]
    assert tool["name"] == "bash" and tool["samples"] == calls and 0 < tool["p50_ms"] <= tool["p90_ms"]
    assert metric(fleet, "cgn_tool_pause_seconds_count") == calls
    assert metric(fleet, "cgn_session_return_tokens_total", kind="prompt") > 0
    fleet.ask("POST", "/v1/chat/completions", {"model": fleet.MODEL, **shapes[0][1]}, head)
    s = only(fleet)
    assert s["expected_p90_ms"] >= s["expected_ms"] > 0  # a forecast is made from what was learned


def test_text_about_tools_is_no_call(fleet):
    body = {"model": fleet.MODEL, "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "tool_choice": "none", "max_tokens": 4}
    assert fleet.ask("POST", "/v1/chat/completions", body, {"X-Cgn-Session": "s"}).status == 200
    assert only(fleet)["state"] == "idle"


def test_explain_log_and_ctl_show_sessions(fleet):
    for i in range(3):
        fleet.chat("hello", {"X-Cgn-Session": "mine", "X-Request-Id": f"turn-{i + 1}"}, max_tokens=1)
    fleet.chat("hello", {"X-Request-Id": "other"}, max_tokens=1)
    only(fleet)
    got = ask(fleet.admin_port, "GET", "/explain?session=mine").json()["requests"]
    assert sorted((r["id"], r["end"]["session"], r["end"]["turn"]) for r in got) == [(f"turn-{i}", "mine", i) for i in (1, 2, 3)]
    assert ask(fleet.admin_port, "GET", "/explain?session=nobody").status == 404
    lines = [e for e in fleet.router_process.events("gateway.request") if e["session"] == "mine"]
    assert [(e["id"], e["turn"]) for e in lines] == [(f"turn-{i}", i) for i in (1, 2, 3)]

    def ctl(*args):
        return subprocess.run([CTL, *args], capture_output=True, text=True, timeout=60)
    got = ctl("explain", "--session", "mine", "--router", f"127.0.0.1:{fleet.grpc_port}")
    assert got.returncode == 0 and got.stdout.count("mine") == 3 and "other" not in got.stdout, got
    admin = f"127.0.0.1:{fleet.admin_port}"
    got = ctl("session", "ls", "--admin", admin)
    assert got.returncode == 0 and got.stdout.splitlines()[1].split()[:4] == ["mine", "-", "x-cgn-session", "idle"], got
    assert json.loads(ctl("session", "ls", "--admin", admin, "-o", "json").stdout)["known"] == 1
    assert ctl("session", "ls", "--tools", "--admin", admin).stdout.split() == ["TOOL", "SAMPLES", "P50", "MS", "P90", "MS"]
    assert ask(fleet.admin_port, "GET", "/sessions?last=0").status == 400


def test_sessions_are_sorted_filtered_and_paged(cluster):
    c = cluster
    c.router()
    events = endpoints()
    c.node("a", "--time-scale", "0", "--kv-events", events[0], "--kv-events-replay", events[1], model="sim",
           sections={"engine": {"kv_events": events[0], "kv_events_replay": events[1]}})
    c.node("b", "--time-scale", "0", model="org/big")
    until(lambda: list(c.states().values()).count("ready") == 2, c.logs)
    for name, model, turns in (("one", "sim", 1), ("two", "org/big", 3), ("three", "sim", 2)):
        for _ in range(turns):
            assert until(lambda: (r := c.chat("hello " * 40, {"X-Cgn-Session": name}, model=model, max_tokens=2)).status == 200 and r, c.logs)

    def listed(query="", who="id"):
        return [s.get(who, "-") for s in ask(c.admin_port, "GET", f"/sessions?{query}").json()["sessions"]]
    until(lambda: len(listed("state=idle")) == 3, c.logs)
    assert listed() == ["three", "two", "one"] and listed(who="model") == ["sim", "org/big", "sim"]
    # What the engine tells of its blocks: those of "one" and "three" are there; of "two" nothing is told.
    until(lambda: listed("sort=turns", "kv") == ["-", "gpu", "gpu"], c.logs)
    assert listed("sort=turns") == ["two", "three", "one"] and listed("sort=age") == ["one", "two", "three"]
    assert listed("sort=turns&last=1&skip=1") == ["three"] and ask(c.admin_port, "GET", "/sessions?last=1").json()["matched"] == 3
    assert listed("model=org%2Fbig") == ["two"] == listed("node=b") and listed("tenant=other") == [] == listed("state=running")
    for bad in ("sort=size", "state=lost", "skip=-1", "last=1001", "model=" + "x" * 600, "limit=5"):
        assert ask(c.admin_port, "GET", f"/sessions?{bad}").status == 400, bad
    got = subprocess.run([CTL, "session", "ls", "--admin", f"127.0.0.1:{c.admin_port}", "--model", "org/big", "--sort", "tokens"], capture_output=True, text=True)
    head, row = got.stdout.splitlines()
    assert row.split()[:7] == ["two", "-", "x-cgn-session", "idle", "-", "org/big", "b"] and "KV" in head.split() and not got.stderr, got
    got = subprocess.run([CTL, "session", "ls", "--admin", f"127.0.0.1:{c.admin_port}", "--last", "1"], capture_output=True, text=True)
    assert "1 of 3 sessions; --skip 1" in got.stderr, got


def test_memory_for_sessions_is_bounded_and_may_be_none(tmp_path):
    with Cluster(tmp_path) as c:
        c.router({"router": {"sessions": 8, "worker_threads": 2}})
        c.node("a", "--time-scale", "0")
        c.wait_ready()
        talkers = [threading.Thread(target=lambda k=k: [c.chat("hi", {"X-Cgn-Session": f"{k}-{i}"}, max_tokens=1) for i in range(20)]) for k in range(4)]
        for t in talkers:
            t.start()
        for t in talkers:
            t.join()
        until(lambda: all(s["running"] == 0 for s in sessions(c)["sessions"]), lambda: sessions(c))
        assert sessions(c)["known"] == 8 and all(s["turns"] == 1 for s in sessions(c)["sessions"])
    (tmp_path / "off").mkdir()
    with Cluster(tmp_path / "off") as c:
        c.router({"router": {"sessions": 0}})
        c.node("a", "--time-scale", "0")
        c.wait_ready()
        assert c.chat("hi", {"X-Cgn-Session": "s"}, max_tokens=1).status == 200
        assert ask(c.admin_port, "GET", "/sessions").status == 404
