#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what an agent adds to a request, and an agent with many engines, against cgn-sim.

    bench/relay.py --build build/release --out bench/results/relay.json

Relay: one request at a time, in turns directly to the engine and through Agent.Generate, on one connection each, from one
process (bench_relay); answers of cgn-sim at once, plain and streamed. The difference of the medians is what the agent adds. A
thread that only passes bytes on has its turns too: what it adds is the least that a hop costs on the machine at that time.

Crash: how long it takes from kill -9 of a managed engine until the agent shows it as not ready (/engines, asked without pause).

Engines: an agent with --engines managed engines: time until all are ready, memory of the agent and of the keepers, CPU time
while nothing happens."""
import argparse
import datetime
import http.client
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def cpu_seconds(pid):
    return sum(int((t / "schedstat").read_text().split()[0]) for t in pathlib.Path(f"/proc/{pid}/task").iterdir()) / 1e9


def pss_kib(pid):
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


class Agent:
    """An agent in a folder of its own, with its engines."""

    def __init__(self, build, port, engines):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cgn-relay-"))
        self.port, self.admin = port, port + 1
        (self.dir / "agent.toml").write_text(
            f'[cluster]\nstate_dir = "{self.dir}/state"\nrouter = "127.0.0.1:9"\n[agent]\nnode_id = "bench"\nlisten = "127.0.0.1:{port}"\n'
            f'listen_admin = "127.0.0.1:{port + 1}"\n{engines}')
        env = {**os.environ, "PATH": f"{build}/src/sim:{os.environ['PATH']}"}
        with open(self.dir / "log", "wb") as log:
            self.popen = subprocess.Popen([build / "src/agent/cgn-agent", "--config", self.dir / "agent.toml"], stderr=log, env=env)
        self.http = None

    def engines(self):
        if self.http is None:
            self.http = http.client.HTTPConnection("127.0.0.1", self.admin)
        self.http.request("GET", "/engines")
        return json.loads(self.http.getresponse().read())["engines"]

    def wait(self, n):
        while True:
            try:
                if sum(e["ready"] for e in self.engines()) == n:
                    return
            except (OSError, http.client.HTTPException):
                self.http = None
            assert self.popen.poll() is None, (self.dir / "log").read_text()
            time.sleep(0.005)

    def close(self):
        self.popen.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        self.popen.wait()
        shutil.rmtree(self.dir)
        return time.monotonic() - begun


def engine_toml(name, port, args=""):
    return (f'[[engines]]\nname = "{name}"\nkind = "sim"\nmanaged = true\nmodel = "sim"\nurl = "http://127.0.0.1:{port}"\nready_interval = "50ms"\n'
            f'restart_backoff = "10ms"\nextra_args = ["--time-scale", "0"{args}]\n')


def relay(args):
    a = Agent(args.build, args.port, engine_toml("sim", args.port + 2))
    a.wait(1)
    out = {}
    for size in (1024, 65536):
        for stream in (False, True):
            ask = {"model": "sim", "messages": [{"role": "user", "content": "the quick brown fox " * (size // 20)}], "max_tokens": 64,
                   "min_tokens": 64, "ignore_eos": True, "stream": stream}
            (a.dir / "body").write_text(json.dumps(ask))
            got = subprocess.run([args.build / "bench_relay", f"127.0.0.1:{a.port}", f"127.0.0.1:{args.port + 2}", a.dir / "body",
                                  str(args.requests)], check=True, capture_output=True, text=True)
            r = json.loads(got.stdout)
            r["added_p50_us"] = round(r["agent"]["p50_us"] - r["direct"]["p50_us"], 1)
            r["forwarder_added_p50_us"] = round(r["forwarder"]["p50_us"] - r["direct"]["p50_us"], 1)
            r["added_p99_us"] = round(r["agent"]["p99_us"] - r["direct"]["p99_us"], 1)
            name = f"{size // 1024} KB {'streamed' if stream else 'plain'}"
            out[name] = r
            print(f"{name:16} direct {r['direct']['p50_us']:7.1f} agent {r['agent']['p50_us']:7.1f} added p50 {r['added_p50_us']:6.1f} "
                  f"p99 {r['added_p99_us']:6.1f}, a bare forwarder {r['forwarder_added_p50_us']:6.1f} us {got.stderr.strip()}", flush=True)
    a.close()
    return out


def crash(args):
    n = args.crashes  # one engine for each, because the pause before a restart doubles
    a = Agent(args.build, args.port, "".join(engine_toml(f"e{i}", args.port + 2 + i) for i in range(n)))
    a.wait(n)
    took = []
    for i in range(n):
        pid = a.engines()[i]["pid"]
        begun = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while a.engines()[i]["ready"]:
            pass
        took.append((time.monotonic() - begun) * 1e3)
    a.close()
    r = {"p50_ms": round(statistics.median(took), 2), "max_ms": round(max(took), 2), "n": len(took)}
    print(f"crash noticed after p50 {r['p50_ms']} ms, at most {r['max_ms']} ms of {r['n']}", flush=True)
    return r


def many(args):
    n = args.engines
    conf = "".join(engine_toml(f"e{i}", args.port + 2 + i, ', "--kv-blocks", "64"') for i in range(n))
    begun = time.monotonic()
    a = Agent(args.build, args.port, conf)
    a.wait(n)
    ready = time.monotonic() - begun
    time.sleep(2)
    pids = [e["pid"] for e in a.engines()]
    keepers = [int(pathlib.Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()[1]) for p in pids]
    before, before_keepers = cpu_seconds(a.popen.pid), sum(map(cpu_seconds, keepers))
    time.sleep(args.idle)
    idle = (cpu_seconds(a.popen.pid) - before) / args.idle
    idle_keepers = (sum(map(cpu_seconds, keepers)) - before_keepers) / args.idle
    r = {"engines": n, "ready_s": round(ready, 2), "agent_pss_mib": round(pss_kib(a.popen.pid) / 1024, 1),
         "keepers_pss_mib": round(sum(map(pss_kib, keepers)) / 1024, 1), "idle_cpu_percent": round(100 * idle, 2),
         "keepers_idle_cpu_percent": round(100 * idle_keepers, 3)}
    r["stop_s"] = round(a.close(), 2)
    print(json.dumps(r), flush=True)
    return r


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=lambda p: pathlib.Path(p).resolve(), default=ROOT / "build" / "release")
    ap.add_argument("--out", type=pathlib.Path)
    ap.add_argument("--port", type=int, default=22100, help="first of the ports; two more than --engines")
    ap.add_argument("--requests", type=int, default=3000, help="requests of each kind")
    ap.add_argument("--crashes", type=int, default=30)
    ap.add_argument("--engines", type=int, default=64)
    ap.add_argument("--idle", type=float, default=10, help="seconds of which the CPU time is taken")
    args = ap.parse_args()
    report = {"bench": "relay", "date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "kernel": platform.release(),
              "load_before": os.getloadavg()[0]}
    report["relay"], report["crash"], report["many"] = relay(args), crash(args), many(args)
    report["load_after"] = os.getloadavg()[0]
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
