#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare a replay with real programs. One workload is replayed in virtual time and sent to real programs: for each policy a
router, N agents and N cgn-sim that publish KV events, driven by cgn-ctl bench chat --trace. JSON to --out and stdout: both
sides, and whether they rank the policies alike, by prompt tokens found in cache and by the median time to first token. What router,
agent and sockets add to a first token is found by cgn-ctl bench fit in the first policy's access log, and added to all replays.

The engines' virtual time runs 1/--time-scale times as fast as the clock, and so do requests (--speed is computed from it). Times
of the live side include what real programs add on this machine; they are divided by the time scale, so that both sides are in
the engines' time."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
SIM_BLOCK = 16


def ctl(build, *args):
    r = subprocess.run([build / "src/ctl/cgn-ctl", *map(str, args)], capture_output=True, text=True)
    if r.returncode != 0:
        raise SystemExit(f"cgn-ctl {' '.join(map(str, args))}: {r.stderr}")
    return r.stdout


def live(tools, args, trace, policy, kv_blocks, log):
    """Return the results of bench chat for this policy. The router's access log is left in |log|."""
    with tempfile.TemporaryDirectory() as folder, tools.Cluster(folder) as c:
        c.router({"router": {"policy": policy, "access_log": str(log)}})
        for i in range(args.nodes):
            events, replay = (f"tcp://127.0.0.1:{tools.free_port()}" for _ in range(2))
            c.node(f"n{i}", "--time-scale", str(args.time_scale), "--kv-blocks", str(kv_blocks), "--max-model-len", "65536", "--kv-events", events,
                   "--kv-events-replay", replay, sections={"engine": {"kv_events": events, "kv_events_replay": replay}})
        c.wait_ready()
        tools.until(lambda: all(n["state"] == "ready" for n in c.status()["nodes"]), "all nodes are ready")
        return json.loads(ctl(args.build, "bench", "chat", "--url", f"http://127.0.0.1:{c.http_port}", "--trace", trace, "--speed",
                              1 / args.time_scale, "--ignore-eos", "-o", "json"))


def row(r, scale):
    return {"hit_ratio": round(r["hit_ratio"], 4), "imbalance": round(r["imbalance"], 3),
            "ttft_ms": {k: round(r["ttft_ms"][k] / scale, 1) for k in ("p50", "p90", "p99", "mean")},
            "itl_ms": {k: round(r["itl_ms"][k] / scale, 2) for k in ("p50", "p99", "mean")}}


def ranking(rows, key, best):
    return sorted(rows, key=lambda p: key(rows[p]), reverse=best == "high")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    ap.add_argument("--out", type=pathlib.Path)
    ap.add_argument("--policies", default="kv,least_loaded,round_robin")
    ap.add_argument("--workload", default="agents")
    ap.add_argument("--requests", type=int, default=300)
    ap.add_argument("--rate", type=float, default=5, help="requests per second of the engines' time")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--nodes", type=int, default=4)
    ap.add_argument("--blocks", type=int, default=1000, help="blocks of 64 tokens on each node")
    ap.add_argument("--time-scale", type=float, default=1)
    args = ap.parse_args()
    args.build = args.build.resolve()
    os.environ["CGN_BUILD"] = str(args.build)
    import cluster
    with tempfile.TemporaryDirectory() as folder:
        trace, log = pathlib.Path(folder) / "trace.jsonl", pathlib.Path(folder) / "access.log"
        ctl(args.build, "bench", "workload", args.workload, "--requests", args.requests, "--rate", args.rate, "--seed", args.seed, "--out", trace)
        replay = ("bench", "replay", trace, "--nodes", args.nodes, "--blocks", args.blocks, "--policy", args.policies, "-o", "json")
        kv_blocks = args.blocks * json.loads(ctl(args.build, *replay))["block_tokens"] // SIM_BLOCK
        sent, delays = {}, {}
        for p in args.policies.split(","):
            log.unlink(missing_ok=True)
            sent[p] = live(cluster, args, trace, p, kv_blocks, log)
            terms = {t["term"]: t["ns"] for t in json.loads(ctl(args.build, "bench", "fit", log, "-o", "json"))["results"]}
            delays[p] = None if terms["delay"] is None else round(terms["delay"] / 1e6 / args.time_scale, 2)
        # The first policy's run tells what the programs add; the others are predicted with it.
        played = json.loads(ctl(args.build, *replay, "--delay-ms", delays[args.policies.split(",")[0]] or 0))
    replayed = {r["policy"]: row(r, 1) for r in played["results"]}
    lived = {p: {**row(r, args.time_scale), "failed": r["failed"], "answered": r["answered"]} for p, r in sent.items()}
    orders = {}
    for name, key, best in (("hit_ratio", lambda r: r["hit_ratio"], "high"), ("ttft_p50", lambda r: r["ttft_ms"]["p50"], "low")):
        orders[name] = {"replay": ranking(replayed, key, best), "live": ranking(lived, key, best)}
        orders[name]["same"] = orders[name]["replay"] == orders[name]["live"]
    report = {"bench": "live_ranking", "date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "kernel": platform.release(),
              "workload": args.workload, "requests": args.requests, "rate": args.rate, "nodes": args.nodes, "blocks": args.blocks,
              "time_scale": args.time_scale, "delay_ms": delays, "replay": replayed, "live": lived, "ranking": orders, "load_average": os.getloadavg()[0]}
    text = json.dumps(report, indent=1) + "\n"
    if args.out:
        args.out.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
