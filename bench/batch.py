#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the time to first token of interactive requests without and with a batch that never runs dry, in turns, on the
same cluster: two cgn-sim in real time. JSON to stdout: mean, p50 and p99 in ms, and the lines that the batch finished."""
import argparse
import http.client
import json
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rate", type=float, default=10, help="interactive requests a second")
parser.add_argument("--seconds", type=float, default=20, help="length of each part")
parser.add_argument("--rounds", type=int, default=2)
parser.add_argument("--concurrent", type=int, default=16, help="batch.max_concurrent")
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
if __name__ == "__main__":
    a = parser.parse_args()  # before the imports of tests/
from cluster import Cluster  # noqa: E402
from test_batch import create, get, jsonl, line  # noqa: E402


def ttft(port, i, out):
    """Note the seconds from the request to the first byte of its answer."""
    body = {"model": "sim", "messages": [{"role": "user", "content": f"{i} " * 200}], "max_tokens": 20, "stream": True}
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    began = time.monotonic()
    c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    r.read(1)
    out.append(time.monotonic() - began)
    r.read()
    c.close()


def interactive(port, rate, seconds, rng):
    """Send |rate| requests a second, at random times."""
    out, threads, end = [], [], time.monotonic() + seconds
    while time.monotonic() < end:
        threads.append(threading.Thread(target=ttft, args=(port, rng.random(), out)))
        threads[-1].start()
        time.sleep(rng.expovariate(rate))
    for t in threads:
        t.join()
    ms = sorted(1000 * t for t in out)
    return {"requests": len(ms), "mean": round(statistics.mean(ms), 1), "p50": round(ms[len(ms) // 2], 1), "p99": round(ms[int(len(ms) * 0.99)], 1)}


def main():
    rng, parts = random.Random(1), []
    with tempfile.TemporaryDirectory() as folder, Cluster(folder) as c:
        c.router({"batch": {"enabled": True, "max_concurrent": a.concurrent}})
        for name in ("a", "b"):
            c.node(name, "--time-scale", "1")
        c.wait_ready()
        for _ in range(a.rounds):
            parts.append({"batch": False, **interactive(c.http_port, a.rate, a.seconds, rng)})
            batch = create(c, jsonl(line(i, max_tokens=100) for i in range(50000)))
            parts.append({"batch": True, **interactive(c.http_port, a.rate, a.seconds, rng), "lines": get(c, batch)["request_counts"]["completed"]})
            c.ask("POST", f"/v1/batches/{batch['id']}/cancel", {})
    print(json.dumps({"rate": a.rate, "concurrent": a.concurrent, "ttft_ms": parts}))


if __name__ == "__main__":
    main()
