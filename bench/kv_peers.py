#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the time of a block from one node's store to a client of another node's store: two real cgn-kvcached on loopback,
over QUIC with mutual TLS.

A client maps the second store's memory and gets values by descriptor, so the client's own part is small. That part is reported
too, by getting the same block again when it is in the second store. Each round has the first fetch on a connection (the second
store was just started), then further fetches, then all of them again. Each value is compared. On a shared machine,
`chrt -r 10` gives this program and the stores the processor as on an idle one. JSON to --out, or to stderr."""
import argparse
import json
import os
import pathlib
import platform
import random
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/e2e"))


def quantiles(seconds):
    ordered = sorted(seconds)

    def at(q):
        return round(1e6 * ordered[min(len(ordered) - 1, int(q * len(ordered)))], 1)
    return {"count": len(ordered), "p50_us": at(0.5), "p90_us": at(0.9), "p99_us": at(0.99), "max_us": round(1e6 * ordered[-1], 1)}


def timed_get(tools, client, key, want):
    began = time.perf_counter()
    v = client.get(key, tools.PEERS)
    took = time.perf_counter() - began
    assert v.read() == want
    client.release(v.lease)
    return took


def one_round(tools, b, keys, values, out):
    """Open b just after its start, with nothing in it."""
    for k in (keys[0], keys[-1]):
        b.hears(k)
    with tools.Bulk(b.bulk) as client:
        for i, k in enumerate(keys):
            out["first" if i == 0 else "later"].append(timed_get(tools, client, k, values[i]))
        for i, k in enumerate(keys):
            out["again"].append(timed_get(tools, client, k, values[i]))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1] / "build" / "release")
    ap.add_argument("--out", type=pathlib.Path)
    ap.add_argument("--size", type=int, default=1 << 20)
    ap.add_argument("--blocks", type=int, default=10, help="blocks in a round")
    ap.add_argument("--rounds", type=int, default=100)
    args = ap.parse_args()
    os.environ["CGN_BUILD"] = str(args.build.resolve())
    import kvbulk as tools
    import kvpeers
    out = {"first": [], "later": [], "again": []}
    ram = f"{max(64, 2 * args.size * args.blocks >> 20)}MiB"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        pki = kvpeers.bootstrap(folder / "pki", "a", "b")
        keys = [tools.key(f"block {i}") for i in range(args.blocks)]
        values = [random.Random(i).randbytes(args.size) for i in range(args.blocks)]
        a = kvpeers.Peer(folder, pki, "a", ram=ram)
        for k, v in zip(keys, values):
            a.put(k, v)
        b = kvpeers.Peer(folder, pki, "b", [a], ram=ram)
        load = []
        for i in range(args.rounds):
            if i > 0:
                b.process.stop()
                b.restart()
            one_round(tools, b, keys, values, out)
            load.append(os.getloadavg()[0])
        path = b.peers()[a.address]
        for p in (b, a):
            p.close()
    report = {
        "what": "a block from another node's store, over QUIC on loopback, as its client sees it",
        "machine": f"{os.cpu_count()} virtual cores, {platform.system()} {platform.release()}",
        "real_time_priority": os.sched_getparam(0).sched_priority,
        "load_average": {"least": round(min(load), 1), "most": round(max(load), 1)},
        "size_bytes": args.size,
        "first_on_a_connection": quantiles(out["first"]),
        "later": quantiles(out["later"]),
        "all_fetches": quantiles(out["first"] + out["later"]),
        "the_same_again_from_ram": quantiles(out["again"]),
        "measured_by_the_store": {"first_byte_us": path["first_byte_us"], "bytes_per_second": path["bytes_per_second"], "rtt_us": path["rtt_us"]},
    }
    text = json.dumps(report, indent=1)
    if args.out:
        args.out.write_text(text + "\n")
    print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
