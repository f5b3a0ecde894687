#!/usr/bin/env python3
"""tiny-gguf.py OUT [SEED]: write a GGUF of the llama architecture with random weights, a byte-level BPE vocabulary and a chat template, 2.9 MB.

A real llama-server runs the model with all of its parts (tokenizer, template, prompt cache, slots, SSE, usage); the text is nonsense."""
import array
import math
import random
import struct
import sys

EMBD, LAYERS, HEADS, HEADS_KV, FF, CONTEXT = 128, 4, 4, 4, 256, 32768
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9  # GGUF metadata value types
NORMAL, CONTROL = 1, 3                         # GGUF token types
ALIGN = 32
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def byte_characters():
    """Return GPT-2's printable character for each byte."""
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    other = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(other)}}


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def metadata(tokens, types, merges):
    def u32(v):
        return U32, struct.pack("<I", v)

    def strings(values):
        return ARRAY, struct.pack("<IQ", STRING, len(values)) + b"".join(map(string, values))

    table = {
        "general.architecture": (STRING, string("llama")),
        "general.name": (STRING, string("tiny-random")),
        "llama.context_length": u32(CONTEXT),
        "llama.embedding_length": u32(EMBD),
        "llama.block_count": u32(LAYERS),
        "llama.feed_forward_length": u32(FF),
        "llama.attention.head_count": u32(HEADS),
        "llama.attention.head_count_kv": u32(HEADS_KV),
        "llama.rope.dimension_count": u32(EMBD // HEADS),
        "llama.vocab_size": u32(len(tokens)),
        "llama.attention.layer_norm_rms_epsilon": (F32, struct.pack("<f", 1e-5)),
        "tokenizer.ggml.model": (STRING, string("gpt2")),
        "tokenizer.ggml.pre": (STRING, string("gpt-2")),
        "tokenizer.ggml.tokens": strings(tokens),
        "tokenizer.ggml.token_type": (ARRAY, struct.pack("<IQ", 5, len(types)) + struct.pack(f"<{len(types)}i", *types)),
        "tokenizer.ggml.merges": strings(merges),
        "tokenizer.ggml.bos_token_id": u32(256),
        "tokenizer.ggml.eos_token_id": u32(259),
        "tokenizer.ggml.add_bos_token": (BOOL, struct.pack("<?", False)),
        "tokenizer.chat_template": (STRING, string(TEMPLATE)),
    }
    return len(table), b"".join(string(k) + struct.pack("<I", t) + v for k, (t, v) in table.items())


def tensors(vocabulary):
    shapes = [("token_embd.weight", (EMBD, vocabulary)), ("output_norm.weight", (EMBD,)), ("output.weight", (EMBD, vocabulary))]
    kv = EMBD * HEADS_KV // HEADS
    for i in range(LAYERS):
        block = f"blk.{i}."
        shapes += [(block + name + ".weight", shape) for name, shape in [
            ("attn_norm", (EMBD,)), ("attn_q", (EMBD, EMBD)), ("attn_k", (EMBD, kv)), ("attn_v", (EMBD, kv)),
            ("attn_output", (EMBD, EMBD)), ("ffn_norm", (EMBD,)), ("ffn_gate", (EMBD, FF)), ("ffn_up", (EMBD, FF)), ("ffn_down", (FF, EMBD))]]
    return shapes


def write(path, seed):
    chars = byte_characters()
    merges = ["t h", "h e", "i n", "e r", "a n"]
    special = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
    tokens = [chars[b] for b in range(256)] + special + [m.replace(" ", "") for m in merges]
    types = [NORMAL] * 256 + [CONTROL] * len(special) + [NORMAL] * len(merges)
    rnd = random.Random(seed)
    infos, blobs, offset = b"", [], 0
    shapes = tensors(len(tokens))
    for name, shape in shapes:
        size = math.prod(shape)
        values = [1.0] * size if len(shape) == 1 else [rnd.gauss(0, 1 / math.sqrt(shape[0])) for _ in range(size)]
        infos += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", 0, offset)
        raw = array.array("f", values).tobytes()
        blobs.append(raw + b"\0" * (-len(raw) % ALIGN))
        offset += len(blobs[-1])
    n_keys, keys = metadata(tokens, types, merges)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), n_keys) + keys + infos
    with open(path, "wb") as out:
        out.write(head + b"\0" * (-len(head) % ALIGN))
        out.writelines(blobs)
    print(path, len(tokens), "tokens")


if __name__ == "__main__":
    if "-h" in sys.argv or "--help" in sys.argv:
        print(__doc__)
        sys.exit(0)
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        print(__doc__.splitlines()[0], file=sys.stderr)
        sys.exit(2)
    write(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
