#!/usr/bin/env python3
"""tiny-gguf.py OUT [SEED]: write a GGUF of the llama architecture with random weights, a byte-level BPE vocabulary and a chat template, 2.9 MB.

A real llama-server runs the model with all of its parts (tokenizer, template, prompt cache, slots, SSE, usage); the text is nonsense."""
import array
import collections
import math
import random
import struct
import sys

Size = collections.namedtuple("Size", "embd layers heads heads_kv ff context")
TINY = Size(128, 4, 4, 4, 256, 32768)
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


def vocabulary(merges):
    """Return the texts and the types of the tokens: 256 bytes, four special ones, |merges|."""
    chars = byte_characters()
    special = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
    return ([chars[b] for b in range(256)] + special + [m.replace(" ", "") for m in merges],
            [NORMAL] * 256 + [CONTROL] * len(special) + [NORMAL] * len(merges))


def metadata(name, size, merges):
    def u32(v):
        return U32, struct.pack("<I", v)

    def strings(values):
        return ARRAY, struct.pack("<IQ", STRING, len(values)) + b"".join(map(string, values))

    tokens, types = vocabulary(merges)
    table = {
        "general.architecture": (STRING, string("llama")),
        "general.name": (STRING, string(name)),
        "llama.context_length": u32(size.context),
        "llama.embedding_length": u32(size.embd),
        "llama.block_count": u32(size.layers),
        "llama.feed_forward_length": u32(size.ff),
        "llama.attention.head_count": u32(size.heads),
        "llama.attention.head_count_kv": u32(size.heads_kv),
        "llama.rope.dimension_count": u32(size.embd // size.heads),
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


def tensors(size, n_tokens):
    """Return the names of the weights with their shapes, of which the first dimension is the one of a row."""
    embd, ff, kv = size.embd, size.ff, size.embd * size.heads_kv // size.heads
    shapes = [("token_embd.weight", (embd, n_tokens)), ("output_norm.weight", (embd,)), ("output.weight", (embd, n_tokens))]
    for i in range(size.layers):
        block = f"blk.{i}."
        shapes += [(block + name + ".weight", shape) for name, shape in [
            ("attn_norm", (embd,)), ("attn_q", (embd, embd)), ("attn_k", (embd, kv)), ("attn_v", (embd, kv)),
            ("attn_output", (embd, embd)), ("ffn_norm", (embd,)), ("ffn_gate", (embd, ff)), ("ffn_up", (embd, ff)), ("ffn_down", (ff, embd))]]
    return shapes


def save(path, name, size, merges, values):
    """Write a GGUF. |values|(tensor, shape): its weights, row by row."""
    infos, blobs, offset = b"", [], 0
    shapes = tensors(size, 260 + len(merges))
    for tensor, shape in shapes:
        infos += string(tensor) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", 0, offset)
        raw = array.array("f", values(tensor, shape)).tobytes()
        blobs.append(raw + b"\0" * (-len(raw) % ALIGN))
        offset += len(blobs[-1])
    n_keys, keys = metadata(name, size, merges)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), n_keys) + keys + infos
    with open(path, "wb") as out:
        out.write(head + b"\0" * (-len(head) % ALIGN))
        out.writelines(blobs)


def write(path, seed):
    rnd = random.Random(seed)

    def values(_, shape):
        count = math.prod(shape)
        return [1.0] * count if len(shape) == 1 else [rnd.gauss(0, 1 / math.sqrt(shape[0])) for _ in range(count)]
    save(path, "tiny-random", TINY, ["t h", "h e", "i n", "e r", "a n"], values)
    print(path, "265 tokens")


if __name__ == "__main__":
    if "-h" in sys.argv or "--help" in sys.argv:
        print(__doc__)
        sys.exit(0)
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        print(__doc__.splitlines()[0], file=sys.stderr)
        sys.exit(2)
    write(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
