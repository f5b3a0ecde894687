#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory of router and agent while clients send more bodies than the bound allows. Prints one JSON object.

Clients send chats of 32 KiB to 8 MiB to a router with an engine that never answers, leave after a moment, and
come again. Reported for each program, in MiB: idle, the highest resident memory (VmHWM), and the memory a moment
after the last client has left."""
import argparse
import json
import pathlib
import random
import socket
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

HEAD = b'{"model":"sim","max_tokens":1,"messages":[{"role":"user","content":"'
TAIL = b'"}]}'
TEXT = memoryview(b"lorem ipsum dolor sit amet. " * (8 * 1024 * 1024 // 28))
SIZES = [32 << 10, 100 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20]


def high_water(process):
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise RuntimeError("no VmHWM")


def mib(kib):
    return round(kib / 1024, 1)


def one_client(port, rng, stop, counts):
    while not stop.is_set():
        text = TEXT[:rng.choice(SIZES) - len(HEAD) - len(TAIL)]
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
                s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (len(HEAD) + len(text) + len(TAIL)) + HEAD)
                s.sendall(text)
                s.sendall(TAIL)
                s.settimeout(rng.uniform(0.2, 2))
                got = s.recv(16)
                counts["refused" if got.startswith(b"HTTP/1.1 503") else "other"] += 1
                time.sleep(0.05)
        except TimeoutError:
            counts["held"] += 1
        except OSError:
            counts["cut"] += 1


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bound", type=int, default=256, help="MiB: router.max_inflight_body and agent.max_inflight_body")
    p.add_argument("--only", choices=["router", "agent"], help="bound this program alone; the other has its default of 1 GiB")
    p.add_argument("--clients", type=int, default=200)
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--settle", type=float, default=12, help="seconds after the last client")
    a = p.parse_args()
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    from cluster import Cluster, until
    bound = {"max_inflight_body": f"{a.bound}MiB"}
    with tempfile.TemporaryDirectory() as folder, Cluster(folder) as c:
        c.common['models."sim"'] = {"tokens": "bytes"}
        c.router({"router": {**(bound if a.only != "agent" else {}), "worker_threads": 4}, "router.admission": {"max_concurrent_per_replica": 65536}})
        node = c.node("a", "--time-scale", "0", "--fault", "hang", sections={"agent": bound if a.only != "router" else {}})
        c.wait_ready(1)
        programs = {"router": c.router_process, "agent": node.agent}
        idle = {name: x.rss_kib() for name, x in programs.items()}
        stop, counts = threading.Event(), {"held": 0, "refused": 0, "cut": 0, "other": 0}
        threads = [threading.Thread(target=one_client, args=(c.http_port, random.Random(i), stop, counts)) for i in range(a.clients)]
        for t in threads:
            t.start()
        time.sleep(a.seconds)
        stop.set()
        for t in threads:
            t.join()
        until(lambda: c.metric("cgn_inflight") == 0, "all requests have ended")
        time.sleep(a.settle)
        print(json.dumps({"bound": a.bound, "only": a.only, "clients": a.clients, "requests": counts,
                          **{name: {"idle": mib(idle[name]), "peak": mib(high_water(x)), "after": mib(x.rss_kib())} for name, x in programs.items()}}))


main()
