#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replay every policy on every trace: cgn-ctl bench replay on Mooncake's conversation trace (--trace FILE; skipped without it)
and on each generated workload. JSON to --out, a Markdown table to stdout. Deterministic except for the date."""
import argparse
import datetime
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
POLICIES = "kv,weighted,predicted,round_robin,random,least_loaded,power_of_two,session"
ON_THE_TRACE = (("--nodes", 8, "--blocks", 0), ("--nodes", 8, "--blocks", 2000), ("--nodes", 32, "--blocks", 2000, "--speed", 6))
GENERATED = (("chat", 24), ("agents", 24), ("rag", 24), ("shared-prompts", 24), ("service", 8), ("chat", 8), ("agents", 8))


def replay(build, *args):
    r = subprocess.run([build / "src/ctl/cgn-ctl", "bench", "replay", *map(str, args), "--policy", POLICIES, "-o", "json"], capture_output=True, text=True)
    if r.returncode != 0:
        raise SystemExit(r.stderr)
    return json.loads(r.stdout)


def title(r):
    blocks = r["blocks"] or "unlimited"
    rate = f", {r['rate']:g} a second" if "rate" in r else ""
    speed = f", {r['speed']:g} times as fast" if r["speed"] != 1 else ""
    return f"{r['trace']}{rate}{speed}, {r['nodes']} nodes of {blocks} blocks of {r['block_tokens']} (ideal {100 * r['ideal_hit_ratio']:.1f} %)"


def table(runs):
    for r in runs:
        print(f"\n{title(r)}\n\n| policy | hits, % | TTFT p50 | p90 | p99, ms | ITL mean | p99, ms | busiest : mean, by work | by requests |\n|---|---|---|---|---|---|---|---|---|")
        for x in r["results"]:
            t, i = x["ttft_ms"], x["itl_ms"]
            print(f"| {x['policy']} | {100 * x['hit_ratio']:.1f} | {t['p50']:.0f} | {t['p90']:.0f} | {t['p99']:.0f} | {i['mean']:.2f} | {i['p99']:.1f}"
                  f" | {x['imbalance']:.2f} | {x['imbalance_requests']:.2f} |")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    ap.add_argument("--trace", type=pathlib.Path)
    ap.add_argument("--out", type=pathlib.Path)
    args = ap.parse_args()
    runs = [replay(args.build, args.trace, *how) for how in ON_THE_TRACE if args.trace]
    for kind, rate in GENERATED:
        r = replay(args.build, "--generate", kind, "--rate", rate, "--requests", 10000, "--nodes", 8, "--blocks", 4000)
        runs.append({**r, "rate": rate})
    if args.out:
        args.out.write_text(json.dumps({"bench": "replay", "date": datetime.date.today().isoformat(), "runs": runs}, indent=1) + "\n")
    table(runs)


if __name__ == "__main__":
    main()
