#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare ways to choose between a small and a large model: always the large one, a random choice, a choice by the length of the
prompt before any answer, the gate of router.cascade by its threshold, and the calibrated gate.

By default both models are simulated (cgn-sim). The simulator knows how difficult each prompt is and lets the small model's
log-probabilities show it with noise; the prompts' lengths grow with their difficulty, with noise too. So the figures say how the
mechanics compare, not what real models save. With --models FOLDER two real llama-servers run the models that
bench/cascade_models.py has trained into FOLDER. A price of 1 is that of a token of the small model. JSON to stdout.

    bench/cascade.py
    bench/cascade_models.py /tmp/models && bench/cascade.py --models /tmp/models --learn 800 --price 12
"""
import argparse
import contextlib
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--learn", type=int, default=400, help="prompts by which the gate is calibrated")
parser.add_argument("--prompts", type=int, default=1000, help="prompts that are compared")
parser.add_argument("--streams", type=int, default=100, help="answers in real time, for the time to first token")
parser.add_argument("--price", type=float, default=10, help="price of a token of the large model")
parser.add_argument("--max-error", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--models", type=pathlib.Path, help="a folder with small.gguf and large.gguf")
ROOT = pathlib.Path(__file__).resolve().parents[1]
parser.add_argument("--llama-server", default=str(ROOT / "scripts/run/llama-server"))
sys.path.insert(0, str(ROOT / "tests/e2e"))
if __name__ == "__main__":
    a = parser.parse_args()  # before the imports of tests/
import cascade_models  # noqa: E402
from clients import Stream  # noqa: E402
from cluster import Cluster, ask, free_port, until  # noqa: E402

HELD = 16  # router.cascade.tokens
CASCADE = {"enabled": True, "small_model": "small", "large_model": "large", "tokens": HELD, "pregate": 1}
NUMBERS = re.compile(r"confidence=(-?[\d.]+); threshold=-?[\d.]+; doubt=([\d.]+)")


class Simulated:
    """Two cgn-sim, and prompts whose difficulty they know."""

    @contextlib.contextmanager
    def world(self, timed, **cascade):
        with tempfile.TemporaryDirectory() as folder, Cluster(folder) as c:
            c.MODEL = "large"
            c.router({"router.cascade": {**CASCADE, **cascade}})
            for name, model, skill in (("s", "small", "0.5"), ("l", "large", "2")):
                c.node(name, "--time-scale", "1" if timed else "0", "--skill", skill, model=model)
            c.wait_ready()
            yield c

    def prompts(self, rng, n, name):
        for i in range(n):
            difficulty = rng.random()
            words = 20 + int(200 * min(1, max(0, rng.gauss(difficulty, 0.3))))
            yield f"{name} {i} " + "word " * words, {"difficulty": difficulty}

    def timed_prompts(self, rng):
        for kind, difficulty in (("released", 0.05), ("escalated", 0.95)):
            for i in range(a.streams):
                yield f"{kind} {i} " + "word " * 100, f"{kind} {i}. " + "word " * 100, {"difficulty": difficulty, "max_tokens": 24, "ignore_eos": True}


class Trained:
    """Two real llama-servers, and tasks of which the small model learned a part."""

    @contextlib.contextmanager
    def world(self, timed, **cascade):
        with tempfile.TemporaryDirectory() as folder, Cluster(folder) as c, contextlib.ExitStack() as stack:
            c.MODEL = "large"
            c.router({"router.cascade": {**CASCADE, **cascade}})
            for model in ("small", "large"):
                port = free_port()
                argv = [a.llama_server, "--model", a.models / f"{model}.gguf", "--alias", model, "--host", "127.0.0.1", "--port", str(port),
                        "--threads", "1", "--n-gpu-layers", "0", "--parallel", "2"]
                server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                stack.callback(lambda server=server: (server.kill(), server.wait()))
                c.agent(model, port, {"engine": {"kind": "llama_cpp", "model": model}})
            c.wait_ready(2)
            yield c

    def prompts(self, rng, n, name):
        for _ in range(n):
            yield cascade_models.task(rng)[0], {"temperature": 0, "max_tokens": 32}

    def timed_prompts(self, rng):
        for (one, body), (other, _) in zip(self.prompts(rng, 2 * a.streams, "one"), self.prompts(rng, 2 * a.streams, "other")):
            yield one, other, body


def learn(c, source, rng):
    outcomes = ("compared", "unclear", "busy", "failed", "dropped")
    ended = lambda: sum(c.metric("cgn_cascade_doubles_total", outcome=o) for o in outcomes)
    for i, (text, body) in enumerate(source.prompts(rng, a.learn, "learn")):
        c.chat(text, **body)
        until(lambda: ended() > i, c.scrape)
    (pair,) = ask(c.admin_port, "GET", "/cascades").json()["pairs"]
    return {"compared": pair["compared"], "different": pair["different"], "ece": round(pair["ece"], 4), "steps": len(pair["curve"])}


def answer_of(a):
    assert a.status == 200, a.body
    said = a.json()
    return said["choices"][0]["message"]["content"], said["usage"]


def play(c, source, rng):
    rows = []
    for text, body in source.prompts(rng, a.prompts, "play"):
        gated = c.chat(text, **body)
        small, small_used = answer_of(c.chat(text, {"X-Cgn-Cascade": "only-small"}, **body))
        large, large_used = answer_of(c.chat(text, {"X-Cgn-Cascade": "off"}, **body))
        step = gated.headers["x-cgn-cascade-step"]
        numbers = NUMBERS.search(step)  # missing: the small model's answer has no token to judge by
        confidence, doubt = map(float, numbers.groups()) if numbers else (-100, 1)
        rows.append({"released": "outcome=released" in step, "confidence": confidence, "doubt": doubt, "length": len(text),
                     "right": small == large, "same": answer_of(gated)[0] == large, "prompt": small_used["prompt_tokens"], "held": min(HELD, small_used["completion_tokens"]),
                     "small": small_used["total_tokens"], "large": a.price * large_used["total_tokens"]})
    return rows


def start_cost(r):
    """What a wrong start of a stream costs: the prompt, and the tokens that were held back."""
    return r["prompt"] + r["held"]


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


def ttft(c, text, body, **headers):
    """Return the milliseconds to the first token, and what the gate said."""
    began = time.monotonic()
    s = Stream(c.http_port, text, fields=headers, model="large", **body)
    s.read_until(b'"content":"')
    took = time.monotonic() - began
    s.read_until(b"[DONE]")
    s.close()
    return 1000 * took, re.search(rb"outcome=(\w+)", s.got)[1].decode()


def times(c, source, rng):
    """What the gate adds to the time to the first token of a stream; both prompts differ, so that none is in a cache."""
    added = {"released": [], "escalated": []}
    for text, other, body in source.timed_prompts(rng):
        took, outcome = ttft(c, text, body)
        added[outcome].append(took - ttft(c, other, body, **{"X-Cgn-Cascade": "off"})[0])
    return {outcome: {"streams": len(v), "added_ttft_ms_p50": round(v[len(v) // 2], 1), "added_ttft_ms_p99": round(v[int(len(v) * 0.99)], 1)}
            for outcome, v in ((o, sorted(v)) for o, v in added.items()) if v}


def main():
    rng, source = random.Random(a.seed), Trained() if a.models else Simulated()
    out = {"prompts": a.prompts, "price_of_large": a.price, "max_error": a.max_error}
    with source.world(False, calibration_share=1, max_error=a.max_error) as c:
        out["calibration"] = learn(c, source, rng)
        rows = play(c, source, rng)
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
            "random": best(rows, lambda r: noise[id(r)], 0, quality), "length": best(rows, lambda r: r["length"], 0, quality),
            "confidence": best(rows, lambda r: -r["confidence"], 1, quality), "doubt": best(rows, lambda r: r["doubt"], 1, quality)}
    with source.world(True, calibration_share=0, confidence_threshold=-0.3) as c:
        out["time_to_first_token"] = times(c, source, rng)
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
