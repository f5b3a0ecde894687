#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the memory of router and agent for an open, nearly silent stream: N streams through router and agent, a token
every 4 s each.

    bench/streams.py --build build/release --streams 10000 --out bench/results/streams.json

Resident memory is read before the first stream and when all are open. A stream that ends, or is not answered with 200, is a
failure."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import resource
import select
import socket
import sys
import time

import gateway


def rss_kib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def rss(b):
    return {name: rss_kib(b.procs[name].pid) for name in ("router", "agent")}


class Streams:
    def __init__(self, port):
        body = json.dumps({"model": "sim", "messages": [{"role": "user", "content": "Tell me a long story. " * 40}], "stream": True,
                           "max_tokens": 20000, "ignore_eos": True}).encode()
        self.head = (b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                     % len(body)) + body
        self.port, self.socks, self.started, self.failed, self.events = port, {}, set(), 0, 0
        self.poll = select.epoll()

    def open(self):
        s = socket.create_connection(("127.0.0.1", self.port))
        s.sendall(self.head)
        s.setblocking(False)
        self.socks[s.fileno()] = s
        self.poll.register(s.fileno(), select.EPOLLIN)

    def take(self, timeout):
        for fd, _ in self.poll.poll(timeout, 4096):
            data = b""
            try:
                data = self.socks[fd].recv(65536)
            except ConnectionError:
                pass
            if not data or (fd not in self.started and not data.startswith(b"HTTP/1.1 200")):
                self.failed += 1
                self.poll.unregister(fd)
                continue
            self.started.add(fd)
            self.events += data.count(b"data: ")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path, default=gateway.ROOT / "build" / "release")
    ap.add_argument("--out", type=pathlib.Path)
    ap.add_argument("--port", type=int, default=22060)
    ap.add_argument("--streams", type=int, default=10000)
    ap.add_argument("--hold", type=float, default=15, help="seconds for which all streams are held open")
    ap.add_argument("--wait", type=float, default=120, help="seconds until all streams must have answered")
    args = ap.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the child processes inherit it
    if most != resource.RLIM_INFINITY and most < args.streams + 1000:
        sys.exit(f"{args.streams} streams need {args.streams + 1000} file descriptors in each process, the hard limit is {most}")
    b = gateway.Bench(args.build.resolve(), args.port, os.cpu_count())
    try:
        b.up(["--token-interval-us", "4000000", "--max-queue", "20000", "--kv-blocks", "4000000"])
        idle, began = rss(b), time.monotonic()
        s = Streams(b.port["cgn"])
        for i in range(args.streams):
            s.open()
            if i % 50 == 49:
                s.take(0.01)
        while len(s.started) + s.failed < args.streams and time.monotonic() - began < args.wait:
            s.take(0.2)
        opened = time.monotonic() - began
        end = time.monotonic() + args.hold
        while time.monotonic() < end:
            s.take(0.2)
        held = rss(b)
    finally:
        b.down()
    report = {"bench": "streams", "date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "kernel": platform.release(),
              "streams": args.streams, "answered": len(s.started), "failed": s.failed, "events": s.events,
              "seconds_to_open": round(opened, 1), "rss_idle_kib": idle, "rss_held_kib": held,
              "bytes_per_stream": {k: (held[k] - idle[k]) * 1024 // args.streams if not s.failed and len(s.started) == args.streams else None for k in idle}}
    text = json.dumps(report, indent=1) + "\n"
    if args.out:
        args.out.write_text(text)
    print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
