#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare ways to choose between a small and a large model, on two simulated models (cgn-sim): always the large one, a random
choice, a choice by the length of the prompt before any answer, the gate of router.cascade by its threshold, and the calibrated
gate. The simulator knows how difficult each prompt is and lets the small model's log-probabilities show it with noise; the
prompts' lengths grow with their difficulty, with noise too. So the figures say how the mechanics compare, not what real models
save. A price of 1 is that of a token of the small model. JSON to stdout."""
import argparse
import json
import pathlib
import random
import re
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--learn", type=int, default=400, help="prompts by which the gate is calibrated")
parser.add_argument("--prompts", type=int, default=1000, help="prompts that are compared")
parser.add_argument("--streams", type=int, default=100, help="answers in real time, for the time to first token")
parser.add_argument("--price", type=float, default=10, help="price of a token of the large model")
parser.add_argument("--max-error", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=1)
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
if __name__ == "__main__":
    a = parser.parse_args()  # before the imports of tests/
from clients import Stream  # noqa: E402
from cluster import Cluster, ask, until  # noqa: E402

HELD = 16  # router.cascade.tokens
CASCADE = {"enabled": True, "small_model": "small", "large_model": "large", "tokens": HELD, "pregate": 1}
NUMBERS = re.compile(r"confidence=(-?[\d.]+); threshold=-?[\d.]+; doubt=([\d.]+)")


def world(folder, scale, **cascade):
    c = Cluster(folder)
    c.MODEL = "large"
    c.router({"router.cascade": {**CASCADE, **cascade}})
    c.node("s", "--time-scale", scale, "--skill", "0.5", model="small")
    c.node("l", "--time-scale", scale, "--skill", "2", model="large")
    c.wait_ready()
    return c


def prompts(rng, n, name):
    for i in range(n):
        difficulty = rng.random()
        words = 20 + int(200 * min(1, max(0, rng.gauss(difficulty, 0.3))))
        yield {"text": f"{name} {i} " + "word " * words, "words": words, "difficulty": difficulty}


def learn(c, rng):
    outcomes = ("compared", "unclear", "busy", "failed", "dropped")
    ended = lambda: sum(c.metric("cgn_cascade_doubles_total", outcome=o) for o in outcomes)
    for i, p in enumerate(prompts(rng, a.learn, "learn")):
        c.chat(p["text"], difficulty=p["difficulty"])
        until(lambda: ended() > i, c.scrape)
    (pair,) = ask(c.admin_port, "GET", "/cascades").json()["pairs"]
    return {"compared": pair["compared"], "different": pair["different"], "ece": round(pair["ece"], 4), "steps": len(pair["curve"])}


def answer_of(a):
    assert a.status == 200, a.body
    said = a.json()
    return said["choices"][0]["message"]["content"], said["usage"]


def play(c, rng):
    rows = []
    for p in prompts(rng, a.prompts, "play"):
        gated = c.chat(p["text"], difficulty=p["difficulty"])
        small, small_used = answer_of(c.chat(p["text"], {"X-Cgn-Cascade": "only-small"}, difficulty=p["difficulty"]))
        large, large_used = answer_of(c.chat(p["text"], {"X-Cgn-Cascade": "off"}, difficulty=p["difficulty"]))
        step = gated.headers["x-cgn-cascade-step"]
        confidence, doubt = map(float, NUMBERS.search(step).groups())
        rows.append({"released": "outcome=released" in step, "confidence": confidence, "doubt": doubt, "words": p["words"],
                     "right": small == large, "same": answer_of(gated)[0] == large, "prompt": small_used["prompt_tokens"],
                     "small": small_used["total_tokens"], "large": a.price * large_used["total_tokens"]})
    return rows


def start_cost(r):
    """What a wrong start of a stream costs: the prompt, and the tokens that were held back."""
    return r["prompt"] + HELD


def summary(rows, released, gated, same=lambda r: r["right"]):
    """|released|: which prompts the small model answers; |gated|: the others cost a wrong start too."""
    cost = sum(r["small"] if released(r) else r["large"] + gated * start_cost(r) for r in rows)
    return {"quality": round(sum(same(r) if released(r) else 1 for r in rows) / len(rows), 4),
            "cost": round(cost / sum(r["large"] for r in rows), 4),
            "small_share": round(sum(map(released, rows)) / len(rows), 4),
            "wasted_tokens": round(gated * sum(start_cost(r) for r in rows if not released(r)) / len(rows), 1)}


def best(rows, key, gated, quality):
    """The cheapest rule "the small model, if key(row) is at most a limit" that keeps the quality."""
    found = [s for limit in sorted({key(r) for r in rows}) if (s := summary(rows, lambda r: key(r) <= limit, gated))["quality"] >= quality]
    return min(found, key=lambda s: s["cost"], default=summary(rows, lambda r: False, gated))


def ttft(c, text, difficulty, **headers):
    began = time.monotonic()
    s = Stream(c.http_port, text, fields=headers, model="large", difficulty=difficulty, max_tokens=24, ignore_eos=True)
    s.read_until(b'"content":')
    took = time.monotonic() - began
    s.read_until(b"[DONE]")
    s.close()
    return 1000 * took


def times(c):
    out = {}
    for name, difficulty in (("released", 0.05), ("escalated", 0.95)):
        added = sorted(ttft(c, f"{name} {i} " + "word " * 100, difficulty) - ttft(c, f"{name} {i}. " + "word " * 100, difficulty, **{"X-Cgn-Cascade": "off"})
                       for i in range(a.streams))
        out[name] = {"added_ttft_ms_p50": round(added[len(added) // 2], 1), "added_ttft_ms_p99": round(added[int(len(added) * 0.99)], 1)}
    return out


def main():
    rng = random.Random(a.seed)
    out = {"prompts": a.prompts, "price_of_large": a.price, "max_error": a.max_error}
    with tempfile.TemporaryDirectory() as folder, world(folder, "0", calibration_share=1, max_error=a.max_error) as c:
        out["calibration"] = learn(c, rng)
        rows = play(c, rng)
    noise, shuffled = {}, random.Random(a.seed)
    for r in rows:
        noise[id(r)] = shuffled.random()
    out["always_small"] = summary(rows, lambda r: True, 0)
    out["threshold_-1.5"] = summary(rows, lambda r: r["confidence"] >= -1.5, 1)
    out["calibrated"] = summary(rows, lambda r: r["released"], 1, lambda r: r["same"])
    released = [r for r in rows if r["released"]]
    out["calibrated"]["errors_of_released"] = round(sum(not r["same"] for r in released) / max(1, len(released)), 4)
    for quality in (0.95, 0.99):
        out[f"cheapest_at_quality_{quality}"] = {
            "random": best(rows, lambda r: noise[id(r)], 0, quality), "length": best(rows, lambda r: r["words"], 0, quality),
            "confidence": best(rows, lambda r: -r["confidence"], 1, quality), "doubt": best(rows, lambda r: r["doubt"], 1, quality)}
    with tempfile.TemporaryDirectory() as folder, world(folder, "1", confidence_threshold=-0.3) as c:
        out["time_to_first_token"] = times(c)
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
