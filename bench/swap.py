#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/swap.py: two models of which one fits, two conversations, one with each. Compare an agent with a block store, which keeps the conversations
while their model is not loaded, with one without, as tools that only start and stop llama-server. Prints JSON. CGN_BUILD names the build; the models are
tiny random ones of scripts/run/tiny-gguf.py."""
import argparse
import json
import pathlib
import re
import statistics
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--turns", type=int, default=12, help="turns of each conversation")
parser.add_argument("--words", type=int, default=700, help="words of each system prompt, of about 5 tokens")
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/interop"), str(ROOT / "tests/e2e")]
if __name__ == "__main__":
    args = parser.parse_args()  # before the imports of tests/
import test_llama_swap as t  # noqa: E402
from cluster import ask  # noqa: E402
from conftest import LLAMA_SERVER  # noqa: E402


class Conversation:
    def __init__(self, laptop, model, seed):
        self.laptop, self.model, self.rows = laptop, model, []
        self.messages = [{"role": "system", "content": t.prose(seed, args.words)}]

    def turn(self, i):
        self.messages.append({"role": "user", "content": t.prose(1000 + i, 8)})
        began = time.perf_counter()
        got = self.laptop.c.ask("POST", t.CHAT, t.body_of(self.model, self.messages, 8))
        took = (time.perf_counter() - began) * 1e3
        self.messages.append({"role": "assistant", "content": t.text_of(got)})
        timings = got.json()["timings"]
        self.rows.append((took, timings["prompt_n"], timings["cache_n"], timings["prompt_ms"]))


def alternate(one, two):
    """One person: a turn here, a turn there."""
    for i in range(args.turns):
        one.turn(i)
        two.turn(i)


def together(one, two):
    """Two people: each asks the next question when the answer is there."""
    people = [threading.Thread(target=lambda c=c: [c.turn(i) for i in range(args.turns)]) for c in (one, two)]
    for p in people:
        p.start()
    for p in people:
        p.join()


def parts(laptop):
    """Return the mean milliseconds of each part of a swap, and the number of loads."""
    sums, counts = {}, {}
    for line in ask(laptop.admin, "GET", "/metrics").body.decode().splitlines():
        m = re.match(r'cgn_swap_seconds_(sum|count)\{engine="\w+",part="(\w+)"\} (\S+)', line)
        if m:
            to = sums if m[1] == "sum" else counts
            to[m[2]] = to.get(m[2], 0) + float(m[3])
    return {"loads": int(counts.get("load", 0)), **{f"{p}_ms": round(1e3 * sums[p] / counts[p], 1) for p in sums if counts[p]}}


def run(load, store, residence):
    with tempfile.TemporaryDirectory() as d:
        laptop = t.Laptop(pathlib.Path(d), str(LLAMA_SERVER), store=store, swap_residence=residence)
        try:
            pair = Conversation(laptop, "anna", 1), Conversation(laptop, "bert", 2)
            began = time.perf_counter()
            load(*pair)
            took = time.perf_counter() - began
            later = [row for c in pair for row in c.rows[1:]]
            restores = [e["took_ms"] for e in laptop.agent.events("slot.restored")]
            return {"requests_per_minute": round(60 * 2 * args.turns / took, 1), "computed_tokens": sum(r[1] for r in later), "cached_tokens": sum(r[2] for r in later),
                    "request_p50_ms": round(statistics.median(r[0] for r in later)), "prompt_p50_ms": round(statistics.median(r[3] for r in later), 1),
                    "swap": parts(laptop) | ({"restore_ms": round(statistics.mean(restores), 1)} if restores else {})}
        finally:
            laptop.close()


def main():
    report = {"what": "two models of which one fits", "model": "tiny random", "turns": args.turns, "words": args.words, "runs": {}}
    for name, load, residence in (("alternating", alternate, "200ms"), ("together", together, "400ms")):
        report["runs"][name] = {"residence": residence, "with store": run(load, True, residence), "without": run(load, False, residence)}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
