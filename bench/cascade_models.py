#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train two real language models of the llama architecture on this machine's CPU, a small and a larger one, and write them as
GGUF for llama-server. They learn to sort and to reverse words of 3 to 16 letters and to add two numbers; the small one does not
learn all of it, so that a cascade has something to decide. Needs jax (pip install jax); takes some minutes. The figures of the
training go to stdout as JSON."""
import argparse
import importlib.util
import json
import pathlib
import random
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
START, END, EOS = 258, 259, 259  # <|im_start|>, <|im_end|>, which ends an answer
LENGTH = 64                      # tokens of an example
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def gguf():
    spec = importlib.util.spec_from_file_location("tiny_gguf", ROOT / "scripts/run/tiny-gguf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GGUF = gguf()
SIZES = {"small": GGUF.Size(48, 1, 4, 4, 128, 4096), "large": GGUF.Size(128, 3, 4, 4, 320, 4096)}


def task(rng):
    """Return a question and its right answer."""
    kind, n = rng.choice(("sort", "reverse", "add")), rng.randint(3, 16)
    word = "".join(rng.choice(LETTERS) for _ in range(n))
    if kind == "sort":
        return f"sort {word}", "".join(sorted(word))
    if kind == "reverse":
        return f"reverse {word}", word[::-1]
    digits = 1 + n // 4
    a, b = rng.randrange(10 ** digits), rng.randrange(10 ** digits)
    return f"add {a} {b}", str(a + b)


def tokens(question, answer):
    """Return the tokens that llama-server makes of a chat with this question, then the answer's, and where those begin."""
    head = [START, *b"user\n", *question.encode(), END, *b"\n", START, *b"assistant\n"]
    return head + [*answer.encode(), EOS], len(head)


def batch(np, rng, rows):
    x, weight = np.full((rows, LENGTH), EOS, np.int32), np.zeros((rows, LENGTH), np.float32)
    for i in range(rows):
        row, begin = tokens(*task(rng))
        x[i, :len(row)] = row
        weight[i, begin:len(row)] = 1
    return x, weight


def model(jax, size):
    """The llama architecture as llama.cpp computes it: RMSNorm, rotary positions of neighbouring pairs, SwiGLU."""
    jnp = jax.numpy
    width = size.embd // size.heads
    angle = jnp.arange(LENGTH)[:, None] * 10000.0 ** (-jnp.arange(0, width, 2) / width)[None, :]
    cos, sin = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]

    def norm(x, w):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * w

    def rotate(x):
        x = x.reshape(*x.shape[:2], size.heads, width)
        even, odd = x[..., 0::2], x[..., 1::2]
        return jnp.stack([even * cos[:, :x.shape[1]] - odd * sin[:, :x.shape[1]], even * sin[:, :x.shape[1]] + odd * cos[:, :x.shape[1]]], -1).reshape(x.shape)

    def forward(p, ids):
        x, n = p["token_embd"][ids], ids.shape[1]
        mask = jnp.tril(jnp.ones((n, n), bool))
        for i in range(size.layers):
            w = {k.removeprefix(f"blk.{i}."): v for k, v in p.items() if k.startswith(f"blk.{i}.")}
            h = norm(x, w["attn_norm"])
            q, k, v = rotate(h @ w["attn_q"].T), rotate(h @ w["attn_k"].T), (h @ w["attn_v"].T).reshape(*h.shape[:2], size.heads, width)
            score = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k) / width ** 0.5, -1e30)
            x = x + jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(score, -1), v).reshape(x.shape) @ w["attn_output"].T
            h = norm(x, w["ffn_norm"])
            x = x + (jax.nn.silu(h @ w["ffn_gate"].T) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
        return norm(x, p["output_norm"]) @ p["output"].T
    return forward


def train(name, path, steps, rows, seed):
    import jax
    import numpy as np
    jnp, size, rng, rnd = jax.numpy, SIZES[name], random.Random(seed), np.random.default_rng(seed)
    p = {}
    for tensor, shape in GGUF.tensors(size, 260):
        value = np.ones(shape) if len(shape) == 1 else rnd.normal(0, 1 / shape[0] ** 0.5, shape[::-1])
        p[tensor.removesuffix(".weight")] = jnp.asarray(value, jnp.float32)
    forward = model(jax, size)

    def loss(p, x, weight):
        logits = jax.nn.log_softmax(forward(p, x[:, :-1]))
        of = jnp.take_along_axis(logits, x[:, 1:, None], 2)[..., 0]
        return -(of * weight[:, 1:]).sum() / weight[:, 1:].sum()

    @jax.jit
    def step(p, m, v, i, x, weight):  # Adam, with a warm-up and a decay of the rate to zero
        value, g = jax.value_and_grad(loss)(p, x, weight)
        rate = 4e-3 * jnp.minimum(1, i / 100) * (1 - i / (steps + 1))
        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
        v = jax.tree.map(lambda a, b: 0.98 * a + 0.02 * b * b, v, g)
        p = jax.tree.map(lambda w, a, b: w - rate * (a / (1 - 0.9 ** i)) / (jnp.sqrt(b / (1 - 0.98 ** i)) + 1e-8), p, m, v)
        return p, m, v, value

    m = v = jax.tree.map(jnp.zeros_like, p)
    began, value = time.monotonic(), 0.0
    for i in range(1, steps + 1):
        p, m, v, value = step(p, m, v, float(i), *batch(np, rng, rows))
        if i % 100 == 0:
            print(f"{name}: step {i} of {steps}, loss {value:.3f}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    GGUF.save(path, name, size, [], lambda tensor, shape: np.asarray(p[tensor.removesuffix(".weight")]).ravel().tolist())
    return {"parameters": sum(int(w.size) for w in p.values()), "steps": steps, "examples": steps * rows, "loss": round(float(value), 4),
            "seconds": round(time.monotonic() - began)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="where small.gguf and large.gguf go")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rows", type=int, default=64, help="examples of a step")
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    print(json.dumps({name: train(name, a.folder / f"{name}.gguf", a.steps, a.rows, a.seed) for name in SIZES}, indent=1))


if __name__ == "__main__":
    main()
