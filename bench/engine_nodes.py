#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare an engine without an agent as a node with the same engine behind its agent, and with the engine alone, in one run.

    bench/engine_nodes.py --build build/release --out bench/results/engine_nodes.json

One cgn-sim answers at once and publishes KV events. One router has it by an agent, another by [engine_nodes]. Each round measures all
three, one after another, so that other load on the machine affects all of them; medians over the rounds are reported. Load is that of
`cgn-ctl bench chat`: "ttft" at a rate that the machine serves easily, "throughput" with as many requests as fit into 64 in flight. CPU is
the time that the threads of router and agent ran, as the kernel reports it (schedstat)."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from gateway import ROOT, cpu_ns

WAYS = ("engine", "agent", "bare")


class World:
    def __init__(self, build, port):
        self.dir, self.build, self.port, self.procs = pathlib.Path(tempfile.mkdtemp(prefix="cgn-bench-")), build, port, {}
        self.url = {"engine": f"http://127.0.0.1:{port}", "agent": f"http://127.0.0.1:{port + 3}", "bare": f"http://127.0.0.1:{port + 9}"}
        self.events = f'kv_events = "tcp://127.0.0.1:{port + 1}"\nkv_events_replay = "tcp://127.0.0.1:{port + 2}"\n'
        self.pids = {"engine": [], "agent": ["agent-router", "agent-agent"], "bare": ["bare-router"]}

    def start(self, name, program, *args):
        with open(self.dir / f"{name}.log", "wb") as log:
            self.procs[name] = subprocess.Popen([self.build / "src" / program.removeprefix("cgn-") / program, *map(str, args)], stdin=subprocess.DEVNULL,
                                                stdout=log, stderr=log)

    def config(self, name, text):
        (self.dir / f"{name}.toml").write_text(text)
        return self.dir / f"{name}.toml"

    def router(self, way, first, more):
        return self.config(f"{way}-router", f'[cluster]\nrouter = "127.0.0.1:{first + 1}"\nstate_dir = "{self.dir}/{way}"\n[security]\ninsecure = true\n'
                           f'[router]\nlisten = "127.0.0.1:{first}"\nlisten_grpc = "127.0.0.1:{first + 1}"\nlisten_admin = "127.0.0.1:{first + 2}"\n'
                           f'access_log = "{self.dir}/{way}-access.log"\n[router.admission]\nmax_concurrent_per_replica = 20000\n'
                           f'[models.sim]\ntokens = "bytes"\n{more}')

    def up(self):
        p = self.port
        self.start("engine", "cgn-sim", "--listen", f"127.0.0.1:{p}", "--time-scale", "0", "--kv-blocks", "65536", "--max-batch", "20000", "--kv-events",
                   f"tcp://127.0.0.1:{p + 1}", "--kv-events-replay", f"tcp://127.0.0.1:{p + 2}")
        self.start("agent-router", "cgn-router", "--config", self.router("agent", p + 3, ""))
        self.start("agent-agent", "cgn-agent", "--config", self.config("agent", f'[cluster]\nrouter = "127.0.0.1:{p + 4}"\nstate_dir = "{self.dir}/a"\n'
                   f'[security]\ninsecure = true\n[agent]\nnode_id = "bench"\nlisten = "127.0.0.1:{p + 6}"\nlisten_admin = "127.0.0.1:{p + 7}"\n'
                   f'max_inflight = 20000\n[engine]\nkind = "sim"\nurl = "http://127.0.0.1:{p}"\nmax_conns = 20000\n{self.events}'))
        self.start("bare-router", "cgn-router", "--config", self.router("bare", p + 9, f'[engine_nodes.bench]\nkind = "sim"\nurl = "http://127.0.0.1:{p}"\n'
                   f'max_conns = 20000\n{self.events}'))
        for way in WAYS:
            self.wait(way)

    def wait(self, way):
        ask = urllib.request.Request(f"{self.url[way]}/v1/completions", json.dumps({"model": "sim", "prompt": "hi", "max_tokens": 1}).encode(),
                                     {"Content-Type": "application/json"})
        for _ in range(300):
            try:
                urllib.request.urlopen(ask, timeout=5).read()
                return
            except OSError:
                time.sleep(0.1)
        sys.exit(f"{way} does not answer; logs are in {self.dir}")

    def down(self):
        for p in reversed(self.procs.values()):
            p.terminate()
        for p in self.procs.values():
            p.wait()

    def load(self, way, args):
        pids = [self.procs[name].pid for name in self.pids[way]]
        before = cpu_ns(pids)
        done = subprocess.run([self.build / "src/ctl/cgn-ctl", "bench", "chat", "--url", self.url[way], "--model", "sim", "-o", "json", *args],
                              capture_output=True, text=True, check=True)
        return json.loads(done.stdout), cpu_ns(pids) - before


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    ap.add_argument("--out", type=pathlib.Path)
    ap.add_argument("--port", type=int, default=24000, help="first of 12 ports")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--seconds", type=int, default=2, help="seconds for each way in each round")
    args = ap.parse_args()
    w = World(args.build.resolve(), args.port)
    report = {"bench": "engine_nodes", "date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "kernel": platform.release(),
              "load_before": os.getloadavg()[0], "rounds": args.rounds, "seconds": args.seconds}
    shape = ["--duration", f"{args.seconds}s", "--prompt-bytes", "1024", "--max-tokens", "32"]
    loads = {"ttft": ["--rate", "100", *shape], "throughput": ["--rate", "20000", "--max-inflight", "64", *shape]}
    got = {name: {way: [] for way in WAYS} for name in loads}
    try:
        w.up()
        for n in range(args.rounds):
            for name, flags in loads.items():
                for way in WAYS:
                    got[name][way].append(w.load(way, [*flags, "--seed", str(n + 1)]))
    finally:
        w.down()
    report["load_after"] = os.getloadavg()[0]
    report["loads"] = {name: {way: summary(runs, args.seconds) for way, runs in ways.items()} for name, ways in got.items()}
    text = json.dumps(report, indent=1) + "\n"
    if args.out:
        args.out.write_text(text)
    print(text)


def summary(runs, seconds):
    def middle(of):
        return round(statistics.median(of(r, cpu) for r, cpu in runs), 3)
    return {"ttft_p50_ms": middle(lambda r, _: r["ttft_ms"]["p50"]), "ttft_p99_ms": middle(lambda r, _: r["ttft_ms"]["p99"]),
            "per_second": middle(lambda r, _: r["answered"] / seconds), "failed": sum(r["failed"] for r, _ in runs),
            "cpu_us": middle(lambda r, cpu: cpu / 1000 / max(1, r["answered"]))}


if __name__ == "__main__":
    main()
