#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the time of a large state from another node's store into a file: pieces of 64 MiB, one after another, and with
some requested ahead as the agent's restores do (KVCLIENT_SERIES_AHEAD). Two real cgn-kvcached on loopback, over QUIC with mutual
TLS; the file is in memory. The two ways take turns; the second store is restarted, empty, before each. Every file is compared.
JSON to --out, or to stderr."""
import argparse
import json
import os
import pathlib
import platform
import random
import statistics
import struct
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/e2e"))
PIECE = 64 << 20


def restore(tools, client, keys, ahead, out):
    """Write every piece's bytes to the file |out|, in order, with up to |ahead| requested at once."""
    ids, here, asked = {}, {}, 0
    for i in range(len(keys)):
        while asked < min(len(keys), i + ahead):
            ids[client.send(tools.GET, keys[asked], tools.PEERS)] = asked
            asked += 1
        while i not in here:
            kind, flags, count, ident, body, fds = client.receive()
            if kind == tools.FAILED:
                raise SystemExit(body[6:].decode())
            here[ids.pop(ident)] = client.value((kind, flags, count, body, fds))
        v = here.pop(i)
        for at, n in v.extents:
            out.write(memoryview(v.memory)[at:at + n])
        client.release(v.lease)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1] / "build" / "release")
    ap.add_argument("--out", type=pathlib.Path)
    ap.add_argument("--pieces", type=int, default=8)
    ap.add_argument("--ahead", type=int, default=4)
    ap.add_argument("--rounds", type=int, default=5)
    args = ap.parse_args()
    os.environ["CGN_BUILD"] = str(args.build.resolve())
    import kvbulk as tools
    import kvpeers
    ram = f"{2 * args.pieces * PIECE >> 20}MiB"
    took, load = {1: [], args.ahead: []}, []
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile(dir="/dev/shm") as file:
        folder = pathlib.Path(folder)
        pki = kvpeers.bootstrap(folder / "pki", "a", "b")
        keys = [tools.key("state", i + 1) for i in range(args.pieces)]
        one = random.Random(1).randbytes(PIECE - 4)
        a = kvpeers.Peer(folder, pki, "a", ram=ram)
        for i, k in enumerate(keys):
            a.put(k, struct.pack("<I", i) + one)
        b = kvpeers.Peer(folder, pki, "b", [a], ram=ram)
        for turn in range(2 * args.rounds):
            ahead = (1, args.ahead)[turn % 2]
            if turn > 0:
                b.process.stop()
                b.restart()
            for k in keys:
                b.hears(k)
            file.seek(0)
            with tools.Bulk(b.bulk) as client:
                began = time.perf_counter()
                restore(tools, client, keys, ahead, file)
                file.flush()
                took[ahead].append(time.perf_counter() - began)
            load.append(os.getloadavg()[0])
            file.seek(0)
            for i in range(args.pieces):
                assert file.read(PIECE) == struct.pack("<I", i) + one
        for p in (b, a):
            p.close()
    report = {
        "what": "a state of several pieces, from another node's store over QUIC on loopback into a file in memory",
        "machine": f"{os.cpu_count()} virtual cores, {platform.system()} {platform.release()}",
        "real_time_priority": os.sched_getparam(0).sched_priority,
        "load_average": {"least": round(min(load), 1), "most": round(max(load), 1)},
        "bytes": args.pieces * PIECE,
        "pieces": args.pieces,
        "ways": [{"asked_for_at_once": n, "count": len(s), "least_ms": round(1e3 * min(s)), "median_ms": round(1e3 * statistics.median(s)),
                  "most_ms": round(1e3 * max(s)), "mib_per_second": round(args.pieces * PIECE / statistics.median(s) / (1 << 20))} for n, s in took.items()],
    }
    text = json.dumps(report, indent=1)
    if args.out:
        args.out.write_text(text + "\n")
    print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
