#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GET /federate of cgn-metrics over many targets: its time and the program's memory, beside a copy of the same bytes and, if it is installed,
beside Prometheus scraping the same targets. Prints JSON.

  bench/federate.py --build build/release [--targets 1000] [--text FILE] [--rounds 10]

The targets are the addresses 127.1.X.Y of one server process on loopback, which answers each with the same text: that of a cgn-agent in
bench/data/agent.prom, or FILE. All work counts: the time is from the request to the last byte at a reader that keeps the bytes."""
import argparse
import http.server
import json
import multiprocessing
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent


def serve(text, port, ready):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 1024

        def handle_error(self, *_):  # a connection that ended
            pass

    server = Server(("0.0.0.0", port), Handler)
    ready.set()
    server.serve_forever()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url):
    """Return the seconds until the last byte, and the number of bytes."""
    began, n = time.perf_counter(), 0
    with urllib.request.urlopen(url, timeout=120) as r:
        while piece := r.read(1 << 20):
            n += len(piece)
    return time.perf_counter() - began, n


def memory(pid):
    fields = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status") if ":" in line)
    return {"rss_mb": round(int(fields["VmRSS"].split()[0]) / 1e3, 1), "peak_mb": round(int(fields["VmHWM"].split()[0]) / 1e3, 1)}


def until(what, seconds):
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            sys.exit(f"bench/federate.py: not ready after {seconds} s")
        time.sleep(0.2)


def median(values):
    return sorted(values)[len(values) // 2]


def rounds_of(url, n):
    took = [get(url) for _ in range(n)]
    return {"seconds_p50": round(median([t for t, _ in took]), 4), "seconds_max": round(max(t for t, _ in took), 4), "bytes": took[-1][1]}


def ours(a, folder, targets):
    port = free_port()
    rows = "".join(f'[scrape_targets."t{i}"]\nurl = "http://{at}/metrics"\n' for i, at in enumerate(targets))
    (folder / "m.toml").write_text(f'[metrics]\nlisten = "127.0.0.1:{port}"\ndiscover = false\nscrape_interval = "10s"\n{rows}')
    p = subprocess.Popen([pathlib.Path(a.build) / "src/metrics/cgn-metrics", "--config", folder / "m.toml"], stderr=open(folder / "m.log", "wb"))
    try:
        def up():
            try:
                return all(t["state"] == "up" for t in json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/targets"))["targets"])
            except OSError:
                return False
        until(up, 120)
        cpu = sum(os.times()[:2])
        result = rounds_of(f"http://127.0.0.1:{port}/federate", a.rounds)
        result["reader_cpu_seconds"] = round((sum(os.times()[:2]) - cpu) / a.rounds, 4)
        return {**result, "one_family": rounds_of(f"http://127.0.0.1:{port}/federate?match[]=cgn_build_info", a.rounds), **memory(p.pid)}
    finally:
        p.terminate()
        p.wait()


def prometheus(a, folder, targets):
    """Prometheus federates only what it stores, so that its time has the search in its store."""
    if not (program := shutil.which("prometheus")):
        return None
    port = free_port()
    (folder / "p.yml").write_text("global: {scrape_interval: 10s}\nscrape_configs:\n- job_name: t\n  static_configs:\n  - targets: " + json.dumps(targets))
    p = subprocess.Popen([program, f"--config.file={folder}/p.yml", f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address=127.0.0.1:{port}"],
                         stderr=open(folder / "p.log", "wb"))
    try:
        def up():
            try:
                r = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query=sum(up)"))["data"]["result"]
                return bool(r) and float(r[0]["value"][1]) == len(targets)
            except OSError:
                return False
        until(up, 300)
        return {**rounds_of(f"http://127.0.0.1:{port}/federate?match[]=%7B__name__%3D~%22.%2B%22%7D", max(1, a.rounds // 3)), **memory(p.pid)}
    finally:
        p.terminate()
        p.wait()


def copy_of(n):
    source = bytearray(os.urandom(1 << 20)) * (n // (1 << 20) + 1)
    began = time.perf_counter()
    bytes(source)
    return round(time.perf_counter() - began, 4)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", required=True)
    p.add_argument("--targets", type=int, default=1000)
    p.add_argument("--text", default=str(HERE / "data/agent.prom"))
    p.add_argument("--rounds", type=int, default=10)
    a = p.parse_args()
    text, port, ready = pathlib.Path(a.text).read_bytes(), free_port(), multiprocessing.Event()
    server = multiprocessing.Process(target=serve, args=(text, port, ready), daemon=True)
    server.start()
    ready.wait()
    targets = [f"127.1.{i // 250}.{i % 250 + 1}:{port}" for i in range(a.targets)]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        own = ours(a, folder, targets)
        print(json.dumps({"targets": a.targets, "text_bytes": len(text), "samples_each": sum(not line.startswith(b"#") for line in text.splitlines()),
                          "cgn_metrics": own, "copy_seconds": copy_of(own["bytes"]), "prometheus": prometheus(a, folder, targets)}, indent=1))
    server.terminate()


if __name__ == "__main__":
    main()
