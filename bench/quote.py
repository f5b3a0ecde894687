#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure how often the intervals of quotes hold, and how wide they are: live clusters of simulated engines with a GPU's energy
counter each, under a light and a heavy load, bursts, a node that becomes slow in the middle, and a mix of four applications. JSON to --out
and stdout.

Every request asks for its quote (X-Cgn-Quote: 1). Coverage is of cgn_quote_covered_total, so of requests whose interval had at least 20
samples. Widths are of the same requests' quotes, in shares of the expected value. In the mix, each application has prompts and lengths of
answers of its own, which requests do not say (min_tokens of the engine makes them), and is counted apart by what /explain says of each request."""
import argparse
import datetime
import http.client
import json
import math
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


def chat(port, body, out, fields=None):
    """Send one request; keep its quote."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    fields = fields or {}
    try:
        c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json", "X-Cgn-Quote": "1"} | fields)
        r = c.getresponse()
        r.read()
        out.append((r.status, json.loads(r.getheader("X-Cgn-Quote") or "null"), fields.get("X-Request-Id")))
    finally:
        c.close()


class Mix:
    """Four applications. Each request is one of them by chance."""
    SHARES = {"chat": 3, "agents": 3, "rag": 1, "shared": 3}

    def __init__(self, rng):
        self.rng, self.n = rng, 0
        self.talks = [self.talk("chat", i) for i in range(24)]
        self.agents = [self.talk("agent", i) for i in range(12)]

    def talk(self, kind, i):
        self.n += 1
        return {"id": f"{kind}-{self.n}", "text": f"{kind} number {self.n}. " + "word " * 80, "usual": self.rng.choice((20, 60, 150, 300))}

    def grow(self, talks, i, words, most):
        if len(talks[i]["text"]) > most:
            talks[i] = self.talk(talks[i]["id"].split("-")[0], i)
        talks[i]["text"] += " next " + "word " * words
        return talks[i]

    def request(self):
        """Return the application's name, the prompt, the length of the answer, and header fields."""
        rng = self.rng
        kind = rng.choices(list(self.SHARES), list(self.SHARES.values()))[0]
        if kind == "chat":
            t = self.grow(self.talks, rng.randrange(len(self.talks)), rng.choice((20, 100)), 12000)
            return kind, t["text"], rng.randint(20, 600), {}
        if kind == "agents":
            t = self.grow(self.agents, rng.randrange(len(self.agents)), rng.choice((50, 300)), 30000)
            return kind, t["text"], round(t["usual"] * rng.uniform(0.5, 1.5)), {"X-Cgn-Session": t["id"]}
        if kind == "rag":
            return kind, f"Document {rng.randrange(40)}. " + "text " * rng.choice((1500, 3000)) + f"question {rng.random()}", rng.randint(80, 400), {}
        return kind, "You sort messages into kinds. " * 40 + f" message {rng.random()} " + "word " * rng.randint(5, 60), rng.randint(8, 40), {}


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
            at += rng.expovariate({"light": 4, "heavy": 11, "slow node": 6, "mix": 6}[scenario])
            out.append(at)
    return sorted(out)


def play(c, rng, scenario, seconds, slow_down):
    out, threads, talks, began, slowed = [], [], [f"talk {i}" for i in range(12)], time.monotonic(), False
    mix = Mix(rng)
    for at in arrivals(rng, scenario, seconds):
        time.sleep(max(0, began + at - time.monotonic()))
        if scenario == "slow node" and at > seconds / 2 and not slowed:
            slowed = True
            slow_down()
        if scenario == "mix":
            kind, text, length, fields = mix.request()
            body = {"model": "sim", "messages": [{"role": "user", "content": text}], "stream": rng.random() < 0.8, "min_tokens": length}
            args = (c.http_port, body, out, fields | {"X-Request-Id": f"{kind}-{len(threads)}"})
        else:
            args = (c.http_port, body_of(rng, talks), out)
        threads.append(threading.Thread(target=chat, args=args))
        threads[-1].start()
    for t in threads:
        t.join()
    return out


def quoted(tools, c, out):
    """Return (application, figure, share of the expected value that the interval is wide, whether it held) of each quote that counts."""
    rows = []
    for status, q, name in out:
        if status != 200 or not q:
            continue
        (told,) = tools.ask(c.admin_port, "GET", f"/explain/{name}").json()["requests"]
        for label, member in FIGURES.items():
            v, end = q[member], told["end"]["quote"].get(member, {})
            if v and v["samples"] >= 20 and end.get("actual") is not None and v["expected"]:
                rows.append((name.split("-")[0], label, (v["high"] - v["low"]) / v["expected"], v["low"] <= end["actual"] <= v["high"]))
    return rows


def by_application(rows):
    result = {}
    for kind in (*Mix.SHARES, "all"):
        for label in FIGURES:
            mine = sorted((w, held) for k, f, w, held in rows if f == label and kind in (k, "all"))
            if mine:
                result.setdefault(kind, {})[label] = {"quotes": len(mine), "covered": round(sum(held for _, held in mine) / len(mine), 3),
                                                      "width_share_p50": round(mine[len(mine) // 2][0], 2), "width_share_p90": round(mine[math.ceil(0.9 * len(mine)) - 1][0], 2)}
    return result


def summary(c, out):
    figures = {}
    text = c.scrape()
    for label, member in FIGURES.items():
        sides = {s: int(c.metric("cgn_quote_covered_total", text, figure=label, side=s)) for s in ("inside", "below", "above")}
        n = sum(sides.values())
        known = [q[member] for status, q, _ in out if status == 200 and q and q[member] and q[member]["samples"] >= 20]
        figures[label] = {"quotes": n, "covered": round(sides["inside"] / n, 3) if n else None, **sides,
                          "expected_p50": statistics.median(v["expected"] for v in known) if known else None,
                          "width_p50": statistics.median(v["high"] - v["low"] for v in known) if known else None,
                          "width_share_p50": round(statistics.median((v["high"] - v["low"]) / v["expected"] for v in known if v["expected"]), 2) if known else None}
    return {"requests": len(out), "failed": sum(s != 200 for s, _, _ in out), "figures": figures}


def run(tools, energy, folder, scenario, args, rng):
    gpus = []
    with tools.Cluster(folder) as c:
        c.router({"prices.sim": {"input": 1.0, "cached_input": 0.1, "output": 4.0}, "router.admission": {"max_concurrent_per_replica": 16}})
        for name in NODES:
            g = energy.Gpu(pathlib.Path(folder) / f"gpu-{name}")
            gpus.append(g)
            os.environ["FAKE_NVML"] = str(g.path)
            c.node(name, "--max-batch", "8", "--prefill-tokens-per-s", "8000", "--kv-blocks", "4096",
                   *(("--max-tokens-default", "8") if scenario == "mix" else ()),
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
        if scenario == "mix":
            result["applications"] = by_application(quoted(tools, c, out))
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
    for scenario in (args.only,) if args.only else ("light", "heavy", "bursts", "slow node", "mix"):
        with tempfile.TemporaryDirectory() as folder:
            result["scenarios"][scenario] = run(tools, energy, folder, scenario, args, random.Random(args.seed))
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
