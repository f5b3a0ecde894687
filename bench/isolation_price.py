#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what tenants lose by not sharing their caches (docs/fleet/access/isolation.md): replay a generated workload, whose sessions are
dealt to 1, 2, ... tenants in turn, with the blocks of each tenant apart from the others'.

    bench/isolation_price.py --build build/release --out bench/results/isolation_price.json"""
import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
TENANTS = 1, 4, 16, 64
KINDS = {"chat": 8, "agents": 8, "shared-prompts": 8}  # requests a second


def split(trace, tenants):
    """Return the trace with other block numbers for each tenant."""
    ids, out = {}, []
    for line in trace:
        r = json.loads(line)
        tenant = r["session_id"] % tenants
        r["hash_ids"] = [ids.setdefault((tenant, h), len(ids)) for h in r["hash_ids"]]
        out.append(json.dumps(r, separators=(",", ":")))
    return "\n".join(out) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=lambda s: pathlib.Path(s).resolve(), default=ROOT / "build/release")
    p.add_argument("--requests", type=int, default=10000)
    p.add_argument("--out", type=pathlib.Path)
    a = p.parse_args()
    ctl = a.build / "src/ctl/cgn-ctl"
    result = {"date": datetime.date.today().isoformat(), "command": "bench/isolation_price.py " + " ".join(sys.argv[1:]), "requests": a.requests, "rows": []}
    for kind, rate in KINDS.items():
        made = subprocess.run([ctl, "bench", "workload", kind, "--requests", str(a.requests), "--rate", str(rate), "--seed", "1"], check=True, capture_output=True, text=True)
        for n in TENANTS:
            with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
                f.write(split(made.stdout.splitlines(), n))
                f.flush()
                done = subprocess.run([ctl, "bench", "replay", f.name, "--policy", "kv", "--block-tokens", "64", "-o", "json"], check=True, capture_output=True, text=True)
            (got,) = json.loads(done.stdout)["results"]
            row = {"workload": kind, "tenants": n, "hit_ratio": round(got["hit_ratio"], 3), "ttft_p50_ms": got["ttft_ms"]["p50"], "ttft_p99_ms": got["ttft_ms"]["p99"],
                   "computed_blocks": got["prompt_blocks"] - got["cached_blocks"]}
            result["rows"].append(row)
            print(json.dumps(row), flush=True)
    if a.out:
        a.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
