# SPDX-License-Identifier: Apache-2.0
"""Real llama-servers as nodes of a router, without an agent, with a tiny random model."""
import subprocess
import sys

import pytest

from cluster import ROOT, Cluster, ask, free_port, until
from test_llama import ASK, Llama
from test_llama_resume import CHAT, ROUTER, read
from test_resume import Stream

THOUGHT = {"timings", "created", "id", "system_fingerprint"}


@pytest.fixture
def servers(tmp_path, binary):
    """Two llama-servers, and a router that has them as nodes and is told nothing but their addresses."""
    model, ports, processes = tmp_path / "tiny.gguf", {name: free_port() for name in "ab"}, []
    subprocess.run([sys.executable, ROOT / "scripts/run/tiny-gguf.py", model], check=True, stdout=subprocess.DEVNULL)
    for name, port in ports.items():
        with open(tmp_path / f"llama-{name}.log", "wb") as log:
            processes.append(subprocess.Popen([binary, "--model", model, "--alias", "tiny", "--host", "127.0.0.1", "--port", str(port), "--threads", "1",
                                               "--n-gpu-layers", "0", "--parallel", "2"], stdin=subprocess.DEVNULL, stdout=log, stderr=log))
    with Cluster(tmp_path) as c:
        c.router({f"engine_nodes.{name}": {"url": f"http://127.0.0.1:{port}", "ready_interval": "50ms"} for name, port in ports.items()}
                 | ROUTER)
        until(lambda: all(Llama.answers(port) for port in ports.values()), "the servers are ready")
        c.wait_ready(2)
        c.ports, c.servers = ports, dict(zip(ports, processes))
        yield c
        print(c.logs())
    for p in processes:
        p.kill()
        p.wait()


def kept(answer):
    return {k: v for k, v in answer.json().items() if k not in THOUGHT}


def test_it_is_known_by_its_list_and_answers_as_itself(servers):
    def told():
        engines = [n["engines"][0] for n in servers.status()["nodes"]]
        return [(e["kind"], e["models"], e["slots"]) for e in engines]
    until(lambda: told() == [("llama_cpp", ["tiny"], 2)] * 2, told)
    own = kept(ask(servers.ports["a"], "POST", "/v1/chat/completions", ASK))
    got = servers.ask("POST", "/v1/chat/completions", ASK, {"X-Cgn-Node": "b"})
    assert got.status == 200 and got.headers["x-cgn-node"] == "b"
    assert kept(got)["choices"] == own["choices"]
    until(lambda: servers.router_process.events("gateway.request")[-1]["tokens"] == "engine", "its own tokens are the blocks")


def test_the_second_turn_goes_where_the_first_went(servers):
    first = servers.ask("POST", "/v1/chat/completions", ASK)
    for _ in range(3):
        again = servers.ask("POST", "/v1/chat/completions", ASK)
        assert again.headers["x-cgn-node"] == first.headers["x-cgn-node"]


def test_an_answer_goes_on_at_the_other_when_one_dies(servers):
    s = Stream(servers, *CHAT)
    victim = s.wait_for(10)
    servers.servers[victim].kill()
    text, ids, ends, _ = read(s.end())
    assert ends == ["length"] and len(ids) == 1 and len(text) == CHAT[1]["max_tokens"]
    other = {"a": "b", "b": "a"}[victim]
    until(lambda: servers.states()[victim] != "ready", "its end is seen")
    assert servers.ask("POST", "/v1/chat/completions", ASK).headers["x-cgn-node"] == other


def test_idle_servers_sleep_and_the_next_request_wakes_them(tmp_path, binary):
    """One server as a node, one beside an agent: both are watched, and fall asleep."""
    model, ports, processes = tmp_path / "tiny.gguf", {name: free_port() for name in "ab"}, []
    subprocess.run([sys.executable, ROOT / "scripts/run/tiny-gguf.py", model], check=True, stdout=subprocess.DEVNULL)
    with Cluster(tmp_path) as c:
        try:
            for name, port in ports.items():
                with open(tmp_path / f"llama-{name}.log", "wb") as log:
                    processes.append(subprocess.Popen([binary, "--model", model, "--alias", "tiny", "--host", "127.0.0.1", "--port", str(port), "--threads",
                                                       "1", "--n-gpu-layers", "0", "--parallel", "1", "--metrics", "--sleep-idle-seconds", "2"],
                                                      stdin=subprocess.DEVNULL, stdout=log, stderr=log))
            c.router({"engine_nodes.a": {"url": f"http://127.0.0.1:{ports['a']}", "ready_interval": "50ms"}})
            c.agent("b", ports["b"], {"engine": {"kind": "llama_cpp", "model": "tiny"}})
            c.wait_ready(2)

            def states():
                return {n["id"]: [f["state"] for f in n["engines"][0]["facts"]] for n in c.status()["nodes"]}
            for name in ports:
                assert c.ask("POST", "/v1/chat/completions", ASK, {"X-Cgn-Node": name}).status == 200
            until(lambda: states() == {"a": ["asleep"], "b": ["asleep"]}, states)
            assert c.states() == {"a": "ready", "b": "ready"}
            for name, port in ports.items():
                assert ask(port, "GET", "/props").json()["is_sleeping"]
                assert c.ask("POST", "/v1/chat/completions", ASK, {"X-Cgn-Node": name}).status == 200
                assert not ask(port, "GET", "/props").json()["is_sleeping"]
        finally:
            for p in processes:
                p.kill()
                p.wait()
