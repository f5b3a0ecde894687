#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replay a trace on 3 and on 10 clusters: cgn-ctl bench replay --clusters on Mooncake's conversation trace (--trace FILE), with the keys
router.federation.rework and affinity varied, a cut, and longer intervals of summaries. JSON to --out, a Markdown table to stdout.
Deterministic except for the date."""
import argparse
import datetime
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
THREE = ("--clusters", 3, "--nodes", 3, "--wan-ms", "40,80,150", "--wan-loss", 1, "--day-swing", 0.8, "--speed", 1.5)
TEN = ("--clusters", 10, "--nodes", 2, "--wan-ms", "40,80,150", "--wan-loss", 1, "--day-swing", 0.8, "--speed", 3)


def keys(**what):
    return tuple(x for k, v in what.items() for x in ("--set", f"router.federation.{k}={v}"))


RUNS = (
    ("3 clusters, rework 0, affinity 0", THREE + keys(rework=0, affinity=0)),
    ("3 clusters, rework 1, affinity 0", THREE + keys(rework=1, affinity=0)),
    ("3 clusters, rework 1, affinity 2", THREE + keys(rework=1, affinity=2)),
    ("3 clusters, summaries every 5 s", THREE + keys(rework=1, affinity=2, summary_interval="5s")),
    ("3 clusters, 20,000 blocks on each node", THREE + keys(rework=1, affinity=2) + ("--blocks", 20000)),
    ("3 clusters, three cuts of five minutes", THREE + keys(rework=1, affinity=2) + ("--set", "router.resume=true", "--cut", "A-B@300s-600s", "--cut", "A-C@900s-1200s", "--cut", "B-C@1500s-1800s")),
    ("10 clusters, rework 0, affinity 0", TEN + keys(rework=0, affinity=0)),
    ("10 clusters, rework 1, affinity 2", TEN + keys(rework=1, affinity=2)),
)


def replay(build, trace, *args):
    r = subprocess.run([build / "src/ctl/cgn-ctl", "bench", "replay", trace, *map(str, args), "-o", "json"], capture_output=True, text=True)
    if r.returncode != 0:
        raise SystemExit(r.stderr)
    return json.loads(r.stdout)


def row(title, r):
    local, fed, _ = r["results"]
    print(f"| {title} | {100 * local['hits_of_one_cluster']:.1f} | {local['ttft_p90_of_one_cluster']:.2f} | {100 * fed['hits_of_one_cluster']:.1f}"
          f" | {fed['ttft_p50_of_one_cluster']:.2f} | {fed['ttft_p90_of_one_cluster']:.2f} | {100 * fed['left_ratio']:.1f} | {fed['mispredicted']} of {fed['predicted']}"
          f" | {fed['summary_bytes_per_s']:.0f} | {fed['kbit_per_s_per_million_blocks']:.0f} | {fed['requests'] - fed['done']} |", flush=True)
    for c in fed["cuts"]:
        print(f"<!-- cut: {c}; returned {fed['returned']}, resumed {fed['resumed']} -->")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    ap.add_argument("--trace", type=pathlib.Path, required=True)
    ap.add_argument("--out", type=pathlib.Path)
    args = ap.parse_args()
    print("| | local only: hits | p90 | federation: hits, % | p50 | p90 | left, % | far worse than told | summaries, B/s | kbit/s a way per million blocks | lost |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|")
    runs = []
    for title, how in RUNS:
        r = replay(args.build, args.trace, *how)
        row(title, r)
        runs.append({"title": title, **r})
    if args.out:
        args.out.write_text(json.dumps({"bench": "federation_replay", "date": datetime.date.today().isoformat(), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
