#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the levers of bench energy, over a day or a trace, with the best fixed fleet of each hour: the nodes that, had one known the hour, would have
used the fewest joules there at a p99 time to the first token of at most a bound. Nodes that are left out are parked. Two kinds of fleets are tried, nodes of both roles and prefill and
decode nodes, and two bounds: round robin's p99 of that hour on all nodes, and that of our levers. The fleet that is chosen is then played as a whole, each node waking in time. The autoscaler
without energy is played too. JSON to stdout, a table to stderr. Flags that are not listed go to both programs' replays."""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
LEVERS = "roles: kv + energy + park"


class Bench:
    def __init__(self, args):
        self.ctl, self.day, self.both = args.build.resolve() / "src/ctl/cgn-ctl", ["--day"] if args.day else [], args.more
        self.energy = ["--prefill", str(args.prefill), "--decode-clock", args.decode_clock, "--spare", args.spare, "--ms-per-joule", args.ms_per_joule]

    def run(self, verb, flags):
        r = subprocess.run([self.ctl, "bench", verb, *self.both, *self.day, *flags, "-o", "json"], check=True, capture_output=True, text=True)
        return json.loads(r.stdout)["results"]

    def play(self, only, *flags):
        return self.run("energy", [*self.energy, "--only", only, *flags])


def row(x):
    seconds = x.get("virtual_seconds")
    return {"MJ": round(x["joules"] / 1e6, 3), "tokens_per_joule": round(x["answer_tokens"] / x["joules"], 4) if "answer_tokens" in x else None,
            "ttft_p50": round(x["ttft_ms"]["p50"]), "ttft_p99": round(x["ttft_ms"]["p99"]), "itl_p99": round(x["itl_ms"]["p99"], 1),
            "awake": round(x["awake_node_seconds"] / seconds, 2) if seconds else None, "done": x["done"]}


def hour_p99(hour):
    return hour["ttft_ms"]["p99"] if hour["ttft_ms"] else 0


def fleet_of_each_hour(tried, bound):
    """Return for each hour of |bound| the name of the fleet with the fewest joules within it; where none is, of the shortest p99."""
    out = []
    for h, most in enumerate(bound):
        hours = {name: x["hours"][min(h, len(x["hours"]) - 1)] for name, x in tried.items()}
        fit = {name: hour for name, hour in hours.items() if hour_p99(hour) <= most}
        out.append(min(fit, key=lambda k: fit[k]["joules"]) if fit else min(hours, key=lambda k: hour_p99(hours[k])))
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    ap.add_argument("--day", action="store_true")
    ap.add_argument("--nodes", type=int, default=8)
    ap.add_argument("--prefill", type=int, default=6)
    ap.add_argument("--most", type=int, default=6, help="nodes of the largest fleet of one role that is tried")
    ap.add_argument("--decode-clock", default="1")
    ap.add_argument("--spare", default="1.5")
    ap.add_argument("--ms-per-joule", default="40")
    args, args.more = ap.parse_known_args()
    args.more += ["--nodes", str(args.nodes)]
    bench = Bench(args)
    results = {x["policy"]: x for only in ("round_robin", "kv", "roles") for x in bench.play(only)}
    kinds = {"both": [str(n) for n in range(1, args.most + 1)],
             "roles": [f"{p}+{d}" for p in range(1, min(args.prefill, args.most) + 1) for d in range(1, args.nodes - args.prefill + 1)]}
    chosen = {}
    for kind, fleets in kinds.items():
        tried = {f: bench.play("fleet", "--fleet", f)[0] for f in fleets}
        for bound in ("round_robin", LEVERS):
            most = [hour_p99(h) for h in results[bound]["hours"]]
            name = f"fleet of each hour, {kind}, p99 of {bound}"
            chosen[name] = fleet_of_each_hour(tried, most)
            results[name] = bench.play("fleet", "--fleet", ",".join(chosen[name]))[0]
    for x in bench.run("autoscale", [])[-2:]:
        results[x["replicas"]] = x | {"answer_tokens": results["round_robin"]["answer_tokens"]}
    first = results["round_robin"]["joules"]
    out = {name: row(x) | {"times": round(first / x["joules"], 3)} for name, x in results.items()}
    for name, r in out.items():
        print(f"{r['times']:.2f}", name, r, file=sys.stderr)
    print(json.dumps({"results": out, "fleets": chosen}, indent=1))


if __name__ == "__main__":
    main()
