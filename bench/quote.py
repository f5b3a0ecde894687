#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure how often the intervals of quotes hold, and how wide they are: live clusters of simulated engines with a GPU's energy
counter each, under a light and a heavy load, bursts, and a node that becomes slow in the middle. JSON to --out and stdout.

Every request asks for its quote (X-Cgn-Quote: 1). Coverage is of cgn_quote_covered_total, so of requests whose interval had at least 20
samples. Widths are of the same requests' quotes, in shares of the expected value."""
import argparse
import datetime
import http.client
import json
import os
import pathlib
import platform
import random
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
FIGURES = {"ttft": "ttft_ms", "finish": "finish_ms", "cost": "cost", "joules": "joules"}
NODES = ("a", "b", "c")


def chat(port, body, out):
    """Send one request; keep its quote."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json", "X-Cgn-Quote": "1"})
        r = c.getresponse()
        r.read()
        out.append((r.status, json.loads(r.getheader("X-Cgn-Quote") or "null")))
    finally:
        c.close()


def body_of(rng, talks):
    """Return a turn of one of some conversations, which grow: short and long prompts, cached and not, streamed or not."""
    i = rng.randrange(len(talks))
    talks[i] += f" turn {rng.random()} " + "word " * rng.choice((20, 100, 400, 1200))
    text, talks[i] = talks[i], talks[i] if len(talks[i]) < 30000 else f"talk {rng.random()}"
    body = {"model": "sim", "messages": [{"role": "user", "content": text}], "stream": rng.random() < 0.8}
    return body | ({"max_tokens": rng.choice((16, 64))} if rng.random() < 0.3 else {})


def arrivals(rng, scenario, seconds):
    at, out = 0.0, []
    while at < seconds:
        if scenario == "bursts":
            at += 6
            out += [at + rng.random() / 2 for _ in range(40)]
        else:
            at += rng.expovariate({"light": 4, "heavy": 11, "slow node": 6}[scenario])
            out.append(at)
    return sorted(out)


def play(c, rng, scenario, seconds, slow_down):
    out, threads, talks, began, slowed = [], [], [f"talk {i}" for i in range(12)], time.monotonic(), False
    for at in arrivals(rng, scenario, seconds):
        time.sleep(max(0, began + at - time.monotonic()))
        if scenario == "slow node" and at > seconds / 2 and not slowed:
            slowed = True
            slow_down()
        threads.append(threading.Thread(target=chat, args=(c.http_port, body_of(rng, talks), out)))
        threads[-1].start()
    for t in threads:
        t.join()
    return out


def summary(c, out):
    figures = {}
    text = c.scrape()
    for label, member in FIGURES.items():
        sides = {s: int(c.metric("cgn_quote_covered_total", text, figure=label, side=s)) for s in ("inside", "below", "above")}
        n = sum(sides.values())
        known = [q[member] for status, q in out if status == 200 and q and q[member] and q[member]["samples"] >= 20]
        figures[label] = {"quotes": n, "covered": round(sides["inside"] / n, 3) if n else None, **sides,
                          "expected_p50": statistics.median(v["expected"] for v in known) if known else None,
                          "width_p50": statistics.median(v["high"] - v["low"] for v in known) if known else None,
                          "width_share_p50": round(statistics.median((v["high"] - v["low"]) / v["expected"] for v in known if v["expected"]), 2) if known else None}
    return {"requests": len(out), "failed": sum(s != 200 for s, _ in out), "figures": figures}


def run(tools, energy, folder, scenario, args, rng):
    gpus = []
    with tools.Cluster(folder) as c:
        c.router({"prices.sim": {"input": 1.0, "cached_input": 0.1, "output": 4.0}, "router.admission": {"max_concurrent_per_replica": 16}})
        for name in NODES:
            g = energy.Gpu(pathlib.Path(folder) / f"gpu-{name}")
            gpus.append(g)
            os.environ["FAKE_NVML"] = str(g.path)
            c.node(name, "--max-batch", "8", "--prefill-tokens-per-s", "8000", "--kv-blocks", "4096",
                   sections={"agent": {"nvml": energy.LIBRARY, "sysfs": str(g.path.with_suffix(".sys"))}})
            g.port = c.nodes[name].engine_port
            g.start()
        c.wait_ready(len(NODES))
        for name in NODES:
            tools.until(lambda: energy.known(c, name), c.logs)

        def slow_down():
            assert tools.ask(c.nodes["a"].engine_port, "POST", "/sim/clock", {"share": 0.3}).status == 200

        out = play(c, rng, scenario, args.seconds, slow_down)
        time.sleep(0.5)
        result = summary(c, out)
        for g in gpus:
            g.ended = True
            g.join()
    return result


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    ap.add_argument("--out", type=pathlib.Path)
    ap.add_argument("--seconds", type=float, default=90, help="of each scenario")
    ap.add_argument("--only", help="one scenario")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    os.environ["CGN_BUILD"] = str(args.build.resolve())
    import cluster as tools
    import test_energy as energy
    result = {"date": datetime.date.today().isoformat(), "machine": platform.processor() or platform.machine(), "cores": os.cpu_count(),
              "seconds": args.seconds, "scenarios": {}}
    for scenario in (args.only,) if args.only else ("light", "heavy", "bursts", "slow node"):
        with tempfile.TemporaryDirectory() as folder:
            result["scenarios"][scenario] = run(tools, energy, folder, scenario, args, random.Random(args.seed))
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
