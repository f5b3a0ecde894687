# SPDX-License-Identifier: Apache-2.0
"""cgn-sim's reported tokens of a prompt equal the tokens that it hashes, with its own vocabulary and with a
model's files; in the engines' formats."""
import json

import pytest

from kvwire import next_digest, root_digest, short
from test_sim import run, start  # noqa: F401 (a fixture)
from test_sim_events import EVENTS, agree, load, ranks

BLOCK = 16
CHAT = {"messages": [{"role": "system", "content": "You know a lot about harbours, and say little."},
                     {"role": "user", "content": "Which of them is deep enough for a ship of four hundred metres, in the north, in winter?"}]}
TOOLS = {"tools": [{"type": "function", "function": {"name": "depth", "description": "depth of a harbour", "parameters": {"type": "object"}}}]}
BODIES = [CHAT, {**CHAT, **TOOLS}, {**CHAT, "add_generation_prompt": False},
          {**CHAT, "chat_template_kwargs": {"mood": "rather good, all in all, as it should be on such a day"}}]


def tiny_model(folder):
    """Write a model: bytes, a few merges, two added tokens; a template that uses every field."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {b: chr(b) for b in plain}
    names.update({b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in plain)})
    merges = [("t", "h"), ("Ġ", "th"), ("e", "r"), ("o", "u"), ("i", "n"), ("Ġ", "a")]
    vocab = {names[b]: b for b in range(256)}
    for a, b in merges:
        vocab[a + b] = len(vocab)
    added = [{"id": len(vocab) + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, t in enumerate(["<|im_start|>", "<|im_end|>"])]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None, "pre_tokenizer": byte_level,
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab,
                  "merges": [f"{a} {b}" for a, b in merges]}}))
    template = ("{% if tools %}<|im_start|>tools {{ tools | length }}<|im_end|>{% endif %}"
                "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{{ mood or '' }}"
                "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "bos_token": None, "eos_token": "<|im_end|>"}))
    return ["--tokenizer", str(folder / "tokenizer.json"), "--chat-template", str(folder / "tokenizer_config.json")]


@pytest.fixture(params=["arithmetic", "files"])
def sim(request, start, tmp_path):  # noqa: F811
    model = tiny_model(tmp_path) if request.param == "files" else []
    return start("--time-scale", "0", *EVENTS, *model)


def full_blocks(tokens):
    last, out = root_digest("sim"), []
    for i in range(0, len(tokens) - BLOCK + 1, BLOCK):
        last = next_digest(last, tuple(tokens[i:i + BLOCK]))
        out.append(short(last))
    return out


@pytest.mark.parametrize("body", BODIES)
def test_chats_are_hashed_by_the_tokens_told(sim, body):
    told = sim.ask("/tokenize", {"model": "sim", **body}).json()
    assert told["count"] == len(told["tokens"]) and told["max_model_len"] > 0
    answer = sim.ask("/v1/chat/completions", {**body, "max_tokens": 1}).json()
    assert answer["usage"]["prompt_tokens"] == told["count"]
    (rank,) = ranks(sim)
    want = full_blocks(told["tokens"])
    assert len(want) >= 2 and sorted(rank["GPU"]) == sorted(want)
    agree(sim)


def test_texts_are_hashed_by_the_tokens_told(sim):
    told = sim.ask("/tokenize", {"prompt": "the other house in the north " * 9}).json()
    assert sim.ask("/v1/completions", {"prompt": "the other house in the north " * 9, "max_tokens": 1}).status == 200
    assert ranks(sim)[0]["GPU"] == full_blocks(told["tokens"])
    assert sim.ask("/detokenize", {"tokens": told["tokens"]}).json() == {"prompt": "the other house in the north " * 9}
    assert sim.ask("/v1/completions", {"prompt": told["tokens"], "max_tokens": 1}).json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("body", BODIES[:3])
def test_llama_cpp_takes_two_steps_to_the_same_tokens(sim, body):
    text = sim.ask("/apply-template", body).json()["prompt"]
    two = sim.ask("/tokenize", {"content": text, "add_special": True, "parse_special": True}).json()
    assert two == {"tokens": sim.ask("/tokenize", {"model": "sim", **body}).json()["tokens"]}


def test_conversations_find_their_beginning(sim):
    messages = list(CHAT["messages"])
    for turn in range(3):
        answer = sim.ask("/v1/chat/completions", {"messages": messages, "max_tokens": 40, "ignore_eos": True}).json()
        if turn > 0:
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= before - BLOCK
        before = answer["usage"]["prompt_tokens"]
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "And the next?"}]
    agree(sim)


def test_fill_stays_within_the_vocabulary(start, tmp_path):  # noqa: F811
    sim = start("--time-scale", "0", "--kv-blocks", "500", *EVENTS, *tiny_model(tmp_path))
    assert sim.ask("/sim/fill", {"blocks": 400}).json() == {"filled": [400]}
    load(sim, 1, n=20)
    agree(sim)


def test_every_api_has_a_template(start, tmp_path):  # noqa: F811
    sim = start("--time-scale", "0", *tiny_model(tmp_path))
    for path, body in (("/v1/responses", {"input": "Hi there", "max_output_tokens": 2}),
                       ("/v1/messages", {**CHAT, "messages": CHAT["messages"][1:], "system": "Be brief.", "max_tokens": 2})):
        answer = sim.ask(path, body)
        assert answer.status == 200 and answer.json()["usage"]["input_tokens"] > 10, answer.body
    tools = sim.ask("/v1/chat/completions", {**CHAT, **TOOLS, "tool_choice": "required", "max_tokens": 30}).json()
    assert tools["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("flags, says", [(["--chat-template", "x"], "needs --tokenizer"), (["--tokenizer", "/nowhere"], "/nowhere")])
def test_files_that_are_missing(flags, says):
    r = run("--listen", "127.0.0.1:0", *flags)
    assert r.returncode != 0 and says in r.stderr and len(r.stderr.strip().splitlines()) == 1
