#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the time and CPU that router and agent add to a request, compared with nginx and other peers, in one run against
one engine (cgn-sim, answering at once).

    bench/gateway.py --build build/release --out bench/results/gateway.json

Each case is measured in rounds: the engine alone, through nginx, through each peer that is installed (HAProxy, Envoy,
SGLang's router), through router and agent, through a router that goes straight to the engine (agent.direct), and with
--against through router and agent of another build, one after another, so that other load on the machine affects all of
them. The medians over the rounds are reported. There are two kinds of load:

  closed  each connection sends the next request as soon as it got an answer. With few cores the p50 of many connections is the
          time in the queue: the CPU that a request costs all processes together, including the load generator.
  paced   each connection pauses (exponential, 16 ms on average) before the next request: the machine is not full, and latency
          is not queueing.

Needs wrk and nginx. --sglang-python names a Python that has sglang-router. CPU is the time that the threads of each process ran, as the kernel reports it (schedstat)."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]

OURS = ("cgn", "straight", "against")  # programs of this repository; straight: with agent.direct

LUA = r"""
local paced = %(paced)s
wrk.method = "POST"
wrk.body = io.open("%(body)s", "rb"):read("*a")
wrk.headers["Content-Type"] = "application/json"
if paced then
	function delay() return math.min(160, -16 * math.log(1 - math.random())) end
end
function done(summary, latency, requests)
	io.write(string.format('{"requests":%%d,"seconds":%%.6f,"bytes":%%d,"p50_us":%%d,"p90_us":%%d,"p99_us":%%d,"max_us":%%d,' ..
		'"errors":%%d}\n', summary.requests, summary.duration / 1e6, summary.bytes, latency:percentile(50), latency:percentile(90),
		latency:percentile(99), latency.max, summary.errors.status + summary.errors.connect + summary.errors.read +
		summary.errors.write + summary.errors.timeout))
end
"""

NGINX = """
daemon off; master_process on; worker_processes %(workers)d; pid %(dir)s/nginx.pid; error_log %(dir)s/nginx-error.log warn;
events { worker_connections 1024; }
http {
	access_log %(dir)s/nginx-access.log combined;
	client_body_temp_path %(dir)s/nginx-body; proxy_temp_path %(dir)s/nginx-proxy;
	fastcgi_temp_path %(dir)s/f; uwsgi_temp_path %(dir)s/u; scgi_temp_path %(dir)s/s;
	client_body_buffer_size 256k; client_max_body_size 16m; keepalive_requests 100000000; tcp_nodelay on;
	upstream engine { server 127.0.0.1:%(engine)d; keepalive 128; keepalive_requests 100000000; }
	server {
		listen 127.0.0.1:%(nginx)d reuseport;
		location / {
			proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
		}
	}
}
"""

HAPROXY = """
global
	nbthread %(workers)d
	maxconn 4096
defaults
	mode http
	timeout connect 5s
	timeout client 60s
	timeout server 60s
	option http-keep-alive
	http-reuse always
frontend f
	bind 127.0.0.1:%(port)d
	default_backend e
backend e
	server engine 127.0.0.1:%(engine)d
"""

ENVOY = """
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: %(port)d}}
    enable_reuse_port: true
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: "/"}, route: {cluster: engine}}]}]}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: engine
    type: STATIC
    load_assignment:
      cluster_name: engine
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %(engine)d}}}}]}]
"""


def cpu_ns(pids):
    total = 0
    for pid in pids:
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total


def children(pid):
    return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Bench:
    def __init__(self, build, port, workers):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cgn-bench-"))
        self.build, self.procs, self.workers = build, {}, workers
        self.port = {"direct": port, "nginx": port + 1}
        self.targets, self.next_port = ["direct", "nginx"], port + 2

    def add(self, name):
        """Give a target its port."""
        self.targets.append(name)
        self.port[name] = self.next_port
        self.next_port += 1
        return self.port[name]

    def start(self, name, *argv):
        with open(self.dir / f"{name}.log", "wb") as log:
            self.procs[name] = subprocess.Popen(list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def program(self, name, build=None):
        return (build or self.build) / "src" / name.removeprefix("cgn-") / name

    def up(self, sim_args, args):
        p = self.port
        self.publish = [f"tcp://127.0.0.1:{self.next_port + i}" for i in range(2)]
        self.next_port += 2
        self.start("engine", self.program("cgn-sim"), "--listen", f"127.0.0.1:{p['direct']}", "--kv-blocks", "65536",
                   "--max-batch", "20000", "--kv-events", self.publish[0], "--kv-events-replay", self.publish[1], *sim_args)
        (self.dir / "nginx.conf").write_text(NGINX % {"dir": self.dir, "engine": p["direct"], "nginx": p["nginx"],
                                                      "workers": self.workers})
        self.start("nginx", shutil.which("nginx") or "/usr/sbin/nginx", "-p", self.dir, "-c", self.dir / "nginx.conf")
        self.peers_up(args)
        self.cgn_up("cgn", self.build, direct="off")
        self.cgn_up("straight", self.build, direct="auto")
        if args.against:
            self.cgn_up("against", args.against.resolve())
        self.wait()

    def peers_up(self, args):
        def conf(name, text):
            (self.dir / name).write_text(text % {"workers": self.workers, "port": self.next_port, "engine": self.port["direct"]})
            return self.dir / name
        haproxy = shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")
        if haproxy:
            self.start("haproxy", haproxy, "-db", "-f", conf("haproxy.cfg", HAPROXY))
            self.add("haproxy")
        if shutil.which("envoy"):
            self.start("envoy", "envoy", "-l", "error", "--concurrency", self.workers, "-c", conf("envoy.yaml", ENVOY))
            self.add("envoy")
        if args.sglang_python:
            self.start("sglang", args.sglang_python, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port",
                       self.next_port, "--policy", "cache_aware", "--log-level", "error",
                       "--prometheus-port", self.next_port + 1, "--worker-urls", f"http://127.0.0.1:{self.port['direct']}")
            self.add("sglang")
            self.next_port += 1

    def cgn_up(self, name, build, direct=None):
        port, grpc, admin, agent, agent_admin = self.add(name), *range(self.next_port, self.next_port + 4)
        self.next_port += 4
        cluster = f'[cluster]\nname = "bench"\nstate_backend = "embedded"\nrouter = "127.0.0.1:{grpc}"\nstate_dir = "{self.dir}/{name}-state"\n'
        # nginx writes its access log to a file too; builds that know no file write to stderr, which is one here
        knows = b"\naccess_log = " in subprocess.run([self.program("cgn-router", build), "--config", "/dev/null", "--check"],
                                                       capture_output=True).stdout
        access = f'access_log = "{self.dir}/{name}-access.log"\n' if knows else ""
        # agent.direct needs KV events; a build that is compared may not know the setting
        events = f'kv_events = "{self.publish[0]}"\nkv_events_replay = "{self.publish[1]}"\n' if direct else ""
        direct = f'direct = "{direct}"\n' if direct else ""
        (self.dir / f"{name}-router.toml").write_text(
            f'{cluster}[router]\nlisten = "127.0.0.1:{port}"\nlisten_grpc = "127.0.0.1:{grpc}"\n{access}'
            f'listen_admin = "127.0.0.1:{admin}"\n[router.admission]\nmax_concurrent_per_replica = 20000\n'
            '[models.sim]\ntokens = "bytes"\n')  # no tokenize requests beside the measured requests
        (self.dir / f"{name}-agent.toml").write_text(
            f'{cluster}[agent]\nnode_id = "bench"\nlisten = "127.0.0.1:{agent}"\nlisten_admin = "127.0.0.1:{agent_admin}"\n'
            f'max_inflight = 20000\n{direct}[engine]\nkind = "sim"\nmanaged = false\nmodel = "sim"\n'
            f'url = "http://127.0.0.1:{self.port["direct"]}"\nmax_conns = 20000\n{events}')
        for program in ("router", "agent"):
            self.start(f"{name}-{program}", self.program(f"cgn-{program}", build), "--config", self.dir / f"{name}-{program}.toml")

    def wait(self):
        end = time.monotonic() + 30
        for name in self.targets:
            while subprocess.run(["curl", "-fsS", "-o", "/dev/null", "-m", "5", "-H", "content-type: application/json", "-d",
                                  json.dumps({"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
                                  self.url(name)], capture_output=True).returncode != 0:
                for who, popen in self.procs.items():
                    if popen.poll() is not None:
                        sys.exit(f"{who} ended, see {self.dir}/{who}.log")
                if time.monotonic() > end:
                    sys.exit(f"{name} does not answer; logs are in {self.dir}")
                time.sleep(0.1)

    def url(self, name):
        return f"http://127.0.0.1:{self.port[name]}/v1/chat/completions"

    def pids(self, name):
        """Return the processes between the client and the engine."""
        if name == "direct":
            return []
        if name in OURS:
            return [self.procs[f"{name}-router"].pid, self.procs[f"{name}-agent"].pid]
        pid = self.procs[name].pid
        return [pid] + children(pid)

    def down(self):
        for popen in reversed(self.procs.values()):
            popen.terminate()
        for popen in self.procs.values():
            try:
                popen.wait(10)
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def wrk(self, name, case, seconds):
        watched = {"added": self.pids(name), "router": self.pids(name)[:1] if name in OURS else [],
                   "agent": self.pids(name)[1:] if name in OURS else [], "engine": [self.procs["engine"].pid]}
        before = {k: cpu_ns(v) for k, v in watched.items()}
        out = subprocess.run(["wrk", "-t1", f"-c{case['connections']}", f"-d{seconds}s", "--timeout", "10s", "-s", case["lua"],
                              self.url(name)], capture_output=True, text=True, check=True).stdout
        got = json.loads(out.strip().splitlines()[-1])
        n = max(1, got["requests"])
        for k, v in watched.items():
            got[f"{k}_cpu_us"] = round((cpu_ns(v) - before[k]) / 1000 / n, 2)
        got["per_second"] = round(n / got["seconds"], 1)
        return got


def body(prompt_bytes, stream, tokens):
    words = "the of and a to in is you that it he was for on are as with his they I at be this have from".split()
    rng, text = random.Random(7), ""
    parts = []
    n = 0
    while n < prompt_bytes:
        parts.append(rng.choice(words))
        n += len(parts[-1]) + 1
    text = " ".join(parts)[:prompt_bytes]
    ask = {"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "min_tokens": tokens,
           "ignore_eos": True, "temperature": 0}
    if stream:
        ask["stream"] = True
    return json.dumps(ask).encode()


def cases(b, args):
    for load in ("closed", "paced"):
        for connections in (1, 64):
            if load == "paced" and connections == 1:
                continue
            for size in (1024, 65536):
                for stream in (False, True):
                    name = f"{load}-c{connections}-{size // 1024}k-{'stream' if stream else 'plain'}"
                    if args.only and args.only not in name:
                        continue
                    (b.dir / f"{name}.json").write_bytes(body(size, stream, args.tokens))
                    (b.dir / f"{name}.lua").write_text(LUA % {"paced": str(load == "paced").lower(), "body": b.dir / f"{name}.json"})
                    yield {"name": name, "load": load, "connections": connections, "prompt_bytes": size, "stream": stream,
                           "lua": b.dir / f"{name}.lua"}


def events_per_answer(b):
    out = subprocess.run(["curl", "-sN", "-H", "content-type: application/json", "-d", body(100, True, b.tokens).decode(),
                          b.url("cgn")], capture_output=True, check=True).stdout
    return out.count(b"\n\n")


def ratio(a, b):
    return round(a / b, 2) if b > 0 else None


def measure(b, case, args):
    rounds = {name: [] for name in b.targets}
    for _ in range(args.rounds):
        for name in rounds:
            rounds[name].append(b.wrk(name, case, args.seconds))
    res = {name: {k: round(statistics.median(r[k] for r in runs), 2) for k in runs[0]} for name, runs in rounds.items()}
    for name, runs in rounds.items():
        res[name]["errors"] = sum(r["errors"] for r in runs)
    d, n, c = res["direct"], res["nginx"], res["cgn"]
    res["added_p50_us"] = {"nginx": n["p50_us"] - d["p50_us"], "cgn": c["p50_us"] - d["p50_us"]}
    res["added_p99_us"] = {"nginx": n["p99_us"] - d["p99_us"], "cgn": c["p99_us"] - d["p99_us"]}
    res["added_p50_ratio"] = ratio(c["p50_us"] - d["p50_us"], n["p50_us"] - d["p50_us"])
    res["cpu_ratio"] = ratio(c["added_cpu_us"], n["added_cpu_us"])
    res["added_cpu_us"] = {name: res[name]["added_cpu_us"] for name in b.targets if name != "direct"}
    if case["stream"]:
        e = b.events
        res["events_per_cpu_second"] = {"nginx": round(e * 1e6 / n["added_cpu_us"]), "cgn": round(e * 1e6 / c["added_cpu_us"]),
                                        "router": round(e * 1e6 / c["router_cpu_us"]), "agent": round(e * 1e6 / c["agent_cpu_us"])}
    return res


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    ap.add_argument("--out", type=pathlib.Path)
    ap.add_argument("--port", type=int, default=22000, help="first of up to 24 ports")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--seconds", type=int, default=2, help="seconds for each target in each round")
    ap.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    ap.add_argument("--against", type=pathlib.Path, help="another build, measured in the same run")
    ap.add_argument("--sglang-python", help="Python that has sglang-router")
    ap.add_argument("--only", help="run only cases whose name contains this")
    args = ap.parse_args()
    cores = os.cpu_count()
    b = Bench(args.build.resolve(), args.port, cores)
    b.tokens = args.tokens
    report = {"bench": "gateway", "date": datetime.date.today().isoformat(), "cores": cores, "kernel": platform.release(),
              "load_before": os.getloadavg()[0], "rounds": args.rounds, "seconds": args.seconds, "tokens": args.tokens, "cases": {}}
    try:
        b.up(["--time-scale", "0", "--chunk-per-write"], args)
        b.events = report["events_per_answer"] = events_per_answer(b)
        for case in cases(b, args):
            res = report["cases"][case["name"]] = measure(b, case, args)
            d, n, c = res["direct"], res["nginx"], res["cgn"]
            print(f"{case['name']:24} p50 {d['p50_us']:7.0f} {n['p50_us']:7.0f} {c['p50_us']:7.0f} us  p99 {d['p99_us']:7.0f} "
                  f"{n['p99_us']:7.0f} {c['p99_us']:7.0f}  cpu nginx {n['added_cpu_us']:7.1f} router {c['router_cpu_us']:7.1f} agent "
                  f"{c['agent_cpu_us']:7.1f} us  p50 ratio {res['added_p50_ratio']} cpu ratio {res['cpu_ratio']} "
                  f"err {d['errors']:.0f}/{n['errors']:.0f}/{c['errors']:.0f}  cpu {res['added_cpu_us']}", file=sys.stderr, flush=True)
    finally:
        b.down()
    report["load_after"] = os.getloadavg()[0]
    text = json.dumps(report, indent=1) + "\n"
    if args.out:
        args.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
