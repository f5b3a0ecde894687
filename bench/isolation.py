#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what a tenant can learn of another's prompts by time, by cached tokens and by headers (docs/fleet/access/isolation.md).

    bench/isolation.py --build build/release --trials 200000 --out bench/results/isolation.json

A trial: a coin is tossed; the victim sends a secret prompt, or another one of the same length; the attacker sends the secret
prompt and tells from its answer which of them it was. There are two nodes; the attacker knows that the victim's prompts go
to the first one, while the router chooses for the attacker. cgn-sim computes --tokens tokens of prompt in --prefill-ms, router and
agent are real. For times the attacker's rule is a threshold, the best one of the first tenth of the trials; the other trials
count. The advantage is how much more often it tells the secret when it was sent than when it was not: 1 is
always right, 0 is chance. |bound| is half the width of an interval that holds the true advantage with 95 %, by Hoeffding's
inequality. |auc| is the probability that a wrong
guess takes longer than a right one (0.5: no difference)."""
import sys

sys.path.pop(0)  # bench/queue.py is not Python's queue

import argparse
import bisect
import concurrent.futures
import datetime
import json
import math
import os
import pathlib
import platform
import random
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def world(folder, isolation, a):
    from cluster import Cluster
    c = Cluster(folder)
    keys = {}
    for t in ("victim", "attacker"):
        made = subprocess.run([a.build / "src/ctl/cgn-ctl", "key", "create", "--file", folder / "keys", "--tenant", t, "--scopes", "chat,admin", "-o", "json"], check=True,
                              capture_output=True, text=True)
        keys[t] = json.loads(made.stdout)["key"]
    c.router({"auth": {"enabled": True, "api_keys_file": str(folder / "keys")}, "security": {"isolation": isolation},
              "router": {"worker_threads": 1, "access_log": "off"}, 'models."sim"': {"tokens": "engine"}})
    for name in "ab":
        c.node(name, "--prefill-tokens-per-s", str(int(a.tokens * 1000 / a.prefill_ms)), "--decode-ms", "0", "--block-tokens", "16")
    c.wait_ready(2)
    return c, keys


class Client:
    """One connection; the head and the body of an answer are read as bytes."""

    def __init__(self, port, key, node=None):
        self.fields = f"Authorization: Bearer {key}" + (f"\r\nX-Cgn-Node: {node}" if node else "")
        self.s = socket.create_connection(("127.0.0.1", port))
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def say(self, ids):
        """Return (seconds, cached tokens, X-Cgn-Cache-Hit, X-Cgn-Node)."""
        body = json.dumps({"model": "sim", "prompt": ids, "max_tokens": 1}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{self.fields}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        request = head.encode() + body
        began = time.perf_counter()
        self.s.sendall(request)
        got = b""
        while b"\r\n\r\n" not in got:
            got += self.s.recv(65536)
        took = time.perf_counter() - began
        top, _, rest = got.partition(b"\r\n\r\n")
        fields = {k.lower(): v for k, _, v in (line.partition(": ") for line in top.decode().split("\r\n")[1:])}
        while len(rest) < int(fields["content-length"]):
            rest += self.s.recv(65536)
        assert b" 200 " in top, got
        usage = json.loads(rest)["usage"]
        return took, (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0, fields.get("x-cgn-cache-hit"), fields.get("x-cgn-node")


def play(isolation, trials, seed, a):
    os.environ["CGN_BUILD"] = str(a.build)
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    rng, out = random.Random(f"{isolation} {seed}"), []
    with tempfile.TemporaryDirectory(prefix="cgn-isolation-") as folder:
        c, keys = world(pathlib.Path(folder), isolation, a)
        try:
            victim, attacker = Client(c.http_port, keys["victim"], "a"), Client(c.http_port, keys["attacker"])
            for _ in range(trials):
                coin = rng.random() < 0.5
                secret, other = ([rng.randrange(1, 30000) for _ in range(a.tokens)] for _ in range(2))
                victim.say(secret if coin else other)
                out.append((coin, *attacker.say(secret)))
        finally:
            trouble = c.close()
    assert not trouble, trouble
    return out


def best_threshold(trials):
    """Return the time below which the guess is that the victim sent the secret, or above which, as is right more often."""
    rows = sorted((t, coin) for coin, t in trials)
    wins = sum(not coin for _, coin in rows)
    best = (max(wins, len(rows) - wins), 0.0, True)
    for t, coin in rows:
        wins += 1 if coin else -1
        for below, n in ((True, wins), (False, len(rows) - wins)):
            if n > best[0]:
                best = (n, t, below)
    return best[1], best[2]


def advantage(guesses):
    told = {coin: [g for c, g in guesses if c == coin] for coin in (True, False)}
    return sum(told[True]) / len(told[True]) - sum(told[False]) / len(told[False])


def exact(trials, column):
    """Return the advantage of the best rule for a channel of few values, found on the first tenth."""
    learn, count = trials[:len(trials) // 10], trials[len(trials) // 10:]
    guess = {}
    for value in {t[column] for t in learn}:
        coins = [t[0] for t in learn if t[column] == value]
        guess[value] = sum(coins) * 2 > len(coins)
    return advantage([(t[0], guess.get(t[column], False)) for t in count])


def judge(trials):
    learn, count = trials[:len(trials) // 10], trials[len(trials) // 10:]
    at, below = best_threshold([(c, t) for c, t, *_ in learn])
    by_time = advantage([(c, (t <= at) == below) for c, t, *_ in count])
    misses = sorted(t for c, t, *_ in count if not c)
    hits = sorted(t for c, t, *_ in count if c)
    longer = sum(len(misses) - bisect.bisect_right(misses, t) for t in hits) / (len(hits) * len(misses))
    return {"trials": len(trials), "counted": len(count), "advantage": {"time": round(by_time, 5), "cached_tokens": round(exact(trials, 2), 5),
                                                                       "x_cgn_cache_hit": round(exact(trials, 3), 5), "x_cgn_node": round(exact(trials, 4), 5)},
            "bound": round(math.sqrt(math.log(2 / 0.05) * (1 / len(hits) + 1 / len(misses)) / 2), 5), "auc": round(longer, 5),
            "median_ms": {"right": round(1000 * hits[len(hits) // 2], 3), "wrong": round(1000 * misses[len(misses) // 2], 3)},
            "cached_tokens_seen": sorted({t[2] for t in trials})}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=lambda s: pathlib.Path(s).resolve(), default=ROOT / "build/release")
    p.add_argument("--trials", type=int, default=200000, help="with isolation; without it a tenth of them")
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--prefill-ms", type=float, default=1.0)
    p.add_argument("--jobs", type=int, default=2, help="worlds beside each other")
    p.add_argument("--out", type=pathlib.Path)
    a = p.parse_args()
    result = {"date": datetime.date.today().isoformat(), "command": "bench/isolation.py " + " ".join(sys.argv[1:]), "cpus": os.cpu_count(), "machine": platform.machine(),
              "tokens": a.tokens, "prefill_ms": a.prefill_ms, "jobs": a.jobs}
    for isolation, n in (("none", a.trials // 10), ("tenant", a.trials)):
        with concurrent.futures.ProcessPoolExecutor(a.jobs) as pool:
            parts = list(pool.map(play, [isolation] * a.jobs, [n // a.jobs] * a.jobs, range(a.jobs), [a] * a.jobs))
        trials = [t for each in zip(*parts) for t in each]  # the first tenth is of all worlds
        result[isolation] = judge(trials)
        print(isolation, json.dumps(result[isolation]), flush=True)
    if a.out:
        a.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
