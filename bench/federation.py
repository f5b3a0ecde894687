#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare three clusters that forward to each other with one cluster of all their nodes, on the same requests: conversations
that belong to a region, with a system prompt of one of several applications, while the load moves from region to region. The
ways between the clusters take 40, 80 and 150 ms there and back and lose a packet of a hundred (network namespaces, so root);
the one cluster is asked without any way. cgn-sim in real time. JSON to stdout: hits (cached prompt tokens of all), time to
first token in ms, and what left. --alone adds three clusters that do not forward."""
import argparse
import collections
import contextlib
import http.client
import json
import math
import pathlib
import random
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seconds", type=float, default=60, help="length of a day")
parser.add_argument("--rate", type=float, default=6, help="requests a second, of all regions")
parser.add_argument("--nodes", type=int, default=2, help="nodes of a region")
parser.add_argument("--interval", default="500ms", help="router.federation.summary_interval")
parser.add_argument("--alone", action="store_true")
parser.add_argument("--trace", type=pathlib.Path, help="instead of conversations: a trace in Mooncake's format, whose first --trace-seconds are played in "
                    "--seconds; a block of it has --block-tokens tokens here, and answers are as much shorter")
parser.add_argument("--trace-seconds", type=float, default=600)
parser.add_argument("--block-tokens", type=int, default=16, help="of 512")
parser.add_argument("--prefill", default="4000", help="tokens a second of a node")
parser.add_argument("--decode-ms", default="5")
parser.add_argument("--kv-blocks", default="8192", help="of 16 tokens, on each node")
parser.add_argument("--way", type=float, default=1, help="factor on the ways' times: 0.2 for a trace that is played five times as fast")
parser.add_argument("--swing", type=float, default=0.8, help="share by which a region's rate goes up and down in a day")
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
if __name__ == "__main__":
    a = parser.parse_args()  # before the imports of tests/
from cluster import Cluster, ask  # noqa: E402
from test_federation import Fed  # noqa: E402
from test_kv_events import endpoints  # noqa: E402
from wan_way import WanWay  # noqa: E402

REGIONS = "abc"
WAYS_MS = {"ab": 40, "bc": 80, "ac": 150}
ENGINE = ("--prefill-tokens-per-s", a.prefill, "--decode-ms", a.decode_ms, "--kv-blocks", a.kv_blocks)
APPLICATIONS, SYSTEM_TOKENS, TURN_TOKENS, TURNS, ANSWER = 6, 800, 200, 6, 120
LIMIT = {"max_concurrent_per_replica": 4, "queue_timeout": "60s"}


def trace():
    """Return [(second, region, token ids of the prompt)]; each region has its peak in its own third of the day."""
    rng, out, clock, sessions = random.Random(1), [], 0.0, 0
    while True:
        clock += rng.expovariate(a.rate / TURNS)
        if clock > a.seconds:
            return sorted(out, key=lambda r: r[0])
        region = rng.choices(range(3), [max(0.1, 1 + math.cos(2 * math.pi * (clock / a.seconds - i / 3))) for i in range(3)])[0]
        application, sessions, at = rng.randrange(APPLICATIONS), sessions + 1, clock
        prompt = [application * 10000 + i for i in range(SYSTEM_TOKENS)]
        for turn in range(TURNS):
            prompt = prompt + [100000 + sessions * 2000 + turn * TURN_TOKENS + i for i in range(TURN_TOKENS)]
            out.append((at, REGIONS[region], prompt, ANSWER))
            at += 2 + rng.expovariate(0.5)


def shifted(share, region):
    """Return when in its day, from 0 to 1, a region has had |share| of its requests: the peaks of the regions follow each other."""
    def had(t):
        turn = 2 * math.pi
        return t + a.swing / turn * (math.sin(turn * (t - region / 3)) + math.sin(turn * region / 3))
    low, high = 0.0, 1.0
    for _ in range(40):
        low, high = ((low + high) / 2, high) if had((low + high) / 2) < share else (low, (low + high) / 2)
    return low


def trace_read():
    """As trace(), from a file. A request belongs to the region of the first block that less than one in a hundred requests have."""
    with open(a.trace) as file:
        rows = [r for r in map(json.loads, file) if r["timestamp"] < a.trace_seconds * 1000]
    common = collections.Counter(b for r in rows for b in set(r["hash_ids"]))
    out = []
    for r in rows:
        own = next((b for b in r["hash_ids"] if common[b] < len(rows) / 100), r["hash_ids"][0])
        region = random.Random(own).randrange(len(REGIONS))
        prompt = [b * a.block_tokens + i for b in r["hash_ids"] for i in range(a.block_tokens)]
        out.append((a.seconds * shifted(r["timestamp"] / a.trace_seconds / 1000, region), REGIONS[region], prompt, max(1, r["output_length"] * a.block_tokens // 512)))
    return sorted(out, key=lambda r: r[0])


def send(port, prompt, answer, out):
    body = {"model": "sim", "prompt": prompt, "max_tokens": answer, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    began = time.monotonic()
    try:
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        r.read(1)
        ttft = time.monotonic() - began
        text = r.read().decode()
        usage = next(json.loads(line[6:])["usage"] for line in reversed(text.splitlines()) if line.startswith("data: {") and '"usage":{' in line)
        out.append((ttft, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], r.getheader("x-cgn-peer")))
    except (OSError, http.client.HTTPException, StopIteration, KeyError, TypeError):
        out.append(None)
    finally:
        c.close()


def play(requests, port_of):
    out, threads, began = [], [], time.monotonic()
    for at, region, prompt, answer in requests:
        time.sleep(max(0.0, began + at - time.monotonic()))
        threads.append(threading.Thread(target=send, args=(port_of(region), prompt, answer, out)))
        threads[-1].start()
    for t in threads:
        t.join()
    good = [r for r in out if r]
    ms = sorted(1000 * r[0] for r in good)
    return {"requests": len(out), "failed": len(out) - len(good), "hits": round(sum(r[2] for r in good) / sum(r[1] for r in good), 4),
            "ttft_p50_ms": round(ms[len(ms) // 2]), "ttft_p90_ms": round(ms[int(len(ms) * 0.9)]), "left": sum(r[3] is not None for r in good)}


def nodes_add(c, names):
    for name in names:
        events = endpoints()
        c.node(name, *ENGINE, "--kv-events", events[0], "--kv-events-replay", events[1],
               sections={"engine": {"kv_events": events[0], "kv_events_replay": events[1]}})
    c.wait_ready()


def one_cluster(requests):
    with tempfile.TemporaryDirectory() as folder, Cluster(folder) as c:
        c.router({"router.admission": LIMIT})
        nodes_add(c, [f"{r}{i}" for r in REGIONS for i in range(a.nodes)])
        return play(requests, lambda region: c.http_port)


def clusters(requests, forwards):
    with contextlib.ExitStack() as stack:
        fed = Fed(stack, pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())))
        fed.add(*REGIONS)
        for x in REGIONS if forwards else ():
            for y in REGIONS.replace(x, ""):
                fed.link(x, y, max_concurrent=64)
                way = WanWay(x + y, ("127.0.0.1", fed.gates[x, y]), 0.01, a.way * WAYS_MS["".join(sorted(x + y))] / 2000)
                stack.enter_context(contextlib.closing(way))
                fed.rows[x][f'peers."{y}"']["url"] = f"https://localhost:{way.port}"
        for x in REGIONS:
            fed.start(x, **{"router.federation": {"summary_interval": a.interval, "margin": "20ms"}, "router.admission": LIMIT})
            nodes_add(fed.c[x], [f"{x}{i}" for i in range(a.nodes)])
        for x in REGIONS if forwards else ():
            for y in REGIONS.replace(x, ""):
                fed.met(x, y)
        got = play(requests, lambda region: fed.c[region].http_port)
        if forwards:
            rows = [p for x in REGIONS for p in ask(fed.c[x].admin_port, "GET", "/peers").json()["peers"]]
            got["predictions"] = {k: sum(p[k] for p in rows) for k in ("good", "bad")}
            got["blocks"] = [p["blocks"] for p in rows]
            got["summaries_kbit_s"] = round(sum(c.metric("cgn_federation_told_bytes_total") for c in fed.c.values()) * 8 / 1000 / a.seconds / 6, 2)
        return got


def main():
    requests = trace_read() if a.trace else trace()
    out = {"regions": len(REGIONS), "nodes": a.nodes, "rate": round(len(requests) / a.seconds, 2), "seconds": a.seconds, "one": one_cluster(requests), "federated": clusters(requests, True)}
    if a.alone:
        out["alone"] = clusters(requests, False)
    out["hits_of_one"] = round(out["federated"]["hits"] / out["one"]["hits"], 4)
    out["ttft_p90_of_one"] = round(out["federated"]["ttft_p90_ms"] / out["one"]["ttft_p90_ms"], 3)
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
