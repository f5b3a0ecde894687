# SPDX-License-Identifier: Apache-2.0
"""Engines that are loaded when requests ask for their models (agent.max_loaded, agent.memory, engine.keep_alive)."""
import concurrent.futures
import contextlib
import os
import signal
import socket
import subprocess

import pytest

from clients import Stream
from cluster import BUILD, free_port, until
from swap_world import SIM, Machine

CTL = str(BUILD / "src/ctl/cgn-ctl")
SLOW = ("--decode-ms", "20")
QUICK = {"swap_residence": "100ms"}


@pytest.fixture
def machine(tmp_path):
    made = []

    def start(engines, **more):
        made.append(Machine(tmp_path, engines, **more))
        return made[0]
    try:
        yield start
    except BaseException:
        print(made[0].c.logs() if made else "")
        raise
    finally:
        trouble = made[0].end() if made else []
    assert not trouble, "\n".join(trouble)


def ctl(m, *args):
    return subprocess.run([CTL, *args, "--router", f"127.0.0.1:{m.c.grpc_port}"], capture_output=True, text=True, timeout=60)


def takes(port):
    """Return true if a connection to the port succeeds."""
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def test_models_are_loaded_for_requests_and_leave_for_others(machine):
    m = machine({"a": {}, "b": {}, "c": {}}, max_loaded=2, **QUICK)
    assert m.running() == [] and set(m.states().values()) == {"loadable"}
    assert sorted(x["id"] for x in m.c.ask("GET", "/v1/models").json()["data"]) == ["a", "b", "c"]
    assert m.chat("a").status == 200 and m.running() == ["a"]
    assert m.chat("b").status == 200 and m.running() == ["a", "b"]
    assert m.chat("a").status == 200
    assert m.chat("c").status == 200
    assert m.running() == ["a", "c"], "the one that was unused for longest left"
    assert m.states() == {"a": "ready", "b": "loadable", "c": "ready"}
    shown = ctl(m, "model", "ls").stdout
    assert [line.split()[0] for line in shown.splitlines() if "loadable" in line] == ["b"], shown
    until(lambda: "a (loaded),b (loadable),c (loaded)" in ctl(m, "cluster", "nodes").stdout, lambda: ctl(m, "cluster", "nodes").stdout)
    assert m.metric("cgn_swap_loads_total", outcome="ok") == 3 and len(m.events("swap.unloaded", engine="b")) == 1


def test_two_busy_models_take_turns_and_no_stream_is_cut(machine):
    m = machine({"a": {"args": SLOW}, "b": {"args": SLOW}}, max_loaded=1, swap_residence="300ms")

    def client(name):
        got = []
        for _ in range(6):
            with contextlib.closing(Stream(m.c.http_port, "hello", model=name, max_tokens=8, ignore_eos=True)) as s:
                got.append(s.read_until(b"data: [DONE]").got)
        return got
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = [a for got in pool.map(client, "ababab") for a in got]
    assert all(b" 200 " in a.split(b"\r\n")[0] and b"[DONE]" in a for a in answers), [a[-200:] for a in answers if b"[DONE]" not in a]
    loads = {n: m.metric("cgn_swap_loads_total", engine=n) for n in "ab"}
    assert all(1 <= n <= 18 for n in loads.values()), loads
    for e in m.events("swap.unload"):
        assert e["loaded_for_ms"] >= 250 or e["idle_for_ms"] >= 250, e  # nobody is sent away at once


def test_a_client_that_does_not_wait_loads_nothing(machine):
    m = machine({"a": {}}, max_loaded=1, **QUICK)
    ask = {"model": "a", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    refused = m.c.ask("POST", "/v1/chat/completions", ask, {"Prefer": "if-available"})
    assert refused.status == 503 and refused.json()["error"]["code"] == "would_wait" and "loaded" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1 and m.states() == {"a": "loadable"}
    assert m.chat("a").status == 200
    until(lambda: m.c.ask("POST", "/v1/chat/completions", ask, {"Prefer": "if-available"}).status == 200, "the router knows that it is loaded")


def test_a_higher_priority_does_not_wait(machine):
    m = machine({"low": {"args": SLOW}, "high": {"priority": 5}}, max_loaded=1, swap_residence="1h")
    with contextlib.closing(Stream(m.c.http_port, "hello", model="low", max_tokens=30, ignore_eos=True)) as s:
        s.read_until(b"data: ")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            high = pool.submit(m.chat, "high")
            until(lambda: m.waiting()["high"] == 1, "it waits for the stream's end")
            low = pool.submit(m.chat, "low")
            until(lambda: m.waiting()["low"] == 1, "no further request of the other one begins")
            s.read_until(b"[DONE]")
            assert high.result().status == 200
            until(lambda: m.running() == ["high"] or low.done(), "the low one waits again")
            assert low.result().status == 200  # the high one is idle by then


def test_memory_is_the_limit(machine):
    m = machine({"a": {"memory": "4GiB"}, "b": {"memory": "4GiB"}, "c": {"memory": "7GiB"}}, memory="8GiB", **QUICK)
    assert m.chat("a").status == 200 and m.chat("b").status == 200 and m.running() == ["a", "b"]
    assert m.chat("c").status == 200 and m.running() == ["c"]
    assert m.chat("a").status == 200 and m.running() == ["a"]
    assert {e["on_demand"]["memory_bytes"] >> 30 for e in m.engines().values()} == {4, 7}


def test_an_idle_model_is_unloaded_after_keep_alive(machine):
    m = machine({"a": {"keep_alive": "200ms"}, "b": {}}, **QUICK)  # no limit: b is not on demand
    until(lambda: m.running() == ["b"], "b is started with the agent")
    assert m.chat("a").status == 200
    until(lambda: m.running() == ["b"], "a is unloaded")
    assert m.chat("a").status == 200


def test_a_killed_engine_comes_back_for_its_requests(machine):
    m = machine({"a": {"args": ("--time-scale", "0", "--fault", "slow-start=300ms")}, "b": {}}, max_loaded=1, **QUICK)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(m.chat, "a")
        pid = until(lambda: m.engines()["a"]["pid"], "it is being loaded")
        os.kill(pid, signal.SIGKILL)
        assert first.result().status == 200
    os.kill(m.engines()["a"]["pid"], signal.SIGKILL)
    until(lambda: not takes(m.port["a"]), "its port is closed; the agent may not know yet that it has ended")
    assert m.chat("a").status == 200
    assert m.chat("b").status == 200 and m.running() == ["b"]


def test_a_request_waits_for_an_engine_that_refuses_its_connection(machine, tmp_path):
    """The engine's port is closed before its process has ended, so that the agent takes it for loaded."""
    slow = tmp_path / "slow"
    slow.write_text(f"#!/bin/sh\n{SIM} \"$@\"\nsleep 0.3\nexit 1\n")
    slow.chmod(0o755)
    m = machine({"a": {"binary": str(slow)}}, max_loaded=1, **QUICK)
    assert m.chat("a").status == 200
    shell = m.engines()["a"]["pid"]
    with open(f"/proc/{shell}/task/{shell}/children") as f:
        os.kill(int(f.read()), signal.SIGKILL)
    until(lambda: not takes(m.port["a"]), "its port is closed")
    assert m.engines()["a"]["pid"] == shell
    assert m.chat("a").status == 200
    assert m.engines()["a"]["pid"] != shell


def test_a_model_that_never_loads_tells_why_and_when_to_come_again(machine, tmp_path):
    bad = tmp_path / "bad"
    bad.write_text("#!/bin/sh\necho 'error while loading shared libraries: libggml.so: cannot open shared object file' >&2\nexit 127\n")
    bad.chmod(0o755)
    m = machine({"bad": {"binary": str(bad)}, "slow": {"args": ("--fault", "slow-start=3600s"), "ready_timeout": "300ms"}, "well": {}}, max_loaded=1, **QUICK)
    got = m.chat("bad")
    assert got.status == 503 and 1 <= int(got.headers["retry-after"]) <= 10, got.body
    assert got.json()["error"]["code"] == "model_not_loaded" and "libggml" in got.json()["error"]["message"], got.body
    again = m.chat("bad")
    assert again.status == 503 and int(again.headers["retry-after"]) <= 10
    assert len(m.events("swap.load", engine="bad")) == 1, "it is not tried for each request"
    got = m.chat("slow")
    assert got.status == 503 and "ready_timeout" in got.json()["error"]["message"], got.body
    assert m.chat("well").status == 200 and m.running() == ["well"]  # the node has no open breaker
    assert m.states() == {"bad": "failed", "slow": "failed", "well": "ready"}


def test_a_port_in_use_is_told(machine):
    with socket.socket() as s:
        port = free_port()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", port))
        s.listen()
        m = machine({"a": {"url": f"http://127.0.0.1:{port}"}, "b": {}}, max_loaded=1, **QUICK)
        got = m.chat("a")
        assert got.status == 503 and "in use" in got.json()["error"]["message"], got.body
    assert m.chat("b").status == 200


def test_a_client_that_leaves_frees_the_place(machine):
    m = machine({"slow": {"args": ("--fault", "slow-start=3600s")}, "b": {}}, max_loaded=1, **QUICK)
    with contextlib.closing(Stream(m.c.http_port, "hello", model="slow")):
        until(lambda: m.waiting()["slow"] == 1 and m.running() == ["slow"], "it waits for the load")
    until(lambda: m.waiting()["slow"] == 0, "it has left")
    assert m.chat("b").status == 200 and m.running() == ["b"]


def test_no_more_wait_than_may(machine):
    m = machine({"slow": {"args": ("--fault", "slow-start=3600s")}, "b": {}}, router={"models.slow": {"tokens": "bytes"}}, max_loaded=1, max_waiting=2, swap_residence="5s")
    with contextlib.ExitStack() as all_of_them:
        for _ in range(2):
            all_of_them.enter_context(contextlib.closing(Stream(m.c.http_port, "hello", model="slow")))
        until(lambda: m.waiting()["slow"] == 2, "two wait")
        got = m.chat("slow")
        assert got.status == 503 and "agent.max_waiting" in got.json()["error"]["message"] and int(got.headers["retry-after"]) >= 1, got.body


def test_operators_orders_go_before(machine):
    m = machine({"a": {}, "b": {}}, router={"router.admission": {"node_wait": "100ms"}}, max_loaded=1, **QUICK)
    done = ctl(m, "model", "load", "a", "--wait", "--timeout", "20s")
    assert done.returncode == 0 and m.running() == ["a"], done.stdout + done.stderr
    assert m.chat("b").status == 200 and m.running() == ["b"]  # an order to load is obeyed once
    done = ctl(m, "model", "unload", "b", "--wait", "--timeout", "20s")
    assert done.returncode == 0 and m.running() == [], done.stdout + done.stderr
    assert m.chat("b").status == 503 and m.chat("a").status == 200
    assert ctl(m, "model", "load", "b", "--wait", "--timeout", "20s").returncode == 0
    assert m.chat("b").status == 200


def test_an_engine_that_can_sleep_is_not_stopped(machine, tmp_path):
    vllm = tmp_path / "vllm"  # takes the model and the port from vLLM's command line
    vllm.write_text(f"""#!/bin/sh
while [ $# -gt 0 ]; do case $1 in --port) port=$2;; --served-model-name) model=$2;; esac; shift; done
exec {SIM} --listen 127.0.0.1:$port --model "$model" --time-scale 0 --sleep
""")
    vllm.chmod(0o755)
    m = machine({"a": {"kind": "vllm", "binary": str(vllm), "extra_args": [], "kv_events": "none", "model_path": "/m"}, "b": {}}, max_loaded=1, **QUICK)
    assert m.chat("a").status == 200
    pid = m.engines()["a"]["pid"]
    assert m.chat("b").status == 200 and m.running() == ["a", "b"]
    assert m.states()["a"] == "loadable" and m.engines()["a"]["rest"] == "asleep"
    assert m.chat("a").status == 200 and m.engines()["a"]["pid"] == pid
    assert [e["by"] for e in m.events("swap.unloaded")] == ["sleep", "stop"]


def test_the_agent_drains_with_waiting_requests(machine):
    m = machine({"a": {"args": ("--time-scale", "0", "--fault", "slow-start=500ms")}}, router={"models.a": {"tokens": "bytes"}}, max_loaded=1, **QUICK)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        got = pool.submit(m.chat, "a")
        until(lambda: m.waiting()["a"] == 1, "it waits")
        m.agent.signal(signal.SIGTERM)
        assert got.result().status == 200
    assert m.agent.wait() == 0


def test_ollamas_keep_alive_and_ps(machine):
    m = machine({"a": {}, "b": {"keep_alive": "1h", "memory": "3GiB"}}, max_loaded=2, **QUICK)

    def ps():
        return {x["name"]: x for x in m.c.ask("GET", "/api/ps").json()["models"]}

    def post(path, **body):
        return m.c.ask("POST", path, body)
    assert ps() == {} and {x["name"] for x in m.c.ask("GET", "/api/tags").json()["models"]} == {"a", "b"}
    got = post("/api/generate", model="a", stream=False)
    assert got.status == 200 and got.json()["done_reason"] == "load" and m.running() == ["a"], got.body
    assert post("/api/generate", model="b", prompt="hello", stream=False).status == 200
    until(lambda: set(ps()) == {"a", "b"}, lambda: ps())
    assert ps()["a"]["expires_at"].startswith("9999") and not ps()["b"]["expires_at"].startswith("9999") and ps()["b"]["size"] == 3 << 30
    assert post("/api/chat", model="b", messages=[{"role": "user", "content": "hello"}], stream=False, keep_alive=-1).status == 200
    until(lambda: ps()["b"]["expires_at"].startswith("9999"), lambda: ps())
    assert post("/api/chat", model="b", messages=[{"role": "user", "content": "hello"}], stream=False, keep_alive="300ms").status == 200
    until(lambda: m.running() == ["a"] and set(ps()) == {"a"}, "b is unloaded")
    got = post("/api/generate", model="a", keep_alive=0)
    assert got.status == 200 and got.json()["done_reason"] == "unload"
    until(lambda: m.running() == [] and ps() == {}, "a is unloaded")
    assert post("/api/chat", model="b", keep_alive=0).json()["done_reason"] == "unload" and m.running() == []  # nothing is loaded for it
    assert post("/api/embed", model="a", keep_alive="5m").json()["embeddings"] == [] and m.running() == ["a"]
    assert "keep_alive" in post("/api/chat", model="a", keep_alive="soon").json()["error"]
