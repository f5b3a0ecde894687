#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the levers of bench energy with fleets of a fixed size, at several rates of a trace: for each rate round robin and kv on all nodes, kv on
the best fixed fleet (the fewest joules among the sizes whose p99 TTFT is at most that of round robin on all nodes, times --slack; nodes that are
left out draw the watts of a parked one), and kv with energy and parking. JSON to stdout, a table to stderr."""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PARKED_W = {"h100": 70, "h200": 80}


def energy(args, nodes, speed):
    r = subprocess.run([args.build / "src/ctl/cgn-ctl", "bench", "energy", args.trace, "--gpu", args.gpu, "--nodes", str(nodes), "--speed", str(speed), "-o", "json",
                        *args.more], check=True, capture_output=True, text=True)
    results = {x["policy"]: x for x in json.loads(r.stdout)["results"]}
    for x in results.values():
        x["joules"] += (args.nodes - nodes) * PARKED_W[args.gpu] * x["virtual_seconds"]
    return results


def row(x):
    return {"MJ": round(x["joules"] / 1e6, 3), "tokens_per_joule": round(x["answer_tokens"] / x["joules"], 4), "ttft_p50": round(x["ttft_ms"]["p50"]),
            "ttft_p99": round(x["ttft_ms"]["p99"]), "itl_p99": round(x["itl_ms"]["p99"], 1), "awake": round(x["awake_node_seconds"] / x["virtual_seconds"], 2),
            "done": x["done"]}


def at_speed(args, speed):
    all_nodes = energy(args, args.nodes, speed)
    most = all_nodes["round_robin"]["ttft_ms"]["p99"] * args.slack
    fixed = {}
    for n in range(args.least, (args.most or args.nodes) + 1):
        x = (all_nodes if n == args.nodes else energy(args, n, speed))["kv"]
        if x["ttft_ms"]["p99"] <= most and x["done"] == all_nodes["round_robin"]["done"]:
            fixed[n] = x
    best = min(fixed, key=lambda n: fixed[n]["joules"], default=None)
    out = {"round_robin": row(all_nodes["round_robin"]), "kv": row(all_nodes["kv"])}
    if best is not None:
        out[f"kv on {best} nodes"] = row(fixed[best])
    out["kv + energy + park"] = row(all_nodes["kv + energy + park"])
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("trace")
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    ap.add_argument("--gpu", default="h100", choices=PARKED_W)
    ap.add_argument("--nodes", type=int, default=8)
    ap.add_argument("--least", type=int, default=2, help="nodes of the smallest fixed fleet")
    ap.add_argument("--most", type=int, help="nodes of the largest fixed fleet that is tried (default: --nodes)")
    ap.add_argument("--speeds", default="0.25,0.5,1,1.5")
    ap.add_argument("--slack", type=float, default=1.0)
    args, args.more = ap.parse_known_args()
    args.build = args.build.resolve()
    out = {}
    for speed in args.speeds.split(","):
        out[speed] = at_speed(args, float(speed))
        first = out[speed]["round_robin"]["MJ"]
        for name, r in out[speed].items():
            print(speed, name, f"{first / r['MJ']:.2f}", r, file=sys.stderr)
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
