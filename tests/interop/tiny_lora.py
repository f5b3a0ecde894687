# SPDX-License-Identifier: Apache-2.0
"""A LoRA adapter for the model of scripts/run/tiny-gguf.py: random, of rank 4, over every layer's attn_q and attn_v."""
import array
import importlib.util
import random
import struct

from cluster import ROOT

RANK = 4
_spec = importlib.util.spec_from_file_location("tiny_gguf", ROOT / "scripts/run/tiny-gguf.py")
gguf = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gguf)


def write(path, seed, size=0.5):
    """|size|: strength of the adapter's effect; 0: none."""
    rnd = random.Random(seed)
    keys = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    meta = b"".join(gguf.string(k) + struct.pack("<I", gguf.STRING) + gguf.string(v) for k, v in keys.items())
    meta += gguf.string("adapter.lora.alpha") + struct.pack("<If", gguf.F32, float(RANK))
    infos, blobs, offset = b"", b"", 0
    names = [f"blk.{i}.attn_{w}.weight.lora_{ab}" for i in range(gguf.TINY.layers) for w in "qv" for ab in "ab"]
    for name in names:
        shape = (gguf.TINY.embd, RANK) if name.endswith("a") else (RANK, gguf.TINY.embd)
        raw = array.array("f", [rnd.gauss(0, size) for _ in range(gguf.TINY.embd * RANK)]).tobytes()
        infos += gguf.string(name) + struct.pack("<I2QIQ", 2, *shape, 0, offset)
        blobs += raw
        offset += len(raw)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(names), len(keys) + 1) + meta + infos
    with open(path, "wb") as out:
        out.write(head + b"\0" * (-len(head) % gguf.ALIGN) + blobs)
