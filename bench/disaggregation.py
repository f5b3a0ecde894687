#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare prefill and decode nodes with as many nodes of both roles, in a replay and with real programs. One workload (long prompts
by default) is replayed in virtual time, and sent to a router with cgn-sim engines that hand KV over as vLLM's NIXL connector does.
JSON to --out and stdout.

The engines' virtual time runs 1/--time-scale times as fast as the clock, and so do requests. Times of the live side include what
real programs add on this machine; they are divided by the time scale, so that both sides are in the engines' time. A simulated
transfer moves real bytes between the programs, --block-bytes for each 16 tokens, at the speed of this machine."""
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


def start(tools, c, args, name, role):
    events, replay = (f"tcp://127.0.0.1:{tools.free_port()}" for _ in range(2))
    engine, port = c.engine(f"engine-{name}", "--time-scale", str(args.time_scale), "--kv-blocks", str(args.blocks), "--max-model-len", "131072",
                            "--kv-events", events, "--kv-events-replay", replay, "--handoff", "nixl", "--role", role,
                            "--kv-block-bytes", str(args.block_bytes))
    agent, agent_port, admin = c.agent(name, port, {"agent": {"role": role}, "engine": {"kv_events": events, "kv_events_replay": replay, "handoff": "nixl",
                                                                                        "handoff_port": port}})
    c.nodes[name] = tools.Node(name, engine, agent, port, agent_port, admin)


def block_told(node):
    """The engine's block size is a term of its hand-off, and known a moment later than the rest."""
    return all(f"block={SIM_BLOCK}" in e.get("handoff", {}).get("terms", "") for e in node["engines"])


def live(tools, args, trace, pools):
    """Return the results of bench chat, and how requests were split. |pools|: with prefill and decode nodes."""
    roles = ["prefill"] * args.prefill + ["decode"] * args.decode if pools else ["both"] * (args.prefill + args.decode)
    with tempfile.TemporaryDirectory() as folder, tools.Cluster(folder) as c:
        c.router({"router.disagg": {"enabled": pools, **({"colocate_below_tokens": args.colocate_below} if args.colocate_below else {})}})
        for i, role in enumerate(roles):
            start(tools, c, args, f"{role}-{i}", role)
        c.wait_ready()
        tools.until(lambda: all(n["state"] == "ready" and block_told(n) for n in c.status()["nodes"]), "all nodes are ready and tell of their hand-offs")
        r = json.loads(ctl(args.build, "bench", "chat", "--url", f"http://127.0.0.1:{c.http_port}", "--trace", trace, "--speed", 1 / args.time_scale,
                           "--ignore-eos", "--timeout", "600s", "-o", "json"))
        outcomes = {o: c.metric("cgn_disagg_total", outcome=o) for o in ("prefilled", "colocated", "continued", "no_node", "failed")}
        return r, outcomes


def times(r, key, scale):
    return {k: round(r[key][k] / scale, 2) for k in ("p50", "p99", "mean")}


def row(r, scale):
    return {"ttft_ms": times(r, "ttft_ms", scale), "per_token_ms": times(r, "request_itl_ms", scale), "itl_ms": times(r, "itl_ms", scale)}


def replayed(args, trace):
    r = json.loads(ctl(args.build, "bench", "replay", trace, "--blocks", "0", "--policy", "kv", "--prefill", args.prefill, "--decode", args.decode,
                       "--set", f"router.disagg.colocate_below_tokens={args.colocate_below}", "-o", "json"))
    out = {}
    for name, x in zip(("pools", "both"), r["results"]):
        out[name] = {**row(x, 1), "tokens_per_s": round(x["answer_tokens_per_s"], 1), "split_ratio": round(x["split_ratio"], 4),
                     "kv_gib_moved": round(x["kv_bytes_moved"] / 2**30, 1), "done": x["done"]}
    return out


def lived(tools, args, trace):
    out = {}
    for name in ("pools", "both"):
        r, outcomes = live(tools, args, trace, name == "pools")
        out[name] = {**row(r, args.time_scale), "tokens_per_s": round(r["tokens_per_second"] * args.time_scale, 1), "answered": r["answered"],
                     "failed": r["failed"], "first_failure": r["first_failure"], "outcomes": outcomes}
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    ap.add_argument("--out", type=pathlib.Path)
    ap.add_argument("--workload", default="documents")
    ap.add_argument("--requests", type=int, default=300)
    ap.add_argument("--rate", type=float, default=1.5, help="requests per second of the engines' time")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--prefill", type=int, default=1)
    ap.add_argument("--decode", type=int, default=1)
    ap.add_argument("--blocks", type=int, default=100000, help=f"blocks of {SIM_BLOCK} tokens on each node")
    ap.add_argument("--block-bytes", type=int, default=4096, help=f"bytes of KV of {SIM_BLOCK} tokens that live transfers move")
    ap.add_argument("--colocate-below", type=int, default=0, help="router.disagg.colocate_below_tokens; 0: costs decide")
    ap.add_argument("--time-scale", type=float, default=0.5)
    args = ap.parse_args()
    args.build = args.build.resolve()
    os.environ["CGN_BUILD"] = str(args.build)
    import cluster
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "trace.jsonl"
        ctl(args.build, "bench", "workload", args.workload, "--requests", args.requests, "--rate", args.rate, "--seed", args.seed, "--out", trace)
        report = {"bench": "disaggregation", "date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "kernel": platform.release(),
                  "workload": args.workload, "requests": args.requests, "rate": args.rate, "prefill": args.prefill, "decode": args.decode,
                  "time_scale": args.time_scale, "replay": replayed(args, trace), "live": lived(cluster, args, trace)}
    for side in ("replay", "live"):
        report[side]["per_token_p99_both_over_pools"] = round(
            report[side]["both"]["per_token_ms"]["p99"] / report[side]["pools"]["per_token_ms"]["p99"], 2)
    report["load_average"] = os.getloadavg()[0]
    text = json.dumps(report, indent=1) + "\n"
    if args.out:
        args.out.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
