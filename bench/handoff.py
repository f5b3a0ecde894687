#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what a hand-off between two engines adds to a request, beside the transfer and the computing.

    bench/handoff.py --build build/release --out bench/results/handoff.json

The engines are cgn-sim without waiting (--time-scale 0) and with values of 8 bytes, so that computing and transfer take next to
no time. For each dialect two ways are measured in turns, one request at a time on kept-alive connections:

  engines   both legs sent straight to the engines, as the router sends them: what the engines and the transfer take
  pair      through router and agents: two legs

added_ms is the difference of the medians: all that the router and the agents of both nodes add, to both legs."""
import argparse
import datetime
import http.client
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT / "tests/e2e")  # and not this folder, whose queue.py hides the library's
import concurrent.futures  # noqa: E402


def words(n, rng):
    return " ".join("".join(rng.choices("abcdefgh", k=4)) for _ in range(n))


class Client:
    def __init__(self, port):
        self.c = http.client.HTTPConnection("127.0.0.1", port)

    def post(self, body):
        self.c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = self.c.getresponse()
        data = r.read()
        assert r.status == 200, data
        return json.loads(data)


def legs(kind, n, p_port, params):
    """Return what both legs have besides the request."""
    if kind == "nixl":
        return {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}, {"kv_transfer_params": params}
    if kind == "p2p":
        return ({"kv_transfer_params": {"remote_decoder": {"kv_request_id": str(n)}}},
                {"kv_transfer_params": {"remote_prefiller": {"kv_request_id": str(n), "remote_host": "127.0.0.1", "remote_port": p_port}}})
    first = {"disaggregated_params": {"request_type": "context_only", "disagg_request_id": n}}
    return first, {"disaggregated_params": {**(params or {}), "request_type": "generation_only"}}


POOL = concurrent.futures.ThreadPoolExecutor(1)


def at_once(kind, n, p, d, p_port, engine, body):
    """Send both legs at the same time."""
    if kind == "sglang":
        first = second = {"bootstrap_host": "127.0.0.1", "bootstrap_port": p_port, "bootstrap_room": n}
    else:
        first = {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": str(n)}}
        second = {"kv_transfer_params": {"do_remote_decode": False, "do_remote_prefill": True, "transfer_id": str(n), "remote_engine_id": engine,
                                         "remote_bootstrap_addr": f"http://127.0.0.1:{p_port}"}}
    beside = POOL.submit(p.post, {**body, **first})
    answer = d.post({**body, **second})
    beside.result()
    return answer


def straight(kind, n, p, d, p_port, body):
    first, _ = legs(kind, n, p_port, None)
    a = p.post({**body, **first, "max_tokens": 1})
    params = a["kv_transfer_params"] if kind == "nixl" else a["choices"][0].get("disaggregated_params")
    return d.post({**body, **legs(kind, n, p_port, params)[1]})


def measure(kind, requests, tokens, folder):
    from cluster import ask, until
    from test_handoff import World
    w = World(folder, kind)
    try:
        for name, role in (("p", "prefill"), ("d", "decode")):
            w.start(name, role, "--time-scale", "0", "--kv-block-bytes", "8")
        w.c.wait_ready()
        until(lambda: w.told(w.c.nodes["p"]) and w.told(w.c.nodes["d"]), "the engines are known")
        rng, ports = random.Random(kind), {n: w.c.nodes[n].engine_port for n in w.c.nodes}
        p, d, router = (Client(port) for port in (ports["p"], ports["d"], w.c.http_port))
        ways = {"engines": lambda n, b: straight(kind, n, p, d, ports["p"], b), "pair": lambda n, b: router.post(b)}
        if kind in ("mooncake", "sglang"):
            engine = ask(ports["p"], "GET", "/query").json()["0"]["engine_id"] if kind == "mooncake" else None
            ways["engines"] = lambda n, b: at_once(kind, n, p, d, ports["p"], engine, b)
        times = {way: [] for way in ways}
        for n in range(requests + 20):
            for way, run in ways.items():
                body = {"model": "sim", "prompt": words(tokens // 2, rng), "max_tokens": 1, "temperature": 0}
                began = time.perf_counter()
                run(1 << 42 | n, body)
                if n >= 20:
                    times[way].append((time.perf_counter() - began) * 1e3)
        stats = ask(ports["d"], "GET", "/sim/state").json()["handoff"]
        assert stats["recomputed"] == 0 and stats["taken"] >= requests, stats
        out = {way: {"p50": round(statistics.median(t), 3), "p99": round(sorted(t)[int(len(t) * 0.99)], 3)} for way, t in times.items()}
        return {**out, "added_ms": round(out["pair"]["p50"] - out["engines"]["p50"], 3)}
    finally:
        w.c.close()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build/release")
    p.add_argument("--requests", type=int, default=300)
    p.add_argument("--tokens", type=int, default=2000)
    p.add_argument("--out")
    a = p.parse_args()
    os.environ["CGN_BUILD"] = str(pathlib.Path(a.build).resolve())
    result = {"date": datetime.date.today().isoformat(), "requests": a.requests, "prompt_tokens": a.tokens, "load": os.getloadavg()[0], "kinds": {}}
    for kind in ("nixl", "p2p", "trtllm", "mooncake", "sglang"):
        with tempfile.TemporaryDirectory() as folder:
            result["kinds"][kind] = measure(kind, a.requests, a.tokens, pathlib.Path(folder))
        print(kind, json.dumps(result["kinds"][kind]), flush=True)
    if a.out:
        pathlib.Path(a.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
