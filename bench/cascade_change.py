#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Count the wrong answers that a cascade lets through: before anything is known of the small model, and after it has turned sure and
wrong.

Both models are simulated (cgn-sim). In the first part the settings name the models and nothing else, and nearly every second answer
of the small model is wrong; then the same with calibration_share = 0. In the second part the router learns from prompts of all
kinds, then the small model answers easy ones right; at the change another large model comes, whose answers to these prompts are
other ones, so that the small one is as sure as before and always wrong. JSON to stdout.

    CGN_BUILD=$PWD/build/ci bench/cascade_change.py
"""
import argparse
import json
import pathlib
import random
import sys
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--start", type=int, default=300, help="prompts of the first part")
parser.add_argument("--before", type=int, default=1000, help="easy prompts before the change")
parser.add_argument("--after", type=int, default=8000, help="easy prompts after it")
parser.add_argument("--seed", type=int, default=1)
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
if __name__ == "__main__":
    a = parser.parse_args()  # before the imports of tests/
from cluster import Cluster, until  # noqa: E402

CASCADE = {"enabled": True, "small_model": "small", "large_model": "large", "pregate": 1}
EASY = 0.05


def world(folder, **cascade):
    c = Cluster(folder)
    c.MODEL = "large"
    c.router({"router.cascade": {**CASCADE, **cascade}})
    c.node("s", "--time-scale", "0", "--skill", "0.5", model="small")
    c.node("l", "--time-scale", "0", "--skill", "2", model="large")
    c.wait_ready()
    return c


def answer(c, text, difficulty, **headers):
    r = c.chat(text, headers or None, difficulty=difficulty, max_tokens=16)
    assert r.status == 200, r.body
    return r.json()["choices"][0]["message"]["content"], r.headers.get("x-cgn-cascade-step", "")


def compared(c):
    return int(c.metric("cgn_cascade_doubles_total", outcome="compared") or 0)


def begins(**cascade):
    with tempfile.TemporaryDirectory() as folder, world(folder, **cascade) as c:
        rng, wrong = random.Random(a.seed), 0
        for i in range(a.start):
            text, difficulty = f"start {i}", rng.random()
            wrong += answer(c, text, difficulty)[0] != answer(c, text, difficulty, **{"X-Cgn-Cascade": "off"})[0]
        return {"prompts": a.start, "wrong": wrong, "compared": compared(c)}


def changes(share):
    with tempfile.TemporaryDirectory() as folder, world(folder, calibration_share=share) as c:
        rng = random.Random(a.seed)
        for i in range(120):
            n = compared(c)
            answer(c, f"learn {i}", rng.random())
            if i < 60:
                until(lambda: compared(c) > n, c.scrape)
        released = sum("released" in answer(c, f"before {i}", EASY)[1] for i in range(a.before))
        were = compared(c)
        c.nodes["l"].engine.kill()
        until(lambda: c.states()["l"] != "ready", "the large model is gone")
        c.node("other", "--time-scale", "0", "--skill", "0.01", model="large")
        until(lambda: c.states().get("other") == "ready", "the other one is ready")
        wrong = [i for i in range(a.after) if "released" in answer(c, f"after {i}", EASY)[1]]
        return {"share": share, "released_before": released, "compared_before": were, "prompts": a.after, "wrong": len(wrong),
                "last_wrong": wrong[-1] + 1 if wrong else 0, "compared": compared(c) - were, "alarms": len(c.router_process.events("cascade.drifted"))}


def main():
    print(json.dumps({"start": {"default": begins(), "uncalibrated": begins(calibration_share=0)}, "change": [changes(s) for s in (0.08, 0.02)]}, indent=1))


if __name__ == "__main__":
    main()
