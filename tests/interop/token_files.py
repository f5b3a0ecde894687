# SPDX-License-Identifier: Apache-2.0
"""Small tokenizer files: one for each component, and many random combinations that no model has."""
import random

BYTES = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
BYTE_CHARS = {b: chr(b) for b in BYTES} | {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in BYTES)}
BYTE_MERGES = "Ġ t|h e|Ġt he|i n|Ġ a|a n|e r|Ã ©|ä ¸|l l|' s|Ġ Ġ|ĠĠ ĠĠ|Ċ Ċ|0 0|1 2|Ð ¸|ð Ł|ðŁ ĺ|s s|ss s|Ġa n|t he".split("|")
CHAR_MERGES = "▁ t|h e|▁t he|i n|▁ a|a n|e r|l l|▁ ▁|▁▁ ▁▁|0 0|1 2|s s|▁a n|中 文|\n \n|t he".split("|")
LETTERS = [chr(c) for c in range(0x20, 0x7f)] + list("\n\t▁éüßя中文漢ガが가👍①Åﬁſ\u0301\u0308ａ")
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = [CL100K, r"\p{L}+", r"\s+", r"\s", r"\d", r"[^\s\p{P}]+", r"\p{N}{1,3}", r"(?<=\p{L})\p{N}+", r"(?:\r?\n)+", r"[a-zA-Z_]\w*", r"\W", r"\p{Lu}", r"[\p{M}\p{Sc}é-ü]++", r"\p{Han}+",
            r"(?>a|an)", r".{3}", r"\P{L}+", r"(?i:the|AN)", r"'(?=s)", r"[\x{4e00}-\x{9fff}]", r"\p{^L}", r"\S+?", r"\p{Ll}\p{Lm}|\p{Nd}"]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def model(byte_level, **more):
    merges = BYTE_MERGES if byte_level else CHAR_MERGES
    tokens = list(BYTE_CHARS.values()) if byte_level else ["<unk>"] + LETTERS + ([f"<0x{b:02X}>" for b in range(256)] if more.get("byte_fallback") else [])
    vocab = {t: i for i, t in enumerate(tokens)}
    for m in merges:
        vocab.setdefault(m.replace(" ", ""), len(vocab))
    if more.pop("odd", False):  # a vocabulary with a mark inside a token
        vocab.setdefault("e▁", len(vocab))
        merges = merges + ["e ▁"]
    pairs = more.pop("pairs", False)
    return {"type": "BPE", "vocab": vocab, "merges": [m.split(" ") for m in merges] if pairs else merges, "unk_token": None if byte_level else "<unk>", "fuse_unk": False} | more


def added(content, **more):
    return {"content": content, "special": False, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False} | more


def tokenizer(m, pre=None, normalizer=None, post=None, tokens=()):
    vocab = m["vocab"]
    n, out = len(vocab), []
    for t in tokens:
        out.append(t | {"id": vocab.get(t["content"], n)})
        n += t["content"] not in vocab
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": out, "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": post,
            "decoder": None, "model": m}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
TOKENS = [added("<s>", special=True), added("</s>", special=True, rstrip=True), added("<mask>", lstrip=True), added("<pad>", lstrip=True, rstrip=True), added("[X]", normalized=True),
          added("word", single_word=True), added("ＦＯＯ", normalized=True), added("<s><s>"), added("   "), added("The", normalized=True, single_word=True), added("\n<n>", rstrip=True),
          added("[Y]", normalized=True, lstrip=True), added("é", normalized=True), added("end ", normalized=False)]


def seq(kind, key, parts):
    return {"type": kind, key: parts}


def split(r):
    pattern = {"Regex": r.choice(PATTERNS)} if r.random() < 0.7 else {"String": r.choice([" ", "▁", "an", "\n", "<s>", "é", "  "])}
    return {"type": "Split", "pattern": pattern, "behavior": r.choice(BEHAVIORS), "invert": r.random() < 0.3}


def pre_tokenizer(r):
    kind = r.randint(0, 5)
    if kind == 0:
        scheme = r.choice(["always", "first", "never"])
        out = {"type": "Metaspace", "replacement": r.choice("▁▁_"), "prepend_scheme": scheme}
        return out | ({"split": r.random() < 0.5} if r.random() < 0.7 else {})
    return [split, split, lambda r: {"type": "Digits", "individual_digits": r.random() < 0.5}, lambda r: {"type": "Punctuation", "behavior": r.choice(BEHAVIORS)},
            lambda r: {"type": "WhitespaceSplit"}][kind - 1](r)


def normalizer(r):
    return r.choice([{"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "StripAccents"},
                     {"type": "Strip", "strip_left": r.random() < 0.5, "strip_right": r.random() < 0.5}, {"type": "Prepend", "prepend": r.choice(["▁", "a", " ", "end "])},
                     {"type": "Replace", "pattern": {"String": r.choice([" ", "a", "  ", "e\u0301"])}, "content": r.choice(["▁", "", "bb", "é"])},
                     {"type": "Replace", "pattern": {"Regex": r.choice([r"\s+", r"\p{Lu}", r" {2,}", r"\d(?=\d)"])}, "content": r.choice([" ", "", "_", "$1"])}])


def template(r):
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * r.randint(0, 2) + [{"Sequence": {"id": "A", "type_id": 0}}] + [{"SpecialToken": {"id": "E", "type_id": 0}}] * r.randint(0, 1)
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}, "E": {"id": "E", "ids": [2, 3], "tokens": ["a", "b"]}}}


def files(seed, n):
    """Return |n| tokenizer files: each component by itself first, then random ones."""
    r = random.Random(seed)
    for i in range(n):
        byte_level = r.random() < 0.4
        parts = [pre_tokenizer(r) for _ in range(r.choice([0, 1, 1, 2, 3]))]
        if byte_level:
            parts.append(BYTE_LEVEL | {"add_prefix_space": r.random() < 0.3, "use_regex": r.random() < 0.4})
        norms = [normalizer(r) for _ in range(r.choice([0, 0, 1, 1, 2, 3]))]
        posts = [template(r)] * r.randint(0, 1) + [BYTE_LEVEL] * r.randint(0, 1)
        flags = {"ignore_merges": r.random() < 0.3, "pairs": r.random() < 0.5}
        if not byte_level:
            flags |= {"byte_fallback": r.random() < 0.5, "fuse_unk": r.random() < 0.5, "odd": r.random() < 0.3, "unk_token": r.choice(["<unk>", "<unk>", None])}
        tokens = r.sample(TOKENS, r.choice([0, 2, 5, len(TOKENS)]))
        yield tokenizer(model(byte_level, **flags), seq("Sequence", "pretokenizers", parts) if parts else None, seq("Sequence", "normalizers", norms) if norms else None,
                        seq("Sequence", "processors", posts) if posts else None, tokens)
