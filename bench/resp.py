#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare cgn-kvcached with redis-server, each through its own Unix socket, by redis-benchmark, in one run.

    bench/resp.py --build build/release --out bench/results/resp.json

One worker of the store and one thread of Redis are pinned to one core, redis-benchmark to another. Rounds alternate between the
two, so that other load on the machine affects both; medians over the rounds are reported. The store verifies the XXH3 checksum of
a value each time that it returns the value, and computes it for each put; Redis does neither, and persists nothing here.

The floor is the time of the bytes alone on this machine: the same number of bytes through a Unix socket pair between the same two
cores, a small message against a large one, without any processing."""
import argparse
import csv
import datetime
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
CASES = [  # name, bytes, keys, connections, pipeline, requests
    ("64B", 64, 1000, 50, 1, 200_000),
    ("64B pipelined", 64, 1000, 50, 16, 1_000_000),
    ("64KiB one", 65536, 1000, 1, 1, 40_000),
    ("64KiB", 65536, 1000, 8, 1, 60_000),
    ("1MiB one", 1 << 20, 100, 1, 1, 3_000),
    ("1MiB", 1 << 20, 100, 8, 1, 6_000),
]


def wait_for(path):
    for _ in range(500):
        s = socket.socket(socket.AF_UNIX)
        try:
            s.connect(str(path))
            s.sendall(b"PING\r\n")
            if s.recv(7) == b"+PONG\r\n":
                return
        except OSError:
            time.sleep(0.02)
        finally:
            s.close()
    raise SystemExit(f"nothing answers at {path}")


def start(argv, core, folder, name):
    with open(folder / f"{name}.log", "wb") as log:
        return subprocess.Popen(["taskset", "-c", str(core), *map(str, argv)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def benchmark(path, pid, core, test, case):
    _, size, keys, conns, pipeline, n = case
    before = cpu_s(pid)
    out = subprocess.run(["taskset", "-c", str(core), "redis-benchmark", "-s", path, "-t", test, "-d", str(size), "-r", str(keys), "-c", str(conns),
                          "-P", str(pipeline), "-n", str(n), "--csv"], capture_output=True, text=True, check=True).stdout
    used = cpu_s(pid) - before
    row = [r for r in csv.DictReader(out.splitlines()) if r["test"].lower() == test][0]
    return {"rps": float(row["rps"]), "p50_us": 1000 * float(row["p50_latency_ms"]), "p99_us": 1000 * float(row["p99_latency_ms"]),
            "server_cpu_us_per_request": 1e6 * used / n}


def floor(size, n, cores):
    """Return the seconds per exchange: 32 bytes there, |size| back. The answering side is on the first core."""
    a, b = socket.socketpair(socket.AF_UNIX)
    pid = os.fork()
    if pid == 0:
        a.close()
        os.sched_setaffinity(0, {cores[0]})
        data = bytes(size)
        while b.recv(32):
            b.sendall(data)
        os._exit(0)
    b.close()
    was = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores[1]})
    buf, times = memoryview(bytearray(size)), []
    for _ in range(n):
        t = time.perf_counter()
        a.sendall(b"x" * 32)
        got = 0
        while got < size:
            got += a.recv_into(buf[got:])
        times.append(time.perf_counter() - t)
    a.close()
    os.waitpid(pid, 0)
    os.sched_setaffinity(0, was)
    times.sort()
    return {"p50_us": 1e6 * times[n // 2], "p99_us": 1e6 * times[n * 99 // 100]}


def median(rounds):
    return {k: round(statistics.median(r[k] for r in rounds), 2) for k in rounds[0]}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--build", default="build/release", type=pathlib.Path)
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--cores", default="0,1", help="core of the server, core of redis-benchmark")
    p.add_argument("--only", help="run only cases whose name contains this")
    p.add_argument("--scale", type=float, default=1, help="factor for the number of requests")
    args = p.parse_args()
    for program in ("redis-server", "redis-benchmark", "taskset"):
        if not shutil.which(program):
            raise SystemExit(f"{program} is missing")
    cores = [int(c) for c in args.cores.split(",")]
    ours = (args.build / "src/kvcached/cgn-kvcached").resolve()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cgn-resp-"))
    running, report = {}, []
    try:
        running["redis-server"] = start(["redis-server", "--port", "0", "--unixsocket", folder / "redis.sock", "--save", "", "--appendonly", "no"],
                                        cores[0], folder, "redis")
        running["cgn-kvcached"] = start([ours, "--ram", "2GiB", "--workers", "1", "--admin", "127.0.0.1:0", "--set", "kv.resp_listen=", "--set",
                                         "kv.listen=127.0.0.1:0", "--set", f"kv.uds={folder}/kv.sock"], cores[0], folder, "kvcached")
        sockets = {"redis-server": str(folder / "redis.sock"), "cgn-kvcached": str(folder / "kv.sock.resp")}
        for path in sockets.values():
            wait_for(path)
        for name, size, keys, conns, pipeline, n in CASES:
            if args.only and args.only not in name:
                continue
            case = (name, size, keys, conns, pipeline, max(100, int(n * args.scale)))
            row = {"case": name, "bytes": size, "keys": keys, "connections": conns, "pipeline": pipeline, "requests": case[-1],
                   "floor": floor(size, max(100, case[-1] // 20), cores)}
            for test in ("set", "get"):
                rounds = {who: [] for who in sockets}
                for who, path in sockets.items():  # every key gets a value, so that memory was used before
                    benchmark(path, running[who].pid, cores[1], "set", (*case[:5], 4 * keys))
                for _ in range(args.rounds):
                    for who, path in sockets.items():
                        rounds[who].append(benchmark(path, running[who].pid, cores[1], test, case))
                row[test] = {who: median(r) for who, r in rounds.items()}
                print(name, test, json.dumps(row[test]), flush=True)
            report.append(row)
    finally:
        for process in running.values():
            process.send_signal(signal.SIGTERM)
            process.wait()
        shutil.rmtree(folder)
    version = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=False).stdout.split()
    out = {"bench": "resp", "date": datetime.date.today().isoformat(), "machine": f"{os.cpu_count()} virtual cores", "rounds": args.rounds,
           "redis": next((v[2:] for v in version if v.startswith("v=")), ""), "results": report}
    if args.out:
        args.out.write_text(json.dumps(out, indent="\t") + "\n")
    else:
        print(json.dumps(out))


if __name__ == "__main__":
    main()
