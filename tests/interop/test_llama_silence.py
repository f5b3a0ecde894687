# SPDX-License-Identifier: Apache-2.0
"""Real llama-servers that compute another client's long prompt: the streams of this router's clients bring nothing meanwhile, and go on."""
import subprocess
import sys
import threading
import time

import pytest

from clients import Stream
from cluster import ROOT, Cluster, ask, free_port, until
from test_llama import Llama
from test_llama_slots import prose


@pytest.fixture
def servers(tmp_path, binary):
    """Two llama-servers that compute a prompt in one batch: "a" by an agent, "b" without one. The least limit of a silence, 50 ms."""
    model, ports, processes = tmp_path / "tiny.gguf", {name: free_port() for name in "ab"}, []
    subprocess.run([sys.executable, ROOT / "scripts/run/tiny-gguf.py", model], check=True, stdout=subprocess.DEVNULL)
    for port in ports.values():
        processes.append(subprocess.Popen([binary, "--model", model, "--alias", "tiny", "--host", "127.0.0.1", "--port", str(port), "--threads", "1", "--metrics",
                                           "--n-gpu-layers", "0", "--parallel", "2", "--ctx-size", "40000", "--batch-size", "16384", "--ubatch-size", "1024"],
                                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    with Cluster(tmp_path) as c:
        c.MODEL = "tiny"
        c.common["models.tiny"] = {"tokens": "bytes"}
        c.router({"router": {"stall_timeout": "50ms"}, "router.breaker": {"failures": 1, "open_for": "300s"},
                  "engine_nodes.b": {"url": f"http://127.0.0.1:{ports['b']}", "ready_interval": "50ms"}})
        until(lambda: all(Llama.answers(port) for port in ports.values()), "the servers are ready", wait_s=60)
        c.agent("a", ports["a"], {"engine": {"kind": "llama_cpp", "model": "tiny"}})
        c.wait_ready(2)
        c.ports = ports
        yield c
    for p in processes:
        p.kill()
        p.wait()


def longest_gap(stream):
    """Read the stream to its end; return the longest time without a byte."""
    longest, last = 0, time.monotonic()
    while b"[DONE]" not in stream.got and b"event: error" not in stream.got and stream.read():
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    return longest


def test_a_long_prompt_of_another_client_cuts_no_stream(servers):
    gaps, others = {}, []

    def read(name, stream):
        gaps[name] = longest_gap(stream)

    streams = {n: Stream(servers.http_port, f"tale of {n}", model="tiny", fields={"X-Cgn-Node": n}, max_tokens=3000, ignore_eos=True, temperature=0)
               .read_until(b"data: ") for n in "ab"}
    readers = [threading.Thread(target=read, args=row) for row in streams.items()]
    for name, port in servers.ports.items():  # past the router
        body = {"prompt": prose(ord(name), 5000), "n_predict": 1}
        others.append(threading.Thread(target=ask, args=(port, "POST", "/completion", body), kwargs={"wait_s": 120}))
    for t in readers + others:
        t.start()
    for t in readers + others:
        t.join()
    for name, s in streams.items():
        assert b"[DONE]" in s.got and b"event: error" not in s.got, (name, gaps, s.got[-300:])
    assert min(gaps.values()) > 0.1, gaps  # twice the limit: the case was met
    assert servers.metric("cgn_stalls_total") == 0
    assert {n["breaker"]["text"] for n in servers.status()["nodes"]} == {"closed"}
