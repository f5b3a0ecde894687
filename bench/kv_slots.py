#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/kv_slots.py: compare the time of a prompt that a llama-server computes with that of a prompt whose state is restored
from RAM, from SSD, and from another node's store over QUIC. Prints JSON. CGN_BUILD names the build; the model is the tiny random
one of scripts/run/tiny-gguf.py."""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time

if __name__ == "__main__":  # before the imports of tests/
    argparse.ArgumentParser(description=__doc__).parse_args()
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/interop"), str(ROOT / "tests/e2e")]
import test_llama_slots as t  # noqa: E402
from test_llama_legs import Pair  # noqa: E402
from cluster import ask, until  # noqa: E402
from conftest import LLAMA_SERVER  # noqa: E402

TOKENS, TIMES = (1000, 4000), 9


def timed(w, prompt, node):
    """Return the engine's own prompt_ms, and the time of the whole request for the client."""
    began = time.perf_counter()
    got = w.c.ask("POST", t.TEXT, t.completion(prompt, 1), {"X-Cgn-Node": node})
    took = (time.perf_counter() - began) * 1e3
    timings = got.json()["timings"]
    return timings["prompt_ms"], took, timings["cache_n"], timings["cache_n"] + timings["prompt_n"]


def restored(w, node):
    return [e for e in w.agents[node].events("slot.restored")]


def median(rows):
    prompt, whole, cached, tokens = (statistics.median(x) for x in zip(*rows, strict=True))
    return {"prompt_ms": round(prompt, 2), "request_ms": round(whole, 2), "cached_tokens": int(cached), "prompt_tokens": int(tokens)}


def one_node(folder, ssd, tokens):
    """RAM for four states; less where SSD is measured."""
    w = t.World(folder, str(LLAMA_SERVER))
    store = {"ram": f"{8 * tokens // 1000}MiB", "ssd": "1GiB", "ssd_admission": "all", "ssd_dir": str(folder / "ssd")} if ssd else {"ram": "512MiB"}
    w.node("a", t.kvcached(w.c, "a", **store))
    w.ready()
    return w


def measure(w, node, prompts, fill, wanted):
    """Ask each prompt cold on |fill|, which saves the state; then again on |node|, after other prompts took
    the slot."""
    cold, saves = [], w.kept(fill)["saves"]
    for i, p in enumerate(prompts):
        cold.append(timed(w, p, fill))
        w.saved(saves + i + 1, fill)
    time.sleep(1)
    warm, events = [], []
    for p in prompts:
        before = len(restored(w, node))
        row = timed(w, p, node)
        new = restored(w, node)[before:]
        if [e["from"] for e in new] == [wanted]: # other states lay in another tier, or were evicted
            warm.append(row)
            events += new
    out = {"cold": median(cold), "times": len(events)}
    if events:
        out |= {"restored": median(warm), "restore_ms": round(statistics.median(e["took_ms"] for e in events), 2), "bytes": int(statistics.median(e["bytes"] for e in events)),
                "engine_ms": round(statistics.median(e["engine_took_ms"] for e in events), 2)}
    return out


def main():
    report = {"what": "prompt of a llama-server, computed and restored", "model": "tiny random, 4 layers, 2 KiB a token", "threads": 1, "prompts": TIMES, "runs": {}}
    for name, tokens in ((n, k) for n in ("ram", "ssd", "peer") for k in TOKENS):
        with tempfile.TemporaryDirectory() as d:
            folder = pathlib.Path(d)
            w = Pair(folder, str(LLAMA_SERVER)) if name == "peer" else one_node(folder, name == "ssd", tokens)
            try:
                prompts = [t.prose(f"{name}{tokens}{i}", tokens // 5) for i in range(TIMES)]
                report["runs"][f"{name} {tokens}"] = measure(w, "b" if name == "peer" else "a", prompts, "a", name)
            finally:
                w.close()
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
