#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Count what the router executes for a request: instructions (valgrind's callgrind) and system calls (strace), of two builds in
one run. Other load on the machine changes times, but not these counts.

    bench/instructions.py --build build/ci --against OLD/build/ci --out bench/results/instructions.json

Each router has one worker, an agent and an engine (cgn-sim, answering at once); one client sends one request after the other
over one connection. In each case the counts of --few requests are subtracted from those of --many, and the rest is divided by
the difference: what is done once, or for a connection, does not count. What the router does from time to time counts with the
time that the requests took, which callgrind makes longer: "idle" is measured alone, for an estimate of it.

"parts" are instructions for a request that are executed in files whose path contains one of --part, and in what these files
call elsewhere. Build both with the same options, and -O2.

Needs valgrind and strace."""
import argparse
import collections
import datetime
import http.client
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import time

import gateway

ROOT = pathlib.Path(__file__).resolve().parents[1]
CASES = {"plain": (False, 64), "stream-1": (True, 1), "stream-64": (True, 64)}  # streamed, tokens of the answer


class Bench(gateway.Bench):
    """The routers run below |tool|; the engine and the agents do not."""

    def __init__(self, builds, port, tool):
        super().__init__(builds["now"], port, 1)
        self.builds, self.tool, self.targets = builds, tool, []

    def start(self, name, *argv):
        super().start(name, *(self.tool(name) if name.endswith("-router") else []), *argv)

    def up(self):
        self.next_port = self.port["direct"] + 1
        self.start("engine", self.program("cgn-sim"), "--listen", f"127.0.0.1:{self.port['direct']}", "--kv-blocks", "65536",
                   "--time-scale", "0")
        os.environ["COGNITORA__ROUTER__WORKER_THREADS"] = "1"
        for name, build in self.builds.items():
            self.cgn_up(name, build)
        self.wait()

    def router(self, name):
        return self.procs[f"{name}-router"].pid


class Client:
    def __init__(self, bench, name):
        self.conn = http.client.HTTPConnection("127.0.0.1", bench.port[name], timeout=60)

    def send(self, body, n):
        for _ in range(n):
            self.conn.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            got = self.conn.getresponse()
            text = got.read()
            if got.status != 200 or b"error" in text:
                sys.exit(f"status {got.status}: {text[:300]}")


# ---- instructions ----

def names_of(line, known):
    """Return the name of "(ID) NAME", which later lines call "(ID)"."""
    number, _, name = line.partition(" ")
    if name:
        known[number] = name
    return known.get(number, number)


class Profile:
    """One dump of callgrind: instructions of each function and of its calls. Inlined code counts for the function around it."""

    def __init__(self, path):
        self.total, self.own, self.calls = 0, collections.Counter(), collections.Counter()
        files, functions, file, home, function, called_file, called = {}, {}, "", "", "", "", None
        for line in path.read_text(errors="replace").splitlines():
            key, _, value = line.partition("=")
            if key in ("fl", "fi", "fe"):
                file = names_of(value, files)
                home = file if key == "fl" else home
            elif key == "fn":
                function = names_of(value, functions)
            elif key in ("cfi", "cfl"):
                called_file = names_of(value, files)
            elif key == "cfn":
                called = names_of(value, functions)
            elif line[:1] in "0123456789+-*" and len(line.split()) > 1:
                cost = int(line.split()[1])
                if called is not None:
                    self.calls[home, function, called_file or file, called] += cost
                else:
                    self.own[home, function] += cost
                    self.total += cost
                called_file, called = "", None

    def part(self, text):
        """Instructions in the files whose path contains |text|, and in what they call elsewhere."""
        called = sum(n for (f, _, to_file, _), n in self.calls.items() if text in f and text not in to_file)
        return sum(n for (f, _), n in self.own.items() if text in f) + called


def control(pid, *args):
    subprocess.run(["callgrind_control", *args, str(pid)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Counter:
    def __init__(self, bench):
        self.bench = bench

    def zero(self, name):
        control(self.bench.router(name), "-z")

    def dump(self, name):
        """Return a Profile of what was executed since zero()."""
        pattern = f"{name}-router.callgrind.*"
        before = set(self.bench.dir.glob(pattern))
        control(self.bench.router(name), "-d")
        end = time.monotonic() + 60
        while not (new := set(self.bench.dir.glob(pattern)) - before):
            if time.monotonic() > end:
                sys.exit("callgrind wrote no profile")
            time.sleep(0.05)
        profiles = [Profile(p) for p in new]
        return max(profiles, key=lambda p: p.total)


def functions(more, few, args):
    """Return the instructions for a request of each function in each file, without what it calls."""
    each = collections.Counter()
    for (file, function), n in more.own.items():
        each[f"{pathlib.PurePath(file).name}:{function}"] += (n - few.own[file, function]) / (args.many - args.few)
    return each


def changed(before, now, most):
    """Return the functions that differ most: name, instructions before and now."""
    names = sorted(set(before) | set(now), key=lambda f: -abs(now[f] - before[f]))
    return [[f, round(before[f], 1), round(now[f], 1)] for f in names[:most]]


def count_instructions(bench, bodies, args):
    counter, out = Counter(bench), {}
    for case, body in bodies.items():
        out[case], cells = {}, {}
        for name in bench.builds:
            client = Client(bench, name)  # a connection that is idle for long is closed
            client.send(body, args.warm)
            got = {}
            for n in (args.few, args.many):
                began = time.monotonic()
                counter.zero(name)
                client.send(body, n)
                got[n] = counter.dump(name)
                took = time.monotonic() - began
            more, few = got[args.many], got[args.few]
            each = lambda of: round((of(more) - of(few)) / (args.many - args.few), 1)  # noqa: E731
            out[case][name] = {"instructions": each(lambda p: p.total), "parts": {t: each(lambda p, t=t: p.part(t)) for t in args.part},
                               "ms": round(took * 1e3 / args.many, 2)}
            cells[name] = functions(more, few, args)
        if args.functions:
            out[case]["changed"] = changed(*cells.values(), args.functions)
    for name in bench.builds:
        counter.zero(name)
        time.sleep(args.idle)
        out.setdefault("idle", {})[name] = {"instructions_per_s": round(counter.dump(name).total / args.idle)}
    return out


# ---- system calls ----

def trace(bench, name, work):
    """Return how often the router called what while work() ran."""
    path = bench.dir / f"{name}.strace"
    tracer = subprocess.Popen(["strace", "-c", "-f", "-o", path, "-p", str(bench.router(name))], stderr=subprocess.PIPE, text=True)
    tracer.stderr.readline()  # "attached"
    work()
    tracer.send_signal(signal.SIGINT)
    tracer.communicate(timeout=30)
    rows = re.findall(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", path.read_text(), re.M)
    return collections.Counter({call: int(n) for n, call in rows if call != "total"})


def count_calls(bench, bodies, args):
    out = {}
    for case, body in bodies.items():
        out[case] = {}
        for name in bench.builds:
            client = Client(bench, name)  # a connection that is idle for long is closed
            client.send(body, args.warm)
            few, many = (trace(bench, name, lambda n=n: client.send(body, n)) for n in (args.few, args.many))
            each = {c: round((n - few[c]) / (args.many - args.few), 3) for c, n in many.most_common()}
            out[case][name] = {"calls": round(sum(each.values()), 2), "by_name": {c: n for c, n in each.items() if n >= 0.005}}
    return out


def run(builds, port, tool, count, bodies, args):
    bench = Bench(builds, port, lambda name: tool(bench, name))
    try:
        bench.up()
        return count(bench, bodies, args)
    finally:
        bench.down()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "ci")
    ap.add_argument("--against", type=pathlib.Path, required=True, help="the other build, \"before\"")
    ap.add_argument("--out", type=pathlib.Path)
    ap.add_argument("--port", type=int, default=23000, help="first of up to 40 ports")
    ap.add_argument("--few", type=int, default=300)
    ap.add_argument("--many", type=int, default=3300)
    ap.add_argument("--warm", type=int, default=100, help="requests before each case that are not counted")
    ap.add_argument("--idle", type=float, default=10, help="seconds without requests")
    ap.add_argument("--part", nargs="*", default=["attempt/opening.c", "opening.c"], metavar="TEXT")
    ap.add_argument("--functions", type=int, default=0, help="print this many functions whose instructions differ most")
    args = ap.parse_args()
    builds = {"before": args.against.resolve(), "now": args.build.resolve()}
    bodies = {case: gateway.body(1024, *of) for case, of in CASES.items()}
    report = {"bench": "instructions", "date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "machine": platform.machine(),
              "few": args.few, "many": args.many}
    callgrind = lambda b, name: ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={b.dir}/{name}.callgrind"]  # noqa: E731
    report["instructions"] = run(builds, args.port, callgrind, count_instructions, bodies, args)
    report["system_calls"] = run(builds, args.port + 20, lambda *_: [], count_calls, bodies, args)
    text = json.dumps(report, indent=1)
    if args.out:
        args.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
