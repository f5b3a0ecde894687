# SPDX-License-Identifier: Apache-2.0
"""A small hand-written tokenizer: bytes in GPT-2's spelling, three special tokens, a chat template. Its ids
are computed here."""
import json
import re

SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>"]
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def spelling():
    out, n = [], 0
    for b in range(256):
        plain = 0x21 <= b <= 0x7e or 0xa1 <= b <= 0xac or b >= 0xae
        out.append(chr(b) if plain else chr(256 + n))
        n += not plain
    return out


def tokenizer():
    added = [{"id": 256 + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, s in enumerate(SPECIAL)]
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": {"type": "TemplateProcessing", "single": single,
                               "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                               "special_tokens": {"<s>": {"id": "<s>", "ids": [258], "tokens": ["<s>"]}}},
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {c: b for b, c in enumerate(spelling())}, "merges": []}}


def write(folder, template=TEMPLATE, **tokenizer_keys):
    """Write tokenizer.json and tokenizer_config.json to |folder|; return the former's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**tokenizer(), **tokenizer_keys}))
    config = {"bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>"}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def ids_of(text):
    out = []
    for piece in re.split("(" + "|".join(re.escape(s) for s in SPECIAL) + ")", text):
        out += [256 + SPECIAL.index(piece)] if piece in SPECIAL else list(piece.encode())
    return out


def rendered(*messages):
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages) + "<|im_start|>assistant\n"
