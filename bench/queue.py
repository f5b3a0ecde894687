#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare waiting times under the queue policies: one workload of short and long prompts, more than one engine can compute
at once, sent to the same cluster under fcfs and wspt in turns, --rounds times each. JSON to --out and stdout: time to first
token of all prompts, and of short and long prompts separately.

The engine (cgn-sim) computes --prefill tokens per second, and the router keeps two requests in flight there, so requests wait in
the router."""
import argparse
import datetime
import http.client
import json
import os
import pathlib
import platform
import random
import signal
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
POLICIES = ("fcfs", "wspt")


def first_byte(port, body, out, i):
    """Return the seconds from the request to the first event of its answer."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    began = time.monotonic()
    c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    r.read(1)
    out[i] = (r.status, time.monotonic() - began)
    r.read()
    c.close()


def play(c, requests):
    out, threads, began = [None] * len(requests), [], time.monotonic()
    for i, (at, words, text) in enumerate(requests):
        time.sleep(max(0, began + at - time.monotonic()))
        body = {"model": "sim", "stream": True, "max_tokens": 8, "ignore_eos": True, "messages": [{"role": "user", "content": text}]}
        threads.append(threading.Thread(target=first_byte, args=(c.http_port, body, out, i)))
        threads[-1].start()
    for t in threads:
        t.join()
    return out


def summary(times):
    s = sorted(times)
    return {"n": len(s), "mean_ms": round(statistics.mean(s) * 1e3), "p50_ms": round(s[len(s) // 2] * 1e3), "p90_ms": round(s[len(s) * 9 // 10] * 1e3),
            "max_ms": round(s[-1] * 1e3)}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    ap.add_argument("--out", type=pathlib.Path)
    ap.add_argument("--requests", type=int, default=60)
    ap.add_argument("--over", type=float, default=4, help="seconds in which the requests arrive")
    ap.add_argument("--prefill", type=int, default=10000)
    ap.add_argument("--rounds", type=int, default=2)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    os.environ["CGN_BUILD"] = str(args.build.resolve())
    import cluster as tools
    rng = random.Random(args.seed)
    times = {p: {"short": [], "long": []} for p in POLICIES}
    failed = {p: 0 for p in POLICIES}
    with tempfile.TemporaryDirectory() as folder, tools.Cluster(folder) as c:
        c.router({"router.admission": {"max_concurrent_per_replica": 2, "queue_timeout": "120s"}})
        c.node("a", "--max-batch", "2", "--prefill-tokens-per-s", str(args.prefill), "--kv-blocks", "65536")
        c.wait_ready()
        for n in range(args.rounds):
            for policy in POLICIES:
                mine = {"router": {"listen": f"127.0.0.1:{c.http_port}", "listen_grpc": f"127.0.0.1:{c.grpc_port}",
                                   "listen_admin": f"127.0.0.1:{c.admin_port}", "worker_threads": 2},
                        "router.admission": {"max_concurrent_per_replica": 2, "queue_timeout": "120s", "queue_policy": policy}}
                c.config("router", mine)
                c.router_process.signal(signal.SIGHUP)
                time.sleep(0.5)
                shape = random.Random(args.seed + n)  # the lengths are equal for each policy; the words differ, or they would be in the cache
                arrivals = sorted(shape.uniform(0, args.over) for _ in range(args.requests))
                kinds = [shape.random() < 0.25 for _ in arrivals]
                requests = [(at, long, " ".join(str(rng.randrange(10**6)) for _ in range(4000 if long else 150))) for at, long in zip(arrivals, kinds)]
                for (status, took), long in zip(play(c, requests), kinds):
                    failed[policy] += status != 200
                    times[policy]["long" if long else "short"].append(took)
    report = {"date": datetime.date.today().isoformat(), "machine": f"{os.cpu_count()} virtual cores, {platform.machine()}",
              "requests": args.requests, "over_s": args.over, "prefill_tokens_per_s": args.prefill, "rounds": args.rounds,
              "results": [{"policy": p, "failed": failed[p], "all": summary(times[p]["short"] + times[p]["long"]), "short": summary(times[p]["short"]),
                           "long": summary(times[p]["long"])} for p in POLICIES]}
    text = json.dumps(report, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
