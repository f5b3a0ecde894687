#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a trace of several generated workloads at once: KIND=RATE... with --seconds; a kind is the tenant of its requests. KIND=RATE*F makes
its answers F times as long. For cgn-ctl bench replay --quotes, which tells how often quotes hold for each tenant."""
import argparse
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]


def requests_of(build, kind, rate, longer, seconds, seed):
    """Return the requests of a kind. Block ids of different kinds differ: each kind has its own thousand million."""
    text = subprocess.run([build / "src/ctl/cgn-ctl", "bench", "workload", kind, "--requests", str(int(rate * seconds)), "--rate", str(rate), "--seed", str(seed)],
                          check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        r = json.loads(line)
        r |= {"hash_ids": [i + seed * 10**9 for i in r["hash_ids"]], "tenant": kind, "output_length": max(1, int(r["output_length"] * longer))}
        yield r | ({"session_id": f"{kind}-{r['session_id']}"} if "session_id" in r else {})


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("kinds", nargs="*", default=["chat=6", "agents=6", "rag=4", "shared-prompts=6"])
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    ap.add_argument("--seconds", type=float, default=500)
    args = ap.parse_args()
    out = []
    for seed, kind in enumerate(args.kinds, 1):
        name, rate = kind.split("=")
        rate, longer = (rate + "*1").split("*")[:2]
        out += requests_of(args.build.resolve(), name, float(rate), float(longer), args.seconds, seed)
    for r in sorted(out, key=lambda r: r["timestamp"]):
        print(json.dumps(r))


if __name__ == "__main__":
    main()
